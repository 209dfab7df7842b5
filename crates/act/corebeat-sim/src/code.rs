//! From steps to code: a flat list of operations for each team, with names as numbers, checked.
//!
//! ```text
//!   repeat 3: [compute, lock l: [compute]]   -->   0 Enter 3   1 Compute   2 Acquire l   3 Compute   4 Release l   5 Next 1   6 End
//! ```

use crate::error::number;
use crate::hardware::CACHE_KIB_MAX;
use crate::program::{Program, Step};
use crate::{Error, Scenario};
use std::collections::{BTreeMap, BTreeSet};

/// No scenario has more threads.
pub const THREADS_MAX: u32 = 100_000;
/// Nor steps, when all are counted once.
pub const STEPS_MAX: usize = 100_000;
/// Steps are not nested deeper.
pub const DEPTH_MAX: usize = 32;
/// No time that a scenario names is longer: some eleven days, in seconds.
const SECONDS_MAX: f64 = 1e6;

/// From where on a time makes sense.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Least {
    Zero,
    AboveZero,
}

/// Whether a time in units of so many seconds makes sense, or what to write.
pub(crate) fn time(name: &str, value: f64, unit_s: f64, least: Least) -> Result<(), String> {
    let (is_least, from) = match least {
        Least::Zero => (value >= 0.0, "from 0"),
        Least::AboveZero => (value > 0.0, "above 0"),
    };
    match is_least && value * unit_s <= SECONDS_MAX {
        true => Ok(()),
        false => Err(format!("{name} is {}: write a time {from}, up to {SECONDS_MAX} s", number(value))),
    }
}
/// What a thread does in a barrier's lock: it counts itself, in nanoseconds.
const ARRIVAL_NS: f64 = 100.0;

/// What threads wait for, by its place in the table of all.
pub(crate) type Place = usize;

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Op {
    Compute {
        ns: f64,
        jitter: f64,
        memory: f64,
        shared: f64,
        system: f64,
        /// It is divided among the threads that are in the region just then.
        split: bool,
    },
    Acquire(Place),
    Release(Place),
    /// Counts the thread at the barrier, gives the lock back, and waits.
    Arrive(Place, Place),
    Wait(Place),
    Signal(Place),
    Broadcast(Place),
    Push(Place),
    Pop(Place),
    Io {
        ns: f64,
        jitter: f64,
        bytes: u64,
    },
    Beat,
    Phase(usize),
    Invade(u32, u32),
    Retreat(u32),
    /// Begins a parallel region.
    Fork,
    /// Ends this one.
    Join(usize),
    /// Begins a loop of so many times.
    Enter(u64),
    /// Goes back to this place if times are left; else leaves the loop.
    Next(usize),
    /// Begins a loop whose times the team shares.
    Begin(usize),
    /// Takes one of the times, or goes on after the loop.
    Take(usize, usize),
    Jump(usize),
    End,
}

impl Op {
    /// Which share of it is spent in the kernel.
    pub(crate) fn system_share(&self) -> f64 {
        if let Op::Compute { system, .. } = *self { system } else { 0.0 }
    }
}

/// What a place is, as the simulation begins.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    Lock,
    /// A lock that is given in order of arrival, and spun for.
    Ticket,
    /// How many threads meet.
    Barrier(u32),
    Condition,
    /// Where a team waits for its next region.
    Dock,
    /// How many items it holds, and how many threads push.
    Queue(u32, u32),
}

/// A place, and its name for people.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

/// A team's code.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TeamCode {
    pub(crate) ops: Vec<Op>,
    /// Does not end by itself.
    pub(crate) endless: bool,
    /// Where its threads wait for a parallel region, and the first for the end of one, if it has some.
    pub(crate) crew: Option<(Place, Place)>,
}

/// All code of a scenario.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Code {
    /// By program and team.
    pub(crate) teams: Vec<Vec<TeamCode>>,
    pub(crate) places: Vec<Named>,
    pub(crate) phases: Vec<String>,
    /// How often loops that teams share are to be done.
    pub(crate) shared: Vec<u64>,
}

impl Code {
    /// The code of a scenario's programs.
    pub(crate) fn new(scenario: &Scenario) -> Result<Code, Error> {
        if scenario.programs.is_empty() {
            return Err(Error::Scenario("no program; write a table [[programs]]".into()));
        }
        // Before anything is added up in fewer bits.
        let threads: u64 =
            scenario.programs.iter().flat_map(|p| &p.teams).map(|t| u64::from(t.threads)).sum();
        if threads > u64::from(THREADS_MAX) {
            return Err(Error::Scenario(format!("{threads} threads; write no more than {THREADS_MAX}")));
        }
        let mut code = Code::default();
        let mut budget = STEPS_MAX;
        for (number, program) in scenario.programs.iter().enumerate() {
            let teams = Builder::new(&mut code, program, number, &mut budget).teams()?;
            code.teams.push(teams);
        }
        let is_endless = |(p, teams): (usize, &Vec<TeamCode>)| {
            teams.iter().any(|t| t.endless).then_some(&scenario.programs[p].name)
        };
        match (scenario.duration_s, code.teams.iter().enumerate().find_map(is_endless)) {
            (None, Some(name)) => Err(Error::Scenario(format!(
                "program '{name}' never ends; write how long to simulate: duration_s = 10"
            ))),
            _ => Ok(code),
        }
    }
}

/// Builds one program's code.
struct Builder<'a> {
    code: &'a mut Code,
    program: &'a Program,
    budget: &'a mut usize,
    /// Which team, and which step of it, counted from 1 as people do.
    team: usize,
    path: Vec<usize>,
    label: String,
    /// Places by what they are and their name.
    places: BTreeMap<(&'static str, &'a str), Place>,
    phases: BTreeMap<&'a str, usize>,
    /// Parallel regions by name; the team that has them, and whether code is being written for one.
    regions: BTreeMap<&'a str, usize>,
    crew: Option<usize>,
    in_region: bool,
    /// Locks that are held where code is being written, and which were ever taken within which.
    held: Vec<&'a str>,
    within: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Builder<'a> {
    fn new(code: &'a mut Code, program: &'a Program, number: usize, budget: &'a mut usize) -> Self {
        let label = match program.name.is_empty() {
            true => format!("program {}", number + 1),
            false => format!("program '{}'", program.name.escape_debug()),
        };
        Builder {
            code,
            program,
            budget,
            team: 0,
            path: vec![],
            label,
            places: BTreeMap::new(),
            phases: BTreeMap::new(),
            regions: BTreeMap::new(),
            crew: None,
            in_region: false,
            held: vec![],
            within: BTreeMap::new(),
        }
    }

    fn wrong<T>(&self, what: impl Into<String>) -> Result<T, Error> {
        let mut place = self.label.clone();
        if self.team > 0 {
            place += &format!(", team {}", self.team);
        }
        if !self.path.is_empty() {
            let path: Vec<String> = self.path.iter().map(usize::to_string).collect();
            place += &format!(", step {}", path.join("."));
        }
        Err(Error::Program { place, what: what.into() })
    }

    fn time(&self, name: &str, value: f64, unit_s: f64, least: Least) -> Result<(), Error> {
        time(name, value, unit_s, least).or_else(|what| self.wrong(what))
    }

    fn share(&self, name: &str, value: f64) -> Result<(), Error> {
        match (0.0..=1.0).contains(&value) {
            true => Ok(()),
            false => self.wrong(format!("{name} is {}: write a share from 0 to 1", number(value))),
        }
    }

    fn teams(mut self) -> Result<Vec<TeamCode>, Error> {
        let p = self.program;
        if p.name.is_empty() {
            return self.wrong("name is empty; give it a name");
        }
        if p.name.contains(char::is_control) {
            return self.wrong("name has a control character in it; write a name of one line");
        }
        self.time("start_ms", p.start_ms, 1e-3, Least::Zero)?;
        if p.spin_us.is_nan() || p.spin_us < 0.0 {
            return self.wrong(format!("spin_us is {}: write a time from 0, or inf", number(p.spin_us)));
        }
        if p.queue_items == 0 {
            return self.wrong("queue_items is 0; write 1 or more");
        }
        if !(-20..=19).contains(&p.nice) {
            return self.wrong(format!("nice is {}; write -20 to 19", p.nice));
        }
        if let Some(goal) = &p.goal {
            self.time("window_ms", goal.window_ms, 1e-3, Least::AboveZero)?;
            let (min, max) = (goal.min.unwrap_or(0.0), goal.max.unwrap_or(f64::MAX));
            if !(min >= 0.0 && min <= max && max.is_finite()) {
                return self.wrong(format!(
                    "goal is from {} to {}; write rates from 0, the lower one as min",
                    number(min),
                    number(max)
                ));
            }
        }
        if p.teams.is_empty() {
            return self.wrong("no team; write a table [[programs.teams]]");
        }
        let mut teams = Vec::new();
        for (i, team) in p.teams.iter().enumerate() {
            (self.team, self.path) = (i + 1, vec![]);
            if team.threads == 0 {
                return self.wrong("threads is 0; write 1 or more");
            }
            if team.footprint_kib > CACHE_KIB_MAX {
                return self.wrong(format!(
                    "footprint_kib is {}; write no more than {CACHE_KIB_MAX}",
                    team.footprint_kib
                ));
            }
            let mut ops = Vec::new();
            let has_regions = team.forks();
            if has_regions && let Some(other) = self.crew.replace(i + 1) {
                return self.wrong(format!(
                    "has parallel regions, and team {other} has some: a program has one such team; make two programs"
                ));
            }
            let endless = self.steps(&team.steps, if has_regions { 1 } else { team.threads }, &mut ops)?;
            ops.push(Op::End);
            let crew = has_regions
                .then(|| (self.place("team", &team.name), self.place("end of a region of", &team.name)));
            teams.push(TeamCode { ops, endless, crew });
        }
        (self.team, self.path) = (0, vec![]);
        self.no_cycle()?;
        Ok(teams)
    }

    /// A place of the program by its name; made when it is first named.
    fn place(&mut self, what: &'static str, name: &'a str) -> Place {
        if let Some(&place) = self.places.get(&(what, name)) {
            return place;
        }
        let threads_that = |uses: &dyn Fn(&Step) -> bool| -> u32 {
            let users = self.program.teams.iter().filter(|t| t.does(uses));
            users.map(|t| if what == "barrier" && t.forks() { 1 } else { t.threads }).sum()
        };
        let kind = match what {
            "barrier" => Kind::Barrier(threads_that(&|s| matches!(s, Step::Barrier(n) if n == name))),
            "condition" => Kind::Condition,
            "queue" => Kind::Queue(
                self.program.queue_items,
                threads_that(&|s| matches!(s, Step::Push(n) if n == name)),
            ),
            "ticket lock" => Kind::Ticket,
            "team" => Kind::Dock,
            "end of a region of" => Kind::Condition,
            _ => Kind::Lock,
        };
        let place = self.code.places.len();
        self.code.places.push(Named { name: format!("{what} '{name}' of {}", self.label), kind });
        self.places.insert((what, name), place);
        place
    }

    /// Whether they never end.
    fn steps(&mut self, steps: &'a [Step], threads: u32, ops: &mut Vec<Op>) -> Result<bool, Error> {
        if self.path.len() >= DEPTH_MAX {
            return self.wrong(format!("steps within steps deeper than {DEPTH_MAX}; write them flatter"));
        }
        let mut endless = false;
        for (i, step) in steps.iter().enumerate() {
            self.path.push(i + 1);
            if endless {
                return self.wrong("never reached: the step before repeats for ever");
            }
            *self.budget = match self.budget.checked_sub(1) {
                Some(left) => left,
                None => return self.wrong(format!("more than {STEPS_MAX} steps; use repeat")),
            };
            endless = self.step(step, threads, ops)?;
            self.path.pop();
        }
        Ok(endless)
    }

    fn step(&mut self, step: &'a Step, threads: u32, ops: &mut Vec<Op>) -> Result<bool, Error> {
        match step {
            Step::Compute(work) => {
                self.time("us", work.us, 1e-6, Least::AboveZero)?;
                for (name, share) in [
                    ("jitter", work.jitter),
                    ("memory", work.memory),
                    ("shared", work.shared),
                    ("system", work.system),
                ] {
                    self.share(name, share)?;
                }
                let parts = if work.split { f64::from(threads) } else { 1.0 };
                ops.push(Op::Compute {
                    ns: work.us * 1e3 / parts,
                    jitter: work.jitter,
                    memory: work.memory,
                    shared: work.shared,
                    system: work.system,
                    split: work.split && self.in_region,
                });
            }
            Step::Lock { name, steps } | Step::TicketLock { name, steps } => {
                if self.held.contains(&name.as_str()) {
                    return self.wrong(format!("lock '{name}' is taken while it is held"));
                }
                self.held.iter().for_each(|outer| {
                    self.within.entry(outer).or_default().insert(name);
                });
                let what = if matches!(step, Step::Lock { .. }) { "lock" } else { "ticket lock" };
                let place = self.place(what, name);
                ops.push(Op::Acquire(place));
                self.held.push(name);
                if self.steps(steps, threads, ops)? {
                    return self.wrong(format!("lock '{name}' is never given back"));
                }
                self.held.pop();
                ops.push(Op::Release(place));
            }
            Step::Barrier(name) => {
                self.free_of_locks("barrier", name)?;
                if self.in_region {
                    return self.wrong(format!(
                        "barrier '{name}' within a parallel region, which ends with one; begin another region there"
                    ));
                }
                let barrier = self.place("barrier", name);
                let lock = self.place("lock of barrier", name);
                let count = Op::Compute {
                    ns: ARRIVAL_NS,
                    jitter: 0.0,
                    memory: 0.0,
                    shared: 0.0,
                    system: 0.0,
                    split: false,
                };
                ops.extend([Op::Acquire(lock), count, Op::Arrive(barrier, lock)]);
            }
            Step::Wait(name) => {
                self.free_of_locks("condition", name)?;
                let signals = |s: &Step| matches!(s, Step::Signal(n) | Step::Broadcast(n) if n == name);
                if self.is_new("condition", name) && !self.anybody(&signals) {
                    return self.wrong(format!("nobody signals condition '{name}'"));
                }
                ops.push(Op::Wait(self.place("condition", name)));
            }
            Step::Signal(name) => ops.push(Op::Signal(self.place("condition", name))),
            Step::Broadcast(name) => ops.push(Op::Broadcast(self.place("condition", name))),
            Step::Push(name) => {
                self.free_of_locks("queue", name)?;
                let pops = |s: &Step| matches!(s, Step::Pop(n) if n == name);
                if self.is_new("queue", name) && !self.anybody(&pops) {
                    return self.wrong(format!("nobody pops from queue '{name}'"));
                }
                ops.push(Op::Push(self.place("queue", name)));
            }
            Step::Pop(name) => {
                self.free_of_locks("queue", name)?;
                if self.in_region {
                    return self.wrong(format!(
                        "pops from queue '{name}' within a parallel region: a thread may end there; pop before it"
                    ));
                }
                let pushes = |s: &Step| matches!(s, Step::Push(n) if n == name);
                if self.is_new("queue", name) && !self.anybody(&pushes) {
                    return self.wrong(format!("nobody pushes into queue '{name}'"));
                }
                ops.push(Op::Pop(self.place("queue", name)));
            }
            Step::Io { us, jitter, bytes } => {
                self.time("us", *us, 1e-6, Least::AboveZero)?;
                self.share("jitter", *jitter)?;
                ops.push(Op::Io { ns: us * 1e3, jitter: *jitter, bytes: *bytes });
            }
            Step::Beat => ops.push(Op::Beat),
            Step::Phase(name) => {
                if name.contains(char::is_control) {
                    return self.wrong("phase has a control character in it; write a name of one line");
                }
                let next = self.code.phases.len();
                let phase = *self.phases.entry(name).or_insert(next);
                if phase == next {
                    self.code.phases.push(name.clone());
                }
                ops.push(Op::Phase(phase));
            }
            Step::Invade { min, max } => {
                self.claims()?;
                if !(1..=*max).contains(min) {
                    return self.wrong(format!(
                        "a claim takes from 1 CPU up, and no more at least than at most; {min} to {max} is not that"
                    ));
                }
                ops.push(Op::Invade(*min, *max));
            }
            Step::Retreat(to) => {
                self.claims()?;
                ops.push(Op::Retreat(*to));
            }
            Step::Parallel { name, steps } => {
                self.free_of_locks("parallel region", name)?;
                if std::mem::replace(&mut self.in_region, true) {
                    return self.wrong(format!(
                        "parallel region '{name}' within another; write one after the other"
                    ));
                }
                let next = self.regions.len() + 1;
                let region = *self.regions.entry(name).or_insert(next);
                ops.push(Op::Fork);
                if self.steps(steps, threads, ops)? {
                    return self.wrong(format!("parallel region '{name}' never ends"));
                }
                ops.push(Op::Join(region));
                self.in_region = false;
            }
            Step::Repeat { times, shared, steps } => {
                return self.repeat(*times, *shared, steps, threads, ops);
            }
        }
        Ok(false)
    }

    fn repeat(
        &mut self,
        times: Option<u64>,
        shared: bool,
        steps: &'a [Step],
        threads: u32,
        ops: &mut Vec<Op>,
    ) -> Result<bool, Error> {
        if !Step::any(steps, &|s| !matches!(s, Step::Beat | Step::Phase(_) | Step::Repeat { .. })) {
            return self.wrong("repeats what takes no time; compute something");
        }
        let begin = ops.len();
        match (times, shared) {
            (None, true) => return self.wrong("what is shared needs a number of times; write times = 100"),
            (None, false) => {
                self.steps(steps, threads, ops)?;
                ops.push(Op::Jump(begin));
                // A thread that pops ends with its queue.
                return Ok(!Step::any(steps, &|s| matches!(s, Step::Pop(_))));
            }
            (Some(times), true) => {
                let counter = self.code.shared.len();
                self.code.shared.push(times);
                ops.extend([Op::Begin(counter), Op::End]);
                if self.steps(steps, threads, ops)? {
                    return self.wrong("repeats what never ends");
                }
                ops.push(Op::Jump(begin + 1));
                ops[begin + 1] = Op::Take(counter, ops.len());
            }
            (Some(0), false) => return self.wrong("times is 0; leave the step out"),
            (Some(times), false) => {
                ops.push(Op::Enter(times));
                if self.steps(steps, threads, ops)? {
                    return self.wrong("repeats what never ends");
                }
                ops.push(Op::Next(begin + 1));
            }
        }
        Ok(false)
    }

    /// Claims are of the team that has parallel regions, and change between those. Where a program may run is said once.
    fn claims(&self) -> Result<(), Error> {
        if self.program.cpus.is_some() || self.program.set.is_some() {
            return self.wrong(
                "asks for CPUs, and has cpus or a set, which says where it runs; leave one of them out",
            );
        }
        match (self.crew == Some(self.team), self.in_region) {
            (false, _) => self.wrong("claims are for a team with parallel regions; write some"),
            (_, true) => self.wrong("a claim does not change within a parallel region; write this before it"),
            _ => Ok(()),
        }
    }

    /// Waiting for others with a lock in one's hands ends in a deadlock sooner or later.
    fn free_of_locks(&self, what: &str, name: &str) -> Result<(), Error> {
        match self.held.last() {
            Some(lock) => self.wrong(format!(
                "{what} '{name}' within lock '{lock}': others cannot come while it is held; wait outside"
            )),
            None => Ok(()),
        }
    }

    /// Whether it is named for the first time. Who names it then has looked whether somebody is on its other side.
    fn is_new(&self, what: &'static str, name: &str) -> bool {
        !self.places.contains_key(&(what, name))
    }

    fn anybody(&self, does: &dyn Fn(&Step) -> bool) -> bool {
        self.program.does(does)
    }

    /// Locks that are taken within each other in more than one order.
    fn no_cycle(&self) -> Result<(), Error> {
        for &first in self.within.keys() {
            // The way from `first` to what is taken within it, and within that, until it comes back.
            let mut from = BTreeMap::from([(first, first)]);
            let mut todo = vec![first];
            while let Some(lock) = todo.pop() {
                for &inner in self.within.get(lock).into_iter().flatten() {
                    if inner == first {
                        let mut way = vec![format!("'{first}'")];
                        let mut at = lock;
                        while at != first {
                            way.push(format!("'{at}'"));
                            at = from[at];
                        }
                        way.push(format!("'{first}'"));
                        way.reverse();
                        return self.wrong(format!(
                            "cyclic locks: {}; take them in one order",
                            way.join(" before ")
                        ));
                    }
                    if !from.contains_key(inner) {
                        from.insert(inner, lock);
                        todo.push(inner);
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hardware, Team, Work};

    fn code(steps: Vec<Step>) -> Result<Code, Error> {
        let programs = vec![Program::new("p", vec![Team::new(4, steps)])];
        Code::new(&Scenario::new(Hardware::flat(1), programs))
    }

    fn lock(name: &str, steps: Vec<Step>) -> Step {
        Step::Lock { name: name.into(), steps }
    }

    fn repeat(times: Option<u64>, shared: bool, steps: Vec<Step>) -> Step {
        Step::Repeat { times, shared, steps }
    }

    fn region_of(steps: Vec<Step>) -> Step {
        Step::Parallel { name: "r".into(), steps }
    }

    fn compute() -> Step {
        Work::us(1.0).into()
    }

    #[test]
    fn code_is_flat_and_jumps_back() {
        let ops = code(vec![repeat(Some(3), false, vec![compute(), lock("l", vec![compute()])])]).unwrap();
        let ops = &ops.teams[0][0].ops;
        assert_eq!(ops.len(), 7);
        assert_eq!((ops[0], ops[5], ops[6]), (Op::Enter(3), Op::Next(1), Op::End));
        let shared = code(vec![repeat(Some(9), true, vec![compute()])]).unwrap();
        assert_eq!(shared.teams[0][0].ops[..2], [Op::Begin(0), Op::Take(0, 4)]);
        assert_eq!(shared.shared, [9]);
    }

    #[test]
    fn code_mistakes_are_told_with_their_place() {
        let told = |steps: Vec<Step>| code(steps).unwrap_err().to_string();
        let nested = told(vec![
            lock("a", vec![lock("b", vec![compute()])]),
            compute(),
            lock("b", vec![lock("c", vec![lock("a", vec![compute()])])]),
        ]);
        assert_eq!(nested, "program 'p': cyclic locks: 'a' before 'b' before 'a'; take them in one order");
        assert_eq!(
            told(vec![repeat(Some(2), false, vec![compute(), Work::us(-5.0).into()])]),
            "program 'p', team 1, step 1.2: us is -5: write a time above 0, up to 1000000 s"
        );
        let region = vec![Step::Parallel { name: "r".into(), steps: vec![compute()] }];
        let programs = vec![Program::new(
            "p",
            vec![Team::new(4, region.clone()), Team::new(4, vec![compute()]), Team::new(2, region)],
        )];
        let two = Code::new(&Scenario::new(Hardware::flat(1), programs)).unwrap_err().to_string();
        assert!(two.contains("team 3: has parallel regions, and team 1 has some"), "{two}");
        let claims = vec![Step::Invade { min: 1, max: 4 }, region_of(vec![compute()])];
        let bound =
            Program { cpus: Some("0".parse().unwrap()), ..Program::new("p", vec![Team::new(4, claims)]) };
        let bound = Code::new(&Scenario::new(Hardware::flat(2), vec![bound])).unwrap_err().to_string();
        assert!(bound.contains("has cpus or a set"), "{bound}");
        for (steps, says) in [
            (vec![lock("a", vec![lock("a", vec![compute()])])], "while it is held"),
            (vec![lock("a", vec![Step::Barrier("b".into())])], "within lock 'a'"),
            (vec![Step::Pop("q".into())], "nobody pushes"),
            (vec![Step::Push("q".into())], "nobody pops"),
            (vec![Step::Wait("c".into())], "nobody signals"),
            (vec![repeat(None, false, vec![compute()])], "never ends; write how long"),
            (vec![repeat(None, false, vec![Step::Beat])], "takes no time"),
            (vec![repeat(None, false, vec![compute()]), compute()], "never reached"),
            (vec![repeat(None, true, vec![compute()])], "times = 100"),
            (
                vec![Step::Parallel { name: "r".into(), steps: vec![Step::Barrier("b".into())] }],
                "begin another region",
            ),
            (
                vec![Step::Parallel { name: "r".into(), steps: vec![repeat(None, false, vec![compute()])] }],
                "never ends",
            ),
            (vec![lock("a", vec![Step::Parallel { name: "r".into(), steps: vec![] }])], "within lock 'a'"),
            (
                vec![Step::Parallel {
                    name: "r".into(),
                    steps: vec![Step::Parallel { name: "s".into(), steps: vec![] }],
                }],
                "region 's' within another",
            ),
            (
                vec![
                    Step::Push("q".into()),
                    Step::Parallel { name: "r".into(), steps: vec![Step::Pop("q".into())] },
                ],
                "pop before it",
            ),
            (vec![Step::Invade { min: 1, max: 4 }], "for a team with parallel regions"),
            (
                vec![Step::Parallel { name: "r".into(), steps: vec![Step::Retreat(0)] }],
                "does not change within a parallel region",
            ),
            (vec![Step::Invade { min: 5, max: 4 }, region_of(vec![compute()])], "5 to 4 is not that"),
            (vec![Work { memory: 1.5, ..Work::us(1.0) }.into()], "memory is 1.5"),
        ] {
            assert!(told(steps).contains(says), "{says}");
        }
    }
}
