//! Who may connect: default policies, Servers and authorizations (contract 3.2, 8.2), also while they change.

use std::time::Duration;

use anyhow::{Context, ensure};
use weft_e2e::grpc::{EchoClient, Ping};
use weft_e2e::{Manifests, Message, Net, Node, Wire, eventually, grpc, mesh, peers};

/// Longest time from a manifest's change until it is in force.
const SOON: Duration = Duration::from_secs(3);
/// An address outside of the cluster's networks.
const OUTSIDE: &str = "203.0.113.7";
/// Neither HTTP nor TLS, and long enough to tell.
const PING: &[u8] = b"\0no protocol at all";
const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";

const SERVER: &str = "
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web-http, namespace: demo}
spec: {podSelector: {matchLabels: {app: web}}, port: 8080}";

const OPAQUE_SERVER: &str = "
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web-tcp, namespace: demo}
spec: {podSelector: {matchLabels: {app: web}}, port: 8080, proxyProtocol: opaque}";

/// An AuthorizationPolicy named `ok` for a target, `KIND/NAME`, which requires authentications, `KIND/NAME`.
fn policy(target: &str, required: &[&str]) -> String {
    let reference = |text: &str| {
        let (kind, name) = text.split_once('/').unwrap_or((text, ""));
        let group = if kind == "ServiceAccount" {
            ""
        } else {
            "policy.linkerd.io"
        };
        format!("{{group: '{group}', kind: {kind}, name: {name}}}")
    };
    let required: Vec<String> = required.iter().map(|one| reference(one)).collect();
    format!(
        "
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {{name: ok, namespace: demo}}
spec:
  targetRef: {}
  requiredAuthenticationRefs: [{}]",
        reference(target),
        required.join(", ")
    )
}

/// A MeshTLSAuthentication named `who`.
fn identities(names: &[&str]) -> String {
    format!(
        "
apiVersion: policy.linkerd.io/v1alpha1
kind: MeshTLSAuthentication
metadata: {{name: who, namespace: demo}}
spec: {{identities: ['{}']}}",
        names.join("', '")
    )
}

/// A NetworkAuthentication named `where`.
fn networks(networks: &str) -> String {
    format!(
        "
apiVersion: policy.linkerd.io/v1alpha1
kind: NetworkAuthentication
metadata: {{name: where, namespace: demo}}
spec: {{networks: {networks}}}"
    )
}

fn documents(parts: &[&str]) -> String {
    parts.join("\n---")
}

fn identity(account: &str) -> String {
    format!("{account}.demo.serviceaccount.identity.linkerd.cluster.local")
}

fn manifests() -> Manifests {
    let meshed = Manifests::default()
        .service("web", &[(80, 8080)])
        .pod("web", &[8080]);
    meshed
        .pod("client", &[])
        .pod("other", &[])
        .stranger("stranger", &[])
}

/// What a client gets for one GET request on a connection of its own.
async fn fetch(from: &Node, addr: &str) -> anyhow::Result<Message> {
    let mut wire = from.connect(addr).await?;
    wire.send(GET).await?;
    wire.message().await
}

async fn status(from: &Node, addr: &str) -> anyhow::Result<u16> {
    Ok(fetch(from, addr).await?.head.status())
}

/// Waits until a client gets this status.
async fn becomes(from: &Node, addr: &str, wanted: u16) -> anyhow::Result<()> {
    let what = format!("{addr} answers {wanted}");
    eventually(&what, SOON, async || {
        Ok((status(from, addr).await? == wanted).then_some(()))
    })
    .await
}

/// Starts the web server and answers its direct address.
async fn web(net: &Net) -> anyhow::Result<(Node, String)> {
    let web = net.start("web").await?;
    peers::http(web.listen(8080).await?, "web");
    let addr = format!("{}:8080", web.ip());
    Ok((web, addr))
}

/// Whether a new connection is good for anything; the reset of one that is refused may come before it is used.
async fn lets_in(from: &Node, addr: &str) -> anyhow::Result<bool> {
    match from.connect(addr).await {
        Ok(mut wire) => echoes(&mut wire).await,
        Err(error) if format!("{error:#}").contains("reset") => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether bytes come back from an echo server; `false` if the connection is ended instead.
async fn echoes(wire: &mut Wire) -> anyhow::Result<bool> {
    if wire.send(PING).await.is_err() {
        return Ok(false);
    }
    match wire.exactly(PING.len()).await {
        Ok(bytes) => Ok(bytes == PING),
        Err(error) if format!("{error:#}").contains("nothing more came") => Err(error),
        Err(_) => Ok(false),
    }
}

#[test]
fn default_policies_let_through_whom_they_name() {
    // Policy, then what a meshed client, an unmeshed one, and one from outside of the cluster get.
    let table = [
        ("all-unauthenticated", 200, 200, 200),
        ("all-authenticated", 200, 403, 403),
        ("cluster-unauthenticated", 200, 200, 403),
        ("cluster-authenticated", 200, 403, 403),
        ("deny", 403, 403, 403),
        ("audit", 200, 200, 200),
    ];
    let manifests = table.iter().enumerate().fold(
        Manifests::default()
            .pod("client", &[])
            .stranger("stranger", &[]),
        |manifests, (at, (policy, ..))| {
            let annotation = [("config.linkerd.io/default-inbound-policy", *policy)];
            let name = format!("p{at}");
            manifests
                .service(&name, &[(80, 8080)])
                .annotated_pod(&name, &[8080], &annotation)
        },
    );
    mesh(manifests, async |net| {
        let (client, stranger) = (net.start("client").await?, net.start("stranger").await?);
        root(
            &stranger,
            "ip",
            &["addr", "add", &format!("{OUTSIDE}/32"), "dev", "eth0"],
        )
        .await?;
        for (at, (policy, meshed, unmeshed, outside)) in table.into_iter().enumerate() {
            let server = net.start(&format!("p{at}")).await?;
            peers::http(server.listen(8080).await?, "server");
            root(&server, "ip", &["route", "add", OUTSIDE, "dev", "eth0"]).await?;
            let addr = format!("{}:8080", server.ip());
            let got = status(&client, &format!("p{at}:80")).await?;
            assert_eq!(got, meshed, "{policy}, a meshed client");
            assert_eq!(
                status(&stranger, &addr).await?,
                unmeshed,
                "{policy}, an unmeshed client"
            );
            let url = format!("http://{addr}/");
            let curl = [
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "--interface",
                OUTSIDE,
                &url,
            ];
            let code = stranger.curl(&curl).await?;
            assert_eq!(code, outside.to_string(), "{policy}, a client from outside");
            let denied = [meshed, unmeshed, outside]
                .into_iter()
                .filter(|code| *code == 403)
                .count();
            let labels = [
                ("srv_kind", "default"),
                ("srv_name", policy),
                ("srv_port", "8080"),
            ];
            let page = server.metrics().await?;
            let count = |name| page.sum(name, &labels);
            assert_eq!(
                count("inbound_http_authz_deny_total"),
                denied as f64,
                "{policy}"
            );
            assert_eq!(
                count("inbound_http_authz_allow_total"),
                (3 - denied) as f64,
                "{policy}"
            );
        }
        Ok(())
    });
}

async fn root(node: &Node, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = node.run(program, arguments).await?;
    ensure!(
        output.code == Some(0),
        "{program} {arguments:?}: {output:?}"
    );
    Ok(())
}

#[test]
fn audit_counts_what_deny_would_have_blocked() {
    let annotation = [("config.linkerd.io/default-inbound-policy", "audit")];
    let manifests = Manifests::default()
        .annotated_pod("web", &[8080], &annotation)
        .stranger("stranger", &[]);
    mesh(manifests, async |net| {
        let (web, addr) = web(net).await?;
        let stranger = net.start("stranger").await?;
        assert_eq!(status(&stranger, &addr).await?, 200);
        web.metric(
            "inbound_http_authz_allow_total",
            &[("authz_name", "audit")],
            1.0,
        )
        .await?;
        Ok(())
    });
}

#[test]
fn default_policies_hold_for_connections_that_are_not_http() {
    let annotations = [
        (
            "config.linkerd.io/default-inbound-policy",
            "all-authenticated",
        ),
        ("config.linkerd.io/opaque-ports", "8080"),
    ];
    let web = Manifests::default().service("web", &[(80, 8080)]);
    let manifests = web
        .annotated_pod("web", &[8080], &annotations)
        .pod("client", &[]);
    mesh(manifests.stranger("stranger", &[]), async |net| {
        let web = net.start("web").await?;
        let (client, stranger) = (net.start("client").await?, net.start("stranger").await?);
        peers::echo(web.listen(8080).await?);
        let addr = format!("{}:8080", web.ip());
        assert!(echoes(&mut client.connect("web:80").await?).await?);
        assert!(!lets_in(&stranger, &addr).await?);
        let id = identity("client");
        web.metric(
            "inbound_tcp_authz_allow_total",
            &[("client_id", &id), ("target_port", "8080")],
            1.0,
        )
        .await?;
        web.metric(
            "inbound_tcp_authz_deny_total",
            &[("tls", "no_identity"), ("target_port", "8080")],
            1.0,
        )
        .await?;
        Ok(())
    });
}

#[test]
fn a_server_without_authorization_lets_nobody_in() {
    mesh(manifests().yaml(SERVER), async |net| {
        let (web, addr) = web(net).await?;
        let (client, stranger) = (net.start("client").await?, net.start("stranger").await?);
        becomes(&client, "web:80", 403).await?;
        assert_eq!(status(&stranger, &addr).await?, 403);
        let labels = [
            ("srv_group", "policy.linkerd.io"),
            ("srv_kind", "server"),
            ("srv_name", "web-http"),
            ("route_name", "default"),
        ];
        let page = web
            .metric("inbound_http_authz_deny_total", &labels, 2.0)
            .await?;
        let meshed = [("tls", "true"), ("client_id", &*identity("client"))];
        assert_eq!(page.sum("inbound_http_authz_deny_total", &meshed), 1.0);
        Ok(())
    });
}

#[test]
fn an_identity_is_let_in_and_no_other() {
    let by_name = documents(&[
        SERVER,
        &policy("Server/web-http", &["MeshTLSAuthentication/who"]),
        &identities(&[&identity("client")]),
    ]);
    let by_account = documents(&[
        SERVER,
        &policy("Server/web-http", &["ServiceAccount/client"]),
    ]);
    for manifest in [by_name, by_account] {
        mesh(manifests().yaml(&manifest), async |net| {
            let (web, addr) = web(net).await?;
            let (client, other) = (net.start("client").await?, net.start("other").await?);
            let stranger = net.start("stranger").await?;
            becomes(&other, "web:80", 403).await?;
            assert_eq!(status(&client, "web:80").await?, 200);
            assert_eq!(status(&stranger, &addr).await?, 403);
            let labels = [
                ("srv_name", "web-http"),
                ("authz_group", "policy.linkerd.io"),
                ("authz_kind", "authorizationpolicy"),
                ("authz_name", "ok"),
                ("client_id", &*identity("client")),
            ];
            web.metric("inbound_http_authz_allow_total", &labels, 1.0)
                .await?;
            Ok(())
        });
    }
}

#[test]
fn a_network_is_let_in_except_its_exceptions() {
    mesh(manifests().yaml(SERVER), async |net| {
        let (_web, addr) = web(net).await?;
        let (stranger, other) = (net.start("stranger").await?, net.start("other").await?);
        let all_but = |except: &str| {
            documents(&[
                &policy("Server/web-http", &["NetworkAuthentication/where"]),
                &networks(&format!("[{{cidr: 10.88.0.0/16, except: [{except}/32]}}]")),
            ])
        };
        net.apply("authz.yaml", &all_but(&other.ip()))?;
        becomes(&stranger, &addr, 200).await?;
        assert_eq!(status(&other, "web:80").await?, 403);
        net.apply("authz.yaml", &all_but(&stranger.ip()))?;
        becomes(&stranger, &addr, 403).await?;
        assert_eq!(status(&other, "web:80").await?, 200);
        Ok(())
    });
}

#[test]
fn a_route_may_have_its_own_authorization() {
    let route = |path: &str, name: &str| {
        format!(
            "
apiVersion: policy.linkerd.io/v1beta3
kind: HTTPRoute
metadata: {{name: {name}, namespace: demo}}
spec:
  parentRefs: [{{group: policy.linkerd.io, kind: Server, name: web-http}}]
  rules: [{{matches: [{{path: {{type: PathPrefix, value: {path}}}}}]}}]"
        )
    };
    let manifest = documents(&[
        SERVER,
        &route("/open", "open"),
        &route("/", "closed"),
        &policy("HTTPRoute/open", &["NetworkAuthentication/where"]),
        &networks("[{cidr: 0.0.0.0/0}]"),
    ]);
    mesh(manifests().yaml(&manifest), async |net| {
        let (web, addr) = web(net).await?;
        let stranger = net.start("stranger").await?;
        becomes(&stranger, &addr, 403).await?;
        let mut wire = stranger.connect(&addr).await?;
        for (path, wanted) in [
            ("/open", 200),
            ("/open/a", 200),
            ("/opened", 403),
            ("/", 403),
        ] {
            wire.send(format!("GET {path} HTTP/1.1\r\nhost: web\r\n\r\n"))
                .await?;
            assert_eq!(wire.message().await?.head.status(), wanted, "{path}");
        }
        let labels = [
            ("route_kind", "HTTPRoute"),
            ("route_name", "open"),
            ("authz_name", "ok"),
        ];
        web.metric("inbound_http_authz_allow_total", &labels, 2.0)
            .await?;
        web.metric(
            "inbound_http_authz_deny_total",
            &[("route_name", "closed")],
            2.0,
        )
        .await?;
        Ok(())
    });
}

#[test]
fn requests_on_one_connection_follow_the_policy_as_it_changes() {
    let allow = policy("Server/web-http", &["MeshTLSAuthentication/who"]);
    let who = |account: &str| documents(&[&allow, &identities(&[&identity(account)])]);
    mesh(manifests().yaml(SERVER), async |net| {
        let (_web, _) = web(net).await?;
        let client = net.start("client").await?;
        net.apply("authz.yaml", &who("client"))?;
        becomes(&client, "web:80", 200).await?;
        // Requests all the time on one connection: an answer to each, and no way back within one phase.
        let mut wire = client.connect("web:80").await?;
        for (account, wanted) in [
            ("other", 403),
            ("client", 200),
            ("other", 403),
            ("client", 200),
        ] {
            net.apply("authz.yaml", &who(account))?;
            let before = if wanted == 200 { 403 } else { 200 };
            let changed = tokio::time::Instant::now();
            let mut after = 0;
            while after < 20 {
                wire.send(GET).await?;
                let got = wire.message().await?.head.status();
                if after == 0 && got == before {
                    ensure!(changed.elapsed() < SOON, "{got} {SOON:?} after the change");
                    continue;
                }
                assert_eq!(got, wanted, "after {after} answers of the new policy");
                after += 1;
            }
        }
        Ok(())
    });
}

#[test]
fn a_connection_is_ended_when_policy_no_longer_allows_it() {
    let allow = |account: &str| {
        documents(&[
            OPAQUE_SERVER,
            &policy("Server/web-tcp", &["MeshTLSAuthentication/who"]),
            &identities(&[&identity(account), &identity("other")]),
        ])
    };
    mesh(manifests(), async |net| {
        net.apply("authz.yaml", &allow("client"))?;
        let web = net.start("web").await?;
        let (client, other) = (net.start("client").await?, net.start("other").await?);
        peers::echo(web.listen(8080).await?);
        let ready = async || Ok(lets_in(&client, "web:80").await?.then_some(()));
        eventually("the client is let in", SOON, ready).await?;
        let (mut lost, mut kept) = (
            client.connect("web:80").await?,
            other.connect("web:80").await?,
        );
        assert!(echoes(&mut lost).await? && echoes(&mut kept).await?);

        net.apply("authz.yaml", &allow("nobody"))?;
        lost.ended()
            .await
            .context("the connection of a client that lost its authorization")?;
        assert!(
            !lets_in(&client, "web:80").await?,
            "a new one is refused too"
        );
        assert!(
            echoes(&mut kept).await?,
            "the connection of another client stays"
        );
        let labels = [("srv_name", "web-tcp"), ("client_id", &*identity("client"))];
        let page = web
            .metric("inbound_tcp_authz_terminate_total", &labels, 1.0)
            .await?;
        assert_eq!(page.sum("inbound_tcp_authz_terminate_total", &[]), 1.0);

        net.apply("authz.yaml", &allow("client"))?;
        eventually("the client is let in again", SOON, ready).await
    });
}

#[test]
fn p26_a_refusal_says_nothing_to_strangers_and_why_to_the_mesh() {
    mesh(manifests().yaml(SERVER), async |net| {
        let (_web, addr) = web(net).await?;
        let (client, stranger) = (net.start("client").await?, net.start("stranger").await?);
        becomes(&client, "web:80", 403).await?;
        let refused = fetch(&stranger, &addr).await?;
        assert_eq!(refused.head.status(), 403);
        let leaked: Vec<_> = refused
            .head
            .fields
            .iter()
            .filter(|(name, _)| name.starts_with("l5d-"))
            .collect();
        assert!(leaked.is_empty() && refused.body.is_empty(), "{refused:?}");
        // Its own proxy speaks HTTP/2 with the server's, which says why and to whom.
        let refused = fetch(&client, "web:80").await?;
        assert_eq!(refused.head.status(), 403);
        Ok(())
    });
}

#[test]
fn h03_grpc_clients_get_permission_denied() {
    mesh(manifests().yaml(SERVER), async |net| {
        let web = net.start("web").await?;
        let (client, stranger) = (net.start("client").await?, net.start("stranger").await?);
        tokio::spawn(grpc::serve(web.listen(8080).await?, "web"));
        let addr = format!("{}:8080", web.ip());
        for (from, to) in [(&client, "web:80"), (&stranger, &addr)] {
            let denied = async || {
                let mut echo = EchoClient::start(from.connect(to).await?, "web").await?;
                let refused = echo.unary(Ping::default()).await.err();
                Ok(refused.filter(|status| status.code() == tonic::Code::PermissionDenied))
            };
            let status = eventually("PERMISSION_DENIED", SOON, denied).await?;
            let told = status
                .metadata()
                .keys()
                .any(|key| format!("{key:?}").contains("l5d-"));
            assert!(!(told && to == addr), "{status:?} to a stranger");
        }
        Ok(())
    });
}

#[test]
fn a_broken_manifest_leaves_the_old_policy_and_is_reported() {
    let allow = documents(&[&policy("Server/web-http", &["ServiceAccount/client"])]);
    mesh(manifests().yaml(SERVER), async |net| {
        let (_web, _) = web(net).await?;
        let (client, other) = (net.start("client").await?, net.start("other").await?);
        net.apply("authz.yaml", &allow)?;
        becomes(&client, "web:80", 200).await?;
        let broken = allow.replace(
            "requiredAuthenticationRefs: [",
            "requiredAuthenticationRefs: [7, ",
        );
        net.apply("authz.yaml", &broken)?;
        let log = net.mesh().place().logs().join("mesh-control.log");
        let named = async || {
            let text = std::fs::read_to_string(&log)?;
            let line = text.lines().find(|line| line.contains("authz.yaml"));
            Ok(line.map(str::to_owned))
        };
        let line = eventually("the log names the file", SOON, named).await?;
        assert!(
            line.contains("requiredAuthenticationRefs") && line.contains("document 1"),
            "{line}"
        );
        assert_eq!(status(&client, "web:80").await?, 200);
        assert_eq!(status(&other, "web:80").await?, 403);
        net.apply(
            "authz.yaml",
            &policy("Server/web-http", &["ServiceAccount/other"]),
        )?;
        becomes(&other, "web:80", 200).await?;
        assert_eq!(status(&client, "web:80").await?, 403);
        Ok(())
    });
}

#[test]
fn r14_mapped_and_bare_addresses_are_compared_as_they_are_meant() {
    mesh(manifests().yaml(SERVER), async |net| {
        let (_web, addr) = web(net).await?;
        let stranger = net.start("stranger").await?;
        let bare = networks(&format!("[{{cidr: {}}}]", stranger.ip()));
        net.apply(
            "authz.yaml",
            &documents(&[
                &policy("Server/web-http", &["NetworkAuthentication/where"]),
                &bare,
            ]),
        )?;
        becomes(&stranger, &addr, 200).await
    });
}
