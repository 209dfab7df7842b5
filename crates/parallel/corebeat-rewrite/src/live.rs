//! Queries that are kept up to date under changes.
//!
//! ```text
//!   changes of the graph --> starts of the search that the changes can affect
//!                        --> search again at these --> their rows and groups are replaced
//! ```
//!
//! # Which starts a change can affect
//!
//! A search at a start is a function of the facts that it reads: types and attributes of nodes that
//! it binds to slots, and the lists of edges that it follows from these. Compare the search on the
//! graph before some changes with the search after them. If the results differ, there is a first
//! read with another value. All reads before it have the same values in both graphs, so both
//! searches make this read, at the same node and for the same slot. The steps that led from the
//! start to the node read lists and types that are the same in both graphs: they lead there in the
//! changed graph. So [`Affected`] follows the steps of the plan backwards, in the changed graph,
//! from each node with a changed fact and each slot whose steps read this fact. No copy of the
//! graph before the changes is needed. The attributes of an edge belong to the lists of its ends.
//!
//! The argument requires that a search reaches all nodes from its start. A plan with a second scan
//! does not: such a query is evaluated anew. A new node type may change what a plan's steps admit:
//! then a new plan is computed, and the query is evaluated anew, too.

use crate::aggregate::Accumulator;
use crate::change::{Change, Fact};
use crate::error::Error;
use crate::expression::{Expression, Fault};
use crate::graph::Graph;
use crate::log::evaluation;
use crate::matcher::{Ends, Matcher};
use crate::plan::{Lists, Plan, Step};
use crate::query::{Elements, Found, Group, GroupKey, Place, Projection, Row, Table, output_of};
use crate::rule::{ElementKind, Output, Rule, Slot};
use crate::store::Store;
use crate::value::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A query whose results are kept, and updated after changes of the graph.
///
/// An update searches only at the starting nodes from which the search can reach a change, along
/// the edges of the pattern. Its time depends on these, and not on the size of the graph. Some
/// updates evaluate the query anew: if the pattern is not connected, if the graph has doubled or
/// halved, if it has new node types, or after about a million changes.
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
        let changes = graph.take_changes(&mut self.token);
        let plan = self.plan.take().filter(|plan| plan.fits(graph));
        let (plan, result) = match (changes, plan) {
            (Some(changes), Some(plan)) if changes.is_empty() => (plan, Ok(())),
            (Some(changes), Some(plan)) if plan.is_connected() => {
                let starts = Affected::new(&graph.store, &self.rule, &plan).starts(&changes);
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
        let is_start = |node: &u32| {
            let of = graph.store.node_type(*node);
            of.is_some_and(|of| plan.start_types().contains(&of))
        };
        let no_start = (!self.rule.has_pattern()).then_some(None);
        for start in starts.map(Some).chain(no_start) {
            let mut found = Found::default();
            if start.is_none_or(|start| is_start(&start)) {
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

/// Finds the starts that changes can affect: see the module.
struct Affected<'a> {
    store: &'a Store,
    rule: &'a Rule,
    plan: &'a Plan,
    /// The slots of nodes.
    nodes: Vec<Slot>,
    /// The slots whose steps or conditions read a fact of their node.
    reads: HashMap<Fact, Vec<Slot>>,
}

impl<'a> Affected<'a> {
    fn new(store: &'a Store, rule: &'a Rule, plan: &'a Plan) -> Affected<'a> {
        let nodes = rule.parts().flat_map(|part| &part.nodes).map(|node| node.slot);
        let mut reads = HashMap::<Fact, Vec<Slot>>::new();
        let mut add = |fact, slot| reads.entry(fact).or_default().push(slot);
        for step in plan.backwards() {
            let (Step::Extend { from, lists, .. }
            | Step::Join { from, lists, .. }
            | Step::Path { from, lists, .. }) = step
            else {
                continue;
            };
            // A join may read the list of its other end; the edges between both are in this one.
            lists.iter().for_each(|(of, direction)| add(Fact::List(*of, *direction), *from));
        }
        rule.visit_expressions(&mut |inner| {
            if let Expression::Property(slot, ElementKind::Node, key) = inner {
                add(Fact::Value(*key), *slot);
            }
        });
        Affected { store, rule, plan, nodes: nodes.collect(), reads }
    }

    fn starts(&self, changes: &[Change]) -> HashSet<u32> {
        // By slot, the nodes from which a search can reach a changed fact.
        let mut reached = vec![HashSet::new(); self.rule.slots.len()];
        for (node, fact) in changes {
            let slots = match fact {
                Fact::Type => Some(&self.nodes),
                Fact::Value(_) | Fact::List(..) => self.reads.get(fact),
            };
            for slot in slots.into_iter().flatten() {
                reached[usize::from(*slot)].insert(*node);
            }
        }
        for step in self.plan.backwards() {
            let (from, sources) = match step {
                Step::Extend { from, to, lists, .. } => {
                    (*from, self.sources(lists, &reached[usize::from(*to)]))
                }
                Step::Path { from, to, is_bound, lists, length, .. } => {
                    // A path to a bound node reads nothing of that node.
                    let ends = match is_bound {
                        true => HashSet::new(),
                        false => reached[usize::from(*to)].clone(),
                    };
                    (*from, self.path_sources(lists, *length, ends, changes))
                }
                _ => continue,
            };
            let types = self.rule.types_of(from);
            // The types of these nodes have not changed, or the nodes are reached already.
            let can_be_bound = |node: &u32| {
                let of = self.store.node_type(*node);
                of.is_some_and(|of| types.is_none_or(|types| types.contains(&of)))
            };
            reached[usize::from(from)].extend(sources.into_iter().filter(can_be_bound));
        }
        match self.plan.main.first().map(|planned| &planned.step) {
            Some(Step::Scan { slot, .. }) => std::mem::take(&mut reached[usize::from(*slot)]),
            _ => HashSet::new(),
        }
    }

    /// The nodes with an edge in these lists to one of some nodes.
    fn sources(&self, lists: &Lists, nodes: &HashSet<u32>) -> HashSet<u32> {
        let mut sources = HashSet::new();
        for node in nodes {
            for (of, direction) in lists {
                let list = self.store.list(*of, direction.reversed(), *node);
                sources.extend(list.iter().map(|entry| entry.load(Relaxed) as u32));
            }
        }
        sources
    }

    /// The nodes with a path to one of the ends, or to a node inside whose list of edges has
    /// changed.
    fn path_sources(
        &self,
        lists: &Lists,
        (least, most): (u32, u32),
        ends: HashSet<u32>,
        changes: &[Change],
    ) -> HashSet<u32> {
        let mut sources = if least == 0 { ends.clone() } else { HashSet::new() };
        let mut frontier = ends;
        let is_inside = |fact: &Fact| matches!(fact, Fact::List(of, direction) if lists.contains(&(*of, *direction)));
        frontier.extend(changes.iter().filter(|(_, fact)| is_inside(fact)).map(|(node, _)| *node));
        let mut seen = HashSet::new();
        for _ in 0..most {
            frontier = self.sources(lists, &frontier);
            frontier.retain(|node| seen.insert(*node));
            if frontier.is_empty() {
                break;
            }
        }
        sources.extend(seen);
        sources
    }
}
