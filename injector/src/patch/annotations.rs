//! Owns the table of the config annotations (contract 9.3): name, whether a pod inherits it from its namespace, and what it does to
//! the settings. Whoever reads the table decides which of several annotations wins.

use k8s_openapi::api::core::v1::EnvVar;
use weft_core::parse;

use super::read;
use super::settings::Draft;

/// What config annotations begin with.
pub(super) const PREFIXES: [&str; 3] = [
    "config.linkerd.io/",
    "config.alpha.linkerd.io/",
    "config.beta.linkerd.io/",
];
/// Ports without protocol detection; of pods, Services and namespaces.
pub const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";

/// Environment of the proxy; its values may be secret, so they are in no message and no metric.
pub(super) const ADDITIONAL_ENV: &str = "config.linkerd.io/proxy-additional-env";
/// How long the proxy goes on after it was told to end, in seconds.
pub(super) const WAIT_BEFORE_EXIT: &str = "config.alpha.linkerd.io/proxy-wait-before-exit-seconds";
/// Takes traffic of other clusters.
pub(super) const ENABLE_GATEWAY: &str = "config.linkerd.io/enable-gateway";

const POLICIES: [&str; 6] = [
    "all-unauthenticated",
    "all-authenticated",
    "cluster-unauthenticated",
    "cluster-authenticated",
    "deny",
    "audit",
];

/// An annotation that configures the proxy.
pub(super) struct Annotation {
    /// Its name, with prefix.
    pub name: &'static str,
    /// The namespace's one holds for its pods, and is copied to them.
    pub inherited: bool,
    /// Changes the settings, or says why the value cannot be used. Faults of single items of a list go to `faults`.
    pub apply: fn(&mut Draft<'_>, &str) -> Result<(), String>,
}

impl Annotation {
    /// Name of its label in metrics (contract 9.1): without prefix, in letters that are legal there (case J10).
    pub fn label(name: &str) -> String {
        let name = name.rsplit('/').next().unwrap_or(name);
        name.replace('-', "_")
    }
}

const fn inherited(
    name: &'static str,
    apply: fn(&mut Draft<'_>, &str) -> Result<(), String>,
) -> Annotation {
    Annotation {
        name,
        inherited: true,
        apply,
    }
}

const fn own(
    name: &'static str,
    apply: fn(&mut Draft<'_>, &str) -> Result<(), String>,
) -> Annotation {
    Annotation {
        name,
        inherited: false,
        apply,
    }
}

fn set<T>(place: &mut T, read: Result<T, String>) -> Result<(), String> {
    *place = read?;
    Ok(())
}

fn amount(text: &str) -> Result<String, String> {
    read::quantity(text).map(|_| text.to_owned())
}

fn one_of(text: &str, allowed: &[&str]) -> Result<String, String> {
    match allowed.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(format!("expected one of {}", allowed.join(", "))),
    }
}

fn pull_policy(text: &str) -> Result<String, String> {
    one_of(text, &["Always", "IfNotPresent", "Never"])
}

fn ports(draft: &mut Draft<'_>, text: &str) -> Result<String, String> {
    let (valid, faults) = read::ports(text, draft.named);
    list(draft, valid, faults)
}

/// A list of which nothing is left is not used: an empty one would say something else.
fn list(draft: &mut Draft<'_>, valid: String, mut faults: Vec<String>) -> Result<String, String> {
    match faults.pop() {
        Some(fault) if valid.is_empty() => {
            draft.faults = faults;
            Err(fault)
        }
        last => {
            faults.extend(last);
            draft.faults = faults;
            Ok(valid)
        }
    }
}

fn connect_timeout(text: &str) -> Result<String, String> {
    match read::go_duration(text)? {
        time if time.is_zero() => Err("nothing connects in no time".to_owned()),
        time => Ok(read::milliseconds(time)),
    }
}

fn whole_cores(text: &str) -> Result<u32, String> {
    // A float above u32::MAX becomes u32::MAX; the proxy uses no more than there are.
    read::quantity(text).map(|cpus| (cpus.ceil() as u32).max(1))
}

fn user(text: &str) -> Result<u32, String> {
    let wrong = "expected the number of a user other than root";
    text.parse()
        .ok()
        .filter(|uid: &u32| *uid > 0 && *uid <= i32::MAX as u32)
        .ok_or_else(|| wrong.to_owned())
}

fn log_level(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("expected log directives such as warn,linkerd=debug".to_owned());
    }
    weft_runtime::log::check(text).map_err(|e| e.to_string())?;
    Ok(text.to_owned())
}

fn environment(draft: &mut Draft<'_>, text: &str) -> Result<(), String> {
    // The parser's own message would show the values, which may be secret.
    let variables: Vec<EnvVar> = serde_json::from_str(text).map_err(|e| {
        let (line, column) = (e.line(), e.column());
        format!("expected a JSON list of environment variables; line {line}, column {column} is something else")
    })?;
    if let Some(fault) = variables.iter().find_map(fault_of_variable) {
        return Err(fault);
    }
    for variable in variables {
        super::env::put(&mut draft.environment, variable);
    }
    Ok(())
}

/// Why Kubernetes would refuse a container with this variable.
pub(super) fn fault_of_variable(variable: &EnvVar) -> Option<String> {
    let name = &variable.name;
    let legal = |b: u8| b.is_ascii_graphic() && b != b'=';
    if name.is_empty() || !name.bytes().all(legal) {
        return Some(format!(
            "{name:?} is not the name of an environment variable"
        ));
    }
    let source = variable.value_from.as_ref()?;
    if variable
        .value
        .as_ref()
        .is_some_and(|value| !value.is_empty())
    {
        return Some(format!("{name} has both value and valueFrom"));
    }
    let sources = [
        source.config_map_key_ref.is_some(),
        source.field_ref.is_some(),
        source.file_key_ref.is_some(),
        source.resource_field_ref.is_some(),
        source.secret_key_ref.is_some(),
    ];
    let count = sources.into_iter().filter(|given| *given).count();
    (count != 1).then(|| format!("{name} needs one source in valueFrom, it has {count}"))
}

/// All config annotations, in the order in which they are applied: later ones win where two set the same.
pub(super) const ANNOTATIONS: &[Annotation] = &[
    inherited("config.linkerd.io/proxy-image", |d, text| {
        set(&mut d.values.proxy.image.name, read::image_part(text))
    }),
    inherited("config.linkerd.io/proxy-version", |d, text| {
        set(&mut d.values.proxy.image.version, read::image_part(text))
    }),
    inherited("config.linkerd.io/image-pull-policy", |d, text| {
        set(&mut d.values.proxy.image.pull_policy, pull_policy(text))
    }),
    own("config.linkerd.io/debug-image", |d, text| {
        set(
            &mut d.values.debug_container.image.name,
            read::image_part(text),
        )
    }),
    own("config.linkerd.io/debug-image-version", |d, text| {
        set(
            &mut d.values.debug_container.image.version,
            read::image_part(text),
        )
    }),
    own("config.linkerd.io/debug-image-pull-policy", |d, text| {
        set(
            &mut d.values.debug_container.image.pull_policy,
            pull_policy(text),
        )
    }),
    inherited("config.linkerd.io/control-port", |d, text| {
        set(&mut d.values.proxy.ports.control, read::port(text))
    }),
    inherited("config.linkerd.io/inbound-port", |d, text| {
        set(&mut d.values.proxy.ports.inbound, read::port(text))
    }),
    inherited("config.linkerd.io/admin-port", |d, text| {
        set(&mut d.values.proxy.ports.admin, read::port(text))
    }),
    inherited("config.linkerd.io/outbound-port", |d, text| {
        set(&mut d.values.proxy.ports.outbound, read::port(text))
    }),
    // The ports of the pod's containers are used (contract 9.3).
    inherited("config.linkerd.io/pod-inbound-ports", |_, _| Ok(())),
    inherited("config.linkerd.io/skip-inbound-ports", |d, text| {
        d.values.proxy_init.ignore_inbound_ports = ports(d, text)?;
        Ok(())
    }),
    inherited("config.linkerd.io/skip-outbound-ports", |d, text| {
        d.values.proxy_init.ignore_outbound_ports = ports(d, text)?;
        Ok(())
    }),
    inherited(OPAQUE_PORTS, |d, text| {
        d.values.proxy.opaque_ports = ports(d, text)?;
        Ok(())
    }),
    inherited("config.linkerd.io/skip-subnets", |d, text| {
        let (valid, faults) = read::networks(text);
        d.values.proxy_init.skip_subnets = list(d, valid, faults)?;
        Ok(())
    }),
    inherited("config.linkerd.io/proxy-cpu-request", |d, text| {
        d.values.proxy.runtime.workers.minimum = Some(whole_cores(text)?);
        set(&mut d.values.proxy.resources.cpu.request, amount(text))
    }),
    inherited("config.linkerd.io/proxy-cpu-limit", |d, text| {
        d.values.proxy.runtime.workers.maximum = Some(whole_cores(text)?);
        set(&mut d.values.proxy.resources.cpu.limit, amount(text))
    }),
    inherited("config.linkerd.io/proxy-memory-request", |d, text| {
        set(&mut d.values.proxy.resources.memory.request, amount(text))
    }),
    inherited("config.linkerd.io/proxy-memory-limit", |d, text| {
        set(&mut d.values.proxy.resources.memory.limit, amount(text))
    }),
    inherited(
        "config.linkerd.io/proxy-ephemeral-storage-request",
        |d, text| {
            let storage = &mut d.values.proxy.resources.ephemeral_storage;
            set(&mut storage.request, amount(text))
        },
    ),
    inherited(
        "config.linkerd.io/proxy-ephemeral-storage-limit",
        |d, text| {
            let storage = &mut d.values.proxy.resources.ephemeral_storage;
            set(&mut storage.limit, amount(text))
        },
    ),
    own("config.linkerd.io/proxy-cpu-ratio-limit", |d, text| {
        let ratio: f64 = parse::number(text).map_err(|e| e.to_string())?;
        if !(ratio > 0.0 && ratio < 1.0) {
            return Err("expected a share between 0 and 1, such as 0.5".to_owned());
        }
        d.values.proxy.runtime.workers.maximum_cpu_ratio = Some(ratio);
        Ok(())
    }),
    inherited("config.linkerd.io/proxy-uid", |d, text| {
        set(&mut d.values.proxy.uid, user(text))
    }),
    inherited("config.linkerd.io/proxy-gid", |d, text| {
        set(&mut d.values.proxy.gid, user(text).map(i64::from))
    }),
    inherited("config.linkerd.io/proxy-admin-shutdown", |d, text| {
        set(
            &mut d.values.proxy.enable_shutdown_endpoint,
            read::switch(text),
        )
    }),
    inherited("config.linkerd.io/proxy-await", |d, text| {
        set(&mut d.values.proxy.wait, read::switch(text))
    }),
    inherited("config.linkerd.io/proxy-log-level", |d, text| {
        set(&mut d.values.proxy.log_level, log_level(text))
    }),
    inherited("config.linkerd.io/proxy-log-format", |d, text| {
        set(
            &mut d.values.proxy.log_format,
            one_of(text, &["plain", "json"]),
        )
    }),
    inherited("config.linkerd.io/proxy-log-http-headers", |d, text| {
        set(
            &mut d.values.proxy.log_http_headers,
            one_of(text, &["off", "insecure"]),
        )
    }),
    inherited("config.linkerd.io/access-log", |d, text| {
        set(
            &mut d.values.proxy.access_log,
            one_of(text, &["apache", "json", "none"]),
        )
    }),
    inherited("config.linkerd.io/enable-external-profiles", |d, text| {
        set(
            &mut d.values.proxy.enable_external_profiles,
            read::boolean(text),
        )
    }),
    inherited(
        "config.linkerd.io/proxy-metrics-hostname-labels",
        |d, text| {
            set(
                &mut d.values.proxy.metrics.hostname_labels,
                read::boolean(text),
            )
        },
    ),
    inherited(
        "config.linkerd.io/proxy-disable-outbound-protocol-detect-timeout",
        |d, text| {
            let disable = &mut d.values.proxy.disable_outbound_protocol_detect_timeout;
            set(disable, read::boolean(text))
        },
    ),
    inherited(
        "config.linkerd.io/proxy-disable-inbound-protocol-detect-timeout",
        |d, text| {
            let disable = &mut d.values.proxy.disable_inbound_protocol_detect_timeout;
            set(disable, read::boolean(text))
        },
    ),
    // Three names of one setting; the stable one wins.
    inherited(
        "config.alpha.linkerd.io/proxy-enable-native-sidecar",
        native_sidecar,
    ),
    own(
        "config.beta.linkerd.io/proxy-enable-native-sidecar",
        native_sidecar,
    ),
    inherited(
        "config.linkerd.io/proxy-enable-native-sidecar",
        native_sidecar,
    ),
    inherited(
        "config.linkerd.io/proxy-outbound-connect-timeout",
        |d, text| {
            set(
                &mut d.values.proxy.outbound_connect_timeout,
                connect_timeout(text),
            )
        },
    ),
    inherited(
        "config.linkerd.io/proxy-inbound-connect-timeout",
        |d, text| {
            set(
                &mut d.values.proxy.inbound_connect_timeout,
                connect_timeout(text),
            )
        },
    ),
    inherited("config.linkerd.io/shutdown-grace-period", |d, text| {
        let time = read::go_duration(text).map(read::milliseconds);
        set(&mut d.values.proxy.shutdown_grace_period, time)
    }),
    inherited(
        "config.linkerd.io/proxy-outbound-discovery-cache-unused-timeout",
        |d, text| {
            let time = read::go_duration(text).map(read::seconds);
            set(
                &mut d.values.proxy.outbound_discovery_cache_unused_timeout,
                time,
            )
        },
    ),
    inherited(
        "config.linkerd.io/proxy-inbound-discovery-cache-unused-timeout",
        |d, text| {
            let time = read::go_duration(text).map(read::seconds);
            set(
                &mut d.values.proxy.inbound_discovery_cache_unused_timeout,
                time,
            )
        },
    ),
    inherited(
        "config.linkerd.io/proxy-require-identity-inbound-ports",
        |d, text| {
            d.values.proxy.require_identity_on_inbound_ports = ports(d, text)?;
            Ok(())
        },
    ),
    inherited("config.linkerd.io/default-inbound-policy", |d, text| {
        set(
            &mut d.values.proxy.default_inbound_policy,
            one_of(text, &POLICIES),
        )
    }),
    inherited(ADDITIONAL_ENV, environment),
    own(ENABLE_GATEWAY, |d, text| {
        set(&mut d.gateway, read::boolean(text))
    }),
    // After those of its image.
    own("config.linkerd.io/enable-debug-sidecar", |d, text| {
        let wanted = read::boolean(text)?;
        if wanted && d.values.debug_container.image.name.is_empty() {
            return Err(
                "no image is configured; set the values debugContainer.image.name and debugContainer.image.version, or \
                 annotate the pod config.linkerd.io/debug-image and -image-version"
                    .to_owned(),
            );
        }
        d.debug = wanted;
        Ok(())
    }),
    own("config.linkerd.io/close-wait-timeout", |d, text| {
        let seconds = read::go_duration(text)?.as_secs();
        d.values.proxy_init.close_wait_timeout_secs =
            u32::try_from(seconds).map_err(|_| "it is too long".to_owned())?;
        Ok(())
    }),
    inherited(WAIT_BEFORE_EXIT, |d, text| {
        let seconds = text
            .parse()
            .map_err(|_| "expected a number of seconds".to_owned());
        set(&mut d.values.proxy.wait_before_exit_seconds, seconds)
    }),
];

fn native_sidecar(draft: &mut Draft<'_>, text: &str) -> Result<(), String> {
    set(&mut draft.values.proxy.native_sidecar, read::boolean(text))
}
