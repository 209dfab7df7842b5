//! Fields whose data remains on another rank until a box reads it.
//!
//! A reference has a share of the weight of its field, and the owner keeps the field while any
//! weight is out (weighted reference counting: Bevan, *Distributed garbage collection using
//! reference counting*, 1987). A rank that passes a reference on gives half of its weight to the
//! other rank, without a message to the owner. A weight that returns, with a request for the data
//! or with the drop of the last copy on a rank, reduces the weight that is out. Weights only move
//! and return, so the order of messages between different pairs of ranks does not matter, and the
//! owner drops the field exactly when no reference exists.
//!
//! ```text
//!   owner: field, weight 2^32 out      A: 2^31      B: 2^31
//!                                      | reads      | drops
//!   owner: -2^31, data to A  <---------'            |
//!   owner: -2^31, frees the field  <----------------'
//! ```

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use corebeat_lpel::{Writer, stream};

use super::frame::Reference;
use super::node::Node;
use super::stall;
use crate::record::Record;
use crate::value::{Array, Value};

/// Weight of a new reference: it can be passed on 32 times in a row. A reference that cannot be
/// divided any more is replaced by its data.
pub(crate) const WEIGHT: u64 = 1 << 32;

/// A field whose data is on another rank. All copies of a record on one rank share it.
pub(crate) struct Absent {
    node: Weak<Node>,
    owner: u32,
    field: u64,
    state: Mutex<State>,
}

enum State {
    /// The data is on the owner's rank.
    Away {
        weight: u64,
    },
    /// The data was requested. These tasks wait for it.
    Requested(Vec<Writer<()>>),
    Here(Arc<Array>),
    /// The run has ended before the data arrived.
    Ended,
}

/// Content of a message about a field that a rank passes on.
pub(crate) enum Share {
    Reference(Reference),
    Data(Arc<Array>),
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|e| e.into_inner())
}

impl Absent {
    pub(crate) fn value(node: &Arc<Node>, reference: Reference) -> Value {
        Value::native(Arc::new(Absent {
            node: Arc::downgrade(node),
            owner: reference.owner,
            field: reference.field,
            state: Mutex::new(State::Away { weight: reference.weight }),
        }))
    }

    /// The field, if the data of this value was on another rank when the value arrived.
    pub(crate) fn of(value: &Value) -> Option<&Arc<Absent>> {
        match value {
            Value::Native(_) => value.downcast_ref(),
            _ => None,
        }
    }

    /// Requests the data, unless it is here or was requested.
    fn request(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let State::Away { weight } = *state else { return };
        *state = State::Requested(Vec::new());
        drop(state);
        match self.node.upgrade() {
            Some(node) => node.request(self.owner, self.field, weight, self.clone()),
            None => self.end(),
        }
    }

    /// Waits for the requested data. Returns `None` if the run ends before the data arrives.
    fn wait(&self) -> Option<Arc<Array>> {
        let mut state = lock(&self.state);
        let arrived = match &mut *state {
            State::Here(array) => return Some(array.clone()),
            State::Away { .. } | State::Ended => return None,
            State::Requested(waiting) => {
                let (writer, reader) = stream(1);
                let from_outside = self.node.upgrade().is_some_and(|node| node.is_outside());
                waiting.push(if from_outside { writer.outside() } else { writer });
                reader
            }
        };
        drop(state);
        arrived.signals(stall::DATA).read()?;
        match &*lock(&self.state) {
            State::Here(array) => Some(array.clone()),
            _ => None,
        }
    }

    /// Stores the data, and wakes the tasks that wait for it.
    pub(crate) fn arrive(&self, array: Arc<Array>) {
        let before = std::mem::replace(&mut *lock(&self.state), State::Here(array));
        if let State::Requested(waiting) = before {
            for mut waiting in waiting {
                // A task that was cancelled does not read.
                let _ = waiting.try_write(());
            }
        }
    }

    /// Ends the tasks' waiting for data that does not arrive any more.
    pub(crate) fn end(&self) {
        // The drop of their streams wakes the tasks.
        drop(std::mem::replace(&mut *lock(&self.state), State::Ended));
    }

    /// Takes a share of the reference for another rank, or the data if it is here or if the
    /// reference cannot be divided. Returns `None` if the run ends before the data arrives.
    pub(crate) fn share(self: &Arc<Self>) -> Option<Share> {
        if let State::Away { weight } = &mut *lock(&self.state)
            && *weight > 1
        {
            let half = *weight / 2;
            *weight -= half;
            let (owner, field) = (self.owner, self.field);
            return Some(Share::Reference(Reference { owner, field, weight: half }));
        }
        self.request();
        self.wait().map(Share::Data)
    }
}

/// Returns the weight to the owner.
impl Drop for Absent {
    fn drop(&mut self) {
        if let State::Away { weight } = *lock(&self.state)
            && let Some(node) = self.node.upgrade()
        {
            node.release(self.owner, self.field, weight);
        }
    }
}

/// Replaces references by their data, which is requested for all of them at once. Blocks the
/// calling task or thread until the data has arrived.
///
/// # Errors
///
/// Returns the reason if the run ends before the data arrives.
pub(crate) fn fetch(values: &mut [Value]) -> Result<(), &'static str> {
    values.iter().filter_map(Absent::of).for_each(Absent::request);
    for value in values {
        if let Some(absent) = Absent::of(value) {
            let array = absent.wait().ok_or("the run ended before the data of a field arrived")?;
            *value = Value::Array(array);
        }
    }
    Ok(())
}

/// Whether a record has a field whose data is on another rank.
pub(crate) fn is_partial(record: &Record) -> bool {
    record.values().iter().any(|value| Absent::of(value).is_some())
}
