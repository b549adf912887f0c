//! Protocols, limits of open files, errors of sockets, network interfaces, and the runtime, tasks and timers of a
//! UDP thread.

pub mod interfaces;
pub(crate) mod late_timer;
pub(crate) mod part_waker;
pub(crate) mod readable;
pub(crate) mod shared_runtime;
pub(crate) mod thread_tasks;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Udp,
    /// TCP (RFC 7766).
    Tcp,
    /// TLS (RFC 7858).
    Tls,
    /// HTTPS (RFC 8484).
    Https,
    /// gRPC, as in CoreDNS.
    Grpc,
    /// QUIC (RFC 9250).
    Quic,
}

impl Protocol {
    /// Returns whether the protocol is UDP, or one on UDP: metrics and the log have `udp` for both, as in CoreDNS.
    #[must_use]
    pub fn is_over_udp(self) -> bool {
        matches!(self, Self::Udp | Self::Quic)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Https => "https",
            Self::Grpc => "grpc",
            Self::Quic => "quic",
        })
    }
}

/// The pause of a listener that can't accept because there are no file descriptors or no memory.
pub(crate) const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

pub(crate) fn max_files() -> usize {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(usize::MAX, |(soft, _)| soft.try_into().unwrap_or(usize::MAX))
}

/// The limit of open files that 500 concurrent look-ups of one client need, half of the lowest default of
/// `max_concurrent`: by TCP each look-up takes a socket, sockets of look-ups are 30 % of the files, and a client may hold
/// half of them.
pub(crate) const RECOMMENDED_FILE_LIMIT: usize = 3400;

/// Returns a percentage of the limit of open files, at least 1. Sockets to upstreams have 60 %
/// ([`crate::dns::upstream`]), clients' connections 30 % ([`crate::dns::transport::connections`]), and each HTTP
/// listener 2 % ([`crate::dns::server::probes`]): with `/metrics`, `/health`, `/ready` and the status page 8 %. The rest
/// is for listeners, the API server and files.
pub(crate) fn percent_of_file_limit(percent: usize) -> usize {
    percent_of(max_files(), percent)
}

/// Returns a percentage of a number, at least 1.
pub(crate) fn percent_of(number: usize, percent: usize) -> usize {
    (number / 100 * percent).max(1)
}

/// Returns an IPv4-mapped address as an IPv4 address: a dual-stack socket shows an IPv4 client as `::ffff:192.0.2.1`
/// (RFC 4291 section 2.5.5.2).
#[must_use]
pub fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns the unspecified IPv4 address with the same port, if `address` is the unspecified IPv6 address: the fallback
/// where IPv6 is disabled.
fn without_ipv6(address: SocketAddr) -> Option<SocketAddr> {
    (address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED))
        .then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
}

/// Binds a socket with `bind`; `[::]` falls back to `0.0.0.0` where IPv6 is disabled.
pub(crate) fn bind_with<S>(
    address: SocketAddr,
    bind: impl Fn(SocketAddr) -> std::io::Result<S>,
) -> std::io::Result<S> {
    match (bind(address), without_ipv6(address)) {
        (Err(error), Some(ipv4)) if ipv6_is_off(&error) => bind(ipv4),
        (result, _) => result,
    }
}

/// Returns whether an address can't be bound because IPv6 is disabled.
pub(crate) fn ipv6_is_off(error: &std::io::Error) -> bool {
    is_one_of(error, &[Errno::EAFNOSUPPORT, Errno::EADDRNOTAVAIL])
}

/// Returns whether the socket itself is broken; all other errors are temporary.
pub(crate) fn is_fatal(error: &std::io::Error) -> bool {
    is_one_of(error, &[Errno::EBADF, Errno::EINVAL, Errno::ENOTSOCK, Errno::EFAULT])
}

/// Returns whether file descriptors or memory are exhausted.
pub(crate) fn is_out_of_resources(error: &std::io::Error) -> bool {
    is_one_of(error, &[Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM])
}

fn is_one_of(error: &std::io::Error, errnos: &[Errno]) -> bool {
    errnos.iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}
