//! Owns JSON patches (RFC 6902) as far as the injector writes them: a list of `add`. Does not apply them.

use serde::Serialize;
use serde_json::Value;

/// One step of a patch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Operation {
    op: &'static str,
    path: String,
    value: Value,
}

/// A patch under construction.
#[derive(Debug, Default)]
pub(super) struct Patch(Vec<Operation>);

impl Patch {
    /// Adds a member or an array's item; a member that is there is replaced (RFC 6902 section 4.1).
    pub fn add(&mut self, path: impl Into<String>, value: impl Serialize) {
        let value = serde_json::to_value(value).expect("Kubernetes objects are JSON");
        self.0.push(Operation {
            op: "add",
            path: path.into(),
            value,
        });
    }

    /// Adds members to the object at `path`, which is made if it is not there.
    pub fn add_members<'a>(
        &mut self,
        object: &Value,
        path: &str,
        members: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) {
        let mut members = members.into_iter().peekable();
        if members.peek().is_some() && !object.pointer(path).is_some_and(Value::is_object) {
            self.add(path, Value::Object(serde_json::Map::new()));
        }
        for (name, value) in members {
            self.add(format!("{path}/{}", escaped(name)), value);
        }
    }

    pub fn finish(self) -> Vec<Operation> {
        self.0
    }
}

/// RFC 6901 section 3.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
