//! Owns `weft init`: takes the flags of the init container (contract 9.5) and applies the rules of [`rules`] with
//! iptables. It knows nothing of pods or meshes.

pub mod rules;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Args;
use ipnet::IpNet;

use rules::{Family, PortRange, Rules};

/// Where the kernel keeps the time limit of connections in CLOSE_WAIT.
const CLOSE_WAIT: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";

/// Lines of a program's message that are passed on.
const MESSAGE_LINES: usize = 4;

/// Flags of `weft init`; names and defaults are those of contract 9.5.
#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    /// Port of the proxy that takes arriving connections
    #[arg(long, default_value_t = 4143)]
    pub incoming_proxy_port: u16,
    /// Port of the proxy that takes leaving connections
    #[arg(long, default_value_t = 4140)]
    pub outgoing_proxy_port: u16,
    /// User of the proxy, whose own connections are never redirected
    #[arg(long, default_value_t = 2102)]
    pub proxy_uid: u32,
    /// Group of the proxy, whose own connections are never redirected
    #[arg(long)]
    pub proxy_gid: Option<u32>,
    /// Arriving connections to these ports or ranges (`80,8000-8010`) bypass the proxy
    #[arg(long, value_delimiter = ',', default_values = ["4190", "4191"])]
    pub inbound_ports_to_ignore: Vec<PortRange>,
    /// Leaving connections to these ports or ranges bypass the proxy
    #[arg(long, value_delimiter = ',')]
    pub outbound_ports_to_ignore: Vec<PortRange>,
    /// Connections arriving from these networks bypass the proxy
    #[arg(long, value_delimiter = ',')]
    pub subnets_to_ignore: Vec<IpNet>,
    /// Redirect only these arriving ports (all of them if not given)
    #[arg(long, value_delimiter = ',')]
    pub ports_to_redirect: Vec<u16>,
    /// The iptables to use: `iptables`, `iptables-nft` or `iptables-legacy`
    #[arg(long, default_value = "iptables")]
    pub firewall_bin_path: String,
    /// The matching save program; by default the one that belongs to `--firewall-bin-path`
    #[arg(long)]
    pub firewall_save_bin_path: Option<String>,
    /// Also apply the rules with ip6tables
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub ipv6: bool,
    /// Seconds a connection may stay in CLOSE_WAIT (needs a writable /proc/sys)
    #[arg(long)]
    pub timeout_close_wait_secs: Option<u32>,
    /// Accepted for compatibility: plain or json
    #[arg(long, default_value = "plain")]
    pub log_format: String,
    /// Accepted for compatibility: the level of messages
    #[arg(long, default_value = "info")]
    pub log_level: String,
    /// Wait for the xtables lock instead of failing when another program holds it
    #[arg(short = 'w', long)]
    pub use_wait_flag: bool,
    /// Network namespace (a path) to apply the rules in instead of our own
    #[arg(long)]
    pub netns: Option<PathBuf>,
    /// Print what would be done and change nothing
    #[arg(long)]
    pub simulate: bool,
}

/// Why the rules could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The program is not there.
    #[error(
        "cannot start `{program}`: {source}; install the Debian package `iptables` or name another with --firewall-bin-path"
    )]
    Missing {
        /// What was started.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The program refused.
    #[error(
        "`{program}` failed: {message}; it needs CAP_NET_ADMIN and CAP_NET_RAW in its network namespace, and a kernel with that \
         variant of iptables"
    )]
    Refused {
        /// What was started.
        program: String,
        /// What it said, and what became of the other variants.
        message: String,
    },
    /// The namespace cannot be entered.
    #[error("cannot enter the network namespace `{}`: {source}; it needs CAP_SYS_ADMIN", path.display())]
    Namespace {
        /// The path given.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The kernel setting cannot be written.
    #[error(
        "cannot write {CLOSE_WAIT}: {0}; run privileged or leave out --timeout-close-wait-secs"
    )]
    CloseWait(std::io::Error),
}

/// The programs that make up one iptables variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firewall {
    save: String,
    restore: String,
    wait: bool,
}

impl Firewall {
    /// The save and restore programs of `binary` (`iptables-nft` → `iptables-nft-save`), or those beside `save` if given.
    pub fn of(binary: &str, save: Option<&str>, wait: bool) -> Self {
        let save = save.map_or_else(|| format!("{binary}-save"), str::to_owned);
        let stem = save.strip_suffix("-save").unwrap_or(binary);
        Firewall {
            restore: format!("{stem}-restore"),
            save,
            wait,
        }
    }

    /// The other variants, beside this one and in the order in which they are tried: nft, since newer kernels have nothing else.
    fn others(&self) -> Vec<Self> {
        let Some((path, tail)) = self.restore.rsplit_once("tables") else {
            return Vec::new();
        };
        if !["-restore", "-nft-restore", "-legacy-restore"].contains(&tail) {
            return Vec::new();
        }
        let variants = ["nft", "legacy"].map(|variant| format!("{path}tables-{variant}"));
        let all = variants.map(|binary| Self::of(&binary, None, self.wait));
        all.into_iter().filter(|other| other != self).collect()
    }

    fn v6(&self) -> Self {
        let other = |program: &str| match program.rfind("iptables") {
            Some(at) => format!(
                "{}ip6tables{}",
                &program[..at],
                &program[at + "iptables".len()..]
            ),
            None => program.to_owned(),
        };
        Firewall {
            save: other(&self.save),
            restore: other(&self.restore),
            wait: self.wait,
        }
    }

    /// Applies `rules` in the network namespace of the calling thread, as one transaction.
    pub fn apply(&self, rules: &Rules, family: Family) -> Result<(), InitError> {
        let saved = self.saved()?;
        let mut command = Command::new(&self.restore);
        command.arg("--noflush").args(self.wait.then_some("-w"));
        run(&self.restore, command, &rules.restore_input(family, &saved)).map(|_| ())
    }

    /// Applies `rules` with this variant, or with another one where the kernel or the image lacks it (case J14). Returns the one that
    /// was used.
    fn apply_any(self, rules: &Rules, family: Family) -> Result<Self, InitError> {
        let mut failed = match self.apply(rules, family) {
            Ok(()) => return Ok(self),
            Err(error) => error,
        };
        // Somebody else is at work with this variant: the other one would do, but the two rule sets would then disagree.
        if is_locked(&failed) {
            return Err(failed);
        }
        for other in self.others() {
            match other.apply(rules, family) {
                Ok(()) => {
                    eprintln!("weft init: {failed}; {} is used instead", other.restore);
                    return Ok(other);
                }
                Err(error) => failed = failed.and(error),
            }
        }
        Err(failed)
    }

    fn saved(&self) -> Result<String, InitError> {
        let mut command = Command::new(&self.save);
        command.args(["-t", "nat"]);
        run(&self.save, command, "")
    }
}

fn run(program: &str, mut command: Command, input: &str) -> Result<String, InitError> {
    let missing = |source: std::io::Error| match source.kind() {
        // Its file asks for capabilities that this container must not have.
        std::io::ErrorKind::PermissionDenied => InitError::Refused {
            program: program.to_owned(),
            message: source.to_string(),
        },
        _ => InitError::Missing {
            program: program.to_owned(),
            source,
        },
    };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(missing)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that refuses its arguments closes the pipe; its exit status tells more than the pipe error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(missing)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let message = match lines.take(MESSAGE_LINES).collect::<Vec<_>>().join("; ") {
        empty if empty.is_empty() => format!("no message, {}", output.status),
        message => message,
    };
    Err(InitError::Refused {
        program: program.to_owned(),
        message,
    })
}

impl InitError {
    /// Two variants failed: the one that was asked for names the error, and a program that is not there is no news beside it.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (
                Self::Refused { program, message },
                Self::Refused {
                    program: second,
                    message: reason,
                },
            ) => Self::Refused {
                program,
                message: format!("{message} (`{second}`: {reason})"),
            },
            (missing @ Self::Missing { .. }, Self::Refused { program, message }) => Self::Refused {
                program,
                message: format!("{message} ({missing})"),
            },
            (first, _) => first,
        }
    }
}

fn is_locked(error: &InitError) -> bool {
    matches!(error, InitError::Refused { message, .. } if message.contains("xtables lock"))
}

/// Whether this network namespace has an IPv6 address, be it that of the loopback interface.
fn has_ipv6() -> bool {
    std::fs::read_to_string("/proc/thread-self/net/if_inet6").is_ok_and(|list| !list.is_empty())
}

impl InitArgs {
    /// The rules these flags ask for.
    pub fn rules(&self) -> Rules {
        Rules {
            incoming_proxy_port: self.incoming_proxy_port,
            outgoing_proxy_port: self.outgoing_proxy_port,
            proxy_uid: self.proxy_uid,
            proxy_gid: self.proxy_gid,
            inbound_ports_to_ignore: self.inbound_ports_to_ignore.clone(),
            outbound_ports_to_ignore: self.outbound_ports_to_ignore.clone(),
            subnets_to_ignore: self.subnets_to_ignore.clone(),
            ports_to_redirect: self.ports_to_redirect.clone(),
        }
    }
}

/// Runs `weft init`.
pub fn run_init(args: &InitArgs) -> Result<(), InitError> {
    if let Some(path) = &args.netns {
        enter(path).map_err(|source| InitError::Namespace {
            path: path.clone(),
            source,
        })?;
    }
    let asked = Firewall::of(
        &args.firewall_bin_path,
        args.firewall_save_bin_path.as_deref(),
        args.use_wait_flag,
    );
    if args.simulate {
        let families = [(Family::V4, asked.clone()), (Family::V6, asked.v6())];
        for (family, firewall) in families.into_iter().take(if args.ipv6 { 2 } else { 1 }) {
            let rules = args.rules().restore_input(family, "");
            print!("# {} --noflush\n{rules}", firewall.restore);
        }
        return Ok(());
    }
    let used = asked.apply_any(&args.rules(), Family::V4)?;
    if args.ipv6 {
        match used.v6().apply_any(&args.rules(), Family::V6) {
            // Where there is an address, its connections would go past the proxy.
            Err(error) if !has_ipv6() => {
                eprintln!("weft init: no IPv6 address here, so its rules are left out: {error}");
            }
            applied => drop(applied?),
        }
    }
    match args.timeout_close_wait_secs {
        Some(seconds) => {
            std::fs::write(CLOSE_WAIT, seconds.to_string()).map_err(InitError::CloseWait)
        }
        None => Ok(()),
    }
}

fn enter(path: &PathBuf) -> Result<(), std::io::Error> {
    let file = std::fs::File::open(path)?;
    Ok(nix::sched::setns(
        file,
        nix::sched::CloneFlags::CLONE_NEWNET,
    )?)
}

#[cfg(test)]
mod tests;
