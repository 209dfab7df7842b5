//! Queries that are kept up to date under changes.
//!
//! ```text
//!   changes of the graph --> starts of the search that the changes can affect
//!                        --> search again at these --> their rows and groups are replaced
//! ```
//!
//! The module [`crate::affected`] proves that no affected start is missed. A new node type may
//! change what the steps of a plan admit: then a new plan is computed, and the query is evaluated
//! anew.

use crate::affected::Affected;
use crate::aggregate::Accumulator;
use crate::change::CHANGES_MAX;
use crate::error::Error;
use crate::expression::Fault;
use crate::graph::Graph;
use crate::log::evaluation;
use crate::matcher::{Ends, Matcher};
use crate::plan::Plan;
use crate::query::{Elements, Found, Group, GroupKey, Place, Projection, Row, Table, output_of};
use crate::rule::{Output, Rule};
use crate::value::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// A query whose results are kept, and updated after changes of the graph.
///
/// An update searches only at the starting nodes from which the search can reach a change, along
/// the edges of the pattern. Its time depends on these, and not on the size of the graph. Some
/// updates evaluate the query anew: if a change affects a part of the pattern that no edge connects
/// with the rest, if the graph has doubled or halved, if it has new node types, or after about a
/// million changes.
///
/// All changes of the graph count, also those by rules. The results stay as they are until
/// [`LiveQuery::update`]. Several live queries may read one graph; a graph without live queries
/// records no changes. The calling thread searches.
///
/// ```
/// use corebeat_rewrite::{Graph, LiveQuery, Value, parse_rules};
/// use std::collections::HashMap;
///
/// let mut graph = Graph::new();
/// let person = graph.schema_mut().node_type("Person", &[])?;
/// let likes = graph.schema_mut().edge_type("LIKES", &[])?;
/// let text = "MATCH (a:Person)-[:LIKES]->(b) RETURN b, count(a) ORDER BY count(a) DESC LIMIT 1";
/// let rules = parse_rules("popular", text, &HashMap::new(), &mut graph)?;
/// let mut popular = LiveQuery::new(&mut graph, &rules[0])?;
/// assert!(popular.table().rows.is_empty());
/// let (ada, bob) = (graph.add_node(person)?, graph.add_node(person)?);
/// graph.add_edge(likes, ada, bob)?;
/// popular.update(&mut graph)?;
/// assert_eq!(popular.table().rows, [[Value::Int(bob.0.into()), Value::Int(1)]]);
/// # Ok::<(), corebeat_rewrite::Error>(())
/// ```
pub struct LiveQuery {
    rule: Rule,
    output: Output,
    /// Identifies this query in its graph.
    token: Arc<()>,
    /// The plan of the last update; none after an error.
    plan: Option<Plan>,
    kept: Kept,
    searches: u64,
}

impl LiveQuery {
    /// Evaluates a query, and records the changes of the graph from now on.
    ///
    /// # Errors
    /// [`Error::Rule`] if the rule returns nothing, and [`Error::Evaluate`] if an expression has no
    /// value.
    pub fn new(graph: &mut Graph, rule: &Rule) -> Result<LiveQuery, Error> {
        let mut query = LiveQuery {
            output: output_of(rule)?.clone(),
            rule: rule.clone(),
            token: Arc::new(()),
            plan: None,
            kept: Kept::default(),
            searches: 0,
        };
        query.update(graph)?;
        Ok(query)
    }

    /// Updates the results to the graph as it is. For another graph than that of the last update,
    /// the query is evaluated anew.
    ///
    /// # Errors
    /// [`Error::Evaluate`] if an expression has no value. The table has no rows then, and the next
    /// update evaluates the query anew.
    pub fn update(&mut self, graph: &mut Graph) -> Result<(), Error> {
        graph.store.fit_to_schema();
        let changes = graph.take_changes(&mut self.token, CHANGES_MAX);
        let plan = self.plan.take().filter(|plan| plan.fits(graph));
        let starts = changes.zip(plan.as_ref()).and_then(|(changes, plan)| {
            Affected::new(&graph.store, &self.rule, plan).starts(&changes, usize::MAX)
        });
        let (plan, result) = match (starts, plan) {
            (Some(starts), Some(plan)) if starts.is_empty() => (plan, Ok(())),
            (Some(starts), Some(plan)) => {
                let result = self.search(graph, &plan, starts.into_iter());
                (plan, result)
            }
            _ => {
                self.kept = Kept::default();
                let plan = Plan::new(graph, &self.rule);
                let types = plan.start_types().iter();
                let starts = types.flat_map(|of| {
                    let limit = graph.store.member_limit(*of);
                    (0..limit).filter_map(|index| graph.store.member(*of, index))
                });
                let result = self.search(graph, &plan, starts);
                (plan, result)
            }
        };
        match result {
            Ok(()) => self.plan = Some(plan),
            Err(_) => self.kept = Kept::default(),
        }
        result.map_err(|fault| evaluation(&self.rule, fault))
    }

    /// The results at the last update: they equal those of [`query`](crate::query()) on the graph
    /// of that time, in the same order. The time is that of a copy of the rows; with `DISTINCT`,
    /// all rows are ordered again.
    pub fn table(&self) -> Table {
        let rows = self.kept.rows.iter();
        match self.output.distinct {
            true => self.output.arrange(rows.map(|(place, line)| line.row(place)).collect()),
            false => self.output.table(rows.flat_map(|(_, line)| line.repeated())),
        }
    }

    /// Number of starting nodes that all updates have searched.
    pub fn searches(&self) -> u64 {
        self.searches
    }

    fn search(
        &mut self,
        graph: &Graph,
        plan: &Plan,
        starts: impl Iterator<Item = u32>,
    ) -> Result<(), Fault> {
        let filters = Ends::of(plan);
        let matcher = Matcher::new(&graph.store, &self.rule, plan).filtered(&filters);
        let projection = Projection::new(&matcher, &self.output, true);
        let no_start = (!self.rule.has_pattern()).then_some(None);
        for start in starts.map(Some).chain(no_start) {
            let mut found = Found::default();
            if start.is_none_or(|start| plan.is_start(&graph.store, start)) {
                projection.search(start, &mut found);
                self.searches += 1;
            }
            self.kept.replace(&projection, start, found)?;
        }
        if projection.always_has_group() {
            self.kept.outdated.insert(GroupKey::new());
        }
        self.kept.renew_groups(&projection)
    }
}

/// The results of a query.
#[derive(Default)]
struct Kept {
    /// The results by start; a rule without a pattern has one for no start.
    starts: HashMap<Option<u32>, Own>,
    groups: HashMap<GroupKey, Total>,
    /// Groups whose rows are outdated.
    outdated: HashSet<GroupKey>,
    rows: BTreeMap<Arc<Place>, Line>,
}

/// The results of one start.
#[derive(Default)]
struct Own {
    places: Vec<Arc<Place>>,
    groups: Vec<(GroupKey, Group)>,
}

/// A group of the matches of all starts.
struct Total {
    aggregates: Vec<Accumulator>,
    /// The first match of each start. They differ in the node of the start.
    firsts: BTreeSet<Elements>,
    place: Option<Arc<Place>>,
}

/// A row, and how many matches have it: several paths may connect the same elements.
struct Line {
    values: Vec<Value>,
    count: usize,
}

impl Line {
    fn row(&self, place: &Place) -> Row {
        Row { place: place.clone(), values: self.values.clone() }
    }

    fn repeated(&self) -> impl Iterator<Item = Vec<Value>> {
        std::iter::repeat_n(&self.values, self.count).cloned()
    }
}

impl Kept {
    /// Replaces the results of a start.
    fn replace(
        &mut self,
        projection: &Projection,
        start: Option<u32>,
        mut found: Found,
    ) -> Result<(), Fault> {
        let old = self.starts.remove(&start).unwrap_or_default();
        old.places.iter().for_each(|place| self.remove_row(place));
        for (key, group) in old.groups {
            if let Some(total) = self.groups.get_mut(&key) {
                projection.remove(&mut total.aggregates, &group.aggregates);
                total.firsts.remove(&group.first);
                self.outdated.insert(key);
            }
        }
        let mut own = Own::default();
        for elements in std::mem::take(&mut found.matches) {
            own.places.push(self.add_row(projection.row(elements, &[])?));
        }
        for (key, group) in found.into_groups()? {
            let total = self.groups.entry(key.clone()).or_insert_with(|| Total::new(projection));
            projection.merge(&mut total.aggregates, &group.aggregates);
            total.firsts.insert(group.first.clone());
            self.outdated.insert(key.clone());
            own.groups.push((key, group));
        }
        if !own.places.is_empty() || !own.groups.is_empty() {
            self.starts.insert(start, own);
        }
        Ok(())
    }

    /// Computes the rows of outdated groups. All old rows are removed first: a match that is now
    /// the first of another group has the place of its old row.
    fn renew_groups(&mut self, projection: &Projection) -> Result<(), Fault> {
        let outdated = std::mem::take(&mut self.outdated);
        for key in &outdated {
            let place = self.groups.get_mut(key).and_then(|total| total.place.take());
            place.iter().for_each(|place| self.remove_row(place));
        }
        for key in outdated {
            let mut total = self.groups.remove(&key).unwrap_or_else(|| Total::new(projection));
            if total.firsts.is_empty() && !projection.always_has_group() {
                continue;
            }
            let first = total.firsts.first().cloned().unwrap_or_default();
            let row = projection.group_row(first, &total.aggregates)?;
            total.place = Some(self.add_row(row));
            self.groups.insert(key, total);
        }
        Ok(())
    }

    fn add_row(&mut self, row: Row) -> Arc<Place> {
        let place = Arc::new(row.place);
        let new = || Line { values: row.values, count: 0 };
        self.rows.entry(place.clone()).or_insert_with(new).count += 1;
        place
    }

    fn remove_row(&mut self, place: &Arc<Place>) {
        if let Some(line) = self.rows.get_mut(place) {
            line.count -= 1;
            if line.count == 0 {
                self.rows.remove(place);
            }
        }
    }
}

impl Total {
    fn new(projection: &Projection) -> Total {
        let aggregates = projection.no_aggregates();
        Total { aggregates, firsts: BTreeSet::new(), place: None }
    }
}
