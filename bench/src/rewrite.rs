//! Graph transformation: matching beside loops that are written by hand for the pattern, and
//! rewriting by one thread, by tasks on one thread, and by tasks on two threads.
//!
//! The graph is that of Imre, Mezei, *Parallel Graph Transformations on Multicore Systems*, 2012:
//! videos with up to 20 related videos each, of which few are related to many.

use crate::Bench;
use crate::apart::{self, Case};
use crate::round::Measured;
use crate::row::Better;
use crate::session::Session;
use clap::ValueEnum;
use corebeat_paper::videos::{Choice, PATTERNS, Pattern, RELATED_MAX, Videos};
use corebeat_rewrite::{
    Apply, Control, Graph, Mode, Options as RunOptions, Rule, Value, parse_rules, query, run,
};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Instant;

pub(crate) const BENCHES: [Bench; 2] = [
    Bench {
        name: "rewrite.match",
        summary: "time to count the matches of patterns of 6 and 7 nodes among 40,000 videos",
        peers: &["loops by hand"],
        tools: &[],
        cases: |session| apart::names(&match_cases(session)),
        run: |session| measure(session, 0, "ms", &match_cases(session)),
    },
    Bench {
        name: "rewrite.exhaust",
        summary: "time of a rewrite: cycles of videos that are opened, Sierpinski triangles",
        peers: &["corebeat, one task", "corebeat, two tasks", "corebeat, two tasks, cycle"],
        tools: &[],
        cases: |session| apart::names(&exhaust_cases(session)),
        run: |session| measure(session, 1, "ns/rewrite", &exhaust_cases(session)),
    },
];

/// The seed of the videos.
const SEED: u64 = 1;

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    /// The calling thread, without locks.
    Corebeat,
    #[value(name = "corebeat, one task")]
    OneTask,
    #[value(name = "corebeat, two tasks")]
    TwoTasks,
    #[value(name = "corebeat, two tasks, cycle")]
    Cycle,
    #[value(name = "loops by hand")]
    Hand,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Work {
    /// Counts the matches of the pattern with this index in [`PATTERNS`], among videos with up to
    /// so many related ones. The videos choose evenly, and fewer than the paper's: a pattern has
    /// thousands of millions of matches among the paper's.
    Match { pattern: usize, related: u32 },
    /// Opens cycles of three videos.
    Open,
    /// Divides triangles.
    Sierpinski,
}

#[derive(Clone, Copy)]
struct Load {
    work: Work,
    /// Number of videos, or of rewrites of triangles.
    size: u32,
}

fn match_cases(session: &Session) -> Vec<Case<Subject, Load>> {
    let (size, related) = if session.quick { (200, 4) } else { (40_000, RELATED_MAX / 2) };
    let subjects = [Subject::Corebeat, Subject::OneTask, Subject::TwoTasks, Subject::Hand];
    let case = |(index, pattern): (usize, &Pattern)| {
        Case::new(
            pattern.name,
            &subjects,
            Load { work: Work::Match { pattern: index, related }, size },
        )
    };
    PATTERNS.iter().enumerate().map(case).collect()
}

fn exhaust_cases(session: &Session) -> Vec<Case<Subject, Load>> {
    let (videos, triangles) = if session.quick { (200, 364) } else { (20_000, 797_161) };
    let subjects = [Subject::Corebeat, Subject::OneTask, Subject::TwoTasks, Subject::Cycle];
    vec![
        Case::new("open cycles", &subjects, Load { work: Work::Open, size: videos }),
        Case::new("triangles", &subjects, Load { work: Work::Sierpinski, size: triangles }),
    ]
}

fn measure(
    session: &Session,
    bench: usize,
    unit: &'static str,
    cases: &[Case<Subject, Load>],
) -> Result<(), String> {
    let name = BENCHES[bench].name;
    apart::measure_each(
        session,
        name,
        |_| (unit, Better::Lower),
        cases,
        |subject, load| {
            let Load { work, size } = load;
            let printed =
                apart::run(apart::command(session, "rewrite", &Options { subject, work, size })?)?;
            Ok(Measured::Value(printed.value))
        },
    )
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    work: Work,
    size: u32,
}

/// The main function of the child.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    match options.work {
        Work::Match { pattern, related } => count(options, &PATTERNS[pattern], related),
        Work::Open => open(options),
        Work::Sierpinski => sierpinski(options),
    }
}

impl Options {
    fn run_options(&self) -> RunOptions {
        let (threads, force_tasks) = match self.subject {
            Subject::Corebeat | Subject::Hand => (1, false),
            Subject::OneTask => (1, true),
            Subject::TwoTasks | Subject::Cycle => (2, true),
        };
        let mode = if self.subject == Subject::Cycle { Mode::Cycle } else { Mode::Immediate };
        RunOptions { threads, force_tasks, mode, ..RunOptions::default() }
    }
}

/// Counts all matches of a pattern.
fn count(options: &Options, pattern: &Pattern, related: u32) -> Result<(f64, u64), String> {
    let videos = Videos::new(options.size, related, Choice::Even, SEED);
    if options.subject == Subject::Hand {
        let begin = Instant::now();
        let matches = videos.count(pattern);
        return Ok((begin.elapsed().as_secs_f64() * 1e3, matches));
    }
    let mut graph = videos.graph().map_err(|e| e.to_string())?;
    let rule = pattern.counting(&mut graph).map_err(|e| e.to_string())?;
    let begin = Instant::now();
    let table = query(&mut graph, &rule, &options.run_options()).map_err(|e| e.to_string())?;
    let time_ms = begin.elapsed().as_secs_f64() * 1e3;
    match table.rows[0][0] {
        Value::Int(matches) => Ok((time_ms, matches as u64)),
        _ => Err("the count is no integer".into()),
    }
}

/// Opens cycles of three videos until no match of the first pattern is left.
fn open(options: &Options) -> Result<(f64, u64), String> {
    let videos = Videos::new(options.size, RELATED_MAX, Choice::Skewed, SEED);
    let mut graph = videos.graph().map_err(|e| e.to_string())?;
    let rule = PATTERNS[0].opening(&mut graph).map_err(|e| e.to_string())?;
    let (time, _) = timed(&mut graph, &[rule], 0, &options.run_options())?;
    // The number of rewrites depends on their order.
    Ok((time, 0))
}

const TRIANGLES: &str = "
    CREATE (x:Corner)-[:A]->(y:Corner)-[:B]->(z:Corner), (x)-[:C]->(z);
    MATCH (x)-[a:A]->(y)-[b:B]->(z), (x)-[c:C]->(z)
    DELETE a, b, c
    CREATE (xy:Corner), (yz:Corner), (xz:Corner),
        (x)-[:A]->(xy)-[:B]->(xz), (x)-[:C]->(xz),
        (xy)-[:A]->(y)-[:B]->(yz), (xy)-[:C]->(yz),
        (xz)-[:A]->(yz)-[:B]->(z), (xz)-[:C]->(z);";

/// Divides triangles a number of times.
fn sierpinski(options: &Options) -> Result<(f64, u64), String> {
    let mut graph = Graph::new();
    let rules = parse_rules("triangles", TRIANGLES, &HashMap::new(), &mut graph);
    let rules = rules.map_err(|e| e.to_string())?;
    let first = Control::Rule(0, Apply::One);
    run(&mut graph, &rules, &first, &RunOptions::default()).map_err(|e| e.to_string())?;
    let how = RunOptions { max: options.size.into(), ..options.run_options() };
    let (time, rewrites) = timed(&mut graph, &rules, 1, &how)?;
    if (graph.node_count(), graph.edge_count()) != (3 + 3 * rewrites, 3 + 6 * rewrites) {
        return Err("the numbers of nodes and edges are wrong".into());
    }
    Ok((time, rewrites))
}

/// Applies a rule exhaustively. Returns nanoseconds per rewrite, and the number of rewrites.
fn timed(
    graph: &mut Graph,
    rules: &[Rule],
    rule: usize,
    how: &RunOptions,
) -> Result<(f64, u64), String> {
    let begin = Instant::now();
    let control = Control::Rule(rule, Apply::Exhaustively);
    let outcome = run(graph, rules, &control, how).map_err(|e| e.to_string())?;
    let time_ns = begin.elapsed().as_nanos() as f64;
    Ok((time_ns / outcome.rewrites.max(1) as f64, outcome.rewrites))
}
