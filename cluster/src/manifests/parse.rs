//! Owns turning the text of one file into objects, and naming document, line and field of whatever is wrong; does not
//! read files.

use std::path::Path;

use serde::{Deserialize, de::IgnoredAny};
use serde_norway::Value;

use super::ManifestError;
use crate::objects::{Kind, Object};

/// Largest number of documents, and of items of a `kind: List`, in one file.
const MAX_DOCUMENTS: usize = 5_000;

/// What tells how to read a document.
#[derive(Deserialize)]
struct Header {
    #[serde(rename = "apiVersion")]
    api_version: String,
    kind: String,
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    name: Option<String>,
}

/// `kind: List`.
#[derive(Deserialize)]
struct List {
    items: Vec<Value>,
}

/// Parses a file; JSON is read as the YAML it is, but with JSON's parser for its white space.
///
/// # Errors
/// The first thing that is wrong. Nothing of a file with a fault is used, so its last good version stays as a whole.
pub fn file(path: &Path, text: &str) -> Result<Vec<Object>, ManifestError> {
    let mut objects = Vec::new();
    let json = path
        .extension()
        .is_some_and(|extension| extension == "json");
    for (index, document) in documents(text, json).into_iter().enumerate() {
        let at = At {
            path,
            document: index + 1,
            json,
        };
        if index >= MAX_DOCUMENTS {
            return Err(at.error(
                None,
                None::<&str>,
                format!("more than {MAX_DOCUMENTS} documents: split the file"),
            ));
        }
        at.parse(&document, &mut objects)?;
    }
    Ok(objects)
}

/// Where in a file we are.
struct At<'a> {
    path: &'a Path,
    document: usize,
    json: bool,
}

impl At<'_> {
    fn parse(&self, text: &str, objects: &mut Vec<Object>) -> Result<(), ManifestError> {
        // An empty document, or one of comments only.
        if !self.json
            && serde_norway::from_str::<Option<IgnoredAny>>(text).is_ok_and(|value| value.is_none())
        {
            return Ok(());
        }
        let header: Header = self.read(text)?;
        if header.kind == "List" && header.api_version == "v1" {
            let list: List = self.read(text)?;
            if list.items.len() > MAX_DOCUMENTS {
                return Err(self.error(
                    None,
                    Some("items"),
                    format!("more than {MAX_DOCUMENTS} items"),
                ));
            }
            for (index, item) in list.items.into_iter().enumerate() {
                self.item(index, item, objects)?;
            }
            return Ok(());
        }
        let Some(kind) = self.known(&header, "")? else {
            return Ok(());
        };
        let object = if self.json {
            let mut from = serde_json::Deserializer::from_str(text);
            let mut track = serde_path_to_error::Track::new();
            let read = Object::deserialize(
                kind,
                serde_path_to_error::Deserializer::new(&mut from, &mut track),
            );
            read.map_err(|error| {
                self.error(Some(error.line()), path(track.path().to_string()), &error)
            })
        } else {
            let mut track = serde_path_to_error::Track::new();
            let from = serde_norway::Deserializer::from_str(text);
            let read = Object::deserialize(
                kind,
                serde_path_to_error::Deserializer::new(from, &mut track),
            );
            read.map_err(|error| self.yaml_error(&error, path(track.path().to_string())))
        };
        objects.push(object?);
        Ok(())
    }

    /// Reads an item of a list. Its line is not known any more, its path says where it is.
    fn item(
        &self,
        index: usize,
        item: Value,
        objects: &mut Vec<Object>,
    ) -> Result<(), ManifestError> {
        let prefix = format!("items[{index}]");
        let header: Header = serde_path_to_error::deserialize(item.clone())
            .map_err(|error| self.error(None, Some(&prefix), error.inner()))?;
        let Some(kind) = self.known(&header, &format!("{prefix}."))? else {
            return Ok(());
        };
        let mut track = serde_path_to_error::Track::new();
        let read = Object::deserialize(
            kind,
            serde_path_to_error::Deserializer::new(item, &mut track),
        );
        objects.push(read.map_err(|error| {
            self.error(None, Some(&format!("{prefix}.{}", track.path())), error)
        })?);
        Ok(())
    }

    /// The kind of a document; `None`, with a line in the log, for one that this control plane does not read.
    fn known(&self, header: &Header, prefix: &str) -> Result<Option<Kind>, ManifestError> {
        let Some(kind) = Kind::of(&header.api_version, &header.kind) else {
            let (file, document) = (self.path.display(), self.document);
            tracing::info!(%file, document, kind = header.kind, apiVersion = header.api_version, "kind is not read");
            return Ok(None);
        };
        match header
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.name.as_deref())
        {
            Some(name) if !name.is_empty() => Ok(Some(kind)),
            _ => Err(self.error(
                None,
                Some(&format!("{prefix}metadata.name")),
                format!("a {} needs a name", header.kind),
            )),
        }
    }

    fn read<'de, T: Deserialize<'de>>(&self, text: &'de str) -> Result<T, ManifestError> {
        if self.json {
            let mut from = serde_json::Deserializer::from_str(text);
            return serde_path_to_error::deserialize(&mut from).map_err(|error| {
                self.error(
                    Some(error.inner().line()),
                    path(error.path().to_string()),
                    error.inner(),
                )
            });
        }
        serde_path_to_error::deserialize(serde_norway::Deserializer::from_str(text))
            .map_err(|error| self.yaml_error(error.inner(), path(error.path().to_string())))
    }

    fn yaml_error(&self, error: &serde_norway::Error, field: Option<String>) -> ManifestError {
        self.error(
            error.location().map(|location| location.line()),
            field,
            error,
        )
    }

    fn error<F: AsRef<str>>(
        &self,
        line: Option<usize>,
        field: Option<F>,
        reason: impl ToString,
    ) -> ManifestError {
        let field = field.map(|field| field.as_ref().to_owned());
        ManifestError {
            file: self.path.to_owned(),
            document: Some(self.document),
            line,
            reason: bare(reason.to_string(), field.as_deref()),
            field,
        }
    }
}

/// A parser's message without the place, which is told apart from it.
fn bare(reason: String, field: Option<&str>) -> String {
    let end = reason.rfind(" at line ").unwrap_or(reason.len());
    let message = reason.get(..end).unwrap_or(&reason);
    let prefix = format!("{}: ", field.unwrap_or("."));
    message.strip_prefix(&prefix).unwrap_or(message).to_owned()
}

fn path(path: String) -> Option<String> {
    (path != ".").then_some(path)
}

/// Splits at document markers, which YAML allows at the start of a line only. Each document is moved down to its place
/// by empty lines, so that the parser counts lines of the file.
fn documents(text: &str, json: bool) -> Vec<String> {
    if json {
        return vec![text.to_owned()];
    }
    let mut documents = Vec::new();
    let mut current = String::new();
    let mut content = false;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let marker = line
            .strip_prefix("---")
            .or_else(|| line.strip_prefix("..."));
        if marker.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace)) {
            if content {
                documents.push(std::mem::take(&mut current));
            }
            current = "\n".repeat(index);
            content = false;
            // `--- {a: b}` starts the document on the same line.
            match marker
                .map(str::trim)
                .filter(|rest| !rest.is_empty() && line.starts_with("---"))
            {
                Some(rest) => {
                    current.push_str(rest);
                    current.push('\n');
                    content = true;
                }
                None => current.push('\n'),
            }
        } else {
            content |= !line.trim().is_empty() && !line.trim_start().starts_with(['#', '%']);
            current.push_str(line);
        }
    }
    if content {
        documents.push(current);
    }
    documents
}

#[cfg(test)]
mod tests;
