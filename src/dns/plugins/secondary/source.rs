//! What tells zones with the same origin apart: their primary servers, and the listeners and the view of their
//! blocks.

use std::net::{IpAddr, SocketAddr};

use sha2::{Digest, Sha256};

use crate::dns::message::tsig::Key;

/// The size of a hash, in bytes.
const HASH: usize = 32;

/// Where a zone comes from, and where it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// The hash of the primary servers, whatever their order, and of the name of the key.
    servers: [u8; HASH],
    /// The hash of the listen addresses and ports of the block, and of the name of its view if it has one.
    listeners: [u8; HASH],
}

impl Source {
    pub(super) const SIZE: usize = 2 * HASH;

    pub(super) fn new(
        primaries: &[SocketAddr],
        key: Option<&Key>,
        bind: &[IpAddr],
        ports: &[u16],
        view: Option<&str>,
    ) -> Self {
        let servers = format!("{:?} {:?}", sorted(primaries), key.map(Key::name));
        let view = view.map(|view| format!(" {view:?}")).unwrap_or_default();
        let listeners = format!("{:?} {:?}{view}", sorted(bind), sorted(ports));
        let [servers, listeners] = [servers, listeners].map(|text| Sha256::digest(text).into());
        Self { servers, listeners }
    }

    pub(super) fn has_same_servers(&self, other: &Self) -> bool {
        self.servers == other.servers
    }

    pub(super) fn has_same_listeners(&self, other: &Self) -> bool {
        self.listeners == other.listeners
    }

    pub(super) fn listeners(&self) -> &[u8] {
        &self.listeners
    }

    pub(super) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..HASH].copy_from_slice(&self.servers);
        bytes[HASH..].copy_from_slice(&self.listeners);
        bytes
    }

    pub(super) fn of_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let (mut servers, mut listeners) = ([0; HASH], [0; HASH]);
        servers.copy_from_slice(&bytes[..HASH]);
        listeners.copy_from_slice(&bytes[HASH..]);
        Self { servers, listeners }
    }
}

fn sorted<T: Clone + Ord>(items: &[T]) -> Vec<T> {
    let mut sorted = items.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}
