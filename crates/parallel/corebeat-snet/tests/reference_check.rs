//! Tests of the reference interpreter and of the generator of networks.

mod reference;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use corebeat_snet::body::{Out, Sink};
use corebeat_snet::diagnostic::Severity;
use corebeat_snet::plan::{BoxPlan, Net, Node};
use corebeat_snet::{Kind, Label, Record, Value};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use reference::interpreter::{Outcome, interpret};
use reference::{Case, Class, STEPS_MAX, cases};

// Rules of the language.

fn label(text: &str) -> Label {
    text.parse().expect("a test uses few labels")
}

/// `A=1 <T>=2`: fields hold `int`s.
fn record(text: &str) -> Record {
    let pairs = text.split_whitespace().map(|entry| {
        let (name, value) = entry.rsplit_once('=').unwrap();
        let (label, n) = (label(name), value.parse::<i32>().unwrap());
        (label, if label.kind() == Kind::Field { Value::from(n) } else { Value::Tag(n) })
    });
    Record::from_pairs(pairs).unwrap()
}

fn records(texts: &[&str]) -> Vec<Record> {
    texts.iter().map(|text| record(text)).collect()
}

/// `twice` outputs two records of its first variant with incremented values. Other boxes output one
/// record of their last variant with incremented values, filled with 7.
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

/// Runs a program. Warnings are allowed.
#[track_caller]
fn run(source: &str, input: &[&str]) -> Outcome {
    let checked = corebeat_snet::check(&corebeat_snet::parse(source).unwrap(), None);
    let net = checked.net.unwrap_or_else(|| panic!("{:?}", checked.diagnostics));
    interpret(&net, &call, &records(input), None, STEPS_MAX)
}

#[track_caller]
fn puts_out(source: &str, input: &[&str], output: &[&str]) -> Outcome {
    let outcome = run(source, input);
    assert_eq!(outcome.records, records(output));
    outcome
}

#[test]
fn box_takes_its_labels_and_other_labels_flow_past() {
    let source = "box one ((A, <T>) -> (B, <U>)); net n connect one;";
    puts_out(source, &["A=1 <T>=5 C=9 <V>=3"], &["B=2 <U>=6 C=9 <V>=3"]);
    // Labels that the box outputs have precedence.
    puts_out(source, &["A=1 <T>=5 B=9"], &["B=2 <U>=6"]);
}

#[test]
fn box_passes_arguments_marked_with_equals() {
    puts_out("box one ((A =, <T>) -> (B)); net n connect one;", &["A=1 <T>=5"], &["A=1 B=2"]);
    puts_out("box one ((A =, <T>) -> (A)); net n connect one;", &["A=1 <T>=5"], &["A=2"]);
}

#[test]
fn box_does_not_pass_binding_tags() {
    for (source, output) in [
        ("box one ((A, <#K>) -> (A)); net n connect one;", "A=2"),
        ("box one ((A, <#K> =) -> (A)); net n connect one;", "A=2"),
        ("box one ((A, <#K>) -> (A, <#K>)); net n connect one;", "A=2 <#K>=6"),
    ] {
        puts_out(source, &["A=1 <#K>=5"], &[output]);
    }
}

#[test]
fn box_outputs_several_records_in_order() {
    let source = "box twice ((A) -> (A) | (B)); net n connect twice;";
    puts_out(source, &["A=1", "A=5"], &["A=2", "A=3", "A=6", "A=7"]);
}

#[test]
fn record_without_labels_of_a_box_is_the_only_lost_record() {
    for lacks in ["B=1", "A=1 <#K>=1"] {
        let source = "box one ((A) -> (A)); net n connect one;";
        let outcome = puts_out(source, &[lacks, "A=3"], &["A=4"]);
        assert_eq!(outcome.errors.len(), 1);
    }
}

#[test]
fn initialiser_runs_once_and_records_pass() {
    let source = "box init (-> (A)); box one ((A) -> (A)); net n connect init .. one;";
    puts_out(source, &["A=1"], &["A=8", "A=2"]);
    // In a replica, when the replica is created.
    puts_out(
        "box twice (-> (A)); net n connect (twice | []) !! <T>;",
        &["B=1 <T>=0", "B=2 <T>=0"],
        &["A=7", "A=7", "B=1 <T>=0", "B=2 <T>=0"],
    );
}

#[test]
fn filter_copies_renames_and_removes() {
    puts_out(
        "net n connect [{A, B, <T>} -> {A, C = A}; {<T>}];",
        &["A=1 B=2 <T>=3 D=4 <V>=5"],
        &["A=1 C=1 D=4 <V>=5", "<T>=3 D=4 <V>=5"],
    );
}

#[test]
fn filter_refuses_only_records_without_labels_it_uses() {
    let source = "net n connect [{A, <C>} -> {A}];";
    let outcome = puts_out(source, &["A=1 <C>=2", "A=3 B=4", "B=5 <C>=6"], &["A=1", "A=3 B=4"]);
    assert_eq!(outcome.errors.len(), 1);
    puts_out("net n connect [{A, <C>} -> {}];", &["B=1", "A=1", "B=1 <#K>=2"], &["B=1", ""]);
}

#[test]
fn filter_uses_its_first_condition_that_holds() {
    puts_out(
        "net n connect [{<T>} -> if <T < 3> then {<T = T * 10>} else if <T < 5> then \
         else {<T = T * 100>}];",
        &["<T>=2", "<T>=4", "<T>=6 <#K>=1", "<T>=6"],
        &["<T>=20", "<T>=600"],
    );
}

#[test]
fn filter_does_not_pass_binding_tags() {
    puts_out("net n connect [{<#K>} -> {}];", &["A=1 <#K>=2"], &["A=1"]);
}

#[test]
fn filter_with_division_by_zero_loses_only_its_record() {
    let source = "net n connect [{<T>} -> {<T = 6 / T>}];";
    let outcome = puts_out(source, &["<T>=2", "<T>=0", "<T>=3"], &["<T>=3", "<T>=2"]);
    assert_eq!(outcome.errors.len(), 1);
    assert!(outcome.errors[0].contains("division by zero"), "{:?}", outcome.errors);
}

#[test]
fn identity_passes_every_record() {
    puts_out("net n connect [];", &["A=1 <#K>=2", "<T>=1"], &["A=1 <#K>=2", "<T>=1"]);
}

#[test]
fn cell_merges_all_patterns_and_becomes_the_identity() {
    let source = "net n connect [| {A}, {B, <T>} |];";
    // The record of the first pattern keeps all labels, the other record only those of its pattern.
    let outcome = puts_out(
        source,
        &["C=0", "A=1 <T>=1 D=1", "A=2", "B=3 <T>=3 D=3 E=3", "A=4", "B=5 <T>=5"],
        &["C=0", "A=2", "A=1 B=3 <T>=3 D=1", "A=4", "B=5 <T>=5"],
    );
    assert_eq!(outcome.kept, 0);
    // The same in the other order.
    puts_out(source, &["B=3 <T>=3 E=3", "A=1 <T>=1 D=1"], &["A=1 B=3 <T>=3 D=1"]);
}

#[test]
fn cell_holds_unmatched_records_at_the_end() {
    let source = "net n connect [| {A}, {B}, {C} |];";
    let outcome = puts_out(source, &["A=1 B=1", "B=2"], &["B=2"]);
    assert_eq!(outcome.kept, 1);
}

#[test]
fn cell_uses_a_record_for_all_patterns_that_it_matches() {
    let source = "net n connect [| {A}, {B} |];";
    puts_out(source, &["A=1 B=1 C=1", "A=2"], &["A=1 B=1 C=1", "A=2"]);
    puts_out(source, &["B=1", "A=2 B=2"], &["A=2 B=1"]);
    let source = "net n connect [| {A}, {B}, {C} |];";
    puts_out(source, &["A=1 B=1", "C=3 A=3"], &["A=1 B=1 C=3"]);
}

#[test]
fn cell_evaluates_guards() {
    puts_out(
        "net n connect [| {<T>} if <T == 1>, {A, <T>} if <T == 2> |];",
        &["A=0 <T>=0", "A=1 <T>=1", "A=3 <T>=1", "<T>=2", "A=2 <T>=2"],
        &["A=0 <T>=0", "A=3 <T>=1", "<T>=2", "A=2 <T>=2"],
    );
}

#[test]
fn parallel_selects_the_branch_with_most_labels() {
    let source = "
        net a ({A} -> ...) connect [{} -> {<W = 0>}];
        net b ({A, B} | {C} -> ...) connect [{} -> {<W = 1>}];
        net t ({A, <T>} -> ...) connect [{} -> {<W = 2>}];
        net k ({A, <#K>} -> ...) connect [{<#K>} -> {}];
        net n connect a | b | t | k;";
    let input = ["A=1", "A=1 B=1", "C=1", "A=1 <T>=1", "A=1 B=1 <T>=1", "A=1 B=1 <#K>=1"];
    let output = [
        "A=1 <W>=0",
        "A=1 B=1 <W>=1",
        "C=1 <W>=1",
        "A=1 <T>=1 <W>=2",
        "A=1 B=1 <T>=1 <W>=1",
        "A=1 B=1",
    ];
    puts_out(source, &input, &output);
    let outcome = puts_out(source, &["B=1", "A=2"], &["A=2 <W>=0"]);
    assert_eq!(outcome.errors.len(), 1);
}

#[test]
fn serial_and_nets_and_places_are_followed_in_order() {
    let source = "box one ((A) -> (A)); box twice ((A) -> (B)); net inner connect one;
        net n connect one .. inner@1 .. twice;";
    puts_out(source, &["A=1", "A=5"], &["B=4", "B=5", "B=8", "B=9"]);
}

#[test]
fn star_lets_records_leave_before_each_stage() {
    let down = "net n connect [{<N>} -> {<N = N - 1>}] ** {<N>} if <N <= 0>";
    let input = ["<N>=3 A=1", "<N>=-4", "<N>=0"];
    puts_out(&format!("{down};"), &input, &["<N>=0 A=1", "<N>=-4", "<N>=0"]);
    puts_out(&format!("{down}, {{B}};"), &["<N>=3 B=1", "<N>=1"], &["<N>=3 B=1", "<N>=0"]);
}

#[test]
fn star_outputs_records_of_earlier_stages_first() {
    // Each stage turns `<N>` into two records with `<N + 1>` and `<N + 2>`.
    let source = "box twice ((<N>) -> (<N>)); net n connect twice ** {<N>} if <N > 2>;";
    puts_out(source, &["<N>=1", "<N>=2"], &["<N>=3", "<N>=3", "<N>=4", "<N>=3", "<N>=4"]);
}

#[test]
fn star_has_a_cell_at_each_stage() {
    let source = "box one ((A, B) -> (C));
        net n connect ([| {A}, {B} |] .. (one || [])) ** {C};";
    let outcome =
        puts_out(source, &["A=1", "A=2", "A=3", "B=1", "C=9", "B=2"], &["C=2", "C=9", "C=3"]);
    assert_eq!(outcome.kept, 1);
}

#[test]
fn split_has_a_cell_for_each_value() {
    let source = "net n connect [| {A}, {B} |] !! <T>;";
    let outcome =
        puts_out(source, &["A=1 <T>=1", "B=2 <T>=2", "A=2 <T>=2", "A=3 <T>=3"], &["A=2 B=2 <T>=2"]);
    assert_eq!(outcome.kept, 2);
    let outcome = puts_out(source, &["A=1", "A=1 B=1 <T>=0"], &["A=1 B=1 <T>=0"]);
    assert_eq!(outcome.errors.len(), 1);
}

#[test]
fn split_by_a_binding_tag_keeps_it() {
    let source = "net n connect [{<#K>} -> {<#K>}] !! <#K>;";
    puts_out(source, &["A=1 <#K>=1"], &["A=1 <#K>=1"]);
}

#[test]
fn feedback_returns_matching_records() {
    let source = r"net n connect [{<N>} -> {<N = N - 1>}] \ {<N>} if <N > 0>;";
    let outcome = puts_out(source, &["<N>=4", "<N>=-1"], &["<N>=0", "<N>=-2"]);
    assert_eq!(outcome.steps, 7); // the feedback twice, the filter four times and once
}

#[test]
fn endless_net_is_an_error() {
    let outcome = run("net n connect [] ** {B};", &["A=1", "B=1"]);
    assert!(outcome.steps > STEPS_MAX);
    assert_eq!(outcome.errors.len(), 2); // its record, and the next, which finds no more steps left
    assert_eq!(outcome.records, []);
}

// Generator of networks.

const CLASSES: [Class; 3] = [Class::Confluent, Class::Ordered, Class::Merging];
const CASES: usize = 200;
/// Bound of the steps of a random case.
const CASE_STEPS_MAX: usize = 100_000;

/// The same cases in each run.
fn some_cases(class: Class) -> &'static [Case] {
    static MADE: LazyLock<[Vec<Case>; CLASSES.len()]> = LazyLock::new(|| {
        CLASSES.map(|class| {
            let (strategy, mut runner) = (cases(class), TestRunner::deterministic());
            let mut made =
                || strategy.new_tree(&mut runner).expect("every choice makes a case").current();
            (0..CASES).map(|_| made()).collect()
        })
    });
    let made = CLASSES.iter().position(|of| *of == class).expect("the list has every class");
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
            case.net.root().visit(&mut |node| kinds.push(kind(node)));
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
fn random_nets_output_records() {
    for class in CLASSES {
        let (mut records, mut kept, mut errors, mut deep) = (0, 0, 0, 0);
        for case in some_cases(class) {
            let outcome = case.outcome();
            records += usize::from(!outcome.records.is_empty());
            kept += usize::from(outcome.kept > 0);
            errors += usize::from(!outcome.errors.is_empty());
            deep += usize::from(outcome.steps > 50 * case.input.len());
        }
        let seen = format!(
            "{class:?}: of {CASES}, {records} put out, {kept} keep, {errors} err, {deep} are deep"
        );
        println!("{seen}");
        assert!(records > CASES * 3 / 4 && deep > CASES / 20, "{seen}");
        assert!(kept > CASES / 50 || class == Class::Confluent, "{seen}");
        // An unroutable record would be an error, so all errors are divisions by zero.
        assert!(errors < CASES / 4 && (errors == 0) == (class == Class::Merging), "{seen}");
    }
}

#[test]
fn random_nets_route_every_record() {
    for class in CLASSES {
        for case in some_cases(class) {
            let errors = case.outcome().errors;
            assert!(
                errors.iter().all(|error| error.contains("division by zero")),
                "{errors:?}\n{case:?}"
            );
        }
    }
}

/// The plan that the checker creates from the source of a case.
fn checked(case: &Case) -> Net {
    let wrong = |diagnostic: &dyn std::fmt::Display| -> ! { panic!("{diagnostic}\n{case:?}") };
    let module = corebeat_snet::parse(&case.source()).unwrap_or_else(|errors| wrong(&errors[0]));
    let checked = corebeat_snet::check(&module, None);
    if let Some(error) =
        checked.diagnostics.iter().find(|remark| remark.severity == Severity::Error)
    {
        wrong(error);
    }
    checked.net.unwrap_or_else(|| wrong(&"there is no net"))
}

#[test]
fn random_nets_as_programs_are_accepted_and_equivalent() {
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
fn random_nets_output_shapes_that_the_checker_infers() {
    for class in CLASSES {
        for case in some_cases(class) {
            let mut case = case.clone();
            let net = checked(&case);
            let (input, output) = (net.input(), net.output());
            // Undeclared labels flow past and join the outputs.
            case.input.retain(|record| input.contains(&record.shape()));
            for record in case.outcome().records {
                assert!(
                    output.contains(&record.shape()),
                    "{record:?} is none of {output:?}\n{case:?}"
                );
            }
        }
    }
}

#[test]
fn random_nets_output_their_declared_type() {
    for class in CLASSES {
        for case in some_cases(class) {
            for record in case.outcome().records {
                let fits =
                    case.net.output().iter().any(|shape| record.shape().is_subtype_of(*shape));
                assert!(fits, "{record:?} has no type of {:?}\n{case:?}", case.net.output());
            }
        }
    }
}

#[test]
fn case_has_the_same_result_in_any_order() {
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
fn case_detects_lost_duplicated_changed_or_reordered_records() {
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
            assert!(case.check(&doubled, errors.len(), kept).is_err(), "duplicated\n{case:?}");
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
                assert_eq!(found, class == Class::Ordered, "reordered\n{case:?}");
                swapped += 1;
            }
        }
        assert!(swapped > 10);
    }
}

/// Sink that stores the outputs of a box.
struct Made(Vec<(usize, Vec<Value>)>);

impl Sink for Made {
    fn put(&mut self, variant: usize, values: &mut [Value]) -> bool {
        self.0.push((variant, values.to_vec()));
        true
    }
}

#[test]
fn box_functions_equal_those_of_the_interpreter() {
    for class in CLASSES {
        for case in &some_cases(class)[..CASES / 4] {
            let bodies = case.bodies();
            let calls = |plan: &BoxPlan, values: &[Value]| {
                let mut made = Made(Vec::new());
                let body = &bodies[&plan.name];
                body.call(&mut values.to_vec(), &mut Out::new(plan, &mut made))
                    .expect("the box outputs its declared variants");
                made.0
            };
            let other = interpret(&case.net, &calls, &case.input, None, STEPS_MAX);
            assert_eq!(
                case.check(&other.records, other.errors.len(), other.kept),
                Ok(()),
                "{case:?}"
            );
        }
    }
}
