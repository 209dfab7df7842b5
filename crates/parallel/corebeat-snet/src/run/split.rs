//! Split point of a split with boxes.

use std::collections::HashMap;
use std::sync::Arc;

use corebeat_lpel::Writer;

use super::build::Builder;
use super::code::SplitCode;
use super::context::Context;
use super::line::{End, Line, send};
use super::message::{Mark, Message, Order};
use crate::record::Record;

/// Stateless replicas of a split that exist at a time. One more removes the least recently used
/// replica, which is created again if needed.
pub(crate) const REPLICAS_MAX: usize = 1024;

impl SplitCode {
    /// Returns the value of the tag. Reports a fault if the record does not have the tag.
    pub(crate) fn value(&self, record: &Record, context: &Context) -> Option<i32> {
        let value = record.tag(self.tag);
        if value.is_none() {
            context.fault(
                "a split",
                format_args!("the split takes records with {}", self.tag),
                record,
            );
        }
        value
    }
}

/// Passes each record to the line for its value.
pub(crate) struct Spread {
    code: Arc<SplitCode>,
    replicas: HashMap<i32, Replica>,
    /// Number of records so far, the clock for the age of replicas.
    clock: u64,
    to: Collector,
    place: Option<usize>,
}

struct Replica {
    line: Line,
    /// Number of the replica for the collector of a deterministic split.
    number: usize,
    used: u64,
}

/// Connection to the collector.
pub(crate) enum Collector {
    Any(Writer<Message>),
    /// With the free numbers, and the first unused number.
    Ordered(Writer<Order>, Vec<usize>, usize),
}

impl Spread {
    pub(crate) fn new(code: Arc<SplitCode>, to: Collector, place: Option<usize>) -> Spread {
        Spread { code, replicas: HashMap::new(), clock: 0, to, place }
    }

    pub(crate) fn record(&mut self, record: Record, context: &Arc<Context>) {
        let Some(value) = self.code.value(&record, context) else { return };
        if !self.replicas.contains_key(&value) {
            if self.code.stateless && self.replicas.len() == REPLICAS_MAX {
                self.remove_oldest();
            }
            if let Err(why) = self.grow(value, context) {
                return context.fault(
                    "a split",
                    format_args!("cannot create a replica: {why}"),
                    &record,
                );
            }
        }
        let replica = self.replicas.get_mut(&value).expect("the replica exists");
        self.clock += 1;
        replica.used = self.clock;
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
        let (code, out) = (&*self.code, End::Stream(out).into());
        let number = value.unsigned_abs();
        let builder = Builder { context, place: self.place, deferred: true };
        let line = match (&context.node, code.part) {
            (Some(node), Some(part)) => match node.other(number) {
                Some(rank) => builder.away(node, &[(rank, part)], out),
                None => Builder { place: None, ..builder }.line(&code.operand, out),
            },
            (None, Some(_)) => {
                Builder { place: Some(number as usize), ..builder }.line(&code.operand, out)
            }
            (_, None) => builder.line(&code.operand, out),
        }?;
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
        self.replicas.insert(value, Replica { line, number, used: self.clock });
        Ok(())
    }

    /// Removes the least recently used replica. Its tasks end after they have processed their
    /// records.
    #[cold]
    fn remove_oldest(&mut self) {
        let Some(value) = self.replicas.iter().min_by_key(|(_, r)| r.used).map(|(value, _)| *value)
        else {
            return;
        };
        let gone = self.replicas.remove(&value).expect("the replica exists");
        if let Collector::Ordered(order, free, _) = &mut self.to {
            send(order, Order::Remove(gone.number));
            free.push(gone.number);
        }
    }
}
