//! # Name
//!
//! *rewrite* - changes queries before they are answered, and the answers to them.
//!
//! # Description
//!
//! A rule changes the name, the type, the class or the EDNS options of a query, or the names, the TTLs, the RCODE or
//! the target of a CNAME in the answer. The plugins after *rewrite* see the changed query; the client always gets its
//! own question back.
//!
//! The rules are tried in the order of the lines, each on the query as the previous ones have changed it. After a rule
//! that matches, no further one is tried, unless the rule has `continue`. The changes of the answer are applied in
//! reverse order: the last rule first, and within a rule the last `answer` first.
//!
//! Names are matched in CoreDNS's form: in lower case, with a dot at the end, with unprintable characters as `\DDD`. If
//! a rule produces an invalid name (an empty label, one of more than 63 bytes, more than 255 bytes in all), the client
//! gets SERVFAIL, and *errors* logs `invalid name after rewrite`.
//!
//! Differences from CoreDNS:
//!
//! - Clients never see the options of `edns0`, so that `revert` has no effect. CoreDNS adds them to an answer that has no
//!   EDNS yet, and sends EDNS then even to clients without it.
//! - *forward* sends only the options of `edns0`, and none of the client's.
//! - *cache* keeps the answers to queries with different options apart, so that it is of no use with `{client_port}`.
//!   CoreDNS gives the answer for one subnet to clients of all others. Options that depend on the client aren't added to
//!   look-ups of links' targets, which clients share, and no rule sees the client's options there.
//! - The options of a query have 512 bytes at most. A rule for one more doesn't match.
//! - `\C` is missing in regular expressions.
//! - CoreDNS returns the changed question if only rules with `continue` have matched and none of them changes answers;
//!   resolvers drop such an answer.
//! - If a rule produces an invalid name in the answer, or an RCODE above 15 for a client without EDNS, which can't
//!   receive it, the client gets SERVFAIL. CoreDNS sends no answer.
//! - TO of `cname` needs no dot at its end. CoreDNS can't send the answer without the dot. TO of `name exact` need not
//!   be a regular expression, which CoreDNS requires by mistake: `*.example.org` is a valid name.
//! - A chain of look-ups by `cname` ends after eight, and the next CNAME stays unchanged. A query causes at most 16
//!   such look-ups, together with those of `template`, and so does each name that `lb_linker` looks up for it. After a
//!   look-up without a reply, the remaining CNAMEs stay unchanged, too. A log line, at most one a minute for each rule,
//!   counts such look-ups.
//! - If a rule for answers applies to a failure, the number in the line of `errors` is the RCODE that the client gets.
//!   CoreDNS logs 0.
//!
//! # Syntax
//!
//! ```text
//! rewrite [continue|stop] name [exact|prefix|suffix|substring|regex] FROM TO [answer ANSWER...]
//! rewrite [continue|stop] type FROM TO
//! rewrite [continue|stop] class FROM TO
//! rewrite [continue|stop] ttl [exact|prefix|suffix|substring|regex] NAME SECONDS|MIN-MAX
//! rewrite [continue|stop] rcode [exact|prefix|suffix|substring|regex] NAME FROM TO
//! rewrite [continue|stop] cname [exact|prefix|suffix|substring|regex] FROM TO
//! rewrite [continue|stop] edns0 local set|append|replace CODE DATA [revert]
//! rewrite [continue|stop] edns0 nsid set|append|replace [revert]
//! rewrite [continue|stop] edns0 subnet set|append|replace IPV4_BITS IPV6_BITS [revert]
//! rewrite [continue|stop] edns0 local|nsid|subnet unset [CODE]
//! ```
//!
//! `continue` goes on to the next rule; `stop`, the default, ends the search. Both count only if the rule matches the
//! query; `cname` matches all queries. A single rule may also be in braces, on any number of lines, as in an example
//! below.
//!
//! | names | that the rule matches |
//! |---|---|
//! | `exact`, the default | the name itself; the word is mandatory if `answer` follows |
//! | `prefix`, `suffix`, `substring` | names that begin or end with FROM, or contain it; `substring` replaces all occurrences. A dot is added at the end of FROM and of TO (except by `cname`): `prefix foo bar` matches `foo.example.com` and not `foobar.example.com` |
//! | `regex` | names that a regular expression matches, anywhere unless it has `^` or `$`. TO becomes the whole name, with a dot added; `{1}` in it is the match of the first group, `{0}` the whole match. `$1` has no meaning |
//!
//! | change | what is changed |
//! |---|---|
//! | `name` | the name in the query |
//! | `type`, `class` | the type (`A`, `ANY`…) or the class (`IN`, `CS`, `CH`, `HS`, `NONE`, `ANY`) by name. Other classes than IN get here only in a server with `chaos` or `forward` |
//! | `ttl` | the TTL of all records: SECONDS, or at least MIN and at most MAX. `30-` has no upper bound, `-30` no lower one |
//! | `rcode` | the RCODE of the answer, if it is FROM, also if no plugin has answered: numbers up to 23, or NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, YXDOMAIN, YXRRSET, NXRRSET, NOTAUTH, NOTZONE, DSOTYPENI, BADSIG, BADKEY, BADTIME, BADMODE, BADNAME, BADALG, BADTRUNC or BADCOOKIE |
//! | `cname` | the target of a CNAME, for queries of any type. The new target is looked up with the type of the client's query, and the result replaces the records after that CNAME; the RCODE stays. FROM is converted to lower case, even a regular expression, and the target keeps its case |
//! | `edns0` | the EDNS options of the query. `set` always matches. `replace` matches if the client or an earlier rule has set such an option, and replaces it as `set` does. `append` keeps such an option, and adds one more; with a variable or a subnet it matches only if there is none yet. `unset` removes all of them, and needs CODE only for `local` |
//!
//! CODE and the numbers of bits may be decimal, or hexadecimal with `0x`. DATA is text, hexadecimal with `0x`, at most 256
//! bytes, or one of these in braces: `{qname}` as text, `{qtype}`, `{client_ip}`, `{client_port}`, `{server_ip}` and
//! `{server_port}` in network byte order, `{protocol}` (`udp`, also for QUIC, or `tcp`), or a label of *metadata* without its first slash,
//! such as `{kubernetes/client-namespace}`; without a value the rule doesn't match. The option of `subnet` is the client's
//! network of that length (RFC 7871).
//!
//! Of a `name` rule, the three sections of the answer keep the changed name, unless the rule is `exact` or has
//! `answer`:
//!
//! - `answer auto`, which `exact` always does: the name is changed back, in the names of records and in their values.
//!   `suffix` changes TO back to FROM at the end of all names; the others change the new name and the names below it to
//!   the client's name, in lower case.
//! - `answer name FROM TO`: names of records that the regular expression FROM matches become TO. Not with
//!   `answer auto`; with `exact` it is applied first.
//! - `answer value FROM TO`: the same for the name in the value of CNAME, DNAME, MX (the exchange), NAPTR (the
//!   replacement), NS, PTR, SOA (the primary server) and SRV (the target).
//!
//! A rule may have several of these in a row; only the first one needs the word `answer`.
//!
//! # Examples
//!
//! One zone for another, invisibly for clients; the names of another system; ANY and TTLs; failures of a server as
//! empty answers; one content delivery network for another; the client's network for upstreams:
//!
//! ```text
//! . {
//!     rewrite name example.net example.org
//!     rewrite name suffix .example.net .example.org answer auto
//!     rewrite stop {
//!         name regex (.*)-(us-west-1)\.example\.org {1}.service.{2}.consul
//!         answer name (.*)\.service\.(us-west-1)\.consul {1}-{2}.example.org
//!         answer value (.*)\.service\.(us-west-1)\.consul {1}-{2}.example.org
//!     }
//!     rewrite continue type ANY HINFO
//!     rewrite ttl suffix .example.org 30-300
//!     rewrite rcode regex (.*)\.example\.org SERVFAIL NOERROR
//!     rewrite cname suffix .cdn.example.net. .other.example.com.
//!     rewrite edns0 subnet set 24 56
//!     forward . 192.0.2.53
//! }
//! ```

mod cname;
mod editor;
mod edns0;
mod name_matcher;
mod names;
mod parse;
mod rcode;
mod response;
mod rule;
#[cfg(test)]
mod tests;
mod ttl;

use std::borrow::Cow;

use async_trait::async_trait;
use hickory_proto::op::Query;

use self::edns0::AddedOptions;
use self::response::ResponseRule;
use self::rule::{Rewritten, Rule};
use super::metadata::missing_for;
use super::setup::Setup;
use crate::dns::chain::labels;
use crate::dns::chain::plugin::{ChainPlugin, Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::chain::server::AccessRule;
use crate::dns::corefile::CorefileError;

const NAME: &str = "rewrite";

#[derive(Debug)]
struct Rewrite {
    rules: Vec<Rule>,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let rules: Vec<Rule> = setup.lines.iter().map(parse::rule).collect::<Result<_, _>>()?;
    let has_metadata = !setup.builder.labeled.all().is_empty();
    for (line, rule) in setup.lines.iter().zip(&rules) {
        let warning = rule
            .label()
            .and_then(|label| labels::warning(label, has_metadata, |label| missing_for(label, setup.block)));
        // Labels in a rule have no slash at the beginning.
        let warning = warning.map(|warning| warning.replacen("{/", "{", 1));
        setup.builder.warnings.extend(warning.map(|warning| line.error(warning)));
    }
    setup.add_with_access_rule(Rewrite { rules }, ChainPlugin::new);
    Ok(())
}

#[async_trait]
impl Plugin for Rewrite {
    fn name(&self) -> &'static str {
        NAME
    }

    /// The request stays changed for the plugins before this one, as in CoreDNS: `errors` logs the changed query, and
    /// `log` and `prometheus` use its type.
    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let (rewritten, response_rules) = self.rewrite(request, &request.query)?;
        let is_for_client = rewritten.options.are_for_client();
        request.options = rewritten.options.to_wire();
        request.query = rewritten.query;
        let mut outcome = next.serve(request).await;
        if let (Ok(reply), true) = (&mut outcome, is_for_client) {
            // *cache* in this block has the options in its key, *cache* in a block that looks an alias up here hasn't.
            reply.is_cacheable = false;
        }
        response::rewrite(&response_rules, request, outcome).await
    }
}

impl AccessRule for Rewrite {
    fn rewritten(&self, request: &Request, query: &Query) -> Option<Query> {
        // A rewrite to an invalid name fails, so the query never reaches the next plugins.
        let (rewritten, _) = self.rewrite(request, query).ok()?;
        Some(rewritten.query)
    }
}

impl Rewrite {
    /// Returns a query of a request as the rules change it, and the matching rules for the answer, in the order of the
    /// rules.
    fn rewrite(
        &self,
        request: &Request,
        query: &Query,
    ) -> Result<(Rewritten, Vec<Cow<'_, ResponseRule>>), PluginError> {
        let mut rewritten = Rewritten { query: query.clone(), options: AddedOptions::default() };
        let mut response_rules = Vec::new();
        for rule in &self.rules {
            if rule.apply(request, &mut rewritten, &mut response_rules)? && rule.is_last {
                break;
            }
        }
        Ok((rewritten, response_rules))
    }
}
