//! Tests of parsing, of shares, and of threads of this process.

use super::parse::Switches;
use super::*;
use corebeat_machine::{BlockedCause, CountedState, THREAD_NAME_BYTES, ThreadCounts, TimeShares};
use proptest::prelude::*;
use std::io::Read;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

const STAT: &str = "5057 (a) b (c) S 5055 5057 5057 0 -1 4194560 2131 38967 0 3 7 2 28 10 20 \
                    0 1 0 88838 5124096 958 18446744073709551615 94394425004032 \
                    94394425793437 140721010183360 0 0 0 65536 4 1132560123 1 0 0 17 1 0 0 \
                    0 0 0 94394426026736 94394426074980 94395436007424 1 2 3 4 0";

/// As for files.
fn divide(from: &Reading, to: &Reading, system_part: f64, parts: Option<WaitParts>) -> Divided {
    super::divide(from, to, system_part, parts, BLOCKED_NOISE)
}

fn reading(at_ns: u64, run_ns: u64, delay_ns: u64) -> Reading {
    Reading { run_ns, delay_ns: Some(delay_ns), runnable: Some(false), ..Reading::birth(at_ns) }
}

#[test]
fn stat_name_with_parentheses_is_kept_whole() {
    let stat = parse_stat(STAT).unwrap();
    assert_eq!((stat.name, stat.state), ("a) b (c", 'S'));
    assert_eq!((stat.user, stat.system, stat.start_ticks), (7, 2, 88838));
    assert_eq!((stat.parent, stat.children), (5055, 38));
    assert_eq!((stat.cpu, stat.hidden), (Some(CpuId(1)), false));
    assert_eq!((stat.nice, stat.policy), (0, Some(0)));
}

#[test]
fn stat_of_a_kernel_thread_has_its_flag() {
    const KTHREADD: &str = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 1 0 0 20 0 1 0 38 0 0 \
                            18446744073709551615 0 0 0 0 0 0 0 2147483647 0 0 0 0 0 1 0 0";
    assert!(parse_stat(KTHREADD).unwrap().is_kernel);
    assert!(!parse_stat(STAT).unwrap().is_kernel);
}

#[test]
fn stat_contains_ignored_ends_of_children() {
    assert!(!parse_stat(STAT).unwrap().discards_children);
    let ignores = STAT.replace(" 65536 4 ", " 65536 65540 ");
    assert!(parse_stat(&ignores).unwrap().discards_children);
}

#[test]
fn stat_of_a_thread_without_access_is_hidden() {
    assert!(parse_stat(&STAT.replace("94394425004032", "1")).unwrap().hidden);
    let own = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    assert!(!parse_stat(&own).unwrap().hidden);
}

#[test]
fn schedstat_has_three_numbers() {
    let parsed = parse_schedstat("28253613 10927721 75\n");
    assert_eq!(parsed, Some(SchedStat { run_ns: 28253613, delay_ns: 10927721, slices: 75 }));
    assert_eq!(parse_schedstat("28253613 10927721"), None);
}

#[test]
fn switches_are_found_in_sched_and_in_status() {
    let sched = "bash (5057, #threads: 1)\n---\nse.nr_migrations                    :        15\n\
                 nr_switches    :  76\nnr_voluntary_switches       :   52\n\
                 nr_involuntary_switches  : 24\n";
    let expected = Switches { voluntary: Some(52), involuntary: Some(24), migrations: Some(15) };
    assert_eq!(parse_switches(sched), expected);
    let status = "Name:\tx\nvoluntary_ctxt_switches:\t52\nnonvoluntary_ctxt_switches:\t24\n";
    assert_eq!(parse_switches(status), Switches { migrations: None, ..expected });
    assert_eq!(parse_switches(""), Switches::default());
}

#[test]
fn wait_file_distinguishes_futex_from_other_sleep() {
    for futex in ["futex_do_wait", "futex_wait_queue_me", "rt_mutex_slowlock_block"] {
        assert_eq!(WaitFile::Wchan.parse(futex), WaitState::Futex);
    }
    assert_eq!(WaitFile::Wchan.parse("hrtimer_nanosleep"), WaitState::Asleep);
    assert_eq!(WaitFile::Wchan.parse("0"), WaitState::Awake);
    assert_eq!(WaitFile::Syscall.parse("-1 0x7ffc29d2ed30 0x7fc48a7f1aec"), WaitState::Asleep);
    assert_eq!(WaitFile::Syscall.parse("running"), WaitState::Awake);
}

#[test]
fn futex_calls_are_divided_into_locks_and_others() {
    let state = |arguments: &str| {
        WaitFile::Syscall.parse(&format!("{} {arguments} 0x0 0x0 0x7f 0x7f", libc::SYS_futex))
    };
    // Observed with glibc 2.36, Rust 1.95, libgomp 12 and Go.
    for (name, arguments) in [
        ("pthread_mutex_lock", "0x10 0x80 0x2 0x0"),
        ("pthread_mutex_lock of shared memory", "0x10 0x0 0x2 0x0"),
        ("pthread_mutex_lock with priority inheritance", "0x10 0x86 0x0 0x0"),
        ("std::sync::Mutex::lock", "0x10 0x89 0x2 0x0"),
        ("omp critical", "0x10 0x80 0xffffffff 0x0"),
    ] {
        assert_eq!(state(arguments), WaitState::Lock(16), "{name}");
    }
    for (name, arguments) in [
        ("pthread_cond_wait", "0x10 0x189 0x2 0x0"),
        ("pthread_join", "0x10 0x109 0x6b26 0x0"),
        ("pthread_barrier_wait", "0x10 0x80 0x0 0x0"),
        ("std::sync::Condvar::wait", "0x10 0x89 0x0 0x0"),
        ("std::sync::Condvar::wait_timeout", "0x10 0x89 0x2 0x7f10"),
        ("std::thread::park", "0x10 0x89 0xffffffff 0x0"),
        ("a barrier of libgomp", "0x10 0x80 0x8 0x0"),
        ("an idle thread of Go", "0x10 0x80 0x0 0x0"),
    ] {
        assert_eq!(state(arguments), WaitState::Park(16), "{name}");
    }
    assert_eq!(state("truncated"), WaitState::Futex);
}

#[test]
fn shares_split_blocked_time_by_wait_samples() {
    let parts = |futex, lock| Some(WaitParts { stopped: 0.0, futex, lock });
    let of = |parts| divide(&reading(0, 0, 0), &reading(1000, 250, 250), 0.0, parts).shares;
    let s = of(parts(0.75, Some(0.25)));
    assert_eq!((s.user, s.wait), (Some(0.25), Some(0.25)));
    assert_eq!((s.lock, s.park, s.sleep), (Some(0.125), Some(0.25), Some(0.125)));
    let s = of(parts(0.75, None));
    assert_eq!((s.lock, s.park, s.sleep), (None, None, Some(0.125)));
    assert_eq!(s.lock_or_park(), Some(0.375));
}

#[test]
fn shares_without_wait_samples_leave_lock_park_and_sleep_unknown() {
    let shares = divide(&reading(0, 0, 0), &reading(1000, 200, 300), 0.0, None).shares;
    assert_eq!((shares.lock, shares.park, shares.sleep), (None, None, None));
    assert_eq!(shares.blocked(), Some(0.5));
}

#[test]
fn shares_of_a_thread_that_blocked_briefly_need_no_sample() {
    let shares = divide(&reading(0, 0, 0), &reading(1000, 991, 0), 0.0, None).shares;
    assert_eq!((shares.lock, shares.park), (Some(0.0), Some(0.0)));
}

#[test]
fn shares_of_a_thread_that_never_yielded_have_no_blocked_time() {
    let running = |r: Reading| Reading { runnable: Some(true), ..r };
    let waits =
        divide(&running(reading(0, 0, 0)), &running(reading(1000, 300, 300)), 0.0, None).shares;
    assert_eq!((waits.user, waits.wait, waits.blocked()), (Some(0.5), Some(0.5), Some(0.0)));
    let starves =
        divide(&running(reading(0, 0, 0)), &running(reading(1000, 0, 0)), 0.0, None).shares;
    assert_eq!(starves.wait, Some(1.0));
}

#[test]
fn shares_without_schedstat_have_running_only() {
    let blind = |at, run| Reading { delay_ns: None, ..reading(at, run, 0) };
    let parts = Some(WaitParts { stopped: 0.0, futex: 1.0, lock: Some(1.0) });
    let shares = divide(&blind(0, 0), &blind(1000, 300), 0.0, parts).shares;
    assert_eq!((shares.running(), shares.wait, shares.lock), (Some(0.3), None, None));
}

#[test]
fn shares_split_run_time_by_the_system_part() {
    let shares = divide(&reading(0, 0, 0), &reading(1000, 500, 0), 0.5, None).shares;
    assert_eq!((shares.user, shares.system), (Some(0.25), Some(0.25)));
}

fn full(slices: u64, user_ticks: u64, system_ticks: u64, voluntary: u64) -> Full {
    let switches = Switches { voluntary: Some(voluntary), ..Switches::default() };
    Full { slices, user_ticks, system_ticks, switches }
}

#[test]
fn rates_use_the_ticks_of_the_span_then_of_the_lifetime() {
    assert_eq!(Rates::between(&full(0, 3, 1, 0), &full(0, 4, 2, 0)).system_part, 0.5);
    assert_eq!(Rates::between(&full(0, 3, 1, 0), &full(0, 3, 1, 0)).system_part, 0.25);
    assert_eq!(Rates::between(&full(0, 0, 0, 0), &full(0, 0, 0, 0)).system_part, 0.0);
}

#[test]
fn rates_predict_switches_by_slices() {
    let rates = Rates::between(&full(10, 0, 0, 5), &full(30, 0, 0, 20));
    let before = Switches { voluntary: Some(20), involuntary: None, migrations: None };
    let after = rates.switches_after(&before, 100);
    assert_eq!(after, Switches { voluntary: Some(95), ..before });
}

#[test]
fn wait_samples_decay_but_keep_their_ratio() {
    let mut wait_samples = WaitSamples::default();
    let parts = |futex, lock| Some(WaitParts { stopped: 0.0, futex, lock });
    assert_eq!(wait_samples.parts(), None);
    wait_samples.add(WaitState::Awake, 8);
    assert_eq!(wait_samples.parts(), None);
    wait_samples.add(WaitState::Lock(16), 8);
    wait_samples.decay();
    assert_eq!(wait_samples.parts(), parts(1.0, Some(1.0)));
    wait_samples.add(WaitState::Asleep, 8);
    assert_eq!(wait_samples.parts(), parts(1.0 / 3.0, Some(1.0 / 3.0)));
    wait_samples.add(WaitState::Park(32), 8);
    assert_eq!(wait_samples.parts(), parts(0.6, Some(0.2)));
    wait_samples.add(WaitState::Futex, 8);
    assert_eq!(wait_samples.parts().unwrap().lock, None);
}

#[test]
fn stop_in_an_earlier_span_removes_no_blocked_time() {
    let mut wait_samples = WaitSamples::default();
    wait_samples.add(WaitState::Stopped, 500);
    wait_samples.decay();
    wait_samples.add(WaitState::Asleep, 200);
    assert_eq!(wait_samples.parts().unwrap().stopped, 0.0);
}

#[test]
fn wait_sample_explains_the_blocked_time_before_it() {
    let mut wait_samples = WaitSamples::default();
    wait_samples.add(WaitState::Asleep, 1);
    wait_samples.add(WaitState::Park(16), 99);
    assert_eq!(wait_samples.parts().unwrap().futex, 0.99);
}

#[test]
fn shares_exclude_the_time_for_which_a_thread_was_stopped() {
    let mut wait_samples = WaitSamples::default();
    wait_samples.add(WaitState::Stopped, 300);
    wait_samples.add(WaitState::Park(16), 100);
    let (before, after) = (reading(0, 0, 0), reading(1000, 100, 100));
    let Divided { span_ns, shares: s } = divide(&before, &after, 0.0, wait_samples.parts());
    assert_eq!(span_ns, 400);
    assert!((s.user.unwrap() - 0.25).abs() < 1e-9 && (s.wait.unwrap() - 0.25).abs() < 1e-9);
    assert!((s.park.unwrap() - 0.5).abs() < 1e-9 && s.sleep.unwrap().abs() < 1e-9, "{s:?}");
    let mut stopped = WaitSamples::default();
    stopped.add(WaitState::Stopped, 1);
    let whole = divide(&before, &reading(1000, 0, 0), 0.0, stopped.parts());
    assert_eq!(whole, Divided { span_ns: 0, shares: TimeShares::default() });
}

prop_compose! {
    fn any_reading()(
        at_ns in 0u64..1 << 40, run_ns in 0u64..1 << 41,
        delay_ns in proptest::option::of(0u64..1 << 41),
        runnable: Option<bool>,
        voluntary in proptest::option::of(0u64..3),
    ) -> Reading {
        let switches = Switches { voluntary, ..Switches::default() };
        Reading { at_ns, run_ns, delay_ns, switches, runnable, counted: Counted::default() }
    }
}

proptest! {
    #[test]
    fn shares_that_are_known_lie_between_0_and_1_and_add_up(
        before in any_reading(), after in any_reading(), system_part in -0.5f64..1.5,
        stopped in 0.0f64..=1.0, futex in 0.0f64..=1.0,
        lock in proptest::option::of(0.0f64..=1.0), is_known: bool,
    ) {
        let parts = WaitParts { stopped, futex, lock: lock.map(|l| l * futex) };
        let Divided { span_ns, shares: s } =
            divide(&before, &after, system_part, is_known.then_some(parts));
        prop_assert!(span_ns <= after.at_ns.saturating_sub(before.at_ns));
        let parts = [s.user, s.system, s.lock, s.park, s.wait, s.sleep];
        for part in parts.iter().flatten() {
            prop_assert!((0.0..=1.0 + 1e-9).contains(part), "{s:?}");
        }
        if let Some(sum) = parts.iter().copied().sum::<Option<f64>>() {
            prop_assert!((sum - 1.0).abs() < 1e-9, "{s:?}");
        }
    }

    #[test]
    fn thread_parsers_never_panic(text in "\\PC{0,60}", numbers in "[0-9 ():-]{0,200}") {
        for text in [text, numbers] {
            let _ = (parse_schedstat(&text), parse_stat(&text), parse_switches(&text));
            let _ = (WaitFile::Wchan.parse(&text), WaitFile::Syscall.parse(&text));
        }
    }
}

#[test]
fn thread_files_of_this_kernel_are_parsed() {
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    let mut buffer = Buffer::new();
    for keep in [true, false] {
        let pid = std::process::id() as i32;
        let mut thread = Thread::open(pid, tid, keep, None, None, &mut buffer).unwrap();
        thread.sample(&mut buffer);
        assert!(matches!(thread.observe(false, None, &mut buffer), Observed::Alive(_)));
        let Observed::Alive(sample) = thread.observe(false, None, &mut buffer) else {
            panic!("this thread has not ended")
        };
        assert_eq!(sample.id.tid, tid);
        assert!(sample.cpu.is_some());
        assert!(sample.shares.running().is_some());
        assert!(sample.counters.voluntary_switches.is_some());
    }
}

#[test]
fn thread_that_has_ended_is_none_or_ended() {
    let mut buffer = Buffer::new();
    let (tid, go) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    let other = std::thread::spawn(move || {
        tid.0.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let _ = go.1.recv();
    });
    let (pid, number) = (std::process::id() as i32, tid.1.recv().unwrap());
    let mut thread = Thread::open(pid, number, true, None, None, &mut buffer).unwrap();
    thread.sample(&mut buffer);
    drop(go.0);
    other.join().unwrap();
    // The kernel removes a thread a little after the join.
    let gone = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        matches!(thread.observe(false, None, &mut buffer), Observed::Ended(_))
    });
    assert!(gone);
    assert!(Thread::open(pid, number, true, None, None, &mut buffer).is_none());
}

/// Samples a thread of this process until the sample is right. Returns whether one was.
fn until_sampled(thread: &mut Thread, mut is_right: impl FnMut(WaitState) -> bool) -> bool {
    let (until, mut buffer) = (Instant::now() + Duration::from_secs(60), Buffer::new());
    while Instant::now() < until {
        thread.sample(&mut buffer);
        if is_right(thread.last_state) {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[test]
fn condition_whose_count_is_that_of_a_lock_remains_a_condition() {
    let (condition, notifications) = (Condvar::new(), Mutex::new(0));
    let (sender, receiver) = std::sync::mpsc::channel();
    let notify = || {
        *notifications.lock().unwrap() += 1;
        condition.notify_one();
    };
    let (parks, parks_with_2) = std::thread::scope(|scope| {
        scope.spawn(|| {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            drop(condition.wait_while(notifications.lock().unwrap(), |n| *n < 3));
        });
        let (pid, tid) = (std::process::id() as i32, receiver.recv().unwrap());
        let mut thread = Thread::open(pid, tid, true, None, None, &mut Buffer::new()).unwrap();
        let word = std::ptr::from_ref(&condition).addr() as u64;
        let parks = until_sampled(&mut thread, |state| state == WaitState::Park(word));
        notify();
        notify();
        let call = || std::fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).unwrap();
        let has_count_2 = |call: &str| WaitFile::Syscall.parse(call) == WaitState::Lock(word);
        let parks_with_2 = until_sampled(&mut thread, |state| {
            state == WaitState::Park(word) && has_count_2(&call())
        });
        notify();
        (parks, parks_with_2)
    });
    assert!(parks, "no sample of the thread that waits for the condition");
    assert!(parks_with_2, "the wait with the value of a lock is taken for a lock");
}

#[test]
fn span_of_one_cause_has_no_share_of_earlier_causes() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let (wake, wakes) = std::sync::mpsc::channel::<()>();
    let mut buffer = Buffer::new();
    let last = std::thread::scope(|scope| {
        scope.spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = reader.read(&mut [0]);
            let _ = wakes.recv();
        });
        let (pid, tid) = (std::process::id() as i32, receiver.recv().unwrap());
        let mut thread = Thread::open(pid, tid, true, None, None, &mut buffer).unwrap();
        let sleeps = until_sampled(&mut thread, |state| state == WaitState::Asleep);
        drop(writer);
        let parks = until_sampled(&mut thread, |state| matches!(state, WaitState::Park(_)));
        // The thread runs no more from here on.
        let last = (0..3).map(|_| match thread.observe(true, None, &mut buffer) {
            Observed::Alive(sample) => sample.shares,
            Observed::Ended(_) => panic!("the thread has ended"),
        });
        let last = last.last().filter(|_| sleeps && parks);
        drop(wake);
        last
    });
    assert_eq!(last.map(|s| (s.park, s.sleep)), Some((Some(1.0), Some(0.0))));
}

/// A row with these counts, one for each reading.
#[derive(Debug)]
struct Script(Mutex<Vec<ThreadCounts>>);

impl ThreadRow for Script {
    fn read(&self) -> Option<ThreadCounts> {
        let mut counts = self.0.lock().unwrap();
        (!counts.is_empty()).then(|| counts.remove(0))
    }
}

/// A row of a thread that runs.
fn running_row() -> ThreadCounts {
    const MS: u64 = 1_000_000;
    let mut name = [0; THREAD_NAME_BYTES];
    name[..3].copy_from_slice(b"old");
    ThreadCounts {
        state: CountedState::Runs,
        at_ns: 1_000 * MS,
        cpu: CpuId(1),
        run_ns: 500 * MS,
        wait_ns: 100 * MS,
        has_causes: true,
        lock_ns: 7 * MS,
        park_ns: 0,
        user_ns: 200 * MS,
        system_ns: 0,
        voluntary: 7,
        involuntary: 0,
        migrations: 1,
        name,
    }
}

#[test]
fn cause_of_a_thread_that_ends_is_that_at_the_start_of_the_span() {
    let state = CountedState::Blocked(BlockedCause::Sleep);
    let first = ThreadCounts { state, has_causes: false, ..running_row() };
    let at_ns = first.at_ns + 1_000_000_000;
    let ended = ThreadCounts { state: CountedState::Ended, at_ns, ..first };
    let row: Box<dyn ThreadRow> = Box::new(Script(Mutex::new(vec![first, ended])));
    let (pid, tid) = (std::process::id() as i32, rustix::thread::gettid().as_raw_nonzero().get());
    let buffer = &mut Buffer::new();
    let mut thread = Thread::open(pid, tid, true, None, Some(row), buffer).unwrap();
    // Samples of other threads show another cause.
    let others = Some(WaitParts { stopped: 0.0, futex: 1.0, lock: Some(0.0) });
    let (Observed::Alive(sample) | Observed::Ended(Some(sample))) =
        thread.observe(true, others, buffer)
    else {
        panic!("the row has counts");
    };
    assert_eq!((sample.shares.sleep, sample.shares.park), (Some(1.0), Some(0.0)));
}

#[test]
fn row_of_a_thread_replaces_its_files_until_it_ends() {
    const MS: u64 = 1_000_000;
    let first = running_row();
    let mut name = first.name;
    name[..3].copy_from_slice(b"new");
    let second = ThreadCounts {
        state: CountedState::Blocked(BlockedCause::Sleep),
        at_ns: 2_000 * MS,
        run_ns: 900 * MS,
        wait_ns: 300 * MS,
        lock_ns: 107 * MS,
        park_ns: 200 * MS,
        user_ns: 500 * MS,
        system_ns: 100 * MS,
        voluntary: 9,
        migrations: 4,
        name,
        ..first
    };
    let state = CountedState::Blocked(BlockedCause::Stopped);
    let third = ThreadCounts { state, at_ns: 3_000 * MS, ..second };
    let ended =
        ThreadCounts { state: CountedState::Ended, at_ns: 4_000 * MS, voluntary: 10, ..third };
    let row: Box<dyn ThreadRow> = Box::new(Script(Mutex::new(vec![first, second, third, ended])));
    let buffer = &mut Buffer::new();
    let (pid, tid) = (std::process::id() as i32, rustix::thread::gettid().as_raw_nonzero().get());
    let mut thread = Thread::open(pid, tid, true, None, Some(row), buffer).unwrap();
    let mut observe = |thread: &mut Thread| match thread.observe(true, None, buffer) {
        Observed::Alive(sample) => sample,
        Observed::Ended(_) => panic!("this thread runs"),
    };
    let sample = observe(&mut thread);
    assert_eq!((sample.name.as_str(), sample.cpu), ("new", Some(CpuId(1))));
    assert_eq!(sample.span_ns, 1_000 * MS);
    assert_eq!(sample.counters.voluntary_switches, Some(2));
    assert_eq!(sample.counters.migrations, Some(3));
    let TimeShares { user, system, wait, lock, park, sleep, .. } = sample.shares;
    for (share, expected) in
        [(user, 0.3), (system, 0.1), (wait, 0.2), (lock, 0.1), (park, 0.2), (sleep, 0.1)]
    {
        assert!((share.unwrap() - expected).abs() < 1e-9, "{:?}", sample.shares);
    }
    // The time for which a thread is stopped belongs to no span.
    let stopped = observe(&mut thread);
    assert_eq!(stopped.span_ns, 0);
    assert!(thread.is_quiet());
    // A thread that has ended while its number remains was replaced by `execve`.
    assert_eq!(observe(&mut thread).counters.voluntary_switches, Some(1));
    assert!(!thread.is_counted());
    observe(&mut thread);
}

#[test]
fn row_without_counts_leaves_the_files() {
    let row: Box<dyn ThreadRow> = Box::new(Script(Mutex::new(vec![])));
    let (pid, tid) = (std::process::id() as i32, rustix::thread::gettid().as_raw_nonzero().get());
    let thread = Thread::open(pid, tid, true, None, Some(row), &mut Buffer::new()).unwrap();
    assert!(!thread.is_counted());
}
