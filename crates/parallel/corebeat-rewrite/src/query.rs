//! Queries: rules that return results.

use crate::error::Error;
use crate::expression::{Expression, Fault, Results};
use crate::graph::Graph;
use crate::log::evaluation;
use crate::matcher::{Ends, Matcher};
use crate::parallel::{self, Starts, on_tasks};
use crate::plan::Plan;
use crate::rule::{AggregateOf, Binding, ELEMENTS_MAX, NONE, Output, Rule};
use crate::run::{Options, is_stopped};
use crate::store::Store;
use crate::syntax::Aggregate;
use crate::value::{Scalar, Value};
use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The results of a query. A node or an edge is its number.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows. Without `ORDER BY`, their order is that of the starts of the search, whatever the
    /// number of threads.
    pub rows: Vec<Vec<Value>>,
}

/// The order in which rows are found by one thread: the portion of starts, and a counter.
type Position = (u32, u32);
/// A value that can be compared for equality.
type KeyPart = (u8, u64);

/// Data that the tasks share.
struct Shared {
    store: Store,
    rule: Rule,
    plan: Plan,
    starts: Starts,
    options: Options,
}

/// Rows or groups that a task has found.
#[derive(Default)]
struct Found {
    rows: Vec<(Position, Box<[u32]>)>,
    groups: HashMap<Vec<KeyPart>, Group>,
    /// The only group of a query without keys.
    whole: Option<Group>,
    fault: Option<Fault>,
}

struct Group {
    first: Position,
    /// The first match of the group.
    elements: Box<[u32]>,
    aggregates: Vec<Accumulator>,
}

#[derive(Default, Clone)]
struct Accumulator {
    count: u64,
    int: i128,
    float: f64,
    has_float: bool,
    least: Option<Scalar>,
    greatest: Option<Scalar>,
    /// Values that are collected, or whose distinct ones are aggregated at the end.
    values: Vec<(Position, Scalar)>,
    seen: HashSet<KeyPart>,
}

/// Evaluates a query. Only [`Options::threads`], [`Options::seed`], [`Options::force_tasks`],
/// [`Options::stop`] and [`Options::progress`] have an effect. The graph does not change; it is
/// borrowed exclusively because the tasks share it.
///
/// # Errors
/// [`Error::Evaluate`] if an expression has no value, [`Error::Rule`] if the rule returns nothing,
/// and [`Error::Parallel`].
pub fn query(graph: &mut Graph, rule: &Rule, options: &Options) -> Result<Table, Error> {
    graph.store.fit_to_schema();
    let Some(output) = &rule.output else {
        let why = "the rule has no RETURN, so it is no query; apply it as a rule".to_owned();
        return Err(Error::Rule { rule: rule.name.clone(), why });
    };
    let is_parallel = options.threads > 1 || options.seed.is_some() || options.force_tasks;
    let runtime = if is_parallel { Some(parallel::runtime(options)?) } else { None };
    let plan = Plan::new(graph, rule);
    let starts = Starts::new(&graph.store, plan.start_types(), options.threads.max(1));
    let store = std::mem::take(&mut graph.store);
    let (rule, options) = (rule.clone(), options.clone());
    let shared = Arc::new(Shared { store, rule, plan, starts, options });
    let results = on_tasks(runtime.as_ref(), shared.options.threads, &shared, find);
    let shared = Arc::into_inner(shared).expect("the tasks have ended");
    let matcher = Matcher::new(&shared.store, &shared.rule, &shared.plan);
    let table = results
        .into_iter()
        .collect::<Result<Vec<Found>, String>>()
        .map_err(|why| Error::Parallel { why })
        .and_then(|found| {
            finish(&matcher, output, found).map_err(|fault| evaluation(&shared.rule, fault))
        });
    graph.store = shared.store;
    table
}

/// Describes the plan of a rule: a line for each step, with the expected number of partial matches
/// after the step and the actual one. All matches are counted; the graph does not change.
///
/// # Errors
/// [`Error::Evaluate`] if a condition has no value.
pub fn explain(graph: &mut Graph, rule: &Rule) -> Result<String, Error> {
    graph.store.fit_to_schema();
    let plan = Plan::new(graph, rule);
    let matcher = Matcher::new(&graph.store, rule, &plan).counting();
    let mut matches = 0_u64;
    let _ = matcher.search(&mut |_| {
        matches += 1;
        ControlFlow::Continue(())
    });
    if let Some(fault) = matcher.take_fault() {
        return Err(evaluation(rule, fault));
    }
    Ok(rule.describe(&plan, graph, &matcher.counts()) + &format!("{matches} matches\n"))
}

/// The body of a task.
fn find(shared: &Shared) -> Found {
    let filters = Ends::of(&shared.plan);
    let matcher = Matcher::new(&shared.store, &shared.rule, &shared.plan).filtered(&filters);
    let mut found = Found::default();
    let Some(output) = &shared.rule.output else { return found };
    let (mut position, matches) = ((0, 0), Cell::new(0));
    let mut add = |matcher: &Matcher, portion: u32, binding: &mut Binding| {
        position = (portion, if position.0 == portion { position.1 + 1 } else { 0 });
        matches.update(|matches| matches + 1);
        match found.add(matcher, output, position, binding) {
            Ok(()) => ControlFlow::Continue(()),
            Err(fault) => {
                found.fault = Some(fault);
                ControlFlow::Break(())
            }
        }
    };
    if !shared.rule.has_pattern() {
        if shared.starts.take_once() {
            let _ = matcher.search(&mut |binding| add(&matcher, 0, binding));
        }
    } else {
        'all: while let Some(portion) = shared.starts.take() {
            let first = portion.start;
            for start in portion.filter_map(|index| shared.starts.node(&shared.store, index)) {
                if matcher.search_at(start, &mut |b| add(&matcher, first, b)).is_break() {
                    break 'all;
                }
            }
            if let Some(progress) = &shared.options.progress {
                progress.add_matches(matches.take());
            }
            if is_stopped(&shared.options) {
                break;
            }
        }
    }
    found.fault = found.fault.or(matcher.take_fault());
    found
}

impl Found {
    fn add(
        &mut self,
        matcher: &Matcher,
        output: &Output,
        position: Position,
        binding: &mut Binding,
    ) -> Result<(), Fault> {
        let slots = matcher.rule.slots.len();
        if output.aggregates.is_empty() {
            self.rows.push((position, binding[..slots].into()));
            return Ok(());
        }
        let new = |elements: &[u32]| Group {
            first: position,
            elements: elements.into(),
            aggregates: vec![Accumulator::default(); output.aggregates.len()],
        };
        let group = if output.keys.is_empty() {
            self.whole.get_or_insert_with(|| new(&binding[..slots]))
        } else {
            let mut key = Vec::with_capacity(output.keys.len());
            for index in &output.keys {
                let results = Results { aggregates: &[] };
                let value = matcher.evaluate(&output.items[*index].0, binding, &results)?;
                key.push(value.encode());
            }
            self.groups.entry(key).or_insert_with(|| new(&binding[..slots]))
        };
        for (accumulator, aggregate) in group.aggregates.iter_mut().zip(&output.aggregates) {
            let value = match &aggregate.of {
                Some(of) => matcher.evaluate(of, binding, &Results { aggregates: &[] })?,
                None => Scalar::Bool(true),
            };
            accumulator.add(matcher, aggregate, position, value)?;
        }
        Ok(())
    }
}

impl Accumulator {
    fn add(
        &mut self,
        matcher: &Matcher,
        of: &AggregateOf,
        position: Position,
        value: Scalar,
    ) -> Result<(), Fault> {
        if value == Scalar::Null {
            return Ok(());
        }
        match of.distinct {
            true => {
                if self.seen.insert(value.encode()) {
                    self.values.push((position, value));
                }
                Ok(())
            }
            false => self.fold(matcher, of.function, position, value),
        }
    }

    fn fold(
        &mut self,
        matcher: &Matcher,
        function: Aggregate,
        position: Position,
        value: Scalar,
    ) -> Result<(), Fault> {
        self.count += 1;
        match (function, value) {
            (Aggregate::Count, _) => {}
            (Aggregate::Collect, _) => self.values.push((position, value)),
            (Aggregate::Least, _) => keep(matcher, &mut self.least, value, Ordering::Less),
            (Aggregate::Greatest, _) => keep(matcher, &mut self.greatest, value, Ordering::Greater),
            (_, Scalar::Int(value)) => self.int += i128::from(value),
            (_, Scalar::Float(value)) => (self.float, self.has_float) = (self.float + value, true),
            _ => return Err("sum and avg require numbers".into()),
        }
        Ok(())
    }

    fn merge(&mut self, matcher: &Matcher, other: Accumulator) {
        self.count += other.count;
        self.int += other.int;
        self.float += other.float;
        self.has_float |= other.has_float;
        if let Some(value) = other.least {
            keep(matcher, &mut self.least, value, Ordering::Less);
        }
        if let Some(value) = other.greatest {
            keep(matcher, &mut self.greatest, value, Ordering::Greater);
        }
        self.values.extend(other.values);
    }

    fn finish(mut self, matcher: &Matcher, of: &AggregateOf) -> Result<Scalar, Fault> {
        self.values.sort_unstable_by_key(|(position, _)| *position);
        if of.distinct {
            let mut seen = HashSet::new();
            for (position, value) in std::mem::take(&mut self.values) {
                if seen.insert(value.encode()) {
                    self.fold(matcher, of.function, position, value)?;
                }
            }
        }
        let total = self.int as f64 + self.float;
        Ok(match of.function {
            Aggregate::Count => Scalar::Int(self.count as i64),
            Aggregate::Sum if self.has_float => Scalar::Float(total),
            Aggregate::Sum => {
                Scalar::Int(i64::try_from(self.int).map_err(|_| "the sum is too large")?)
            }
            Aggregate::Average if self.count == 0 => Scalar::Null,
            Aggregate::Average => Scalar::Float(total / self.count as f64),
            Aggregate::Least => self.least.unwrap_or_default(),
            Aggregate::Greatest => self.greatest.unwrap_or_default(),
            Aggregate::Collect => {
                let values: Vec<Scalar> = self.values.iter().map(|(_, value)| *value).collect();
                matcher.store.literals.list(&values)
            }
        })
    }
}

fn keep(matcher: &Matcher, kept: &mut Option<Scalar>, value: Scalar, better: Ordering) {
    let literals = &matcher.store.literals;
    let is_better =
        kept.is_none_or(|kept| literals.decode(value).order(&literals.decode(kept)) == better);
    if is_better {
        *kept = Some(value);
    }
}

/// A row with the values by which rows are ordered.
struct Row {
    values: Vec<Value>,
    order: Vec<Value>,
}

/// Combines what the tasks found, and orders the rows.
fn finish(matcher: &Matcher, output: &Output, found: Vec<Found>) -> Result<Table, Fault> {
    let (mut plain, mut groups) = (Vec::new(), HashMap::<Vec<KeyPart>, Group>::new());
    for mut found in found {
        if let Some(fault) = found.fault {
            return Err(fault);
        }
        plain.append(&mut found.rows);
        for (key, group) in found.groups.into_iter().chain(found.whole.map(|w| (Vec::new(), w))) {
            match groups.get_mut(&key) {
                None => drop(groups.insert(key, group)),
                Some(own) => {
                    if group.first < own.first {
                        (own.first, own.elements) = (group.first, group.elements);
                    }
                    let pairs = own.aggregates.iter_mut().zip(group.aggregates);
                    pairs.for_each(|(own, other)| own.merge(matcher, other));
                }
            }
        }
    }
    let mut rows = Vec::new();
    if output.aggregates.is_empty() {
        plain.sort_by_key(|(position, _)| *position);
        for (_, elements) in plain {
            rows.push(row(matcher, output, &elements, &[])?);
        }
    } else {
        if groups.is_empty() && output.keys.is_empty() {
            let aggregates = vec![Accumulator::default(); output.aggregates.len()];
            let elements = Box::default();
            groups.insert(Vec::new(), Group { first: (0, 0), elements, aggregates });
        }
        let mut groups: Vec<Group> = groups.into_values().collect();
        groups.sort_by_key(|group| group.first);
        for group in groups {
            let pairs = group.aggregates.into_iter().zip(&output.aggregates);
            let values = pairs.map(|(own, of)| own.finish(matcher, of));
            let values = values.collect::<Result<Vec<Scalar>, Fault>>()?;
            rows.push(row(matcher, output, &group.elements, &values)?);
        }
    }
    Ok(arrange(output, rows))
}

fn row(
    matcher: &Matcher,
    output: &Output,
    elements: &[u32],
    aggregates: &[Scalar],
) -> Result<Row, Fault> {
    let mut binding = [NONE; ELEMENTS_MAX];
    binding[..elements.len()].copy_from_slice(elements);
    let mut value = |item: &Expression| {
        let value = matcher.evaluate(item, &mut binding, &Results { aggregates })?;
        Ok(matcher.store.literals.decode(value))
    };
    let values = output.items.iter().map(|(item, _)| value(item)).collect::<Result<_, Fault>>()?;
    let order = output.order.iter().map(|(item, _)| value(item)).collect::<Result<_, Fault>>()?;
    Ok(Row { values, order })
}

fn arrange(output: &Output, mut rows: Vec<Row>) -> Table {
    if output.distinct {
        let same = |a: &Row, b: &Row| {
            let pairs = a.values.iter().zip(&b.values);
            pairs
                .into_iter()
                .map(|(a, b)| a.order(b))
                .find(|o| o.is_ne())
                .unwrap_or(Ordering::Equal)
        };
        let mut kept: Vec<usize> = (0..rows.len()).collect();
        kept.sort_by(|a, b| same(&rows[*a], &rows[*b]));
        kept.dedup_by(|later, earlier| same(&rows[*later], &rows[*earlier]).is_eq());
        let kept: HashSet<usize> = kept.into_iter().collect();
        let mut index = 0;
        rows.retain(|_| {
            index += 1;
            kept.contains(&(index - 1))
        });
    }
    rows.sort_by(|a, b| {
        let keys = a.order.iter().zip(&b.order).zip(&output.order);
        let orders =
            keys.map(|((a, b), (_, descending))| if *descending { b.order(a) } else { a.order(b) });
        orders.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    });
    let limit = output.limit.unwrap_or(u64::MAX) as usize;
    let rows = rows.into_iter().skip(output.skip as usize).take(limit);
    Table {
        columns: output.items.iter().map(|(_, name)| name.clone()).collect(),
        rows: rows.map(|row| row.values).collect(),
    }
}
