//! Graph transformation: matching beside loops that are written by hand for the pattern, and
//! rewriting by one thread, by tasks on one thread, and by tasks on two threads; updates of a live
//! query beside new evaluations.
//!
//! The graph is that of Imre, Mezei, *Parallel Graph Transformations on Multicore Systems*, 2012:
//! videos with up to 20 related videos each, of which few are related to many.

use crate::Bench;
use crate::apart::{self, Case};
use crate::memory::resident_bytes;
use crate::round::Measured;
use crate::row::Better;
use crate::session::Session;
use crate::tool::{DUCKDB, GRAPHBLAS, IGRAPH, KUZU, RUSTWORKX, Tool};
use clap::ValueEnum;
use corebeat_paper::videos::{Choice, PATTERNS, Pattern, RELATED_MAX, Videos};
use corebeat_rewrite::{
    Apply, Control, Graph, LiveQuery, Mode, Node, Options as RunOptions, Rule, Value, parse_rules,
    query, run,
};
use serde::{Deserialize, Serialize};
use social::How;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

#[path = "../../crates/parallel/corebeat-rewrite/tests/social/mod.rs"]
mod social;

#[path = "../../crates/parallel/corebeat-rewrite/tests/antworld/mod.rs"]
mod antworld;

pub(crate) const BENCHES: [Bench; 5] = [
    Bench {
        name: "rewrite.match",
        summary: "time to count the matches of patterns of 6 and 7 nodes among 40,000 videos",
        peers: &["loops by hand", "petgraph", "pushout", "igraph", "duckdb", "kuzu", "rustworkx"],
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
        summary: "time of a rewrite: cycles of videos that are opened, Sierpinski triangles and \
                  AntWorld as their graphs grow",
        peers: &["corebeat, one task", "corebeat, two tasks", "corebeat, two tasks, cycle"],
        tools: &[],
        cases: |session| apart::names(&exhaust_cases(session)),
        run: |session| measure(session, 1, "ns/rewrite", &exhaust_cases(session)),
    },
    Bench {
        name: "rewrite.update",
        summary: "time until a query is up to date after an edge among related videos has moved",
        peers: &["new evaluation", "graphblas"],
        tools: &[GRAPHBLAS],
        cases: |session| apart::names(&update_cases(session)),
        run: |session| {
            session.has(GRAPHBLAS);
            measure(session, 2, "us/change", &update_cases(session))
        },
    },
    Bench {
        name: "rewrite.social",
        summary: "time of the queries of the Transformation Tool Contest 2018, initially and for 20 \
                  changes",
        peers: &["new evaluation"],
        tools: &[],
        cases: |session| apart::names(&social_cases(session)),
        run: |session| measure(session, 3, "ms", &social_cases(session)),
    },
    Bench {
        name: "rewrite.memory",
        summary: "memory of a graph of videos for each of its edges",
        peers: &["petgraph"],
        tools: &[],
        cases: |session| apart::names(&memory_cases(session)),
        run: |session| measure(session, 4, "bytes/edge", &memory_cases(session)),
    },
];

/// Modules of Python that count the same matches.
const MODULES: [Tool; 4] = [IGRAPH, DUCKDB, KUZU, RUSTWORKX];

/// Number of videos of the case with few videos.
const SMALL: u32 = 2000;

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
    Petgraph,
    Pushout,
    Igraph,
    Duckdb,
    Kuzu,
    Rustworkx,
    Graphblas,
}

impl Subject {
    fn module(self) -> Option<Tool> {
        match self {
            Subject::Igraph => Some(IGRAPH),
            Subject::Duckdb => Some(DUCKDB),
            Subject::Kuzu => Some(KUZU),
            Subject::Rustworkx => Some(RUSTWORKX),
            Subject::Graphblas => Some(GRAPHBLAS),
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
    /// Plays rounds of AntWorld.
    Ants,
    /// Moves edges, and asks for the videos in most cycles of three.
    Update,
    /// The first or the second query of the Social Media case: the first evaluation, or those after
    /// all changes.
    Social { is_second: bool, is_update: bool },
    /// Builds a graph of videos.
    Memory,
}

#[derive(Clone, Copy)]
struct Load {
    work: Work,
    /// Number of videos, of rewrites of triangles or of rounds, or the size of the model of the
    /// contest.
    size: u32,
}

fn match_cases(session: &Session) -> Vec<Case<Subject, Load>> {
    let (size, related) = if session.quick { (200, 4) } else { (40_000, RELATED_MAX / 2) };
    let subjects = present(&[
        Subject::Corebeat,
        Subject::OneTask,
        Subject::TwoTasks,
        Subject::Hand,
        Subject::Petgraph,
        Subject::Igraph,
        Subject::Duckdb,
        Subject::Kuzu,
    ]);
    let load = |pattern, size| Load { work: Work::Match { pattern, related }, size };
    let case =
        |(index, pattern): (usize, &Pattern)| Case::new(pattern.name, &subjects, load(index, size));
    // The time of these libraries grows with the square of the number of videos.
    let slow = [Subject::Corebeat, Subject::Hand, Subject::Pushout, Subject::Rustworkx];
    let small = load(0, if session.quick { 100 } else { SMALL });
    let small = Case::new(format!("{}, few videos", PATTERNS[0].name), &present(&slow), small);
    PATTERNS.iter().enumerate().map(case).chain([small]).collect()
}

/// The subjects whose modules this machine has.
fn present(subjects: &[Subject]) -> Vec<Subject> {
    let has = |subject: &&Subject| subject.module().is_none_or(|module| module.path().is_some());
    subjects.iter().filter(has).copied().collect()
}

fn exhaust_cases(session: &Session) -> Vec<Case<Subject, Load>> {
    let (videos, triangles) = if session.quick { (200, 364) } else { (20_000, 797_161) };
    let subjects = [Subject::Corebeat, Subject::OneTask, Subject::TwoTasks, Subject::Cycle];
    let mut cases = vec![
        Case::new("open cycles", &subjects, Load { work: Work::Open, size: videos }),
        Case::new("triangles", &subjects, Load { work: Work::Sierpinski, size: triangles }),
    ];
    let own = [Subject::Corebeat];
    // The numbers of triangles that are divided until all have a depth.
    let depths = if session.quick { 3..=5 } else { 7..=deepest() };
    cases.extend(depths.step_by(2).map(|depth| {
        let size = (3_u32.pow(depth) - 1) / 2;
        let load = Load { work: Work::Sierpinski, size };
        Case::new(format!("growing, {size} triangles"), &own, load)
    }));
    let rounds: &[u32] = if session.quick { &[5, 10] } else { &[25, 50, 100, 200] };
    cases.extend(rounds.iter().map(|rounds| {
        let load = Load { work: Work::Ants, size: *rounds };
        Case::new(format!("growing, {rounds} rounds of ants"), &own, load)
    }));
    cases
}

/// Bytes of memory of a divided triangle, measured and rounded up: three nodes and six edges.
const TRIANGLE_BYTES: u64 = 650;
/// Depth whose rewrites end within the time that a subject has.
const DEPTH_MAX: u32 = 17;

/// The largest odd depth of triangles whose graph fits into half of the free memory.
fn deepest() -> u32 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = free.and_then(|free| free.split_whitespace().next()?.parse::<u64>().ok());
    let bytes = kib.unwrap_or(0) * 1024 / 2;
    let fits = |depth: &u32| 3_u64.pow(*depth) / 2 * TRIANGLE_BYTES <= bytes;
    (7..=DEPTH_MAX).step_by(2).filter(fits).last().unwrap_or(7)
}

fn update_cases(session: &Session) -> Vec<Case<Subject, Load>> {
    let size = if session.quick { 200 } else { 20_000 };
    let load = Load { work: Work::Update, size };
    let subjects = present(&[Subject::Corebeat, Subject::New, Subject::Graphblas]);
    vec![Case::new("cycles", &subjects, load)]
}

fn social_cases(session: &Session) -> Vec<Case<Subject, Load>> {
    let sizes = if session.quick { vec![1] } else { social_sizes() };
    let works = [(false, false), (false, true), (true, false), (true, true)];
    let cases = works.into_iter().flat_map(|(is_second, is_update)| {
        let work = Work::Social { is_second, is_update };
        sizes.iter().map(move |size| {
            let query = if is_second { "Q2" } else { "Q1" };
            let phase = if is_update { "20 changes" } else { "initial" };
            let subjects = [Subject::Corebeat, Subject::New];
            let subjects = if is_update { &subjects[..] } else { &subjects[..1] };
            let load = Load { work, size: *size };
            Case::new(format!("{query}, size {size}, {phase}"), subjects, load)
        })
    });
    cases.collect()
}

fn memory_cases(session: &Session) -> Vec<Case<Subject, Load>> {
    let videos: &[u32] = if session.quick { &[20_000] } else { &[500_000, 2_000_000] };
    let case = |size: &u32| {
        let load = Load { work: Work::Memory, size: *size };
        Case::new(format!("{size} videos"), &[Subject::Corebeat, Subject::Petgraph], load)
    };
    videos.iter().map(case).collect()
}

/// A folder with models of the contest: `COREBEAT_TTC2018`, or that of the tests.
fn social_folder() -> PathBuf {
    let own = "../crates/parallel/corebeat-rewrite/tests/data/ttc2018";
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(own);
    std::env::var_os("COREBEAT_TTC2018").map_or(own, PathBuf::from)
}

fn social_sizes() -> Vec<u32> {
    let entries = std::fs::read_dir(social_folder()).into_iter().flatten().flatten();
    let models = entries.filter(|entry| entry.path().join("initial.xmi").exists());
    let mut sizes: Vec<u32> =
        models.filter_map(|model| model.file_name().to_str()?.parse().ok()).collect();
    sizes.sort_unstable();
    sizes
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
            let expected =
                checksums.entry((work, size)).or_insert_with(|| printed.checksum.clone());
            if *expected != printed.checksum {
                return Err(format!("the checksum is {} instead of {expected}", printed.checksum));
            }
            Ok(Measured::Value(printed.value))
        },
    )
}

/// The program in Python that does the work with this module.
fn python(session: &Session, module: Tool, load: Load) -> Result<Command, String> {
    let (related, script) = match load.work {
        Work::Match { related, .. } => (related, "peers/pattern.py"),
        Work::Update => (RELATED_MAX / 2, "peers/cycles.py"),
        _ => return Err("the module does not do this work".into()),
    };
    let videos = || Videos::new(load.size, related, Choice::Even, SEED);
    let lines = |pairs: &mut dyn Iterator<Item = (u32, u32)>| -> String {
        pairs.map(|(from, to)| format!("{from},{to}\n")).collect()
    };
    let written = |name: &str, text: &dyn Fn() -> String| {
        let path = session.folder().join(format!("{name}-{}-{related}.csv", load.size));
        if !path.exists() {
            std::fs::write(&path, text()).map_err(|e| format!("cannot write {name}: {e}"))?;
        }
        Ok::<_, String>(path)
    };
    let edges = written("videos", &|| lines(&mut videos().edges()))?;
    let mut command = Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(script));
    command.args([module.program.as_ref(), edges.as_os_str()]);
    match load.work {
        Work::Match { pattern, .. } => {
            let pattern = PATTERNS[pattern].edges.iter().map(|(from, to)| format!("{from}-{to}"));
            command.arg(pattern.collect::<Vec<_>>().join(","));
        }
        _ => {
            let ends = || lines(&mut moves(load.size).map(|to| (to, to)));
            command.arg(written("moves", &ends)?);
        }
    }
    Ok(command)
}

/// The new targets of the edges that are moved.
fn moves(videos: u32) -> impl Iterator<Item = u32> {
    let mut random = fastrand::Rng::with_seed(2);
    (0..=MOVES).map(move |_| random.u32(..videos))
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
        Work::Ants => ants(options),
        Work::Update => update(options),
        Work::Social { is_second, is_update } => social(options, is_second, is_update),
        Work::Memory => memory(options),
    }
}

/// Builds the paper's graph of videos.
fn memory(options: &Options) -> Result<(f64, u64), String> {
    let videos = Videos::new(options.size, RELATED_MAX, Choice::Even, SEED);
    let edges = videos.edges().count() as u64;
    let before = resident_bytes()?;
    let (after, built) = match options.subject {
        Subject::Petgraph => {
            let graph = petgraph::Graph::<(), ()>::from_edges(videos.edges());
            (resident_bytes()?, graph.edge_count() as u64)
        }
        _ => {
            let graph = videos.graph().map_err(|e| e.to_string())?;
            (resident_bytes()?, graph.edge_count())
        }
    };
    if built != edges {
        return Err(format!("the graph has {built} edges instead of {edges}"));
    }
    Ok((after.saturating_sub(before) as f64 / edges as f64, edges))
}

/// Evaluates a query of the Social Media case.
fn social(options: &Options, is_second: bool, is_update: bool) -> Result<(f64, u64), String> {
    let (folder, size) = (social_folder(), options.size.to_string());
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))
    };
    let expected = read(folder.join("expected-results.csv"))?;
    let mut model = social::Model::read(&folder, &size);
    let how = if options.subject == Subject::New { How::New(1) } else { How::Live };
    let (mut initial_ms, mut update_ms) = (0.0, 0.0);
    for step in 0..=if is_update { 20 } else { 0 } {
        let changes = match step {
            0 => String::new(),
            _ => read(folder.join(&size).join(format!("change{step:02}.csv")))?,
        };
        let begin = Instant::now();
        changes.lines().for_each(|line| model.change(line));
        let (view, answer) = if is_second { ("Q2", model.q2(how)) } else { ("Q1", model.q1(how)) };
        let time_ms = begin.elapsed().as_secs_f64() * 1e3;
        *if step == 0 { &mut initial_ms } else { &mut update_ms } += time_ms;
        let phase = if step == 0 { "Initial" } else { "Update" };
        let line = format!("\"{view}\";{size};{step};\"{phase}\";\"{answer}\"");
        if !expected.lines().any(|expected| expected.trim_end() == line) {
            return Err(format!("{line} is not expected"));
        }
    }
    Ok((if is_update { update_ms } else { initial_ms }, 0))
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
    if options.subject == Subject::Petgraph {
        return petgraph(&videos, pattern);
    }
    if options.subject == Subject::Pushout {
        return pushout(&videos, pattern);
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

/// The videos and the pattern as graphs of petgraph.
fn petgraphs(videos: &Videos, pattern: &Pattern) -> [petgraph::Graph<(), ()>; 2] {
    let names = pattern.nodes();
    let number = |name: &str| names.iter().position(|own| *own == name).unwrap_or(0) as u32;
    let small = pattern.edges.iter().map(|(from, to)| (number(from), number(to)));
    [petgraph::Graph::from_edges(videos.edges()), petgraph::Graph::from_edges(small)]
}

/// petgraph counts the matches without further edges among their videos. Their number is checked,
/// and the returned checksum is the number of all matches.
fn petgraph(videos: &Videos, pattern: &Pattern) -> Result<(f64, u64), String> {
    let [graph, small] = petgraphs(videos, pattern);
    let (graph, small) = (&graph, &small);
    let (mut same_nodes, mut same_edges) = (|_: &(), _: &()| true, |_: &(), _: &()| true);
    let begin = Instant::now();
    let found = petgraph::algo::subgraph_isomorphisms_iter(
        &small,
        &graph,
        &mut same_nodes,
        &mut same_edges,
    );
    let found = found.map_or(0, Iterator::count) as u64;
    let time_ms = begin.elapsed().as_secs_f64() * 1e3;
    let mut graph = videos.graph().map_err(|e| e.to_string())?;
    let rule = pattern.counting_induced(&mut graph).map_err(|e| e.to_string())?;
    let table = query(&mut graph, &rule, &RunOptions::default()).map_err(|e| e.to_string())?;
    match table.rows[0][0] {
        Value::Int(induced) if induced as u64 == found => Ok((time_ms, videos.count(pattern))),
        ref induced => Err(format!("{found} matches instead of {induced}")),
    }
}

fn pushout(videos: &Videos, pattern: &Pattern) -> Result<(f64, u64), String> {
    let [graph, small] = petgraphs(videos, pattern);
    let begin = Instant::now();
    let found = pushout::algorithms::vf2::find_mappings(&small, &graph, false).len() as u64;
    Ok((begin.elapsed().as_secs_f64() * 1e3, found))
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

/// Plays rounds of AntWorld. The checksum is that of the food and the pheromones of all fields.
fn ants(options: &Options) -> Result<(f64, u64), String> {
    let mut ants = antworld::Ants::new();
    let (how, mut rewrites) = (options.run_options(), 0);
    let begin = Instant::now();
    for _ in 0..options.size {
        rewrites += ants.round(&how).map_err(|e| e.to_string())?.rewrites;
    }
    let time_ns = begin.elapsed().as_nanos() as f64;
    let (graph, mut checksum) = (&ants.graph, 0);
    let keys = ["food", "pheromones"].map(|name| graph.schema().find_key(name));
    for (node, key) in graph.nodes().flat_map(|node| keys.map(|key| (node, key))) {
        if let Some(Value::Int(value)) = key.map(|key| graph.get(node, key)) {
            checksum = (checksum + value as u64) % 1_000_003;
        }
    }
    Ok((time_ns / rewrites.max(1) as f64, checksum))
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
    let edges: Vec<_> = graph.edges().collect();
    let (mut live, mut checksum, mut time_us) = (None, 0, 0.0);
    for ((turn, edge), target) in edges.into_iter().enumerate().zip(moves(options.size)) {
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
        let moved = graph.delete_edge(edge);
        let moved = moved.and_then(|()| graph.add_edge(of, from, Node(target)));
        moved.map_err(|e| e.to_string())?;
    }
    Ok((time_us / MOVES as f64, checksum))
}
