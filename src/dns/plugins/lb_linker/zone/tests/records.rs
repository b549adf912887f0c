//! Names with declared records: those of DNSEndpoints.

use super::*;
use crate::model::owner::{Claims, Owner};
use crate::model::records::{RecordData, RecordKind, Records};

fn declare(store: &Store, host: &str, addresses: &[&str], records: &[(RecordKind, Option<u32>, &str)]) {
    let mut all = Records::default();
    for (kind, ttl, text) in records {
        assert!(all.add(*kind, *ttl, RecordData::parse(*kind, text).unwrap()));
    }
    let owner = Owner { source: Source::DNS_ENDPOINTS, key: ServiceKey::new("shop", host) };
    let link = Link {
        target: (!addresses.is_empty()).then(|| Target::Addresses(ips(addresses).into())),
        records: Some(Arc::new(all)),
        ..Link::new(Source::DNS_ENDPOINTS.target_key(&owner.key), "")
    };
    store.observe(
        &owner,
        &Claims { created: 0, names: [host.into()].into(), ..Default::default() },
        &Arc::new(link),
        None,
    );
}

fn zone_and_store() -> (Zone, Store) {
    let sources = vec![Source::SERVICES, Source::DNS_ENDPOINTS];
    let options = ZoneOptions { sources, ..Default::default() };
    let zone = Zone::with_options(&name("lb.internal."), options).unwrap();
    let store = Store::new(OnGone::Kept).with_zones([zone.configured().clone()]);
    let web = with_ports(&["http/TCP/80", "https/TCP/443"], link("shop", "web", &[], &["192.0.2.9"]));
    store.replace(None, [web], vec![], &Default::default());
    store.set_known(Input::Services);
    store.set_listed(&Source::DNS_ENDPOINTS, &[zone.configured().clone()]);
    (zone, store)
}

#[test]
fn declared_records_are_answered_by_type() {
    use RecordKind::{Mx, Srv, Txt};
    let (zone, store) = zone_and_store();
    let app = "app.shop.lb.internal";
    let sip = "_sip._tcp.shop.lb.internal";
    declare(
        &store,
        app,
        &["192.0.2.1"],
        &[
            (Txt, Some(60), "a b"),
            (Txt, None, "\"c\" \"d\""),
            (Mx, None, "10 mail.example.com"),
            (Mx, None, "0 ."),
        ],
    );
    declare(&store, sip, &[], &[(Srv, Some(0), "0 5 5060 web.shop.lb.internal")]);
    declare(&store, "*.any.shop.lb.internal", &[], &[(Txt, None, "wild")]);
    // The SRV names of load balancers go before.
    declare(&store, "_http._tcp.web.shop.lb.internal", &[], &[(Srv, None, "0 0 1 thief.example")]);
    declare(&store, "_tcp.web.shop.lb.internal", &[], &[(Txt, None, "x")]);
    declare(&store, "x._https._tcp.web.shop.lb.internal", &[], &[(Txt, None, "x")]);
    let txt = format!("NoError | {app}. 60 IN TXT a b, {app}. 60 IN TXT cd |  | ");
    let mx = format!("NoError | {app}. 5 IN MX 10 mail.example.com., {app}. 5 IN MX 0 . |  | ");
    let srv = format!("NoError | {sip}. 0 IN SRV 0 5 5060 web.shop.lb.internal. |  | ");
    let a = format!("NoError | {app}. 5 IN A 192.0.2.1 |  | ");
    let soa = soa_record(store.serial());
    let question = |host: &str, qtype: &str| format!("{host}. {qtype}");
    for (question, expected) in [
        (question(app, "TXT"), &*txt),
        (question(app, "MX"), &mx),
        (question(app, "A"), &a),
        (question(app, "ANY"), &a),
        (question(app, "AAAA"), "NODATA"),
        (question(app, "SRV"), "NODATA"),
        (question(app, "CNAME"), "NODATA"),
        (question(sip, "SRV"), &srv),
        (question(sip, "ANY"), &srv),
        (question(sip, "A"), "NODATA"),
        (question("_tcp.shop.lb.internal", "SRV"), "NODATA"),
        (question("x.any.shop.lb.internal", "TXT"), "NoError | x.any.shop.lb.internal. 5 IN TXT wild |  | "),
        (question("x.any.shop.lb.internal", "A"), "NODATA"),
        (question("any.shop.lb.internal", "TXT"), "NODATA"),
        // Unlike in RFC 4592, a wildcard doesn't match a label that begins with `_`.
        (question("_x.any.shop.lb.internal", "TXT"), "NXDOMAIN"),
        (
            question("_http._tcp.web.shop.lb.internal", "SRV"),
            "NoError | _http._tcp.web.shop.lb.internal. 5 IN SRV 0 100 80 web.shop.lb.internal. |  | \
             web.shop.lb.internal. 5 IN A 192.0.2.9",
        ),
        (
            question("_tcp.web.shop.lb.internal", "TXT"),
            "NoError | _tcp.web.shop.lb.internal. 5 IN TXT x |  | ",
        ),
        (
            question("_https._tcp.web.shop.lb.internal", "SRV"),
            "NoError | _https._tcp.web.shop.lb.internal. 5 IN SRV 0 100 443 web.shop.lb.internal. |  | \
             web.shop.lb.internal. 5 IN A 192.0.2.9",
        ),
        (question("absent.shop.lb.internal", "TXT"), "NXDOMAIN"),
    ] {
        check(&zone, &store, &soa, &[(&question, expected)]);
    }
}

#[test]
fn long_txt_and_many_mx_records_are_whole() {
    let (zone, store) = zone_and_store();
    let long = "x".repeat(600);
    let mail: Vec<String> = (0..100).map(|number| format!("{number} mail.example.com")).collect();
    let records: Vec<_> = mail.iter().map(|text| (RecordKind::Mx, None, &**text)).collect();
    declare(&store, "mail.shop.lb.internal", &[], &records);
    declare(&store, "txt.shop.lb.internal", &[], &[(RecordKind::Txt, None, &long)]);
    let answer = |host: &str, qtype| {
        let name = name(host);
        zone.answer(&store, &name, &zone.relative(&name).unwrap(), qtype).answers
    };
    assert_eq!(answer("mail.shop.lb.internal.", RecordType::MX).len(), 100);
    assert_eq!(answer("mail.shop.lb.internal.", RecordType::ANY).len(), 100);
    let [txt] = &answer("txt.shop.lb.internal.", RecordType::TXT)[..] else { panic!() };
    let RData::TXT(txt) = &txt.data else { panic!("{txt:?}") };
    assert_eq!(txt.txt_data.iter().map(|string| string.len()).collect::<Vec<_>>(), [255, 255, 90]);
}

#[test]
fn answer_of_records_rests_on_their_link() {
    let (zone, store) = zone_and_store();
    let app = "app.shop.lb.internal";
    declare(&store, app, &[], &[(RecordKind::Txt, None, "a")]);
    let qname = name("app.shop.lb.internal.");
    let ask = || {
        let answer = zone.answer(&store, &qname, &zone.relative(&qname).unwrap(), RecordType::TXT);
        let dependencies = answer.dependencies.unwrap();
        (answer.answers[0].data.to_string(), dependencies)
    };
    let is_current = |kept: &ZoneDependencies| {
        let names = kept.names.as_ref().is_none_or(NameDependency::is_current);
        names && !kept.links.iter().any(|link| link.is_outdated())
    };
    let (data, kept) = ask();
    assert!(data == "a" && is_current(&kept));
    declare(&store, app, &[], &[(RecordKind::Txt, None, "b")]);
    assert!(!is_current(&kept));
    let (data, kept) = ask();
    assert!(data == "b" && is_current(&kept));
}
