//! Generation of nearly valid packets by mutation of seeds.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};

/// Values with a meaning in DNS messages: lengths, counts, label types, pointers, OPT, TSIG, classes.
const SPECIAL_VALUES: [u16; 16] =
    [0, 1, 2, 12, 41, 63, 64, 250, 254, 255, 0x0fff, 0x7fff, 0x8000, 0xc000, 0xc00c, 0xffff];
/// The maximum size of a generated packet, in bytes.
const LONGEST: usize = 4096;

/// Returns packet `number`, and a number for further choices of the test, such as the client and the protocol. Both
/// depend only on `seeds`, `seed` and `number`.
pub fn packet(seeds: &[Vec<u8>], seed: u64, number: u64) -> (Vec<u8>, usize) {
    let mut rng = SmallRng::seed_from_u64(seed.wrapping_add(number));
    let mut packet = seeds.choose(&mut rng).cloned().unwrap_or_default();
    for _ in 0..rng.random_range(0..5) {
        mutate(&mut packet, seeds, &mut rng);
    }
    packet.truncate(LONGEST);
    (packet, rng.random_range(0..1024))
}

fn mutate(packet: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut SmallRng) {
    let length = packet.len();
    let at = rng.random_range(0..=length);
    let rest = length - at;
    match rng.random_range(0..12) {
        0..=2 if rest > 0 => packet[at] ^= 1 << rng.random_range(0..8),
        3 if rest > 0 => packet[at] = rng.random(),
        4 => packet.truncate(at),
        5 if rest > 0 => drop(packet.drain(at..at + rng.random_range(0..=rest.min(16)))),
        6 => drop(packet.splice(at..at, random_bytes(rng))),
        // Replace the end by the end of another seed.
        7 => {
            packet.truncate(at);
            let other = seeds.choose(rng).map_or(&[][..], |other| other);
            packet.extend(&other[rng.random_range(0..=other.len())..]);
        }
        // Overwrite a count in the header, or any two bytes.
        8 if length >= 12 => put(packet, 4 + 2 * rng.random_range(0..4), rng.random_range(0..4)),
        9 if rest > 1 => put(packet, at, *SPECIAL_VALUES.choose(rng).unwrap_or(&0)),
        10 if rest > 0 => {
            let again = packet[at..at + rng.random_range(1..=rest)].to_vec();
            drop(packet.splice(at..at, again));
        }
        11 if rng.random_ratio(1, 8) => *packet = random_bytes(rng),
        _ => {}
    }
}

fn put(packet: &mut [u8], at: usize, value: u16) {
    packet[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn random_bytes(rng: &mut SmallRng) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(0..48)];
    rng.fill_bytes(&mut bytes);
    bytes
}
