//! Owns the folder of results: its name and writing files into it.

use std::path::{Path, PathBuf};

use anyhow::Context;
use time::OffsetDateTime;
use time::macros::format_description;

/// A new folder named by the time, below `bench/results`.
///
/// # Errors
/// The time cannot be written, which does not happen before the year 10000.
pub fn dated(suffix: &str) -> anyhow::Result<PathBuf> {
    let format = format_description!("[year]-[month]-[day]-[hour][minute][second]");
    let now = OffsetDateTime::now_utc().format(format)?;
    Ok(Path::new("bench/results").join(now + suffix))
}

/// Writes files by name into a folder, which is made.
///
/// # Errors
/// Those of the file system.
pub fn write(folder: &Path, files: &[(&str, String)]) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
