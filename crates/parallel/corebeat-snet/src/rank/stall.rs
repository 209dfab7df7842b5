//! Detection of runs without progress: every task of all ranks waits, and no message is under way.
//!
//! Rank 0 counts twice (the method of four counters: Mattern, *Algorithms for distributed
//! termination detection*, Distributed Computing 2, 1987). In a wave, each rank answers when all of
//! its tasks wait, with the bytes that it has sent and received so far:
//!
//! ```text
//!   rank 0:  idle -- probe 1 --> ... all idle -- probe 2 --> ... all idle: the same bytes, and
//!                                                                sent = received: no progress
//!   others:            idle: answer                idle: answer
//! ```
//!
//! Two waves with the same bytes, as many sent as received, are a proof: let T be the begin of the
//! second wave. The bytes that a rank has sent and received only grow, so each rank has the same
//! bytes in both of its answers. A rank that is idle and receives nothing remains idle, so every
//! rank is idle at T. The bytes that were sent before T are those that were received before T, so
//! no message is under way at T. Therefore, no rank ever makes progress after T.
//!
//! A rank is *idle* if its tasks make progress only after a message of another rank. That excludes:
//!
//! - tasks that wait for a thread outside of the runtime, or for a point in time ([`is_inside`] and
//!   [`Runtime::is_waiting`](corebeat_lpel::Runtime::is_waiting));
//! - rank 0 while its task `<input>` waits for a record: the input has not ended;
//! - rank 0 while its output has messages, or its end, that the reader has not taken. The writer
//!   counts each message before it writes it, and the reader stores the number of messages that it
//!   has taken when it asks for the next one. If the reader has asked for number n, then the tasks
//!   wait, and then n messages were written, the reader waits for a task at that moment;
//! - a rank whose tasks have all ended, before it has answered to the request to finish.
//!
//! The bytes of the detection itself are not counted.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use corebeat_lpel::{Dump, OtherEnd, StreamDump, TaskDump, WaitsFor};

/// Events that a thread outside the runtime signals for another rank.
pub(crate) const RECORD: &str = "a record or the end of its channel from another rank";
pub(crate) const CREDIT: &str = "room for a record on another rank";
pub(crate) const REQUEST: &str = "a request of another rank";
pub(crate) const ROOM: &str = "room for a fault on rank 0";
pub(crate) const DATA: &str = "the data of a field on another rank";
const EVENTS: [&str; 5] = [RECORD, CREDIT, REQUEST, ROOM, DATA];

/// Tasks of a rank in the report.
const TASKS_MAX: usize = 4;

/// State of the detection on one rank.
#[derive(Default)]
pub(crate) struct Stall {
    /// On rank 0, messages to the output, and their end.
    written: AtomicU64,
    /// Messages that the reader of the output has taken when it asks for the next one.
    asked: AtomicU64,
    /// Begins and ends of the wait for a record of the input. Odd during a wait.
    input: AtomicU64,
    /// On another rank than 0, whether it has answered to the request to finish.
    has_finished: AtomicBool,
    /// On rank 0, ranks that have done so.
    finished: AtomicU32,
    wave: Mutex<Wave>,
}

/// State of the waves.
#[derive(Default)]
struct Wave {
    /// Number of the latest wave.
    number: u64,
    /// On rank 0, the sums of the answers so far.
    sums: Option<Sums>,
    /// On rank 0, the bytes of the wave before, if all of them had arrived.
    before: Option<u64>,
    /// On another rank, whether rank 0 waits for an answer.
    is_probed: bool,
    /// Whether rank 0 waits for the tasks that wait.
    is_requested: bool,
    /// On rank 0, after the detection: tasks by rank.
    waits: Vec<(u32, String)>,
    /// Reports after one wave, which is a fault that the tests must detect.
    #[cfg(test)]
    is_hasty: bool,
}

/// Sums of the answers of a wave.
struct Sums {
    ranks: u32,
    sent: u64,
    received: u64,
}

impl Stall {
    #[cfg(test)]
    pub(crate) fn set_hasty(&self, is_hasty: bool) {
        self.wave().is_hasty = is_hasty;
    }

    fn wave(&self) -> MutexGuard<'_, Wave> {
        self.wave.lock().unwrap_or_else(|e| e.into_inner())
    }

    // Facts of the tasks and threads of this rank.

    /// Counts a message to the output, or its end, before it is written.
    pub(crate) fn count_output(&self) {
        self.written.fetch_add(1, Ordering::SeqCst);
    }

    /// The reader of the output has taken this number of messages, and asks for the next one.
    pub(crate) fn ask_for_output(&self, taken: u64) {
        self.asked.store(taken, Ordering::SeqCst);
    }

    /// The reader of the output has taken its end, and has sent the requests to finish.
    pub(crate) fn end_output(&self) {
        self.asked.store(self.written.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// The wait for a record of the input begins or ends.
    pub(crate) fn begin_or_end_input(&self) {
        self.input.fetch_add(1, Ordering::SeqCst);
    }

    /// The answer to the request to finish was sent.
    pub(crate) fn end_tasks(&self) {
        self.has_finished.store(true, Ordering::SeqCst);
    }

    /// On rank 0, counts such an answer.
    pub(crate) fn count_finished(&self) {
        self.finished.fetch_add(1, Ordering::SeqCst);
    }

    // Steps of the thread that receives messages.

    /// Whether there may be something to do for the detection.
    pub(crate) fn is_asked(&self, rank: u32, size: u32) -> bool {
        let wave = self.wave();
        match rank {
            0 => self.finished.load(Ordering::SeqCst) + 1 < size,
            _ => wave.is_probed || wave.is_requested,
        }
    }

    /// Number of the wave that begins on rank 0, or that another rank answers, if it is idle.
    pub(crate) fn next_wave(&self, rank: u32) -> Option<u64> {
        let wave = self.wave();
        match rank {
            0 => (wave.sums.is_none() && wave.waits.is_empty()).then_some(wave.number + 1),
            _ => wave.is_probed.then_some(wave.number),
        }
    }

    /// Whether this rank makes progress only after a message of another rank. `is_waiting` returns
    /// whether tasks are left, all of which wait for this.
    pub(crate) fn is_idle(&self, is_waiting: impl FnOnce() -> bool) -> bool {
        if self.has_finished.load(Ordering::SeqCst) {
            return true;
        }
        // The order of these reads matters, see the module.
        let asked = self.asked.load(Ordering::SeqCst);
        let input = self.input.load(Ordering::SeqCst);
        input.is_multiple_of(2)
            && is_waiting()
            && self.input.load(Ordering::SeqCst) == input
            && self.written.load(Ordering::SeqCst) == asked
    }

    /// On rank 0, begins a wave with the answer of rank 0.
    pub(crate) fn begin(&self, number: u64, sent: u64, received: u64) {
        let mut wave = self.wave();
        wave.number = number;
        wave.sums = Some(Sums { ranks: 1, sent, received });
    }

    /// On another rank, stores a probe of rank 0.
    pub(crate) fn probe(&self, number: u64) {
        let mut wave = self.wave();
        (wave.number, wave.is_probed) = (number, true);
    }

    /// On another rank, the probe is answered.
    pub(crate) fn answer(&self, number: u64) {
        let mut wave = self.wave();
        wave.is_probed &= wave.number != number;
    }

    /// On rank 0, adds the answer of another rank. Returns false if it belongs to another wave.
    pub(crate) fn add(&self, number: u64, sent: u64, received: u64) -> bool {
        let mut wave = self.wave();
        if number != wave.number {
            return false;
        }
        let Some(sums) = &mut wave.sums else { return false };
        sums.ranks += 1;
        sums.sent += sent;
        sums.received += received;
        true
    }

    /// On rank 0, ends the wave if all ranks have answered. Returns whether the run makes no
    /// progress.
    pub(crate) fn is_found(&self, size: u32) -> bool {
        let mut wave = self.wave();
        let Some(sums) = wave.sums.take_if(|sums| sums.ranks == size) else { return false };
        let before = wave.before.take();
        wave.before = (sums.sent == sums.received).then_some(sums.sent);
        #[cfg(test)]
        if wave.is_hasty {
            return wave.before.is_some();
        }
        before.is_some() && before == wave.before
    }

    /// On another rank, stores the request of rank 0 for the tasks.
    pub(crate) fn request(&self) {
        self.wave().is_requested = true;
    }

    /// On another rank, takes this request.
    pub(crate) fn explains(&self) -> bool {
        std::mem::take(&mut self.wave().is_requested)
    }

    /// On rank 0, stores the tasks of a rank.
    pub(crate) fn explain(&self, rank: u32, waits: String) {
        self.wave().waits.push((rank, waits));
    }

    /// On rank 0, the report when all ranks have sent their tasks.
    pub(crate) fn line(&self, size: u32) -> Option<String> {
        let mut wave = self.wave();
        if wave.waits.len() < size as usize {
            return None;
        }
        wave.waits.sort();
        let ranks = wave.waits.iter().map(|(rank, waits)| format!("rank {rank}: {waits}"));
        let ranks = ranks.collect::<Vec<_>>().join("; ");
        Some(format!("the run makes no progress, because every task of all ranks waits: {ranks}"))
    }
}

/// Whether no task waits for a thread outside that is not the one of the messages.
pub(crate) fn is_inside(dump: &Dump) -> bool {
    let of_ranks = |stream: &StreamDump| {
        let is_known = stream.signals.is_some_and(|event| EVENTS.contains(&event));
        stream.other != OtherEnd::Outside || is_known
    };
    dump.unstarted == 0
        && dump.tasks.iter().all(|task| match &task.waits_for {
            Some(WaitsFor::Stream(stream)) => of_ranks(stream),
            Some(WaitsFor::Any(streams)) => streams.iter().all(of_ranks),
            Some(WaitsFor::Task(_)) => true,
            _ => false,
        })
}

/// The tasks of a rank and the events that they wait for: the boxes first.
pub(crate) fn waits(dump: &Dump) -> String {
    let name = |task: &TaskDump| task.name.clone().unwrap_or_default();
    let mut tasks: Vec<&TaskDump> =
        dump.tasks.iter().filter(|task| *name(task) != *"<server>").collect();
    tasks.sort_by_key(|task| name(task).starts_with('<'));
    let shown = tasks.iter().take(TASKS_MAX).map(|task| match &task.waits_for {
        Some(waits_for) => format!("'{}' {waits_for}", name(task).escape_debug()),
        None => format!("'{}' waits", name(task).escape_debug()),
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    match tasks.len() {
        0 => "no task is left but its server".into(),
        count if count > TASKS_MAX => format!("{shown}, and {} more tasks", count - TASKS_MAX),
        _ => shown,
    }
}
