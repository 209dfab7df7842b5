//! Record of the settings that a machine refuses.

use corebeat_machine::AppliedAction;

/// Outcomes of one kind of setting for one program. A policy requests a refused setting only once:
/// the report then has the reason once, and the policy does not count on the setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Support {
    was_accepted: bool,
    was_refused: bool,
    had_effect: bool,
}

impl Support {
    /// Records the outcome of a request.
    pub(crate) fn record(&mut self, applied: &AppliedAction) {
        match applied.outcome {
            Ok(effect) => {
                self.was_accepted = true;
                self.had_effect |= effect.has_changed();
            }
            Err(_) => self.was_refused = true,
        }
    }

    /// Returns whether the setting may be requested.
    pub(crate) fn may_request(self) -> bool {
        !self.was_refused
    }

    /// Returns whether the machine has accepted the setting.
    pub(crate) fn was_accepted(self) -> bool {
        self.was_accepted
    }

    /// Returns whether the setting has changed anything.
    pub(crate) fn had_effect(self) -> bool {
        self.had_effect
    }

    /// Returns whether the setting may be in effect, so that it has to be undone.
    pub(crate) fn may_be_set(self) -> bool {
        self.was_accepted || !self.was_refused
    }
}
