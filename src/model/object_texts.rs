//! Texts about single objects, for users.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::service_key::ServiceKey;

/// A text about each object that needs one. All clones share the texts.
#[derive(Clone, Debug, Default)]
pub struct ObjectTexts(Arc<SharedTexts>);

#[derive(Debug, Default)]
struct SharedTexts {
    texts: Mutex<HashMap<ServiceKey, Arc<str>>>,
    version: AtomicU64,
}

impl ObjectTexts {
    /// Sets or removes the text about an object. Returns whether it differs from the text before.
    pub fn set(&self, key: &ServiceKey, text: Option<&str>) -> bool {
        let mut texts = self.0.texts.lock();
        let is_new = texts.get(key).map(|known| &**known) != text;
        if is_new {
            match text {
                Some(text) => drop(texts.insert(key.clone(), text.into())),
                None => drop(texts.remove(key)),
            }
            self.0.version.fetch_add(1, Ordering::Release);
        }
        is_new
    }

    #[must_use]
    pub fn get(&self, key: &ServiceKey) -> Option<Arc<str>> {
        self.0.texts.lock().get(key).cloned()
    }

    /// Returns the number of objects with a text.
    #[must_use]
    pub fn number(&self) -> usize {
        self.0.texts.lock().len()
    }

    /// Removes the texts about the objects for which `known` is false.
    pub fn retain(&self, known: impl Fn(&ServiceKey) -> bool) {
        self.0.texts.lock().retain(|key, _| known(key));
        self.0.version.fetch_add(1, Ordering::Release);
    }

    /// Returns a number that grows with each change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }
}
