//! Benchmarks of graph transformation with known results: Sierpinski triangles and Varró's mutual
//! exclusion (the short transformation sequence). The patterns of the paper on a small model.

use corebeat_rewrite::{
    Apply, Control, Graph, Matching, Mode, Options, Progress, Rule, RuleBuilder, Value,
    parse_rules, run,
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

/// The rules of Varró, Schürr, Varró, *Benchmarking for Graph Transformation*, 2005, section 4.
const MUTEX: &str = "
    CREATE (a:Process)-[:NEXT]->(b:Process)-[:NEXT]->(a);
    MATCH (a:Process)-[n:NEXT]->(b:Process) DELETE n
        CREATE (a)-[:NEXT]->(p:Process)-[:NEXT]->(b);
    MATCH (p:Process) CREATE (r:Resource)-[:TOKEN]->(p);
    MATCH (r:Resource), (p:Process)
        WHERE NOT (r)-[:HELD_BY]->(p) AND NOT (p)-[:REQUEST]->(:Resource)
        CREATE (p)-[:REQUEST]->(r);
    MATCH (r:Resource)-[t:TOKEN]->(p:Process)-[q:REQUEST]->(r) DELETE t, q
        CREATE (r)-[:HELD_BY]->(p);
    MATCH (r:Resource)-[h:HELD_BY]->(p:Process) WHERE NOT (p)-[:REQUEST]->(:Resource) DELETE h
        CREATE (r)-[:RELEASE]->(p);
    MATCH (r:Resource)-[l:RELEASE]->(p:Process)-[:NEXT]->(q:Process) DELETE l
        CREATE (r)-[:TOKEN]->(q);";

#[test]
fn mutual_exclusion_passes_the_token_around_the_ring() {
    let processes = 40;
    let mut graph = Graph::new();
    let rules = rules(&mut graph, MUTEX, &[]);
    let one = |rule| Control::Rule(rule, Apply::One);
    let times = |control, times| Control::Repeat(Box::new(control), times);
    let control = Control::Sequence(vec![
        one(0),
        times(one(1), processes - 2),
        one(2),
        times(one(3), processes),
        times(Control::Sequence(vec![one(4), one(5), one(6)]), processes),
    ]);
    let outcome = run(&mut graph, &rules, &control, &Options::default()).unwrap();
    assert_eq!(outcome.rewrites, 1 + (processes - 2) + 1 + processes + 3 * processes);
    assert_eq!((graph.node_count(), graph.edge_count()), (processes + 1, processes + 1));
    let (token, _) = graph.schema().find_edge_type("TOKEN").unwrap();
    let (next, _) = graph.schema().find_edge_type("NEXT").unwrap();
    assert_eq!((graph.edge_count_of(token), graph.edge_count_of(next)), (1, processes));
}

/// Videos with up to 20 related videos each; few videos are related to many.
fn videos(count: u64, seed: u64) -> Graph {
    let random = &mut fastrand::Rng::with_seed(seed);
    let mut graph = Graph::new();
    let video = graph.schema_mut().node_type("Video", &[]).unwrap();
    let related = graph.schema_mut().edge_type("RELATED", &[]).unwrap();
    let nodes: Vec<_> = (0..count).map(|_| graph.add_node(video).unwrap()).collect();
    for from in &nodes {
        for _ in 0..20 {
            let share = random.f64() * random.f64();
            let to = nodes[(share * count as f64) as usize];
            graph.add_edge(related, *from, to).unwrap();
        }
    }
    graph.compact();
    graph
}

/// A cycle of three videos, each with one more: six nodes, diameter 3. The rewrite opens the cycle.
fn open_cycle(graph: &mut Graph) -> Rule {
    let rule = ["a", "b", "c", "x", "y", "z"]
        .iter()
        .fold(RuleBuilder::new("open"), |rule, name| rule.node(name, "Video"));
    let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("a", "x"), ("b", "y"), ("c", "z")];
    let rule = (0..).zip(edges).fold(rule, |rule, (index, (from, to))| {
        rule.edge(&format!("e{index}"), "RELATED", from, to)
    });
    rule.matching(Matching::Injective).delete("e0").build(graph).unwrap()
}

#[test]
fn pattern_of_the_paper_is_rewritten_until_no_match_is_left() {
    for (threads, mode) in [(1, Mode::Immediate), (2, Mode::Cycle), (2, Mode::Immediate)] {
        let mut graph = videos(300, 1);
        let rule = open_cycle(&mut graph);
        let options = Options { threads, mode, log: true, ..Options::default() };
        let control = Control::Rule(0, Apply::Exhaustively);
        let outcome = run(&mut graph, &[rule], &control, &options).unwrap();
        assert!(outcome.rewrites > 100, "{}", outcome.rewrites);
        assert_eq!(graph.edge_count(), 300 * 20 - outcome.rewrites);
        let mut copy = videos(300, 1);
        open_cycle(&mut copy);
        let replay = outcome.log.replay(&mut copy).unwrap();
        replay.verify(&graph, &copy).unwrap();
        let rule = open_cycle(&mut graph);
        let again = run(&mut graph, &[rule], &control, &Options::default()).unwrap();
        assert_eq!(again.rewrites, 0);
    }
}
