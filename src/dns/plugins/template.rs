//! # Name
//!
//! *template* - answers with records that are generated from the query by templates.
//!
//! # Description
//!
//! A template is for queries of a class and a type for names in its zones. If one of its regular expressions matches
//! the name, in lower case with the dot at its end (`www.example.org.`), the answer has the records that its lines
//! `answer`, `authority` and `additional` describe, with AA set. Expressions in double braces in these lines are
//! replaced for each query, as in Go's `text/template`.
//!
//! A block may have several templates, tried in order. One for another class, type or zone is skipped; if a template is
//! for the query, and its regular expressions don't match, the answer is SERVFAIL unless it has `fallthrough`. If all
//! are skipped, the next plugin answers. If a template fails, or doesn't produce a record, the answer is SERVFAIL;
//! *errors* logs the reason.
//!
//! If an answer is a CNAME and the query is for A or AAAA, the CNAME's target is looked up in the server blocks of the
//! same listener, and the result is added.
//!
//! Differences from CoreDNS:
//!
//! - The parts of Go's templates that are described below are supported. Others are rejected by name at the start, and
//!   so are errors that affect every query: unknown fields, wrong numbers of arguments.
//! - *cache* keeps no answer with `.Meta`, `.Remote`, or the ID, AA, TC, RA or AD of `.Message`: clients differ in them.
//! - Where Go's `printf` writes `%!d(string=x)` because a value doesn't fit its verb, the template fails.
//! - In regular expressions, `\<` and `\>` match the start and the end of a word.
//! - Records are in the syntax of zone files, but directives (`$INCLUDE` and others) are failures: a template must not
//!   read files. Data of unsupported types (DNSSEC keys and signatures among them) has to be in the form of RFC 3597:
//!   `\# LENGTH OCTETS`. A record without data is a failure.
//! - Only clients with EDNS get extended errors and response codes above 15; others get SERVFAIL instead of such a
//!   code.
//! - A chain of CNAMEs from template to template ends after 8 look-ups; CoreDNS makes about 10. A query causes at most
//!   16, together with those of `rewrite cname`, and so does each name that `lb_linker` looks up for it; further CNAMEs
//!   are answered without their target's records.
//!
//! # Syntax
//!
//! Syntax: `template CLASS TYPE [ZONES...]`, with the options below.
//!
//! - **CLASS** is `IN`, `CH`, `HS`, `CS`, `NONE`, or `ANY` for all; other classes than IN are only accepted if a block
//!   of the same listener has *chaos* or *forward*. **TYPE** is a type such as `A`, or `ANY` for all. A query of type
//!   ANY matches every template.
//! - `match REGEXP...` takes regular expressions, and may be repeated; the first one that matches counts. The default
//!   is `.*`.
//! - `answer`, `authority` and `additional RECORD...` take templates of a record each: `OWNER [TTL] [CLASS] TYPE DATA`,
//!   in quotes. TTL and class may be in either order; the TTL is in seconds or with units (`1h30m`), 3600 by default.
//!   Names without a dot at their end are absolute, too. May be repeated; without them the section is empty.
//! - `rcode RCODE` is `NOERROR`, the default, `FORMERR`, `SERVFAIL` (without records), `NXDOMAIN`, `NOTIMP`, `REFUSED`,
//!   `YXDOMAIN` and so on. `ederror CODE [REASON]` adds an Extended DNS Error (RFC 8914): its number, from 0 to 65535,
//!   and a text.
//! - `fallthrough [ZONES...]` passes names that no expression matches to the next template or plugin; with zones, only
//!   names in these. `upstream` has no effect.
//!
//! | in a template | meaning |
//! |---|---|
//! | `{{ EXPRESSION }}` | its value. `{{-`, before a space, also removes the white space before it, `-}}`, after a space, that after it. `{{/* */}}` is a comment |
//! | `.Name`, `.Type`, `.Class`, `.Zone`, `.Remote`, `.Regex` | the name in lower case; the zone of the template; the client's address; the regular expression that has matched |
//! | `.Match`, `.Group` | the groups of the match: `index .Match 0` is the whole match, `index .Match 1` the first group; `.Group.a`, `index .Group "a"`, `index .Group "1"`. A missing name is `<no value>` in the first form, and empty with `index` |
//! | `.Meta "LABEL"`, `$.Meta "LABEL"` | a label of the plugin *metadata*; empty if it isn't known |
//! | `.Question.Name`, `.Question.Qtype`, `.Question.Qclass` | the name in the case of the query, and numbers |
//! | `.Message.Id` and so on | `.Id`, `.Response`, `.Opcode`, `.Authoritative`, `.Truncated`, `.RecursionDesired`, `.RecursionAvailable`, `.AuthenticatedData`, `.CheckingDisabled`, `.Rcode`, and `.Question`, the list of its one question |
//! | `"a"`, `10`, `-1`, `0x0a`, `true`, `false` | strings (also raw in backquotes), whole numbers, truth values |
//! | `parseInt STRING BASE BITS` | the number that the digits stand for; base 0 detects `0x`, `0o` and `0b` |
//! | `printf FORMAT VALUE...` | with `%s`, `%d`, `%v`, `%q`, `%x`, `%X` and `%%`, and a width, `0`, `-` and `+` as in `%02d`; `%s` takes a precision, too |
//! | `index`, `len`; `eq`, `ne`, `lt`, `le`, `gt`, `ge`; `and`, `or`, `not` | of lists by number, of maps by key; `eq` with several values: any of them |
//! | `a \| b`, parentheses | the value of a is the last argument of b |
//! | `{{ if X }} … {{ else if Y }} … {{ else }} … {{ end }}` | false, 0 and empty values count as false |
//! | `{{ range .Match }} … {{ else }} … {{ end }}` | `.` is the element; `{{ range $i, $v := .Group }}` |
//! | `{{ $x := .Name }}`, `{{ $x = "a" }}` | variables; `$` is the initial value of `.`. The `$` has to follow a space: `{$x}` is an environment variable, as in CoreDNS |
//!
//! # Examples
//!
//! Names that contain an IPv4 address, and their PTR records; search domains that must not leave the network, with a
//! reason:
//!
//! ```text
//! . {
//!     template IN A example.org {
//!         match "^ip-(?P<a>[0-9]+)-(?P<b>[0-9]+)-(?P<c>[0-9]+)-(?P<d>[0-9]+)[.]example[.]org[.]$"
//!         answer "{{ .Name }} 60 IN A {{ .Group.a }}.{{ .Group.b }}.{{ .Group.c }}.{{ .Group.d }}"
//!         fallthrough
//!     }
//!     template IN PTR 10.0.0.0/8 {
//!         match "^([0-9]+)[.]([0-9]+)[.]([0-9]+)[.]10[.]in-addr[.]arpa[.]$"
//!         answer "{{ .Name }} 60 IN PTR ip-10-{{ index .Match 3 }}-{{ index .Match 2 }}-{{ index .Match 1 }}.example.org."
//!     }
//!     template ANY ANY corp home lan {
//!         rcode NXDOMAIN
//!         authority "{{ .Zone }} 60 IN SOA ns.{{ .Zone }} hostmaster.{{ .Zone }} (1 3600 600 86400 60)"
//!         ederror 15 "not here"
//!     }
//!     forward . /etc/resolv.conf
//! }
//! ```

mod answer;
mod setup;
mod text;

#[cfg(test)]
mod tests;

pub(super) use setup::set_up;

const NAME: &str = "template";
