//! Owns the notes that reading an object makes about its faults, and the readers of annotations several kinds share;
//! does not decide what a fault means for the mesh.

use std::collections::BTreeMap;

use weft_core::{name::PortSet, parse};

use super::Invalid;
use crate::objects::ObjectRef;

/// Collects faults of one object.
pub(super) struct Notes {
    object: ObjectRef,
    invalid: Vec<Invalid>,
}

impl Notes {
    pub(super) fn new(object: ObjectRef) -> Self {
        Self {
            object,
            invalid: Vec::new(),
        }
    }

    pub(super) fn finish(self) -> Vec<Invalid> {
        self.invalid
    }

    /// The object cannot be used. Returns `None` so that a reader can end with it.
    pub(super) fn refuse<T>(&mut self, field: &str, reason: impl ToString) -> Option<T> {
        self.note(field, reason.to_string(), true);
        None
    }

    /// A field is ignored.
    pub(super) fn ignore(&mut self, field: &str, reason: impl ToString) {
        self.note(field, reason.to_string(), false);
    }

    fn note(&mut self, field: &str, reason: String, refused: bool) {
        self.invalid.push(Invalid {
            object: self.object.clone(),
            field: field.to_owned(),
            reason,
            refused,
        });
    }

    /// The ports of an annotation; names are looked up, items that mean nothing are noted and left out.
    pub(super) fn ports(
        &mut self,
        annotations: Option<&BTreeMap<String, String>>,
        annotation: &str,
        named: impl Fn(&str) -> Option<u16>,
    ) -> Option<PortSet> {
        let text = annotations?.get(annotation)?;
        let mut known = Vec::new();
        for item in text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            match (named(item), parse::port_set(item)) {
                (Some(port), _) => known.push(port.to_string()),
                (None, Ok(_)) => known.push(item.to_owned()),
                (None, Err(error)) => self.ignore(&annotation_path(annotation), error),
            }
        }
        parse::port_set(&known.join(",")).ok()
    }
}

/// Path of an annotation in messages.
pub(super) fn annotation_path(annotation: &str) -> String {
    format!("metadata.annotations[{annotation}]")
}
