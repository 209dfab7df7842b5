//! The network of figure 6.9, as tasks and streams.
//!
//! ```text
//!   splitter - <split> -+- one of these for each strip -+- <collector>
//!                       +-------------------------------+
//!
//!                                 +- escVals - escTime - normItCount -+
//!   init - genSubPlane - <parallel>                                   <collector> - <sync> - merge
//!                                 +------------ its frame ------------+
//! ```
//!
//! Boxes compute. Names in angle brackets are entities of the coordination language, which only
//! pass records on.

use crate::fractal::{self, Plane, Shades, Strip, View};
use corebeat_lpel::{Event, Priority, Reader, StreamSet, Task, Writer, stream};

/// Capacity of each stream, as in all experiments of the thesis.
const BUFFER: usize = 10;

/// Way of spawning tasks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Style {
    /// Each task has a thread of its own.
    pub(crate) threads: bool,
    /// Entities have a higher priority than boxes.
    pub(crate) priorities: bool,
}

/// Returns whether a task of this name is a box.
pub(crate) fn is_box(name: &str) -> bool {
    !name.starts_with('<')
}

/// Output of `genSubPlane` for a strip: the points to compute, and the data that bypasses the
/// computation.
enum Half<T> {
    Content(T),
    Frame(Strip),
}

/// A computed strip.
struct Piece {
    strip: Strip,
    shades: Shades,
}

/// Input of a collector of a changing number of streams: records, and further streams.
enum Collected {
    Piece(Piece),
    Stream(Reader<Collected>),
}

impl Style {
    /// Spawns a task.
    fn task(self, name: &'static str, body: impl FnOnce() + Send + 'static) {
        let mut task = Task::new().name(name);
        if is_box(name) {
            task = task.mark();
        }
        if self.priorities {
            task = task.priority(if is_box(name) { Priority::LOW } else { Priority::HIGH });
        }
        if self.threads {
            task = task.blocking();
        }
        task.spawn(body).expect("a task can be spawned");
    }

    /// Spawns a box that produces one record per input record.
    fn pipe<I: Send + 'static, O: Send + 'static>(
        self,
        name: &'static str,
        from: Reader<I>,
        mut work: impl FnMut(I) -> O + Send + 'static,
    ) -> Reader<O> {
        let (mut to, out) = stream(BUFFER);
        self.task(name, move || {
            from.into_iter().map(&mut work).for_each(|record| send(&mut to, record))
        });
        out
    }
}

fn send<T: Send>(to: &mut Writer<T>, record: T) {
    assert!(to.write(record).is_ok(), "no reader is dropped before the end");
}

/// Computes an image in that number of strips. Must be called in a task.
pub(crate) fn image(style: Style, view: View, strips: usize) -> Shades {
    let (mut input, views) = stream::<View>(BUFFER);
    let (mut to_split, split_from) = stream(BUFFER);
    let (to_collect, collect_from) = stream(BUFFER);
    let (mut output, pieces) = stream::<Piece>(BUFFER);
    style.task("splitter", move || {
        views
            .into_iter()
            .flat_map(|view| view.strips(strips))
            .for_each(|strip| send(&mut to_split, strip));
    });
    style.task("<split>", move || split(style, split_from, to_collect));
    style.task("<collector>", move || {
        let mut from = StreamSet::new();
        from.add(collect_from);
        while let Some((_, event)) = from.read() {
            match event {
                Event::Item(Collected::Piece(piece)) => send(&mut output, piece),
                Event::Item(Collected::Stream(stream)) => drop(from.add(stream)),
                Event::End => {}
            }
        }
    });
    send(&mut input, view);
    drop(input);
    let mut image = vec![0; view.width * view.height];
    for Piece { strip, shades } in pieces {
        image[strip.first_row * view.width..][..shades.len()].copy_from_slice(&shades);
    }
    image
}

/// Parallel replication: creates a network for each strip when the strip arrives.
fn split(style: Style, from: Reader<Strip>, mut to_collect: Writer<Collected>) {
    for record in from {
        let (mut to, strip) = stream(BUFFER);
        send(&mut to_collect, Collected::Stream(subnet(style, strip)));
        send(&mut to, record);
    }
}

/// Creates the network of a strip.
fn subnet(style: Style, from: Reader<Strip>) -> Reader<Collected> {
    let corners = style.pipe("init", from, fractal::corner);
    let (mut to_both, both) = stream(BUFFER);
    style.task("genSubPlane", move || {
        for corner in corners {
            send(&mut to_both, Half::Frame(corner.strip));
            send(&mut to_both, Half::Content(fractal::plane(&corner)));
        }
    });
    let (mut to_boxes, planes) = stream::<Plane>(BUFFER);
    let (mut around, frames) = stream(BUFFER);
    style.task("<parallel>", move || {
        for half in both {
            match half {
                Half::Content(plane) => send(&mut to_boxes, plane),
                Half::Frame(strip) => send(&mut around, Half::Frame(strip)),
            }
        }
    });
    let values = style.pipe("escVals", planes, |plane| (fractal::values(&plane), plane));
    // A second box of equal cost, as in the study.
    let times = style.pipe("escTime", values, |(values, plane)| (fractal::times(&plane), values));
    let shades = style.pipe("normItCount", times, |(times, values)| {
        Half::Content(fractal::shades(&times, &values))
    });
    let (mut to_sync, halves) = stream(BUFFER);
    style.task("<collector>", move || {
        let mut from = StreamSet::new();
        from.add(shades);
        from.add(frames);
        while let Some((_, event)) = from.read() {
            if let Event::Item(half) = event {
                send(&mut to_sync, half);
            }
        }
    });
    let (mut to_merge, wholes) = stream(BUFFER);
    style.task("<sync>", move || {
        let (mut strip, mut content) = (None, None);
        for half in halves {
            match half {
                Half::Frame(frame) => strip = Some(frame),
                Half::Content(shades) => content = Some(shades),
            }
            match (strip.take(), content.take()) {
                (Some(strip), Some(shades)) => send(&mut to_merge, (strip, shades)),
                one => (strip, content) = one,
            }
        }
    });
    style.pipe("merge", wholes, |(strip, shades)| Collected::Piece(Piece { strip, shades }))
}
