//! Runs on small graphs. The run on one thread is small enough for Miri, which detects undefined
//! behaviour in the columns of a graph and in its lists of edges.

use corebeat_rewrite::{
    Apply, Control, Graph, LiveQuery, Mode, Options, Value, parse_rules, query, run,
};
use std::collections::HashMap;

const RULES: &str = "
    CREATE (a:A {x: 1, text: 'one'})-[:R]->(b:B)-[:R]->(c:A {x: [1, 'two']})-[:R]->(a);
    MATCH (a:A)-[r:R]->(b:B) WHERE a.x = 1 DELETE r CREATE (a)-[:S]->(n:A {x: a.x + 1})-[:S]->(b);
    MATCH (a:A) WHERE NOT (a)-[:S]->() AND a.text IS NULL SET a:B, a.text = 'new';
    MATCH (b:B) WHERE b.text = 'new' DETACH DELETE b;
    MATCH (a) OPTIONAL MATCH (a)-[:R|S]->(b) RETURN a, count(b) AS degree";

/// Applies the rules with these options. Returns the degrees of the nodes.
fn applied(options: &Options) -> Vec<Value> {
    let mut graph = Graph::new();
    let rules = parse_rules("rules", RULES, &HashMap::new(), &mut graph).unwrap();
    let (changes, asked) = rules.split_at(4);
    let mut live = LiveQuery::new(&mut graph, &asked[0]).unwrap();
    let steps = [Apply::One, Apply::Exhaustively, Apply::Exhaustively, Apply::All];
    for (rule, apply) in steps.into_iter().enumerate() {
        let outcome = run(&mut graph, changes, &Control::Rule(rule, apply), options).unwrap();
        assert_eq!(outcome.rewrites, 1, "rule {rule}");
        live.update(&mut graph).unwrap();
        assert_eq!(live.table(), query(&mut graph, &asked[0], options).unwrap());
    }
    graph.compact();
    // The numbers of new nodes depend on the task.
    let rows = query(&mut graph, &asked[0], options).unwrap().rows;
    rows.into_iter().map(|row| row[1].clone()).collect()
}

#[test]
fn small_graphs_are_rewritten_on_one_thread() {
    assert_eq!(applied(&Options::default()), [1, 0, 1].map(Value::from));
}

#[test]
fn small_graphs_are_rewritten_by_tasks() {
    let expected = applied(&Options::default());
    for mode in [Mode::Immediate, Mode::Cycle] {
        let options = Options { threads: 2, force_tasks: true, mode, ..Options::default() };
        assert_eq!(applied(&options), expected, "{mode:?}");
    }
}
