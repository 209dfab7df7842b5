//! One thread: its files, its last reading, and what two readings tell about where its time went.

use crate::counter::{Counted, ThreadCounter};
use crate::file::{Buffer, ProcFile};
use corebeat_machine::{Counters, CpuId, ThreadId, ThreadSample, TimeShares};

/// Blocked time up to this share of the span is called sleep without looking: the method is good to about a point.
const BLOCKED_NOISE: f64 = 0.01;

/// What a span leaves of the weight of earlier looks: the split into lock and sleep follows the last few spans.
const LOOK_DECAY: f64 = 0.5;

/// `/proc/PID/task/TID/schedstat`: exact, and the cheapest file that tells whether anything happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SchedStat {
    /// Time on a CPU, in nanoseconds; behind by up to a scheduler tick while the thread runs.
    pub(crate) run_ns: u64,
    /// Time ready and waiting for a CPU, in nanoseconds; a wait that lasts is not in it yet.
    pub(crate) delay_ns: u64,
    /// How often it was put on a CPU.
    pub(crate) slices: u64,
}

pub(crate) fn parse_schedstat(text: &str) -> Option<SchedStat> {
    let mut field = text.split_ascii_whitespace().map(|f| f.parse().ok());
    let mut next = || field.next()?;
    Some(SchedStat { run_ns: next()?, delay_ns: next()?, slices: next()? })
}

/// What is used of `/proc/PID/task/TID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat<'a> {
    pub(crate) name: &'a str,
    pub(crate) state: char,
    /// CPU time in user mode, in clock ticks.
    pub(crate) user: u64,
    /// CPU time in the kernel, in clock ticks.
    pub(crate) system: u64,
    pub(crate) start_ticks: u64,
    /// The kernel does not tell this process what the thread sleeps in, where it runs and the like (ptrace(2), "Ptrace
    /// access mode checking"): then the start of the code reads 1, and `wchan` reads as if the thread were awake.
    pub(crate) hidden: bool,
    pub(crate) cpu: Option<CpuId>,
}

/// The name in parentheses may hold anything, a parenthesis included, so fields are counted from the last one.
pub(crate) fn parse_stat(text: &str) -> Option<Stat<'_>> {
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let name = text.get(open + 1..close)?;
    // By number in proc(5); the first after the name is 3.
    let mut fields = (3..).zip(text.get(close + 1..)?.split_ascii_whitespace());
    let mut field = |number: usize| fields.find(|f| f.0 == number).map(|f| f.1);
    Some(Stat {
        name,
        state: field(3)?.chars().next()?,
        user: field(14)?.parse().ok()?,
        system: field(15)?.parse().ok()?,
        start_ticks: field(22)?.parse().ok()?,
        hidden: field(26) == Some("1"),
        cpu: field(39).and_then(|f| f.parse().ok()).map(CpuId),
    })
}

/// Switches and migrations since the thread's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Switches {
    pub(crate) voluntary: Option<u64>,
    pub(crate) involuntary: Option<u64>,
    pub(crate) migrations: Option<u64>,
}

/// `/proc/PID/task/TID/sched` or, where the kernel lacks it, `status`, which knows no migrations. Both are lines of a
/// name, a colon and a value.
pub(crate) fn parse_switches(text: &str) -> Switches {
    let mut switches = Switches::default();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let target = match name.trim_end() {
            "nr_voluntary_switches" | "voluntary_ctxt_switches" => &mut switches.voluntary,
            "nr_involuntary_switches" | "nonvoluntary_ctxt_switches" => &mut switches.involuntary,
            "se.nr_migrations" => &mut switches.migrations,
            _ => continue,
        };
        *target = value.trim().parse().ok();
    }
    switches
}

/// What a thread was found doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Asleep in a futex call.
    Futex,
    /// Asleep in anything else.
    Asleep,
    /// On a CPU or waiting for one, or not to be known.
    Awake,
}

/// Which file tells what a thread sleeps in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookFile {
    /// `wchan`, the kernel function: needs read access by ptrace(2)'s rules, which Yama does not restrict.
    Wchan,
    /// `syscall`, the system call's number: for kernels without symbols; needs attach access.
    Syscall,
}

impl LookFile {
    /// The one that this kernel has. Both cost about 2 µs a reading.
    pub(crate) fn of_this_kernel() -> Self {
        match std::path::Path::new("/proc/kallsyms").exists() {
            true => LookFile::Wchan,
            false => LookFile::Syscall,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            LookFile::Wchan => "wchan",
            LookFile::Syscall => "syscall",
        }
    }

    /// What the file's text says. Futex waits are `futex_wait_queue_me`, `futex_wait_queue` or `futex_do_wait` by kernel
    /// version; priority-inheriting ones sleep in `rt_mutex_...`.
    pub(crate) fn parse(self, text: &str) -> Look {
        let text = text.trim();
        match self {
            LookFile::Wchan if text.is_empty() || text == "0" => Look::Awake,
            LookFile::Wchan if text.contains("futex") || text.contains("rt_mutex") => Look::Futex,
            LookFile::Wchan => Look::Asleep,
            LookFile::Syscall => match text.split(' ').next().map(str::parse::<i64>) {
                Some(Ok(number)) if FUTEX_CALLS.contains(&number) => Look::Futex,
                Some(Ok(_)) => Look::Asleep,
                _ => Look::Awake,
            },
        }
    }
}

/// futex, futex_waitv and futex_wait. The last has the same number on all architectures.
const FUTEX_CALLS: [i64; 3] = [libc::SYS_futex, libc::SYS_futex_waitv, 455];

/// All that is known of a thread at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) at_ns: u64,
    pub(crate) run_ns: u64,
    /// Unknown on a kernel without schedstat.
    pub(crate) delay_ns: Option<u64>,
    pub(crate) switches: Switches,
    pub(crate) counted: Counted,
    /// Runnable, whether on a CPU or not.
    pub(crate) runnable: Option<bool>,
}

impl Reading {
    /// What a thread that is born at `at_ns` would have shown.
    pub(crate) fn birth(at_ns: u64) -> Self {
        Reading {
            at_ns,
            run_ns: 0,
            delay_ns: Some(0),
            switches: Switches { voluntary: Some(0), involuntary: Some(0), migrations: Some(0) },
            counted: Counted::default(),
            runnable: Some(true),
        }
    }
}

/// How a thread splits what schedstat tells only the sum of, as found between its last two full readings.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Habit {
    /// The part of its run time that it spends in the kernel.
    system_part: f64,
    /// Switches and migrations for each time that it is put on a CPU.
    voluntary: Option<f64>,
    involuntary: Option<f64>,
    migrations: Option<f64>,
}

/// What a habit is made of: the counts of a full reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Full {
    slices: u64,
    user_ticks: u64,
    system_ticks: u64,
    switches: Switches,
}

impl Habit {
    /// The habit that shows between two full readings.
    ///
    /// The kernel keeps user and system time in ticks, scaled onto the exact run time. Where none passed between the
    /// readings, the thread's whole life has to do; a thread without a tick ran in user mode, as the kernel has it too
    /// (`cputime_adjust`).
    fn between(before: &Full, after: &Full) -> Habit {
        let ratio = |user: u64, system: u64| {
            let all = user as f64 + system as f64;
            (all > 0.0).then(|| system as f64 / all)
        };
        let user_ticks = after.user_ticks.saturating_sub(before.user_ticks);
        let system_ticks = after.system_ticks.saturating_sub(before.system_ticks);
        let life = || ratio(after.user_ticks, after.system_ticks);
        let slices = after.slices.saturating_sub(before.slices).max(1) as f64;
        let per_slice = |after: Option<u64>, before: Option<u64>| {
            Some(after?.saturating_sub(before.unwrap_or(0)) as f64 / slices)
        };
        Habit {
            system_part: ratio(user_ticks, system_ticks).or_else(life).unwrap_or(0.0),
            voluntary: per_slice(after.switches.voluntary, before.switches.voluntary),
            involuntary: per_slice(after.switches.involuntary, before.switches.involuntary),
            migrations: per_slice(after.switches.migrations, before.switches.migrations),
        }
    }

    /// What `slices` more make of the switches. The next full reading puts right what is wrong: the counts are totals.
    fn switches_after(&self, before: &Switches, slices: u64) -> Switches {
        let more = |count: Option<u64>, rate: Option<f64>| {
            Some(count?.saturating_add((rate? * slices as f64).round() as u64))
        };
        Switches {
            voluntary: more(before.voluntary, self.voluntary),
            involuntary: more(before.involuntary, self.involuntary),
            migrations: more(before.migrations, self.migrations),
        }
    }
}

/// Where the time between two readings went. `system_part` is the part of run time that was spent in the kernel,
/// `lock_part` the part of blocked time that was spent in futex calls.
///
/// Run time and delay are the kernel's own; what they leave of the span is blocked time, with two corrections. A thread
/// that was runnable at both ends and never gave up its CPU was not blocked at all: what is missing is a wait or a tick
/// that the kernel has not accounted for yet, and goes to running and waiting in proportion. And where a wait that
/// began before the span is booked within it, what does not fit is cut off.
pub(crate) fn shares(
    before: &Reading,
    after: &Reading,
    system_part: f64,
    lock_part: Option<f64>,
) -> TimeShares {
    let span = after.at_ns.saturating_sub(before.at_ns) as f64;
    if span == 0.0 {
        return TimeShares::default();
    }
    let since = |a: u64, b: u64| a.saturating_sub(b) as f64;
    let mut running = (since(after.run_ns, before.run_ns) / span).min(1.0);
    let delay = after.delay_ns.zip(before.delay_ns).map(|(a, b)| since(a, b));
    let mut latency = delay.map(|d| (d / span).min(1.0 - running));
    let gave_up = after.switches.voluntary.is_none() || after.switches.voluntary != before.switches.voluntary;
    if let Some(known) = latency.map(|l| running + l)
        && before.runnable == Some(true)
        && after.runnable == Some(true)
        && !gave_up
    {
        running = if known > 0.0 { running / known } else { 0.0 };
        latency = Some(1.0 - running);
    }
    let blocked = latency.map(|l| (1.0 - running - l).max(0.0));

    let system = running * system_part.clamp(0.0, 1.0);
    let lock = blocked.and_then(|b| match lock_part {
        _ if b <= BLOCKED_NOISE => Some(0.0),
        part => part.map(|p| b * p.clamp(0.0, 1.0)),
    });
    TimeShares {
        user: Some(running - system),
        system: Some(system),
        lock,
        latency,
        sleep: lock.zip(blocked).map(|(l, b)| b - l),
        spin: None,
    }
}

/// What was counted between two readings; a counter that one of them lacks is not known.
pub(crate) fn counters(before: &Reading, after: &Reading) -> Counters {
    let since = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_sub(b?));
    let (s, t) = (&before.switches, &after.switches);
    let (c, d) = (&before.counted, &after.counted);
    Counters {
        voluntary_switches: since(t.voluntary, s.voluntary),
        involuntary_switches: since(t.involuntary, s.involuntary),
        migrations: since(t.migrations, s.migrations),
        cache_references: since(d.references, c.references),
        cache_misses: since(d.misses, c.misses),
        instructions: since(d.instructions, c.instructions),
    }
}

/// How often a sleeping thread was found in a futex call, recent looks weighing more.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Looks {
    asleep: f64,
    futex: f64,
}

impl Looks {
    pub(crate) fn add(&mut self, look: Look) {
        self.asleep += f64::from(u8::from(look != Look::Awake));
        self.futex += f64::from(u8::from(look == Look::Futex));
    }

    /// The part of blocked time that is lock time. Old looks fade in weight, but are never forgotten before there are
    /// new ones.
    pub(crate) fn lock_part(&self) -> Option<f64> {
        (self.asleep > 0.0).then(|| self.futex / self.asleep)
    }

    fn fade(&mut self) {
        self.asleep *= LOOK_DECAY;
        self.futex *= LOOK_DECAY;
    }

    /// The looks at two threads together.
    pub(crate) fn plus(self, other: Looks) -> Looks {
        Looks { asleep: self.asleep + other.asleep, futex: self.futex + other.futex }
    }
}

/// A watched thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) id: ThreadId,
    pid: i32,
    name: String,
    cpu: Option<CpuId>,
    schedstat: ProcFile,
    stat: ProcFile,
    switches: ProcFile,
    look: ProcFile,
    look_file: LookFile,
    counter: Option<ThreadCounter>,
    /// The last full reading, and what it showed of the thread's habits; none before the first observation.
    full: Full,
    habit: Option<Habit>,
    /// At the last observation, or at birth.
    base: Reading,
    /// What schedstat said at `base`.
    base_sched: Option<SchedStat>,
    /// What schedstat said at the newest glance since `base`, and when that was.
    glanced: Option<(u64, SchedStat)>,
    last_look: Look,
    /// What schedstat said at the last look: while it says the same, so would another look.
    look_sched: Option<SchedStat>,
    looks: Looks,
    /// What it sleeps in is not to be known.
    hidden: bool,
    /// Slept through the last span.
    quiet: bool,
}

/// The descriptors that one watched thread takes where they are kept, counters apart.
pub(crate) const DESCRIPTORS_PER_THREAD: usize = 4;

/// What there is to say of a thread since its last observation.
#[derive(Debug)]
pub(crate) enum Observed {
    /// It lives.
    Lives(ThreadSample),
    /// It has ended; with what was seen of it before, if anything.
    Ended(Option<ThreadSample>),
}

impl Thread {
    /// Begins to watch a thread as it is now. `None` if it has ended.
    pub(crate) fn open(
        pid: i32,
        tid: i32,
        look_file: LookFile,
        keep: bool,
        counter: Option<ThreadCounter>,
        buffer: &mut Buffer,
    ) -> Option<Self> {
        let open = |name: &str| ProcFile::open(format!("/proc/{pid}/task/{tid}/{name}"), keep);
        let stat_file = open("stat");
        let text = stat_file.read(buffer).ok()?;
        let stat = parse_stat(&text)?;
        let id = ThreadId { tid, start_ticks: stat.start_ticks };
        let (name, cpu, hidden) = (stat.name.to_owned(), stat.cpu, stat.hidden);
        let switches = match open("sched") {
            ProcFile::Closed => open("status"),
            file => file,
        };
        let mut thread = Thread {
            id,
            pid,
            name,
            cpu,
            schedstat: open("schedstat"),
            stat: stat_file,
            switches,
            look: open(look_file.name()),
            look_file,
            counter,
            full: Full::default(),
            habit: None,
            base: Reading::birth(0),
            base_sched: None,
            glanced: None,
            last_look: Look::Awake,
            look_sched: None,
            looks: Looks::default(),
            hidden,
            quiet: false,
        };
        thread.base_sched = thread.read_schedstat(buffer);
        thread.base = thread.read_full(thread.base_sched, buffer)?;
        thread.habit = None;
        Some(thread)
    }

    /// Accounts for the thread from its birth on, which was at `born_ns`, or before if it has run and waited for longer
    /// than that.
    pub(crate) fn count_from_birth(&mut self, born_ns: u64) {
        let lived_ns = self.base.run_ns.saturating_add(self.base.delay_ns.unwrap_or(0));
        let at_ns = born_ns.min(self.base.at_ns.saturating_sub(lived_ns));
        self.base = Reading { counted: self.base.counted, ..Reading::birth(at_ns) };
        self.base_sched = None;
        self.full = Full::default();
    }

    /// Whether it slept through the last span: then glances are of no use until it runs again.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// How often this thread was found asleep in what.
    pub(crate) fn looks(&self) -> Looks {
        self.looks
    }

    /// A cheap look between two observations: what the thread sleeps in, if it sleeps.
    pub(crate) fn glance(&mut self, buffer: &mut Buffer) {
        let sched = self.read_schedstat(buffer);
        self.take_look(sched, buffer);
        let Some(sched) = sched else { return };
        let at_ns = now_ns();
        self.glanced = Some((at_ns, sched));
        if let Some(counter) = &mut self.counter {
            counter.stop_above(switches_per_s(self.base_sched, sched, at_ns - self.base.at_ns));
        }
    }

    /// What happened since the last observation, by a `full` reading or by schedstat and habit. `fallback` splits the
    /// blocked time of a thread that was never found asleep, if it could have been.
    pub(crate) fn observe(&mut self, full: bool, fallback: Option<f64>, buffer: &mut Buffer) -> Observed {
        let sched = self.read_schedstat(buffer);
        self.quiet = sched.is_some() && sched == self.base_sched && self.base.runnable == Some(false);
        let guess = if full { None } else { self.guess(sched) };
        let reading = if self.quiet {
            Some(Reading { at_ns: now_ns(), ..self.base })
        } else {
            guess.or_else(|| self.read_full(sched, buffer))
        };
        let Some(mut after) = reading else { return Observed::Ended(self.last_words(fallback)) };
        if self.looks.lock_part().is_none() {
            self.take_look(sched, buffer);
        }
        let sample = self.sample(&after, fallback);
        if let (Some(counter), Some(sched), false) = (&mut self.counter, sched, self.quiet) {
            let rate = switches_per_s(self.base_sched, sched, sample.span_ns);
            counter.stop_above(rate);
            if counter.start_below(rate) {
                after.counted = counter.read();
            }
        }
        if !self.quiet {
            self.looks.fade();
        }
        (self.base, self.base_sched, self.glanced) = (after, sched, None);
        Observed::Lives(sample)
    }

    /// What the glances saw of a thread that has ended since the last observation.
    fn last_words(&self, fallback: Option<f64>) -> Option<ThreadSample> {
        let (at_ns, sched) = self.glanced?;
        let last = Reading {
            at_ns,
            run_ns: sched.run_ns,
            delay_ns: Some(sched.delay_ns),
            runnable: None,
            ..self.base
        };
        Some(self.sample(&last, fallback))
    }

    fn sample(&self, after: &Reading, fallback: Option<f64>) -> ThreadSample {
        let life = || Habit::between(&Full::default(), &self.full);
        let system_part = self.habit.unwrap_or_else(life).system_part;
        let lock_part = self.looks.lock_part().or(fallback).filter(|_| !self.hidden);
        ThreadSample {
            id: self.id,
            pid: self.pid,
            name: self.name.clone(),
            cpu: self.cpu,
            span_ns: after.at_ns.saturating_sub(self.base.at_ns),
            shares: shares(&self.base, after, system_part, lock_part),
            counters: counters(&self.base, after),
        }
    }

    fn take_look(&mut self, sched: Option<SchedStat>, buffer: &mut Buffer) {
        if self.hidden {
            return;
        }
        if sched.is_none() || sched != self.look_sched {
            self.last_look = self.look.read(buffer).map_or(Look::Awake, |t| self.look_file.parse(&t));
            self.look_sched = sched;
        }
        self.looks.add(self.last_look);
    }

    fn read_schedstat(&self, buffer: &mut Buffer) -> Option<SchedStat> {
        self.schedstat.read(buffer).ok().and_then(|t| parse_schedstat(&t))
    }

    /// All files but schedstat, which was read just before. `None` if the thread has ended.
    fn read_full(&mut self, sched: Option<SchedStat>, buffer: &mut Buffer) -> Option<Reading> {
        let at_ns = now_ns();
        let text = self.stat.read(buffer).ok()?;
        let stat = parse_stat(&text)?;
        // A file that is opened for each reading may show a thread that was given the same number.
        if stat.start_ticks != self.id.start_ticks || matches!(stat.state, 'X' | 'Z') {
            return None;
        }
        if stat.name != self.name {
            self.name = stat.name.to_owned();
        }
        (self.cpu, self.hidden) = (stat.cpu, stat.hidden);
        let (user_ticks, system_ticks, runnable) = (stat.user, stat.system, stat.state == 'R');
        let switches = self.switches.read(buffer).map(|t| parse_switches(&t)).unwrap_or_default();
        let full = Full { slices: sched.map_or(0, |s| s.slices), user_ticks, system_ticks, switches };
        self.habit = Some(Habit::between(&self.full, &full));
        self.full = full;
        let ticks_ns = user_ticks.saturating_add(system_ticks).saturating_mul(1_000_000_000 / ticks_per_s());
        Some(Reading {
            at_ns,
            run_ns: sched.map_or(ticks_ns, |s| s.run_ns),
            delay_ns: sched.map(|s| s.delay_ns),
            switches,
            counted: self.counted(),
            runnable: Some(runnable),
        })
    }

    /// A reading by schedstat and habit. `None` where that will not do: before there is a habit, where the thread has
    /// ended, and where only its state tells whether it sleeps or starves.
    fn guess(&self, sched: Option<SchedStat>) -> Option<Reading> {
        let (before, sched, habit) = (self.base_sched?, sched?, self.habit?);
        // Less than before is another thread of the same number.
        let slices = sched.slices.checked_sub(before.slices)?;
        if sched == before || sched.run_ns < before.run_ns {
            return None;
        }
        // Who never gives up its CPU stays runnable.
        let stays = habit.voluntary == Some(0.0) && self.base.runnable == Some(true);
        Some(Reading {
            at_ns: now_ns(),
            run_ns: sched.run_ns,
            delay_ns: Some(sched.delay_ns),
            switches: habit.switches_after(&self.base.switches, slices),
            counted: self.counted(),
            runnable: stays.then_some(true),
        })
    }

    fn counted(&self) -> Counted {
        self.counter.as_ref().map(ThreadCounter::read).unwrap_or_default()
    }
}

fn switches_per_s(before: Option<SchedStat>, after: SchedStat, span_ns: u64) -> f64 {
    let slices = after.slices.saturating_sub(before.map_or(0, |b| b.slices));
    slices as f64 / (span_ns.max(1) as f64 / 1e9)
}

/// This host's clock: monotonic, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Clock ticks a second, the unit of `/proc/PID/stat`.
pub(crate) fn ticks_per_s() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAT: &str = "5057 (a) b (c) S 5055 5057 5057 0 -1 4194560 2131 38967 0 3 7 2 28 10 20 0 1 0 88838 \
                        5124096 958 18446744073709551615 94394425004032 94394425793437 140721010183360 0 0 0 65536 4 \
                        1132560123 1 0 0 17 1 0 0 0 0 0 94394426026736 94394426074980 94395436007424 1 2 3 4 0";

    fn reading(at_ns: u64, run_ns: u64, delay_ns: u64) -> Reading {
        Reading { run_ns, delay_ns: Some(delay_ns), runnable: Some(false), ..Reading::birth(at_ns) }
    }

    #[test]
    fn stat_name_with_parentheses_is_kept_whole() {
        let stat = parse_stat(STAT).unwrap();
        assert_eq!((stat.name, stat.state), ("a) b (c", 'S'));
        assert_eq!((stat.user, stat.system, stat.start_ticks), (7, 2, 88838));
        assert_eq!((stat.cpu, stat.hidden), (Some(CpuId(1)), false));
    }

    #[test]
    fn stat_of_a_thread_that_may_not_be_looked_at_is_hidden() {
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
                     nr_switches    :  76\nnr_voluntary_switches       :   52\nnr_involuntary_switches  : 24\n";
        let expected = Switches { voluntary: Some(52), involuntary: Some(24), migrations: Some(15) };
        assert_eq!(parse_switches(sched), expected);
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t52\nnonvoluntary_ctxt_switches:\t24\n";
        assert_eq!(parse_switches(status), Switches { migrations: None, ..expected });
        assert_eq!(parse_switches(""), Switches::default());
    }

    #[test]
    fn look_tells_futex_from_other_sleep() {
        for futex in ["futex_do_wait", "futex_wait_queue_me", "rt_mutex_slowlock_block"] {
            assert_eq!(LookFile::Wchan.parse(futex), Look::Futex);
        }
        assert_eq!(LookFile::Wchan.parse("hrtimer_nanosleep"), Look::Asleep);
        assert_eq!(LookFile::Wchan.parse("0"), Look::Awake);
        assert_eq!(LookFile::Syscall.parse("202 0x560d598ea0c0 0x80 0x2"), {
            if libc::SYS_futex == 202 { Look::Futex } else { Look::Asleep }
        });
        assert_eq!(LookFile::Syscall.parse("-1 0x7ffc29d2ed30 0x7fc48a7f1aec"), Look::Asleep);
        assert_eq!(LookFile::Syscall.parse("running"), Look::Awake);
    }

    #[test]
    fn shares_split_blocked_time_by_the_looks() {
        let shares = shares(&reading(0, 0, 0), &reading(1000, 200, 300), 0.0, Some(0.5));
        assert_eq!((shares.user, shares.latency), (Some(0.2), Some(0.3)));
        assert_eq!((shares.lock, shares.sleep), (Some(0.25), Some(0.25)));
    }

    #[test]
    fn shares_without_a_look_leave_lock_and_sleep_unknown() {
        let shares = shares(&reading(0, 0, 0), &reading(1000, 200, 300), 0.0, None);
        assert_eq!((shares.lock, shares.sleep), (None, None));
        assert_eq!(shares.blocked(), Some(0.5));
    }

    #[test]
    fn shares_of_a_thread_that_hardly_blocked_need_no_look() {
        let shares = shares(&reading(0, 0, 0), &reading(1000, 991, 0), 0.0, None);
        assert_eq!(shares.lock, Some(0.0));
    }

    #[test]
    fn shares_of_a_thread_that_never_gave_up_have_no_blocked_time() {
        let running = |r: Reading| Reading { runnable: Some(true), ..r };
        let waits = shares(&running(reading(0, 0, 0)), &running(reading(1000, 300, 300)), 0.0, None);
        assert_eq!((waits.user, waits.latency, waits.blocked()), (Some(0.5), Some(0.5), Some(0.0)));
        let starves = shares(&running(reading(0, 0, 0)), &running(reading(1000, 0, 0)), 0.0, None);
        assert_eq!(starves.latency, Some(1.0));
    }

    #[test]
    fn shares_without_schedstat_know_running_only() {
        let blind = |at, run| Reading { delay_ns: None, ..reading(at, run, 0) };
        let shares = shares(&blind(0, 0), &blind(1000, 300), 0.0, Some(1.0));
        assert_eq!((shares.running(), shares.latency, shares.lock), (Some(0.3), None, None));
    }

    #[test]
    fn shares_split_run_time_by_the_system_part() {
        let shares = shares(&reading(0, 0, 0), &reading(1000, 500, 0), 0.5, None);
        assert_eq!((shares.user, shares.system), (Some(0.25), Some(0.25)));
    }

    fn full(slices: u64, user_ticks: u64, system_ticks: u64, voluntary: u64) -> Full {
        let switches = Switches { voluntary: Some(voluntary), ..Switches::default() };
        Full { slices, user_ticks, system_ticks, switches }
    }

    #[test]
    fn habit_follows_the_ticks_between_then_those_of_the_life() {
        assert_eq!(Habit::between(&full(0, 3, 1, 0), &full(0, 4, 2, 0)).system_part, 0.5);
        assert_eq!(Habit::between(&full(0, 3, 1, 0), &full(0, 3, 1, 0)).system_part, 0.25);
        assert_eq!(Habit::between(&full(0, 0, 0, 0), &full(0, 0, 0, 0)).system_part, 0.0);
    }

    #[test]
    fn habit_foretells_switches_by_slices() {
        let habit = Habit::between(&full(10, 0, 0, 5), &full(30, 0, 0, 20));
        let before = Switches { voluntary: Some(20), involuntary: None, migrations: None };
        let after = habit.switches_after(&before, 100);
        assert_eq!(after, Switches { voluntary: Some(95), ..before });
    }

    #[test]
    fn looks_fade_and_are_not_forgotten() {
        let mut looks = Looks::default();
        assert_eq!(looks.lock_part(), None);
        looks.add(Look::Awake);
        assert_eq!(looks.lock_part(), None);
        looks.add(Look::Futex);
        looks.fade();
        assert_eq!(looks.lock_part(), Some(1.0));
        looks.add(Look::Asleep);
        assert_eq!(looks.lock_part(), Some(1.0 / 3.0));
    }

    prop_compose! {
        fn any_reading()(
            at_ns in 0u64..1 << 40, run_ns in 0u64..1 << 41, delay_ns in proptest::option::of(0u64..1 << 41),
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
            lock_part in proptest::option::of(-0.5f64..1.5),
        ) {
            let s = shares(&before, &after, system_part, lock_part);
            let parts = [s.user, s.system, s.lock, s.latency, s.sleep];
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
                let _ = (LookFile::Wchan.parse(&text), LookFile::Syscall.parse(&text));
            }
        }
    }

    #[test]
    fn thread_files_of_this_kernel_are_understood() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let mut buffer = Buffer::new();
        for keep in [true, false] {
            let pid = std::process::id() as i32;
            let mut thread =
                Thread::open(pid, tid, LookFile::of_this_kernel(), keep, None, &mut buffer).unwrap();
            thread.glance(&mut buffer);
            assert!(matches!(thread.observe(false, None, &mut buffer), Observed::Lives(_)));
            let Observed::Lives(sample) = thread.observe(false, None, &mut buffer) else { panic!("we live") };
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
        let mut thread =
            Thread::open(pid, number, LookFile::of_this_kernel(), true, None, &mut buffer).unwrap();
        thread.glance(&mut buffer);
        drop(go.0);
        other.join().unwrap();
        // The kernel lets go of a thread a little after it has been joined.
        let gone = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            matches!(thread.observe(false, None, &mut buffer), Observed::Ended(_))
        });
        assert!(gone);
        assert!(Thread::open(pid, number, LookFile::of_this_kernel(), true, None, &mut buffer).is_none());
    }
}
