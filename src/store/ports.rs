//! Interns lists of ports: many Services have equal ones.

use std::collections::HashSet;
use std::sync::Arc;

use crate::model::link::Port;

#[derive(Debug, Default)]
pub(crate) struct PortInterner(HashSet<Arc<[Port]>>);

impl PortInterner {
    /// Returns an equal list, which may be shared.
    pub(crate) fn shared(&mut self, ports: Arc<[Port]>) -> Arc<[Port]> {
        if let Some(known) = self.0.get(&ports) {
            return Arc::clone(known);
        }
        // Before the set grows, remove the lists that no link has any more.
        if self.0.len() == self.0.capacity() {
            self.0.retain(|ports| Arc::strong_count(ports) > 1);
        }
        self.0.insert(Arc::clone(&ports));
        ports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lists_are_shared_and_unused_lists_removed() {
        let port = |port| Port { name: None, protocol: "TCP".to_owned(), port, app_protocol: None };
        let list = |number| Arc::from([port(number)]);
        let mut ports = PortInterner::default();
        let one = ports.shared(list(80));
        assert!(Arc::ptr_eq(&one, &ports.shared(list(80))));
        for port in 1000..9000 {
            drop(ports.shared(list(port)));
        }
        assert!(ports.0.capacity() < 100, "{}", ports.0.capacity());
        assert!(Arc::ptr_eq(&one, &ports.shared(list(80))));
    }
}
