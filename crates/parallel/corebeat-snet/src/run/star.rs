//! Stages of a star with boxes.
//!
//! ```text
//!   stage 0 --> operand --> stage 1 --> operand --> stage 2 ...   created by the first record
//!      |                       |                       |
//!      +------> collector <----+-----------------------+           a stage announces the next one
//! ```
//!
//! A stage is the end of the operand's line before it, so a star of one box has one task for each
//! stage. If measurements show that the boxes of the operand are cheaper than a task's dispatch,
//! several stages share a task. If the operand is also stateless, these stages share one replica,
//! and a record cycles through it.

use std::sync::Arc;

use corebeat_lpel::{Reader, Writer};

use super::build::Builder;
use super::code::StarCode;
use super::context::Context;
use super::fork::Fork;
use super::guard::Fit;
use super::line::{End, Line, send};
use super::message::{Mark, Message};
use super::route::Routes;
use super::step::{self, Step};
use crate::record::Record;

/// Boxes that share a task, in addition to those of the first stage.
const JOINED_MAX: usize = 15;

/// Decision point before each replica: a record leaves or continues.
pub(crate) struct Stage {
    code: Arc<StarCode>,
    routes: Routes<Fit>,
    /// Stream to the collector.
    exit: Writer<Message>,
    next: Option<Line>,
    place: Option<usize>,
    /// Boxes before this stage in the same task.
    joined: usize,
    /// Number of further stages that this one contains, and the replica between them.
    rounds: usize,
    replica: Option<Box<Replica>>,
    order: Place,
    /// In a deterministic star: whether records of the current group continued.
    deeper: bool,
}

/// Operand between the stages that one stage contains.
struct Replica {
    steps: Vec<Step>,
    /// Replica for a record that leaves while a box of this replica is still running.
    inner: Option<Box<Replica>>,
}

/// Role of a stage in the order of a star.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// The star is not deterministic.
    Any,
    /// First stage of a deterministic star.
    First,
    /// Another stage of a deterministic star.
    Later,
}

/// Creates a stream to the collector. The collector of a deterministic star reads the output of one
/// stage before the output of the next, so the stream of the next stage must not be bounded.
fn exit(code: &StarCode, context: &Context) -> (Writer<Message>, Reader<Message>) {
    if code.deterministic { context.growing_stream() } else { context.stream() }
}

impl Stage {
    /// Creates the first stage, and its stream to the collector.
    pub(crate) fn first(
        code: Arc<StarCode>,
        place: Option<usize>,
        context: &Context,
    ) -> (Stage, Reader<Message>) {
        let (exit, collected) = exit(&code, context);
        let order = if code.deterministic { Place::First } else { Place::Any };
        (Stage::new(code, exit, place, order), collected)
    }

    fn new(
        code: Arc<StarCode>,
        exit: Writer<Message>,
        place: Option<usize>,
        order: Place,
    ) -> Stage {
        Stage {
            code,
            routes: Routes::default(),
            exit,
            next: None,
            place,
            joined: 0,
            rounds: 0,
            replica: None,
            order,
            deeper: false,
        }
    }

    #[inline]
    pub(crate) fn record(&mut self, record: Record, context: &Arc<Context>) {
        let mut replica = self.replica.take(); // `pass` borrows the stage as well
        self.pass(record, &mut replica, self.rounds, context);
        self.replica = replica;
        if self.order == Place::First {
            self.close(context);
        }
    }

    /// Passes a record through this stage and `rounds` further stages that it contains.
    fn pass(
        &mut self,
        mut record: Record,
        replica: &mut Option<Box<Replica>>,
        mut rounds: usize,
        context: &Arc<Context>,
    ) {
        loop {
            match self.code.exits.fits(&mut self.routes, &record, context) {
                Some(true) => return send(&mut self.exit, Message::Record(record)),
                Some(false) if rounds == 0 => return self.proceed(record, context),
                Some(false) => {}
                None => return,
            }
            rounds -= 1;
            let Replica { steps, inner } = &mut **replica.get_or_insert_with(|| {
                let steps = step::steps(&self.code.operand, context);
                Box::new(Replica { steps, inner: None })
            });
            let mut again = |record| self.pass(record, inner, rounds, context);
            match step::apply(steps, record, context, &mut again) {
                Some(last) => record = last,
                None => return,
            }
        }
    }

    /// Passes a record to the next replica.
    #[inline]
    fn proceed(&mut self, record: Record, context: &Arc<Context>) {
        self.deeper = true;
        match &mut self.next {
            Some(next) => next.record(record, context),
            None => self.grow(record, context),
        }
    }

    /// Whether a record leaves the star at this stage. Returns `None` after a fault.
    pub(crate) fn exits(&mut self, record: &Record, context: &Arc<Context>) -> Option<bool> {
        self.code.exits.fits(&mut self.routes, record, context)
    }

    /// Returns the choice if it is all that remains of the next replica, because its synchrocells
    /// have merged. Records of this stage can then bypass it, if they pass the choice first.
    ///
    /// In a deterministic star, this holds only `after_mark`, when the collector has all outputs of
    /// this stage, and not for the first stage, which marks the end of each record.
    pub(crate) fn remaining_fork(
        &mut self,
        after_mark: bool,
        context: &Context,
    ) -> Option<&mut Fork> {
        let removable = match self.order {
            Place::Any => true,
            Place::First => false,
            Place::Later => after_mark,
        };
        let tail = self.code.tail.as_ref().filter(|_| removable)?;
        let fork = self.next.as_mut()?.fork().filter(|fork| fork.is_of(tail))?;
        (!self.code.operand.tail_is_watched(context)).then_some(fork)
    }

    /// Ends the group of one record: the collector may read the next stage.
    fn close(&mut self, context: &Arc<Context>) {
        let deeper = std::mem::take(&mut self.deeper) && self.next.is_some();
        send(&mut self.exit, Message::Done { deeper });
        if deeper {
            self.next.as_mut().expect("`deeper` implies a next stage").mark(Mark::Group, context);
        }
    }

    pub(crate) fn mark(&mut self, mark: Mark, context: &Arc<Context>) {
        match self.order {
            Place::Later => self.close(context),
            Place::First => send(&mut self.exit, Message::Mark(mark)),
            Place::Any => {
                send(&mut self.exit, Message::Mark(mark));
                if let Some(next) = &mut self.next {
                    next.mark(mark, context);
                }
            }
        }
    }

    /// Creates the next replica for this record. Reports a fault if that fails.
    #[cold]
    fn grow(&mut self, record: Record, context: &Arc<Context>) {
        let (exit, collected) = exit(&self.code, context);
        send(&mut self.exit, Message::Join(Box::new(collected)));
        let order = if self.order == Place::Any { Place::Any } else { Place::Later };
        let mut stage = Stage::new(self.code.clone(), exit, self.place, order);
        let shareable = self.code.stateless && order == Place::Any;
        match self.code.operand.cheap_boxes() {
            Some(boxes) if shareable => stage.rounds = JOINED_MAX / boxes,
            Some(boxes) if self.joined + boxes <= JOINED_MAX => stage.joined = self.joined + boxes,
            _ => {}
        }
        let joined = stage.joined > 0;
        let end = Line::from(End::Stage(Box::new(stage)));
        let line = match joined {
            true => Ok(end.after(step::steps(&self.code.operand, context))),
            false => Builder { context, place: self.place, deferred: false }
                .line(&self.code.operand, end),
        };
        match line {
            Ok(line) => self.next.insert(line).record(record, context),
            Err(why) => {
                context.fault("a star", format_args!("cannot create a stage: {why}"), &record)
            }
        }
    }
}
