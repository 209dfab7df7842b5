//! The matcher and the rewriter against naive ones, on random graphs and random rules; parallel
//! runs against their sequential replay; live queries against new ones.

mod reference;

use corebeat_rewrite::{
    Apply, Control, Error, Graph, LiveQuery, Matching, Mode, Options, Outcome, Rule, parse_rules,
    query, run,
};
use reference::queries::{random_change, random_query};
use reference::{Plain, actual_shape, plain, random_graph, random_pattern, seeds};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

fn context(seed: u64) -> String {
    format!(
        "seed {seed}: repeat with COREBEAT_SEED={seed} cargo test -p corebeat-rewrite --test random"
    )
}

#[test]
fn matcher_finds_the_matches_of_a_naive_one() {
    for seed in seeds(400) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let (nodes, edges) = (random.usize(1..9), random.usize(..20));
        let mut graph = random_graph(random, nodes, edges);
        let mut pattern = random_pattern(random, true);
        // The conditions are patterns of their own: injective nodes differ inside them, too.
        if pattern.matching == Matching::Injective {
            pattern.conditions.clear();
        }
        let expected = pattern.matches(&plain(&graph)).len() as i64;
        for threads in [1, 2] {
            let found = pattern.count(&mut graph, threads, false);
            assert_eq!(found, expected, "{} threads {threads} {pattern:?}", context(seed));
        }
    }
}

/// Of the matches that symmetries of the pattern exchange, one is found.
#[test]
fn symmetric_matches_are_found_once() {
    let mut symmetric = 0;
    for seed in seeds(600) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let (nodes, edges) = (random.usize(1..8), random.usize(6..30));
        let mut graph = random_graph(random, nodes, edges);
        let mut pattern = random_pattern(random, false);
        if pattern.matching == Matching::Injective {
            pattern.conditions.clear();
        }
        // Most random patterns have no symmetries: paths and stars of equal elements have some.
        if random.u8(..4) > 0 {
            pattern.nodes.fill(None);
            pattern.edges.iter_mut().for_each(|edge| edge.0 = 0);
            pattern.conditions.truncate(1);
        }
        if random.bool() {
            let star = pattern.edges.iter_mut().zip(1..pattern.nodes.len());
            star.for_each(|(edge, leaf)| *edge = (edge.0, 0, leaf));
        }
        let symmetries = pattern.symmetries();
        let matches = pattern.matches(&plain(&graph));
        let least = matches.iter().filter(|(nodes, edges)| {
            symmetries.iter().all(|(of_nodes, of_edges)| {
                let moved_nodes = of_nodes.iter().map(|node| &nodes[*node]);
                let moved_edges = of_edges.iter().map(|edge| &edges[*edge]);
                nodes.iter().chain(edges).le(moved_nodes.chain(moved_edges))
            })
        });
        let expected = least.count() as i64;
        symmetric += usize::from(expected < matches.len() as i64);
        for threads in [1, 2] {
            let found = pattern.count(&mut graph, threads, true);
            assert_eq!(found, expected, "{} threads {threads} {pattern:?}", context(seed));
        }
    }
    assert!(symmetric > 50 || std::env::var("COREBEAT_SEED").is_ok(), "{symmetric}");
}

#[test]
fn rewriter_applies_rules_as_a_naive_one() {
    let mut applied = 0;
    for seed in seeds(600) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let (nodes, edges) = (random.usize(1..9), random.usize(..14));
        let mut graph = random_graph(random, nodes, edges);
        let mut pattern = random_pattern(random, true);
        if pattern.matching == Matching::Injective {
            pattern.conditions.clear();
        }
        let rule = pattern.build(&mut graph, false);
        let before = plain(&graph);
        let control = Control::Rule(0, Apply::One);
        let outcome = run(&mut graph, &[rule], &control, &Options::default()).unwrap();
        let matches = pattern.applicable(&before);
        let changes = !pattern.changes.is_empty();
        let expected = u64::from(changes && !matches.is_empty());
        assert_eq!(outcome.rewrites, expected, "{} {pattern:?}", context(seed));
        applied += outcome.rewrites;
        if outcome.rewrites == 0 {
            assert_eq!(plain(&graph), before, "{}", context(seed));
            continue;
        }
        let after = plain(&graph);
        let is_one_of_them = matches.iter().any(|found| {
            let mut deleted = [Vec::new(), Vec::new()];
            pattern.changes.iter().for_each(|change| match change {
                reference::Change::DeleteNode(node) => deleted[0].push(found.0[*node]),
                reference::Change::DeleteEdge(edge) => deleted[1].push(found.1[*edge]),
                _ => {}
            });
            let expected = pattern.applied(&before, found);
            let mut actual = actual_shape(&before, &after, &deleted[0], &deleted[1]);
            let mut created = expected.2.clone();
            created.sort_unstable();
            actual.2.sort_unstable();
            (actual.0, actual.1, actual.2) == (expected.0, expected.1, created)
        });
        assert!(is_one_of_them, "{} {pattern:?}\n{before:?}\n{after:?}", context(seed));
    }
    assert!(applied > 50 || std::env::var("COREBEAT_SEED").is_ok(), "{applied}");
}

/// Runs a random rule exhaustively, replays the log, and compares the graphs.
fn parallel_case(
    seed: u64,
    mode: Mode,
    apply: Apply,
    is_deterministic: bool,
    threads: usize,
) -> Outcome {
    let make = || {
        let random = &mut fastrand::Rng::with_seed(seed);
        let (nodes, edges) = (random.usize(1..60), random.usize(..160));
        let graph = random_graph(random, nodes, edges);
        (graph, random_pattern(random, true))
    };
    let (mut graph, pattern) = make();
    let rule = pattern.build(&mut graph, false);
    let (mut copy, _) = make();
    pattern.build(&mut copy, false);
    let seed_of_order = is_deterministic.then_some(seed);
    let options =
        Options { threads, mode, max: 100, log: true, seed: seed_of_order, ..Options::default() };
    let control = Control::Rule(0, apply);
    let rule = [rule];
    let outcome = run(&mut graph, &rule, &control, &options).unwrap();
    assert!(outcome.rewrites <= 100, "{}", context(seed));
    assert_eq!(outcome.log.len() as u64, outcome.rewrites, "{}", context(seed));
    let replay = outcome
        .log
        .replay(&mut copy)
        .unwrap_or_else(|e| panic!("{} {e} {pattern:?}", context(seed)));
    let same = replay.verify(&graph, &copy);
    same.unwrap_or_else(|e| panic!("{} {e} {pattern:?}", context(seed)));
    check_columns(&graph, seed);
    if apply == Apply::Exhaustively && !outcome.reached_max && !pattern.changes.is_empty() {
        // A new run begins with all starting nodes.
        let again = run(&mut graph, &rule, &control, &Options::default()).unwrap();
        assert_eq!(again.rewrites, 0, "{} {pattern:?}", context(seed));
        let before = plain(&graph);
        if before.nodes.len() < 12 && pattern.matching != Matching::Injective {
            assert_eq!(pattern.applicable(&before).len(), 0, "{} {pattern:?}", context(seed));
        }
    }
    outcome
}

/// The lists of edges agree with the edges.
fn check_columns(graph: &Graph, seed: u64) {
    let (mut out, mut back) = (0, 0);
    for node in graph.nodes() {
        for of in graph.schema().edge_types() {
            let own = |(edge, _): &(corebeat_rewrite::Edge, _)| graph.edge_type(*edge) == Some(of);
            out += graph.out_edges(node, of).filter(own).count() as u64;
            back += graph.in_edges(node, of).filter(own).count() as u64;
        }
    }
    assert_eq!((out, back), (graph.edge_count(), graph.edge_count()), "{}", context(seed));
    assert_eq!(graph.edges().count() as u64, graph.edge_count(), "{}", context(seed));
    assert_eq!(graph.nodes().count() as u64, graph.node_count(), "{}", context(seed));
    let listed: usize = graph
        .schema()
        .node_types()
        .map(|of| graph.nodes_of(of).filter(|node| graph.node_type(*node) == Some(of)).count())
        .sum();
    assert_eq!(listed as u64, graph.node_count(), "{}", context(seed));
}

#[test]
fn sequential_runs_equal_their_replay() {
    for seed in seeds(150) {
        for apply in [Apply::One, Apply::All, Apply::Exhaustively] {
            parallel_case(seed, Mode::Immediate, apply, false, 1);
        }
    }
}

#[test]
fn deterministic_parallel_runs_equal_their_replay() {
    for seed in seeds(150) {
        for mode in [Mode::Cycle, Mode::Immediate] {
            let first = parallel_case(seed, mode, Apply::Exhaustively, true, 3);
            let again = parallel_case(seed, mode, Apply::Exhaustively, true, 3);
            assert_eq!(first.rewrites, again.rewrites, "{}", context(seed));
            assert_eq!(first.conflicts, again.conflicts, "{}", context(seed));
        }
    }
}

/// One task cannot conflict with others.
#[test]
fn tasks_beyond_the_number_of_workers_do_not_work() {
    let mut conflicts = [0, 0];
    for seed in 0..60 {
        for (limit, conflicts) in [1, 3].into_iter().zip(&mut conflicts) {
            let random = &mut fastrand::Rng::with_seed(seed);
            let mut graph = random_graph(random, 12, 40);
            let text = "MATCH (a)-[e:R]->(b)-[:S]->(c) DELETE e SET b.x = c.x";
            let rule = parse_rules("rule", text, &HashMap::new(), &mut graph).unwrap();
            let workers = Some(Arc::new(AtomicUsize::new(limit)));
            let options = Options { threads: 3, workers, seed: Some(seed), ..Options::default() };
            let control = Control::Rule(0, Apply::Exhaustively);
            *conflicts += run(&mut graph, &rule, &control, &options).unwrap().conflicts;
            let text = "MATCH (a)-[e:R]->(b)-[:S]->(c) RETURN a";
            let left = parse_rules("left", text, &HashMap::new(), &mut graph).unwrap();
            assert!(query(&mut graph, &left[0], &options).unwrap().rows.is_empty());
        }
    }
    assert_eq!(conflicts[0], 0);
    assert!(conflicts[1] > 0);
}

#[test]
fn parallel_runs_equal_their_replay() {
    for seed in seeds(100) {
        for mode in [Mode::Cycle, Mode::Immediate] {
            parallel_case(seed, mode, Apply::Exhaustively, false, 3);
        }
        parallel_case(seed, Mode::Cycle, Apply::All, false, 2);
    }
}

/// A random graph, and random queries on it.
fn queried(random: &mut fastrand::Rng) -> (Graph, Vec<Rule>, Vec<String>) {
    let (nodes, edges) = (random.usize(1..12), random.usize(..14));
    let mut graph = random_graph(random, nodes, edges);
    for key in ["y", "w"] {
        graph.schema_mut().key(key).unwrap();
    }
    let texts: Vec<String> = (0..3).map(|_| random_query(random)).collect();
    let rules = parse_rules("queries", &texts.concat(), &HashMap::new(), &mut graph);
    (graph, rules.unwrap_or_else(|e| panic!("{e} {texts:?}")), texts)
}

/// A live query, of an empty graph if the query cannot be evaluated.
fn live(graph: &mut Graph, rule: &Rule) -> LiveQuery {
    let mut empty = Graph::new();
    LiveQuery::new(graph, rule).or_else(|_| LiveQuery::new(&mut empty, rule)).unwrap()
}

/// Updates a live query, and compares it with a new one.
fn assert_up_to_date(graph: &mut Graph, rule: &Rule, live: &mut LiveQuery, context: &str) {
    let threads = if graph.edge_count().is_multiple_of(8) { 2 } else { 1 };
    let options = Options { threads, ..Options::default() };
    match (query(graph, rule, &options), live.update(graph)) {
        (Ok(expected), Ok(())) => assert_eq!(live.table(), expected, "{context}"),
        (Err(Error::Evaluate { .. }), Err(Error::Evaluate { .. })) => {
            assert!(live.table().rows.is_empty(), "{context}");
        }
        (new, updated) => panic!("{context} {new:?} {updated:?}"),
    }
}

#[test]
fn live_queries_equal_new_ones() {
    for seed in seeds(300) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let (mut graph, rules, texts) = queried(random);
        let mut all: Vec<LiveQuery> = rules.iter().map(|rule| live(&mut graph, rule)).collect();
        let mut changes = Vec::new();
        for _ in 0..12 {
            changes.push(random_change(random, &mut graph));
            for (index, rule) in rules.iter().enumerate() {
                // A query may be updated after several changes.
                if random.u8(..3) > 0 {
                    let text = &texts[index];
                    let context = format!("{} {text} {changes:#?}", context(seed));
                    assert_up_to_date(&mut graph, rule, &mut all[index], &context);
                }
            }
        }
    }
}

#[test]
fn live_queries_equal_new_ones_after_a_replay() {
    for seed in seeds(100) {
        let make = || {
            let random = &mut fastrand::Rng::with_seed(seed);
            let (mut graph, rules, texts) = queried(random);
            let change = random_pattern(random, true).build(&mut graph, false);
            (graph, rules, texts, change)
        };
        let (mut original, _, _, change) = make();
        let (mut graph, rules, texts, _) = make();
        let mut all: Vec<LiveQuery> = rules.iter().map(|rule| live(&mut graph, rule)).collect();
        let options = Options { max: 4, log: true, ..Options::default() };
        let control = Control::Rule(0, Apply::Exhaustively);
        let outcome = run(&mut original, &[change], &control, &options).unwrap();
        outcome.log.replay(&mut graph).unwrap();
        for ((rule, live), text) in rules.iter().zip(&mut all).zip(&texts) {
            assert_up_to_date(&mut graph, rule, live, &format!("{} {text}", context(seed)));
        }
    }
}

/// The start, the edges, and the end.
type Trail = (u32, Vec<u32>, u32);

/// The trails with a number of edges in this range.
fn trails(graph: &Plain, least: usize, most: usize) -> Vec<Trail> {
    let alone = graph.nodes.keys().map(|node| (*node, Vec::<u32>::new(), *node));
    let mut of_length: Vec<_> = alone.collect();
    let mut all = Vec::new();
    for length in 0..=most {
        if length >= least {
            all.extend(of_length.iter().cloned());
        }
        let longer = of_length.iter().flat_map(|(start, on, end)| {
            let next = graph.edges.iter().filter(|(edge, of)| of.1 == *end && !on.contains(edge));
            next.map(|(edge, of)| (*start, [&on[..], &[*edge]].concat(), of.2))
        });
        of_length = longer.collect();
    }
    all
}

/// Number of ways to map paths to trails. The pattern of each path has two nodes, by number.
fn combined(
    paths: &[([usize; 2], Vec<Trail>)],
    nodes: &mut [Option<u32>],
    used: &mut Vec<u32>,
) -> i64 {
    let Some((([from, to], trails), rest)) = paths.split_first() else { return 1 };
    let mut count = 0;
    for (start, edges, end) in trails {
        let before = [nodes[*from], nodes[*to]];
        let is_free = edges.iter().all(|edge| !used.contains(edge));
        if is_free && nodes[*from].is_none_or(|node| node == *start) {
            nodes[*from] = Some(*start);
            if nodes[*to].is_none_or(|node| node == *end) {
                nodes[*to] = Some(*end);
                used.extend(edges);
                count += combined(rest, nodes, used);
                used.truncate(used.len() - edges.len());
            }
        }
        // In this order: both may be the same node.
        (nodes[*to], nodes[*from]) = (before[1], before[0]);
    }
    count
}

/// The edges of all paths of one MATCH differ, and from its single edges, too.
#[test]
fn paths_of_a_match_have_no_edge_in_common() {
    for seed in seeds(400) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let (nodes, edges) = (random.usize(1..6), random.usize(..9));
        let mut graph = random_graph(random, nodes, edges);
        let plain = plain(&graph);
        let mut patterns = Vec::new();
        let mut paths = Vec::new();
        for _ in 0..random.usize(1..4) {
            let least = random.usize(..3);
            let most = random.usize(least.max(1)..4);
            let ends = [random.usize(..3), random.usize(..3)];
            let length = match (least, most) {
                (1, 1) => String::new(),
                _ => format!("[*{least}..{most}]"),
            };
            patterns.push(match random.bool() {
                true => format!("(n{})-{length}->(n{})", ends[0], ends[1]),
                false => format!("(n{})<-{length}-(n{})", ends[1], ends[0]),
            });
            paths.push((ends, trails(&plain, least, most)));
        }
        let expected = combined(&paths, &mut [None; 3], &mut Vec::new());
        // The inside of EXISTS is a pattern of its own.
        let exists = "EXISTS { (n0)-[*0..1]->(m), (m)<-[*0..2]-(n0) }";
        for condition in [String::new(), format!(" WHERE {exists}")] {
            let is_used = patterns.iter().any(|pattern| pattern.contains("n0"));
            let condition = if is_used { condition } else { String::new() };
            let text = format!("MATCH {}{condition} RETURN count(*)", patterns.join(", "));
            let rule = parse_rules("text", &text, &HashMap::new(), &mut graph).unwrap().remove(0);
            for threads in [1, 2] {
                let options = Options { threads, ..Options::default() };
                let found = query(&mut graph, &rule, &options).unwrap();
                assert_eq!(
                    found.rows[0][0].to_string(),
                    expected.to_string(),
                    "{} {text}",
                    context(seed)
                );
            }
        }
    }
}
