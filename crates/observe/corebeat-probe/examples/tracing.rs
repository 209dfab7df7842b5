//! Records spans and events of the crate `tracing` in a Corebeat trace, next to probes. A span is a
//! call, from its creation to its end. `cargo run --example tracing -- FILE` records a trace, and
//! `corebeat trace calls FILE` draws it.

use corebeat_probe::{PROBES_MAX, record};
use corebeat_trace::{Event, Trace, emit};
use std::collections::HashMap;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::field::Field;
use tracing::span::{Attributes, Id};
use tracing::{Instrument, Metadata, Subscriber, callsite::Identifier};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, SpanRef};

/// Defines events of probes. `corebeat trace` recognises them by their names.
macro_rules! events {
    ($($name:literal $(, $flag:ident)*: $kind:ident { $($field:ident: $of:ty),* };)*) => {$(
        #[derive(Event)]
        #[event(name = $name $(, $flag)*)]
        struct $kind { $($field: $of),* }
    )*};
}
events! {
    "probe.declare", untimed, kept: Declare { probe: u16, name: String, file: String, line: u32 };
    "probe.field", untimed: Argument { probe: u16, field: String, value: String };
    "probe.enter": Enter { probe: u16 };
    "probe.leave": Leave {};
    "probe.hand_over": HandOver { line: u64 };
    "probe.resume": Resume { line: u64 };
    "probe.suspend": Suspend {};
    "tracing.event": Message { level: String, target: String, text: String };
}

/// Each span is a line of execution of its own, because threads enter and leave it repeatedly.
#[derive(Clone, Copy)]
struct Line(u64);

/// Lines of spans are numbered from here: probes number theirs from 1.
const FIRST_LINE: u64 = 1 << 63;

/// The layer that records. Install the trace before the subscriber.
struct CorebeatLayer {
    /// The number of each place with a span: downwards, because probes are numbered upwards.
    places: Mutex<HashMap<Identifier, u16>>,
    next: AtomicU64,
}

impl CorebeatLayer {
    fn place(&self, at: &'static Metadata<'static>) -> u16 {
        let mut places = self.places.lock().unwrap_or_else(|e| e.into_inner());
        let number = (PROBES_MAX - 1).saturating_sub(places.len()) as u16;
        *places.entry(at.callsite()).or_insert_with(|| {
            let (name, file) = (format!("{}::{}", at.target(), at.name()), at.file());
            let (file, line) = (file.unwrap_or_default().into(), at.line().unwrap_or(0));
            emit(&Declare { probe: number, name, file, line });
            number
        })
    }
}

/// Logs on the line of a span.
fn on_line(line: Option<Line>, log: impl Fn()) {
    let Some(Line(line)) = line else { return };
    emit(&Resume { line });
    log();
    emit(&Suspend {});
}

fn line<'a, S: LookupSpan<'a>>(span: Option<SpanRef<'a, S>>) -> Option<Line> {
    span?.extensions().get().copied()
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for CorebeatLayer {
    fn on_new_span(&self, values: &Attributes<'_>, id: &Id, all: Context<'_, S>) {
        let (Some(span), probe) = (all.span(id), self.place(values.metadata())) else { return };
        let own = Line(self.next.fetch_add(1, Ordering::Relaxed));
        span.extensions_mut().insert(own);
        match line(span.parent()) {
            None => emit(&HandOver { line: own.0 }), // the caller is a probe, or none
            parent => on_line(parent, || emit(&HandOver { line: own.0 })),
        }
        on_line(Some(own), || {
            values.record(&mut |field: &Field, value: &dyn Debug| {
                let (field, value) = (field.name().into(), format!("{value:?}"));
                emit(&Argument { probe, field, value });
            });
            emit(&Enter { probe });
        });
    }

    fn on_enter(&self, id: &Id, all: Context<'_, S>) {
        line(all.span(id)).into_iter().for_each(|Line(line)| emit(&Resume { line }));
    }

    fn on_exit(&self, id: &Id, all: Context<'_, S>) {
        line(all.span(id)).into_iter().for_each(|_| emit(&Suspend {}));
    }

    fn on_close(&self, id: Id, all: Context<'_, S>) {
        on_line(line(all.span(&id)), || emit(&Leave {}));
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let (mut text, at) = (String::new(), event.metadata());
        let mut add = |field: &Field, value: &dyn Debug| text += &format!("{field}={value:?} ");
        event.record(&mut add);
        emit(&Message { level: at.level().to_string(), target: at.target().into(), text });
    }
}

#[tracing::instrument]
async fn price(article: u32) -> u32 {
    tokio::task::yield_now().await;
    tracing::info!(article, "priced");
    3 * article
}

#[tracing::instrument]
async fn order(articles: u32) -> u32 {
    let prices = (0..articles).map(|article| tokio::spawn(price(article).in_current_span()));
    let mut total = 0;
    for price in prices.collect::<Vec<_>>() {
        total += price.await.unwrap_or(0);
    }
    total
}

/// Records the spans of an order in this file, and returns its total.
pub(crate) fn record_order(path: impl AsRef<Path>) -> Result<u32, Box<dyn std::error::Error>> {
    let trace = Trace::create(path)?;
    record(&trace)?;
    let layer = CorebeatLayer { places: Mutex::default(), next: AtomicU64::new(FIRST_LINE) };
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    let total = runtime.block_on(order(3));
    drop(runtime); // waits for its threads, which may still end spans
    trace.finish()?;
    Ok(total)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: tracing FILE")?;
    println!("{}", record_order(path)?);
    Ok(())
}
