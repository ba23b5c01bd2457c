//! Owns reading a directory once: which files, their limits, the last good version of each, and the difference between
//! two sets of objects; does not watch.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::{ManifestError, parse};
use crate::objects::{Object, ObjectRef};

/// Largest file, in bytes.
const MAX_FILE: u64 = 4 << 20;
/// Largest number of files in the directory.
const MAX_FILES: usize = 1_000;
/// Largest number of objects in all files.
const MAX_OBJECTS: usize = 50_000;

/// A directory as it was read last.
#[derive(Debug, Default)]
pub struct Snapshot {
    files: BTreeMap<PathBuf, File>,
    errors: Vec<ManifestError>,
}

#[derive(Debug)]
struct File {
    /// Of the text as it was read last, good or not.
    hash: u64,
    /// The last good version.
    objects: Vec<Object>,
    /// Why the newest version is not the last good one.
    error: Option<ManifestError>,
}

impl Snapshot {
    /// Reads a directory for the first time.
    pub fn load(directory: &Path) -> (Vec<Object>, Vec<ManifestError>) {
        let mut snapshot = Self::default();
        snapshot.refresh(directory);
        snapshot.objects()
    }

    /// Reads a directory again. A file that is gone takes its objects with it; a file or a directory that cannot be
    /// read or parsed leaves what was known of it. Only files with another content are parsed. Returns whether anything,
    /// faults included, differs from the last reading.
    pub fn refresh(&mut self, directory: &Path) -> bool {
        let before = std::mem::take(&mut self.errors);
        let changed = self.read_all(directory);
        changed || before != self.errors
    }

    fn read_all(&mut self, directory: &Path) -> bool {
        let paths = match list(directory) {
            Ok(paths) => paths,
            Err(error) => {
                self.errors.push(ManifestError::of_file(
                    directory,
                    format!("cannot read the directory: {error}"),
                ));
                return false;
            }
        };
        if paths.len() > MAX_FILES {
            let reason = format!(
                "{} manifests, only the first {MAX_FILES} by name are read: join them",
                paths.len()
            );
            self.errors.push(ManifestError::of_file(directory, reason));
        }
        let paths: Vec<PathBuf> = paths.into_iter().take(MAX_FILES).collect();
        let known = self.files.len();
        self.files
            .retain(|path, _| paths.binary_search(path).is_ok());
        let mut changed = known != self.files.len();
        for path in paths {
            match read(&path) {
                Ok(text) => changed |= self.file(path, &text),
                // Removed between the listing and here; the next reading sees it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    changed |= self.files.remove(&path).is_some();
                }
                Err(error) => self.errors.push(ManifestError::of_file(&path, error)),
            }
        }
        changed
    }

    fn file(&mut self, path: PathBuf, text: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let hash = hasher.finish();
        if self.files.get(&path).is_some_and(|file| file.hash == hash) {
            return false;
        }
        let parsed = parse::file(&path, text);
        let file = self.files.entry(path).or_insert(File {
            hash,
            objects: Vec::new(),
            error: None,
        });
        file.hash = hash;
        match parsed {
            Ok(objects) => (file.objects, file.error) = (objects, None),
            Err(error) => file.error = Some(error),
        }
        true
    }

    /// All objects, and all that is wrong. Of two objects of one name the one in the first file by name counts.
    pub fn objects(&self) -> (Vec<Object>, Vec<ManifestError>) {
        let mut errors = self.errors.clone();
        let mut owners: HashMap<ObjectRef, &Path> = HashMap::new();
        let mut objects = Vec::new();
        for (path, file) in &self.files {
            errors.extend(file.error.clone());
            for object in &file.objects {
                match owners.entry(object.reference()) {
                    Entry::Occupied(owner) => {
                        let reason = format!(
                            "{} is already in {}, this one is ignored",
                            owner.key(),
                            owner.get().display()
                        );
                        errors.push(ManifestError::of_file(path, reason));
                    }
                    Entry::Vacant(_) if objects.len() >= MAX_OBJECTS => {
                        errors.push(ManifestError::of_file(
                            path,
                            format!("more than {MAX_OBJECTS} objects, the rest is ignored"),
                        ));
                        return (objects, errors);
                    }
                    Entry::Vacant(entry) => {
                        entry.insert(path);
                        objects.push(object.clone());
                    }
                }
            }
        }
        (objects, errors)
    }
}

/// The manifests of a directory in the order of their names. Hidden files are left out: editors and mounted ConfigMaps
/// keep their temporary files under such names.
fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let manifest = path
            .extension()
            .is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        if manifest && !hidden && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    // One byte more than allowed tells a file that is too large from one that just fits.
    fs::File::open(path)?
        .take(MAX_FILE + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!(
            "larger than {MAX_FILE} bytes: split the file"
        )));
    }
    Ok(text)
}

/// What turns one set of objects into another.
#[derive(Debug, Default, PartialEq)]
pub struct Difference {
    /// New or changed.
    pub applied: Vec<Object>,
    /// Gone.
    pub deleted: Vec<ObjectRef>,
}

/// Compares what is in force with what should be.
pub fn diff(old: &BTreeMap<ObjectRef, Object>, new: &BTreeMap<ObjectRef, Object>) -> Difference {
    let applied = new
        .iter()
        .filter(|(reference, object)| old.get(reference) != Some(object));
    let deleted = old.keys().filter(|reference| !new.contains_key(reference));
    Difference {
        applied: applied.map(|(_, object)| object.clone()).collect(),
        deleted: deleted.cloned().collect(),
    }
}

#[cfg(test)]
mod tests;
