//! Tests of the original destination with real redirection, in a network namespace of their own.

use super::*;
use crate::namespace::{Namespaces, NewNamespaces, prepare};
use std::process::Command;

const INSIDE: &str = "WEFT_TEST_REDIRECTED";
const SET_UP: &str = "ip link set lo up && ip addr add 10.1.2.3/32 dev lo || exit 77
for tables in iptables ip6tables; do
  $tables -w -t nat -A OUTPUT -p tcp --dport 9 -j REDIRECT --to-ports 4140 || exit 77
done
exec \"$0\" --exact net::tests::redirect::a_redirected_client_is_asked_where_it_meant_to_go";

/// Runs itself again inside a new network, and there does the work.
#[test]
fn a_redirected_client_is_asked_where_it_meant_to_go() {
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        return runtime.block_on(ask_for_destinations());
    }
    let mut command = Command::new("sh");
    command
        .args(["-c", SET_UP])
        .arg(std::env::current_exe().unwrap())
        .env(INSIDE, "1");
    let new = NewNamespaces {
        net: true,
        mount: false,
        user: !nix::unistd::geteuid().is_root(),
    };
    prepare(&mut command, &Namespaces::default(), None, new, true).unwrap();
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) if output.status.code() == Some(77) => {
            let reason = String::from_utf8_lossy(&output.stderr);
            eprintln!(
                "skipped: needs iproute2, iptables and ip6tables with the nat table: {reason}"
            );
        }
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stdout)),
        Err(e) => {
            eprintln!("skipped: needs root, or a kernel that lets users make namespaces ({e})")
        }
    }
}

async fn ask_for_destinations() {
    let listener = bind("[::]:4140".parse().unwrap(), None).unwrap();
    let options = SocketOptions::default();
    for meant in ["127.0.0.1:9", "10.1.2.3:9", "[::1]:9"] {
        let meant: SocketAddr = meant.parse().unwrap();
        let (dialled, (accepted, peer)) =
            tokio::join!(connect(meant, SECOND, &options), accept(&listener));
        dialled.unwrap();
        assert_eq!(original_dst(&accepted).unwrap(), meant);
        assert_eq!(peer.is_ipv4(), meant.is_ipv4());
    }
    // Dialled directly, the answer is the listener itself, or that there is none: never another address (case T07).
    let direct: SocketAddr = "127.0.0.1:4140".parse().unwrap();
    let (_dialled, (accepted, _)) =
        tokio::join!(connect(direct, SECOND, &options), accept(&listener));
    if let Ok(addr) = original_dst(&accepted) {
        assert_eq!(addr, direct);
    }
}
