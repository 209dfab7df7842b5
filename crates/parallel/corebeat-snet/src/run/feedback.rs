//! Entry of a feedback loop with boxes.

use std::sync::Arc;

use corebeat_lpel::{Event, Reader, StreamSet};

use super::context::Context;
use super::line::Line;
use super::message::{Mark, Message};

/// Merges records from outside and returning records into the loop.
///
/// No entity can count the records inside the loop, because a box outputs any number of records for
/// one. Therefore this task sends a barrier through the loop. If no record returns before the
/// barrier, the loop is empty; otherwise the task sends the barrier again. It does so before it
/// passes on a barrier from outside, and before it closes the loop.
pub(crate) async fn feed_back(
    input: Reader<Message>,
    back: Reader<Message>,
    number: u64,
    mut line: Line,
    context: Arc<Context>,
) {
    let mut set = StreamSet::new();
    let mut outside = set.add(input);
    set.add(back);
    let probe = Mark::Probe(number);
    // Barrier from outside that waits for the loop, with its stream. `None`: the end of the input.
    let mut pending = None;
    let mut returned = false;
    loop {
        match set.read_async().await {
            Some((key, Event::Item(Message::Record(record)))) => {
                returned |= key != outside;
                line.record(record, &context);
            }
            Some((key, Event::Item(Message::Mark(mark)))) if key == outside => {
                pending = set.remove(key).map(|input| (mark, input));
                returned = false;
                line.mark(probe, &context);
            }
            Some((_, Event::Item(Message::Mark(_)))) if returned => {
                returned = false;
                line.mark(probe, &context);
            }
            Some((_, Event::Item(Message::Mark(_)))) => match pending.take() {
                Some((mark, input)) => {
                    line.mark(mark, &context);
                    outside = set.add(input);
                }
                None => return,
            },
            Some((key, Event::End)) if key == outside => {
                returned = false;
                line.mark(probe, &context);
            }
            // The loop has ended by itself.
            Some((_, Event::End)) | None => return,
            Some((_, Event::Item(_))) => unreachable!("only collectors receive these"),
        }
    }
}
