//! Random queries, and random changes of a graph in all ways in which a graph can be changed.

use super::random_pattern;
use corebeat_rewrite::{Apply, Control, Edge, Graph, Mode, Node, Options, parse_rules, run};
use std::collections::HashMap;

fn pick<'a>(random: &mut fastrand::Rng, of: &[&'a str]) -> &'a str {
    of[random.usize(..of.len())]
}

/// A query about the nodes a and b, and possibly an edge e.
pub(crate) fn random_query(random: &mut fastrand::Rng) -> String {
    let mut ends = || pick(random, &["", "", ":A", ":B", ":C"]);
    let (a, b) = (ends(), ends());
    let edge = pick(random, &["R", "S", "T", "R|T"]);
    let (pattern, has_edge) = match random.u8(..11) {
        0 => (format!("MATCH (a{a})-[e:{edge}]->(b{b})"), true),
        1 => (format!("MATCH (a{a})-[e:{edge}]-(b{b})"), true),
        2 => (format!("MATCH (a{a})-[:{edge}*1..2]->(b{b})"), false),
        3 => (format!("MATCH (a{a})-[:T*]->(b{b})"), false),
        4 => (format!("MATCH (a{a})-[:{edge}*0..1]-(b{b})"), false),
        5 => (format!("MATCH (a{a})<-[e:{edge}]-(b{b}), (b)-[:S|T]-(c)"), true),
        6 => (format!("MATCH (a{a})-[e:{edge}]->(b)-[:T]->(c{b})-->(a)"), true),
        7 => (format!("MATCH (a{a})-[e:{edge}]->(b), (a)-[:T*..3]->(b)"), true),
        8 => (format!("MATCH (a{a}), (b{b})"), false),
        _ => (format!("MATCH (a{a}) OPTIONAL MATCH (a)-[e:{edge}]->(b{b})"), true),
    };
    let conditions = [
        "a.x < 2",
        "b.x = 1",
        "a:A",
        "a.x <= b.x",
        "NOT (a)-[:S]->(:B)",
        "NOT (a)-[:T]->(b)",
        "EXISTS { (b)-[:R]->(y) WHERE y.x < 2 }",
        "NOT EXISTS { (b)--(y:A) WHERE NOT (y)-[:T]->() }",
        "(b)-[:T*]->(:C)",
        "EXISTS { (z:C) WHERE z.x = a.x }",
        "e.w = 1",
    ];
    let count = if has_edge { conditions.len() } else { conditions.len() - 1 };
    let chosen: Vec<&str> =
        (0..random.usize(..3)).map(|_| pick(random, &conditions[..count])).collect();
    let condition = if chosen.is_empty() { "" } else { " WHERE " };
    let optional = pick(random, &["", "", " OPTIONAL MATCH (b)-[g:T]->(d) WHERE d.x > 1"]);
    let results = [
        "a, b",
        "a.x, labels(b)",
        "DISTINCT a.x",
        "DISTINCT b.x ORDER BY b.x DESC LIMIT 2",
        "a, b.x ORDER BY b.x DESC, a.x SKIP 1 LIMIT 3",
        "a.x, count(*), sum(b.x), min(b.x), max(b), collect(b.x), avg(b.x)",
        "b, count(DISTINCT a.x), collect(DISTINCT a), sum(DISTINCT a.x) ORDER BY count(*) DESC, b",
        "count(*), sum(a.y), avg(b.y), min(a.y), collect(DISTINCT b)",
        "a, 2 * count(b) AS n ORDER BY n DESC LIMIT 2",
        "DISTINCT count(b) AS n ORDER BY a.x",
        "b.x, EXISTS { (a)-[:S]->(v) WHERE v.x > 0 }, count(a)",
        "count(b) + a.x, sum(12 / a.x)",
        "e.w, count(*), type(e)",
    ];
    let count = if has_edge { results.len() } else { results.len() - 1 };
    let result = pick(random, &results[..count]);
    format!("{pattern}{condition}{}{optional} RETURN {result};", chosen.join(" AND "))
}

/// Changes a graph in a random way. Returns a description.
pub(crate) fn random_change(random: &mut fastrand::Rng, graph: &mut Graph) -> String {
    let nodes: Vec<Node> = graph.nodes().collect();
    let edges: Vec<Edge> = graph.edges().collect();
    let node = (!nodes.is_empty()).then(|| nodes[random.usize(..nodes.len())]);
    let edge = (!edges.is_empty()).then(|| edges[random.usize(..edges.len())]);
    let key = |graph: &Graph, name: &str| graph.schema().find_key(name).unwrap();
    match (random.u8(..10), node, edge) {
        (0, ..) => {
            let of = graph.schema().find_node_type(pick(random, &["A", "B", "C"])).unwrap();
            let (node, x) = (graph.add_node(of).unwrap(), key(graph, "x"));
            graph.set(node, x, random.i64(0..4)).unwrap();
            format!("add {node:?}")
        }
        (1 | 2, Some(from), _) => {
            let (of, _) = graph.schema().find_edge_type(pick(random, &["R", "S", "T"])).unwrap();
            let to = nodes[random.usize(..nodes.len())];
            graph.add_edge(of, from, to).unwrap();
            format!("add an edge from {from:?} to {to:?}")
        }
        (3, _, Some(edge)) => {
            graph.delete_edge(edge).unwrap();
            format!("delete {edge:?}")
        }
        (4, Some(node), _) => {
            let ends = |edge: &Edge| graph.ends(*edge).unwrap();
            let own = |edge: &Edge| ends(edge).0 == node || ends(edge).1 == node;
            let own: Vec<Edge> = edges.iter().copied().filter(own).collect();
            own.into_iter().for_each(|edge| graph.delete_edge(edge).unwrap());
            graph.delete_node(node).unwrap();
            format!("delete {node:?}")
        }
        (5, Some(node), _) => {
            let (x, y) = (key(graph, "x"), key(graph, "y"));
            match random.u8(..4) {
                0 | 1 => graph.set(node, x, random.i64(0..4)).unwrap(),
                // Equal to an integer.
                2 => graph.set(node, x, random.i64(0..4) as f64).unwrap(),
                _ => graph.set(node, y, random.f64() * 10.0).unwrap(),
            }
            format!("set an attribute of {node:?}")
        }
        (6, _, Some(edge)) => {
            graph.set(edge, key(graph, "w"), random.i64(0..3)).unwrap();
            format!("set w of {edge:?}")
        }
        (7, ..) => {
            graph.compact();
            "compact".into()
        }
        _ => random_rewrites(random, graph),
    }
}

/// Applies a random rule with one thread or several.
fn random_rewrites(random: &mut fastrand::Rng, graph: &mut Graph) -> String {
    let rules = [
        "MATCH (a)-[e:R]->(b) WHERE e.w IS NULL OR e.w < 2 SET e.w = coalesce(e.w, 0) + 1",
        "MATCH (a:A)-->(b) WHERE b.x > 0 SET a:C",
        "MATCH (n:C) SET n:B, n.x = 3",
        "MATCH (n:C) DETACH DELETE n",
        "MATCH (a)-[e:T]->(b) DELETE e CREATE (b)-[:R {w: 1}]->(a)",
        "MATCH (a:B) CREATE (a)-[:S]->(:A {x: 2, y: 0.3})",
    ];
    let rule = if random.bool() {
        random_pattern(random, true).build(graph, false)
    } else {
        let text = pick(random, &rules);
        parse_rules("change", text, &HashMap::new(), graph).unwrap().remove(0)
    };
    let apply = [Apply::One, Apply::All, Apply::Exhaustively][random.usize(..3)];
    let options = Options {
        threads: random.usize(1..=2),
        mode: [Mode::Cycle, Mode::Immediate][random.usize(..2)],
        max: random.u64(1..6),
        ..Options::default()
    };
    let outcome = run(graph, &[rule], &Control::Rule(0, apply), &options).unwrap();
    format!("{} rewrites with {options:?}", outcome.rewrites)
}
