//! Lines: what a task does with its records, from where it has them to where it gives them away.

use std::sync::Arc;

use corebeat_lpel::Writer;

use super::context::Context;
use super::fork::Fork;
use super::function::Asleep;
use super::message::{Mark, Message};
use super::split::Spread;
use super::star::Stage;
use super::step::{self, Step};
use crate::record::Record;

/// Steps that are done at once, and where it ends.
///
/// ```text
///   record --> [filter] --> [synchrocell] --> a stream, or a choice of lines
/// ```
pub(crate) struct Line {
    /// The first one is the last: lines are built from their end.
    steps: Vec<Step>,
    end: End,
}

/// Where records leave a line.
pub(crate) enum End {
    Stream(Writer<Message>),
    /// A box that has had no record yet.
    Asleep(Box<Asleep>),
    /// One of several lines.
    Fork(Box<Fork>),
    /// Out of a star, or into its next stage.
    Stage(Box<Stage>),
    /// A line for each value of a tag.
    Spread(Box<Spread>),
}

impl From<End> for Line {
    fn from(end: End) -> Line {
        Line { steps: Vec::new(), end }
    }
}

impl Line {
    /// With these steps, of which the last one is done first, before all others.
    pub(crate) fn after(mut self, steps: Vec<Step>) -> Line {
        self.steps.extend(steps);
        self
    }

    /// How many steps it has.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    #[inline]
    pub(crate) fn record(&mut self, record: Record, context: &Arc<Context>) {
        match self {
            Line { steps, end: End::Stream(stream) } if steps.is_empty() => {
                send(stream, Message::Record(record))
            }
            Line { steps, end } if steps.is_empty() => end.record(record, context),
            _ => self.step(record, context),
        }
    }

    fn step(&mut self, record: Record, context: &Arc<Context>) {
        let Line { steps, end } = self;
        step::push(steps, record, context, &mut |record| end.record(record, context));
        step::forget_spent(steps);
    }

    /// Passes a barrier on. The steps have nothing under way.
    pub(crate) fn mark(&mut self, mark: Mark, context: &Arc<Context>) {
        for step in self.steps.iter_mut().rev() {
            if step.takes(mark) {
                return;
            }
        }
        match &mut self.end {
            End::Stream(stream) => send(stream, Message::Mark(mark)),
            End::Asleep(asleep) => asleep.mark(mark, context),
            End::Fork(fork) => fork.mark(mark, context),
            End::Stage(stage) => stage.mark(mark, context),
            End::Spread(spread) => spread.mark(mark, context),
        }
    }

    /// Writes to the stream it ends with.
    pub(crate) fn send(&mut self, message: Message) {
        match &mut self.end {
            End::Stream(stream) => send(stream, message),
            _ => unreachable!("a line without boxes ends with a stream"),
        }
    }

    /// The stage that is all there is to it.
    pub(crate) fn stage(&mut self) -> Option<&mut Stage> {
        match &mut self.end {
            End::Stage(stage) if self.steps.is_empty() => Some(stage),
            _ => None,
        }
    }

    /// The choice that is all there is to it.
    pub(crate) fn fork(&mut self) -> Option<&mut Fork> {
        match &mut self.end {
            End::Fork(fork) if self.steps.is_empty() => Some(fork),
            _ => None,
        }
    }

    /// Whether nobody is left who would take records.
    pub(crate) fn is_closed(&self) -> bool {
        match &self.end {
            End::Stream(stream) => stream.is_closed(),
            _ => false,
        }
    }
}

impl End {
    fn record(&mut self, record: Record, context: &Arc<Context>) {
        match self {
            End::Stream(stream) => send(stream, Message::Record(record)),
            End::Asleep(asleep) => {
                if let Some(mut stream) = asleep.wake(&record, context) {
                    send(&mut stream, Message::Record(record));
                    *self = End::Stream(stream);
                }
            }
            End::Fork(fork) => fork.record(record, context),
            End::Stage(stage) => stage.record(record, context),
            End::Spread(spread) => spread.record(record, context),
        }
    }
}

/// Writes. If nobody reads any more, the network is coming down, and the message is lost with it.
#[inline]
pub(crate) fn send<T: Send + 'static>(stream: &mut Writer<T>, message: T) {
    let _ = stream.write(message);
}
