//! Certificates that change while requests go on: the issuer, and the trust anchor by way of a bundle of two.

use std::time::Duration;

use anyhow::{Context, ensure};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use weft_e2e::cluster::{App, SOON, Space, alone, command, folder, kubectl, script, until};

use crate::traffic::identity;

/// Longest time until the kubelet has written a changed Secret into a pod, and the identity service has seen it (case I01).
const MOUNTED: Duration = Duration::from_secs(150);

/// Makes a certificate authority in the folder of the mesh, signed by another one or by itself; gives the path without its ending.
async fn authority(name: &str, subject: &str, signer: Option<&str>) -> anyhow::Result<String> {
    let file = folder().join("run/mesh").join(name).display().to_string();
    let (key, certificate) = (format!("{file}.key"), format!("{file}.crt"));
    let line = format!(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -addext basicConstraints=critical,CA:TRUE \
         -addext keyUsage=critical,keyCertSign,cRLSign -keyout {key} -out {certificate} -subj {subject}"
    );
    let by = signer.map(|signer| format!("-CA {signer}.crt -CAkey {signer}.key"));
    let mut args: Vec<&str> = line.split_whitespace().collect();
    args.extend(by.iter().flat_map(|by| by.split_whitespace()));
    command("openssl", &args, "").await?;
    Ok(file)
}

/// Makes a root and an issuer below it; gives their paths without the endings.
async fn root_and_issuer(ordinal: &str) -> anyhow::Result<(String, String)> {
    let name = format!("{ordinal}-root");
    let root = authority(&name, "/CN=root.linkerd.cluster.local", None).await?;
    let issuer = issuer_below(&root, ordinal).await?;
    Ok((root, issuer))
}

async fn issuer_below(root: &str, ordinal: &str) -> anyhow::Result<String> {
    let subject = format!("/O={ordinal}/CN=identity.linkerd.cluster.local");
    authority(&format!("{ordinal}-issuer"), &subject, Some(root)).await
}

/// Runs `helm upgrade` with files of values, and does not wait for what follows unless the other arguments say so.
async fn set_files(values: &[(&str, &str)], others: &[&str]) -> anyhow::Result<()> {
    let chart = format!(
        "{}/../charts/linkerd-control-plane",
        env!("CARGO_MANIFEST_DIR")
    );
    let values: Vec<String> = values
        .iter()
        .map(|(name, file)| format!("--set-file={name}={file}"))
        .collect();
    let mut args = vec![
        "-n",
        "linkerd",
        "upgrade",
        "linkerd-control-plane",
        &chart,
        "--reuse-values",
    ];
    args.extend(others);
    args.extend(values.iter().map(String::as_str));
    command("helm", &args, "").await?;
    Ok(())
}

/// Upgrades the installation by files of values.
async fn upgrade(values: &[(&str, &str)]) -> anyhow::Result<()> {
    set_files(values, &["--wait", "--timeout=150s"]).await?;
    // An injector that ends still serves for a moment, with the bundle that it knew.
    until("the old pods are gone", SOON, async || {
        let path = "jsonpath={.items[?(@.metadata.deletionTimestamp)].metadata.name}";
        let ending = kubectl(&["-n", "linkerd", "get", "pods", "-o", path]).await?;
        Ok(ending.is_empty().then_some(()))
    })
    .await
}

/// The installation as it was.
pub async fn reinstall() -> anyhow::Result<()> {
    let programs = std::env::var_os("WEFT_BIN_DIR").context("WEFT_BIN_DIR, which make e2e sets")?;
    script("mesh", &[&programs.to_string_lossy()]).await?;
    Ok(())
}

/// Who signed the certificate that the pods of an app present.
async fn signer(space: &Space, app: &str) -> anyhow::Result<String> {
    let pod = space.pods(app).await?.into_iter().next().context("a pod")?;
    let line = format!(
        "openssl s_client -connect {}:8080 -servername {} </dev/null 2>/dev/null | openssl x509 -noout -issuer",
        pod.ip,
        identity(space, app)
    );
    command("bash", &["-c", &line], "").await
}

async fn under_load(space: &Space) -> anyhow::Result<()> {
    space
        .start(&[App::server("web", "http").replicas(2)])
        .await?;
    space
        .start(&[
            App::load("load", "web:80", 50),
            App::load("other", "web:80", 50),
        ])
        .await?;
    calm(space).await
}

/// No request has failed.
async fn calm(space: &Space) -> anyhow::Result<()> {
    for load in ["load", "other"] {
        space.answered(load, 50).await?;
    }
    Ok(())
}

/// Waits until new pods have certificates of an issuer.
async fn issues(space: &Space, issuer: &str) -> anyhow::Result<()> {
    until(&format!("certificates of {issuer}"), MOUNTED, async || {
        space.restart("web").await?;
        Ok(signer(space, "web").await?.contains(issuer).then_some(()))
    })
    .await
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn i01_another_issuer_of_the_same_root_fails_no_request() {
    alone("r-issuer", async |space| {
        under_load(space).await?;
        let root = folder().join("run/mesh/root").display().to_string();
        let issuer = issuer_below(&root, "second").await?;
        let control = Space::existing("linkerd");
        let before = control
            .pods_by("linkerd.io/control-plane-component=identity")
            .await?;
        let result = async {
            upgrade(&[
                ("identity.issuer.tls.crtPEM", &format!("{issuer}.crt")),
                ("identity.issuer.tls.keyPEM", &format!("{issuer}.key")),
            ])
            .await?;
            issues(space, "O = second").await?;
            calm(space).await?;
            // It was not started again for that.
            let after = control
                .pods_by("linkerd.io/control-plane-component=identity")
                .await?;
            let names = |pods: &[weft_e2e::cluster::Pod]| {
                pods.iter().map(|pod| pod.name.clone()).collect::<Vec<_>>()
            };
            ensure!(
                names(&before) == names(&after),
                "the identity service was started again"
            );
            Ok(())
        }
        .await;
        reinstall().await?;
        result
    });
}

/// I05, with a restart of the workloads for each change of the bundle, which is part of a pod as in Linkerd.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn i05_another_trust_anchor_by_way_of_both_fails_no_request() {
    alone("r-anchor", async |space| {
        under_load(space).await?;
        let old = folder().join("run/mesh/root.crt");
        let (root, issuer) = root_and_issuer("third").await?;
        // Comments, blank lines and a final one are what bundles are like (case I02).
        let both = format!("{root}-bundle.crt");
        let text = format!(
            "# the old one\n{}\n\n# the new one\r\n{}\n\n",
            std::fs::read_to_string(old)?,
            std::fs::read_to_string(format!("{root}.crt"))?
        );
        std::fs::write(&both, text)?;

        let result = async {
            upgrade(&[("identityTrustAnchorsPEM", &both)]).await?;
            everybody_again(space).await?;
            upgrade(&[
                ("identity.issuer.tls.crtPEM", &format!("{issuer}.crt")),
                ("identity.issuer.tls.keyPEM", &format!("{issuer}.key")),
            ])
            .await?;
            issues(space, "O = third").await?;
            calm(space).await?;
            // All have a certificate of the new root before the old one goes.
            for name in [
                "linkerd-identity",
                "linkerd-destination",
                "linkerd-proxy-injector",
            ] {
                Space::existing("linkerd").restart(name).await?;
            }
            everybody_again(space).await?;
            upgrade(&[("identityTrustAnchorsPEM", &format!("{root}.crt"))]).await?;
            everybody_again(space).await
        }
        .await;
        reinstall().await?;
        result
    });
}

/// Root and issuer that ended yesterday; gives the paths without their endings.
fn expired() -> anyhow::Result<(String, String)> {
    let make = |name: &str, signer: Option<&Issuer<'_, KeyPair>>| -> anyhow::Result<_> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        let key = KeyPair::generate()?;
        let certificate = match signer {
            Some(signer) => params.signed_by(&key, signer)?,
            None => params.self_signed(&key)?,
        };
        let file = folder().join("run/mesh").join(name).display().to_string();
        std::fs::write(format!("{file}.crt"), certificate.pem())?;
        std::fs::write(format!("{file}.key"), key.serialize_pem())?;
        Ok((file, Issuer::new(params, key)))
    };
    let (root, signer) = make("expired-root", None)?;
    let (issuer, _) = make("expired-issuer", Some(&signer))?;
    Ok((root, issuer))
}

/// The issuer has expired, its root too, and no pod of the control plane gets a certificate any more: `helm upgrade` with new ones
/// is all that is needed.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn i10_an_upgrade_after_root_and_issuer_have_expired() {
    alone("r-expired", async |space| {
        space
            .start(&[App::server("web", "http"), App::client("client")])
            .await?;
        let (old_root, old_issuer) = expired()?;
        let (root, issuer) = root_and_issuer("fourth").await?;
        let result = async {
            // Without --wait: the new pod of the identity service cannot become ready.
            let old = [
                ("identityTrustAnchorsPEM", &*format!("{old_root}.crt")),
                ("identity.issuer.tls.crtPEM", &format!("{old_issuer}.crt")),
                ("identity.issuer.tls.keyPEM", &format!("{old_issuer}.key")),
            ];
            set_files(&old, &[]).await?;
            until("the Event about the expired issuer", MOUNTED, async || {
                let path = "jsonpath={.items[*].message}";
                let said = kubectl(&["-n", "linkerd", "get", "events", "-o", path]).await?;
                Ok((said.contains("expired-issuer") && said.contains("renew it")).then_some(()))
            })
            .await?;
            upgrade(&[
                ("identityTrustAnchorsPEM", &format!("{root}.crt")),
                ("identity.issuer.tls.crtPEM", &format!("{issuer}.crt")),
                ("identity.issuer.tls.keyPEM", &format!("{issuer}.key")),
            ])
            .await?;
            for app in ["web", "client"] {
                space.restart(app).await?;
            }
            ensure!(signer(space, "web").await?.contains("O = fourth"));
            ensure!(space.curl("client", "http://web/").await?.status == 200);
            let web = space.pod("web").await?.metrics().await?;
            ensure!(
                web.sum(
                    "request_total",
                    &[("direction", "inbound"), ("tls", "true")]
                ) > 0.0
            );
            Ok(())
        }
        .await;
        reinstall().await?;
        result
    });
}

/// Restarts all workloads; one of the two loads goes on at each moment.
async fn everybody_again(space: &Space) -> anyhow::Result<()> {
    for name in ["web", "load", "other"] {
        calm(space).await?;
        space.restart(name).await?;
    }
    calm(space).await
}
