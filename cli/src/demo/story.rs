//! Owns what the demo tells: its manifests, its programs and what happens when. Pure.

use std::time::Duration;

/// What happens to the replica that is taken out, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// All replicas serve.
    All,
    /// `api-2` is out of the manifests, but runs.
    Draining,
    /// `api-2` has been told to end.
    Away,
    /// `api-2` serves again.
    Back,
}

/// The replica that is taken out.
pub const LEAVER: &str = "api-2";
/// The replica that is slow.
pub const SLOW: &str = "api-1";
/// Milliseconds api takes to answer, and the slow replica: far enough above what a busy machine adds by itself.
pub const DELAYS_MS: (u64, u64) = (4, 80);
/// Namespace of everything.
pub const NAMESPACE: &str = "demo";
/// The workloads, in the order they are started.
pub const WORKLOADS: [&str; 6] = ["store", "api-0", "api-1", "api-2", "web", "load"];
/// Without an end, the story is told again and again.
const CYCLE: Duration = Duration::from_secs(60);
/// Part of the run between leaving the manifests and SIGTERM.
const DRAIN: f64 = 0.05;
/// The least of it: requests under way at a replica that leaves get this long.
pub const DRAIN_AT_LEAST: Duration = Duration::from_millis(500);

impl Act {
    /// The act at a time since the traffic began.
    pub fn at(elapsed: Duration, duration: Option<Duration>) -> Act {
        let whole = duration
            .unwrap_or(CYCLE)
            .as_secs_f64()
            .max(f64::MIN_POSITIVE);
        let elapsed = match duration {
            Some(_) => elapsed.as_secs_f64(),
            None => elapsed.as_secs_f64() % whole,
        };
        match elapsed / whole {
            part if part < 0.35 => Act::All,
            part if part < 0.35 + DRAIN => Act::Draining,
            part if part < 0.65 => Act::Away,
            _ => Act::Back,
        }
    }

    /// The act after this one.
    pub fn next(self) -> Act {
        match self {
            Act::All => Act::Draining,
            Act::Draining => Act::Away,
            Act::Away => Act::Back,
            Act::Back => Act::All,
        }
    }

    /// What to tell the viewer.
    pub fn line(self) -> String {
        match self {
            Act::All => {
                format!("three replicas of api; {SLOW} is twenty times slower, so it gets little")
            }
            Act::Draining => format!(
                "{LEAVER} is being drained: it is out of the manifests and gets no new request"
            ),
            Act::Away => format!("{LEAVER} was stopped by SIGTERM; the others carry on"),
            Act::Back => format!("{LEAVER} is back under its name and takes its share again"),
        }
    }
}

/// Lifetime of certificates such that each proxy renews its own at least twice, the one that is away in between too. Renewal
/// is at 70 % of the life (contract 2.2).
pub fn certificate_seconds(duration: Option<Duration>) -> u64 {
    duration
        .map_or(15, |duration| duration.as_secs() / 5)
        .clamp(3, 3600)
}

/// The arguments of `weft demo-app` for a workload.
pub fn arguments(workload: &str) -> Vec<String> {
    let delay = if workload == SLOW {
        DELAYS_MS.1
    } else {
        DELAYS_MS.0
    };
    let list: &[&str] = match workload {
        "store" => &["store"],
        "web" => &["web", "--api=api:9000"],
        "load" => &["load", "--target=web:80"],
        _ => &["api", "--store=store:6379", &format!("--delay-ms={delay}")],
    };
    list.iter().map(|text| (*text).to_owned()).collect()
}

/// The manifests: name of the file and its text. Each workload has a file of its own.
pub fn manifests() -> Vec<(String, String)> {
    let services = [
        ("web", 80, 8080, false),
        ("api", 9000, 9000, false),
        ("store", 6379, 6379, true),
    ];
    let services: Vec<String> = services
        .map(|(name, port, target, opaque)| service(name, port, target, opaque))
        .to_vec();
    let mut files = vec![("services.yaml".to_owned(), services.join("---\n"))];
    files.extend(WORKLOADS.map(|workload| (file_of(workload), pod(workload))));
    files
}

/// The file of a workload's Pod.
pub fn file_of(workload: &str) -> String {
    format!("pod-{workload}.yaml")
}

const OPAQUE: &str = "config.linkerd.io/opaque-ports: \"6379\"";

fn service(name: &str, port: u16, target: u16, opaque: bool) -> String {
    let annotations = if opaque {
        format!("  annotations: {{ {OPAQUE} }}\n")
    } else {
        String::new()
    };
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: {NAMESPACE}\n{annotations}\
         spec:\n  selector: {{ app: {name} }}\n  ports:\n  - {{ name: main, port: {port}, targetPort: {target} }}\n"
    )
}

fn pod(workload: &str) -> String {
    let app = workload.split('-').next().unwrap_or(workload);
    let port = match app {
        "store" => 6379,
        "api" => 9000,
        _ => 8080,
    };
    let ports = if app == "load" {
        String::new()
    } else {
        format!("    ports:\n    - {{ containerPort: {port} }}\n")
    };
    let opaque = if app == "store" {
        format!("    {OPAQUE}\n")
    } else {
        String::new()
    };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {workload}\n  namespace: {NAMESPACE}\n  labels: {{ app: {app} }}\n\
         \x20 annotations:\n    config.linkerd.io/default-inbound-policy: all-authenticated\n{opaque}\
         spec:\n  serviceAccountName: {app}\n  containers:\n  - name: {app}\n    image: none\n{ports}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acts_follow_each_other_within_the_duration() {
        let at = |tenths: u64| {
            Act::at(
                Duration::from_millis(tenths * 100),
                Some(Duration::from_secs(20)),
            )
        };
        assert_eq!(
            [
                at(0),
                at(69),
                at(71),
                at(79),
                at(81),
                at(129),
                at(131),
                at(199)
            ],
            {
                use Act::*;
                [All, All, Draining, Draining, Away, Away, Back, Back]
            }
        );
        let mut before = Act::All;
        for tenths in 0..200 {
            assert!(at(tenths) >= before);
            before = at(tenths);
        }
    }

    #[test]
    fn without_an_end_the_story_begins_again() {
        assert_eq!(Act::at(Duration::from_secs(30), None), Act::Away);
        assert_eq!(Act::at(Duration::from_secs(61), None), Act::All);
    }

    #[test]
    fn certificates_live_for_a_part_of_the_run() {
        let seconds = |duration| certificate_seconds(Some(Duration::from_secs(duration)));
        assert_eq!([seconds(5), seconds(20), seconds(60)], [3, 4, 12]);
    }

    #[test]
    fn manifests_are_documents_with_the_names_of_the_workloads() {
        for (file, text) in manifests() {
            for document in text.split("---\n") {
                let value: serde_norway::Value = serde_norway::from_str(document).expect("is YAML");
                let name = value["metadata"]["name"]
                    .as_str()
                    .expect("has a name")
                    .to_owned();
                assert!(
                    file == "services.yaml" || file == file_of(&name),
                    "{file}: {name}"
                );
                assert_eq!(value["metadata"]["namespace"], NAMESPACE);
            }
        }
    }
}
