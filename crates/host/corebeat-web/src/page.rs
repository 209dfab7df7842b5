//! The page as HTML: tables that a browser without JavaScript shows as they are, and the script
//! that draws charts into them and keeps them up to date.

use crate::html::Html;
use crate::past::Range;
use crate::state::{Outcome, Part, Program, SHARES, State, Table, seconds};
use crate::utc;
use corebeat_host::Point;
use corebeat_linux::Offer;
use corebeat_machine::{Cpu, TimeShares, Topology};
use std::{io, iter};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Largest number of decisions that a live page has without its script. The last ones are shown.
const DECISIONS_IN_TABLE_MAX: usize = 100;

/// Largest number of programs whose threads a page has without its script.
const THREADS_OF_PROGRAMS_MAX: usize = 64;

/// Source of the content of a page after it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Server-sent events.
    Live,
    /// The page itself, which is about a recorded period of the host.
    Range(Range),
    /// The page itself.
    File,
}

/// A page, and the content security policy under which the page works.
#[derive(Debug)]
pub struct Page {
    /// The document.
    pub html: String,
    /// Value of the header `Content-Security-Policy`.
    pub policy: String,
}

/// A random number of 128 bits in hexadecimal digits.
///
/// # Errors
/// The kernel has no random numbers.
pub fn secret() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn policy(kind: Kind, nonce: &str) -> String {
    let connect = match kind {
        Kind::Live => "connect-src 'self'; ",
        Kind::Range(_) | Kind::File => "",
    };
    format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; {connect}\
         img-src data:; base-uri 'none'; form-action 'none'"
    )
}

impl State {
    /// The page of a host, which receives messages ([`State::json`]) as server-sent events from
    /// `events` beside it.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn live_page(&self) -> io::Result<Page> {
        self.served(Kind::Live)
    }

    /// The page of a recorded period of a host ([`Past`](crate::Past)), beside its live page.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn range_page(&self, range: Range) -> io::Result<Page> {
        self.served(Kind::Range(range))
    }

    fn served(&self, kind: Kind) -> io::Result<Page> {
        // A script or a style in the name of a program does not have the number, so that the
        // browser ignores it.
        let nonce = secret()?;
        let policy = policy(kind, &nonce) + "; frame-ancestors 'none'";
        Ok(Page { html: self.html(kind, &nonce), policy })
    }

    /// The page of a run, a search or a recorded period: one file without further parts.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn file_page(&self) -> io::Result<String> {
        Ok(self.html(Kind::File, &secret()?))
    }

    fn html(&self, kind: Kind, nonce: &str) -> String {
        let mut html = Html::default();
        html.raw("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
        html.raw("<meta http-equiv=\"Content-Security-Policy\" content=\"");
        html.text(policy(kind, nonce)).raw("\">\n");
        html.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
        html.raw("<meta name=\"referrer\" content=\"no-referrer\">\n");
        html.raw("<link rel=\"icon\" href=\"data:,\">\n<title>").text(&self.title);
        html.raw(" - Corebeat</title>\n<style nonce=\"").text(nonce).raw("\">\n").raw(STYLE);
        html.raw("</style>\n");
        html.raw(
            "</head>\n<body>\n<a class=\"skip\" href=\"#programs\">Skip to the programs</a>\n",
        );
        html.raw("<header><h1>").text(&self.title).raw("</h1>\n<p id=\"status\" role=\"status\">");
        html.text(self.status(kind)).raw("</p>\n");
        if kind == Kind::Live {
            html.raw("<button id=\"pause\" type=\"button\" hidden>Pause</button>\n");
            html.raw("<noscript><p><a href=\"./\">Load the page again</a></p></noscript>\n");
        }
        self.periods(&mut html, kind);
        html.raw("</header>\n<main>\n");
        self.programs(&mut html, kind);
        self.tables.iter().for_each(|table| add_table(&mut html, table));
        self.decisions(&mut html, kind);
        if kind == Kind::Live || !self.groups.is_empty() {
            self.groups(&mut html);
        }
        self.map(&mut html, kind);
        self.facts(&mut html);
        html.raw("</main>\n");
        match kind {
            Kind::Live => {}
            // The script takes the decisions from their table.
            Kind::Range(_) | Kind::File => {
                let mut message = self.message(Part::Whole);
                message.decisions.clear();
                html.json("state", &message.json());
            }
        }
        if let Some(report) = &self.report {
            html.json("report", &report.to_string());
        }
        html.raw("<script nonce=\"").text(nonce).raw("\">\n").raw(SCRIPT).raw("</script>\n");
        html.raw("</body>\n</html>\n");
        html.finish()
    }

    fn status(&self, kind: Kind) -> &str {
        match (kind, self.steering) {
            (Kind::Live, true) => "The daemon acts.",
            (Kind::Live, false) => "The daemon observes, and does not act.",
            (Kind::Range(_) | Kind::File, _) => {
                self.period.as_deref().unwrap_or("A run that has ended.")
            }
        }
    }

    /// Links between the live page and those of the recorded periods.
    fn periods(&self, html: &mut Html, kind: Kind) {
        let shown = match kind {
            Kind::File => return,
            Kind::Live if !self.has_past => {
                html.raw("<p class=\"hint\">The last hour and day are not recorded; start ");
                html.raw("<code>corebeat daemon --web --history</code> to show them.</p>\n");
                return;
            }
            Kind::Live => None,
            Kind::Range(range) => Some(range),
        };
        html.raw("<nav aria-label=\"Period\"><ul>");
        for range in iter::once(None).chain(Range::ALL.map(Some)) {
            html.raw("<li><a href=\"./");
            if let Some(range) = range {
                html.raw("?range=").raw(range.name());
            }
            html.raw("\"").raw(if range == shown { " aria-current=\"page\">" } else { ">" });
            html.raw(range.map_or("Live", Range::title)).raw("</a></li>");
        }
        html.raw("</ul></nav>\n");
    }

    fn programs(&self, html: &mut Html, kind: Kind) {
        section(html, "programs", "Programs");
        html.raw("<ul class=\"legend\" aria-label=\"Colours of the charts\">");
        for share in &SHARES {
            html.raw("<li><span class=\"key ").text(share.name).raw("\"></span>");
            html.text(share.title).raw("</li>");
        }
        html.raw("</ul>\n<p>Shares are parts of the time of all threads of a program; spin is a ");
        html.raw("part of user. An unknown share is a dash, and white in a chart.");
        if kind != Kind::Live {
            html.raw(" The numbers are those of the whole ");
            html.raw(if self.period.is_some() { "period." } else { "run." });
        }
        html.raw("</p>\n");
        let mut head = vec!["Program", "Policy", "Changes", "Threads", "CPUs busy"];
        head.extend(SHARES.iter().map(|share| share.title));
        head.push("Over time");
        begin_table(html, "Programs", &head);
        for (at, program) in self.programs.iter().enumerate() {
            add_program(html, program, at < THREADS_OF_PROGRAMS_MAX);
        }
        end_table(html);
        if self.programs.is_empty() {
            html.raw("<p class=\"empty\">No program is observed.</p>\n");
        }
        html.raw("<div id=\"notes\">");
        for note in &self.notes {
            html.raw("<p>").text(note).raw("</p>\n");
        }
        html.raw("</div>\n");
        html.raw("</section>\n");
    }

    fn decisions(&self, html: &mut Html, kind: Kind) {
        section(html, "decisions", "Decisions");
        html.raw("<p class=\"filter\" hidden><label>Filter <input id=\"filter\" type=\"search\">");
        html.raw("</label> <label>Outcome <select id=\"outcome\"><option value=\"\">all</option>");
        html.raw("<option value=\"done\">done</option><option value=\"refused\">refused</option>");
        html.raw("<option value=\"unchanged\">no change</option>");
        html.raw("<option value=\"event\">event</option></select></label> ");
        html.raw("<span id=\"shown\" role=\"status\"></span></p>\n");
        let head = ["Time", "Program", "Policy", "Decision", "Reason", "Outcome"];
        begin_table(html, "Decisions, the last first", &head);
        let shown_max = match kind {
            Kind::Live => DECISIONS_IN_TABLE_MAX,
            Kind::Range(_) | Kind::File => self.decisions.len(),
        };
        for decision in self.decisions.iter().rev().take(shown_max) {
            let at = match (kind, decision.unix_s) {
                (Kind::Live, _) => format!("{:.0} s ago", seconds(self.at_ns) - decision.at_s),
                (_, Some(unix_s)) => utc(unix_s),
                // It holds for the whole run.
                (_, None) if decision.outcome == Outcome::Unchanged => "–".into(),
                (_, None) => format!("{:.1} s", decision.at_s),
            };
            html.raw("<tr data-at=\"").text(decision.at_s).raw("\" data-program=\"");
            html.text(&decision.program).raw("\" data-outcome=\"").raw(decision.outcome.kind());
            if let Some(pid) = decision.pid {
                html.raw("\" data-process=\"").text(pid);
            }
            html.raw("\"><td>").text(at).raw("</td><td>").text(&decision.program);
            if let Some(pid) = decision.pid {
                html.raw(" <small>").text(pid).raw("</small>");
            }
            html.raw("</td><td>").text(&decision.policy).raw("</td><td>").text(&decision.what);
            html.raw("</td><td>").text(&decision.why).raw("</td><td>").text(&decision.outcome);
            html.raw("</td></tr>\n");
        }
        end_table(html);
        html.raw("</section>\n");
    }

    fn groups(&self, html: &mut Html) {
        section(html, "groups", "Heartbeats");
        let head = [
            "Group",
            "Owner",
            "Processes",
            "Threads",
            "Beats",
            "Beats per second",
            "Goal",
            "Over time",
        ];
        begin_table(html, "Groups of heartbeats", &head);
        for group in &self.groups {
            let pids: Vec<String> = group.pids.iter().map(u32::to_string).collect();
            let rate = group.rates.back().map_or("–".into(), |(_, rate)| format!("{rate:.1}"));
            let goal = match (group.rate_min, group.rate_max) {
                (None, None) => "–".into(),
                (Some(min), None) => format!("at least {min}"),
                (None, Some(max)) => format!("at most {max}"),
                (Some(min), Some(max)) => format!("{min} to {max}"),
            };
            html.raw("<tr><th scope=\"row\">").text(group.group).raw("</th>");
            let cells = [group.owner.to_string(), pids.join(" "), group.members.to_string()];
            let cells = cells.into_iter().chain([group.beats.to_string(), rate, goal]);
            cells.for_each(|cell| {
                html.raw("<td>").text(cell).raw("</td>");
            });
            html.raw("<td></td></tr>\n");
        }
        end_table(html);
        html.raw("</section>\n");
    }

    fn map(&self, html: &mut Html, kind: Kind) {
        let Some(topology) = &self.machine.topology else { return };
        section(html, "machine", "Machine");
        html.raw("<p>").text(&self.machine.system).raw("</p>\n");
        if kind == Kind::Live {
            html.raw("<p>Each CPU has the claim that holds it, and the programs whose threads ");
            html.raw("ran there last.</p>\n");
        }
        let cpus = self.cpus();
        add_map(html, topology, |html, cpu| {
            let Some(cpu) = cpus.iter().find(|with_names| with_names.cpu == cpu.id.0) else {
                return;
            };
            for claim in &cpu.claims {
                html.raw("<b>").text(claim).raw("</b> ");
            }
            for program in &cpu.programs {
                html.raw("<span>").text(program).raw("</span> ");
            }
            if cpu.more > 0 {
                html.raw("and ").text(cpu.more).raw(" more");
            }
        });
        if kind == Kind::Live {
            let head = ["Claim", "Process", "Name", "CPUs", "Must shrink to"];
            begin_table(html, "Claims", &head);
            for claim in &self.claims {
                html.raw("<tr><th scope=\"row\">").text(claim.claim).raw("</th>");
                let keep = claim.keep.as_ref().map_or(String::new(), |keep| list(keep));
                let cells = [claim.pid.to_string(), claim.name.clone(), list(&claim.cpus), keep];
                cells.iter().for_each(|cell| {
                    html.raw("<td>").text(cell).raw("</td>");
                });
                html.raw("</tr>\n");
            }
            end_table(html);
        }
        html.raw("</section>\n");
    }

    fn facts(&self, html: &mut Html) {
        if self.machine.facts.is_empty() {
            return;
        }
        let row = |fact: &corebeat_linux::Fact| {
            let offer = match fact.offer {
                Offer::Yes => "yes",
                Offer::Limited => "limited",
                Offer::No => "no",
            };
            let (cost, how) = match fact.offer {
                Offer::Yes => ("", ""),
                Offer::Limited | Offer::No => (fact.cost, fact.how),
            };
            [fact.name, offer, &fact.detail, cost, how].map(str::to_owned).to_vec()
        };
        let head = ["Feature", "Available", "Details", "Without it", "How to get it"];
        add_table(
            html,
            &Table {
                title: "Capabilities of the machine".into(),
                head: head.map(str::to_owned).to_vec(),
                rows: self.machine.facts.iter().map(row).collect(),
            },
        );
    }
}

fn list(cpus: &[u32]) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// Begins a section with a heading.
fn section(html: &mut Html, id: &'static str, title: &'static str) {
    html.raw("<section id=\"").raw(id).raw("\">\n<h2>").raw(title).raw("</h2>\n");
}

/// Begins a table in a region that scrolls.
fn begin_table(html: &mut Html, title: &str, head: &[&str]) {
    html.raw("<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"").text(title);
    html.raw("\"><table><caption>").text(title).raw("</caption>\n<thead><tr>");
    for name in head {
        html.raw("<th scope=\"col\">").text(name).raw("</th>");
    }
    html.raw("</tr></thead>\n<tbody>\n");
}

fn end_table(html: &mut Html) {
    html.raw("</tbody></table></div>\n");
}

/// A section with one table.
fn add_table(html: &mut Html, table: &Table) {
    html.raw("<section>\n<h2>").text(&table.title).raw("</h2>\n");
    let head: Vec<&str> = table.head.iter().map(String::as_str).collect();
    begin_table(html, &table.title, &head);
    for row in &table.rows {
        html.raw("<tr>");
        for (at, cell) in row.iter().enumerate() {
            match at {
                0 => html.raw("<th scope=\"row\">").text(cell).raw("</th>"),
                _ => html.raw("<td>").text(cell).raw("</td>"),
            };
        }
        html.raw("</tr>\n");
    }
    end_table(html);
    html.raw("</section>\n");
}

fn add_program(html: &mut Html, program: &Program, has_threads: bool) {
    html.raw("<tr><th scope=\"row\"><bdi>").text(&program.name).raw("</bdi>");
    if let Some(pid) = program.pid {
        html.raw(" <small>").text(pid).raw("</small>");
    }
    if program.gone_ns.is_some() {
        html.raw(" <small>gone</small>");
    }
    for thread in program.threads.iter().filter(|_| has_threads) {
        html.raw("<div class=\"thread\"><bdi>").text(&thread.name).raw("</bdi> <small>");
        html.text(thread.tid).raw("</small> ").text(percent(Some(thread.running))).raw("</div>");
    }
    html.raw("</th><td>").text(&program.policy).raw("</td><td>");
    html.text(program.changes.join(", ")).raw("</td>");
    let figures = program.figures();
    let threads = figures.map_or("–".into(), |point| point.threads.to_string());
    let cpus = figures.and_then(Point::cpus).map_or("–".into(), |c| format!("{c:.2}"));
    let share =
        |of: fn(&TimeShares) -> Option<f64>| percent(figures.and_then(|point| of(&point.shares)));
    let shares = SHARES.iter().map(|s| share(s.of));
    [threads, cpus].into_iter().chain(shares).for_each(|cell| {
        html.raw("<td>").text(cell).raw("</td>");
    });
    html.raw("<td></td></tr>\n");
}

fn percent(share: Option<f64>) -> String {
    share.map_or("–".into(), |share| format!("{:.0}%", share * 100.0))
}

/// The machine as nested boxes: packages, nodes, last-level caches, cores, CPUs.
fn add_map(html: &mut Html, topology: &Topology, add_cpu: impl Fn(&mut Html, &Cpu)) {
    let mut cpus: Vec<&Cpu> = topology.cpus().iter().collect();
    cpus.sort_by_key(|c| (c.package, c.node, c.cache, c.core, c.id));
    let begin = |html: &mut Html, class: &'static str, number: u32| {
        html.raw("<li class=\"").raw(class).raw("\"><span>").raw(class).raw(" ").text(number);
        html.raw("</span><ul>");
    };
    html.raw("<ul id=\"map\">");
    for package in cpus.chunk_by(|a, b| a.package == b.package) {
        begin(html, "package", package[0].package);
        for node in package.chunk_by(|a, b| a.node == b.node) {
            begin(html, "node", node[0].node.0);
            for cache in node.chunk_by(|a, b| a.cache == b.cache) {
                begin(html, "cache", cache[0].cache);
                for core in cache.chunk_by(|a, b| a.core == b.core) {
                    begin(html, "core", core[0].core);
                    for cpu in core {
                        html.raw("<li class=\"cpu\" data-cpu=\"").text(cpu.id.0).raw("\">CPU ");
                        html.text(cpu.id.0).raw(" <span class=\"users\">");
                        add_cpu(html, cpu);
                        html.raw("</span></li>");
                    }
                    html.raw("</ul></li>");
                }
                html.raw("</ul></li>");
            }
            html.raw("</ul></li>");
        }
        html.raw("</ul></li>");
    }
    html.raw("</ul>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Claim, Decision, Group, Machine, Thread, Update};
    use corebeat_linux::Fact;

    const HOSTILE: &str = "</td></script><script>alert(1)</script><img src=x onerror=\"x\" '";

    fn point(at_ns: u64) -> Point {
        let shares = TimeShares { user: Some(0.25), lock: None, ..TimeShares::ZERO };
        Point { at_ns, span_ns: 1_000_000_000, thread_ns: 4_000_000_000, shares, threads: 4 }
    }

    /// A host on which every text is hostile.
    fn hostile() -> State {
        let text = || HOSTILE.to_owned();
        let program = Program {
            id: 7,
            pid: Some(12),
            name: text(),
            policy: text(),
            changes: vec![text()],
            threads: vec![Thread { tid: 3, name: text(), running: 0.5, cpu: Some(0) }],
            cpus: vec![0],
            points: [point(1_000_000_000)].into(),
            ..Program::default()
        };
        let fact =
            Fact { name: "f", offer: Offer::No, detail: text(), cost: "much", how: "buy one" };
        let mut state = State {
            title: text(),
            machine: Machine {
                system: text(),
                topology: Some(Topology::flat(2)),
                facts: vec![fact],
            },
            tables: vec![Table { title: text(), head: vec![text()], rows: vec![vec![text()]] }],
            report: Some(serde_json::json!({ "name": HOSTILE })),
            ..State::default()
        };
        let decision = Decision {
            at_s: 1.0,
            unix_s: None,
            pid: None,
            program: text(),
            policy: text(),
            what: text(),
            why: text(),
            outcome: Outcome::Refused(text()),
            repeated: 0,
        };
        let claim = Claim { claim: 1, pid: 12, name: text(), cpus: vec![0], keep: Some(vec![]) };
        state.update(Update {
            at_ns: 1_000_000_000,
            steering: true,
            programs: vec![program],
            groups: vec![Group {
                rate_max: Some(2.0),
                rates: [(1, f64::NAN)].into(),
                ..Group::default()
            }],
            claims: vec![claim],
            decisions: vec![decision],
            notes: vec![text()],
            ..Update::default()
        });
        state
    }

    #[test]
    fn page_with_hostile_names_has_no_foreign_element() {
        let state = hostile();
        for html in [state.live_page().unwrap().html, state.file_page().unwrap()] {
            assert!(!html.contains("<img") && !html.contains("<script>"), "{html}");
            assert!(html.contains("&lt;script&gt;alert(1)"), "{html}");
            let scripts = html.matches("<script").count();
            assert_eq!(scripts, html.matches("</script>").count());
            let data = html.matches("<script type=\"application/json\" id=").count();
            assert_eq!(scripts, data + 1);
        }
        let json = state.json(Part::Whole);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["programs"][0]["threads"][0]["name"], HOSTILE);
        assert!(!json.contains('\n'), "a line is one field of an event");
    }

    #[test]
    fn policy_permits_one_script_and_one_style() {
        let page = hostile().live_page().unwrap();
        let nonce = page.policy.split("script-src 'nonce-").nth(1).unwrap();
        let nonce = &nonce[..32];
        assert_eq!(page.html.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
        assert!(page.policy.starts_with("default-src 'none'; "), "{}", page.policy);
        let loose = ["unsafe", "*", "http:", "https:", "script-src 'self'"];
        assert!(!loose.iter().any(|word| page.policy.contains(word)), "{}", page.policy);
        assert!(!page.html.contains(" style=") && !page.html.contains(" onclick="));
        assert_ne!(page.policy, hostile().live_page().unwrap().policy, "a nonce is used once");
    }

    #[test]
    fn tables_have_the_figures_without_a_script() {
        let html = hostile().live_page().unwrap().html;
        assert!(!html.contains("http-equiv=\"refresh\""), "the reader decides when to load");
        for cell in [
            "Load the page again",
            "at most 2<",
            "25%",
            "1.00",
            "claim 1: ",
            "CPU 1 ",
            "cache 0",
            "buy one",
        ] {
            assert!(html.contains(cell), "{cell}: {html}");
        }
        assert!(html.contains("<td>–</td>"), "the lock share is unknown");
    }

    #[test]
    fn decision_to_change_nothing_has_no_time_on_the_page_of_a_run() {
        let mut state = hostile();
        let last = state.decisions.back_mut().unwrap();
        (last.at_s, last.outcome) = (77.0, Outcome::Unchanged);
        assert!(!state.file_page().unwrap().contains("<td>77.0 s</td>"));
        state.decisions.back_mut().unwrap().outcome = Outcome::Done(1);
        assert!(state.file_page().unwrap().contains("<td>77.0 s</td>"));
    }

    #[test]
    fn page_of_a_period_has_its_groups_and_times_of_the_wall_clock() {
        let mut state = hostile();
        state.period = Some(HOSTILE.into());
        state.decisions.back_mut().unwrap().unix_s = Some(0.0);
        let html = state.file_page().unwrap();
        assert!(html.contains("<td>1970-01-01 00:00:00Z</td>") && html.contains("at most 2<"));
        assert!(html.contains("those of the whole period") && !html.contains("<script>"), "{html}");
    }

    #[test]
    fn pages_of_a_host_have_links_to_each_other_if_it_has_a_past() {
        let mut state = hostile();
        let links = |html: &str| html.matches("<nav").count() + html.matches("\"./?range=").count();
        let without = state.live_page().unwrap().html;
        assert!(links(&without) == 0 && without.contains("corebeat daemon --web --history"));
        state.has_past = true;
        let live = state.live_page().unwrap().html;
        assert!(links(&live) == 3 && live.contains("<a href=\"./\" aria-current=\"page\">Live<"));
        let day = state.range_page(Range::Day).unwrap();
        let current = "<a href=\"./?range=1d\" aria-current=\"page\">1 day</a>";
        assert!(links(&day.html) == 3 && day.html.contains(current), "{}", day.html);
        assert!(day.html.contains("id=\"state\"") && !day.html.contains("id=\"pause\""));
        assert!(!day.policy.contains("connect-src") && day.policy.contains("frame-ancestors"));
        assert_eq!(links(&state.file_page().unwrap()), 0);
        assert!(Range::ALL.into_iter().all(|range| Range::named(range.name()) == Some(range)));
        assert_eq!(Range::named("2h"), None);
    }

    #[test]
    fn page_of_many_programs_is_below_200_kb() {
        assert!(State::default().live_page().unwrap().html.len() < 25_000);
        let program = |id| Program {
            id,
            pid: Some(1_000_000),
            name: "a name of 15 by".into(),
            policy: "auto".into(),
            changes: vec!["class batch".into(), "slice 100 ms".into()],
            points: [point(1_000_000_000)].into(),
            threads: vec![
                Thread { tid: 1_000_000, name: "worker".into(), running: 0.5, cpu: None };
                4
            ],
            cpus: (0..128).collect(),
            ..Program::default()
        };
        let machine = Machine { topology: Some(Topology::flat(128)), ..Machine::default() };
        let mut state = State::of_host("host".into(), machine);
        let decision = Decision {
            at_s: 1.0,
            unix_s: None,
            pid: Some(1_000_000),
            program: "a name of 15 by".into(),
            policy: "faithful".into(),
            what: "slice 100 ms".into(),
            why: "threads wait for a CPU for 74% of the time and are preempted 413 times per \
                  second of CPU time; scaling factor 1.00"
                .into(),
            outcome: Outcome::Done(4),
            repeated: 0,
        };
        let programs = (0..256).map(program).collect();
        let decisions = vec![decision; 100];
        state.update(Update { programs, decisions, ..Update::default() });
        let length = state.live_page().unwrap().html.len();
        assert!(length < 200_000, "{length}");
        let length = state.json(Part::News).len();
        assert!(length < 200_000, "{length}");
        assert!(state.live_page().unwrap().html.contains("and 252 more"));
    }
}
