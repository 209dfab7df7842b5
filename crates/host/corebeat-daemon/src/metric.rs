//! The metrics: counters of the daemon and rates of the groups. A page for Prometheus has them as
//! text over HTTP, and an exporter outside of this crate receives them.

use crate::http::{Request, Response};
use crate::limit::GROUPS_SHOWN_MAX;
use corebeat_heartbeat::{GroupInfo, Role};
use std::fmt::{self, Write as _};

/// Counters of the daemon.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) clients: usize,
    pub(crate) programs: usize,
    pub(crate) claims: usize,
    pub(crate) steering: bool,
    pub(crate) answered: u64,
    pub(crate) refused: u64,
    pub(crate) connections: u64,
    pub(crate) rejected: u64,
    pub(crate) dropped: u64,
    pub(crate) cycles: u64,
    pub(crate) late: u64,
    pub(crate) actions_done: u64,
    pub(crate) actions_failed: u64,
    pub(crate) history_left_out: u64,
}

/// The metrics at a time, for an exporter.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// Time on the wall clock, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// All metrics.
    pub metrics: Vec<Metric>,
}

/// A metric with its values.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// Name, such as `corebeat_clients`.
    pub name: &'static str,
    /// Meaning of the values.
    pub kind: Kind,
    /// Description, one sentence.
    pub help: &'static str,
    /// Values: one of the daemon, or one of each group of heartbeats.
    pub values: Vec<(Option<GroupLabel>, Number)>,
}

/// Meaning of the values of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A present value.
    Gauge,
    /// A sum since the daemon or the group began, which does not decrease.
    Counter,
}

/// A group of heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupLabel {
    /// User that owns the group.
    pub owner: u32,
    /// Number of the group of this user.
    pub group: u32,
}

/// A value of a metric.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub enum Number {
    /// A number of things.
    Whole(u64),
    /// A measured value.
    Real(f64),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Whole(number) => number.fmt(f),
            Number::Real(number) => number.fmt(f),
        }
    }
}

/// Name, kind and description of a metric, and its value of a subject, if the subject has one.
type Row<S> = (&'static str, Kind, &'static str, fn(&S) -> Option<Number>);

/// The metrics of the daemon.
const OF_DAEMON: [Row<Counts>; 15] = {
    use Kind::{Counter, Gauge};
    [
        ("corebeat_clients", Gauge, "Connections.", |c| count(c.clients)),
        ("corebeat_programs", Gauge, "Observed programs.", |c| count(c.programs)),
        ("corebeat_claims", Gauge, "Claims of CPUs.", |c| count(c.claims)),
        (
            "corebeat_steering",
            Gauge,
            "Whether the daemon acts; 0 while it is late, or if no action is permitted.",
            |c| whole(c.steering.into()),
        ),
        ("corebeat_calls_answered_total", Counter, "Answered calls.", |c| whole(c.answered)),
        ("corebeat_calls_refused_total", Counter, "Refused calls.", |c| whole(c.refused)),
        ("corebeat_connections_total", Counter, "Accepted connections.", |c| whole(c.connections)),
        ("corebeat_connections_refused_total", Counter, "Refused connections.", |c| {
            whole(c.rejected)
        }),
        (
            "corebeat_connections_dropped_total",
            Counter,
            "Connections closed because of invalid input.",
            |c| whole(c.dropped),
        ),
        ("corebeat_cycles_total", Counter, "Observations of the host.", |c| whole(c.cycles)),
        (
            "corebeat_late_total",
            Counter,
            "Times that the daemon was late and undid all changes.",
            |c| whole(c.late),
        ),
        ("corebeat_actions_done_total", Counter, "Applied actions.", |c| whole(c.actions_done)),
        ("corebeat_actions_failed_total", Counter, "Refused actions.", |c| whole(c.actions_failed)),
        (
            "corebeat_history_left_out_total",
            Counter,
            "Observations that the history lacks, because its thread was late or has ended.",
            |c| whole(c.history_left_out),
        ),
        ("corebeat_cpu_seconds_total", Counter, "CPU time of the daemon.", |_| real(own_cpu_s())),
    ]
};

/// The metrics of each group of heartbeats.
const OF_GROUP: [Row<GroupInfo>; 5] = {
    use Kind::{Counter, Gauge};
    [
        ("corebeat_group_beats_total", Counter, "Heartbeats.", |g| whole(g.status.beats)),
        ("corebeat_group_members", Gauge, "Tasks that emit heartbeats.", |g| {
            whole(g.status.members.into())
        }),
        ("corebeat_group_rate", Gauge, "Heartbeats per second over the window.", |g| {
            real(g.status.window_rate)
        }),
        (
            "corebeat_group_rate_min",
            Gauge,
            "Minimum rate of the goal, in heartbeats per second.",
            |g| g.status.goal.rate_min.and_then(real),
        ),
        (
            "corebeat_group_rate_max",
            Gauge,
            "Maximum rate of the goal, in heartbeats per second.",
            |g| g.status.goal.rate_max.and_then(real),
        ),
    ]
};

fn count(number: usize) -> Option<Number> {
    whole(number as u64)
}

fn whole(number: u64) -> Option<Number> {
    Some(Number::Whole(number))
}

fn real(number: f64) -> Option<Number> {
    Some(Number::Real(number))
}

/// All metrics. Groups that other users may not list are included only if `all` is set.
pub(crate) fn metrics(
    counts: &Counts,
    groups: impl Iterator<Item = GroupInfo>,
    all: bool,
) -> Vec<Metric> {
    let may_see = |g: &GroupInfo| all || g.mode.permits_others(Role::Consumer);
    let groups: Vec<GroupInfo> = groups.filter(may_see).take(GROUPS_SHOWN_MAX).collect();
    let label = |g: &GroupInfo| Some(GroupLabel { owner: g.id.owner, group: g.id.number });
    let of_daemon = OF_DAEMON.iter().map(|&(name, kind, help, value)| {
        let values = value(counts).map(|value| (None, value)).into_iter().collect();
        Metric { name, kind, help, values }
    });
    let of_group = OF_GROUP.iter().map(|&(name, kind, help, value)| {
        let values = groups.iter().filter_map(|g| Some((label(g), value(g)?))).collect();
        Metric { name, kind, help, values }
    });
    of_daemon.chain(of_group).collect()
}

/// Text of the page.
pub(crate) fn text(metrics: &[Metric]) -> String {
    let mut page = String::new();
    for Metric { name, kind, help, values } in metrics {
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (label, value) in values {
            let _ = match label {
                None => writeln!(page, "{name} {value}"),
                Some(GroupLabel { owner, group }) => {
                    writeln!(page, "{name}{{owner=\"{owner}\",group=\"{group}\"}} {value}")
                }
            };
        }
    }
    page
}

fn own_cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Answers a request for the page. `is_private` states whether only the daemon's user and root can
/// connect.
pub(crate) fn answer(
    request: &Request,
    is_private: bool,
    text: impl FnOnce() -> String,
) -> Response {
    match request.path {
        _ if !is_private && !request.has_local_name() => {
            let text = "metrics are served under an address or localhost only\n";
            Response::text("403 Forbidden", text)
        }
        "/metrics" => {
            let kind = "text/plain; version=0.0.4; charset=utf-8".into();
            let headers = vec![("Content-Type", kind)];
            Response { headers, ..Response::text("200 OK", text()) }
        }
        _ => Response::text("404 Not Found", "the only page is /metrics\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn text_has_a_type_for_every_name() {
        let page = text(&metrics(&Counts::default(), std::iter::empty(), true));
        for line in page.lines().filter(|l| !l.starts_with('#')) {
            let name = line.split([' ', '{']).next().unwrap();
            assert!(page.contains(&format!("# TYPE {name} ")), "{name}");
        }
        assert!(page.contains("\ncorebeat_steering 0\n"));
    }

    #[test]
    fn page_is_served_to_local_names_and_at_its_path_alone() {
        let status = |path: &str, host: &str, is_private| {
            let text = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let request = Request::parse(text.as_bytes(), 0).unwrap().unwrap();
            answer(&request, is_private, || "page\n".into()).status
        };
        assert_eq!(status("/metrics", "localhost:9477", false), "200 OK");
        assert_eq!(status("/metrics", "evil.example", false), "403 Forbidden");
        assert_eq!(status("/metrics", "any", true), "200 OK");
        assert_eq!(status("/", "localhost", false), "404 Not Found");
        assert_eq!(status("/metrics/..", "any", true), "404 Not Found");
    }

    /// Every name that a query of the dashboard for Grafana uses is on the page, and every name of
    /// the page that shows something over time is in the dashboard.
    #[test]
    fn dashboard_for_grafana_has_the_names_of_the_page() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../contrib/grafana/corebeat.json");
        let dashboard = std::fs::read_to_string(path).unwrap();
        let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
        let mut queries: Vec<String> =
            targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect();
        let variables = dashboard["templating"]["list"].as_array().unwrap();
        queries.extend(variables.iter().map(|v| v["query"].as_str().unwrap().to_owned()));
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = queries.iter().flat_map(|query| query.split(|c| !is_part(c)));
        let used: BTreeSet<&str> = words.filter(|word| word.starts_with("corebeat_")).collect();
        let page = text(&metrics(&Counts::default(), std::iter::empty(), true));
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let served: BTreeSet<&str> = types.filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(used.difference(&served).collect::<Vec<_>>(), [&""; 0]);
        let unused: Vec<_> = served.difference(&used).copied().collect();
        let expected = [
            "corebeat_connections_total",
            "corebeat_group_beats_total",
            "corebeat_history_left_out_total",
        ];
        assert_eq!(unused, expected);
    }
}
