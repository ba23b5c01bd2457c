//! Starting a program inside namespaces, under another user, bound to the life of its parent: the mesh on one machine
//! needs that.
//! It makes no interface, mount or rule, and only this file and nothing else in the project runs code between fork
//! and exec.
#![allow(unsafe_code)]

use nix::fcntl::{OFlag, open as open_path};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Pid, Uid, chdir, getpid, getppid, setgroups, setresgid, setresuid, write};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

/// A kind of namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Interfaces, routes, packet filter.
    Net,
    /// Mounts.
    Mount,
    /// Users and capabilities.
    User,
}

/// Namespaces to enter, each optional ([`open`]).
#[derive(Debug, Default)]
pub struct Namespaces {
    /// Entered second.
    pub net: Option<OwnedFd>,
    /// Entered third.
    pub mount: Option<OwnedFd>,
    /// Entered first, since it may grant the right to enter the others.
    pub user: Option<OwnedFd>,
}

/// Namespaces to create, after those of [`Namespaces`] were entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewNamespaces {
    /// An empty network with a loopback interface that is down.
    pub net: bool,
    /// A copy of the mounts, of which changes stay inside.
    pub mount: bool,
    /// A user namespace in which the calling user is root; needs no privilege where the kernel allows it.
    pub user: bool,
}

/// The namespace of a process, kept open as long as the descriptor lives, also after the process has gone.
///
/// # Errors
/// When there is no such process, or it is not ours to look at.
pub fn open(pid: u32, kind: Kind) -> io::Result<OwnedFd> {
    let name = match kind {
        Kind::Net => "net",
        Kind::Mount => "mnt",
        Kind::User => "user",
    };
    let path = format!("/proc/{pid}/ns/{name}");
    File::open(&path)
        .map(OwnedFd::from)
        .map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}")))
}

/// Starts `command` in the given namespaces, as `identity` (user and group id, without other groups and without the
/// means to gain privileges) if one is given.
///
/// With `die_with_parent` the kernel kills it when the *thread* that called this ends, so call it from a thread that
/// lives as long as the
/// program, not from a blocking pool.
///
/// # Errors
/// What the kernel says to any of the steps, most often that a privilege is missing.
pub fn spawn(
    command: &mut tokio::process::Command,
    join: &Namespaces,
    identity: Option<(u32, u32)>,
    new: NewNamespaces,
    die_with_parent: bool,
) -> io::Result<tokio::process::Child> {
    prepare(command.as_std_mut(), join, identity, new, die_with_parent)?;
    command.spawn().map_err(|e| {
        let program = command.as_std().get_program().to_string_lossy();
        io::Error::new(
            e.kind(),
            format!("cannot start {program} in its namespaces: {e}"),
        )
    })
}

/// Arranges on `command` what [`spawn`] does; it happens at each later start of the command, in the child.
///
/// # Errors
/// When a descriptor cannot be duplicated.
pub fn prepare(
    command: &mut std::process::Command,
    join: &Namespaces,
    identity: Option<(u32, u32)>,
    new: NewNamespaces,
    die_with_parent: bool,
) -> io::Result<()> {
    use std::os::unix::process::CommandExt;
    let copy = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose();
    let plan = Plan {
        join: [
            (copy(&join.user)?, CloneFlags::CLONE_NEWUSER),
            (copy(&join.net)?, CloneFlags::CLONE_NEWNET),
            (copy(&join.mount)?, CloneFlags::CLONE_NEWNS),
        ],
        directory: directory_after(command, join)?,
        new,
        identity: identity.map(|(user, group)| (Uid::from_raw(user), Gid::from_raw(group))),
        parent: die_with_parent.then(getpid),
        user_map: format!("0 {} 1\n", nix::unistd::geteuid()),
        group_map: format!("0 {} 1\n", nix::unistd::getegid()),
    };
    // SAFETY: the closure runs in the forked child before exec, where only async-signal-safe calls are allowed.
    // `Plan::apply`
    // makes system calls on values computed above; it neither allocates, nor locks, nor panics.
    unsafe {
        command.pre_exec(move || plan.apply().map_err(io::Error::from));
    }
    Ok(())
}

/// Entering mounts puts the process at their root, so the directory it had or was given is entered again, by name.
fn directory_after(
    command: &std::process::Command,
    join: &Namespaces,
) -> io::Result<Option<CString>> {
    use std::os::unix::ffi::OsStrExt;
    if join.mount.is_none() {
        return Ok(None);
    }
    let directory = match command.get_current_dir() {
        Some(directory) => directory.to_owned(),
        None => std::env::current_dir()?,
    };
    Ok(Some(CString::new(directory.as_os_str().as_bytes())?))
}

struct Plan {
    join: [(Option<OwnedFd>, CloneFlags); 3],
    /// Where to be after entering the mounts.
    directory: Option<CString>,
    new: NewNamespaces,
    identity: Option<(Uid, Gid)>,
    /// The process to die with.
    parent: Option<Pid>,
    user_map: String,
    group_map: String,
}

impl Plan {
    /// Runs between fork and exec: system calls only.
    fn apply(&self) -> nix::Result<()> {
        for (namespace, kind) in &self.join {
            if let Some(fd) = namespace {
                setns(fd, *kind)?;
            }
        }
        if let Some(directory) = &self.directory {
            chdir(directory.as_c_str())?;
        }
        self.create()?;
        if let Some((user, group)) = self.identity {
            self.leave_groups()?;
            setresgid(group, group, group)?;
            setresuid(user, user, user)?;
            prctl::set_no_new_privs()?;
        }
        // After the change of user, which clears it (prctl(2)).
        if let Some(parent) = self.parent {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            if getppid() != parent {
                return Err(nix::Error::ESRCH);
            }
        }
        Ok(())
    }

    /// In a user namespace without privilege setgroups is denied for good; what groups remain there grant nothing new.
    fn leave_groups(&self) -> nix::Result<()> {
        let inside = self.new.user || self.join[0].0.is_some();
        match setgroups(&[]) {
            Err(nix::Error::EPERM) if inside => Ok(()),
            result => result,
        }
    }

    fn create(&self) -> nix::Result<()> {
        let mut flags = CloneFlags::empty();
        flags.set(CloneFlags::CLONE_NEWUSER, self.new.user);
        flags.set(CloneFlags::CLONE_NEWNET, self.new.net);
        flags.set(CloneFlags::CLONE_NEWNS, self.new.mount);
        if !flags.is_empty() {
            unshare(flags)?;
        }
        if self.new.user {
            // user_namespaces(7): an unprivileged process may map its group only after giving up setgroups.
            fill(c"/proc/self/setgroups", b"deny")?;
            fill(c"/proc/self/uid_map", self.user_map.as_bytes())?;
            fill(c"/proc/self/gid_map", self.group_map.as_bytes())?;
        }
        if self.new.mount {
            let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(
                None::<&std::ffi::CStr>,
                c"/",
                None::<&std::ffi::CStr>,
                flags,
                None::<&std::ffi::CStr>,
            )?;
        }
        Ok(())
    }
}

fn fill(path: &std::ffi::CStr, text: &[u8]) -> nix::Result<()> {
    let file = open_path(path, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    if write(&file, text)? == text.len() {
        Ok(())
    } else {
        Err(nix::Error::EIO)
    }
}

#[cfg(test)]
mod tests;
