//! Builder of lines and tasks from code.

use std::future::Future;
use std::sync::Arc;

use corebeat_lpel::{Error, Priority, Reader, Task, Writer, stream};

use super::choose::ChooseCode;
use super::code::{Code, SplitCode, StarCode};
use super::collector::{collect, collect_choice, collect_ordered, collect_stages};
use super::context::Context;
use super::entity;
use super::feedback::feed_back;
use super::fork::Fork;
use super::function::{BoxCode, Caller, Deferred, call_each};
use super::line::{End, Line};
use super::message::Message;
use super::split::{Collector, Spread};
use super::star::Stage;
use super::step::{self, Back};
use super::watch::Position;

/// Steps that one task applies to a record. A longer chain continues in another task.
const STEPS_MAX: usize = 64;

/// Builder of lines and tasks. Used inside a task of the network.
pub(crate) struct Builder<'a> {
    pub(crate) context: &'a Arc<Context>,
    /// Worker for the tasks, modulo the number of workers, if the program places them.
    pub(crate) place: Option<usize>,
    /// Whether the task of a box is created with its first record (see [`Deferred`]). This applies
    /// to replicas of splits, so that they spread over the workers. In a star, a task that is
    /// created late would let later records overtake.
    pub(crate) deferred: bool,
}

impl Builder<'_> {
    /// Builds the line of this code, followed by `next`.
    pub(crate) fn line(&self, part: &Code, next: Line) -> Result<Line, Error> {
        let code = part;
        if code.inline() {
            let steps = step::steps(code, self.context);
            if next.len() + steps.len() <= STEPS_MAX || next.len() == 0 {
                return Ok(next.after(steps));
            }
            return Ok(self.cut(next)?.after(steps));
        }
        match code {
            Code::Serial(parts) => {
                let (mut line, mut rest) = (next, &parts[..]);
                while let Some((last, before)) = rest.split_last() {
                    let start = self.chain(rest);
                    if start < before.len() {
                        line = self.parts(&rest[start..], line)?;
                        rest = &rest[..start];
                    } else {
                        line = self.line(last, line)?;
                        rest = before;
                    }
                }
                Ok(line)
            }
            Code::Box(code) => self.function(code, next),
            Code::Choose(code) => {
                let (mut lines, mut ends) = (Vec::new(), Vec::new());
                for branch in &code.branches {
                    let (line, end) = self.context.stream();
                    lines.push(self.line(branch, End::Stream(line).into())?);
                    ends.push(end);
                }
                self.fork(code, lines, ends, next)
            }
            Code::Star(code) => self.star(code, next),
            Code::Split(code) => self.split(code, next),
            Code::Feedback(code) => {
                let number = self.context.loop_number();
                // A box can output many records for one, so the loop needs a stream without bound.
                let (back, again) = self.context.growing_stream();
                let line = self.line(
                    &code.operand,
                    next.after(vec![Back::step(code.clone(), number, back)]),
                )?;
                self.feedback(number, line, again)
            }
            Code::Place(code) => match &self.context.node {
                None => {
                    Builder { place: Some(code.place as usize), ..*self }.line(&code.operand, next)
                }
                Some(node) if node.other(code.place).is_some() => {
                    self.parts(std::slice::from_ref(part), next)
                }
                Some(_) => Builder { place: None, ..*self }.line(&code.operand, next),
            },
            Code::Net(name, inner) => {
                let next = next.after(self.context.watch(name, Position::After));
                Ok(self.line(inner, next)?.after(self.context.watch(name, Position::Before)))
            }
            Code::Identity | Code::Filter(_) | Code::Sync(_) => unreachable!("these are inline"),
        }
    }

    /// Returns the rank and the number of a part on another rank.
    fn elsewhere(&self, code: &Code) -> Option<(u32, u32)> {
        match code {
            Code::Place(code) if !code.operand.inline() => {
                Some((self.context.node.as_ref()?.other(code.place)?, code.part))
            }
            _ => None,
        }
    }

    /// Returns the start of the longest chain at the end of these parts, all on other ranks.
    fn chain(&self, parts: &[Code]) -> usize {
        parts.iter().rposition(|part| self.elsewhere(part).is_none()).map_or(0, |at| at + 1)
    }

    /// Builds the line of parts on other ranks.
    fn parts(&self, parts: &[Code], next: Line) -> Result<Line, Error> {
        let Some(node) = &self.context.node else { unreachable!("only ranks have other ranks") };
        let parts: Vec<(u32, u32)> = parts.iter().filter_map(|p| self.elsewhere(p)).collect();
        self.away(node, &parts, next)
    }

    // The functions below create tasks. They are separate from the recursive `line`, because the
    // futures of tasks need much stack.

    fn function(&self, code: &Arc<BoxCode>, next: Line) -> Result<Line, Error> {
        let next = next.after(self.context.watch(&code.name, Position::After));
        let line: Line = if !self.deferred || code.plan.input.is_none() {
            End::Stream(self.call(code, next)?).into()
        } else {
            End::Deferred(Box::new(Deferred::new(code.clone(), next, self.place))).into()
        };
        Ok(line.after(self.context.watch(&code.name, Position::Before)))
    }

    /// Creates the task of a box. Returns its input stream.
    #[inline(never)]
    pub(crate) fn call(&self, code: &Arc<BoxCode>, next: Line) -> Result<Writer<Message>, Error> {
        let (line, input) = self.context.stream();
        let calls = call_each(input, Caller::new(code.clone()), next, self.context.clone());
        self.task(code.name.clone(), true, calls)?;
        Ok(line)
    }

    #[inline(never)]
    fn fork(
        &self,
        code: &Arc<ChooseCode>,
        lines: Vec<Line>,
        ends: Vec<Reader<Message>>,
        next: Line,
    ) -> Result<Line, Error> {
        let context = self.context.clone();
        let order = if code.deterministic() {
            let (order, ordered) = stream(self.context.capacity);
            self.task("<collector>", false, collect_ordered(ordered, ends, next, context))?;
            Some(order)
        } else {
            self.task(
                "<collector>",
                false,
                collect_choice(code.clone(), ends, next, self.place, context),
            )?;
            None
        };
        Ok(End::Fork(Box::new(Fork::new(code.clone(), lines, order))).into())
    }

    #[inline(never)]
    fn star(&self, code: &Arc<StarCode>, next: Line) -> Result<Line, Error> {
        let (stage, collected) = Stage::first(code.clone(), self.place, self.context);
        let context = self.context.clone();
        if code.deterministic {
            self.task("<collector>", false, collect_stages(collected, next, context))?;
        } else {
            self.task("<collector>", false, collect(vec![collected], next, context))?;
        }
        Ok(End::Stage(Box::new(stage)).into())
    }

    #[inline(never)]
    fn split(&self, code: &Arc<SplitCode>, next: Line) -> Result<Line, Error> {
        let context = self.context.clone();
        let to = if code.deterministic {
            let (order, ordered) = stream(self.context.capacity);
            self.task("<collector>", false, collect_ordered(ordered, Vec::new(), next, context))?;
            Collector::Ordered(order, Vec::new(), 0)
        } else {
            let (collector, ends) = self.context.stream();
            self.task("<collector>", false, collect(vec![ends], next, context))?;
            Collector::Any(collector)
        };
        Ok(End::Spread(Box::new(Spread::new(code.clone(), to, self.place))).into())
    }

    #[inline(never)]
    fn feedback(&self, number: u64, line: Line, again: Reader<Message>) -> Result<Line, Error> {
        let (out, input) = self.context.stream();
        self.task(
            "<feedback>",
            false,
            feed_back(input, again, number, line, self.context.clone()),
        )?;
        Ok(End::Stream(out).into())
    }

    /// Moves a chain of steps that is too long for one task into a new task.
    #[inline(never)]
    fn cut(&self, next: Line) -> Result<Line, Error> {
        let (line, input) = self.context.stream();
        self.task("<filter>", false, collect(vec![input], next, self.context.clone()))?;
        Ok(End::Stream(line).into())
    }

    pub(crate) fn task(
        &self,
        name: impl Into<Arc<str>>,
        is_box: bool,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let mut task = Task::new();
        // Idle workers may steal the tasks of boxes. Tasks with a priority are not stolen, so cheap
        // entities stay on the worker of their neighbours.
        match (is_box, self.context.boxes_last) {
            (true, true) => task = task.priority(Priority::LOW),
            (true, false) => {}
            (false, true) => task = task.priority(Priority::HIGH),
            (false, false) => task = task.priority(Priority::NORMAL),
        }
        if let Some(place) = self.place {
            task = task.worker(place % self.context.workers);
        }
        entity::spawn(task, name.into(), self.context.clone(), future)
    }
}
