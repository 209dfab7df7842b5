//! Measures collections of objects and processors, as Meyer, Kogtenkov, Akhi did (*Processors and
//! their collection*, 2012, section 6). The bench also measures two quantities that the paper
//! omits: calls during collections, and actors of other libraries.
//!
//! Each subject runs in a separate process. The process builds the objects without a collection,
//! and then collects a few times. All objects live unless the case states otherwise, and each
//! collection must find this number of live objects. Collections without the search for dead
//! processors (*objects only*) take turns with full collections in one process, so that both work
//! on the same objects at the same addresses.

mod arena;
mod heap;
mod leak;
mod pause;
mod peer;
mod plan;
mod subject;

use crate::Bench;
use crate::apart::{self, Case};
use crate::round::{Measured, Subject as Turn};
use crate::row::Better;
use crate::session::Session;
use crate::tool::{GO, JAVA, JAVAC, Tool};
use plan::{Plan, Work};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::rc::Rc;
use subject::Subject;

pub(crate) const BENCHES: [Bench; 4] = [
    Bench {
        name: "scoop.collect",
        summary: "time of a full collection of objects and processors",
        peers: &["objects only", "processor as object", "gc-arena", "go", "java, serial"],
        tools: TOOLS,
        cases: |session| apart::names(&collections(session)),
        run: |session| run(session, 0, |_| ("ms", Better::Lower), &collections(session)),
    },
    Bench {
        name: "scoop.mark",
        summary: "time of the marking phase of a collection, which finds the live processors and objects",
        peers: &["objects only"],
        tools: &[],
        cases: |session| apart::names(&marks(session)),
        run: |session| run(session, 1, |_| ("ms", Better::Lower), &marks(session)),
    },
    Bench {
        name: "scoop.pause",
        summary: "time of a call while one collection follows another",
        peers: &["corebeat, no collections", "limit", "go", "java, serial"],
        tools: TOOLS,
        cases: |session| apart::names(&pauses(session)),
        run: |session| run(session, 2, |_| ("µs", Better::Lower), &pauses(session)),
    },
    Bench {
        name: "scoop.leak",
        summary: "number of unreachable actors that still exist",
        peers: &["actix", "ractor"],
        tools: &[],
        cases: |session| apart::names(&leaks(session)),
        run: |session| run(session, 3, |_| ("actors", Better::Lower), &leaks(session)),
    },
];

const TOOLS: &[Tool] = &[GO, JAVA, JAVAC];
/// Collections of a run. Their median is one value.
const COLLECTIONS: usize = 9;
/// Time span of the calls.
const SPAN_MS: u64 = 500;

/// The load of a subject.
#[derive(Clone, Copy)]
struct Load {
    work: Work,
    objects: usize,
    processors: usize,
    /// Objects of the called processor.
    called: usize,
    /// The reported time is the quantile of this many calls in a thousand.
    per_mille: usize,
    /// Whether only the marking phase is measured.
    marking: bool,
}

impl Load {
    fn new(work: Work, objects: usize, processors: usize) -> Load {
        Load { work, objects, processors, called: 0, per_mille: 0, marking: false }
    }

    fn case(self, subjects: &[Subject]) -> Case<Subject, Load> {
        let Load { work, objects, processors, .. } = self;
        let all = match work {
            Work::Trees | Work::Pause => "trees",
            Work::Ring => "ring",
            Work::Shuffled => "shuffled ring",
            Work::Links => "ten links",
            Work::Dead => "trees, all but one dead",
            Work::Chain => "in rows",
            Work::Cycle => "in circles",
        };
        let processors =
            if processors == 1 { "1 processor" } else { &format!("{processors} processors") };
        Case::new(format!("{all}, {objects} objects, {processors}"), subjects, self)
    }
}

/// The papers' figures 2 to 5, beside collectors of one heap.
fn collections(session: &Session) -> Vec<Case<Subject, Load>> {
    const OURS: [Subject; 3] =
        [Subject::Corebeat, Subject::ObjectsOnly, Subject::ProcessorAsObject];
    const ALL: [Subject; 6] = [
        Subject::Corebeat,
        Subject::ObjectsOnly,
        Subject::ProcessorAsObject,
        Subject::GcArena,
        Subject::Go,
        Subject::Java,
    ];
    let mut cases = Vec::new();
    for work in [Work::Trees, Work::Ring, Work::Links] {
        if session.quick {
            cases.push(Load::new(work, 700, 7).case(&ALL));
            continue;
        }
        for (objects, processors) in
            [(100_000, 1), (100_000, 10), (100_000, 100), (1_000_000, 1), (1_000_000, 10)]
        {
            cases.push(Load::new(work, objects, processors).case(&OURS));
        }
        cases.push(Load::new(work, 1_000_000, 100).case(&ALL));
        cases.push(Load::new(work, 10_000_000, 100).case(&OURS));
    }
    let (objects, processors) = if session.quick { (700, 7) } else { (1_000_000, 100) };
    cases.extend(
        [Work::Shuffled, Work::Dead].map(|work| Load::new(work, objects, processors).case(&ALL)),
    );
    cases
}

fn marks(session: &Session) -> Vec<Case<Subject, Load>> {
    let (objects, processors) = if session.quick { (700, 7) } else { (1_000_000, 100) };
    let case = |work| {
        let load = Load { marking: true, ..Load::new(work, objects, processors) };
        load.case(&[Subject::Corebeat, Subject::ObjectsOnly])
    };
    [Work::Trees, Work::Ring, Work::Shuffled, Work::Links, Work::Dead].map(case).into()
}

fn pauses(session: &Session) -> Vec<Case<Subject, Load>> {
    let (objects, processors) = if session.quick { (700, 7) } else { (1_000_000, 100) };
    let load = |called, per_mille| Load {
        called,
        per_mille,
        ..Load::new(Work::Pause, objects, processors)
    };
    let case = |name: &str, load: Load, subjects: &[Subject]| Case {
        name: format!("{name}, {} of {objects} objects", load.called),
        ..load.case(subjects)
    };
    let own = [Subject::Corebeat, Subject::Idle, Subject::Limit];
    let all = [&own[..], &[Subject::Go, Subject::Java]].concat();
    vec![
        case("middle call", load(1, 500), &own),
        case("99 of 100 calls", load(1, 990), &own),
        case("999 of 1000 calls", load(1, 999), &own),
        case("longest call", load(1, 1000), &all),
        case("longest call", load(objects / processors, 1000), &own),
        case("longest call", load(objects, 1000), &own),
    ]
}

fn leaks(session: &Session) -> Vec<Case<Subject, Load>> {
    let actors = if session.quick { 20 } else { 1_000 };
    let case = |work| {
        let load = Load::new(work, actors, actors);
        let case = load.case(&[Subject::Corebeat, Subject::Actix, Subject::Ractor]);
        let how = if work == Work::Chain { "rows" } else { "circles" };
        Case { name: format!("{actors} dropped, in {how} of ten"), ..case }
    };
    [Work::Chain, Work::Cycle].map(case).into()
}

type Unit = fn(&Case<Subject, Load>) -> (&'static str, Better);

fn run(
    session: &Session,
    bench: usize,
    unit: Unit,
    cases: &[Case<Subject, Load>],
) -> Result<(), String> {
    apart::measure(session, BENCHES[bench].name, unit, cases, |case| {
        // The value of the second subject, which the process of the first subject measures.
        let other = Rc::new(Cell::new(None));
        let mut turns = Vec::new();
        for (name, subject, load) in &case.subjects {
            let (subject, load, other) = (*subject, *load, other.clone());
            if matches!(subject, Subject::Go | Subject::Java)
                && peer::command(session, subject)?.is_none()
            {
                continue;
            }
            turns.push(Turn::new(name, move || match subject {
                Subject::ObjectsOnly => {
                    let value: Option<f64> = other.take();
                    value.map(Measured::Value).ok_or_else(|| "the process of the subject corebeat measures this value, and has not run".into())
                }
                _ => measure(session, subject, load, &other),
            }));
        }
        Ok(turns)
    })
}

/// Runs a child. The child counts the live objects itself.
fn measure(
    session: &Session,
    subject: Subject,
    load: Load,
    other: &Cell<Option<f64>>,
) -> Result<Measured, String> {
    let Load { work, objects, processors, called, per_mille, marking } = load;
    // Collections of large heaps take long.
    let collections = if objects > 1_000_000 { 3 } else { COLLECTIONS };
    let span_ms = if session.quick { 20 } else { SPAN_MS };
    let command = if matches!(subject, Subject::Go | Subject::Java) {
        let mut command =
            peer::command(session, subject)?.ok_or("the peer is no longer installed")?;
        command.arg(apart::name(&work)).arg(objects.to_string());
        match work {
            Work::Pause => command.arg(span_ms.to_string()),
            _ => command.args([processors, collections].map(|n| n.to_string())),
        };
        command
    } else {
        let options =
            Options { subject, work, objects, processors, called, per_mille, collections, span_ms };
        apart::command(session, "scoop", &options)?
    };
    let printed = apart::run(command)?;
    if subject == Subject::Corebeat {
        let before = if marking { "objects-only-marking " } else { "objects-only " };
        other.set(printed.number(before).ok());
    }
    let value = if marking { printed.number("marking ")? } else { printed.value };
    Ok(Measured::Value(value))
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    work: Work,
    objects: usize,
    processors: usize,
    called: usize,
    per_mille: usize,
    collections: usize,
    span_ms: u64,
}

impl Options {
    fn plan(&self) -> Plan {
        let Options { work, objects, processors, .. } = *self;
        Plan { work, objects, processors }
    }
}

/// The main function of the child.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    Ok(match (options.work, options.subject) {
        (Work::Pause, _) => pause::measure(options)?,
        (Work::Chain | Work::Cycle, _) => leak::measure(options)?,
        (Work::Ring | Work::Shuffled, Subject::GcArena) => arena::measure::<1>(options),
        (Work::Links, Subject::GcArena) => arena::measure::<10>(options),
        (_, Subject::GcArena) => arena::measure::<2>(options),
        (work, _) => {
            let (times, checksum) = match work {
                Work::Ring | Work::Shuffled => heap::measure::<1>(options)?,
                Work::Links => heap::measure::<10>(options)?,
                _ => heap::measure::<2>(options)?,
            };
            println!("marking {}", times.joint_marking);
            println!("objects-only {}", times.objects_only);
            println!("objects-only-marking {}", times.objects_only_marking);
            (times.joint, checksum)
        }
    })
}
