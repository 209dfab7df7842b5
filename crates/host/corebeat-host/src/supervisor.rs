//! Programs that Corebeat starts, under one control loop.

use crate::clock::{Child, HostClock, now_ns};
use crate::control::{Driver, Loop, Next, Periods};
use crate::error::Error;
use crate::history::History;
use crate::report::{Interval, interval_line};
use crate::tally::Tally;
use corebeat_linux::{
    Launch, LinuxMachine, ShortSlice, Signals, SpinTimes, Started, identify, is_kernel_thread,
};
use corebeat_machine::{
    Action, AppliedAction, Clock, Machine, ProgramId, Snapshot, ThreadId, ThreadSample, TimeShares,
};
use corebeat_policy::cosched::coscheduled;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Time after which a program that ignores SIGTERM is killed, in nanoseconds.
const GRACE_NS: u64 = 500_000_000;

/// Time from one check to the next whether a program has ended after SIGTERM, in nanoseconds.
const END_CHECK_NS: u64 = 5_000_000;

/// A shell command whose output a program reads.
#[derive(Debug)]
pub struct Input {
    pub(crate) file: File,
    pub(crate) pid: i32,
}

/// Programs on this host under one control loop.
///
/// ```text
///   hold: start each program, stopped before its first instruction; watch it
///   release: let all of them go --> wait, observe, decide, act ... --> restore, report
/// ```
pub struct Supervisor {
    pub(crate) control: Loop<LinuxMachine, HostClock>,
    pub(crate) start_ns: u64,
    /// Programs that Corebeat did not start.
    pub(crate) attached: Vec<ProgramId>,
    /// The command that writes the input of the programs.
    feeder: Option<ProgramId>,
    /// From the release on. Programs must not inherit the slice.
    short_slice: Option<ShortSlice>,
    keeps_signals: bool,
}

impl Supervisor {
    /// Creates a supervisor without programs.
    pub fn new(machine: LinuxMachine, periods: Periods) -> Supervisor {
        let control = Loop::new(machine, HostClock::new(), vec![], periods);
        Supervisor {
            control,
            start_ns: now_ns(),
            attached: vec![],
            feeder: None,
            short_slice: None,
            keeps_signals: false,
        }
    }

    /// The machine.
    pub fn machine(&mut self) -> &mut LinuxMachine {
        self.control.machine()
    }

    /// Takes signals from now on, also between programs, until the supervisor is dropped.
    ///
    /// # Errors
    /// No signal queue can be created.
    pub fn keep_signals(&mut self) -> Result<(), Error> {
        self.keeps_signals = true;
        self.take_signals()
    }

    /// Attaches to a process and its descendants. Signals that request the end of Corebeat end the
    /// run, and not the process.
    ///
    /// # Errors
    /// The process does not exist, is hidden or is a kernel thread, or no signal queue can be
    /// created.
    pub(crate) fn attach(&mut self, process: ThreadId) -> Result<ProgramId, Error> {
        let pid = process.tid;
        if is_kernel_thread(pid) {
            return Err(Error::invalid(format!(
                "process {pid} is a kernel thread, which Corebeat does not change: choose the \
                 process of a program; 'corebeat top' lists them"
            )));
        }
        self.take_signals()?;
        let id = self.machine().watch(pid)?;
        // A process that is the same now was the same when the observation started.
        if !self.machine().is_alive(id) || identify(pid)? != process {
            return Err(corebeat_linux::Error::NoProcess { pid }.into());
        }
        self.attached.push(id);
        Ok(id)
    }

    /// Takes the command that writes the input of the programs. It ends with the programs: in
    /// [`clear`](Self::clear), and when the supervisor is dropped.
    pub(crate) fn feed(&mut self, input: &Input) {
        // Watched as a program of its own, so that its processes do not count as the program's. If
        // the command cannot be watched, it has ended.
        self.feeder = self.machine().watch(input.pid).ok();
    }

    /// Leaves the input command to the programs that continue without Corebeat.
    pub(crate) fn leave_feeder(&mut self) {
        self.feeder = None;
    }

    /// Kills the input command, because SIGPIPE ends only a command that writes. The orphan reaper
    /// waits for the command.
    fn end_feeder(&mut self) {
        if let Some(feeder) = self.feeder.take() {
            self.machine().kill(feeder);
            self.machine().unwatch(feeder);
        }
    }

    /// Takes signals from now on.
    ///
    /// # Errors
    /// No signal queue can be created.
    pub(crate) fn take_signals(&mut self) -> Result<(), Error> {
        let clock = self.control.clock();
        if clock.signals.is_none() {
            clock.signals = Some(Signals::new().map_err(no_queue)?);
        }
        Ok(())
    }

    /// Starts a program and holds it before its first instruction.
    ///
    /// # Errors
    /// No process or signal queue can be created, or the process cannot be observed.
    pub fn hold(&mut self, launch: &Launch) -> Result<ProgramId, Error> {
        self.take_signals()?;
        self.short_slice = None;
        let started = launch.start()?;
        let id = self.machine().watch_launch(&started)?;
        self.control.clock().children.push(Child { id, started, end: None });
        Ok(id)
    }

    /// Releases all held programs. The first span of observation begins here.
    ///
    /// # Errors
    /// A program cannot be executed. The others are killed.
    pub fn release(&mut self) -> Result<(), Error> {
        self.machine().observe()?;
        self.start_ns = now_ns();
        let clock = self.control.clock();
        let children = clock.children.iter_mut();
        let mut started: Vec<&mut Started> = children.map(|child| &mut child.started).collect();
        if let Some(signals) = &clock.signals {
            Started::forward_to_held(&started, signals);
        }
        if let Err(e) = Started::release_all(&mut started) {
            // Without this, the programs that have just started would run unobserved.
            self.kill_all();
            return Err(e.into());
        }
        // Among many runnable threads, samples and observations would come late.
        self.short_slice = ShortSlice::request();
        Ok(())
    }

    /// Waits for one period, or until a program ends or a signal requests the end. Observes then.
    /// Returns the snapshot, and whether the wait ended early.
    ///
    /// # Errors
    /// The host cannot be observed, or the end of a program was lost.
    pub fn span(&mut self, periods: Periods) -> Result<(Snapshot, bool), Error> {
        self.control.set_periods(periods);
        let ended = self.control.clock().ended();
        let early = self.control.wait(|_, clock| {
            let is_early =
                clock.ended() > ended || clock.is_over() || clock.end_request().is_some();
            if is_early { Next::End } else { Next::Wait }
        })?;
        if let Some(failure) = self.control.clock().take_failure() {
            return Err(failure.into());
        }
        Ok((self.machine().observe()?, early))
    }

    /// Exit status of a program, if the program has ended.
    pub fn status(&mut self, id: ProgramId) -> Option<ExitStatus> {
        let child = self.control.clock().children.iter().find(|child| child.id == id);
        child.and_then(|child| child.end).map(|end| end.status)
    }

    /// The last signal that requested the end of Corebeat, as the status of a process that such a
    /// signal ends.
    pub fn end_request(&mut self) -> Option<ExitStatus> {
        self.control.clock().end_request().map(ExitStatus::from_raw)
    }

    /// Ignores further requests to end Corebeat, if one was received, so that the report is
    /// written.
    pub(crate) fn ignore_repeated_requests(&mut self) {
        self.control.clock().signals.iter().for_each(Signals::ignore_repeated_requests);
    }

    fn ids(&mut self) -> Vec<ProgramId> {
        self.control.clock().children.iter().map(|child| child.id).collect()
    }

    fn kill_all(&mut self) {
        self.ids().into_iter().for_each(|id| self.machine().kill(id));
    }

    /// Ends all programs that still run: by SIGTERM, and by SIGKILL after half a second.
    ///
    /// # Errors
    /// The end of a program was lost.
    pub fn terminate(&mut self) -> Result<(), Error> {
        self.ids().into_iter().for_each(|id| self.machine().signal(id, libc::SIGTERM));
        let clock = self.control.clock();
        let deadline_ns = now_ns() + GRACE_NS;
        while !clock.is_over() && now_ns() < deadline_ns {
            clock.wait_until(now_ns() + END_CHECK_NS);
        }
        if let Some(failure) = clock.take_failure() {
            return Err(failure.into());
        }
        self.kill()
    }

    /// Kills all programs that still run.
    fn kill(&mut self) -> Result<(), Error> {
        self.kill_all();
        let children = self.control.clock().children.iter_mut();
        let running = children.filter(|child| child.end.is_none());
        let ended = running.map(|child| child.started.wait().map(drop));
        Ok(ended.fold(Ok(()), Result::and)?)
    }

    /// Kills all programs that still run and their input command, stops observing all of them, and
    /// no longer takes signals, except after [`keep_signals`](Self::keep_signals).
    ///
    /// # Errors
    /// The end of a program was lost.
    pub fn clear(&mut self) -> Result<(), Error> {
        self.short_slice = None;
        let killed = self.kill();
        let clock = self.control.clock();
        clock.signals.take_if(|_| !self.keeps_signals);
        let ids: Vec<ProgramId> = clock.children.drain(..).map(|child| child.id).collect();
        ids.into_iter().for_each(|id| self.machine().unwatch(id));
        self.end_feeder();
        killed
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.end_feeder();
    }
}

/// The driver of a whole run: until all programs have ended.
pub(crate) struct Run {
    pub(crate) tally: Tally,
    /// The programs over time, if requested.
    pub(crate) history: Option<History>,
    /// Where the threads of each program spun.
    pub(crate) spin_times: BTreeMap<ProgramId, SpinTimes>,
    pub(crate) times: Vec<CoscheduledTime>,
    pub(crate) notes: Vec<String>,
    pub(crate) interval: Option<Interval>,
    attached: Vec<ProgramId>,
    /// Sum of the snapshots since the last line, and the time of that line.
    since_line: (Tally, u64),
    pub(crate) observations: u64,
    cpus: u32,
    observe_ns: u64,
    /// Number of programs that had ended at the last observation.
    ended: usize,
    /// A time just before the last observation.
    observed_from_ns: u64,
    /// Whether policies decide. After a failed freeze that the policy requires, and after the first
    /// request to end several programs, they do not.
    steers: bool,
    /// Whether the policy cannot work without freezing.
    pub(crate) requires_freezing: bool,
}

/// Time that a program had under coscheduling.
#[derive(Debug)]
pub(crate) struct CoscheduledTime {
    pub(crate) id: ProgramId,
    /// When the programs were released: the first span of observation begins a little earlier.
    start_ns: u64,
    frozen: bool,
    /// Whether the program has been frozen.
    pub(crate) has_been_frozen: bool,
    /// When the program was thawed, if this span began while it was frozen; else 0. Corebeat reads
    /// the threads first, decides, and thaws a program then, so that span has a part of the freeze:
    /// a fraction of a millisecond, or many if Corebeat itself waits for a CPU.
    thawed_ns: u64,
    pub(crate) ran_ns: u64,
    /// Sum of coscheduled shares times spans, and the sum of these spans, in nanoseconds.
    pub(crate) together_ns: (f64, u64),
}

impl Run {
    pub(crate) fn new(supervisor: &mut Supervisor, ids: &[ProgramId]) -> Run {
        let start_ns = supervisor.start_ns;
        Run {
            tally: Tally::default(),
            history: None,
            spin_times: BTreeMap::new(),
            times: ids.iter().map(|&id| CoscheduledTime::new(id, start_ns)).collect(),
            notes: vec![],
            observations: 0,
            interval: None,
            attached: supervisor.attached.clone(),
            since_line: (Tally::default(), start_ns),
            cpus: supervisor.machine().topology().cpus().len() as u32,
            observe_ns: supervisor.control.periods().observe_ns,
            ended: 0,
            observed_from_ns: start_ns,
            steers: true,
            requires_freezing: false,
        }
    }

    /// Prints a line if the interval is over.
    fn print_line(&mut self, snapshot: &Snapshot) {
        let Some(interval) = &self.interval else { return };
        let (tally, line_ns) = &mut self.since_line;
        tally.add(snapshot);
        let span_ns = snapshot.at_ns.saturating_sub(*line_ns);
        if span_ns >= interval.every.as_nanos() as u64 {
            let ids = self.times.iter().map(|time| time.id);
            (interval.print)(&interval_line(tally, ids, span_ns));
            self.since_line = (Tally::default(), snapshot.at_ns);
        }
    }

    fn stop_steering(&mut self, machine: &mut LinuxMachine) {
        machine.restore();
        self.steers = false;
    }
}

impl Driver<LinuxMachine, HostClock> for Run {
    fn poll(&mut self, machine: &mut LinuxMachine, clock: &mut HostClock) -> Next {
        self.observed_from_ns = now_ns();
        let is_over = match self.attached.is_empty() {
            true => clock.is_over(),
            // A signal detaches from the processes.
            false => {
                clock.end_request().is_some()
                    || !self.attached.iter().any(|&id| machine.is_alive(id))
            }
        };
        if is_over {
            return Next::End;
        }
        // Time for which the programs were stopped is in no span.
        if clock.take_stop() {
            return Next::Restart(self.observe_ns);
        }
        // A frozen program does not receive the signal before it is thawed.
        let must_thaw = self.times.len() > 1 && self.steers && clock.end_request().is_some();
        if must_thaw {
            // The span that ends now contains the freeze.
            self.stop_steering(machine);
        }
        let is_due = must_thaw || clock.is_stopping() || clock.ended() > self.ended;
        if is_due { Next::Observe } else { Next::Wait }
    }

    fn observed(
        &mut self,
        machine: &mut LinuxMachine,
        clock: &mut HostClock,
        snapshot: &mut Snapshot,
    ) -> bool {
        self.ended = clock.ended();
        let from_ns = self.observed_from_ns;
        self.times.iter().for_each(|time| time.exclude_freeze(snapshot, from_ns));
        self.tally.add(snapshot);
        self.history.iter_mut().for_each(|history| history.add(snapshot));
        for program in &snapshot.programs {
            let spin_ns = |t: &ThreadSample| Some((t.id, t.shares.spin? * t.span_ns as f64));
            let times = machine.spin_times(program.threads.iter().filter_map(spin_ns));
            self.spin_times.entry(program.id).or_default().merge(times);
        }
        self.print_line(snapshot);
        self.observations += 1;
        self.times.iter_mut().for_each(|time| time.add(snapshot, self.cpus));
        if !self.steers {
            self.times.iter_mut().for_each(|time| time.frozen = false);
        }
        // The span of a program that has just ended is in the tally. Policies decide about the
        // programs that still run.
        snapshot.programs.retain(|p| machine.is_alive(p.id));
        self.steers
    }

    fn applied(&mut self, machine: &mut LinuxMachine, applied: Vec<AppliedAction>) {
        let (mut refusal, now_ns) = (None, now_ns());
        for applied in &applied {
            let Action::SetFrozen { program, frozen } = applied.decision.action else { continue };
            match applied.refusal() {
                Some(why) => refusal = refusal.or(Some(why)),
                None => {
                    let times = self.times.iter_mut().filter(|time| time.id == program);
                    times.for_each(|time| time.set_frozen(frozen, now_ns));
                }
            }
        }
        if let Some(why) = refusal.filter(|_| self.requires_freezing) {
            let note = format!("programs are no longer steered, because freezing failed: {why}");
            self.notes.push(note);
            self.stop_steering(machine);
            self.times.iter_mut().for_each(|time| time.frozen = false);
        }
        self.tally.applied.extend(applied);
    }
}

impl CoscheduledTime {
    fn new(id: ProgramId, start_ns: u64) -> CoscheduledTime {
        CoscheduledTime {
            id,
            start_ns,
            frozen: false,
            has_been_frozen: false,
            thawed_ns: 0,
            ran_ns: 0,
            together_ns: (0.0, 0),
        }
    }

    fn set_frozen(&mut self, frozen: bool, now_ns: u64) {
        if self.frozen && !frozen {
            self.thawed_ns = now_ns;
        }
        self.frozen = frozen;
        self.has_been_frozen |= frozen;
    }

    /// Removes the time for which the program was frozen, if it was. The time that its threads ran
    /// until the freeze took effect remains, and so does the time after it was thawed. The threads
    /// were read after `from_ns`.
    fn exclude_freeze(&self, snapshot: &mut Snapshot, from_ns: u64) {
        let threads =
            snapshot.programs.iter_mut().filter(|p| p.id == self.id).flat_map(|p| &mut p.threads);
        if !self.frozen {
            for thread in threads {
                let begin_ns = from_ns.saturating_sub(thread.span_ns);
                remove_blocked(thread, self.thawed_ns.saturating_sub(begin_ns));
            }
            return;
        }
        for thread in threads {
            let running = thread.shares.running().unwrap_or(0.0);
            thread.span_ns = (thread.span_ns as f64 * running) as u64;
            let TimeShares { user, system, spin, .. } = thread.shares.divided_by(running);
            thread.shares = match thread.span_ns {
                0 => TimeShares::default(),
                _ => TimeShares { user, system, spin, ..TimeShares::ZERO },
            };
        }
    }

    /// Adds a span in which the program was not frozen.
    fn add(&mut self, snapshot: &Snapshot, cpus: u32) {
        self.thawed_ns = 0;
        let program = snapshot.program(self.id);
        let Some(program) = program.filter(|p| !self.frozen && !p.threads.is_empty()) else {
            return;
        };
        self.ran_ns += snapshot.span_ns.min(snapshot.at_ns.saturating_sub(self.start_ns));
        if let Some(share) = coscheduled(program, snapshot.span_ns, cpus) {
            self.together_ns.0 += share * snapshot.span_ns as f64;
            self.together_ns.1 += snapshot.span_ns;
        }
    }
}

/// Removes up to this time from the span of a thread, as far as the thread was blocked: a frozen
/// thread is blocked, and a thread that runs or waits for a CPU is not frozen.
fn remove_blocked(thread: &mut ThreadSample, time_ns: u64) {
    let span_ns = thread.span_ns as f64;
    let blocked_ns = thread.shares.blocked().unwrap_or(0.0) * span_ns;
    let removed_ns = blocked_ns.min(time_ns as f64);
    if removed_ns < 1.0 {
        return;
    }
    thread.span_ns = (span_ns - removed_ns) as u64;
    if thread.span_ns == 0 {
        thread.shares = TimeShares::default();
        return;
    }
    let kept = |share: Option<f64>| share.map(|share| share * (1.0 - removed_ns / blocked_ns));
    let TimeShares { lock, park, sleep, .. } = thread.shares;
    let shares =
        TimeShares { lock: kept(lock), park: kept(park), sleep: kept(sleep), ..thread.shares };
    thread.shares = shares.divided_by((span_ns - removed_ns) / span_ns);
}

/// The null device, which a program reads and writes instead of standard streams.
pub(crate) fn null() -> Result<File, Error> {
    File::options().read(true).write(true).open("/dev/null").map_err(Error::failed)
}

fn no_queue(source: std::io::Error) -> corebeat_linux::Error {
    corebeat_linux::Error::Refused { what: "queue signals".into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::{Counters, ProgramSample, ThreadId};

    fn program() -> ProgramSample {
        let thread = |tid, user| ThreadSample {
            id: ThreadId { tid, start_ticks: 1 },
            pid: 1,
            name: "t".into(),
            cpu: None,
            span_ns: 1000,
            shares: TimeShares { user: Some(user), sleep: Some(1.0 - user), ..TimeShares::ZERO },
            counters: Counters::ZERO,
        };
        ProgramSample {
            id: ProgramId(3),
            name: "p".into(),
            threads: vec![thread(1, 0.25), thread(2, 0.0)],
            io_bytes: None,
            team: None,
            progress: None,
        }
    }

    #[test]
    fn time_before_the_release_of_the_programs_does_not_count() {
        let mut time = CoscheduledTime::new(ProgramId(3), 5_000);
        let programs = vec![program()];
        for at_ns in [4_900, 5_400, 6_400] {
            let programs = programs.clone();
            time.add(&Snapshot { at_ns, span_ns: 1_000, programs, ..Snapshot::default() }, 2);
        }
        assert_eq!(time.ran_ns, 400 + 1_000);
    }

    #[test]
    fn frozen_program_has_only_the_time_for_which_it_ran() {
        let before = Snapshot { programs: vec![program()], ..Snapshot::default() };
        let after = |id, frozen| {
            let (mut time, mut snapshot) = (CoscheduledTime::new(ProgramId(id), 0), before.clone());
            time.frozen = frozen;
            time.exclude_freeze(&mut snapshot, 2_000);
            snapshot
        };
        assert_eq!((after(3, false), after(4, true)), (before.clone(), before.clone()));
        let frozen = after(3, true);
        let [ran, slept] = &frozen.programs[0].threads[..] else { panic!("two threads") };
        let whole = TimeShares { user: Some(1.0), ..TimeShares::ZERO };
        assert_eq!((ran.span_ns, ran.shares), (250, whole));
        assert_eq!((slept.span_ns, slept.shares), (0, TimeShares::default()));
    }

    #[test]
    fn span_that_begins_frozen_has_no_blocked_time_of_the_freeze() {
        // The spans of 1,000 ns begin at 1,000 ns.
        let after = |thawed_ns| {
            let mut snapshot = Snapshot { programs: vec![program()], ..Snapshot::default() };
            let mut time = CoscheduledTime::new(ProgramId(3), 0);
            time.set_frozen(true, 500);
            time.set_frozen(false, thawed_ns);
            time.exclude_freeze(&mut snapshot, 2_000);
            time.add(&snapshot, 2);
            assert_eq!(time.thawed_ns, 0, "only the first span has a part of the freeze");
            let threads = snapshot.programs[0].threads.iter();
            threads.map(|t| (t.span_ns, t.shares.user, t.shares.sleep)).collect::<Vec<_>>()
        };
        assert_eq!(after(900), [(1000, Some(0.25), Some(0.75)), (1000, Some(0.0), Some(1.0))]);
        assert_eq!(after(1_500), [(500, Some(0.5), Some(0.5)), (500, Some(0.0), Some(1.0))]);
        // The thread that ran was not frozen for longer than it was blocked.
        assert_eq!(after(1_900)[0], (250, Some(1.0), Some(0.0)));
        assert_eq!(after(2_500)[1], (0, None, None));
    }
}
