//! One program under Corebeat's eyes and hands, from its start to its end: what `run`, `tune` and `demo` have in common.

use crate::failure::Failure;
use crate::report::{Frame, Report};
use crate::trial::Input;
use corebeat_linux::{
    Launch, LinuxMachine, MemoryPolicy, Options, Signals, Started, TeamChannel, restore_all, state_dir,
};
use corebeat_loop::{Loop, Periods};
use corebeat_machine::{Clock, Machine, Policy, Topology};
use corebeat_policy::auto;
use corebeat_policy::faithful::FaithFul;
use corebeat_policy::shuffler::Shuffler;
use corebeat_policy::team::{Team, TeamSettings};
use corebeat_policy::tranquilizer::Tranquilizer;
use rustix::time::{ClockId, clock_gettime};
use std::ffi::OsString;
use std::fs::File;
use std::process::ExitStatus;
use std::time::Duration;

/// Which policies act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PolicyName {
    /// All for one program that this machine has a use for, together: each lever is one policy's, and one acts at a time
    Auto,
    /// Watch only
    None,
    /// Threads that do not preempt each other, and long time slices (FaithFul), taken back where they do not help
    Faithful,
    /// Several programs, as -- A -- B: those that do not fit side by side take turns, frozen in between
    Coscheduling,
    /// The size of OpenMP teams, by the time of the program's own parallel regions
    Team,
    /// Memory over all nodes and fixed turns, by how much cache misses and lost CPUs vary (Thread Tranquilizer)
    Tranquilizer,
    /// Threads with like lock times on one socket (Thread Shuffling)
    Shuffler,
    /// Several programs, as -- A -- B, side by side or on cores of their own, by a model of them (ADAPT): wants --model
    Adapt,
}

impl PolicyName {
    pub(crate) fn text(self) -> &'static str {
        match self {
            PolicyName::Auto => "auto",
            PolicyName::None => "none",
            PolicyName::Faithful => "faithful",
            PolicyName::Coscheduling => "coscheduling",
            PolicyName::Team => "team",
            PolicyName::Tranquilizer => "tranquilizer",
            PolicyName::Shuffler => "shuffler",
            PolicyName::Adapt => "adapt",
        }
    }

    fn sizes_teams(self) -> bool {
        matches!(self, PolicyName::Auto | PolicyName::Team)
    }

    /// How often it wants to look, in milliseconds.
    pub(crate) fn period_ms(self) -> u64 {
        match self {
            PolicyName::Tranquilizer | PolicyName::Adapt => 100,
            _ => 500,
        }
    }

    /// The policies, and why one of them has nothing to do here.
    fn policies(self, topology: &Topology) -> (Vec<Box<dyn Policy>>, Option<&'static str>) {
        let cpus = topology.cpus().len() as u32;
        let team = || Box::new(Team::new(cpus, TeamSettings::default()));
        let faithful = || Box::new(FaithFul::new(cpus));
        let policies: Vec<Box<dyn Policy>> = match self {
            PolicyName::Auto => auto::policies(topology),
            // Those two are for several programs, which are not run here.
            PolicyName::None | PolicyName::Coscheduling | PolicyName::Adapt => vec![],
            PolicyName::Faithful => vec![faithful()],
            PolicyName::Team => vec![team()],
            PolicyName::Tranquilizer => {
                vec![Box::new(Tranquilizer::new(cpus, topology.nodes().len() as u32))]
            }
            PolicyName::Shuffler => {
                let shuffler = Shuffler::new(topology);
                let idle = shuffler.idle_because();
                return (vec![Box::new(shuffler)], idle);
            }
        };
        (policies, None)
    }
}

/// How to run a program.
#[derive(Debug)]
pub(crate) struct How {
    pub(crate) policy: PolicyName,
    pub(crate) periods: Periods,
    /// Variables to set.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// Exact lock times, by BPF.
    pub(crate) exact_locks: bool,
    /// Where the program's memory is placed, if not as usual.
    pub(crate) memory: Option<MemoryPolicy>,
    /// Standard input, where it is not Corebeat's own.
    pub(crate) input: Option<Input>,
    /// Standard output, likewise.
    pub(crate) stdout: Option<File>,
}

/// Time as the host has it, on which the program's end and signals are worth an early look.
struct HostClock {
    started: Started,
    signals: Signals,
    ended: Option<ExitStatus>,
    failed: Option<corebeat_linux::Error>,
}

/// Nanoseconds on the host's monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// CPU time of this process so far, in seconds.
fn own_cpu_s() -> f64 {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

/// CPU time of all children that were waited for so far, and of theirs: user and system, in seconds.
fn children_cpu_s() -> (f64, f64) {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes a struct of this type, any bytes of which are a value.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}

impl Clock for HostClock {
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn wait_until(&mut self, at_ns: u64) {
        let left = Duration::from_nanos(at_ns.saturating_sub(now_ns()));
        match self.started.attend(&self.signals, left) {
            Ok(ended) => self.ended = ended,
            Err(e) => self.failed = Some(e),
        }
    }
}

/// Undoes what a run that was killed has left; what to say of that.
pub(crate) fn restore_killed() -> Vec<String> {
    match state_dir().and_then(|dir| restore_all(&dir)) {
        Ok(restored) => restored.undone.iter().map(|u| format!("restored from a killed run: {u}")).collect(),
        Err(e) => vec![format!("what a killed run may have left could not be restored: {e}")],
    }
}

/// Runs a program to its end. Its status, and the report.
///
/// # Errors
/// Where it cannot be started or watched. What was changed on the host is as before.
pub(crate) fn run(command: &[OsString], how: How) -> Result<(ExitStatus, Report), Failure> {
    let mut notes = restore_killed();
    let (program, args) =
        command.split_first().ok_or_else(|| Failure::usage("which program? Name one after --"))?;
    let signals = Signals::new().map_err(Failure::own)?;
    let options = Options { counters: true, spin: true, exact_locks: how.exact_locks, ..Options::default() };
    let mut machine = LinuxMachine::new(options)?;
    let cpus = machine.topology().cpus().len();
    let (policies, idle) = how.policy.policies(machine.topology());
    notes.extend(idle.map(|why| format!("{}: {why}", how.policy.text())));

    let mut launch = Launch::new(program, args.iter().cloned());
    launch.keep_orphans = true;
    launch.memory = how.memory;
    launch.env = how.env.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect();
    if how.policy.sizes_teams() {
        match TeamChannel::create() {
            Ok(channel) => {
                let own = |name: &str| how.env.iter().rfind(|(k, _)| k == name).map(|(_, v)| v.clone());
                let current = |name: &str| own(name).or_else(|| std::env::var_os(name));
                launch.env.extend(channel.environment(current, cpus).into_iter().map(|(k, v)| (k, Some(v))));
                machine.set_teams(channel);
            }
            Err(e) => notes.push(format!("OpenMP teams are left alone: {e}")),
        }
    }
    if let Some(input) = how.input {
        input.watch(&mut machine);
        launch.stdin = Some(input.file);
    }
    launch.stdout = how.stdout;
    let started = launch.start()?;
    let id = machine.watch_launch(&started)?;
    let clock = HostClock { started, signals, ended: None, failed: None };
    let mut circle = Loop::new(machine, clock, policies, how.periods);

    let (start_ns, start_cpu_s, children_s) = (now_ns(), own_cpu_s(), children_cpu_s());
    circle.clock().started.release()?;
    circle.run(|_, clock| clock.ended.is_some() || clock.failed.is_some())?;
    let wall_s = now_ns().saturating_sub(start_ns) as f64 / 1e9;
    let watching_cpu_s = own_cpu_s() - start_cpu_s;
    let (user_s, system_s) = children_cpu_s();
    notes.extend(circle.machine().restore().left.into_iter().map(|l| format!("left alone: {l}")));
    notes.extend(circle.machine().notes());
    if let Some(e) = circle.clock().failed.take() {
        return Err(e.into());
    }
    let status = circle.clock().ended.ok_or_else(|| Failure::own("the program's exit status was lost"))?;
    let frame = Frame {
        command: command.iter().map(|c| c.to_string_lossy().into_owned()).collect(),
        ended: status.into(),
        policy: how.policy.text().into(),
        start_ns,
        wall_s,
        cpu_user_s: user_s - children_s.0,
        cpu_system_s: system_s - children_s.1,
        cpus,
        watching_cpu_s,
        notes,
    };
    Ok((status, Report::new(frame, circle.tally(), id)))
}
