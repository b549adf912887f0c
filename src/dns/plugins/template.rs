//! # Name
//!
//! *template* - answers with records that are generated from the query by templates.
//!
//! # Description
//!
//! A template is for queries of a class and a type for names in its zones. If one of its regular expressions matches
//! the name, the template answers with the records that its lines `answer`, `authority` and `additional` describe, with
//! AA set. Expressions in double braces in these lines are replaced for each query, as in Go's `text/template`.
//!
//! A block may have several templates, which are tried in order. A template for another class, type or zone is skipped;
//! if a template is for the query, and its regular expressions don't match, the answer is SERVFAIL unless the template
//! has `fallthrough`. If all templates are skipped, the next plugin answers.
//!
//! Regular expressions are matched against the name in lower case, with the dot at its end: `www.example.org.`.
//!
//! If an answer is a CNAME and the query is for A or AAAA, the CNAME's target is looked up in the server blocks of the
//! same listener, and the result is added to the answer.
//!
//! If a template fails, or doesn't produce a record, the answer is SERVFAIL; *errors* logs the reason.
//!
//! ## Differences from CoreDNS
//!
//! - The parts of Go's templates that are described below are supported. Other parts are rejected by name at the start,
//!   and so are errors that affect every query: unknown fields, wrong numbers of arguments. CoreDNS detects such errors
//!   when it answers.
//! - `.Meta` is rejected: the plugin *metadata* isn't supported.
//! - Where Go's `printf` writes `%!d(string=x)` because a value doesn't fit its verb, the template fails.
//! - Regular expressions are those of Rust's regex crate. They agree with Go's except for details: in a class `&&`,
//!   `--`, `~~` and a second `[` have a meaning of their own, and `\<` and `\>` match the start and the end of a word.
//!   `\Q...\E`, octal numbers (`\012`) and a brace that doesn't begin a count are rejected: write `\{`.
//! - Records are in the syntax of zone files, but directives (`$INCLUDE` and others) are failures: a template must not
//!   read files. Data of unsupported types (DNSSEC keys and signatures among them) has to be in the form of RFC 3597:
//!   `\# LENGTH OCTETS`. A record without data is a failure.
//! - Only clients with EDNS get extended errors and response codes above 15: other clients get SERVFAIL instead of such
//!   a response code. CoreDNS sends OPT to clients that haven't sent it, which RFC 6891 section 7 forbids.
//! - A chain of CNAMEs from template to template ends after 8 look-ups; CoreDNS makes about 10. A query causes at most 16
//!   look-ups, together with those of `rewrite cname`, and so does each name that `lb_linker` looks up for it; further
//!   CNAMEs are answered without their target's records.
//!
//! # Syntax
//!
//! ```text
//! template CLASS TYPE [ZONE...] {
//!     match REGEX...
//!     answer RECORD...
//!     authority RECORD...
//!     additional RECORD...
//!     rcode RCODE
//!     ederror CODE [REASON]
//!     fallthrough [ZONE...]
//!     upstream
//! }
//! ```
//!
//! - **CLASS** is the class of the queries: `IN`, `CH`, `HS`, `CS`, `NONE`, or `ANY` for all. Queries of other classes
//!   than IN are only accepted if a block of the same listener has *chaos* or *forward*.
//! - **TYPE** is the type of the queries, such as `A` or `PTR`, or `ANY` for all. A query of type ANY matches
//!   the TYPE of every template.
//! - **ZONE** are the zones that the names have to be in, or networks such as `10.0.0.0/8`, which stand for their
//!   reverse zones. The default is the zones of the block.
//! - `match` takes regular expressions, of 10000 bytes at most. It may be repeated; the first expression that matches
//!   counts. The default is `.*`.
//! - `answer`, `authority` and `additional` take templates of a record each: `OWNER [TTL] [CLASS] TYPE DATA`, in
//!   quotes. TTL and class may be in either order; the TTL is in seconds or with units (`1h30m`). The default TTL is
//!   3600, and the default class IN. Names without a dot at their end are absolute, too. These options may be repeated;
//!   without them the section is empty.
//! - `rcode` is the response code: `NOERROR`, which is the default, `FORMERR`, `SERVFAIL`, `NXDOMAIN`, `NOTIMP`,
//!   `REFUSED`, `YXDOMAIN` and so on. With `SERVFAIL` the answer has no records.
//! - `ederror` adds an Extended DNS Error (RFC 8914): its number, from 0 to 65535, and a text.
//! - `fallthrough` passes names that no expression matches to the next template or plugin; with zones, only names in
//!   these zones.
//! - `upstream` has no effect. CoreDNS accepts it, with any arguments, for compatibility with old Corefiles.
//!
//! Templates support:
//!
//! - `{{ EXPRESSION }}`, which is replaced by its value. `{{-`, followed by a space, also removes the white space
//!   before the expression; `-}}`, after a space, removes the white space after the expression. `{{/* */}}` is a
//!   comment.
//! - `.Name`, the name, in lower case; `.Type` and `.Class`; `.Zone`, the zone of the template; `.Remote`, the client's
//!   address; `.Regex`, the regular expression that has matched.
//! - `.Match`, the groups of the match: `index .Match 0` is the whole match, `index .Match 1` the first group.
//!   `.Group`, the groups by name and by number: `.Group.a`, `index .Group "a"` or `index .Group "1"`. A missing name
//!   is `<no value>` in the first form, and empty with `index`.
//! - `.Question.Name`, in the case of the query, `.Question.Qtype` and `.Question.Qclass`, which are numbers.
//! - `.Message` with the fields `.Id`, `.Response`, `.Opcode`, `.Authoritative`, `.Truncated`, `.RecursionDesired`,
//!   `.RecursionAvailable`, `.AuthenticatedData`, `.CheckingDisabled`, `.Rcode` and `.Question`, the list of its one
//!   question: `.Message.Id`.
//! - Strings (`"a"`, or raw in backquotes), whole numbers (`10`, `-1`, `0x0a`), `true` and `false`.
//! - `parseInt STRING BASE BITS`, the number that the digits stand for; base 0 detects the prefixes `0x`, `0o` and
//!   `0b`.
//! - `printf FORMAT VALUE...`, with `%s`, `%d`, `%v`, `%q`, `%x`, `%X` and `%%`, and a width, `0`, `-` and `+` as in
//!   `%02d`; `%s` takes a precision, too.
//! - `index LIST NUMBER` and `index MAP KEY`; `len`; `eq` (with several values: any of them), `ne`, `lt`, `le`, `gt`,
//!   `ge`; `and`, `or`, `not`.
//! - `a | b`, where the value of a is the last argument of b; parentheses.
//! - `{{ if X }} … {{ else if Y }} … {{ else }} … {{ end }}`: false, 0 and empty values count as false.
//! - `{{ range .Match }} … {{ else }} … {{ end }}`, in which `.` is the element; `{{ range $i, $v := .Group }}`.
//! - Variables: `{{ $x := .Name }}`, `{{ $x = "a" }}`; `$` is the initial value of `.`. The `$` has to follow a space:
//!   `{$x}` is an environment variable, as in CoreDNS.
//!
//! # Metrics
//!
//! - `coredns_template_matches_total{server, zone, view, class, type}`: queries that a template has matched.
//! - `coredns_template_template_failures_total{server, zone, view, class, type, section, template}`: failed templates.
//! - `coredns_template_rr_failures_total{server, zone, view, class, type, section, template}`: templates that didn't
//!   produce a record.
//!
//! `zone` is the zone of the template, and `section` is `answer`, `authority` or `additional`.
//!
//! # Examples
//!
//! Names that contain an IPv4 address, and their PTR records:
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
//!     forward . /etc/resolv.conf
//! }
//! ```
//!
//! An address in hexadecimal digits, as in `host-0a0b0c0d.example.org`:
//!
//! ```text
//! example.org {
//!     template IN A {
//!         match "^host-(..)(..)(..)(..)[.]"
//!         answer "{{ .Name }} A {{ range $i, $hex := .Match }}{{ if $i }}{{ if gt $i 1 }}.{{ end }}{{ parseInt $hex 16 8 }}{{ end }}{{ end }}"
//!     }
//! }
//! ```
//!
//! Deny search domains that must not leave the network, with a reason:
//!
//! ```text
//! . {
//!     template ANY ANY corp home lan {
//!         rcode NXDOMAIN
//!         authority "{{ .Zone }} 60 IN SOA ns.{{ .Zone }} hostmaster.{{ .Zone }} (1 3600 600 86400 60)"
//!         ederror 15 "not here"
//!     }
//!     forward . /etc/resolv.conf
//! }
//! ```

mod answer;
mod fields;
mod record;
mod setup;
mod text;

#[cfg(test)]
mod tests;

pub(super) use setup::set_up;

const NAME: &str = "template";
