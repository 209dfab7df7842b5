//! Construction of a runtime.

use crate::affinity::{allowed_cpus, restrict};
use crate::crash;
use crate::current;
use crate::deterministic::RandomOrder;
use crate::error::{Error, STACK_MAX, STACK_MIN, WORKERS_MAX};
use crate::monitor::{self, Monitor, Watch};
use crate::park::Park;
use crate::placement::Placement;
use crate::runtime::{Inner, Runtime, Settings};
use crate::scheduler::{Fifo, ReadySet, Scheduler};
use crate::suspend;
use crate::worker::WorkerConfig;
use corebeat_sync::{mpsc, thread};
use fastrand::Rng;
use std::cell::{RefCell, UnsafeCell};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Default stack size of a task, in bytes. Only touched pages use memory: for most tasks, one page.
pub const STACK_SIZE: usize = 64 << 10;
/// Default time for which a worker searches for work before it sleeps: about the time that waking a
/// thread takes (measured: 6 µs).
const SPIN: Duration = Duration::from_micros(5);
/// Longest such time. A longer one would delay the return of `run`.
const SPIN_MAX: Duration = Duration::from_millis(1);

/// Creates the scheduler of a worker.
type MakeScheduler = Box<dyn Fn(usize) -> Box<dyn Scheduler>>;
/// Creates the wait of a worker.
type MakePark = Box<dyn Fn(usize) -> io::Result<Box<dyn Park>>>;

/// Parameters of a runtime.
#[derive(Default)]
pub struct Builder {
    workers: Option<usize>,
    cpus: Option<Vec<usize>>,
    pin: Option<bool>,
    stack_size: Option<usize>,
    stack_option: Option<&'static str>,
    spin: Option<Duration>,
    scheduler: Option<MakeScheduler>,
    placement: Option<Box<dyn Placement>>,
    monitor: Option<Arc<dyn Monitor>>,
    seed: Option<u64>,
    park: Option<MakePark>,
}

impl Builder {
    /// Sets the number of workers, from 1 to [`WORKERS_MAX`]. The default is one per CPU.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Sets the CPUs that workers are pinned to, by the numbers of the system, in turn. The default
    /// is all CPUs that this process may use.
    pub fn cpus(mut self, cpus: impl Into<Vec<usize>>) -> Self {
        self.cpus = Some(cpus.into());
        self
    }

    /// Sets whether workers are pinned to CPUs. By default they are if `cpus` is set, or if there
    /// is one worker per CPU.
    pub fn pin(mut self, pin: bool) -> Self {
        self.pin = Some(pin);
        self
    }

    /// Sets the stack size of tasks that have no own setting, in bytes from [`STACK_MIN`] to
    /// [`STACK_MAX`]. The default is [`STACK_SIZE`].
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Sets the name of the option with which a user of the program enlarges stacks, such as
    /// `--stack`. The message about a stack overflow contains the name. The default is
    /// `stack_size`.
    pub fn stack_option(mut self, name: &'static str) -> Self {
        self.stack_option = Some(name);
        self
    }

    /// Sets the time for which an idle worker searches for work before it sleeps, at most one
    /// millisecond. The default is 5 µs, and 0 where there is only one worker or more workers than
    /// CPUs.
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = Some(time);
        self
    }

    /// Sets the order in which a worker runs its ready tasks. `make` is called with the number of
    /// each worker. The default is [`Fifo`].
    pub fn scheduler(mut self, make: impl Fn(usize) -> Box<dyn Scheduler> + 'static) -> Self {
        self.scheduler = Some(Box::new(make));
        self
    }

    /// Sets the policy that assigns new tasks to workers. The default is
    /// [`Nearby`](crate::placement::Nearby).
    pub fn placement(mut self, placement: impl Placement + 'static) -> Self {
        self.placement = Some(Box::new(placement));
        self
    }

    /// Sets the monitor, which receives records of what tasks and workers do.
    pub fn monitor(mut self, monitor: impl Monitor + 'static) -> Self {
        self.monitor = Some(Arc::new(monitor));
        self
    }

    /// Sets how an idle worker waits. `make` is called with the number of each worker. A
    /// deterministic runtime does not use this setting.
    pub fn park(mut self, make: impl Fn(usize) -> io::Result<Box<dyn Park>> + 'static) -> Self {
        self.park = Some(Box::new(make));
        self
    }

    /// Makes the runtime deterministic: it has no threads. [`Runtime::run`], the waits of
    /// [`Scope`](crate::Scope) and the drop of the runtime execute all workers on the calling
    /// thread, in an order drawn from `seed`. Each worker runs its ready tasks in an order drawn
    /// from the seed, unless a scheduler is set. Equal seeds produce equal runs.
    ///
    /// Time is virtual: each step of a worker takes 100 ns, and time jumps to the next timer when
    /// all tasks wait. Blocking tasks are ordinary tasks. Tasks run only during these calls, so a
    /// join from outside waits for ever for a task that has not ended.
    ///
    /// A wait for a scope ends before the other tasks of the runtime. From then on, until no task
    /// is left, the runtime belongs to the thread: `run` and such waits panic on another thread,
    /// and a drop on another thread leaks the runtime.
    pub fn deterministic(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Builds the runtime and starts its workers.
    ///
    /// # Errors
    ///
    /// A parameter is out of range, or a thread cannot be started or pinned.
    pub fn build(self) -> Result<Runtime, Error> {
        // The thread of a task may be pinned.
        let allowed = current::worker().map_or_else(allowed_cpus, |w| w.inner().cpus.clone());
        let cpus = match &self.cpus {
            Some(cpus) if cpus.is_empty() => return Err(Error::NoCpus),
            Some(cpus) => cpus.clone(),
            None => allowed.clone(),
        };
        let workers = self.workers.unwrap_or(if self.seed.is_some() { 2 } else { cpus.len() });
        match workers {
            0 => return Err(Error::NoWorkers),
            requested if requested > WORKERS_MAX => {
                return Err(Error::TooManyWorkers { requested });
            }
            _ => {}
        }
        let stack_size = check_stack_size(self.stack_size.unwrap_or(STACK_SIZE))?;
        crash::install();
        corebeat_sync::wait::suspend_tasks(suspend::calling_task);
        // The first heavy fence selects the implementation.
        corebeat_sync::asymmetric::heavy_fence();
        let is_pinned = self.pin.unwrap_or(self.cpus.is_some() || workers == cpus.len());
        let (configs, random) = self.worker_configs(workers, allowed.len())?;
        let has_threads = self.seed.is_none();
        let inner = Inner::new(
            configs,
            Settings {
                deterministic: random,
                placement: self.placement,
                stack_size,
                stack_option: self.stack_option.unwrap_or(crash::STACK_OPTION),
                cpus: allowed,
                is_pinned,
            },
        );
        let mut runtime = Runtime::of(inner);
        if has_threads {
            for index in 0..workers {
                let cpu = is_pinned.then(|| cpus[index % cpus.len()]);
                match start_worker(runtime.inner(), index, cpu) {
                    Ok(thread) => runtime.threads.push(thread),
                    Err(why) => {
                        // Workers that were not started do not count as active. The others end
                        // with the runtime.
                        for _ in index..workers {
                            runtime.inner().pause();
                        }
                        return Err(why);
                    }
                }
            }
        }
        Ok(runtime)
    }

    /// Returns the configuration of each worker, and the random numbers of a deterministic runtime.
    fn worker_configs(
        &self,
        workers: usize,
        cpus: usize,
    ) -> Result<(Vec<WorkerConfig>, Option<Rng>), Error> {
        let spin = match self.spin {
            _ if self.seed.is_some() => Duration::ZERO,
            Some(spin) => spin.min(SPIN_MAX),
            None if workers <= cpus && workers > 1 => SPIN,
            None => Duration::ZERO,
        };
        let clock = self.monitor.as_ref().map(|_| monitor::clock());
        let begin = clock.as_ref().map_or(0, |c| c.raw());
        let mut random = self.seed.map(Rng::with_seed);
        let make_park = self.park.as_ref().filter(|_| self.seed.is_none());
        let park = |worker| {
            let park = make_park.map(|make| make(worker)).transpose();
            park.map_err(|source| Error::Park { worker, source })
        };
        let config = |index: usize| {
            Ok(WorkerConfig {
                index,
                park: park(index)?,
                ready: match (&self.scheduler, &mut random) {
                    (Some(make), _) => ReadySet::Other(RefCell::new(make(index))),
                    (None, Some(random)) => {
                        ReadySet::Other(RefCell::new(Box::new(RandomOrder::new(random.fork()))))
                    }
                    (None, None) => ReadySet::Fifo(UnsafeCell::new(Fifo::default())),
                },
                watch: self
                    .monitor
                    .as_ref()
                    .zip(clock.clone())
                    .map(|(monitor, clock)| Watch::new(&**monitor, index, clock, begin)),
                spin,
            })
        };
        let configs = (0..workers).map(config).collect::<Result<_, Error>>()?;
        Ok((configs, random))
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Builder({:?} workers)", self.workers)
    }
}

pub(crate) fn check_stack_size(requested: usize) -> Result<usize, Error> {
    match requested {
        _ if requested < STACK_MIN => Err(Error::StackTooSmall { requested }),
        _ if requested > STACK_MAX => Err(Error::StackTooLarge { requested }),
        _ => Ok(requested),
    }
}

/// Starts the thread of a worker, and waits until the thread is pinned.
fn start_worker(
    inner: &Arc<Inner>,
    index: usize,
    cpu: Option<usize>,
) -> Result<thread::JoinHandle<()>, Error> {
    let (send_pinned, pinned) = mpsc::channel();
    let own_inner = inner.clone();
    let body = move || {
        let result = cpu.map_or(Ok(()), |cpu| restrict(&[cpu]));
        let is_pinned = result.is_ok();
        let _ = send_pinned.send(result);
        if is_pinned {
            own_inner.workers[index].run();
        }
    };
    let thread = thread::Builder::new()
        .name(format!("lpel {index}"))
        .spawn(body)
        .map_err(|source| Error::Thread { purpose: format!("worker {index}"), source })?;
    match pinned.recv() {
        Ok(Err(source)) => Err(Error::Pin { worker: index, cpu: cpu.unwrap_or(0), source }),
        _ => Ok(thread),
    }
}
