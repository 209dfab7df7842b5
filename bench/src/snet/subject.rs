//! Who is measured by the snet benches.

use super::load::{Form, Load, Outcome, Work};
use super::{corebeat, format, lpel, mandelbrot, thread, tokio};
use clap::ValueEnum;

/// Each is a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Subject {
    Corebeat,
    CorebeatC,
    CorebeatFilter,
    CorebeatStraight,
    Lpel,
    Tokio,
    Thread,
    Rayon,
    Plain,
    SerdeJson,
    QuickXml,
}

impl Subject {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Subject::Corebeat => "corebeat",
            Subject::CorebeatC => "corebeat, box in C",
            Subject::CorebeatFilter => "corebeat, filters",
            Subject::CorebeatStraight => "corebeat, no choice",
            Subject::Lpel => "lpel by hand",
            Subject::Tokio => "tokio",
            Subject::Thread => "threads + crossbeam",
            Subject::Rayon => "rayon",
            Subject::Plain => "one thread",
            Subject::SerdeJson => "serde_json, maps",
            Subject::QuickXml => "quick-xml, events",
        }
    }

    /// Whom to measure at a work.
    pub(crate) fn of(load: &Load) -> Vec<Subject> {
        use Subject::*;
        match load.work {
            Work::Replication if load.depth <= THREADED_DEPTH_MAX => {
                vec![Corebeat, CorebeatC, Lpel, Tokio, Thread]
            }
            Work::Replication | Work::Box => vec![Corebeat, CorebeatC, Lpel, Tokio],
            Work::Synchronisation | Work::Memory => vec![Corebeat, Lpel, Tokio],
            Work::Mandelbrot => vec![Corebeat, Rayon, Plain],
            Work::Routing => vec![Corebeat, CorebeatFilter, CorebeatStraight],
            Work::Read | Work::Write => match load.form {
                Form::Xml => vec![Corebeat, QuickXml],
                Form::Json => vec![Corebeat, SerdeJson],
            },
        }
    }

    /// Does the work, in this process.
    pub(crate) fn run(self, load: &Load) -> Result<Outcome, String> {
        match (load.work, self) {
            (Work::Mandelbrot, _) => mandelbrot::run(load, self),
            (Work::Read | Work::Write, _) => format::run(load, self),
            (_, Subject::Lpel) => lpel::run(load),
            (_, Subject::Tokio) => tokio::run(load),
            (_, Subject::Thread) => thread::run(load),
            _ => corebeat::run(load, self),
        }
    }
}

/// A star of threads is no deeper.
const THREADED_DEPTH_MAX: u64 = 1000;
