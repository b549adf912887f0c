//! Connection IDs (RFC 9000 section 5.1).

use std::time::Duration;

use quinn::{ConnectionId, ConnectionIdGenerator};

const LENGTH: usize = 8;

/// Makes random connection IDs. The ones that quinn makes by default have 24 random bits: the ID in a Retry may be that
/// of another connection, to which quinn then gives the client's packets until the token of the Retry is too old.
#[derive(Debug)]
pub(super) struct ConnectionIds;

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&rand::random::<[u8; LENGTH]>())
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn connection_ids_are_not_repeated() {
        let ids: HashSet<_> = (0..50_000).map(|_| ConnectionIds.generate_cid()).collect();
        assert_eq!(ids.len(), 50_000);
    }
}
