//! A certificate authority in a folder, for meshes without Kubernetes: trust anchor, issuer, and the key that signs workload tokens.
//! Makes and loads files; serving certificates from them is `server`'s work.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
use time::OffsetDateTime;

use crate::authority::{Issuer, PairFiles, Scheme, unix_seconds};
use crate::reload::read_limited;
use crate::roots::TrustRoots;
use crate::token::{AUDIENCE, Claims, LocalTokens, Named, Workload};

/// `iss` of the tokens of a local authority. Which authority it was, the key tells.
pub const TOKEN_ISSUER: &str = "urn:weft:local-authority";

const ROOT_VALIDITY: time::Duration = time::Duration::days(3650);
const ISSUER_VALIDITY: time::Duration = time::Duration::days(365);
/// Namespaces of one machine share its clock; this is for restored snapshots and the like.
const BACKDATE: time::Duration = time::Duration::hours(1);
const MAX_FILE_BYTES: usize = 64 * 1024;
const PRIVATE_DIR: u32 = 0o700;
const PRIVATE_FILE: u32 = 0o600;

const BUNDLE: &str = "ca-bundle.crt";
const ROOT_KEY: &str = "ca.key";
const TOKEN_KEY: &str = "token.key";
const TOKEN_PUBLIC_KEY: &str = "token.pub";
const ISSUER_DIR: &str = "issuer";
const LOCK: &str = ".lock";

/// Why a local authority cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The file system.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others can read the folder, and so the keys.
    #[error("{} can be read by others (mode {mode:o}) but holds private keys; run: chmod 700 {}", path.display(), path.display())]
    Exposed {
        /// The folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A file of the authority is damaged, or half of a pair is missing.
    #[error("{}: {reason}; restore it, or delete the folder to start with a new trust anchor", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
}

/// An open local authority. Any number of processes may have the same folder open.
pub struct LocalAuthority {
    dir: PathBuf,
    bundle: String,
    root_key: KeyPair,
    token_key: EncodingKey,
    token_public_key: String,
}

impl std::fmt::Debug for LocalAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalAuthority")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl LocalAuthority {
    /// Loads the authority in `dir`, or makes what is missing: the folder (mode 0700), a trust anchor, a token key, an issuer.
    /// An issuer that has expired, or is not of this anchor, is replaced.
    pub fn open(dir: &Path) -> Result<Self, LocalError> {
        private_dir(dir)?;
        let _lock = lock(dir)?;
        let (bundle, root_key) = open_root(dir)?;
        let (token_key, token_public_key) = open_token_key(dir)?;
        let authority = Self {
            dir: dir.to_owned(),
            bundle,
            root_key,
            token_key,
            token_public_key,
        };
        if let Err(reason) = authority.check_issuer() {
            tracing::info!(%reason, "making a new issuer");
            authority.write_issuer()?;
        }
        Ok(authority)
    }

    /// Puts a new issuer of the same trust anchor in place, in one atomic step. Certificates that exist stay valid.
    pub fn rotate_issuer(&self) -> Result<(), LocalError> {
        let _lock = lock(&self.dir)?;
        self.write_issuer()
    }

    /// A token that proves to be pod `pod` of this service account, for `lifetime` from now.
    pub fn issue_token(
        &self,
        namespace: &str,
        service_account: &str,
        pod: &str,
        lifetime: Duration,
    ) -> String {
        let now = unix_seconds(SystemTime::now());
        self.sign(&Claims {
            iss: TOKEN_ISSUER.to_owned(),
            sub: format!("system:serviceaccount:{namespace}:{service_account}"),
            aud: vec![AUDIENCE.to_owned()],
            exp: now.saturating_add(i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX)),
            nbf: Some(now),
            iat: Some(now),
            kubernetes: Some(Workload {
                namespace: namespace.to_owned(),
                serviceaccount: Named {
                    name: service_account.to_owned(),
                },
                pod: Some(Named {
                    name: pod.to_owned(),
                }),
            }),
        })
    }

    pub(crate) fn sign(&self, claims: &Claims) -> String {
        jsonwebtoken::encode(&Header::new(Algorithm::ES256), claims, &self.token_key).expect(
            "text and numbers become JSON, and the key signed when the authority was opened",
        )
    }

    #[cfg(test)]
    pub(crate) fn token_key(&self) -> &EncodingKey {
        &self.token_key
    }

    /// What checks the tokens of this authority.
    pub fn tokens(&self) -> LocalTokens {
        LocalTokens::from_public_key(self.token_public_key.as_bytes())
            .expect("parsed when the authority was opened")
    }

    /// The trust anchors as PEM, for `LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS`.
    pub fn trust_anchors_pem(&self) -> &str {
        &self.bundle
    }

    /// The file of the trust anchors.
    pub fn trust_roots(&self) -> PathBuf {
        self.dir.join(BUNDLE)
    }

    /// The folder of the issuer, of scheme `linkerd.io/tls`.
    pub fn issuer_dir(&self) -> PathBuf {
        self.dir.join(ISSUER_DIR)
    }

    fn check_issuer(&self) -> Result<(), String> {
        let (certificate_path, key_path) = self.issuer_paths();
        let read = |path: &Path| {
            read_limited(path, MAX_FILE_BYTES).map_err(|e| format!("{}: {e}", path.display()))
        };
        let pair = PairFiles {
            certificate: read(&certificate_path)?,
            key: read(&key_path)?,
            certificate_path,
            key_path,
        };
        let roots = TrustRoots::from_pem(self.bundle.as_bytes()).map_err(|e| e.to_string())?;
        Issuer::from_pair(&pair, &roots, SystemTime::now()).map_err(|e| e.to_string())?;
        Ok(())
    }

    fn issuer_paths(&self) -> (PathBuf, PathBuf) {
        let (certificate, key) = Scheme::Linkerd.files();
        (
            self.issuer_dir().join(certificate),
            self.issuer_dir().join(key),
        )
    }

    /// In the layout of a mounted Secret: the files are links through `..data`, which is swapped by a rename. So a reader never
    /// sees the certificate of one pair and the key of another.
    fn write_issuer(&self) -> Result<(), LocalError> {
        let key = KeyPair::generate()?;
        let root = rcgen::Issuer::from_ca_cert_pem(&self.bundle, &self.root_key)?;
        let params = ca_params(
            "weft local issuer",
            ISSUER_VALIDITY,
            BasicConstraints::Constrained(0),
        );
        let certificate = params.signed_by(&key, &root)?;

        let dir = self.issuer_dir();
        private_dir(&dir)?;
        let stamp = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos();
        let version = format!("..{stamp}");
        let (certificate_name, key_name) = Scheme::Linkerd.files();
        private_dir(&dir.join(&version))?;
        write_private(
            &dir.join(&version).join(certificate_name),
            &certificate.pem(),
        )?;
        write_private(&dir.join(&version).join(key_name), &key.serialize_pem())?;

        let (data, next) = (dir.join("..data"), dir.join("..data_tmp"));
        let before = fs::read_link(&data).ok();
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| LocalError::Io { path, source }
        };
        remove_if_there(&next)?;
        symlink(&version, &next).map_err(io(&next))?;
        fs::rename(&next, &data).map_err(io(&data))?;
        for name in [certificate_name, key_name] {
            let link = dir.join(name);
            if fs::read_link(&link).is_err() {
                remove_if_there(&link)?;
                symlink(Path::new("..data").join(name), &link).map_err(io(&link))?;
            }
        }
        if let Some(before) = before {
            let before = dir.join(before);
            fs::remove_dir_all(&before).map_err(io(&before))?;
        }
        Ok(())
    }
}

fn open_root(dir: &Path) -> Result<(String, KeyPair), LocalError> {
    let (bundle_path, key_path) = (dir.join(BUNDLE), dir.join(ROOT_KEY));
    match (read_text(&bundle_path)?, read_text(&key_path)?) {
        (Some(bundle), Some(key)) => {
            check_root(&bundle_path, &bundle)?;
            let key = KeyPair::from_pem(&key).map_err(|e| damaged(&key_path, e))?;
            Ok((bundle, key))
        }
        (None, None) => {
            let key = KeyPair::generate()?;
            let params = ca_params(
                "weft local trust anchor",
                ROOT_VALIDITY,
                BasicConstraints::Unconstrained,
            );
            let bundle = params.self_signed(&key)?.pem();
            write_private(&key_path, &key.serialize_pem())?;
            write_private(&bundle_path, &bundle)?;
            Ok((bundle, key))
        }
        (None, Some(_)) => Err(damaged(
            &bundle_path,
            "is missing although its key is there",
        )),
        (Some(_), None) => Err(damaged(
            &key_path,
            "is missing although its certificate is there",
        )),
    }
}

fn check_root(path: &Path, bundle: &str) -> Result<(), LocalError> {
    let certificates =
        weft_tls::pem::certificates(bundle.as_bytes()).map_err(|e| damaged(path, e))?;
    for der in &certificates {
        let (_, parsed) = x509_parser::parse_x509_certificate(der).map_err(|e| damaged(path, e))?;
        if parsed.validity().not_after.timestamp() <= unix_seconds(SystemTime::now()) {
            return Err(damaged(
                path,
                format!("expired on {}", parsed.validity().not_after),
            ));
        }
    }
    Ok(())
}

fn open_token_key(dir: &Path) -> Result<(EncodingKey, String), LocalError> {
    let (path, public_path) = (dir.join(TOKEN_KEY), dir.join(TOKEN_PUBLIC_KEY));
    let key = match read_text(&path)? {
        Some(key) => KeyPair::from_pem(&key).map_err(|e| damaged(&path, e))?,
        None => {
            let key = KeyPair::generate()?;
            write_private(&path, &key.serialize_pem())?;
            key
        }
    };
    let public = key.public_key_pem();
    if read_text(&public_path)?.as_ref() != Some(&public) {
        write_private(&public_path, &public)?;
    }
    let signer =
        EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).map_err(|e| damaged(&path, e))?;
    LocalTokens::from_public_key(public.as_bytes()).map_err(|e| damaged(&public_path, e))?;
    jsonwebtoken::encode(&Header::new(Algorithm::ES256), &(), &signer)
        .map_err(|e| damaged(&path, e))?;
    Ok((signer, public))
}

fn ca_params(
    name: &str,
    validity: time::Duration,
    constraints: BasicConstraints,
) -> CertificateParams {
    let now = OffsetDateTime::now_utc();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(constraints);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    params.not_before = now - BACKDATE;
    params.not_after = now + validity;
    params
}

/// Makes the folder, or makes sure that nobody else can look into it.
fn private_dir(path: &Path) -> Result<(), LocalError> {
    let io = |source| LocalError::Io {
        path: path.to_owned(),
        source,
    };
    match DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE_DIR)
        .create(path)
    {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(io(e)),
        _ => {}
    }
    let mode = fs::metadata(path).map_err(io)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(LocalError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(())
}

/// Held while files are made, so that two processes do not make two anchors.
fn lock(dir: &Path) -> Result<File, LocalError> {
    let path = dir.join(LOCK);
    let opened = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(PRIVATE_FILE)
        .open(&path);
    opened
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|source| LocalError::Io { path, source })
}

fn read_text(path: &Path) -> Result<Option<String>, LocalError> {
    match read_limited(path, MAX_FILE_BYTES) {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| damaged(path, "is not text")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LocalError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Under a temporary name first: a crash leaves the old file or the new one, never half of one.
fn write_private(path: &Path, text: &str) -> Result<(), LocalError> {
    let next = path.with_extension("tmp");
    let write = || {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(PRIVATE_FILE)
            .open(&next)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&next, path)
    };
    write().map_err(|source| LocalError::Io {
        path: path.to_owned(),
        source,
    })
}

fn remove_if_there(path: &Path) -> Result<(), LocalError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(LocalError::Io {
            path: path.to_owned(),
            source: e,
        }),
        _ => Ok(()),
    }
}

fn damaged(path: &Path, reason: impl ToString) -> LocalError {
    LocalError::Damaged {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests;
