//! Observation of programs in a configuration.

use super::state::{Progress, State, Trial, Vector};
use super::{Adapt, Kind, key};
use corebeat_machine::{Decision, Snapshot};

impl Adapt {
    /// Applies the settings after the observation without them.
    pub(super) fn start_trial(&mut self, decisions: &mut Vec<Decision>) {
        self.watch.trial = Trial::With(self.progress());
        self.apply_settings(self.settings(), decisions, "the settings are on trial");
    }

    /// The work of all programs since the last change.
    pub(super) fn progress(&self) -> Progress {
        self.programs.iter().map(|(id, s)| (*id, (s.work, s.part()))).collect()
    }

    /// The relative change of progress: of the sum over all programs of their shares of the speed
    /// that they have alone.
    fn gain_over(&self, before: &Progress) -> f64 {
        let (mut sum, mut all) = (0.0, 0.0);
        for (id, state) in &self.programs {
            let Some((work, part)) = before.get(id) else { continue };
            let Some(gain) = state.work.gain_over(work) else { continue };
            sum += part * gain;
            all += part;
        }
        if all > 0.0 { sum / all } else { 0.0 }
    }

    /// Undoes the settings on trial, if progress with them was worse. Returns whether it did.
    pub(super) fn reject_trial(&mut self, decisions: &mut Vec<Decision>) -> bool {
        let Trial::With(before) = std::mem::take(&mut self.watch.trial) else { return false };
        let gain = self.gain_over(&before);
        if gain >= -self.margin {
            return false;
        }
        self.rejected.insert(key(&self.sets));
        self.apply_settings(
            self.settings(),
            decisions,
            &format!("the settings changed progress by {:+.1}%", gain * 100.0),
        );
        true
    }

    /// Keeps the configuration on trial if progress is better, or returns to the one before.
    fn end_other(&mut self, decisions: &mut Vec<Decision>) {
        let Trial::Other(before, sets) = std::mem::take(&mut self.watch.trial) else { return };
        let gain = self.gain_over(&before);
        if gain > self.margin {
            self.kept = Some(Kind::of(&self.sets));
            // The prediction is that of the other kind.
            (self.watch.predicted, self.watch.short) = (None, 0);
            return self.restart();
        }
        self.sets = sets;
        let why =
            format!("the other kind of configuration changed progress by {:+.1}%", gain * 100.0);
        self.move_to(decisions, &why);
    }

    /// Observes all programs in one snapshot.
    pub(super) fn watch(&mut self, snapshot: &Snapshot, decisions: &mut Vec<Decision>) {
        for p in &snapshot.programs {
            let Some(state) = self.programs.get_mut(&p.id) else { continue };
            state.gauge.add(p);
            state.work.add(p, snapshot);
            state.used_ns +=
                p.cpus(snapshot.span_ns, |s| s.running()).unwrap_or(0.0) * snapshot.span_ns as f64;
        }
        self.watch.span_ns += snapshot.span_ns;
        let few = self.programs.len() < 2;
        if few && self.watch.span_ns >= self.solo_ns {
            // A single program needs no solo run.
            self.programs.values_mut().for_each(|state| state.alone = Some(state.gauge.usage()));
        }
        if !self.watch.new.is_empty() && !few {
            return;
        }
        if let Trial::Without = self.watch.trial {
            if self.watch.span_ns >= self.trial_ns {
                self.start_trial(decisions);
            }
            return;
        }
        if let Trial::Other(..) = self.watch.trial {
            if self.watch.span_ns >= self.trial_ns {
                self.end_other(decisions);
            }
            return;
        }
        if self.watch.span_ns < self.interval_ns {
            return;
        }
        let span_ns = std::mem::take(&mut self.watch.span_ns) as f64;
        for (id, state) in &mut self.programs {
            let usage = std::mem::take(&mut state.gauge).usage();
            let cores = self
                .sets
                .get(id)
                .map(|_| state.cpus.as_ref().map_or(0, |cpus| cpus.iter().count()));
            let used_ns = std::mem::take(&mut state.used_ns);
            let used = cores.filter(|n| *n > 0).map(|n| used_ns / span_ns / n as f64);
            state.first.get_or_insert(usage);
            state.vectors.push_back(Vector { usage, used });
            if state.vectors.len() > 2 {
                state.vectors.pop_front();
            }
        }
        self.left = self.left.saturating_sub(1);
        if few {
            return;
        }
        let reason = self.reason();
        if self.reject_trial(decisions) || self.try_other(decisions) {
            return;
        }
        // If all programs are CPU-intensive with low contention, they share all cores.
        let is_easy = |state: &State| {
            let now = state.vectors.back().is_none_or(|v| self.is_easy(&v.usage));
            now && state.alone.is_none_or(|alone| self.is_easy(&alone))
        };
        let is_worth_it = self.left == 0 && !self.programs.values().all(is_easy);
        let Some(why) = reason.filter(|_| is_worth_it) else { return };
        self.every = self.every.saturating_mul(2).min(self.rest_max);
        self.left = self.every;
        let is_unknown = self.programs.values().any(|state| state.alone.is_none());
        if is_unknown || self.programs.values().any(|state| state.has_changed(self.band)) {
            let all = self.programs.keys().copied().collect();
            self.profile(all, why, decisions);
        } else {
            self.choose(decisions, &why);
        }
    }

    /// Returns a reason to reconsider the configuration (section 6.2.3): the three conditions in
    /// their order.
    pub(super) fn reason(&mut self) -> Option<String> {
        let now: Vec<Vector> =
            self.programs.values().filter_map(|state| state.vectors.back().copied()).collect();
        let actual: Option<Vec<f64>> = now.iter().map(|vector| vector.usage.usr).collect();
        let actual = actual.map(|shares| shares.iter().sum::<f64>() / shares.len() as f64);
        if let Some(actual) = actual {
            self.tried.insert(key(&self.sets), actual);
        }
        let short = self.watch.predicted.zip(actual).is_some_and(|(p, a)| p > a + self.gamma);
        self.watch.short = if short { self.watch.short + 1 } else { 0 };
        let used: Vec<f64> = now.iter().filter_map(|vector| vector.used).collect();
        let least = used.iter().copied().reduce(f64::min);
        let most = used.iter().copied().reduce(f64::max);
        if let Some((least, most)) =
            least.zip(most).filter(|(least, most)| *least < most - self.alpha)
        {
            let (least, most) = (least * 100.0, most * 100.0);
            return Some(format!("one core set is used to {least:.0}%, another to {most:.0}%"));
        }
        let fell = |state: &State| {
            let mut vectors = state.vectors.iter();
            let (before, now) = (vectors.next()?.usage.usr?, vectors.next()?.usage.usr?);
            (now < before - self.beta)
                .then(|| format!("from {:.0}% to {:.0}%", before * 100.0, now * 100.0))
        };
        if let Some(fell) = self.programs.values().find_map(fell) {
            return Some(format!("the share of time in user mode fell {fell}"));
        }
        (self.watch.short >= 2)
            .then(|| "the share of time in user mode is lower than predicted".to_owned())
    }
}
