//! Readers and writers of graphs.

use corebeat_rewrite::{
    Apply, Control, Element, Error, Graph, LeftOut, Metamodel, Node, Options, Value,
    left_out_of_pairs, parse_rules, read_graphml, read_gxl, read_metamodel, read_pairs, read_xmi,
    run, write_dot, write_graphml, write_gxl, write_pairs, write_svg, write_xmi,
};
use std::collections::HashMap;

fn text(write: impl Fn(&mut Vec<u8>) -> std::io::Result<()>) -> String {
    let mut bytes = Vec::new();
    write(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn mistake(result: Result<Graph, Error>) -> String {
    result.map(|graph| format!("{graph:?}")).expect_err("the file is not valid").to_string()
}

#[test]
fn pairs_are_read_and_written() {
    for input in ["a,b\nb,c\n", "source|target\na|b\n\n# note\nb|c", "a b\r\nb c", "a\tb\nb\tc\n"] {
        let graph = read_pairs("pairs", input).unwrap();
        let written = text(|to| write_pairs(&graph, to));
        assert_eq!(written, "source,target,type\na,b,EDGE\nb,c,EDGE\n");
        let again = read_pairs("pairs", &written).unwrap();
        assert_eq!(text(|to| write_pairs(&again, to)), written);
    }
    assert_eq!(
        mistake(read_pairs("p", "a,b\nc\n")),
        "p, line 2: expected two names with ',' between them"
    );
    assert!(mistake(read_pairs("p", "a,b,T,x\n")).contains("line 1: a line has a source"));
}

#[test]
fn only_a_line_with_the_names_of_columns_is_a_header() {
    for (input, edges) in [
        ("resource,b\nb,c", 2),
        ("sourceId;targetId\na;b", 1),
        ("Source Node,Target Node\na,b", 1),
        (":START_ID(A)|:END_ID(B)\na|b", 1),
        ("source_id,target_id\na,b", 1),
    ] {
        assert_eq!(read_pairs("pairs", input).unwrap().edge_count(), edges, "{input}");
    }
}

#[test]
fn a_header_names_the_columns() {
    let graph = read_pairs("pairs", "type;Target;Source\nT;b;a\n").unwrap();
    assert_eq!(text(|to| write_pairs(&graph, to)), "source,target,type\na,b,T\n");
    for (input, expected) in [
        ("source,target,weight\na,b,7\n", "line 1: the column weight is none of"),
        ("id,source,target\n1,a,b\n", "line 1: the column id is none of"),
        ("source\na\n", "line 1: the first line needs one column source"),
        ("source,target,source\na,b,c\n", "line 1: the first line needs one"),
        ("target,source\na\n", "line 2: the line has 1 of 2 fields"),
    ] {
        let found = mistake(read_pairs("p", input));
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn formats_of_xml_have_no_control_characters() {
    let mut graph = chain(&["a\u{1}b".into(), "c".into()]);
    for found in [
        write_graphml(&graph, &mut Vec::new()).unwrap_err().to_string(),
        write_gxl(&graph, &mut Vec::new()).unwrap_err().to_string(),
    ] {
        assert!(found.contains("the text \"a\\u{1}b\"; remove its control characters"), "{found}");
    }
    let picture = text(|to| write_svg(&graph, to));
    assert!(picture.contains('\u{fffd}') && !picture.contains('\u{1}'));
    let node = graph.nodes().next().unwrap();
    graph.schema_mut().key("\u{0}").unwrap();
    let id = graph.schema().find_key("id").unwrap();
    graph.set(node, id, "a").unwrap();
    assert!(write_graphml(&graph, &mut Vec::new()).is_err(), "a name of an attribute");
}

#[test]
fn pairs_keep_all_names() {
    let names = ["a", "a b", "", "#a", " a", "a,b", "\"q\"", "a\nb", "a\r", "source", "\u{feff}a"];
    let graph = chain(&names.map(Value::from));
    let written = text(|to| write_pairs(&graph, to));
    let again = read_pairs("pairs", &written).unwrap();
    let id = again.schema().find_key("id").unwrap();
    let read: Vec<Value> = again.nodes().map(|node| again.get(node, id)).collect();
    assert_eq!(read, names.map(Value::from), "{written}");
}

/// The names and types of the edges, in their order.
fn edges(text: &str) -> Vec<[String; 3]> {
    let graph = read_pairs("pairs", text).unwrap();
    let id = graph.schema().find_key("id").unwrap();
    let name = |node| match graph.get(node, id) {
        Value::Text(text) => text.to_string(),
        value => panic!("{value}"),
    };
    let edge = |edge| {
        let (source, target) = graph.ends(edge).unwrap();
        let of = graph.schema().edge_name(graph.edge_type(edge).unwrap());
        [name(source), name(target), of.to_owned()]
    };
    graph.edges().map(edge).collect()
}

#[test]
fn pairs_in_quotes_are_read_as_rfc_4180_states() {
    for (text, expected) in [
        (r#""a, b",c"#, ["a, b", "c", "EDGE"]),
        (r#""""q""",x"#, ["\"q\"", "x", "EDGE"]),
        ("\"a\nb\" , \" c \",T\r\n", ["a\nb", " c ", "T"]),
        ("\"a;b\tc\",\"\"", ["a;b\tc", "", "EDGE"]),
        ("a \"b, c\" T", ["a", "b, c", "T"]),
        ("a\"b,c\"", ["a\"b", "c\"", "EDGE"]),
        ("a;b\t\n", ["a", "b", "EDGE"]),
        ("# a,b\n \"#c\",d", ["#c", "d", "EDGE"]),
        ("\u{feff}\"Source\",Target\na,b", ["a", "b", "EDGE"]),
    ] {
        assert_eq!(edges(text), [expected], "{text}");
    }
    for (text, why) in [
        ("a,b\n\"c,d\ne", "p, line 2: a quote is not closed"),
        ("\"a\nb\",c\n\"d\"e,f", "p, line 3: a separator must follow the quotes around a name"),
    ] {
        assert_eq!(mistake(read_pairs("p", text)), why);
    }
}

#[test]
fn what_pairs_leave_out_is_counted() {
    assert!(left_out_of_pairs(&read_pairs("pairs", "a,b,T").unwrap()).is_nothing());
    let mut graph = chain(&["a".into(), "b".into(), Value::Null]);
    let other = graph.schema_mut().node_type("Other", &[]).unwrap();
    let (weight, id) =
        (graph.schema_mut().key("weight").unwrap(), graph.schema().find_key("id").unwrap());
    let alone = graph.add_node(other).unwrap();
    graph.set(alone, weight, 3).unwrap();
    let last = graph.nodes().nth(2).unwrap();
    let typed = graph.add_node(other).unwrap();
    let of = graph.schema_mut().edge_type("EDGE", &[]).unwrap();
    let edge = graph.add_edge(of, last, typed).unwrap();
    graph.set(edge, weight, 1).unwrap();
    graph.set(edge, id, 1).unwrap();
    graph.set(typed, weight, 2).unwrap();
    let left_out = left_out_of_pairs(&graph);
    assert_eq!(left_out, LeftOut { nodes: 1, types: 1, attributes: 3 });
    assert_eq!(left_out.to_string(), "1 node without edges, 1 type of a node, 3 attributes");
}

/// A graph with an edge from each of these nodes to the next one. `Null` is a node without `id`.
fn chain(ids: &[Value]) -> Graph {
    let mut graph = Graph::new();
    let of = graph.schema_mut().node_type("Node", &[]).unwrap();
    let edge = graph.schema_mut().edge_type("EDGE", &[]).unwrap();
    let key = graph.schema_mut().key("id").unwrap();
    let mut last = None;
    for id in ids {
        let node = graph.add_node(of).unwrap();
        graph.set(node, key, id.clone()).unwrap();
        last.map(|last| graph.add_edge(edge, last, node).unwrap());
        last = Some(node);
    }
    graph
}

#[test]
fn pairs_keep_different_nodes_apart() {
    let numbered = chain(&["2".into(), "7".into(), Value::Null, "3".into(), Value::Null]);
    let written = text(|to| write_pairs(&numbered, to));
    assert_eq!(written, "source,target,type\n2,7,EDGE\n7,5,EDGE\n5,3,EDGE\n3,4,EDGE\n");
    let again = read_pairs("pairs", &written).unwrap();
    assert_eq!(again.node_count(), numbered.node_count());
    let written = text(|to| write_pairs(&chain(&[Value::Float(1.5), Value::Bool(true)]), to));
    assert!(written.contains("1.5,true,EDGE"), "{written}");
    for twice in [["1".into(), "1".into()], [Value::Int(1), "1".into()]] {
        let refused = write_pairs(&chain(&twice), &mut Vec::new()).unwrap_err();
        let expected =
            "a file of pairs cannot express two nodes with the name \"1\"; write GraphML instead";
        assert_eq!(refused.to_string(), expected);
    }
}

#[test]
fn graphml_keeps_white_space_or_refuses_it() {
    for (of, is_written) in
        [("A B", true), ("A\tB", true), ("A\r\nB", true), ("", false), (" A", false), (":A", false)]
    {
        let mut graph = Graph::new();
        let (Ok(id), Ok(key)) =
            (graph.schema_mut().node_type(of, &[]), graph.schema_mut().key("a\tb\n"))
        else {
            panic!("the schema accepts {of:?}")
        };
        let node = graph.add_node(id).unwrap();
        graph.set(node, key, "x\r\ny").unwrap();
        let mut bytes = Vec::new();
        assert_eq!(write_graphml(&graph, &mut bytes).is_ok(), is_written, "{of:?}");
        if is_written {
            let again = read_graphml("g", &String::from_utf8(bytes).unwrap()).unwrap();
            let node = again.nodes_of(again.schema().find_node_type(of).unwrap()).next().unwrap();
            let key = again.schema().find_key("a\tb\n").unwrap();
            assert_eq!(again.get(node, key), "x\r\ny".into());
        }
    }
}

const GRAPHML: &str = r#"<?xml version="1.0"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="d0" for="node" attr.name="age" attr.type="int"/>
  <key id="d1" for="node" attr.name="label" attr.type="string"/>
  <graph edgedefault="directed">
    <node id="n0"><data key="d0">36</data><data key="d1">Person</data></node>
    <node id="n&amp;1" labels=":City"/>
    <edge source="n0" target="n&amp;1" label="LIVES_IN"/>
  </graph>
</graphml>"#;

#[test]
fn graphml_is_read_and_written() {
    let graph = read_graphml("g", GRAPHML).unwrap();
    let written = text(|to| write_graphml(&graph, to));
    let again = read_graphml("again", &written).unwrap();
    for graph in [&graph, &again] {
        let person = graph.schema().find_node_type("Person").unwrap();
        let (lives, _) = graph.schema().find_edge_type("LIVES_IN").unwrap();
        let ada = graph.nodes_of(person).next().unwrap();
        assert_eq!(graph.get(ada, graph.schema().find_key("age").unwrap()), Value::Int(36));
        let (_, city) = graph.out_edges(ada, lives).next().unwrap();
        assert_eq!(graph.get(city, graph.schema().find_key("id").unwrap()), "n&1".into());
    }
    let cut = &GRAPHML[..GRAPHML.find("</graph>").unwrap()];
    assert!(mistake(read_graphml("g", cut)).contains("the file ends inside <graph"));
    let dangling = GRAPHML.replace("source=\"n0\"", "source=\"n9\"");
    let expected = "g, line 8: the source n9 is no node of the file; add the node";
    assert_eq!(mistake(read_graphml("g", &dangling)), expected);
    let wrong = GRAPHML.replace(">36<", ">old<");
    assert_eq!(mistake(read_graphml("g", &wrong)), "g, line 6: 'old' is no int");
    assert!(mistake(read_graphml("g", "")).contains("the file has no element"));
    let undefined = GRAPHML.replace("36", "&x;");
    assert!(mistake(read_graphml("g", &undefined)).contains("line 6"));
}

#[test]
fn attributes_with_the_name_of_a_type_survive_graphml() {
    let mut graph = Graph::new();
    let person = graph.schema_mut().node_type("Person", &[]).unwrap();
    let node = graph.add_node(person).unwrap();
    for (key, value) in [("type", "employee"), ("label", "Ada")] {
        let key = graph.schema_mut().key(key).unwrap();
        graph.set(node, key, value).unwrap();
    }
    let again = read_graphml("g", &text(|to| write_graphml(&graph, to))).unwrap();
    let person = again.schema().find_node_type("Person").unwrap();
    let node = again.nodes_of(person).next().unwrap();
    for (key, value) in [("type", "employee"), ("label", "Ada")] {
        let key = again.schema().find_key(key).unwrap();
        assert_eq!(again.get(node, key), value.into());
    }
}

const GXL: &str = r##"<?xml version="1.0"?>
<!DOCTYPE gxl SYSTEM "http://www.gupro.de/GXL/gxl-1.0.dtd">
<gxl xmlns:xlink="http://www.w3.org/1999/xlink">
  <graph id="g" edgemode="directed">
    <edge from="n0" to="n&amp;1"><type xlink:href="schema.gxl#LIVES_IN"/></edge>
    <node id="n0"><type xlink:href="#Person"/>
      <attr name="age"><int> 36 </int></attr>
      <attr name="tags"><set><enum>a</enum><tup><bool>true</bool><float>.5</float></tup></set></attr>
    </node>
    <node id="n&amp;1"><attr name="at"><locator xlink:href="file:x"/></attr></node>
  </graph>
</gxl>"##;

#[test]
fn gxl_is_read() {
    let graph = read_gxl("g", GXL).unwrap();
    let key = |name: &str| graph.schema().find_key(name).unwrap();
    let person = graph.schema().find_node_type("Person").unwrap();
    let (lives, _) = graph.schema().find_edge_type("LIVES_IN").unwrap();
    let ada = graph.nodes_of(person).next().unwrap();
    assert_eq!(graph.get(ada, key("age")), Value::Int(36));
    let inner = Value::from(vec![true.into(), 0.5.into()]);
    assert_eq!(graph.get(ada, key("tags")), Value::from(vec!["a".into(), inner]));
    let (_, city) = graph.out_edges(ada, lives).next().unwrap();
    assert_eq!(graph.get(city, key("id")), "n&1".into());
    assert_eq!(graph.get(city, key("at")), "file:x".into());
    for (from, to, expected) in [
        ("<int> 36 </int>", "<int>old</int>", "g, line 7: 'old' is no int"),
        ("<int> 36 </int>", "", "g, line 7: the attribute age has no value"),
        ("<int> 36 </int>", "<byte>1</byte>", "g, line 7: <byte> is no value of GXL"),
        ("from=\"n0\"", "from=\"n9\"", "g, line 5: the from n9 is no node of the file"),
        ("</gxl>", "", "the file ends inside <gxl>"),
        ("</graph>", "<rel/></graph>", "g, line 11: relations are not supported"),
    ] {
        let found = mistake(read_gxl("g", &GXL.replace(from, to)));
        assert!(found.contains(expected), "{found} does not contain {expected}");
    }
    assert_eq!(mistake(read_gxl("g", "<a/>")), "g, line 1: expected <gxl>, found <a>");
}

/// The elements of a graph in the order of their numbers, with the names of types and attributes.
fn described(graph: &Graph) -> String {
    let schema = graph.schema();
    let values = |element: Element| {
        let mut values: Vec<(&str, Value)> =
            schema.keys().map(|key| (schema.key_name(key), graph.get(element, key))).collect();
        values.retain(|(_, value)| *value != Value::Null);
        values.sort_by_key(|(name, _)| *name);
        format!("{values:?}")
    };
    let node = |node| {
        format!(
            "{} {}",
            schema.node_name(graph.node_type(node).unwrap()),
            values(Element::Node(node))
        )
    };
    let edge = |edge| {
        let of = schema.edge_name(graph.edge_type(edge).unwrap());
        format!("{of} {:?} {}", graph.ends(edge), values(Element::Edge(edge)))
    };
    graph.nodes().map(node).chain(graph.edges().map(edge)).collect::<Vec<_>>().join("\n")
}

fn random_text(random: &mut fastrand::Rng) -> String {
    let chars = ['a', 'b', ' ', '<', '>', '&', '"', '\'', '\t', '\n', '\r', ']', '#', 'é', 'λ'];
    (0..random.usize(..6)).map(|_| chars[random.usize(..chars.len())]).collect()
}

fn random_value(random: &mut fastrand::Rng, depth: u32) -> Value {
    match random.u8(..if depth == 0 { 4 } else { 5 }) {
        0 => random.i64(..).into(),
        1 => {
            random.choice([0.0, 0.1, -1e300, 3.0, f64::INFINITY, f64::MIN_POSITIVE]).unwrap().into()
        }
        2 => random.bool().into(),
        3 => random_text(random).as_str().into(),
        _ => (0..random.usize(..4))
            .map(|_| random_value(random, depth - 1))
            .collect::<Vec<_>>()
            .into(),
    }
}

/// Every node has an attribute `id`: readers add one that is missing.
fn random_graph(random: &mut fastrand::Rng) -> Graph {
    let mut graph = Graph::new();
    let names: Vec<String> = (0..4).map(|i| format!("{i}{}", random_text(random))).collect();
    let keys = |graph: &mut Graph| -> Vec<_> {
        names.iter().map(|name| graph.schema_mut().key(name).unwrap()).collect()
    };
    let (keys, id) = (keys(&mut graph), graph.schema_mut().key("id").unwrap());
    let mut nodes = Vec::new();
    for _ in 0..random.usize(1..6) {
        let of = graph.schema_mut().node_type(&names[random.usize(..4)], &[]).unwrap();
        let node = graph.add_node(of).unwrap();
        graph.set(node, id, random_value(random, 0)).unwrap();
        let key = keys[random.usize(..4)];
        graph.set(node, key, random_value(random, 2)).unwrap();
        nodes.push(node);
    }
    for _ in 0..random.usize(..8) {
        let of = graph.schema_mut().edge_type(&names[random.usize(..4)], &[]).unwrap();
        let (from, to) = (random.choice(&nodes).unwrap(), random.choice(&nodes).unwrap());
        let edge = graph.add_edge(of, *from, *to).unwrap();
        graph.set(edge, keys[random.usize(..4)], random_value(random, 2)).unwrap();
    }
    graph
}

#[test]
fn gxl_that_is_written_is_read_back() {
    for seed in 0..500 {
        let graph = random_graph(&mut fastrand::Rng::with_seed(seed));
        let again = read_gxl("g", &text(|to| write_gxl(&graph, to))).unwrap();
        assert_eq!(described(&again), described(&graph), "seed {seed}");
    }
    let mut graph = Graph::new();
    let of = graph.schema_mut().node_type("Node", &[]).unwrap();
    let (node, key) = (graph.add_node(of).unwrap(), graph.schema_mut().key("x").unwrap());
    graph.set(node, key, vec![Value::Null]).unwrap();
    let refused = write_gxl(&graph, &mut Vec::new()).unwrap_err();
    let expected = "GXL cannot express null in a list; write GraphML instead";
    assert_eq!(refused.to_string(), expected);
}

#[test]
fn dot_escapes_names() {
    let graph = read_pairs("pairs", "a\"b,c").unwrap();
    let drawn = text(|to| write_dot(&graph, to));
    assert!(drawn.contains(r#"0 [label="Node a\"b"];"#) && drawn.contains("0 -> 1"), "{drawn}");
}

/// The numbers in the attributes of an element of a picture.
fn numbers(line: &str, names: &[&str]) -> Vec<f64> {
    let value =
        |name: &&str| line.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?.parse().ok();
    names.iter().map(|name| value(name).unwrap()).collect()
}

#[test]
fn pictures_have_all_elements_and_boxes_do_not_overlap() {
    for seed in 0..200 {
        let random = &mut fastrand::Rng::with_seed(seed);
        let mut graph = Graph::new();
        let of = graph.schema_mut().node_type("N<", &[]).unwrap();
        let edge = graph.schema_mut().edge_type("E&", &[]).unwrap();
        let nodes: Vec<_> = (0..random.usize(1..30)).map(|_| graph.add_node(of).unwrap()).collect();
        for _ in 0..random.usize(..60) {
            let (from, to) = (random.choice(&nodes).unwrap(), random.choice(&nodes).unwrap());
            graph.add_edge(edge, *from, *to).unwrap();
        }
        let picture = text(|to| write_svg(&graph, to));
        let boxes: Vec<Vec<f64>> = picture
            .lines()
            .filter(|line| line.starts_with("<rect x"))
            .map(|line| numbers(line, &["x", "y", "width", "height"]))
            .collect();
        assert_eq!(boxes.len(), nodes.len(), "seed {seed}");
        assert_eq!(picture.matches(">E&amp;</text>").count() as u64, graph.edge_count());
        let size = numbers(picture.lines().next().unwrap(), &["width", "height"]);
        for (index, a) in boxes.iter().enumerate() {
            assert!(a[0] >= 0.0 && a[0] + a[2] <= size[0] && a[1] + a[3] <= size[1], "seed {seed}");
            for b in &boxes[..index] {
                let overlaps = |axis: usize| {
                    a[axis] < b[axis] + b[axis + 2] && b[axis] < a[axis] + a[axis + 2]
                };
                assert!(!overlaps(0) || !overlaps(1), "seed {seed}: {a:?} {b:?}");
            }
        }
    }
    // An edge leads downwards, and the one that closes the cycle upwards.
    let graph = read_pairs("cycle", "a,b\nb,c\nc,a\nc,c").unwrap();
    let picture = text(|to| write_svg(&graph, to));
    let heights: Vec<f64> = picture
        .lines()
        .filter(|line| line.starts_with("<rect x"))
        .map(|line| numbers(line, &["y"])[0])
        .collect();
    assert!(heights.is_sorted() && heights[0] < heights[2], "{heights:?}");
    let pairs: Vec<String> = (0..400).map(|node| format!("{node},x")).collect();
    let refused = write_svg(&read_pairs("large", &pairs.join("\n")).unwrap(), &mut Vec::new());
    let expected = "a picture has at most 300 nodes and 1000 edges, and the graph has 401 and 400; \
                    write .dot, and draw the graph with Graphviz";
    assert_eq!(refused.unwrap_err().to_string(), expected);
    assert!(text(|to| write_svg(&Graph::new(), to)).ends_with("</svg>\n"));
}

const ECORE: &str = r##"<ecore:EPackage name="p" xmlns:xsi="x" xmlns:ecore="e">
  <eClassifiers xsi:type="ecore:EClass" name="Root">
    <eStructuralFeatures xsi:type="ecore:EReference" name="items" upperBound="-1"
        eType="#//Item" containment="true" eOpposite="#//Item/owner"/>
  </eClassifiers>
  <eClassifiers xsi:type="ecore:EClass" name="Item" eSuperTypes="#//Named">
    <eStructuralFeatures xsi:type="ecore:EReference" name="owner" eType="#//Root"
        eOpposite="#//Root/items"/>
    <eStructuralFeatures xsi:type="ecore:EReference" name="next" eType="#//Item"/>
    <eStructuralFeatures xsi:type="ecore:EAttribute" name="size" eType="ecore:EDataType #//EInt"/>
  </eClassifiers>
  <eClassifiers xsi:type="ecore:EClass" name="Named" abstract="true">
    <eStructuralFeatures xsi:type="ecore:EAttribute" name="tags" upperBound="-1"
        eType="ecore:EDataType #//EString"/>
  </eClassifiers>
</ecore:EPackage>"##;

const XMI: &str = r##"<p:Root xmlns:p="p" xmlns:xmi="m">
  <items xmi:id="one" size="3" next="//@items.1"><tags>a</tags><tags>b</tags></items>
  <items next="one"/>
</p:Root>"##;

fn model(text: &str) -> Result<Graph, Error> {
    let mut graph = Graph::new();
    let metamodel = read_metamodel("m.ecore", ECORE, &mut graph)?;
    read_xmi("m.xmi", text, &metamodel, graph)
}

#[test]
fn models_of_emf_are_read() {
    let graph = model(XMI).unwrap();
    let schema = graph.schema();
    let (items, forwards) = schema.find_edge_type("items").unwrap();
    assert_eq!((schema.find_edge_type("owner"), forwards), (Some((items, true)), false));
    let named = schema.find_node_type("Named").unwrap();
    let found: Vec<_> = graph.nodes_of(named).collect();
    let (next, _) = schema.find_edge_type("next").unwrap();
    assert_eq!(graph.out_edges(found[0], next).next().unwrap().1, found[1]);
    assert_eq!(graph.out_edges(found[1], next).next().unwrap().1, found[0]);
    assert_eq!(graph.get(found[0], schema.find_key("size").unwrap()), Value::Int(3));
    let tags = Value::from(vec!["a".into(), "b".into()]);
    assert_eq!(graph.get(found[0], schema.find_key("tags").unwrap()), tags);
    assert_eq!((graph.node_count(), graph.edge_count()), (3, 4));
}

/// Each class has two supertypes, which have two common supertypes: the number of ways from a class
/// to the first one is exponential.
#[test]
fn features_are_found_among_many_ways_of_inheritance() {
    let class = |name: &str, above: &str| {
        format!("<eClassifiers xsi:type='ecore:EClass' name='{name}' eSuperTypes='{above}'/>")
    };
    let mut ecore = "<EPackage xmlns:xsi='x'>".to_owned() + &class("L0", "") + &class("R0", "");
    for level in 1..=50 {
        let above = format!("#//L{} #//R{}", level - 1, level - 1);
        ecore += &(class(&format!("L{level}"), &above) + &class(&format!("R{level}"), &above));
    }
    let mut graph = Graph::new();
    let metamodel = read_metamodel("m", &(ecore + "</EPackage>"), &mut graph).unwrap();
    let found = mistake(read_xmi("x", "<L50 none='1'/>", &metamodel, graph));
    assert_eq!(found, "x, line 1: the class L50 has no feature none");
}

#[test]
fn mistakes_in_models_name_their_line() {
    for (from, to, expected) in [
        ("next=\"one\"", "next=\"two\"", "m.xmi, line 3: the reference two leads to no object"),
        ("size=\"3\"", "size=\"x\"", "m.xmi, line 2: 'x' is not an integer in the range"),
        (
            "size=\"3\"",
            "size=\"3000000000\"",
            "line 2: '3000000000' is not an integer in the range",
        ),
        ("size=\"3\"", "width=\"3\"", "m.xmi, line 2: the class Item has no feature width"),
        ("p:Root", "p:Rot", "no class Rot"),
        ("</p:Root>", "", "m.xmi, line 1: the file ends inside <Root>, which begins here"),
    ] {
        let found = mistake(model(&XMI.replace(from, to)));
        assert!(found.contains(expected), "{found} does not contain {expected}");
    }
    let found = read_metamodel("m", "<a/>", &mut Graph::new()).unwrap_err().to_string();
    assert_eq!(found, "m, line 1: the file has no classes; is it an Ecore metamodel?");
    let class = "\n<eClassifiers xsi:type='ecore:EClass' name='A'/>";
    let twice = format!("<ecore:EPackage name='p'>{class}{class}</ecore:EPackage>");
    let found = read_metamodel("m", &twice, &mut Graph::new()).unwrap_err().to_string();
    assert_eq!(found, "m, line 3: line 2 has a class of this name, too; rename one");
}

#[test]
fn edges_connect_nodes_of_all_graphs_of_a_file() {
    let graphs = |ends: [&str; 2]| {
        let [from, to] = ends;
        format!(
            "<graph><node id='a'/><edge {from}='a' {to}='b'/></graph><graph><node id='b'/></graph>"
        )
    };
    let graphml = format!("<graphml>{}</graphml>", graphs(["source", "target"]));
    let gxl = format!("<gxl>{}</gxl>", graphs(["from", "to"]));
    for graph in [read_graphml("g", &graphml).unwrap(), read_gxl("g", &gxl).unwrap()] {
        assert_eq!((graph.node_count(), graph.edge_count()), (2, 1));
    }
}

#[test]
fn graph_within_an_element_is_refused() {
    let inner = "<graph><node id='b'/></graph>";
    for element in [
        format!("<node id='a'>{inner}</node>"),
        format!("<node id='a'/><edge source='a' target='a' from='a' to='a'>{inner}</edge>"),
        inner.to_owned(),
    ] {
        let expected = "g, line 1: nested graphs are not supported";
        let graphml = format!("<graphml><graph>{element}</graph></graphml>");
        assert_eq!(mistake(read_graphml("g", &graphml)), expected);
        let gxl = format!("<gxl><graph>{element}</graph></gxl>");
        assert_eq!(mistake(read_gxl("g", &gxl)), expected);
    }
}

/// A metamodel whose names and features are hard to write: a package inside another one with an
/// equal prefix, attributes named `href` and as the element of a file, and a containment that is
/// the opposite of a reference.
const HARD: &str = r##"<ecore:EPackage name="p" nsPrefix="p" nsURI="urn:a&amp;b" xmlns:xsi="x">
  <eClassifiers xsi:type="ecore:EClass" name="XMI">
    <eStructuralFeatures xsi:type="ecore:EReference" name="box" eType="#//Box"
        eOpposite="#//Box/parts"/>
    <eStructuralFeatures xsi:type="ecore:EReference" name="one" eType="#//XMI" eOpposite="#//XMI/all"/>
    <eStructuralFeatures xsi:type="ecore:EReference" name="all" eType="#//XMI" upperBound="-1"
        eOpposite="#//XMI/one"/>
    <eStructuralFeatures xsi:type="ecore:EReference" name="free" eType="#//XMI" upperBound="-1"/>
    <eStructuralFeatures xsi:type="ecore:EAttribute" name="key" iD="true" eType="#//EString"/>
    <eStructuralFeatures xsi:type="ecore:EAttribute" name="href" eType="#//EString"/>
    <eStructuralFeatures xsi:type="ecore:EAttribute" name="int" eType="#//ELong"/>
    <eStructuralFeatures xsi:type="ecore:EAttribute" name="short" eType="#//EShort"/>
    <eStructuralFeatures xsi:type="ecore:EAttribute" name="float" eType="#//EDouble"/>
    <eStructuralFeatures xsi:type="ecore:EAttribute" name="is" eType="#//EBoolean"/>
    <eStructuralFeatures xsi:type="ecore:EAttribute" name="list" upperBound="-1" eType="#//EString"/>
  </eClassifiers>
  <eSubpackages name="p">
    <eClassifiers xsi:type="ecore:EClass" name="Box" eSuperTypes="#//XMI">
      <eStructuralFeatures xsi:type="ecore:EReference" name="parts" eType="#//XMI" upperBound="-1"
          containment="true" eOpposite="#//XMI/box"/>
    </eClassifiers>
  </eSubpackages>
</ecore:EPackage>"##;

/// A model of [`HARD`], in which no object contains itself.
fn random_model(random: &mut fastrand::Rng) -> (Graph, Metamodel) {
    let mut graph = Graph::new();
    let metamodel = read_metamodel("m", HARD, &mut graph).unwrap();
    let [plain, container] =
        ["XMI", "Box"].map(|name| graph.schema().find_node_type(name).unwrap());
    let [boxed, one, free] =
        ["box", "one", "free"].map(|name| graph.schema().find_edge_type(name).unwrap().0);
    let keys = ["key", "href", "int", "float", "is", "list"]
        .map(|name| graph.schema().find_key(name).unwrap());
    let (mut nodes, mut boxes) = (Vec::new(), Vec::new());
    for _ in 0..random.usize(..8) {
        let is_box = random.bool();
        let node = graph.add_node(if is_box { container } else { plain }).unwrap();
        if random.bool()
            && let Some(around) = random.choice(&boxes)
        {
            graph.add_edge(boxed, node, *around).unwrap();
        }
        boxes.extend(is_box.then_some(node));
        for (index, key) in keys.into_iter().enumerate() {
            if random.bool() {
                continue;
            }
            let value: Value = match index {
                // Identifiers that other objects have, and that a writer may choose.
                0 => random.choice(["a", "b c", "", "_1", "__2", "/", "x#y", "é"]).unwrap().into(),
                1 => random_text(random).as_str().into(),
                2 => random.i64(..).into(),
                3 => random.choice([0.1, -1e300, 3.0, f64::INFINITY]).unwrap().into(),
                4 => random.bool().into(),
                _ => (0..random.usize(1..4))
                    .map(|_| random_text(random).as_str().into())
                    .collect::<Vec<_>>()
                    .into(),
            };
            graph.set(node, key, value).unwrap();
        }
        nodes.push(node);
    }
    for from in &nodes {
        let to = *random.choice(&nodes).unwrap();
        if random.bool() {
            graph.add_edge(one, *from, to).unwrap();
        }
        for to in &nodes {
            if random.u8(..3) == 0 {
                graph.add_edge(free, *from, *to).unwrap();
            }
        }
    }
    (graph, metamodel)
}

/// Whether graphs of the same schema are isomorphic: a search for a mapping of the nodes.
fn is_isomorphic(a: &Graph, b: &Graph) -> bool {
    let profile = |graph: &Graph, node: Node| {
        let schema = graph.schema();
        let values: Vec<Value> = schema.keys().map(|key| graph.get(node, key)).collect();
        let degrees: Vec<_> = schema
            .edge_types()
            .map(|of| (graph.out_edges(node, of).count(), graph.in_edges(node, of).count()))
            .collect();
        format!("{:?} {values:?} {degrees:?}", graph.node_type(node))
    };
    let edges = |graph: &Graph, map: &dyn Fn(Node) -> Node| {
        let mut edges: Vec<_> = graph
            .edges()
            .map(|edge| {
                let (from, to) = graph.ends(edge).unwrap();
                (graph.edge_type(edge), map(from), map(to))
            })
            .collect();
        edges.sort();
        edges
    };
    let (from, to): (Vec<Node>, Vec<Node>) = (a.nodes().collect(), b.nodes().collect());
    let profiles: Vec<String> = to.iter().map(|node| profile(b, *node)).collect();
    let wanted: Vec<String> = from.iter().map(|node| profile(a, *node)).collect();
    let target = edges(b, &|node| node);
    // Depth first: the candidates of each node, and the choice so far.
    let mut open: Vec<Vec<usize>> = vec![Vec::new()];
    while let Some(chosen) = open.pop() {
        if chosen.len() == from.len() {
            let map = |node| to[chosen[from.iter().position(|n| *n == node).unwrap()]];
            if from.len() == to.len() && edges(a, &map) == target {
                return true;
            }
            continue;
        }
        let is_fit = |at: &usize| !chosen.contains(at) && profiles[*at] == wanted[chosen.len()];
        open.extend((0..to.len()).filter(is_fit).map(|at| [&chosen[..], &[at]].concat()));
    }
    false
}

#[test]
fn models_that_are_written_are_read_back() {
    for seed in 0..500 {
        let (graph, metamodel) = random_model(&mut fastrand::Rng::with_seed(seed));
        let written = text(|to| write_xmi(&graph, &metamodel, to));
        let mut types = Graph::new();
        let metamodel = read_metamodel("m", HARD, &mut types).unwrap();
        let again = read_xmi("x", &written, &metamodel, types)
            .unwrap_or_else(|why| panic!("seed {seed}: {why}\n{written}"));
        assert!(is_isomorphic(&graph, &again), "seed {seed}\n{written}");
        let mut other = again;
        let Some(node) = other.nodes().next() else { continue };
        let key = other.schema().find_key("int").unwrap();
        let changed = if other.get(node, key) == Value::Int(7) { 8 } else { 7 };
        other.set(node, key, changed).unwrap();
        assert!(!is_isomorphic(&graph, &other), "seed {seed}: a change is overlooked");
    }
}

#[test]
fn graphs_that_are_no_models_are_refused() {
    let refused = |rule: &str| {
        let mut graph = Graph::new();
        let metamodel = read_metamodel("m", HARD, &mut graph).unwrap();
        let rules = parse_rules("r", rule, &HashMap::new(), &mut graph).unwrap();
        run(&mut graph, &rules, &Control::Rule(0, Apply::One), &Options::default()).unwrap();
        write_xmi(&graph, &metamodel, &mut Vec::new()).unwrap_err().to_string()
    };
    for (rule, expected) in [
        ("(:XMI {int: 0.5})", "int of node 0 (XMI), which must be an integer, and is 0.5"),
        ("(:XMI {short: -32769})", "must be an integer in the range of its type, and is -32769"),
        ("(:XMI {href: '\u{1}'})", "must be a text without control characters"),
        ("(:XMI {is: [true]})", "is of node 0 (XMI), which must be true or false, and is [true]"),
        ("(:XMI {list: []})", "the list list of node 0 (XMI): it is empty"),
        ("(:XMI {list: ['a', 1]})", "not each of its values is a text"),
        ("(:XMI {size: 1})", "size of node 0 (XMI), which is no attribute of its class"),
        ("(:Other)", "node 0 (Other), whose class the metamodel does not have"),
        (
            "(:XMI)-[:R]->(:Box)",
            "the edge R from node 0 (XMI) to node 1 (Box): neither class has such a reference",
        ),
        (
            "(:XMI)-[:box]->(:XMI)",
            "the edge box from node 0 (XMI) to node 1 (XMI): box refers to Box",
        ),
        ("(:XMI)-[:one {int: 1}]->(:Box)", "the attribute int of the edge one from node 0"),
        (
            "(a:XMI)-[:box]->(:Box), (a)-[:box]->(:Box)",
            "node 0 (XMI), which has several containers",
        ),
        ("(a:Box)-[:box]->(b:Box)-[:box]->(a)", "objects that contain each other"),
        (
            "(a:XMI)-[:one]->(:XMI), (a)-[:one]->(:Box)",
            "several one of node 0 (XMI): the reference has one target",
        ),
        (
            "(a:XMI)-[:free]->(b:Box), (a)-[:free]->(b)",
            "two edges free between node 0 (XMI) and node 1 (Box)",
        ),
    ] {
        let found = refused(&format!("CREATE {rule}"));
        assert!(found.starts_with("XMI cannot express "), "{found}");
        assert!(found.contains(expected), "{found} does not contain {expected}");
        assert!(found.ends_with("; write GraphML instead") && !found.contains('\n'), "{found}");
    }
    let mut graph = Graph::new();
    let metamodel = read_metamodel("m", HARD, &mut graph).unwrap();
    let other = write_xmi(&Graph::new(), &metamodel, &mut Vec::new()).unwrap_err().to_string();
    assert!(other.starts_with("the metamodel is of another graph"), "{other}");
    let of = graph.schema().find_node_type("Box").unwrap();
    let (within, _) = graph.schema().find_edge_type("box").unwrap();
    let nodes: Vec<Node> = (0..300).map(|_| graph.add_node(of).unwrap()).collect();
    for pair in nodes.windows(2) {
        graph.add_edge(within, pair[0], pair[1]).unwrap();
    }
    let deep = write_xmi(&graph, &metamodel, &mut Vec::new()).unwrap_err().to_string();
    assert!(deep.contains("which is inside more than 256 elements"), "{deep}");
}

#[test]
fn models_of_the_contest_are_read_written_and_read_alike() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/ttc2018");
    let ecore = std::fs::read_to_string(format!("{folder}/social_network.ecore")).unwrap();
    let read = |text: &str| {
        let mut graph = Graph::new();
        let metamodel = read_metamodel("m", &ecore, &mut graph).unwrap();
        (read_xmi("x", text, &metamodel, graph).unwrap(), metamodel)
    };
    for size in [1, 2] {
        let model = std::fs::read_to_string(format!("{folder}/{size}/initial.xmi")).unwrap();
        let (graph, metamodel) = read(&model);
        let written = text(|to| write_xmi(&graph, &metamodel, to));
        let (again, _) = read(&written);
        // Objects are written in the order of their numbers inside their containers.
        let nodes = |graph: &Graph| {
            let described = described(graph);
            described.lines().take(graph.node_count() as usize).map(str::to_owned).collect()
        };
        let (before, after): (Vec<String>, Vec<String>) = (nodes(&graph), nodes(&again));
        assert_eq!(after, before);
        let edges = |graph: &Graph| {
            let mut edges: Vec<_> =
                graph.edges().map(|e| (graph.edge_type(e), graph.ends(e))).collect();
            edges.sort();
            edges
        };
        assert_eq!(edges(&again), edges(&graph));
    }
}
