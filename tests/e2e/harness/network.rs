//! An isolated network for a test, in which the test can use port 53 and its own `/etc/resolv.conf`.

use std::env::{current_exe, var_os};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};
use nix::unistd::geteuid;

use super::EVENT_TIMEOUT;

/// The environment variable that is set in a process in an isolated network.
const INSIDE: &str = "LB_LINKER_TEST_NETWORK";
/// Mounts files of the directory $0 over the files in /etc that exist: without /etc/resolv.conf stub resolvers query
/// 127.0.0.1 anyway. Hides the socket of nscd, because nscd resolves names outside of the isolated network.
const PREPARE: &str = r#"
    for file in resolv.conf nsswitch.conf; do
        [ ! -e "/etc/$file" ] || mount --bind "$0/$file" "/etc/$file"
    done
    [ ! -d /run/nscd ] || mount -t tmpfs none /run/nscd
    exec "$@"
"#;

/// Returns whether this process is in an isolated network, with only a loopback interface, in which stub resolvers
/// query 127.0.0.1. Otherwise runs the test `name` again in such a network.
///
/// # Panics
/// If that run fails, or isn't possible.
pub fn is_own(name: &str) -> bool {
    is_own_in(name, &["--user", "--map-root-user"])
}

/// Like [`is_own`], for tests that start programs with other user ids: as root, or in a user namespace with the ids of
/// /etc/subuid.
///
/// # Panics
/// As for [`is_own`].
pub fn is_own_with_users(name: &str) -> bool {
    let users = ["--user", "--map-root-user", "--map-auto"];
    is_own_in(name, if geteuid().is_root() { &[] } else { &users })
}

fn is_own_in(name: &str, users: &[&str]) -> bool {
    if var_os(INSIDE).is_some() {
        loopback_up().expect("the loopback interface can be turned on");
        return true;
    }
    let etc = tempfile::tempdir().unwrap();
    fs::write(etc.path().join("resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    fs::write(etc.path().join("nsswitch.conf"), "hosts: files dns\n").unwrap();
    let mut command = Command::new("unshare");
    command.args(users).args(["--mount", "--net", "sh", "-ec", PREPARE]);
    command.arg(etc.path()).arg(current_exe().unwrap()).args(["--exact", name, "--nocapture"]);
    let output = command.env(INSIDE, "1").output().expect("there is unshare, of util-linux");
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(!out.contains("running 0 tests"), "no test has the name {name}");
    assert!(
        out.contains("running 1 test"),
        "this test needs user, mount and network namespaces: run it as root, or let users make them (sysctl \
         kernel.unprivileged_userns_clone=1 on Debian, kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu; \
         containers need CAP_SYS_ADMIN): {out}{err}"
    );
    assert!(out.contains("test result: ok. 1 passed"), "in a network of its own: {out}{err}");
    println!("{out}");
    false
}

/// This host's addresses on the link to the other host. In each prefix, more than 65,000 other addresses belong to no
/// host.
pub const NEAR: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(10, 9, 0, 1), Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1));
/// The other host's addresses.
pub const FAR: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(10, 9, 0, 2), Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2));

/// A network behind the other host as a router, and the other host's address in it. The network lies within the prefix
/// of the link.
pub const ROUTED: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(10, 9, 200, 0), Ipv4Addr::new(10, 9, 200, 1));

/// Adds a route to [`ROUTED`] through the other host. Call it after [`on_far_host`].
///
/// # Panics
/// If the kernel refuses.
pub fn add_route() {
    const RTM_NEWROUTE: u16 = 24;
    const RTA_DST: u16 = 1;
    const RTA_GATEWAY: u16 = 5;
    // struct rtmsg: IPv4, prefix length 24; main table, static, universe, unicast.
    let route = [[2, 24, 0, 0], [254, 4, 0, 1], [0; 4]].concat();
    let to = attribute(RTA_DST, &ROUTED.0.octets());
    let by = attribute(RTA_GATEWAY, &FAR.0.octets());
    ask_kernel(RTM_NEWROUTE, CREATE, &[route, to, by].concat()).expect("the route can be added");
}

/// Connects this network with another host, [`FAR`], and runs `there` on it. The other host exists as long as the
/// sockets that `there` returns. Only for use in an isolated network, see [`is_own`].
///
/// # Panics
/// If the kernel refuses, or passes no datagrams between the hosts.
pub fn on_far_host<T: Send>(there: impl FnOnce() -> T + Send) -> T {
    let far = || {
        unshare(CloneFlags::CLONE_NEWNET).expect("another network can be made");
        loopback_up().expect("the loopback interface can be turned on");
        add_link("far", "near").expect("the two networks can be connected");
        add_addresses("far", FAR).expect("the far interface takes addresses");
        let loopback = if_nametoindex("lo").expect("there is a loopback interface");
        add_address(loopback, 2, 32, &ROUTED.1.octets()).expect("the loopback interface takes an address");
    };
    thread::scope(|scope| {
        let host = scope.spawn(|| {
            far();
            let near = add_addresses_of_near();
            let far = [FAR.0.into(), FAR.1.into()].map(any_port);
            near.iter().zip(&far).for_each(|(near, far)| {
                await_datagram(near, far);
                await_datagram(far, near);
            });
            there()
        });
        host.join().expect("the far host does its part")
    })
}

/// Adds the addresses of [`NEAR`], and returns a socket on each. The calling thread is in the network namespace of the
/// far host, unlike the other threads of this process.
fn add_addresses_of_near() -> [UdpSocket; 2] {
    let near = || {
        add_addresses("near", NEAR).expect("the near interface takes addresses");
        [NEAR.0.into(), NEAR.1.into()].map(any_port)
    };
    let process = fs::File::open("/proc/self/ns/net").expect("this process has a network");
    // A separate thread enters the network of the process.
    thread::scope(|scope| {
        let entered = scope.spawn(|| {
            setns(process.as_fd(), CloneFlags::CLONE_NEWNET).expect("the network can be entered");
            near()
        });
        entered.join().expect("the near host has its addresses")
    })
}

fn any_port(address: IpAddr) -> UdpSocket {
    UdpSocket::bind((address, 0)).expect("the host has the address")
}

/// Sends datagrams until one arrives. The kernel drops packets until it has activated the link, which it does in the
/// background, and while it doesn't know the neighbor.
fn await_datagram(from: &UdpSocket, to: &UdpSocket) {
    to.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket takes a timeout");
    let address = to.local_addr().expect("the socket is bound");
    let deadline = Instant::now() + EVENT_TIMEOUT;
    loop {
        // Sending fails as long as there is no route.
        let _ = from.send_to(&[], address);
        if to.recv(&mut [0]).is_ok() {
            return;
        }
        assert!(Instant::now() < deadline, "no datagram arrives at {address}");
    }
}

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
/// NLM_F_CREATE | NLM_F_EXCL
const CREATE: u16 = 0x400 | 0x200;
const IFF_UP: u32 = 1;

/// Adds an address to the loopback interface. Only for use in an isolated network, see [`is_own`].
///
/// # Errors
/// If the kernel refuses.
pub fn add_loopback_address(address: Ipv4Addr) -> nix::Result<()> {
    add_address(if_nametoindex("lo")?, 2, 32, &address.octets())
}

fn loopback_up() -> nix::Result<()> {
    up(1)
}

fn up(interface: u32) -> nix::Result<()> {
    ask_kernel(RTM_NEWLINK, 0, &interface_message(interface, IFF_UP))
}

/// Creates a veth pair: `here` in the network of this thread, `there` in the network of the process.
fn add_link(here: &str, there: &str) -> nix::Result<()> {
    const IFLA_IFNAME: u16 = 3;
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_NET_NS_PID: u16 = 19;
    const IFLA_INFO_KIND: u16 = 1;
    const IFLA_INFO_DATA: u16 = 2;
    const VETH_INFO_PEER: u16 = 1;
    let name = |name: &str| attribute(IFLA_IFNAME, format!("{name}\0").as_bytes());
    let network = attribute(IFLA_NET_NS_PID, &std::process::id().to_ne_bytes());
    let peer = [interface_message(0, 0), name(there), network].concat();
    let data = attribute(IFLA_INFO_DATA, &attribute(VETH_INFO_PEER, &peer));
    let info = attribute(IFLA_LINKINFO, &[attribute(IFLA_INFO_KIND, b"veth\0"), data].concat());
    ask_kernel(RTM_NEWLINK, CREATE, &[interface_message(0, 0), name(here), info].concat())
}

/// Enables an interface, and adds these addresses with the prefix lengths 16 and 64.
fn add_addresses(interface: &str, (ipv4, ipv6): (Ipv4Addr, Ipv6Addr)) -> nix::Result<()> {
    let index = if_nametoindex(interface)?;
    up(index)?;
    add_address(index, 2, 16, &ipv4.octets())?;
    add_address(index, 10, 64, &ipv6.octets())
}

fn add_address(interface: u32, family: u8, prefix: u8, address: &[u8]) -> nix::Result<()> {
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    /// Disables duplicate address detection, which takes a second.
    const IFA_F_NODAD: u8 = 2;
    // struct ifaddrmsg: family, prefix length, flags, scope, index.
    let message = [&[family, prefix, IFA_F_NODAD, 0][..], &interface.to_ne_bytes()].concat();
    let addresses = [attribute(IFA_LOCAL, address), attribute(IFA_ADDRESS, address)].concat();
    ask_kernel(RTM_NEWADDR, CREATE, &[message, addresses].concat())
}

/// struct ifinfomsg: family and type, index, flags, change mask.
fn interface_message(index: u32, flags: u32) -> Vec<u8> {
    [0, index, flags, flags].map(u32::to_ne_bytes).concat()
}

/// struct rtattr: length, type, value, padding.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).expect("attributes are short");
    let mut attribute = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    attribute
}

/// Sends a request to the kernel by rtnetlink(7), so that no `ip` is needed.
fn ask_kernel(kind: u16, flags: u16, message: &[u8]) -> nix::Result<()> {
    /// NLM_F_REQUEST | NLM_F_ACK
    const FLAGS: u16 = 0x1 | 0x4;
    let kernel = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        Some(SockProtocol::NetlinkRoute),
    )?;
    // struct nlmsghdr: length, type, flags, sequence number, port.
    let length = u32::try_from(16 + message.len()).expect("messages are short");
    let header = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &(FLAGS | flags).to_ne_bytes(), &[0; 8]];
    let request = [&header.concat(), message].concat();
    sendto(kernel.as_raw_fd(), &request, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    // struct nlmsgerr: a header and the negative errno.
    let mut reply = [0; 64];
    recv(kernel.as_raw_fd(), &mut reply, MsgFlags::empty())?;
    let errno = i32::from_ne_bytes([reply[16], reply[17], reply[18], reply[19]]);
    if errno == 0 { Ok(()) } else { Err(nix::errno::Errno::from_raw(-errno)) }
}
