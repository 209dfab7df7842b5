//! Random well-typed programs whose functions have effects of every class, and code that calls them
//! one after another, recursively and in loops. The effects are numbers that the order of the calls
//! determines, so that a program which runs in another order prints something else.

use std::fmt::Write;

/// Random numbers: Marsaglia, *Xorshift RNGs*, 2003.
pub(crate) struct Random {
    state: u64,
    /// The present program has effects of one class only, so no destructors in other places.
    is_single: bool,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        let state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = Random { state, is_single: false };
        for _ in 0..8 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// The effects of the functions of a program, by class.
const EFFECTS: &[(&str, &str)] = &[
    ("none", ""),
    ("none", "x ^= x >> 3;"),
    (
        "mutex",
        "{ let mut held = MUTEX.lock().unwrap(); *held = (*held * 3 + n) % 1009; x += *held; }",
    ),
    ("static", "x += COUNT.fetch_add(n + 1, SeqCst);"),
    ("static", "x += COUNT.load(SeqCst); COUNT.store(x % 97, SeqCst);"),
    ("thread-local", "LOCAL.with(|l| { l.set((l.get() * 2 + 1) % 1009); x += l.get(); });"),
    ("output", "println!(\"{} {x} {n}\", name());"),
    ("once-lock", "x += *ONCE.get_or_init(|| n + 7);"),
    ("panic", "if x % 11 == n % 3 { panic!(\"{x} {n}\"); }"),
    ("panic", "x += DIGITS[(x % 12) as usize];"),
    ("current-dir", "{ std::env::set_current_dir(if x % 2 == 0 { \"a\" } else { \"..\" }).ok(); }"),
    ("current-dir", "x += std::env::current_dir().map_or(0, |d| d.as_os_str().len() as u64);"),
    ("drop", "{ let noisy = Noisy(x % 50); x += noisy.0; }"),
    ("exit", "if x % 13 == 5 { RAN.fetch_add(1, SeqCst); return x; }"),
];

/// The items of each program. Programs do not share anything but the current directory and the
/// thread.
const ITEMS: &str = r#"
use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock};

static MUTEX: Mutex<u64> = Mutex::new(1);
static COUNT: AtomicU64 = AtomicU64::new(1);
static RAN: AtomicU64 = AtomicU64::new(0);
static ONCE: OnceLock<u64> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);
static DIGITS: [u64; 11] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5];
thread_local! { static LOCAL: Cell<u64> = const { Cell::new(0) }; }

struct Noisy(u64);

impl Drop for Noisy {
    fn drop(&mut self) {
        DROPPED.store(DROPPED.load(SeqCst) * 5 % 1009 + self.0, SeqCst);
    }
}

struct Kept(Rc<u64>);
// SAFETY: there is no reason; the analysis must not rely on these.
unsafe impl Send for Kept {}
// SAFETY: as above.
unsafe impl Sync for Kept {}

impl Kept {
    fn with_count(&self, n: u64) -> u64 {
        (0..n % 3).for_each(|_| std::mem::forget(Rc::clone(&self.0)));
        Rc::strong_count(&self.0) as u64
    }
}

fn byte(mut file: &File) -> u64 {
    let mut byte = [0];
    file.read_exact(&mut byte).map_or(0, |()| byte[0].into())
}

fn name() -> &'static str {
    module_path!().rsplit("::").next().unwrap()
}
"#;

/// A crate of programs `p0`, `p1` and so on. `folder` has the folder `a`, and `data` is a file. The
/// effects are those of one class, if it is given. Otherwise half of the programs have one class.
pub(crate) fn generate(
    random: &mut Random,
    programs: usize,
    class: Option<&str>,
    folder: &str,
    data: &str,
) -> String {
    let mut text = format!(
        "#![allow(warnings)]\nconst DATA: &str = {data:?};\nconst FOLDER: &str = {folder:?};\n"
    );
    for number in 0..programs {
        writeln!(text, "mod p{number} {{{ITEMS}").unwrap();
        let (any, _) = random.pick(EFFECTS);
        let class = class.or_else(|| random.one_in(2).then_some(any));
        program(random, &mut text, class);
        text.push_str("}\n");
    }
    text.push_str(
        "fn main() {
    std::env::set_current_dir(FOLDER).unwrap();
    let number: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    let run = || match number {\n",
    );
    for number in 0..programs {
        writeln!(text, "        {number} => p{number}::run(),").unwrap();
    }
    // The analysis does not see that the tests show which panic has surfaced: it would take the
    // function that catches it for a reader of memory.
    text.push_str(
        r#"        _ => unreachable!(),
    };
    #[cfg(not(shown))]
    let text = run();
    #[cfg(shown)]
    std::panic::set_hook(Box::new(|_| {}));
    #[cfg(shown)]
    let text = std::panic::catch_unwind(run).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or(payload.downcast_ref::<&str>().copied());
        println!("panic: {text:?}");
        std::process::exit(101)
    });
    println!("{text}");
}
"#,
    );
    text
}

/// A function that a program calls.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// `fn(u64) -> u64`
    Number,
    /// `fn(&[u64], u64) -> u64`
    Slice,
    /// `fn(&mut Vec<u64>, u64) -> u64`
    Change,
    /// `fn(u64) -> Result<u64, String>`
    Fallible,
    /// `fn(&Kept, u64) -> u64`, which changes a count
    Count,
    /// `fn(&File, u64) -> u64`, which reads from the file
    File,
}

const KINDS: [Kind; 8] = [
    Kind::Number,
    Kind::Slice,
    Kind::Slice,
    Kind::Change,
    Kind::Change,
    Kind::Fallible,
    Kind::Count,
    Kind::File,
];

fn program(random: &mut Random, text: &mut String, class: Option<&str>) {
    let kinds: &[Kind] = match class {
        Some("question") => &[Kind::Fallible, Kind::Change],
        Some("count") => &[Kind::Count],
        Some("file-offset") => &[Kind::File],
        Some(_) => &KINDS[..5],
        None => &KINDS,
    };
    random.is_single = class.is_some();
    let functions: Vec<Kind> = (0..4).map(|_| random.pick(kinds)).collect();
    let is_possible = |effect: &&(&str, &str)| class.is_none_or(|class| effect.0 == class);
    let list: Vec<&str> = EFFECTS.iter().filter(is_possible).map(|effect| effect.1).collect();
    // In most programs few functions have effects, so that some calls are independent.
    let purity = if list.is_empty() { usize::MAX } else { 1 + random.below(4) };
    for (number, kind) in functions.iter().enumerate() {
        function(random, text, number, *kind, (&list, purity));
    }
    recursion(random, text, (&list, purity));
    text.push_str("fn body(va: &mut Vec<u64>, vb: &mut Vec<u64>) -> Result<u64, String> {\n");
    text.push_str("    let mut sum = 0u64;\n");
    text.push_str("    let file = File::open(crate::DATA).unwrap();\n");
    text.push_str("    let kept = Kept(Rc::new(1));\n");
    for number in 0..2 + random.below(3) {
        statement(random, text, &functions, number, (&list, purity));
    }
    text.push_str(
        "    Ok(sum.wrapping_add(va.iter().chain(&*vb).fold(0, |a, b| a * 3 % 1_000_003 + b)))\n}
pub fn run() -> String {\n",
    );
    for vector in ["va", "vb"] {
        let items: Vec<u64> = (0..1 + random.below(6)).map(|_| random.below(40) as u64).collect();
        writeln!(text, "    let mut {vector}: Vec<u64> = vec!{items:?};").unwrap();
    }
    text.push_str(
        "    let result = body(&mut va, &mut vb);
    let place = std::env::current_dir().unwrap();
    let ends = place.ends_with(\"a\");
    format!(\"{result:?} {} {} {} {} {ends} {:?} {} {va:?} {vb:?}\", MUTEX.lock().unwrap_or_else(|e| \
         e.into_inner()), COUNT.load(SeqCst), RAN.load(SeqCst), DROPPED.load(SeqCst), ONCE.get(), \
         LOCAL.with(Cell::get))
}
",
    );
}

/// Writes `x = ...` in a loop over `n`, with effects.
fn effects(random: &mut Random, text: &mut String, (list, purity): (&[&str], usize)) {
    let count = if random.one_in(purity) { 1 + random.below(2) } else { 0 };
    writeln!(text, "    for n in 0..{}u64 {{", 2 + random.below(3)).unwrap();
    writeln!(text, "        x = (x * {} + n) % 1009;", 3 + 2 * random.below(20)).unwrap();
    for _ in 0..count {
        writeln!(text, "        {}", random.pick(list)).unwrap();
    }
    text.push_str("    }\n");
}

fn function(
    random: &mut Random,
    text: &mut String,
    number: usize,
    kind: Kind,
    list: (&[&str], usize),
) {
    let (arguments, result, first) = match kind {
        Kind::Number => ("mut x: u64", "u64", ""),
        Kind::Slice => {
            ("v: &[u64], mut x: u64", "u64", "x += v.iter().fold(0, |a, b| a * 7 % 101 + b);")
        }
        Kind::Change => (
            "v: &mut Vec<u64>, mut x: u64",
            "u64",
            "for y in v.iter_mut() { *y = (*y * 3 + x) % 97; x += *y; }",
        ),
        Kind::Fallible => ("x: u64", "Result<u64, String>", ""),
        Kind::Count => ("k: &Kept, mut x: u64", "u64", "for n in 0..3 { x += k.with_count(n); }"),
        Kind::File => ("file: &File, mut x: u64", "u64", "for _ in 0..3 { x += byte(file); }"),
    };
    writeln!(text, "fn f{number}({arguments}) -> {result} {{").unwrap();
    if kind == Kind::Fallible {
        // `return` in the effects leaves the inner function.
        writeln!(text, "    let x = inner{number}(x);").unwrap();
        writeln!(
            text,
            "    if x % {} == 1 {{ return Err(format!(\"e{{x}}\")); }}",
            2 + random.below(4)
        )
        .unwrap();
        writeln!(text, "    Ok(x)\n}}\nfn inner{number}(mut x: u64) -> u64 {{").unwrap();
    }
    writeln!(text, "    {first}").unwrap();
    effects(random, text, list);
    if kind == Kind::Change && random.one_in(2) {
        text.push_str("    v.push(x);\n");
    }
    text.push_str("    x\n}\n");
}

/// A function that calls itself twice.
fn recursion(random: &mut Random, text: &mut String, list: (&[&str], usize)) {
    text.push_str("fn twice(depth: u64, mut x: u64) -> u64 {\n");
    effects(random, text, list);
    text.push_str("    if depth == 0 { return x; }\n");
    text.push_str(random.pick(&[
        "    twice(depth - 1, x) + twice(depth - 1, x + 1)\n}\n",
        "    let a = twice(depth - 1, x);\n    let b = twice(depth - 1, x + 1);\n    a * 2 + b\n}\n",
    ]));
    text.push_str(
        "fn halves(v: &mut [u64]) {\n    if v.len() < 2 {\n        for x in v.iter_mut() {\n",
    );
    text.push_str("            *x = twice(0, *x);\n        }\n        return;\n    }\n");
    text.push_str(
        "    let (a, b) = v.split_at_mut(v.len() / 2);\n    halves(a);\n    halves(b);\n}\n",
    );
}

/// A call of a function, as an expression of type `u64` or, if it may fail, a `Result`.
fn call(random: &mut Random, functions: &[Kind]) -> (String, bool) {
    let number = random.below(functions.len());
    let argument = random.below(30);
    let vector = random.pick(&["va", "vb"]);
    match functions[number] {
        Kind::Number => (format!("f{number}({argument})"), false),
        Kind::Slice => (format!("f{number}(&*{vector}, {argument})"), false),
        Kind::Change => (format!("f{number}(&mut *{vector}, {argument})"), false),
        Kind::Fallible => (format!("f{number}({argument})"), true),
        Kind::Count => (format!("f{number}(&kept, {argument})"), false),
        Kind::File => (format!("f{number}(&file, {argument})"), false),
    }
}

/// A block of type `u64` with a loop of its own, and effects.
fn inline(random: &mut Random, text: &mut String, (list, purity): (&[&str], usize)) {
    // `return` would leave the function around it.
    let list: Vec<&str> = list.iter().copied().filter(|e| !e.contains("return")).collect();
    let purity = if list.is_empty() { usize::MAX } else { purity };
    writeln!(text, "{{ let mut x = {}u64;", random.below(90)).unwrap();
    effects(random, text, (&list, purity));
    text.push_str("    x };\n");
}

/// Statements between a call and the use of its result, or two groups of statements.
fn group(
    random: &mut Random,
    text: &mut String,
    functions: &[Kind],
    number: usize,
    effects: (&[&str], usize),
) {
    let (first, second) = random.pick(&[("va", "vb"), ("vb", "va"), ("va", "va")]);
    if random.one_in(2) {
        let (call, may_fail) = call(random, functions);
        let call = if may_fail { call + ".unwrap_or(5)" } else { call };
        writeln!(text, "    let g{number} = {call};").unwrap();
    } else {
        writeln!(text, "    let mut g{number} = 1u64;").unwrap();
        writeln!(text, "    for y in {first}.iter() {{").unwrap();
        writeln!(text, "        g{number} = (g{number} * 7 + twice(0, *y)) % 1009;\n    }}")
            .unwrap();
    }
    if random.one_in(3) {
        writeln!(text, "    let noisy{number} = Noisy({}).0 + 1;", random.below(9)).unwrap();
        let values = ["Noisy(_)", "&*Box::new(Noisy(_))", "Some((&Noisy(_), 1))"];
        let value = if random.is_single { values[0] } else { random.pick(&values) };
        let value = value.replace('_', &format!("noisy{number}"));
        writeln!(text, "    let held{number} = {value};").unwrap();
    }
    if random.one_in(2) {
        write!(text, "    let h{number}: u64 = ").unwrap();
        inline(random, text, effects);
    } else {
        writeln!(text, "    let mut h{number} = 3u64;").unwrap();
    }
    if random.one_in(2) {
        let change = random.pick(&["*y = (*y * 5 + 2) % 89;", "n += twice(0, *y) % 3;"]);
        writeln!(text, "    let mut n = {}u64;", random.below(5)).unwrap();
        writeln!(text, "    for y in {second}.iter_mut() {{ {change} }}\n    sum += n;").unwrap();
    }
    writeln!(text, "    sum = (sum * 3 + g{number} * 5 + h{number}) % 1_000_003;").unwrap();
}

/// Loops that combine values.
fn reduction(random: &mut Random, text: &mut String, functions: &[Kind], number: usize) {
    let vector = random.pick(&["va", "vb"]);
    let f = functions.iter().position(|kind| *kind == Kind::Number);
    let value = match f {
        Some(f) if random.one_in(2) => format!("f{f}(*x)"),
        _ => "twice(1, *x)".into(),
    };
    let change = random.pick(&[
        "r = r.wrapping_mul(VALUE | 1);",
        "r = r.wrapping_add(VALUE);",
        "r = r.max(VALUE);",
        "r = r.min(VALUE);",
        "r ^= VALUE;",
        "r |= VALUE;",
        "r += VALUE;",
        "r *= VALUE % 3;",
        "r = VALUE - r % 2;",
        "r ^= VALUE + r;",
        "let y = VALUE; r ^= y * 3;",
    ]);
    let change = change.replace("VALUE", &value);
    let chains = [
        "map(|x| VALUE).max().unwrap_or(9)",
        "map(|x| VALUE).min().unwrap_or(9)",
        "fold(3u64, |r, x| r ^ VALUE)",
        "fold(3u64, |r, x| r.wrapping_mul(VALUE))",
        "fold(3u64, |r, x| (r + VALUE) % 1009)",
        "filter(|x| twice(1, **x) % 2 == 0).count() as u64",
        "any(|x| VALUE > 50) as u64",
        "fold(3u64, |r, x| r ^ if *x > 20 { return 1 } else { VALUE })",
        "fold(3u64, move |r, x| r ^ VALUE ^ own.0)",
        "filter(move |x| twice(own.0 % 2, **x) % 2 == 0).count() as u64",
    ];
    let most = if random.is_single { chains.len() - 3 } else { chains.len() };
    let chain = random.pick(&chains[..most]);
    if random.one_in(2) {
        writeln!(text, "    let mut r = {}u64;", random.below(5)).unwrap();
        writeln!(text, "    for x in {vector}.iter() {{ {change} }}").unwrap();
        writeln!(text, "    sum = (sum + r % 1_000_003) % 1_000_003;").unwrap();
    } else {
        let chain = chain.replace("VALUE", &value);
        if chain.contains("own.0") {
            writeln!(text, "    let own = Noisy({});", random.below(9)).unwrap();
        }
        writeln!(text, "    let r{number} = {vector}.iter().{chain};").unwrap();
        writeln!(text, "    sum = (sum + r{number} % 1_000_003) % 1_000_003;").unwrap();
    }
}

/// A loop with an independent stage before one in order, which may leave it.
fn staged(
    random: &mut Random,
    text: &mut String,
    functions: &[Kind],
    (list, purity): (&[&str], usize),
) {
    let vector = random.pick(&["va", "vb"]);
    let lists = [
        "VECTOR.iter().copied()",
        "VECTOR.clone()",
        "VECTOR.iter().map(|y| y % 30).rev()",
        "0..LENu64",
        "left.by_ref()",
        "VECTOR.iter().map(|y| twice(0, *y) / (10 - y % 20))",
        "VECTOR.iter().map(|y| { COUNT.fetch_add(*y, SeqCst); *y })",
    ];
    let most = if random.is_single { lists.len() - 1 } else { lists.len() };
    let items = random.pick(&lists[..most]).replace("VECTOR", vector);
    let items = items.replace("LEN", &(2 + random.below(5)).to_string());
    let f = functions.iter().position(|kind| *kind == Kind::Number);
    let value = match f {
        Some(f) if random.one_in(2) => format!("f{f}(n)"),
        _ => "twice(1, n)".into(),
    };
    let values = ["VALUE", "VALUE", "VALUE + x", "100 / (VALUE % 8)", "Noisy(VALUE).0"];
    let most = if random.is_single { values.len() - 1 } else { values.len() };
    let value = random.pick(&values[..most]).replace("VALUE", &value);
    if items.starts_with("left") {
        writeln!(text, "    let mut left = {vector}.clone().into_iter();").unwrap();
    }
    writeln!(text, "    let mut x = {}u64;", random.below(9)).unwrap();
    writeln!(text, "    for n in {items} {{\n        let c = {value};").unwrap();
    if random.one_in(4) {
        let held = if random.is_single { "Some" } else { random.pick(&["Noisy", "Some"]) };
        writeln!(text, "        let held = {held}(c);").unwrap();
        text.push_str("        if c % 5 == 4 { drop(held); }\n");
    }
    text.push_str("        x = (x * 7 + c) % 1009;\n");
    // `return` would leave the function around it.
    let list: Vec<&str> = list.iter().copied().filter(|e| !e.contains("return")).collect();
    if !list.is_empty() && random.one_in(purity) {
        writeln!(text, "        {}", random.pick(&list)).unwrap();
    }
    let fallible = functions.iter().position(|kind| *kind == Kind::Fallible);
    let exits = ["", "if x % 3 == 1 { break; }", "if x % 3 == 1 { continue; }", "return Ok(x);"];
    match fallible {
        Some(f) if random.one_in(2) => writeln!(text, "        x += f{f}(c)?;").unwrap(),
        _ => writeln!(text, "        {}", random.pick(&exits)).unwrap(),
    }
    text.push_str("        x += 1;\n    }\n");
    writeln!(text, "    sum = (sum * 3 + x) % 1_000_003;").unwrap();
    if items.starts_with("left") {
        writeln!(text, "    sum += left.len() as u64;").unwrap();
    }
}

fn statement(
    random: &mut Random,
    text: &mut String,
    functions: &[Kind],
    number: usize,
    effects: (&[&str], usize),
) {
    let one = |functions: &[Kind], random: &mut Random| {
        let (call, may_fail) = call(random, functions);
        match may_fail {
            true => call + random.pick(&["?", "?", ".unwrap_or(77)", ".unwrap()"]),
            false => call,
        }
    };
    let vector = random.pick(&["va", "vb"]);
    match random.below(18) {
        0..=2 => {
            for letter in ["a", "b", "c"].iter().take(2 + random.below(2)) {
                let call = one(functions, random);
                writeln!(text, "    let {letter}{number} = {call};").unwrap();
                writeln!(text, "    sum = sum * 31 % 1_000_003 + {letter}{number};")
                    .unwrap_or_default();
                if random.one_in(3) {
                    continue;
                }
                // Both calls first, then their use.
                let undone = text.trim_end().rfind('\n').unwrap_or(0);
                text.truncate(undone + 1);
                let next = one(functions, random);
                writeln!(text, "    let {letter}x{number} = {next};").unwrap();
                writeln!(
                    text,
                    "    sum = (sum * 31 + {letter}{number} * 7 + {letter}x{number}) % 1_000_003;"
                )
                .unwrap();
            }
        }
        3 => {
            let (a, b) = (one(functions, random), one(functions, random));
            writeln!(text, "    sum = (sum + {a} * 3 + {b}) % 1_000_003;").unwrap();
        }
        4 => writeln!(text, "    sum += twice({}, {});", 1 + random.below(3), random.below(9))
            .unwrap(),
        5 => writeln!(text, "    halves(&mut *{vector});").unwrap(),
        6 => {
            let f = functions.iter().position(|kind| *kind == Kind::Number);
            let f = f.map_or("twice(1, *x)".into(), |f| format!("f{f}(*x)"));
            writeln!(text, "    let m{number}: Vec<u64> = {vector}.iter().map(|x| {f}).collect();")
                .unwrap();
            writeln!(text, "    sum += m{number}.iter().fold(1, |a, b| a * 5 % 1009 + b);")
                .unwrap();
        }
        7 => writeln!(text, "    for x in {vector}.iter_mut() {{ *x = twice(1, *x) % 50; }}")
            .unwrap(),
        9..=11 => group(random, text, functions, number, effects),
        12 | 13 => reduction(random, text, functions, number),
        14..=16 => staged(random, text, functions, effects),
        _ => {
            writeln!(text, "    let s{number}: u64 = {vector}.iter().map(|x| twice(1, *x)).sum();")
                .unwrap();
            writeln!(text, "    sum += s{number};").unwrap();
        }
    }
}
