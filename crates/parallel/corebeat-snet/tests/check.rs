//! The checker: accepted programs, inferred types and diagnostics.

#[expect(dead_code, reason = "other tests use the other parts")]
#[path = "reference/interpreter.rs"]
mod interpreter;

use std::cell::RefCell;

use corebeat_snet::diagnostic::Severity;
use corebeat_snet::plan::{self, Branch, Node, ParallelPlan};
use corebeat_snet::{Checked, Kind, Label, Record, Shape, Value, check, parse};
use interpreter::{ENDLESS, interpret};
use proptest::prelude::*;

fn checked(source: &str) -> Checked {
    named(source, None)
}

fn named(source: &str, name: Option<&str>) -> Checked {
    let module =
        parse(source).unwrap_or_else(|errors| panic!("{source}\ndoes not parse: {errors:?}"));
    let checked = check(&module, name);
    let has_error = checked.diagnostics.iter().any(|d| d.severity == Severity::Error);
    assert_eq!(checked.net.is_none(), has_error, "there is a net if and only if there is no error");
    for diagnostic in &checked.diagnostics {
        assert!(!diagnostic.message.contains('\n') && diagnostic.help.is_some(), "{diagnostic:?}");
        for (span, label) in &diagnostic.labels {
            assert!(
                source.get(span.start..span.end).is_some() && !label.is_empty(),
                "{diagnostic:?}"
            );
        }
    }
    checked
}

/// All diagnostics: severity, message and help, and the source text and label of each place.
fn diagnostics(source: &str) -> Vec<String> {
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

/// The net of a program without diagnostics.
fn net(source: &str) -> plan::Net {
    assert_eq!(diagnostics(source), Vec::<String>::new(), "{source}");
    checked(source).net.expect("the program has no error")
}

/// A set of labels as `A <T> <#B>`.
fn shape(labels: &str) -> Shape {
    Shape::new(labels.split_whitespace().map(|label| label.parse().unwrap())).unwrap()
}

/// Asserts that the shapes are these, in any order.
#[track_caller]
fn assert_shapes(shapes: &[Shape], expected: &[&str]) {
    let mut found: Vec<u32> = shapes.iter().map(|s| s.number()).collect();
    let mut wanted: Vec<u32> = expected.iter().map(|s| shape(s).number()).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted, "{shapes:?} are not {expected:?}");
}

/// Programs, separated by empty lines. Lines that begin with `//~` are the expected diagnostics
/// (with the text and the label of each place in brackets), and the type of the net if there is no
/// error.
const PROGRAMS: &str = r"
// name may be defined later in its scope
net n { net b connect c; box c ((A) -> (B)); } connect b;
//~ {A} -> {B}

// program without net is refused
box a ((A) -> (B));
//~ Error: the program defines no net; add one: `net main connect ...;` [: expected a net]
//~ Warning: box `a` is never used; use it in a net, or remove it [a: unused]

// undefined name is refused with a similar name
net n { box compute ((A) -> (B)); } connect comptue .. compute .. comptue .. xyz;
//~ Error: undefined box or net `comptue`; did you mean `compute`? [comptue: not defined in this
//~   scope]
//~ Error: undefined box or net `xyz`; define it as a box or a net: `box xyz ((...) -> (...));`
//~   [xyz: not defined in this scope]

type point = {x, y}; net n (pont -> ...) connect [];
//~ Error: undefined type `pont`; did you mean `point`? [pont: not defined in this scope]

net n (whatever) connect [];
//~ Error: undefined typesig `whatever`; define it: `typesig whatever = ...;` [whatever: not
//~   defined in this scope]

// inner name is undefined outside
net n { net b { box c ((A) -> (B)); } connect c; } connect b .. c;
//~ Error: undefined box or net `c`; define it as a box or a net: `box c ((...) -> (...));` [c: not
//~   defined in this scope]

// duplicate name in a scope is refused
box a ((A) -> (B)); net n connect a; net a connect [];
//~ Error: `a` is defined twice; rename one of them [a: second definition / a: first definition]

type t = {A}; type t = {B}; typesig t = t -> t; net n (t) connect [];
//~ Error: `t` is defined twice; rename one of them [t: second definition / t: first definition]

// recursive net is refused
net n { net b connect c; net c connect b; } connect b;
//~ Error: net `b` is used inside itself; to repeat a net, use a star, `a * {...}`, or feedback, `a
//~   \ {...}` [b: used here / b: defined here]

net n connect [] .. n;
//~ Error: net `n` is used inside itself; to repeat a net, use a star, `a * {...}`, or feedback, `a
//~   \ {...}` [n: used here / n: defined here]

// recursive type is refused
type a = b; type b = {A} | a; net n (a -> a) connect [];
//~ Error: type `a` is defined by itself; write its variants or mappings out [a: used here / a:
//~   defined here]

typesig s = {A} -> {B}, s; net n (s) connect [];
//~ Error: typesig `s` is defined by itself; write its variants or mappings out [s: used here / s:
//~   defined here]

// unused definition causes a warning
net n { box a ((A) -> (B)); net b connect []; } connect [];
//~ Warning: box `a` is never used; use it in a net, or remove it [a: unused]
//~ Warning: net `b` is never used; use it in a net, or remove it [b: unused]
//~ {} -> {}

// label twice in a box is refused
box a ((A, <A>, A) -> (B) | (<C>, <C>)); net n connect a;
//~ Error: A occurs twice in the input of box `a`; remove one of them, or rename it [A: second
//~   occurrence / A: first occurrence]

box a ((A) -> (B) | (<C>, <C>)); net n connect a;
//~ Error: <C> occurs twice in output 2 of box `a`; remove one of them, or rename it [C: second
//~   occurrence / C: first occurrence]

// passing binding tag causes a warning
box a ((A, <#B> =) -> (A)); net n connect a;
//~ Warning: the binding tag of `<#B> =` never flows past a box; add the tag to the outputs, or
//~   remove the `=` [B: does not flow past]
//~ {<#B>, A} -> {A}

// label twice in a filter output is refused
net n connect [{A, B} -> {A, A = B}];
//~ Error: A occurs twice in one output of the filter; remove one of them, or rename it [A: second
//~   occurrence / A: first occurrence]

net n connect [{A} -> {A}; {A}];
//~ {A} -> {A}

net n connect [{A, <A>} -> {A, <A>}];
//~ {<A>, A} -> {<A>, A}

// filter field outside of its pattern is refused
net n connect [{A} -> {B}; {C = D}];
//~ Error: this copies B, but the pattern {A} does not have it; add it to the pattern: {A, B} [B:
//~   not in the pattern / {A}: the pattern]
//~ Error: this copies D, but the pattern {A} does not have it; add it to the pattern: {A, D} [D:
//~   not in the pattern / {A}: the pattern]

// expression over a tag outside of its pattern is refused
net n connect [{A} -> {<X = T + 1>}];
//~ Error: this reads <T>, but the pattern {A} does not have it; add it to the pattern: {A, <T>}
//~   [T: not in the pattern / {A}: the pattern]

net n connect [{A} -> if <T == 1> then {A} else {}];
//~ Error: this reads <T>, but the pattern {A} does not have it; add it to the pattern: {A, <T>}
//~   [T: not in the pattern / {A}: the pattern]

net n connect [] * {A} if <T > 3>;
//~ Error: this reads <T>, but the pattern {A} does not have it; add it to the pattern: {A, <T>}
//~   [T: not in the pattern / {A}: the pattern]

net n connect [| {A} if <T == 3>, {B} |];
//~ Error: this reads <T>, but the pattern {A} does not have it; add it to the pattern: {A, <T>}
//~   [T: not in the pattern / {A}: the pattern]

net n connect [{<T>} -> {<X = T>, <Y>}];
//~ {<T>} -> {<X>, <Y>}

// constant division by zero causes a warning
net n connect [{<T>} -> {<T = T / (3 - 3)>}];
//~ Warning: this always divides by 0; every record fails here; use another divisor [(3 - 3): is 0]
//~ {<T>} -> {<T>}

net n connect [] * {<T>} if <T % 0 == 1>;
//~ Warning: this always divides by 0; every record fails here; use another divisor [0: is 0]
//~ {<T>} | {} -> {<T>}

net n connect [{<T>} -> {<T = 1 / T>}];
//~ {<T>} -> {<T>}

// serial takes what flows past its first part
box a ((A) -> (B)); box b ((B, C) -> (D)); net n connect a .. b;
//~ {A, C} -> {D}

box a ((A) -> (B) | (C)); box b ((B, X) -> ()); box c ((C, Y) -> ()); net n connect a .. (b | c);
//~ {A, X, Y} -> {X} | {Y}

// label marked to pass flows past its box
box a ((A =) -> (B)); box b ((A, B) -> (C)); net n connect a .. b;
//~ {A} -> {C}

// output without a consumed label is refused
box a ((A) -> (B)); box b ((A, B) -> (C)); net n connect a .. b;
//~ Error: box `b` cannot take {B}: it has no A; add A before, or pass such records on: `(... |
//~   [])` [b: takes {A, B} / a: {B} is produced here]

net n connect [{A} -> {B = A}] .. [{A, <T>} -> {A}];
//~ Error: filter `[{A, <T>} -> {A}]` cannot take {B, <T>}: it has no A; add A before, or pass such
//~   records on: `(... | [])` [[{A, <T>} -> {A}]: takes {A, <T>} / [{A} -> {B = A}]: {B, <T>} is
//~   produced here]

// single unroutable output of a box is refused
box a ((A) -> (B) | (C)); net n connect a .. [{B} -> {}];
//~ {A, B} -> {C} | {}

box a ((A, B) -> (B) | (C)); net n connect a .. [{B} -> {D = B}];
//~ Error: filter `[{B} -> {D = B}]` cannot take {C}: it has no B; add B before, or pass such
//~   records on: `(... | [])` [[{B} -> {D = B}]: takes {B} / a: {C} is produced here]

// filter that removes a missing label causes a warning
box a ((A, B) -> (B) | (C)); net n connect a .. [{B} -> {}];
//~ Warning: {C} reaches filter `[{B} -> {}]` without B; the filter removes nothing then; to pass
//~   such records on, write `(... | [])` [[{B} -> {}]: removes B / a: {C} is produced here]
//~ {A, B} -> {C} | {}

// In a loop, the label is missing from the second round on.
net n ({A, <C>} -> {B}) connect [{A, <C>} -> {A}; {B = A}] \ {A};
//~ Warning: {A} reaches filter `[{A, <C>} -> {A}; {B = A}]` without <C>; the filter removes
//~   nothing then; to pass such records on, write `(... | [])` [[{A, <C>} -> {A}; {B = A}]: removes
//~   <C> / [{A, <C>} -> {A}; {B = A}]: {A} is produced here]
//~ {<C>, A} -> {B}

// Labels that an output or a condition uses, and binding tags, are required.
box a ((A, B, <T>) -> (D)); net n ({A, B, <T>} -> ...) connect a .. [{B, D} -> {}; {B}];
//~ Error: filter `[{B, D} -> {}; {B}]` cannot take {D}: it has no B; add B before, or pass such
//~   records on: `(... | [])` [[{B, D} -> {}; {B}]: takes {B, D} / a: {D} is produced here]

box a ((A, B, <T>) -> (D)); net n ({A, B, <T>} -> ...) connect a .. [{B, D} -> {E = B}];
//~ Error: filter `[{B, D} -> {E = B}]` cannot take {D}: it has no B; add B before, or pass such
//~   records on: `(... | [])` [[{B, D} -> {E = B}]: takes {B, D} / a: {D} is produced here]

box a ((A, B, <T>) -> (D)); net n ({A, B, <T>} -> ...) connect a .. [{<T>} -> {<S = 1 + T>}];
//~ Error: filter `[{<T>} -> {<S = 1 + T>}]` cannot take {D}: it has no <T>; add <T> before, or
//~   pass such records on: `(... | [])` [[{<T>} -> {<S = 1 + T>}]: takes {<T>} / a: {D} is produced
//~   here]

box a ((A, B, <T>) -> (D)); net n ({A, B, <T>} -> ...) connect a .. [{<T>} -> if <T> then {} else];
//~ Error: filter `[{<T>} -> if <T> then {} else]` cannot take {D}: it has no <T>; add <T> before,
//~   or pass such records on: `(... | [])` [[{<T>} -> if <T> then {} else]: takes {<T>} / a: {D} is
//~   produced here]

box a ((A, B, <T>) -> (D)); net n ({A, B, <T>} -> ...) connect a .. [{<#K>} -> {}];
//~ Error: filter `[{<#K>} -> {}]` cannot take {D}: it has no <#K>; add <#K> before, or pass such
//~   records on: `(... | [])` [[{<#K>} -> {}]: takes {<#K>} / a: {D} is produced here]

// binding tag does not flow past
box a ((A, <#B>) -> (A, <#B>)); net n connect a ! <#B>;
//~ {<#B>, A} -> {<#B>, A}

box a ((A) -> (A)); net n connect a ! <#B>;
//~ Error: box `a` cannot take {A, <#B>}: it also has <#B>; take <#B> here: a binding tag never
//~   flows past [a: takes {A} / n: {A, <#B>} is produced here]

box a ((A, <#B>) -> (A)); net n connect a;
//~ {<#B>, A} -> {A}

box a ((A) -> (B)); net n connect a .. [{B, <#C>} -> {}];
//~ Error: filter `[{B, <#C>} -> {}]` cannot take {B}: it has no <#C>; add <#C> before, or pass
//~   such records on: `(... | [])` [[{B, <#C>} -> {}]: takes {B, <#C>} / a: {B} is produced here]

box a ((A) -> (B, <#C>)); net n connect a .. ([] | [{B} -> {}]);
//~ Error: no branch takes {B, <#C>}; take <#C> here: a binding tag never flows past, or add a
//~   branch for such records [([] | [{B} -> {}]): takes {} | {B} / a: {B, <#C>} is produced here]

// specific variant of a later part is kept
// A record with <D> takes the second branch, so the part before has a separate variant for it.
box a ((A) -> (B)); net n connect a .. ([] | [{<D>, B} -> {}]);
//~ {<D>, A} | {A} -> {B} | {}

// star takes entering and leaving records
box a ((A, <n>) -> (A, <n>) | (B)); net n connect a * {B};
//~ {<n>, A} | {B} -> {B}

// A guard can keep the record in the star, and then the operand must take it.
net n connect [{A, <n>} -> {A, <n = n + 1>}] * {<n>} if <n > 3>;
//~ {<n>, A} -> {<n>, A}

// star that cannot take its own output is refused
box a ((A, K) -> (A) | (B)); net n connect a * {B};
//~ Error: box `a` cannot take {A}: it has no K; add K before, or pass such records on: `(... |
//~   [])` [a: takes {A, K} / a: {A} is produced here]

// split needs its tag
box a ((A) -> (B)); net n connect a ! <T>;
//~ {<T>, A} -> {<T>, B}

box a ((A, <T>) -> (A)); box b ((A) -> (B)); net n connect a .. b ! <T>;
//~ Error: this split cannot take {A}: it has no <T>; add <T> before, or pass such records on:
//~   `(... ! <T> | [])` [b ! <T>: selects by the value of <T> / a: {A} is produced here]

// feedback accepts its own output
box a ((A, <n>) -> (A, <n>) | (B)); net n connect a \ {A, <n>};
//~ {<n>, A} -> {B}

net n connect [{<T>} -> {<T = T - 1>}] \ {<T>} if <T > 0>;
//~ {<T>} -> {<T>}

box a ((A, K) -> (A) | (B)); net n connect a \ {A};
//~ Error: box `a` cannot take {A}: it has no K; add K before, or pass such records on: `(... |
//~   [])` [a: takes {A, K} / a: {A} is produced here]

// identity and place change no type
box a ((A) -> (B)); net n connect [] .. a@1 .. []@2;
//~ {A} -> {B}

// initialiser takes no record
box i (-> (A)); net n connect i;
//~ -> {A}

box i (-> (A)); box a ((A) -> (B)); net n connect i .. a;
//~ -> {B}

box i (-> (<X>)); net n connect i | [];
//~ {} -> {<X>} | {}

box i (-> (A)); box a ((A) -> (B)); net n connect a .. i;
//~ Error: box `i` cannot take {B}: it takes no records; put it in parallel to the part that does:
//~   `(... | ...)` [i: runs once, without a record / a: {B} is produced here]

box i (-> (A)); box b ((B) -> ()); net n connect i .. b;
//~ Error: box `b` cannot take {A}: it has no B; add B before, or pass such records on: `(... |
//~   [])` [b: takes {B} / i: {A} is produced here]

// net takes its declared input
box a ((A) -> (B)); net n ({A, C} | {A, D} -> ...) connect a;
//~ {A, C} | {A, D} -> {B, C} | {B, D}

box a ((A) -> (B)); net n ({C} -> {B}) connect a;
//~ Error: box `a` cannot take {C}: it has no A; add A before, or pass such records on: `(... |
//~   [])` [a: takes {A} / {C}: {C} is produced here]

// undeclared output causes a warning
box a ((A) -> (B) | (C)); net n ({A} -> {B}) connect a;
//~ Warning: net `n` outputs {C}, which its signature does not declare; add it to the signature, or
//~   convert it before the end of the net [{A} -> {B}: declares {B} / a: {C} is produced here]
//~ {A} -> {B} | {C}

// Additional labels are allowed, additional binding tags are not.
box a ((A) -> (B, C)); net n ({A} -> {B}) connect a;
//~ {A} -> {B, C}

box a ((A) -> (B, <#C>)); net n ({A} -> {B}) connect a;
//~ Warning: net `n` outputs {B, <#C>}, which its signature does not declare; add it to the
//~   signature, or convert it before the end of the net [{A} -> {B}: declares {B} / a: {B, <#C>} is
//~   produced here]
//~ {A} -> {<#C>, B}

// each mapping is checked separately
box a ((A) -> (C)); box b ((B) -> (D)); net n ({A} -> {D}, {B} -> {D}) connect a | b;
//~ Warning: net `n` outputs {C}, which its signature does not declare; add it to the signature, or
//~   convert it before the end of the net [{A} -> {D}: declares {D} / a: {C} is produced here]
//~ {A} | {B} -> {C} | {D}

box a ((A) -> (C)); box b ((B) -> (D)); net n ({A} -> {C}, {B} -> {D}) connect a | b;
//~ {A} | {B} -> {C} | {D}

// inner net is checked for declared input without sender
box a ((A) -> (B)); box c ((C) -> (D));
net n { net m ({A} -> {B}, {C} -> {E}) connect a | c; } connect a .. [{B} -> {A = B}] .. m;
//~ Warning: net `m` outputs {D}, which its signature does not declare; add it to the signature, or
//~   convert it before the end of the net [{C} -> {E}: declares {E} / c: {D} is produced here]
//~ {A} -> {B}

// record that a net does not declare is refused
box a ((A, C) -> (B)); net n { net m ({B, C} -> ...) connect []; } connect a .. m;
//~ Error: net `m` cannot take {B}: it has no C; add C before, or pass such records on: `(... |
//~   [])` [m: takes {B, C} / a: {B} is produced here]

// named types and signatures equal their definitions
type point = {x, y}; type shape = point | {r}; typesig move = shape -> shape, {<stop>} -> ;
net n (move) connect [{<stop>} ->] | [];
//~ {<stop>} | {r} | {x, y} -> {r} | {x, y}

typesig s = {A} -> ...; net n (s) connect [{A} -> {B = A}];
//~ {A} -> {B}

net n (-> {A}) { box i (-> (A)); } connect i;
//~ -> {A}

// record that no branch takes is refused
box a ((A, B) -> (B) | (C)); net n connect a .. ([{B} -> {}] | [{A} -> {}]);
//~ Error: no branch takes {C}; add a branch for such records; `[]` takes every record [([{B} ->
//~   {}] | [{A} -> {}]): takes {B} | {A} / a: {C} is produced here]

box a ((A) -> (B)); net n ({A} -> ...) connect a .. ([{B, X} -> {}] | [{Y} -> {}]);
//~ Error: no branch takes {B}; add X before, or add a branch for such records; `[]` takes every
//~   record [([{B, X} -> {}] | [{Y} -> {}]): takes {B, X} | {Y} / a: {B} is produced here]

// branch with the match of an earlier one causes a warning
box a ((A) -> (X)); box b ((A) -> (Y)); net n connect a | b;
//~ Warning: no record reaches this branch; remove one of the branches, or let one take more labels
//~   [b: takes {A} / a: {A} is routed here]
//~ {A} -> {X}

// branch for a consumed label causes a warning
box a ((A) -> (B)); box b ((B) -> (C)); box c ((A, B) -> (D)); net n connect a .. (b | c);
//~ Warning: no record reaches this branch; no record here has A: remove the branch, or add the
//~   label to the records (and to the declared signature of the net) [c: takes {A, B} / b: {B} is
//~   routed here]
//~ {A} -> {C}

// branch for undeclared input causes a warning
box a ((A) -> (B)); net n ({A} -> ...) connect a .. ([] | [{<D>, B} -> {}]);
//~ Warning: no record reaches this branch; no record here has <D>: remove the branch, or add the
//~   label to the records (and to the declared signature of the net) [[{<D>, B} -> {}]: takes {B,
//~   <D>} / []: {B} is routed here]
//~ {A} -> {B}

box a ((A) -> (B)); net n ({A} | {A, <D>} -> ...) connect a .. ([] | [{<D>, B} -> {}]);
//~ {<D>, A} | {A} -> {B} | {}

// Without a signature, records can have more labels.
box a ((A) -> (B)); net n connect a .. ([] | [{<D>, B} -> {}]);
//~ {<D>, A} | {A} -> {B} | {}

box a ((A) -> (X)); box b ((X, Y) -> ()); box c ((Z) -> ()); net n connect a .. (b | c);
//~ {A, Y} -> {}

// branch in a net with two uses is reachable from either
box a ((A) -> (B)); box b ((B) -> (A));
net n { net m connect a | b; } connect [{A} -> {A}] .. m .. m;
//~ {A} -> {A}

// synchrocell that cannot merge causes a warning
box a ((A) -> (B)); net n ({A} -> ...) connect a .. [| {B}, {A} |];
//~ Warning: this synchrocell can never merge records; change the pattern, or output such records
//~   before [{A}: no record here matches {A} / [| {B}, {A} |]: {B} arrives here]
//~ {A} -> {B}

net n connect [| {A}, {B} |];
//~ {A} | {B} -> {A, B} | {A} | {B}

// synchrocell keeps other labels of its first pattern only
net n ({A, X} | {B, Y} -> ...) connect [| {A}, {B} |] * {A, B};
//~ {A, X} | {B, Y} -> {A, B, X}

net n connect [| {A}, {B} |] * {A, B} .. [{A, B, X} -> {X}];
//~ {A, B, X} | {A, X} | {B} -> {X}

// failure after a synchrocell is only a warning
box a ((A, B) -> (C)); net n connect [| {A}, {B} |] .. a;
//~ Warning: box `a` could not take {A}: it has no B; a synchrocell passes records on whose pattern
//~   has a record already, and all records after the merge; for more records, put it into a star:
//~   `[|{A}, {B}|] * {A, B}` [a: takes {A, B} / n: {A} is produced here]
//~ {A} | {B} -> {C}

net n ({A} | {B} -> {A, B}) connect [| {A}, {B} |];
//~ Warning: net `n` may output {A} and {B}, which its signature does not declare; a synchrocell
//~   passes records on whose pattern has a record already, and all records after the merge; for
//~   more records, put it into a star: `[|{A}, {B}|] * {A, B}` [{A} | {B} -> {A, B}: declares
//~   {A, B} / {A}: {A} is produced here]
//~ {A} | {B} -> {A, B} | {A} | {B}

box a ((A, B) -> (C)); net n ({A} | {B} -> {C}) connect [| {A}, {B} |] * {A, B} .. a;
//~ {A} | {B} -> {C}

// records leave a synchrocell merged and unchanged
net n {
    net merge connect [| {state}, {inval} |];
    net bypass connect [];
    box add ((state, inval) -> (state) | (outval));
} connect (merge .. (bypass | add)) * {outval};
//~ {inval} | {outval} | {state} -> {outval}

// star without exit causes a warning
box a ((A) -> (A)); net n connect a * {B};
//~ Warning: no record ever leaves this star; output {B} inside the star, or change the exit
//~   pattern [a * {B}: {A} enters / {B}: no output matches]
//~ {A} | {B} -> {B}

// observers in metadata cause a warning with options
<metadata><net name='n/m'><observer type='before' interactive='true'/>
    <observer type='after' file='seen'/></net>
    <box name='a'><observer address='here' port='99'/></box></metadata>
box a ((A) -> (A)); net n connect a;
//~ Warning: observers in metadata are not supported; use `corebeat net run --observe m:before
//~   --observe m:after=seen --observe a=here:99` [<metadata><net name='n/m'><observer type='before'
//~   interactive='true'/> <observer type='after' file='seen'/></net> <box name='a'><observer
//~   address='here' port='99'/></box></metadata>: declares observers]
//~ {A} -> {A}

net n {
    <metadata><box name='a'><observer address='here' port='99'/></box></metadata>
    box a ((A) -> (A));
} connect a;
//~ Warning: observers in metadata are not supported; use `corebeat net run --observe a=here:99`
//~   [<metadata><box name='a'><observer address='here' port='99'/></box></metadata>: declares
//~   observers]
//~ {A} -> {A}

<metadata><net name='n'><flags>observer</flags></net></metadata> net n connect [];
//~ {} -> {}

// feedback without exit causes a warning
box a ((A) -> (A)); net n connect a \ {A};
//~ Warning: no record ever leaves this feedback; add a condition to the pattern, or output other
//~   records [a \ {A}: {A} enters again / {A}: always matches]
//~ {A} ->

box a ((A) -> (A) | (A, B)); net n connect a \ {B}, {A};
//~ Warning: no record ever leaves this feedback; add a condition to the pattern, or output other
//~   records [a \ {B}, {A}: {A} and {A, B} enters again / {B}: always matches / {A}: always
//~   matches]
//~ {A} ->

// feedback with possible exit is accepted
box a ((A) -> (A) | (B)); net n connect a \ {A};
//~ {A} -> {B}

box a ((A) -> (A)); net n connect a \ {B};
//~ {A} -> {A}

net n connect [{<n>} -> {<n = n - 1>}] \ {<n>} if <n > 0>;
//~ {<n>} -> {<n>}

box a ((A) -> (A)); box b ((A) -> (A) | (B)); net n connect (a .. b) \ {A};
//~ {A} -> {B}

// guard may hold or not
net n connect [{<T>} -> if <T == 1> then {<S = T>} else {<T>}]
    .. ([{<S>} -> {<a>}] | [{<T>} -> {<b>}]);
//~ {<T>} -> {<a>} | {<b>}

box a ((A, <n>) -> (<n>)); net n connect a * {<n>} if <n > 3>;
//~ Error: box `a` cannot take {<n>}: it has no A; add A before, or pass such records on: `(... |
//~   [])` [a: takes {A, <n>} / a: {<n>} is produced here]

// warnings are reported only without errors
box a ((A) -> (B)); net n connect a .. ([{A} -> {}] | [{A} -> {}]);
//~ Error: no branch takes {B}; add a branch for such records; `[]` takes every record [([{A} ->
//~   {}] | [{A} -> {}]): takes {A} | {A} / a: {B} is produced here]

// Two parts of a record are separated and merged again.
// factorial is accepted
net factorial {
    box leq1 ((x) -> (x, p));
    box condif ((p) -> (<T>) | (<F>));
    net compute { box sub ((x) -> (xx)); box mult ((xm, rm) -> (rrm)); }
    connect [{<F>, x, r} -> {xm = x, rm = r}; {x = x}] .. (sub | mult)
        .. ([| {xx}, {rrm} |] * {xx, rrm}) .. [{xx, rrm} -> {x = xx, r = rrm}];
} connect (leq1 .. condif .. ([{<T>} -> {<stop>}] | compute)) * {<stop>};
//~ {<stop>} | {r, x} -> {<stop>, r, x} | {<stop>}

// A split by node, and a merge of tiles.
// picture in tiles is accepted
net picture {
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
    .. merge .. [{nvs} -> {}];
//~ {<first>, <nodes>, <tasks>, params} | {<nodes>, <tasks>, params} -> {<at>, <done>}

// Synchrocells inside stars exchange halves.
// cipher in rounds is accepted
net cipher ({Key, Pt} | {Key, Pt, <Decipher>} -> {Ct}) {
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
    .. round * {<C>} if <C == 16> .. end .. [{Keys, <C>} -> {}];
//~ {<Decipher>, Key, Pt} | {Key, Pt} -> {Ct}

// Numbers in a feedback, merged in pairs by a tag.
// fibonacci is accepted
net fibonacci ({<N>} -> {<X>}) {
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
    } connect (rewrite .. ([{<X>} -> {<X>}] | pair)) \ {<M>};
} connect [{<N>} -> {<N>, <M = 1>}] .. recur .. merge;
//~ {<N>} -> {<X>}

// initialiser before a synchrocell is accepted
net show {
    box open (-> (screen)); box draw ((screen, image) -> (screen) | (<end>));
} connect (open | []) .. ([| {image}, {screen} |] .. (draw | [])) * {<end>};
//~ {<end>} | {image} | {screen} -> {<end>}

// counting guards inside a placed split are accepted
net count {
    net s connect ([{<S>} -> if <S < 3> then {<S = S + 1>} else {<Sdone = 0>}]
        | ([{<Sdone>} -> {<Sdone = 1>}]@2)) * {<Sdone>} if <Sdone == 1>;
    net t connect ([{<T>} -> if <T < 4> then {<T = T + 1>} else {<Tdone = 0>}]
        | ([{<Tdone>} -> {<Tdone = 1>}]@1)) * {<Tdone>} if <Tdone == 1>;
    net both connect [{<T>} -> if <T == 1> then {<S = T>} else {<T>}] .. (s | t);
} connect both !@ <T>;
//~ {<T>} -> {<Sdone>} | {<Tdone>}

// state in feedback is accepted
net states ({state} | {trigger} | {inval} -> {outval}) {
    net single ({state} | {inval} -> {outval} | {trigger}) {
        box compute ((state, inval) -> (outval) | (state) | (trigger));
    } connect ([| {state}, {inval} |] * {state, inval} .. compute) \ {state}, {inval};
} connect ((([| {state}, {trigger} |] * {state, trigger} .. [{trigger} -> {}]) | []) .. single)
    \ {state}, {trigger}, {inval};
//~ {inval} | {state} | {trigger} -> {outval}

// A record that matches no pattern of the first cell passes to the second.
// serial synchrocells are accepted
net cells connect [| {A}, {B} |] .. [| {C}, {D} |];
//~ {A} | {B} | {C} | {D} -> {A, B} | {A} | {B} | {C, D} | {C} | {D}
";

/// A type: its variants, and the labels of each variant, in the order of their text.
fn variants(shapes: &[Shape]) -> String {
    let mut variants: Vec<String> = (shapes.iter())
        .map(|shape| {
            let mut labels: Vec<String> = shape.labels().iter().map(Label::to_string).collect();
            labels.sort();
            format!("{{{}}}", labels.join(", "))
        })
        .collect();
    variants.sort();
    variants.join(" | ")
}

#[test]
fn each_program_has_its_diagnostics_and_type() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut wrong = String::new();
    for program in PROGRAMS.trim().split("\n\n") {
        let expected = program.lines().filter_map(|line| line.strip_prefix("//~"));
        let mut found = diagnostics(program);
        if let Some(net) = checked(program).net {
            found.push(format!("{} -> {}", variants(net.input()), variants(net.output())));
        }
        if words(&found.join("\n")) != words(&expected.collect::<String>()) {
            wrong += &format!("{program}\nfound: {}\n\n", found.join("\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

// ---- names

#[test]
fn net_is_selected_by_name() {
    let source = "net one connect [{A} -> {}]; net two connect [{B} -> {}];";
    assert_eq!(named(source, Some("one")).net.unwrap().name(), "one");
    assert_eq!(named(source, Some("two")).net.unwrap().name(), "two");
    assert_eq!(named(source, Some("three")).net.unwrap().name(), "two");
    assert_eq!(named(source, None).net.unwrap().name(), "two");
    // An inner net does not count.
    let source = "net one { net two connect []; } connect two; net three connect one;";
    assert_eq!(named(source, Some("two")).net.unwrap().name(), "three");
}

#[test]
fn empty_program_is_refused() {
    let nothing = check(&corebeat_snet::ast::Module::default(), None);
    assert!(nothing.net.is_none() && nothing.diagnostics.len() == 1);
}

#[test]
fn name_resolves_to_the_innermost_scope() {
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
fn filter_plan_equals_its_source() {
    let net = net(
        "net n connect [{A, <T>} -> if <T % 2 == 0> then {B = A, <T>, <U>}; {<T = -T * (2 + 3)>} \
         else];",
    );
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
fn filter_text_parses_to_the_same_filter() {
    for text in [
        "[{} ->]",
        "[{A} -> {A, B = A}; {}]",
        "[{<T>, <#B>} -> if <T == 1 && #B != 2> then {<T>} else if <T > 3 ? 1 : 0> then else {<#B \
         = 4>}]",
        "[{<a>, <b>} -> {<c = a - (b - a)>, <d = (a - b) - a>, <e = a * (b + 1) % 2>, <f = !(a || \
         b) && abs a < 3>}]",
        "[{<a>, <b>} -> {<c = a min b + 1>, <d = (a + 1) max b>, <e = (a ? b : 1) ? 2 : a ? 3 : \
         4>, <f = -(-a)>}]",
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
fn parallel_takes_what_its_branches_take() {
    let net = net("box a ((A) -> (X)); box b ((A, B) -> (Y)); net n connect a | b | [];");
    assert_shapes(net.input(), &["A", "A B", ""]);
    assert_shapes(net.output(), &["X", "Y", ""]);
    let Node::Parallel(parallel) = net.root() else { panic!("{net:?}") };
    assert_eq!(parallel.branches.len(), 3);
    assert_shapes(&parallel.branches[1].accepts, &["A B"]);
    assert_eq!(parallel.branch(shape("A B C")), Some(1));
}

// ---- plans

#[test]
fn plan_is_flat_except_nets() {
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
fn plan_contains_all_attributes_of_the_program() {
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
    let net = net(&format!(
        "box a ((A, B) -> (A)); net n connect [{{A}} -> {{A, B = A}}] .. a .. {};",
        "[]"
    ));
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
    let errors = diagnostics(&doubling(60));
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("Error: the net has more than 4000000 parts"), "{errors:?}");
}

#[test]
fn deep_nets_are_refused_without_overflow() {
    for forward in [false, true] {
        let mut source = String::new();
        for i in 0..20_000 {
            let (this, next) = if forward { (i, i + 1) } else { (i + 1, i) };
            source += &format!("net n{this} connect n{next};");
        }
        source += if forward { "net n20000 connect [];" } else { "net n0 connect [];" };
        let errors = diagnostics(&source);
        assert_eq!(errors.len(), 1);
        assert!(
            errors[0].starts_with("Error: the nets are nested more than 500 levels deep"),
            "{errors:?}"
        );
    }
    let mut source = "type t0 = {A};".to_string();
    (1..20_000).rev().for_each(|i| source += &format!("type t{i} = t{0} | t{0};", i - 1));
    assert_eq!(diagnostics(&(source + "net n connect [];")).len(), 1);
    // At the maximum depth, the check and the drop of the plan work.
    let mut source = "net n0 connect [];".to_string();
    (1..249).for_each(|i| source += &format!("net n{i} connect n{}@1;", i - 1));
    net(&source);
}

#[test]
fn unbounded_types_cause_a_warning() {
    let boxes: String = (0..40).map(|i| format!("box b{i} ((A) -> (A) | (A, X{i}));")).collect();
    let all: Vec<String> = (0..40).map(|i| format!("b{i}")).collect();
    let source = format!("{boxes} net n ({{A}} -> ...) connect ({}) * {{Z}};", all.join(" .. "));
    let warnings = diagnostics(&source);
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].starts_with("Warning: the types in this net are too large to check"),
        "{warnings:?}"
    );
    assert!(checked(&source).net.is_some());
}

#[test]
fn many_undefined_names_are_all_reported() {
    let names: Vec<String> = (0..5_000).map(|i| format!("x{i}")).collect();
    assert_eq!(diagnostics(&format!("net n connect {};", names.join(" .. "))).len(), 5_000);
}

// ---- properties

/// Labels of few names, so that sets often overlap.
fn labels() -> impl Strategy<Value = Vec<Label>> {
    let kinds =
        prop_oneof![4 => Just(Kind::Field), 4 => Just(Kind::Tag), 1 => Just(Kind::BindingTag)];
    let label = (kinds, 0..3usize)
        .prop_map(|(kind, name)| Label::new(kind, ["A", "B", "C"][name]).unwrap());
    prop::collection::vec(label, 0..6)
}

fn shapes() -> impl Strategy<Value = Shape> {
    labels().prop_map(|labels| Shape::new(labels).unwrap())
}

/// A topology as text.
fn topologies() -> impl Strategy<Value = String> {
    let record = prop::sample::select(vec![
        "{A}",
        "{B}",
        "{A, B}",
        "{<T>}",
        "{A, <T>}",
        "{}",
        "{<#C>}",
        "{A, <#C>}",
    ]);
    let pattern = (record.clone(), 0..10).prop_map(|(record, guard)| match guard {
        0 | 1 if record.contains("<T>") => format!("{record} if <T == 1>"),
        0 | 1 => format!("{record} if <{guard} == 1>"),
        _ => record.to_string(),
    });
    let leaf = prop_oneof![
        4 => prop::sample::select(vec!["a", "b", "c", "d", "i", "m", "[]"]).prop_map(String::from),
        2 => (record.clone(), prop::sample::select(vec!["", "{}", "{<T>}", "{<T>}; \
            {<S>}", "{<#C>}"]))
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

/// Asserts that lists are flat and have two or more parts.
fn assert_sound(net: &plan::Net) {
    net.root().visit(&mut |node| match node {
        Node::Serial(parts) => {
            assert!(parts.len() >= 2 && !parts.iter().any(|p| matches!(p, Node::Serial(_))));
        }
        Node::Parallel(parallel) => assert!(parallel.branches.len() >= 2),
        _ => {}
    });
}

/// A record of this shape with small random numbers.
fn record(shape: Shape, random: &mut fastrand::Rng) -> Record {
    let pairs = shape.labels().iter().map(|label| match label.kind() {
        Kind::Field => (*label, Value::from(0)),
        Kind::Tag | Kind::BindingTag => (*label, Value::Tag(random.i32(0..3))),
    });
    Record::from_pairs(pairs).unwrap()
}

/// A program with boxes, an inner net and a net.
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
    fn check_of_any_program_terminates(topology in topologies(), inner in topologies(), signature in 0..4usize) {
        let checked = checked(&program(&topology, &inner, signature));
        if let Some(net) = checked.net {
            assert_sound(&net);
        }
    }

    #[test]
    fn records_are_routed_in_nets_without_diagnostics(
        topology in topologies(),
        inner in topologies(),
        signature in 0..4usize,
        seed in any::<u64>(),
    ) {
        let source = program(&topology, &inner, signature);
        let checked = checked(&source);
        let warnings = [" could not take ", " would take ", "too large to check"];
        prop_assume!(!checked.diagnostics.iter().any(|d| warnings.iter().any(|doubt| d.message.contains(doubt))));
        let Some(net) = checked.net.filter(|net| !net.input().is_empty()) else {
            return Ok(());
        };
        let random = RefCell::new(fastrand::Rng::with_seed(seed));
        // Boxes output up to three records of random variants.
        let call = |plan: &plan::BoxPlan, _: &[Value]| {
            let random = &mut *random.borrow_mut();
            let count = if plan.input.is_none() { 1 } else { random.usize(0..4) };
            let outputs = (0..count).filter_map(|_| {
                let variant = random.usize(0..plan.outputs.len().max(1));
                let values = plan.outputs.get(variant)?.iter().map(|label| match label.kind() {
                    Kind::Field => Value::from(0),
                    Kind::Tag | Kind::BindingTag => Value::Tag(random.i32(0..3)),
                });
                Some((variant, values.collect()))
            });
            outputs.collect()
        };
        let shape = |_| net.input()[random.borrow_mut().usize(0..net.input().len())];
        let shapes: Vec<Shape> = (0..30).map(shape).collect();
        let input: Vec<Record> =
            shapes.into_iter().map(|shape| record(shape, &mut random.borrow_mut())).collect();
        let outcome = interpret(&net, &call, &input, Some(seed), 2_000);
        // Stars and feedback may not terminate.
        let lost = outcome.errors.iter().find(|error| !error.ends_with(ENDLESS));
        prop_assert_eq!(lost, None, "in {}", source);
        let starts = net.boxes().iter().any(|b| b.input.is_none());
        for made in outcome.records {
            prop_assert!(starts || net.output().contains(&made.shape()), "{:?} in {}: {:?}", made,
                source, net.output());
        }
    }
}
