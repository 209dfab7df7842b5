//! Probes record the calls that were made.

use corebeat_probe::{
    Calls, ControlSocket, Error, Handover, Outcome, Probe, RULE_PERIOD_MIN, Rule, RuleOptions,
    RuleRunner, block, control, probe, probes, record, switch,
};
use corebeat_test_group::{TestGroup, in_child};
use corebeat_trace::{Options, Trace};
use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::thread::JoinHandleExt;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Serializes the tests, because only one trace can be installed at a time.
static ONE: Mutex<()> = Mutex::new(());

/// A trace in a separate file, with the probes of one test switched on.
struct Recorded {
    folder: tempfile::TempDir,
    pattern: &'static str,
    trace: Option<Trace>,
    _one: MutexGuard<'static, ()>,
}

impl Recorded {
    fn begin(pattern: &'static str) -> Recorded {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let trace = Options::default().create(folder.path().join("calls.cbt")).unwrap();
        record(&trace).unwrap();
        assert!(switch(pattern, true).unwrap() > 0, "{pattern} fits nothing");
        Recorded { folder, pattern, trace: Some(trace), _one: one }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("calls.cbt")
    }

    fn end(mut self) -> Calls {
        switch(self.pattern, false).unwrap();
        let summary = self.trace.take().unwrap().finish().unwrap();
        assert_eq!(summary.lost, 0);
        read(&self.path())
    }
}

fn read(path: &Path) -> Calls {
    Calls::read(File::open(path).unwrap()).unwrap()
}

/// Calls in order: function, caller and outcome.
fn summary(calls: &Calls) -> Vec<(String, Option<usize>, Outcome)> {
    let calls_of = |call: &corebeat_probe::Call| {
        (calls.operation(call).function().to_owned(), call.parent.map(|p| p as usize), call.outcome)
    };
    calls.calls().iter().map(calls_of).collect()
}

fn line(
    function: &str,
    parent: Option<usize>,
    outcome: Outcome,
) -> (String, Option<usize>, Outcome) {
    (function.into(), parent, outcome)
}

mod nested {
    use super::*;

    pub(super) struct Account<T>(pub(super) T);

    pub(super) trait Pay {
        fn pay(&self, cents: u32) -> Result<u32, String>;
    }

    impl<T: Copy + Into<u32>> Pay for Account<T> {
        #[probe]
        fn pay(&self, cents: u32) -> Result<u32, String> {
            let left = self.left()?;
            block!("subtract", { left.checked_sub(cents).ok_or_else(|| "too little".to_owned()) })
        }
    }

    impl<T: Copy + Into<u32>> Account<T> {
        #[probe]
        fn left(&self) -> Result<u32, String> {
            Ok(self.0.into())
        }
    }

    #[probe(untimed)]
    pub(super) fn all<A: Pay>(accounts: &[A]) -> u32 {
        accounts.iter().filter(|a| a.pay(5).is_ok()).count() as u32
    }
}

#[test]
fn nested_calls_round_trip() {
    use nested::Account;
    let recorded = Recorded::begin("probe::nested::*");
    let also = switch("*nested::*", true).unwrap();
    assert_eq!(nested::all(&[Account(3u8), Account(7)]), 1);
    switch("*nested::*", false).unwrap();
    let calls = recorded.end();
    let returned = Outcome::Returned;
    assert_eq!(
        summary(&calls),
        [
            line("all", None, returned),
            line("pay", Some(0), returned),
            line("left", Some(1), returned),
            line("subtract", Some(1), returned),
            line("pay", Some(0), returned),
            line("left", Some(4), returned),
            line("subtract", Some(4), returned),
        ]
    );
    let names: Vec<_> = calls.calls().iter().map(|c| calls.operation(c).name.as_str()).collect();
    assert_eq!(names[0], "probe::nested::all");
    assert!(names[2].contains("Account") && names[2].ends_with("::left"), "{names:?}");
    assert!(names[1].contains("Pay"), "{names:?}");
    assert_eq!((also, calls.unmatched_events(), calls.lost(), calls.traces()), (4, 0, 0, 1));
    assert!(calls.operation(&calls.calls()[0]).file.ends_with("tests/probe.rs"));
}

#[probe(name = "panics::outer")]
fn outer() -> u32 {
    catch_unwind(|| middle(true)).map_or(1, |_| 2) + middle(false)
}

#[probe(name = "panics::middle")]
fn middle(falls: bool) -> u32 {
    let _last = Last;
    if falls {
        std::panic::resume_unwind(Box::new(()));
    }
    3
}

struct Last;

impl Drop for Last {
    #[probe(name = "panics::last")]
    fn drop(&mut self) {}
}

#[test]
fn panics_are_distinguished_from_returns() {
    let recorded = Recorded::begin("panics::*");
    assert_eq!(outer(), 4);
    let summary = summary(&recorded.end());
    let expected = [
        line("outer", None, Outcome::Returned),
        line("middle", Some(0), Outcome::Panicked),
        // This call returned while another one panicked.
        line("last", Some(1), Outcome::Returned),
        line("middle", Some(0), Outcome::Returned),
        line("last", Some(3), Outcome::Returned),
    ];
    assert_eq!(summary, expected);
}

#[probe(name = "cleanup::clean")]
fn clean() {
    let _fails = Fails;
    std::panic::resume_unwind(Box::new(()));
}

struct Fails;

impl Drop for Fails {
    fn drop(&mut self) {
        assert!(catch_unwind(fail).is_err());
    }
}

#[probe(name = "cleanup::fail")]
fn fail() {
    std::panic::resume_unwind(Box::new(()));
}

#[test]
fn panic_while_the_caller_unwinds_is_recorded() {
    let recorded = Recorded::begin("cleanup::*");
    assert!(catch_unwind(clean).is_err());
    let expected =
        [line("clean", None, Outcome::Panicked), line("fail", Some(0), Outcome::Panicked)];
    assert_eq!(summary(&recorded.end()), expected);
}

#[derive(Debug)]
struct Order {
    articles: Vec<u32>,
}

impl Order {
    /// Consumes its arguments.
    #[probe(name = "fields::pay", fields(cents, count = self.articles.len(), text))]
    fn pay(self, cents: i64, text: String) -> usize {
        drop(text);
        self.articles.len() + cents as usize
    }
}

#[probe(name = "fields::later", fields(order))]
async fn later(order: Order) -> usize {
    order.pay(3, "x".repeat(1000))
}

#[track_caller]
#[probe(name = "fields::place", fields(a = "a \"b\""))]
fn place() {}

#[test]
fn fields_of_calls_are_recorded() {
    let recorded = Recorded::begin("fields::*");
    let mut future = Box::pin(later(Order { articles: vec![1, 2] }));
    let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(polled, Poll::Ready(5));
    place();
    switch("fields::*", false).unwrap();
    assert_eq!(Order { articles: vec![] }.pay(1, String::new()), 1);
    let calls = recorded.end();
    let fields: Vec<Vec<(&str, &str)>> = (0..3).map(|call| calls.fields(call).collect()).collect();
    let long = format!("\"{}", "x".repeat(254));
    assert_eq!(fields[0], [("order", "Order { articles: [1, 2] }")]);
    assert_eq!(fields[1], [("cents", "3"), ("count", "2"), ("text", long.as_str())]);
    assert_eq!(fields[2], [("a", "\"a \\\"b\\\"\"")]);
    assert_eq!(calls.calls().len(), 3);
    let drawn = corebeat_probe::draw::sequence(&calls, 0, corebeat_probe::draw::Format::Text);
    assert!(drawn.contains("pay(cents=3, count=2, text="), "{drawn}");
}

#[probe(name = "recursion::down")]
fn down(depth: u32) -> u32 {
    if depth == 0 { 0 } else { down(depth - 1) + 1 }
}

#[test]
fn depth_of_recursion_is_recorded() {
    let recorded = Recorded::begin("recursion::*");
    assert_eq!(down(1000), 1000);
    let calls = recorded.end();
    assert_eq!(calls.calls().len(), 1001);
    for (number, call) in calls.calls().iter().enumerate() {
        assert_eq!(call.parent.map(|p| p as usize), number.checked_sub(1));
    }
    assert!(
        calls
            .calls()
            .windows(2)
            .all(|w| w[1].begin_ns >= w[0].begin_ns && w[1].end_ns <= w[0].end_ns)
    );
}

/// Functions of every form whose behaviour a probe must not change.
mod shape {
    use super::*;
    use std::error::Error;
    use std::panic::Location;

    #[derive(Debug, Default)]
    pub(super) struct Shelf(pub(super) Vec<u32>);

    pub(super) trait Count {
        const LEAST: usize;

        #[probe(name = "shape::count")]
        fn count(&self) -> usize {
            Self::LEAST
        }
    }

    impl Count for Shelf {
        const LEAST: usize = 7;
    }

    impl Shelf {
        #[probe(name = "shape::lend")]
        pub(super) fn lend<'a>(&'a mut self, at: usize) -> Option<&'a mut u32> {
            self.0.get_mut(at)
        }

        #[probe(name = "shape::all")]
        pub(super) fn all(&self) -> impl Iterator<Item = &u32> {
            self.0.iter()
        }

        #[probe(name = "shape::parse")]
        pub(super) fn parse(
            text: &str,
        ) -> Result<impl Iterator<Item = u32> + use<>, Box<dyn Error>> {
            let number: u32 = text.parse()?;
            Ok(std::iter::once(number))
        }

        #[probe(name = "shape::put")]
        pub(super) fn put(mut self, (number, times): (u32, usize)) -> Self {
            for _ in 0..times {
                if self.0.len() > 2 {
                    return self;
                }
                self.0.push(number);
            }
            self
        }
    }

    #[probe(name = "shape::apply")]
    pub(super) fn apply<const N: usize>(
        mut of: [u32; N],
        mut with: impl FnMut(u32) -> u32,
    ) -> [u32; N] {
        of.iter_mut().for_each(|number| *number = with(*number));
        of
    }

    /// # Safety
    ///
    /// `number` points to a valid number.
    #[probe(name = "shape::read")]
    pub(super) unsafe fn read(from: *const u32) -> u32 {
        // SAFETY: guaranteed by the caller.
        unsafe { *from }
    }

    #[probe(name = "shape::fail")]
    pub(super) fn fail() -> ! {
        std::panic::resume_unwind(Box::new(()))
    }

    #[probe(name = "shape::place")]
    #[track_caller]
    pub(super) fn place() -> u32 {
        Location::caller().line()
    }

    #[probe(name = "shape::number")]
    pub(super) fn number() -> usize {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// Calls all of these functions. Returns their results.
fn use_shapes() -> (Vec<u32>, u32, usize) {
    use shape::{Count, Shelf};
    let mut shelf = Shelf::default().put((1, 2)).put((5, 9));
    *shelf.lend(0).unwrap() += 1;
    assert!(shelf.lend(9).is_none() && Shelf::parse("x").is_err());
    let all = shelf.all().copied().chain(Shelf::parse("9").unwrap()).collect();
    assert_eq!(shape::apply([1, 2], |number| number * 2), [2, 4]);
    // SAFETY: the pointer refers to a valid number.
    assert_eq!(unsafe { shape::read(&7) }, 7);
    assert!(catch_unwind(|| shape::fail()).is_err());
    (all, shape::place(), shelf.count())
}

#[test]
fn probes_do_not_change_functions() {
    let recorded = Recorded::begin("shape::*");
    switch("shape::*", false).unwrap();
    let off = use_shapes();
    let first = shape::number();
    switch("shape::*", true).unwrap();
    let on = use_shapes();
    // Items inside a function exist only once.
    assert_eq!(shape::number(), first + 1);
    let calls = recorded.end();
    assert_eq!((&off, &off.0[..], off.2), (&on, &[2, 1, 5, 9][..], 7));
    let functions: Vec<_> = summary(&calls).into_iter().map(|(function, ..)| function).collect();
    let expected = [
        "put", "put", "lend", "lend", "parse", "all", "parse", "apply", "read", "fail", "place",
        "count", "number",
    ];
    assert_eq!(functions, expected);
    let panicked: Vec<_> =
        calls.calls().iter().filter(|c| c.outcome != Outcome::Returned).collect();
    assert_eq!(panicked.len(), 1);
    assert_eq!(
        (calls.operation(panicked[0]).function(), panicked[0].outcome),
        ("fail", Outcome::Panicked)
    );
}

#[probe(name = "threads::ask")]
fn ask_others() -> u32 {
    let workers: Vec<_> = (0..3u32)
        .map(|number| {
            let handover = Handover::new();
            std::thread::spawn(move || {
                let _handed = handover.accept();
                (0..50).map(|_| answer(number)).sum::<u32>()
            })
        })
        .collect();
    workers.into_iter().map(|worker| worker.join().unwrap()).sum()
}

#[probe(name = "threads::answer")]
fn answer(number: u32) -> u32 {
    number + 1
}

#[test]
fn handed_over_calls_have_their_callers() {
    let recorded = Recorded::begin("threads::*");
    answer(0);
    assert_eq!(ask_others(), 300);
    let calls = recorded.end();
    let handed_over: Vec<_> = calls.calls().iter().filter(|call| call.handed_over).collect();
    assert_eq!((handed_over.len(), calls.calls().len(), calls.unmatched_events()), (150, 152, 0));
    assert!(handed_over.iter().all(|call| call.parent == Some(1)));
    let threads: std::collections::HashSet<_> =
        handed_over.iter().map(|call| call.thread).collect();
    assert_eq!(threads.len(), 3);
}

/// A future that is ready at its second poll.
struct Later(bool);

impl Future for Later {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[probe(name = "async::page")]
async fn page(number: u32) -> u32 {
    answer_later(number).await + answer_later(number).await
}

#[probe(name = "async::answer")]
async fn answer_later(number: u32) -> u32 {
    Later(false).await;
    number
}

#[test]
fn interleaved_asynchronous_calls_are_separate() {
    let recorded = Recorded::begin("async::*");
    let mut context = Context::from_waker(Waker::noop());
    let (mut first, mut second) = (Box::pin(page(1)), Box::pin(page(2)));
    let mut dropped = Box::pin(page(3));
    let mut done = Vec::new();
    assert!(dropped.as_mut().poll(&mut context).is_pending());
    for _ in 0..2 {
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
    }
    for future in [&mut first, &mut second] {
        // A future may continue on another thread.
        let ready = std::thread::scope(|scope| {
            let poll = || future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            scope.spawn(poll).join().unwrap()
        });
        done.push(ready);
    }
    drop(dropped);
    assert_eq!(done, [Poll::Ready(2), Poll::Ready(4)]);
    let calls = recorded.end();
    let all = summary(&calls);
    let returned = Outcome::Returned;
    let expected = [
        line("page", None, returned),
        line("answer", Some(0), returned),
        line("page", None, returned),
        line("answer", Some(2), returned),
        line("page", None, returned),
        line("answer", Some(4), returned),
        line("answer", Some(2), returned),
        line("answer", Some(4), returned),
    ];
    assert_eq!(all, expected);
    assert_eq!(calls.unmatched_events(), 0);
}

#[probe(name = "middle::outside")]
fn outside(on: bool) {
    switch("middle::*", on).unwrap();
    inside();
}

#[probe(name = "middle::inside")]
fn inside() {}

#[test]
fn call_switched_during_its_run_is_complete() {
    let recorded = Recorded::begin("middle::*");
    outside(false);
    outside(true);
    outside(true);
    let calls = recorded.end();
    let expected = [
        line("outside", None, Outcome::Returned),
        line("inside", None, Outcome::Returned),
        line("outside", None, Outcome::Returned),
        line("inside", Some(2), Outcome::Returned),
    ];
    assert_eq!(summary(&calls), expected);
    assert_eq!(calls.unmatched_events(), 0);
}

#[probe(name = "busy::work")]
fn work() {
    std::hint::black_box(());
}

#[test]
fn calls_are_complete_while_probes_are_switched() {
    let recorded = Recorded::begin("busy::*");
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..3000 {
                        work();
                        block!("busy", { work() });
                    }
                })
            })
            .collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            switch("*busy*", false).unwrap();
            switch("*busy*", true).unwrap();
        }
    });
    switch("*busy*", false).unwrap();
    let calls = recorded.end();
    assert_eq!(calls.unmatched_events(), 0);
    assert!(calls.calls().iter().all(|call| call.outcome == Outcome::Returned));
    for call in calls.calls() {
        let parent = call.parent.map(|p| &calls.calls()[p as usize]);
        assert!(parent.is_none_or(|p| calls.operation(p).function() == "busy"));
    }
}

#[probe(name = "never::called")]
fn never_called() {}

#[test]
fn added_probes_are_recorded_and_switched_as_others() {
    let before = Probe::add("added.before", "script.py", 3).unwrap();
    let recorded = Recorded::begin("added.*");
    let later = Probe::add("added.Later.f", "script.py", 7).unwrap();
    assert!(before.is_on() && later.is_on(), "a request also applies to probes that are added");
    assert!(!Probe::add("other", "script.py", 1).unwrap().is_on());
    let listed: Vec<_> = probes().filter(|probe| probe.file() == "script.py").collect();
    let named = |name: &str| listed.iter().filter(|probe| probe.name() == name).count();
    assert_eq!((named("added.before"), named("added.Later.f")), (1, 1));
    {
        let _outer = before.enter();
        later.enter().fail();
    }
    switch("added.Later.*", false).unwrap();
    assert!(!later.is_on() && !Probe::add("added.Later.g", "", 0).unwrap().is_on());
    drop(later.enter());
    let calls = recorded.end();
    assert_eq!(
        summary(&calls),
        [line("before", None, Outcome::Returned), line("f", Some(0), Outcome::Panicked)]
    );
    let operation = calls.operation(&calls.calls()[1]);
    assert_eq!((operation.place(), operation.line), ("added.Later", 7));
}

#[test]
fn suspended_calls_continue_on_other_threads() {
    let step = Probe::add("suspended.step", "script.py", 1).unwrap();
    let recorded = Recorded::begin("suspended.*");
    let outer = step.enter();
    let first = step.begin().suspend();
    let second = step.begin().suspend();
    drop(outer);
    std::thread::spawn(move || {
        second.resume().fail();
        drop(first.resume());
        drop(step.enter());
    })
    .join()
    .unwrap();
    drop(step.begin().suspend());
    let (ended, failed) = (Outcome::Returned, Outcome::Panicked);
    assert_eq!(
        summary(&recorded.end()),
        [
            line("step", None, ended),
            line("step", Some(0), ended),
            line("step", Some(0), failed),
            line("step", None, ended),
            line("step", None, ended),
        ]
    );
}

#[test]
fn child_of_fork_has_the_probes_of_its_parent_and_adds_its_own() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let parent = Probe::add("fork.parent", "script.py", 1).unwrap();
    switch("fork.*", true).unwrap();
    assert!(in_child(|| {
        let child = Probe::add("fork.child", "script.py", 2).unwrap();
        let all = |probe| probes().any(|other| std::ptr::eq(other, probe));
        all(parent) && parent.is_on() && all(child) && !child.is_on()
    }));
    switch("fork.*", false).unwrap();
}

#[test]
fn probes_that_never_ran_are_listed() {
    let probe = probes().find(|probe| probe.name() == "never::called").unwrap();
    if probe.is_on() {
        never_called();
    }
    assert!(!probe.is_on() && probe.file().ends_with("probe.rs") && probe.line() > 0);
}

#[probe(name = "control_socket::knock")]
fn knock() {}

#[test]
fn probes_are_switched_through_the_control_socket() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let me = std::process::id();
    assert!(
        control(me, "list", "control_socket::*")
            .unwrap_err()
            .to_string()
            .contains("has no control socket")
    );
    let control_socket = ControlSocket::open().unwrap();
    assert!(
        ControlSocket::open().unwrap_err().to_string().contains("has a control socket already")
    );
    let list = || control(me, "list", "control_socket::*").unwrap();
    let (lines, fit) = list();
    assert_eq!((lines.len(), fit), (1, 1));
    assert!(
        lines[0].starts_with("off control_socket::knock ") && lines[0].contains("probe.rs:"),
        "{lines:?}"
    );
    assert_eq!(control(me, "on", "control_socket::*").unwrap(), (vec![], 1));
    assert!(list().0[0].starts_with("on "));
    knock();
    assert_eq!(control(me, "off", "control_socket::*").unwrap(), (vec![], 1));
    assert!(list().0[0].starts_with("off "));
    assert_eq!(control(me, "list", "nothing").unwrap(), (vec![], 0));
    assert!(control(me, "explode", "*").unwrap_err().to_string().contains("use list, on or off"));
    drop(control_socket);
    assert!(control(me, "list", "*").is_err());
}

/// The process whose control socket's name the child of the next test takes.
const NAMESAKE: &str = "COREBEAT_PROBE_NAMESAKE";

#[test]
fn child_binds_the_name_of_a_control_socket() {
    // Runs only in a child process.
    let Some(pid) = std::env::var_os(NAMESAKE) else { return };
    let name = format!("corebeat-probe-{}", pid.to_str().unwrap());
    let _taken = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    eprintln!("taken");
    // Until the parent has finished its checks.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn control_socket_bound_by_another_process_is_reported() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let me = std::process::id();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_binds_the_name_of_a_control_socket", "--nocapture"])
        .env(NAMESAKE, me.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut output).unwrap();
    let (control_socket, asked) = (ControlSocket::open(), control(me, "list", "*"));
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(output, "taken\n");
    assert!(
        control_socket
            .unwrap_err()
            .to_string()
            .contains(&format!("process {} has bound", child.id()))
    );
    assert!(asked.unwrap_err().to_string().contains("another process has bound"));
}

/// Set in the process that has no memory for a thread.
const NO_THREADS: &str = "COREBEAT_PROBE_NO_THREADS";

#[test]
fn refused_thread_of_a_control_socket_is_an_error() {
    let test = "refused_thread_of_a_control_socket_is_an_error";
    if std::env::var_os(NO_THREADS).is_none() {
        let group = TestGroup::new();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", test, "--nocapture"]).env(NO_THREADS, "");
        let output = group.add(&mut child).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    // A process of its own, in which no ended thread has left its stack. 1 MiB is less than a
    // stack.
    let size = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = size.split(' ').next().unwrap().parse().unwrap();
    // SAFETY: the call takes no pointer.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let limit = pages * page_bytes + (1 << 20);
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: reads the limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    let why = ControlSocket::open().unwrap_err().to_string();
    let begin = "cannot start the thread of the control socket of probes: ";
    assert!(why.starts_with(begin) && why.contains("ulimit -u"), "{why}");
}

/// As a process that is stopped, asked by a process under a profiler.
#[test]
fn signals_do_not_extend_the_wait_for_an_answer() {
    extern "C" fn ignore(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = ignore;
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("corebeat-probe-{}", std::process::id());
    let _silent = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    let waits = std::thread::spawn(|| control(std::process::id(), "list", "*").unwrap_err());
    while !waits.is_finished() {
        // SAFETY: the thread has not been joined, so its ID is valid.
        unsafe { libc::pthread_kill(waits.as_pthread_t(), libc::SIGUSR1) };
        std::thread::yield_now();
    }
    let late = waits.join().unwrap().to_string();
    assert!(late.contains("no answer within 2 s"), "{late}");
}

#[probe(name = "rule::expensive")]
fn expensive() {}

#[probe(name = "rule::cheap")]
fn cheap() {}

fn default_rule() -> Rule {
    Rule::new(RuleOptions::default()).unwrap()
}

#[test]
fn rule_switches_off_expensive_probes_until_the_runner_is_dropped() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    switch("rule::*", true).unwrap();
    let rule = RuleRunner::start(default_rule(), "rule::*", None).unwrap();
    let another = RuleRunner::start(default_rule(), "*", None).unwrap_err();
    assert!(another.to_string().contains("drop its runner first"));
    let turn = |calls: u32| {
        (0..calls).for_each(|_| expensive());
        std::thread::spawn(cheap).join().unwrap();
        rule.step(Duration::from_millis(1))
    };
    let on = |name| probes().find(|probe| probe.name() == name).unwrap().is_on();
    assert_eq!((turn(100), on("rule::expensive")), (0, true));
    assert_eq!((turn(1000), on("rule::expensive"), on("rule::cheap")), (1, false, true));
    // Switching the probe on again does not override the rule.
    switch("rule::expensive", true).unwrap();
    assert!(!on("rule::expensive"));
    // The probe has rested for one period.
    assert_eq!((turn(1000), on("rule::expensive")), (1, true));
    assert_eq!((turn(1000), on("rule::expensive")), (1, false));
    drop(rule);
    assert!(on("rule::expensive"));
    drop(RuleRunner::start(default_rule(), "rule::*", None).unwrap());
    switch("rule::*", false).unwrap();
    assert!(!on("rule::expensive"));
}

#[test]
fn rule_switches_off_probes_that_are_added_later() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    switch("costly.*", true).unwrap();
    let runner = RuleRunner::start(default_rule(), "costly.*", None).unwrap();
    let costly = Probe::add("costly.f", "script.py", 1).unwrap();
    assert!(costly.is_on());
    // A table of counts for the probes so far does not have this one.
    (0..100_000).for_each(|_| drop(costly.enter()));
    assert_eq!(runner.step(Duration::from_millis(10)), 1);
    assert!(!costly.is_on() && costly.is_wanted());
    drop(runner);
    assert!(costly.is_on());
    switch("costly.*", false).unwrap();
}

#[test]
fn period_of_a_rule_has_a_minimum() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    for period in [Duration::ZERO, RULE_PERIOD_MIN - Duration::from_nanos(1)] {
        let refused = RuleRunner::start(default_rule(), "rule::*", Some(period)).unwrap_err();
        assert!(matches!(refused, Error::RulePeriod(_)));
        assert!(refused.to_string().ends_with("use at least 1ms"), "{refused}");
    }
    for period in [RULE_PERIOD_MIN, Duration::MAX] {
        drop(RuleRunner::start(default_rule(), "rule::*", Some(period)).unwrap());
    }
}

#[test]
fn child_of_fork_drops_inherited_threads_and_starts_its_own() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // The child inherits the table in which this thread counts.
    let rule = RuleRunner::start(default_rule(), "rule::*", None).unwrap();
    expensive();
    drop(rule);
    let start = |period| RuleRunner::start(default_rule(), "rule::*", period);
    let mut own = Some((start(Some(Duration::MAX)).unwrap(), ControlSocket::open().unwrap()));
    assert!(in_child(|| {
        // These threads take over the stacks of all threads of the parent.
        let gate = Arc::new(Barrier::new(33));
        let wait = || {
            let gate = gate.clone();
            std::thread::spawn(move || _ = gate.wait())
        };
        let threads: Vec<_> = (1..33).map(|_| wait()).collect();
        drop(own.take());
        gate.wait();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        switch("rule::*", true).unwrap();
        let rule = start(None).unwrap();
        (0..1000).for_each(|_| expensive());
        rule.step(Duration::from_millis(1)) == 1 && ControlSocket::open().is_ok()
    }));
    // The control socket of the parent still answers.
    control(std::process::id(), "list", "rule::*").unwrap();
}

/// A handler of the program's signals must not run on a thread of this library.
#[test]
fn threads_of_the_library_receive_no_signals() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let _trace = Trace::create(folder.path().join("calls.cbt")).unwrap();
    let _rule = RuleRunner::start(default_rule(), "rule::*", Some(Duration::MAX)).unwrap();
    let _control = ControlSocket::open().unwrap();
    let is_quiet = || {
        let mut is_quiet = BTreeMap::new();
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            // Another thread may end in the meantime.
            let read = || std::fs::read_to_string(task.as_ref().ok()?.path().join("status")).ok();
            let Some(status) = read() else { continue };
            let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
            let (Some(name), Some(blocked)) = (field("Name:"), field("SigBlk:")) else { continue };
            let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
            let blocks = blocked >> (libc::SIGUSR1 - 1) & 1 == 1;
            is_quiet.insert(name.trim().to_owned(), blocks);
        }
        is_quiet
    };
    for name in ["probe control", "probe rule", "trace 0"] {
        // A new thread sets its name itself.
        let blocks = loop {
            if let Some(blocks) = is_quiet().get(name) {
                break *blocks;
            }
            std::thread::yield_now();
        };
        assert!(blocks, "{name}");
    }
}

#[test]
fn truncated_traces_give_calls_up_to_their_end() {
    let recorded = Recorded::begin("recursion::*");
    (0..5_000).for_each(|_| assert_eq!(down(3), 3));
    switch("recursion::*", false).unwrap();
    let Recorded { folder, trace, .. } = recorded;
    trace.unwrap().finish().unwrap();
    let bytes = std::fs::read(folder.path().join("calls.cbt")).unwrap();
    let mut most = 0;
    for part in 0..=40 {
        let cut = &bytes[..bytes.len() * part / 40];
        let Ok(calls) = Calls::read(cut) else { continue };
        assert!(calls.calls().len() >= most, "more bytes, fewer calls");
        most = calls.calls().len();
        let open = calls.calls().iter().filter(|call| call.outcome == Outcome::Open).count();
        assert!(open <= 4, "{open} calls are open");
    }
    assert_eq!(most, 20_000);
}

#[test]
fn losses_are_reported_and_end_open_calls() {
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calls.cbt");
    let trace =
        Options { buffers: 1, buffer_bytes: 0, ..Options::default() }.create(&path).unwrap();
    record(&trace).unwrap();
    switch("recursion::*", true).unwrap();
    (0..200).for_each(|_| assert_eq!(down(200), 200));
    switch("recursion::*", false).unwrap();
    let summary = trace.finish().unwrap();
    drop(one);
    let calls = read(&path);
    assert_eq!(calls.lost(), summary.lost);
    for call in calls.calls() {
        if let Some(parent) = call.parent.map(|p| &calls.calls()[p as usize]) {
            assert!(parent.begin_ns <= call.begin_ns && call.end_ns <= parent.end_ns);
        }
    }
}

/// Kieker 1.13 with all its dependencies, if installed.
fn kieker() -> Option<PathBuf> {
    const JAR: &str = ".m2/repository/net/kieker-monitoring/kieker/1.13/kieker-1.13-emf.jar";
    let jar = std::env::home_dir().map(|home| home.join(JAR)).filter(|jar| jar.exists());
    let java =
        Command::new("java").arg("-version").output().is_ok_and(|output| output.status.success());
    if jar.is_none() || !java {
        eprintln!(
            "skipped: Java or Kieker is not installed (mvn dependency:get -Dtransitive=false \
             -Dartifact=net.kieker-monitoring:kieker:1.13:jar:emf)"
        );
    }
    jar.filter(|_| java)
}

#[test]
fn kieker_reads_the_log() {
    let recorded = Recorded::begin("panics::*");
    switch("threads::*", true).unwrap();
    assert_eq!(outer(), 4);
    assert_eq!(ask_others(), 300);
    switch("threads::*", false).unwrap();
    let calls = recorded.end();
    let folder = tempfile::tempdir().unwrap();
    let (log, drawn) = (folder.path().join("log"), folder.path().join("drawn"));
    corebeat_probe::kieker::export(&calls, "here", &log).unwrap();
    let Some(jar) = kieker() else { return };
    let analyse = |drawn: &Path| {
        std::fs::create_dir(drawn).unwrap();
        let output = Command::new("java")
            .current_dir(folder.path())
            .arg("-cp")
            .arg(&jar)
            .arg("kieker.tools.traceAnalysis.TraceAnalysisTool")
            .arg("-i")
            .arg(&log)
            .arg("-o")
            .arg(drawn)
            .args(["--print-Message-Traces", "--plot-Call-Trees"])
            .arg("--plot-Deployment-Operation-Dependency-Graph")
            .output()
            .unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let output = analyse(&drawn);
    // The tool always exits with status 0.
    for wrong in ["Invalid", "SEVERE", "Exception", "ERROR"] {
        assert!(!output.contains(wrong), "{output}");
    }
    let read = |name: &str| {
        std::fs::read_to_string(drawn.join(name))
            .unwrap_or_else(|e| panic!("{name}: {e}: {output}"))
    };
    let traces = read("messageTraces.txt");
    let traces_reported = traces.lines().filter(|line| line.starts_with("Trace ")).count();
    assert_eq!(traces_reported, calls.traces() as usize, "{output}");
    assert_eq!(traces.matches("<SYNC-CALL ").count(), calls.calls().len());
    let graph = read("deploymentOperationDependencyGraph.dot");
    for operation in ["outer", "middle", "last", "ask", "answer"] {
        assert!(graph.contains(operation), "{operation} is not in {graph}");
    }
    // The checks above can fail: a damaged log is reported.
    let lines = std::fs::read_to_string(log.join("kieker-1.dat")).unwrap();
    let (cut, _) = lines.trim_end().rsplit_once('\n').unwrap();
    std::fs::write(log.join("kieker-1.dat"), cut).unwrap();
    let output = analyse(&folder.path().join("again"));
    assert!(output.contains("Invalid"), "{output}");
}
