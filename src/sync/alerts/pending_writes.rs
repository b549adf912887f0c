//! The writes under way, and what the watch has shown since they began: it may be faster than the answer to a write.

use std::collections::HashMap;

use crate::model::service_key::ServiceKey;

/// By key, the newest revision at which the object was absent since the write began; 0 for none.
#[derive(Debug, Default)]
pub(super) struct PendingWrites(HashMap<ServiceKey, u64>);

impl PendingWrites {
    pub(super) fn begin(&mut self, key: &ServiceKey) {
        self.0.insert(key.clone(), 0);
    }

    /// Records that the object was removed at this revision, if a write of it is under way.
    pub(super) fn removed(&mut self, key: &ServiceKey, revision: u64) {
        if let Some(newest) = self.0.get_mut(key) {
            *newest = revision.max(*newest);
        }
    }

    /// Records a complete list of this revision for the objects that `is_absent` returns. Of an unknown revision, or
    /// after a restore of etcd, only the watch can tell whether an object exists: no answer counts.
    pub(super) fn listed(&mut self, revision: Option<u64>, is_absent: impl Fn(&ServiceKey) -> bool) {
        for (_, newest) in self.0.iter_mut().filter(|(key, _)| is_absent(key)) {
            *newest = revision.unwrap_or(u64::MAX).max(*newest);
        }
    }

    /// Ends a write. Returns the newest revision at which the object was absent since it began: an older answer is
    /// outdated.
    pub(super) fn end(&mut self, key: &ServiceKey) -> u64 {
        self.0.remove(key).unwrap_or_default()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_absence_since_the_write_began_is_returned() {
        let (key, other) = (ServiceKey::new("shop", "web"), ServiceKey::new("shop", "other"));
        let mut writes = PendingWrites::default();
        writes.removed(&key, 9);
        writes.begin(&key);
        assert_eq!(writes.end(&key), 0, "the removal came before the write");

        writes.begin(&key);
        writes.begin(&other);
        writes.removed(&key, 12);
        writes.removed(&key, 11);
        writes.listed(Some(20), |absent| *absent == other);
        assert_eq!((writes.end(&key), writes.end(&other)), (12, 20));
        assert_eq!(writes.end(&key), 0);

        writes.begin(&key);
        writes.listed(None, |_| true);
        assert_eq!(writes.end(&key), u64::MAX);
        writes.begin(&key);
        writes.clear();
        writes.removed(&key, 30);
        assert_eq!(writes.end(&key), 0);
    }
}
