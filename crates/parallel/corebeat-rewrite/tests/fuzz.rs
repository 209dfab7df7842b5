//! Damaged texts for each parser: none causes a panic, and what a reader accepts, a writer writes
//! for the reader.
//!
//! `COREBEAT_SOAK` is a number of minutes: the tests then run for a part of that time.
//! `COREBEAT_TEXTS` is the least number of texts for each parser.

use corebeat_rewrite::{
    Error, Graph, parse_rules, read_graphml, read_gxl, read_metamodel, read_pairs, read_xmi,
    write_graphml, write_gxl, write_pairs, write_xmi,
};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Number of texts for each parser, unless `COREBEAT_TEXTS` states it.
const CASES: u64 = 3000;
/// Largest number of tokens of a text.
const TOKENS_MAX: usize = 4000;

const CYPHER: &[&str] = &[
    "MATCH (p:Post)<-[:ANSWERS*1..3]-(c:Comment {x: 1}), (c)-[e]-(q) WHERE NOT (p)-[:R|T]->() AND \
     EXISTS { MATCH (c)-->(d:A) WHERE d.x >= 2.5e3 } RETURN DISTINCT p, count(DISTINCT c) AS n, \
     collect(q.name) ORDER BY n DESC, p.x SKIP 1 LIMIT 3;",
    "CREATE (a:A {x: -1, name: 'it\\'s'})-[:R {w: [1, null, true]}]->(:B) // note\n",
    "MATCH (a:A|B) OPTIONAL MATCH (a)-[e:R]->(b) WHERE a.x IN [1, 2] OR b.`my key` IS NOT NULL XOR \
     a.name STARTS WITH \"x\" /* note */ SET a.x = coalesce(b.x, abs(-a.x) % 3), b:C REMOVE e.w;",
    "MATCH (a)-[e:T]->(b)-[]->(b) WHERE id(a) <> size(labels(b)) DELETE e DETACH DELETE a",
];
const GRAPHML: &[&str] = &[r#"<?xml version="1.0"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="d0" for="node" attr.name="age" attr.type="int"/><key id="d1" attr.name="label"/>
  <key id="d2" attr.type="boolean"/><key id="d3" attr.name="w" attr.type="double"/>
  <graph edgedefault="directed">
    <node id="n0"><data key="d0">36</data><data key="d1">Person</data></node>
    <node id="n&amp;1" labels=":City"><data key="d2"> true </data></node>
    <edge source="n0" target="n&amp;1" label="LIVES_IN"><data key="d3">1e9</data></edge>
  </graph>
</graphml>"#];
const GXL: &[&str] = &[r##"<!DOCTYPE gxl SYSTEM "gxl-1.0.dtd">
<gxl xmlns:xlink="http://www.w3.org/1999/xlink"><graph id="g" edgemode="directed">
  <node id="n0"><type xlink:href="s.gxl#Person"/><attr name="age"><int>36</int></attr>
    <attr name="t"><seq><string>a &lt; b</string><set><bool>true</bool></set></seq></attr></node>
  <node id="n1"/><edge from="n0" to="n1"><attr name="w"><float>.5</float></attr></edge>
</graph></gxl>"##];
const PAIRS: &[&str] =
    &["source,target,type\na,b,T\n\"c\",d\n", "a|b\n# note\nb|c|R\n\n", "1 2\r\n2 3"];
const ECORE: &[&str] = &[r##"<ecore:EPackage name="p" xmlns:xsi="x" xmlns:ecore="e">
  <eClassifiers xsi:type="ecore:EClass" name="Root">
    <eStructuralFeatures xsi:type="ecore:EReference" name="items" upperBound="-1"
        eType="#//Item" containment="true" eOpposite="#//Item/owner"/>
  </eClassifiers>
  <eClassifiers xsi:type="ecore:EClass" name="Item" eSuperTypes="#//Named">
    <eStructuralFeatures xsi:type="ecore:EReference" name="owner" eType="#//Root"
        eOpposite="#//Root/items"/>
    <eStructuralFeatures xsi:type="ecore:EReference" name="next" eType="#//Item"/>
    <eStructuralFeatures xsi:type="ecore:EAttribute" name="size" eType="ecore:EDataType #//EInt"/>
    <eStructuralFeatures xsi:type="ecore:EAttribute" name="key" iD="true"/>
  </eClassifiers>
  <eSubpackages><eClassifiers xsi:type="ecore:EClass" name="Named" abstract="true">
    <eStructuralFeatures xsi:type="ecore:EAttribute" name="tags" upperBound="-1"
        eType="ecore:EDataType #//EString"/>
  </eClassifiers></eSubpackages>
</ecore:EPackage>"##];
const XMI: &[&str] = &[
    r##"<p:Root xmlns:p="p" xmlns:xmi="m">
  <items xmi:id="one" size="3" next="//@items.1"><tags>a</tags><tags>b</tags></items>
  <items key="k" next="one"/><items xsi:type="p:Item"><next href="m.xmi#k"/></items>
</p:Root>"##,
    r##"<xmi:XMI xmlns:xmi="m"><Root/><Item owner="/0" next="p:Item m.xmi#/1"/></xmi:XMI>"##,
];

/// Texts that are likely to reveal a limit.
const ODD: [&str; 16] = [
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "1e999",
    "0",
    "''",
    "\u{0}",
    "é",
    "\u{feff}",
    "<",
    "]]>",
    "&#0;",
    "&#x110000;",
    "((((((((",
    "\n",
    "\\",
];

/// Words, white space, and single characters.
fn tokens(text: &str) -> Vec<&str> {
    let kind = |c: char| (c.is_alphanumeric() || c == '_', c.is_whitespace());
    let (mut tokens, mut start, mut last) = (Vec::new(), 0, None);
    for (at, c) in text.char_indices() {
        let is_new = last != Some(kind(c)) || kind(c) == (false, false);
        if is_new && at > start {
            tokens.push(&text[start..at]);
            start = at;
        }
        last = Some(kind(c));
    }
    tokens.push(&text[start..]);
    tokens
}

/// A text made from some valid ones by random changes.
fn damaged(random: &mut fastrand::Rng, seeds: &[&str]) -> String {
    let words: Vec<&str> = seeds.iter().flat_map(|seed| tokens(seed)).chain(ODD).collect();
    let mut text = tokens(random.choice(seeds).unwrap());
    for _ in 0..random.usize(1..4) {
        let from = random.usize(..text.len());
        let to = from + random.usize(..=(text.len() - from).min(8));
        let word = *random.choice(&words).unwrap();
        match random.u8(..8) {
            0 => drop(text.drain(from..to)),
            1 => {
                let part: Vec<&str> = text[from..to].repeat(random.usize(1..40));
                drop(text.splice(to..to, part));
            }
            2 => {
                let last = text.len() - 1;
                text.swap(from, to.min(last));
            }
            3 => text.insert(from, word),
            4 | 5 => text[from] = word,
            6 => text.truncate(from),
            _ => {
                let other = tokens(random.choice(seeds).unwrap());
                let end = other.len() - random.usize(..other.len());
                drop(text.splice(from.., other[end..].iter().copied()));
            }
        }
        text.truncate(TOKENS_MAX);
        if text.is_empty() {
            text.push(word);
        }
    }
    let mut text = text.concat();
    if random.u8(..8) == 0 {
        let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        text.truncate(random.choice(ends).unwrap_or(0));
    }
    text
}

/// Calls a parser with damaged texts. Returns how many of them it accepts.
fn fuzz(name: &str, seeds: &[&str], accepts: impl Fn(&str) -> bool) {
    let minutes = std::env::var("COREBEAT_SOAK").ok().and_then(|minutes| minutes.parse().ok());
    let time = Duration::from_secs_f64(minutes.map_or(0.0, |minutes: f64| minutes * 60.0 / 30.0));
    let number = |name| std::env::var(name).ok().map(|n| n.parse().expect("a number"));
    let (only, cases): (Option<u64>, _) =
        (number("COREBEAT_SEED"), number("COREBEAT_TEXTS").unwrap_or(CASES));
    let (begin, mut accepted, mut case) = (Instant::now(), 0, 0);
    seeds.iter().for_each(|seed| assert!(accepts(seed), "{seed}"));
    while case < cases || begin.elapsed() < time {
        let seed = only.unwrap_or(case);
        let text = damaged(&mut fastrand::Rng::with_seed(seed), seeds);
        match catch_unwind(AssertUnwindSafe(|| accepts(&text))) {
            Ok(is_accepted) => accepted += u64::from(is_accepted),
            Err(_) => panic!(
                "seed {seed}: repeat with COREBEAT_SEED={seed} cargo test -p corebeat-rewrite \
                 --test fuzz {name}: {text:?}"
            ),
        }
        case += 1;
        if only.is_some() {
            return;
        }
    }
    println!("{name}: {case} texts, {accepted} of them accepted");
    // Texts of both kinds: otherwise the changes are too rare or too many.
    assert!((1..case).contains(&accepted), "{accepted} of {case}");
}

/// Whether a reader accepts a text. Then a writer's text has the same graph.
fn survives(
    graph: Result<Graph, Error>,
    write: impl Fn(&Graph, &mut Vec<u8>) -> std::io::Result<()>,
    read: impl Fn(&str) -> Result<Graph, Error>,
) -> bool {
    let Ok(graph) = graph else { return false };
    let mut bytes = Vec::new();
    // Some graphs have no expression in the format.
    if write(&graph, &mut bytes).is_ok() {
        let text = String::from_utf8(bytes).unwrap();
        let again = read(&text).unwrap_or_else(|e| panic!("{e} {text}"));
        let count = |graph: &Graph| (graph.node_count(), graph.edge_count());
        assert_eq!(count(&again), count(&graph), "{text}");
    }
    true
}

#[test]
fn damaged_rules_do_not_panic() {
    let make = || {
        let mut graph = Graph::new();
        for of in ["Post", "Comment", "A", "B", "C"] {
            graph.schema_mut().node_type(of, &[]).unwrap();
        }
        for of in ["ANSWERS", "R", "T"] {
            graph.schema_mut().edge_type(of, &[]).unwrap();
        }
        for key in ["x", "name", "w", "my key"] {
            graph.schema_mut().key(key).unwrap();
        }
        graph
    };
    fuzz("damaged_rules", CYPHER, |text| {
        let rules = parse_rules("rules", text, &HashMap::new(), &mut make());
        let is_checked = corebeat_cypher::check(text).is_ok();
        // The check at compile time refuses no rule that a graph accepts.
        assert!(rules.is_err() || is_checked, "{text}");
        for rule in rules.iter().flatten() {
            let _ = rule.clone().symmetric_once();
        }
        rules.is_ok()
    });
}

#[test]
fn damaged_graphml_does_not_panic() {
    let read = |text: &str| read_graphml("f", text);
    fuzz("damaged_graphml", GRAPHML, |text| survives(read(text), write_graphml, read));
}

#[test]
fn damaged_gxl_does_not_panic() {
    let read = |text: &str| read_gxl("f", text);
    fuzz("damaged_gxl", GXL, |text| survives(read(text), write_gxl, read));
}

#[test]
fn damaged_pairs_do_not_panic() {
    let read = |text: &str| read_pairs("f", text);
    fuzz("damaged_pairs", PAIRS, |text| match read(text) {
        // Nodes without edges are not written.
        Ok(graph) if graph.edge_count() == 0 => true,
        graph => survives(graph, write_pairs, read),
    });
}

#[test]
fn damaged_metamodels_do_not_panic() {
    fuzz("damaged_metamodels", ECORE, |text| {
        let make = || {
            let mut graph = Graph::new();
            read_metamodel("m", text, &mut graph).map(|metamodel| (metamodel, graph))
        };
        let Ok((metamodel, graph)) = make() else { return false };
        let read = |text: &str| read_xmi("x", text, &metamodel, make()?.1);
        let graph = read_xmi("x", XMI[0], &metamodel, graph);
        survives(graph, |graph, to| write_xmi(graph, &metamodel, to), read);
        true
    });
}

#[test]
fn damaged_models_do_not_panic() {
    fuzz("damaged_models", XMI, |text| {
        let mut graph = Graph::new();
        let metamodel = read_metamodel("m", ECORE[0], &mut graph).unwrap();
        let read = |text: &str| {
            let mut graph = Graph::new();
            let metamodel = read_metamodel("m", ECORE[0], &mut graph)?;
            read_xmi("x", text, &metamodel, graph)
        };
        survives(read(text), |graph, to| write_xmi(graph, &metamodel, to), read)
    });
}
