//! Benchmarks of graph transformation with known results: Sierpinski triangles and Varró's mutual
//! exclusion.

use corebeat_rewrite::{
    Apply, Control, Graph, Mode, Options, Progress, Rule, Value, parse_rules, run,
};
use std::collections::HashMap;
use std::sync::Arc;

fn rules(graph: &mut Graph, text: &str, parameters: &[(&str, i64)]) -> Vec<Rule> {
    let value = |(name, value): &(&str, i64)| ((*name).to_owned(), Value::Int(*value));
    let parameters: HashMap<String, Value> = parameters.iter().map(value).collect();
    parse_rules("rules", text, &parameters, graph).unwrap_or_else(|e| panic!("{e}"))
}

/// Divides each triangle into three, to a depth that the edges record.
const SIERPINSKI: &str = "
    CREATE (x:Corner)-[:A {depth: 0}]->(y:Corner)-[:B {depth: 0}]->(z:Corner), (x)-[:C {depth: 0}]->(z);
    MATCH (x)-[a:A]->(y)-[b:B]->(z), (x)-[c:C]->(z) WHERE a.depth < $depth
    DELETE a, b, c
    CREATE (xy:Corner), (yz:Corner), (xz:Corner),
        (x)-[:A {depth: a.depth + 1}]->(xy)-[:B {depth: 0}]->(xz), (x)-[:C {depth: 0}]->(xz),
        (xy)-[:A {depth: a.depth + 1}]->(y)-[:B {depth: 0}]->(yz), (xy)-[:C {depth: 0}]->(yz),
        (xz)-[:A {depth: a.depth + 1}]->(yz)-[:B {depth: 0}]->(z), (xz)-[:C {depth: 0}]->(z);";

#[test]
fn sierpinski_triangles_have_the_known_numbers_of_elements() {
    let depth = 6;
    for (threads, mode) in [(1, Mode::Immediate), (2, Mode::Immediate), (2, Mode::Cycle)] {
        let mut graph = Graph::new();
        let rules = rules(&mut graph, SIERPINSKI, &[("depth", depth)]);
        let control = Control::Sequence(vec![
            Control::Rule(0, Apply::One),
            Control::Rule(1, Apply::Exhaustively),
        ]);
        let progress = Arc::new(Progress::default());
        let options =
            Options { threads, mode, progress: Some(progress.clone()), ..Options::default() };
        let outcome = run(&mut graph, &rules, &control, &options).unwrap();
        let triangles = 3_u64.pow(depth as u32);
        assert_eq!(outcome.rewrites, 1 + (triangles - 1) / 2);
        assert_eq!((progress.rewrites(), progress.matches()), (outcome.rewrites, 0));
        let query =
            parse_rules("corners", "MATCH (c:Corner) RETURN c", &HashMap::new(), &mut graph);
        let table =
            query.and_then(|rules| corebeat_rewrite::query(&mut graph, &rules[0], &options));
        assert_eq!(progress.matches(), table.unwrap().rows.len() as u64);
        assert_eq!(graph.node_count(), (3 * triangles + 3) / 2);
        assert_eq!(graph.edge_count(), 3 * triangles);
    }
}

/// Each division finds another triangle at the same start: a task returns the start, and the new
/// nodes, to the next pass, in which all tasks take them.
#[test]
fn tasks_return_a_start_with_many_matches() {
    let hub = "CREATE (:Hub {n: 0}); MATCH (h:Hub) WHERE h.n < $edges SET h.n = h.n + 1
        CREATE (h)-[:R]->(:Leaf); MATCH (h:Hub)-[r:R]->(l) DELETE r, l";
    let divided = SIERPINSKI.to_owned() + "MATCH (x) WHERE x.n = 0 SET x.n = 1";
    for (text, most, passes) in [(&divided[..], 2_000, 2), (hub, 601, 8)] {
        for (threads, seed) in [(2, None), (3, Some(7))] {
            let (mut graph, mut copy) = (Graph::new(), Graph::new());
            let parameters = [("depth", i64::MAX), ("edges", 300)];
            let own = rules(&mut graph, text, &parameters);
            rules(&mut copy, text, &parameters);
            let options = Options { threads, seed, max: most, log: true, ..Options::default() };
            let steps = [Apply::One, Apply::Exhaustively, Apply::Exhaustively];
            let steps = (0..).zip(steps).map(|(rule, apply)| Control::Rule(rule, apply));
            let outcome =
                run(&mut graph, &own, &Control::Sequence(steps.collect()), &options).unwrap();
            assert!(outcome.passes >= passes, "{text}: {outcome:?}");
            outcome.log.replay(&mut copy).unwrap().verify(&graph, &copy).unwrap();
        }
    }
}

/// The rules of Varró, Schürr, Varró, *Benchmarking for Graph Transformation*, 2005, section 4.
const MUTEX: [(&str, &str); 13] = [
    ("init", "CREATE (a:Process)-[:NEXT]->(b:Process)-[:NEXT]->(a)"),
    (
        "new",
        "MATCH (a:Process)-[n:NEXT]->(b:Process) DELETE n
        CREATE (a)-[:NEXT]->(p:Process)-[:NEXT]->(b)",
    ),
    ("mount", "MATCH (p:Process) CREATE (r:Resource)-[:TOKEN]->(p)"),
    (
        "request",
        "MATCH (r:Resource), (p:Process)
        WHERE NOT (r)-[:HELD_BY]->(p) AND NOT (p)-[:REQUEST]->(:Resource)
        CREATE (p)-[:REQUEST]->(r)",
    ),
    (
        "take",
        "MATCH (r:Resource)-[t:TOKEN]->(p:Process)-[q:REQUEST]->(r) DELETE t, q
        CREATE (r)-[:HELD_BY]->(p)",
    ),
    (
        "release",
        "MATCH (r:Resource)-[h:HELD_BY]->(p:Process) WHERE NOT (p)-[:REQUEST]->(:Resource)
        DELETE h CREATE (r)-[:RELEASE]->(p)",
    ),
    (
        "give",
        "MATCH (r:Resource)-[l:RELEASE]->(p:Process)-[:NEXT]->(q:Process) DELETE l
        CREATE (r)-[:TOKEN]->(q)",
    ),
    (
        "attach",
        "MATCH (p:Process) WHERE NOT (p)<-[:HELD_BY]-(:Resource)
        CREATE (:Resource)-[:HELD_BY]->(p)",
    ),
    (
        "request*",
        "MATCH (:Resource)-[:HELD_BY]->(p:Process)<-[:NEXT]-(:Process)<-[:HELD_BY]-(r:Resource)
        WHERE NOT (p)-[:REQUEST]->(r) CREATE (p)-[:REQUEST]->(r)",
    ),
    (
        "blocked",
        "MATCH (p:Process)-[:REQUEST]->(r:Resource)-[:HELD_BY]->(:Process)
        CREATE (r)-[:BLOCKED]->(p)",
    ),
    (
        "waiting",
        "MATCH (r:Resource)-[b:BLOCKED]->(:Process)<-[:HELD_BY]-(:Resource)<-[:REQUEST]-(p:Process)
        DELETE b CREATE (r)-[:BLOCKED]->(p)",
    ),
    (
        "unlock",
        "MATCH (r:Resource)-[b:BLOCKED]->(p:Process), (r)-[h:HELD_BY]->(p) DELETE b, h
        CREATE (r)-[:RELEASE]->(p)",
    ),
    (
        "release*",
        "MATCH (:Process)-[:REQUEST]->(r:Resource)-[h:HELD_BY]->(p:Process)<-[:HELD_BY]-(:Resource)
        DELETE h CREATE (r)-[:RELEASE]->(p)",
    ),
];

/// Number of processes.
const RING: u64 = 40;

/// The rule of [`MUTEX`] with this name.
fn rule(name: &str, apply: Apply) -> Control {
    Control::Rule(MUTEX.iter().position(|(own, _)| *own == name).unwrap(), apply)
}

fn one(name: &str) -> Control {
    rule(name, Apply::One)
}

fn times(control: Control, times: u64) -> Control {
    Control::Repeat(Box::new(control), times)
}

/// Runs rules on a ring of processes, checks that the graph has these numbers of edges and no
/// others, and returns the number of rewrites.
fn mutex(steps: Vec<Control>, threads: usize, edges: [(&str, u64); 2]) -> u64 {
    let mut graph = Graph::new();
    let text: Vec<&str> = MUTEX.iter().map(|(_, text)| *text).collect();
    let rules = rules(&mut graph, &text.join(";"), &[]);
    let ring = [one("init"), times(one("new"), RING - 2)];
    let control = Control::Sequence(ring.into_iter().chain(steps).collect());
    let options = Options { threads, ..Options::default() };
    let outcome = run(&mut graph, &rules, &control, &options).unwrap();
    for (of, count) in edges {
        let (of, _) = graph.schema().find_edge_type(of).unwrap();
        assert_eq!(graph.edge_count_of(of), count);
    }
    assert_eq!(graph.edge_count(), edges[0].1 + edges[1].1);
    outcome.rewrites - (RING - 1)
}

/// The short transformation sequence: each process requests, takes, releases and gives a resource.
/// The numbers of applications are given, or rules are applied as long as possible (ALAP).
#[test]
fn mutual_exclusion_passes_the_token_around_the_ring() {
    let pass = Control::Sequence(["take", "release", "give"].map(one).into());
    let given = vec![one("mount"), times(one("request"), RING), times(pass.clone(), RING)];
    let requests = rule("request", Apply::Exhaustively);
    let alap = vec![one("mount"), requests, times(pass, u64::MAX)];
    for (steps, threads) in [(given, 1), (alap.clone(), 1), (alap, 2)] {
        let rewrites = mutex(steps, threads, [("TOKEN", 1), ("NEXT", RING)]);
        assert_eq!(rewrites, 1 + RING + 3 * RING);
    }
}

/// The long transformation sequence: each process holds a resource and requests that of the process
/// before it. The deadlock is found along the ring, one resource is released, and the requests are
/// satisfied one after another.
#[test]
fn mutual_exclusion_resolves_a_deadlock() {
    let pass = ["give", "take", "release*"];
    let given = vec![
        times(one("attach"), RING),
        times(one("request*"), RING),
        one("blocked"),
        times(one("waiting"), RING - 1),
        one("unlock"),
        times(Control::Sequence(pass.map(one).into()), RING),
    ];
    // The first rule that matches is applied: without it, a blocked resource moves on for ever.
    let by_priority = pass.into_iter().chain(["unlock", "waiting"]).map(one).collect();
    let alap = vec![
        rule("attach", Apply::Exhaustively),
        rule("request*", Apply::Exhaustively),
        one("blocked"),
        times(Control::First(by_priority), u64::MAX),
    ];
    for (steps, threads) in [(given, 1), (alap.clone(), 1), (alap, 2)] {
        let rewrites = mutex(steps, threads, [("HELD_BY", RING), ("NEXT", RING)]);
        let (requests, search, passes) = (2 * RING, 1 + (RING - 1) + 1, 3 * RING - 1);
        assert_eq!(rewrites, requests + search + passes);
    }
}
