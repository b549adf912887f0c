use tokio::net::UdpSocket;

use super::*;
use objects::Objects;

const WHY: &str = "a reason";

fn outcome(differences: usize, not_asked_again: usize) -> Outcome {
    let mut outcome = Outcome { questions: 5000, not_asked_again, ..Outcome::default() };
    outcome.count(&Verdict::Same, "a.c.local", RecordType::A);
    outcome.count(&Verdict::Explained(WHY), "b.c.local", RecordType::SOA);
    outcome.count(&Verdict::Explained(WHY), "c.c.local", RecordType::SOA);
    let difference = |at: usize| Difference { name: format!("d{at}.c.local"), lines: vec![format!("d{at}")] };
    outcome.differences = (0..differences).map(difference).collect();
    outcome
}

#[test]
fn report_ends_with_one_line_of_numbers() {
    let explained = ["Explained differences:", "  2: a reason, as for b.c.local. SOA", ""];
    let summary = "5000 questions: 1 same, 2 explained differences, 0 differences";
    assert_eq!(outcome(0, 0).report(0), [&explained[..], &[summary]].concat());
    let summary = "5000 questions: 1 same, 2 explained differences, 1 difference, 3 about objects that changed meanwhile";
    assert_eq!(outcome(1, 0).report(3), [&["d0", ""], &explained[..], &[summary]].concat());
    let mut one = Outcome { questions: 1, not_asked_again: 1, ..Outcome::default() };
    one.count(&Verdict::Explained(WHY), "b.c.local", RecordType::SOA);
    let summary = "1 question: 0 same, 1 explained difference, 1 difference (1 of them was not asked again)";
    let lines = one.report(0);
    let ends = [lines.first(), lines.last()].map(|line| line.map(String::as_str));
    assert_eq!(ends, [Some("and 1 more difference"), Some(summary)]);
}

#[test]
fn one_server_is_coredns_in_all_explanations() {
    let (first, second): (Reasons, Reasons) = ([Some(WHY), None], [None, Some(WHY)]);
    for (reasons, expected) in
        [(&[first, second, second, [Some(WHY); 2]][..], 1), (&[first, first, second, [None; 2]], 0), (&[], 0)]
    {
        let apart: Vec<(usize, usize, Reasons)> = reasons.iter().map(|&why| (0, 0, why)).collect();
        assert_eq!(role_of_coredns(&apart), expected, "{reasons:?}");
    }
}

#[test]
fn questions_of_each_kind_are_asked_again_by_turns() {
    let service = serde_json::json!([{"metadata": {"name": "alias", "namespace": "shop"},
        "spec": {"type": "ExternalName", "externalName": "a.example"}}]);
    let objects = Objects { services: serde_json::from_value(service).unwrap(), ..Objects::default() };
    let names = Names::of(&objects, "c.local");
    let comparison =
        Comparison::new(&names, ["192.0.2.1:53", "192.0.2.2:53"].map(|it| it.parse().unwrap()), 1);
    let all = [
        "1.0.0.10.in-addr.arpa",
        "2.0.0.10.in-addr.arpa",
        "alias.shop.svc.c.local",
        "w.shop.svc.c.local",
        "x.shop.svc.c.local",
    ];
    let all = all.map(str::to_owned);
    let open = vec![(0, 0), (0, 3), (1, 3), (2, 0), (3, 0), (4, 0), (4, 1)];
    let expected = [(2, 0), (3, 0), (4, 1), (0, 0), (0, 3), (4, 0), (1, 3)];
    assert_eq!(comparison.in_turns(&all, open), expected);
}

#[test]
fn report_shows_reverse_names_last() {
    let mut outcome = Outcome::default();
    for name in ["1.0.0.10.in-addr.arpa", "x.c.local", "a.c.local"] {
        outcome.differences.push(Difference { name: name.to_owned(), lines: vec![name.to_owned()] });
    }
    assert_eq!(outcome.report(0)[..5], ["a.c.local", "", "x.c.local", "", "1.0.0.10.in-addr.arpa"]);
}

#[test]
fn report_cuts_many_differences_with_their_number() {
    let lines = outcome(MAX_SHOWN + 20, 4000).report(0);
    assert_eq!(lines[2 * MAX_SHOWN], "and 4020 more differences");
    let summary = "5000 questions: 1 same, 2 explained differences, 4120 differences (4000 of them were not asked again)";
    assert_eq!((lines.len(), lines.last().map(String::as_str)), (2 * MAX_SHOWN + 6, Some(summary)));
}

#[test]
fn differences_about_changed_objects_are_forgotten() {
    let names = |ip: &str| {
        let service =
            serde_json::json!([{"metadata": {"name": "d1", "namespace": "shop"}, "spec": {"clusterIP": ip}}]);
        Names::of(
            &Objects { services: serde_json::from_value(service).unwrap(), ..Objects::default() },
            "c.local",
        )
    };
    let mut outcome = outcome(1, 0);
    let of = |name: &str| Difference { name: name.to_owned(), lines: Vec::new() };
    outcome.differences.extend([of("_http._tcp.d1.shop.svc.c.local"), of("d2.shop.svc.c.local")]);
    assert_eq!(outcome.forget_changed(&names("10.0.0.1"), &names("10.0.0.1")), 0);
    assert_eq!(outcome.forget_changed(&names("10.0.0.1"), &names("10.0.0.2")), 1);
    let kept: Vec<&str> = outcome.differences.iter().map(|it| &*it.name).collect();
    assert_eq!(kept, ["d0.c.local", "d2.shop.svc.c.local"]);
}

/// Starts a server that changes each question to an answer.
async fn server(answer: impl Fn(&mut Vec<u8>) + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
            let mut message = buffer[..length].to_vec();
            message[2] |= 0x80;
            answer(&mut message);
            let _ = socket.send_to(&message, client).await;
        }
    });
    address
}

#[tokio::test]
async fn server_that_refuses_or_forges_ids_ends_the_comparison() {
    let names = Names::of(&Objects::default(), "c.local");
    let refuses = server(|message| message[3] |= 5).await;
    let forges = server(|message| message[0] ^= 1).await;
    for (servers, expected) in [
        (
            [refuses, forges],
            format!(
                "{refuses} doesn't serve c.local: it answers the question for its SOA record with REFUSED"
            ),
        ),
        ([forges, refuses], format!("{forges} doesn't answer (no answer): --server needs the address")),
    ] {
        let error = Comparison::new(&names, servers, 500).run(|_| ()).await.unwrap_err().to_string();
        assert!(error.starts_with(&expected), "{error}");
    }
}
