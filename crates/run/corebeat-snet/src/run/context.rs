//! What all entities of a running network know.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use corebeat_lpel::{Reader, Writer, stream};

use super::message::Message;
use super::network::{Fault, OnFault, Settings, Tell};
use super::step::Step;
use super::watch::{Position, Watch};
use crate::record::Record;

/// Faults that are kept to be told at the end. More are only counted.
pub(crate) const FAULTS_MAX: usize = 1000;

/// One run of a network.
pub(crate) struct Context {
    /// Records that a stream has room for.
    pub(crate) capacity: usize,
    /// Bytes of a task's stack.
    pub(crate) stack_size: usize,
    /// Whether boxes give way to all else (Prokesch 2011, section 6.2.2).
    pub(crate) boxes_last: bool,
    /// Workers of the runtime.
    pub(crate) workers: usize,
    on_fault: OnFault,
    tell: Option<Tell>,
    watches: Vec<Watch>,
    faults: Mutex<Vec<Fault>>,
    fault_count: AtomicUsize,
    stopped: AtomicBool,
    kept: AtomicUsize,
    loops: AtomicU64,
}

impl Context {
    pub(crate) fn new(settings: &Settings, workers: usize) -> Context {
        Context {
            capacity: settings.capacity,
            stack_size: settings.stack_size,
            boxes_last: settings.boxes_last,
            workers,
            on_fault: settings.on_fault,
            tell: settings.tell.clone(),
            watches: settings.watches.clone(),
            faults: Mutex::default(),
            fault_count: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            kept: AtomicUsize::new(0),
            loops: AtomicU64::new(0),
        }
    }

    /// A stream between entities.
    pub(crate) fn stream(&self) -> (Writer<Message>, Reader<Message>) {
        stream(self.capacity)
    }

    /// The steps that show records to who watches this place. The last one comes first.
    pub(crate) fn watch(&self, name: &str, position: Position) -> Vec<Step> {
        let watches = self.watches.iter().rev().filter(|w| w.is(name, position));
        watches.map(|w| Step::Watch(w.clone())).collect()
    }

    /// A record could not go on. It is lost; all others are not.
    #[cold]
    pub(crate) fn fault(&self, entity: &str, message: fmt::Arguments<'_>, record: &Record) {
        self.tell(Fault {
            entity: entity.into(),
            message: message.to_string(),
            record: Some(record.clone()),
        });
    }

    /// Something else went wrong.
    #[cold]
    pub(crate) fn failure(&self, entity: &str, message: fmt::Arguments<'_>) {
        self.tell(Fault { entity: entity.into(), message: message.to_string(), record: None });
    }

    fn tell(&self, fault: Fault) {
        if let OnFault::Stop = self.on_fault {
            self.stop();
        }
        if let Some(tell) = &self.tell {
            tell(&fault);
        }
        // Relaxed: read when the network has come down, after its streams have ended.
        self.fault_count.fetch_add(1, Ordering::Relaxed);
        let mut faults = self.faults.lock().unwrap_or_else(|e| e.into_inner());
        if faults.len() < FAULTS_MAX {
            faults.push(fault);
        }
    }

    /// No more records are taken in; those inside go on.
    pub(crate) fn stop(&self) {
        // Relaxed: a hint; nothing is read on the strength of it.
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// A synchrocell ended with this many records in it.
    pub(crate) fn keep(&self, records: usize) {
        // Relaxed: as the count of faults.
        self.kept.fetch_add(records, Ordering::Relaxed);
    }

    pub(crate) fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    pub(crate) fn faults(&self) -> (Vec<Fault>, usize) {
        let faults = self.faults.lock().unwrap_or_else(|e| e.into_inner()).clone();
        (faults, self.fault_count.load(Ordering::Relaxed))
    }

    /// A number for a feedback loop, which no other loop of this run has.
    pub(crate) fn loop_number(&self) -> u64 {
        // Relaxed: only the number counts.
        self.loops.fetch_add(1, Ordering::Relaxed)
    }
}
