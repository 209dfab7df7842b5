//! The interface `io.corebeat.Host`: parameters and results of its methods.
//!
//! The names and types are those of the [text](DESCRIPTION) of the interface, which also explains
//! them.

use serde::{Deserialize, Serialize};

/// Name of the interface.
pub const INTERFACE: &str = "io.corebeat.Host";
/// Text of the interface.
pub const DESCRIPTION: &str = include_str!("io.corebeat.Host.varlink");

/// Target rate of a group.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// Minimum in beats per second.
    pub rate_min: Option<f64>,
    /// Maximum in beats per second.
    pub rate_max: Option<f64>,
    /// Number of samples over which the rate is averaged.
    pub window: u32,
    /// Whether the group is kept below `rate_max` even if no other program needs its CPUs.
    pub hold: bool,
}

/// A group in the result of [`ListGroups`](LIST_GROUPS).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// User ID of the owner.
    pub owner: u32,
    /// Its number.
    pub group: u32,
    /// Permissions of other users, like a file's mode: 0600, plus 4 to watch, plus 2 to beat.
    pub mode: u32,
    /// Number of threads that beat.
    pub members: u32,
    /// Total number of beats.
    pub beats: u64,
    /// Beats per second since the group was created (Sironi et al., Metronome, 2012, equation 6).
    pub global_rate: f64,
    /// Beats per second over the window (equation 7).
    pub window_rate: f64,
    /// Target rate.
    pub goal: Goal,
    /// IDs of the processes that beat.
    pub pids: Vec<i32>,
}

/// The identity of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupId {
    /// User ID of the owner.
    pub owner: u32,
    /// Its number.
    pub group: u32,
}

/// The role of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Beats and sets goals.
    Producer,
    /// Reads the measurements.
    Consumer,
}

/// Placement of CPUs on machines with several memory nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numa {
    /// On as many nodes as possible.
    Scatter,
    /// On as few nodes as possible.
    Compact,
}

/// The method `Attach`.
pub const ATTACH: &str = "io.corebeat.Host.Attach";
/// Parameters of [`ATTACH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// Number of the group.
    pub group: u32,
    /// User ID of the owner; by default the caller's.
    pub owner: Option<u32>,
    /// New permissions of other users, like a file's mode: 0600, plus 4 to watch, plus 2 to beat.
    pub mode: Option<u32>,
    /// Role of the member.
    pub role: Role,
}
/// Result of [`ATTACH`], together with the descriptor of the status page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Sampling period in nanoseconds.
    pub period_ns: u64,
}

/// The method `Detach`.
pub const DETACH: &str = "io.corebeat.Host.Detach";
/// Parameters of [`DETACH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Detach {
    /// Number of the group.
    pub group: u32,
    /// User ID of the owner; by default the caller's.
    pub owner: Option<u32>,
    /// Role of the member.
    pub role: Role,
}

/// The method `SetGoal`.
pub const SET_GOAL: &str = "io.corebeat.Host.SetGoal";
/// Parameters of [`SET_GOAL`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetGoal {
    /// Number of the group.
    pub group: u32,
    /// User ID of the owner; by default the caller's.
    pub owner: Option<u32>,
    /// The new goal.
    pub goal: Goal,
}

/// The method `ListGroups`.
pub const LIST_GROUPS: &str = "io.corebeat.Host.ListGroups";
/// Parameters of [`LIST_GROUPS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListGroups {
    /// Lists only groups after this one, in the order of owner and number.
    pub after: Option<GroupId>,
}
/// Result of [`LIST_GROUPS`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    /// Accessible groups, sorted by owner and number; as many as fit into an answer.
    pub groups: Vec<Group>,
    /// If further groups exist: the value of `after` for the next call.
    pub next: Option<GroupId>,
}

/// The method `Invade`.
pub const INVADE: &str = "io.corebeat.Host.Invade";
/// Parameters of [`INVADE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invade {
    /// The claim to change; by default a new claim.
    pub claim: Option<u64>,
    /// Smallest number of CPUs that is requested from other claims.
    pub min: u32,
    /// Largest number of CPUs.
    pub max: u32,
    /// Placement.
    pub numa: Option<Numa>,
    /// Only these CPUs are acceptable.
    pub within: Option<Vec<u32>>,
    /// These CPUs are preferred to equivalent ones.
    pub prefer: Option<Vec<u32>>,
}
/// Result of [`INVADE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invaded {
    /// Number of the claim.
    pub claim: u64,
    /// Its CPUs; fewer than requested if no more are free.
    pub cpus: Vec<u32>,
}

/// The method `Retreat`.
pub const RETREAT: &str = "io.corebeat.Host.Retreat";
/// Parameters of [`RETREAT`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retreat {
    /// Number of the claim.
    pub claim: u64,
    /// Number of CPUs to keep. Without this and `cpus`, the claim ends.
    pub to: Option<u32>,
    /// CPUs to release.
    pub cpus: Option<Vec<u32>>,
}
/// Result of [`RETREAT`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retreated {
    /// The remaining CPUs. Without CPUs the claim has ended.
    pub cpus: Vec<u32>,
}

/// The method `WatchClaims`, which is called with `more`. Its first answer, for claim 0, confirms
/// the subscription. Answers to later calls come between the reports.
pub const WATCH_CLAIMS: &str = "io.corebeat.Host.WatchClaims";
/// Repeated result of [`WATCH_CLAIMS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimChange {
    /// Number of the claim.
    pub claim: u64,
    /// The CPUs that the claim keeps.
    pub cpus: Vec<u32>,
    /// Milliseconds within which the program must release all other CPUs; absent if they are gone
    /// already.
    pub deadline_ms: Option<u64>,
}

/// The method `ListClaims`.
pub const LIST_CLAIMS: &str = "io.corebeat.Host.ListClaims";
/// Result of [`LIST_CLAIMS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The accessible claims.
    pub claims: Vec<Claim>,
}
/// A claim in the result of [`LIST_CLAIMS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Its number.
    pub claim: u64,
    /// Process ID of the owner.
    pub pid: i32,
    /// Its CPUs.
    pub cpus: Vec<u32>,
    /// The CPUs that it keeps, if it is requested to release the others.
    pub keep: Option<Vec<u32>>,
}

/// The method `Status`.
pub const STATUS: &str = "io.corebeat.Host.Status";
/// Result of [`STATUS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Sampling period in nanoseconds.
    pub period_ns: u64,
    /// Whether the daemon acts on programs. The daemon does not act while it is late, or after it
    /// has detected that no action is permitted.
    pub steering: bool,
    /// Number of connections.
    pub clients: u32,
    /// Number of observed programs.
    pub programs: u32,
    /// Number of heartbeat groups.
    pub groups: u32,
    /// Number of claims.
    pub claims: u32,
    /// Steered programs of the caller's user (for root, of all users), the first 64. Empty in the
    /// answer of an older daemon.
    #[serde(default)]
    pub steered: Vec<Steered>,
    /// Failures and limitations, one line each.
    pub notes: Vec<String>,
}

/// A program that the daemon steers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steered {
    /// Number of the first process.
    pub pid: u32,
    /// Name of the first process.
    pub name: String,
    /// Policy that steers the program.
    pub policy: String,
    /// Changes in effect, a few words each.
    pub changes: Vec<String>,
}

/// Parameters or results of methods without any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}
