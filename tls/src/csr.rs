//! The key and the signing request of a workload, kept as `key.p8` and `csr.der` in the identity directory
//! (contract 2.1). Does not ask for a certificate.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use weft_core::name::Identity;

use crate::key::{KeyError, PrivateKey};
use crate::names::Request;

const KEY_FILE: &str = "key.p8";
const CSR_FILE: &str = "csr.der";

/// A workload's key and the request that asks for a certificate for it. Both stay the same until the restart.
#[derive(Clone, Debug)]
pub struct KeyAndCsr {
    /// The private key; its `Debug` does not show it.
    pub key: PrivateKey,
    /// The signing request, DER PKCS#10.
    pub csr_der: Vec<u8>,
}

/// Why there is no key and request to work with.
#[derive(Debug, thiserror::Error)]
pub enum CsrError {
    /// A file or the directory cannot be read or written.
    #[error(
        "cannot {action} {path}: {source}; the identity directory must be writable by the proxy"
    )]
    Io {
        /// What was tried.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// One file of the pair is missing.
    #[error("{present} is there but {missing} is not; remove {present} so that both are made anew")]
    HalfPair {
        /// The file that is there.
        present: PathBuf,
        /// The file that is not.
        missing: PathBuf,
    },
    /// The key file is not a key.
    #[error("{path}: {source}; remove it and {CSR_FILE} so that both are made anew")]
    Key {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: KeyError,
    },
    /// The request file is not a request, or not ours.
    #[error("{path}: {reason}; remove it and {KEY_FILE} so that both are made anew")]
    Csr {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A new key or request could not be made.
    #[error("cannot make a key and signing request for {id}: {reason}")]
    Generate {
        /// For whom.
        id: Identity,
        /// Why not.
        reason: String,
    },
}

/// Uses `key.p8` and `csr.der` of `dir` if both are there and valid, and makes them if neither is.
///
/// The request asks for one DNS name, the identity; for a URI identity, which a request of this shape cannot name, it
/// is `server_name`. Files that do not belong together are an error, not overwritten: they are somebody's key.
pub fn load_or_create(dir: &Path, id: &Identity, server_name: &str) -> Result<KeyAndCsr, CsrError> {
    let (key_path, csr_path) = (dir.join(KEY_FILE), dir.join(CSR_FILE));
    match (read_if_there(&key_path)?, read_if_there(&csr_path)?) {
        (Some(key), Some(csr)) => check(&key, csr, (&key_path, &csr_path), (id, server_name)),
        (None, None) => create(dir, id, server_name),
        (Some(_), None) => Err(CsrError::HalfPair {
            present: key_path,
            missing: csr_path,
        }),
        (None, Some(_)) => Err(CsrError::HalfPair {
            present: csr_path,
            missing: key_path,
        }),
    }
}

fn check(
    key_der: &[u8],
    csr_der: Vec<u8>,
    (key_path, csr_path): (&Path, &Path),
    (id, server_name): (&Identity, &str),
) -> Result<KeyAndCsr, CsrError> {
    let bad_csr = |reason: String| CsrError::Csr {
        path: csr_path.to_owned(),
        reason,
    };
    let key = PrivateKey::from_pkcs8_der(key_der).map_err(|source| CsrError::Key {
        path: key_path.to_owned(),
        source,
    })?;
    let request = Request::from_der(&csr_der).map_err(|error| bad_csr(error.to_string()))?;
    if request.public_key_der != key.public_key_der() {
        return Err(bad_csr(format!("its public key is not that of {KEY_FILE}")));
    }
    let wanted = requested_name(id, server_name);
    let named = |identity: Identity| identity == *id || identity.as_str() == wanted;
    if !request
        .sans
        .iter()
        .filter_map(|san| san.identity())
        .any(named)
    {
        let found: Vec<_> = request.sans.iter().map(|san| san.as_str()).collect();
        return Err(bad_csr(format!("it asks for {found:?}, not for {wanted}")));
    }
    Ok(KeyAndCsr { key, csr_der })
}

fn create(dir: &Path, id: &Identity, server_name: &str) -> Result<KeyAndCsr, CsrError> {
    let generate = |reason: String| CsrError::Generate {
        id: id.clone(),
        reason,
    };
    let name = requested_name(id, server_name);
    let pair =
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|e| generate(e.to_string()))?;
    let mut params =
        CertificateParams::new(vec![name.to_owned()]).map_err(|e| generate(e.to_string()))?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let request = params
        .serialize_request(&pair)
        .map_err(|e| generate(e.to_string()))?;
    let key = PrivateKey::from_pkcs8_der(pair.serialized_der())
        .map_err(|error| generate(error.to_string()))?;
    let csr_der = request.der().to_vec();

    fs::create_dir_all(dir).map_err(|source| CsrError::Io {
        action: "create",
        path: dir.to_owned(),
        source,
    })?;
    // Both are complete on disk before either gets its name, so that a crash hardly ever leaves half a pair.
    let key_temp = write_temp(dir, KEY_FILE, pair.serialized_der())?;
    let csr_temp = write_temp(dir, CSR_FILE, &csr_der)?;
    for (temp, name) in [(key_temp, KEY_FILE), (csr_temp, CSR_FILE)] {
        let path = dir.join(name);
        fs::rename(&temp, &path).map_err(|source| CsrError::Io {
            action: "write",
            path,
            source,
        })?;
    }
    Ok(KeyAndCsr { key, csr_der })
}

fn requested_name<'a>(id: &'a Identity, server_name: &'a str) -> &'a str {
    match id {
        Identity::Dns(name) => name,
        Identity::Uri(_) => server_name,
    }
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, CsrError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(CsrError::Io {
            action: "read",
            path: path.to_owned(),
            source,
        }),
    }
}

fn write_temp(dir: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, CsrError> {
    let path = dir.join(format!(".{name}.new"));
    let write = || -> io::Result<()> {
        // Left over from a crash; its mode is not known, so it is not written into.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|source| CsrError::Io {
        action: "write",
        path: path.clone(),
        source,
    })?;
    Ok(path)
}

#[cfg(test)]
mod tests;
