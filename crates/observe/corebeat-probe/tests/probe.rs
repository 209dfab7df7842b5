//! What probes see is what happened.

use corebeat_probe::{
    Calls, Door, Handover, Keeper, Outcome, Rule, ask, block, probe, probes, record, switch,
};
use corebeat_trace::{Options, Trace};
use std::fs::File;
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// One trace is installed at a time.
static ONE: Mutex<()> = Mutex::new(());

/// A trace in a file of its own, and the probes of one test, on.
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

/// Calls in order: the function, who called it, and how it ended.
fn story(calls: &Calls) -> Vec<(String, Option<usize>, Outcome)> {
    let calls_of = |call: &corebeat_probe::Call| {
        (calls.operation(call).function().to_owned(), call.parent.map(|p| p as usize), call.outcome)
    };
    calls.calls().iter().map(calls_of).collect()
}

fn line(function: &str, parent: Option<usize>, outcome: Outcome) -> (String, Option<usize>, Outcome) {
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
fn nested_calls_are_read_as_they_were_made() {
    use nested::Account;
    let recorded = Recorded::begin("probe::nested::*");
    let also = switch("*nested::*", true).unwrap();
    assert_eq!(nested::all(&[Account(3u8), Account(7)]), 1);
    switch("*nested::*", false).unwrap();
    let calls = recorded.end();
    let returned = Outcome::Returned;
    assert_eq!(
        story(&calls),
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
    assert_eq!((also, calls.strays(), calls.lost(), calls.traces()), (4, 0, 0, 1));
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
fn panics_are_told_from_returns() {
    let recorded = Recorded::begin("panics::*");
    assert_eq!(outer(), 4);
    let story = story(&recorded.end());
    let expected = [
        line("outer", None, Outcome::Returned),
        line("middle", Some(0), Outcome::Panicked),
        // It returned, while another call panicked.
        line("last", Some(1), Outcome::Returned),
        line("middle", Some(0), Outcome::Returned),
        line("last", Some(3), Outcome::Returned),
    ];
    assert_eq!(story, expected);
}

#[probe(name = "recursion::down")]
fn down(depth: u32) -> u32 {
    if depth == 0 { 0 } else { down(depth - 1) + 1 }
}

#[test]
fn recursion_is_as_deep_as_it_was() {
    let recorded = Recorded::begin("recursion::*");
    assert_eq!(down(1000), 1000);
    let calls = recorded.end();
    assert_eq!(calls.calls().len(), 1001);
    for (number, call) in calls.calls().iter().enumerate() {
        assert_eq!(call.parent.map(|p| p as usize), number.checked_sub(1));
    }
    assert!(calls.calls().windows(2).all(|w| w[1].begin_ns >= w[0].begin_ns && w[1].end_ns <= w[0].end_ns));
}

/// Functions of every form that a probe has to leave as it is.
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
        pub(super) fn parse(text: &str) -> Result<impl Iterator<Item = u32> + use<>, Box<dyn Error>> {
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
    pub(super) fn apply<const N: usize>(mut of: [u32; N], mut with: impl FnMut(u32) -> u32) -> [u32; N] {
        of.iter_mut().for_each(|number| *number = with(*number));
        of
    }

    /// # Safety
    ///
    /// It points to a number.
    #[probe(name = "shape::read")]
    pub(super) unsafe fn read(from: *const u32) -> u32 {
        // SAFETY: the caller's.
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

/// Uses them all; what they give.
fn use_shapes() -> (Vec<u32>, u32, usize) {
    use shape::{Count, Shelf};
    let mut shelf = Shelf::default().put((1, 2)).put((5, 9));
    *shelf.lend(0).unwrap() += 1;
    assert!(shelf.lend(9).is_none() && Shelf::parse("x").is_err());
    let all = shelf.all().copied().chain(Shelf::parse("9").unwrap()).collect();
    assert_eq!(shape::apply([1, 2], |number| number * 2), [2, 4]);
    // SAFETY: it points to a number.
    assert_eq!(unsafe { shape::read(&7) }, 7);
    assert!(catch_unwind(|| shape::fail()).is_err());
    (all, shape::place(), shelf.count())
}

#[test]
fn functions_do_the_same_with_probes_off_and_on() {
    let recorded = Recorded::begin("shape::*");
    switch("shape::*", false).unwrap();
    let off = use_shapes();
    let first = shape::number();
    switch("shape::*", true).unwrap();
    let on = use_shapes();
    // What is in a function is there once.
    assert_eq!(shape::number(), first + 1);
    let calls = recorded.end();
    assert_eq!((&off, &off.0[..], off.2), (&on, &[2, 1, 5, 9][..], 7));
    let functions: Vec<_> = story(&calls).into_iter().map(|(function, ..)| function).collect();
    let expected = [
        "put", "put", "lend", "lend", "parse", "all", "parse", "apply", "read", "fail", "place", "count",
        "number",
    ];
    assert_eq!(functions, expected);
    let panicked: Vec<_> = calls.calls().iter().filter(|c| c.outcome != Outcome::Returned).collect();
    assert_eq!(panicked.len(), 1);
    assert_eq!((calls.operation(panicked[0]).function(), panicked[0].outcome), ("fail", Outcome::Panicked));
}

#[probe(name = "threads::ask")]
fn ask_others() -> u32 {
    let workers: Vec<_> = (0..3u32)
        .map(|number| {
            let handover = Handover::here();
            std::thread::spawn(move || {
                let _handed = handover.take();
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
fn calls_handed_to_threads_are_their_callers() {
    let recorded = Recorded::begin("threads::*");
    answer(0);
    assert_eq!(ask_others(), 300);
    let calls = recorded.end();
    let handed: Vec<_> = calls.calls().iter().filter(|call| call.handed).collect();
    assert_eq!((handed.len(), calls.calls().len(), calls.strays()), (150, 152, 0));
    assert!(handed.iter().all(|call| call.parent == Some(1)));
    let threads: std::collections::HashSet<_> = handed.iter().map(|call| call.thread).collect();
    assert_eq!(threads.len(), 3);
}

/// Ready when it is polled for the second time.
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
fn asynchronous_calls_that_take_turns_are_kept_apart() {
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
        // A future may go on in another thread.
        let ready = std::thread::scope(|scope| {
            let poll = || future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            scope.spawn(poll).join().unwrap()
        });
        done.push(ready);
    }
    drop(dropped);
    assert_eq!(done, [Poll::Ready(2), Poll::Ready(4)]);
    let calls = recorded.end();
    let all = story(&calls);
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
    assert_eq!(calls.strays(), 0);
}

#[probe(name = "middle::outside")]
fn outside(on: bool) {
    switch("middle::*", on).unwrap();
    inside();
}

#[probe(name = "middle::inside")]
fn inside() {}

#[test]
fn call_switched_in_the_middle_is_whole() {
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
    assert_eq!(story(&calls), expected);
    assert_eq!(calls.strays(), 0);
}

#[probe(name = "busy::work")]
fn work() {
    std::hint::black_box(());
}

#[test]
fn calls_are_whole_while_probes_are_switched() {
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
    assert_eq!(calls.strays(), 0);
    assert!(calls.calls().iter().all(|call| call.outcome == Outcome::Returned));
    for call in calls.calls() {
        let parent = call.parent.map(|p| &calls.calls()[p as usize]);
        assert!(parent.is_none_or(|p| calls.operation(p).function() == "busy"));
    }
}

#[probe(name = "never::called")]
fn never_called() {}

#[test]
fn probes_are_known_that_never_ran() {
    let probe = probes().find(|probe| probe.name() == "never::called").unwrap();
    if probe.is_on() {
        never_called();
    }
    assert!(!probe.is_on() && probe.file().ends_with("probe.rs") && probe.line() > 0);
}

#[probe(name = "door::knock")]
fn knock() {}

#[test]
fn probes_are_switched_through_the_door() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let me = std::process::id();
    assert!(ask(me, "list", "door::*").unwrap_err().to_string().contains("has no door"));
    let door = Door::open().unwrap();
    assert!(Door::open().unwrap_err().to_string().contains("has a door already"));
    let list = || ask(me, "list", "door::*").unwrap();
    let (lines, fit) = list();
    assert_eq!((lines.len(), fit), (1, 1));
    assert!(lines[0].starts_with("off door::knock ") && lines[0].contains("probe.rs:"), "{lines:?}");
    assert_eq!(ask(me, "on", "door::*").unwrap(), (vec![], 1));
    assert!(list().0[0].starts_with("on "));
    knock();
    assert_eq!(ask(me, "off", "door::*").unwrap(), (vec![], 1));
    assert!(list().0[0].starts_with("off "));
    assert_eq!(ask(me, "list", "nothing").unwrap(), (vec![], 0));
    assert!(ask(me, "explode", "*").unwrap_err().to_string().contains("knows list, on and off"));
    drop(door);
    assert!(ask(me, "list", "*").is_err());
}

/// The process whose door's name the child of the next test takes.
const NAMESAKE: &str = "COREBEAT_PROBE_NAMESAKE";

#[test]
fn child_takes_the_name_of_a_door() {
    // Nothing, but in a child.
    let Some(pid) = std::env::var_os(NAMESAKE) else { return };
    let name = format!("corebeat-probe-{}", pid.to_str().unwrap());
    let _taken = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    eprintln!("taken");
    // Until the other one has looked.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn door_whose_name_another_process_has_taken_says_so() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let me = std::process::id();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_takes_the_name_of_a_door", "--nocapture"])
        .env(NAMESAKE, me.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let (door, asked) = (Door::open(), ask(me, "list", "*"));
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(said, "taken\n");
    assert!(door.unwrap_err().to_string().contains(&format!("process {} has taken", child.id())));
    assert!(asked.unwrap_err().to_string().contains("is another process"));
}

#[probe(name = "keeper::dear")]
fn dear() {}

#[probe(name = "keeper::cheap")]
fn cheap() {}

#[test]
fn keeper_switches_off_what_costs_too_much_until_it_ends() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    switch("keeper::*", true).unwrap();
    let keeper = Keeper::start(Rule::new(0.01).call_ns(30.0), "keeper::*", None).unwrap();
    let another = Keeper::start(Rule::new(0.5), "*", None).unwrap_err();
    assert!(another.to_string().contains("drop it first"));
    let turn = |calls: u32| {
        (0..calls).for_each(|_| dear());
        std::thread::spawn(cheap).join().unwrap();
        keeper.turn(Duration::from_millis(1))
    };
    let on = |name| probes().find(|probe| probe.name() == name).unwrap().is_on();
    assert_eq!((turn(100), on("keeper::dear")), (0, true));
    assert_eq!((turn(1000), on("keeper::dear"), on("keeper::cheap")), (1, false, true));
    // Who asks for it again does not override the rule.
    switch("keeper::dear", true).unwrap();
    assert!(!on("keeper::dear"));
    // It rested for a turn.
    assert_eq!((turn(1000), on("keeper::dear")), (1, true));
    assert_eq!((turn(1000), on("keeper::dear")), (1, false));
    drop(keeper);
    assert!(on("keeper::dear"));
    drop(Keeper::start(Rule::new(0.5), "keeper::*", None).unwrap());
    switch("keeper::*", false).unwrap();
    assert!(!on("keeper::dear"));
}

#[test]
fn cut_traces_give_calls_up_to_the_cut() {
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
fn losses_tear_calls_and_are_told() {
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calls.cbt");
    let trace = Options::default().buffers(1).buffer_bytes(0).create(&path).unwrap();
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

/// Kieker 1.13 with all that it stands on, if it is here.
fn kieker() -> Option<PathBuf> {
    const JAR: &str = ".m2/repository/net/kieker-monitoring/kieker/1.13/kieker-1.13-emf.jar";
    let jar = std::env::home_dir().map(|home| home.join(JAR)).filter(|jar| jar.exists());
    let java = Command::new("java").arg("-version").output().is_ok_and(|output| output.status.success());
    if jar.is_none() || !java {
        eprintln!(
            "skipped: no java, or no Kieker here (mvn dependency:get -Dtransitive=false \
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
    let said = analyse(&drawn);
    // It ends with 0 whatever it finds.
    for wrong in ["Invalid", "SEVERE", "Exception", "ERROR"] {
        assert!(!said.contains(wrong), "{said}");
    }
    let read = |name: &str| {
        std::fs::read_to_string(drawn.join(name)).unwrap_or_else(|e| panic!("{name}: {e}: {said}"))
    };
    let traces = read("messageTraces.txt");
    let told = traces.lines().filter(|line| line.starts_with("Trace ")).count();
    assert_eq!(told, calls.traces() as usize, "{said}");
    assert_eq!(traces.matches("<SYNC-CALL ").count(), calls.calls().len());
    let graph = read("deploymentOperationDependencyGraph.dot");
    for operation in ["outer", "middle", "last", "ask", "answer"] {
        assert!(graph.contains(operation), "{operation} is not in {graph}");
    }
    // What is asserted above can fail.
    let lines = std::fs::read_to_string(log.join("kieker-1.dat")).unwrap();
    let (cut, _) = lines.trim_end().rsplit_once('\n').unwrap();
    std::fs::write(log.join("kieker-1.dat"), cut).unwrap();
    let said = analyse(&folder.path().join("again"));
    assert!(said.contains("Invalid"), "{said}");
}
