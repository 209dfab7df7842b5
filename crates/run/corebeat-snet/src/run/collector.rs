//! Collectors: the merge points of networks.

use std::collections::HashMap;
use std::sync::Arc;

use corebeat_lpel::{Event, Key, Reader, StreamSet};

use super::build::Maker;
use super::choose::ChooseCode;
use super::context::Context;
use super::line::{End, Line};
use super::message::{Message, Order};
use super::star::Stage;
use super::way::Ways;

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
            Some((_, Event::Item(Message::Done { .. } | Message::Adopt(_)))) => {
                unreachable!("these are for other collectors")
            }
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

/// The same for a parallel composition; and it may take over streams of others.
///
/// In `([|{A},{B}|] .. (box | []))*{done}` a stage whose cell has fired does nothing for most records, and there would be more
/// and more of them. So the collector before such a stage gives its streams to the collector behind it, and ends:
///
/// ```text
///   a, b --> collector 1 --> stage 1 (fired) --> choice --> collector 2 --> stage 2
///                                                  +-> box ----^
///   a, b, box -----------------------------------------> collector 2 --> stage 2
/// ```
///
/// What comes on a stream taken over is shown to the choice as often as there were stages. Where the choice would give it to
/// a box, the box is made anew, for this record.
pub(crate) async fn collect_choice(
    code: Arc<ChooseCode>,
    streams: Vec<Reader<Message>>,
    mut line: Line,
    place: Option<usize>,
    context: Arc<Context>,
) {
    let mut set = StreamSet::new();
    // How many choices stand between a stream and here.
    let mut choices: HashMap<Key, u64> = streams.into_iter().map(|stream| (set.add(stream), 0)).collect();
    let mut ways = Ways::default();
    let mut waiting = Vec::new();
    let mut barrier = None;
    loop {
        match set.read_async().await {
            Some((key, Event::Item(Message::Record(record)))) => {
                let before = choices[&key];
                let lets_out = |stage: &mut Stage| stage.lets_out(&record, &context);
                let Some(leaves) = line.stage().filter(|_| before > 0).map_or(Some(false), lets_out) else {
                    continue;
                };
                if before > 0 && !leaves {
                    let Some(branch) = code.branch(&mut ways, &record, &context) else { continue };
                    if !code.branches[branch].passes() {
                        let (out, made) = context.stream();
                        let maker = Maker { context: &context, place, asleep: false };
                        match maker.line(&code.branches[branch], End::Stream(out).into()) {
                            Ok(mut line) => line.record(record, &context),
                            Err(why) => {
                                context.fault("a branch", format_args!("no room for it: {why}"), &record)
                            }
                        }
                        choices.insert(set.add(made), before - 1);
                        continue;
                    }
                }
                line.record(record, &context);
                if waiting.is_empty()
                    && let Some(rest) = line.stage().and_then(|stage| stage.rest(false))
                {
                    return rest.hand_over(take_out(&mut set, choices));
                }
            }
            Some((key, Event::Item(Message::Mark(mark)))) => {
                barrier = Some(mark);
                let before = choices.remove(&key).unwrap_or(0);
                waiting.extend(set.remove(key).map(|stream| (stream, before)));
            }
            Some((_, Event::Item(Message::Adopt(streams)))) => {
                choices.extend(streams.into_iter().map(|(stream, before)| (set.add(stream), before)));
            }
            Some((_, Event::Item(Message::Join(_) | Message::Done { .. }))) => {
                unreachable!("these are for other collectors")
            }
            Some((key, Event::End)) => {
                choices.remove(&key);
            }
            None if waiting.is_empty() => return,
            None => {
                line.mark(barrier.expect("who waits has brought one"), &context);
                choices.extend(waiting.drain(..).map(|(stream, before)| (set.add(stream), before)));
                if let Some(rest) = line.stage().and_then(|stage| stage.rest(true)) {
                    return rest.hand_over(take_out(&mut set, choices));
                }
            }
        }
    }
}

/// All streams, which from now on have one more choice before them.
fn take_out(set: &mut StreamSet<Message>, choices: HashMap<Key, u64>) -> Vec<(Reader<Message>, u64)> {
    choices.into_iter().filter_map(|(key, before)| Some((set.remove(key)?, before + 1))).collect()
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
            Some(Message::Adopt(_)) => unreachable!("these are for other collectors"),
            None if at == 0 => return,
            // A stage that does nothing any more: the next one is in its place.
            None => {
                stages.remove(at);
                if at == stages.len() {
                    at = 0;
                }
            }
        }
    }
}
