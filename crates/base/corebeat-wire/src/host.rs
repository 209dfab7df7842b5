//! The interface `io.corebeat.Host`: what its methods take and give.
//!
//! The names and types are those of the interface's [text](DESCRIPTION), which also says what they mean.

use serde::{Deserialize, Serialize};

/// The interface's name.
pub const INTERFACE: &str = "io.corebeat.Host";
/// The interface's text.
pub const DESCRIPTION: &str = include_str!("io.corebeat.Host.varlink");

/// How fast a group is to beat.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// At least so many beats a second.
    pub rate_min: Option<f64>,
    /// At most so many beats a second.
    pub rate_max: Option<f64>,
    /// Over how many samples the rate is averaged.
    pub window: u32,
    /// Keep the group below `rate_max` even where nobody else wants its CPUs.
    pub hold: bool,
}

/// A group as [`ListGroups`](LIST_GROUPS) tells it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The user whose group it is.
    pub owner: u32,
    /// Its number.
    pub group: u32,
    /// What other users may do, as a file's mode: 0600, and 4 to look on, 2 to beat.
    pub mode: u32,
    /// Tasks that beat in it.
    pub members: u32,
    /// Beats so far.
    pub beats: u64,
    /// Beats a second since the group began (Sironi et al., Metronome, 2012, equation 6).
    pub global_rate: f64,
    /// Beats a second over the window (equation 7).
    pub window_rate: f64,
    /// What it is to reach.
    pub goal: Goal,
    /// The processes that beat in it.
    pub pids: Vec<i32>,
}

/// Which group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupId {
    /// The user whose group it is.
    pub owner: u32,
    /// Its number.
    pub group: u32,
}

/// How one takes part in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// One beats, and sets goals.
    Producer,
    /// One looks on.
    Consumer,
}

/// Where CPUs are wanted, on machines with several memory nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numa {
    /// Over as many nodes as possible.
    Scatter,
    /// On as few nodes as possible.
    Compact,
}

/// The method `Attach`.
pub const ATTACH: &str = "io.corebeat.Host.Attach";
/// What [`ATTACH`] takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The group's number.
    pub group: u32,
    /// The group's user; oneself if it is not given.
    pub owner: Option<u32>,
    /// What other users may do from now on, as a file's mode: 0600, and 4 to look on, 2 to beat.
    pub mode: Option<u32>,
    /// How one takes part.
    pub role: Role,
}
/// What [`ATTACH`] gives, together with the descriptor of the status page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// From one sample of the beats to the next, in nanoseconds.
    pub period_ns: u64,
}

/// The method `Detach`.
pub const DETACH: &str = "io.corebeat.Host.Detach";
/// What [`DETACH`] takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Detach {
    /// The group's number.
    pub group: u32,
    /// The group's user; oneself if it is not given.
    pub owner: Option<u32>,
    /// How one took part.
    pub role: Role,
}

/// The method `SetGoal`.
pub const SET_GOAL: &str = "io.corebeat.Host.SetGoal";
/// What [`SET_GOAL`] takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetGoal {
    /// The group's number.
    pub group: u32,
    /// The group's user; oneself if it is not given.
    pub owner: Option<u32>,
    /// What to reach from now on.
    pub goal: Goal,
}

/// The method `ListGroups`.
pub const LIST_GROUPS: &str = "io.corebeat.Host.ListGroups";
/// What [`LIST_GROUPS`] takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListGroups {
    /// Only those that follow this one, by owner and number.
    pub after: Option<GroupId>,
}
/// What [`LIST_GROUPS`] gives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    /// Those that one may look at, by owner and number: as many as an answer holds.
    pub groups: Vec<Group>,
    /// Where there are more: ask for those after this one.
    pub next: Option<GroupId>,
}

/// The method `Invade`.
pub const INVADE: &str = "io.corebeat.Host.Invade";
/// What [`INVADE`] takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invade {
    /// The claim that is to have this from now on; a new one, where there is none.
    pub claim: Option<u64>,
    /// At least so many CPUs, if others can spare them.
    pub min: u32,
    /// At most so many CPUs.
    pub max: u32,
    /// Where.
    pub numa: Option<Numa>,
    /// Only these CPUs will do.
    pub within: Option<Vec<u32>>,
    /// Rather these, where all else is equal.
    pub prefer: Option<Vec<u32>>,
}
/// What [`INVADE`] gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invaded {
    /// The claim's number.
    pub claim: u64,
    /// Its CPUs; fewer than asked for where no more are free.
    pub cpus: Vec<u32>,
}

/// The method `Retreat`.
pub const RETREAT: &str = "io.corebeat.Host.Retreat";
/// What [`RETREAT`] takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retreat {
    /// The claim's number.
    pub claim: u64,
    /// Keep so many. Neither this nor the other: give all back, and end the claim.
    pub to: Option<u32>,
    /// Give these back.
    pub cpus: Option<Vec<u32>>,
}
/// What [`RETREAT`] gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retreated {
    /// What is left of the claim. Where nothing is, the claim has ended.
    pub cpus: Vec<u32>,
}

/// The method `WatchClaims`, which is called with `more`. Its first answer, of claim 0, says that it has begun.
pub const WATCH_CLAIMS: &str = "io.corebeat.Host.WatchClaims";
/// What [`WATCH_CLAIMS`] gives, again and again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimChange {
    /// Which claim.
    pub claim: u64,
    /// The CPUs that it keeps, or is to keep.
    pub cpus: Vec<u32>,
    /// The others are to be given back within so many milliseconds; where nothing stands here they are gone already.
    pub deadline_ms: Option<u64>,
}

/// The method `ListClaims`.
pub const LIST_CLAIMS: &str = "io.corebeat.Host.ListClaims";
/// What [`LIST_CLAIMS`] gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Those that one may see.
    pub claims: Vec<Claim>,
}
/// A claim as [`LIST_CLAIMS`] tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Its number.
    pub claim: u64,
    /// Whose it is.
    pub pid: i32,
    /// Its CPUs.
    pub cpus: Vec<u32>,
    /// Which of them it is to keep, if it is asked to give the others back.
    pub keep: Option<Vec<u32>>,
}

/// The method `Status`.
pub const STATUS: &str = "io.corebeat.Host.Status";
/// What [`STATUS`] gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// From one sample of the beats to the next, in nanoseconds.
    pub period_ns: u64,
    /// Whether it acts on programs. It does not while it cannot keep up, nor where it has found that it can do nothing.
    pub steering: bool,
    /// Connections.
    pub clients: u32,
    /// Programs that are watched.
    pub programs: u32,
    /// Groups of heartbeats.
    pub groups: u32,
    /// Claims of CPUs.
    pub claims: u32,
    /// What went wrong, or cannot be seen here; one line each.
    pub notes: Vec<String>,
}

/// What methods take, or give, that take or give nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}
