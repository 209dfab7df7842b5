//! Queries: rules that return results.

use crate::aggregate::{Accumulator, Aggregator, KeyPart};
use crate::diagram::Diagram;
use crate::error::Error;
use crate::expression::{Expression, Fault, Results};
use crate::graph::Graph;
use crate::log::evaluation;
use crate::matcher::{Ends, Matcher};
use crate::parallel::{self, Starts, on_tasks};
use crate::plan::Plan;
use crate::rule::{AggregateOf, Binding, ELEMENTS_MAX, NONE, Output, Rule, Slot};
use crate::run::Options;
use crate::store::Store;
use crate::value::{Scalar, Value};
use corebeat_cypher::syntax::Aggregate;
use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The results of a query. A node or an edge is its number.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows. `ORDER BY` orders them, and then the numbers of the elements of their matches: as
    /// the rule names these, but an edge after both of its nodes; a group is at the place of its
    /// first match. So the order depends neither on the plan nor on the number of threads.
    pub rows: Vec<Vec<Value>>,
}

/// Data that the tasks share.
struct Shared {
    store: Store,
    rule: Rule,
    plan: Plan,
    starts: Starts,
    options: Options,
}

/// Matches or groups of matches.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) matches: Vec<Elements>,
    groups: HashMap<GroupKey, Group>,
    /// The only group of a query without keys.
    whole: Option<Group>,
    fault: Option<Fault>,
    /// Number of matches that were only counted: those of a query for which
    /// [`Output::counts_matches`].
    counted: u64,
    /// Number of matches that are not reported as progress yet.
    unreported: u64,
    /// Whether the search ended early.
    is_stopped: bool,
}

/// The elements of a match by which rows are ordered: those of [`Projection::slots`].
pub(crate) type Elements = Box<[u32]>;
/// The values by which matches are grouped.
pub(crate) type GroupKey = Vec<KeyPart>;

pub(crate) struct Group {
    /// The first match of the group, in the order of the elements.
    pub(crate) first: Elements,
    pub(crate) aggregates: Vec<Accumulator>,
}

/// A row with its place in the table.
#[derive(Clone)]
pub(crate) struct Row {
    pub(crate) place: Place,
    pub(crate) values: Vec<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    keys: Vec<OrderKey>,
    elements: Elements,
}

/// A value of `ORDER BY`.
#[derive(Debug, Clone)]
struct OrderKey {
    value: Value,
    descending: bool,
}

impl Ord for OrderKey {
    fn cmp(&self, other: &OrderKey) -> Ordering {
        let order = self.value.order(&other.value);
        if self.descending { order.reverse() } else { order }
    }
}
impl PartialOrd for OrderKey {
    fn partial_cmp(&self, other: &OrderKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for OrderKey {
    fn eq(&self, other: &OrderKey) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for OrderKey {}

/// Evaluates a query. Only [`Options::threads`], [`Options::workers`], [`Options::seed`],
/// [`Options::force_tasks`], [`Options::stop`] and [`Options::progress`] have an effect. The graph
/// does not change; it is borrowed exclusively because the tasks share it.
///
/// # Errors
/// [`Error::Evaluate`] if an expression has no value, [`Error::Rule`] if the rule returns nothing,
/// [`Error::Stopped`] if [`Options::stop`] became true before the end, and [`Error::Parallel`].
pub fn query(graph: &mut Graph, rule: &Rule, options: &Options) -> Result<Table, Error> {
    graph.store.fit_to_schema();
    let output = output_of(rule)?;
    let is_parallel = options.threads > 1 || options.seed.is_some() || options.force_tasks;
    let runtime = if is_parallel { Some(parallel::runtime(options)?) } else { None };
    let plan = Plan::new(graph, rule);
    let starts = Starts::new(&graph.store, plan.start_types(), None, options);
    let store = std::mem::take(&mut graph.store);
    let (rule, options) = (rule.clone(), options.clone());
    let shared = Arc::new(Shared { store, rule, plan, starts, options });
    let results = on_tasks(runtime.as_ref(), shared.options.threads, &shared, find);
    let shared = Arc::into_inner(shared).expect("the tasks have ended");
    let matcher =
        Matcher::new(&shared.store, &shared.rule, &shared.plan).until(shared.options.stop_flag());
    let projection = Projection::new(&matcher, output, false);
    let table = results
        .into_iter()
        .collect::<Result<Vec<Found>, String>>()
        .map_err(|why| Error::Parallel { why })
        .and_then(|found| match found.iter().any(|found| found.is_stopped) {
            true => Err(Error::Stopped),
            false => projection.finish(found).map_err(|fault| match matcher.is_stopped() {
                true => Error::Stopped,
                false => evaluation(&shared.rule, fault),
            }),
        });
    graph.store = shared.store;
    table
}

pub(crate) fn output_of(rule: &Rule) -> Result<&Output, Error> {
    rule.output.as_ref().ok_or_else(|| {
        let why = "the rule has no RETURN, so it is no query; apply it as a rule".to_owned();
        Error::Rule { rule: rule.name.clone(), why }
    })
}

/// Describes the plan of a rule: a line for each step, with the expected number of partial matches
/// after the step and the actual one. All matches are counted; the graph does not change.
///
/// # Errors
/// [`Error::Evaluate`] if a condition has no value.
pub fn explain(graph: &mut Graph, rule: &Rule) -> Result<String, Error> {
    explain_drawn(graph, rule, &mut Graph::new())
}

/// Describes the plan of a rule as [`explain`], and adds the plan to a drawing, of which
/// [`write_svg`](crate::write_svg) makes a picture. Each step is a node. The edge to the next step
/// has the expected and the actual number of partial matches.
///
/// # Errors
/// As [`explain`], and [`Error::Full`] if the drawing has too many types.
pub fn explain_drawn(graph: &mut Graph, rule: &Rule, drawing: &mut Graph) -> Result<String, Error> {
    graph.store.fit_to_schema();
    let plan = graph.plan(rule);
    let matcher = Matcher::new(&graph.store, rule, &plan).counting();
    let mut matches = 0_u64;
    let mut count = |_: &mut Binding| {
        matches += 1;
        ControlFlow::Continue(())
    };
    let _ = matcher.search(&mut count);
    if let Some(fault) = matcher.take_fault() {
        return Err(evaluation(rule, fault));
    }
    let actual = &matcher.counts()[..];
    let text = rule.describe(&plan, graph, actual) + &format!("{matches} matches\n");
    Diagram { rule, plan: &plan, graph, actual, matches, drawing }.draw()?;
    Ok(text)
}

/// The body of a task.
fn find(shared: &Shared, task: usize) -> Found {
    let (filters, ends) = (Ends::of(&shared.plan), Cell::new(0));
    let mut found = Found::default();
    let Some(output) = &shared.rule.output else { return found };
    let matcher = Matcher::new(&shared.store, &shared.rule, &shared.plan)
        .filtered(&filters)
        .until(shared.options.stop_flag());
    let matcher = match output.counts_matches(&shared.rule) {
        true => matcher.counting_ends(&ends),
        false => matcher,
    };
    let projection = Projection::new(&matcher, output, false);
    if !shared.rule.has_pattern() {
        if shared.starts.take_once() {
            projection.search(None, &mut found);
        }
        found.is_stopped = shared.options.is_stopped();
        return found;
    }
    while let Some(portion) = shared.starts.take(task) {
        for start in portion.filter_map(|index| shared.starts.node(&shared.store, index)) {
            projection.search(Some(start), &mut found);
            if found.fault.is_some() {
                return found;
            }
        }
        found.count(ends.take());
        let matches = std::mem::take(&mut found.unreported);
        if let Some(progress) = &shared.options.progress {
            progress.add_matches(matches);
        }
        if shared.options.is_stopped() {
            found.is_stopped = true;
            break;
        }
    }
    found
}

/// Collects matches, and computes rows or groups from them.
pub(crate) struct Projection<'a> {
    matcher: &'a Matcher<'a>,
    output: &'a Output,
    aggregator: Aggregator<'a>,
    /// The slots of the elements of a match, in ascending order: those of the insides of `EXISTS`
    /// and of paths have no elements.
    slots: Vec<Slot>,
    /// Whether results depend on the first match of a group.
    reads_first: bool,
}

impl<'a> Projection<'a> {
    /// `can_remove` states whether matches may be removed from groups.
    pub(crate) fn new(matcher: &'a Matcher<'a>, output: &'a Output, can_remove: bool) -> Self {
        let parts = || std::iter::once(&matcher.rule.main).chain(&matcher.rule.optional);
        let nodes = parts().flat_map(|part| &part.nodes).map(|node| node.slot);
        let edges = parts().flat_map(|part| &part.edges).filter(|edge| edge.length.is_none());
        let mut slots: Vec<Slot> = nodes.chain(edges.map(|edge| edge.slot)).collect();
        slots.sort_unstable();
        let order = output.order.iter().map(|(item, _)| item);
        let mut items = output.items.iter().map(|(item, _)| item).chain(order);
        let reads_first = !output.keys.is_empty() || items.any(Expression::reads_elements);
        let aggregator = Aggregator { literals: &matcher.store.literals, can_remove };
        Projection { matcher, output, aggregator, slots, reads_first }
    }

    /// Collects the matches at a start, or those of a rule without a pattern.
    pub(crate) fn search(&self, start: Option<u32>, found: &mut Found) {
        let mut fault = None;
        let mut add = |binding: &mut Binding| match self.add(found, binding) {
            Ok(()) => ControlFlow::Continue(()),
            Err(why) => {
                fault = Some(why);
                ControlFlow::Break(())
            }
        };
        let _ = match start {
            Some(start) => self.matcher.search_at(start, &mut add),
            None => self.matcher.search(&mut add),
        };
        found.fault = fault.filter(|_| !self.matcher.is_stopped()).or(self.matcher.take_fault());
    }

    fn elements(&self, binding: &Binding) -> Elements {
        self.slots.iter().map(|slot| binding[usize::from(*slot)]).collect()
    }

    fn add(&self, found: &mut Found, binding: &mut Binding) -> Result<(), Fault> {
        let output = self.output;
        found.unreported += 1;
        if output.aggregates.is_empty() {
            found.matches.push(self.elements(binding));
            return Ok(());
        }
        let results = Results { aggregates: &[] };
        let new = |binding: &Binding| Group {
            first: self.elements(binding),
            aggregates: self.no_aggregates(),
        };
        let group = if output.keys.is_empty() {
            found.whole.get_or_insert_with(|| new(binding))
        } else {
            let mut key = Vec::with_capacity(output.keys.len());
            for index in &output.keys {
                let value = self.matcher.evaluate(&output.items[*index].0, binding, &results)?;
                key.push(self.matcher.store.literals.normal(value).encode());
            }
            found.groups.entry(key).or_insert_with(|| new(binding))
        };
        if self.reads_first {
            let elements = self.slots.iter().map(|slot| binding[usize::from(*slot)]);
            if elements.clone().lt(group.first.iter().copied()) {
                group.first.iter_mut().zip(elements).for_each(|(own, element)| *own = element);
            }
        }
        for (accumulator, aggregate) in group.aggregates.iter_mut().zip(&output.aggregates) {
            let value = match &aggregate.of {
                Some(of) => self.matcher.evaluate(of, binding, &results)?,
                None => Scalar::Bool(true),
            };
            self.aggregator.add(accumulator, aggregate, value)?;
        }
        Ok(())
    }

    /// Combines what the tasks found.
    fn finish(&self, found: Vec<Found>) -> Result<Table, Fault> {
        let (mut matches, mut groups) = (Vec::new(), HashMap::<GroupKey, Group>::new());
        let mut counted = 0;
        for mut found in found {
            matches.append(&mut found.matches);
            counted += found.counted;
            for (key, group) in found.into_groups()? {
                match groups.get_mut(&key) {
                    None => drop(groups.insert(key, group)),
                    Some(own) => {
                        self.merge(&mut own.aggregates, &group.aggregates);
                        own.first = std::mem::take(&mut own.first).min(group.first);
                    }
                }
            }
        }
        if self.always_has_group() {
            let new = || Group { first: Box::default(), aggregates: self.no_aggregates() };
            let whole = groups.entry(Vec::new()).or_insert_with(new);
            whole.aggregates.iter_mut().for_each(|own| own.count_more(counted));
        }
        let plain = matches.into_iter().map(|elements| self.row(elements, &[]));
        let groups = groups.into_values().map(|own| self.group_row(own.first, &own.aggregates));
        let rows = plain.chain(groups);
        Ok(self.output.arrange(rows.collect::<Result<Vec<Row>, Fault>>()?))
    }

    /// Whether there is a row if nothing matches.
    pub(crate) fn always_has_group(&self) -> bool {
        !self.output.aggregates.is_empty() && self.output.keys.is_empty()
    }

    /// The aggregates of no match.
    pub(crate) fn no_aggregates(&self) -> Vec<Accumulator> {
        vec![Accumulator::default(); self.output.aggregates.len()]
    }

    pub(crate) fn merge(&self, own: &mut [Accumulator], others: &[Accumulator]) {
        let pairs = own.iter_mut().zip(&self.output.aggregates).zip(others);
        pairs.for_each(|((own, of), other)| self.aggregator.merge(own, of, other));
    }

    pub(crate) fn remove(&self, own: &mut [Accumulator], others: &[Accumulator]) {
        own.iter_mut().zip(others).for_each(|(own, other)| self.aggregator.remove(own, other));
    }

    pub(crate) fn group_row(
        &self,
        first: Elements,
        aggregates: &[Accumulator],
    ) -> Result<Row, Fault> {
        let pairs = aggregates.iter().zip(&self.output.aggregates);
        let values = pairs.map(|(own, of)| self.aggregator.result(own, of));
        self.row(first, &values.collect::<Result<Vec<Scalar>, Fault>>()?)
    }

    pub(crate) fn row(&self, elements: Elements, aggregates: &[Scalar]) -> Result<Row, Fault> {
        let mut binding = [NONE; ELEMENTS_MAX];
        for (slot, element) in self.slots.iter().zip(&elements) {
            binding[usize::from(*slot)] = *element;
        }
        let mut value = |item: &Expression| {
            let value = self.matcher.evaluate(item, &mut binding, &Results { aggregates })?;
            Ok(self.matcher.store.literals.decode(value))
        };
        let items = self.output.items.iter();
        let values = items.map(|(item, _)| value(item)).collect::<Result<_, Fault>>()?;
        let keys = self.output.order.iter().map(|(item, descending)| {
            Ok(OrderKey { value: value(item)?, descending: *descending })
        });
        let keys = keys.collect::<Result<_, Fault>>()?;
        Ok(Row { place: Place { keys, elements }, values })
    }
}

impl Found {
    fn count(&mut self, matches: u64) {
        self.counted += matches;
        self.unreported += matches;
    }

    /// The groups of matches.
    ///
    /// # Errors
    /// The fault that ended the search.
    pub(crate) fn into_groups(self) -> Result<impl Iterator<Item = (GroupKey, Group)>, Fault> {
        match self.fault {
            Some(fault) => Err(fault),
            None => {
                let whole = self.whole.map(|whole| (Vec::new(), whole));
                Ok(self.groups.into_iter().chain(whole))
            }
        }
    }
}

impl Output {
    /// Whether all results are the number of matches.
    fn counts_matches(&self, rule: &Rule) -> bool {
        let is_node = |slot: &Slot| rule.main.nodes.iter().any(|node| node.slot == *slot);
        let counts = |aggregate: &AggregateOf| {
            let is_never_null = match &aggregate.of {
                None => true,
                Some(Expression::Element(slot)) => is_node(slot),
                Some(_) => false,
            };
            is_never_null && aggregate.function == Aggregate::Count && !aggregate.distinct
        };
        let order = self.order.iter().map(|(item, _)| item);
        let mut items = self.items.iter().map(|(item, _)| item).chain(order);
        !self.aggregates.is_empty()
            && self.keys.is_empty()
            && rule.optional.is_empty()
            && self.aggregates.iter().all(counts)
            && !items.any(Expression::reads_elements)
    }

    /// The table of rows in any order.
    pub(crate) fn arrange(&self, mut rows: Vec<Row>) -> Table {
        self.keep_distinct(&mut rows);
        rows.sort_unstable_by(|a, b| a.place.cmp(&b.place));
        self.table(rows.into_iter().map(|row| row.values))
    }

    /// Removes rows whose values equal those of a row at an earlier place of the order of elements.
    fn keep_distinct(&self, rows: &mut Vec<Row>) {
        if !self.distinct {
            return;
        }
        let order = |a: &Row, b: &Row| {
            let mut orders = a.values.iter().zip(&b.values).map(|(a, b)| a.order(b));
            orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        };
        rows.sort_unstable_by(|a, b| {
            order(a, b).then_with(|| a.place.elements.cmp(&b.place.elements))
        });
        rows.dedup_by(|later, earlier| order(later, earlier).is_eq());
    }

    /// The table of rows in their order.
    pub(crate) fn table(&self, rows: impl Iterator<Item = Vec<Value>>) -> Table {
        let limit = self.limit.unwrap_or(u64::MAX) as usize;
        Table {
            columns: self.items.iter().map(|(_, name)| name.clone()).collect(),
            rows: rows.skip(self.skip as usize).take(limit).collect(),
        }
    }
}
