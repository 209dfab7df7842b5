//! `corebeat sim compare`: runs the same programs, with the same actions, on this host and on its
//! model.
//!
//! A case consists of programs of steps, and actions. On the host, each program is a process that
//! executes the steps: computing is a calibrated loop, locks and barriers are those of the standard
//! library. The model has two parameters: the number of CPUs, and the tick at which the kernel
//! checks slices.

use corebeat_command::{Done, Failure, print};
use corebeat_linux::{Launch, LinuxMachine, Options as Sensors, Started};
use corebeat_machine::{Action, Clock, CpuSet, Machine, ProgramId, Target};
use corebeat_sim::{Hardware, Outcome, Program, Scenario, SimMachine, Step, Team, Work};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::time::{ClockId, clock_getres, clock_gettime};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Seek, Write};
use std::process::ExitCode;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Runs of each case on the host; the report has the medians.
const RUNS: usize = 3;
/// Largest number of CPUs: with more, a case would take too long to start. The programs are bound
/// to the first CPUs.
const CPUS_MAX: usize = 16;
/// Duration of the calibration.
const CALIBRATION: Duration = Duration::from_millis(200);

/// A program that a process executes.
#[derive(clap::Args)]
pub struct Played {
    case: usize,
    program: usize,
    cpus: u32,
    loops_per_us: f64,
}

/// An action on a program before its start.
type Steer = fn(ProgramId) -> Action;

struct Case {
    name: &'static str,
    programs: Vec<(Program, Option<Steer>)>,
}

/// The outcome of a program: seconds from its first to its last step, and the number of preemptions
/// of its threads.
#[derive(Debug, Clone, Copy)]
struct Came {
    wall_s: f64,
    lost: f64,
}

fn repeat(times: u64, steps: Vec<Step>) -> Vec<Step> {
    vec![Step::Repeat { times: Some(times), shared: false, steps }]
}

fn work(ms: f64) -> Step {
    Work::us(ms * 1e3).into()
}

/// Milliseconds of work in steps of one.
fn computing(name: &str, threads: u32, ms: u64) -> Program {
    Program::new(name, vec![Team::new(threads, repeat(ms, vec![work(1.0)]))])
}

fn cases(cpus: u32) -> Vec<Case> {
    let one = |name, program, steer| Case { name, programs: vec![(program, steer)] };
    let meeting = |threads, times, ms| {
        Program::new(
            "p",
            vec![Team::new(threads, repeat(times, vec![work(ms), Step::Barrier("all".into())]))],
        )
    };
    let locking = |threads| {
        let locked = Step::Lock { name: "lock".into(), steps: vec![work(0.5)] };
        Program::new("p", vec![Team::new(threads, repeat(200, vec![work(0.5), locked]))])
    };
    let io = Step::Io { us: 2_000.0, jitter: 0.0, bytes: 0 };
    let sleeping = Program::new("p", vec![Team::new(2 * cpus, repeat(150, vec![work(1.0), io]))]);
    let first: Steer = |program| {
        let cpus =
            corebeat_linux::topology().cpus().iter().map(|cpu| cpu.id).take(1).collect::<CpuSet>();
        Action::SetCpus { target: Target::Program(program), cpus: Some(cpus) }
    };
    let short: Steer =
        |program| Action::SetSlice { target: Target::Program(program), slice_us: Some(500) };
    let long: Steer =
        |program| Action::SetSlice { target: Target::Program(program), slice_us: Some(50_000) };
    let nice: Steer = |program| Action::SetNice { target: Target::Program(program), nice: 5 };
    vec![
        one("a thread for each CPU", computing("p", cpus, 300), None),
        one("one thread more", computing("p", cpus + 1, 300), None),
        one("two for each CPU", computing("p", 2 * cpus, 200), None),
        one("the same, slices of 0.5 ms", computing("p", 2 * cpus, 200), Some(short)),
        one("the same, slices of 50 ms", computing("p", 2 * cpus, 200), Some(long)),
        one("barrier each 2 ms", meeting(cpus, 150, 2.0), None),
        one("two for each CPU, barriers", meeting(2 * cpus, 80, 2.0), None),
        one("half of the time in one lock", locking(cpus), None),
        one("the same, two for each CPU", locking(2 * cpus), None),
        one("sleeping for two thirds", sleeping, None),
        one("all on the first CPU", computing("p", cpus, 200), Some(first)),
        Case {
            name: "beside nice 5",
            programs: vec![
                (computing("nice 0", cpus, 200), None),
                (computing("nice 5", cpus, 200), Some(nice)),
            ],
        },
    ]
}

pub(crate) fn main() -> Done {
    let cpus = corebeat_linux::topology().cpus().len();
    if cpus > CPUS_MAX {
        return Err(Failure::usage(format!(
            "this host has {cpus} CPUs; compare supports at most {CPUS_MAX}: run it in a virtual machine \
             or a container"
        )));
    }
    let cpus = cpus as u32;
    let loops_per_us = calibrate(cpus);
    let tick = clock_getres(ClockId::MonotonicCoarse);
    let machine = Hardware { tick_us: tick.tv_nsec as f64 / 1e3, ..Hardware::flat(cpus) };
    print(format_args!(
        "Programs with known steps on {cpus} CPUs of this host, and on a simulated machine with {cpus} \
         CPUs:\nseconds, and involuntary switches (lost). The values of the host are medians of {RUNS} runs, \
         and their range.\nThe model receives two values from this host: the loops per microsecond of \
         computation, and the end of slices at\nticks of {} ms.\n\n\
         {:<28} {:>7} {:>7} {:>13} {:>9}   {:>9} {:>9}\n",
        machine.tick_us / 1e3,
        "case",
        "model",
        "host",
        "range",
        "model is",
        "lost",
        "host lost"
    ))?;
    let mut logs = vec![];
    for (number, case) in cases(cpus).iter().enumerate() {
        let model = simulated(case, &machine)?;
        let mut runs = vec![];
        for _ in 0..RUNS {
            match on_host(number, case, cpus, loops_per_us)? {
                Ok(came) => runs.push(came),
                Err(why) => {
                    print(format_args!("{:<28} not on this host: {why}\n", case.name))?;
                    break;
                }
            }
        }
        if runs.len() < RUNS {
            continue;
        }
        for (i, (program, _)) in case.programs.iter().enumerate() {
            let sorted = |of: fn(&Came) -> f64| {
                let mut all: Vec<f64> = runs.iter().map(|run| of(&run[i])).collect();
                all.sort_by(f64::total_cmp);
                all
            };
            let (walls, lost) = (sorted(|c| c.wall_s), sorted(|c| c.lost));
            let off = model[i].wall_s / walls[RUNS / 2] - 1.0;
            logs.push((1.0 + off).ln().abs());
            let name = match case.programs.len() {
                1 => case.name.to_owned(),
                _ => format!(
                    "{}{}",
                    if i == 0 { format!("{}: ", case.name) } else { "  ".into() },
                    program.name
                ),
            };
            print(format_args!(
                "{name:<28} {:>7.3} {:>7.3} {:>13} {:>+8.1}%   {:>9.0} {:>9.0}\n",
                model[i].wall_s,
                walls[RUNS / 2],
                format!("{:.3}-{:.3}", walls[0], walls[RUNS - 1]),
                off * 100.0,
                model[i].lost,
                lost[RUNS / 2],
            ))?;
            std::io::stdout().flush().map_err(Failure::internal)?;
        }
    }
    let mean = logs.iter().sum::<f64>() / logs.len().max(1) as f64;
    print(format_args!(
        "\nThe geometric mean of the ratios is {:.2}. Other load on this host counts as an error of the \
         model.\n",
        mean.exp()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a case on the model.
fn simulated(case: &Case, machine: &Hardware) -> Result<Vec<Came>, Failure> {
    let programs = case.programs.iter().map(|(program, _)| program.clone()).collect();
    let scenario = Scenario { duration_s: Some(60.0), ..Scenario::new(machine.clone(), programs) };
    let mut machine = SimMachine::new(&scenario, 1).map_err(Failure::internal)?;
    let mut clock = machine.clock();
    // All threads exist from the start.
    clock.wait_until(1);
    for (i, (_, steer)) in case.programs.iter().enumerate() {
        if let Some(steer) = steer {
            machine.act(&steer(ProgramId(i as u32))).map_err(Failure::internal)?;
        }
    }
    machine.run();
    let came = |o: Outcome| Came {
        wall_s: (o.end_ns.unwrap_or(clock.now_ns()) - o.start_ns) as f64 / 1e9,
        lost: o.involuntary_switches as f64,
    };
    Ok(machine.outcomes().into_iter().map(came).collect())
}

/// Runs a case on this host, or returns the reason why this host cannot run it.
fn on_host(
    number: usize,
    case: &Case,
    cpus: u32,
    loops_per_us: f64,
) -> Result<Result<Vec<Came>, String>, Failure> {
    let myself = std::env::current_exe().map_err(Failure::internal)?;
    let mut machine = LinuxMachine::new(Sensors::default())?;
    let mut started = vec![];
    for (i, (_, steer)) in case.programs.iter().enumerate() {
        let words = ["sim", "play"].map(OsString::from).into_iter();
        let numbers =
            [number.to_string(), i.to_string(), cpus.to_string(), loops_per_us.to_string()];
        let mut launch = Launch::new(&myself, words.chain(numbers.map(OsString::from)));
        let output = memfd_create("corebeat-compare", MemfdFlags::CLOEXEC).map(File::from);
        let output_file = output
            .map_err(|e| Failure::internal(format!("no memory for a program's output: {e}")))?;
        launch.stdout = Some(output_file.try_clone().map_err(Failure::internal)?);
        let held = launch.start()?;
        let id = machine.watch_launch(&held)?;
        if let Some(Err(why)) = steer.map(|steer| machine.act(&steer(id))) {
            return Ok(Err(why.to_string()));
        }
        started.push((held, output_file));
    }
    Started::release_all(&mut started.iter_mut().map(|(held, _)| held).collect::<Vec<_>>())?;
    let mut came = vec![];
    for (held, output_file) in &mut started {
        let status = held.wait()?;
        let mut text = String::new();
        output_file
            .rewind()
            .and_then(|()| output_file.read_to_string(&mut text))
            .map_err(Failure::internal)?;
        let numbers: Vec<f64> =
            text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [wall_s, lost] = numbers[..] else {
            return Err(Failure::internal(format!("a program of the case ended with {status}")));
        };
        came.push(Came { wall_s, lost });
    }
    machine.restore();
    Ok(Ok(came))
}

/// Iterations in a microsecond of CPU time, while all CPUs are busy.
fn calibrate(cpus: u32) -> f64 {
    let one = || {
        let cpu_us = || {
            let t = clock_gettime(ClockId::ThreadCPUTime);
            t.tv_sec as f64 * 1e6 + t.tv_nsec as f64 / 1e3
        };
        let (start, start_us, mut loops) = (Instant::now(), cpu_us(), 0u64);
        while start.elapsed() < CALIBRATION {
            compute(10_000);
            loops += 10_000;
        }
        loops as f64 / (cpu_us() - start_us)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cpus).map(|_| scope.spawn(one)).collect();
        let speeds = threads.into_iter().map(|t| t.join().unwrap_or(1.0));
        speeds.sum::<f64>() / f64::from(cpus)
    })
}

/// Computes in registers; each iteration depends on the one before.
fn compute(loops: u64) {
    let mut x = loops | 1;
    for _ in 0..loops {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    }
    black_box(x);
}

/// Executes a program and prints its outcome.
pub(crate) fn play(played: &Played) -> Done {
    let none = || Failure::usage("this command is internal; use 'corebeat sim compare'");
    let cases = cases(played.cpus.clamp(1, CPUS_MAX as u32));
    let case = cases.get(played.case).ok_or_else(none)?;
    let (program, _) = case.programs.get(played.program).ok_or_else(none)?;
    let stage = Stage::new(program, played.loops_per_us);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for team in &program.teams {
            (0..team.threads).for_each(|_| drop(scope.spawn(|| stage.play(&team.steps))));
        }
    });
    let wall_s = start.elapsed().as_secs_f64();
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes a struct of this type, for which all bytes are valid.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    print(format_args!("{wall_s} {}\n", usage.ru_nivcsw))?;
    Ok(ExitCode::SUCCESS)
}

/// The shared state of the threads of an executed program.
struct Stage {
    loops_per_us: f64,
    locks: BTreeMap<String, Mutex<()>>,
    /// Each barrier joins all threads of a program.
    barriers: BTreeMap<String, Barrier>,
}

impl Stage {
    fn new(program: &Program, loops_per_us: f64) -> Stage {
        let mut stage = Stage { loops_per_us, locks: BTreeMap::new(), barriers: BTreeMap::new() };
        let threads = program.teams.iter().map(|team| team.threads as usize).sum();
        program.teams.iter().for_each(|team| stage.prepare(&team.steps, threads));
        stage
    }

    fn prepare(&mut self, steps: &[Step], threads: usize) {
        for step in steps {
            match step {
                Step::Lock { name, steps } => {
                    self.locks.entry(name.clone()).or_default();
                    self.prepare(steps, threads);
                }
                Step::Repeat { steps, .. } => self.prepare(steps, threads),
                Step::Barrier(name) => {
                    self.barriers.entry(name.clone()).or_insert_with(|| Barrier::new(threads));
                }
                _ => {}
            }
        }
    }

    fn play(&self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Compute(work) => compute((work.us * self.loops_per_us) as u64),
                Step::Io { us, .. } => std::thread::sleep(Duration::from_secs_f64(us / 1e6)),
                Step::Lock { name, steps } => {
                    let held = self.locks[name].lock().unwrap_or_else(PoisonError::into_inner);
                    self.play(steps);
                    drop(held);
                }
                Step::Barrier(name) => drop(self.barriers[name].wait()),
                Step::Repeat { times, steps, .. } => {
                    (0..times.unwrap_or(0)).for_each(|_| self.play(steps));
                }
                // The cases have no other steps.
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_steps_that_are_played_and_end_on_the_model() {
        fn is_played(steps: &[Step]) -> bool {
            steps.iter().all(|step| match step {
                Step::Compute(work) => *work == Work::us(work.us),
                Step::Io { jitter, .. } => *jitter == 0.0,
                Step::Barrier(_) => true,
                Step::Lock { steps, .. } => is_played(steps),
                Step::Repeat { times, shared, steps } => {
                    times.is_some() && !shared && is_played(steps)
                }
                _ => false,
            })
        }
        for case in cases(2) {
            let teams = || case.programs.iter().flat_map(|(program, _)| &program.teams);
            assert!(teams().all(|team| is_played(&team.steps)), "{}", case.name);
            for came in simulated(&case, &Hardware::flat(2))
                .unwrap_or_else(|e| panic!("{}: {e}", case.name))
            {
                assert!((0.1..10.0).contains(&came.wall_s), "{}: {came:?}", case.name);
            }
        }
    }

    #[test]
    fn played_program_takes_every_step() {
        let steps = vec![
            Step::Lock { name: "l".into(), steps: vec![work(0.01)] },
            Step::Barrier("b".into()),
        ];
        let program = Program::new("p", vec![Team::new(3, repeat(20, steps))]);
        let stage = Stage::new(&program, 1.0);
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| stage.play(&program.teams[0].steps))));
        });
        assert_eq!((stage.locks.len(), stage.barriers.len()), (1, 1));
    }
}
