//! The observations of a span of time.

use corebeat_host::Point;
use corebeat_machine::TimeShares;
use corebeat_web::{Claim, Decision, Update};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// Largest number of decisions of a frame. The first ones are kept, and the others are counted.
const DECISIONS_MAX: usize = 256;
/// Largest size of a frame as JSON, in bytes: the size in a damaged frame requests no more memory.
const JSON_BYTES_MAX: usize = 16 << 20;

const MS_NS: u64 = 1_000_000;

/// Observations of a host in a span of time. The store has the end of the span as the key of the
/// frame; times within a frame count backwards from it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// The clocks at the end of the span.
    pub clock: Clock,
    /// Length of the span, in milliseconds.
    pub span_ms: u64,
    /// Whether the daemon has started at the begin of the span.
    pub begins: bool,
    /// Programs.
    pub programs: Vec<Program>,
    /// Groups of heartbeats.
    pub groups: Vec<Group>,
    /// Claims of CPUs at the end of the span.
    pub claims: Vec<Claim>,
    /// Decisions, each with its time before the end of the span, in milliseconds.
    pub decisions: Vec<(u64, Decision)>,
    /// Number of decisions that are left out.
    pub left_out: usize,
}

/// Clocks of a host at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// Number of the boot: the begin of the random identifier of the kernel.
    pub boot: u64,
    /// Time since the boot, in milliseconds, suspension included.
    pub boot_ms: u64,
    /// The wall clock, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// A program in a frame.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// First process, if known.
    pub pid: Option<i32>,
    /// Name.
    pub name: String,
    /// Policy that steers the program.
    pub policy: String,
    /// Changes in effect.
    pub changes: Vec<String>,
    /// End of the observation before the end of the frame, in milliseconds.
    pub ago_ms: u64,
    /// Length of the observation, in milliseconds.
    pub span_ms: u64,
    /// Sum of the observed spans of all threads, in milliseconds.
    pub thread_ms: u64,
    /// Largest number of threads.
    pub threads: usize,
    /// Mean shares of the threads. The store keeps thousandths.
    #[serde(with = "thousandths")]
    pub shares: TimeShares,
}

/// A group of heartbeats in a frame.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// User that owns the group.
    pub owner: u32,
    /// Number of the group of this user.
    pub group: u32,
    /// Processes that emit heartbeats.
    pub pids: Vec<u32>,
    /// Number of threads that emit heartbeats.
    pub members: u32,
    /// Heartbeats since the group exists.
    pub beats: u64,
    /// Mean heartbeats per second; `None` if the rate is no number.
    pub rate: Option<f64>,
    /// Time for which the mean is, in milliseconds.
    pub span_ms: u64,
    /// Least rate of the goal, in heartbeats per second.
    pub rate_min: Option<f64>,
    /// Largest rate of the goal, in heartbeats per second.
    pub rate_max: Option<f64>,
}

impl Program {
    /// Whether both are the same program, as far as its process and name state.
    pub fn is_same(&self, other: &Program) -> bool {
        (self.pid, &self.name) == (other.pid, &other.name)
    }

    /// The program as a point that ends at this time, in nanoseconds on the clock of the result.
    pub fn point(&self, at_ns: u64) -> Point {
        Point {
            at_ns,
            span_ns: self.span_ms * MS_NS,
            thread_ns: self.thread_ms * MS_NS,
            shares: self.shares,
            threads: self.threads,
        }
    }

    /// The program with its earlier observations.
    fn add_earlier(&mut self, earlier: &Program) {
        let point = earlier.point(0).merged(&self.point(0));
        (self.shares, self.threads) = (point.shares, point.threads);
        self.span_ms += earlier.span_ms;
        self.thread_ms += earlier.thread_ms;
    }
}

impl Group {
    fn add_earlier(&mut self, earlier: &Group) {
        let span_ms = self.span_ms + earlier.span_ms;
        let part = self.span_ms as f64 / span_ms.max(1) as f64;
        let mean = |(own, before): (f64, f64)| own * part + before * (1.0 - part);
        self.rate = self.rate.zip(earlier.rate).map(mean).or(self.rate).or(earlier.rate);
        self.span_ms = span_ms;
    }
}

impl Frame {
    /// The observations of an update. `boot` is the number of the boot.
    pub fn of(update: Update, boot: u64, begins: bool) -> Frame {
        let Update { at_ns, span_ns, programs, groups, claims, decisions, .. } = update;
        let ago_ms = |at_ns: u64, then_ns: u64| at_ns.saturating_sub(then_ns) / MS_NS;
        let program = |program: corebeat_web::Program| {
            let point = program.points.back()?;
            Some(Program {
                pid: program.pid,
                ago_ms: ago_ms(at_ns, point.at_ns),
                span_ms: point.span_ns / MS_NS,
                thread_ms: point.thread_ns / MS_NS,
                threads: point.threads,
                shares: point.shares,
                name: program.name,
                policy: program.policy,
                changes: program.changes,
            })
        };
        let group = |group: corebeat_web::Group| Group {
            owner: group.owner,
            group: group.group,
            pids: group.pids,
            members: group.members,
            beats: group.beats,
            rate: group.rates.back().map(|(_, rate)| *rate).filter(|rate| rate.is_finite()),
            span_ms: span_ns / MS_NS,
            rate_min: group.rate_min,
            rate_max: group.rate_max,
        };
        let decision =
            |decision: Decision| (ago_ms(at_ns, (decision.at_s.max(0.0) * 1e9) as u64), decision);
        let mut frame = Frame {
            clock: Clock { boot, boot_ms: update.boot_ns / MS_NS, unix_ms: update.unix_ns / MS_NS },
            span_ms: span_ns / MS_NS,
            begins,
            programs: programs.into_iter().filter_map(program).collect(),
            groups: groups.into_iter().map(group).collect(),
            claims,
            decisions: decisions.into_iter().map(decision).collect(),
            left_out: 0,
        };
        frame.bound();
        frame
    }

    fn bound(&mut self) {
        self.left_out += self.decisions.len().saturating_sub(DECISIONS_MAX);
        self.decisions.truncate(DECISIONS_MAX);
    }

    /// Consecutive frames, each with its key, as one frame, whose key is that of the last one.
    /// `None` for no frame.
    pub fn merged(frames: Vec<(u64, Frame)>) -> Option<(u64, Frame)> {
        let mut frames = frames.into_iter().rev();
        let (at_ms, mut whole) = frames.next()?;
        let mut programs: BTreeMap<(Option<i32>, String), usize> = BTreeMap::new();
        for (n, program) in whole.programs.iter().enumerate() {
            programs.insert((program.pid, program.name.clone()), n);
        }
        for (key_ms, mut earlier) in frames {
            let ago_ms = at_ms.saturating_sub(key_ms);
            for mut program in earlier.programs {
                match programs.get(&(program.pid, program.name.clone())) {
                    Some(&n) => whole.programs[n].add_earlier(&program),
                    None => {
                        program.ago_ms += ago_ms;
                        let key = (program.pid, program.name.clone());
                        programs.insert(key, whole.programs.len());
                        whole.programs.push(program);
                    }
                }
            }
            for group in earlier.groups {
                let id = (group.owner, group.group);
                match whole.groups.iter_mut().find(|known| (known.owner, known.group) == id) {
                    Some(known) => known.add_earlier(&group),
                    None => whole.groups.push(group),
                }
            }
            earlier
                .decisions
                .iter_mut()
                .for_each(|(decision_ago_ms, _)| *decision_ago_ms += ago_ms);
            earlier.decisions.append(&mut whole.decisions);
            whole.decisions = earlier.decisions;
            whole.left_out += earlier.left_out;
            whole.span_ms += earlier.span_ms;
            whole.begins = earlier.begins;
        }
        whole.bound();
        Some((at_ms, whole))
    }

    /// The frame as bytes of the store: JSON, compressed. Many frames repeat the same names.
    pub(crate) fn encode(&self) -> Vec<u8> {
        // The types have no maps, so they can be written.
        lz4_flex::compress_prepend_size(&serde_json::to_vec(self).unwrap_or_default())
    }

    /// The frame of these bytes. `None` if they are damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Frame> {
        let (size, block) = bytes.split_first_chunk()?;
        let size = u32::from_le_bytes(*size) as usize;
        let json = (size <= JSON_BYTES_MAX).then(|| lz4_flex::decompress(block, size))?.ok()?;
        serde_json::from_slice(&json).ok()
    }
}

/// The shares in the order of the fields of [`TimeShares`].
pub(crate) fn fields(shares: &TimeShares) -> [Option<f64>; 7] {
    let TimeShares { user, system, lock, park, wait, sleep, spin } = *shares;
    [user, system, lock, park, wait, sleep, spin]
}

/// The opposite of [`fields`].
pub(crate) fn shares(fields: [Option<f64>; 7]) -> TimeShares {
    let [user, system, lock, park, wait, sleep, spin] = fields;
    TimeShares { user, system, lock, park, wait, sleep, spin }
}

/// Shares as a list of thousandths.
mod thousandths {
    use super::*;

    pub(super) fn serialize<S: Serializer>(shares: &TimeShares, to: S) -> Result<S::Ok, S::Error> {
        let rounded = |share: Option<f64>| share.map(|share| (share * 1000.0).round() as u16);
        fields(shares).map(rounded).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<TimeShares, D::Error> {
        let thousandths = <[Option<u16>; 7]>::deserialize(from)?;
        Ok(shares(thousandths.map(|share| share.map(|share| f64::from(share) / 1000.0))))
    }
}
