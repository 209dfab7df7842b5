//! Queries and rules as text, on small graphs.

use corebeat_rewrite::{
    Apply, Control, Error, Graph, Mode, Options, RuleBuilder, Table, Value, explain, explain_drawn,
    parse_rules, query, run, write_svg,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn rules(graph: &mut Graph, text: &str) -> Vec<corebeat_rewrite::Rule> {
    parse_rules("rules", text, &HashMap::new(), graph).unwrap_or_else(|e| panic!("{e}"))
}

fn apply(graph: &mut Graph, text: &str, apply: Apply) -> u64 {
    let rules = rules(graph, text);
    let steps = (0..rules.len()).map(|index| Control::Rule(index, apply)).collect();
    let options = Options { max: 1000, ..Options::default() };
    run(graph, &rules, &Control::Sequence(steps), &options)
        .unwrap_or_else(|e| panic!("{e}"))
        .rewrites
}

/// The rows of a query, as text.
fn ask(graph: &mut Graph, text: &str) -> Vec<String> {
    let rules = rules(graph, text);
    let tables = [1, 2].map(|threads| {
        let options = Options { threads, ..Options::default() };
        query(graph, &rules[0], &options).unwrap_or_else(|e| panic!("{e}"))
    });
    assert_eq!(tables[0], tables[1]);
    rows(&tables[0])
}

fn rows(table: &Table) -> Vec<String> {
    let line = |row: &Vec<Value>| row.iter().map(Value::to_string).collect::<Vec<_>>().join(" ");
    table.rows.iter().map(line).collect()
}

fn mistake(text: &str) -> String {
    let mut graph = friends();
    match parse_rules("rules", text, &HashMap::new(), &mut graph) {
        Err(e @ Error::Text { .. }) => e.to_string(),
        other => panic!("no mistake is found: {other:?}"),
    }
}

/// Edges lead from Ada to Bob and Cy, from Bob to Cy, and from Cy to Cy and Dee.
fn friends() -> Graph {
    let mut graph = Graph::new();
    apply(
        &mut graph,
        "CREATE (a:Person {name: 'Ada', age: 36}), (b:Person {name: 'Bob', age: 20}), \
         (c:Person {name: 'Cy', age: 20}), (d:Person {name: 'Dee'}), \
         (a)-[:KNOWS {since: 1990}]->(b), (a)-[:KNOWS {since: 2000}]->(c), \
         (b)-[:KNOWS {since: 2010}]->(c), (c)-[:KNOWS]->(c), (c)-[:KNOWS]->(d)",
        Apply::One,
    );
    graph
}

#[test]
fn patterns_are_found() {
    let graph = &mut friends();
    let found =
        ask(graph, "MATCH (a:Person)-[:KNOWS]->(b) RETURN a.name, b.name ORDER BY a.name, b.name");
    assert_eq!(found, ["'Ada' 'Bob'", "'Ada' 'Cy'", "'Bob' 'Cy'", "'Cy' 'Cy'", "'Cy' 'Dee'"]);
    let found = ask(graph, "MATCH (a {name: 'Ada'})-->(b)<--(c) RETURN b.name, c.name");
    assert_eq!(found, ["'Cy' 'Bob'", "'Cy' 'Cy'"], "the two edges of a match differ");
    let found = ask(graph, "MATCH (a {name: 'Ada'})-->(b) MATCH (b)<--(c) RETURN count(*)");
    assert_eq!(found, ["4"], "edges of different clauses may be equal");
    let found = ask(graph, "MATCH (c {name: 'Cy'})--(x) RETURN x.name ORDER BY x.name");
    assert_eq!(found, ["'Ada'", "'Bob'", "'Cy'", "'Dee'"], "a loop is found once");
    let found = ask(graph, "MATCH (a), (b) WHERE id(a) < id(b) RETURN count(*)");
    assert_eq!(found, ["6"]);
}

#[test]
fn paths_of_variable_length_are_found() {
    let graph = &mut friends();
    let found = ask(graph, "MATCH (a {name: 'Ada'})-[:KNOWS*]->(d {name: 'Dee'}) RETURN count(*)");
    assert_eq!(found, ["4"], "each path uses the loop or does not");
    let found = ask(graph, "MATCH (a {name: 'Ada'})-[:KNOWS*2]->(x) RETURN x.name ORDER BY x.name");
    assert_eq!(found, ["'Cy'", "'Cy'", "'Dee'"]);
    let found = ask(graph, "MATCH (d {name: 'Dee'})<-[*0..1]-(x) RETURN x.name ORDER BY x.name");
    assert_eq!(found, ["'Cy'", "'Dee'"]);
    let found = ask(
        graph,
        "MATCH (d {name: 'Dee'}) OPTIONAL MATCH (d)-->(x) RETURN EXISTS { (x)-[*0..1]->(y) }",
    );
    assert_eq!(found, ["false"], "no path begins at a node that was not found");
}

#[test]
fn conditions_are_evaluated() {
    let graph = &mut friends();
    let names = |graph: &mut Graph, condition: &str| {
        let text = format!("MATCH (p:Person) WHERE {condition} RETURN p.name ORDER BY p.name");
        ask(graph, &text).join(" ")
    };
    for (condition, expected) in [
        ("p.age = 20", "'Bob' 'Cy'"),
        ("p.age > 20 OR p.age IS NULL", "'Ada' 'Dee'"),
        ("NOT p.age = 20", "'Ada'"),
        ("p.age IN [36, 1]", "'Ada'"),
        ("p.name STARTS WITH 'A' OR p.name ENDS WITH 'y'", "'Ada' 'Cy'"),
        ("p.name CONTAINS 'e' XOR p.age = 36", "'Ada'"),
        ("p.age % 7 = 1 AND p.age / 5 = 7", "'Ada'"),
        ("-p.age + 2 * 10 = 0", "'Bob' 'Cy'"),
        ("NOT (p)-->()", "'Dee'"),
        ("NOT (p)<-[:KNOWS]-(:Person)", "'Ada'"),
        (
            "EXISTS { MATCH (p)-->(x) WHERE x.age = 20 AND NOT EXISTS { (x)-->({name: 'Dee'}) } }",
            "'Ada'",
        ),
        ("coalesce(p.age, 99) = 99 AND size(p.name) = 3", "'Dee'"),
        ("p:Person AND labels(p) = ['Person'] AND abs(-1) = 1.0", "'Ada' 'Bob' 'Cy' 'Dee'"),
    ] {
        assert_eq!(names(graph, condition), expected, "{condition}");
    }
}

#[test]
fn optional_parts_and_aggregates_are_computed() {
    let graph = &mut friends();
    let found = ask(
        graph,
        "MATCH (p:Person) OPTIONAL MATCH (p)-[k:KNOWS]->(x) WHERE x.name <> p.name \
         RETURN p.name AS name, count(x) AS friends, min(k.since), collect(x.name) \
         ORDER BY friends DESC, name LIMIT 3",
    );
    assert_eq!(found, ["'Ada' 2 1990 ['Bob', 'Cy']", "'Bob' 1 2010 ['Cy']", "'Cy' 1 null ['Dee']"]);
    let found = ask(
        graph,
        "MATCH (p:Person) RETURN count(p.age), sum(p.age), avg(p.age), max(p.name), 2 * count(DISTINCT p.age)",
    );
    assert_eq!(found, ["3 76 25.333333333333332 'Dee' 4"]);
    assert_eq!(ask(graph, "MATCH (p:Person {age: 1}) RETURN count(*), sum(p.age)"), ["0 0"]);
    assert_eq!(ask(graph, "MATCH (p:Person) RETURN DISTINCT p.age SKIP 1"), ["20", "null"]);
    assert_eq!(ask(graph, "RETURN 1 + 2 * 3"), ["7"]);
}

#[test]
fn columns_hide_elements_in_order_by() {
    let graph = &mut friends();
    let most =
        "MATCH (x)-[:KNOWS]->(c) RETURN x.name AS who, count(c) AS c ORDER BY c DESC LIMIT 1";
    assert_eq!(ask(graph, most), ["'Ada' 2"]);
    let found = ask(graph, "MATCH (a {name: 'Ada'})-->(b) RETURN b AS a ORDER BY a.name DESC");
    assert_eq!(found, ask(graph, "MATCH (a {name: 'Ada'})-->(b) RETURN b ORDER BY b.name DESC"));
    let found = ask(graph, "MATCH (x:Person) RETURN x.age + 1 AS x ORDER BY x DESC, x IS NULL");
    assert_eq!(found.len(), 4);
}

#[test]
fn equal_numbers_of_different_types_are_one_value() {
    let graph = &mut Graph::new();
    let text = "CREATE (:N {x: 1}), (:N {x: 1.0}), (:N {x: 0.5}), (:N {x: [1]}), (:N {x: [1.0]})";
    apply(graph, text, Apply::One);
    assert_eq!(ask(graph, "MATCH (n:N) RETURN DISTINCT n.x"), ["1", "0.5", "[1]"]);
    assert_eq!(ask(graph, "MATCH (n:N) RETURN n.x, count(*)"), ["1 2", "0.5 1", "[1] 2"]);
    assert_eq!(ask(graph, "MATCH (n:N) RETURN count(DISTINCT n.x)"), ["3"]);
}

#[test]
fn any_number_of_conditions_fits_on_the_stack() {
    let graph = &mut friends();
    let conditions = vec!["age: 36"; 20_000].join(", ");
    assert_eq!(ask(graph, &format!("MATCH (a {{{conditions}}}) RETURN count(*)")), ["1"]);
    let rule =
        (0..20_000).fold(RuleBuilder::new("many").any_node("a"), |rule, _| rule.when("a.age = 36"));
    let rule = rule.returns("count(*)").build(graph).unwrap();
    assert_eq!(rows(&query(graph, &rule, &Options::default()).unwrap()), ["1"]);
}

#[test]
fn a_query_that_is_stopped_returns_no_part_of_its_results() {
    let mut graph = friends();
    let rules = rules(&mut graph, "MATCH (a) RETURN a.name");
    let stop = Some(Arc::new(AtomicBool::new(true)));
    let options = Options { stop, ..Options::default() };
    assert_eq!(query(&mut graph, &rules[0], &options), Err(Error::Stopped));
    let rules = self::rules(&mut graph, "OPTIONAL MATCH (a)-->(b) RETURN count(*)");
    assert_eq!(query(&mut graph, &rules[0], &options), Err(Error::Stopped));
    assert_eq!(graph.node_count(), 4);
}

/// Searches that would take years end, although each of them has one starting node.
#[test]
fn a_stop_ends_the_search_at_a_node() {
    let graph = &mut Graph::new();
    let (of, edge) =
        (graph.schema_mut().node_type("N", &[]), graph.schema_mut().edge_type("E", &[]));
    let key = graph.schema_mut().key("x").unwrap();
    let nodes: Vec<_> = (0..30).map(|_| graph.add_node(of.clone().unwrap()).unwrap()).collect();
    for (index, node) in nodes.iter().enumerate() {
        graph.set(*node, key, index as i64).unwrap();
        for other in &nodes {
            graph.add_edge(edge.clone().unwrap(), *node, *other).unwrap();
        }
    }
    for pattern in [
        "(a {x: 0}), (b), (c), (d), (e), (f), (g), (h), (i) WHERE b.x + c.x + d.x + i.x > 999",
        "(a {x: 0})-->(b)-->(c)-->(d)-->(e)-->(f)-->(g)-->(h)-->(i) WHERE a.x + i.x > 999",
        "(a {x: 0})-[*20..40]->(b) WHERE a.x + b.x > 999",
        "(a {x: 0}) WHERE EXISTS { (a)-[*20..40]->(b) WHERE a.x + b.x > 999 }",
    ] {
        for (threads, mode) in [(1, Mode::Cycle), (2, Mode::Cycle), (2, Mode::Immediate)] {
            let stop = Arc::new(AtomicBool::new(false));
            let flag = Some(stop.clone());
            let options = Options { threads, mode, stop: flag, ..Options::default() };
            let stops = std::thread::spawn(move || stop.store(true, Relaxed));
            let rule = rules(graph, &format!("MATCH {pattern} SET a.x = 1")).remove(0);
            let outcome = run(graph, &[rule], &Control::Rule(0, Apply::Exhaustively), &options);
            let outcome = outcome.unwrap();
            assert!(outcome.stopped && outcome.rewrites == 0, "{pattern}");
            let rule = rules(graph, &format!("MATCH {pattern} RETURN count(*)")).remove(0);
            assert_eq!(query(graph, &rule, &options), Err(Error::Stopped), "{pattern}");
            stops.join().unwrap();
        }
    }
}

#[test]
fn lists_are_nested_64_deep_at_most() {
    let graph = &mut Graph::new();
    apply(graph, "CREATE (:N {x: 0})", Apply::One);
    let rule = rules(graph, "MATCH (n:N) SET n.x = [n.x]").remove(0);
    let options = Options { max: 100, ..Options::default() };
    let why = run(graph, &[rule], &Control::Rule(0, Apply::Exhaustively), &options).unwrap_err();
    assert!(why.to_string().contains("lists are nested more than 64 deep"), "{why}");
    let found = ask(graph, "MATCH (n:N) RETURN n.x").remove(0);
    assert_eq!(found.matches('[').count(), 64, "{found}");
    let rule = rules(graph, "MATCH (n:N) SET n.x = [n.x, n.x]").remove(0);
    apply(graph, "MATCH (n:N) SET n.x = 1", Apply::One);
    let options = Options { max: 100, ..Options::default() };
    let why = run(graph, &[rule], &Control::Rule(0, Apply::Exhaustively), &options).unwrap_err();
    assert!(why.to_string().contains("or have more than 1048576 values"), "{why}");
}

#[test]
fn sums_of_floats_are_rounded_once() {
    let graph = &mut Graph::new();
    let values = "1e308, 1e308, -1e308, 1.5, 9007199254740993";
    for value in values.split(", ") {
        apply(graph, &format!("CREATE (:N {{x: {value}}})"), Apply::One);
    }
    let sum = "MATCH (n:N) WHERE n.x < 1e16 AND n.x > 0 RETURN sum(n.x), avg(n.x)";
    assert_eq!(ask(graph, sum), ["9007199254740994.0 4503599627370497.0"]);
    assert_eq!(ask(graph, "MATCH (n:N) RETURN sum(n.x), avg(n.x)"), ["1e308 2e307"]);
    assert_eq!(ask(graph, "MATCH (n:N) WHERE n.x > 0 RETURN sum(n.x)"), ["inf"]);
}

/// The number of matches, and the number if symmetric ones are found once.
fn symmetric(graph: &mut Graph, pattern: &str) -> [String; 2] {
    let rule = rules(graph, &format!("MATCH {pattern} RETURN count(*)")).remove(0);
    let once = rule.clone().symmetric_once().unwrap();
    [rule, once].map(|rule| {
        let tables = [1, 2].map(|threads| {
            let options = Options { threads, ..Options::default() };
            query(graph, &rule, &options).unwrap()
        });
        assert_eq!(tables[0], tables[1]);
        rows(&tables[0]).join(" ")
    })
}

#[test]
fn symmetric_matches_are_found_once_per_symmetry_of_the_pattern() {
    let graph = &mut Graph::new();
    // All pairs of five nodes are connected.
    apply(
        graph,
        "CREATE (:N {x: 1}), (:N {x: 2}), (:N {x: 3}), (:N {x: 4}), (:N {x: 5})",
        Apply::One,
    );
    apply(
        graph,
        "MATCH (a:N), (b:N) WHERE a.x < b.x AND NOT (a)-[:E]->(b) CREATE (a)-[:E]->(b)",
        Apply::Exhaustively,
    );
    for (pattern, all, once) in [
        ("(a)-[:E]->(b)", 10, 10),
        ("(a)--(b)", 20, 10),
        ("(a)--(b)--(c)--(a)", 60, 10),
        ("(a)--(b)--(c)--(a) WHERE a.x < 2", 12, 6),
        ("(a)--(b)--(c)--(a) WHERE a.x < 9 AND b.x < 9", 60, 30),
        ("(a)--(b)--(c)--(a) WHERE a <> b AND c <> b AND a <> c", 60, 10),
        ("(a)--(b)--(c)--(a) WHERE b <> a AND b.x > c.x", 30, 30),
        ("(a)--(b)--(c) WHERE c.x > 0 AND 0 < a.x", 60, 30),
        ("(a)<--(b)-->(c)", 20, 10),
        ("(a)<--(b)-->(c) WHERE NOT (a)--(c)", 0, 0),
        ("(a)<--(b)-->(c) WHERE EXISTS { (a)--(c) }", 20, 10),
        ("(a)<--(b)-->(c) WHERE EXISTS { (a)-->(c) }", 10, 10),
        ("(a)<--(b)-->(c) WHERE EXISTS { (c)-->(d)<--(a) }", 8, 4),
        ("(a)--(b)--(c)--(d)--(a)", 120, 15),
        ("(a), (b)", 25, 15),
        ("(a)-[:E*]->(b)<-[:E*]-(a)", 52, 52),
        ("(a)-->(b) MATCH (c)-->(b)", 30, 20),
    ] {
        let expected = [all, once].map(|count| count.to_string());
        assert_eq!(symmetric(graph, pattern), expected, "{pattern}");
    }
    // Conditions that distinguish the nodes end the search for symmetries early.
    let order = (0..11).map(|leaf| format!("n{leaf}.x < n{}.x", leaf + 1));
    let star = (0..12).map(|leaf| format!("(a)--(n{leaf})")).collect::<Vec<_>>().join(", ");
    let chain = format!("{star} WHERE {}", order.collect::<Vec<_>>().join(" AND "));
    assert_eq!(symmetric(graph, &chain), ["0", "0"]);
    let star = (0..8).map(|leaf| format!("(a)--(n{leaf})")).collect::<Vec<_>>().join(", ");
    let rule = rules(graph, &format!("MATCH {star} RETURN count(*)")).remove(0);
    let refused = rule.symmetric_once().unwrap_err().to_string();
    assert!(refused.contains("the pattern has more than 5040 symmetries"), "{refused}");
}

/// A symmetry does not exchange the elements that a rule changes: the effects differ.
#[test]
fn rules_with_symmetric_patterns_have_all_effects() {
    for (effect, expected) in [("a.x = 1", 2), ("a.x = b.x + 1", 2)] {
        let mut graph = Graph::new();
        apply(&mut graph, "CREATE (:N {x: 0})-[:E]->(:N {x: 0})", Apply::One);
        let text = format!("MATCH (a)--(b) WHERE a.x = 0 SET {effect}");
        let rule = rules(&mut graph, &text).remove(0).symmetric_once().unwrap();
        let outcome = corebeat_rewrite::apply_exhaustively(&mut graph, &rule, 9).unwrap();
        assert_eq!(outcome.rewrites, expected, "{effect}");
    }
}

#[test]
fn rules_change_the_graph() {
    let graph = &mut friends();
    let text = "MATCH (a)-[k:KNOWS]->(a) DELETE k; MATCH (p) WHERE p.age = 20 SET p.age = p.age + 1, p:Adult";
    assert_eq!(apply(graph, text, Apply::Exhaustively), 3);
    assert_eq!(ask(graph, "MATCH (p:Adult) RETURN p.name, p.age"), ["'Bob' 21", "'Cy' 21"]);
    assert_eq!(
        apply(graph, "MATCH (p {name: 'Cy'}) DELETE p", Apply::One),
        0,
        "edges would dangle"
    );
    assert_eq!(apply(graph, "MATCH (p {name: 'Cy'}) DETACH DELETE p", Apply::One), 1);
    assert_eq!((graph.node_count(), graph.edge_count()), (3, 1));
    assert_eq!(apply(graph, "MATCH (p {name: 'Dee'}) DELETE p", Apply::One), 1);
    assert_eq!(
        apply(
            graph,
            "MATCH (a)-[k]->(b) REMOVE k.since CREATE (b)-[:KNOWS {since: a.age}]->(a)",
            Apply::All
        ),
        1
    );
    assert_eq!(
        ask(graph, "MATCH ()-[k:KNOWS]->(x) RETURN x.name, k.since ORDER BY x.name"),
        ["'Ada' 36", "'Bob' null"]
    );
}

#[test]
fn conditions_include_nodes_that_other_matches_lock() {
    for (threads, mode) in [(1, Mode::Immediate), (1, Mode::Cycle), (2, Mode::Cycle)] {
        let mut graph = Graph::new();
        apply(&mut graph, "CREATE (b:Node), (a:Node), (b)-[:ABOVE]->(a)", Apply::One);
        let grow = "MATCH (n:Node) WHERE NOT (n)<-[:ABOVE]-() CREATE (:Node)-[:ABOVE]->(n)";
        let rules = rules(&mut graph, grow);
        let control = Control::Rule(0, Apply::All);
        let options = Options { threads, mode, ..Options::default() };
        let outcome = run(&mut graph, &rules, &control, &options).unwrap();
        assert_eq!(outcome.rewrites, 1, "only b is free, {threads} threads, {mode:?}");
    }
}

#[test]
fn mistakes_name_their_place() {
    for (text, expected) in [
        ("MATCH (a:Person\nRETURN a", "rules, line 2, column 1: expected ')', found 'RETURN'"),
        (
            "MATCH (a:Persn) RETURN a",
            "line 1, column 10: no node has type Persn; the types are Person",
        ),
        ("MATCH (a)-[:LIKES]->() RETURN a", "no edge has type LIKES; the types are KNOWS"),
        ("MATCH (a) WHERE a.agee = 1 RETURN a", "no element has attribute agee"),
        ("MATCH (a) RETURN b", "column 18: b is not defined; this rule defines a"),
        (
            "MATCH (a) RETURN a.name AS a ORDER BY a.name",
            "column 39: a is a column with a value here, not a node or an edge",
        ),
        ("MATCH (a) DETACH DELETE a RETURN a.name", "the rule deletes a, so it cannot return a"),
        ("MATCH (a) WITH a RETURN a", "WITH is not supported"),
        ("MATCH (a) SET a.x = 'oops", "this text has no closing '"),
        ("MATCH (a) CREATE (b)", "a new node needs one type"),
        ("MATCH (a)-[k]->(b), (c)-[k]->(d) RETURN k", "k is defined twice"),
        ("MATCH (a) RETURN a.name + ", "expected an expression, found the end of the text"),
        ("MATCH (a) WHERE count(a) = 1 RETURN a", "an aggregate is only possible in RETURN"),
        ("MATCH (a)-[*3..2]->(b) RETURN a", "a path has from 0 to"),
        ("MATCH (a) RETURN a.age AS y, a AS y", "two columns are named y; rename one with AS"),
        ("MATCH (a) WHERE a.age = $n RETURN a", "parameter $n has no value"),
        ("MATCH (a) RETURN 99999999999999999999", "this number is too large"),
        ("MATCH (a) RETURN type(a)", "column 18: type requires an edge"),
        ("MATCH ()-[k]->() RETURN labels(k)", "column 25: labels requires a node"),
    ] {
        let found = mistake(text);
        assert!(found.contains(expected), "{found} does not contain {expected}");
    }
    let deep = format!("MATCH (a) WHERE {}true{} RETURN a", "(".repeat(500), ")".repeat(500));
    assert!(mistake(&deep).contains("an expression has at most"));
    let long = format!("MATCH (a) WHERE a.age = 1{} RETURN a", " OR a.age = 1".repeat(500));
    assert!(mistake(&long).contains("an expression has at most"));
}

#[test]
fn faults_of_expressions_change_nothing() {
    let mut graph = friends();
    let rules =
        rules(&mut graph, "MATCH (a:Person {name: 'Ada'}) SET a.age = 1, a.x = 1 / (a.age - 36)");
    for threads in [1, 2] {
        let options = Options { threads, ..Options::default() };
        let control = Control::Rule(0, Apply::Exhaustively);
        let error = run(&mut graph, &rules, &control, &options).unwrap_err().to_string();
        assert_eq!(error, "rule rules:1: division by zero; this application changed nothing");
        assert_eq!(ask(&mut graph, "MATCH (a {name: 'Ada'}) RETURN a.age, a.x"), ["36 null"]);
    }
}

#[test]
fn limit_of_rewrites_is_reported_for_every_kind_of_application() {
    for apply in [Apply::One, Apply::All, Apply::Exhaustively] {
        let mut graph = friends();
        let rules = rules(&mut graph, "MATCH (a:Person) SET a:Adult");
        let options = Options { max: 1, ..Options::default() };
        let outcome = run(&mut graph, &rules, &Control::Rule(0, apply), &options).unwrap();
        assert!(outcome.rewrites == 1 && outcome.reached_max, "{apply:?} {outcome:?}");
    }
}

#[test]
fn no_threads_count_as_one() {
    for (seed, force_tasks) in [(Some(1), false), (None, true)] {
        let mut graph = friends();
        let rules = rules(&mut graph, "MATCH (a)-[k:KNOWS]->(a) DELETE k");
        let options = Options { threads: 0, seed, force_tasks, ..Options::default() };
        let control = Control::Rule(0, Apply::Exhaustively);
        assert_eq!(run(&mut graph, &rules, &control, &options).unwrap().rewrites, 1);
    }
}

#[test]
fn log_distinguishes_the_rules_of_one_line() {
    let text = "MATCH (a)-[k:KNOWS]->(a) DELETE k; MATCH (p:Person) SET p:Adult";
    for threads in [1, 2] {
        let (mut graph, mut copy) = (friends(), friends());
        let (own, _) = (rules(&mut graph, text), rules(&mut copy, text));
        assert_eq!(own[0].name(), own[1].name());
        let steps = [0, 1].map(|index| Control::Rule(index, Apply::Exhaustively));
        let options = Options { threads, log: true, ..Options::default() };
        let outcome = run(&mut graph, &own, &Control::Sequence(steps.into()), &options).unwrap();
        assert_eq!(outcome.log.len(), 5);
        outcome.log.replay(&mut copy).unwrap().verify(&graph, &copy).unwrap();
    }
}

/// The edges that a rule creates take the numbers of those that it deletes.
#[test]
fn changes_of_deleted_edges_do_not_reach_new_ones() {
    let create = "CREATE (:A {n: 1})-[:R {x: 1}]->(:A)";
    // Both names are those of one edge.
    let text = "MATCH (a {n: 1})-[k:R]->(b) MATCH (a)-[l:R]->(b) DELETE k SET l.x = 7
        CREATE (a)-[:R]->(b), (b)-[:R {x: l.x + 2}]->(a)";
    let all = format!("{create}; {text}");
    let (mut graph, mut copy) = (Graph::new(), Graph::new());
    let (own, _) = (rules(&mut graph, &all), rules(&mut copy, &all));
    let steps = [0, 1].map(|index| Control::Rule(index, Apply::One));
    let options = Options { log: true, ..Options::default() };
    let outcome = run(&mut graph, &own, &Control::Sequence(steps.into()), &options).unwrap();
    assert_eq!(outcome.rewrites, 2);
    let x = graph.schema().find_key("x").unwrap();
    let values: Vec<Value> = graph.edges().map(|edge| graph.get(edge, x)).collect();
    assert_eq!(values, [Value::Null, Value::Int(3)]);
    outcome.log.replay(&mut copy).unwrap().verify(&graph, &copy).unwrap();
}

#[test]
fn a_rule_without_a_left_side_is_applied_once() {
    let mut graph = friends();
    let rules = rules(&mut graph, "CREATE (:Person)");
    let control = Control::Rule(0, Apply::Exhaustively);
    let error = run(&mut graph, &rules, &control, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("has no MATCH"), "{error}");
}

#[test]
fn plans_are_explained() {
    let mut graph = friends();
    let rules = rules(
        &mut graph,
        "MATCH (a:Person {name: 'Ada'})-[:KNOWS]->(b)-[:KNOWS]->(c), (a)-[:KNOWS]->(c) RETURN a",
    );
    let text = explain(&mut graph, &rules[0]).unwrap();
    assert!(text.starts_with("scan (a:Person)"), "{text}");
    assert!(text.contains("join (a)-[_") && text.ends_with("1 matches\n"), "{text}");
}

/// Each step of each part is a node, and each number of partial matches an edge.
#[test]
fn plans_are_drawn() {
    let mut graph = friends();
    let text = "MATCH (a:Person)-[:KNOWS]->(b) OPTIONAL MATCH (b)-[:KNOWS]->(c)
        WHERE EXISTS { MATCH (a)-[:KNOWS]->(c) } RETURN a, c";
    let rules = rules(&mut graph, text);
    let mut drawing = Graph::new();
    let explained = explain_drawn(&mut graph, &rules[0], &mut drawing).unwrap();
    assert_eq!(explain(&mut graph, &rules[0]).unwrap(), explained);
    let (schema, key) = (drawing.schema(), drawing.schema().find_key("id").unwrap());
    let steps: Vec<String> = drawing
        .nodes()
        .filter(|n| schema.node_name(drawing.node_type(*n).unwrap()).parse::<u32>().is_ok())
        .map(|node| drawing.get(node, key).to_string().replace('\'', ""))
        .collect();
    let is_step = |line: &&str| line.contains(" expected ");
    let lines: Vec<&str> = explained.lines().filter(is_step).map(str::trim_start).collect();
    assert_eq!(steps.len(), lines.len(), "{explained}");
    for (step, line) in steps.iter().zip(&lines) {
        assert!(line.starts_with(step.as_str()), "{step} is not {line}");
        let (_, numbers) = line.split_once(" expected ").unwrap();
        let label = format!("expected {numbers}");
        assert!(schema.find_edge_type(&label).is_some(), "no edge {label}");
    }
    let uses = schema.find_edge_type("uses").unwrap().0;
    assert_eq!(drawing.edge_count_of(uses), 2);
    // Three parts with a line more than steps, and the uses of two of them.
    assert_eq!(drawing.edge_count(), steps.len() as u64 + 3 + 2);
    let mut picture = Vec::new();
    write_svg(&drawing, &mut picture).unwrap();
    assert!(String::from_utf8(picture).unwrap().contains(">1 scan (a:Person)</text>"));
}
