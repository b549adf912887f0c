//! # Name
//!
//! *bind* - listens on the given addresses only. Without this plugin a block listens on all addresses of the machine,
//! of both families. The addresses of several lines are merged. On one port either all blocks have *bind* or none has
//! it: a mix is an error, because in CoreDNS it is undefined which block then receives a query.
//!
//! # Syntax
//!
//! Syntax: `bind ADDRESS|IFACE...`, with the option `except ADDRESS|IFACE...`, which excludes addresses from this line.
//! An interface stands for its addresses when the Corefile is read, without IPv6 link-local ones. For example,
//! `bind lo eth0` with `except 127.0.0.1`. `::` includes IPv4; `0.0.0.0` is IPv4 only, and in CoreDNS also IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::setup::Setup;
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::net::interfaces::interfaces;

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let mut all: Vec<IpAddr> = Vec::new();
    for line in setup.lines {
        let mut except = Vec::new();
        for option in line.options() {
            option.no_block()?;
            match option.name() {
                "except" => except.extend(addresses(option)?),
                _ => return Err(option.unknown("bind", &["except"])),
            }
        }
        for ip in addresses(line)? {
            if !except.contains(&ip) && !all.contains(&ip) {
                all.push(ip);
            }
        }
    }
    // A socket of :: also takes IPv4, and 0.0.0.0 can't be bound beside it.
    if all.contains(&Ipv6Addr::UNSPECIFIED.into()) {
        all.retain(|ip| *ip != Ipv4Addr::UNSPECIFIED);
    }
    if all.is_empty() {
        return Err(setup.lines[0].error("bind leaves no address to listen on"));
    }
    setup.builder.bind = all;
    Ok(())
}

fn addresses(line: &Directive) -> Result<Vec<IpAddr>, CorefileError> {
    let mut all = Vec::new();
    for word in line.required_arguments("an address or the name of an interface")? {
        match word.text.parse() {
            Ok(ip) => all.push(ip),
            Err(_) => all.extend(interface_addresses(word)?),
        }
    }
    Ok(all)
}

fn interface_addresses(word: &Token) -> Result<Vec<IpAddr>, CorefileError> {
    let interfaces = interfaces().map_err(|error| {
        word.error(format!("{:?} isn't an address, and interfaces can't be listed: {error}", word.text))
    })?;
    let own: Vec<_> = interfaces.into_iter().filter(|interface| interface.name == word.text).collect();
    if own.is_empty() {
        return Err(word.unexpected("an address, and there is no interface of that name"));
    }
    // A link-local address is valid on its own link only.
    let routable = |ip: &IpAddr| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    Ok(own.into_iter().filter_map(|interface| interface.ip).filter(routable).collect())
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;
    use super::*;

    #[test]
    fn invalid_addresses_are_rejected() {
        for (lines, expected) in [
            ("bind", "Corefile:2:1: bind needs an address or the name of an interface"),
            (
                "bind nothing0",
                "Corefile:2:6: \"nothing0\" isn't an address, and there is no interface of that name",
            ),
            (
                "bind 127.0.0.1 {\nbut 127.0.0.1\n}",
                "Corefile:3:1: bind has no option \"but\"; its option is except",
            ),
            ("bind 127.0.0.1 {\nexcept 127.0.0.1\n}", "Corefile:2:1: bind leaves no address to listen on"),
        ] {
            assert_eq!(TestServer::error(lines), expected);
        }
    }

    #[test]
    fn wildcard_address_of_ipv6_includes_that_of_ipv4() {
        for lines in ["bind 0.0.0.0 ::", "bind ::\nbind 0.0.0.0"] {
            let builder = TestServer::builder(lines);
            assert_eq!(builder.bind, ["::".parse::<IpAddr>().unwrap()], "{lines}");
        }
    }

    #[test]
    fn addresses_and_interfaces_of_all_lines_are_merged() {
        let context = TestServer::block("bind 127.0.0.2\nbind lo {\nexcept ::1\n}\nwhoami");
        assert_eq!(context.listeners[0], "dns://127.0.0.2:53");
        assert!(context.listeners.contains(&"dns://127.0.0.1:53".to_owned()), "{:?}", context.listeners);
        assert!(!context.listeners.contains(&"dns://[::1]:53".to_owned()), "{:?}", context.listeners);
    }
}
