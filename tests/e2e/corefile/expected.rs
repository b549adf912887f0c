//! The differences that stay, and why.

/// A difference that stays.
pub struct Expected {
    pub reason: &'static str,
    /// Group, question as in its table, and fields. `*` stands for anything; a question that is asked the second time
    /// ends in ` #2`.
    pub at: &'static [(&'static str, &'static str, &'static str)],
}

/// All of them but those of metrics and the log.
pub const EXPECTED: &[Expected] = &[
    Expected {
        reason: "Every answer repeats the question where it could be read (RFC 1035 section 4.1), also one that says \
                 NOTIMP. CoreDNS leaves it out of that.",
        at: &[
            ("forward", "* opcode=*", "question"),
            ("whoami", "* opcode=5", "question"),
            ("blocks: the longest zone wins", "* opcode=5", "question"),
        ],
    },
    Expected {
        reason: "NOTIFY gets NOTIMP, as every other opcode than QUERY does. CoreDNS answers it as if it were a query.",
        at: &[("whoami", "* opcode=4", "rcode flags additional")],
    },
    Expected {
        reason: "Zone transfers are refused before any plugin is asked: what they would say isn't one message.",
        at: &[("whoami", "* AXFR*", "rcode flags additional")],
    },
    Expected {
        reason: "OPT and TSIG can't be asked for: they belong to a message and not to a name (RFC 6891 section 6.1.1, \
                 RFC 8945 section 5.1). CoreDNS looks them up.",
        at: &[
            ("forward", "* TYPE41", "rcode flags authority"),
            ("forward", "* TYPE250", "rcode flags authority"),
        ],
    },
    Expected {
        reason: "An answer spells its names as the question does (RFC 4343 section 4.1, RFC 1035 section 4.1.4: the \
                 same name is written once). CoreDNS spells them as its data or the upstream does.",
        at: &[
            ("forward", "MIXED.eXample.ORG. A case", "answer"),
            ("forward: odd answers", "LoWer.odd. A case", "answer"),
            ("hosts: file", "ONE.tEST. A case", "answer"),
            ("cache", "A.Example.ORG. A case", "answer"),
            ("cache", "LoWer.odd. A case*", "answer"),
            ("cache", "lower.ODD. A case", "answer"),
        ],
    },
    Expected {
        reason: "No answer by UDP has more than 1232 bytes, so that none is cut into fragments, unless *bufsize* \
                 allows more. CoreDNS sends what the client says that it takes.",
        at: &[
            ("forward", "huge.example.org. A edns=4096*", "answer authority flags"),
            ("forward", "huge.example.org. A edns=65535", "answer authority flags"),
            ("forward", "giant.example.org. TXT edns=4096*", "answer"),
        ],
    },
    Expected {
        reason: "An extended error goes only to who has sent EDNS (RFC 6891 section 7). CoreDNS adds EDNS for it.",
        at: &[
            ("acl", "*", "opt"),
            ("all of them", "x.refused.example.org. A", "opt"),
            ("template", "foo.invalid. *", "opt"),
            ("template", "invalid. SOA", "opt"),
            ("blocks: the order isn't the file's", "* TXT", "opt"),
        ],
    },
    Expected {
        reason: "Who asks for the server's identifier gets no empty one where *nsid* isn't. CoreDNS gives that one \
                 back, and a record less.",
        at: &[("bufsize", "huge.example.org. A edns=4096 nsid", "answer")],
    },
    Expected {
        reason: "RD and CD are copied from the question into the answer (RFC 1035 section 4.1.1, RFC 4035 section \
                 3.2.2). CoreDNS hands the upstream's on.",
        at: &[
            ("forward: odd answers", "nord.odd. A", "flags"),
            ("forward: odd answers", "cd.odd. A", "flags"),
            ("cache", "cd.odd. A", "flags"),
        ],
    },
    Expected {
        reason: "AD is only set for who has set AD or DO, and knows what it means (RFC 6840 section 5.8). Without \
                 *cache*, CoreDNS hands the upstream's on.",
        at: &[
            ("forward: odd answers", "ad.odd. A", "flags"),
            ("forward: odd answers", "ad.odd. A cd", "flags"),
        ],
    },
    Expected {
        reason: "An answer that was cut by UDP is asked for again by TCP, also without *prefer_udp*, and then kept by \
                 *cache*.",
        at: &[
            ("forward: odd answers", "cut.odd. A", "answer flags"),
            ("forward: odd answers", "some.odd. A*", "flags"),
            ("cache", "cut.odd. A*", "answer flags"),
            ("cache", "some.odd. A*", "flags"),
        ],
    },
    Expected {
        reason: "What doesn't match the question is waited past: somebody may have forged it. CoreDNS answers it with \
                 FORMERR.",
        at: &[("forward: odd answers", "other.odd. A", "rcode"), ("cache", "other.odd. A*", "rcode")],
    },
    Expected {
        reason: "The DS of a zone is asked of the block of the nearest zone above it (RFC 4035 section 3.1.4.1). \
                 CoreDNS asks that of the farthest.",
        at: &[("blocks: the longest zone wins", "*deep.sub.example.org. DS", "flags authority additional")],
    },
];

/// Where in [`EXPECTED`] a line stands.
pub type At = (usize, usize);

/// Every line of [`EXPECTED`].
pub fn all() -> impl Iterator<Item = (At, (&'static str, &'static str, &'static str))> {
    EXPECTED.iter().enumerate().flat_map(|(entry, expected)| {
        expected.at.iter().enumerate().map(move |(line, at)| ((entry, line), *at))
    })
}

/// The lines that a difference is expected by.
pub fn matching(group: &str, question: &str, field: &str) -> Vec<At> {
    all()
        .filter(|(_, (in_group, of_question, fields))| {
            *in_group == group && glob(of_question, question) && fields.split(' ').any(|known| known == field)
        })
        .map(|(at, _)| at)
        .collect()
}

pub fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            rest.is_empty() || (0..=text.len()).any(|at| text.is_char_boundary(at) && glob(rest, &text[at..]))
        }),
    }
}

#[test]
fn a_star_stands_for_anything() {
    for (pattern, text, matches) in [
        ("a. A", "a. A", true),
        ("a. A", "a. A tcp", false),
        ("a. A*", "a. A tcp", true),
        ("*", "", true),
        ("* A #2", "b. A #2", true),
        ("* A #2", "b. A #3", false),
    ] {
        assert_eq!(glob(pattern, text), matches, "{pattern} {text}");
    }
}
