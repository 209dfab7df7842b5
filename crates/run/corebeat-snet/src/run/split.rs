//! The split point of a split with boxes.

use std::collections::HashMap;
use std::sync::Arc;

use corebeat_lpel::Writer;

use super::build::Maker;
use super::code::SplitCode;
use super::context::Context;
use super::line::{End, Line, send};
use super::message::{Mark, Message, Order};
use crate::record::Record;

/// Replicas of a split that keep nothing between records, and are there at a time. One more, and the one that had no
/// record for longest goes, to be made anew if it is needed again.
pub(crate) const REPLICAS_MAX: usize = 1024;

impl SplitCode {
    /// What the tag holds. A record without it is a fault.
    pub(crate) fn value(&self, record: &Record, context: &Context) -> Option<i32> {
        let value = record.tag(self.tag);
        if value.is_none() {
            context.fault("a split", format_args!("it takes records with {}", self.tag), record);
        }
        value
    }
}

/// Gives each record to the line for its value.
pub(crate) struct Spread {
    code: Arc<SplitCode>,
    replicas: HashMap<i32, Replica>,
    /// Records seen: the time by which replicas are old.
    seen: u64,
    to: Collector,
    place: Option<usize>,
}

struct Replica {
    line: Line,
    /// Its number for the collector of a deterministic split.
    number: usize,
    used: u64,
}

/// How the collector is told.
pub(crate) enum Collector {
    Any(Writer<Message>),
    /// With the numbers that are free, and the first that was never used.
    Ordered(Writer<Order>, Vec<usize>, usize),
}

impl Spread {
    pub(crate) fn new(code: Arc<SplitCode>, to: Collector, place: Option<usize>) -> Spread {
        Spread { code, replicas: HashMap::new(), seen: 0, to, place }
    }

    pub(crate) fn record(&mut self, record: Record, context: &Arc<Context>) {
        let Some(value) = self.code.value(&record, context) else { return };
        if !self.replicas.contains_key(&value) {
            if self.code.stateless && self.replicas.len() == REPLICAS_MAX {
                self.forget_oldest();
            }
            if let Err(why) = self.grow(value, context) {
                return context.fault(
                    "a split",
                    format_args!("no room for one more replica: {why}"),
                    &record,
                );
            }
        }
        let replica = self.replicas.get_mut(&value).expect("it was made just now");
        self.seen += 1;
        replica.used = self.seen;
        match &mut self.to {
            Collector::Any(_) => replica.line.record(record, context),
            Collector::Ordered(order, ..) => {
                send(order, Order::Branch(replica.number));
                replica.line.record(record, context);
                replica.line.mark(Mark::Group, context);
            }
        }
    }

    pub(crate) fn mark(&mut self, mark: Mark, context: &Arc<Context>) {
        match &mut self.to {
            Collector::Ordered(order, ..) => send(order, Order::Mark(mark)),
            Collector::Any(collector) => {
                send(collector, Message::Mark(mark));
                for replica in self.replicas.values_mut() {
                    replica.line.mark(mark, context);
                }
            }
        }
    }

    fn grow(&mut self, value: i32, context: &Arc<Context>) -> Result<(), corebeat_lpel::Error> {
        let (out, collected) = context.stream();
        let place = if self.code.placed { Some(value.unsigned_abs() as usize) } else { self.place };
        let line =
            (Maker { context, place, asleep: true }).line(&self.code.operand, End::Stream(out).into())?;
        let number = match &mut self.to {
            Collector::Any(collector) => {
                send(collector, Message::Join(Box::new(collected)));
                0
            }
            Collector::Ordered(order, free, next) => {
                let number = free.pop().unwrap_or_else(|| {
                    *next += 1;
                    *next - 1
                });
                send(order, Order::Add(number, collected));
                number
            }
        };
        self.replicas.insert(value, Replica { line, number, used: self.seen });
        Ok(())
    }

    /// Its line ends, and with it its tasks, when they have dealt with what is in them.
    #[cold]
    fn forget_oldest(&mut self) {
        let Some(value) = self.replicas.iter().min_by_key(|(_, r)| r.used).map(|(value, _)| *value) else {
            return;
        };
        let gone = self.replicas.remove(&value).expect("it was found just now");
        if let Collector::Ordered(order, free, _) = &mut self.to {
            send(order, Order::Remove(gone.number));
            free.push(gone.number);
        }
    }
}
