//! Parses resolv.conf files.

use std::net::{SocketAddr, SocketAddrV6};

use nix::net::if_::if_nametoindex;

use super::Scheme;

/// Returns the name servers of a resolv.conf file. Unknown lines and invalid addresses are ignored, as in glibc.
pub fn nameservers(text: &str) -> impl Iterator<Item = SocketAddr> {
    text.lines()
        .filter_map(|line| line.trim_start().strip_prefix("nameserver"))
        .filter(|rest| rest.starts_with(char::is_whitespace))
        .filter_map(|rest| nameserver(rest.split_whitespace().next()?))
}

/// Parses `192.0.2.1`, `2001:db8::1` or `fe80::1%eth0`.
fn nameserver(text: &str) -> Option<SocketAddr> {
    let port = Scheme::Dns.port();
    match text.split_once('%') {
        None => Some(SocketAddr::new(text.parse().ok()?, port)),
        Some((ip, zone)) => Some(SocketAddrV6::new(ip.parse().ok()?, port, 0, scope(zone)?).into()),
    }
}

/// Returns the index of a network interface from the index or the name.
pub(crate) fn scope(zone: &str) -> Option<u32> {
    zone.parse().ok().or_else(|| if_nametoindex(zone).ok())
}

/// Returns the search domains of a resolv.conf file, and the number of their line. The last line with `search` or
/// `domain` counts.
#[must_use]
pub fn search_domains(text: &str) -> (usize, Vec<&str>) {
    let mut found = (0, Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("search") => found = (number, words.collect()),
            Some("domain") => found = (number, words.take(1).collect()),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_search_or_domain_line_counts() {
        for (text, number, expected) in [
            ("", 0, vec![]),
            ("nameserver 192.0.2.1\nsearch a.test b.test.\noptions ndots:5", 2, vec!["a.test", "b.test."]),
            ("search a.test\ndomain b.test c.test", 2, vec!["b.test"]),
            ("domain b.test\n\tsearch\tc.test", 2, vec!["c.test"]),
            ("search a.test\nsearch", 2, vec![]),
            ("searching a.test\n# search b.test", 0, vec![]),
        ] {
            assert_eq!(search_domains(text), (number, expected), "{text}");
        }
    }
}
