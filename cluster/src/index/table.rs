//! Owns the two containers of the index: values by name, and names by what groups them; knows no kinds.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    ops::Bound,
    sync::Arc,
};

use crate::objects::Name;

/// Values by name, in the order of names.
#[derive(Debug)]
pub(super) struct Table<V> {
    rows: BTreeMap<Name, Arc<V>>,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self {
            rows: BTreeMap::new(),
        }
    }
}

impl<V: PartialEq> Table<V> {
    /// Sets or removes a value. `None` when nothing changed, otherwise what was there before.
    #[expect(
        clippy::option_option,
        reason = "no change and no former value are two different answers"
    )]
    pub(super) fn set(&mut self, name: &Name, value: Option<V>) -> Option<Option<Arc<V>>> {
        match value {
            None => self.rows.remove(name).map(Some),
            Some(value) => match self.rows.get_mut(name) {
                Some(row) if **row == value => None,
                Some(row) => Some(Some(std::mem::replace(row, Arc::new(value)))),
                None => {
                    self.rows.insert(name.clone(), Arc::new(value));
                    Some(None)
                }
            },
        }
    }

    pub(super) fn find(&self, name: &Name) -> Option<&Arc<V>> {
        self.rows.get(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &Arc<V>)> {
        self.rows.iter()
    }

    /// The values of a namespace, by name.
    pub(super) fn in_namespace<'a>(
        &'a self,
        namespace: &Arc<str>,
    ) -> impl Iterator<Item = &'a Arc<V>> + use<'a, V> {
        let namespace = Arc::clone(namespace);
        let first = Name {
            namespace: Arc::clone(&namespace),
            name: "".into(),
        };
        let rows = self.rows.range((Bound::Included(first), Bound::Unbounded));
        rows.take_while(move |(name, _)| name.namespace == namespace)
            .map(|(_, value)| value)
    }
}

/// A table, whatever its values are.
pub(super) trait Rows {
    fn names(&self) -> Vec<Name>;
    fn len(&self) -> usize;
}

impl<V> Rows for Table<V> {
    fn names(&self) -> Vec<Name> {
        self.rows.keys().cloned().collect()
    }

    fn len(&self) -> usize {
        self.rows.len()
    }
}

/// Names by what groups them, for example pods by address.
#[derive(Debug)]
pub(super) struct ByGroup<G> {
    groups: HashMap<G, BTreeSet<Name>>,
}

impl<G> Default for ByGroup<G> {
    fn default() -> Self {
        Self {
            groups: HashMap::new(),
        }
    }
}

impl<G: Eq + Hash + Clone> ByGroup<G> {
    /// Moves a name from its old groups to its new ones.
    pub(super) fn regroup(&mut self, name: &Name, old: &[G], new: &[G]) {
        for group in old.iter().filter(|group| !new.contains(group)) {
            if let Some(names) = self.groups.get_mut(group) {
                names.remove(name);
                if names.is_empty() {
                    self.groups.remove(group);
                }
            }
        }
        for group in new {
            self.groups
                .entry(group.clone())
                .or_default()
                .insert(name.clone());
        }
    }

    pub(super) fn members(&self, group: &G) -> impl Iterator<Item = &Name> + use<'_, G> {
        self.groups.get(group).into_iter().flatten()
    }
}
