//! The reference interpreter and the generator of networks are tried on what is known.

mod reference;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use corebeat_snet::body::{Out, Sink};
use corebeat_snet::diagnostic::Severity;
use corebeat_snet::expression::{Binary, Expression};
use corebeat_snet::plan::{
    BoxEntry, BoxPlan, Branch, FeedbackPlan, FilterPlan, Guarded, Net, Node, OutputPlan, ParallelPlan,
    Source, SplitPlan, StarPlan, SyncPlan,
};
use corebeat_snet::{Kind, Label, Record, Shape, Value};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use reference::interpreter::{Outcome, STEPS_MAX, interpret};
use reference::{Case, Class, cases};

// Small nets in few words.

/// `A`, `<T>`, `<#K>`
fn label(text: &str) -> Label {
    let (kind, name) = match text.strip_prefix('<').and_then(|text| text.strip_suffix('>')) {
        None => (Kind::Field, text),
        Some(name) => match name.strip_prefix('#') {
            Some(name) => (Kind::BindingTag, name),
            None => (Kind::Tag, name),
        },
    };
    Label::new(kind, name).unwrap()
}

fn labels(text: &str) -> Vec<Label> {
    text.split_whitespace().map(label).collect()
}

fn shape(text: &str) -> Shape {
    Shape::new(labels(text)).unwrap()
}

/// `A=1 <T>=2`: fields hold `int`s.
fn record(text: &str) -> Record {
    let pairs = text.split_whitespace().map(|entry| {
        let (name, value) = entry.split_once('=').unwrap();
        let (label, n) = (label(name), value.parse::<i32>().unwrap());
        (label, if label.kind() == Kind::Field { Value::from(n) } else { Value::Tag(n) })
    });
    Record::from_pairs(pairs).unwrap()
}

fn records(texts: &[&str]) -> Vec<Record> {
    texts.iter().map(|text| record(text)).collect()
}

fn tag(name: &str) -> Expression {
    Expression::Tag(label(name))
}

fn with(operator: Binary, name: &str, n: i32) -> Expression {
    Expression::Binary(operator, Box::new(tag(name)), Box::new(Expression::Number(n)))
}

fn pattern(text: &str) -> Guarded {
    Guarded { shape: shape(text), guard: None }
}

fn guarded(text: &str, guard: Expression) -> Guarded {
    Guarded { shape: shape(text), guard: Some(guard) }
}

fn box_plan(name: &str, input: &str, outputs: &[&str]) -> Arc<BoxPlan> {
    let entries = input.split_whitespace().map(|entry| match entry.strip_suffix('+') {
        Some(name) => BoxEntry { label: label(name), passes: true },
        None => BoxEntry { label: label(entry), passes: false },
    });
    let input: Vec<BoxEntry> = entries.collect();
    Arc::new(BoxPlan {
        name: name.into(),
        accepts: Shape::new(input.iter().map(|e| e.label)).unwrap(),
        input: Some(input),
        outputs: outputs.iter().map(|output| labels(output)).collect(),
        body: None,
    })
}

fn a_box(name: &str, input: &str, outputs: &[&str]) -> Node {
    Node::Box(box_plan(name, input, outputs))
}

/// What one record of a filter holds, and where it comes from.
type Entries<'a> = Vec<(&'a str, Source)>;

fn filter_cases(pattern: &str, cases: Vec<(Option<Expression>, Vec<Entries<'_>>)>) -> Node {
    let output = |entries: Entries<'_>| OutputPlan {
        entries: entries.into_iter().map(|(name, source)| (label(name), source)).collect(),
    };
    let cases =
        cases.into_iter().map(|(condition, outputs)| (condition, outputs.into_iter().map(output).collect()));
    Node::Filter(Arc::new(FilterPlan {
        pattern: shape(pattern),
        cases: cases.collect(),
        text: pattern.into(),
    }))
}

fn filter(pattern: &str, outputs: Vec<Entries<'_>>) -> Node {
    filter_cases(pattern, vec![(None, outputs)])
}

fn from(name: &str) -> Source {
    Source::Label(label(name))
}

fn sync(patterns: Vec<Guarded>) -> Node {
    Node::Sync(Arc::new(SyncPlan { patterns }))
}

fn parallel(deterministic: bool, branches: Vec<(&[&str], Node)>) -> Node {
    let branches = branches
        .into_iter()
        .map(|(accepts, node)| Branch { accepts: accepts.iter().map(|text| shape(text)).collect(), node });
    Node::Parallel(Arc::new(ParallelPlan { deterministic, branches: branches.collect() }))
}

fn star(operand: Node, exits: Vec<Guarded>) -> Node {
    Node::Star(Arc::new(StarPlan { deterministic: true, operand, exits }))
}

fn split(operand: Node, by: &str) -> Node {
    Node::Split(Arc::new(SplitPlan { deterministic: true, placed: false, operand, tag: label(by) }))
}

fn feedback(operand: Node, patterns: Vec<Guarded>) -> Node {
    Node::Feedback(Arc::new(FeedbackPlan { operand, patterns }))
}

/// Sets a tag on all.
fn mark(name: &'static str, n: i32) -> Node {
    filter("", vec![vec![(name, Source::Value(Expression::Number(n)))]])
}

/// `[{<N>} -> {<N = N - 1>}]`
fn count_down() -> Node {
    filter("<N>", vec![vec![("<N>", Source::Value(with(Binary::Minus, "<N>", 1)))]])
}

/// `twice` puts out two of its first variant, the values counted up; others put out one of their last variant, so counted
/// and filled with 7.
fn call(plan: &BoxPlan, values: &[Value]) -> Vec<(usize, Vec<Value>)> {
    let variant = if plan.name == "twice" { 0 } else { plan.outputs.len() - 1 };
    let made = |more: i32| {
        let output = plan.outputs[variant].iter().enumerate().map(|(i, label)| {
            let n = values.get(i).map_or(7, |value| value.integer().unwrap() as i32 + more);
            if label.kind() == Kind::Field { Value::from(n) } else { Value::Tag(n) }
        });
        (variant, output.collect())
    };
    if plan.name == "twice" { vec![made(1), made(2)] } else { vec![made(1)] }
}

fn run(root: Node, input: &[&str]) -> Outcome {
    let net = Net::new("main", root, Vec::new(), Vec::new());
    interpret(&net, &call, &records(input))
}

#[track_caller]
fn puts_out(root: Node, input: &[&str], output: &[&str]) -> Outcome {
    let outcome = run(root, input);
    assert_eq!(outcome.records, records(output));
    outcome
}

// The rules.

#[test]
fn box_takes_its_labels_and_lets_the_others_flow_past() {
    let node = || a_box("one", "A <T>", &["B <U>"]);
    puts_out(node(), &["A=1 <T>=5 C=9 <V>=3"], &["B=2 <U>=6 C=9 <V>=3"]);
    // What it puts out itself counts.
    puts_out(node(), &["A=1 <T>=5 B=9"], &["B=2 <U>=6"]);
}

#[test]
fn box_passes_what_it_takes_with_a_sign() {
    puts_out(a_box("one", "A+ <T>", &["B"]), &["A=1 <T>=5"], &["A=1 B=2"]);
    puts_out(a_box("one", "A+ <T>", &["A"]), &["A=1 <T>=5"], &["A=2"]);
}

#[test]
fn box_lets_no_binding_tag_past() {
    puts_out(a_box("one", "A <#K>", &["A"]), &["A=1 <#K>=5"], &["A=2"]);
    puts_out(a_box("one", "A <#K>+", &["A"]), &["A=1 <#K>=5"], &["A=2"]);
    puts_out(a_box("one", "A <#K>", &["A <#K>"]), &["A=1 <#K>=5"], &["A=2 <#K>=6"]);
}

#[test]
fn box_of_several_records_puts_them_out_in_order() {
    puts_out(a_box("twice", "A", &["A", "B"]), &["A=1", "A=5"], &["A=2", "A=3", "A=6", "A=7"]);
}

#[test]
fn box_without_its_labels_is_an_error_and_nothing_else_is_lost() {
    for lacks in ["B=1", "A=1 <#K>=1"] {
        let outcome = puts_out(a_box("one", "A", &["A"]), &[lacks, "A=3"], &["A=4"]);
        assert_eq!(outcome.errors.len(), 1);
    }
}

#[test]
fn initialiser_is_called_once_and_records_pass() {
    let mut plan = BoxPlan {
        name: "init".into(),
        input: None,
        accepts: Shape::empty(),
        outputs: vec![labels("A")],
        body: None,
    };
    let node = |plan| Node::Serial(vec![Node::Box(Arc::new(plan)), a_box("one", "A", &["A"])]);
    puts_out(node(plan), &["A=1"], &["A=8", "A=2"]);
    plan = BoxPlan {
        name: "twice".into(),
        input: None,
        accepts: Shape::empty(),
        outputs: vec![labels("A")],
        body: None,
    };
    // In a replica, when the replica comes to be.
    puts_out(
        split(Node::Box(Arc::new(plan)), "<T>"),
        &["B=1 <T>=0", "B=2 <T>=0"],
        &["A=7", "A=7", "B=1 <T>=0", "B=2 <T>=0"],
    );
}

#[test]
fn filter_copies_renames_and_removes() {
    let node = filter("A B <T>", vec![vec![("A", from("A")), ("C", from("A"))], vec![("<T>", from("<T>"))]]);
    puts_out(node, &["A=1 B=2 <T>=3 D=4 <V>=5"], &["A=1 C=1 D=4 <V>=5", "<T>=3 D=4 <V>=5"]);
}

#[test]
fn filter_refuses_a_record_only_for_what_it_uses() {
    let node = filter("A <C>", vec![vec![("A", from("A"))]]);
    let outcome = puts_out(node, &["A=1 <C>=2", "A=3 B=4", "B=5 <C>=6"], &["A=1", "A=3 B=4"]);
    assert_eq!(outcome.errors.len(), 1);
    puts_out(filter("A <C>", vec![vec![]]), &["B=1", "A=1", "B=1 <#K>=2"], &["B=1", ""]);
}

#[test]
fn filter_computes_by_its_first_condition_that_holds() {
    let set = |n| vec![vec![("<T>", Source::Value(with(Binary::Times, "<T>", n)))]];
    let less = |n| Some(with(Binary::Less, "<T>", n));
    let node = filter_cases("<T>", vec![(less(3), set(10)), (less(5), Vec::new()), (None, set(100))]);
    puts_out(node, &["<T>=2", "<T>=4", "<T>=6 <#K>=1", "<T>=6"], &["<T>=20", "<T>=600"]);
}

#[test]
fn filter_lets_no_binding_tag_past() {
    puts_out(filter("<#K>", vec![vec![]]), &["A=1 <#K>=2"], &["A=1"]);
}

#[test]
fn filter_that_divides_by_zero_ends_the_record_alone() {
    let value = Expression::Binary(Binary::Divide, Box::new(Expression::Number(6)), Box::new(tag("<T>")));
    let node = filter("<T>", vec![vec![("<T>", Source::Value(value))]]);
    let outcome = puts_out(node, &["<T>=2", "<T>=0", "<T>=3"], &["<T>=3", "<T>=2"]);
    assert_eq!(outcome.errors.len(), 1);
    assert!(outcome.errors[0].contains("division by zero"), "{:?}", outcome.errors);
}

#[test]
fn identity_passes_all() {
    puts_out(Node::Identity, &["A=1 <#K>=2", "<T>=1"], &["A=1 <#K>=2", "<T>=1"]);
}

#[test]
fn cell_makes_one_of_all_patterns_and_then_is_the_identity() {
    let node = || sync(vec![pattern("A"), pattern("B <T>")]);
    // The first pattern's record keeps all it has; of the other counts what its pattern says.
    let outcome = puts_out(
        node(),
        &["C=0", "A=1 <T>=1 D=1", "A=2", "B=3 <T>=3 D=3 E=3", "A=4", "B=5 <T>=5"],
        &["C=0", "A=2", "A=1 B=3 <T>=3 D=1", "A=4", "B=5 <T>=5"],
    );
    assert_eq!(outcome.kept, 0);
    // In the other order as well.
    puts_out(node(), &["B=3 <T>=3 E=3", "A=1 <T>=1 D=1"], &["A=1 B=3 <T>=3 D=1"]);
}

#[test]
fn cell_keeps_what_waits_at_the_end() {
    let outcome =
        puts_out(sync(vec![pattern("A"), pattern("B"), pattern("C")]), &["A=1 B=1", "B=2"], &["B=2"]);
    assert_eq!(outcome.kept, 1);
}

#[test]
fn cell_takes_a_record_for_all_patterns_that_it_fits() {
    let node = || sync(vec![pattern("A"), pattern("B")]);
    puts_out(node(), &["A=1 B=1 C=1", "A=2"], &["A=1 B=1 C=1", "A=2"]);
    puts_out(node(), &["B=1", "A=2 B=2"], &["A=2 B=1"]);
    puts_out(sync(vec![pattern("A"), pattern("B"), pattern("C")]), &["A=1 B=1", "C=3 A=3"], &["A=1 B=1 C=3"]);
}

#[test]
fn cell_looks_at_guards() {
    let node = sync(vec![
        guarded("<T>", with(Binary::Equal, "<T>", 1)),
        guarded("<T> A", with(Binary::Equal, "<T>", 2)),
    ]);
    puts_out(
        node,
        &["A=0 <T>=0", "A=1 <T>=1", "A=3 <T>=1", "<T>=2", "A=2 <T>=2"],
        &["A=0 <T>=0", "A=3 <T>=1", "<T>=2", "A=2 <T>=2"],
    );
}

#[test]
fn parallel_takes_the_branch_that_says_most() {
    let node = || {
        let branches: Vec<(&[&str], Node)> = vec![
            (&["A"], mark("<W>", 0)),
            (&["A B", "C"], mark("<W>", 1)),
            (&["A <T>"], mark("<W>", 2)),
            (&["A <#K>"], filter("<#K>", vec![vec![]])),
        ];
        parallel(false, branches)
    };
    puts_out(
        node(),
        &["A=1", "A=1 B=1", "C=1", "A=1 <T>=1", "A=1 B=1 <T>=1", "A=1 B=1 <#K>=1"],
        &["A=1 <W>=0", "A=1 B=1 <W>=1", "C=1 <W>=1", "A=1 <T>=1 <W>=2", "A=1 B=1 <T>=1 <W>=1", "A=1 B=1"],
    );
    let outcome = puts_out(node(), &["B=1", "A=2"], &["A=2 <W>=0"]);
    assert_eq!(outcome.errors.len(), 1);
}

#[test]
fn serial_and_nets_and_places_are_followed_in_order() {
    let one = |to| a_box("one", "A", &[to]);
    let inner = Node::Net("inner".into(), Arc::new(one("A")));
    let node = Node::Serial(vec![one("A"), Node::Place(Arc::new(inner), 1), a_box("twice", "A", &["B"])]);
    puts_out(node, &["A=1", "A=5"], &["B=4", "B=5", "B=8", "B=9"]);
}

#[test]
fn star_lets_records_leave_before_each_stage() {
    let node = |exits| star(count_down(), exits);
    let end = || guarded("<N>", with(Binary::LessEqual, "<N>", 0));
    puts_out(node(vec![end()]), &["<N>=3 A=1", "<N>=-4", "<N>=0"], &["<N>=0 A=1", "<N>=-4", "<N>=0"]);
    puts_out(node(vec![end(), pattern("B")]), &["<N>=3 B=1", "<N>=1"], &["<N>=3 B=1", "<N>=0"]);
}

#[test]
fn star_puts_out_what_leaves_at_an_earlier_stage_first() {
    // Each stage makes of `<N>` two records with `<N + 1>` and `<N + 2>`.
    let node = star(a_box("twice", "<N>", &["<N>"]), vec![guarded("<N>", with(Binary::Greater, "<N>", 2))]);
    puts_out(node, &["<N>=1", "<N>=2"], &["<N>=3", "<N>=3", "<N>=4", "<N>=3", "<N>=4"]);
}

#[test]
fn star_has_a_cell_at_each_stage() {
    let join = parallel(true, vec![(&["A B"], a_box("one", "A B", &["C"])), (&[""], Node::Identity)]);
    let node = star(Node::Serial(vec![sync(vec![pattern("A"), pattern("B")]), join]), vec![pattern("C")]);
    let outcome = puts_out(node, &["A=1", "A=2", "A=3", "B=1", "C=9", "B=2"], &["C=2", "C=9", "C=3"]);
    assert_eq!(outcome.kept, 1);
}

#[test]
fn split_has_a_cell_for_each_value() {
    let node = || split(sync(vec![pattern("A"), pattern("B")]), "<T>");
    let outcome = puts_out(node(), &["A=1 <T>=1", "B=2 <T>=2", "A=2 <T>=2", "A=3 <T>=3"], &["A=2 B=2 <T>=2"]);
    assert_eq!(outcome.kept, 2);
    let outcome = puts_out(node(), &["A=1", "A=1 B=1 <T>=0"], &["A=1 B=1 <T>=0"]);
    assert_eq!(outcome.errors.len(), 1);
}

#[test]
fn split_by_a_binding_tag_keeps_it() {
    let node = split(filter("<#K>", vec![vec![("<#K>", from("<#K>"))]]), "<#K>");
    puts_out(node, &["A=1 <#K>=1"], &["A=1 <#K>=1"]);
}

#[test]
fn feedback_takes_in_again_what_fits() {
    let node = feedback(count_down(), vec![guarded("<N>", with(Binary::Greater, "<N>", 0))]);
    let outcome = puts_out(node, &["<N>=4", "<N>=-1"], &["<N>=0", "<N>=-2"]);
    assert_eq!(outcome.steps, 7); // the feedback twice, the filter four times and once
}

#[test]
fn endless_net_is_an_error() {
    let outcome = run(star(Node::Identity, vec![pattern("B")]), &["A=1", "B=1"]);
    assert!(outcome.steps > STEPS_MAX);
    assert_eq!(outcome.errors.len(), 2); // its record, and the next, which finds no more steps left
    assert_eq!(outcome.records, []);
}

// The generator.

const CLASSES: [Class; 3] = [Class::Confluent, Class::Ordered, Class::Merging];
const CASES: usize = 200;
/// What a random case may take.
const CASE_STEPS_MAX: usize = 100_000;

/// The same in each run.
fn some_cases(class: Class) -> &'static [Case] {
    static MADE: LazyLock<[Vec<Case>; CLASSES.len()]> = LazyLock::new(|| {
        CLASSES.map(|class| {
            let (strategy, mut runner) = (cases(class), TestRunner::deterministic());
            let mut made = || strategy.new_tree(&mut runner).expect("all choices make a case").current();
            (0..CASES).map(|_| made()).collect()
        })
    });
    let made = CLASSES.iter().position(|of| *of == class).expect("all classes are there");
    &MADE[made]
}

#[test]
fn random_nets_end_within_a_bound() {
    for class in CLASSES {
        for case in some_cases(class) {
            let outcome = case.outcome();
            assert!(outcome.steps < CASE_STEPS_MAX, "{} steps: {case:?}", outcome.steps);
        }
    }
}

/// All parts of a net, with what is inside them.
fn visit(node: &Node, see: &mut impl FnMut(&Node)) {
    see(node);
    match node {
        Node::Identity | Node::Box(_) | Node::Filter(_) | Node::Sync(_) => {}
        Node::Serial(parts) => parts.iter().for_each(|part| visit(part, see)),
        Node::Parallel(plan) => plan.branches.iter().for_each(|branch| visit(&branch.node, see)),
        Node::Star(plan) => visit(&plan.operand, see),
        Node::Split(plan) => visit(&plan.operand, see),
        Node::Feedback(plan) => visit(&plan.operand, see),
        Node::Place(operand, _) | Node::Net(_, operand) => visit(operand, see),
    }
}

fn kind(node: &Node) -> &'static str {
    match node {
        Node::Identity => "[]",
        Node::Box(_) => "box",
        Node::Filter(plan) if plan.cases.len() > 1 => "filter with conditions",
        Node::Filter(_) => "filter",
        Node::Sync(_) => "[||]",
        Node::Serial(_) => "..",
        Node::Parallel(plan) if plan.deterministic => "||",
        Node::Parallel(_) => "|",
        Node::Star(plan) if plan.deterministic => "**",
        Node::Star(_) => "*",
        Node::Split(plan) if plan.tag.kind() == Kind::BindingTag => "! binding",
        Node::Split(plan) if plan.tag == label("<I>") => "! of its own",
        Node::Split(plan) if plan.deterministic => "!!",
        Node::Split(_) => "!",
        Node::Feedback(_) => "\\",
        Node::Place(..) => "@",
        Node::Net(..) => "net",
    }
}

#[test]
fn random_nets_have_all_kinds_of_parts() {
    let everywhere = [
        "[]",
        "box",
        "filter with conditions",
        "filter",
        "[||]",
        "..",
        "||",
        "**",
        "!!",
        "! binding",
        "@",
        "net",
    ];
    for class in CLASSES {
        let mut nets: BTreeMap<&str, usize> = BTreeMap::new();
        for case in some_cases(class) {
            let mut kinds = Vec::new();
            visit(case.net.root(), &mut |node| kinds.push(kind(node)));
            kinds.sort_unstable();
            kinds.dedup();
            kinds.into_iter().for_each(|kind| *nets.entry(kind).or_default() += 1);
        }
        let unordered: &[&str] = if class == Class::Ordered { &[] } else { &["|", "*", "!", "\\"] };
        for kind in everywhere.iter().chain(unordered) {
            let count = nets.get(kind).copied().unwrap_or(0);
            assert!(count >= CASES / 50, "{class:?}: {kind} in {count} nets of {CASES}: {nets:?}");
        }
        let own = nets.get("! of its own").copied().unwrap_or(0);
        assert!(own >= CASES / 50 || class == Class::Merging, "{nets:?}");
        if class == Class::Ordered {
            assert!(["|", "*", "!", "\\"].iter().all(|kind| !nets.contains_key(kind)), "{nets:?}");
        }
    }
}

#[test]
fn random_nets_do_something() {
    for class in CLASSES {
        let (mut records, mut kept, mut errors, mut deep) = (0, 0, 0, 0);
        for case in some_cases(class) {
            let outcome = case.outcome();
            records += usize::from(!outcome.records.is_empty());
            kept += usize::from(outcome.kept > 0);
            errors += usize::from(!outcome.errors.is_empty());
            deep += usize::from(outcome.steps > 50 * case.input.len());
        }
        let seen =
            format!("{class:?}: of {CASES}, {records} put out, {kept} keep, {errors} err, {deep} are deep");
        println!("{seen}");
        assert!(records > CASES * 3 / 4 && deep > CASES / 20, "{seen}");
        assert!(kept > CASES / 50 || class == Class::Confluent, "{seen}");
        // What cannot be routed would be an error: only divisions by zero are.
        assert!(errors < CASES / 4 && (errors == 0) == (class == Class::Merging), "{seen}");
    }
}

#[test]
fn random_nets_route_every_record() {
    for class in CLASSES {
        for case in some_cases(class) {
            let errors = case.outcome().errors;
            assert!(errors.iter().all(|error| error.contains("division by zero")), "{errors:?}\n{case:?}");
        }
    }
}

/// The net that the checker makes of a case's source.
fn checked(case: &Case) -> Net {
    let wrong = |remark: &dyn std::fmt::Display| -> ! { panic!("{remark}\n{case:?}") };
    let module = corebeat_snet::parse(&case.source()).unwrap_or_else(|errors| wrong(&errors[0]));
    let checked = corebeat_snet::check(&module, None);
    if let Some(error) = checked.diagnostics.iter().find(|remark| remark.severity == Severity::Error) {
        wrong(error);
    }
    checked.net.unwrap_or_else(|| wrong(&"there is no net"))
}

#[test]
fn random_nets_as_programs_are_sound_and_mean_the_same() {
    for class in CLASSES {
        for case in some_cases(class) {
            let mut other = case.clone();
            other.net = Arc::new(checked(case));
            let Outcome { records, errors, kept, .. } = other.outcome();
            assert_eq!(case.check(&records, errors.len(), kept), Ok(()), "{case:?}");
        }
    }
}

#[test]
fn random_nets_put_out_shapes_that_the_checker_foresees() {
    for class in CLASSES {
        for case in some_cases(class) {
            let mut case = case.clone();
            let net = checked(&case);
            let (input, output) = (net.input(), net.output());
            // More labels than a net declares flow past what it puts out.
            case.input.retain(|record| input.contains(&record.shape()));
            for record in case.outcome().records {
                assert!(output.contains(&record.shape()), "{record:?} is none of {output:?}\n{case:?}");
            }
        }
    }
}

#[test]
fn random_nets_put_out_what_their_type_says() {
    for class in CLASSES {
        for case in some_cases(class) {
            for record in case.outcome().records {
                let fits = case.net.output().iter().any(|shape| record.shape().is_subtype_of(*shape));
                assert!(fits, "{record:?} is none of {:?}\n{case:?}", case.net.output());
            }
        }
    }
}

#[test]
fn case_agrees_with_itself_whatever_the_order() {
    for class in CLASSES {
        for case in some_cases(class) {
            for seed in 0..4 {
                let other = case.shuffled(seed);
                if let Err(wrong) = case.check(&other.records, other.errors.len(), other.kept) {
                    panic!("shuffled by {seed}: {wrong}\n{case:?}");
                }
            }
        }
    }
}

#[test]
fn case_finds_what_is_lost_doubled_changed_or_out_of_order() {
    for class in CLASSES {
        let mut swapped = 0;
        for case in &some_cases(class)[..CASES / 4] {
            let Outcome { records, errors, kept, .. } = case.outcome();
            assert_eq!(case.check(&records, errors.len(), kept), Ok(()), "{case:?}");
            assert!(case.check(&records, errors.len() + 1, kept).is_err(), "{case:?}");
            assert!(case.check(&records, errors.len(), kept + 1).is_err(), "{case:?}");
            let Some((last, others)) = records.split_last() else { continue };
            assert!(case.check(others, errors.len(), kept).is_err(), "lost\n{case:?}");
            let doubled = [&records[..], std::slice::from_ref(last)].concat();
            assert!(case.check(&doubled, errors.len(), kept).is_err(), "doubled\n{case:?}");
            let other = last.iter().map(|(label, value)| match value {
                Value::Tag(n) => (label, Value::Tag(n + 1)),
                _ if class == Class::Merging => (label, Value::from("99")),
                _ => (label, Value::from(1_u64)),
            });
            let changed = [others, &[Record::from_pairs(other).unwrap()]].concat();
            assert!(case.check(&changed, errors.len(), kept).is_err(), "changed\n{case:?}");
            if records.len() > 1 && records[0] != *last {
                let mut turned = records.clone();
                turned.rotate_left(1);
                let found = case.check(&turned, errors.len(), kept).is_err();
                assert_eq!(found, class == Class::Ordered, "turned\n{case:?}");
                swapped += 1;
            }
        }
        assert!(swapped > 10);
    }
}

/// Collects what a box puts out.
struct Made(Vec<(usize, Vec<Value>)>);

impl Sink for Made {
    fn put(&mut self, variant: usize, values: &mut [Value]) -> bool {
        self.0.push((variant, values.to_vec()));
        true
    }
}

#[test]
fn bodies_do_what_the_interpreter_takes_them_to_do() {
    for class in CLASSES {
        for case in &some_cases(class)[..CASES / 4] {
            let bodies = case.bodies();
            let calls = |plan: &BoxPlan, values: &[Value]| {
                let mut made = Made(Vec::new());
                let body = &bodies[&plan.name];
                body.call(&mut values.to_vec(), &mut Out::new(plan, &mut made))
                    .expect("it puts out what it declares");
                made.0
            };
            let other = interpret(&case.net, &calls, &case.input);
            assert_eq!(case.check(&other.records, other.errors.len(), other.kept), Ok(()), "{case:?}");
        }
    }
}
