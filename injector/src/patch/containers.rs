//! Owns the containers and volumes that a pod gets: the proxy, the init container or the network validator, the debug container
//! (contract 1.3, 9.4). Does not decide where in the pod they go.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, DownwardAPIVolumeFile, DownwardAPIVolumeSource,
    EmptyDirVolumeSource, ExecAction, HTTPGetAction, Lifecycle, LifecycleHandler,
    ObjectFieldSelector, Probe, ProjectedVolumeSource, ResourceRequirements, SeccompProfile,
    SecurityContext, ServiceAccountTokenProjection, SleepAction, Volume, VolumeMount,
    VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::env::{self, API_TOKEN_DIR, END_ENTITY_DIR, POD_INFO_DIR, TOKEN_DIR, TOKEN_NAME};
use super::settings::{Settings, each};
use super::values::{self, Image, Resources};
use super::{Config, Target};

/// Container of the proxy.
pub const PROXY: &str = "linkerd-proxy";
/// Init container that redirects the pod's traffic.
pub const INIT: &str = "linkerd-init";
/// Init container that checks that a CNI plugin has redirected it.
pub const VALIDATOR: &str = "linkerd-network-validator";
/// Container to look at the pod's traffic with.
pub const DEBUG: &str = "linkerd-debug";
const END_ENTITY: &str = "linkerd-identity-end-entity";
const XTABLES_LOCK: &str = "linkerd-proxy-init-xtables-lock";
const POD_INFO: &str = "linkerd-podinfo";
/// Who identity tokens are for.
const AUDIENCE: &str = "identity.l5d.io";
const TOKEN_SECONDS: i64 = 86_400;
/// Programs in the image.
const WEFT: &str = "/usr/bin/weft";
const WEFT_PROXY: &str = "/usr/bin/weft-proxy";
/// User of the network validator, as of the init container: not the proxy's, whose connections are not redirected.
const NOBODY: i64 = 65534;

/// The proxy.
pub(super) fn proxy(config: &Config, settings: &Settings, target: &Target<'_>) -> Container {
    let values = &settings.values;
    let proxy = &values.proxy;
    let admin = proxy.ports.admin;
    let native = proxy.native_sidecar;
    Container {
        name: PROXY.to_owned(),
        image: Some(image(&proxy.image, config)),
        image_pull_policy: Some(pull_policy(&proxy.image, settings)),
        command: Some(vec![WEFT_PROXY.to_owned()]),
        env: Some(env::environment(config, settings, target)),
        ports: Some(vec![
            port("linkerd-proxy", proxy.ports.inbound),
            port("linkerd-admin", admin),
        ]),
        liveness_probe: Some(probe("/live", admin, &proxy.liveness_probe)),
        readiness_probe: Some(probe("/ready", admin, &proxy.readiness_probe)),
        startup_probe: (native && proxy.wait).then(|| probe("/ready", admin, &proxy.startup_probe)),
        lifecycle: lifecycle(settings),
        restart_policy: native.then(|| "Always".to_owned()),
        resources: resources(&proxy.resources),
        security_context: Some(SecurityContext {
            run_as_user: Some(i64::from(proxy.uid)),
            run_as_group: (proxy.gid >= 0).then_some(proxy.gid),
            ..restricted()
        }),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(proxy_mounts(settings, target)),
        ..Container::default()
    }
}

fn proxy_mounts(settings: &Settings, target: &Target<'_>) -> Vec<VolumeMount> {
    let values = &settings.values;
    let mut mounts = vec![mount(END_ENTITY, END_ENTITY_DIR)];
    if values.proxy.tracing.enabled {
        mounts.push(mount(POD_INFO, POD_INFO_DIR));
    }
    if values.identity.service_account_token_projection {
        mounts.push(mount(TOKEN_NAME, TOKEN_DIR));
    } else {
        mounts.extend(target.api_token_mount().cloned());
    }
    mounts
}

fn lifecycle(settings: &Settings) -> Option<Lifecycle> {
    let proxy = &settings.values.proxy;
    let wait = proxy.wait && !proxy.native_sidecar;
    let post_start = wait.then(|| LifecycleHandler {
        exec: Some(ExecAction {
            command: Some(vec![
                WEFT.to_owned(),
                "await".to_owned(),
                "--timeout=2m".to_owned(),
                format!("--port={}", proxy.ports.admin),
            ]),
        }),
        ..LifecycleHandler::default()
    });
    // The kubelet's own sleep: the image needs no program for it.
    let pre_stop = (proxy.wait_before_exit_seconds > 0).then(|| LifecycleHandler {
        sleep: Some(SleepAction {
            seconds: i64::from(proxy.wait_before_exit_seconds),
        }),
        ..LifecycleHandler::default()
    });
    (post_start.is_some() || pre_stop.is_some()).then_some(Lifecycle {
        post_start,
        pre_stop,
        stop_signal: None,
    })
}

/// What runs before everything else in the pod: the redirection of its traffic, or the check of it.
pub(super) fn network(config: &Config, settings: &Settings) -> Container {
    match settings.values.cni_enabled {
        true => validator(config, settings),
        false => init(config, settings),
    }
}

fn init(config: &Config, settings: &Settings) -> Container {
    let values = &settings.values;
    let init = &values.proxy_init;
    let mut add = vec!["NET_ADMIN".to_owned(), "NET_RAW".to_owned()];
    // The kernel's setting can only be written where /proc/sys is writable.
    let privileged = init.privileged || init.close_wait_timeout_secs > 0;
    let root = init.run_as_root || init.close_wait_timeout_secs > 0;
    if privileged {
        add.clear();
    }
    let user = if root {
        0
    } else {
        i64::from(init.run_as_user.max(1))
    };
    Container {
        name: INIT.to_owned(),
        image: Some(image(&values.proxy.image, config)),
        image_pull_policy: Some(pull_policy(&values.proxy.image, settings)),
        command: Some(vec![WEFT.to_owned(), "init".to_owned()]),
        args: Some(init_arguments(settings)),
        resources: resources(init.resources.as_ref().unwrap_or(&values.proxy.resources)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(privileged),
            privileged: Some(privileged),
            capabilities: (!privileged).then(|| Capabilities {
                add: Some(add),
                drop: Some(vec!["ALL".to_owned()]),
            }),
            run_as_non_root: Some(!root),
            run_as_user: Some(user),
            run_as_group: Some(user),
            ..restricted()
        }),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(vec![mount(XTABLES_LOCK, "/run")]),
        ..Container::default()
    }
}

/// Flags of `weft init` (contract 9.5).
fn init_arguments(settings: &Settings) -> Vec<String> {
    let values = &settings.values;
    let (proxy, init) = (&values.proxy, &values.proxy_init);
    let ports = proxy.ports;
    let mut arguments = vec![
        format!("--ipv6={}", !values.disable_ipv6),
        format!("--incoming-proxy-port={}", ports.inbound),
        format!("--outgoing-proxy-port={}", ports.outbound),
        format!("--proxy-uid={}", proxy.uid),
    ];
    if proxy.gid >= 0 {
        arguments.push(format!("--proxy-gid={}", proxy.gid));
    }
    let own = format!("{},{}", ports.control, ports.admin);
    let inbound = [own.as_str(), &init.ignore_inbound_ports];
    let inbound = inbound.into_iter().filter(|list| !list.is_empty());
    let inbound = inbound.collect::<Vec<_>>().join(",");
    for (flag, list) in [
        ("inbound-ports-to-ignore", inbound.as_str()),
        ("outbound-ports-to-ignore", &init.ignore_outbound_ports),
        ("subnets-to-ignore", &init.skip_subnets),
    ] {
        if !list.is_empty() {
            arguments.push(format!("--{flag}={list}"));
        }
    }
    let program = match init.iptables_mode.as_str() {
        "legacy" => "iptables-legacy",
        "plain" => "iptables",
        _ => "iptables-nft",
    };
    arguments.push(format!("--firewall-bin-path={program}"));
    arguments.push(format!("--firewall-save-bin-path={program}-save"));
    if init.close_wait_timeout_secs > 0 {
        let seconds = init.close_wait_timeout_secs;
        arguments.push(format!("--timeout-close-wait-secs={seconds}"));
    }
    arguments
}

fn validator(config: &Config, settings: &Settings) -> Container {
    let values = &settings.values;
    let checks = &values.network_validator;
    let (connect, listen) = match values.disable_ipv6 {
        true => ("1.1.1.1:20001", "0.0.0.0"),
        false => ("[fd00::1]:20001", "[::]"),
    };
    let listen = format!("{listen}:{}", values.proxy.ports.outbound);
    let or = |given: &str, default: &str| match given {
        "" => default.to_owned(),
        given => given.to_owned(),
    };
    Container {
        name: VALIDATOR.to_owned(),
        image: Some(image(&values.proxy.image, config)),
        image_pull_policy: Some(pull_policy(&values.proxy.image, settings)),
        command: Some(vec![WEFT.to_owned(), "validate-network".to_owned()]),
        args: Some(vec![
            format!("--connect-addr={}", or(&checks.connect_addr, connect)),
            format!("--listen-addr={}", or(&checks.listen_addr, &listen)),
            format!("--timeout={}", or(&checks.timeout, "10s")),
        ]),
        resources: resources(&values.proxy.resources),
        security_context: checks.enable_security_context.then(|| SecurityContext {
            run_as_user: Some(NOBODY),
            run_as_group: Some(NOBODY),
            ..restricted()
        }),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

/// The debug container.
pub(super) fn debug(config: &Config, settings: &Settings) -> Container {
    let wanted = &settings.values.debug_container.image;
    Container {
        name: DEBUG.to_owned(),
        image: Some(image(wanted, config)),
        image_pull_policy: Some(pull_policy(wanted, settings)),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

/// Volume of the init container, if there is one: iptables wants to lock a file.
pub(super) fn init_volume(settings: &Settings) -> Option<Volume> {
    (!settings.values.cni_enabled).then(|| empty_dir(XTABLES_LOCK, None))
}

/// Volumes of the proxy.
pub(super) fn proxy_volumes(settings: &Settings) -> Vec<Volume> {
    let mut volumes = vec![empty_dir(END_ENTITY, Some("Memory"))];
    if settings.values.proxy.tracing.enabled {
        volumes.push(Volume {
            name: POD_INFO.to_owned(),
            downward_api: Some(DownwardAPIVolumeSource {
                default_mode: None,
                items: Some(vec![DownwardAPIVolumeFile {
                    path: "labels".to_owned(),
                    field_ref: Some(ObjectFieldSelector {
                        api_version: None,
                        field_path: "metadata.labels".to_owned(),
                    }),
                    ..DownwardAPIVolumeFile::default()
                }]),
            }),
            ..Volume::default()
        });
    }
    if settings.values.identity.service_account_token_projection {
        volumes.push(Volume {
            name: TOKEN_NAME.to_owned(),
            projected: Some(ProjectedVolumeSource {
                default_mode: None,
                sources: Some(vec![VolumeProjection {
                    service_account_token: Some(ServiceAccountTokenProjection {
                        audience: Some(AUDIENCE.to_owned()),
                        expiration_seconds: Some(TOKEN_SECONDS),
                        path: TOKEN_NAME.to_owned(),
                    }),
                    ..VolumeProjection::default()
                }]),
            }),
            ..Volume::default()
        });
    }
    volumes
}

/// What the level "restricted" of the Pod Security Standards asks of a container, and a read-only root file system.
fn restricted() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            add: None,
            drop: Some(vec!["ALL".to_owned()]),
        }),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        }),
        ..SecurityContext::default()
    }
}

/// The tag of an image of ours: its own, or the version of the installation.
pub(super) fn tag<'a>(image: &'a Image, config: &'a Config) -> &'a str {
    match image.version.as_str() {
        "" => config.installation(),
        version => version,
    }
}

fn image(image: &Image, config: &Config) -> String {
    format!("{}:{}", image.name, tag(image, config))
}

fn pull_policy(image: &Image, settings: &Settings) -> String {
    match image.pull_policy.as_str() {
        "" => settings.values.image_pull_policy.clone(),
        policy => policy.to_owned(),
    }
}

fn port(name: &str, number: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(number),
        ..ContainerPort::default()
    }
}

fn probe(path: &str, port: u16, times: &values::Probe) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(i32::from(port)),
            ..HTTPGetAction::default()
        }),
        initial_delay_seconds: times.initial_delay_seconds,
        timeout_seconds: times.timeout_seconds,
        period_seconds: times.period_seconds,
        failure_threshold: times.failure_threshold,
        ..Probe::default()
    }
}

fn resources(wanted: &Resources) -> Option<ResourceRequirements> {
    let mut wanted = wanted.clone();
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    for (kind, bounds) in each(&mut wanted) {
        for (amounts, amount) in [
            (&mut requests, &bounds.request),
            (&mut limits, &bounds.limit),
        ] {
            if !amount.is_empty() {
                amounts.insert(kind.to_owned(), Quantity(amount.clone()));
            }
        }
    }
    let some = |map: BTreeMap<String, Quantity>| (!map.is_empty()).then_some(map);
    let (requests, limits) = (some(requests), some(limits));
    (requests.is_some() || limits.is_some()).then_some(ResourceRequirements {
        requests,
        limits,
        claims: None,
    })
}

fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        ..VolumeMount::default()
    }
}

fn empty_dir(name: &str, medium: Option<&str>) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: medium.map(str::to_owned),
            size_limit: None,
        }),
        ..Volume::default()
    }
}

/// Whether a mount is the one of the token for the API server.
pub(super) fn is_api_token(mount: &VolumeMount) -> bool {
    mount.mount_path == API_TOKEN_DIR
}
