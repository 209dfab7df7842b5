//! Observers: who is shown the records that come to a place.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::context::Context;
use crate::record::Record;

/// Where records are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Before they go into a box or a net.
    Before,
    /// After they come out.
    After,
}

/// A place that is watched, and who watches.
#[derive(Clone)]
pub(crate) struct Watch {
    name: Arc<str>,
    position: Position,
    see: Arc<dyn Fn(&Record) + Send + Sync>,
}

impl Watch {
    pub(crate) fn new(
        name: &str,
        position: Position,
        see: impl Fn(&Record) + Send + Sync + 'static,
    ) -> Watch {
        Watch { name: name.into(), position, see: Arc::new(see) }
    }

    pub(crate) fn is_of(&self, name: &str) -> bool {
        &*self.name == name
    }

    pub(crate) fn is(&self, name: &str, position: Position) -> bool {
        self.is_of(name) && self.position == position
    }

    /// Shows the record. That who watches panics is told, and is no fault of the box or net.
    pub(crate) fn see(&self, record: &Record, context: &Context) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.see)(record))) {
            if corebeat_lpel::ends_task(&*payload) {
                resume_unwind(payload);
            }
            context.failure(&format!("an observer of {}", self.name), format_args!("it panicked"));
        }
    }
}
