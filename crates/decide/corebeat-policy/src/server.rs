//! Sets the pattern and the number of threads of a server by its load.
//!
//! Strebelow and Prehofer, *Analysis of Event Processing Design Patterns and Their Performance
//! Dependency on I/O Notification Mechanisms*, 2012, section 7: the patterns should adapt the
//! number of cores to the load. The limits of the patterns are those of section 3.
//!
//! ```text
//!   one thread <---- threads by demand ----> thread-per-core
//!        ^                                     | ^   a thread is saturated beside one that idles,
//!        |                                     v |   or requests are long
//!        +------------------------------ Leader/Followers
//!        |                                     | ^   the serial section is in use most of the time
//!        |                                     v |
//!        +---------------------------- Half-Sync/Half-Async      <-- no bursts: the queue is empty
//! ```
//!
//! - **Threads.** Saturated workers double, unless they wait for CPUs of other programs: more of
//!   them would wait, too. Workers end if the rest can do their work, which includes the time in
//!   which they are ready to run: workers that obtain few CPUs do not end.
//! - **Pattern.** Thread-per-core has neither a queue nor a serial section, and is the default. Its
//!   weakness is that connections wait behind a busy thread while another one idles. The other
//!   patterns do not have this weakness. They end when the rate of requests has changed by
//!   [`ServerPolicy::band`] since they began, or one thread suffices.
//! - **Mechanism.** It stays edge-triggered epoll, which is the best mechanism under every pattern
//!   (section 5 of the paper, and the measurements in the book).
//!
//! # No oscillation
//!
//! A change that reduces the rate of requests is undone, unless chance explains the fall: the
//! number of requests of a span varies by its square root. So a few requests in a span undo nothing
//! ([`ServerPolicy::deviations`]). A load that falls by itself may undo a change once, too.
//!
//! A change from one variant to another is not repeated before its rest is over, and each
//! repetition doubles the rest. A change that was not carried out leaves later rests as they are.
//! All rests end if the load changes: the rate of a variant leaves the band around an earlier rate
//! of the same variant. So on a constant load, the times between two equal changes at least double,
//! whatever the machine does. In a time of `t`, the number of changes is at most
//! `p * (1 + log2(1 + t / rest))` for `p` pairs of variants, of which the rules above reach few.
//! `constant_load_does_not_oscillate_on_any_machine` checks this bound on machines whose variants
//! behave arbitrarily.

use corebeat_machine::server::{Load, Mechanism, Pattern, ThreadLoad, Variant};
use std::collections::BTreeMap;

/// Decides the variant of a server. Thresholds are public fields.
#[derive(Debug, Clone)]
pub struct ServerPolicy {
    /// Share of the time in which the workers of a server run, or are ready to run, above which
    /// their number doubles. The default is 0.85.
    pub saturated: f64,
    /// Share of the time in which the remaining workers run, or are ready to run, up to which
    /// workers end. Less than [`ServerPolicy::saturated`], so that fewer workers are not saturated.
    /// The default is 0.65.
    pub comfortable: f64,
    /// Share of run-queue wait in the time in which the workers are ready or run, above which their
    /// number does not grow. The default is 0.25.
    pub crowded: f64,
    /// Utilisation of a worker that idles beside a saturated one, below which connections are
    /// distributed badly. The default is 0.5.
    pub idle: f64,
    /// CPU time of a request from which requests are long, in nanoseconds. The default is 1 ms,
    /// the time in which other requests are usually answered several times.
    pub long_ns: u64,
    /// Share of the time in which the serial section of Leader/Followers is in use, above which it
    /// limits the server. The default is 0.5.
    pub serial: f64,
    /// Mean number of events of a wake-up below which there are no bursts. The default is 1.2.
    pub burst: f64,
    /// Factor by which the rate of requests changes with the load. The default is 2.
    pub band: f64,
    /// Rates below this one, in requests per second, are the same load: they vary by chance. The
    /// default is 1000.
    pub rate_min: f64,
    /// Share of the rate that a change must keep. The default is 0.95.
    pub kept: f64,
    /// Standard deviations by which chance may reduce the number of requests of a span; the
    /// deviation is the square root of the number. The default is 2: of 100 requests in a span, a
    /// change must keep 80; of 4 or fewer, none.
    pub deviations: f64,
    /// Number of successive spans that must suggest a change. The default is 2.
    pub confirmations: u32,
    /// Rest of a change until its first repetition, in nanoseconds. The default is 10 s.
    pub rest_ns: u64,
    /// Largest number of workers, from 1.
    pub workers_max: usize,
    now_ns: u64,
    /// Whether the next span contains a part of the time before a change.
    is_settling: bool,
    /// The suggested change, and the number of spans that have suggested it.
    suggested: Option<(Variant, u32)>,
    trial: Option<Trial>,
    /// Rate of the first span of the present variant.
    entered_at: Option<f64>,
    /// A rate of each variant under the present load.
    rates: BTreeMap<Variant, f64>,
    /// Number of successive spans whose rate is another one.
    strays: u32,
    /// The last changes from a variant to another under the present load.
    changes: BTreeMap<(Variant, Variant), Change>,
}

/// The last change, until its effect is known.
#[derive(Debug, Clone, Copy)]
struct Trial {
    from: Variant,
    rate: f64,
    /// Number of requests of the span that caused the change.
    requests: f64,
}

/// When a change may be repeated.
#[derive(Debug, Clone, Copy)]
struct Change {
    /// Rest of the next repetition, in nanoseconds.
    next_ns: u64,
    until_ns: u64,
}

/// A variant, and the reason for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The variant to which the server should switch.
    pub variant: Variant,
    /// The observation that suggests it, for people.
    pub why: String,
}

/// Figures of a span.
struct Figures {
    variant: Variant,
    /// Requests of the span, and per second.
    requests: f64,
    rate: f64,
    /// Share of the time in which each worker runs or is ready.
    ready: Vec<f64>,
    /// Share of run-queue wait in that time.
    crowding: f64,
    /// CPU time of a request.
    request_ns: f64,
    /// Share of the time in which the serial section is in use.
    serial: f64,
    /// Mean number of events of a wake-up.
    burst: f64,
    /// Mean number of events in the queue after a wake-up.
    queue: f64,
}

impl Figures {
    /// Returns `None` if the system does not report the times of all threads, or the span is empty.
    fn new(load: &Load) -> Option<Figures> {
        let Load { span_ns, variant, threads, .. } = load;
        if *span_ns == 0 || threads.len() < variant.threads {
            return None;
        }
        let span = *span_ns as f64;
        let sum = |of: fn(&ThreadLoad) -> u64| threads.iter().map(of).sum::<u64>() as f64;
        let (waits, events) = (sum(|t| t.waits), sum(|t| t.events));
        let requests = sum(|t| t.requests);
        let times = |thread: &ThreadLoad| thread.ran_ns.zip(thread.waited_ns);
        let workers = &threads[variant.pattern.detectors()..];
        let times: Vec<(u64, u64)> = workers.iter().map(times).collect::<Option<_>>()?;
        let ran = times.iter().map(|(ran, _)| *ran as f64).sum::<f64>();
        let ready = times.iter().map(|(ran, waited)| (ran + waited) as f64 / span);
        let all_ready = ready.clone().sum::<f64>() * span;
        let part = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        Some(Figures {
            variant: *variant,
            requests,
            rate: requests * 1e9 / span,
            ready: ready.collect(),
            crowding: part(all_ready - ran, all_ready),
            request_ns: part(ran, requests),
            serial: sum(|t| t.serial_ns) / span,
            burst: part(events, waits),
            queue: part(sum(|t| t.queued), waits),
        })
    }

    /// Mean number of workers that run or are ready.
    fn demand(&self) -> f64 {
        self.ready.iter().sum()
    }

    fn saturation(&self) -> f64 {
        self.demand() / self.ready.len().max(1) as f64
    }
}

impl ServerPolicy {
    /// Creates the policy of a server with at most this number of workers, from 1: usually that of
    /// the CPUs that it may use.
    pub fn new(workers_max: usize) -> ServerPolicy {
        ServerPolicy {
            saturated: 0.85,
            comfortable: 0.65,
            crowded: 0.25,
            idle: 0.5,
            long_ns: 1_000_000,
            serial: 0.5,
            burst: 1.2,
            band: 2.0,
            rate_min: 1000.0,
            kept: 0.95,
            deviations: 2.0,
            confirmations: 2,
            rest_ns: 10_000_000_000,
            workers_max: workers_max.max(1),
            now_ns: 0,
            is_settling: true,
            suggested: None,
            trial: None,
            entered_at: None,
            rates: BTreeMap::new(),
            strays: 0,
            changes: BTreeMap::new(),
        }
    }

    /// Returns the variant in which a server starts: one thread.
    pub fn initial(&self) -> Variant {
        plain(1)
    }

    /// Returns the variant with at most this number of workers, from 1. One worker alone shares no
    /// connections with others.
    pub fn limit(variant: Variant, workers: usize) -> Variant {
        match workers {
            _ if variant.workers() <= workers => variant,
            0 | 1 => plain(1),
            _ => with_workers(variant, workers),
        }
    }

    /// Notes that the last choice, a change from one variant to another, was not carried out, for
    /// instance because no CPU is free. It is repeated when its rest is over. The rest does not
    /// double: CPUs may become free at any time.
    pub fn refuse(&mut self, from: Variant, to: Variant) {
        self.trial = None;
        if let Some(change) = self.changes.get_mut(&(from, to)) {
            change.next_ns = change.next_ns.div_ceil(2);
        }
    }

    /// Decides after a span. Returns `None` while the server keeps its variant. The caller switches
    /// the server before the next span begins.
    pub fn decide(&mut self, load: &Load) -> Option<Choice> {
        self.now_ns += load.span_ns;
        if std::mem::take(&mut self.is_settling) {
            return None;
        }
        let figures = Figures::new(load)?;
        let rate = figures.rate.max(self.rate_min);
        self.entered_at.get_or_insert(rate);
        let variant = figures.variant;
        self.note_rate(variant, rate);
        let undoing = self.judge(&figures).filter(|choice| self.has_rested(variant, choice));
        let suggestion = undoing.or_else(|| {
            self.suggest(&figures, rate).filter(|choice| self.has_rested(variant, choice))
        });
        let Some(choice) = suggestion else {
            self.suggested = None;
            return None;
        };
        let count = match self.suggested {
            Some((suggested, count)) if suggested == choice.variant => count + 1,
            _ => 1,
        };
        self.suggested = Some((choice.variant, count));
        if count < self.confirmations {
            return None;
        }
        self.note(choice.variant, &figures);
        Some(choice)
    }

    /// Ends all rests if the load has changed.
    fn note_rate(&mut self, variant: Variant, rate: f64) {
        let earlier = *self.rates.entry(variant).or_insert(rate);
        self.strays = if is_within(rate, earlier, self.band) { 0 } else { self.strays + 1 };
        if self.strays >= self.confirmations {
            self.strays = 0;
            self.rates = BTreeMap::from([(variant, rate)]);
            self.changes.clear();
        }
    }

    fn has_rested(&self, from: Variant, to: &Choice) -> bool {
        let change = self.changes.get(&(from, to.variant));
        change.is_none_or(|change| change.until_ns <= self.now_ns)
    }

    /// Notes a change after a span with these figures.
    fn note(&mut self, to: Variant, figures: &Figures) {
        let Figures { variant: from, rate, requests, .. } = *figures;
        self.is_settling = true;
        self.suggested = None;
        let rest_ns = self.changes.get(&(from, to)).map_or(self.rest_ns, |last| last.next_ns);
        let until_ns = self.now_ns.saturating_add(rest_ns);
        let next_ns = rest_ns.saturating_mul(2);
        self.changes.insert((from, to), Change { next_ns, until_ns });
        // The undoing of a change is not undone.
        let is_undoing = self.trial.take().is_some_and(|trial| trial.from == to);
        self.trial = (!is_undoing).then_some(Trial { from, rate, requests });
        self.entered_at = None;
    }

    /// Suggests to undo the last change if the rate of requests has fallen by more than chance
    /// explains. Any other outcome ends the trial.
    fn judge(&mut self, figures: &Figures) -> Option<Choice> {
        let trial = self.trial?;
        let kept = self.kept.min(1.0 - self.deviations / trial.requests.sqrt());
        if figures.rate < trial.rate * kept {
            let why = format!(
                "the rate of requests fell from {:.0} to {:.0} a second",
                trial.rate, figures.rate
            );
            return Some(Choice { variant: trial.from, why });
        }
        self.trial = None;
        None
    }

    /// Suggests a change by the rules.
    fn suggest(&self, figures: &Figures, rate: f64) -> Option<Choice> {
        let variant = figures.variant;
        let choice = |variant, why: String| Some(Choice { variant, why });
        let workers = variant.workers();
        let saturation = figures.saturation();
        let needed = (figures.demand() / self.comfortable).ceil().max(1.0) as usize;
        if needed < workers {
            let why = format!("the work suffices for {:.2} workers", figures.demand());
            return choice(ServerPolicy::limit(variant, needed), why);
        }
        if saturation > self.saturated && figures.crowding <= self.crowded {
            let more = (workers * 2).min(self.workers_max);
            if more > workers {
                let why = format!("the workers are busy {:.0}% of the time", saturation * 100.0);
                return choice(with_workers(variant, more), why);
            }
        }
        if variant.mechanism != Mechanism::Edge {
            return choice(
                Variant { mechanism: Mechanism::Edge, ..variant },
                "edge-triggered epoll needs the fewest system calls".into(),
            );
        }
        if workers < 2 {
            return None;
        }
        match variant.pattern {
            Pattern::ThreadPerCore => self.leave_thread_per_core(figures),
            Pattern::LeaderFollowers | Pattern::HalfSyncHalfAsync
                if self.entered_at.is_some_and(|entered| !is_within(rate, entered, self.band)) =>
            {
                choice(plain(workers), format!("the load is {:.0} requests a second", figures.rate))
            }
            Pattern::LeaderFollowers if figures.serial > self.serial => {
                let why = format!("the serial section is used {:.0}%", figures.serial * 100.0);
                choice(shared(Pattern::HalfSyncHalfAsync, workers), why)
            }
            Pattern::HalfSyncHalfAsync if figures.burst < self.burst && figures.queue < 1.0 => {
                let why = format!("a wake-up has {:.1} events", figures.burst);
                choice(shared(Pattern::LeaderFollowers, workers), why)
            }
            _ => None,
        }
    }

    /// Suggests a pattern in which no connection waits while a thread is free.
    fn leave_thread_per_core(&self, figures: &Figures) -> Option<Choice> {
        let busiest = figures.ready.iter().copied().fold(0.0, f64::max);
        let idlest = figures.ready.iter().copied().fold(f64::INFINITY, f64::min);
        let why = if busiest > self.saturated && idlest < self.idle {
            format!("a thread is busy {:.0}%, another {:.0}%", busiest * 100.0, idlest * 100.0)
        } else if figures.request_ns >= self.long_ns as f64 {
            format!("a request takes {:.1} ms", figures.request_ns / 1e6)
        } else {
            return None;
        };
        Some(Choice { variant: shared(Pattern::LeaderFollowers, figures.ready.len()), why })
    }
}

/// Returns whether two rates differ by less than a factor.
fn is_within(rate: f64, other: f64, band: f64) -> bool {
    rate < other * band && rate * band > other
}

/// The default variant with this number of threads.
fn plain(threads: usize) -> Variant {
    Variant { pattern: Pattern::ThreadPerCore, mechanism: Mechanism::Edge, threads }
}

/// A variant whose threads share the connections.
fn shared(pattern: Pattern, workers: usize) -> Variant {
    Variant { pattern, mechanism: Mechanism::Edge, threads: workers + pattern.detectors() }
}

fn with_workers(variant: Variant, workers: usize) -> Variant {
    Variant { threads: workers + variant.pattern.detectors(), ..variant }
}

#[cfg(test)]
mod tests;
