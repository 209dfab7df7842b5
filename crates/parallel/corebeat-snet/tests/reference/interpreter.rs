//! Interpreter of S-Net by its definition: processes the records one after the other, each to its
//! end.

use std::collections::BTreeMap;

use corebeat_snet::plan::{
    BoxPlan, FeedbackPlan, FilterPlan, Guarded, Net, Node, Source, StarPlan, SyncPlan,
};
use corebeat_snet::{Kind, Label, Record, Shape, Value};

/// Part of the error for records after the last step of a run.
pub(crate) const ENDLESS: &str = "cycle without end";

/// Result of a network and its input.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Output records in order.
    pub(crate) records: Vec<Record>,
    /// One line for each failed record.
    pub(crate) errors: Vec<String>,
    /// Number of records in synchrocells at the end.
    pub(crate) kept: usize,
    /// Number of steps of all records through parts.
    pub(crate) steps: usize,
}

/// Functions of boxes: map the input values of a box, in its order, to variants (from 0) and their
/// values.
pub(crate) type Boxes<'a> = &'a dyn Fn(&BoxPlan, &[Value]) -> Vec<(usize, Vec<Value>)>;

/// Runs the network with these records, at most `steps_max` steps: one record after the other, or,
/// with a seed, in another allowed order, in which all records enter together, and records that can
/// overtake each other are shuffled.
pub(crate) fn interpret(
    net: &Net,
    boxes: Boxes<'_>,
    input: &[Record],
    seed: Option<u64>,
    steps_max: usize,
) -> Outcome {
    let shuffle = seed.map(fastrand::Rng::with_seed);
    let mut run = Run { boxes, shuffle, errors: Vec::new(), steps: 0, steps_max };
    let mut state = State::default();
    let mut records = run.start(net.root(), &mut state);
    let together = if seed.is_some() { input.len().max(1) } else { 1 };
    for entering in input.chunks(together) {
        records.extend(run.process(net.root(), &mut state, entering.to_vec()));
    }
    Outcome { records, errors: run.errors, kept: state.kept(), steps: run.steps }
}

/// State of a part of the network: its cell, if the part is a synchrocell, and the states of its
/// parts by number: the index of the operand, the stage of a star, or the value of a split's tag.
#[derive(Default)]
struct State {
    started: bool,
    cell: Cell,
    parts: BTreeMap<i64, State>,
}

impl State {
    fn part(&mut self, number: i64) -> &mut State {
        self.parts.entry(number).or_default()
    }

    fn kept(&self) -> usize {
        self.cell.held.len() + self.parts.values().map(State::kept).sum::<usize>()
    }
}

/// State of a synchrocell.
#[derive(Default)]
struct Cell {
    fired: bool,
    /// Stored records.
    held: Vec<Record>,
    /// Index of the stored record of each pattern.
    filled: BTreeMap<usize, usize>,
}

struct Run<'a> {
    boxes: Boxes<'a>,
    shuffle: Option<fastrand::Rng>,
    errors: Vec<String>,
    steps: usize,
    steps_max: usize,
}

impl Run<'_> {
    /// Calls the initialisers of a new part. Returns the output of the part.
    fn start(&mut self, node: &Node, state: &mut State) -> Vec<Record> {
        state.started = true;
        match node {
            Node::Box(plan) if plan.input.is_none() => {
                self.call(plan, &Record::new(Shape::empty(), Vec::new()))
            }
            Node::Serial(parts) => {
                let mut flow = Vec::new();
                for (i, part) in parts.iter().enumerate() {
                    let state = state.part(i as i64);
                    let mut own = self.start(part, state);
                    own.extend(self.process(part, state, flow));
                    flow = own;
                }
                flow
            }
            Node::Parallel(plan) => {
                let branches = plan.branches.iter().enumerate();
                branches
                    .flat_map(|(i, branch)| self.start(&branch.node, state.part(i as i64)))
                    .collect()
            }
            Node::Place(operand, _) | Node::Net(_, operand) => self.start(operand, state.part(0)),
            Node::Feedback(plan) => {
                let flow = self.start(&plan.operand, state.part(0));
                self.feed(plan, state, flow)
            }
            // A record creates a replica.
            Node::Star(_) | Node::Split(_) => Vec::new(),
            Node::Box(_) | Node::Identity | Node::Filter(_) | Node::Sync(_) => Vec::new(),
        }
    }

    /// Returns the output of a part for these records in this order.
    fn process(&mut self, node: &Node, state: &mut State, records: Vec<Record>) -> Vec<Record> {
        self.steps += records.len();
        if self.steps > self.steps_max {
            self.errors.push(format!("{} records {ENDLESS}", records.len()));
            return Vec::new();
        }
        match node {
            Node::Identity => records,
            Node::Box(plan) if plan.input.is_none() => records,
            Node::Box(plan) => records.iter().flat_map(|record| self.call(plan, record)).collect(),
            Node::Filter(plan) => {
                records.iter().flat_map(|record| self.filter(plan, record)).collect()
            }
            Node::Sync(plan) => records
                .into_iter()
                .filter_map(|r| self.synchronise(plan, &mut state.cell, r))
                .collect(),
            Node::Serial(parts) => {
                let mut flow = records;
                for (i, part) in parts.iter().enumerate() {
                    flow = self.process(part, state.part(i as i64), flow);
                }
                flow
            }
            Node::Place(operand, _) | Node::Net(_, operand) => {
                self.process(operand, state.part(0), records)
            }
            Node::Parallel(plan) => {
                let way = |record: &Record| {
                    let branch = plan.branch(record.shape());
                    branch.map(|i| i as i64).ok_or_else(|| "no branch takes it".to_string())
                };
                let operand = |i: i64| &plan.branches[i as usize].node;
                // Branches exist from the start.
                self.part_ways(plan.deterministic, way, operand, state, records, false)
            }
            Node::Split(plan) => {
                let way = |record: &Record| {
                    record
                        .tag(plan.tag)
                        .map(i64::from)
                        .ok_or_else(|| format!("the record has no {}", plan.tag))
                };
                self.part_ways(plan.deterministic, way, |_| &plan.operand, state, records, true)
            }
            // The outputs of one record stay together.
            Node::Star(plan) if plan.deterministic => records
                .into_iter()
                .flat_map(|record| self.star(plan, state, vec![record]))
                .collect(),
            Node::Star(plan) => {
                let out = self.star(plan, state, records);
                self.shuffled(out)
            }
            Node::Feedback(plan) => {
                let out = self.process(&plan.operand, state.part(0), records);
                let out = self.feed(plan, state, out);
                self.shuffled(out)
            }
        }
    }

    /// Routes each record to one of several parts.
    fn part_ways<'n>(
        &mut self,
        deterministic: bool,
        way: impl Fn(&Record) -> Result<i64, String>,
        operand: impl Fn(i64) -> &'n Node,
        state: &mut State,
        records: Vec<Record>,
        replicated: bool,
    ) -> Vec<Record> {
        let mut out = Vec::new();
        let mut late: BTreeMap<i64, Vec<Record>> = BTreeMap::new();
        for record in records {
            let number = match way(&record) {
                Ok(number) => number,
                Err(reason) => {
                    self.errors.push(format!("{record:?}: {reason}"));
                    continue;
                }
            };
            let part = state.part(number);
            if replicated && !part.started {
                out.extend(self.start(operand(number), part));
            }
            if deterministic || self.shuffle.is_none() {
                out.extend(self.process(operand(number), part, vec![record]));
            } else {
                late.entry(number).or_default().push(record);
            }
        }
        for (number, records) in late {
            out.extend(self.process(operand(number), state.part(number), records));
        }
        if deterministic { out } else { self.shuffled(out) }
    }

    /// Processes stage by stage: records that match an exit leave, the others pass through the
    /// operand of the stage.
    fn star(&mut self, plan: &StarPlan, state: &mut State, records: Vec<Record>) -> Vec<Record> {
        let mut out = Vec::new();
        let mut here = records;
        for stage in 0.. {
            let mut further = Vec::new();
            for record in here {
                match self.fits_any(&plan.exits, &record) {
                    Some(true) => out.push(record),
                    Some(false) => further.push(record),
                    None => {}
                }
            }
            if further.is_empty() {
                break;
            }
            if self.steps > self.steps_max {
                // Initialisers of further replicas could output records without end.
                self.errors.push(format!("{} records {ENDLESS}", further.len()));
                break;
            }
            let replica = state.part(stage);
            here = if replica.started { Vec::new() } else { self.start(&plan.operand, replica) };
            here.extend(self.process(&plan.operand, replica, further));
        }
        out
    }

    /// Outputs of a feedback's operand enter again or leave.
    fn feed(
        &mut self,
        plan: &FeedbackPlan,
        state: &mut State,
        records: Vec<Record>,
    ) -> Vec<Record> {
        let mut out = Vec::new();
        let mut here = records;
        while !here.is_empty() {
            let mut again = Vec::new();
            for record in here {
                match self.fits_any(&plan.patterns, &record) {
                    Some(true) => again.push(record),
                    Some(false) => out.push(record),
                    None => {}
                }
            }
            here = self.process(&plan.operand, state.part(0), again);
        }
        out
    }

    fn call(&mut self, plan: &BoxPlan, record: &Record) -> Vec<Record> {
        if !record.shape().is_subtype_of(plan.accepts) {
            self.errors.push(format!("{record:?}: box {} takes {}", plan.name, plan.accepts));
            return Vec::new();
        }
        let input = plan.input.as_deref().unwrap_or_default();
        let values: Vec<Value> = input
            .iter()
            .map(|e| record.get(e.label).expect("the record matches").clone())
            .collect();
        let takes = |label| input.iter().any(|e| e.label == label && !e.passes);
        let mut out = Vec::new();
        for (variant, values) in (self.boxes)(plan, &values) {
            match plan.outputs.get(variant) {
                Some(labels) if labels.len() == values.len() => {
                    out.push(inherit(record, takes, labels.iter().copied().zip(values)));
                }
                _ => self.errors.push(format!("box {} output an undeclared variant", plan.name)),
            }
        }
        out
    }

    fn filter(&mut self, plan: &FilterPlan, record: &Record) -> Vec<Record> {
        if !plan.takes(record.shape()) {
            self.errors.push(format!("{record:?}: filter {} takes {}", plan.text, plan.pattern));
            return Vec::new();
        }
        let act = || {
            for (condition, outputs) in &plan.cases {
                if condition.as_ref().map_or(Ok(1), |c| c.value(record))? == 0 {
                    continue;
                }
                let mut out = Vec::new();
                for output in outputs {
                    let mut pairs = Vec::new();
                    for (label, source) in &output.entries {
                        let value = match source {
                            Source::Label(from) => record.get(*from).expect("it is used").clone(),
                            Source::Value(expression) => Value::Tag(expression.value(record)?),
                        };
                        pairs.push((*label, value));
                    }
                    out.push(inherit(record, |label| plan.pattern.contains(label), pairs));
                }
                return Ok(out);
            }
            Ok(Vec::new())
        };
        act().unwrap_or_else(|reason: corebeat_snet::expression::EvaluationError| {
            self.errors.push(format!("{record:?}: filter {}: {reason}", plan.text));
            Vec::new()
        })
    }

    fn synchronise(&mut self, plan: &SyncPlan, cell: &mut Cell, record: Record) -> Option<Record> {
        if cell.fired {
            return Some(record);
        }
        let mut fits = Vec::new();
        for (i, pattern) in plan.patterns.iter().enumerate() {
            if !cell.filled.contains_key(&i)
                && self.fits_any(std::slice::from_ref(pattern), &record)?
            {
                fits.push(i);
            }
        }
        if fits.is_empty() {
            return Some(record);
        }
        cell.filled.extend(fits.iter().map(|i| (*i, cell.held.len())));
        cell.held.push(record);
        if cell.filled.len() < plan.patterns.len() {
            return None;
        }
        let mut pairs: Vec<(Label, Value)> = Vec::new();
        for (i, held) in &cell.filled {
            let labels = plan.patterns[*i].shape;
            let gives =
                cell.held[*held].iter().filter(|(label, _)| *i == 0 || labels.contains(*label));
            pairs.extend(gives.map(|(label, value)| (label, value.clone())));
        }
        *cell = Cell { fired: true, ..Cell::default() };
        Some(record_of(pairs))
    }

    /// Returns `None` after an error. A matching pattern without a condition takes precedence over
    /// conditions.
    fn fits_any(&mut self, patterns: &[Guarded], record: &Record) -> Option<bool> {
        if patterns.iter().any(|p| p.guard.is_none() && record.shape().is_subtype_of(p.shape)) {
            return Some(true);
        }
        for pattern in patterns {
            match pattern.fits(record) {
                Ok(true) => return Some(true),
                Ok(false) => {}
                Err(reason) => {
                    self.errors.push(format!("{record:?}: {pattern}: {reason}"));
                    return None;
                }
            }
        }
        Some(false)
    }

    /// Shuffles records if the run tries orders.
    fn shuffled(&mut self, mut records: Vec<Record>) -> Vec<Record> {
        if let Some(random) = &mut self.shuffle {
            random.shuffle(&mut records);
        }
        records
    }
}

/// A new record with the labels that flow past: labels that are not taken, not present, and not
/// binding tags.
fn inherit(
    from: &Record,
    takes: impl Fn(Label) -> bool,
    pairs: impl IntoIterator<Item = (Label, Value)>,
) -> Record {
    let past = from.iter().filter(|(label, _)| !takes(*label) && label.kind() != Kind::BindingTag);
    let past: Vec<(Label, Value)> = past.map(|(label, value)| (label, value.clone())).collect();
    record_of(past.into_iter().chain(pairs))
}

/// The last value of a label counts.
fn record_of(pairs: impl IntoIterator<Item = (Label, Value)>) -> Record {
    Record::from_pairs(pairs).expect("a test uses few labels")
}
