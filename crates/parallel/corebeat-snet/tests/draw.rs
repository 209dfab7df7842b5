//! Drawings of nets: their content, and that parts do not overlap.

use std::sync::Arc;

use corebeat_snet::draw;
use corebeat_snet::expression::{Binary, Expression};
use corebeat_snet::plan::*;
use corebeat_snet::{Label, Shape};
use proptest::prelude::*;
use roxmltree::{Document, Node as Xml};

fn label(text: &str) -> Label {
    text.parse().expect("a test uses few labels")
}

fn labels(text: &str) -> Vec<Label> {
    text.split_whitespace().map(label).collect()
}

fn shape(text: &str) -> Shape {
    Shape::new(labels(text)).unwrap()
}

fn pattern(text: &str) -> Guarded {
    Guarded { shape: shape(text), guard: None }
}

/// A box with this name, input and outputs.
fn a_box(name: &str, input: &str, outputs: &[&str]) -> Node {
    Node::Box(Arc::new(BoxPlan {
        name: name.into(),
        input: Some(
            labels(input).into_iter().map(|label| BoxEntry { label, passes: false }).collect(),
        ),
        accepts: shape(input),
        outputs: outputs.iter().map(|o| labels(o)).collect(),
        body: None,
    }))
}

fn filter(text: &str) -> Node {
    Node::Filter(Arc::new(FilterPlan {
        pattern: shape(""),
        cases: vec![(None, vec![])],
        text: text.into(),
    }))
}

fn sync(patterns: &[&str]) -> Node {
    Node::Sync(Arc::new(SyncPlan { patterns: patterns.iter().map(|p| pattern(p)).collect() }))
}

fn parallel(deterministic: bool, branches: Vec<(&str, Node)>) -> Node {
    let branches = branches
        .into_iter()
        .map(|(accepts, node)| Branch { accepts: vec![shape(accepts)], node })
        .collect();
    Node::Parallel(Arc::new(ParallelPlan { deterministic, branches }))
}

fn star(deterministic: bool, operand: Node, exits: Vec<Guarded>) -> Node {
    Node::Star(Arc::new(StarPlan { deterministic, operand, exits }))
}

fn split(deterministic: bool, placed: bool, operand: Node, tag: &str) -> Node {
    Node::Split(Arc::new(SplitPlan { deterministic, placed, operand, tag: label(tag) }))
}

fn feedback(operand: Node, again: &str) -> Node {
    Node::Feedback(Arc::new(FeedbackPlan { operand, patterns: vec![pattern(again)] }))
}

fn net(root: Node) -> Net {
    Net::new("main", root, vec![shape("A")], vec![shape("B <T>")])
}

fn named(name: &str, root: Node) -> Node {
    Node::Net(name.into(), Arc::new(root))
}

/// A net with every kind of part.
fn all() -> Node {
    let done = Guarded {
        shape: shape("A <N>"),
        guard: Some(Expression::Binary(
            Binary::Less,
            Box::new(Expression::Tag(label("<N>"))),
            Box::new(Expression::Number(3)),
        )),
    };
    Node::Serial(vec![
        a_box("first", "A <T>", &["A", "<T>"]),
        named(
            "inner",
            parallel(
                true,
                vec![
                    ("A", a_box("left", "A", &["B C D E F G", "B", "<T> <#U>", "C"])),
                    (
                        "A <T>",
                        Node::Serial(vec![
                            filter("[{A, <T>} -> {A, <T=T+1>}; {B=A}]"),
                            Node::Identity,
                        ]),
                    ),
                    ("<T>", sync(&["A", "B <T>"])),
                ],
            ),
        ),
        star(false, split(true, true, a_box("deep", "A", &["A"]), "<T>"), vec![pattern("B"), done]),
        feedback(Node::Place(Arc::new(a_box("around", "A", &["A"])), 3), "A <again>"),
    ])
}

#[derive(Clone, Copy, Debug)]
struct Rect {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

impl Rect {
    fn within(self, other: Rect) -> bool {
        self.x >= other.x
            && self.y >= other.y
            && self.x + self.width <= other.x + other.width
            && self.y + self.height <= other.y + other.height
    }

    fn apart(self, other: Rect) -> bool {
        self.x + self.width <= other.x
            || other.x + other.width <= self.x
            || self.y + self.height <= other.y
            || other.y + other.height <= self.y
    }
}

/// All rectangles in coordinates of the drawing, in the order of the file.
fn rects(document: &Document) -> Vec<Rect> {
    let number = |n: Xml, name: &str| n.attribute(name).map_or(0.0, |v| v.parse::<f64>().unwrap());
    let moved = |n: Xml| -> (f64, f64) {
        n.ancestors().filter_map(|a| a.attribute("transform")).fold((0.0, 0.0), |(x, y), t| {
            let t = t.strip_prefix("translate(").unwrap().strip_suffix(')').unwrap();
            let (dx, dy) = t.split_once(' ').unwrap();
            (x + dx.parse::<f64>().unwrap(), y + dy.parse::<f64>().unwrap())
        })
    };
    let rects = document.descendants().filter(|n| n.has_tag_name("rect"));
    rects
        .map(|n| {
            let (x, y) = moved(n);
            Rect {
                x: x + number(n, "x"),
                y: y + number(n, "y"),
                width: number(n, "width"),
                height: number(n, "height"),
            }
        })
        .collect()
}

/// Asserts that the drawing is XML, that any two rectangles are nested or disjoint, and that all
/// are inside the drawing.
fn assert_sound(svg: &str) {
    let document = Document::parse(svg).unwrap_or_else(|e| panic!("{e}\n{svg}"));
    let rects = rects(&document);
    for (i, one) in rects.iter().enumerate() {
        assert!(one.within(rects[0]), "{one:?} is outside the drawing {:?}", rects[0]);
        for other in &rects[..i] {
            assert!(one.within(*other) || one.apart(*other), "{one:?} overlaps {other:?}");
        }
    }
}

fn texts(svg: &str) -> Vec<String> {
    let document = Document::parse(svg).unwrap();
    let texts = document.descendants().filter(|n| n.has_tag_name("text"));
    texts.map(|n| n.text().unwrap_or_default().to_owned()).collect()
}

#[test]
fn drawing_names_every_part() {
    let svg = draw::svg(&net(all()));
    assert_sound(&svg);
    let texts = texts(&svg);
    for expected in [
        "net main",
        "{A} → {B, <T>}",
        "first",
        "(A, <T>) → (A) | (<T>)",
        "net inner",
        "||",
        "left",
        "| (B)",
        "[{A, <T>} -> {A, <T=T+1>}; {B=A}]",
        "[]",
        "{B, <T>}",
        "* {B}, {A, <N>} if <N < 3>",
        "!!@ <T>",
        "deep",
        "\\ {A, <again>}",
        "@ 3",
        "around",
    ] {
        let expected: String = expected.split_whitespace().collect();
        let found = texts.iter().any(|t| t.split_whitespace().collect::<String>() == expected);
        let wrapped = texts.concat().split_whitespace().collect::<String>().contains(&expected);
        assert!(found || wrapped, "{expected} is not in {texts:?}");
    }
}

/// Names of the boxes, each with its class and the line of its rank.
fn ranks_of(svg: &str) -> Vec<(String, String, String)> {
    let document = Document::parse(svg).unwrap();
    let groups = document.descendants().filter(|n| n.has_tag_name("g"));
    let class = |n: Xml| n.attribute("class").unwrap_or_default().to_owned();
    let boxes = groups.filter(|n| class(*n).split(' ').any(|class| class == "box"));
    boxes
        .map(|n| {
            let texts = n.children().filter(|n| n.has_tag_name("text"));
            let texts: Vec<String> = texts.filter_map(|n| n.text().map(str::to_owned)).collect();
            (texts[0].clone(), class(n), texts.last().cloned().unwrap())
        })
        .collect()
}

#[test]
fn drawing_for_ranks_has_the_rank_of_each_box_as_colour_and_text() {
    let plain = |name: &str| a_box(name, "A", &["A"]);
    let place = |node: Node, at: u32| Node::Place(Arc::new(node), at);
    let placed_split = split(false, true, Node::Serial(vec![plain("by"), filter("[]")]), "<T>");
    let root = Node::Serial(vec![
        plain("first"),
        place(Node::Serial(vec![plain("six"), place(plain("inner"), 9), placed_split]), 6),
        split(false, false, place(plain("one"), 1), "<U>"),
        place(filter("[{A} -> {A}]"), 2),
        plain("last"),
    ]);
    let net = net(root);
    let svg = draw::svg_on_ranks(&net, 4.try_into().unwrap());
    assert_sound(&svg);
    let expected = [
        ("first", "box rank0", "rank 0"),
        ("six", "box rank2", "rank 2"),
        ("inner", "box rank1", "rank 1"),
        ("by", "box ranks", "rank <T>"),
        ("one", "box rank1", "rank 1"),
        ("last", "box rank0", "rank 0"),
    ];
    assert_eq!(ranks_of(&svg), expected.map(|(a, b, c)| (a.into(), b.into(), c.into())));
    let texts = texts(&svg);
    for head in ["net main on 4 ranks", "@ 6 (rank 2)", "@ 9 (rank 1)", "@ 2 (rank 2)"] {
        assert!(texts.iter().any(|t| t == head), "{head} is not in {texts:?}");
    }
    // After the colours are used up, the number still differs.
    let many = draw::svg_on_ranks(&net, 1000.try_into().unwrap());
    let six = ("six".to_owned(), "box rank6".to_owned(), "rank 6".to_owned());
    let inner = ("inner".to_owned(), "box rank1".to_owned(), "rank 9".to_owned());
    assert_eq!(ranks_of(&many)[1..3], [six, inner]);
    // Without ranks, boxes have neither.
    assert!(ranks_of(&draw::svg(&net)).iter().all(|(_, class, _)| class == "box"));
    for class in 0..8 {
        assert!(svg.contains(&format!(".rank{class} > rect {{")), "no colour of rank {class}");
    }
}

#[test]
fn drawing_is_deterministic() {
    assert_eq!(draw::svg(&net(all())), draw::svg(&net(all())));
}

#[test]
fn text_with_markup_and_control_characters_is_escaped() {
    let svg = draw::svg(&net(filter("[{A} -> </text><script>\u{1}\u{b} & \"x\"\n]")));
    assert_sound(&svg);
    assert!(!svg.contains("<script>"));
    assert!(texts(&svg).concat().contains("</text><script>"));
}

#[test]
fn chain_wider_than_a_row_continues_in_the_next_row() {
    let chain =
        |n: usize| Node::Serial((0..n).map(|i| a_box(&format!("stage{i}"), "A", &["A"])).collect());
    let svg = draw::svg(&net(chain(30)));
    assert_sound(&svg);
    let picture = rects(&Document::parse(&svg).unwrap())[0];
    assert!(picture.width < 1_500.0 && picture.height > 200.0, "{picture:?}");
    let texts = texts(&svg);
    assert!((0..30).all(|i| texts.contains(&format!("stage{i}"))));
}

#[test]
fn long_lists_show_beginning_end_and_count() {
    let boxes = |n: usize| (0..n).map(|i| a_box(&format!("b{i}"), "A", &["A"]));
    for root in [
        Node::Serial(boxes(1_000).collect()),
        parallel(false, boxes(1_000).map(|b| ("A", b)).collect()),
    ] {
        let svg = draw::svg(&net(root));
        assert_sound(&svg);
        assert!(svg.len() < 100_000, "{} bytes", svg.len());
        let texts = texts(&svg);
        for expected in ["b0", "b43", "… 952 more", "b996", "b999"] {
            assert!(texts.iter().any(|t| t == expected), "{expected} is not in {texts:?}");
        }
    }
}

#[test]
fn drawing_of_an_exponential_net_is_bounded() {
    let mut node = a_box("seed", "A", &["A"]);
    for level in 0..60 {
        let both = Arc::new(node);
        let twice = || Node::Net(format!("n{level}").into(), both.clone());
        node = Node::Serial(vec![twice(), twice()]);
    }
    let svg = draw::svg(&net(node));
    assert_sound(&svg);
    assert!(svg.len() < 20_000_000, "{} bytes", svg.len());
}

#[test]
fn drawing_of_a_type_with_thousands_of_variants_is_bounded() {
    let wide: Vec<Shape> = (0..5_000).map(|i| shape(&format!("F{i}"))).collect();
    let branch = |node| Branch { accepts: wide.clone(), node };
    let branches = vec![branch(Node::Identity), branch(a_box("x", "A", &["A"; 100]))];
    let root = Node::Parallel(Arc::new(ParallelPlan { deterministic: false, branches }));
    let svg = draw::svg(&Net::new("main", root, wide.clone(), wide.clone()));
    assert_sound(&svg);
    assert!(svg.len() < 40_000, "{} bytes", svg.len());
}

fn any_node() -> impl Strategy<Value = Node> {
    let leaf = prop_oneof![
        "[a-z]{1,40}".prop_map(|name| a_box(&name, "A <T>", &["A", "B <T>"])),
        prop::collection::vec("[A-Z]{1,9}( [A-Z]{1,9}){0,9}", 1..9).prop_map(|o| a_box(
            "many",
            "A",
            &o.iter().map(String::as_str).collect::<Vec<_>>()
        )),
        "[ -~]{0,300}".prop_map(|text| filter(&text)),
        Just(Node::Identity),
        prop::collection::vec("[A-Z]{1,40}", 2..9)
            .prop_map(|p| sync(&p.iter().map(String::as_str).collect::<Vec<_>>())),
    ];
    leaf.prop_recursive(6, 60, 12, |node| {
        let exits = "[A-Z]{1,90}";
        prop_oneof![
            prop::collection::vec(node.clone(), 2..12).prop_map(Node::Serial),
            (any::<bool>(), prop::collection::vec(node.clone(), 2..6))
                .prop_map(|(d, n)| parallel(d, n.into_iter().map(|n| ("A <T>", n)).collect())),
            (any::<bool>(), node.clone(), exits).prop_map(|(d, n, e)| star(
                d,
                n,
                vec![pattern(&e)]
            )),
            (any::<bool>(), any::<bool>(), node.clone())
                .prop_map(|(d, p, n)| split(d, p, n, "<T>")),
            (node.clone(), exits).prop_map(|(n, e)| feedback(n, &e)),
            (node.clone(), any::<u32>()).prop_map(|(n, p)| Node::Place(Arc::new(n), p)),
            (node, "[a-z]{1,90}").prop_map(|(n, name)| named(&name, n)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn drawing_of_any_net_has_no_overlap(root in any_node()) {
        let net = net(root);
        assert_sound(&draw::svg(&net));
        assert_sound(&draw::svg_on_ranks(&net, 3.try_into().unwrap()));
    }
}
