//! Several programs at once, from their starts to their ends: what `run --policy coscheduling` and `run --policy adapt` have in common.

use crate::failure::Failure;
use crate::report::Ended;
use crate::session::{now_ns, restore_killed};
use corebeat_linux::{Launch, LinuxMachine, Signals, Started};
use corebeat_machine::{Machine, ProgramId, Snapshot};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::process::ExitStatus;
use std::time::Duration;

/// Programs that are started together.
pub(crate) struct Several {
    pub(crate) machine: LinuxMachine,
    signals: Signals,
    members: Vec<Member>,
    start_ns: u64,
    notes: Vec<String>,
}

struct Member {
    command: Vec<String>,
    id: ProgramId,
    started: Started,
    ended: Option<(ExitStatus, f64)>,
}

/// How one of them ended.
#[derive(Debug, Serialize)]
pub(crate) struct End {
    command: Vec<String>,
    ended: Ended,
    wall_s: f64,
}

/// How all of them ended.
pub(crate) struct Ends {
    /// Of the first that failed, else of the last.
    pub(crate) status: ExitStatus,
    pub(crate) programs: Vec<(ProgramId, End)>,
    pub(crate) start_ns: u64,
    pub(crate) wall_s: f64,
    pub(crate) notes: Vec<String>,
}

impl Several {
    /// Makes the programs of a command line, and holds each before its first instruction.
    ///
    /// # Errors
    /// Where a program is empty, or no process can be made. Those that were made end then.
    pub(crate) fn hold(machine: LinuxMachine, command: &[OsString]) -> Result<Several, Failure> {
        let notes = restore_killed();
        let signals = Signals::new().map_err(Failure::own)?;
        let mut several = Several { machine, signals, members: vec![], start_ns: now_ns(), notes };
        for part in command.split(|word| word == "--") {
            let Some((program, args)) = part.split_first() else {
                return Err(Failure::usage("an empty program; write -- A -- B, each with its arguments"));
            };
            let started = Launch::new(program, args.iter().cloned()).start()?;
            several.members.push(Member {
                command: part.iter().map(|c| c.to_string_lossy().into_owned()).collect(),
                id: several.machine.watch_launch(&started)?,
                started,
                ended: None,
            });
        }
        Ok(several)
    }

    /// The programs, in the order of the command line.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ProgramId> {
        self.members.iter().map(|m| m.id)
    }

    /// Runs them to their ends. After each period, and when one ends, `steer` is told what was seen, and whether anything may still be
    /// done. Once it returns false, or somebody asks for the end, all is put back as it was.
    ///
    /// # Errors
    /// Where one cannot be started: then the others are killed. Where they cannot be watched: then they go on.
    pub(crate) fn run(
        &mut self,
        period: Duration,
        glance: Duration,
        mut steer: impl FnMut(&mut LinuxMachine, Snapshot, bool) -> bool,
    ) -> Result<(), Failure> {
        self.start_ns = now_ns();
        // What is seen first begins here.
        self.machine.observe()?;
        let mut started: Vec<&mut Started> = self.members.iter_mut().map(|m| &mut m.started).collect();
        if let Err(e) = Started::release_all(&mut started) {
            // Nobody would watch those that have just begun.
            self.ids().for_each(|id| self.machine.signal(id, libc::SIGKILL));
            return Err(e.into());
        }
        let mut steers = true;
        while self.members.iter().any(|m| m.ended.is_none()) {
            self.attend(now_ns() + period.as_nanos() as u64, glance)?;
            if steers && self.signals.asked_to_end().is_some() {
                // Who is frozen hears nothing.
                self.machine.restore();
                steers = false;
            }
            let seen = self.machine.observe()?;
            if !steer(&mut self.machine, seen, steers) && steers {
                self.machine.restore();
                steers = false;
            }
        }
        Ok(())
    }

    /// Waits for the next look, or the end of a program, or a signal that asks for it.
    fn attend(&mut self, until_ns: u64, glance: Duration) -> Result<(), Failure> {
        loop {
            let left = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
            let mut here: Vec<&mut Member> = self.members.iter_mut().filter(|m| m.ended.is_none()).collect();
            let mut programs: Vec<&mut Started> = here.iter_mut().map(|m| &mut m.started).collect();
            let ended = Started::attend_all(&mut programs, &self.signals, left.min(glance))?;
            let has_ended = ended.iter().any(Option::is_some);
            for (member, status) in here.into_iter().zip(ended) {
                member.ended = status.map(|status| (status, seconds(now_ns() - self.start_ns)));
            }
            if has_ended || self.signals.asked_to_end().is_some() || now_ns() >= until_ns {
                return Ok(());
            }
            self.machine.glance();
        }
    }

    /// Puts everything back as it was, and says how they ended.
    ///
    /// # Errors
    /// Where that was lost.
    pub(crate) fn end(mut self) -> Result<Ends, Failure> {
        let mut notes = self.notes;
        notes.extend(self.machine.restore().left.into_iter().map(|l| format!("left alone: {l}")));
        notes.extend(self.machine.notes());
        let statuses = || self.members.iter().filter_map(|m| m.ended).map(|(status, _)| status);
        let status = statuses().find(|s| !s.success()).or_else(|| statuses().next_back());
        let status = status.ok_or_else(|| Failure::own("the programs' exit statuses were lost"))?;
        let wall_s = seconds(now_ns() - self.start_ns);
        let end = |m: Member| {
            let (status, wall_s) = m.ended?;
            Some((m.id, End { command: m.command, ended: status.into(), wall_s }))
        };
        let programs = self.members.into_iter().filter_map(end).collect();
        Ok(Ends { status, programs, start_ns: self.start_ns, wall_s, notes })
    }
}

impl End {
    /// The program's name, with its first arguments: several of one name are told apart by that.
    pub(crate) fn name(&self) -> String {
        let name = self.command.first().map_or("", |c| c.rsplit('/').next().unwrap_or(c));
        let rest = self.command.iter().skip(1).take(2).map(String::as_str);
        [name].into_iter().chain(rest).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {}: {:.2} s, ", self.name(), self.wall_s)?;
        match self.ended {
            Ended::Exit(code) => write!(f, "exit {code}"),
            Ended::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
