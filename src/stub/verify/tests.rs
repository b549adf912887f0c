use std::borrow::Cow;

use hickory_proto::op::Message;
use hickory_proto::rr::Record;
use hickory_proto::rr::rdata::A;
use tokio::net::UdpSocket;

use super::*;
use crate::held_port::HeldPort;
use crate::stub::test_support::{forwarding, recorded};

fn link(state: ViewState, names: &[&str], target: Option<&str>) -> LinkView {
    LinkView {
        namespace: "shop".to_owned(),
        service: "web".to_owned(),
        dns_names: names.iter().map(|&name| name.to_owned()).collect(),
        target: target.map(ToOwned::to_owned),
        external_target: Some("external-targets/web-shop-ext".to_owned()),
        state,
        reason: None::<Cow<'static, str>>,
        overridden_by: None,
        created: None,
        history: None,
    }
}

fn zone() -> LinkZone {
    LinkZone::new(Name::from_ascii("lb.internal.").unwrap(), "dns")
}

fn seen(rcode: ResponseCode, data: &[&str], ttl: u32) -> Result<ResolverAnswer, String> {
    Ok(ResolverAnswer { rcode, data: data.iter().map(|&it| it.to_owned()).collect(), ttl: Some(ttl) })
}

fn asked(answers: Vec<Result<ResolverAnswer, String>>) -> Vec<QueriedResolver> {
    let hops = resolver_hops(
        &recorded("nodelocal"),
        &forwarding(),
        "nameserver 169.254.20.10\nsearch default.svc.cluster.local svc.cluster.local\n",
    );
    assert_eq!(hops.len(), 4);
    hops.into_iter().zip(answers).collect()
}

#[test]
fn resolvers_are_asked_from_lb_linker_to_the_pod() {
    let of = |name: &str, resolv_conf: &str| -> Vec<String> {
        let hops = resolver_hops(&recorded(name), &forwarding(), resolv_conf);
        hops.iter().map(|hop| format!("{} {}", hop.name, hop.server)).collect()
    };
    let pod = "nameserver 10.96.0.10\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\n";
    assert_eq!(of("kubeadm", ""), ["lb-linker 10.96.77.7:53", "cluster DNS 10.96.0.10:53"]);
    assert_eq!(
        of("kubeadm", pod),
        ["lb-linker 10.96.77.7:53", "cluster DNS 10.96.0.10:53", "resolver of this Pod 10.96.0.10:53"]
    );
    // The resolver of a node isn't asked.
    assert_eq!(of("kubeadm", "nameserver 192.0.2.1\nsearch example.com\n").len(), 2);
    // NodeLocal DNSCache answers at the address of kube-dns.
    assert_eq!(
        of("nodelocal", ""),
        ["lb-linker 10.96.77.7:53", "cluster DNS 10.96.112.9:53", "NodeLocal DNSCache 169.254.20.10:53"]
    );
    assert_eq!(
        of("kubespray", ""),
        ["lb-linker 10.96.77.7:53", "cluster DNS 10.233.0.3:53", "NodeLocal DNSCache 169.254.25.10:53"]
    );
}

#[test]
fn first_ready_link_of_the_zone_is_asked_for() {
    let links = [
        link(ViewState::Pending, &["pending-shop.lb.internal"], None),
        link(ViewState::Ready, &["other.example"], Some("a.example.com")),
        link(
            ViewState::Ready,
            &["*.web.lb.internal", "web-shop.lb.internal"],
            Some("2001:db8::1, 2001:db8::2"),
        ),
        link(ViewState::Ready, &["late-shop.lb.internal"], Some("b.example.com")),
    ];
    let expected = expected(&links, &zone());
    assert_eq!(
        expected.to_string(),
        "web-shop.lb.internal AAAA: the load balancer is 2001:db8::1,2001:db8::2"
    );
    let many = link(ViewState::Ready, &["many-shop.lb.internal"], Some("192.0.2.1,192.0.2.2 and 51 more"));
    assert_eq!(super::expected(&[many, links[3].clone()], &zone()).data, ["b.example.com"]);
    let none = super::expected(&links[..2], &zone());
    assert_eq!(none.data, ["SOA ns.dns.lb.internal"]);
    let other_apex = LinkZone { apex: "infra".to_owned(), ..zone() };
    assert_eq!(super::expected(&links[..2], &other_apex).data, ["SOA ns.infra.lb.internal"]);
    assert_eq!(
        none.to_string(),
        "lb.internal SOA: no load balancer has a target, so the zone itself is asked for"
    );
}

#[test]
fn first_wrong_answer_is_named_with_address_and_ttl() {
    let links = [link(ViewState::Ready, &["web-shop.lb.internal"], Some("new.example.com"))];
    let expected = expected(&links, &zone());
    let right = || seen(ResponseCode::NoError, &["NEW.example.com"], 5);
    assert_eq!(problem(&expected, &asked(vec![right(), right(), right(), right()])), None);
    // The target itself may not exist yet: the CNAME is right.
    let dead = || seen(ResponseCode::NXDomain, &["new.example.com"], 5);
    assert_eq!(problem(&expected, &asked(vec![dead(), dead(), dead(), dead()])), None);
    for (answers, text) in [
        (
            vec![
                right(),
                right(),
                seen(ResponseCode::NXDomain, &[], 30),
                seen(ResponseCode::NXDomain, &[], 30),
            ],
            "NodeLocal DNSCache at 169.254.20.10 answers wrongly: NXDOMAIN, TTL 30",
        ),
        (
            vec![right(), seen(ResponseCode::NoError, &["old.example.com"], 3), right(), right()],
            "cluster DNS at 10.96.112.9 answers wrongly: old.example.com, TTL 3",
        ),
        (
            vec![Err("no answer".to_owned()), right(), right(), right()],
            "lb-linker at 10.96.77.7 answers wrongly: no answer; resolvers that forward to lb-linker can't be right \
             before it is: see its Pods and its --zone",
        ),
        (
            vec![right(), right(), right(), seen(ResponseCode::NoError, &[], 5)],
            "resolver of this Pod at 169.254.20.10 answers wrongly: no records, TTL 5",
        ),
    ] {
        assert_eq!(problem(&expected, &asked(answers)).as_deref(), Some(text));
    }
    let silent = || Err("no answer".to_owned());
    let text = problem(&expected, &asked(vec![silent(), silent(), silent(), silent()])).unwrap();
    assert!(
        text.starts_with("none of these addresses answers from here: run the command in a Pod"),
        "{text}"
    );
}

#[test]
fn blocks_that_forward_elsewhere_are_reported() {
    let wrong = |name: &str, map: &str, key: &str, text: &str| {
        let mut dns = recorded(name);
        if dns.config_map(map).is_none() {
            dns.config_maps.push(super::super::changes::config_map(map));
        }
        let map = dns.config_maps.iter_mut().find(|it| it.metadata.name.as_deref() == Some(map)).unwrap();
        map.data.get_or_insert_default().entry(key.to_owned()).or_default().push_str(text);
        wrong_blocks(&dns, &forwarding(), true)
    };
    let missing = |file: &str| format!("{file} has no block for lb.internal");
    let block = |address: &str| format!("lb.internal:53 {{\n    forward . {address}\n}}\n");
    assert_eq!(
        wrong_blocks(&recorded("kubeadm"), &forwarding(), true),
        [missing("kube-system/coredns:Corefile")]
    );
    assert_eq!(wrong("kubeadm", "coredns", "Corefile", &block("10.96.77.7")), [""; 0]);
    assert_eq!(
        wrong("kubeadm", "coredns", "Corefile", &block("10.96.0.9")),
        [
            "kube-system/coredns:Corefile:24: lb.internal is forwarded to 10.96.0.9, and Service lb-linker/lb-linker has the \
          address 10.96.77.7"
        ]
    );
    let bind = "    bind 169.254.20.10 10.96.0.10\n";
    let bound = block("10.96.77.7").replace("    forward", &format!("{bind}    forward"));
    assert_eq!(
        wrong("nodelocal", "node-local-dns", "Corefile", &bound),
        [missing("kube-system/coredns:Corefile")]
    );
    assert_eq!(
        wrong("nodelocal", "node-local-dns", "Corefile", &block("10.96.77.7")),
        [
            missing("kube-system/coredns:Corefile"),
            "kube-system/node-local-dns:Corefile:47: lb.internal on port 53 has no bind, but the block for all names has \
             bind 169.254.20.10 10.96.0.10, so that queries may not reach it"
                .to_owned(),
        ]
    );
    for name in ["aks", "k3s"] {
        assert_eq!(
            wrong_blocks(&recorded(name), &forwarding(), true),
            [missing("kube-system/coredns:Corefile")]
        );
        assert_eq!(wrong(name, "coredns-custom", "mine.server", &block("10.96.77.7")), [""; 0]);
        assert_eq!(
            wrong(name, "coredns-custom", "mine.server", &block("10.96.0.9")),
            ["kube-system/coredns-custom:mine.server:1: lb.internal is forwarded to 10.96.0.9, and Service \
              lb-linker/lb-linker has the address 10.96.77.7"]
        );
        // The Corefile's port decides, not that of the imported file's first block.
        let other = "corp.example:5353 {\n    forward . 192.0.2.1\n}\n";
        let text = format!("{other}{}", block("10.96.77.7"));
        assert_eq!(wrong(name, "coredns-custom", "mine.server", &text), [""; 0]);
        let text = block("10.96.77.7").replace(":53 ", ":5300 ");
        assert_eq!(
            wrong(name, "coredns-custom", "mine.server", &text),
            [missing("kube-system/coredns:Corefile")]
        );
    }
}

#[test]
fn imports_that_cant_be_read_are_reported() {
    let mut dns = recorded("kubeadm");
    let corefile = dns.config_maps[0].data.as_mut().unwrap().get_mut("Corefile").unwrap();
    corefile.push_str("import zones/*.conf\n");
    let [reason] = &wrong_blocks(&dns, &forwarding(), true)[..] else { panic!() };
    assert!(reason.starts_with("kube-system/coredns:Corefile:24:8: zones/*.conf is a file"), "{reason}");
}

#[test]
fn missing_block_is_reported_only_on_request() {
    assert_eq!(wrong_blocks(&recorded("kubeadm"), &forwarding(), false), [""; 0]);
}

#[test]
fn former_addresses_are_found_without_a_corefile() {
    let mut dns = recorded("gke-kube-dns");
    let domains = dns.config_maps[0].data.as_mut().unwrap();
    domains.insert("stubDomains".to_owned(), r#"{"lb.internal": ["10.96.0.9"]}"#.to_owned());
    let end =
        "lb.internal is forwarded to 10.96.0.9, and Service lb-linker/lb-linker has the address 10.96.77.7";
    assert_eq!(
        wrong_blocks(&dns, &forwarding(), false),
        [format!("kube-system/kube-dns:stubDomains: {end}")]
    );
    let mut dns = recorded("openshift");
    let server = &mut dns.dns_operator.as_mut().unwrap().data["spec"]["servers"][0];
    server["zones"] = serde_json::json!(["lb.internal"]);
    server["forwardPlugin"]["upstreams"] = serde_json::json!(["10.96.0.9"]);
    assert_eq!(
        wrong_blocks(&dns, &forwarding(), false),
        [format!("dns.operator/default, server corp: {end}")]
    );
}

#[test]
fn cluster_without_a_known_resolver_is_a_problem() {
    let links = [link(ViewState::Ready, &["web-shop.lb.internal"], Some("new.example.com"))];
    let expected = expected(&links, &zone());
    let hops = resolver_hops(&ClusterDns::default(), &forwarding(), "");
    let mut asked: Vec<QueriedResolver> =
        hops.into_iter().map(|tier| (tier, seen(ResponseCode::NoError, &["new.example.com"], 5))).collect();
    let text = "no resolver of this cluster was found to ask besides lb-linker";
    assert_eq!(problem(&expected, &asked).as_deref(), Some(text));
    asked[0].1 = seen(ResponseCode::NXDomain, &[], 30);
    let text = problem(&expected, &asked).unwrap();
    assert!(text.starts_with("lb-linker at 10.96.77.7 answers wrongly: NXDOMAIN, TTL 30; "), "{text}");
}

#[test]
fn unspecified_bind_address_of_node_local_isnt_asked() {
    let mut dns = recorded("nodelocal");
    let map =
        dns.config_maps.iter_mut().find(|it| it.metadata.name.as_deref() == Some("node-local-dns")).unwrap();
    let corefile = map.data.as_mut().unwrap().get_mut("Corefile").unwrap();
    *corefile = corefile.replace("bind 169.254.20.10 10.96.0.10", "bind 0.0.0.0");
    assert!(resolver_hops(&dns, &forwarding(), "").iter().all(|tier| !tier.server.ip().is_unspecified()));
}

#[tokio::test]
async fn truncated_answer_counts_by_its_records() {
    let expected = Expected {
        name: Name::from_ascii("web.lb.internal.").unwrap(),
        qtype: RecordType::A,
        data: vec!["192.0.2.1".to_owned(), "192.0.2.2".to_owned()],
    };
    for (octets, is_known) in [(-1, true), (-20, false)] {
        // Its TCP port is closed.
        let port = HeldPort::take().unwrap();
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.bind(&port.local().into()).unwrap();
        let udp = UdpSocket::from_std(socket.into()).unwrap();
        let hops = vec![ResolverHop { name: "cluster DNS", server: port.local() }];
        let server = async {
            let mut buffer = [0; 512];
            let (length, client) = udp.recv_from(&mut buffer).await.unwrap();
            let query = Message::from_vec(&buffer[..length]).unwrap();
            let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
            reply.add_query(query.queries[0].clone());
            for last in [1, 2] {
                let data = RData::A(A::new(192, 0, 2, last));
                reply.add_answer(Record::from_rdata(expected.name.clone(), 5, data));
            }
            let whole = reply.to_vec().unwrap();
            udp.send_to(&whole[..whole.len().checked_add_signed(octets).unwrap()], client).await.unwrap();
        };
        let (asked, ()) = tokio::join!(ask(hops, &expected), server);
        let seen = &asked[0].1;
        assert_eq!(is_right(&expected, seen), is_known, "{seen:?}");
        if !is_known {
            let why = seen.as_ref().unwrap_err();
            assert!(why.starts_with("the answer is truncated, and there is none by TCP: "), "{why}");
        }
    }
}
