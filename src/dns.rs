//! Answers DNS as a Corefile says: listeners, the server blocks behind them, and in each block plugins, one of which
//! answers for the links of the store with authority.

pub mod chain;
pub mod corefile;
pub mod message;
pub mod net;
pub mod plugins;
pub mod query_log;
pub mod response_cache;
pub mod server;
pub mod transport;
pub mod upstream;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::rr::Name;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};

/// How long a listener rests when there are no files or memory for more.
const REST: Duration = Duration::from_millis(100);

/// Returns how many files the process may have open now.
fn max_files() -> usize {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(usize::MAX, |(soft, _)| soft.try_into().unwrap_or(usize::MAX))
}

/// Returns so many percent of the files that the process may have open now, at least one. Sockets to upstreams have 60 %
/// ([`upstream`]), clients' connections 30 % ([`transport::tcp`]), and probes 6 % ([`server::probes`]); the rest is for
/// listeners, the API server and files.
fn part_of_files(percent: usize) -> usize {
    (max_files() / 100 * percent).max(1)
}

/// Returns `address` as clients mean it: an IPv4 client of a socket for both families looks like
/// `::ffff:192.0.2.1` (RFC 4291 section 2.5.5.2).
#[must_use]
pub fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns whether two names are the same octet by octet. [`Name::eq_case`] says so, too, but label by label it's
/// sooner done.
fn same_spelling(one: &Name, other: &Name) -> bool {
    one.len() == other.len() && one.is_fqdn() == other.is_fqdn() && one.iter().eq(other.iter())
}

/// Returns the same port on all IPv4 addresses, where `address` stands for all of both families:
/// the way out where IPv6 is off.
fn without_ipv6(address: SocketAddr) -> Option<SocketAddr> {
    (address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED))
        .then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
}

/// Binds a socket with `bind`; `[::]` falls back to `0.0.0.0` where IPv6 is off.
fn bind_with<S>(address: SocketAddr, bind: impl Fn(SocketAddr) -> std::io::Result<S>) -> std::io::Result<S> {
    match (bind(address), without_ipv6(address)) {
        (Err(error), Some(ipv4)) if ipv6_is_off(&error) => bind(ipv4),
        (result, _) => result,
    }
}

fn ipv6_is_off(error: &std::io::Error) -> bool {
    is_one_of(error, &[Errno::EAFNOSUPPORT, Errno::EADDRNOTAVAIL])
}

/// Whether the socket itself is at fault; everything else passes.
fn is_fatal(error: &std::io::Error) -> bool {
    is_one_of(error, &[Errno::EBADF, Errno::EINVAL, Errno::ENOTSOCK, Errno::EFAULT])
}

/// Whether there are no files or memory for more just now.
fn is_shortage(error: &std::io::Error) -> bool {
    is_one_of(error, &[Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM])
}

fn is_one_of(error: &std::io::Error, errnos: &[Errno]) -> bool {
    errnos.iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}

#[cfg(test)]
mod tests {
    use crate::dns::*;

    #[test]
    fn names_are_spelled_the_same_where_hickory_says_so() {
        let names = [".", "a.", "A.", "a", "a.b.", "a.bc.", "ab.c.", "a.b.c.", "a\\.b.", "a.B."];
        let names = names.map(|name| Name::from_ascii(name).unwrap());
        for (one, other) in names.iter().flat_map(|one| names.iter().map(move |other| (one, other))) {
            assert_eq!(same_spelling(one, other), one.eq_case(other), "{one} {other}");
        }
    }
}
