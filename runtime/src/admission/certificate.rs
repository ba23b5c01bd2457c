//! The certificate a webhook shows, and following the files it is mounted from. It makes no certificate and does not look
//! at names or dates: the API server does.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

/// How often the files are read. Kubelet itself takes up to a minute to bring a new Secret.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
const FILE_MAX: u64 = 1024 * 1024;
/// The name that kubelet swaps atomically in a mounted Secret.
const DATA_LINK: &str = "..data";

/// Why a pair of certificate and key is not shown.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// The certificate is not PEM, or there is none in it.
    #[error("no certificate in PEM is found in it")]
    Certificate,
    /// The key is not PEM, or there is none in it.
    #[error("no private key in PEM (PKCS#8, SEC1 or PKCS#1) is found in it")]
    Key,
    /// The key is of an unknown kind, or belongs to another certificate.
    #[error("the key cannot be used with the certificate: {0}")]
    Pair(#[source] rustls::Error),
}

/// The certificate in use, replaced while connections go on.
#[derive(Debug, Default)]
pub struct Certificate {
    current: RwLock<Option<Arc<CertifiedKey>>>,
    /// Why the files are not in use. Logged once, not at each look.
    pub(super) problem: RwLock<Option<String>>,
}

impl Certificate {
    /// With nothing to show yet: handshakes fail.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Shows this pair from the next handshake on.
    ///
    /// # Errors
    /// The pair is not usable; the one before it stays.
    pub fn install(&self, certificate: &[u8], key: &[u8]) -> Result<(), CertificateError> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<_, _>>()
            .map_err(|_| CertificateError::Certificate)?;
        if chain.is_empty() {
            return Err(CertificateError::Certificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| CertificateError::Key)?;
        let pair = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())
            .map_err(CertificateError::Pair)?;
        *self.current.write() = Some(Arc::new(pair));
        Ok(())
    }

    /// Why no connection can be served, if so.
    ///
    /// # Errors
    /// No pair is in use; says what is wrong with the files.
    pub fn ready(&self) -> Result<(), String> {
        if self.current.read().is_some() {
            return Ok(());
        }
        let problem = self.problem.read().clone();
        Err(format!(
            "the webhook has no certificate: {}",
            problem.unwrap_or_else(|| "its files were not read yet".to_owned())
        ))
    }

    /// Shows the pair in these files, and each pair that replaces it, until the shutdown. A pair that is not usable is
    /// refused in the log and the one before it stays.
    pub async fn follow(
        self: Arc<Self>,
        certificate: PathBuf,
        key: PathBuf,
        shutdown: CancellationToken,
    ) {
        let mut seen = None;
        loop {
            let paths = (certificate.clone(), key.clone());
            let reading = tokio::task::spawn_blocking(move || read_pair(&paths.0, &paths.1));
            let read = reading
                .await
                .unwrap_or_else(|e| Err(format!("reading the files failed: {e}")));
            match read {
                Ok(pair) if seen.as_ref() == Some(&pair) => {}
                Ok(pair) => {
                    self.take_pair(&pair, &certificate, &key);
                    seen = Some(pair);
                }
                // Read again at the next look even if the content is the same as before.
                Err(problem) => {
                    seen = None;
                    self.complain(problem);
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    fn take_pair(&self, pair: &(Vec<u8>, Vec<u8>), certificate: &Path, key: &Path) {
        match self.install(&pair.0, &pair.1) {
            Ok(()) => {
                *self.problem.write() = None;
                tracing::info!(file = %certificate.display(), "webhook certificate loaded");
            }
            Err(error) => {
                let file = match error {
                    CertificateError::Certificate => certificate.display().to_string(),
                    CertificateError::Key => key.display().to_string(),
                    CertificateError::Pair(_) => {
                        format!("{} and {}", certificate.display(), key.display())
                    }
                };
                self.complain(format!("{file}: {error}"));
            }
        }
    }

    fn complain(&self, problem: String) {
        let mut told = self.problem.write();
        if told.as_ref() != Some(&problem) {
            let stays = match &*self.current.read() {
                Some(_) => "the one before it stays",
                None => "there is none to show",
            };
            tracing::error!(reason = %problem, "webhook certificate refused, {stays}");
            *told = Some(problem);
        }
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.read().clone()
    }
}

/// Both files from the folder that `..data` points to now: through the link, a swap between the two reads would mix two pairs.
fn read_pair(certificate: &Path, key: &Path) -> Result<(Vec<u8>, Vec<u8>), String> {
    Ok((read(&resolve(certificate))?, read(&resolve(key))?))
}

fn resolve(path: &Path) -> PathBuf {
    let folder = path.parent().map(|folder| folder.join(DATA_LINK));
    match (folder.map(std::fs::canonicalize), path.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(FILE_MAX + 1).read_to_end(&mut bytes))
        .and_then(|length| match u64::try_from(length) {
            Ok(length) if length <= FILE_MAX => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::FileTooLarge)),
        });
    read.map_err(|e| format!("{}: cannot be read: {e}", path.display()))?;
    Ok(bytes)
}
