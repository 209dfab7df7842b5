//! Lines: processing of a record inside one task, up to the point where the record leaves the task.

use std::sync::Arc;

use corebeat_lpel::Writer;

use super::away::Away;
use super::context::Context;
use super::fork::Fork;
use super::function::Deferred;
use super::message::{Mark, Message};
use super::network::Exit;
use super::split::Spread;
use super::star::Stage;
use super::step::{self, Step};
use crate::record::Record;

/// Steps, and the end of the line.
///
/// ```text
///   record --> [filter] --> [synchrocell] --> a stream, or a choice of lines
/// ```
pub(crate) struct Line {
    /// In reverse order, because lines are built from their end.
    steps: Vec<Step>,
    end: End,
}

/// End of a line.
pub(crate) enum End {
    Stream(Writer<Message>),
    /// A box whose task does not exist yet.
    Deferred(Box<Deferred>),
    /// A choice of several lines.
    Fork(Box<Fork>),
    /// The exit of a star, or its next stage.
    Stage(Box<Stage>),
    /// A line for each value of a tag.
    Spread(Box<Spread>),
    /// A part on another rank.
    Away(Box<Away>),
    /// The output of a network on several ranks.
    Exit(Box<Exit>),
}

impl From<End> for Line {
    fn from(end: End) -> Line {
        Line { steps: Vec::new(), end }
    }
}

impl Line {
    /// Puts these steps, in reverse order, before the line.
    pub(crate) fn after(mut self, steps: Vec<Step>) -> Line {
        self.steps.extend(steps);
        self
    }

    /// Number of steps.
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
        step::remove_spent(steps);
    }

    /// Passes a barrier on. The steps hold no records.
    pub(crate) fn mark(&mut self, mark: Mark, context: &Arc<Context>) {
        for step in self.steps.iter_mut().rev() {
            if step.takes(mark) {
                return;
            }
        }
        match &mut self.end {
            End::Stream(stream) => send(stream, Message::Mark(mark)),
            End::Deferred(deferred) => deferred.mark(mark, context),
            End::Fork(fork) => fork.mark(mark, context),
            End::Stage(stage) => stage.mark(mark, context),
            End::Spread(spread) => spread.mark(mark, context),
            End::Away(away) => away.mark(mark),
            End::Exit(exit) => exit.send(Message::Mark(mark)),
        }
    }

    /// Writes to the stream at the end of the line.
    pub(crate) fn send(&mut self, message: Message) {
        match &mut self.end {
            End::Stream(stream) => send(stream, message),
            _ => unreachable!("a line without boxes ends with a stream"),
        }
    }

    /// Returns the stage if the line consists only of a stage.
    pub(crate) fn stage(&mut self) -> Option<&mut Stage> {
        match &mut self.end {
            End::Stage(stage) if self.steps.is_empty() => Some(stage),
            _ => None,
        }
    }

    /// Returns the fork if the line consists only of a fork.
    pub(crate) fn fork(&mut self) -> Option<&mut Fork> {
        match &mut self.end {
            End::Fork(fork) if self.steps.is_empty() => Some(fork),
            _ => None,
        }
    }

    /// Whether the reader of the line's stream has gone.
    pub(crate) fn is_closed(&self) -> bool {
        match &self.end {
            End::Stream(stream) => stream.is_closed(),
            End::Exit(exit) => exit.is_closed(),
            _ => false,
        }
    }
}

impl End {
    fn record(&mut self, record: Record, context: &Arc<Context>) {
        match self {
            End::Stream(stream) => send(stream, Message::Record(record)),
            End::Deferred(deferred) => {
                if let Some(mut stream) = deferred.start(&record, context) {
                    send(&mut stream, Message::Record(record));
                    *self = End::Stream(stream);
                }
            }
            End::Fork(fork) => fork.record(record, context),
            End::Stage(stage) => stage.record(record, context),
            End::Spread(spread) => spread.record(record, context),
            End::Away(away) => away.record(record, context),
            End::Exit(exit) => exit.send(Message::Record(record)),
        }
    }
}

/// Writes a message. If the reader has gone, the network is shutting down, and the message is lost.
#[inline]
pub(crate) fn send<T: Send + 'static>(stream: &mut Writer<T>, message: T) {
    let _ = stream.write(message);
}
