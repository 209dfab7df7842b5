//! Which groups there are, whose they are, and who may do what with them.

use crate::member::{Consumer, Producer};
use crate::monitor::PERIOD;
use crate::{Error, session};
use corebeat_wire::host;
use std::fmt;
use std::time::Duration;

/// A group to attach to, and how. Numbers are for each user to choose.
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing happens until `produce` or `consume`"]
pub struct Group {
    pub(crate) number: u32,
    pub(crate) owner: Option<u32>,
    pub(crate) mode: Option<Mode>,
    pub(crate) period: Duration,
}

impl Group {
    /// This user's group of this number, with the mode that it has, or [`Mode::OWN`].
    pub fn new(number: u32) -> Group {
        Group { number, owner: None, mode: None, period: PERIOD }
    }

    /// Another user's group. Only root can make one.
    pub fn owner(self, uid: u32) -> Group {
        Group { owner: Some(uid), ..self }
    }

    /// What other users may do; the owner and root can say. It counts when a process attaches first, in each role.
    pub fn mode(self, mode: Mode) -> Group {
        Group { mode: Some(mode), ..self }
    }

    /// How often this process measures where no daemon does it, [`PERIOD_MIN`](crate::PERIOD_MIN) to
    /// [`PERIOD_MAX`](crate::PERIOD_MAX); [`PERIOD`] else. The shortest that was asked for holds until all have detached.
    pub fn period(self, period: Duration) -> Group {
        Group { period, ..self }
    }

    /// Attaches this thread, to beat.
    ///
    /// # Errors
    /// [`Error::AlreadyAttached`] if it beats for a group; [`Error::NotAllowed`] and [`Error::NoSuchGroup`] of others' groups;
    /// [`Error::TooMany`] groups, processes or threads; [`Error::BadPeriod`]; what the system or the daemon refuses.
    pub fn produce(self) -> Result<Producer, Error> {
        Producer::attach(session::current(), &self)
    }

    /// Attaches, to see what is measured.
    ///
    /// # Errors
    /// As [`produce`](Group::produce), but a thread may consume of as many groups as it likes.
    pub fn consume(self) -> Result<Consumer, Error> {
        Consumer::attach(session::current(), &self)
    }
}

/// A group: a number, for each user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    /// The user that it belongs to.
    pub owner: u32,
    /// Its number, which the owner chooses.
    pub number: u32,
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {} of user {}", self.number, self.owner)
    }
}

/// What one attaches to a group for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// To beat, and to set the goal.
    Producer,
    /// To read what was measured.
    Consumer,
}

impl From<Role> for host::Role {
    fn from(role: Role) -> host::Role {
        match role {
            Role::Producer => host::Role::Producer,
            Role::Consumer => host::Role::Consumer,
        }
    }
}

impl From<host::Role> for Role {
    fn from(role: host::Role) -> Role {
        match role {
            host::Role::Producer => Role::Producer,
            host::Role::Consumer => Role::Consumer,
        }
    }
}

/// What users other than the owner may do: bits as those of files, of which the owner has all, root too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode(u32);

impl Mode {
    /// `0o600`: others may do nothing.
    pub const OWN: Mode = Mode(0o600);
    /// `0o604`: others may watch.
    pub const WATCHED: Mode = Mode(0o604);
    /// `0o606`: others may watch and beat.
    pub const OPEN: Mode = Mode(0o606);

    /// From bits.
    ///
    /// # Errors
    /// [`Error::BadMode`], unless they are `0o600`, and perhaps `0o4` (others may watch) and `0o2` (others may beat).
    pub fn from_bits(bits: u32) -> Result<Mode, Error> {
        if bits & !0o6 == 0o600 { Ok(Mode(bits)) } else { Err(Error::BadMode(bits)) }
    }

    /// The bits.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether others may do this.
    pub fn lets_others(self, role: Role) -> bool {
        let bit = match role {
            Role::Producer => 0o2,
            Role::Consumer => 0o4,
        };
        self.0 & bit != 0
    }
}

impl Default for Mode {
    fn default() -> Self {
        Mode::OWN
    }
}

/// Who asks: what the system says of a process, not the process itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its number.
    pub pid: u32,
}

impl Peer {
    /// Whether this is as good as the group's owner.
    pub(crate) fn owns(&self, group: GroupId) -> bool {
        self.uid == group.owner || self.uid == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_has_bits_for_others_only() {
        for (bits, watch, beat) in
            [(0o600, false, false), (0o604, true, false), (0o602, false, true), (0o606, true, true)]
        {
            let mode = Mode::from_bits(bits).unwrap();
            assert_eq!((mode.lets_others(Role::Consumer), mode.lets_others(Role::Producer)), (watch, beat));
            assert_eq!(mode.bits(), bits);
        }
        for bits in [0, 0o6, 0o644, 0o601, 0o1600, u32::MAX] {
            assert!(matches!(Mode::from_bits(bits), Err(Error::BadMode(_))), "{bits:o}");
        }
    }
}
