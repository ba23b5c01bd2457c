//! Owns a directory of manifests as a source of the index: reading it, keeping the last good version of each file,
//! watching it, and completing it to what a cluster would have made of it. Subdirectories are not read.

mod local;
mod parse;
mod snapshot;
mod source;

use std::{fmt, path::PathBuf};

pub use local::{LocalMesh, LocalPod, LocalService};
pub use parse::file as parse;
pub use snapshot::{Difference, Snapshot, diff};
pub use source::ManifestSource;

/// What is wrong with a manifest, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestError {
    /// The file, or the directory when it cannot be read.
    pub file: PathBuf,
    /// Number of the document in the file, from 1.
    pub document: Option<usize>,
    /// Line in the file, from 1.
    pub line: Option<usize>,
    /// Path of the field, e.g. `spec.ports[0].port`.
    pub field: Option<String>,
    /// What is wrong.
    pub reason: String,
}

impl ManifestError {
    fn of_file(file: &std::path::Path, reason: impl ToString) -> Self {
        Self {
            file: file.to_owned(),
            document: None,
            line: None,
            field: None,
            reason: reason.to_string(),
        }
    }
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(document) = self.document {
            write!(f, ": document {document}")?;
        }
        if let Some(field) = &self.field {
            write!(f, ": {field}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for ManifestError {}
