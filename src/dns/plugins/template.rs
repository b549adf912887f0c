//! # Name
//!
//! *template* - answers with records that templates make of the question.
//!
//! # Description
//!
//! A template is for questions of a class and a type about names in its zones. If one of its regular expressions
//! matches the name, it answers: with the records that its lines `answer`, `authority` and `additional` describe,
//! AA set. In these lines stand expressions in double braces, which are replaced for each question, as in Go's
//! `text/template`.
//!
//! There may be several templates in a block. They are tried in order. One that isn't for the class, the type or
//! the zone of the question is passed over; one that is, and whose expressions don't match, ends the search with
//! SERVFAIL unless it has `fallthrough`. When all are passed over, the next plugin answers.
//!
//! Expressions are matched against the name in lower case, with the dot at its end: `www.example.org.`.
//!
//! If an answer is a CNAME and the question is for A or AAAA, its target is looked up in the server blocks of the
//! same listener, and what is found there is added to the answer.
//!
//! A template that fails, or doesn't give a record, is answered with SERVFAIL; the reason is logged by *errors*.
//!
//! ## Differences from CoreDNS
//!
//! - Of Go's templates there is what is described below. Anything else is refused at start by name, and so is what
//!   could never work: fields that there aren't, wrong numbers of arguments. CoreDNS finds that when it answers.
//! - `.Meta` is refused: the plugin *metadata* isn't supported.
//! - What `printf` of Go writes in place of a value that doesn't fit its verb, `%!d(string=x)`, is a failure.
//! - Regular expressions are those of Rust's regex crate. They agree with Go's but for details: in a class `&&`,
//!   `--`, `~~` and a second `[` have a meaning of their own, and `\<` and `\>` are the ends of words.
//! - Records are read as zone files have them, but directives (`$INCLUDE` and others) are failures: a template
//!   shall not read files. Types whose data isn't known here (keys and signatures of DNSSEC among them) have to be
//!   given as RFC 3597 has it: `\# LENGTH OCTETS`. A record without data is a failure.
//! - An extended error is told only to clients that speak EDNS, and so are response codes above 15: others get
//!   SERVFAIL. CoreDNS sends OPT to clients that haven't sent it, which RFC 6891 section 7 forbids.
//! - A chain of CNAMEs from template to template ends after 8 look-ups, where CoreDNS makes about 10.
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
//! - **CLASS** is the class of the questions: `IN`, `CH`, `HS`, `CS`, `NONE`, or `ANY` for all. Questions of other
//!   classes than IN are only let through if a block of the same listener has *chaos* or *forward*.
//! - **TYPE** is their type, such as `A` or `PTR`, or `ANY` for all. A question for ANY is for every template.
//! - **ZONE** are the zones that the names have to be in, or networks such as `10.0.0.0/8`, which stand for their
//!   reverse zones. The default are the zones of the block.
//! - `match` takes regular expressions, of 10000 bytes at most. It may be there several times; the first one that
//!   matches counts. The default is `.*`.
//! - `answer`, `authority` and `additional` take templates of a record each: `OWNER [TTL] [CLASS] TYPE DATA`, in
//!   quotes. TTL and class may be in either order; the TTL is in seconds or with units (`1h30m`), 3600 if it is
//!   missing, and the class IN. Names without a dot at their end are absolute, too. They may be there several times;
//!   without any the section is empty.
//! - `rcode` is the response code: `NOERROR`, which is the default, `FORMERR`, `SERVFAIL`, `NXDOMAIN`, `NOTIMP`,
//!   `REFUSED`, `YXDOMAIN` and so on. With `SERVFAIL` nothing else is in the answer.
//! - `ederror` adds an Extended DNS Error (RFC 8914): its number, from 0 to 65535, and a text.
//! - `fallthrough` leaves names that no expression matches to the next template or plugin; with zones only names
//!   in these.
//! - `upstream` has no effect. CoreDNS takes it, with any arguments, for the sake of old Corefiles.
//!
//! In templates there is:
//!
//! - `{{ EXPRESSION }}`, which is replaced by its value; `{{-` and `-}}` with a space also remove the white space
//!   before or after it. `{{/* */}}` is a comment.
//! - `.Name`, the name, in lower case; `.Type` and `.Class`; `.Zone`, the zone of the template; `.Remote`, the
//!   client's address; `.Regex`, the expression that has matched.
//! - `.Match`, what the expression has matched: `index .Match 0` the whole, `index .Match 1` the first group. `.Group`,
//!   the same by number and by name: `.Group.a` or `index .Group "a"`. A name that isn't there is `<no value>` in the
//!   first form, and nothing in the second.
//! - `.Question.Name`, in the case that it was asked in, `.Question.Qtype` and `.Question.Qclass`, which are numbers.
//! - `.Message.Id`, `.Response`, `.Opcode`, `.Authoritative`, `.Truncated`, `.RecursionDesired`,
//!   `.RecursionAvailable`, `.AuthenticatedData`, `.CheckingDisabled`, `.Rcode` and `.Question`, the list of its one
//!   question, all behind `.Message`.
//! - Strings (`"a"`, or raw in backquotes), whole numbers (`10`, `-1`, `0x0a`), `true` and `false`.
//! - `parseInt STRING BASE BITS`, the number that the digits stand for; base 0 looks at the prefix `0x`, `0o` or `0b`.
//! - `printf FORMAT VALUE...`, with `%s`, `%d`, `%v`, `%q`, `%x`, `%X` and `%%`, and a width, `0`, `-` and `+` as in
//!   `%02d`; `%s` takes a precision, too.
//! - `index LIST NUMBER` and `index MAP KEY`; `len`; `eq` (with several values: any of them), `ne`, `lt`, `le`, `gt`,
//!   `ge`; `and`, `or`, `not`.
//! - `a | b`, where the value of a is the last argument of b; parentheses.
//! - `{{ if X }} … {{ else if Y }} … {{ else }} … {{ end }}`: false, 0 and what is empty don't hold.
//! - `{{ range .Match }} … {{ else }} … {{ end }}`, in which `.` is the element; `{{ range $i, $v := .Group }}`.
//! - Variables: `{{ $x := .Name }}`, `{{ $x = "a" }}`; `$` is what `.` is at the beginning. A space has to stand before
//!   the `$`: `{$x}` is a variable of the environment, to CoreDNS as well.
//!
//! # Metrics
//!
//! - `coredns_template_matches_total{server, zone, view, class, type}`: questions that a template has matched.
//! - `coredns_template_template_failures_total{server, zone, view, class, type, section, template}`: templates that
//!   have failed.
//! - `coredns_template_rr_failures_total{server, zone, view, class, type, section, template}`: templates that didn't
//!   give a record.
//!
//! `zone` is that of the template, and `section` is `answer`, `authority` or `additional`.
//!
//! # Examples
//!
//! Names that hold an IPv4 address, and the way back:
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
//! Search domains that shall not leave the network, with a reason:
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
