//! A page for Prometheus: counters of the daemon and rates of the groups, as text over HTTP.

use crate::http::{Request, Response};
use crate::limit::GROUPS_SHOWN_MAX;
use corebeat_heartbeat::{GroupInfo, Role};
use std::fmt::{Display, Write as _};

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

/// Text of the page. Groups that other users may not list are included only if `all` is set.
pub(crate) fn text(counts: &Counts, groups: impl Iterator<Item = GroupInfo>, all: bool) -> String {
    let mut page = String::new();
    let mut one = |name: &str, kind: &str, help: &str, value: &dyn Display| {
        let _ = writeln!(
            page,
            "# HELP corebeat_{name} {help}\n# TYPE corebeat_{name} {kind}\ncorebeat_{name} {value}"
        );
    };
    let (gauge, counter) = ("gauge", "counter");
    one("clients", gauge, "Connections.", &counts.clients);
    one("programs", gauge, "Observed programs.", &counts.programs);
    one("claims", gauge, "Claims of CPUs.", &counts.claims);
    let steering = "Whether the daemon acts; 0 while it is late, or if no action is permitted.";
    one("steering", gauge, steering, &u8::from(counts.steering));
    one("calls_answered_total", counter, "Answered calls.", &counts.answered);
    one("calls_refused_total", counter, "Refused calls.", &counts.refused);
    one("connections_total", counter, "Accepted connections.", &counts.connections);
    one("connections_refused_total", counter, "Refused connections.", &counts.rejected);
    one(
        "connections_dropped_total",
        counter,
        "Connections closed because of invalid input.",
        &counts.dropped,
    );
    one("cycles_total", counter, "Observations of the host.", &counts.cycles);
    one(
        "late_total",
        counter,
        "Times that the daemon was late and undid all changes.",
        &counts.late,
    );
    one("actions_done_total", counter, "Applied actions.", &counts.actions_done);
    one("actions_failed_total", counter, "Refused actions.", &counts.actions_failed);
    one(
        "history_left_out_total",
        counter,
        "Observations that the history lacks, because its thread was late or has ended.",
        &counts.history_left_out,
    );
    one("cpu_seconds_total", counter, "CPU time of the daemon.", &own_cpu_s());
    let may_see = |g: &GroupInfo| all || g.mode.permits_others(Role::Consumer);
    let groups: Vec<GroupInfo> = groups.filter(may_see).take(GROUPS_SHOWN_MAX).collect();
    let mut each =
        |name: &str, kind: &str, help: &str, value: &dyn Fn(&GroupInfo) -> Option<String>| {
            let _ = writeln!(
                page,
                "# HELP corebeat_group_{name} {help}\n# TYPE corebeat_group_{name} {kind}"
            );
            for group in &groups {
                if let Some(value) = value(group) {
                    let (owner, number) = (group.id.owner, group.id.number);
                    let _ = writeln!(
                        page,
                        "corebeat_group_{name}{{owner=\"{owner}\",group=\"{number}\"}} {value}"
                    );
                }
            }
        };
    let rate = |rate: Option<f64>| rate.map(|r| r.to_string());
    each("beats_total", counter, "Heartbeats.", &|g| Some(g.status.beats.to_string()));
    each("members", gauge, "Tasks that emit heartbeats.", &|g| Some(g.status.members.to_string()));
    each("rate", gauge, "Heartbeats per second over the window.", &|g| {
        rate(Some(g.status.window_rate))
    });
    each("rate_min", gauge, "Minimum rate of the goal, in heartbeats per second.", &|g| {
        rate(g.status.goal.rate_min)
    });
    each("rate_max", gauge, "Maximum rate of the goal, in heartbeats per second.", &|g| {
        rate(g.status.goal.rate_max)
    });
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
        let page = text(&Counts::default(), std::iter::empty(), true);
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
        let page = text(&Counts::default(), std::iter::empty(), true);
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
