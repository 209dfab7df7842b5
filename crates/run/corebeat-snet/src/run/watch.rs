//! Observers: who is shown the records that come to a place.

use std::sync::Arc;

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

    pub(crate) fn is(&self, name: &str, position: Position) -> bool {
        &*self.name == name && self.position == position
    }

    pub(crate) fn see(&self, record: &Record) {
        (self.see)(record);
    }
}
