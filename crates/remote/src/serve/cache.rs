//! What stays open between requests.
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// A bounded number of open things, by what names them. The one that was not used for the longest time goes first.
#[derive(Debug)]
pub(super) struct Cache<K, V> {
    most: usize,
    inner: Mutex<Inner<K, V>>,
}

#[derive(Debug)]
struct Inner<K, V> {
    held: HashMap<K, (u64, Arc<V>)>,
    /// Counts uses.
    clock: u64,
}

impl<K: Eq + Hash + Clone, V> Cache<K, V> {
    /// With room for so many.
    pub(super) fn new(most: usize) -> Self {
        Self { most, inner: Mutex::new(Inner { held: HashMap::new(), clock: 0 }) }
    }

    /// What has this name.
    pub(super) fn get(&self, key: &K) -> Option<Arc<V>> {
        let mut inner = lock(&self.inner);
        inner.clock += 1;
        let now = inner.clock;
        let (used, value) = inner.held.get_mut(key)?;
        *used = now;
        Some(Arc::clone(value))
    }

    /// Keeps something under a name.
    pub(super) fn put(&self, key: K, value: &Arc<V>) {
        let mut inner = lock(&self.inner);
        inner.clock += 1;
        let now = inner.clock;
        let replaced = inner.held.insert(key, (now, Arc::clone(value)));
        let mut oldest = None;
        if inner.held.len() > self.most {
            let key =
                inner.held.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone());
            oldest = key.and_then(|key| inner.held.remove(&key));
        }
        // What is not held any more is closed without the lock: a server may take its time for that.
        drop(inner);
        drop((replaced, oldest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_goes_first() {
        let cache = Cache::new(2);
        for key in [1, 2] {
            cache.put(key, &Arc::new(key));
        }
        assert_eq!(cache.get(&1).as_deref(), Some(&1));
        cache.put(3, &Arc::new(3));
        assert_eq!(cache.get(&2), None);
        assert_eq!(cache.get(&1).as_deref(), Some(&1));
        cache.put(1, &Arc::new(4));
        assert_eq!(cache.get(&1).as_deref(), Some(&4));
        assert_eq!(cache.get(&3).as_deref(), Some(&3));
    }
}
