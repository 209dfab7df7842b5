//! Graph transformation: matching beside loops that are written by hand for the pattern, and
//! rewriting by one thread, by tasks on one thread, and by tasks on two threads; updates of a live
//! query beside new evaluations.
//!
//! The graph is that of Imre, Mezei, *Parallel Graph Transformations on Multicore Systems*, 2012:
//! videos with up to 20 related videos each, of which few are related to many.

use crate::Bench;
use crate::apart::{self, Case};
use crate::round::Measured;
use crate::row::Better;
use crate::session::Session;
use crate::tool::{DUCKDB, IGRAPH, KUZU, Tool};
use clap::ValueEnum;
use corebeat_paper::videos::{Choice, PATTERNS, Pattern, RELATED_MAX, Videos};
use corebeat_rewrite::{
    Apply, Control, Graph, LiveQuery, Mode, Node, Options as RunOptions, Rule, Value, parse_rules,
    query, run,
};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

pub(crate) const BENCHES: [Bench; 3] = [
    Bench {
        name: "rewrite.match",
        summary: "time to count the matches of patterns of 6 and 7 nodes among 40,000 videos",
        peers: &["loops by hand", "igraph", "duckdb", "kuzu"],
        tools: &MODULES,
        cases: |session| apart::names(&match_cases(session)),
        run: |session| {
            // Reports missing ones.
            for module in MODULES {
                session.has(module);
            }
            measure(session, 0, "ms", &match_cases(session))
        },
    },
    Bench {
        name: "rewrite.exhaust",
        summary: "time of a rewrite: cycles of videos that are opened, Sierpinski triangles",
        peers: &["corebeat, one task", "corebeat, two tasks", "corebeat, two tasks, cycle"],
        tools: &[],
        cases: |session| apart::names(&exhaust_cases(session)),
        run: |session| measure(session, 1, "ns/rewrite", &exhaust_cases(session)),
    },
    Bench {
        name: "rewrite.update",
        summary: "time until a query is up to date after an edge among related videos has moved",
        peers: &["new evaluation"],
        tools: &[],
        cases: |session| apart::names(&update_cases(session)),
        run: |session| measure(session, 2, "us/change", &update_cases(session)),
    },
];

/// Modules of Python that count the same matches.
const MODULES: [Tool; 3] = [IGRAPH, DUCKDB, KUZU];

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
    #[value(name = "new evaluation")]
    New,
    Igraph,
    Duckdb,
    Kuzu,
}

impl Subject {
    fn module(self) -> Option<Tool> {
        match self {
            Subject::Igraph => Some(IGRAPH),
            Subject::Duckdb => Some(DUCKDB),
            Subject::Kuzu => Some(KUZU),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Work {
    /// Counts the matches of the pattern with this index in [`PATTERNS`], among videos with up to
    /// so many related ones. The videos choose evenly, and fewer than the paper's: a pattern has
    /// thousands of millions of matches among the paper's.
    Match { pattern: usize, related: u32 },
    /// Opens cycles of three videos.
    Open,
    /// Divides triangles.
    Sierpinski,
    /// Moves edges, and asks for the videos in most cycles of three.
    Update,
}

#[derive(Clone, Copy)]
struct Load {
    work: Work,
    /// Number of videos, or of rewrites of triangles.
    size: u32,
}

fn match_cases(session: &Session) -> Vec<Case<Subject, Load>> {
    let (size, related) = if session.quick { (200, 4) } else { (40_000, RELATED_MAX / 2) };
    let mut subjects = vec![
        Subject::Corebeat,
        Subject::OneTask,
        Subject::TwoTasks,
        Subject::Hand,
        Subject::Igraph,
        Subject::Duckdb,
        Subject::Kuzu,
    ];
    subjects.retain(|subject| subject.module().is_none_or(|module| module.path().is_some()));
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

fn update_cases(session: &Session) -> Vec<Case<Subject, Load>> {
    let size = if session.quick { 200 } else { 20_000 };
    let load = Load { work: Work::Update, size };
    vec![Case::new("cycles", &[Subject::Corebeat, Subject::New], load)]
}

fn measure(
    session: &Session,
    bench: usize,
    unit: &'static str,
    cases: &[Case<Subject, Load>],
) -> Result<(), String> {
    let name = BENCHES[bench].name;
    let checksums = RefCell::new(HashMap::new());
    apart::measure_each(
        session,
        name,
        |_| (unit, Better::Lower),
        cases,
        |subject, load| {
            let Load { work, size } = load;
            let command = match subject.module() {
                Some(module) => python(session, module, load)?,
                None => apart::command(session, "rewrite", &Options { subject, work, size })?,
            };
            let printed = apart::run(command)?;
            let mut checksums = checksums.borrow_mut();
            let expected = checksums.entry(work).or_insert_with(|| printed.checksum.clone());
            if *expected != printed.checksum {
                return Err(format!("the checksum is {} instead of {expected}", printed.checksum));
            }
            Ok(Measured::Value(printed.value))
        },
    )
}

/// The program in Python that counts the matches with this module.
fn python(session: &Session, module: Tool, load: Load) -> Result<Command, String> {
    let Work::Match { pattern, related } = load.work else {
        return Err("the module counts matches only".into());
    };
    let edges = session.folder().join(format!("videos-{}-{related}.csv", load.size));
    if !edges.exists() {
        let videos = Videos::new(load.size, related, Choice::Even, SEED);
        let lines: String = videos.edges().map(|(from, to)| format!("{from},{to}\n")).collect();
        std::fs::write(&edges, lines).map_err(|e| format!("cannot write the edges: {e}"))?;
    }
    let pattern = PATTERNS[pattern].edges.iter().map(|(from, to)| format!("{from}-{to}"));
    let mut command = Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/pattern.py"));
    command.args([module.program.as_ref(), edges.as_os_str()]);
    command.arg(pattern.collect::<Vec<_>>().join(","));
    Ok(command)
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
        Work::Update => update(options),
    }
}

impl Options {
    fn run_options(&self) -> RunOptions {
        let (threads, force_tasks) = match self.subject {
            Subject::OneTask => (1, true),
            Subject::TwoTasks | Subject::Cycle => (2, true),
            _ => (1, false),
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

/// Number of edges that are moved.
const MOVES: usize = 20;

/// Moves edges, and each time asks for the ten videos that are in most cycles of three.
fn update(options: &Options) -> Result<(f64, u64), String> {
    let videos = Videos::new(options.size, RELATED_MAX / 2, Choice::Even, SEED);
    let mut graph = videos.graph().map_err(|e| e.to_string())?;
    let text = "MATCH (a:Video)-[:RELATED]->(b)-[:RELATED]->(c)-[:RELATED]->(a)
        RETURN a, count(*) AS cycles ORDER BY cycles DESC, a LIMIT 10;";
    let rules = parse_rules("cycles", text, &HashMap::new(), &mut graph);
    let rule = rules.map_err(|e| e.to_string())?.remove(0);
    let mut random = fastrand::Rng::with_seed(2);
    let edges: Vec<_> = graph.edges().collect();
    let (mut live, mut checksum, mut time_us) = (None, 0, 0.0);
    for (turn, edge) in edges.into_iter().take(MOVES + 1).enumerate() {
        let begin = Instant::now();
        let table = match (options.subject, &mut live) {
            (Subject::New, _) => query(&mut graph, &rule, &options.run_options()),
            (_, Some(live)) => LiveQuery::update(live, &mut graph).map(|()| live.table()),
            (_, live) => LiveQuery::new(&mut graph, &rule).map(|new| live.insert(new).table()),
        };
        let table = table.map_err(|e| e.to_string())?;
        // The first evaluation is no update.
        time_us += if turn > 0 { begin.elapsed().as_secs_f64() * 1e6 } else { 0.0 };
        for value in table.rows.iter().flatten() {
            let Value::Int(value) = value else { return Err("a result is no integer".into()) };
            checksum = (checksum * 31 + *value as u64) % 1_000_003;
        }
        let (from, _) = graph.ends(edge).ok_or("an edge is missing")?;
        let of = graph.edge_type(edge).ok_or("an edge is missing")?;
        let to = Node(random.u32(..options.size));
        let moved = graph.delete_edge(edge).and_then(|()| graph.add_edge(of, from, to));
        moved.map_err(|e| e.to_string())?;
    }
    Ok((time_us / MOVES as f64, checksum))
}
