//! Observers: functions that receive the records at a position of the network.

use std::sync::Arc;

use super::context::Context;
use crate::body::catch;
use crate::record::Record;

/// Position of an observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Records before they enter a box or a net.
    Before,
    /// Records after they leave it.
    After,
}

/// An observer and its position.
#[derive(Clone)]
pub(crate) struct Watch {
    name: Arc<str>,
    position: Position,
    observer: Arc<dyn Fn(&Record) + Send + Sync>,
}

impl Watch {
    pub(crate) fn new(
        name: &str,
        position: Position,
        observer: impl Fn(&Record) + Send + Sync + 'static,
    ) -> Watch {
        Watch { name: name.into(), position, observer: Arc::new(observer) }
    }

    pub(crate) fn is_of(&self, name: &str) -> bool {
        &*self.name == name
    }

    pub(crate) fn is(&self, name: &str, position: Position) -> bool {
        self.is_of(name) && self.position == position
    }

    /// Calls the observer. A panic of the observer is reported, and the record continues.
    pub(crate) fn notify(&self, record: &Record, context: &Context) {
        let mut whole = None;
        if context.node.is_some() {
            let whole = whole.insert(record.clone());
            if context.fetch(&format!("an observer of {}", self.name), whole).is_none() {
                return;
            }
        }
        if let Err(why) = catch(|| (self.observer)(whole.as_ref().unwrap_or(record))) {
            context.failure(
                &format!("an observer of {}", self.name),
                format_args!("the observer panicked: {why}"),
            );
        }
    }
}
