//! Fixed slices: the batch class and a time slice of a program, as far as a machine accepts them.

use crate::refusal::Support;
use corebeat_machine::{Action, AppliedAction, Class, ProgramId, Target};

/// A slice, and whether the threads are in the batch class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fixed {
    /// Slice in microseconds.
    pub(crate) slice_us: u32,
    /// Whether the class is [`Class::Batch`], or else the program's own.
    pub(crate) is_batch: bool,
}

impl Fixed {
    /// Returns a slice in microseconds with the batch class.
    pub(crate) fn batch(slice_us: u32) -> Fixed {
        Fixed { slice_us, is_batch: true }
    }
}

/// The fixed slice of one program, and the outcomes of the requests for it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FixedSlice {
    /// The slice in effect; `None` for the program's own class and slice.
    current: Option<Fixed>,
    class: Support,
    slice: Support,
}

impl FixedSlice {
    /// Returns whether a slice is in effect.
    pub(crate) fn is_set(self) -> bool {
        self.current.is_some()
    }

    /// Returns whether the machine may accept a slice.
    pub(crate) fn may_request_slice(self) -> bool {
        self.slice.may_request()
    }

    /// Returns whether the machine may accept the class or the slice.
    pub(crate) fn may_request(self) -> bool {
        self.class.may_request() || self.slice.may_request()
    }

    /// Returns whether the machine has accepted settings, and none of them changed anything: the
    /// threads have the settings already, or their class has no slices.
    pub(crate) fn is_ineffective(self) -> bool {
        let settings = [self.class, self.slice];
        settings.iter().any(|s| s.was_accepted()) && !settings.iter().any(|s| s.had_effect())
    }

    /// Returns the actions that set a slice, or restore the program's own class and slice. Refused
    /// settings are left out, and so are requests after an ineffective one.
    pub(crate) fn set(&mut self, program: ProgramId, fixed: Option<Fixed>) -> Vec<Action> {
        let target = Target::Program(program);
        let fixed = fixed.filter(|_| !self.is_ineffective());
        let before = std::mem::replace(&mut self.current, fixed);
        let is_possible = |support: Support, is_set: bool| match is_set {
            true => support.may_request(),
            false => support.may_be_set(),
        };
        let is_batch = |fixed: Option<Fixed>| fixed.is_some_and(|fixed| fixed.is_batch);
        let slice_us = |fixed: Option<Fixed>| fixed.map(|fixed| fixed.slice_us);
        let mut actions = Vec::new();
        let batch = is_batch(fixed);
        if is_batch(before) != batch && is_possible(self.class, batch) {
            actions.push(Action::SetClass { target, class: batch.then_some(Class::Batch) });
        }
        if slice_us(before) != slice_us(fixed) && is_possible(self.slice, fixed.is_some()) {
            actions.push(Action::SetSlice { target, slice_us: slice_us(fixed) });
        }
        actions
    }

    /// Records the outcome of a request; other actions have no effect.
    pub(crate) fn record(&mut self, applied: &AppliedAction) {
        match applied.decision.action {
            Action::SetClass { class: Some(_), .. } => self.class.record(applied),
            Action::SetSlice { slice_us: Some(_), .. } => self.slice.record(applied),
            _ => {}
        }
    }
}
