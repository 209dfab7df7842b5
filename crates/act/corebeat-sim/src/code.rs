//! Compilation of steps: a flat list of operations for each team, with numbers for names, checked.
//!
//! ```text
//!   repeat 3: [compute, lock l: [compute]]
//!     -->  0 Enter 3   1 Compute   2 Acquire l   3 Compute   4 Release l   5 Next 1   6 End
//! ```

use crate::error::number;
use crate::hardware::CACHE_KIB_MAX;
use crate::program::{Goal, Program, Step, Team, Work};
use crate::time::{self, Least};
use crate::{Error, Scenario};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of threads in a scenario.
pub const THREADS_MAX: u32 = 100_000;
/// Maximum number of steps in a scenario, nested ones included.
pub const STEPS_MAX: usize = 100_000;
/// Maximum nesting depth of steps.
pub const DEPTH_MAX: usize = 32;

/// Time for which a thread holds a barrier's lock to count its arrival, in nanoseconds.
const ARRIVAL_NS: f64 = 100.0;

/// The index of a synchronisation object.
pub(crate) type ObjectId = usize;

/// An operation of a thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Op {
    Compute {
        ns: f64,
        jitter: f64,
        memory: f64,
        shared: f64,
        system: f64,
        /// The threads of the present region share the work.
        split: bool,
    },
    Acquire(ObjectId),
    Release(ObjectId),
    /// Counts the thread at a barrier, releases the barrier's lock, and waits.
    Arrive(ObjectId, ObjectId),
    Wait(ObjectId),
    Signal(ObjectId),
    Broadcast(ObjectId),
    Push(ObjectId),
    Pop(ObjectId),
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
    /// Ends the parallel region with this number.
    Join(usize),
    /// Begins a loop with this number of iterations.
    Enter(u64),
    /// Jumps back if iterations are left; otherwise leaves the loop.
    Next(usize),
    /// Begins a shared loop.
    Begin(usize),
    /// Takes an iteration of a shared loop; jumps behind the loop if none is left.
    Take(usize, usize),
    Jump(usize),
    End,
}

/// The kind of a synchronisation object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    Lock,
    /// A lock that threads acquire in order of arrival, and spin for.
    Ticket,
    /// The number of threads that wait for each other.
    Barrier(u32),
    Condition,
    /// The point where the threads of a team wait for the next region.
    TeamStart,
    /// The capacity, and the number of threads that push.
    Queue(u32, u32),
}

/// A synchronisation object, with its name for messages.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

/// The code of a team.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TeamCode {
    pub(crate) ops: Vec<Op>,
    /// The code contains a loop without end.
    pub(crate) endless: bool,
    /// With parallel regions: where the threads wait for a region, and the first thread for the
    /// end of a region.
    pub(crate) team_points: Option<(ObjectId, ObjectId)>,
}

/// The code of a scenario.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Code {
    /// By program and team.
    pub(crate) teams: Vec<Vec<TeamCode>>,
    pub(crate) objects: Vec<Named>,
    pub(crate) phases: Vec<String>,
    /// Number of iterations of each shared loop.
    pub(crate) shared: Vec<u64>,
}

impl Code {
    /// Compiles the programs of a scenario.
    pub(crate) fn new(scenario: &Scenario) -> Result<Code, Error> {
        if scenario.programs.is_empty() {
            return Err(Error::Scenario("no program; write a table [[programs]]".into()));
        }
        // In 64 bits, so that the sum cannot overflow.
        let threads: u64 =
            scenario.programs.iter().flat_map(|p| &p.teams).map(|t| u64::from(t.threads)).sum();
        if threads > u64::from(THREADS_MAX) {
            return Err(Error::Scenario(format!(
                "{threads} threads; write no more than {THREADS_MAX}"
            )));
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

/// Compiles one program.
struct Builder<'a> {
    code: &'a mut Code,
    program: &'a Program,
    budget: &'a mut usize,
    /// The present team and the path to the present step, counted from 1, for messages.
    team: usize,
    path: Vec<usize>,
    label: String,
    /// Synchronisation objects by kind and name.
    objects: BTreeMap<(&'static str, &'a str), ObjectId>,
    phases: BTreeMap<&'a str, usize>,
    /// Parallel regions by name.
    regions: BTreeMap<&'a str, usize>,
    /// The team with parallel regions.
    parallel_team: Option<usize>,
    in_region: bool,
    /// The locks that the present step holds.
    held: Vec<&'a str>,
    /// For each lock, the locks that are acquired while it is held.
    nested: BTreeMap<&'a str, BTreeSet<&'a str>>,
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
            objects: BTreeMap::new(),
            phases: BTreeMap::new(),
            regions: BTreeMap::new(),
            parallel_team: None,
            in_region: false,
            held: vec![],
            nested: BTreeMap::new(),
        }
    }

    // Checks.

    fn error<T>(&self, what: impl Into<String>) -> Result<T, Error> {
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

    fn check_time(&self, name: &str, value: f64, unit_s: f64, least: Least) -> Result<(), Error> {
        time::check(name, value, unit_s, least).or_else(|what| self.error(what))
    }

    fn check_share(&self, name: &str, value: f64) -> Result<(), Error> {
        match (0.0..=1.0).contains(&value) {
            true => Ok(()),
            false => self.error(format!("{name} is {}: write a share from 0 to 1", number(value))),
        }
    }

    fn check_program(&self) -> Result<(), Error> {
        let p = self.program;
        if p.name.is_empty() {
            return self.error("name is empty; write a name");
        }
        if p.name.contains(char::is_control) {
            return self.error("name has a control character; write a name of one line");
        }
        self.check_time("start_ms", p.start_ms, 1e-3, Least::Zero)?;
        if p.spin_us.is_nan() || p.spin_us < 0.0 {
            return self
                .error(format!("spin_us is {}: write a time from 0, or inf", number(p.spin_us)));
        }
        if p.queue_items == 0 {
            return self.error("queue_items is 0; write 1 or more");
        }
        if !(-20..=19).contains(&p.nice) {
            return self.error(format!("nice is {}; write -20 to 19", p.nice));
        }
        if p.teams.is_empty() {
            return self.error("no team; write a table [[programs.teams]]");
        }
        p.goal.as_ref().map_or(Ok(()), |goal| self.check_goal(goal))
    }

    fn check_goal(&self, goal: &Goal) -> Result<(), Error> {
        self.check_time("window_ms", goal.window_ms, 1e-3, Least::AboveZero)?;
        let (min, max) = (goal.min.unwrap_or(0.0), goal.max.unwrap_or(f64::MAX));
        match min >= 0.0 && min <= max && max.is_finite() {
            true => Ok(()),
            false => self.error(format!(
                "goal is from {} to {}; write rates from 0, the lower one as min",
                number(min),
                number(max)
            )),
        }
    }

    fn check_team(&mut self, team: &Team) -> Result<(), Error> {
        if team.threads == 0 {
            return self.error("threads is 0; write 1 or more");
        }
        if team.footprint_kib > CACHE_KIB_MAX {
            return self.error(format!(
                "footprint_kib is {}; write no more than {CACHE_KIB_MAX}",
                team.footprint_kib
            ));
        }
        if team.forks()
            && let Some(other) = self.parallel_team.replace(self.team)
        {
            return self.error(format!(
                "has parallel regions, and so has team {other}: a program has one such team; \
                 write two programs"
            ));
        }
        Ok(())
    }

    /// Checks a step of a claim. Only the team with parallel regions has claims, and only between
    /// regions. The program has no other setting of its CPUs.
    fn check_claim(&self) -> Result<(), Error> {
        if self.program.cpus.is_some() || self.program.set.is_some() {
            return self.error(
                "claims CPUs, but cpus or set fixes where the program runs; leave one of them out",
            );
        }
        match (self.parallel_team == Some(self.team), self.in_region) {
            (false, _) => self.error("claims are for a team with parallel regions; write some"),
            (_, true) => self.error(
                "a claim does not change within a parallel region; write this step before it",
            ),
            _ => Ok(()),
        }
    }

    /// Rejects a step that waits for other threads while a lock is held, which leads to a deadlock.
    fn check_no_lock(&self, what: &str, name: &str) -> Result<(), Error> {
        match self.held.last() {
            Some(lock) => self.error(format!(
                "{what} '{name}' within lock '{lock}': other threads cannot arrive while the lock \
                 is held; wait outside"
            )),
            None => Ok(()),
        }
    }

    /// Rejects the first use of an object without a step on the other side, such as a push for a
    /// pop.
    fn check_partner(
        &self,
        what: &'static str,
        name: &str,
        verb: &str,
        is_partner: &dyn Fn(&Step) -> bool,
    ) -> Result<(), Error> {
        let is_known = self.objects.contains_key(&(what, name));
        match is_known || self.program.does(is_partner) {
            true => Ok(()),
            false => self.error(format!("no thread {verb} {what} '{name}'; write such a step")),
        }
    }

    /// Rejects locks that are nested in more than one order.
    fn check_lock_order(&self) -> Result<(), Error> {
        for &first in self.nested.keys() {
            // Search from `first` through the nested locks until `first` is reached again.
            let mut from = BTreeMap::from([(first, first)]);
            let mut todo = vec![first];
            while let Some(lock) = todo.pop() {
                for &inner in self.nested.get(lock).into_iter().flatten() {
                    if inner == first {
                        let mut cycle = vec![format!("'{first}'")];
                        let mut at = lock;
                        while at != first {
                            cycle.push(format!("'{at}'"));
                            at = from[at];
                        }
                        cycle.push(format!("'{first}'"));
                        cycle.reverse();
                        return self.error(format!(
                            "cyclic locks: {}; acquire them in one order",
                            cycle.join(" before ")
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

    // Compilation.

    fn teams(mut self) -> Result<Vec<TeamCode>, Error> {
        self.check_program()?;
        let mut teams = Vec::new();
        for (i, team) in self.program.teams.iter().enumerate() {
            (self.team, self.path) = (i + 1, vec![]);
            self.check_team(team)?;
            let mut ops = Vec::new();
            let threads = if team.forks() { 1 } else { team.threads };
            let endless = self.steps(&team.steps, threads, &mut ops)?;
            ops.push(Op::End);
            let team_points = team.forks().then(|| {
                (self.object("team", &team.name), self.object("end of a region of", &team.name))
            });
            teams.push(TeamCode { ops, endless, team_points });
        }
        (self.team, self.path) = (0, vec![]);
        self.check_lock_order()?;
        Ok(teams)
    }

    /// The synchronisation object with this name; created at its first use.
    fn object(&mut self, what: &'static str, name: &'a str) -> ObjectId {
        if let Some(&object) = self.objects.get(&(what, name)) {
            return object;
        }
        let threads_that = |uses: &dyn Fn(&Step) -> bool| -> u32 {
            let users = self.program.teams.iter().filter(|t| t.does(uses));
            users.map(|t| if what == "barrier" && t.forks() { 1 } else { t.threads }).sum()
        };
        let kind = match what {
            "barrier" => {
                Kind::Barrier(threads_that(&|s| matches!(s, Step::Barrier(n) if n == name)))
            }
            "condition" => Kind::Condition,
            "queue" => Kind::Queue(
                self.program.queue_items,
                threads_that(&|s| matches!(s, Step::Push(n) if n == name)),
            ),
            "ticket lock" => Kind::Ticket,
            "team" => Kind::TeamStart,
            "end of a region of" => Kind::Condition,
            _ => Kind::Lock,
        };
        let object = self.code.objects.len();
        self.code.objects.push(Named { name: format!("{what} '{name}' of {}", self.label), kind });
        self.objects.insert((what, name), object);
        object
    }

    /// Compiles steps. Returns whether they never end.
    fn steps(&mut self, steps: &'a [Step], threads: u32, ops: &mut Vec<Op>) -> Result<bool, Error> {
        if self.path.len() >= DEPTH_MAX {
            return self
                .error(format!("steps are nested deeper than {DEPTH_MAX}; write fewer levels"));
        }
        let mut endless = false;
        for (i, step) in steps.iter().enumerate() {
            self.path.push(i + 1);
            if endless {
                return self.error("never reached: the step before repeats without end");
            }
            *self.budget = match self.budget.checked_sub(1) {
                Some(left) => left,
                None => return self.error(format!("more than {STEPS_MAX} steps; use repeat")),
            };
            endless = self.step(step, threads, ops)?;
            self.path.pop();
        }
        Ok(endless)
    }

    /// Compiles a step. Returns whether it never ends.
    fn step(&mut self, step: &'a Step, threads: u32, ops: &mut Vec<Op>) -> Result<bool, Error> {
        match step {
            Step::Compute(work) => ops.push(self.compute(work, threads)?),
            Step::Lock { name, steps } => self.lock("lock", name, steps, threads, ops)?,
            Step::TicketLock { name, steps } => {
                self.lock("ticket lock", name, steps, threads, ops)?;
            }
            Step::Barrier(name) => self.barrier(name, ops)?,
            Step::Wait(_) | Step::Signal(_) | Step::Broadcast(_) | Step::Push(_) | Step::Pop(_) => {
                ops.push(self.exchange(step)?);
            }
            Step::Io { us, jitter, bytes } => {
                self.check_time("us", *us, 1e-6, Least::AboveZero)?;
                self.check_share("jitter", *jitter)?;
                ops.push(Op::Io { ns: us * 1e3, jitter: *jitter, bytes: *bytes });
            }
            Step::Beat => ops.push(Op::Beat),
            Step::Phase(name) => ops.push(self.phase(name)?),
            Step::Invade { min, max } => {
                self.check_claim()?;
                if !(1..=*max).contains(min) {
                    return self.error(format!(
                        "a claim of {min} to {max} CPUs is invalid; write min from 1 to max"
                    ));
                }
                ops.push(Op::Invade(*min, *max));
            }
            Step::Retreat(keep) => {
                self.check_claim()?;
                ops.push(Op::Retreat(*keep));
            }
            Step::Parallel { name, steps } => self.region(name, steps, threads, ops)?,
            Step::Repeat { times, shared, steps } => {
                return self.repeat(*times, *shared, steps, threads, ops);
            }
        }
        Ok(false)
    }

    fn compute(&self, work: &Work, threads: u32) -> Result<Op, Error> {
        self.check_time("us", work.us, 1e-6, Least::AboveZero)?;
        for (name, share) in [
            ("jitter", work.jitter),
            ("memory", work.memory),
            ("shared", work.shared),
            ("system", work.system),
        ] {
            self.check_share(name, share)?;
        }
        let parts = if work.split { f64::from(threads) } else { 1.0 };
        Ok(Op::Compute {
            ns: work.us * 1e3 / parts,
            jitter: work.jitter,
            memory: work.memory,
            shared: work.shared,
            system: work.system,
            split: work.split && self.in_region,
        })
    }

    fn lock(
        &mut self,
        what: &'static str,
        name: &'a str,
        steps: &'a [Step],
        threads: u32,
        ops: &mut Vec<Op>,
    ) -> Result<(), Error> {
        if self.held.contains(&name) {
            return self.error(format!("lock '{name}' is acquired while it is held"));
        }
        self.held.iter().for_each(|outer| {
            self.nested.entry(outer).or_default().insert(name);
        });
        let lock = self.object(what, name);
        ops.push(Op::Acquire(lock));
        self.held.push(name);
        if self.steps(steps, threads, ops)? {
            return self.error(format!("lock '{name}' is never released"));
        }
        self.held.pop();
        ops.push(Op::Release(lock));
        Ok(())
    }

    fn barrier(&mut self, name: &'a str, ops: &mut Vec<Op>) -> Result<(), Error> {
        self.check_no_lock("barrier", name)?;
        if self.in_region {
            return self.error(format!(
                "barrier '{name}' within a parallel region, which ends with a barrier; begin \
                 another region there"
            ));
        }
        let barrier = self.object("barrier", name);
        let lock = self.object("lock of barrier", name);
        let count = Op::Compute {
            ns: ARRIVAL_NS,
            jitter: 0.0,
            memory: 0.0,
            shared: 0.0,
            system: 0.0,
            split: false,
        };
        ops.extend([Op::Acquire(lock), count, Op::Arrive(barrier, lock)]);
        Ok(())
    }

    /// Compiles a step on a condition or a queue.
    fn exchange(&mut self, step: &'a Step) -> Result<Op, Error> {
        Ok(match step {
            Step::Wait(name) => {
                self.check_no_lock("condition", name)?;
                let signals =
                    |s: &Step| matches!(s, Step::Signal(n) | Step::Broadcast(n) if n == name);
                self.check_partner("condition", name, "signals", &signals)?;
                Op::Wait(self.object("condition", name))
            }
            Step::Signal(name) => Op::Signal(self.object("condition", name)),
            Step::Broadcast(name) => Op::Broadcast(self.object("condition", name)),
            Step::Push(name) => {
                self.check_no_lock("queue", name)?;
                let pops = |s: &Step| matches!(s, Step::Pop(n) if n == name);
                self.check_partner("queue", name, "pops from", &pops)?;
                Op::Push(self.object("queue", name))
            }
            Step::Pop(name) => {
                self.check_no_lock("queue", name)?;
                if self.in_region {
                    return self.error(format!(
                        "pops from queue '{name}' within a parallel region, where a thread cannot \
                         end; pop before it"
                    ));
                }
                let pushes = |s: &Step| matches!(s, Step::Push(n) if n == name);
                self.check_partner("queue", name, "pushes into", &pushes)?;
                Op::Pop(self.object("queue", name))
            }
            _ => Op::Beat,
        })
    }

    fn phase(&mut self, name: &'a str) -> Result<Op, Error> {
        if name.contains(char::is_control) {
            return self.error("phase has a control character; write a name of one line");
        }
        let next = self.code.phases.len();
        let phase = *self.phases.entry(name).or_insert(next);
        if phase == next {
            self.code.phases.push(name.to_owned());
        }
        Ok(Op::Phase(phase))
    }

    fn region(
        &mut self,
        name: &'a str,
        steps: &'a [Step],
        threads: u32,
        ops: &mut Vec<Op>,
    ) -> Result<(), Error> {
        self.check_no_lock("parallel region", name)?;
        if std::mem::replace(&mut self.in_region, true) {
            return self.error(format!(
                "parallel region '{name}' within another; write one after the other"
            ));
        }
        let next = self.regions.len() + 1;
        let region = *self.regions.entry(name).or_insert(next);
        ops.push(Op::Fork);
        if self.steps(steps, threads, ops)? {
            return self.error(format!("parallel region '{name}' never ends"));
        }
        ops.push(Op::Join(region));
        self.in_region = false;
        Ok(())
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
            return self.error("repeats steps that take no time; compute something");
        }
        let begin = ops.len();
        match (times, shared) {
            (None, true) => {
                return self.error("a shared loop requires a number of times; write times = 100");
            }
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
                    return self.error("repeats steps that never end");
                }
                ops.push(Op::Jump(begin + 1));
                ops[begin + 1] = Op::Take(counter, ops.len());
            }
            (Some(0), false) => return self.error("times is 0; leave the step out"),
            (Some(times), false) => {
                ops.push(Op::Enter(times));
                if self.steps(steps, threads, ops)? {
                    return self.error("repeats steps that never end");
                }
                ops.push(Op::Next(begin + 1));
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hardware;

    fn code_of(programs: Vec<Program>) -> Result<Code, Error> {
        Code::new(&Scenario::new(Hardware::flat(2), programs))
    }

    fn code(steps: Vec<Step>) -> Result<Code, Error> {
        code_of(vec![Program::new("p", vec![Team::new(4, steps)])])
    }

    fn message(code: Result<Code, Error>) -> String {
        code.unwrap_err().to_string()
    }

    fn lock(name: &str, steps: Vec<Step>) -> Step {
        Step::Lock { name: name.into(), steps }
    }

    fn repeat(times: Option<u64>, shared: bool, steps: Vec<Step>) -> Step {
        Step::Repeat { times, shared, steps }
    }

    fn region(name: &str, steps: Vec<Step>) -> Step {
        Step::Parallel { name: name.into(), steps }
    }

    fn compute() -> Step {
        Work::us(1.0).into()
    }

    #[test]
    fn code_is_flat_and_jumps_back() {
        let ops = code(vec![repeat(Some(3), false, vec![compute(), lock("l", vec![compute()])])])
            .unwrap();
        let ops = &ops.teams[0][0].ops;
        assert_eq!(ops.len(), 7);
        assert_eq!((ops[0], ops[5], ops[6]), (Op::Enter(3), Op::Next(1), Op::End));
        let shared = code(vec![repeat(Some(9), true, vec![compute()])]).unwrap();
        assert_eq!(shared.teams[0][0].ops[..2], [Op::Begin(0), Op::Take(0, 4)]);
        assert_eq!(shared.shared, [9]);
    }

    #[test]
    fn code_errors_name_their_place() {
        let nested = message(code(vec![
            lock("a", vec![lock("b", vec![compute()])]),
            compute(),
            lock("b", vec![lock("c", vec![lock("a", vec![compute()])])]),
        ]));
        assert_eq!(
            nested,
            "program 'p': cyclic locks: 'a' before 'b' before 'a'; acquire them in one order"
        );
        let negative = repeat(Some(2), false, vec![compute(), Work::us(-5.0).into()]);
        assert_eq!(
            message(code(vec![negative])),
            "program 'p', team 1, step 1.2: us is -5: write a time above 0, up to 1000000 s"
        );
        let parallel = vec![region("r", vec![compute()])];
        let teams = vec![
            Team::new(4, parallel.clone()),
            Team::new(4, vec![compute()]),
            Team::new(2, parallel),
        ];
        let two = message(code_of(vec![Program::new("p", teams)]));
        assert!(two.contains("team 3: has parallel regions, and so has team 1"), "{two}");
        let claims = vec![Step::Invade { min: 1, max: 4 }, region("r", vec![compute()])];
        let mut bound = Program::new("p", vec![Team::new(4, claims)]);
        bound.cpus = Some("0".parse().unwrap());
        let bound = message(code_of(vec![bound]));
        assert!(bound.contains("cpus or set fixes where the program runs"), "{bound}");
    }

    #[test]
    fn invalid_steps_are_rejected() {
        let endless = || repeat(None, false, vec![compute()]);
        let barrier = || Step::Barrier("b".into());
        for (steps, part) in [
            (vec![lock("a", vec![lock("a", vec![compute()])])], "while it is held"),
            (vec![lock("a", vec![barrier()])], "within lock 'a'"),
            (vec![Step::Pop("q".into())], "no thread pushes into queue 'q'"),
            (vec![Step::Push("q".into())], "no thread pops from queue 'q'"),
            (vec![Step::Wait("c".into())], "no thread signals condition 'c'"),
            (vec![endless()], "never ends; write how long"),
            (vec![repeat(None, false, vec![Step::Beat])], "take no time"),
            (vec![endless(), compute()], "never reached"),
            (vec![repeat(None, true, vec![compute()])], "times = 100"),
            (vec![region("r", vec![barrier()])], "begin another region"),
            (vec![region("r", vec![endless()])], "never ends"),
            (vec![lock("a", vec![region("r", vec![])])], "within lock 'a'"),
            (vec![region("r", vec![region("s", vec![])])], "region 's' within another"),
            (
                vec![Step::Push("q".into()), region("r", vec![Step::Pop("q".into())])],
                "pop before it",
            ),
            (vec![Step::Invade { min: 1, max: 4 }], "for a team with parallel regions"),
            (vec![region("r", vec![Step::Retreat(0)])], "does not change within a parallel region"),
            (
                vec![Step::Invade { min: 5, max: 4 }, region("r", vec![compute()])],
                "a claim of 5 to 4 CPUs is invalid",
            ),
            (vec![Work { memory: 1.5, ..Work::us(1.0) }.into()], "memory is 1.5"),
        ] {
            let message = message(code(steps));
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}
