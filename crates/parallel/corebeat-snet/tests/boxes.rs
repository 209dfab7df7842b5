//! Boxes: registered in Rust, loaded from libraries, and compiled from files and programs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock, RwLock, RwLockReadGuard};
use std::time::Duration;

use corebeat_snet::ast::{Body, Name, Span};
use corebeat_snet::body::{BoxBody, Out, Sink};
use corebeat_snet::plan::{BoxEntry, BoxPlan};
use corebeat_snet::{
    Array, Boxes, C_ENTRIES_MAX, C_HEADERS, Element, Error, Label, Scalar, Shape, Shared, Tag,
    Value,
};

/// Allocator that counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all calls go to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller guarantees the conditions of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees the conditions of the system allocator.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn label(text: &str) -> Label {
    text.parse().expect("a test uses few labels")
}

fn labels(text: &str) -> Vec<Label> {
    text.split_whitespace().map(label).collect()
}

/// Declaration of a box: labels are separated by spaces, and variants by `|`. `-` is no variant.
fn plan(name: &str, input: &str, outputs: &str) -> BoxPlan {
    let input = labels(input);
    let outputs =
        if outputs == "-" { Vec::new() } else { outputs.split('|').map(labels).collect() };
    BoxPlan {
        name: name.into(),
        accepts: Shape::new(input.clone()).expect("a test uses few shapes"),
        input: Some(input.into_iter().map(|label| BoxEntry { label, passes: false }).collect()),
        outputs,
        body: None,
    }
}

/// Declaration of a box with code in the program.
fn with_code(plan: BoxPlan, language: &str, code: &str) -> BoxPlan {
    let span = Span { start: 0, end: 0 };
    let language = Name { text: language.into(), span };
    BoxPlan { body: Some(Body { language, code: code.into(), span }), ..plan }
}

/// Sink that stores output records.
#[derive(Default)]
struct Kept {
    records: Records,
    /// Number of accepted records. 0 is unlimited.
    wanted: usize,
}

impl Sink for Kept {
    fn put(&mut self, variant: usize, values: &mut [Value]) -> bool {
        self.records.push((variant + 1, values.iter_mut().map(std::mem::take).collect()));
        self.records.len() != self.wanted
    }
}

/// Variants and their values.
type Records = Vec<(usize, Vec<Value>)>;

/// Outputs and result of a box for these values.
fn call(body: &dyn BoxBody, plan: &BoxPlan, input: Vec<Value>) -> (Records, Result<(), String>) {
    let (mut kept, mut input) = (Kept::default(), input);
    let ended = body.call(&mut input, &mut Out::new(plan, &mut kept));
    (kept.records, ended)
}

/// Outputs of the box with this declaration for these values.
fn made(boxes: &Boxes, plan: &BoxPlan, input: Vec<Value>) -> Records {
    let body = boxes.find(plan).unwrap_or_else(|e| panic!("{e}"));
    let (records, ended) = call(&*body, plan, input);
    ended.unwrap_or_else(|e| panic!("box {}: {e}", plan.name));
    records
}

/// Error of a call.
fn failure(boxes: &Boxes, plan: &BoxPlan, input: Vec<Value>) -> String {
    let body = boxes.find(plan).unwrap_or_else(|e| panic!("{e}"));
    call(&*body, plan, input).1.expect_err("the call fails")
}

fn refusal(result: Result<impl Sized, Error>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(e) => e.to_string(),
    }
}

/// Lock that tests of boxes in C share. The test that counts fields locks it exclusively.
static CALLING: RwLock<()> = RwLock::new(());

fn calling() -> RwLockReadGuard<'static, ()> {
    CALLING.read().unwrap_or_else(|e| e.into_inner())
}

/// Folder below the target folder, with the header and the libraries of the tests. The libraries
/// stay loaded, so no test can remove the folder.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("boxes");
    fs::create_dir_all(&folder).expect("cannot create a folder");
    fs::write(folder.join("C4SNet.h"), C_HEADERS[0].1).expect("cannot write the header");
    fs::write(folder.join("memfun.h"), "").expect("cannot write a header");
    fs::write(folder.join("bool.h"), "#include <stdbool.h>\n").expect("cannot write a header");
    folder
});

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

/// Compiles like users do, with all warnings as errors.
fn library(name: &str, compiler: &str, options: &[&str], sources: &[&str]) -> PathBuf {
    let library = FOLDER.join(name);
    let ended = Command::new(compiler)
        .args(["-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .args(options)
        .arg("-I")
        .arg(&*FOLDER)
        .arg("-o")
        .arg(&library)
        .args(sources.iter().map(|name| source(name)))
        .output()
        .expect("cannot start the compiler");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    library
}

fn loaded(library: &Path) -> Boxes {
    let mut boxes = Boxes::new();
    boxes.load_library(library).unwrap_or_else(|e| panic!("{e}"));
    boxes
}

static TYPE: LazyLock<PathBuf> =
    LazyLock::new(|| library("type.so", "cc", &["-std=c99"], &["type.c"]));
static OWNER: LazyLock<PathBuf> =
    LazyLock::new(|| library("owner.so", "cc", &["-std=c11"], &["owner.c"]));

// Boxes in Rust.

#[test]
fn rust_function_outputs_records() {
    let boxes = Boxes::new()
        .with("down", "(A, <T>) -> (A) | (B, <T>)", |(a, Tag(t)): (i32, Tag), out: &mut Out| {
            out.emit(1, (a - 1,))?;
            out.emit(2, (format!("{a}"), Tag(t + 1)))
        })
        .unwrap_or_else(|e| panic!("{e}"));
    let plan = plan("down", "A <T>", "A|B <T>");
    let records = made(&boxes, &plan, vec![Value::from(3), Value::Tag(5)]);
    assert_eq!(records, [(1, vec![Value::from(2)]), (2, vec![Value::from("3"), Value::Tag(6)])]);
}

#[test]
fn rust_function_takes_and_outputs_all_types() {
    fn same<T: corebeat_snet::Argument + Into<Value> + 'static>(value: impl Into<Value>) {
        let value = value.into();
        let boxes = Boxes::new()
            .with("same", "((A) -> (A))", |(a,): (T,), out: &mut Out| out.emit(1, (a,)))
            .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(made(&boxes, &plan("same", "A", "A"), vec![value.clone()]), [(1, vec![value])]);
    }
    same::<u8>(200_u8);
    same::<i8>(-3_i8);
    same::<u16>(60_000_u16);
    same::<i16>(-3_i16);
    same::<u32>(u32::MAX);
    same::<i32>(i32::MIN);
    same::<u64>(u64::MAX);
    same::<i64>(i64::MIN);
    same::<f32>(0.1_f32);
    same::<f64>(0.1);
    same::<String>("größer");
    same::<Value>(Value::native(3_u8));
    same::<Vec<u8>>(vec![1_u8, 2]);
    same::<Vec<f64>>(vec![0.5, 1.5, 2.5]);
    same::<Vec<f64>>(vec![0.5]);
    same::<Vec<i64>>(Vec::<i64>::new());
    same::<Arc<Array>>(Arc::new(Array::zeroed(Element::LongDouble, 2)));
    same::<Shared<&str>>(Shared::new("shared"));
}

#[test]
fn rust_function_takes_equal_numbers_of_other_types() {
    let boxes = Boxes::new()
        .with("numbers", "(A, B, C) -> (D)", |(a, b, c): (i64, u8, f64), out: &mut Out| {
            out.emit(1, (vec![a as f64, b.into(), c],))
        })
        .unwrap_or_else(|e| panic!("{e}"));
    let plan = plan("numbers", "A B C", "D");
    let records =
        made(&boxes, &plan, vec![Value::from(-5_i16), Value::from(200_u64), Value::from(7_i32)]);
    assert_eq!(records, [(1, vec![Value::from(vec![-5.0, 200.0, 7.0])])]);
}

#[test]
fn rust_function_shares_values_of_rust() {
    struct Tile(Vec<f64>);
    let boxes = Boxes::new()
        .with("tile", "(A) -> (A, B)", |(a,): (Shared<Tile>,), out: &mut Out| {
            let n = a.0.len() as i32;
            out.emit(1, (a, n))
        })
        .unwrap_or_else(|e| panic!("{e}"));
    let tile = Value::native(Tile(vec![1.0; 5]));
    let records = made(&boxes, &plan("tile", "A", "A B"), vec![tile.clone()]);
    assert_eq!(records, [(1, vec![tile, Value::from(5)])]);
    assert!(Shared::new(3).into_inner().is_ok());
    let kept = Shared::new(3);
    assert!(kept.clone().into_inner().is_err());
}

#[test]
fn rust_function_with_wrong_argument_reports_the_expected_type() {
    let boxes = Boxes::new()
        .with("i", "(A, <T>) -> (A)", |(_, _): (i32, Tag), _: &mut Out| ())
        .and_then(|b| b.with("b", "(A) -> (A)", |(_,): (u8,), _: &mut Out| ()))
        .and_then(|b| b.with("s", "(A) -> (A)", |(_,): (String,), _: &mut Out| ()))
        .and_then(|b| b.with("v", "(A) -> (A)", |(_,): (Vec<f64>,), _: &mut Out| ()))
        .and_then(|b| b.with("n", "(A) -> (A)", |(_,): (Shared<Vec<u8>>,), _: &mut Out| ()))
        .unwrap_or_else(|e| panic!("{e}"));
    let table = [
        ("i", Value::from(3.5), "expected i32 for A, found (double)3.5: i ((A, <T>) -> (A))"),
        ("b", Value::from(300), "expected u8 for A, found (int)300: b ((A) -> (A))"),
        (
            "s",
            Value::bytes(b"abc"),
            "expected String for A, found (unsigned char[3]): s ((A) -> \
                                     (A))",
        ),
        ("v", Value::from("abc"), "expected Vec<f64> for A, found \"abc\": v ((A) -> (A))"),
        (
            "n",
            Value::native(1_u8),
            "expected Shared<alloc::vec::Vec<u8>> for A, found (u8): n ((A) -> (A))",
        ),
    ];
    for (name, value, message) in table {
        let (plan, input) = match name {
            "i" => (plan(name, "A <T>", "A"), vec![value, Value::Tag(1)]),
            _ => (plan(name, "A", "A"), vec![value]),
        };
        assert_eq!(failure(&boxes, &plan, input), message);
    }
}

#[test]
fn rust_function_failure_or_undeclared_output_is_an_error() {
    let boxes = Boxes::new()
        .with("fails", "(<T>) -> (A)", |(_,): (Tag,), _: &mut Out| Err::<(), _>("no room"))
        .and_then(|b| {
            b.with("lies", "(<T>) -> (A)", |(t,): (Tag,), out: &mut Out| match t.0 {
                0 => out.emit(2, (1,)),
                1 => out.emit(1, ()),
                _ => out.emit(1, (t,)),
            })
        })
        .unwrap_or_else(|e| panic!("{e}"));
    let call = |name, t| failure(&boxes, &plan(name, "<T>", "A"), vec![Value::Tag(t)]);
    assert_eq!(call("fails", 0), "no room");
    assert_eq!(
        call("lies", 0),
        "the box output variant 2, but declares 1 variant: lies ((<T>) -> (A))"
    );
    assert_eq!(
        call("lies", 1),
        "the box output 0 values as variant 1, which has 1: lies ((<T>) -> (A))"
    );
    assert_eq!(
        call("lies", 2),
        "the box output 2 as A of variant 1: lies ((<T>) -> (A)); A is a field: write \
         `Value::from(2)`"
    );
}

#[test]
fn rust_function_with_another_signature_is_refused() {
    let one = |signature: &str| {
        refusal(Boxes::new().with("f", signature, |(_,): (i32,), _: &mut Out| ()))
    };
    let cure = "; write it as `(A, <T>) -> (A) | (B)`";
    for (signature, message) in [
        ("", "expected `(`, found `)`"),
        ("A -> B", "each list of labels of a box needs parentheses"),
        ("(A) (B)", "expected `->`, found `(`"),
        ("(A -> (B)", "expected `,` or `)`, found `->`"),
        ("(A,) -> (B)", "expected a label: `NAME`, `<TAG>` or `<#TAG>`, found `)`"),
        ("(A) -> (<T)", "expected `>`, found `)`"),
        ("(A) -> (3)", "expected a label: `NAME`, `<TAG>` or `<#TAG>`, found `3`"),
        ("(A, A) -> (B)", "A occurs twice in one list"),
        ("((A) -> (B)", "expected `)`, found `;`"),
        ("(A) -> (B) | ", "expected `(`, found `)`"),
        ("(A) -> (B))", "expected `;` or `{<<<`, found `)`"),
        ("(A) -> (B)); box g ((A) -> (B)", "expected the end after it"),
    ] {
        assert_eq!(
            one(signature),
            format!("the signature `{signature}` of box f is invalid: {message}{cure}")
        );
    }
    for (signature, message) in [
        (
            "(A, B) -> (B)",
            "box f (A, B) -> (B): the function takes 1 values, (i32,), but the signature has 2",
        ),
        ("-> (B)", "box f -> (B): the function takes 1 values, (i32,), but the signature has 0"),
        ("(<T>) -> ", "box f (<T>) ->: <T> is a tag, but the function takes i32: use Tag"),
    ] {
        assert_eq!(one(signature), message);
    }
    let tag = Boxes::new().with("f", "(A) -> (A)", |(_,): (Tag,), _: &mut Out| ());
    assert_eq!(
        refusal(tag),
        "box f (A) -> (A): A is a field, but the function takes a Tag: use a field type"
    );
    let f = |(): (), _: &mut Out<'_>| ();
    assert_eq!(
        refusal(Boxes::new().with("f", "->", f).and_then(|b| b.with("f", "->", f))),
        "box f has two functions: remove one of them"
    );
}

#[test]
fn rust_function_for_another_declaration_is_refused() {
    let boxes = Boxes::new()
        .with("f", "(A, <T>) -> (A) | ()", |(_, _): (Value, Tag), _: &mut Out| ())
        .unwrap_or_else(|e| panic!("{e}"));
    assert!(boxes.find(&plan("f", "A <T>", "A|")).is_ok());
    for (input, outputs, declared) in [
        ("<T> A", "A|", "f ((<T>, A) -> (A) | ())"),
        ("A <T>", "A", "f ((A, <T>) -> (A))"),
        ("A <#T>", "A|", "f ((A, <#T>) -> (A) | ())"),
    ] {
        let message = refusal(boxes.find(&plan("f", input, outputs)));
        let given = "f ((A, <T>) -> (A) | ())";
        assert_eq!(
            message,
            format!(
                "the program declares box {declared}, but its function is {given}: make them equal"
            )
        );
    }
    assert_eq!(
        refusal(boxes.find(&plan("g", "A", "A"))),
        "box g has no function; add a library or a source file that defines it, or write its code \
         into the program"
    );
}

#[test]
fn rust_function_of_one_number_allocates_nothing() {
    struct Last(i128);
    impl Sink for Last {
        fn put(&mut self, _: usize, values: &mut [Value]) -> bool {
            self.0 += values[0].integer().unwrap_or(0);
            true
        }
    }
    let boxes = Boxes::new()
        .with("down", "(A) -> (A)", |(a,): (i32,), out: &mut Out| out.emit(1, (a - 1,)))
        .unwrap_or_else(|e| panic!("{e}"));
    let plan = plan("down", "A", "A");
    let body = boxes.find(&plan).unwrap_or_else(|e| panic!("{e}"));
    let mut sum = Last(0);
    let before = ALLOCATIONS.get();
    for n in 0..1000 {
        assert!(body.call(&mut [Value::from(n)], &mut Out::new(&plan, &mut sum)).is_ok());
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(sum.0, (0..1000).map(|n| n - 1).sum::<i128>());
}

// Boxes in C.

/// Values of each C type with `n` elements, and their sums.
fn values_of_every_type(n: usize) -> Vec<(Value, f64)> {
    let of = |element: Element, one: &[u8]| {
        let bytes = one.repeat(n);
        match n == 1 && one.len() <= 8 {
            true => {
                let mut word = [0; 8];
                word[..one.len()].copy_from_slice(one);
                Value::Scalar(Scalar::new(element, word))
            }
            false => Value::Array(Arc::new(Array::from_bytes(element, &bytes))),
        }
    };
    // 1.5 in the 80 bits of x86 and the 128 bits of AArch64.
    let long_double: [u8; 16] = match cfg!(target_arch = "x86_64") {
        true => (0x3fff_c000_0000_0000_0000_u128).to_le_bytes(),
        false => (0x3fff_8000_u128 << 96).to_le_bytes(),
    };
    let n = n as f64;
    vec![
        (of(Element::UChar, &[200]), 200.0 * n),
        (of(Element::Char, &(-7_i8).to_ne_bytes()), -7.0 * n),
        (of(Element::UShort, &60_000_u16.to_ne_bytes()), 60_000.0 * n),
        (of(Element::Short, &(-300_i16).to_ne_bytes()), -300.0 * n),
        (of(Element::UInt, &4_000_000_000_u32.to_ne_bytes()), 4e9 * n),
        (of(Element::Int, &(-70_000_i32).to_ne_bytes()), -7e4 * n),
        (of(Element::ULong, &(1_u64 << 63).to_ne_bytes()), (1_u64 << 63) as f64 * n),
        (of(Element::Long, &(-1_i64 << 40).to_ne_bytes()), (-1_i64 << 40) as f64 * n),
        (of(Element::Float, &1.5_f32.to_ne_bytes()), 1.5 * n),
        (of(Element::Double, &(-2.25_f64).to_ne_bytes()), -2.25 * n),
        (of(Element::LongDouble, &long_double), 1.5 * n),
        (of(Element::Pointer, &0xdead_beef_u64.to_ne_bytes()), 0.0),
    ]
}

#[test]
fn c_box_takes_and_outputs_values_of_every_type() {
    let _calling = calling();
    let boxes = loaded(&TYPE);
    let (echo, sum) = (plan("echo", "A", "A <bytes> <count>"), plan("sum", "A", "S"));
    for n in [1, 0, 2, 1000] {
        for (i, (value, total)) in values_of_every_type(n).into_iter().enumerate() {
            let (bytes, count) = (Value::Tag(Element::ALL[i].size() as i32), Value::Tag(n as i32));
            assert_eq!(
                made(&boxes, &echo, vec![value.clone()]),
                [(1, vec![value.clone(), bytes, count])]
            );
            assert_eq!(
                made(&boxes, &sum, vec![value.clone()]),
                [(1, vec![Value::from(total + 0.0)])],
                "{value:?}"
            );
        }
    }
}

#[test]
fn c_box_creates_scalars_arrays_and_texts() {
    let _calling = calling();
    let boxes = loaded(&TYPE);
    let add = plan("add", "A", "A");
    assert_eq!(made(&boxes, &add, vec![Value::from(41)]), [(1, vec![Value::from(42)])]);
    let text = plan("text", "A", "A B");
    let expected = vec![Value::from("a text"), Value::from("# text")];
    assert_eq!(made(&boxes, &text, vec![Value::from("a text")]), [(1, expected)]);
    let list = plan("list", "<N>", "A");
    for n in [1, 0, 5] {
        let longs: Vec<i64> = (1..=n.into()).rev().collect();
        assert_eq!(made(&boxes, &list, vec![Value::Tag(n)]), [(1, vec![Value::from(longs)])]);
    }
    assert_eq!(made(&boxes, &plan("none", "", "A"), vec![]), [(1, vec![Value::from(0)])]);
    let native = Value::native(5_u8);
    assert_eq!(made(&boxes, &plan("opaque", "A", "A"), vec![native.clone()]), [(1, vec![native])]);
}

#[test]
fn c_box_is_called_with_any_number_of_arguments() {
    let _calling = calling();
    let boxes = loaded(&library("arity.so", "cc", &["-std=c99"], &["arity.c"]));
    for n in 0..=C_ENTRIES_MAX {
        let names: Vec<String> =
            (0..n).map(|i| if i % 3 == 0 { format!("F{i}") } else { format!("<T{i}>") }).collect();
        let value = |i: usize| match i % 3 {
            0 => Value::from(i as i64 - 3_000_000_000),
            _ => Value::Tag(-100_000 - i as i32),
        };
        let total: i64 =
            (0..n).map(|i| (i as i64 + 1) * value(i).integer().unwrap_or(0) as i64).sum();
        let plan = plan(&format!("arity{n}"), &names.join(" "), "S");
        assert_eq!(
            made(&boxes, &plan, (0..n).map(value).collect()),
            [(1, vec![Value::from(total)])],
            "{n}"
        );
    }
    let names: Vec<String> = (0..C_ENTRIES_MAX)
        .map(|i| if i.is_multiple_of(2) { format!("F{i}") } else { format!("<T{i}>") })
        .collect();
    let many = made(&boxes, &plan("many", "", &names.join(" ")), vec![]);
    let value = |i: usize| if i.is_multiple_of(2) { Value::from(7) } else { Value::Tag(i as i32) };
    assert_eq!(many, [(1, (0..C_ENTRIES_MAX).map(value).collect())]);
    let names: Vec<String> = (0..=C_ENTRIES_MAX).map(|i| format!("F{i}")).collect();
    for (input, output) in [(names.join(" "), "A".to_string()), (String::new(), names.join(" "))] {
        let message = refusal(boxes.find(&plan("many", &input, &output)));
        assert!(message.contains("has more than 24 fields and tags in one list"), "{message}");
    }
}

#[test]
fn c_box_makes_shallow_and_deep_copies() {
    let _calling = calling();
    let boxes = loaded(&OWNER);
    let records = made(&boxes, &plan("copies", "A", "A B C"), vec![Value::from("abc")]);
    assert_eq!(records, [(1, vec![Value::from("xbc"), Value::from("xbc"), Value::from("abc")])]);
}

#[test]
fn c_box_that_uses_a_freed_field_is_harmless() {
    let _calling = calling();
    let boxes = loaded(&OWNER);
    let seven = (1, vec![Value::from(7)]);
    assert_eq!(
        made(&boxes, &plan("twice", "A", "A"), vec![Value::from(7)]),
        [seven.clone(), seven.clone()]
    );
    let nothing = made(&boxes, &plan("null", "A", "A"), vec![Value::from(1)]);
    assert!(
        matches!(&nothing[..], [(1, values)] if matches!(&values[..], [Value::Array(a)] if a.is_empty()))
    );
    let both = (2, vec![Value::from(7), Value::from(7)]);
    assert_eq!(made(&boxes, &plan("own", "", "A|A B"), vec![]), [seven.clone(), both, seven]);
    for (name, input, output, value) in [
        ("late", "A", "A", Value::from(1)),
        ("gone", "", "A", Value::from(1)),
        ("number", "<N>", "A <N>", Value::Tag(5)),
        ("number", "<N>", "A <N>", Value::Tag(-1)),
    ] {
        let plan = plan(name, input, output);
        let input = if input.is_empty() { vec![] } else { vec![value] };
        let expected =
            format!("the box output an invalid or freed field as A of variant 1: {plan}");
        assert_eq!(failure(&boxes, &plan, input), expected);
    }
}

#[test]
fn c_box_failure_or_undeclared_output_is_an_error() {
    let _calling = calling();
    let boxes = loaded(&OWNER);
    let variant = plan("variant", "<N>", "<N>");
    for n in [0, 2, -1, i32::MIN] {
        let expected = format!("the box output variant {n}, but declares 1 variant: {variant}");
        assert_eq!(failure(&boxes, &variant, vec![Value::Tag(n)]), expected);
    }
    let fails = plan("fails", "<N>", "<N>");
    let body = boxes.find(&fails).unwrap_or_else(|e| panic!("{e}"));
    let ended = call(&*body, &fails, vec![Value::Tag(3)]);
    assert_eq!(ended, (vec![(1, vec![Value::Tag(3)])], Err("no such; file".into())));
}

#[test]
fn c_box_with_endless_output_ends_without_a_reader() {
    let _calling = calling();
    let boxes = loaded(&OWNER);
    let plan = plan("endless", "<N>", "<N>");
    let body = boxes.find(&plan).unwrap_or_else(|e| panic!("{e}"));
    let mut kept = Kept { wanted: 5, ..Kept::default() };
    assert_eq!(body.call(&mut [Value::Tag(1)], &mut Out::new(&plan, &mut kept)), Ok(()));
    assert_eq!(kept.records.len(), 5);
}

#[test]
fn c_box_returns_before_a_panic_of_the_network_unwinds() {
    struct Panics;
    impl Sink for Panics {
        fn put(&mut self, _: usize, _: &mut [Value]) -> bool {
            std::panic::resume_unwind(Box::new("from the sink"))
        }
    }
    let _calling = calling();
    let boxes = loaded(&OWNER);
    let plan = plan("endless", "<N>", "<N>");
    let body = boxes.find(&plan).unwrap_or_else(|e| panic!("{e}"));
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        body.call(&mut [Value::Tag(1)], &mut Out::new(&plan, &mut Panics))
    }));
    let payload = ended.expect_err("the panic goes on");
    assert_eq!(payload.downcast_ref(), Some(&"from the sink"));
}

#[test]
fn c_boxes_of_each_c_standard_work() {
    let _calling = calling();
    for standard in ["-std=gnu99", "-std=gnu11", "-std=gnu17"] {
        let boxes = loaded(&library(&format!("old{standard}.so"), "cc", &[standard], &["old.c"]));
        let oldest = plan("oldest", "A <T>", "A|<T>");
        let sum = (1, vec![Value::from(5)]);
        assert_eq!(
            made(&boxes, &oldest, vec![Value::from(3), Value::Tag(2)]),
            [sum.clone(), (2, vec![Value::Tag(2)]), sum]
        );
        let contained = plan("contained", "A <#B> <T>", "<T> A <#B> C");
        let row =
            vec![Value::Tag(2), Value::from(vec![1, 2]), Value::Tag(6), Value::from(vec![5, 5, 5])];
        assert_eq!(
            made(&boxes, &contained, vec![Value::from(0), Value::Tag(5), Value::Tag(1)]),
            [(1, row)]
        );
        let uncontained = plan("uncontained", "<T>", "<T>|<T>");
        for (t, message) in [
            (1, "the box set more values of a container than the variant has"),
            (2, "the box set more values of a container than the variant has"),
            (
                3,
                "the box output variant 3, but declares 2 variants: uncontained ((<T>) -> (<T>) | \
                 (<T>))",
            ),
        ] {
            assert_eq!(failure(&boxes, &uncontained, vec![Value::Tag(t)]), message);
        }
    }
}

#[test]
fn c_library_of_several_files_works() {
    let _calling = calling();
    for compiler in ["cc", "clang"] {
        if Command::new(compiler).arg("--version").output().is_err() {
            eprintln!("skipped: {compiler} is not installed (apt install {compiler})");
            continue;
        }
        let name = format!("two-{compiler}.so");
        let boxes = loaded(&library(
            &name,
            compiler,
            &["-std=c11", "-fvisibility=default"],
            &["first.c", "second.c"],
        ));
        assert_eq!(
            made(&boxes, &plan("first", "<N>", "<N>"), vec![Value::Tag(1)]),
            [(1, vec![Value::Tag(2)])]
        );
        assert_eq!(
            made(&boxes, &plan("second", "<N>", "<N>"), vec![Value::Tag(1)]),
            [(1, vec![Value::Tag(3)])]
        );
    }
}

#[test]
fn cpp_boxes_work() {
    let _calling = calling();
    let boxes = loaded(&library("plus.so", "c++", &["-std=c++17"], &["plus.cpp"]));
    let sorted = plan("sorted", "A", "A");
    assert_eq!(
        made(&boxes, &sorted, vec![Value::from(vec![3, 1, 2])]),
        [(1, vec![Value::from(vec![1, 2, 3])])]
    );
    assert_eq!(
        made(&boxes, &plan("old", "<N>", "A"), vec![Value::Tag(4)]),
        [(1, vec![Value::from(4)])]
    );
}

#[test]
fn c_boxes_hold_only_fields_they_have_not_released() {
    let _alone = CALLING.write().unwrap_or_else(|e| e.into_inner());
    let (types, owners) = (loaded(&TYPE), loaded(&OWNER));
    let before = Boxes::fields_held();
    for _ in 0..100 {
        for (value, _) in values_of_every_type(3) {
            made(&types, &plan("echo", "A", "A <bytes> <count>"), vec![value]);
        }
        made(&types, &plan("text", "A", "A B"), vec![Value::from("text")]);
        made(&types, &plan("opaque", "A", "A"), vec![Value::native(1)]);
        made(&owners, &plan("copies", "A", "A B C"), vec![Value::from("abc")]);
        made(&owners, &plan("twice", "A", "A"), vec![Value::from(7)]);
        made(&owners, &plan("own", "", "A|A B"), vec![]);
        failure(&owners, &plan("gone", "", "A"), vec![]);
        failure(&owners, &plan("late", "A", "A"), vec![Value::from(7)]);
    }
    assert_eq!(Boxes::fields_held(), before);
    let shared = Arc::new(Array::zeroed(Element::Int, 3));
    for n in 1..=3 {
        made(&owners, &plan("leak", "A", "A"), vec![Value::Array(Arc::clone(&shared))]);
        assert_eq!(Boxes::fields_held(), before + n);
    }
    made(&owners, &plan("copies", "A", "A B C"), vec![Value::Array(Arc::clone(&shared))]);
    assert_eq!(
        Arc::strong_count(&shared),
        1 + 3,
        "one reference here, and one for each stored copy"
    );
}

#[test]
fn c_box_runs_on_many_threads_concurrently() {
    let _calling = calling();
    let boxes = loaded(&TYPE);
    let (add, text) = (plan("add", "A", "A"), plan("text", "A", "A B"));
    let start = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (boxes, add, text, start) = (&boxes, &add, &text, &start);
            scope.spawn(move || {
                start.wait();
                for n in thread * 10_000..thread * 10_000 + 2_000 {
                    assert_eq!(
                        made(boxes, add, vec![Value::from(n)]),
                        [(1, vec![Value::from(n + 1)])]
                    );
                    let word = format!("a{n}");
                    let other = format!("#{n}");
                    let expected = vec![Value::from(&*word), Value::from(&*other)];
                    assert_eq!(made(boxes, text, vec![Value::from(&*word)]), [(1, expected)]);
                }
            });
        }
    });
}

#[test]
fn unusable_c_library_is_an_error_with_its_reason() {
    let write = |name: &str, code: &str, options: &[&str]| {
        let (source, library) =
            (FOLDER.join(format!("{name}.c")), FOLDER.join(format!("{name}.so")));
        fs::write(&source, code).expect("cannot write a source");
        let ended = Command::new("cc")
            .args(["-shared", "-fPIC", "-I"])
            .arg(&*FOLDER)
            .args(options)
            .arg("-o")
            .args([&library, &source])
            .output()
            .expect("cannot start the compiler");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        library
    };
    let text = FOLDER.join("text.so");
    fs::write(&text, "not a library").expect("cannot write a file");
    let version = C_HEADERS[0]
        .1
        .replace("#define COREBEAT_SNET_VERSION 1", "#define COREBEAT_SNET_VERSION 77");
    fs::write(FOLDER.join("C4SNet-77.h"), version).expect("cannot write a header");
    let original = "void *C4SNetGetData(void *); void *foo(void *hnd, void *a) { \
                    C4SNetGetData(a); return hnd; }";
    let misspelt = "#include \"C4SNet.h\"\nvoid C4SNetFre(c4snet_data_t *);\n\
                    void *foo(void *hnd, c4snet_data_t *a) { C4SNetFre(a); return hnd; }";
    let missing = "#include \"C4SNet.h\"\nvoid missing(void);\n\
                   void *foo(void *hnd) { missing(); return hnd; }";
    for (path, message) in [
        (FOLDER.join("nowhere.so"), "cannot read the file: No such file or directory"),
        (FOLDER.clone(), "not a file"),
        (text, "cannot load the library: "),
        (
            write("empty", "int a;", &[]),
            "the library contains no boxes: include C4SNet.h in its \
                                         sources",
        ),
        (
            write("other", "#include \"C4SNet-77.h\"\nvoid *foo(void *hnd) { return hnd; }", &[]),
            "the library was compiled with version 77 of C4SNet.h, but this program has version \
             1: compile it again",
        ),
        (
            write("original", original, &[]),
            "cannot load the library: undefined symbol: C4SNetGetData; the library was compiled \
             with another C4SNet.h: compile it with the header of `corebeat net header`",
        ),
        (
            write("misspelt", misspelt, &[]),
            "cannot load the library: undefined symbol: C4SNetFre; C4SNet.h has no such function: \
             did you mean C4SNetFree?",
        ),
        // The name of the file must not matter.
        (
            write("missing-C4SNet", missing, &[]),
            "cannot load the library: undefined symbol: missing; check its spelling, or link the \
             library that defines it",
        ),
    ] {
        let error = refusal(Boxes::new().load_library(&path));
        assert!(error.starts_with(&format!("{}: {message}", path.display())), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn c_library_provides_only_its_own_functions() {
    let library = library("only.so", "cc", &[], &["first.c", "second.c"]);
    let boxes = loaded(&library);
    // An undefined function, a variable, and a function of the C library.
    for name in ["third", "a_variable", "strlen", "corebeat_snet_api", "C4SNetOut"] {
        let expected = format!(
            "box {name} has no function in {}; define a C or Python function with the name of the \
             box (in C++ as `extern \"C\"`, and not `static`), or export it from Rust with \
             `export_boxes!`",
            library.display()
        );
        assert_eq!(refusal(boxes.find(&plan(name, "<N>", "<N>"))), expected);
    }
}

// Boxes in Rust, in a library.

/// Builds an example. Returns its library.
fn rust_library(name: &str) -> PathBuf {
    let ended = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--example", name, "--message-format=json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cannot start cargo");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let artifacts = String::from_utf8_lossy(&ended.stdout);
    let artifact = artifacts.lines().rev().find(|line| line.contains("cdylib")).unwrap();
    let artifact: serde_json::Value = serde_json::from_str(artifact).unwrap();
    artifact["filenames"][0].as_str().unwrap().into()
}

static RUST: LazyLock<PathBuf> = LazyLock::new(|| rust_library("boxes"));

/// The page shows this example.
#[test]
fn rust_library_of_the_page_runs() {
    let _calling = calling();
    let page = include_str!("../../../../docs/snet.md");
    let (_, code) = include_str!("../examples/words.rs").split_once("\n\n").unwrap();
    assert!(page.contains(code), "the page must show examples/words.rs");
    let words = plan("words", "text", "word <length>");
    let expected =
        ["a", "größer"].map(|word| (1, vec![word.into(), Value::Tag(word.len() as i32)]));
    let boxes = loaded(&rust_library("words"));
    assert_eq!(made(&boxes, &words, vec![Value::from(" a größer ")]), expected);
}

#[test]
fn rust_library_takes_and_outputs_values() {
    let _calling = calling();
    let boxes = loaded(&RUST);
    let half = plan("half", "numbers <n>", "numbers|<rest>");
    for numbers in [vec![1.0], vec![], vec![1.0, 3.0]] {
        let halves: Vec<f64> = numbers.iter().map(|x| x / 2.0).collect();
        let records = made(&boxes, &half, vec![Value::from(numbers), Value::Tag(7)]);
        assert_eq!(records, [(1, vec![Value::from(halves)]), (2, vec![Value::Tag(1)])]);
    }
    // Each C type, and a Rust value of the program, which the library cannot read.
    let pass = plan("pass", "A", "A");
    let values = [1, 0, 2].into_iter().flat_map(values_of_every_type).map(|(value, _)| value);
    for value in values.chain([Value::native(5_u8)]) {
        assert_eq!(made(&boxes, &pass, vec![value.clone()]), [(1, vec![value])]);
    }
}

#[test]
fn rust_library_reports_failures() {
    let _calling = calling();
    let boxes = loaded(&RUST);
    let half = plan("half", "numbers <n>", "numbers|<rest>");
    for (n, message) in [
        (0, "n is 0"),
        (1, "the box panicked: n is 1"),
        (
            2,
            "(alloc::vec::Vec<f64>) cannot leave the library of the box: convert it into text or numbers",
        ),
    ] {
        let input = vec![Value::from(vec![1.0, 2.0]), Value::Tag(n)];
        assert_eq!(failure(&boxes, &half, input), message);
    }
    let message = refusal(boxes.find(&plan("half", "numbers", "numbers")));
    let expected = "the program declares box half ((numbers) -> (numbers)), but its function is \
                    half ((numbers, <n>) -> (numbers) | (<rest>)): make them equal";
    assert_eq!(message, format!("{}: {expected}", RUST.display()));
    let message = refusal(boxes.find(&plan("third", "A", "A")));
    assert!(message.starts_with("box third has no function in "), "{message}");
}

#[test]
fn crate_in_rust_is_built_and_loaded() {
    let _calling = calling();
    let folder = tempfile::tempdir().expect("cannot create a folder");
    fs::create_dir(folder.path().join("src")).expect("cannot create a folder");
    let write = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).expect("cannot write a file");
    };
    let manifest =
        "[package]\nname = \"own\"\nversion = \"1.0.0\"\nedition = \"2021\"\n[workspace]\n";
    write("Cargo.toml", manifest);
    // The crate has no dependencies, so it builds fast. It is a box in C, written in Rust.
    write("src/lib.rs", include_str!("c/own.rs"));
    let build = || {
        let mut boxes = Boxes::new();
        boxes.compile([folder.path()]).map(|()| boxes)
    };
    let message = refusal(build());
    assert!(message.contains("the crate has no library of boxes: add `crate-type"), "{message}");
    write("Cargo.toml", &format!("{manifest}[lib]\ncrate-type = [\"cdylib\"]\n"));
    let boxes = build().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(made(&boxes, &plan("own", "<N>", "<N>"), vec![Value::Tag(4)]), []);
    write("src/lib.rs", "wrong");
    let message = refusal(build());
    assert!(message.starts_with("the boxes do not compile:\n"), "{message}");
}

// Boxes compiled from sources.

#[test]
fn source_files_are_compiled_and_loaded() {
    let _calling = calling();
    let mut boxes = Boxes::new();
    boxes
        .compile([source("old.c"), source("plus.cpp"), source("first.c"), source("second.c")])
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(
        made(&boxes, &plan("first", "<N>", "<N>"), vec![Value::Tag(1)]),
        [(1, vec![Value::Tag(2)])]
    );
    let sorted = plan("sorted", "A", "A");
    assert_eq!(
        made(&boxes, &sorted, vec![Value::from(vec![2, 1])]),
        [(1, vec![Value::from(vec![1, 2])])]
    );
    let oldest = plan("oldest", "A <T>", "A|<T>");
    assert_eq!(made(&boxes, &oldest, vec![Value::from(3), Value::Tag(2)]).len(), 3);
}

#[test]
fn old_source_file_is_compiled() {
    let _calling = calling();
    let mut boxes = Boxes::new();
    boxes.compile([source("lax.c")]).unwrap_or_else(|e| panic!("{e}"));
    for t in [-1, 1] {
        let truth = made(&boxes, &plan("truth", "<T>", "A"), vec![Value::Tag(t)]);
        assert_eq!(truth, [(1, vec![Value::from((t + 1) / 2)])]);
    }
    let doubled = made(&boxes, &plan("doubled", "A", "A"), vec![Value::from(vec![1, 2, 3])]);
    assert_eq!(doubled, [(1, vec![Value::from(vec![2, 4, 6])])]);
}

#[test]
fn error_in_a_source_file_has_its_place() {
    let bad = FOLDER.join("bad.c");
    fs::write(&bad, "#include <C4SNet.h>\nvoid *bad(void *hnd) { retrn hnd; }\n")
        .expect("cannot write a source");
    let message = refusal(Boxes::new().compile([&bad]));
    assert!(
        message.starts_with("the boxes do not compile:\n") && message.contains("bad.c:2:"),
        "{message}"
    );
    let message = refusal(Boxes::new().compile(["box.rs"]));
    assert_eq!(
        message,
        "box.rs: unknown kind of source file: rename it to end in .c, .cc, .cpp, .cxx or .py"
    );
    let message = refusal(Boxes::new().compile(["/nowhere/box.c"]));
    assert!(message.contains("/nowhere/box.c: No such file or directory"), "{message}");
}

#[test]
fn code_in_a_program_is_compiled() {
    let _calling = calling();
    let code = "
        static int next(int n) { return n + 1; }
        void *up(void *hnd, int n) { C4SNetOut(hnd, 1, next(n)); return hnd; }
    ";
    let more = "
        #include <string>
        static int next(int n) { return std::stoi(std::to_string(n) + \"0\"); }
        void *times(void *hnd, int n) { C4SNetOut(hnd, 1, next(n)); return hnd; }
    ";
    let plans: Vec<Arc<BoxPlan>> = [
        with_code(plan("up", "<N>", "<N>"), "C", code),
        plan("none", "<N>", "<N>"),
        with_code(plan("times", "<N>", "<N>"), "C++", more),
    ]
    .map(Arc::new)
    .into();
    let mut boxes = Boxes::new();
    boxes.compile_bodies(&plans).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(made(&boxes, &plans[0], vec![Value::Tag(4)]), [(1, vec![Value::Tag(5)])]);
    assert_eq!(made(&boxes, &plans[2], vec![Value::Tag(4)]), [(1, vec![Value::Tag(40)])]);
    for language in ["c", "C-Language"] {
        let plan = with_code(plan("up", "<N>", "<N>"), language, code);
        assert_eq!(made(&Boxes::new(), &plan, vec![Value::Tag(4)]), [(1, vec![Value::Tag(5)])]);
    }
}

#[test]
fn error_in_code_of_a_program_has_its_place() {
    let of = |language: &str, code: &str| {
        refusal(Boxes::new().find(&with_code(plan("foo", "<N>", "<N>"), language, code)))
    };
    let message = of("C", "\nvoid *foo(void *hnd, int n) { return x; }");
    assert!(message.contains("box foo:2:") && message.contains("undeclared"), "{message}");
    assert_eq!(
        of("C", "void *bar(void *hnd, int n) { return hnd; }"),
        "box foo has no function in its code; define a function with the name of the box that is \
         not `static`"
    );
    assert_eq!(
        of("SAC", "int x() { return 1; }"),
        "box foo is written in SAC, which is not supported: write it in C, C++ or Python, or \
         register a function in Rust"
    );
}

// Boxes in Python.

const PYTHON: &str = "
    def divide(n, x, text, data, items):
        snetout(1, n // 2, x / 2, text + '!', data[::-1], [i + 0.5 for i in items])
        return 2, sum(items)

    def up_to(n):
        for i in range(n):
            yield 1, i

    def fails(n):
        print('said on the way')
        if n == 0:
            yield 1, 5
            raise ValueError('n is\\n0')
        if n == 1:
            import os
            os._exit(3)
        if n == 2:
            yield 1, {}
        if n == 3:
            yield 1, float('nan')
        yield 2, 1
";

fn python() -> Boxes {
    let path = tempfile::Builder::new().suffix(".py").tempfile().expect("cannot create a file");
    fs::write(&path, PYTHON).expect("cannot write a file");
    let mut boxes = Boxes::new();
    boxes.compile([path.path()]).unwrap_or_else(|e| panic!("{e}"));
    boxes
}

#[test]
fn python_box_takes_and_outputs_values() {
    let plan = plan("divide", "N X T D L", "N X T D L|<S>");
    let input = vec![
        Value::from(7),
        Value::from(0.5),
        Value::from("größer"),
        Value::bytes(&[0, 200, 255]),
        Value::from(vec![1_u16, 2]),
    ];
    let half = vec![
        Value::from(3),
        Value::from(0.25),
        Value::from("größer!"),
        Value::bytes(&[255, 200, 0]),
        Value::from(vec![1.5, 2.5]),
    ];
    assert_eq!(made(&python(), &plan, input), [(1, half), (2, vec![Value::Tag(3)])]);
}

#[test]
fn python_box_outputs_any_number_of_records() {
    let (boxes, plan) = (python(), plan("up_to", "<N>", "<N>"));
    let records = made(&boxes, &plan, vec![Value::Tag(5000)]);
    assert!(records.into_iter().eq((0..5000).map(|n| (1, vec![Value::Tag(n)]))));
    let body = boxes.find(&plan).unwrap_or_else(|e| panic!("{e}"));
    let mut kept = Kept { wanted: 3, ..Kept::default() };
    let endless = Value::Tag(i32::MAX);
    assert_eq!(body.call(&mut [endless], &mut Out::new(&plan, &mut kept)), Ok(()));
    assert_eq!(kept.records.len(), 3);
}

#[test]
fn python_box_reports_a_failure_and_continues() {
    let (boxes, plan) = (python(), plan("fails", "<N>", "A"));
    let call = |n| failure(&boxes, &plan, vec![Value::Tag(n)]);
    for _ in 0..2 {
        assert_eq!(call(0), "line 14: ValueError: n is; 0");
        assert_eq!(call(1), "python3 ended (exit status: 3)");
        assert_eq!(call(2), "the box output {} in variant 1: fails ((<N>) -> (A))");
        assert!(
            call(3).starts_with("ValueError: Out of range float values are not JSON compliant")
        );
        assert_eq!(
            call(4),
            "the box output variant 2, but declares 1 variant: fails ((<N>) -> (A))"
        );
    }
    let native = failure(&boxes, &crate::plan("up_to", "A", "A"), vec![Value::native(5_u8)]);
    assert_eq!(native, "the argument (u8) has no equivalent in Python: up_to ((A) -> (A))");
}

#[test]
fn python_box_runs_on_many_threads_concurrently() {
    let (boxes, plan) = (python(), plan("up_to", "<N>", "<N>"));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                (0..20).for_each(|n| {
                    assert_eq!(made(&boxes, &plan, vec![Value::Tag(n)]).len(), n as usize)
                })
            });
        }
    });
}

/// Variable of the child process of the test below.
const COMPUTES: &str = "COREBEAT_TEST_COMPUTES";

/// Also while the box computes without a check for signals. Its output arrives before.
#[test]
fn python_box_ends_with_a_process_that_is_killed() {
    if std::env::var_os(COMPUTES).is_some() {
        let code = "
            def computes():
                import signal
                signal.alarm(600)
                print('computes')
                sum(range(10 ** 18))
        ";
        let plan = with_code(plan("computes", "", "-"), "Python", code);
        panic!("{}", failure(&Boxes::new(), &plan, Vec::new()));
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "python_box_ends_with_a_process_that_is_killed", "--nocapture"]);
    command
        .env(COMPUTES, "")
        .env_remove("PYTHONUNBUFFERED")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while line != "computes\n" {
        line.clear();
        assert!(errors.read_line(&mut line).unwrap() > 0, "the child has ended");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Both processes have the pipe; its end is the end of the second one.
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(errors.read_to_end(&mut Vec::new()).is_ok()));
    assert_eq!(end.recv_timeout(Duration::from_secs(60)), Ok(true), "python3 continues");
}

#[test]
fn error_in_python_code_has_its_place() {
    let of = |code: &str| {
        refusal(Boxes::new().find(&with_code(plan("foo", "<N>", "<N>"), "Python", code)))
    };
    assert_eq!(
        of("\n\ndef foo(n)\n"),
        "box foo in Python: SyntaxError: expected ':' (box foo, line 3)".to_string()
    );
    assert_eq!(
        of("\nimport nothing_of_this_name"),
        "box foo in Python: line 2: ModuleNotFoundError: No module named 'nothing_of_this_name'"
    );
    assert_eq!(
        of("def bar(n): return 1, n"),
        "box foo has no function in its code; define a function with the name of the box (`def`)"
    );
    let file = tempfile::Builder::new().suffix(".py").tempfile().expect("cannot create a file");
    std::fs::write(file.path(), "def bar(n): return 1, n").unwrap();
    let mut boxes = Boxes::new();
    boxes.compile([file.path()]).unwrap();
    assert_eq!(
        refusal(boxes.find(&plan("foo", "<N>", "<N>"))),
        format!(
            "box foo has no function in {}; define a function with the name of the box (`def`)",
            file.path().display()
        )
    );
    let message = refusal(Boxes::new().compile(["/nowhere/box.py"]));
    assert_eq!(
        message,
        "/nowhere/box.py in Python: cannot read the file: No such file or directory (os error 2)"
    );
}
