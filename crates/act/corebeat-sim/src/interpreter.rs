//! The interpreter: executes the operations of a running thread up to one that takes time.

use crate::claim::Claims;
use crate::code::{ObjectId, Op};
use crate::event::Event;
use crate::kernel::Kernel;
use crate::shared_loop::SharedLoop;
use crate::sync::{OP_NS, Outcome, SyncObjects};
use crate::team::ThreadTeam;
use crate::thread::{Activity, Demand, State};

/// How a running thread continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Advance {
    /// The thread needs the CPU.
    Runs,
    /// The thread releases the CPU.
    Waits(State),
    Ends,
}

/// The code of all teams, and the objects that it uses.
pub(crate) struct Interpreter {
    /// By team.
    pub(crate) code: Vec<Vec<Op>>,
    pub(crate) sync: SyncObjects,
    pub(crate) loops: Vec<SharedLoop>,
    /// The thread team of each program that has parallel regions.
    pub(crate) teams: Vec<Option<ThreadTeam>>,
    pub(crate) claims: Claims,
}

/// State of a thread that blocks at an operation.
fn blocked_at(op: Op) -> State {
    if matches!(op, Op::Acquire(_)) { State::Blocked } else { State::Parked }
}

impl Interpreter {
    /// Executes the operations of a CPU's running thread up to one that takes time.
    pub(crate) fn advance(&mut self, kernel: &mut Kernel, c: usize) -> Advance {
        let Some(i) = kernel.cpus[c].current else { return Advance::Ends };
        loop {
            let t = &mut kernel.threads[i];
            let op = self.code[t.team][t.pc];
            match t.activity {
                Activity::Compute(left) if left > 0.0 => return Advance::Runs,
                Activity::Compute(_) => {
                    t.complete();
                    continue;
                }
                Activity::Spin(left) => {
                    if let Op::Acquire(lock) = op
                        && self.sync.acquire_if_free(kernel, i, lock)
                    {
                        continue;
                    }
                    if left > 0 && !self.is_futile(kernel, i, op) {
                        return Advance::Runs;
                    }
                    kernel.threads[i].activity = Activity::Fetch;
                    return Advance::Waits(blocked_at(op));
                }
                Activity::Fetch => {}
            }
            if t.debt() > 0 && !matches!(op, Op::Compute { .. }) {
                return Advance::Runs;
            }
            if let Some(advance) = self.execute(kernel, i, op) {
                return advance;
            }
        }
    }

    /// Whether spinning at this operation is futile.
    fn is_futile(&self, kernel: &Kernel, i: usize, op: Op) -> bool {
        matches!(op, Op::Acquire(lock) if self.sync.is_futile(kernel, i, lock))
    }

    /// Executes an operation. Returns `None` if the thread continues with the next one at once.
    fn execute(&mut self, kernel: &mut Kernel, i: usize, op: Op) -> Option<Advance> {
        let t = &mut kernel.threads[i];
        let program = t.program;
        match op {
            Op::Compute { ns, jitter, memory, shared, system, split } => {
                let team = self.teams[program].as_ref().filter(|_| split);
                let parts = team.map_or(1, ThreadTeam::size);
                let work = kernel.random.around(ns / f64::from(parts), jitter);
                let t = &mut kernel.threads[i];
                t.demand = Demand { memory, shared, system };
                t.activity = Activity::Compute(work);
                return Some(Advance::Runs);
            }
            Op::Io { ns, jitter, bytes } => {
                let wait_ns = kernel.random.around(ns, jitter) as u64;
                let process = &mut kernel.programs[program];
                process.io_bytes = process.io_bytes.saturating_add(bytes);
                kernel.threads[i].complete();
                kernel.events.post_in(wait_ns, Event::Wake(i));
                return Some(Advance::Waits(State::Asleep));
            }
            Op::Beat => {
                t.owe(OP_NS);
                kernel.programs[program].progress.beat(kernel.events.now());
            }
            Op::Phase(phase) => kernel.programs[program].begin_phase(phase, kernel.events.now()),
            Op::Invade(min, max) => {
                t.owe(OP_NS);
                t.debt_system += kernel.hardware.wake_ns;
                self.claims.invade(kernel, program, min, max);
            }
            Op::Retreat(keep) => {
                t.owe(OP_NS);
                t.debt_system += kernel.hardware.wake_ns;
                self.retreat(kernel, program, keep);
            }
            Op::Enter(_) | Op::Next(_) | Op::Begin(_) | Op::Take(..) | Op::Jump(_) => {
                return self.branch(kernel, i, op);
            }
            Op::End => return Some(Advance::Ends),
            _ => return self.synchronise(kernel, i, op),
        }
        kernel.threads[i].complete();
        None
    }

    /// Executes an operation on a synchronisation object or a team.
    fn synchronise(&mut self, kernel: &mut Kernel, i: usize, op: Op) -> Option<Advance> {
        let (sync, program) = (&mut self.sync, kernel.threads[i].program);
        let outcome = match op {
            Op::Acquire(lock) => sync.acquire(kernel, i, lock),
            Op::Release(lock) => {
                sync.release(kernel, i, lock);
                Outcome::Done
            }
            Op::Arrive(barrier, lock) => sync.arrive(kernel, i, (barrier, lock)),
            Op::Wait(condition) => sync.wait_for_signal(kernel, i, condition),
            Op::Signal(condition) => {
                sync.signal(kernel, i, condition);
                Outcome::Done
            }
            Op::Broadcast(condition) => {
                sync.broadcast(kernel, i, condition);
                Outcome::Done
            }
            Op::Push(queue) => sync.push(kernel, i, queue),
            Op::Pop(queue) => sync.pop(kernel, i, queue),
            Op::Fork => {
                if let Some(team) = &mut self.teams[program] {
                    let claimed = self.claims.apply(kernel, program, team.threads());
                    team.fork(kernel, sync, &mut self.loops, i, claimed);
                }
                Outcome::Done
            }
            Op::Join(region) => match &mut self.teams[program] {
                Some(team) => team.join(kernel, sync, i, region),
                None => Outcome::Done,
            },
            _ => Outcome::Done,
        };
        match outcome {
            Outcome::Done => {
                kernel.threads[i].complete();
                None
            }
            Outcome::Spins => None,
            Outcome::Blocks => Some(Advance::Waits(blocked_at(op))),
            Outcome::Ends => Some(Advance::Ends),
        }
    }

    /// Executes an operation of a loop.
    fn branch(&mut self, kernel: &mut Kernel, i: usize, op: Op) -> Option<Advance> {
        let t = &mut kernel.threads[i];
        let next = t.pc + 1;
        t.pc = match op {
            Op::Enter(times) => {
                t.loops.push(times);
                next
            }
            Op::Next(begin) => {
                let left = t.loops.last_mut().map_or(0, |left| {
                    *left -= 1;
                    *left
                });
                if left > 0 {
                    begin
                } else {
                    t.loops.pop();
                    next
                }
            }
            Op::Begin(shared) => {
                self.loops[shared].begin(t.member);
                next
            }
            Op::Take(shared, after) => {
                t.owe(OP_NS);
                if self.loops[shared].take(t.member) { next } else { after }
            }
            Op::Jump(to) => to,
            _ => next,
        };
        None
    }

    /// A program releases all but `keep` of its claimed CPUs.
    pub(crate) fn retreat(&mut self, kernel: &mut Kernel, program: usize, keep: u32) {
        let team = self.teams[program].as_ref().map(ThreadTeam::threads);
        self.claims.retreat(kernel, program, keep, team);
    }

    /// Starts a program's threads. The others of a thread team wait for the first fork.
    pub(crate) fn start(&mut self, kernel: &mut Kernel, program: usize) {
        let team = self.teams[program].as_ref();
        for i in kernel.programs[program].threads.clone() {
            let now = kernel.now();
            let thread = &mut kernel.threads[i];
            (thread.started, thread.since) = (now, now);
            match team.filter(|team| team.starts_waiting(i)) {
                Some(team) => team.wait_first(kernel, &mut self.sync, i),
                None => kernel.start_thread(i),
            }
        }
    }

    /// Removes an ended thread from the producers of its queues. With the first thread of a team,
    /// the others end, too.
    pub(crate) fn end_thread(&mut self, kernel: &mut Kernel, i: usize) {
        let (program, team) = (kernel.threads[i].program, kernel.threads[i].team);
        let push = |op: &Op| if let Op::Push(queue) = op { Some(*queue) } else { None };
        let mut queues: Vec<ObjectId> = self.code[team].iter().filter_map(push).collect();
        queues.sort_unstable();
        queues.dedup();
        for queue in queues {
            self.sync.remove_producer(kernel, queue);
        }
        let team_of = self.teams[program].as_ref().filter(|team| team.threads().start == i);
        if let Some(thread_team) = team_of {
            thread_team.dismiss(kernel, &mut self.sync, self.code[team].len() - 1);
        }
    }
}
