//! A network of its own for a test: only there does a test have port 53 and an `/etc/resolv.conf`.

use std::env::{current_exe, var_os};
use std::fs;
use std::os::fd::AsRawFd;
use std::process::Command;

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

/// Says that this process is in a network of its own.
const INSIDE: &str = "LB_LINKER_TEST_NETWORK";
/// Puts the files of the directory $0 over those of /etc that are there. Where there is no resolv.conf, every stub
/// resolver asks 127.0.0.1, too; a name service cache would answer from outside.
const PREPARE: &str = r#"
    for file in resolv.conf nsswitch.conf; do
        [ ! -e "/etc/$file" ] || mount --bind "$0/$file" "/etc/$file"
    done
    [ ! -d /run/nscd ] || mount -t tmpfs none /run/nscd
    exec "$@"
"#;

/// Returns whether this process is in a network of its own, with nothing but a loopback interface, where stub
/// resolvers ask 127.0.0.1. Otherwise runs the test `name` once more there.
///
/// # Panics
/// When that run fails, or there can't be one.
pub fn is_own(name: &str) -> bool {
    if var_os(INSIDE).is_some() {
        loopback_up().expect("the loopback interface can be turned on");
        return true;
    }
    let etc = tempfile::tempdir().unwrap();
    fs::write(etc.path().join("resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    fs::write(etc.path().join("nsswitch.conf"), "hosts: files dns\n").unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--net", "sh", "-ec", PREPARE]);
    command.arg(etc.path()).arg(current_exe().unwrap()).args(["--exact", name, "--nocapture"]);
    let output = command.env(INSIDE, "1").output().expect("there is unshare, of util-linux");
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(
        out.contains("running 1 test"),
        "this test needs user, mount and network namespaces: run it as root, or let users make them (sysctl \
         kernel.unprivileged_userns_clone=1 on Debian, kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu; \
         containers need CAP_SYS_ADMIN): {out}{err}"
    );
    assert!(out.contains("test result: ok. 1 passed"), "in a network of its own: {out}{err}");
    false
}

/// Asks the kernel by rtnetlink(7), so that no `ip` is needed.
fn loopback_up() -> nix::Result<()> {
    const RTM_NEWLINK: u16 = 16;
    /// NLM_F_REQUEST | NLM_F_ACK
    const FLAGS: u16 = 0x1 | 0x4;
    const LOOPBACK: u32 = 1;
    const IFF_UP: u32 = 1;
    let kernel = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        Some(SockProtocol::NetlinkRoute),
    )?;
    let mut request = Vec::new();
    // struct nlmsghdr: length, type, flags, number, sender.
    request.extend(32_u32.to_ne_bytes());
    request.extend([RTM_NEWLINK.to_ne_bytes(), FLAGS.to_ne_bytes()].concat());
    request.extend([0; 8]);
    // struct ifinfomsg: family and type, index, flags, which of them change.
    request.extend([0; 4]);
    request.extend([LOOPBACK, IFF_UP, IFF_UP].map(u32::to_ne_bytes).concat());
    sendto(kernel.as_raw_fd(), &request, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    // struct nlmsgerr: a header and the negative errno.
    let mut reply = [0; 64];
    recv(kernel.as_raw_fd(), &mut reply, MsgFlags::empty())?;
    let errno = i32::from_ne_bytes([reply[16], reply[17], reply[18], reply[19]]);
    if errno == 0 { Ok(()) } else { Err(nix::errno::Errno::from_raw(-errno)) }
}
