//! The observations of a span of time.

use crate::store::{AGE_MS_MAX, GAP_MS};
use corebeat_host::Point;
use corebeat_machine::TimeShares;
use corebeat_web::{Claim, Decision, Outcome, Update};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// Largest number of decisions of a frame. Equal refusals are one; of the others, the first ones
/// are kept, and the rest is counted.
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
    /// Whether the daemon has started at the start of the span.
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
    /// Number of the boot: the start of the random identifier of the kernel.
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
    /// The use of time by its threads.
    pub usage: Usage,
}

/// The use of time by the threads of a program in a span.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Length of the observation, in milliseconds.
    pub span_ms: u64,
    /// Sum of the observed spans of all threads, in milliseconds.
    pub thread_ms: u64,
    /// Largest number of threads.
    pub threads: usize,
    /// Mean shares of the threads, each over the time in which it is known. The store keeps
    /// thousandths.
    #[serde(with = "thousandths")]
    pub shares: TimeShares,
    /// For each share that is known, in the order of the fields of [`TimeShares`]: the part of
    /// `thread_ms` in which it is unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unknown_ms: [u64; 7],
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
    /// Whether users other than the owner may list the group at each time of the span.
    #[serde(default)]
    pub is_public: bool,
}

fn is_zero(times_ms: &[u64; 7]) -> bool {
    *times_ms == [0; 7]
}

/// A sum of spans, which a store accepts.
fn sum_ms(a_ms: u64, b_ms: u64) -> u64 {
    a_ms.saturating_add(b_ms).min(AGE_MS_MAX)
}

impl Usage {
    /// The usage as a point that ends at this time, in nanoseconds on the clock of the result.
    pub fn point(&self, at_ns: u64) -> Point {
        Point {
            at_ns,
            span_ns: self.span_ms.saturating_mul(MS_NS),
            thread_ns: self.thread_ms.saturating_mul(MS_NS),
            shares: self.shares,
            threads: self.threads,
        }
    }

    /// Each share with the thread time in which it is known, in milliseconds.
    fn known(&self) -> [Option<(f64, u64)>; 7] {
        let mut unknown_ms = self.unknown_ms.into_iter();
        fields(&self.shares).map(|share| {
            let known_ms = self.thread_ms.saturating_sub(unknown_ms.next().unwrap_or(0));
            share.map(|share| (share, known_ms))
        })
    }

    /// CPU time, in seconds, as far as known.
    pub fn cpu_s(&self) -> f64 {
        let [user, system, ..] = self.known();
        let parts = [user, system].into_iter().flatten();
        parts.map(|(share, known_ms)| share * known_ms as f64 / 1000.0).sum()
    }

    /// Adds the usage in another span.
    pub(crate) fn add(&mut self, other: &Usage) {
        let thread_ms = self.thread_ms.saturating_add(other.thread_ms);
        let mut others = other.known().into_iter();
        let known = self.known().map(|own| match (own, others.next().flatten()) {
            (Some((a, a_ms)), Some((b, b_ms))) => {
                let known_ms = a_ms.saturating_add(b_ms);
                let part = a_ms as f64 / known_ms.max(1) as f64;
                Some((a * part + b * (1.0 - part), known_ms))
            }
            (own, other) => own.or(other),
        });
        self.shares = shares(known.map(|known| known.map(|(share, _)| share)));
        self.unknown_ms = known.map(|known| known.map_or(0, |(_, known_ms)| thread_ms - known_ms));
        self.span_ms = self.span_ms.saturating_add(other.span_ms);
        self.thread_ms = thread_ms;
        self.threads = self.threads.max(other.threads);
    }
}

impl Group {
    fn add_earlier(&mut self, earlier: &Group) {
        let span_ms = sum_ms(self.span_ms, earlier.span_ms);
        let part = self.span_ms as f64 / span_ms.max(1) as f64;
        let mean = |(own, before): (f64, f64)| own * part + before * (1.0 - part);
        self.rate = self.rate.zip(earlier.rate).map(mean).or(self.rate).or(earlier.rate);
        self.span_ms = span_ms;
        self.is_public &= earlier.is_public;
    }
}

impl Frame {
    /// The observations of an update. `boot` is the number of the boot. The means of an update that
    /// is late, because the daemon was stopped or overloaded, are those of the last 3 seconds: the
    /// time before is a gap.
    pub fn of(update: Update, boot: u64, begins: bool) -> Frame {
        let Update { at_ns, span_ns, programs, groups, claims, decisions, .. } = update;
        let span_ms = |ns: u64| (ns / MS_NS).min(GAP_MS);
        let ago_ms = |then_ns: u64| (at_ns.saturating_sub(then_ns) / MS_NS).min(AGE_MS_MAX);
        let program = |program: corebeat_web::Program| {
            let point = program.points.back()?;
            let thread_ms = u128::from(point.thread_ns / MS_NS)
                * u128::from(span_ms(point.span_ns))
                / u128::from(point.span_ns / MS_NS).max(1);
            Some(Program {
                pid: program.pid,
                ago_ms: ago_ms(point.at_ns),
                usage: Usage {
                    span_ms: span_ms(point.span_ns),
                    thread_ms: thread_ms.try_into().unwrap_or(u64::MAX),
                    threads: point.threads,
                    shares: point.shares,
                    unknown_ms: [0; 7],
                },
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
            span_ms: span_ms(span_ns),
            rate_min: group.rate_min,
            rate_max: group.rate_max,
            is_public: group.is_public,
        };
        let decision =
            |decision: Decision| (ago_ms((decision.at_s.max(0.0) * 1e9) as u64), decision);
        let mut frame = Frame {
            clock: Clock { boot, boot_ms: update.boot_ns / MS_NS, unix_ms: update.unix_ns / MS_NS },
            span_ms: span_ms(span_ns),
            begins,
            programs: programs.into_iter().filter_map(program).collect(),
            groups: groups.into_iter().map(group).collect(),
            // No report has what a claim must shrink to.
            claims: claims.into_iter().map(|claim| Claim { keep: None, ..claim }).collect(),
            decisions: decisions.into_iter().map(decision).collect(),
            left_out: update.decisions_left_out,
        };
        frame.bound();
        frame
    }

    /// Merges equal refusals, which a policy repeats with each observation, and counts the
    /// decisions beyond [`DECISIONS_MAX`].
    fn bound(&mut self) {
        let mut kept: Vec<(u64, Decision)> = vec![];
        for (ago_ms, decision) in std::mem::take(&mut self.decisions) {
            let is_refused = matches!(decision.outcome, Outcome::Refused(_));
            let is_equal = |(_, known): &(u64, Decision)| {
                (known.pid, &known.policy) == (decision.pid, &decision.policy)
                    && (&known.what, &known.outcome) == (&decision.what, &decision.outcome)
            };
            let count = decision.repeated.saturating_add(1);
            match kept.iter().position(is_equal).filter(|_| is_refused) {
                Some(n) => kept[n].1.repeated = kept[n].1.repeated.saturating_add(count),
                None if kept.len() < DECISIONS_MAX => kept.push((ago_ms, decision)),
                None => self.left_out = self.left_out.saturating_add(count as usize),
            }
        }
        self.decisions = kept;
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
                    Some(&n) => {
                        let usage = &mut whole.programs[n].usage;
                        usage.add(&program.usage);
                        usage.span_ms = usage.span_ms.min(AGE_MS_MAX);
                    }
                    None => {
                        program.ago_ms = sum_ms(program.ago_ms, ago_ms);
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
            for (decision_ago_ms, _) in &mut earlier.decisions {
                *decision_ago_ms = sum_ms(*decision_ago_ms, ago_ms);
            }
            earlier.decisions.append(&mut whole.decisions);
            whole.decisions = earlier.decisions;
            whole.left_out = whole.left_out.saturating_add(earlier.left_out);
            whole.span_ms = sum_ms(whole.span_ms, earlier.span_ms);
            whole.begins = earlier.begins;
        }
        whole.bound();
        Some((at_ms, whole))
    }

    /// The frame as bytes of the store: JSON, compressed. Many frames repeat the same names. `None`
    /// if the store could not read the bytes.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let json = serde_json::to_vec(self).ok()?;
        let is_readable = json.len() <= JSON_BYTES_MAX && self.has_plausible_spans();
        is_readable.then(|| lz4_flex::compress_prepend_size(&json))
    }

    fn has_plausible_spans(&self) -> bool {
        let programs = self.programs.iter().flat_map(|p| [p.ago_ms, p.usage.span_ms]);
        let groups = self.groups.iter().map(|group| group.span_ms);
        let decisions = self.decisions.iter().map(|(ago_ms, _)| *ago_ms);
        let spans = programs.chain(groups).chain(decisions).chain([self.span_ms]);
        spans.into_iter().all(|span_ms| span_ms <= AGE_MS_MAX)
    }

    /// The frame of these bytes. `None` if they are damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Frame> {
        let (size, block) = bytes.split_first_chunk()?;
        let size = u32::from_le_bytes(*size) as usize;
        let json = (size <= JSON_BYTES_MAX).then(|| lz4_flex::decompress(block, size))?.ok()?;
        serde_json::from_slice(&json).ok().filter(Frame::has_plausible_spans)
    }
}

/// The shares in the order of the fields of [`TimeShares`].
fn fields(shares: &TimeShares) -> [Option<f64>; 7] {
    let TimeShares { user, system, lock, park, wait, sleep, spin } = *shares;
    [user, system, lock, park, wait, sleep, spin]
}

/// The inverse of [`fields`].
fn shares(fields: [Option<f64>; 7]) -> TimeShares {
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1000;

    fn usage(user: Option<f64>, lock: Option<f64>) -> Usage {
        let shares = TimeShares { user, lock, ..TimeShares::ZERO };
        Usage { span_ms: SECOND, thread_ms: SECOND, threads: 1, shares, ..Usage::default() }
    }

    fn frame_of(usage: Usage) -> Frame {
        let program = Program { pid: Some(7), name: "p".into(), usage, ..Program::default() };
        Frame { span_ms: SECOND, programs: vec![program], ..Frame::default() }
    }

    fn refused(why: &str) -> Decision {
        let outcome = Outcome::Refused("not permitted".into());
        Decision { pid: Some(7), what: "nice 5".into(), why: why.into(), outcome, ..event("") }
    }

    fn event(what: &str) -> Decision {
        Decision { what: what.into(), ..Decision::default() }
    }

    #[test]
    fn share_that_is_unknown_for_a_second_is_known_in_a_minute() {
        let part = |n: u64| usage(Some(0.5), Some(0.2).filter(|_| n != 30));
        let frames = (0..60).map(|n| (n * SECOND, frame_of(part(n)))).collect();
        let (_, minute) = Frame::merged(frames).unwrap();
        let minute = Frame::decode(&minute.encode().unwrap()).unwrap();
        let usage = minute.programs[0].usage;
        assert_eq!((usage.shares.user, usage.shares.lock), (Some(0.5), Some(0.2)));
        assert_eq!((usage.unknown_ms[2], usage.unknown_ms[0]), (SECOND, 0));
        assert_eq!((usage.cpu_s(), usage.thread_ms), (30.0, 60 * SECOND));
    }

    #[test]
    fn mean_of_a_share_is_over_the_time_in_which_it_is_known() {
        let mut whole = usage(None, Some(0.6));
        whole.add(&usage(Some(0.5), None));
        whole.add(&usage(Some(1.0), None));
        whole.add(&usage(None, Some(0.2)));
        let Usage { shares, unknown_ms, .. } = whole;
        assert_eq!((shares.user, shares.lock), (Some(0.75), Some(0.4)));
        assert_eq!((unknown_ms[0], unknown_ms[2], whole.cpu_s()), (2000, 2000, 1.5));
    }

    #[test]
    fn group_that_was_private_for_a_second_is_private_for_the_minute() {
        let is_public = |seconds: [bool; 3]| {
            let frame = |is_public| {
                let group = Group { is_public, ..Group::default() };
                (0, Frame { groups: vec![group], ..Frame::default() })
            };
            let (_, whole) = Frame::merged(seconds.map(frame).into()).unwrap();
            Frame::decode(&whole.encode().unwrap()).unwrap().groups[0].is_public
        };
        assert!(is_public([true; 3]) && !is_public([true, false, true]));
        assert!(!is_public([false, true, true]) && !is_public([true, true, false]));
        // A frame that an earlier version has written.
        let before = r#"{"owner":0,"group":1,"pids":[],"members":1,"beats":1,"rate":null,
                         "span_ms":1,"rate_min":null,"rate_max":null}"#;
        assert!(!serde_json::from_str::<Group>(before).unwrap().is_public);
    }

    #[test]
    fn update_of_a_stopped_daemon_leaves_a_gap() {
        let update = |ms: u64| {
            let (at_ns, span_ns) = (20_000 * MS_NS, ms * MS_NS);
            let thread_ns = 2 * span_ns;
            let shares = TimeShares::default();
            let point = Point { at_ns, span_ns, thread_ns, shares, threads: 2 };
            let points = [point].into();
            let program = corebeat_web::Program { points, ..corebeat_web::Program::default() };
            let groups = vec![corebeat_web::Group::default()];
            Update { at_ns, span_ns, programs: vec![program], groups, ..Update::default() }
        };
        for (ms, expected) in [(1000, 1000), (15_000, GAP_MS)] {
            let frame = Frame::of(update(ms), 1, false);
            let usage = &frame.programs[0].usage;
            assert_eq!((frame.span_ms, frame.groups[0].span_ms), (expected, expected));
            assert_eq!((usage.span_ms, usage.thread_ms), (expected, 2 * expected));
        }
    }

    #[test]
    fn decisions_that_the_daemon_leaves_out_are_counted() {
        let decisions = (0..300).map(|n| event(&n.to_string())).collect();
        let update = Update { decisions, decisions_left_out: 744, ..Update::default() };
        let frame = Frame::of(update, 1, false);
        assert_eq!((frame.decisions.len(), frame.left_out), (DECISIONS_MAX, 744 + 44));
    }

    #[test]
    fn equal_refusals_are_one_and_displace_no_other_decision() {
        let decisions = |n: u64| {
            let refusals = (0..20).map(|m| (m, refused(&format!("{n} {m}"))));
            refusals.chain([(0, event(&n.to_string()))]).collect()
        };
        let frame = |n| (n, Frame { decisions: decisions(n), ..Frame::default() });
        let (_, minute) = Frame::merged((0..60).map(frame).collect()).unwrap();
        assert_eq!((minute.decisions.len(), minute.left_out), (61, 0));
        let (ago_ms, first) = &minute.decisions[0];
        assert_eq!((*ago_ms, first.why.as_str(), first.repeated), (59, "0 0", 1199));
        assert!(minute.decisions[1..].iter().all(|(_, other)| other.repeated == 0));
    }

    #[test]
    fn frame_that_could_not_be_read_is_not_written() {
        let whole_day = Frame { span_ms: AGE_MS_MAX, ..Frame::default() };
        let bytes = whole_day.encode().unwrap();
        assert_eq!(Frame::decode(&bytes), Some(whole_day.clone()));
        let longer = Frame { span_ms: AGE_MS_MAX + 1, ..whole_day.clone() };
        assert_eq!(longer.encode(), None);
        let json = serde_json::to_vec(&longer).unwrap();
        assert_eq!(Frame::decode(&lz4_flex::compress_prepend_size(&json)), None);
        let decisions = vec![(0, event(&"x".repeat(JSON_BYTES_MAX)))];
        assert_eq!(Frame { decisions, ..Frame::default() }.encode(), None);
        // Sums of the longest spans can be written.
        let usage = Usage { span_ms: AGE_MS_MAX, thread_ms: u64::MAX, ..usage(Some(1.0), None) };
        let frames = [1, 2, 3].map(|at_ms| {
            let frame = frame_of(usage);
            (at_ms, Frame { span_ms: AGE_MS_MAX, left_out: usize::MAX, ..frame })
        });
        let (_, sum) = Frame::merged(frames.into()).unwrap();
        assert!(sum.encode().is_some());
    }
}
