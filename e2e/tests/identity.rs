//! Who a workload is: certificates got, renewed, presented and checked (contract 2), also while things go wrong.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use tokio::io::AsyncWriteExt;
use tokio::process::Child;
use tokio::time::{Instant, sleep, timeout};
use weft_cli::local::Tuning;
use weft_e2e::by_hand::{Pod, Pods, pods};
use weft_e2e::control::{Authority, HTTP, Leaf};
use weft_e2e::{Client2, Manifests, Node, Wire, eventually, mesh, mesh_with, peers};
use weft_identity::LocalAuthority;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
/// Longest a command may take.
const COMMAND: Duration = Duration::from_secs(10);
/// Neither HTTP nor TLS, and long enough to tell.
const PING: &[u8] = b"\0no protocol at all";

fn manifests() -> Manifests {
    let services = Manifests::default()
        .service("web", &[(80, 8080)])
        .service("tcp", &[(80, 9000)]);
    services
        .pod("web", &[8080])
        .pod("tcp", &[9000])
        .pod("client", &[])
        .stranger("stranger", &[])
}

fn identity(account: &str) -> String {
    format!("{account}.demo.serviceaccount.identity.linkerd.cluster.local")
}

/// One request on a connection that stays.
async fn request(wire: &mut Wire) -> anyhow::Result<u16> {
    wire.send("GET / HTTP/1.1\r\nhost: web\r\n\r\n").await?;
    Ok(wire.message().await?.head.status())
}

async fn echo(wire: &mut Wire) -> anyhow::Result<()> {
    wire.send(PING).await?;
    ensure!(wire.exactly(PING.len()).await? == PING, "the echo differs");
    Ok(())
}

/// The chain that a pod presents on its application's port, PEM, the leaf first.
async fn presented(from: &Node, to: &Node, account: &str) -> anyhow::Result<Vec<String>> {
    let (addr, name) = (format!("{}:8080", to.ip()), identity(account));
    let arguments = [
        "s_client",
        "-connect",
        &addr,
        "-servername",
        &name,
        "-showcerts",
    ];
    let output = from.run("openssl", &arguments).await?;
    let (begin, end) = ("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----");
    let blocks = output
        .stdout
        .split(begin)
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(end)?.0));
    let chain: Vec<String> = blocks
        .map(|block| format!("{begin}{block}{end}\n"))
        .collect();
    ensure!(!chain.is_empty(), "no certificate is presented: {output:?}");
    Ok(chain)
}

/// Checks that a certificate is valid now; its serial number and its end.
async fn checked(node: &Node, certificate: &str) -> anyhow::Result<String> {
    let mut openssl = node.spawn(
        "openssl",
        &["x509", "-noout", "-serial", "-enddate", "-checkend", "0"],
    )?;
    openssl.write(certificate.as_bytes()).await?;
    let output = openssl.output(COMMAND).await?;
    ensure!(
        output.code == Some(0),
        "an expired certificate is presented: {output:?}"
    );
    Ok(output.stdout)
}

#[test]
fn i09_the_presented_certificate_is_always_valid_and_connections_outlive_it() {
    let tuning = Tuning {
        certificate_seconds: 3,
        min_refresh_ms: Some(300),
        ..Tuning::default()
    };
    mesh_with(tuning, manifests(), async |net| {
        let (web, tcp) = (net.start("web").await?, net.start("tcp").await?);
        let (client, stranger) = (net.start("client").await?, net.start("stranger").await?);
        peers::http(web.listen(8080).await?, "web");
        peers::echo(tcp.listen(9000).await?);
        let mut opaque = client.connect("tcp:80").await?;
        let mut http1 = client.connect("web:80").await?;
        let http2 = Client2::start(client.connect("web:80").await?).await?;
        let (mut serials, started) = (std::collections::BTreeSet::new(), Instant::now());
        while started.elapsed() < 9 * SECOND {
            echo(&mut opaque).await.context("the opaque connection")?;
            assert_eq!(
                request(&mut http1).await.context("the HTTP/1 connection")?,
                200
            );
            assert_eq!(http2.get("http://web/").await?.status(), 200);
            assert_eq!(request(&mut client.connect("web:80").await?).await?, 200);
            let chain = presented(&stranger, &web, "web").await?;
            serials.insert(checked(&stranger, &chain[0]).await?);
            sleep(Duration::from_millis(250)).await;
        }
        assert!(serials.len() >= 4, "of 3 s each in 9 s: {serials:?}");
        let page = web.metrics().await?;
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)?
            .as_secs_f64();
        let until = page.sum("control_identity_cert_expiration_timestamp_seconds", &[]);
        assert!(until > now && until < now + 4.0, "{until} at {now}");
        assert!(page.sum("control_identity_cert_refreshes_total", &[]) >= 4.0);
        Ok(())
    });
}

#[test]
fn a_new_issuer_takes_over_without_a_failed_request() {
    let tuning = Tuning {
        certificate_seconds: 3,
        min_refresh_ms: Some(300),
        ..Tuning::default()
    };
    mesh_with(tuning, manifests(), async |net| {
        let web = net.start("web").await?;
        let (client, stranger) = (net.start("client").await?, net.start("stranger").await?);
        peers::http(web.listen(8080).await?, "web");
        let mut kept = client.connect("web:80").await?;
        let before = presented(&stranger, &web, "web").await?;
        assert_eq!(before.len(), 2, "the leaf and its issuer");
        LocalAuthority::open(&net.mesh().place().authority())?.rotate_issuer()?;
        let changed = Instant::now();
        loop {
            assert_eq!(request(&mut kept).await?, 200);
            assert_eq!(request(&mut client.connect("web:80").await?).await?, 200);
            let after = presented(&stranger, &web, "web").await?;
            if after[1] != before[1] {
                break;
            }
            ensure!(changed.elapsed() < 10 * SECOND, "the old issuer signs on");
        }
        // Also when both ends have certificates of the new issuer.
        sleep(3 * SECOND).await;
        assert_eq!(request(&mut kept).await?, 200);
        assert_eq!(request(&mut client.connect("web:80").await?).await?, 200);
        Ok(())
    });
}

#[test]
fn a_server_with_another_identity_is_refused() {
    // The slice says that `web` is at the address of `tcp`.
    mesh(manifests(), async |net| {
        let (tcp, client) = (net.start("tcp").await?, net.start("client").await?);
        let listener = tcp.listen(8080).await?;
        let slice = format!(
            "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: demo, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
endpoints: [{{addresses: [{}], targetRef: {{kind: Pod, name: web, namespace: demo}}}}]
ports: [{{name: p80, port: 8080}}]",
            tcp.ip()
        );
        net.apply("slice.yaml", &slice)?;
        let mut wire = client.connect("web:80").await?.patient(COMMAND);
        wire.send("GET / HTTP/1.1\r\nhost: web\r\n\r\n").await?;
        let answer = wire.message().await?;
        assert!(matches!(answer.head.status(), 502 | 504), "{answer:?}");
        let why = answer
            .head
            .field("l5d-proxy-error")
            .context("it says why")?;
        assert!(!why.is_empty());
        listener.nobody(SECOND / 2).await?;
        Ok(())
    });
}

#[test]
fn a_proxy_is_not_ready_and_serves_nothing_until_it_is_certified() {
    pods(async |pods| {
        let pod = &pods.a;
        let mut proxy = pod.proxy(&pod.environment())?;
        let live = async || {
            Ok(pod
                .page("/live")
                .await
                .ok()
                .filter(|page| page.status == 200))
        };
        eventually("the proxy is live", 5 * SECOND, live).await?;
        assert_eq!(pod.page("/ready").await?.status, 503);
        let listener = pod.listen(HTTP).await?;
        let early = openssl_request(pods, None)?;
        listener.nobody(SECOND).await?;
        drop(early);
        assert_eq!(pod.page("/ready").await?.status, 503);
        peers::http(listener, "a");
        pod.serve_control().await?;
        pod.ready().await?;
        assert!(proxy.runs()?);
        assert!(
            answered(openssl_request(pods, None)?)
                .await?
                .contains("HTTP/1.1 200")
        );
        Ok(())
    });
}

#[test]
fn a_failing_identity_service_takes_nothing_down() {
    pods(async |pods| {
        pods.control
            .behaviour
            .send_modify(|now| now.lifetime = 4 * SECOND);
        let mut proxies = Vec::new();
        for pod in [&pods.a, &pods.b] {
            pod.serve_control().await?;
            let mut environment = pod.environment();
            environment.insert(
                "LINKERD2_PROXY_IDENTITY_MIN_REFRESH".to_owned(),
                "200ms".to_owned(),
            );
            proxies.push(pod.proxy(&environment)?);
            pod.ready().await?;
        }
        peers::http(pods.b.listen(HTTP).await?, "b");
        let to = (pods.b.endpoint.cluster_ip, HTTP).into();
        let works = async || request(&mut pods.a.connect(to).await?).await;
        assert_eq!(works().await?, 200);
        let renewals = pods.control.certified.borrow().len();
        let more =
            async || Ok((pods.control.certified.borrow().len() >= renewals + 2).then_some(()));
        eventually("both are renewed", 5 * SECOND, more).await?;
        pods.control
            .behaviour
            .send_modify(|now| now.identity_fails = true);
        // Renewed at 70 % of 4 s at the latest, so valid for more than a second.
        let failing = Instant::now();
        while failing.elapsed() < SECOND {
            assert_eq!(works().await?, 200);
            assert_eq!(pods.a.page("/ready").await?.status, 200);
            sleep(Duration::from_millis(50)).await;
        }
        // Long after the certificates have ended the proxies are there, and recover by themselves.
        sleep(4 * SECOND).await;
        for proxy in &mut proxies {
            assert!(proxy.runs()?);
        }
        pods.control
            .behaviour
            .send_modify(|now| now.identity_fails = false);
        let again = async || Ok(works().await.ok().filter(|status| *status == 200));
        eventually("requests succeed again", 10 * SECOND, again).await?;
        Ok(())
    });
}

#[test]
fn a_key_and_request_that_are_there_are_used_and_stay() {
    pods(async |pods| {
        let pod = &pods.a;
        let (key, csr) = (
            pod.folder.join("identity/key.p8"),
            pod.folder.join("identity/csr.der"),
        );
        let (key_path, csr_path) = (key.to_string_lossy(), csr.to_string_lossy());
        // By itself it would not be PKCS#8 in DER.
        let generate = format!(
            "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 | \
             openssl pkcs8 -topk8 -nocrypt -outform DER -out {key_path}"
        );
        pod.root("sh", &["-c", &generate]).await?;
        let (subject, san) = (
            format!("/CN={}", &pod.endpoint.identity[..20]),
            format!("subjectAltName=DNS:{}", pod.endpoint.identity),
        );
        let request = [
            "req", "-new", "-key", &key_path, "-keyform", "DER", "-subj", &subject, "-addext",
            &san, "-outform", "DER", "-out", &csr_path,
        ];
        pod.root("openssl", &request).await?;
        chown(&key, Some(2102), Some(2102))?;
        let made = (std::fs::read(&key)?, std::fs::read(&csr)?);
        pod.serve_control().await?;
        for _ in 0..2 {
            let _proxy = pod.proxy(&pod.environment())?;
            pod.ready().await?;
            assert_eq!((std::fs::read(&key)?, std::fs::read(&csr)?), made);
        }
        let certified = pods.control.certified.borrow().clone();
        assert!(certified.len() == 2 && certified.iter().all(|(csr, _)| *csr == made.1));
        // Somebody else's request is refused, and not overwritten.
        let other = std::fs::read(&key)?;
        pod.root("sh", &["-c", &generate]).await?;
        chown(&key, Some(2102), Some(2102))?;
        assert_ne!(std::fs::read(&key)?, other);
        let mut proxy = pod.proxy(&pod.environment())?;
        assert_eq!(proxy.exit_code(COMMAND).await?, 1);
        assert!(proxy.log()?.contains("csr.der"), "{}", proxy.log()?);
        assert_eq!(std::fs::read(&csr)?, made.1);
        Ok(())
    });
}

#[test]
fn the_key_is_made_for_the_proxys_eyes_only_and_kept() {
    pods(async |pods| {
        let pod = &pods.a;
        let folder = pod.folder.join("identity");
        pod.serve_control().await?;
        let mut made = None;
        for _ in 0..2 {
            let _proxy = pod.proxy(&pod.environment())?;
            pod.ready().await?;
            let files: Vec<_> = names(&folder)?;
            assert_eq!(files, ["csr.der", "key.p8"]);
            let key = std::fs::read(folder.join("key.p8"))?;
            assert_eq!(
                std::fs::metadata(folder.join("key.p8"))?
                    .permissions()
                    .mode()
                    & 0o777,
                0o600
            );
            assert_eq!(
                key,
                *made.get_or_insert(key.clone()),
                "the same after a restart"
            );
        }
        Ok(())
    });
}

fn names(folder: &Path) -> anyhow::Result<Vec<String>> {
    let names = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Starts an unmeshed client of pod `a` in pod `b` that speaks mesh TLS with or without a certificate.
fn openssl_request(pods: &Pods, leaf: Option<&Leaf>) -> anyhow::Result<Child> {
    let addr = format!("{}:{HTTP}", pods.a.endpoint.ip);
    let mut arguments = vec![
        "s_client",
        "-connect",
        &addr,
        "-servername",
        &pods.a.endpoint.identity,
    ];
    arguments.extend(["-tls1_3", "-quiet", "-ign_eof"]);
    if let Some(leaf) = leaf {
        pods.b.write("client.crt", &leaf.certificate)?;
        pods.b.write("client.key", &leaf.key)?;
        arguments.extend(["-cert", "client.crt", "-key", "client.key"]);
    }
    pods.b.bypass("openssl", &arguments)
}

/// Sends a request and answers with all that comes back, errors of TLS included.
async fn answered(mut client: Child) -> anyhow::Result<String> {
    let mut stdin = client.stdin.take().context("a pipe")?;
    // It may have been refused already.
    let _ = stdin
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .await;
    let output = timeout(COMMAND, client.wait_with_output())
        .await
        .context("the client waits on")??;
    drop(stdin);
    Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn a_client_with_an_expired_or_foreign_certificate_is_refused() {
    pods(async |pods| {
        pods.a.serve_control().await?;
        let _proxy = pods.a.proxy(&pods.a.environment())?;
        pods.a.ready().await?;
        peers::http(pods.a.listen(HTTP).await?, "a");
        let (own, foreign, now) = (
            &pods.control.authority,
            Authority::new()?,
            SystemTime::now(),
        );
        let name = &pods.b.endpoint.identity;
        let good = answered(openssl_request(pods, Some(&own.leaf(name, now + HOUR)?))?).await?;
        assert!(
            good.contains("HTTP/1.1 200")
                && good.contains(&format!("[\"l5d-client-id\",\"{name}\"]")),
            "{good}"
        );
        let anonymous = answered(openssl_request(pods, None)?).await?;
        assert!(
            anonymous.contains("HTTP/1.1 200") && !anonymous.contains("l5d-client-id"),
            "{anonymous}"
        );
        let expired = own.leaf(name, now - SECOND)?;
        let of_another_root = foreign.leaf(name, now + HOUR)?;
        for (what, leaf) in [("expired", &expired), ("foreign", &of_another_root)] {
            let bad = answered(openssl_request(pods, Some(leaf))?).await?;
            assert!(
                !bad.contains("HTTP/1.1") && bad.contains("alert"),
                "{what}: {bad}"
            );
        }
        Ok(())
    });
}

#[test]
fn a_server_with_an_expired_or_foreign_certificate_is_refused() {
    let other = identity("somebody-else");
    type Made<'a> = &'a dyn Fn(&Pods) -> anyhow::Result<Leaf>;
    let cases: [(&str, bool, Made<'_>); 4] = [
        ("good", true, &|pods| {
            leaf(&pods.control.authority, &pods.b, HOUR)
        }),
        ("foreign", false, &|pods| {
            leaf(&Authority::new()?, &pods.b, HOUR)
        }),
        ("expired", false, &|pods| {
            pods.control
                .authority
                .leaf(&pods.b.endpoint.identity, SystemTime::now() - SECOND)
        }),
        ("of another", false, &|pods| {
            pods.control
                .authority
                .leaf(&other, SystemTime::now() + HOUR)
        }),
    ];
    for (what, accepted, leaf) in cases {
        pods(async |pods| {
            pods.a.serve_control().await?;
            let proxy = pods.a.proxy(&pods.a.environment())?;
            pods.a.ready().await?;
            let leaf = leaf(pods)?;
            pods.b.write("server.crt", &leaf.certificate)?;
            pods.b.write("server.key", &leaf.key)?;
            // In the place of the other pod's proxy.
            let server = pods.b.bypass(
                "openssl",
                &[
                    "s_server",
                    "-accept",
                    "4143",
                    "-cert",
                    "server.crt",
                    "-key",
                    "server.key",
                    "-tls1_3",
                    "-alpn",
                    "transport.l5d.io/v1",
                    "-quiet",
                ],
            )?;
            listens(&pods.b, 4143).await?;
            let mut wire = pods
                .a
                .connect((pods.b.endpoint.cluster_ip, HTTP).into())
                .await?
                .patient(COMMAND);
            wire.send("GET / HTTP/1.1\r\nhost: b\r\n\r\n").await?;
            if accepted {
                // This server never answers.
                wire.silent(SECOND).await?;
            } else {
                let answer = wire.message().await?;
                assert!(
                    matches!(answer.head.status(), 502 | 504),
                    "{what}: {answer:?}"
                );
            }
            let seen = ended(server).await?;
            let header = seen
                .windows(19)
                .any(|window| window == b"transport.l5d.io/v1");
            assert_eq!(
                header, accepted,
                "{what}: whether anything is said to the server"
            );
            if what == "of another" {
                let log = proxy.log()?;
                let both = log.contains(&other) && log.contains(&pods.b.endpoint.identity);
                assert!(
                    both,
                    "the log names who was expected and who was there: {log}"
                );
            }
            Ok(())
        });
    }
}

fn leaf(authority: &Authority, pod: &Pod, life: Duration) -> anyhow::Result<Leaf> {
    authority.leaf(&pod.endpoint.identity, SystemTime::now() + life)
}

async fn listens(pod: &Pod, port: u16) -> anyhow::Result<()> {
    let wanted = format!(":{port} ");
    let listening = async || {
        let output = pod.root("ss", &["-Hltn"]).await?;
        Ok(output.contains(&wanted).then_some(()))
    };
    eventually("somebody listens", COMMAND, listening).await
}

/// Kills a command; what it has written.
async fn ended(mut child: Child) -> anyhow::Result<Vec<u8>> {
    child.start_kill()?;
    match timeout(COMMAND, child.wait_with_output()).await {
        Ok(output) => Ok(output?.stdout),
        Err(_) => bail!("it does not end"),
    }
}
