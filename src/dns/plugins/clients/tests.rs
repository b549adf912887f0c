use std::time::Duration;

use hickory_proto::rr::Name;

use crate::dns::chain::server::Server;
use crate::dns::message::ede::Ede;
use crate::dns::plugins::tests::support::{TestServer, link};
use crate::store::Input;

const ANSWER: &str = "template IN A {\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}";

fn block(lines: &str) -> TestServer {
    TestServer::block(&format!("{lines}\n{ANSWER}")).edns(1232)
}

#[tokio::test]
async fn listed_clients_are_answered_and_other_clients_refused() {
    for (clients, client, is_listed) in [
        ("10.0.0.0/8", "10.1.2.3", true),
        ("10.0.0.0/8", "11.0.0.1", false),
        ("10.0.0.0/8", "2001:db8::1", false),
        ("192.0.2.7 2001:db8::/32", "192.0.2.7", true),
        ("192.0.2.7 2001:db8::/32", "192.0.2.8", false),
        ("192.0.2.7 2001:db8::/32", "2001:db8::1", true),
        ("::ffff:10.0.0.0/104", "10.1.2.3", true),
        ("0.0.0.0/0", "2001:db8::1", false),
        ("any", "192.0.2.8", true),
        ("any", "2001:db8::1", true),
    ] {
        let reply = block(&format!("clients {clients}")).from(client).reply("a.example. A").await.unwrap();
        let expected = if is_listed { (1, None) } else { (0, Some(Ede::PROHIBITED)) };
        assert_eq!((reply.records.answers.len(), reply.ede), expected, "{clients} {client}");
    }
    assert_eq!(Ede::PROHIBITED.code, 18, "RFC 8914 section 4.19");
}

#[tokio::test]
async fn acl_comes_first_and_keeps_its_extended_error() {
    let context = block("acl {\nblock net 10.0.0.1\n}\nclients 10.0.0.0/8");
    for (client, code) in [("10.0.0.1", Some(15)), ("10.0.0.2", None), ("192.0.2.1", Some(18))] {
        let reply = context.clone().from(client).reply("a.example. A").await.unwrap();
        assert_eq!(reply.ede.map(|ede| ede.code), code, "{client}");
    }
}

/// Returns a server with one link, `web` in `default`, which has the target `t.example`.
fn with_link(corefile: &str) -> TestServer {
    let context = TestServer::corefile(corefile).edns(1232);
    let store = &context.shared.store;
    store.set_zones([&Name::from_ascii("lb.internal.").unwrap()]);
    store.replace(None, vec![link("web", "t.example.")], vec![], &Default::default());
    store.set_known(Input::Services);
    context
}

#[tokio::test]
async fn links_in_the_same_block_are_for_every_client() {
    let context = with_link(&format!(". {{\nclients 10.0.0.0/8\nlb_linker lb.internal\n{ANSWER}\n}}\n"));
    for client in ["10.0.0.1", "192.0.2.7"] {
        let context = context.clone().from(client);
        let answer = context.ask("web.default.lb.internal. A").await;
        assert!(answer.contains("192.0.2.1") && answer.starts_with("NOERROR aa |"), "{client}: {answer}");
    }
    assert_eq!(context.from("192.0.2.7").ask("t.example. A").await, "REFUSED | | |");
}

#[tokio::test]
async fn hosts_and_template_answer_link_zones_for_every_client() {
    let before = "hosts {\n192.0.2.2 fixed.lb.internal\nfallthrough\n}\n\
                  template IN A made.lb.internal {\nanswer \"{{ .Name }} 60 IN A 192.0.2.3\"\n}\n\
                  template IN A out.lb.internal {\nanswer \"{{ .Name }} 60 IN CNAME t.example.\"\n}";
    let context = with_link(&format!(
        "lb.internal {{\nclients 10.0.0.0/8\n{before}\nlb_linker\n}}\n. {{\nclients 10.0.0.0/8\n{ANSWER}\n}}\n"
    ));
    for (client, is_listed) in [("10.0.0.1", true), ("192.0.2.7", false)] {
        let context = context.clone().from(client);
        for (name, address) in [("fixed", "192.0.2.2"), ("made", "192.0.2.3"), ("web.default", "192.0.2.1")] {
            let answer = context.ask(&format!("{name}.lb.internal. A")).await;
            assert!(answer.starts_with("NOERROR aa") && answer.contains(address), "{client}: {answer}");
        }
        // The target of an alias of *template* is a name outside the zones.
        let answer = context.ask("out.lb.internal. A").await;
        assert!(answer.contains("CNAME t.example."), "{client}: {answer}");
        assert_eq!(answer.contains("192.0.2.1"), is_listed, "{client}: {answer}");
    }
}

#[tokio::test]
async fn template_alias_at_a_target_is_followed_for_every_client() {
    let alias = "template IN A t.example {\nanswer \"{{ .Name }} 60 IN CNAME a.example.\"\n}";
    let context = with_link(&format!(
        "lb.internal {{\nlb_linker\n}}\n. {{\nclients 10.0.0.0/8\n{alias}\n{ANSWER}\n}}\n"
    ));
    let answer = context.from("192.0.2.7").ask("web.default.lb.internal. A").await;
    assert!(answer.contains("192.0.2.1"), "{answer}");
}

#[tokio::test]
async fn name_that_falls_through_is_for_listed_clients_only() {
    let context = with_link(". {\nclients 10.0.0.0/8\nlb_linker lb.internal {\nfallthrough\n}\nwhoami\n}\n");
    for (client, is_listed) in [("10.0.0.1", true), ("192.0.2.7", false), ("10.0.0.2", true)] {
        let context = context.clone().from(client);
        let reply = context.reply("new.default.lb.internal. A").await.unwrap();
        let expected = if is_listed { ("whoami", None) } else { ("lb_linker", Some(Ede::PROHIBITED)) };
        assert_eq!((reply.plugin, reply.ede), expected, "{client}");
        assert!(reply.validity.is_none(), "{client}: the reply isn't reused for another client");
        let link = context.ask("web.default.lb.internal. A").await;
        assert!(link.contains("CNAME t.example."), "{client}: {link}");
    }
    assert_eq!(
        context.metrics("prohibited"),
        ["lb_linker_dns_prohibited_requests_total{server=\"dns://:53\"} 1"]
    );
}

#[tokio::test]
async fn internal_queries_are_answered() {
    let context = block("clients 192.0.2.0/24");
    let mut own = context.server.internal_request(context.request("a.example. A").query);
    let reply = Server::serve(&mut own).await.unwrap();
    assert_eq!(reply.records.answers.len(), 1, "a probe of the plugin loop is such a query");
}

#[tokio::test]
async fn look_ups_for_links_obey_acl_but_not_the_plugin_clients() {
    for (rule, is_followed) in
        [("clients 10.0.0.0/8", true), ("acl {\nblock net 192.0.2.7\n}\nclients any", false)]
    {
        let context = with_link(&format!("lb.internal {{\nlb_linker\n}}\n. {{\n{rule}\n{ANSWER}\n}}\n"));
        let answer = context.from("192.0.2.7").ask("web.default.lb.internal. A").await;
        assert_eq!(answer.contains("192.0.2.1"), is_followed, "{rule}: {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_are_all_counted_and_logged_once_a_minute() {
    let context = block("clients 10.0.0.0/8").from("192.0.2.7");
    let prohibited = context.shared.metrics.group::<super::ProhibitedQueries>().unwrap();
    let unlogged = || prohibited.log.unlogged();
    for (pause, expected) in [(0, 0), (0, 1), (1, 2), (60, 0)] {
        tokio::time::advance(Duration::from_secs(pause)).await;
        context.ask("a.example. A").await;
        assert_eq!(unlogged(), expected);
    }
    assert_eq!(
        context.metrics("prohibited"),
        ["lb_linker_dns_prohibited_requests_total{server=\"dns://:53\"} 4"]
    );
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    for (line, error) in [
        ("clients", "1: clients needs addresses, networks such as 10.0.0.0/8, or any"),
        ("clients 10.0.0", "9: \"10.0.0\" isn't an address, or a network such as 10.0.0.0/8"),
        ("clients 10.0.0.0/33", "9: \"10.0.0.0/33\" isn't an address, or a network such as 10.0.0.0/8"),
        ("clients 10.0.0.0/8 any", "20: any can't be combined with networks"),
        ("clients any {\n}", "1: clients takes no braces"),
    ] {
        assert_eq!(TestServer::error(line), format!("Corefile:2:{error}"));
    }
    let twice = TestServer::error("clients any\nclients any");
    assert_eq!(twice, "Corefile:3:1: clients can be there only once in a block, and it is on line 2 already");
}
