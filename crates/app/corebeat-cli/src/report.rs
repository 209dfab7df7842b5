//! What `corebeat run` says at the end: one structure, printed as JSON or as a table.

use corebeat_loop::{Deed, ProgramTally, Tally};
use corebeat_machine::{Action, Counters, ProgramId, TimeShares};
use serde::Serialize;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The report of one run. The book's page `run.md` explains each field.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) command: Vec<String>,
    pub(crate) ended: Ended,
    pub(crate) policy: String,
    pub(crate) wall_s: f64,
    pub(crate) cpu_user_s: f64,
    pub(crate) cpu_system_s: f64,
    pub(crate) cpus: usize,
    pub(crate) cpus_busy: Option<f64>,
    pub(crate) others_busy: Option<f64>,
    pub(crate) threads_seen: usize,
    pub(crate) threads_max: usize,
    pub(crate) shares: TimeShares,
    pub(crate) counters: Counters,
    pub(crate) io_bytes: Option<u64>,
    pub(crate) regions: Vec<Regions>,
    pub(crate) deeds: Vec<DeedRow>,
    pub(crate) watching_cpu_s: f64,
    pub(crate) notes: Vec<String>,
}

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ended {
    Exit(i32),
    Signal(i32),
}

/// OpenMP parallel regions that ran with one team size.
#[derive(Debug, Serialize)]
pub(crate) struct Regions {
    size: u32,
    count: u64,
    time_s: f64,
}

/// Something that was done.
#[derive(Debug, Serialize)]
pub(crate) struct DeedRow {
    at_s: f64,
    policy: &'static str,
    action: Action,
    why: String,
    failed: Option<String>,
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        match status.signal() {
            Some(signal) => Ended::Signal(signal),
            None => Ended::Exit(status.code().unwrap_or(1)),
        }
    }
}

impl DeedRow {
    pub(crate) fn new(deed: &Deed, start_ns: u64) -> Self {
        DeedRow {
            at_s: deed.at_ns.saturating_sub(start_ns) as f64 / 1e9,
            policy: deed.policy,
            action: deed.decision.action.clone(),
            why: deed.decision.why.clone(),
            failed: deed.failed.clone(),
        }
    }
}

impl fmt::Display for DeedRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failed.as_ref().map_or(String::new(), |e| format!(" FAILED: {e}"));
        write!(f, "  {:>7.1} s  {}: {} ({}){failed}", self.at_s, self.policy, self.action, self.why)
    }
}

/// Shares are told where at least this part of the program's CPU time was seen, and with a note below the second figure.
const PART_MIN: f64 = 0.5;
const PART_NOTED: f64 = 0.9;

/// What only the command that ran the program knows.
pub(crate) struct Frame {
    pub(crate) command: Vec<String>,
    pub(crate) ended: Ended,
    pub(crate) policy: String,
    pub(crate) start_ns: u64,
    pub(crate) wall_s: f64,
    pub(crate) cpu_user_s: f64,
    pub(crate) cpu_system_s: f64,
    pub(crate) cpus: usize,
    pub(crate) watching_cpu_s: f64,
    pub(crate) notes: Vec<String>,
}

impl Report {
    /// Puts together what the loop added up and what the command knows.
    pub(crate) fn new(frame: Frame, tally: &Tally, id: ProgramId) -> Self {
        let Frame {
            command,
            ended,
            policy,
            start_ns,
            wall_s,
            cpu_user_s,
            cpu_system_s,
            cpus,
            watching_cpu_s,
            mut notes,
        } = frame;
        let program = tally.programs.get(&id);
        let mut shares = program.map(ProgramTally::shares).unwrap_or_default();
        let mut counters = program.filter(|p| p.thread_ns > 0).map(|p| p.counters).unwrap_or_default();
        let thread_s = program.map_or(0.0, |p| p.thread_ns as f64 / 1e9);
        let (seen_s, used_s) = (shares.running().unwrap_or(0.0) * thread_s, cpu_user_s + cpu_system_s);
        let part = if used_s > 0.0 { seen_s / used_s } else { 1.0 };
        if part < PART_NOTED {
            let less =
                if part < PART_MIN { "so no shares are told" } else { "and the shares are of the rest" };
            notes.push(format!(
                "{:.0}% of its CPU time was in threads that came or went between two looks, {less}",
                (1.0 - part) * 100.0
            ));
        }
        let unseen = shares.blocked().filter(|_| shares.lock.is_none() && part >= PART_MIN);
        notes.extend(unseen.map(|blocked| {
            format!(
                "lock and sleep are not told: threads slept {:.0}% of their time, and were too seldom seen in what; \
                 --exact-locks measures it",
                blocked * 100.0
            )
        }));
        if part < PART_MIN {
            (shares, counters) = (TimeShares::default(), Counters::default());
        }
        Report {
            command,
            ended,
            policy,
            wall_s,
            cpu_user_s,
            cpu_system_s,
            cpus,
            cpus_busy: (wall_s > 0.0).then(|| used_s / wall_s),
            others_busy: tally.others_busy(),
            threads_seen: program.map_or(0, ProgramTally::threads_seen),
            threads_max: program.map_or(0, |p| p.threads_max),
            shares,
            counters,
            io_bytes: program.and_then(|p| p.io_bytes),
            regions: program
                .iter()
                .flat_map(|p| &p.regions)
                .map(|(&size, &(count, ns))| Regions { size, count, time_s: ns as f64 / 1e9 })
                .collect(),
            deeds: tally.deeds.iter().map(|d| DeedRow::new(d, start_ns)).collect(),
            watching_cpu_s,
            notes,
        }
    }

    fn rate(&self, count: Option<u64>) -> String {
        match count {
            Some(n) if self.wall_s > 0.0 => format!("{:.0}/s", n as f64 / self.wall_s),
            _ => "unknown".into(),
        }
    }
}

/// A share as a percentage, or that it is not known.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "unknown".into(), |s| format!("{:.1}%", s * 100.0))
}

/// A bar of eighths, `width` characters for 1.0.
pub(crate) fn bar(share: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.command.first().map_or("", |c| c.rsplit('/').next().unwrap_or(c));
        let ended = match self.ended {
            Ended::Exit(code) => format!("exit {code}"),
            Ended::Signal(signal) => format!("signal {signal}"),
        };
        writeln!(f, "corebeat: {name}: {:.2} s, {ended}, policy {}", self.wall_s, self.policy)?;
        let cpus = |c: Option<f64>| c.map_or_else(|| "unknown".into(), |c| format!("{c:.2}"));
        writeln!(
            f,
            "  CPUs busy   {} of {} ({:.2} s user, {:.2} s system), others {}; threads: {} in all, {} at once",
            cpus(self.cpus_busy),
            self.cpus,
            self.cpu_user_s,
            self.cpu_system_s,
            cpus(self.others_busy),
            self.threads_seen,
            self.threads_max
        )?;
        let s = &self.shares;
        let rows = [
            ("user", s.user),
            ("  spinning", s.spin),
            ("system", s.system),
            ("lock", s.lock),
            ("latency", s.latency),
            ("sleep", s.sleep),
        ];
        for (name, share) in rows {
            writeln!(f, "  {name:<11} {:>7} {}", percent(share), bar(share.unwrap_or(0.0), 40))?;
        }
        let c = &self.counters;
        writeln!(
            f,
            "  switches    {} given up, {} taken away; {} migrations",
            self.rate(c.voluntary_switches),
            self.rate(c.involuntary_switches),
            self.rate(c.migrations)
        )?;
        if let (Some(misses), Some(references)) = (c.cache_misses, c.cache_references) {
            let ratio = (references > 0).then(|| misses as f64 / references as f64);
            writeln!(f, "  cache       {misses} misses of {references} references ({})", percent(ratio))?;
        }
        for r in &self.regions {
            writeln!(f, "  teams of {:<3} {} parallel regions in {:.2} s", r.size, r.count, r.time_s)?;
        }
        self.deeds.iter().try_for_each(|deed| writeln!(f, "{deed}"))?;
        if self.deeds.is_empty() && self.policy != "none" {
            writeln!(f, "  nothing was changed: no policy saw a reason to")?;
        }
        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        let own = if self.wall_s > 0.0 { self.watching_cpu_s / self.wall_s * 100.0 } else { 0.0 };
        writeln!(f, "  watching    took {own:.2}% of one CPU")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_is_as_long_as_the_share() {
        assert_eq!((bar(0.0, 4), bar(0.5, 4), bar(9.0, 4)), (String::new(), "██".into(), "████".into()));
        assert_eq!(bar(f64::NAN, 4), "");
    }

    #[test]
    fn report_of_nothing_seen_prints() {
        let frame = Frame {
            command: vec!["/bin/true".into()],
            ended: Ended::Exit(0),
            policy: "none".into(),
            start_ns: 0,
            wall_s: 0.0,
            cpu_user_s: 0.0,
            cpu_system_s: 0.0,
            cpus: 2,
            watching_cpu_s: 0.0,
            notes: vec![],
        };
        let report = Report::new(frame, &Tally::default(), ProgramId(0));
        assert!(report.to_string().starts_with("corebeat: true: 0.00 s, exit 0"));
        assert!(serde_json::to_string(&report).unwrap().contains(r#""ended":{"exit":0}"#));
    }
}
