//! The stages of a star with boxes.
//!
//! ```text
//!   stage 0 --> operand --> stage 1 --> operand --> stage 2 ...     each made when the first record gets there
//!      |                       |                       |
//!      +------> collector <----+-----------------------+            told of each new stage by the one before
//! ```
//!
//! A stage is the end of the line that the operand before it ends with, so a star of one box has one task a stage. Where the
//! boxes of the operand have turned out to be cheaper than a task's turn, several stages share a task. And where the operand keeps
//! nothing, one replica does for all of these, and a record goes round through it.

use std::sync::Arc;

use corebeat_lpel::{Reader, Writer, growing_stream};

use super::build::Maker;
use super::code::StarCode;
use super::context::Context;
use super::fork::Fork;
use super::guard::Fit;
use super::line::{End, Line, send};
use super::message::{Mark, Message};
use super::step::{self, Step};
use super::way::Ways;
use crate::record::Record;

/// Boxes after the first stage's that share a task.
const JOINED_MAX: usize = 15;

/// What stands before each replica: lets records leave, or go on.
pub(crate) struct Stage {
    code: Arc<StarCode>,
    ways: Ways<Fit>,
    /// To the collector.
    exit: Writer<Message>,
    next: Option<Line>,
    place: Option<usize>,
    /// Boxes before this stage that share its task.
    joined: usize,
    /// How many more stages are in this one, and what stands between them.
    rounds: usize,
    replica: Option<Box<Replica>>,
    order: Place,
    /// In a deterministic star: whether the record of now has caused some that went on.
    deeper: bool,
}

/// The operand between stages that are in one.
struct Replica {
    steps: Vec<Step>,
    /// Where a record goes on that comes out while a box here is still at work.
    inner: Option<Box<Replica>>,
}

/// Where a stage stands, as far as order matters.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// The star is not deterministic.
    Any,
    /// The first one of a deterministic star.
    First,
    /// Another one of a deterministic star.
    Later,
}

/// A stream to the collector. The collector of a deterministic star reads what leaves at one stage before what leaves at
/// the next, so the next one must be able to go on meanwhile, however much leaves there.
fn exit(code: &StarCode, context: &Context) -> (Writer<Message>, Reader<Message>) {
    if code.deterministic { growing_stream(context.capacity) } else { context.stream() }
}

impl Stage {
    /// The first stage, and its stream to the collector.
    pub(crate) fn first(
        code: Arc<StarCode>,
        place: Option<usize>,
        context: &Context,
    ) -> (Stage, Reader<Message>) {
        let (exit, collected) = exit(&code, context);
        let order = if code.deterministic { Place::First } else { Place::Any };
        (Stage::new(code, exit, place, order), collected)
    }

    fn new(code: Arc<StarCode>, exit: Writer<Message>, place: Option<usize>, order: Place) -> Stage {
        Stage {
            code,
            ways: Ways::default(),
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
        let mut replica = self.replica.take(); // which gives records back to the stage
        self.pass(record, &mut replica, self.rounds, context);
        self.replica = replica;
        if self.order == Place::First {
            self.close(context);
        }
    }

    /// Takes a record through a stage, and so many more that are in this one.
    fn pass(
        &mut self,
        mut record: Record,
        replica: &mut Option<Box<Replica>>,
        mut rounds: usize,
        context: &Arc<Context>,
    ) {
        loop {
            match self.code.exits.fits(&mut self.ways, &record, context) {
                Some(true) => return send(&mut self.exit, Message::Record(record)),
                Some(false) if rounds == 0 => return self.go_on(record, context),
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

    /// To the next replica.
    #[inline]
    fn go_on(&mut self, record: Record, context: &Arc<Context>) {
        self.deeper = true;
        match &mut self.next {
            Some(next) => next.record(record, context),
            None => self.grow(record, context),
        }
    }

    /// Whether a record would leave the star here. `None`: it does not go on at all, and that has been told.
    pub(crate) fn lets_out(&mut self, record: &Record, context: &Arc<Context>) -> Option<bool> {
        self.code.exits.fits(&mut self.ways, record, context)
    }

    /// The choice that is all that is left of the replica after this stage: its synchrocells have fired. What comes to this
    /// stage could as well come to the next one, if it is shown to the choice before.
    ///
    /// In a deterministic star only `after_mark`, when the collector has been told of all that leaves here; and not the first
    /// one, which tells where a record's end is.
    pub(crate) fn rest(&mut self, after_mark: bool) -> Option<&mut Fork> {
        let may_go = match self.order {
            Place::Any => true,
            Place::First => false,
            Place::Later => after_mark,
        };
        let tail = self.code.tail.as_ref().filter(|_| may_go)?;
        self.next.as_mut()?.fork().filter(|fork| fork.is_of(tail))
    }

    /// All of one record has been through this stage: the collector may look at the next one.
    fn close(&mut self, context: &Arc<Context>) {
        let deeper = std::mem::take(&mut self.deeper) && self.next.is_some();
        send(&mut self.exit, Message::Done { deeper });
        if deeper {
            self.next.as_mut().expect("there is a next one").mark(Mark::Group, context);
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

    /// Makes the next replica, for this record. That may fail, which is a fault.
    #[cold]
    fn grow(&mut self, record: Record, context: &Arc<Context>) {
        let (exit, collected) = exit(&self.code, context);
        send(&mut self.exit, Message::Join(Box::new(collected)));
        let order = if self.order == Place::Any { Place::Any } else { Place::Later };
        let mut stage = Stage::new(self.code.clone(), exit, self.place, order);
        let alike = self.code.stateless && order == Place::Any;
        match self.code.operand.cheap_boxes() {
            Some(boxes) if alike => stage.rounds = JOINED_MAX / boxes,
            Some(boxes) if self.joined + boxes <= JOINED_MAX => stage.joined = self.joined + boxes,
            _ => {}
        }
        let joined = stage.joined > 0;
        let end = Line::from(End::Stage(Box::new(stage)));
        let line = match joined {
            true => Ok(end.after(step::steps(&self.code.operand, context))),
            false => Maker { context, place: self.place, asleep: false }.line(&self.code.operand, end),
        };
        match line {
            Ok(line) => self.next.insert(line).record(record, context),
            Err(why) => context.fault("a star", format_args!("no room for one more stage: {why}"), &record),
        }
    }
}
