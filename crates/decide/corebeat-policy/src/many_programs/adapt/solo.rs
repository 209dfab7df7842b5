//! Solo runs: programs that start and end, and their behaviour alone.

use super::choice::distribute;
use super::state::{State, Watch, differ};
use super::{Adapt, Gauge, Usage};
use corebeat_machine::{Decision, ProgramId, ProgramSample, Snapshot};
use std::collections::VecDeque;

/// Programs that run alone, one after the other.
#[derive(Debug, Clone)]
pub(super) struct SoloRun {
    now: ProgramId,
    rest: VecDeque<ProgramId>,
    gauge: Gauge,
    span_ns: u64,
    /// Reason for the solo runs.
    why: String,
}

impl Adapt {
    /// Removes ended programs. The remaining programs share the cores of their core sets.
    pub(super) fn remove_ended(&mut self, snapshot: &Snapshot, decisions: &mut Vec<Decision>) {
        let is_present =
            |id: &ProgramId| snapshot.program(*id).is_some_and(|p| !p.threads.is_empty());
        let ended: Vec<ProgramId> =
            self.programs.keys().copied().filter(|id| !is_present(id)).collect();
        if ended.is_empty() {
            return;
        }
        self.leave_other();
        for id in &ended {
            let freed = self.sets.remove(id);
            self.programs.remove(id);
            distribute(freed.unwrap_or(0), &mut self.sets);
            if let Some(solo_run) = &mut self.solo_run {
                solo_run.rest.retain(|other| other != id);
            }
            self.watch.new.retain(|other| other != id);
        }
        self.reset();
        if self.programs.len() < 2 {
            self.sets.clear();
            self.solo_run = None;
            self.thaw(decisions, "the program is the only one left");
        }
        if self.solo_run.is_none() {
            self.apply(decisions, "a program ended");
        } else if self.solo_run.as_ref().is_some_and(|solo_run| ended.contains(&solo_run.now)) {
            self.next_solo(decisions);
        }
    }

    /// Discards all results and observations after programs have changed.
    pub(super) fn reset(&mut self) {
        self.discard_results();
        (self.every, self.left) = (1, 0);
        self.watch = Watch { new: std::mem::take(&mut self.watch.new), ..Watch::default() };
        self.programs.values_mut().for_each(State::forget);
    }

    pub(super) fn discard_results(&mut self) {
        self.tried.clear();
        self.rejected.clear();
        self.kept = None;
        self.accuracy = [1.0; 2];
    }

    /// Adds new programs. A new program first runs beside the others: if it is CPU-intensive with
    /// low contention, the configuration stays.
    pub(super) fn add_new(&mut self, snapshot: &Snapshot, decisions: &mut Vec<Decision>) {
        let is_new =
            |p: &&ProgramSample| !p.threads.is_empty() && !self.programs.contains_key(&p.id);
        let new: Vec<&ProgramSample> = snapshot.programs.iter().filter(is_new).collect();
        if new.is_empty() {
            return;
        }
        self.leave_other();
        self.reset();
        for p in &new {
            let alone = self.solo.get(&p.name).copied();
            self.programs.insert(p.id, State { alone, ..State::default() });
        }
        if let Some(solo_run) = &mut self.solo_run {
            solo_run
                .rest
                .extend(new.iter().map(|p| p.id).filter(|id| self.programs[id].alone.is_none()));
            let now = solo_run.now;
            self.run_solo(now, decisions);
        } else {
            self.watch.new.extend(new.iter().map(|p| p.id));
        }
    }

    /// Decides about new programs after one snapshot of them.
    pub(super) fn admit(&mut self, snapshot: &Snapshot, decisions: &mut Vec<Decision>) {
        self.watch.new_ns += snapshot.span_ns;
        let is_due = self.watch.new_ns >= self.solo_ns && self.programs.len() > 1;
        if self.watch.new.is_empty() || !is_due {
            return;
        }
        let why = "a program started".to_owned();
        let new = std::mem::take(&mut self.watch.new);
        let usage = |id: &ProgramId| {
            let state = &self.programs[id];
            state.alone.unwrap_or_else(|| state.gauge.usage())
        };
        let all: Vec<Usage> = self.programs.keys().map(usage).collect();
        // Programs that only compute, with more threads than cores, may still gain by core sets.
        let is_crowd = all.iter().all(|usage| self.is_easy(usage)) && !self.are_easy(&all);
        if new.iter().all(|id| self.is_easy(&usage(id))) && !is_crowd {
            return self.apply(decisions, &why);
        }
        let unknown = self.programs.iter().filter(|(_, state)| state.alone.is_none());
        let ids: VecDeque<ProgramId> = unknown.map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return self.choose(decisions, &why);
        }
        self.profile(ids, why, decisions);
    }

    pub(super) fn profile(
        &mut self,
        mut rest: VecDeque<ProgramId>,
        why: String,
        decisions: &mut Vec<Decision>,
    ) {
        // Without freezing, programs cannot run alone.
        let Some(now) = rest.pop_front().filter(|_| !self.is_freezing_refused) else {
            return self.pin(decisions, &why);
        };
        self.solo_run = Some(SoloRun { now, rest, gauge: Gauge::default(), span_ns: 0, why });
        self.run_solo(now, decisions);
    }

    /// Starts the next solo run, or chooses a configuration after the last one.
    pub(super) fn next_solo(&mut self, decisions: &mut Vec<Decision>) {
        let Some(solo_run) = &mut self.solo_run else { return };
        if let Some(next) = solo_run.rest.pop_front() {
            (solo_run.now, solo_run.gauge, solo_run.span_ns) = (next, Gauge::default(), 0);
            return self.run_solo(next, decisions);
        }
        let why = self.solo_run.take().map(|solo_run| solo_run.why);
        self.thaw(decisions, "all solo runs have ended");
        self.choose(decisions, &why.unwrap_or_default());
    }

    /// Lets one program run on all cores and freezes the others.
    pub(super) fn run_solo(&mut self, now: ProgramId, decisions: &mut Vec<Decision>) {
        for (&id, state) in &mut self.programs {
            state.freeze(id, id != now, decisions, "another program has a solo run");
        }
        if let Some(state) = self.programs.get_mut(&now) {
            state.pin(now, None, decisions, "the program has a solo run");
        }
    }

    pub(super) fn thaw(&mut self, decisions: &mut Vec<Decision>, why: &str) {
        for (&id, state) in &mut self.programs {
            state.freeze(id, false, decisions, why);
        }
    }

    /// Adds one snapshot of a program in its solo run.
    pub(super) fn continue_solo(&mut self, snapshot: &Snapshot, decisions: &mut Vec<Decision>) {
        let Some(solo_run) = &mut self.solo_run else { return };
        let Some(p) = snapshot.program(solo_run.now) else { return };
        solo_run.gauge.add(p);
        solo_run.span_ns += snapshot.span_ns;
        if solo_run.span_ns < self.solo_ns {
            return;
        }
        let usage = solo_run.gauge.usage();
        let before =
            self.programs.get_mut(&solo_run.now).and_then(|state| state.alone.replace(usage));
        if before.is_some_and(|before| differ(&before, &usage, self.band)) {
            self.discard_results();
            (self.every, self.left) = (1, 1);
        }
        self.next_solo(decisions);
    }
}
