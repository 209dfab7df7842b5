//! The speed of response-time analyses, of reading models, of simulations and of searches, beside
//! the crate `response-time-analysis`, pyCPA and SimSo.

use crate::Bench;
use crate::apart::{self, Case};
use crate::program::Agreement;
use crate::round::Measured;
use crate::row::Better;
use crate::session::Session;
use crate::tool::{self, Tool};
use clap::ValueEnum;
use corebeat_verify::generate::{self, task_set};
use corebeat_verify::{
    Activation, Core, CoreSet, Job, Load, Objective, Search, SearchOptions, Simulation, System,
    analyse, read_amalthea,
};
use response_time_analysis::arrival::Sporadic;
use response_time_analysis::demand::RBF;
use response_time_analysis::fixed_priority::fully_preemptive::dedicated_uniproc_rta;
use response_time_analysis::time::{Duration, Service};
use response_time_analysis::wcet::Scalar;
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::thread;
use std::time::Instant;

const CASE: &str = "10 tasks";

pub(crate) const BENCHES: [Bench; 4] = [
    Bench {
        name: "verify.response",
        summary: "number of response-time analyses of a core with 10 tasks in a second",
        peers: &["response-time-analysis", "pycpa"],
        tools: &[tool::PYCPA],
        cases: |_| vec![CASE.into()],
        run,
    },
    Bench {
        name: "verify.model",
        summary: "milliseconds to read and to analyse a model in AMALTHEA",
        peers: &["quick-xml"],
        tools: &[],
        cases: |_| MODELS.map(str::to_owned).to_vec(),
        run: run_models,
    },
    Bench {
        name: "verify.simulate",
        summary: "number of hyper-periods that the simulation runs in a second",
        peers: &["simso"],
        tools: &[tool::SIMSO],
        cases: |_| vec![DEMOCAR.into()],
        run: run_democar,
    },
    Bench {
        name: "verify.search",
        summary: "number of simulations that searches on two threads evaluate in a second",
        peers: &["one thread"],
        tools: &[],
        cases: |_| vec![CASE.into()],
        run: run_searches,
    },
];

/// Random sets, and all analyses of them: the loads of a whole and of a quick trial.
const SETS: (usize, u64) = (500, 2_000_000);
const SETS_QUICK: (usize, u64) = (5, 2_000);
/// The peer performs this part of the analyses, which takes as long as all of them here.
const PEER_DIVISOR: u64 = 100;

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    Corebeat,
    #[value(name = "response-time-analysis")]
    Peer,
    Pycpa,
    #[value(name = "quick-xml")]
    QuickXml,
    Simso,
    #[value(name = "one thread")]
    OneThread,
}

/// The work of a subject.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Work {
    /// Of this number of sets, this number of analyses.
    Analyses(usize, u64),
    /// One of [`MODELS`], this number of times.
    Model(usize, u64),
    /// This number of hyper-periods of the democar.
    Democar(u64),
    /// A search on each thread, with this number of evaluations.
    Search(u64),
}

fn run(session: &Session) -> Result<(), String> {
    let (count, analyses) = if session.quick { SETS_QUICK } else { SETS };
    let mut subjects = vec![Subject::Corebeat, Subject::Peer];
    subjects.extend(session.has(tool::PYCPA).then_some(Subject::Pycpa));
    let cases = [Case::new(CASE, &subjects, Work::Analyses(count, analyses))];
    let unit = |_: &Case<Subject, Work>| ("analyses/s", Better::Higher);
    let agreement = Agreement::default();
    apart::measure_each(session, BENCHES[0].name, unit, &cases, |subject, work| {
        let command = match subject {
            Subject::Pycpa => {
                let lines = sets(count).iter().map(|set| line(set, 0)).collect::<String>();
                python(session, tool::PYCPA, &lines)?
            }
            _ => apart::command(session, "verify", &Options { subject, work })?,
        };
        agreed(command, &agreement)
    })
}

/// Runs a subject, whose checksum must equal those of the others.
fn agreed(command: Command, agreement: &Agreement) -> Result<Measured, String> {
    let printed = apart::run(command)?;
    agreement.admit(0, printed.checksum)?;
    Ok(Measured::Value(printed.value))
}

/// A set in the form of `peers.py`.
fn line(set: &[Load], duration: u64) -> String {
    let of = |l: &Load| format!(" {},0,0,{},{}", l.period_ns, l.worst_ns, l.period_ns);
    format!("fp 1 {duration}{}\n", set.iter().map(of).collect::<String>())
}

/// The program in Python that handles the sets with this module.
fn python(session: &Session, module: Tool, lines: &str) -> Result<Command, String> {
    let path = session.folder().join(format!("{}-sets", module.program));
    std::fs::write(&path, lines).map_err(|e| format!("cannot write the sets: {e}"))?;
    let script =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/decide/corebeat-verify/tests/peers.py");
    let mut command = Command::new("python3");
    command.args([script, module.program]).arg(path);
    Ok(command)
}

fn run_models(session: &Session) -> Result<(), String> {
    let count = if session.quick { 1 } else { 20 };
    let case = |(index, case): (usize, &&str)| {
        let subjects = [Subject::Corebeat, Subject::QuickXml];
        Case::new(*case, &subjects, Work::Model(index, count))
    };
    let cases: Vec<Case<Subject, Work>> = MODELS.iter().enumerate().map(case).collect();
    let unit = |_: &Case<Subject, Work>| ("ms", Better::Lower);
    apart::measure_each(session, BENCHES[1].name, unit, &cases, |subject, work| {
        apart::value(apart::command(session, "verify", &Options { subject, work })?)
    })
}

fn run_democar(session: &Session) -> Result<(), String> {
    let count = if session.quick { 3 } else { 2_000 };
    let mut subjects = vec![Subject::Corebeat];
    subjects.extend(session.has(tool::SIMSO).then_some(Subject::Simso));
    let cases = [Case::new(DEMOCAR, &subjects, Work::Democar(count))];
    let unit = |_: &Case<Subject, Work>| ("hyper-periods/s", Better::Higher);
    let agreement = Agreement::default();
    apart::measure_each(session, BENCHES[2].name, unit, &cases, |subject, work| {
        let command = match subject {
            // One run for each hyper-period, as SimSo keeps all jobs of a run.
            Subject::Simso => {
                let (loads, hyper) = democar()?;
                let count = if session.quick { 1 } else { 20 };
                python(session, tool::SIMSO, &line(&loads, hyper).repeat(count))?
            }
            _ => apart::command(session, "verify", &Options { subject, work })?,
        };
        agreed(command, &agreement)
    })
}

fn run_searches(session: &Session) -> Result<(), String> {
    let count = if session.quick { 100 } else { 20_000 };
    let cases = [Case::new(CASE, &[Subject::Corebeat, Subject::OneThread], Work::Search(count))];
    let unit = |_: &Case<Subject, Work>| ("evaluations/s", Better::Higher);
    apart::measure_each(session, BENCHES[3].name, unit, &cases, |subject, work| {
        apart::value(apart::command(session, "verify", &Options { subject, work })?)
    })
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    work: Work,
}

/// The model of the WATERS 2019 challenge, with the mapping of its publishers.
const WATERS: &str =
    include_str!("../../crates/decide/corebeat-verify/tests/amalthea/waters2019-mapped.amxmi");

/// The cases of `verify.model`.
const MODELS: [&str; 2] = ["WATERS 2019: read and analyse", "10,000 runnables: read"];
const RUNNABLES: usize = 10_000;

/// A model of tasks with 10 runnables each, whose runnables access labels in a memory.
fn large(runnables: usize) -> String {
    let mut text = "<am:Amalthea xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" \
                    xmlns:am=\"http://app4mc.eclipse.org/amalthea/1.0.0\">\n<swModel>\n"
        .to_owned();
    for task in 0..runnables / 10 {
        text += &format!("<tasks name=\"T{task}\" stimuli=\"S?type=PeriodicStimulus\">");
        text += "<activityGraph>\n";
        for n in task * 10..task * 10 + 10 {
            text +=
                &format!("<items xsi:type=\"am:RunnableCall\" runnable=\"R{n}?type=Runnable\"/>\n");
        }
        text += "</activityGraph></tasks>\n";
    }
    for n in 0..runnables {
        text += &format!("<runnables name=\"R{n}\"><activityGraph>\n");
        for label in [n, n / 2] {
            text += &format!(
                "<items xsi:type=\"am:LabelAccess\" data=\"L{label}?type=Label\" \
                 access=\"read\"/>\n"
            );
        }
        text += "<items xsi:type=\"am:Ticks\"><default xsi:type=\"am:DiscreteValueStatistics\" \
                 lowerBound=\"100\" upperBound=\"300\" average=\"200.0\"/></items>\n\
                 </activityGraph></runnables>\n";
    }
    for n in 0..runnables {
        text += &format!("<labels name=\"L{n}\"><size value=\"32\" unit=\"bit\"/></labels>\n");
    }
    text + "</swModel>\n<hwModel><domains xsi:type=\"am:FrequencyDomain\" name=\"F\">\
            <defaultValue value=\"300\" unit=\"MHz\"/></domains><structures name=\"E\"><modules \
            xsi:type=\"am:ProcessingUnit\" name=\"C\" frequencyDomain=\"F?type=FrequencyDomain\"/>\
            </structures></hwModel>\n<stimuliModel><stimuli xsi:type=\"am:PeriodicStimulus\" \
            name=\"S\"><recurrence value=\"10\" unit=\"ms\"/></stimuli></stimuliModel>\n\
            </am:Amalthea>\n"
}

const DEMOCAR: &str = "democar";
/// The ticks of the democar in a microsecond: with 800 MHz, its tasks occupy 78% of a core.
const DEMOCAR_TICKS: u64 = 800;

/// The periodic tasks of the democar on one core, in microseconds, with rate-monotonic priorities,
/// and their hyper-period.
fn democar() -> Result<(Vec<Load>, u64), String> {
    let text = include_str!("../../crates/decide/corebeat-verify/tests/amalthea/democar.amxmi");
    let model = read_amalthea(text).map_err(|e| e.to_string())?;
    let core = Core { frequency_hz: Some(DEMOCAR_TICKS * 1_000_000), ..Core::default() };
    let mut loads = vec![];
    for task in &model.tasks {
        let Some(Activation::Periodic { period_ns, .. }) = task.activation else { continue };
        let worst_ns = model.execution(task, &core, None)?.worst;
        loads.push(Load::new(period_ns / 1_000, worst_ns.div_ceil(1_000).max(1)));
    }
    loads.sort_by_key(|l| l.period_ns);
    let common = |a: u64, b: u64| {
        let (mut x, mut y) = (a, b);
        while y > 0 {
            (x, y) = (y, x % y);
        }
        a / x * b
    };
    let hyper = loads.iter().map(|l| l.period_ns).fold(1, common);
    Ok((loads, hyper))
}

/// Schedulable sets of 10 tasks with a use of 70% and periods from 1,000 to 100,000.
fn sets(count: usize) -> Vec<Vec<Load>> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut sets = Vec::new();
    while sets.len() < count {
        let loads: Vec<Load> = task_set(&mut random, 10, 0.7, (1_000, 100_000), 100)
            .iter()
            .filter_map(|e| match e.activation {
                Activation::Periodic { period_ns, .. } => {
                    Some(Load::new(period_ns, e.execution_ns.worst))
                }
                _ => None,
            })
            .collect();
        if CoreSet::new(loads.clone()).analyse() {
            sets.push(loads);
        }
    }
    sets
}

/// The main function of the child. The checksum is the sum of the response times of the first
/// analysis of each set, or of the simulation, which must be equal for all subjects.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    match options.work {
        Work::Analyses(sets, count) => analyse_sets(options.subject, sets, count),
        Work::Model(model, count) => read_models(options.subject, model, count),
        Work::Democar(count) => simulate(count),
        Work::Search(count) => {
            search(if options.subject == Subject::OneThread { 1 } else { 2 }, count)
        }
    }
}

/// Evaluations in a second: searches for the longest response time in a random set of 10 tasks,
/// each with a seed of its own. The checksum is the number of evaluations.
fn search(threads: u64, count: u64) -> Result<(f64, u64), String> {
    let mut random = fastrand::Rng::with_seed(1);
    let system = System::of(task_set(&mut random, 10, 0.7, (1_000, 100_000), 100));
    let evaluations = &|seed| {
        let objective = Objective::Response { task: Some(system.entries[9].task) };
        let options = SearchOptions { evaluations: count, seed, objective, stops_at_miss: false };
        let mut search = Search::new(&system, options);
        while search.step() {}
        search.evaluations()
    };
    let begin = Instant::now();
    let total = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..threads).map(|seed| scope.spawn(move || evaluations(seed))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a search panics")).sum()
    });
    let total: u64 = Result::map_err(total, str::to_owned)?;
    Ok((total as f64 / begin.elapsed().as_secs_f64(), total))
}

/// Milliseconds of a reading, and the number of elements that were read.
fn read_models(subject: Subject, model: usize, count: u64) -> Result<(f64, u64), String> {
    let text = if model == 0 { WATERS.to_owned() } else { large(RUNNABLES) };
    let mut elements = 0;
    let begin = Instant::now();
    for _ in 0..count {
        let text = std::hint::black_box(&text);
        if subject == Subject::QuickXml {
            let mut reader = quick_xml::Reader::from_str(text);
            elements = 0;
            loop {
                match reader.read_event().map_err(|e| e.to_string())? {
                    quick_xml::events::Event::Eof => break,
                    _ => elements += 1,
                }
            }
            continue;
        }
        let read = read_amalthea(text).map_err(|e| e.to_string())?;
        elements = (read.tasks.len() + read.runnables.len()) as u64;
        if model == 0 {
            elements += analyse(&read).tasks.len() as u64;
        } else if read.runnables.len() != RUNNABLES {
            return Err(format!("{} runnables were read", read.runnables.len()));
        }
    }
    Ok((begin.elapsed().as_secs_f64() * 1e3 / count as f64, elements))
}

/// Hyper-periods in a second.
fn simulate(count: u64) -> Result<(f64, u64), String> {
    let (loads, hyper) = democar()?;
    let entries = loads.iter().enumerate().map(|(n, l)| {
        let priority = (loads.len() - n) as u32;
        generate::entry(n, 0, l.period_ns, l.worst_ns, priority)
    });
    let system = System::of(entries.collect());
    let jobs: Vec<Vec<Job>> = loads
        .iter()
        .map(|l| {
            let arrivals = (0..hyper / l.period_ns).map(|k| k * l.period_ns);
            let execution_ns = l.worst_ns;
            arrivals.map(|at| Job { arrival_ns: at, release_ns: at, execution_ns }).collect()
        })
        .collect();
    let mut simulation = Simulation::new(&system);
    let begin = Instant::now();
    for _ in 0..count {
        std::hint::black_box(&mut simulation).run(&jobs, u64::MAX, None);
    }
    let seconds = begin.elapsed().as_secs_f64();
    Ok((count as f64 / seconds, simulation.responses().iter().sum()))
}

fn analyse_sets(subject: Subject, sets_count: usize, count: u64) -> Result<(f64, u64), String> {
    let sets = sets(sets_count);
    let (done, seconds, first) = match subject {
        Subject::Corebeat => {
            let mut prepared: Vec<CoreSet> = sets.into_iter().map(CoreSet::new).collect();
            let mut sums = vec![0; sets_count];
            let begin = Instant::now();
            for n in 0..count {
                let at = (n % sets_count as u64) as usize;
                std::hint::black_box(&mut prepared[at]).analyse();
                sums[at] = prepared[at].responses().iter().sum();
            }
            (count, begin.elapsed().as_secs_f64(), sums)
        }
        _ => {
            let request = |load: &Load| {
                let arrivals = Sporadic::new_zero_jitter(Duration::from(load.period_ns));
                RBF::new(arrivals, Scalar::from(Service::from(load.worst_ns)))
            };
            let prepared: Vec<Vec<_>> =
                sets.iter().map(|set| set.iter().map(request).collect()).collect();
            let count = (count / PEER_DIVISOR).max(sets_count as u64);
            let mut sums = vec![0; sets_count];
            let begin = Instant::now();
            for n in 0..count {
                let at = (n % sets_count as u64) as usize;
                let set = std::hint::black_box(&prepared[at]);
                sums[at] = 0;
                for task in 0..set.len() {
                    let limit = Duration::from(1_000_000);
                    let bound = dedicated_uniproc_rta(&set[task], &set[..task], limit);
                    sums[at] += u64::from(bound.map_err(|e| e.to_string())?);
                }
            }
            (count, begin.elapsed().as_secs_f64(), sums)
        }
    };
    Ok((done as f64 / seconds, first.iter().sum()))
}
