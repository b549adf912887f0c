//! The order in which upstreams are queried.

use std::sync::atomic::{AtomicUsize, Ordering};

use rand::seq::SliceRandom;

/// The order in which upstreams are queried, CoreDNS's option `policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectionPolicy {
    Random,
    /// Each upstream is first in turn.
    RoundRobin,
    /// The configured order.
    Sequential,
}

impl SelectionPolicy {
    /// Orders the items for one query; `round_robin` counts the queries.
    pub(crate) fn order<T>(self, items: &mut [T], round_robin: &AtomicUsize) {
        match self {
            Self::Random => items.shuffle(&mut rand::rng()),
            Self::RoundRobin if !items.is_empty() => {
                // As in CoreDNS, the first query begins with the second item, and the other items keep their order.
                let first = round_robin.fetch_add(1, Ordering::Relaxed).wrapping_add(1) % items.len();
                items[..=first].rotate_right(1);
            }
            Self::RoundRobin | Self::Sequential => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_orders_upstreams_as_in_coredns() {
        let round_robin = AtomicUsize::new(0);
        let order = |policy: SelectionPolicy| {
            let mut items = [1, 2, 3];
            policy.order(&mut items, &round_robin);
            items
        };
        assert_eq!(order(SelectionPolicy::Sequential), [1, 2, 3]);
        assert_eq!(order(SelectionPolicy::RoundRobin), [2, 1, 3]);
        assert_eq!(order(SelectionPolicy::RoundRobin), [3, 1, 2]);
        assert_eq!(order(SelectionPolicy::RoundRobin), [1, 2, 3]);
        let firsts: Vec<u8> = (0..200).map(|_| order(SelectionPolicy::Random)[0]).collect();
        assert!([1, 2, 3].iter().all(|first| firsts.contains(first)), "{firsts:?}");
        SelectionPolicy::RoundRobin.order(&mut [0_u8; 0], &round_robin);
    }
}
