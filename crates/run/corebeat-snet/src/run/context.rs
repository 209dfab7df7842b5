//! What all entities of a running network know.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use corebeat_lpel::{Reader, STACK_MAX, Writer, stream};

use super::message::Message;
use super::network::{Fault, OnFault, Settings, Tell};
use super::step::Step;
use super::watch::{Position, Watch};
use crate::record::Record;

/// Faults that are kept to be told at the end. More are only counted.
pub(crate) const FAULTS_MAX: usize = 1000;

/// Bytes of stack for each level of a network: entities in entities call each other. Builds without optimisation take much
/// more.
const LEVEL_STACK: usize = if cfg!(debug_assertions) { 32 << 10 } else { 4 << 10 };

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
    kept: AtomicUsize,
    loops: AtomicU64,
    /// Dropped when the network is to stop. Nothing is ever written to it.
    stopper: Mutex<Option<Writer<Message>>>,
    /// Whether nobody wants what comes out.
    unwanted: AtomicBool,
}

impl Context {
    /// Also gives the end of the stream that ends when the network is stopped.
    pub(crate) fn new(settings: &Settings, depth: usize, workers: usize) -> (Context, Reader<Message>) {
        let (stopper, stop) = stream(1);
        let context = Context {
            capacity: settings.capacity,
            stack_size: settings.stack_size.saturating_add(depth * LEVEL_STACK).min(STACK_MAX),
            boxes_last: settings.boxes_last,
            workers,
            on_fault: settings.on_fault,
            tell: settings.tell.clone(),
            watches: settings.watches.clone(),
            faults: Mutex::default(),
            fault_count: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            loops: AtomicU64::new(0),
            stopper: Mutex::new(Some(stopper)),
            unwanted: AtomicBool::new(false),
        };
        (context, stop)
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
        drop(self.stopper.lock().unwrap_or_else(|e| e.into_inner()).take());
    }

    /// Nobody takes what comes out: the network is to come down.
    pub(crate) fn abandon(&self) {
        // Relaxed: who sees it later only does more in vain.
        self.unwanted.store(true, Ordering::Relaxed);
        self.stop();
    }

    /// Whether all that is still done is in vain.
    #[inline]
    pub(crate) fn is_abandoned(&self) -> bool {
        // Relaxed: as in `abandon`.
        self.unwanted.load(Ordering::Relaxed)
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
