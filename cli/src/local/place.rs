//! Owns where a mesh on one machine lives: its state folder and the name under which its host is found.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};

/// One mesh: a directory of manifests, for one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory of manifests, without symbolic links.
    pub manifests: PathBuf,
    /// Folder of the trust anchor, the issuer and the logs.
    pub state: PathBuf,
}

/// Why a place cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The manifests are not there.
    #[error("cannot read the manifests in {}: {source}; give an existing directory with --manifests", path.display())]
    Manifests {
        /// What was given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The state folder cannot be made.
    #[error("cannot make the state folder {}: {source}; name another with --state-dir", path.display())]
    State {
        /// Where it should be.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Place {
    /// Finds the place of `manifests` and makes its state folder, which only its owner can read.
    ///
    /// Without `state`, that is a folder named by the manifests' path in `$XDG_RUNTIME_DIR/weft`, or in `/run/weft` for root,
    /// or else in a folder of the user's in the directory for temporary files.
    pub fn new(manifests: &Path, state: Option<&Path>) -> Result<Self, PlaceError> {
        let at = |source| PlaceError::Manifests {
            path: manifests.to_owned(),
            source,
        };
        let manifests = manifests.canonicalize().map_err(at)?;
        std::fs::read_dir(&manifests).map_err(at)?;
        let state = match state {
            Some(state) => state.to_owned(),
            None => base().join(format!("{:016x}", fingerprint(&manifests))),
        };
        let failed = |source| PlaceError::State {
            path: state.clone(),
            source,
        };
        private_folder(&state).map_err(failed)?;
        let state = state.canonicalize().map_err(failed)?;
        Ok(Place { manifests, state })
    }

    /// The abstract socket of the host. Such a name belongs to a process and leaves with it, so that a killed host leaves
    /// nothing that could be mistaken for a living one.
    pub fn socket(&self) -> io::Result<SocketAddr> {
        let user = nix::unistd::geteuid();
        let name = fingerprint(&(&self.manifests, &self.state));
        SocketAddr::from_abstract_name(format!("weft-mesh-{user}-{name:016x}"))
    }

    /// Folder of the logs of the host and of each proxy.
    pub fn logs(&self) -> PathBuf {
        self.state.join("logs")
    }

    /// Folder of the local authority: trust anchor, issuer and token key.
    pub fn authority(&self) -> PathBuf {
        self.state.join("trust")
    }

    /// Where the host writes what it does.
    pub fn host_log(&self) -> PathBuf {
        self.logs().join("mesh-host.log")
    }
}

fn base() -> PathBuf {
    let user = nix::unistd::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) if !runtime.is_empty() => PathBuf::from(runtime).join("weft"),
        _ if user.is_root() => PathBuf::from("/run/weft"),
        _ => std::env::temp_dir().join(format!("weft-{user}")),
    }
}

fn fingerprint(what: &impl Hash) -> u64 {
    // Only names files and sockets of one build; `DefaultHasher::new` has fixed keys.
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// Makes a folder for its owner only, also when it was there with other rights.
fn private_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path.join("logs"))
}

/// The last lines of a log, at most 10 and 4 KiB, to show with an error.
pub fn tail(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ways_to_one_directory_are_one_place() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let manifests = root.path().join("m");
        std::fs::create_dir(&manifests).expect("creates");
        let state = root.path().join("s");
        let one = Place::new(&manifests, Some(&state)).expect("a place");
        let two = Place::new(&manifests.join("../m"), Some(&state)).expect("a place");
        assert_eq!(one, two);
        let socket = |place: &Place| {
            place
                .socket()
                .expect("a name")
                .as_abstract_name()
                .map(<[u8]>::to_vec)
        };
        assert_eq!(socket(&one), socket(&two));
        let mode = std::fs::metadata(&one.state)
            .expect("is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn missing_manifests_are_named() {
        let error =
            Place::new(Path::new("/nowhere/at/all"), None).expect_err("there is no such directory");
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }

    #[test]
    fn the_tail_of_a_log_is_short() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text: String = (0..100).map(|n| format!("line {n}\n")).collect();
        std::fs::write(file.path(), text).expect("writes");
        assert!(tail(file.path()).starts_with("line 90\n"));
        assert_eq!(tail(Path::new("/nowhere")), "");
    }
}
