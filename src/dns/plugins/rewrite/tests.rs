//! Tests of rules, and of the effects on the next plugin and the client.

mod answers;
mod cname;
mod edns0;

use std::sync::Arc;

use async_trait::async_trait;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};

use crate::dns::chain::plugin::{ChainPlugin, Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::chain::server::{Server, ServerBlock};
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::plugins::tests::support::{TestServer, record};

/// The plugin after `rewrite`.
#[derive(Clone, Copy, Debug)]
enum NextPlugin {
    /// Answers with the query, in a TXT record of the queried name.
    Question,
    /// Answers from pairs of `name TYPE` and `RCODE answers | authorities | additionals`, with comma-separated records
    /// `owner ttl type data`. The RCODE is `NOERROR`, `NXDOMAIN`, or `TC` for a truncated answer. Queries for the root
    /// are dropped; queries without a pair fail with SERVFAIL.
    Zone(&'static [(&'static str, &'static str)]),
}

#[async_trait]
impl Plugin for NextPlugin {
    /// A server with a plugin of this name accepts queries of all classes.
    fn name(&self) -> &'static str {
        "forward"
    }

    async fn serve(&self, request: &mut Request, _next: Next<'_>) -> PluginResult {
        let query = &request.query;
        let asked = format!("{} {}", query.name(), query.query_type());
        let mut reply = request.reply("forward");
        match self {
            Self::Question => {
                let text =
                    format!("{} {} {}", query.name(), query.query_class(), u16::from(query.query_type()));
                let data = RData::TXT(TXT::new(vec![text]));
                reply.records.answers.push(Record::from_rdata(query.name().clone(), 60, data));
            }
            Self::Zone(_) if query.name().is_root() => return Err(PluginError::Drop),
            Self::Zone(all) => {
                let Some((_, found)) = all.iter().find(|(question, _)| question.eq_ignore_ascii_case(&asked))
                else {
                    return Err(PluginError::servfail("unknown name"));
                };
                let (rcode, records) = found.split_once(' ').unwrap_or((found, ""));
                reply.metadata.response_code = match rcode {
                    "NOERROR" => ResponseCode::NoError,
                    "NXDOMAIN" => ResponseCode::NXDomain,
                    "TC" => {
                        reply.metadata.truncation = true;
                        ResponseCode::NoError
                    }
                    _ => panic!("{rcode}"),
                };
                for (section, records) in reply.records.all_mut().into_iter().zip(records.split('|')) {
                    let records = records.split(',').map(str::trim).filter(|text| !text.is_empty());
                    section.extend(records.map(record));
                }
            }
        }
        Ok(reply)
    }
}

/// Returns a server with these rules for all names.
fn server_with_rules(rules: &str, next_plugin: NextPlugin) -> TestServer {
    let mut context = TestServer::block(rules);
    let (zone, block) = context.server.blocks().next().unwrap();
    let plugins = vec![block.plugins[0].clone(), ChainPlugin::new(Arc::new(next_plugin))];
    let block = ServerBlock {
        zones: vec![zone.clone()],
        plugins,
        access_rules: block.access_rules.clone(),
        link_zones: ZoneSet::default(),
        cluster_zones: ZoneSet::default(),
        labeled: ZoneSet::default(),
        debug: false,
    };
    let metrics = context.shared.metrics.group().unwrap();
    context.server = Arc::new(Server::new("dns://:53".into(), &[(zone.clone(), Arc::new(block))], metrics));
    context.request.server = Arc::clone(&context.server);
    context
}

/// Returns `RCODE flags | answers | authorities | additionals`, without trailing empty sections.
async fn shown(context: &TestServer, question: &str) -> String {
    context.ask(question).await.trim_end_matches([' ', '|']).to_owned()
}

/// Returns the query that reaches the next plugin: `name class type-number`.
async fn asked(rules: &str, question: &str) -> String {
    let reply = server_with_rules(rules, NextPlugin::Question).reply(question).await.unwrap();
    let Some(RData::TXT(text)) = reply.records.answers.first().map(|record| &record.data) else {
        return reply.metadata.response_code.to_string();
    };
    String::from_utf8_lossy(&text.txt_data[0]).into_owned()
}

#[tokio::test]
async fn name_rule_changes_matching_names() {
    for (rule, question, asked_for) in [
        ("a.com b.org", "a.com.", "b.org."),
        ("A.com. B.org.", "a.COM.", "b.org."),
        ("a.com b.org", "x.a.com.", "x.a.com."),
        ("exact a.com b.org", "a.com.", "b.org."),
        ("EXACT a.com *.b.org", "a.com.", "*.b.org."),
        ("prefix foo bar", "foo.example.com.", "bar.example.com."),
        ("prefix foo. bar.", "foo.example.com.", "bar.example.com."),
        ("prefix foo bar", "food.example.com.", "food.example.com."),
        ("prefix foo bar", "example.foo.", "example.foo."),
        ("suffix com org", "foo.example.com.", "foo.example.org."),
        ("suffix .com .org", "foo.example.com.", "foo.example.org."),
        ("suffix .com .org", "com.", "com."),
        ("suffix com org", "com.example.", "com.example."),
        ("suffix .in.a.example nginx.a.example", "web.in.a.example.", "webnginx.a.example."),
        ("substring service svc", "a.service.b.service.c.", "a.svc.b.svc.c."),
        ("substring service svc", "a.services.b.", "a.services.b."),
        (r"regex (.*)-(us-west-1)\.a\.b {1}.s.{2}.c", "f-us-west-1.a.b.", "f.s.us-west-1.c."),
        ("regex (f.*m)\\.regex\\.(nl) to.{2}", "from.regex.nl.", "to.nl."),
        ("regex b x", "a.b.c.", "x."),
        ("regex B x", "a.b.c.", "a.b.c."),
        ("regex B x", "a.B.c.", "a.B.c."),
        ("regex b X.Y", "a.B.c.", "x.y."),
        (r"regex ^\000\\\.(.) {1}", r"a.c.", "a.c."),
        (r"regex a\\\.b(.*)\. x{1}", r"a\.b.c.", "x.c."),
    ] {
        let rules = format!("rewrite name {rule}");
        assert_eq!(asked(&rules, &format!("{question} A")).await, format!("{asked_for} IN 1"), "{rule}");
    }
}

#[tokio::test]
async fn invalid_name_is_an_error_and_restores_the_query() {
    for (rule, question, name) in [
        ("example.org example..org", "Example.org. A", "example..org."),
        // The group includes the dot at the end.
        ("regex (.*) {1}.x", "a.b. A", "a.b..x."),
    ] {
        let rules = format!("rewrite continue type A AAAA\nrewrite name {rule}\nwhoami");
        let context = TestServer::block(&rules);
        let mut request = context.request(question);
        let (_, block) = context.server.blocks().next().unwrap();
        let outcome = Next::first(block).serve(&mut request).await;
        let why = format!("invalid name after rewrite: {name}");
        assert_eq!(outcome.unwrap_err(), PluginError::servfail(why));
        assert_eq!(request.query, context.request(question).query);
        assert_eq!(shown(&context, question).await, "SERVFAIL");
    }
}

#[tokio::test]
async fn type_and_class_rules_change_the_query() {
    let rules =
        "rewrite continue class HS CH\nrewrite CLASS ch in\nrewrite type ANY HINFO\nrewrite type txt spf";
    for (question, asked_for) in [
        ("a. ANY", "a. IN 13"),
        ("a. TXT", "a. IN 99"),
        ("a. A", "a. IN 1"),
        ("a. CH A", "a. IN 1"),
        // The second rule matches, so the rules after it aren't tried.
        ("a. CH ANY", "a. IN 255"),
        ("a. HS ANY", "a. IN 255"),
    ] {
        assert_eq!(asked(rules, question).await, asked_for, "{question}");
    }
}

#[tokio::test]
async fn first_matching_rule_is_the_last_unless_it_continues() {
    let rules = "rewrite Continue name a.b core.dns\n\
        rewrite stop name core.dns to.nl\n\
        rewrite name to.nl never.nl\n\
        rewrite {\n name prefix\n x y\n }\n\
        rewrite continue {\n type MX TXT\n }\n\
        rewrite class IN CH";
    for (question, asked_for) in [
        ("a.b. MX", "to.nl. IN 15"),
        ("core.dns. MX", "to.nl. IN 15"),
        ("to.nl. MX", "never.nl. IN 15"),
        ("x.nl. MX", "y.nl. IN 15"),
        ("c.nl. MX", "c.nl. CH 16"),
        ("c.nl. A", "c.nl. CH 1"),
    ] {
        assert_eq!(asked(rules, question).await, asked_for, "{question}");
    }
    // A `cname` rule matches every query.
    assert_eq!(asked("rewrite cname a.b c.d\nrewrite name a.b c.d", "a.b. A").await, "a.b. IN 1");
}

#[tokio::test]
async fn previous_plugins_see_the_changed_query() {
    let context =
        server_with_rules("rewrite continue name a.b c.d\nrewrite type A AAAA", NextPlugin::Question);
    let mut request = context.request("a.b. A");
    Server::serve(&mut request).await.unwrap();
    assert_eq!(request.query.name().to_ascii(), "c.d.");
    assert_eq!((request.query.query_type(), request.query.query_class()), (RecordType::AAAA, DNSClass::IN));
}
