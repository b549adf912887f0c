//! Weights of addresses, parsed from a file.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hickory_proto::rr::{Name, Record};
use rand::{Rng, RngExt};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info};

use super::parse;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Weights(HashMap<Name, Vec<(IpAddr, u8)>>);

impl Weights {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// Returns the number of the first invalid line, and the reason.
    pub(super) fn parse(text: &[u8]) -> Result<Self, (usize, String)> {
        let mut weights = HashMap::new();
        let mut name: Option<Name> = None;
        for (number, line) in String::from_utf8_lossy(text).lines().enumerate() {
            let wrong = |message: String| (number + 1, message);
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                [word] => {
                    let owner = owner(word).map_err(wrong)?;
                    weights.entry(owner.clone()).or_insert_with(Vec::new);
                    name = Some(owner);
                }
                [address, weight] => {
                    let item = item(address, weight).map_err(wrong)?;
                    let of_name = name.as_ref().and_then(|name| weights.get_mut(name));
                    of_name
                        .ok_or_else(|| wrong("a name has to stand above the addresses".to_owned()))?
                        .push(item);
                }
                _ => {
                    return Err(wrong(format!(
                        "{line:?} is neither a name nor an address and its weight, such as 192.0.2.1 3"
                    )));
                }
            }
        }
        Ok(Self(weights))
    }

    /// Returns the index of the address that comes first. `addresses` must not be empty.
    pub(super) fn choose(&self, addresses: &[Record], random: &mut impl Rng) -> usize {
        let weights: Vec<u64> = addresses.iter().map(|address| self.weight_of(address).into()).collect();
        let mut left = random.random_range(0..weights.iter().sum::<u64>().max(1));
        let chosen = weights.iter().position(|weight| match left.checked_sub(*weight) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        chosen.unwrap_or_default()
    }

    fn weight_of(&self, address: &Record) -> u8 {
        let find = || {
            let ip = address.data.ip_addr()?.to_canonical();
            self.0.get(&address.name)?.iter().find(|(known, _)| *known == ip)
        };
        find().map_or(1, |(_, weight)| *weight)
    }
}

fn owner(word: &str) -> Result<Name, String> {
    if word.parse::<IpAddr>().is_ok() {
        return Err(format!("{word} has no weight: a number from 1 to 255 has to follow it"));
    }
    let mut name = Name::from_ascii(word).map_err(|_| format!("{word:?} isn't a DNS name"))?;
    name.set_fqdn(true);
    Ok(name)
}

fn item(address: &str, weight: &str) -> Result<(IpAddr, u8), String> {
    let ip: IpAddr = address.parse().map_err(|_| format!("{address:?} isn't an address"))?;
    match weight.parse() {
        Ok(weight @ 1..) => Ok((ip.to_canonical(), weight)),
        _ => Err(format!("{weight:?} isn't a weight from 1 to 255")),
    }
}

/// Reads a file periodically, and updates the weights when its content differs from `known`.
pub(super) async fn follow(
    path: &Path,
    reload: Duration,
    mut known: Option<Vec<u8>>,
    weights: &ArcSwap<Weights>,
) {
    let mut ticks = interval(reload);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is immediate, and the file has just been read.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        match tokio::fs::read(path).await {
            Ok(text) if known.as_ref() == Some(&text) => {}
            Ok(text) => {
                match parse(path, &text) {
                    Ok(changed) => {
                        weights.store(Arc::new(changed));
                        info!("the weights in {} are in force", path.display());
                    }
                    Err(error) => error!("{error}; the weights stay as they were"),
                }
                known = Some(text);
            }
            Err(error) => error!("{} can't be read: {error}; the weights stay as they were", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::RData;

    use super::*;

    fn address(name: &str, ip: &str) -> Record {
        let data = match ip.parse().unwrap() {
            IpAddr::V4(ip) => RData::A(ip.into()),
            IpAddr::V6(ip) => RData::AAAA(ip.into()),
        };
        Record::from_rdata(Name::from_ascii(name).unwrap(), 5, data)
    }

    #[test]
    fn weight_files_are_parsed_as_in_coredns() {
        let text = "# weights\n\nwww.Example.org\n 192.0.2.1   3\n192.0.2.2 255\n\nother.\r\n2001:db8::1 2\r\n\
                    www.example.org.\n192.0.2.3 2\n# 192.0.2.4 9\n192.0.2.1 9";
        let weights = Weights::parse(text.as_bytes()).unwrap();
        for (name, ip, expected) in [
            ("www.example.org.", "192.0.2.1", 3),
            ("WWW.example.org.", "192.0.2.2", 255),
            ("www.example.org.", "192.0.2.3", 2),
            ("www.example.org.", "192.0.2.4", 1),
            ("other.", "2001:db8::1", 2),
            ("other.", "192.0.2.1", 1),
            ("absent.", "192.0.2.1", 1),
        ] {
            assert_eq!(weights.weight_of(&address(name, ip)), expected, "{name} {ip}");
        }
        assert_eq!(Weights::parse(b""), Ok(Weights::default()));
    }

    #[test]
    fn invalid_weight_files_are_rejected_with_the_line() {
        for (text, line, expected) in [
            ("192.0.2.1 3", 1, "a name has to stand above the addresses"),
            ("a\n192.0.2.1", 2, "192.0.2.1 has no weight: a number from 1 to 255 has to follow it"),
            ("a\n192.0.2 3", 2, "\"192.0.2\" isn't an address"),
            ("a\n\n192.0.2.1 0", 3, "\"0\" isn't a weight from 1 to 255"),
            ("a\n192.0.2.1 256", 2, "\"256\" isn't a weight from 1 to 255"),
            ("a\n192.0.2.1 x", 2, "\"x\" isn't a weight from 1 to 255"),
            ("a b c", 1, "\"a b c\" is neither a name nor an address and its weight, such as 192.0.2.1 3"),
        ] {
            assert_eq!(Weights::parse(text.as_bytes()), Err((line, expected.to_owned())), "{text}");
        }
    }

    #[test]
    fn addresses_come_first_in_proportion_to_their_weights() {
        let weights = Weights::parse(b"a.\n192.0.2.1 3\n192.0.2.3 2").unwrap();
        let addresses = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|ip| address("a.", ip));
        let mut counts = [0_u32; 3];
        let mut random = rand::rng();
        for _ in 0..60_000 {
            counts[weights.choose(&addresses, &mut random)] += 1;
        }
        // The expected counts are 30,000, 10,000 and 20,000, with a standard deviation of 122 at most.
        for (count, expected) in counts.into_iter().zip([30_000, 10_000, 20_000]) {
            assert!(count.abs_diff(expected) < 1_500, "{counts:?}");
        }
    }
}
