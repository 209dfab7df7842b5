//! The begin of a feedback loop with boxes.

use std::sync::Arc;

use corebeat_lpel::{Event, Reader, StreamSet};

use super::context::Context;
use super::line::Line;
use super::message::{Mark, Message};

/// Takes what comes from outside and what comes back into the loop.
///
/// Whether the loop has dealt with all that is in it, nobody sees: boxes make many records of one, or none. So a barrier is
/// sent through it. If nothing has come back when the barrier does, the loop is at rest; else it is sent once more. That is
/// done before a barrier from outside is passed on, and before the loop is closed.
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
    // What the loop is to come to rest for: a barrier and the stream that waits for it, or the end.
    let mut wanted = None;
    let mut turned = false;
    loop {
        match set.read_async().await {
            Some((key, Event::Item(Message::Record(record)))) => {
                turned |= key != outside;
                line.record(record, &context);
            }
            Some((key, Event::Item(Message::Mark(mark)))) if key == outside => {
                wanted = set.remove(key).map(|input| (mark, input));
                turned = false;
                line.mark(probe, &context);
            }
            Some((_, Event::Item(Message::Mark(_)))) if turned => {
                turned = false;
                line.mark(probe, &context);
            }
            Some((_, Event::Item(Message::Mark(_)))) => match wanted.take() {
                Some((mark, input)) => {
                    line.mark(mark, &context);
                    outside = set.add(input);
                }
                None => return,
            },
            Some((key, Event::End)) if key == outside => {
                turned = false;
                line.mark(probe, &context);
            }
            // The loop has come down by itself.
            Some((_, Event::End)) | None => return,
            Some((_, Event::Item(_))) => unreachable!("only collectors get these"),
        }
    }
}
