//! State that all entities of a running network share.

use std::any::Any;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use corebeat_lpel::{Reader, STACK_MAX, Writer, growing_stream, stream, unbounded_stream};

use super::message::Message;
use super::network::{Fault, NetworkOptions, OnFault, ReportFault};
use super::step::Step;
use super::watch::{Position, Watch};
use crate::body::{catch, panic_message};
use crate::rank::{Node, field};
use crate::record::Record;

/// Faults that are stored for the report. Further faults are only counted.
pub(crate) const FAULTS_MAX: usize = 1000;

/// Bytes of stack for each level of a network, because nested entities call each other. Builds
/// without optimisation need much more.
const LEVEL_STACK: usize = if cfg!(debug_assertions) { 32 << 10 } else { 4 << 10 };

/// One run of a network.
pub(crate) struct Context {
    /// Capacity of a stream in records.
    pub(crate) capacity: usize,
    /// Bytes of a task's stack.
    pub(crate) stack_size: usize,
    /// Whether boxes have the lowest priority (Prokesch 2011, section 6.2.2).
    pub(crate) boxes_last: bool,
    /// Whether boxes may change their workers.
    pub(crate) move_boxes: bool,
    /// Workers of the runtime.
    pub(crate) workers: usize,
    /// Endpoint of this rank in a run on several ranks.
    pub(crate) node: Option<Arc<Node>>,
    on_fault: OnFault,
    report: Option<ReportFault>,
    watches: Vec<Watch>,
    faults: Mutex<Vec<Fault>>,
    fault_count: AtomicUsize,
    /// First fault of a task that has ended early.
    broken: Mutex<Option<Fault>>,
    kept: AtomicUsize,
    loops: AtomicU64,
    /// Dropped to stop the network. Nothing is ever written to this stream.
    stopper: Mutex<Option<Writer<Message>>>,
    /// Whether the reader of the output has gone.
    abandoned: AtomicBool,
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(|e| e.into_inner())
}

impl Context {
    /// Creates a context, and the reader of a stream that ends when the network stops.
    pub(crate) fn new(
        options: &NetworkOptions,
        watches: &[Watch],
        depth: usize,
        workers: usize,
        node: Option<Arc<Node>>,
    ) -> (Context, Reader<Message>) {
        let (stopper, stop) = stream(1);
        let context = Context {
            capacity: options.capacity,
            stack_size: options.stack_size.saturating_add(depth * LEVEL_STACK).min(STACK_MAX),
            boxes_last: options.boxes_last,
            move_boxes: options.move_boxes,
            workers,
            node,
            on_fault: options.on_fault,
            report: options.report_fault.clone(),
            watches: watches.to_vec(),
            faults: Mutex::default(),
            fault_count: AtomicUsize::new(0),
            broken: Mutex::default(),
            kept: AtomicUsize::new(0),
            loops: AtomicU64::new(0),
            stopper: Mutex::new(Some(stopper)),
            abandoned: AtomicBool::new(false),
        };
        (context, stop)
    }

    /// Creates a stream between entities.
    pub(crate) fn stream(&self) -> (Writer<Message>, Reader<Message>) {
        stream(self.capacity)
    }

    /// Creates a stream that takes more records where its capacity would cause a deadlock. A cycle
    /// that passes through another rank cannot be detected.
    pub(crate) fn growing_stream(&self) -> (Writer<Message>, Reader<Message>) {
        match self.node {
            None => growing_stream(self.capacity),
            Some(_) => unbounded_stream(self.capacity),
        }
    }

    /// Requests the data of fields that are on other ranks, and waits for it. Reports a fault if
    /// that fails.
    #[inline]
    pub(crate) fn fetch(&self, entity: &str, record: &mut Record) -> Option<()> {
        if self.node.is_some()
            && field::is_partial(record)
            && let Err(why) = field::fetch(record.values_mut())
        {
            self.fault(entity, format_args!("{why}"), record);
            return None;
        }
        Some(())
    }

    /// Steps that call the observers of this position, in reverse order.
    pub(crate) fn watch(&self, name: &str, position: Position) -> Vec<Step> {
        let watches = self.watches.iter().rev().filter(|w| w.is(name, position));
        watches.map(|w| Step::Watch(w.clone())).collect()
    }

    /// Whether a box or a net of this name has an observer.
    pub(crate) fn is_watched(&self, name: &str) -> bool {
        self.watches.iter().any(|watch| watch.is_of(name))
    }

    /// Reports a record that cannot continue. Only this record is lost.
    #[cold]
    pub(crate) fn fault(&self, entity: &str, message: fmt::Arguments<'_>, record: &Record) {
        self.report(Fault {
            entity: entity.into(),
            message: message.to_string(),
            record: Some(record.clone()),
        });
    }

    /// Reports a failure without a record.
    #[cold]
    pub(crate) fn failure(&self, entity: &str, message: fmt::Arguments<'_>) {
        self.report(Fault { entity: entity.into(), message: message.to_string(), record: None });
    }

    /// Reports a fault. Another rank than 0 sends it to rank 0.
    fn report(&self, fault: Fault) {
        self.report_if_broken(fault, false);
    }

    fn report_if_broken(&self, mut fault: Fault, is_broken: bool) {
        if let Some(node) = &self.node {
            fault.entity = format!("rank {}: {}", node.rank(), fault.entity);
            if node.rank() > 0 {
                node.send_fault(&fault, is_broken);
                return self.record(Fault { record: None, ..fault });
            }
            // A stored record must not keep a field on another rank.
            fault.record = fault.record.filter(|record| !field::is_partial(record));
        }
        self.accept(fault, false);
    }

    /// Reports a fault of any rank, on rank 0.
    pub(crate) fn accept(&self, fault: Fault, is_broken: bool) {
        if is_broken {
            lock(&self.broken).get_or_insert_with(|| fault.clone());
            self.stop();
        }
        if let OnFault::Stop = self.on_fault {
            self.stop();
        }
        // Before the call of a user's function, which may end the task.
        self.record(fault.clone());
        if let Some(report) = &self.report
            && let Err(why) = catch(|| report(&fault))
        {
            self.record(Fault {
                entity: "the function report_fault".into(),
                message: format!("the function panicked: {why}"),
                record: None,
            });
        }
    }

    /// Records a fault of a task that has ended, without a call of a user's function on this rank.
    fn record_broken(&self, fault: Fault) {
        match &self.node {
            Some(node) if node.rank() > 0 => self.report_if_broken(fault, true),
            _ => self.record(fault),
        }
    }

    /// Adds a fault to the report of the run.
    fn record(&self, fault: Fault) {
        // Relaxed: the count is read after the tasks of the network have ended.
        self.fault_count.fetch_add(1, Ordering::Relaxed);
        let mut faults = lock(&self.faults);
        if faults.len() < FAULTS_MAX {
            faults.push(fault);
        }
    }

    /// Reports a task that panicked or was unwound, and stops the network, because the records that
    /// the task would have processed are lost.
    #[cold]
    pub(crate) fn end_early(&self, task: &str, payload: Box<dyn Any + Send>) {
        let is_unwound = corebeat_lpel::ends_task(&*payload);
        let message = if is_unwound {
            "the task was cancelled, was in a deadlock, or called `exit`".into()
        } else {
            format!("the task panicked: {}", panic_message(&*payload))
        };
        if is_unwound {
            // No function of a user runs in a task that is unwound.
            self.record_broken(self.broken_by(task, message));
            resume_unwind(payload);
        }
        self.break_off(task, message);
    }

    /// Reports a task that cannot continue, and stops the network, because records are lost.
    #[cold]
    pub(crate) fn break_off(&self, task: &str, message: String) {
        self.report_if_broken(self.broken_by(task, message), true);
    }

    /// Reports a task that was dropped before its work was done. One such task is sufficient for
    /// the report: a cancellation ends all tasks. No function of a user runs here.
    #[cold]
    pub(crate) fn end_unfinished(&self, task: &str) {
        if self.broken().is_none() {
            let message = "the task was cancelled, or its runtime was dropped".into();
            self.record_broken(self.broken_by(task, message));
        }
    }

    /// Stops the network because of a task that has ended early.
    fn broken_by(&self, task: &str, message: String) -> Fault {
        let fault = Fault { entity: format!("task {task}"), message, record: None };
        lock(&self.broken).get_or_insert_with(|| fault.clone());
        self.stop();
        fault
    }

    /// First fault of a task that has ended early.
    pub(crate) fn broken(&self) -> Option<Fault> {
        lock(&self.broken).clone()
    }

    /// Stops the input. Records inside the network continue.
    pub(crate) fn stop(&self) {
        drop(lock(&self.stopper).take());
    }

    /// Shuts the network down, because its output has no reader.
    pub(crate) fn abandon_here(&self) {
        // Relaxed: an entity that reads the flag late only does unnecessary work.
        self.abandoned.store(true, Ordering::Relaxed);
        self.stop();
    }

    /// Shuts the network down on all ranks.
    pub(crate) fn abandon(&self) {
        self.abandon_here();
        if let Some(node) = &self.node {
            node.abandon();
        }
    }

    /// Whether the network is shutting down without a reader.
    #[inline]
    pub(crate) fn is_abandoned(&self) -> bool {
        // Relaxed: as in `abandon`.
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Counts records that a synchrocell holds at its end.
    pub(crate) fn keep(&self, records: usize) {
        // Relaxed: like the count of faults.
        self.kept.fetch_add(records, Ordering::Relaxed);
    }

    pub(crate) fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    pub(crate) fn faults(&self) -> (Vec<Fault>, usize) {
        let faults = lock(&self.faults).clone();
        (faults, self.fault_count.load(Ordering::Relaxed))
    }

    /// Returns a number that is unique among the feedback loops of this run, on all ranks.
    pub(crate) fn loop_number(&self) -> u64 {
        // Relaxed: only uniqueness matters.
        match &self.node {
            None => self.loops.fetch_add(1, Ordering::Relaxed),
            Some(node) => node.number(),
        }
    }
}
