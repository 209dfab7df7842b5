//! `corebeat demo goals`: programs with heart rate goals, without and with steering by the daemon.
//!
//! The evaluation of Sironi et al., *Metronome: Operating System Level Performance Management via
//! Self-Adaptive Computing* (2012), section 5.2, with the embedded workloads. Two programs run at
//! the same time, each with one thread for each CPU. The first run is not steered, and gives their
//! rates and CPU times. The goals, "reachable [...], advantaging either one application or the
//! other", follow from it: the first program is a quarter faster, the second has the remaining CPU
//! time, each within a twentieth. The second run is steered. Both runs are compared with the same
//! goals.

mod figure;

use crate::tune::progress_line;
use corebeat_command::{Cleanup, Done, Failure, TemporaryFolder, TemporaryUse, print};
use corebeat_daemon::{Daemon, Level, Options as How, Scope, Steering};
use corebeat_linux::state_dir;
use corebeat_wire::{Connection, host};
use figure::Figures;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, pidfd_send_signal,
    set_parent_process_death_signal,
};
use rustix::time::Timespec;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Time from one reading of the rates to the next: the daemon's sampling period.
const READ_PERIOD: Duration = Duration::from_millis(100);
/// Number of samples in the window of a rate: one second.
const WINDOW: u32 = 10;
/// Goal of the first program, relative to its rate without steering.
const FACTOR: f64 = 1.25;
/// Half width of a goal, relative to its middle: as in figure 4 of the paper.
const HALF_BAND: f64 = 0.05;
/// Least work of scale 1, in seconds of one core.
const CORE_S_LEAST: f64 = 8.0;
/// Time limit of a run.
const RUN_MAX: Duration = Duration::from_secs(300);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Set the amount of work of each program: 1 is eight to ten seconds of one core
    #[arg(short, long, default_value_t = 2.0)]
    scale: f64,
    /// Run each mix this number of times, without and with steering
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=99))]
    rounds: u8,
    /// Run only this mix, 1 to 3
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=3))]
    mix: Option<u8>,
    /// Load the scheduler of Corebeat into the kernel for the steered programs; requires root
    #[arg(long)]
    kernel: bool,
    /// Draw figures 3 and 4 of the paper to this folder, as SVG
    #[arg(long, value_name = "FOLDER")]
    plot: Option<PathBuf>,
}

/// Two programs, and the programs of the paper that they represent.
struct Mix {
    programs: [&'static str; 2],
    stands_for: &'static str,
}

const MIXES: [Mix; 3] = [
    Mix { programs: ["cluster", "search"], stands_for: "facesim and ferret" },
    Mix { programs: ["swaption", "option"], stands_for: "swaptions and blackscholes" },
    Mix { programs: ["cluster", "fluid"], stands_for: "facesim and fluidanimate" },
];

/// Measurements of one program in a run.
#[derive(Debug, Clone, Default)]
struct Track {
    /// Seconds since the start, and heartbeats per second, from the first heartbeat on.
    rates: Vec<(f64, f64)>,
    /// CPU seconds used when both programs had started to emit heartbeats, and when the first of
    /// them ended.
    cpu_s: Option<(f64, f64)>,
    finished_s: f64,
}

/// Both programs of a mix.
type Run = [Track; 2];

/// Middles of the goals.
type Middles = [f64; 2];

/// A mix without and with steering.
struct Round {
    plain: Run,
    steered: Run,
    middles: Middles,
}

/// Median, minimum and maximum of measurements.
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

pub(crate) fn main(options: Options) -> Done {
    corebeat_workload::Size::scaled(options.scale).map_err(Failure::usage)?;
    let figures = options.plot.map(Figures::new).transpose()?;
    let cpus = thread::available_parallelism().map_or(1, |n| n.get());
    print(format_args!(
        "Two programs at a time, {cpus} threads each on {cpus} CPUs, without and with steering by the \
         daemon.\n\
         Goals: the first program is {FACTOR} times as fast as without steering, the second has the \
         remaining CPU time; each within 5%.\n\
         Error: mean square of the distance of the rate from its goal, relative to the goal, while \
         both run.\n\
         {}; for ratios, also minimum and maximum.\n\n\
         {:<10} {:>18} {:>9} {:>9} {:>8} {:>8} {:>22} {:>8} {:>8} {:>22}\n",
        match options.rounds {
            1 => "One round".to_owned(),
            rounds => format!("Medians of {rounds} rounds"),
        },
        "",
        "goal, beats/s",
        "beats/s",
        "steered",
        "error",
        "steered",
        "of it",
        "seconds",
        "steered",
        "of it"
    ))?;
    let mut ratios = Vec::new();
    for (number, mix) in MIXES.iter().enumerate().map(|(i, mix)| (i + 1, mix)) {
        if options.mix.is_some_and(|only| usize::from(only) != number) {
            continue;
        }
        print(format_args!("mix {number}: represents {}\n", mix.stands_for))?;
        std::io::stdout().flush().map_err(Failure::internal)?;
        let rounds = (1..=options.rounds).map(|round| {
            progress_line(true, &format!("mix {number}, round {round} of {} ...", options.rounds));
            Round::run(mix, options.scale, cpus, options.kernel)
        });
        let rounds = rounds.collect::<Result<Vec<Round>, Failure>>();
        progress_line(true, "");
        let rounds = rounds?;
        let of = |value: &dyn Fn(&Round) -> f64| Spread::of(rounds.iter().map(value).collect());
        for (i, name) in mix.programs.iter().enumerate() {
            let middle = of(&|round| round.middles[i]).median;
            let rate = |run: &Run| mean(settled(&run[i], together_s(run)));
            print(format_args!(
                "{name:<10} {:>18} {:>9.0} {:>9.0} {:>8.4} {:>8.4} {:>22} {:>8.2} {:>8.2} {:>22}\n",
                format!("{:.0} to {:.0}", middle * (1.0 - HALF_BAND), middle * (1.0 + HALF_BAND)),
                of(&|round| rate(&round.plain)).median,
                of(&|round| rate(&round.steered)).median,
                of(&|round| round.errors(i).0).median,
                of(&|round| round.errors(i).1).median,
                of(&|round| round.errors(i).1 / round.errors(i).0),
                of(&|round| round.plain[i].finished_s).median,
                of(&|round| round.steered[i].finished_s).median,
                of(&|round| round.steered[i].finished_s / round.plain[i].finished_s),
            ))?;
        }
        let last_s = |run: &Run| run[0].finished_s.max(run[1].finished_s);
        print(format_args!(
            "{:<91} {:>8.2} {:>8.2} {:>22}\n",
            "  both finished",
            of(&|round| last_s(&round.plain)).median,
            of(&|round| last_s(&round.steered)).median,
            of(&|round| last_s(&round.steered) / last_s(&round.plain)),
        ))?;
        if let (Some(figures), Some(Round { plain, steered, middles })) = (&figures, rounds.first())
        {
            figures.rates(number, mix.programs, [plain, steered], *middles)?;
        }
        let ratio = |i: usize| of(&|round| round.errors(i).1 / round.errors(i).0).median;
        ratios.push((number, mix.programs, [ratio(0), ratio(1)]));
    }
    if let Some(figures) = &figures {
        figures.errors(&ratios)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Round {
    fn run(mix: &Mix, scale: f64, cpus: usize, kernel: bool) -> Result<Round, Failure> {
        let plain = run(mix, scale, cpus, None, false)?;
        let middles = goals(&plain).ok_or_else(|| {
            let together_s = together_s(&plain);
            let enough = enough(scale, together_s, cpus);
            Failure::usage(format!(
                "a program ended after {together_s:.2} s, before its rate was known; write --scale \
                 {enough:.1} or more"
            ))
        })?;
        let steered = run(mix, scale, cpus, Some(middles), kernel)?;
        Ok(Round { plain, steered, middles })
    }

    /// Errors of a program: without and with steering.
    fn errors(&self, i: usize) -> (f64, f64) {
        (error(&self.plain, i, self.middles[i]), error(&self.steered, i, self.middles[i]))
    }
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
        Spread {
            median: at(values.len() / 2),
            least: at(0),
            most: at(values.len().saturating_sub(1)),
        }
    }
}

impl Display for Spread {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Spread { median, least, most } = self;
        f.pad(&format!("{median:.2} ({least:.2} to {most:.2})"))
    }
}

/// A scale at which the rate of a program is known before its end, after a scale that was too
/// small. The larger of two estimates: from the least work of scale 1 with all CPUs for one
/// program, and from the measured time, which is too small on slow machines and sufficient on fast
/// ones.
fn enough(scale: f64, together_s: f64, cpus: usize) -> f64 {
    let known_s = 2.0 * READ_PERIOD.as_secs_f64() * f64::from(WINDOW);
    let by_name = known_s * cpus as f64 / CORE_S_LEAST;
    let by_sight = if together_s > 0.0 { scale * known_s / together_s } else { 0.0 };
    // Rounded up: a larger scale is sufficient as well.
    ((by_name.max(by_sight) * 10.0).ceil() / 10.0).min(corebeat_workload::SCALE_MAX)
}

/// Goals that both programs can reach: the first program is a quarter faster, the second has the
/// remaining CPU time.
fn goals(plain: &Run) -> Option<Middles> {
    let together_s = together_s(plain);
    let rates: Middles = std::array::from_fn(|i| mean(settled(&plain[i], together_s)));
    let cpus =
        |track: &Track| track.cpu_s.map(|(from_s, to_s)| to_s - from_s).filter(|cpus| *cpus > 0.0);
    let (first, second) = (cpus(&plain[0])?, cpus(&plain[1])?);
    let left = (second - first * (FACTOR - 1.0)) / second;
    let middles = [rates[0] * FACTOR, rates[1] * left];
    middles.iter().all(|middle| middle.is_finite() && *middle > 0.0).then_some(middles)
}

/// Time until which both programs ran, in seconds.
fn together_s(run: &Run) -> f64 {
    run[0].finished_s.min(run[1].finished_s)
}

/// Rates while both programs ran.
fn together(track: &Track, together_s: f64) -> impl Iterator<Item = f64> + Clone + '_ {
    track.rates.iter().filter(move |(at_s, _)| *at_s <= together_s).map(|(_, rate)| *rate)
}

/// Rates while both programs ran, after the first full window.
fn settled(track: &Track, together_s: f64) -> impl Iterator<Item = f64> + Clone + '_ {
    together(track, together_s).skip(WINDOW as usize)
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count() as f64
}

/// The normalised mean squared error of the rate of a program relative to its goal, while both
/// programs ran and after the first full window. A rate within the goal has no error.
fn error(run: &Run, i: usize, middle: f64) -> f64 {
    mean(
        settled(&run[i], together_s(run))
            .map(|rate| (((rate - middle).abs() / middle) - HALF_BAND).max(0.0).powi(2)),
    )
}

/// A daemon in a thread of this process. A signal that ends this process ends the daemon as well.
struct PrivateDaemon {
    socket: PathBuf,
    resources: Arc<Mutex<Resources>>,
    /// Dropped last: if a signal ends the process, the drop blocks.
    _cleanup: Cleanup,
}

/// Resources to release.
#[derive(Default)]
struct Resources {
    /// Dropping this socket ends the daemon.
    stop: Option<UnixStream>,
    thread: Option<thread::JoinHandle<Result<(), Failure>>>,
    folder: Option<TemporaryFolder>,
    /// Programs that emit heartbeats to the daemon.
    programs: Vec<OwnedFd>,
}

impl Resources {
    fn end(&mut self) -> Result<(), Failure> {
        // A program would print an error about a daemon that ends before it.
        for pidfd in self.programs.drain(..) {
            if pidfd_send_signal(&pidfd, Signal::KILL).is_ok() {
                let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None);
            }
        }
        drop(self.stop.take());
        let ended = self.thread.take().map_or(Ok(()), |thread| {
            thread.join().unwrap_or_else(|_| {
                Err(Failure::internal("the daemon panicked; please report this"))
            })
        });
        if let Some(folder) = self.folder.take() {
            let _ = std::fs::remove_dir_all(folder.path());
        }
        ended
    }
}

impl PrivateDaemon {
    /// Starts a daemon, which loads the scheduler into the kernel on request.
    fn new(steers: bool, kernel: bool) -> Result<PrivateDaemon, Failure> {
        let failed = |e: std::io::Error| Failure::internal(format!("cannot start a daemon: {e}"));
        let resources = Arc::new(Mutex::new(Resources::default()));
        let at_end = Arc::clone(&resources);
        let cleanup = Cleanup::on_signal(move || {
            let _ = at_end.lock().unwrap_or_else(PoisonError::into_inner).end();
        });
        let mut daemon_thread =
            PrivateDaemon { socket: PathBuf::new(), resources, _cleanup: cleanup.map_err(failed)? };
        // The cleanup of a signal waits until all resources exist.
        let is_ready = {
            let mut resources =
                daemon_thread.resources.lock().unwrap_or_else(PoisonError::into_inner);
            let folder = TemporaryFolder::create(TemporaryUse::Goals).map_err(failed)?;
            daemon_thread.socket = resources.folder.insert(folder).path().join("socket");
            let (stop, stopped) = UnixStream::pair().map_err(failed)?;
            resources.stop = Some(stop);
            let mut how = How::new(daemon_thread.socket.clone(), Scope::User, state_dir()?);
            how.steering = if steers { Steering::Fair } else { Steering::None };
            how.kernel = kernel;
            // Informational log lines would break the table.
            how.log = Level::Warning;
            let (ready, is_ready) = mpsc::channel();
            let serve = move || {
                let own = |ended| match ended {
                    corebeat_daemon::Failure::Own(e) => Failure::internal(e),
                    corebeat_daemon::Failure::Host(e) => e.into(),
                };
                let daemon = Daemon::open(how).map_err(own)?;
                let _ = ready.send(());
                daemon.run(stopped.as_fd()).map_err(own)
            };
            resources.thread = Some(thread::spawn(serve));
            is_ready
        };
        match is_ready.recv() {
            Ok(()) => Ok(daemon_thread),
            Err(_) => Err(daemon_thread
                .end()
                .err()
                .unwrap_or_else(|| Failure::internal("the daemon ended at once"))),
        }
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.resources.lock().unwrap_or_else(PoisonError::into_inner).end()
    }
}

impl Drop for PrivateDaemon {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// A program that is killed when this value is dropped.
struct Program {
    child: Child,
    pidfd: OwnedFd,
}

impl Program {
    fn start(
        name: &str,
        scale: f64,
        threads: usize,
        group: u32,
        daemon_thread: &PrivateDaemon,
    ) -> Result<Program, Failure> {
        let failed = |e: std::io::Error| Failure::internal(format!("cannot run a workload: {e}"));
        let mut resources = daemon_thread.resources.lock().unwrap_or_else(PoisonError::into_inner);
        if resources.stop.is_none() {
            return Err(Failure::internal("a signal has ended the daemon"));
        }
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("workload").arg(name).arg("--threads").arg(threads.to_string());
        command.arg("--scale").arg(scale.to_string()).arg("--group").arg(group.to_string());
        command
            .env("COREBEAT_SOCKET", &daemon_thread.socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let parent = Some(getpid());
        let with_us = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // A parent that ended before this call sends no signal.
            if getppid() == parent { Ok(()) } else { Err(ErrorKind::Other.into()) }
        };
        // SAFETY: the hook makes two system calls.
        unsafe { command.pre_exec(with_us) };
        let child = command.spawn().map_err(failed)?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .map_err(|e| failed(e.into()))?;
        resources.programs.push(pidfd.try_clone().map_err(failed)?);
        Ok(Program { child, pidfd })
    }
}

impl Program {
    /// CPU seconds used: `utime` and `stime` of proc_pid_stat(5). `None` after the end.
    fn cpu_s(&self) -> Option<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        let (_, after_name) = stat.rsplit_once(')')?;
        let ticks =
            after_name.split_ascii_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().ok());
        Some(ticks.sum::<Option<u64>>()? as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a mix: with goals and a daemon that steers, by nice values or by the scheduler in the
/// `kernel`, or without both.
fn run(
    mix: &Mix,
    scale: f64,
    threads: usize,
    goals: Option<Middles>,
    kernel: bool,
) -> Result<Run, Failure> {
    let mut daemon_thread = PrivateDaemon::new(goals.is_some(), kernel)?;
    let mut connection = Connection::to(&daemon_thread.socket)
        .map_err(Failure::internal)?
        .ok_or_else(|| Failure::internal("the daemon does not answer"))?;
    for group in 0..2 {
        // The consumer keeps the groups alive, also before the start of their programs.
        let attach = host::Attach { group, owner: None, mode: None, role: host::Role::Consumer };
        let _: (host::Attached, _) =
            connection.call(host::ATTACH, &attach, &[]).map_err(Failure::internal)?;
        let middle = goals.map(|middles| middles[group as usize]);
        let goal = host::Goal {
            rate_min: middle.map(|middle| middle * (1.0 - HALF_BAND)),
            rate_max: middle.map(|middle| middle * (1.0 + HALF_BAND)),
            window: WINDOW,
            hold: false,
        };
        let goal = host::SetGoal { group, owner: None, goal };
        let _: (host::Nothing, _) =
            connection.call(host::SET_GOAL, &goal, &[]).map_err(Failure::internal)?;
    }
    let begin = Instant::now();
    let start =
        |i: usize| Program::start(mix.programs[i], scale, threads, i as u32, &daemon_thread);
    let mut running: BTreeMap<usize, Program> = [(0, start(0)?), (1, start(1)?)].into();
    let mut tracks = Run::default();
    let mut read_at = begin + READ_PERIOD;
    while !running.is_empty() {
        if begin.elapsed() > RUN_MAX {
            return Err(Failure::internal(format!(
                "{} took more than {RUN_MAX:?}; write a smaller --scale",
                mix.stands_for
            )));
        }
        let left = read_at.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut ends: Vec<PollFd> =
            running.values().map(|p| PollFd::new(&p.pidfd, PollFlags::IN)).collect();
        rustix::io::retry_on_intr(|| poll(&mut ends, Some(&left))).map_err(Failure::internal)?;
        let ended: Vec<bool> = ends.iter().map(|end| !end.revents().is_empty()).collect();
        let at_s = begin.elapsed().as_secs_f64();
        let ended: Vec<usize> = running
            .keys()
            .copied()
            .zip(ended)
            .filter(|(_, ended)| *ended)
            .map(|(i, _)| i)
            .collect();
        for i in ended {
            let mut program = running.remove(&i).expect("the index comes from the map");
            tracks[i].finished_s = at_s;
            if !program.child.wait().map_err(Failure::internal)?.success() {
                return Err(Failure::internal(format!(
                    "the workload {} has failed",
                    mix.programs[i]
                )));
            }
        }
        if Instant::now() >= read_at {
            read_at += READ_PERIOD;
            for group in
                crate::beat::groups(&mut connection)?.iter().filter(|group| group.beats > 0)
            {
                let i = group.group as usize;
                if running.contains_key(&i) {
                    tracks[i].rates.push((at_s, group.window_rate));
                }
            }
            if running.len() == 2 && tracks.iter().all(|track| !track.rates.is_empty()) {
                for (track, program) in tracks.iter_mut().zip(running.values()) {
                    let Some(now_s) = program.cpu_s() else { continue };
                    track.cpu_s = Some((track.cpu_s.map_or(now_s, |(from_s, _)| from_s), now_s));
                }
            }
        }
    }
    drop(connection);
    daemon_thread.end()?;
    Ok(tracks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track(rates: &[f64], finished_s: f64) -> Track {
        let at = |(i, rate): (usize, &f64)| (i as f64, *rate);
        Track { rates: rates.iter().enumerate().map(at).collect(), cpu_s: None, finished_s }
    }

    #[test]
    fn error_counts_what_is_outside_the_goal_while_both_run() {
        let rates = [[0.0; WINDOW as usize].as_slice(), &[95.0, 105.0, 115.0, 85.0, 1e9]].concat();
        let run = [track(&rates, 99.0), track(&[], 13.5)];
        let error = error(&run, 0, 100.0);
        assert!((error - 0.005).abs() < 1e-12, "{error}");
    }

    #[test]
    fn scale_that_is_enough_is_not_less_than_what_was_not() {
        assert_eq!(enough(0.01, 0.05, 2), 0.5);
        assert_eq!(enough(0.01, 0.0, 4), 1.0);
        // Twice as fast a machine.
        assert_eq!(enough(0.5, 0.8, 2), 1.3);
    }

    #[test]
    fn goals_share_the_cpu_time_that_there_was() {
        let mut run = [track(&[100.0; 30], 20.5), track(&[30.0; 30], 20.5)];
        assert_eq!(goals(&run), None);
        (run[0].cpu_s, run[1].cpu_s) = (Some((1.0, 9.0)), Some((2.0, 14.0)));
        assert_eq!(goals(&run), Some([125.0, 25.0]));
        run[0].cpu_s = Some((1.0, 60.0));
        assert_eq!(goals(&run), None);
    }

    #[test]
    fn mean_of_what_is_settled_leaves_the_first_window_out() {
        let rates: Vec<f64> = (0..20).map(f64::from).collect();
        let track = track(&rates, 19.0);
        assert_eq!(mean(settled(&track, 11.0)), 10.5);
        assert!(mean(settled(&track, 3.0)).is_nan());
    }
}
