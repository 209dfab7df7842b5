//! Live queries: where an update searches, and when it evaluates the query anew. That the results
//! are right is tested in `random`.

use corebeat_rewrite::{Graph, LiveQuery, Node, Options, Rule, Value, parse_rules, query};
use std::collections::HashMap;

/// Number of families: a person with three children, each with three children.
const FAMILIES: usize = 100;

/// Returns a graph of families and their grandparents.
fn families() -> (Graph, Vec<Node>) {
    let mut graph = Graph::new();
    let person = graph.schema_mut().node_type("Person", &[]).unwrap();
    let child = graph.schema_mut().edge_type("CHILD", &[]).unwrap();
    for key in ["age", "name"] {
        graph.schema_mut().key(key).unwrap();
    }
    let mut add = |parent: Option<Node>| {
        let node = graph.add_node(person).unwrap();
        if let Some(parent) = parent {
            graph.add_edge(child, parent, node).unwrap();
        }
        node
    };
    let family = |_| {
        let oldest = add(None);
        for _ in 0..3 {
            let parent = add(Some(oldest));
            for _ in 0..3 {
                add(Some(parent));
            }
        }
        oldest
    };
    let oldest = (0..FAMILIES).map(family).collect();
    (graph, oldest)
}

fn rule(graph: &mut Graph, text: &str) -> Rule {
    parse_rules("query", text, &HashMap::new(), graph).unwrap().remove(0)
}

fn assert_up_to_date(graph: &mut Graph, rule: &Rule, live: &mut LiveQuery) {
    live.update(graph).unwrap();
    assert_eq!(live.table(), query(graph, rule, &Options::default()).unwrap());
}

/// The number of searches of an update after a change.
fn searches(
    graph: &mut Graph,
    rule: &Rule,
    live: &mut LiveQuery,
    change: impl FnOnce(&mut Graph),
) -> u64 {
    change(graph);
    let before = live.searches();
    assert_up_to_date(graph, rule, live);
    live.searches() - before
}

#[test]
fn updates_search_around_changes() {
    let (mut graph, oldest) = families();
    let [age, name] = ["age", "name"].map(|key| graph.schema().find_key(key).unwrap());
    let child = graph.schema().find_edge_type("CHILD").unwrap().0;
    for (text, most) in [
        ("MATCH (a)-[:CHILD]->(b)-[:CHILD]->(c) RETURN a, count(*), max(c.age)", 3),
        ("MATCH (a) OPTIONAL MATCH (a)-[:CHILD*]->(b) RETURN a, collect(b.age)", 3),
        ("MATCH (a) WHERE NOT EXISTS { (a)-->(b) WHERE b.age > 9 } RETURN count(a)", 2),
    ] {
        let rule = rule(&mut graph, text);
        let live = &mut LiveQuery::new(&mut graph, &rule).unwrap();
        let number = searches(&mut graph, &rule, live, |_| ());
        assert_eq!(number, 0, "{text}: nothing has changed");
        let grandchild = |graph: &Graph, of: usize| {
            let parent = graph.out_edges(oldest[of], child).last().unwrap().1;
            graph.out_edges(parent, child).last().unwrap()
        };
        let (_, youngest) = grandchild(&graph, 5);
        let number = searches(&mut graph, &rule, live, |graph| {
            graph.set(youngest, age, 10).unwrap();
        });
        assert!((1..=most).contains(&number), "{text}: {number} searches");
        let number = searches(&mut graph, &rule, live, |graph| {
            graph.set(youngest, name, "Cy").unwrap();
        });
        assert_eq!(number, 0, "{text}: the query does not read names");
        let number = searches(&mut graph, &rule, live, |graph| {
            let (edge, node) = grandchild(graph, 7);
            graph.delete_edge(edge).unwrap();
            graph.delete_node(node).unwrap();
        });
        assert!((1..=3).contains(&number), "{text}: {number} searches");
    }
}

#[test]
fn updates_after_very_many_changes_are_right() {
    let (mut graph, oldest) = families();
    let age = graph.schema().find_key("age").unwrap();
    let rule = rule(&mut graph, "MATCH (a)-[:CHILD]->(b) RETURN sum(a.age), count(b.age)");
    let all: &mut [LiveQuery] = &mut [0, 1].map(|_| LiveQuery::new(&mut graph, &rule).unwrap());
    (0..(1 << 20) + 5).for_each(|value| graph.set(oldest[0], age, value).unwrap());
    graph.set(oldest[1], age, 1).unwrap();
    // The first query is updated twice before the second.
    assert_up_to_date(&mut graph, &rule, &mut all[0]);
    for live in all {
        graph.set(oldest[2], age, live.searches() as i64).unwrap();
        assert_up_to_date(&mut graph, &rule, live);
    }
}

#[test]
fn updates_after_changes_of_the_schema_are_right() {
    let (mut graph, _) = families();
    let rule = rule(&mut graph, "MATCH (a)-->(b) RETURN labels(b), count(a)");
    let live = &mut LiveQuery::new(&mut graph, &rule).unwrap();
    let robot = graph.schema_mut().node_type("Robot", &[]).unwrap();
    let robot = graph.add_node(robot).unwrap();
    let (child, _) = graph.schema().find_edge_type("CHILD").unwrap();
    graph.add_edge(child, robot, robot).unwrap();
    assert_up_to_date(&mut graph, &rule, live);
    assert_eq!(live.table().rows.len(), 2);
}

#[test]
fn updates_of_another_graph_are_right() {
    let [(mut graph, oldest), (mut other, _)] = [families(), families()];
    let rule = rule(&mut graph, "MATCH (a)-->(b) RETURN sum(a.age)");
    let live = &mut LiveQuery::new(&mut graph, &rule).unwrap();
    graph.set(oldest[3], graph.schema().find_key("age").unwrap(), 90).unwrap();
    assert_up_to_date(&mut graph, &rule, live);
    assert_up_to_date(&mut other, &rule, live);
    assert_up_to_date(&mut graph, &rule, live);
}

#[test]
fn updates_after_errors_are_right() {
    let (mut graph, oldest) = families();
    let age = graph.schema().find_key("age").unwrap();
    let rule = rule(&mut graph, "MATCH (a) RETURN sum(12 / a.age)");
    graph.set(oldest[0], age, 3).unwrap();
    let mut live = LiveQuery::new(&mut graph, &rule).unwrap();
    graph.set(oldest[0], age, 0).unwrap();
    assert!(live.update(&mut graph).unwrap_err().to_string().contains("division by zero"));
    assert!(live.table().rows.is_empty());
    graph.set(oldest[0], age, 6).unwrap();
    live.update(&mut graph).unwrap();
    assert_eq!(live.table().rows, [[Value::Int(2)]]);
}

#[test]
fn equal_numbers_of_different_types_are_one_value() {
    let (mut graph, people) = families();
    let age = graph.schema().find_key("age").unwrap();
    let text = "MATCH (a:Person) WHERE a.age > 0 RETURN a.age, count(*), collect(a.age);
        MATCH (a:Person) RETURN count(DISTINCT a.age), sum(DISTINCT a.age), collect(DISTINCT a.age);
        MATCH (a:Person) WHERE a.age > 0 RETURN DISTINCT a.age";
    let rules = parse_rules("ages", text, &HashMap::new(), &mut graph).unwrap();
    let mut live: Vec<LiveQuery> =
        rules.iter().map(|rule| LiveQuery::new(&mut graph, rule).unwrap()).collect();
    let mut check = |graph: &mut Graph, expected: [&[&[&str]]; 3]| {
        for ((rule, live), expected) in rules.iter().zip(&mut live).zip(expected) {
            assert_up_to_date(graph, rule, live);
            let texts = |row: &Vec<Value>| row.iter().map(Value::to_string).collect::<Vec<_>>();
            assert_eq!(live.table().rows.iter().map(texts).collect::<Vec<_>>(), expected);
        }
    };
    graph.set(people[0], age, 1.0).unwrap();
    check(&mut graph, [&[&["1.0", "1", "[1.0]"]], &[&["1", "1.0", "[1.0]"]], &[&["1.0"]]]);
    graph.set(people[1], age, 1).unwrap();
    check(&mut graph, [&[&["1.0", "2", "[1, 1.0]"]], &[&["1", "1", "[1]"]], &[&["1.0"]]]);
    graph.set(people[0], age, Value::Null).unwrap();
    check(&mut graph, [&[&["1", "1", "[1]"]], &[&["1", "1", "[1]"]], &[&["1"]]]);
}
