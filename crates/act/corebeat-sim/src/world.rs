//! The simulated world: its state, its events, and time.

use crate::code::{Code, Kind, Least, Named, Op, time};
use crate::crew::Crew;
use crate::gang::Gang;
use crate::memory::Move;
use crate::program::{Placement, StartClass};
use crate::queue::{Cpu, Queue};
use crate::random::Random;
use crate::thread::{Account, Doing, State, Thread, weight};
use crate::timeline::Record;
use crate::{Error, Hardware, Scenario, Scheduler, priority};
use corebeat_machine::{Arbiter, Class, Coscheduler, CpuSet, NodeId, Topology};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// Of a deadlock no more places are told.
const TOLD_MAX: usize = 8;

/// Beats that are kept to tell a rate; with more in a window it is told over a shorter one.
const BEATS_KEPT_MAX: usize = 1 << 20;
/// From one tick that raises who waits to the next, on a time-sharing machine.
const TICK_NS: u64 = 1_000_000_000;

/// Where threads go back to their CPUs, they do within this time: three ticks of Solaris' clock.
const WARM_NS: u64 = 30_000_000;

/// No simulation is longer: some 58 days. Times that are added up and multiplied by weights stay within their bits.
const END_NS: u64 = 5_000_000_000_000_000;

/// What happens at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A CPU looks at what it does. Of its stop events only the one with the newest number counts.
    Stop(usize, u32),
    /// A thread comes back from a device, or is woken late.
    Wake(usize),
    /// A program starts.
    Start(usize),
    /// Run queues are balanced.
    Balance,
    /// A program with a limit gets CPU time for another period.
    Refill(usize),
    /// On a time-sharing machine, who waits is raised.
    Tick,
    /// Pages have arrived.
    Moved(usize),
    /// The coscheduler is asked. Only the newest number counts.
    Ask(u32),
    /// A CPU hears that it is for another set, or that a thread waits elsewhere.
    Look(usize),
    /// A program's time to give CPUs back is over.
    Shrink(usize),
}

/// A program at work.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) name: String,
    /// Its threads among all.
    pub(crate) threads: std::ops::Range<usize>,
    pub(crate) watched: bool,
    pub(crate) start: u64,
    pub(crate) alive: usize,
    pub(crate) ended: Option<u64>,
    /// `u64::MAX` for always.
    pub(crate) spin: u64,
    pub(crate) class: Class,
    /// Where its threads may run, unless they are told otherwise.
    pub(crate) cpus: CpuSet,
    pub(crate) placement: Placement,
    /// The data that its threads share, by node, in millionths; empty until one of them first runs.
    pub(crate) pages: Vec<u64>,
    pub(crate) memory_mib: u32,

    /// Its weight as a group, if it was given one, and what its runnable threads weigh together.
    pub(crate) weight: Option<u32>,
    pub(crate) runnable: u64,
    /// Its CPU time for each period, in nanoseconds, what is left of it, and who waits for more.
    pub(crate) quota: Option<i64>,
    pub(crate) left: i64,
    pub(crate) throttled: Vec<usize>,
    pub(crate) refilling: bool,
    pub(crate) frozen: bool,
    /// The coscheduled set that it is in.
    pub(crate) set: Option<usize>,
    /// Its team that has parallel regions.
    pub(crate) crew: Option<Crew>,
    /// It has asked for CPUs.
    pub(crate) claims: bool,
    /// When those are taken that it is asked to give back, in nanoseconds.
    pub(crate) shrinks_at: Option<u64>,

    pub(crate) goal: Option<crate::Goal>,
    pub(crate) beats: u64,
    pub(crate) beat_times: VecDeque<u64>,
    pub(crate) io_bytes: u64,
    pub(crate) io_bytes_seen: u64,
    /// When which phase began.
    pub(crate) phases: Vec<(u64, usize)>,
}

/// Something that threads wait at.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub(crate) named: Named,
    /// The lock's.
    pub(crate) holder: Option<usize>,
    /// The CPU that has its cache line.
    pub(crate) line: Option<usize>,
    /// Who waits: at a queue, to pop.
    pub(crate) waiters: VecDeque<usize>,
    /// Who waits to push.
    pub(crate) pushing: VecDeque<usize>,
    /// Threads at the barrier, signals kept, items in the queue.
    pub(crate) count: u64,
    /// Threads that may still push.
    pub(crate) pushers: u32,
}

/// A loop whose times a team shares.
#[derive(Debug)]
pub(crate) struct Pool {
    times: u64,
    /// Which round each thread of the team is in, from 1.
    entered: Vec<u64>,
    /// What is left of rounds from `first` on; before it nothing.
    left: VecDeque<u64>,
    first: u64,
}

impl Pool {
    /// A thread begins the loop, once more.
    pub(crate) fn begin(&mut self, member: usize) {
        self.entered[member] += 1;
        while self.first + (self.left.len() as u64) <= self.entered[member] {
            self.left.push_back(self.times);
        }
    }

    /// Those that come to a region are in the round that the first is in, so many together.
    pub(crate) fn join(&mut self, members: usize) {
        let first = self.entered[0];
        self.entered[..members].fill(first);
    }

    /// Takes one of the times of the round that the thread is in, if there is one left.
    pub(crate) fn take(&mut self, member: usize) -> bool {
        let round = self.entered[member].checked_sub(self.first).and_then(|r| usize::try_from(r).ok());
        let taken = match round.and_then(|r| self.left.get_mut(r)) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        };
        while self.left.front() == Some(&0) {
            self.left.pop_front();
            self.first += 1;
        }
        taken
    }
}

/// Everything.
pub(crate) struct World {
    pub(crate) hardware: Hardware,
    pub(crate) topology: Topology,
    /// Distances between nodes, 10 is local.
    pub(crate) distances: Vec<Vec<u64>>,
    pub(crate) slice: u64,
    /// Slices end at multiples of this.
    pub(crate) tick: u64,
    /// Who ran within this time goes back to its CPU.
    pub(crate) warm: u64,
    balance: u64,
    pub(crate) round: u64,

    pub(crate) now: u64,
    pub(crate) end: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Numbers events, so that those of one moment happen in the order in which they were made.
    made: u64,
    pub(crate) happened: u64,
    /// How often lines of meetings went from CPU to CPU, by distance.
    pub(crate) ways: BTreeMap<u64, u64>,
    pub(crate) print: u64,
    pub(crate) random: Random,
    /// Why nothing can happen any more.
    pub(crate) stuck: Option<String>,

    pub(crate) cpus: Vec<Cpu>,
    pub(crate) idle: usize,
    /// Threads in run queues; wakes and starts to come; threads that have not ended, programs to start included.
    pub(crate) queued: usize,
    pub(crate) coming: usize,
    pub(crate) alive: usize,
    pub(crate) programs_ended: usize,
    /// Counts entries of run queues, so that who came first is known.
    pub(crate) order: i64,

    pub(crate) threads: Vec<Thread>,
    pub(crate) programs: Vec<Running>,
    pub(crate) meetings: Vec<Meeting>,
    pub(crate) pools: Vec<Pool>,
    /// By team.
    pub(crate) code: Vec<Vec<Op>>,
    pub(crate) team_names: Vec<String>,
    pub(crate) phases: Vec<String>,
    /// What all threads want of a node's controller, in millionths; and what the caches are used for, in KiB.
    pub(crate) demand: Vec<u64>,
    pub(crate) pressure: Vec<u64>,
    /// Page moves on their way.
    pub(crate) moves: Vec<Move>,
    pub(crate) record: Option<Record>,

    pub(crate) gangs: Vec<Gang>,
    pub(crate) coscheduler: Option<Box<dyn Coscheduler>>,
    /// Says who has which CPUs of those that programs ask for.
    pub(crate) arbiter: Option<Box<dyn Arbiter>>,
    /// Threads in no set that run or are ready.
    pub(crate) loose: u32,
    /// The newest time that the coscheduler was to be asked, and whether that is at this moment.
    pub(crate) asks: u32,
    pub(crate) asked: bool,
}

/// Whole nanoseconds of a time in other units; what is too long is for ever.
pub(crate) fn ns(value: f64, unit: f64) -> u64 {
    (value * unit).round() as u64
}

impl World {
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Result<World, Error> {
        let hardware = scenario.machine.clone();
        let topology = hardware.topology()?;
        let code = Code::new(scenario)?;
        let end = match scenario.duration_s {
            None => END_NS,
            Some(s) => {
                time("duration_s", s, 1.0, Least::AboveZero).map_err(Error::Scenario)?;
                ns(s, 1e9)
            }
        };
        let cpus = cpus(&topology);
        let nodes = topology.nodes().len();
        let caches = cpus.iter().map(|c| c.cache).max().unwrap_or(0) + 1;
        let mut world = World {
            distances: topology
                .nodes()
                .iter()
                .map(|n| n.distances.iter().map(|&d| d.into()).collect())
                .collect(),
            slice: ns(hardware.slice_us, 1e3),
            tick: ns(hardware.tick_us, 1e3).max(1),
            warm: if hardware.scheduler == Scheduler::Solaris { WARM_NS } else { 0 },
            balance: ns(hardware.balance_us, 1e3),
            round: 0,
            now: 0,
            end,
            events: BinaryHeap::new(),
            made: 0,
            happened: 0,
            ways: BTreeMap::new(),
            print: 0xcbf2_9ce4_8422_2325,
            random: Random::new(seed),
            stuck: None,
            idle: cpus.len(),
            cpus,
            queued: 0,
            coming: 0,
            alive: 0,
            programs_ended: 0,
            order: 0,
            threads: vec![],
            programs: vec![],
            meetings: code.places.iter().map(|named| meeting(named.clone())).collect(),
            pools: vec![],
            code: vec![],
            team_names: vec![],
            phases: code.phases.clone(),
            demand: vec![0; nodes],
            pressure: vec![0; caches],
            moves: vec![],
            record: None,
            gangs: scenario.gangs()?,
            coscheduler: None,
            arbiter: None,
            loose: 0,
            asks: 0,
            asked: false,
            hardware,
            topology,
        };
        world.people(scenario, code)?;
        world.post(world.balance, Event::Balance);
        if world.hardware.scheduler.is_time_share() {
            world.post(TICK_NS, Event::Tick);
        }
        Ok(world)
    }

    /// Adds the scenario's programs and threads.
    fn people(&mut self, scenario: &Scenario, code: Code) -> Result<(), Error> {
        let all = self.topology.cpu_set();
        let membership = scenario.membership()?;
        let mut pools: Vec<Pool> = code
            .shared
            .iter()
            .map(|&times| Pool { times, entered: vec![], left: VecDeque::new(), first: 1 })
            .collect();
        for (number, (program, teams)) in scenario.programs.iter().zip(code.teams).enumerate() {
            let cpus: CpuSet = match &program.cpus {
                None => all.clone(),
                Some(set) => set.iter().filter(|&c| all.contains(c)).collect(),
            };
            if cpus.is_empty() {
                let place = format!("program '{}'", program.name);
                let what = format!("cpus has none of the machine's CPUs, which are {all}");
                return Err(Error::Program { place, what });
            }
            let class = match program.class {
                StartClass::Normal => Class::Normal,
                StartClass::Batch => Class::Batch,
                StartClass::Idle => Class::Idle,
            };
            let first = self.threads.len();
            let mut crew = None;
            for (team, code) in program.teams.iter().zip(teams) {
                for op in &code.ops {
                    if let Op::Begin(pool) = op {
                        pools[*pool].entered = vec![0; team.threads as usize];
                    }
                }
                for member in 0..team.threads as usize {
                    self.threads.push(Thread {
                        program: number,
                        team: self.code.len(),
                        member,
                        pc: 0,
                        loops: vec![],
                        doing: Doing::Next,
                        debt_system: 0,
                        debt_user: 0,
                        again: false,
                        held: vec![],
                        state: State::New,
                        since: 0,
                        cpus: cpus.clone(),
                        cpu: 0,
                        ran_on: None,
                        class,
                        nice: program.nice,
                        weight: weight(class, program.nice),
                        virtual_ns: 0,
                        priority: priority::START,
                        is_due: false,
                        slice: None,
                        left: 0,
                        footprint_kib: team.footprint_kib,
                        pages: vec![],
                        started: 0,
                        ended: 0,
                        account: Account::default(),
                        seen: Account::default(),
                    });
                }
                let threads = self.threads.len() - team.threads as usize..self.threads.len();
                crew = crew.or(Crew::new(&code, threads));
                self.code.push(code.ops);
                self.team_names.push(team.name.clone());
            }
            let start = ns(program.start_ms, 1e6);
            self.programs.push(Running {
                name: program.name.clone(),
                threads: first..self.threads.len(),
                watched: program.watched,
                start,
                alive: self.threads.len() - first,
                ended: None,
                spin: if program.spin_us.is_infinite() { u64::MAX } else { ns(program.spin_us, 1e3) },
                class,
                cpus,
                placement: program.placement,
                pages: vec![],
                memory_mib: program.memory_mib,
                weight: None,
                runnable: 0,
                quota: None,
                left: 0,
                throttled: vec![],
                refilling: false,
                frozen: false,
                set: membership[number],
                crew,
                claims: false,
                shrinks_at: None,
                goal: program.goal,
                beats: 0,
                beat_times: VecDeque::new(),
                io_bytes: 0,
                io_bytes_seen: 0,
                phases: vec![],
            });
            self.coming += 1;
            self.post(start, Event::Start(number));
        }
        self.pools = pools;
        self.alive = self.threads.len();
        Ok(())
    }

    /// Something that is to happen.
    pub(crate) fn post(&mut self, at: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse((at.max(self.now), self.made, event)));
    }

    /// Whether all threads have ended, time is up, or nothing can happen any more.
    pub(crate) fn is_over(&self) -> bool {
        self.alive == 0 || self.now >= self.end || self.stuck.is_some()
    }

    /// Lets time pass up to a moment, or to the end of a program or of all. Afterwards time passes without events.
    pub(crate) fn run_until(&mut self, at: u64) {
        if self.is_over() {
            self.now = self.now.max(at);
            return;
        }
        while self.now < at || self.next_at() <= at {
            let ended = self.next_event(at.min(self.end));
            if ended || self.is_over() {
                return;
            }
        }
    }

    fn next_at(&self) -> u64 {
        self.events.peek().map_or(u64::MAX, |Reverse((time, ..))| *time)
    }

    /// Lets time pass until all is over.
    pub(crate) fn run(&mut self) {
        while !self.is_over() {
            self.next_event(self.end);
        }
    }

    /// Lets the next event happen, if there is one up to a moment; else it is that moment. Whether a program has ended.
    fn next_event(&mut self, until: u64) -> bool {
        match self.events.peek() {
            Some(&Reverse((time, _, event))) if time <= until => {
                self.events.pop();
                self.now = time;
                self.happen(event)
            }
            _ => {
                self.now = until;
                false
            }
        }
    }

    /// Lets an event happen. Whether a program has ended by it.
    fn happen(&mut self, event: Event) -> bool {
        let (kind, who) = match event {
            Event::Stop(cpu, number) if self.cpus[cpu].stop != number => return false,
            Event::Stop(cpu, _) => (1, cpu),
            Event::Wake(thread) => (2, thread),
            Event::Start(program) => (3, program),
            Event::Balance => (4, 0),
            Event::Refill(program) => (5, program),
            Event::Tick => (6, 0),
            Event::Moved(number) => (7, number),
            Event::Ask(number) => (8, number as usize),
            Event::Look(cpu) => (9, cpu),
            Event::Shrink(program) => (10, program),
        };
        self.happened += 1;
        for word in [self.now, kind, who as u64] {
            self.print = (self.print ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let ended = self.programs_ended;
        match event {
            Event::Stop(cpu, _) => self.stop(cpu),
            Event::Wake(thread) => {
                self.coming -= 1;
                self.wake(thread);
            }
            Event::Start(program) => {
                self.coming -= 1;
                self.start(program);
            }
            Event::Balance => {
                self.even_out();
                self.post(self.now + self.balance, Event::Balance);
            }
            Event::Refill(program) => self.refill(program),
            Event::Tick => {
                self.tick();
                self.post(self.now + TICK_NS, Event::Tick);
            }
            Event::Moved(number) => {
                self.arrive_pages(number);
            }
            Event::Ask(number) => self.arrange(number),
            Event::Look(cpu) => self.rouse(cpu),
            Event::Shrink(program) => self.take_claimed(program),
        }
        ended != self.programs_ended
    }

    /// Starts a program's threads, each where least is to do.
    fn start(&mut self, program: usize) {
        for i in self.programs[program].threads.clone() {
            let thread = &mut self.threads[i];
            (thread.started, thread.since) = (self.now, self.now);
            if self.is_docked_first(i) {
                self.dock_first(i);
                continue;
            }
            self.programs[program].runnable += self.threads[i].weight;
            self.count_runnable(i, true);
            let cpu = self.least_loaded(i);
            self.enqueue(cpu, i, false);
        }
    }

    /// A heartbeat of a program.
    pub(crate) fn beat(&mut self, program: usize) {
        let running = &mut self.programs[program];
        running.beats += 1;
        running.beat_times.push_back(self.now);
        let window = running.goal.map_or(1_000_000_000, |g| ns(g.window_ms, 1e6));
        while running.beat_times.len() > BEATS_KEPT_MAX
            || running.beat_times.front().is_some_and(|&t| t + window < self.now)
        {
            running.beat_times.pop_front();
        }
    }

    /// A thread's name.
    pub(crate) fn thread_name(&self, thread: usize) -> String {
        let t = &self.threads[thread];
        format!("{} {}", self.team_names[t.team], t.member)
    }

    /// Nobody runs, and nothing is to come: says who waits for what, the first of each place.
    pub(crate) fn look_for_deadlock(&mut self) {
        let is_still = self.idle == self.cpus.len() && self.queued == 0 && self.coming == 0 && self.alive > 0;
        if !is_still || self.programs.iter().any(|p| !p.throttled.is_empty()) || self.stuck.is_some() {
            return;
        }
        let who = |m: &Meeting| m.waiters.front().or(m.pushing.front()).copied();
        let places = self.meetings.iter().filter(|m| m.named.kind != Kind::Dock);
        let mut told: Vec<String> = places
            .filter_map(|m| Some((who(m)?, m)))
            .map(|(t, m)| {
                let others = match m.waiters.len() + m.pushing.len() {
                    1 => String::new(),
                    count => format!(" (and {} more)", count - 1),
                };
                let holder =
                    m.holder.map_or(String::new(), |h| format!(", which {} holds", self.thread_name(h)));
                format!("{}{others} waits for {}{holder}", self.thread_name(t), m.named.name)
            })
            .collect();
        let left = told.len().saturating_sub(TOLD_MAX);
        told.truncate(TOLD_MAX);
        if left > 0 {
            told.push(format!("{left} more places have waiters"));
        }
        let what = if told.is_empty() { "all wait".into() } else { told.join("; ") };
        self.stuck = Some(format!(
            "deadlock at {:.6} s: {what}, and nobody is left who could end that",
            self.now as f64 / 1e9
        ));
    }
}

fn meeting(named: Named) -> Meeting {
    let pushers = if let Kind::Queue(_, pushers) = named.kind { pushers } else { 0 };
    Meeting {
        named,
        holder: None,
        line: None,
        waiters: VecDeque::new(),
        pushing: VecDeque::new(),
        count: 0,
        pushers,
    }
}

fn cpus(topology: &Topology) -> Vec<Cpu> {
    let all = topology.cpus();
    let place = |node: NodeId| topology.nodes().iter().position(|n| n.id == node).unwrap_or(0);
    let cpu = |c: &corebeat_machine::Cpu| {
        let mut others: Vec<(u8, u32, usize)> = all
            .iter()
            .enumerate()
            .filter(|(_, o)| o.id != c.id)
            .map(|(i, o)| {
                let level = if o.cache == c.cache { 0 } else { 1 + u8::from(o.node != c.node) };
                (level, topology.nodes()[place(c.node)].distances[place(o.node)], i)
            })
            .collect();
        others.sort();
        Cpu {
            node: place(c.node),
            cache: c.cache as usize,
            current: None,
            queue: Queue::default(),
            load: 0,
            since: 0,
            came: 0,
            finish: u64::MAX,
            stretch: 1.0,
            miss: 0.0,
            demand: vec![0; topology.nodes().len()],
            stop: 0,
            kicked: false,
            preempt: false,
            last: None,
            is_idle: true,
            evened: 0,
            virtual_ns: 0,
            busy: 0,
            serves: None,
            others: others.into_iter().map(|(level, _, i)| (level, i)).collect(),
        }
    };
    all.iter().map(cpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_rounds_are_shared_each_by_itself() {
        let mut pool = Pool { times: 3, entered: vec![0; 2], left: VecDeque::new(), first: 1 };
        pool.begin(0);
        assert!(pool.take(0) && pool.take(0));
        pool.begin(1);
        assert!(pool.take(1));
        assert!(!pool.take(0), "three were taken");
        pool.begin(0);
        assert!(pool.take(0));
        assert!(!pool.take(1), "it is in the first round still");
        pool.begin(1);
        assert!(pool.take(1) && pool.take(1) && !pool.take(1) && !pool.take(0));
    }
}
