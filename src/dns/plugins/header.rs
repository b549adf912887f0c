//! # Name
//!
//! *header* - sets or clears flags in the headers of queries and answers. `query` changes the query for the plugins
//! after this one, and the answer repeats the changed RD; `response` changes their answers, but not failures without an
//! answer. Answers that *cache* gives from its memory aren't changed again: they have AA set, and RD as in the query.
//! An upstream gets only RD of a query.
//!
//! # Syntax
//!
//! Syntax: `header`, and in braces lines with `query|response set|clear FLAG...`, which apply in their order. **FLAG**
//! is `aa`, `ra` or `rd`. For example, `response set ra` with `query set rd`.

use async_trait::async_trait;
use hickory_proto::op::Metadata;

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::{CorefileError, Directive, Token};

const NAME: &str = "header";
const ACTIONS: &str = "set or clear";
const FLAGS: &str = "aa, ra or rd";

#[derive(Debug, Default)]
struct Header {
    query: Vec<FlagRule>,
    response: Vec<FlagRule>,
}

#[derive(Clone, Copy, Debug)]
struct FlagRule {
    flag: Flag,
    is_set: bool,
}

#[derive(Clone, Copy, Debug)]
enum Flag {
    Authoritative,
    RecursionAvailable,
    RecursionDesired,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_arguments()?;
    let mut header = Header::default();
    for option in line.options() {
        option.no_block()?;
        match &*option.name().to_lowercase() {
            "query" => header.query.extend(rules(option)?),
            "response" => header.response.extend(rules(option)?),
            "set" | "clear" => {
                let words: Vec<&str> = option.tokens.iter().map(|word| &*word.text).collect();
                return Err(option.error(format!(
                    "{:?} needs query or response before it, as since CoreDNS 1.12.4: response {}",
                    option.name(),
                    words.join(" ")
                )));
            }
            _ => return Err(option.unknown(NAME, &["query", "response"])),
        }
    }
    if line.options().is_empty() {
        return Err(line.missing_argument("lines such as: response set ra"));
    }
    setup.add_reusable(header);
    Ok(())
}

fn rules(option: &Directive) -> Result<Vec<FlagRule>, CorefileError> {
    let [action, flags @ ..] = option.arguments() else { return Err(option.missing_argument(ACTIONS)) };
    let is_set = match &*action.text.to_lowercase() {
        "set" => true,
        "clear" => false,
        _ => return Err(action.unexpected(ACTIONS)),
    };
    if flags.is_empty() {
        return Err(action.needs(FLAGS));
    }
    let rule = |word: &Token| {
        let flag = match &*word.text.to_lowercase() {
            "aa" => Flag::Authoritative,
            "ra" => Flag::RecursionAvailable,
            "rd" => Flag::RecursionDesired,
            _ => return Err(word.unexpected(FLAGS)),
        };
        Ok(FlagRule { flag, is_set })
    };
    flags.iter().map(rule).collect()
}

fn apply(rules: &[FlagRule], metadata: &mut Metadata) {
    for FlagRule { flag, is_set } in rules {
        match flag {
            Flag::Authoritative => metadata.authoritative = *is_set,
            Flag::RecursionAvailable => metadata.recursion_available = *is_set,
            Flag::RecursionDesired => metadata.recursion_desired = *is_set,
        }
    }
}

#[async_trait]
impl Plugin for Header {
    fn name(&self) -> &'static str {
        NAME
    }

    /// As in CoreDNS, the request stays changed for the plugins before this one.
    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        apply(&self.query, &mut request.metadata);
        let mut reply = next.serve(request).await?;
        apply(&self.response, &mut reply.metadata);
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::Metadata;

    use super::super::tests::fake_upstream::FakeUpstream;
    use super::super::tests::support::TestServer;

    async fn flags(server: &TestServer) -> [bool; 3] {
        let Metadata { authoritative, recursion_available, recursion_desired, .. } =
            server.reply("example.org. A").await.unwrap().metadata;
        [authoritative, recursion_available, recursion_desired]
    }

    #[tokio::test]
    async fn rules_change_the_flags_in_order() {
        for (rules, expected) in [
            ("query clear rd", [true, false, false]),
            ("query set ra aa", [true, false, true]),
            ("response clear AA\nRESPONSE Set ra rd", [false, true, true]),
            ("response set ra\nresponse clear ra rd", [true, false, false]),
            ("response set rd\nquery clear rd", [true, false, true]),
        ] {
            let server = TestServer::block(&format!("whoami\nheader {{\n{rules}\n}}"));
            assert_eq!(flags(&server).await, expected, "{rules}");
        }
    }

    #[tokio::test]
    async fn upstream_gets_rd_as_a_rule_for_queries_sets_it() {
        for (action, expected) in [("set", true), ("clear", false)] {
            let upstream = FakeUpstream::good(1).await;
            let lines = format!("header {{\nquery {action} rd\n}}\nforward . {}", upstream.address);
            let mut server = TestServer::block(&lines);
            server.request.metadata.recursion_desired = !expected;
            assert_eq!(flags(&server).await, [false, true, expected]);
            let asked = upstream.asked.lock().unwrap()[0].0.metadata.recursion_desired;
            assert_eq!(asked, expected);
        }
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        for (lines, expected) in [
            ("header", "2:1: header needs lines such as: response set ra"),
            ("header {\n}", "2:1: header needs lines such as: response set ra"),
            ("header x", "2:8: header takes no arguments, and here is \"x\""),
            (
                "header {\nset ra aa\n}",
                "3:1: \"set\" needs query or response before it, as since CoreDNS 1.12.4: response set ra aa",
            ),
            (
                "header {\nanswer set ra\n}",
                "3:1: header has no option \"answer\"; its options are query, response",
            ),
            ("header {\nquery\n}", "3:1: query needs set or clear"),
            ("header {\nquery unset ra\n}", "3:7: \"unset\" isn't set or clear"),
            ("header {\nresponse set\n}", "3:10: set needs aa, ra or rd"),
            ("header {\nresponse set ad\n}", "3:14: \"ad\" isn't aa, ra or rd"),
            (
                "header {\nquery set rd\n}\nheader {\nquery set rd\n}",
                "5:1: header can be there only once in a block, and it is on line 2 already",
            ),
        ] {
            assert_eq!(TestServer::error(lines), format!("Corefile:{expected}"), "{lines}");
        }
    }
}
