//! # Name
//!
//! *rewrite* - changes questions before they are answered, and the answers to them.
//!
//! # Description
//!
//! A rule changes the name, the type or the class of a question, or the names, the TTLs, the RCODE or the
//! target of a CNAME in the answer. The plugins behind *rewrite* are asked the changed question; the client
//! always gets its own question back.
//!
//! The rules are tried in the order of the lines, each on the question as the one before has left it. A rule
//! that is for a question is the last one, unless it says `continue`. What the rules do to the answer is done
//! in reverse order: the last rule first, and of one rule the last `answer` first.
//!
//! Names are matched as CoreDNS writes them: in lower case, with a dot at the end, what isn't printable as
//! `\DDD`. A name that can't be one (an empty label, one of more than 63 bytes, more than 255 bytes in all) is
//! answered with SERVFAIL, and *errors* logs `invalid name after rewrite`.
//!
//! **Differences from CoreDNS:**
//!
//! - `edns0` isn't supported: nothing here makes use of what it sets.
//! - Regular expressions are those of the Rust crate regex, which has nearly all of RE2's syntax. `\Q…\E` and
//!   `\C` are missing and are refused. In brackets, `[`, `&&`, `--` and `~~` mean something, and have to be
//!   escaped to stand for themselves: `[\[]`. A brace that begins no count has to be escaped, too: `\{`.
//! - The client gets its own question back in all cases. CoreDNS gives it the changed one if only rules with
//!   `continue` have matched and none of them changes answers; resolvers drop such an answer.
//! - Where a rule makes a name in the answer that can't be one, or an RCODE above 15 for a client without EDNS,
//!   which can't be told it, the client gets SERVFAIL. CoreDNS says nothing, and the client asks again until it
//!   gives up.
//! - TO of `cname` needs no dot at its end. In CoreDNS the answer can't be sent without it.
//! - A chain of look-ups by `cname` ends after eight, and the CNAME that comes next stays as it is: rules that
//!   lead to each other don't go on for ever.
//! - In a line that `errors` logs for a failure that rules for answers have seen, the number is that of the
//!   RCODE that the client gets. CoreDNS logs 0.
//! - TO of `name exact` need not be a regular expression, which CoreDNS asks for by mistake: `*.example.org` is
//!   a name.
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
//! ```
//!
//! - `continue` goes on to the next rule, `stop`, the default, doesn't. It counts only for questions that the
//!   rule is for; `cname` is for all of them.
//!
//! A rule may also stand in braces, on as many lines as one likes. They are read as one: braces hold a single
//! rule.
//!
//! ```text
//! rewrite [continue|stop] {
//!     name regex FROM TO
//!     answer name FROM TO
//! }
//! ```
//!
//! Which names a rule is for:
//!
//! - `exact` - the name itself. This is the default; it has to be written where `answer` follows.
//! - `prefix`, `suffix`, `substring` - names that begin or end with FROM, or contain it. A dot is added at the
//!   end of FROM and of TO (but not by `cname`): `prefix foo bar` is for `foo.example.com` and not for
//!   `foobar.example.com`. The rest of the name stays; `substring` replaces FROM wherever it stands.
//! - `regex` - names that a regular expression matches, of 10000 bytes at most, anywhere in the name unless it
//!   has `^` or `$`. TO becomes the whole name; `{1}` in it stands for what the first group has matched, `{2}`
//!   for the second, `{0}` for all that was matched. `$1` has no meaning. Names have a dot at the end, TO gets
//!   one.
//!
//! What rules change:
//!
//! - `name` - the name of the question.
//! - `type` - its type, by name: `A`, `AAAA`, `ANY`…
//! - `class` - its class: `IN`, `CS`, `CH`, `HS`, `NONE` or `ANY`. Classes other than IN get as far as this
//!   only in a server that has `chaos` or `forward`.
//! - `ttl` - the TTL of all records of the answer, in seconds: to SECONDS, or to MIN if it is less and to MAX
//!   if it is more. `30-` has no upper bound, `-30` no lower one.
//! - `rcode` - the RCODE of the answer, if it is FROM; also where no plugin has answered. FROM and TO are
//!   numbers up to 23, or NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, YXDOMAIN, YXRRSET, NXRRSET,
//!   NOTAUTH, NOTZONE, DSOTYPENI, BADSIG, BADKEY, BADTIME, BADMODE, BADNAME, BADALG, BADTRUNC or BADCOOKIE.
//! - `cname` - the target of a CNAME in the answer, whatever was asked for. The new target is looked up as a
//!   question of the client's type would be answered here; what was found takes the place of the records behind
//!   that CNAME. The RCODE stays. Case counts here: FROM is put in lower case, a regular expression too, and
//!   the target is taken as it came.
//!
//! What a `name` rule does to the answer, in all three sections:
//!
//! - Nothing, unless it is `exact`, or says `answer`: the records have the name that was asked for behind this.
//! - `answer auto` - the name is changed back, in the names of records and in their values. `suffix` turns
//!   whatever ends in TO into FROM; the others turn the new name and the names below it into the client's, in
//!   lower case. `exact` always does this.
//! - `answer name FROM TO` - names of records that the regular expression FROM matches become TO. It can't
//!   stand together with `answer auto`; beside `exact` it is done first.
//! - `answer value FROM TO` - the same for the name in the value of CNAME, DNAME, MX (the exchange), NAPTR (the
//!   replacement), NS, PTR, SOA (the primary server) and SRV (the target).
//!
//! There may be several, one after the other; only the first needs the word `answer`.
//!
//! # Examples
//!
//! Questions for `example.net` are answered with what is known of `example.org`, and clients don't see it:
//!
//! ```text
//! rewrite name example.net example.org
//! ```
//!
//! The same for everything below it:
//!
//! ```text
//! rewrite name suffix .example.net .example.org answer auto
//! ```
//!
//! `ftp-us-west-1.example.org` is asked for as `ftp.service.us-west-1.consul`:
//!
//! ```text
//! rewrite stop {
//!     name regex (.*)-(us-west-1)\.example\.org {1}.service.{2}.consul
//!     answer name (.*)\.service\.(us-west-1)\.consul {1}-{2}.example.org
//!     answer value (.*)\.service\.(us-west-1)\.consul {1}-{2}.example.org
//! }
//! ```
//!
//! ANY becomes HINFO, whatever the name; TTLs below `example.org` are between half a minute and five minutes:
//!
//! ```text
//! rewrite continue type ANY HINFO
//! rewrite ttl suffix .example.org 30-300
//! ```
//!
//! A server that fails on questions for names below `example.org` looks like one that has no such records:
//!
//! ```text
//! rewrite rcode regex (.*)\.example\.org SERVFAIL NOERROR
//! ```
//!
//! Whatever leads to one content delivery network leads to another one:
//!
//! ```text
//! rewrite cname suffix .cdn.example.net. .other.example.com.
//! ```

mod cname;
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

use self::response::ResponseRule;
use self::rule::Rule;
use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;

const NAME: &str = "rewrite";

#[derive(Debug)]
struct Rewrite {
    rules: Vec<Rule>,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let rules = setup.lines.iter().map(parse::rule).collect::<Result<_, _>>()?;
    setup.add(Rewrite { rules });
    Ok(())
}

#[async_trait]
impl Plugin for Rewrite {
    fn name(&self) -> &'static str {
        NAME
    }

    /// The question stays changed for the plugins before this one, as in CoreDNS: `errors` logs it as it was
    /// answered, and `log` and `prometheus` have its type.
    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let response_rule = self.rewrite(&mut request.query)?;
        let outcome = next.serve(request).await;
        response::rewrite(&response_rule, request, outcome).await
    }

    fn rewritten(&self, query: &Query) -> Option<Query> {
        let mut rewritten = query.clone();
        // A look-up of a name that can't be rewritten fails, and nothing is asked about it.
        self.rewrite(&mut rewritten).ok()?;
        Some(rewritten)
    }
}

impl Rewrite {
    /// Changes the question. Returns what is to be done to the answer, in the order of the rules.
    fn rewrite(&self, query: &mut Query) -> Result<Vec<Cow<'_, ResponseRule>>, PluginError> {
        let original = query.clone();
        let mut response_rule = Vec::new();
        for rule in &self.rules {
            match rule.apply(query, &mut response_rule) {
                Ok(applies) if applies && rule.is_last => break,
                Ok(_) => {}
                Err(failure) => {
                    *query = original;
                    return Err(failure);
                }
            }
        }
        Ok(response_rule)
    }
}
