//! Collectors: the merge points of networks.

use std::sync::Arc;

use corebeat_lpel::{Event, Reader, StreamSet};

use super::context::Context;
use super::line::Line;
use super::message::{Message, Order};

/// Passes on what comes on any of its streams. A stream that has brought a barrier waits for all others to bring it, too.
pub(crate) async fn collect(streams: Vec<Reader<Message>>, mut line: Line, context: Arc<Context>) {
    let mut set = StreamSet::new();
    for stream in streams {
        set.add(stream);
    }
    let mut waiting = Vec::new();
    let mut barrier = None;
    loop {
        match set.read_async().await {
            Some((_, Event::Item(Message::Record(record)))) => line.record(record, &context),
            Some((key, Event::Item(Message::Mark(mark)))) => {
                barrier = Some(mark);
                waiting.extend(set.remove(key));
            }
            Some((_, Event::Item(Message::Join(stream)))) => {
                set.add(*stream);
            }
            Some((_, Event::Item(Message::Done { .. }))) => unreachable!("this star is not deterministic"),
            Some((_, Event::End)) => {}
            None if waiting.is_empty() => return,
            None => {
                line.mark(barrier.expect("who waits has brought one"), &context);
                for stream in waiting.drain(..) {
                    set.add(stream);
                }
            }
        }
    }
}

/// Passes on what comes on its streams, in the order that it is told: for a deterministic parallel or split.
pub(crate) async fn collect_ordered(
    mut order: Reader<Order>,
    branches: Vec<Reader<Message>>,
    mut line: Line,
    context: Arc<Context>,
) {
    let mut branches: Vec<Option<Reader<Message>>> = branches.into_iter().map(Some).collect();
    while let Some(next) = order.read_async().await {
        match next {
            Order::Add(number, stream) => {
                if branches.len() <= number {
                    branches.resize_with(number + 1, || None);
                }
                branches[number] = Some(stream);
            }
            Order::Remove(number) => branches[number] = None,
            Order::Mark(mark) => line.mark(mark, &context),
            Order::Branch(number) => {
                let Some(branch) = &mut branches[number] else { continue };
                while let Some(Message::Record(record)) = branch.read_async().await {
                    line.record(record, &context);
                }
            }
        }
    }
}

/// Passes on what leaves a deterministic star: for each record that went in, what leaves at the first stage, then at the
/// second, and so on.
pub(crate) async fn collect_stages(first: Reader<Message>, mut line: Line, context: Arc<Context>) {
    let mut stages = vec![first];
    let mut at = 0;
    loop {
        match stages[at].read_async().await {
            Some(Message::Record(record)) => line.record(record, &context),
            Some(Message::Join(stage)) => stages.push(*stage),
            Some(Message::Done { deeper }) => at = if deeper { at + 1 } else { 0 },
            Some(Message::Mark(mark)) => line.mark(mark, &context),
            None if at == 0 => return,
            // Its task has failed, which was told; what others bring is not lost.
            None => at = 0,
        }
    }
}
