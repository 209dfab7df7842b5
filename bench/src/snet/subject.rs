//! The subjects of the snet benches.

use super::load::{Form, Load, Outcome, Work};
use super::{corebeat, format, lpel, mandelbrot, thread, tokio};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Each subject runs in a separate process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Subject {
    Corebeat,
    #[value(name = "corebeat, box in C")]
    CorebeatC,
    #[value(name = "corebeat, filters")]
    CorebeatFilter,
    #[value(name = "corebeat, feedback")]
    CorebeatFeedback,
    #[value(name = "corebeat, no choice")]
    CorebeatStraight,
    #[value(name = "lpel by hand")]
    Lpel,
    Tokio,
    #[value(name = "threads + crossbeam")]
    Thread,
    Rayon,
    #[value(name = "one thread")]
    Plain,
    #[value(name = "serde_json, maps")]
    SerdeJson,
    #[value(name = "quick-xml, events")]
    QuickXml,
}

impl Subject {
    /// The subjects of a work.
    pub(crate) fn of(load: &Load) -> Vec<Subject> {
        use Subject::*;
        match load.work {
            Work::Replication if load.depth <= THREADED_DEPTH_MAX => {
                vec![Corebeat, CorebeatC, Lpel, Tokio, Thread]
            }
            Work::Replication | Work::Box => vec![Corebeat, CorebeatC, Lpel, Tokio],
            Work::Synchronisation | Work::Memory => vec![Corebeat, Lpel, Tokio],
            Work::State => vec![Corebeat, CorebeatFeedback],
            Work::Mandelbrot => vec![Corebeat, Rayon, Plain],
            Work::Routing => vec![Corebeat, CorebeatFilter, CorebeatStraight],
            Work::Read | Work::Write => match load.form {
                Form::Xml => vec![Corebeat, QuickXml],
                Form::Json => vec![Corebeat, SerdeJson],
            },
        }
    }

    /// Does the work in this process.
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

/// Largest depth of a star of threads.
const THREADED_DEPTH_MAX: u64 = 1000;
