//! Owns who is compared: which program a peer is, whether it is there, and how its proxies are started. The configurations
//! are in the files below.

pub mod envoy;
pub mod haproxy;
pub mod nginx;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as StdCommand;

use anyhow::Context;
use tokio::process::Command;

use crate::wiring::{PROTOCOLS, Protocol, Side, Wiring};
use crate::workload::Workload;

/// A contestant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name in tables.
    pub name: String,
    /// What it is.
    pub kind: Kind,
}

/// The kinds of contestants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No proxy: the load goes straight to the application.
    None,
    /// A program that takes linkerd2-proxy's environment, under our control plane.
    Mesh(PathBuf),
    /// Envoy with a static configuration.
    Envoy(PathBuf),
    /// HAProxy with a static configuration.
    Haproxy(PathBuf),
    /// nginx with a static configuration.
    Nginx(PathBuf),
    /// This program, which only passes bytes on: the least a pair can add.
    Relay(PathBuf),
}

/// Where programs are looked for.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `weft`.
    pub weft: PathBuf,
    /// `weft-proxy`.
    pub proxy: PathBuf,
    /// This program.
    pub bench: PathBuf,
    /// Envoy, if it was found.
    pub envoy: Option<PathBuf>,
}

/// Folder in which `scripts/setup-bench` puts Envoy.
const ENVOY: &str = ".cache/bench/envoy/envoy/_bin/envoy";

impl Programs {
    /// Programs of ours in `folder`; Envoy as named, else where the set-up puts it, else on the path.
    pub fn find(folder: &Path, envoy: Option<PathBuf>) -> Self {
        let there = |path: PathBuf| path.is_file().then_some(path);
        let envoy = envoy
            .or_else(|| there(PathBuf::from(ENVOY)))
            .or_else(|| on_path("envoy"));
        // Our own path is known wherever /proc is.
        let bench = std::env::current_exe().unwrap_or_else(|_| folder.join("weft-bench"));
        Programs {
            weft: folder.join("weft"),
            proxy: folder.join("weft-proxy"),
            bench,
            envoy,
        }
    }

    /// The contestant of a name: `none`, `relay`, `weft`, `envoy`, `haproxy`, `nginx`.
    ///
    /// # Errors
    /// It is not known, or its program is not there.
    pub fn peer(&self, name: &str) -> anyhow::Result<Peer> {
        let installed = |program: &str| {
            on_path(program)
                .with_context(|| format!("{program} is missing: run scripts/setup-bench"))
        };
        let kind = match name {
            "none" => Kind::None,
            "relay" => Kind::Relay(self.bench.clone()),
            "weft" => Kind::Mesh(self.proxy.clone()),
            "envoy" => {
                Kind::Envoy(self.envoy.clone().context(
                    "envoy is missing: run scripts/setup-bench, or name it with --envoy",
                )?)
            }
            "haproxy" => Kind::Haproxy(installed("haproxy")?),
            "nginx" => Kind::Nginx(installed("nginx")?),
            other => anyhow::bail!(
                "unknown peer `{other}`: none, relay, weft, envoy, haproxy, nginx, or --peer NAME=PATH"
            ),
        };
        let peer = Peer {
            name: name.to_owned(),
            kind,
        };
        peer.program().map_or(Ok(()), executable).map(|()| peer)
    }
}

/// `NAME=PATH` of a program that takes linkerd2-proxy's environment.
///
/// # Errors
/// It has another form.
pub fn program(text: &str) -> Result<Peer, String> {
    let (name, path) = text.split_once('=').ok_or("write NAME=PATH")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return Err(format!(
            "`{name}` is no name: use letters, digits, `-`, `_` and `.`"
        ));
    }
    let path = PathBuf::from(path);
    executable(&path).map_err(|error| error.to_string())?;
    Ok(Peer {
        name: name.to_owned(),
        kind: Kind::Mesh(path),
    })
}

fn executable(path: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(
        path.is_file(),
        "{} is missing: build it, or run scripts/setup-bench",
        path.display()
    );
    Ok(())
}

/// A program of the system; daemons are in folders that are not on every user's path.
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    folders
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

/// nginx's module for bytes, which Debian packages apart.
const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

impl Peer {
    /// Its program.
    pub fn program(&self) -> Option<&Path> {
        match &self.kind {
            Kind::None => None,
            Kind::Mesh(path)
            | Kind::Envoy(path)
            | Kind::Haproxy(path)
            | Kind::Nginx(path)
            | Kind::Relay(path) => Some(path),
        }
    }

    /// Whether its proxies are redirected to and led by the control plane.
    pub fn is_mesh(&self) -> bool {
        matches!(self.kind, Kind::Mesh(_))
    }

    /// Why it cannot take part in a workload.
    pub fn lacks(&self, workload: Workload) -> Option<&'static str> {
        match (&self.kind, workload) {
            (kind, Workload::ManyServices) if !matches!(kind, Kind::Mesh(_)) => {
                Some("it knows one Service only")
            }
            (Kind::None, Workload::IdleOpaque | Workload::IdleHttp2) => {
                Some("it has no memory of its own")
            }
            (Kind::Nginx(_), _)
                if workload.protocol() == Protocol::Opaque && stream_module().is_none() =>
            {
                Some("the package libnginx-mod-stream is missing: run scripts/setup-bench")
            }
            (Kind::Relay(_), Workload::IdleHttp2) => Some("it has no TLS"),
            (Kind::Nginx(_), Workload::Grpc | Workload::GrpcStream) => {
                Some("gRPC needs a configuration of its own in nginx, which does not exist here")
            }
            (Kind::Nginx(_), Workload::IdleHttp2) => Some("it speaks HTTP/1.1 between the proxies"),
            _ => None,
        }
    }

    /// Host and port the load is sent to.
    pub fn target(&self, protocol: Protocol, server: &str) -> (String, u16) {
        match self.kind {
            Kind::None => (server.to_owned(), protocol.app_port()),
            Kind::Mesh(_) => ("app".to_owned(), protocol.app_port()),
            _ => ("127.0.0.1".to_owned(), protocol.client_port()),
        }
    }

    /// Writes the configuration into `folder` and gives the command of a proxy with a static one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn command(
        &self,
        side: Side,
        wiring: &Wiring,
        folder: &Path,
    ) -> anyhow::Result<Option<Command>> {
        let file = folder.join("proxy.conf");
        let (program, text, before) = match &self.kind {
            Kind::None | Kind::Mesh(_) => return Ok(None),
            Kind::Relay(path) => return Ok(Some(relay(path, side, wiring))),
            Kind::Haproxy(path) => (
                path,
                haproxy::configuration(side, wiring),
                vec!["-db", "-f"],
            ),
            Kind::Nginx(path) => {
                let text = nginx::configuration(side, wiring, folder, stream_module());
                (path, text, vec!["-e", "stderr", "-c"])
            }
            Kind::Envoy(path) => {
                let arguments = vec![
                    "--concurrency",
                    "1",
                    "--disable-hot-restart",
                    "--log-level",
                    "warn",
                    "-c",
                ];
                (path, envoy::configuration(side, wiring), arguments)
            }
        };
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = Command::new(program.canonicalize()?);
        command.args(before).arg(&file);
        Ok(Some(command))
    }

    /// What it says about its version; linkerd2-proxy has no flag for that, it would start.
    pub fn version(&self, programs: &Programs) -> Option<String> {
        match &self.kind {
            Kind::None => None,
            Kind::Mesh(path) if *path == programs.proxy => version(&programs.weft, "--version"),
            Kind::Mesh(_) | Kind::Relay(_) => None,
            Kind::Envoy(path) => version(path, "--version"),
            Kind::Haproxy(path) | Kind::Nginx(path) => version(path, "-v"),
        }
    }
}

fn relay(program: &Path, side: Side, wiring: &Wiring) -> Command {
    let ways = PROTOCOLS.map(|protocol| match side {
        Side::Client => format!(
            "127.0.0.1:{}={}:{}",
            protocol.client_port(),
            wiring.server,
            protocol.server_port()
        ),
        Side::Server => format!(
            "0.0.0.0:{}=127.0.0.1:{}",
            protocol.server_port(),
            protocol.app_port()
        ),
    });
    let mut command = Command::new(program);
    command.arg("relay").args(ways);
    command
}

/// The first line with a digit that a program says about itself, without any folder.
pub fn version(program: &Path, flag: &str) -> Option<String> {
    let output = StdCommand::new(program).arg(flag).output().ok()?;
    // nginx and strace disagree about where this belongs.
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text
        .lines()
        .find(|line| line.contains(|c: char| c.is_ascii_digit()))?;
    // Envoy begins with the path by which it was called.
    let own = program.to_string_lossy();
    let name = program.file_name()?.to_string_lossy();
    Some(line.trim().replace(&*own, &name))
}

fn stream_module() -> Option<&'static Path> {
    let path = Path::new(STREAM_MODULE);
    path.exists().then_some(path)
}

#[cfg(test)]
mod tests;
