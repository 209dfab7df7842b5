//! What the checker accepts, infers and says.

use std::collections::HashMap;

use corebeat_snet::diagnostic::Severity;
use corebeat_snet::plan::{self, Branch, Node, ParallelPlan};
use corebeat_snet::{Checked, Kind, Label, Shape, check, parse};
use proptest::prelude::*;

fn checked(source: &str) -> Checked {
    named(source, None)
}

fn named(source: &str, name: Option<&str>) -> Checked {
    let module = parse(source).unwrap_or_else(|errors| panic!("{source}\ndoes not parse: {errors:?}"));
    let checked = check(&module, name);
    let wrong = checked.diagnostics.iter().any(|d| d.severity == Severity::Error);
    assert_eq!(checked.net.is_none(), wrong, "there is a net exactly if there is no error");
    for diagnostic in &checked.diagnostics {
        assert!(!diagnostic.message.contains('\n') && diagnostic.help.is_some(), "{diagnostic:?}");
        for (span, label) in &diagnostic.labels {
            assert!(source.get(span.start..span.end).is_some() && !label.is_empty(), "{diagnostic:?}");
        }
    }
    checked
}

/// All that is said: how bad it is, what and what to do, and the text of each place with what is seen there.
fn said(source: &str) -> Vec<String> {
    let checked = checked(source);
    checked
        .diagnostics
        .iter()
        .map(|d| {
            let places: Vec<String> = d
                .labels
                .iter()
                .map(|(span, label)| format!("{}: {label}", &source[span.start..span.end]))
                .collect();
            format!("{:?}: {d} [{}]", d.severity, places.join(" / "))
        })
        .collect()
}

/// The net of a program about which there is nothing to say.
fn net(source: &str) -> plan::Net {
    assert_eq!(said(source), Vec::<String>::new(), "{source}");
    checked(source).net.expect("nothing is wrong with it")
}

/// A set of labels as `A <T> <#B>`.
fn shape(labels: &str) -> Shape {
    Shape::new(labels.split_whitespace().map(|label| {
        let name = label.trim_matches(['<', '#', '>']);
        let kind = match label {
            _ if label.starts_with("<#") => Kind::BindingTag,
            _ if label.starts_with('<') => Kind::Tag,
            _ => Kind::Field,
        };
        Label::new(kind, name).unwrap()
    }))
    .unwrap()
}

/// Whether shapes are these, in any order.
#[track_caller]
fn assert_shapes(shapes: &[Shape], expected: &[&str]) {
    let mut found: Vec<u32> = shapes.iter().map(|s| s.number()).collect();
    let mut wanted: Vec<u32> = expected.iter().map(|s| shape(s).number()).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted, "{shapes:?} are not {expected:?}");
}

#[track_caller]
fn assert_types(source: &str, input: &[&str], output: &[&str]) {
    let net = net(source);
    assert_shapes(net.input(), input);
    assert_shapes(net.output(), output);
}

#[track_caller]
fn assert_said(source: &str, expected: &[&str]) {
    assert_eq!(said(source), expected, "{source}");
}

// ---- names

#[test]
fn name_of_a_net_chooses_it() {
    let source = "net one connect [{A} -> {}]; net two connect [{B} -> {}];";
    assert_eq!(named(source, Some("one")).net.unwrap().name(), "one");
    assert_eq!(named(source, Some("two")).net.unwrap().name(), "two");
    assert_eq!(named(source, Some("three")).net.unwrap().name(), "two");
    assert_eq!(named(source, None).net.unwrap().name(), "two");
    // An inner net is not meant.
    let source = "net one { net two connect []; } connect two; net three connect one;";
    assert_eq!(named(source, Some("two")).net.unwrap().name(), "three");
}

#[test]
fn program_without_net_is_refused() {
    assert_said(
        "box a ((A) -> (B));",
        &[
            "Error: there is no net in this program; write one: `net main connect ...;` [: here it begins]",
            "Warning: box `a` is never used; connect it, or take it out [a: defined here]",
        ],
    );
    let nothing = check(&corebeat_snet::ast::Module::default(), None);
    assert!(nothing.net.is_none() && nothing.diagnostics.len() == 1);
}

#[test]
fn name_is_looked_up_innermost_first() {
    let source = "
        box a ((A) -> (B));
        net outer {
            net inner { box a ((C) -> (D)); } connect a;
        } connect a .. inner;
    ";
    let net = net(source);
    assert_shapes(net.input(), &["A C"]);
    assert_eq!(net.boxes().len(), 2);
    assert_eq!(net.boxes()[0].to_string(), "a ((A) -> (B))");
    assert_eq!(net.boxes()[1].to_string(), "a ((C) -> (D))");
}

#[test]
fn name_may_be_defined_later_in_its_scope() {
    assert_types("net n { net b connect c; box c ((A) -> (B)); } connect b;", &["A"], &["B"]);
}

#[test]
fn unknown_name_is_refused_with_the_nearest() {
    assert_said(
        "net n { box compute ((A) -> (B)); } connect comptue .. compute .. comptue .. xyz;",
        &[
            "Error: there is no box or net `comptue`; did you mean `compute`? [comptue: not known here]",
            "Error: there is no box or net `xyz`; define it: `box xyz ((...) -> (...));`, or a net [xyz: not known here]",
        ],
    );
    assert_said(
        "type point = {x, y}; net n (pont -> ...) connect [];",
        &["Error: there is no type `pont`; did you mean `point`? [pont: not known here]"],
    );
    assert_said(
        "net n (whatever) connect [];",
        &[
            "Error: there is no typesig `whatever`; define it: `typesig whatever = ...;` [whatever: not known here]",
        ],
    );
}

#[test]
fn inner_name_is_not_known_outside() {
    assert_eq!(said("net n { net b { box c ((A) -> (B)); } connect c; } connect b .. c;").len(), 1);
}

#[test]
fn double_name_in_a_scope_is_refused() {
    assert_said(
        "box a ((A) -> (B)); net n connect a; net a connect [];",
        &["Error: `a` is defined twice; give one of them another name [a: here again / a: first here]"],
    );
    assert_eq!(said("type t = {A}; type t = {B}; typesig t = t -> t; net n (t) connect [];").len(), 1);
}

#[test]
fn net_within_itself_is_refused() {
    assert_said(
        "net n { net b connect c; net c connect b; } connect b;",
        &[
            "Error: net `b` is used within itself; repeat with a star, `a * {...}`, or with feedback, `a \\ {...}` \
         [b: used here / b: defined here]",
        ],
    );
    assert_eq!(said("net n connect [] .. n;").len(), 1);
}

#[test]
fn type_through_itself_is_refused() {
    assert_said(
        "type a = b; type b = {A} | a; net n (a -> a) connect [];",
        &[
            "Error: type `a` is defined through itself; write out what it stands for [a: used here / a: defined here]",
        ],
    );
    assert_eq!(said("typesig s = {A} -> {B}, s; net n (s) connect [];").len(), 1);
}

#[test]
fn unused_definition_is_told() {
    assert_said(
        "net n { box a ((A) -> (B)); net b connect []; } connect [];",
        &[
            "Warning: box `a` is never used; connect it, or take it out [a: defined here]",
            "Warning: net `b` is never used; connect it, or take it out [b: defined here]",
        ],
    );
}

// ---- definitions for themselves

#[test]
fn label_twice_in_a_box_is_refused() {
    assert_said(
        "box a ((A, <A>, A) -> (B) | (<C>, <C>)); net n connect a;",
        &["Error: A stands twice in the input of box `a`; take one of them out, or give it another name \
         [A: again here / A: first here]"],
    );
    assert_said(
        "box a ((A) -> (B) | (<C>, <C>)); net n connect a;",
        &["Error: <C> stands twice in output 2 of box `a`; take one of them out, or give it another name \
         [C: again here / C: first here]"],
    );
}

#[test]
fn binding_tag_that_should_pass_is_told() {
    assert_said(
        "box a ((A, <#B> =) -> (A)); net n connect a;",
        &[
            "Warning: `<#B> =`: a binding tag never flows past a box; put it out as well, or leave the `=` out \
         [B: does not pass]",
        ],
    );
}

#[test]
fn label_twice_in_a_filter_output_is_refused() {
    assert_said(
        "net n connect [{A, B} -> {A, A = B}];",
        &[
            "Error: A stands twice in one output of the filter; take one of them out, or give it another name \
         [A: again here / A: first here]",
        ],
    );
    net("net n connect [{A} -> {A}; {A}];");
    net("net n connect [{A, <A>} -> {A, <A>}];");
}

#[test]
fn filter_field_outside_of_its_pattern_is_refused() {
    assert_said(
        "net n connect [{A} -> {B}; {C = D}];",
        &[
            "Error: this copies B, which the pattern {A} does not have; let the pattern take it: {A, B} \
         [B: not in the pattern / {A}: the pattern]",
            "Error: this copies D, which the pattern {A} does not have; let the pattern take it: {A, D} \
         [D: not in the pattern / {A}: the pattern]",
        ],
    );
}

#[test]
fn expression_over_a_tag_outside_of_its_pattern_is_refused() {
    let outside = "Error: this reads <T>, which the pattern {A} does not have; let the pattern take it: {A, <T>} \
                   [T: not in the pattern / {A}: the pattern]";
    assert_said("net n connect [{A} -> {<X = T + 1>}];", &[outside]);
    assert_said("net n connect [{A} -> if <T == 1> then {A} else {}];", &[outside]);
    assert_said("net n connect [] * {A} if <T > 3>;", &[outside]);
    assert_said("net n connect [| {A} if <T == 3>, {B} |];", &[outside]);
    net("net n connect [{<T>} -> {<X = T>, <Y>}];");
}

#[test]
fn filter_keeps_what_it_says() {
    let net =
        net("net n connect [{A, <T>} -> if <T % 2 == 0> then {B = A, <T>, <U>}; {<T = -T * (2 + 3)>} else];");
    let Node::Filter(filter) = net.root() else { panic!("{net:?}") };
    assert_eq!(
        filter.text,
        "[{A, <T>} -> if <T % 2 == 0> then {B = A, <T>, <U>}; {<T = -T * (2 + 3)>} else]"
    );
    assert_eq!(filter.pattern, shape("A <T>"));
    assert_eq!(filter.cases.len(), 2);
    let (condition, outputs) = &filter.cases[0];
    assert!(condition.is_some() && filter.cases[1].0.is_none() && filter.cases[1].1.is_empty());
    let label = |text: &str| shape(text).labels()[0];
    assert_eq!(
        outputs[0].entries,
        [
            (label("B"), plan::Source::Label(label("A"))),
            (label("<T>"), plan::Source::Label(label("<T>"))),
            (label("<U>"), plan::Source::Value(corebeat_snet::expression::Expression::Number(0))),
        ]
    );
    assert!(matches!(outputs[1].entries[..], [(_, plan::Source::Value(_))]));
}

#[test]
fn filter_text_reads_as_the_filter() {
    for text in [
        "[{} ->]",
        "[{A} -> {A, B = A}; {}]",
        "[{<T>, <#B>} -> if <T == 1 && #B != 2> then {<T>} else if <T > 3 ? 1 : 0> then else {<#B = 4>}]",
        "[{<a>, <b>} -> {<c = a - (b - a)>, <d = (a - b) - a>, <e = a * (b + 1) % 2>, <f = !(a || b) && abs a < 3>}]",
        "[{<a>, <b>} -> {<c = a min b + 1>, <d = (a + 1) max b>, <e = (a ? b : 1) ? 2 : a ? 3 : 4>, <f = -(-a)>}]",
    ] {
        let written = |text: &str| match net(&format!("net n connect {text};")).root() {
            Node::Filter(filter) => (filter.text.clone(), format!("{:?}", filter.cases)),
            other => panic!("{other:?}"),
        };
        let (first, cases) = written(text);
        assert_eq!(written(&first), (first.clone(), cases), "{text}");
    }
}

#[test]
fn constant_division_by_zero_is_told() {
    assert_said(
        "net n connect [{<T>} -> {<T = T / (3 - 3)>}];",
        &[
            "Warning: this divides by 0, always; a record that gets here ends with an error; divide by something else \
         [(3 - 3): is 0]",
        ],
    );
    assert_eq!(said("net n connect [] * {<T>} if <T % 0 == 1>;").len(), 1);
    net("net n connect [{<T>} -> {<T = 1 / T>}];");
}

// ---- types

#[test]
fn serial_takes_what_flows_past_its_first_part() {
    assert_types("box a ((A) -> (B)); box b ((B, C) -> (D)); net n connect a .. b;", &["A C"], &["D"]);
    assert_types(
        "box a ((A) -> (B) | (C)); box b ((B, X) -> ()); box c ((C, Y) -> ()); net n connect a .. (b | c);",
        &["A X Y"],
        &["X", "Y"],
    );
}

#[test]
fn label_marked_to_pass_flows_past_its_box() {
    assert_types("box a ((A =) -> (B)); box b ((A, B) -> (C)); net n connect a .. b;", &["A"], &["C"]);
}

#[test]
fn output_that_lacks_what_was_consumed_is_refused() {
    assert_said(
        "box a ((A) -> (B)); box b ((A, B) -> (C)); net n connect a .. b;",
        &[
            "Error: box `b` cannot take {B}: it has no A; put A out before, or let such records past: `(... | [])` \
         [b: takes {A, B} / a: {B} comes from here]",
        ],
    );
    assert_said(
        "net n connect [{A} -> {B = A}] .. [{A, <T>} -> {A}];",
        &[
            "Error: filter `[{A, <T>} -> {A}]` cannot take {B, <T>}: it has no A; put A out before, or let such records \
         past: `(... | [])` [[{A, <T>} -> {A}]: takes {A, <T>} / [{A} -> {B = A}]: {B, <T>} comes from here]",
        ],
    );
}

#[test]
fn one_bad_output_of_a_box_is_refused() {
    assert_eq!(said("box a ((A) -> (B) | (C)); net n connect a .. [{B} -> {}];"), Vec::<String>::new());
    assert_said(
        "box a ((A, B) -> (B) | (C)); net n connect a .. [{B} -> {D = B}];",
        &[
            "Error: filter `[{B} -> {D = B}]` cannot take {C}: it has no B; put B out before, or let such records past: \
         `(... | [])` [[{B} -> {D = B}]: takes {B} / a: {C} comes from here]",
        ],
    );
}

#[test]
fn filter_that_takes_away_what_is_not_there_is_told() {
    let source = "box a ((A, B) -> (B) | (C)); net n connect a .. [{B} -> {}];";
    assert_said(
        source,
        &[
            "Warning: {C} comes to filter `[{B} -> {}]` without B; nothing is taken away then; let such records past, if \
         that is meant: `(... | [])` [[{B} -> {}]: takes away B / a: {C} comes from here]",
        ],
    );
    let net = checked(source).net.unwrap();
    assert_shapes(net.input(), &["A B"]);
    assert_shapes(net.output(), &["", "C"]);
    // In a loop, where it is there the first time only.
    let source = "net n ({A, <C>} -> {B}) connect [{A, <C>} -> {A}; {B = A}] \\ {A};";
    assert!(said(source)[0].starts_with("Warning: {A} comes to filter"));
    assert_shapes(checked(source).net.unwrap().input(), &["A <C>"]);
    // What an output or a condition uses must be there, and binding tags.
    for filter in [
        "[{B, D} -> {}; {B}]",
        "[{B, D} -> {E = B}]",
        "[{<T>} -> {<S = 1 + T>}]",
        "[{<T>} -> if <T> then {} else ]",
        "[{<#K>} -> {}]",
    ] {
        let said =
            said(&format!("box a ((A, B, <T>) -> (D)); net n ({{A, B, <T>}} -> ...) connect a .. {filter};"));
        assert!(matches!(&said[..], [one] if one.starts_with("Error: filter")), "{filter}: {said:?}");
    }
}

#[test]
fn binding_tag_does_not_flow_past() {
    assert_types("box a ((A, <#B>) -> (A, <#B>)); net n connect a ! <#B>;", &["A <#B>"], &["A <#B>"]);
    assert_said(
        "box a ((A) -> (A)); net n connect a ! <#B>;",
        &[
            "Error: box `a` cannot take {A, <#B>}: it has <#B> besides; name <#B> here: a binding tag never flows past \
         [a: takes {A} / n: {A, <#B>} comes from here]",
        ],
    );
    assert_types("box a ((A, <#B>) -> (A)); net n connect a;", &["A <#B>"], &["A"]);
    assert_said(
        "box a ((A) -> (B)); net n connect a .. [{B, <#C>} -> {}];",
        &[
            "Error: filter `[{B, <#C>} -> {}]` cannot take {B}: it has no <#C>; put <#C> out before, or let such records \
         past: `(... | [])` [[{B, <#C>} -> {}]: takes {B, <#C>} / a: {B} comes from here]",
        ],
    );
    assert_said(
        "box a ((A) -> (B, <#C>)); net n connect a .. ([] | [{B} -> {}]);",
        &[
            "Error: no branch takes {B, <#C>}; name <#C> here: a binding tag never flows past, or add a branch for such \
         records [([] | [{B} -> {}]): takes {} | {B} / a: {B, <#C>} comes from here]",
        ],
    );
}

#[test]
fn parallel_takes_what_its_branches_take() {
    let net = net("box a ((A) -> (X)); box b ((A, B) -> (Y)); net n connect a | b | [];");
    assert_shapes(net.input(), &["A", "A B", ""]);
    assert_shapes(net.output(), &["X", "Y", ""]);
    let Node::Parallel(parallel) = net.root() else { panic!("{net:?}") };
    assert_eq!(parallel.branches.len(), 3);
    assert_shapes(&parallel.branches[1].accepts, &["A B"]);
    assert_eq!(parallel.branch(shape("A B C")), Some(1));
}

#[test]
fn special_variant_of_what_follows_is_kept() {
    // A record with <D> takes the second branch; so what is before takes it as a variant of its own.
    assert_types(
        "box a ((A) -> (B)); net n connect a .. ([] | [{<D>, B} -> {}]);",
        &["A", "A <D>"],
        &["B", ""],
    );
}

#[test]
fn star_takes_what_goes_in_and_what_leaves() {
    assert_types("box a ((A, <n>) -> (A, <n>) | (B)); net n connect a * {B};", &["A <n>", "B"], &["B"]);
    // A guard may hold the record back, and then it must fit what is in the star.
    assert_types("net n connect [{A, <n>} -> {A, <n = n + 1>}] * {<n>} if <n > 3>;", &["A <n>"], &["A <n>"]);
}

#[test]
fn star_that_cannot_take_its_own_output_is_refused() {
    assert_said(
        "box a ((A, K) -> (A) | (B)); net n connect a * {B};",
        &[
            "Error: box `a` cannot take {A}: it has no K; put K out before, or let such records past: `(... | [])` \
         [a: takes {A, K} / a: {A} comes from here]",
        ],
    );
}

#[test]
fn split_needs_its_tag() {
    assert_types("box a ((A) -> (B)); net n connect a ! <T>;", &["A <T>"], &["B <T>"]);
    assert_said(
        "box a ((A, <T>) -> (A)); box b ((A) -> (B)); net n connect a .. b ! <T>;",
        &["Error: this split cannot take {A}: it has no <T>; put <T> out before, or let such records past: \
         `(... ! <T> | [])` [b ! <T>: goes by the value of <T> / a: {A} comes from here]"],
    );
}

#[test]
fn feedback_takes_its_own_output_again() {
    assert_types("box a ((A, <n>) -> (A, <n>) | (B)); net n connect a \\ {A, <n>};", &["A <n>"], &["B"]);
    assert_types("net n connect [{<T>} -> {<T = T - 1>}] \\ {<T>} if <T > 0>;", &["<T>"], &["<T>"]);
    assert_eq!(said("box a ((A, K) -> (A) | (B)); net n connect a \\ {A};").len(), 1);
}

#[test]
fn identity_and_place_change_no_type() {
    assert_types("box a ((A) -> (B)); net n connect [] .. a@1 .. []@2;", &["A"], &["B"]);
}

#[test]
fn initialiser_takes_no_record() {
    assert_types("box i (-> (A)); net n connect i;", &[], &["A"]);
    assert_types("box i (-> (A)); box a ((A) -> (B)); net n connect i .. a;", &[], &["B"]);
    assert_types("box i (-> (<X>)); net n connect i | [];", &[""], &["<X>", ""]);
    assert_said(
        "box i (-> (A)); box a ((A) -> (B)); net n connect a .. i;",
        &[
            "Error: box `i` cannot take {B}: it takes no records; put it beside what they go to: `(... | ...)` \
         [i: called once, without a record / a: {B} comes from here]",
        ],
    );
    assert_eq!(said("box i (-> (A)); box b ((B) -> ()); net n connect i .. b;").len(), 1);
}

// ---- declared types

#[test]
fn declared_input_is_what_a_net_takes() {
    assert_types(
        "box a ((A) -> (B)); net n ({A, C} | {A, D} -> ...) connect a;",
        &["A C", "A D"],
        &["B C", "B D"],
    );
    assert_said(
        "box a ((A) -> (B)); net n ({C} -> {B}) connect a;",
        &[
            "Error: box `a` cannot take {C}: it has no A; put A out before, or let such records past: `(... | [])` \
         [a: takes {A} / {C}: {C} comes from here]",
        ],
    );
}

#[test]
fn undeclared_output_is_told() {
    assert_said(
        "box a ((A) -> (B) | (C)); net n ({A} -> {B}) connect a;",
        &[
            "Warning: net `n` puts out {C}, which it does not declare; declare it as well, or make it fit before the end \
         [{A} -> {B}: it declares {B} / a: {C} comes from here]",
        ],
    );
    // More labels than declared are fine, other binding tags are not.
    net("box a ((A) -> (B, C)); net n ({A} -> {B}) connect a;");
    assert_eq!(said("box a ((A) -> (B, <#C>)); net n ({A} -> {B}) connect a;").len(), 1);
}

#[test]
fn each_mapping_holds_for_itself() {
    let source = "box a ((A) -> (C)); box b ((B) -> (D)); net n ({A} -> {D}, {B} -> {D}) connect a | b;";
    assert_said(
        source,
        &[
            "Warning: net `n` puts out {C}, which it does not declare; declare it as well, or make it fit before the end \
         [{A} -> {D}: it declares {D} / a: {C} comes from here]",
        ],
    );
    net("box a ((A) -> (C)); box b ((B) -> (D)); net n ({A} -> {C}, {B} -> {D}) connect a | b;");
}

#[test]
fn inner_net_holds_what_it_declares_though_nobody_sends_it() {
    let source = "
        box a ((A) -> (B)); box c ((C) -> (D));
        net n { net m ({A} -> {B}, {C} -> {E}) connect a | c; } connect a .. [{B} -> {A = B}] .. m;
    ";
    assert_eq!(said(source).len(), 1);
}

#[test]
fn record_that_a_net_does_not_declare_is_refused() {
    assert_said(
        "box a ((A, C) -> (B)); net n { net m ({B, C} -> ...) connect []; } connect a .. m;",
        &[
            "Error: net `m` cannot take {B}: it has no C; put C out before, or let such records past: `(... | [])` \
         [m: takes {B, C} / a: {B} comes from here]",
        ],
    );
}

#[test]
fn named_types_and_signatures_stand_for_what_they_say() {
    assert_types(
        "type point = {x, y}; type shape = point | {r}; typesig move = shape -> shape, {<stop>} -> ;
         net n (move) connect [{<stop>} ->] | [];",
        &["x y", "r", "<stop>"],
        &["x y", "r"],
    );
    assert_types("typesig s = {A} -> ...; net n (s) connect [{A} -> {B = A}];", &["A"], &["B"]);
    assert_types("net n (-> {A}) { box i (-> (A)); } connect i;", &[], &["A"]);
}

// ---- flow

#[test]
fn record_that_no_branch_takes_is_refused() {
    assert_said(
        "box a ((A, B) -> (B) | (C)); net n connect a .. ([{B} -> {}] | [{A} -> {}]);",
        &["Error: no branch takes {C}; add a branch for such records; `[]` takes all \
           [([{B} -> {}] | [{A} -> {}]): takes {B} | {A} / a: {C} comes from here]"],
    );
    assert_said(
        "box a ((A) -> (B)); net n ({A} -> ...) connect a .. ([{B, X} -> {}] | [{Y} -> {}]);",
        &["Error: no branch takes {B}; put X out before, or add a branch for such records; `[]` takes all \
           [([{B, X} -> {}] | [{Y} -> {}]): takes {B, X} | {Y} / a: {B} comes from here]"],
    );
}

#[test]
fn branch_that_draws_with_an_earlier_one_is_told() {
    assert_said(
        "box a ((A) -> (X)); box b ((A) -> (Y)); net n connect a | b;",
        &["Warning: no record gets to this branch; take one of them out, or let it take more \
         [b: it takes {A} / a: {A} goes here]"],
    );
}

#[test]
fn branch_whose_label_was_consumed_is_told() {
    assert_said(
        "box a ((A) -> (B)); box b ((B) -> (C)); box c ((A, B) -> (D)); net n connect a .. (b | c);",
        &[
            "Warning: no record gets to this branch; records that get here have no A: take the branch out, or let them \
         bring it (a net that declares what it takes declares that too) [c: it takes {A, B} / b: {B} goes here]",
        ],
    );
}

#[test]
fn branch_for_what_is_not_declared_is_told() {
    let source = |signature: &str| {
        format!("box a ((A) -> (B)); net n {signature} connect a .. ([] | [{{<D>, B}} -> {{}}]);")
    };
    assert_eq!(said(&source("({A} -> ...)")).len(), 1);
    net(&source("({A} | {A, <D>} -> ...)"));
    // Where nothing is declared, records may bring more.
    net(&source(""));
    net("box a ((A) -> (X)); box b ((X, Y) -> ()); box c ((Z) -> ()); net n connect a .. (b | c);");
}

#[test]
fn branch_in_a_net_used_twice_is_reached_from_either() {
    net("
        box a ((A) -> (B)); box b ((B) -> (A));
        net n { net m connect a | b; } connect [{A} -> {A}] .. m .. m;
    ");
}

#[test]
fn synchrocell_that_cannot_fire_is_told() {
    assert_said(
        "box a ((A) -> (B)); net n ({A} -> ...) connect a .. [| {B}, {A} |];",
        &["Warning: this synchrocell can never fire; change the pattern, or let such records come \
         [{A}: no record that gets here fits {A} / [| {B}, {A} |]: {B} gets here]"],
    );
    assert_types("net n connect [| {A}, {B} |];", &["A", "B"], &["A", "B", "A B"]);
}

#[test]
fn synchrocell_keeps_the_excess_of_its_first_pattern_only() {
    assert_types(
        "net n ({A, X} | {B, Y} -> ...) connect [| {A}, {B} |] * {A, B};",
        &["A X", "B Y"],
        &["A B X"],
    );
    assert_types(
        "net n connect [| {A}, {B} |] * {A, B} .. [{A, B, X} -> {X}];",
        &["A X", "B", "A B X"],
        &["X"],
    );
}

#[test]
fn what_may_pass_a_synchrocell_is_a_warning_at_most() {
    assert_said(
        "box a ((A, B) -> (C)); net n connect [| {A}, {B} |] .. a;",
        &[
            "Warning: box `a` could not take {A}: it has no B; a synchrocell lets pass what comes when its place is taken, \
         and all once it has fired; if more records come, put it into a star: `[|{A}, {B}|] * {A, B}` \
         [a: takes {A, B} / n: {A} comes from here]",
        ],
    );
    assert_eq!(said("net n ({A} | {B} -> {A, B}) connect [| {A}, {B} |];").len(), 1);
    net("box a ((A, B) -> (C)); net n ({A} | {B} -> {C}) connect [| {A}, {B} |] * {A, B} .. a;");
}

#[test]
fn records_of_a_synchrocell_go_on_merged_and_as_they_are() {
    assert_types(
        "net n {
            net merge connect [| {state}, {inval} |];
            net bypass connect [];
            box add ((state, inval) -> (state) | (outval));
        } connect (merge .. (bypass | add)) * {outval};",
        &["state", "inval", "outval"],
        &["outval"],
    );
}

#[test]
fn star_that_nothing_leaves_is_told() {
    assert_said(
        "box a ((A) -> (A)); net n connect a * {B};",
        &[
            "Warning: nothing that is in this star ever leaves it; let what is in it put out {B}, or let others leave \
         [a * {B}: {A} goes in / {B}: nothing that comes out of it fits]",
        ],
    );
}

#[test]
fn observers_in_metadata_are_told_with_their_options() {
    let metadata = "<metadata><net name='n/m'><observer type='before' interactive='true'/><observer type='after' file='seen'/></net>\
                    <box name='a'><observer address='here' port='99'/></box></metadata>";
    let options = "--observe m:before --observe m:after=seen --observe a=here:99";
    let told = format!(
        "Warning: observers in metadata are not put up; observe with `corebeat net run {options}` [{metadata}: asked for here]"
    );
    assert_said(&format!("{metadata} box a ((A) -> (A)); net n connect a;"), &[&told]);
    assert_said(&format!("net n {{ {metadata} box a ((A) -> (A)); }} connect a;"), &[&told]);
    assert_said("<metadata><net name='n'><flags>observer</flags></net></metadata> net n connect [];", &[]);
}

#[test]
fn feedback_that_nothing_leaves_is_told() {
    let told = "Warning: nothing ever leaves this feedback; give what goes in again a condition, or let it put out others ";
    assert_said(
        "box a ((A) -> (A)); net n connect a \\ {A};",
        &[&format!("{told}[a \\ {{A}}: {{A}} comes out, and goes in again / {{A}}: fits always]")],
    );
    assert_said(
        "box a ((A) -> (A) | (A, B)); net n connect a \\ {B}, {A};",
        &[&format!(
            "{told}[a \\ {{B}}, {{A}}: {{A}} and {{A, B}} comes out, and goes in again / {{B}}: fits always / {{A}}: fits always]"
        )],
    );
}

#[test]
fn feedback_that_something_may_leave_is_sound() {
    for sound in [
        "box a ((A) -> (A) | (B)); net n connect a \\ {A};",
        "box a ((A) -> (A)); net n connect a \\ {B};",
        "net n connect [{<n>} -> {<n = n - 1>}] \\ {<n>} if <n > 0>;",
        "box a ((A) -> (A)); box b ((A) -> (A) | (B)); net n connect (a .. b) \\ {A};",
    ] {
        assert_said(sound, &[]);
    }
}

#[test]
fn guard_may_hold_or_not() {
    assert_types(
        "net n connect [{<T>} -> if <T == 1> then {<S = T>} else {<T>}] .. ([{<S>} -> {A}] | [{<T>} -> {B}]);"
            .replace("{A}", "{<a>}")
            .replace("{B}", "{<b>}")
            .as_str(),
        &["<T>"],
        &["<a>", "<b>"],
    );
    assert_eq!(said("box a ((A, <n>) -> (<n>)); net n connect a * {<n>} if <n > 3>;").len(), 1);
}

#[test]
fn warnings_wait_until_errors_are_gone() {
    let source = "box a ((A) -> (B)); net n connect a .. ([{A} -> {}] | [{A} -> {}]);";
    assert!(said(source).iter().all(|d| d.starts_with("Error")), "{:?}", said(source));
}

// ---- programs of the kind that are out there

#[test]
fn programs_in_use_are_accepted() {
    // A factorial: two halves of a record go apart and are merged again.
    assert_types(
        "net factorial {
            box leq1 ((x) -> (x, p));
            box condif ((p) -> (<T>) | (<F>));
            net compute { box sub ((x) -> (xx)); box mult ((xm, rm) -> (rrm)); }
            connect [{<F>, x, r} -> {xm = x, rm = r}; {x = x}] .. (sub | mult)
                .. ([| {xx}, {rrm} |] * {xx, rrm}) .. [{xx, rrm} -> {x = xx, r = rrm}];
        } connect (leq1 .. condif .. ([{<T>} -> {<stop>}] | compute)) * {<stop>};",
        &["x r", "<stop>"],
        &["x r <stop>", "<stop>"],
    );
    // A picture in tiles: split by node, merge tile by tile.
    assert_types(
        "net picture {
            box plan ((<tasks>) -> (<tasks>, <num>) | (<tasks>, <num>, <first>));
            box tile ((params, <tasks>, <num>) -> (plane, <tasks>, <num>));
            box time ((plane) -> (ts)); box value ((plane) -> (vs)); box norm ((ts, vs) -> (nvs));
            net merge ({nvs, <tasks>, <num>, <first>} | {nvs, <tasks>, <num>} -> {nvs, <done>}) {
                box init ((nvs, <tasks>, <num>, <first>) -> (res, tracker) | (nvs, <done>));
                box add ((nvs, <tasks>, <num>, res, tracker) -> (res, tracker) | (nvs, <done>));
            } connect (init | []) .. ([| {res, tracker}, {nvs, <tasks>, <num>} |] .. (add | [])) ** {<done>};
        } connect plan .. [{<num>, <nodes>} -> {<num>, <at = num % nodes>}]
            .. (tile .. [{plane} -> {plane, <T>}; {plane, <V>}]
                .. (([{<T>} -> {}] .. time) | ([{<V>} -> {}] .. value)) .. [| {ts}, {vs} |] * {ts, vs} .. norm) !!@ <at>
            .. merge .. [{nvs} -> {}];",
        &["params <tasks> <nodes>", "params <tasks> <nodes> <first>"],
        &["<done> <at>"],
    );
    // Rounds of a cipher: halves exchanged in synchrocells within stars.
    assert_types(
        "net cipher ({Key, Pt} | {Key, Pt, <Decipher>} -> {Ct}) {
            box keys ((Key) -> (Keys)); box invert ((Keys) -> (Keys));
            box begin ((Pt) -> (L, R)); box end ((L, R) -> (Ct)); box xor ((a, b) -> (c));
            net round {
                box mix ((R, Keys, <C>) -> (Rf, Keys, <C>));
            } connect [{L, R, Keys, <C>} -> {L, R, Keys, <C = C + 1>}; {Rn = R}]
                .. ([{Rn} -> {L = Rn}]
                    | ([{L, R, Keys, <C>} -> {L}; {R, Keys, <C>}] .. ([{L} -> {L}] | mix)
                        .. [| {L}, {Keys, Rf, <C>} |] * {L, Keys, Rf, <C>}
                        .. [{L, Rf} -> {a = L, b = Rf}] .. xor .. [{c} -> {R = c}]))
                .. [| {L}, {R, Keys, <C>} |] * {L, R, Keys, <C>};
        } connect keys .. ([] | ([{<Decipher>} -> {}] .. invert)) .. begin .. [{L, R, Keys} -> {L, R, Keys, <C = 0>}]
            .. round * {<C>} if <C == 16> .. end .. [{Keys, <C>} -> {}];",
        &["Key Pt", "Key Pt <Decipher>"],
        &["Ct"],
    );
    // Numbers through feedback, pairs of them merged by a tag.
    assert_types(
        "net fibonacci ({<N>} -> {<X>}) {
            net recur {
                net leq1 connect [{<N>} -> if <N <= 1> then {<N>, <T>} else {<N>, <F>}];
                net one connect [{<N>, <T>} -> {<R = N>}];
                net more connect [{<N>, <F>, <M>} -> {<N = N - 1>, <M = 2 * M + 1>}; {<N = N - 2>, <M = 2 * M>}];
            } connect (leq1 .. (more | one)) * {<R>};
            net merge ({<M>, <R>} -> {<X>}) {
                net rewrite connect [{<M>, <R>} -> if <M < 2> then {<X = R>}
                    else if <M % 2 == 0> then {<M = M / 2>, <V = R>} else {<M = M / 2>, <W = R>}];
                net pair { net cell connect [| {<V>}, {<W>} |]; }
                connect cell * {<V>, <W>} ! <M> .. [{<V>, <W>} -> {<R = V + W>}];
            } connect (rewrite .. ([{<X>} -> {<X>}] | pair)) \\ {<M>};
        } connect [{<N>} -> {<N>, <M = 1>}] .. recur .. merge;",
        &["<N>"],
        &["<X>"],
    );
    // An initialiser that feeds a synchrocell.
    assert_types(
        "net show {
            box open (-> (screen)); box draw ((screen, image) -> (screen) | (<end>));
        } connect (open | []) .. ([| {image}, {screen} |] .. (draw | [])) * {<end>};",
        &["image", "screen", "<end>"],
        &["<end>"],
    );
    // Guards that count, within a split that is placed.
    assert_types(
        "net count {
            net s connect ([{<S>} -> if <S < 3> then {<S = S + 1>} else {<Sdone = 0>}]
                | ([{<Sdone>} -> {<Sdone = 1>}]@2)) * {<Sdone>} if <Sdone == 1>;
            net t connect ([{<T>} -> if <T < 4> then {<T = T + 1>} else {<Tdone = 0>}]
                | ([{<Tdone>} -> {<Tdone = 1>}]@1)) * {<Tdone>} if <Tdone == 1>;
            net both connect [{<T>} -> if <T == 1> then {<S = T>} else {<T>}] .. (s | t);
        } connect both !@ <T>;",
        &["<T>"],
        &["<Sdone>", "<Tdone>"],
    );
    // A state in feedback, beside what passes.
    assert_types(
        "net states ({state} | {trigger} | {inval} -> {outval}) {
            net single ({state} | {inval} -> {outval} | {trigger}) {
                box compute ((state, inval) -> (outval) | (state) | (trigger));
            } connect ([| {state}, {inval} |] * {state, inval} .. compute) \\ {state}, {inval};
        } connect ((([| {state}, {trigger} |] * {state, trigger} .. [{trigger} -> {}]) | []) .. single)
            \\ {state}, {trigger}, {inval};",
        &["state", "trigger", "inval"],
        &["outval"],
    );
    // One cell after the other: what is nothing to one passes to the next.
    assert_types(
        "net cells connect [| {A}, {B} |] .. [| {C}, {D} |];",
        &["A", "B", "C", "D"],
        &["A", "B", "C", "D", "A B", "C D"],
    );
}

// ---- plans

#[test]
fn plan_is_flat_but_for_nets() {
    let net = net("
        box a ((A) -> (A)); box b ((A) -> (A));
        net n { net m connect a .. b; } connect (a .. (b .. a)) .. m .. (b .. m)@3;
    ");
    let Node::Serial(parts) = net.root() else { panic!("{net:?}") };
    assert_eq!(parts.len(), 5);
    let Node::Net(name, inside) = &parts[3] else { panic!("{net:?}") };
    assert_eq!(&**name, "m");
    assert!(matches!(&**inside, Node::Serial(parts) if parts.len() == 2));
    let Node::Place(placed, 3) = &parts[4] else { panic!("{net:?}") };
    let Node::Serial(placed) = &**placed else { panic!("{net:?}") };
    assert!(
        matches!(&placed[1], Node::Net(_, again) if std::sync::Arc::ptr_eq(again, inside)),
        "nets are shared"
    );
    assert_eq!(net.boxes().len(), 2);
}

#[test]
fn parallels_of_one_kind_are_flat() {
    let net = net("box a ((A) -> (X)); box b ((B) -> (X)); box c ((C) -> (X)); box d ((D) -> (X));
                   net n connect (a | (b | (c || d)));");
    let Node::Parallel(outer) = net.root() else { panic!("{net:?}") };
    assert_eq!((outer.branches.len(), outer.deterministic), (3, false));
    let Node::Parallel(inner) = &outer.branches[2].node else { panic!("{net:?}") };
    assert_eq!((inner.branches.len(), inner.deterministic), (2, true));
}

#[test]
fn plan_says_all_that_was_written() {
    let net = net("box a ((A, <#B>) -> (A, <#B>)); net n connect a !!@ <#B>;");
    let Node::Split(split) = net.root() else { panic!("{net:?}") };
    assert!(split.deterministic && split.placed);
    assert_eq!(split.tag, shape("<#B>").labels()[0]);
    let net = self::net("net n connect [{A} -> {B = A}] ** {B}, {A} if <1 == 2>;");
    let Node::Star(star) = net.root() else { panic!("{net:?}") };
    assert!(star.deterministic && star.exits[0].guard.is_none() && star.exits[1].guard.is_some());
}

// ---- bounds

#[test]
fn long_list_is_checked() {
    let list = vec!["a"; 100_000].join(" .. ");
    let net = net(&format!("box a ((A, B) -> (A)); net n connect [{{A}} -> {{A, B = A}}] .. a .. {};", "[]"));
    assert_shapes(net.input(), &["A"]);
    let net = self::net(&format!("box a ((A) -> (A)); net n connect {list};"));
    let Node::Serial(parts) = net.root() else { panic!("not a list") };
    assert_eq!(parts.len(), 100_000);
    assert_shapes(net.output(), &["A"]);
}

#[test]
fn doubling_nets_are_shared_and_bounded() {
    let doubling = |levels: usize| {
        let mut source = "box a ((A) -> (A)); net n0 connect a;".to_string();
        (1..=levels).for_each(|i| source += &format!("net n{i} connect n{0} .. n{0};", i - 1));
        source
    };
    let net = net(&doubling(18));
    assert_shapes(net.output(), &["A"]);
    let errors = said(&doubling(60));
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("Error: this net has more than 4000000 parts"), "{errors:?}");
}

#[test]
fn deep_nets_are_refused_not_overflown() {
    for forward in [false, true] {
        let mut source = String::new();
        for i in 0..20_000 {
            let (this, next) = if forward { (i, i + 1) } else { (i + 1, i) };
            source += &format!("net n{this} connect n{next};");
        }
        source += if forward { "net n20000 connect [];" } else { "net n0 connect [];" };
        let errors = said(&source);
        assert_eq!(errors.len(), 1);
        assert!(errors[0].starts_with("Error: this is nested more than 500 levels deep"), "{errors:?}");
    }
    let mut source = "type t0 = {A};".to_string();
    (1..20_000).rev().for_each(|i| source += &format!("type t{i} = t{0} | t{0};", i - 1));
    assert_eq!(said(&(source + "net n connect [];")).len(), 1);
    // As deep as it may be, it is judged, and the plan goes away again.
    let mut source = "net n0 connect [];".to_string();
    (1..249).for_each(|i| source += &format!("net n{i} connect n{}@1;", i - 1));
    net(&source);
}

#[test]
fn types_without_end_are_given_up_with_a_warning() {
    let boxes: String = (0..40).map(|i| format!("box b{i} ((A) -> (A) | (A, X{i}));")).collect();
    let all: Vec<String> = (0..40).map(|i| format!("b{i}")).collect();
    let source = format!("{boxes} net n ({{A}} -> ...) connect ({}) * {{Z}};", all.join(" .. "));
    let warnings = said(&source);
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].starts_with("Warning: the types in this net are too large to follow"),
        "{warnings:?}"
    );
    assert!(checked(&source).net.is_some());
}

#[test]
fn many_wrong_names_are_all_told() {
    let names: Vec<String> = (0..5_000).map(|i| format!("x{i}")).collect();
    assert_eq!(said(&format!("net n connect {};", names.join(" .. "))).len(), 5_000);
}

// ---- properties

/// Labels of few names, so that sets often have to do with each other.
fn labels() -> impl Strategy<Value = Vec<Label>> {
    let kinds = prop_oneof![4 => Just(Kind::Field), 4 => Just(Kind::Tag), 1 => Just(Kind::BindingTag)];
    let label = (kinds, 0..3usize).prop_map(|(kind, name)| Label::new(kind, ["A", "B", "C"][name]).unwrap());
    prop::collection::vec(label, 0..6)
}

fn shapes() -> impl Strategy<Value = Shape> {
    labels().prop_map(|labels| Shape::new(labels).unwrap())
}

/// A topology as text.
fn topologies() -> impl Strategy<Value = String> {
    let record =
        prop::sample::select(vec!["{A}", "{B}", "{A, B}", "{<T>}", "{A, <T>}", "{}", "{<#C>}", "{A, <#C>}"]);
    let pattern = (record.clone(), prop::bool::weighted(0.2)).prop_map(|(record, guard)| match guard {
        true if record.contains("<T>") => format!("{record} if <T == 1>"),
        true => format!("{record} if <1 == 1>"),
        false => record.to_string(),
    });
    let leaf = prop_oneof![
        4 => prop::sample::select(vec!["a", "b", "c", "d", "i", "m", "[]"]).prop_map(String::from),
        2 => (record.clone(), prop::sample::select(vec!["", "{}", "{<T>}", "{<T>}; {<S>}", "{<#C>}"]))
            .prop_map(|(from, to)| format!("[{from} -> {to}]")),
        1 => (pattern.clone(), pattern.clone()).prop_map(|(p, q)| format!("[| {p}, {q} |]")),
    ];
    leaf.prop_recursive(4, 16, 3, move |inner| {
        prop_oneof![
            3 => prop::collection::vec(inner.clone(), 2..4).prop_map(|parts| format!("({})", parts.join(" .. "))),
            3 => (prop::collection::vec(inner.clone(), 2..4), prop::sample::select(vec![" | ", " || "]))
                .prop_map(|(parts, operator)| format!("({})", parts.join(operator))),
            1 => (inner.clone(), pattern.clone()).prop_map(|(x, p)| format!("({x} * {p})")),
            1 => (inner.clone(), pattern.clone()).prop_map(|(x, p)| format!("({x} \\ {p})")),
            1 => inner.clone().prop_map(|x| format!("({x} !! <T>)")),
            1 => inner.prop_map(|x| format!("({x} ! <#C>)")),
        ]
    })
}

/// What comes to a plan's branches fits what they take, all the way down.
fn assert_sound(node: &Node) {
    match node {
        Node::Identity | Node::Box(_) | Node::Filter(_) | Node::Sync(_) => {}
        Node::Serial(parts) => {
            assert!(parts.len() >= 2 && !parts.iter().any(|p| matches!(p, Node::Serial(_))));
            parts.iter().for_each(assert_sound);
        }
        Node::Parallel(parallel) => {
            assert!(parallel.branches.len() >= 2);
            parallel.branches.iter().for_each(|b| assert_sound(&b.node));
        }
        Node::Star(star) => assert_sound(&star.operand),
        Node::Split(split) => assert_sound(&split.operand),
        Node::Feedback(feedback) => assert_sound(&feedback.operand),
        Node::Place(node, _) | Node::Net(_, node) => assert_sound(node),
    }
}

/// A net that runs with sets of labels in place of records: boxes, conditions and guards do anything they may.
struct Run {
    /// Synchrocells by their way through the plan: which patterns are filled, and what the first one holds.
    cells: HashMap<Vec<usize>, (Vec<bool>, Option<Shape>)>,
    way: Vec<usize>,
    seed: u64,
    /// Steps left, for stars and feedback may go on for ever.
    steps: usize,
    lost: Option<String>,
}

impl Run {
    fn chance(&mut self, of: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.seed >> 33) as usize % of.max(1)
    }

    fn within(&mut self, step: usize, node: &Node, record: Shape) -> Vec<Shape> {
        self.way.push(step);
        let out = self.record(node, record);
        self.way.pop();
        out
    }

    fn lose(&mut self, node: &Node, record: Shape) -> Vec<Shape> {
        self.lost.get_or_insert_with(|| format!("{record} is lost at {node:?}"));
        Vec::new()
    }

    /// New labels, and of the record what flows past.
    fn made(labels: impl Iterator<Item = Label>, record: Shape, taken: impl Fn(Label) -> bool) -> Shape {
        let past = record.labels().iter().copied().filter(|l| l.kind() != Kind::BindingTag && !taken(*l));
        Shape::new(labels.chain(past)).unwrap()
    }

    fn fits(&mut self, pattern: &plan::Guarded, record: Shape) -> bool {
        record.is_subtype_of(pattern.shape) && (pattern.guard.is_none() || self.chance(2) == 0)
    }

    fn record(&mut self, node: &Node, record: Shape) -> Vec<Shape> {
        if self.steps == 0 || self.lost.is_some() {
            return Vec::new();
        }
        self.steps -= 1;
        match node {
            Node::Identity => vec![record],
            Node::Box(plan) => {
                let Some(input) = plan.input.as_ref().filter(|_| record.is_subtype_of(plan.accepts)) else {
                    return self.lose(node, record);
                };
                let count = if plan.outputs.is_empty() { 0 } else { self.chance(4) };
                let taken = |l| input.iter().any(|e| e.label == l && !e.passes);
                (0..count)
                    .map(|_| {
                        let output = &plan.outputs[self.chance(plan.outputs.len())];
                        Run::made(output.iter().copied(), record, taken)
                    })
                    .collect()
            }
            Node::Filter(plan) if !plan.takes(record) => self.lose(node, record),
            Node::Filter(plan) => {
                let (_, outputs) = &plan.cases[self.chance(plan.cases.len())];
                let taken = |l| plan.pattern.contains(l);
                outputs.iter().map(|o| Run::made(o.entries.iter().map(|(l, _)| *l), record, taken)).collect()
            }
            Node::Sync(plan) => {
                let fits: Vec<bool> = plan.patterns.iter().map(|p| self.fits(p, record)).collect();
                let empty = (vec![false; fits.len()], None);
                let (filled, first) = self.cells.entry(self.way.clone()).or_insert(empty);
                let new: Vec<usize> = (0..fits.len()).filter(|i| fits[*i] && !filled[*i]).collect();
                if new.is_empty() {
                    return vec![record];
                }
                for i in new {
                    filled[i] = true;
                    if i == 0 {
                        *first = Some(record);
                    }
                }
                match (filled.iter().all(|f| *f), *first) {
                    (true, Some(first)) => {
                        let all = plan.patterns.iter().flat_map(|p| p.shape.labels()).chain(first.labels());
                        vec![Shape::new(all.copied()).unwrap()]
                    }
                    _ => Vec::new(),
                }
            }
            Node::Serial(parts) => parts.iter().enumerate().fold(vec![record], |records, (i, part)| {
                records.into_iter().flat_map(|r| self.within(i, part, r)).collect()
            }),
            Node::Parallel(plan) => match plan.branch(record) {
                Some(i) => self.within(i, &plan.branches[i].node, record),
                None => self.lose(node, record),
            },
            Node::Star(plan) => {
                let (mut out, mut open) = (Vec::new(), vec![(0, record)]);
                while let Some((stage, record)) = open.pop() {
                    if plan.exits.iter().any(|p| self.fits(p, record)) {
                        out.push(record);
                    } else if stage < 6 {
                        open.extend(
                            self.within(stage, &plan.operand, record).into_iter().map(|r| (stage + 1, r)),
                        );
                    }
                }
                out
            }
            Node::Split(plan) if !record.contains(plan.tag) => self.lose(node, record),
            Node::Split(plan) => {
                let value = self.chance(2);
                self.within(value, &plan.operand, record)
            }
            Node::Feedback(plan) => {
                let (mut out, mut open) = (Vec::new(), vec![record]);
                while let Some(record) = open.pop() {
                    for made in self.within(0, &plan.operand, record) {
                        let back = plan.patterns.iter().any(|p| self.fits(p, made));
                        if back { open.push(made) } else { out.push(made) }
                    }
                }
                out
            }
            Node::Place(node, _) | Node::Net(_, node) => self.within(0, node, record),
        }
    }
}

/// A program of boxes, an inner net and a net.
fn program(topology: &str, inner: &str, signature: usize) -> String {
    let signature =
        ["", "({A} -> ...)", "({A, B} | {<T>} -> {A})", "({A, <T>} -> {B}, {B} -> {A})"][signature];
    format!(
        "box a ((A) -> (B)); box b ((B, <T>) -> (A) | (A, B, <T>)); box c ((A, <#C>) -> (B, <#C>));
         box d ((A, B =) -> ()); box i (-> (A, <T>));
         net m {signature} connect {}; net n {signature} connect {topology};",
        inner.replace('m', "a")
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn shape_is_independent_of_order(labels in labels(), seed in any::<u64>()) {
        let mut shuffled = labels.clone();
        shuffled.sort_by_key(|l| {
            use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
            BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, l))
        });
        shuffled.extend(labels.iter().take(2));
        prop_assert_eq!(Shape::new(labels).unwrap(), Shape::new(shuffled).unwrap());
    }

    #[test]
    fn subtyping_is_an_order(a in shapes(), b in shapes(), c in shapes()) {
        prop_assert!(a.is_subtype_of(a));
        prop_assert!(!(a.is_subtype_of(b) && b.is_subtype_of(a)) || a == b);
        prop_assert!(!(a.is_subtype_of(b) && b.is_subtype_of(c)) || a.is_subtype_of(c));
        let binding = |s: Shape| s.labels().iter().filter(|l| l.kind() == Kind::BindingTag).count();
        let all = |s: Shape, of: Shape| of.labels().iter().all(|l| s.contains(*l));
        prop_assert_eq!(a.is_subtype_of(b), all(a, b) && binding(a) == binding(b));
    }

    #[test]
    fn branch_is_the_best_match(
        branches in prop::collection::vec(prop::collection::vec(shapes(), 0..4), 2..5),
        record in shapes(),
    ) {
        let mut best = None;
        let longest = branches.iter().flatten().filter(|v| record.is_subtype_of(**v)).map(|v| v.len()).max();
        for (i, variants) in branches.iter().enumerate().rev() {
            if variants.iter().any(|v| record.is_subtype_of(*v) && Some(v.len()) == longest) {
                best = Some(i);
            }
        }
        let branches = branches.into_iter().map(|accepts| Branch { accepts, node: Node::Identity }).collect();
        prop_assert_eq!(ParallelPlan { deterministic: false, branches }.branch(record), best);
    }

    #[test]
    fn any_program_is_checked_to_an_end(topology in topologies(), inner in topologies(), signature in 0..4usize) {
        let checked = checked(&program(&topology, &inner, signature));
        if let Some(net) = checked.net {
            assert_sound(net.root());
        }
    }

    #[test]
    fn records_go_their_way_where_nothing_was_said(
        topology in topologies(),
        inner in topologies(),
        signature in 0..4usize,
        seed in any::<u64>(),
    ) {
        let source = program(&topology, &inner, signature);
        let checked = checked(&source);
        let doubts = [" could not take ", " would take ", "too large to follow"];
        prop_assume!(!checked.diagnostics.iter().any(|d| doubts.iter().any(|doubt| d.message.contains(doubt))));
        let Some(net) = checked.net.filter(|net| !net.input().is_empty()) else {
            return Ok(());
        };
        let mut run = Run { cells: HashMap::new(), way: Vec::new(), seed, steps: 2_000, lost: None };
        for _ in 0..30 {
            let record = net.input()[run.chance(net.input().len())];
            let out = run.record(net.root(), record);
            prop_assert_eq!(&run.lost, &None, "{} in {}", record, source);
            for made in out {
                let starts = net.boxes().iter().any(|b| b.input.is_none());
                prop_assert!(starts || net.output().contains(&made), "{made} of {record} in {source}: {:?}", net.output());
            }
        }
    }
}
