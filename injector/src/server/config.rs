//! Owns the files of the injector's settings: read at each request (contract 9.1), understood anew only when they changed. Does not
//! judge the values.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::AsyncReadExt;

use super::Settings;
use crate::patch::{Config, Values};

/// A ConfigMap has at most 1 MiB.
const FILE_MAX: u64 = 1024 * 1024;

/// The files, and what they said last.
pub(super) struct ConfigFiles {
    values: PathBuf,
    trust_roots: PathBuf,
    control_namespace: String,
    version: String,
    last: Mutex<Option<Read>>,
}

#[derive(Clone)]
struct Read {
    values: String,
    trust_roots: String,
    config: Result<Arc<Config>, String>,
}

impl ConfigFiles {
    pub fn new(settings: &Settings) -> Self {
        Self {
            values: settings.config_file.clone(),
            trust_roots: settings.trust_roots.clone(),
            control_namespace: settings.control_namespace.clone(),
            version: settings.version.clone(),
            last: Mutex::new(None),
        }
    }

    /// The settings as the files say now, or what is wrong with them.
    pub async fn read(&self) -> Result<Arc<Config>, String> {
        let values = read(&self.values).await?;
        let trust_roots = read(&self.trust_roots).await?;
        let mut last = self.last.lock();
        if let Some(last) = last.as_ref()
            && last.values == values
            && last.trust_roots == trust_roots
        {
            return last.config.clone();
        }
        let config = self.understand(&values, &trust_roots);
        match &config {
            Ok(_) => tracing::info!("settings read from {}", self.values.display()),
            Err(reason) => tracing::error!(reason, "the settings cannot be used"),
        }
        *last = Some(Read {
            values,
            trust_roots,
            config: config.clone(),
        });
        config
    }

    fn understand(&self, values: &str, trust_roots: &str) -> Result<Arc<Config>, String> {
        if trust_roots.trim().is_empty() {
            return Err(format!(
                "{} has no trust anchor",
                self.trust_roots.display()
            ));
        }
        let values =
            Values::from_yaml(values).map_err(|e| format!("{}: {e}", self.values.display()))?;
        Ok(Arc::new(Config {
            values,
            trust_anchors: trust_roots.to_owned(),
            control_namespace: self.control_namespace.clone(),
            version: self.version.clone(),
        }))
    }
}

async fn read(path: &Path) -> Result<String, String> {
    let read = async {
        let mut text = String::new();
        let file = tokio::fs::File::open(path).await?;
        file.take(FILE_MAX + 1).read_to_string(&mut text).await?;
        match u64::try_from(text.len()) {
            Ok(length) if length <= FILE_MAX => Ok(text),
            _ => Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge)),
        }
    };
    read.await
        .map_err(|e| format!("{}: cannot be read: {e}", path.display()))
}
