//! Owns finding out, before anything is made, whether this machine can run a mesh, and saying in one sentence what is missing.

use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User, geteuid, getgid};

/// Users and groups of a namespace: the first id inside, the first outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The sub-id of the caller that stands for the proxy's user.
    pub proxy_uid: u32,
    /// The sub-id of the caller that stands for the proxy's group.
    pub proxy_gid: u32,
}

/// How the mesh gets the right to make network namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// We are root.
    Root,
    /// A user namespace with these sub-ids.
    UserNamespace(Mapping),
}

/// Programs of the system that are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    /// `ip` of iproute2.
    pub ip: PathBuf,
    /// The iptables variants there are, the most modern first.
    pub iptables: Vec<PathBuf>,
    /// The proxy.
    pub proxy: PathBuf,
}

/// What is missing; each is one sentence with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    /// iproute2.
    #[error("the program `ip` is missing: install the Debian package `iproute2`")]
    Ip,
    /// iptables.
    #[error(
        "neither iptables-nft nor iptables-legacy nor iptables is there: install the Debian package `iptables`"
    )]
    Iptables,
    /// Our own proxy.
    #[error("the proxy {} is missing: build it with `cargo build --bin weft-proxy` or name it with --proxy", .0.display())]
    Proxy(PathBuf),
    /// The kernel forbids user namespaces.
    #[error(
        "without root a mesh needs user namespaces, which this kernel forbids ({0}): run as root, or as root set \
         `sysctl {0}={1}`"
    )]
    UserNamespaces(&'static str, &'static str),
    /// The helpers of user namespaces.
    #[error(
        "without root the programs `newuidmap` and `newgidmap` are needed: install the Debian package `uidmap`, or run as root"
    )]
    Uidmap,
    /// The sub-ids.
    #[error(
        "without root the proxies need a user id of their own, and {file} gives `{user}` none: as root run \
         `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}`, or run as root"
    )]
    SubIds {
        /// `/etc/subuid` or `/etc/subgid`.
        file: &'static str,
        /// Who needs them.
        user: String,
    },
}

/// Settings of kernels that forbid user namespaces, the value that forbids and the one that allows.
const SYSCTLS: [(&str, &str, &str, &str); 3] = [
    (
        "user.max_user_namespaces",
        "/proc/sys/user/max_user_namespaces",
        "0",
        "15000",
    ),
    (
        "kernel.unprivileged_userns_clone",
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "1",
    ),
    (
        "kernel.apparmor_restrict_unprivileged_userns",
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "0",
    ),
];

/// Finds the tools; `proxy` is the program that was asked for.
pub fn tools(proxy: &Path) -> Result<Tools, Missing> {
    let iptables: Vec<PathBuf> = ["iptables-nft", "iptables-legacy", "iptables"]
        .into_iter()
        .filter_map(find)
        .collect();
    if iptables.is_empty() {
        return Err(Missing::Iptables);
    }
    let ip = find("ip").ok_or(Missing::Ip)?;
    let proxy = proxy
        .canonicalize()
        .map_err(|_| Missing::Proxy(proxy.to_owned()))?;
    Ok(Tools {
        ip,
        iptables,
        proxy,
    })
}

/// Finds out what we may do.
pub fn privilege() -> Result<Privilege, Missing> {
    if geteuid().is_root() {
        return Ok(Privilege::Root);
    }
    for (name, path, forbids, allows) in SYSCTLS {
        if std::fs::read_to_string(path).is_ok_and(|value| value.trim() == forbids) {
            return Err(Missing::UserNamespaces(name, allows));
        }
    }
    if ["newuidmap", "newgidmap"]
        .into_iter()
        .any(|name| find(name).is_none())
    {
        return Err(Missing::Uidmap);
    }
    let user = User::from_uid(geteuid())
        .ok()
        .flatten()
        .map_or_else(|| geteuid().to_string(), |user| user.name);
    let first = |file| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        first_sub_id(&text, &user, geteuid()).ok_or(Missing::SubIds {
            file,
            user: user.clone(),
        })
    };
    Ok(Privilege::UserNamespace(Mapping {
        proxy_uid: first("/etc/subuid")?,
        proxy_gid: first("/etc/subgid")?,
    }))
}

/// The first sub-id of a user by subuid(5): `name-or-id:first:count`.
fn first_sub_id(text: &str, user: &str, uid: Uid) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut parts = line.trim().split(':');
        let owner = parts.next()?;
        let (first, count) = (
            parts.next()?.parse().ok()?,
            parts.next()?.parse::<u32>().ok()?,
        );
        (count > 0 && (owner == user || owner == uid.to_string())).then_some(first)
    })
}

/// The lines of the uid and gid maps (user_namespaces(7)): root inside is the caller, the proxy is a sub-id.
pub fn maps(mapping: &Mapping, proxy_uid: u32) -> [[String; 6]; 2] {
    let map = |own: u32, sub: u32| {
        [
            "0",
            &own.to_string(),
            "1",
            &proxy_uid.to_string(),
            &sub.to_string(),
            "1",
        ]
        .map(str::to_owned)
    };
    [
        map(geteuid().as_raw(), mapping.proxy_uid),
        map(getgid().as_raw(), mapping.proxy_gid),
    ]
}

/// A program in the search path, or where system programs are that users do not have in theirs.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_ids_are_found_by_name_or_number() {
        let text = "other:1:2\nada:100000:65536\n1000:7:0\n1000:200000:1\nbroken\n";
        assert_eq!(first_sub_id(text, "ada", Uid::from_raw(5)), Some(100_000));
        assert_eq!(
            first_sub_id(text, "bob", Uid::from_raw(1000)),
            Some(200_000)
        );
        assert_eq!(first_sub_id(text, "bob", Uid::from_raw(5)), None);
    }

    #[test]
    fn a_missing_proxy_is_one_sentence() {
        let error = tools(Path::new("/nowhere/weft-proxy")).expect_err("it is not there");
        assert!(!error.to_string().contains('\n'));
    }
}
