//! Collectors: merge points of networks.

use std::collections::HashMap;
use std::sync::Arc;

use corebeat_lpel::{Event, Key, Reader, StreamSet};

use super::build::Builder;
use super::choose::ChooseCode;
use super::context::Context;
use super::line::{End, Line};
use super::message::{Message, Order};
use super::route::Routes;
use super::star::Stage;

/// Merges streams. A stream that has delivered a barrier waits until all other streams deliver it.
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
            Some((_, Event::Item(Message::Done { .. } | Message::Adopt(_)))) => {
                unreachable!("other collectors receive these")
            }
            Some((_, Event::End)) => {}
            None if waiting.is_empty() => return,
            None => {
                line.mark(barrier.expect("a waiting stream has delivered a barrier"), &context);
                for stream in waiting.drain(..) {
                    set.add(stream);
                }
            }
        }
    }
}

/// Merges the branches of a parallel composition, and can adopt streams of other collectors.
///
/// In `([|{A},{B}|] .. (box | []))*{done}`, a stage whose synchrocell has merged does nothing for
/// most records, and the number of such stages would grow. Therefore the collector before such a
/// stage hands its streams over to the collector after the stage, and ends:
///
/// ```text
///   a, b --> collector 1 --> stage 1 (fired) --> choice --> collector 2 --> stage 2
///                                                  +-> box ----^
///   a, b, box -----------------------------------------> collector 2 --> stage 2
/// ```
///
/// A record of an adopted stream passes the choice once for each removed stage. If the choice
/// selects a box, the collector creates the box again for this record.
pub(crate) async fn collect_choice(
    code: Arc<ChooseCode>,
    streams: Vec<Reader<Message>>,
    mut line: Line,
    place: Option<usize>,
    context: Arc<Context>,
) {
    let mut set = StreamSet::new();
    // Number of choices between each stream and this collector.
    let mut choices: HashMap<Key, u64> =
        streams.into_iter().map(|stream| (set.add(stream), 0)).collect();
    let mut routes = Routes::default();
    let mut waiting = Vec::new();
    let mut barrier = None;
    loop {
        match set.read_async().await {
            Some((key, Event::Item(Message::Record(record)))) => {
                let before = choices[&key];
                let exits = |stage: &mut Stage| stage.exits(&record, &context);
                let Some(leaves) = line.stage().filter(|_| before > 0).map_or(Some(false), exits)
                else {
                    continue;
                };
                if before > 0 && !leaves {
                    let Some(branch) = code.branch(&mut routes, &record, &context) else {
                        continue;
                    };
                    if !code.branches[branch].passes(&context) {
                        let (out, made) = context.stream();
                        let builder = Builder { context: &context, place, deferred: false };
                        match builder.line(&code.branches[branch], End::Stream(out).into()) {
                            Ok(mut line) => line.record(record, &context),
                            Err(why) => context.fault(
                                "a branch",
                                format_args!("cannot create it: {why}"),
                                &record,
                            ),
                        }
                        choices.insert(set.add(made), before - 1);
                        continue;
                    }
                }
                line.record(record, &context);
                if waiting.is_empty()
                    && let Some(fork) =
                        line.stage().and_then(|stage| stage.remaining_fork(false, &context))
                {
                    return fork.hand_over(take_out(&mut set, choices));
                }
            }
            Some((key, Event::Item(Message::Mark(mark)))) => {
                barrier = Some(mark);
                let before = choices.remove(&key).unwrap_or(0);
                waiting.extend(set.remove(key).map(|stream| (stream, before)));
            }
            Some((_, Event::Item(Message::Adopt(streams)))) => {
                choices
                    .extend(streams.into_iter().map(|(stream, before)| (set.add(stream), before)));
            }
            Some((_, Event::Item(Message::Join(_) | Message::Done { .. }))) => {
                unreachable!("other collectors receive these")
            }
            Some((key, Event::End)) => {
                choices.remove(&key);
            }
            None if waiting.is_empty() => return,
            None => {
                line.mark(barrier.expect("a waiting stream has delivered a barrier"), &context);
                choices.extend(waiting.drain(..).map(|(stream, before)| (set.add(stream), before)));
                if let Some(fork) =
                    line.stage().and_then(|stage| stage.remaining_fork(true, &context))
                {
                    return fork.hand_over(take_out(&mut set, choices));
                }
            }
        }
    }
}

/// Removes all streams from the set, each with one more choice before it.
fn take_out(
    set: &mut StreamSet<Message>,
    choices: HashMap<Key, u64>,
) -> Vec<(Reader<Message>, u64)> {
    choices.into_iter().filter_map(|(key, before)| Some((set.remove(key)?, before + 1))).collect()
}

/// Merges streams in a given order, for a deterministic parallel composition or split.
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

/// Merges the outputs of a deterministic star: for each record that entered, the output of the
/// first stage, then of the second stage, and so on.
pub(crate) async fn collect_stages(first: Reader<Message>, mut line: Line, context: Arc<Context>) {
    let mut stages = vec![first];
    let mut at = 0;
    loop {
        match stages[at].read_async().await {
            Some(Message::Record(record)) => line.record(record, &context),
            Some(Message::Join(stage)) => stages.push(*stage),
            Some(Message::Done { deeper }) => at = if deeper { at + 1 } else { 0 },
            Some(Message::Mark(mark)) => line.mark(mark, &context),
            Some(Message::Adopt(_)) => unreachable!("other collectors receive these"),
            None if at == 0 => return,
            // The stage has ended, and the next one takes its place.
            None => {
                stages.remove(at);
                if at == stages.len() {
                    at = 0;
                }
            }
        }
    }
}
