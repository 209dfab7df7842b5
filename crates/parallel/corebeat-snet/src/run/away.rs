//! Parts on other ranks: ends of lines that send, tasks that receive, and the server of a rank.
//!
//! See [`rank`](crate::rank) for the protocol.

use std::collections::VecDeque;
use std::sync::Arc;

use corebeat_lpel::Reader;

use super::build::Builder;
use super::code::Code;
use super::context::Context;
use super::line::{End, Line};
use super::message::{Mark, Message};
use crate::rank::{Hop, Node, Open, Request, Taken};
use crate::record::Record;

/// End of a line whose records continue on another rank.
pub(crate) struct Away {
    node: Arc<Node>,
    to: u32,
    channel: u64,
    /// Credits that are left.
    credit: u32,
    credits: Reader<u32>,
}

impl Away {
    pub(crate) fn record(&mut self, record: Record, context: &Context) {
        let cost = self.node.cost(&record);
        self.pay(cost);
        if let Err(why) = self.node.send_record(self.to, self.channel, &record) {
            self.credit = self.credit.saturating_add(cost);
            context.fault(&format!("the way to rank {}", self.to), format_args!("{why}"), &record);
        }
    }

    pub(crate) fn mark(&mut self, mark: Mark) {
        self.pay(1);
        self.node.send_mark(self.to, self.channel, mark);
    }

    /// Takes credits. Waits if there are not enough.
    #[inline]
    fn pay(&mut self, cost: u32) {
        while self.credit < cost {
            // The node keeps the other end until this sender ends, or until the run ends.
            let more = self.credits.read().unwrap_or(u32::MAX);
            self.credit = self.credit.saturating_add(more);
            while let Ok(more) = self.credits.try_read() {
                self.credit = self.credit.saturating_add(more);
            }
        }
        self.credit -= cost;
    }
}

/// The channel ends after its last record.
impl Drop for Away {
    fn drop(&mut self) {
        self.node.close(self.to, self.channel);
    }
}

/// Sends records into the part of these hops, whose output goes to `home`.
fn send_to(node: &Arc<Node>, hops: VecDeque<Hop>, home: (u32, u64)) -> Away {
    let Hop { rank, channel, .. } = hops[0];
    let credits = node.open(&Open { from: node.rank(), hops, home });
    Away { node: node.clone(), to: rank, channel, credit: node.window(), credits }
}

/// Receiver of a channel. The order of the fields matters: the drop of the account returns all
/// credits, and the sender's next records must find the input closed, not full.
struct Arriving {
    input: Reader<Message>,
    taken: Taken,
}

/// Task that passes the messages of a channel into a line.
async fn receive(mut arriving: Arriving, mut line: Line, context: Arc<Context>) {
    while let Some(message) = arriving.input.read_async().await {
        let cost = match message {
            Message::Record(record) => {
                let cost = arriving.taken.cost(&record);
                line.record(record, &context);
                cost
            }
            Message::Mark(mark) => {
                line.mark(mark, &context);
                1
            }
            Message::Join(_) | Message::Adopt(_) | Message::Done { .. } => {
                unreachable!("only records and barriers leave a rank")
            }
        };
        arriving.taken.count(cost);
    }
}

impl Builder<'_> {
    /// Builds the line of these parts, each with its rank, followed by `next`. None of the ranks is
    /// this one.
    #[inline(never)]
    pub(crate) fn away(
        &self,
        node: &Arc<Node>,
        parts: &[(u32, u32)],
        next: Line,
    ) -> Result<Line, corebeat_lpel::Error> {
        let hop = |&(rank, part): &(u32, u32)| Hop { rank, channel: node.number(), part };
        let hops: VecDeque<Hop> = parts.iter().map(hop).collect();
        let last = hops[hops.len() - 1].rank;
        let back = node.number();
        let input = node.receiver(back);
        let taken = Taken::new(node.clone(), last, back);
        let name = format!("<from rank {last}>");
        let arriving = Arriving { input, taken };
        self.task(name, false, receive(arriving, next, self.context.clone()))?;
        Ok(End::Away(Box::new(send_to(node, hops, (node.rank(), back)))).into())
    }
}

/// Server of a rank: builds the parts that other ranks request, and reports their faults. Ends when
/// rank 0 finishes the run.
pub(crate) async fn serve(
    mut requests: Reader<Request>,
    parts: Arc<[Code]>,
    node: Arc<Node>,
    context: Arc<Context>,
) {
    while let Some(request) = requests.read_async().await {
        match request {
            Request::Fault(fault, room) => context.accept(fault, room.is_none()),
            Request::Open(open, input) => {
                let Open { from, mut hops, home } = open;
                let taken = Taken::new(node.clone(), from, hops[0].channel);
                let arriving = Arriving { input, taken };
                let mut here = Vec::new();
                while let Some(hop) = hops.front().filter(|hop| hop.rank == node.rank()).copied() {
                    here.push(hop.part);
                    hops.pop_front();
                }
                let end = match hops.is_empty() {
                    false => send_to(&node, hops, home),
                    true => Away {
                        node: node.clone(),
                        to: home.0,
                        channel: home.1,
                        credit: node.window(),
                        credits: node.sender(home.1),
                    },
                };
                let builder = Builder { context: &context, place: None, deferred: false };
                let mut line = Ok(End::Away(Box::new(end)).into());
                for part in here.iter().rev() {
                    let part = &parts[*part as usize];
                    line = line.and_then(|line| builder.line(part, line));
                }
                let spawned = line.and_then(|line| {
                    let part = parts[here[0] as usize].name().unwrap_or("a part");
                    let name = format!("<{part} from rank {from}>");
                    builder.task(name, false, receive(arriving, line, context.clone()))
                });
                if let Err(why) = spawned {
                    context.failure(
                        "a part with a place",
                        format_args!("cannot create its tasks: {why}"),
                    );
                }
            }
        }
    }
}
