//! The matcher: runs a plan on a graph.
//!
//! The matcher allocates no memory inside its loops, except for paths of a variable length. It
//! reads a graph that other threads may change: then a match may be outdated, and
//! [`Matcher::holds`] checks it again under locks.

use crate::expression::Fault;
use crate::lock::Locks;
use crate::plan::{Admit, Plan, Planned, Step};
use crate::rule::{
    Binding, Change, ELEMENTS_MAX, Matching, NONE, NodeSlot, Part, Rule, Semantics, Slot,
};
use crate::schema::EdgeType;
use crate::store::{Direction, Store};
use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Whether a search continues.
pub(crate) type Flow = ControlFlow<()>;

pub(crate) struct Matcher<'a> {
    pub(crate) store: &'a Store,
    pub(crate) rule: &'a Rule,
    plan: &'a Plan,
    /// The first fault of an expression. It ends the search.
    fault: RefCell<Option<Fault>>,
    /// Numbers of partial matches after the steps of the main part, for explanations.
    counts: Vec<Cell<u64>>,
    /// By step of the main part; none for a search without filters.
    filters: &'a [Ends],
    /// Locked nodes are no part of a match.
    avoid: Option<Avoid<'a>>,
    /// Number of matches that were not passed to `found`; see [`Matcher::counting_ends`].
    ends: Option<&'a Cell<u64>>,
    /// Ends the search when it becomes true.
    stop: Option<&'a AtomicBool>,
    /// The edges of the paths that the search follows now, with the slots of the paths.
    paths: RefCell<Vec<(Slot, u32)>>,
}

/// The nodes at the other ends of the edges with which a step joins two nodes: a filter for the
/// nodes that the step before binds. Most of these nodes have no such edge, and their lists are
/// scattered over the memory.
pub(crate) struct Ends {
    /// The bound node of the step, or [`NONE`].
    node: Cell<u32>,
    /// Number of nodes that the step before has read since it was bound.
    reads: Cell<usize>,
    is_filled: Cell<bool>,
    /// A bit for each node at an end, by the lower bits of its number.
    bits: [Cell<u64>; ENDS_BITS / 64],
}

const ENDS_BITS: usize = 4096;
/// Longest list of edges in [`Ends`]: more would set most bits.
const ENDS_MAX: usize = ENDS_BITS / 4;

/// Largest number of nodes with which [`Matcher::count_ends`] compares at once.
const OTHERS: usize = 8;

/// Number of lists that [`Matcher::fetch_next`] reads.
const FETCH_MAX: usize = 32;

impl Ends {
    /// One for each step of the main part of a plan.
    pub(crate) fn of(plan: &Plan) -> Box<[Ends]> {
        let ends = |_| Ends {
            node: Cell::new(NONE),
            reads: Cell::new(0),
            is_filled: Cell::new(false),
            bits: [const { Cell::new(0) }; _],
        };
        plan.main.iter().map(ends).collect()
    }

    #[inline(always)]
    fn word(&self, node: u32) -> &Cell<u64> {
        &self.bits[node as usize % ENDS_BITS / 64]
    }

    #[inline(always)]
    fn may_contain(&self, node: u32) -> bool {
        self.word(node).get() >> (node % 64) & 1 != 0
    }

    fn fill(&self, list: &[AtomicU64]) {
        self.bits.iter().for_each(|word| word.set(0));
        for entry in list {
            let node = entry.load(Relaxed) as u32;
            let word = self.word(node);
            word.set(word.get() | 1 << (node % 64));
        }
        self.is_filled.set(true);
    }
}

/// The locks of a phase, and the slots that need one: `Some(true)` for a write lock. The nodes
/// inside `EXISTS` need none, and a locked one is still there: the search must not exclude it.
struct Avoid<'a> {
    locks: Locks<'a>,
    needs: [Option<bool>; ELEMENTS_MAX],
}

#[inline(always)]
fn at(binding: &Binding, slot: Slot) -> u32 {
    binding[usize::from(slot) % ELEMENTS_MAX]
}

#[inline(always)]
fn bind(binding: &mut Binding, slot: Slot, element: u32) {
    binding[usize::from(slot) % ELEMENTS_MAX] = element;
}

/// Returns whether an edge differs from those in these slots.
#[inline(always)]
fn is_other(binding: &Binding, slots: &[Slot], edge: u32) -> bool {
    slots.iter().all(|slot| at(binding, *slot) != edge)
}

impl<'a> Matcher<'a> {
    pub(crate) fn new(store: &'a Store, rule: &'a Rule, plan: &'a Plan) -> Matcher<'a> {
        Matcher {
            store,
            rule,
            plan,
            fault: RefCell::new(None),
            counts: Vec::new(),
            filters: &[],
            avoid: None,
            ends: None,
            stop: None,
            paths: RefCell::default(),
        }
    }

    /// Ends the search without a further match when `stop` becomes true.
    pub(crate) fn until(mut self, stop: Option<&'a AtomicBool>) -> Matcher<'a> {
        self.stop = stop;
        self
    }

    /// Whether the search must end.
    #[inline(always)]
    pub(crate) fn is_stopped(&self) -> bool {
        // Relaxed: the flag publishes no data.
        self.stop.is_some_and(|stop| stop.load(Relaxed))
    }

    /// Only counts the matches that differ in the last node of the plan, and does not bind that
    /// node. For queries whose result is the number of matches.
    pub(crate) fn counting_ends(mut self, ends: &'a Cell<u64>) -> Matcher<'a> {
        self.ends = Some(ends);
        self
    }

    /// Filters the nodes of each step by the edges that the next step needs. For long searches: a
    /// filter is filled before it is used.
    pub(crate) fn filtered(mut self, filters: &'a [Ends]) -> Matcher<'a> {
        self.filters = filters;
        self
    }

    /// Excludes nodes that another match has locked.
    pub(crate) fn avoiding(mut self, locks: Locks<'a>) -> Matcher<'a> {
        let mut needs = [None; ELEMENTS_MAX];
        let nodes = &self.rule.main.nodes;
        nodes.iter().for_each(|node| needs[usize::from(node.slot)] = Some(false));
        self.rule.written_slots().for_each(|slot| needs[usize::from(slot)] = Some(true));
        self.avoid = Some(Avoid { locks, needs });
        self
    }

    /// Whether a match changes at least one of its nodes.
    pub(crate) fn changes_matched_nodes(&self) -> bool {
        let nodes = &self.rule.main.nodes;
        self.rule.written_slots().any(|slot| nodes.iter().any(|node| node.slot == slot))
    }

    /// Whether a node is not excluded as the start of a search.
    pub(crate) fn is_allowed_start(&self, node: u32) -> bool {
        match self.plan.main.first().map(|planned| &planned.step) {
            Some(Step::Scan { slot, .. }) => self.is_allowed(*slot, node),
            _ => true,
        }
    }

    #[inline(always)]
    fn is_allowed(&self, slot: Slot, node: u32) -> bool {
        self.avoid.as_ref().is_none_or(|avoid| {
            let need = avoid.needs[usize::from(slot) % ELEMENTS_MAX];
            need.is_none_or(|write| avoid.locks.is_free(node, write))
        })
    }

    /// The start of the search that led to a match.
    pub(crate) fn start_of(&self, binding: &Binding) -> u32 {
        match self.plan.main.first().map(|planned| &planned.step) {
            Some(Step::Scan { slot, .. }) => at(binding, *slot),
            _ => NONE,
        }
    }

    /// Counts the partial matches after each step.
    pub(crate) fn counting(mut self) -> Matcher<'a> {
        self.counts = vec![Cell::new(0); self.plan.main.len()];
        self
    }

    /// The counts after a search.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(Cell::get).collect()
    }

    /// The fault that ended the search; none if the search was stopped.
    pub(crate) fn take_fault(&self) -> Option<Fault> {
        self.fault.borrow_mut().take().filter(|_| !self.is_stopped())
    }

    /// Calls `found` with each match.
    pub(crate) fn search(&self, found: &mut impl FnMut(&mut Binding) -> Flow) -> Flow {
        if !self.rule.has_pattern() {
            return self.step(&self.plan.main, 0, &mut [NONE; ELEMENTS_MAX], found);
        }
        for of in self.plan.start_types() {
            for index in 0..self.store.member_limit(*of) {
                if let Some(node) = self.store.member(*of, index) {
                    self.search_at(node, found)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Calls `found` with each match whose start is `node`.
    pub(crate) fn search_at(
        &self,
        node: u32,
        found: &mut impl FnMut(&mut Binding) -> Flow,
    ) -> Flow {
        if self.is_stopped() {
            return ControlFlow::Break(());
        }
        let mut binding = [NONE; ELEMENTS_MAX];
        if let Some(Planned { step: Step::Scan { slot, .. }, .. }) = self.plan.main.first() {
            bind(&mut binding, *slot, node);
        }
        self.count(0);
        // Rewrites change lists: the filters of an older search may lack ends.
        self.filters.iter().for_each(|ends| ends.node.set(NONE));
        self.step(&self.plan.main, 1, &mut binding, found)
    }

    #[inline(always)]
    fn count(&self, index: usize) {
        if let Some(count) = self.counts.get(index) {
            count.set(count.get() + 1);
        }
    }

    fn step<F: FnMut(&mut Binding) -> Flow + ?Sized>(
        &self,
        steps: &[Planned],
        mut index: usize,
        binding: &mut Binding,
        found: &mut F,
    ) -> Flow {
        // A loop, because a rule may have any number of conditions, and the stack has a limit.
        let step = loop {
            let Some(planned) = steps.get(index) else { return found(binding) };
            match self.check(&planned.step, binding) {
                None => break &planned.step,
                Some(Ok(true)) => self.passed(steps, index),
                Some(Ok(false)) => return ControlFlow::Continue(()),
                Some(Err(fault)) => return self.fail(fault),
            }
            index += 1;
        };
        if self.is_stopped() {
            return ControlFlow::Break(());
        }
        match step {
            Step::Extend { from, to, lists, admit, distinct, .. }
                if let Some(ends) = self.ends.filter(|_| self.is_last(steps, index)) =>
            {
                let node = at(binding, *from);
                let count = self.count_ends(node, *to, lists, admit, distinct, binding);
                ends.set(ends.get() + count);
                ControlFlow::Continue(())
            }
            Step::Extend { from, edge, to, lists, admit, distinct } => {
                let node = at(binding, *from);
                for (of, direction) in lists {
                    let list = self.store.list(*of, *direction, node);
                    let ends = self.ends_of_join(steps, index + 1, *to, binding, list.len());
                    if ends.is_none() {
                        self.fetch_next(steps.get(index + 1), *to, list);
                    }
                    for entry in list {
                        let entry = entry.load(Relaxed);
                        let other = entry as u32;
                        if ends.is_none_or(|ends| ends.may_contain(other))
                            && self.admits(admit, other, binding)
                            && self.is_allowed(*to, other)
                            && !is_second(lists, (*of, *direction), node, other)
                            && is_other(binding, distinct, (entry >> 32) as u32)
                        {
                            bind(binding, *edge, (entry >> 32) as u32);
                            bind(binding, *to, other);
                            self.next(steps, index, binding, found)?;
                        }
                    }
                }
                ControlFlow::Continue(())
            }
            Step::Join { from, edge, to, lists, distinct } => {
                let (from, to) = (at(binding, *from), at(binding, *to));
                for (of, direction) in lists {
                    let own = self.store.list(*of, *direction, from);
                    let other = self.store.list(*of, direction.reversed(), to);
                    let (list, end) =
                        if own.len() <= other.len() { (own, to) } else { (other, from) };
                    for entry in list {
                        let entry = entry.load(Relaxed);
                        if entry as u32 == end
                            && !is_second(lists, (*of, *direction), from, to)
                            && is_other(binding, distinct, (entry >> 32) as u32)
                        {
                            bind(binding, *edge, (entry >> 32) as u32);
                            self.next(steps, index, binding, found)?;
                        }
                    }
                }
                ControlFlow::Continue(())
            }
            _ => self.rare_step(steps, index, binding, found),
        }
    }

    /// Whether a check is passed; `None` for a step that binds an element.
    #[inline(always)]
    fn check(&self, step: &Step, binding: &mut Binding) -> Option<Result<bool, Fault>> {
        Some(match step {
            Step::Filter(condition) => self.is_true(condition, binding),
            Step::Order(first, second) => Ok(at(binding, *first) <= at(binding, *second)),
            Step::Least => Ok(self.rule.symmetry.is_least(binding)),
            Step::Apart { edge, paths } => Ok(!self.is_on_path(paths, at(binding, *edge))),
            _ => return None,
        })
    }

    #[inline(always)]
    fn next<F: FnMut(&mut Binding) -> Flow + ?Sized>(
        &self,
        steps: &[Planned],
        index: usize,
        binding: &mut Binding,
        found: &mut F,
    ) -> Flow {
        self.passed(steps, index);
        self.step(steps, index + 1, binding, found)
    }

    /// Counts a partial match after a step. Steps of inner parts are not counted.
    #[inline(always)]
    fn passed(&self, steps: &[Planned], index: usize) {
        if std::ptr::eq(steps, &self.plan.main[..]) {
            self.count(index);
        }
    }

    fn rare_step<F: FnMut(&mut Binding) -> Flow + ?Sized>(
        &self,
        steps: &[Planned],
        index: usize,
        binding: &mut Binding,
        found: &mut F,
    ) -> Flow {
        match &steps[index].step {
            Step::Scan { slot, types, admit } => {
                for of in types {
                    for member in 0..self.store.member_limit(*of) {
                        let Some(node) = self.store.member(*of, member) else { continue };
                        if self.admits(admit, node, binding) && self.is_allowed(*slot, node) {
                            bind(binding, *slot, node);
                            self.next(steps, index, binding, found)?;
                        }
                    }
                }
                ControlFlow::Continue(())
            }
            Step::Require { slot, admit } => match at(binding, *slot) {
                node if node != NONE && self.admits(admit, node, binding) => {
                    self.next(steps, index, binding, found)
                }
                _ => ControlFlow::Continue(()),
            },
            Step::Path { to, is_bound, admit, .. } => {
                let end = is_bound.then_some(at(binding, *to));
                self.walk(&steps[index].step, binding, &mut |node, binding| {
                    if end.is_none_or(|end| end == node) && self.admits(admit, node, binding) {
                        bind(binding, *to, node);
                        return self.next(steps, index, binding, found);
                    }
                    ControlFlow::Continue(())
                })
            }
            Step::Optional(part) => {
                let mut is_found = false;
                let inner = &self.plan.optional[*part];
                let mut go_on = |binding: &mut Binding| {
                    is_found = true;
                    self.next(steps, index, binding, found)
                };
                self.step(inner, 0, binding, &mut go_on as &mut dyn FnMut(&mut Binding) -> Flow)?;
                if is_found {
                    return ControlFlow::Continue(());
                }
                let part = &self.rule.optional[*part];
                part.nodes.iter().for_each(|node| bind(binding, node.slot, NONE));
                part.edges.iter().for_each(|edge| bind(binding, edge.slot, NONE));
                self.next(steps, index, binding, found)
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

/// Parts of steps.
impl Matcher<'_> {
    /// Whether a step is the last one of the main part.
    #[inline(always)]
    fn is_last(&self, steps: &[Planned], index: usize) -> bool {
        index + 1 == steps.len() && std::ptr::eq(steps, &self.plan.main[..])
    }

    /// The number of nodes to which an extension leads.
    fn count_ends(
        &self,
        node: u32,
        to: Slot,
        lists: &[(EdgeType, Direction)],
        admit: &Admit,
        distinct: &[Slot],
        binding: &Binding,
    ) -> u64 {
        let mut count = 0;
        if let [(of, direction)] = lists
            && let Admit { types: None, distinct: others } = admit
            && let (true, [], None) = (others.len() <= OTHERS, distinct, &self.avoid)
        {
            // Comparisons with a fixed number of nodes, most of which the processor does at once.
            let mut bound = [NONE; OTHERS];
            bound.iter_mut().zip(others).for_each(|(own, slot)| *own = at(binding, *slot));
            for entry in self.store.list(*of, *direction, node) {
                let other = entry.load(Relaxed) as u32;
                let equal = bound.iter().fold(false, |equal, own| equal | (*own == other));
                count += u64::from(!equal);
            }
            return count;
        }
        for (of, direction) in lists {
            for entry in self.store.list(*of, *direction, node) {
                let entry = entry.load(Relaxed);
                let other = entry as u32;
                let is_match = self.admits(admit, other, binding)
                    && self.is_allowed(to, other)
                    && !is_second(lists, (*of, *direction), node, other)
                    && is_other(binding, distinct, (entry >> 32) as u32);
                count += u64::from(is_match);
            }
        }
        count
    }

    /// Returns a filter for `count` nodes that become the node of `slot`, if the next step joins
    /// that node to a bound one. `None` if it does not, or if the filter would cost more than it
    /// saves.
    #[inline(always)]
    fn ends_of_join(
        &self,
        steps: &[Planned],
        next: usize,
        slot: Slot,
        binding: &Binding,
        count: usize,
    ) -> Option<&Ends> {
        let Step::Join { from, to, lists, .. } = &steps.get(next)?.step else { return None };
        let [(of, direction)] = lists[..] else { return None };
        let (bound, direction) = match (*from == slot, *to == slot) {
            (true, false) => (at(binding, *to), direction.reversed()),
            (false, true) => (at(binding, *from), direction),
            _ => return None,
        };
        // Steps of inner parts have no filters.
        let ends = self.filters.get(next).filter(|_| std::ptr::eq(steps, &self.plan.main[..]))?;
        if ends.node.replace(bound) != bound {
            ends.reads.set(0);
            ends.is_filled.set(false);
        }
        if !ends.is_filled.get() {
            ends.reads.set(ends.reads.get() + count);
            let list = self.store.list(of, direction, bound);
            if list.len() > ENDS_MAX || ends.reads.get() < 4 + list.len() / 4 {
                return None;
            }
            ends.fill(list);
        }
        Some(ends)
    }

    #[inline(always)]
    fn admits(&self, admit: &Admit, node: u32, binding: &Binding) -> bool {
        let has_type = admit.types.as_ref().is_none_or(|types| {
            let of = self.store.node_type(node);
            of.is_some_and(|of| types.get(usize::from(of.0)).copied().unwrap_or(false))
        });
        has_type && admit.distinct.iter().all(|slot| at(binding, *slot) != node)
    }

    /// Whether an edge is on one of these paths.
    fn is_on_path(&self, paths: &[Slot], edge: u32) -> bool {
        self.paths.borrow().iter().any(|(path, on)| *on == edge && paths.contains(path))
    }

    /// Calls `arrive` with the end of each path of a step. The edges of a path differ, and they
    /// differ from those in the `distinct` slots of the step.
    fn walk(
        &self,
        step: &Step,
        binding: &mut Binding,
        arrive: &mut dyn FnMut(u32, &mut Binding) -> Flow,
    ) -> Flow {
        let outer = self.paths.borrow().len();
        let flow = self.follow(step, outer, binding, arrive);
        // A search that has ended leaves its path there.
        self.paths.borrow_mut().truncate(outer);
        flow
    }

    /// The edges of the path are those in `paths` from `outer` on.
    fn follow(
        &self,
        step: &Step,
        outer: usize,
        binding: &mut Binding,
        arrive: &mut dyn FnMut(u32, &mut Binding) -> Flow,
    ) -> Flow {
        let Step::Path { from, edge: slot, lists, length: (least, most), distinct, .. } = step
        else {
            return ControlFlow::Continue(());
        };
        let from = at(binding, *from);
        if from == NONE {
            return ControlFlow::Continue(());
        }
        if *least == 0 {
            arrive(from, binding)?;
        }
        // By edge of the path: its start, and the next edge to try there.
        let mut path = vec![(from, 0, 0)];
        while let Some((node, list, entry)) = path.last_mut() {
            let count = self.paths.borrow().len() - outer;
            if self.is_stopped() {
                return ControlFlow::Break(());
            }
            let (own, at_list) = (*node, *list);
            let Some((of, direction)) = lists.get(at_list).filter(|_| count < *most as usize)
            else {
                path.pop();
                self.paths.borrow_mut().truncate(outer + count.saturating_sub(1));
                continue;
            };
            let next = self.store.list(*of, *direction, own).get(*entry);
            *entry += 1;
            let Some(next) = next.map(|next| next.load(Relaxed)) else {
                (*list, *entry) = (at_list + 1, 0);
                continue;
            };
            let (edge, other) = ((next >> 32) as u32, next as u32);
            if self.paths.borrow()[outer..].iter().any(|(_, on)| *on == edge)
                || is_second(lists, (*of, *direction), own, other)
                || !is_other(binding, distinct, edge)
                || self.is_on_path(distinct, edge)
            {
                continue;
            }
            self.paths.borrow_mut().push((*slot, edge));
            path.push((other, 0, 0));
            if count + 1 >= *least as usize {
                arrive(other, binding)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Whether the inside of `EXISTS` is found.
    pub(crate) fn exists(&self, index: usize, binding: &mut Binding) -> Result<bool, Fault> {
        let steps = &self.plan.exists[index];
        let mut found = |_: &mut Binding| ControlFlow::Break(());
        let flow = self.step(steps, 0, binding, &mut found as &mut dyn FnMut(&mut Binding) -> Flow);
        match self.take_fault() {
            Some(fault) => Err(fault),
            // The inside may have been found or not.
            None if self.is_stopped() => Err("the search was stopped".into()),
            None => Ok(flow.is_break()),
        }
    }

    /// Reads the beginnings of the lists that the next step reads one after the other, so that the
    /// processor waits for all of them at the same time.
    #[inline(always)]
    fn fetch_next(&self, next: Option<&Planned>, slot: Slot, list: &[AtomicU64]) {
        if let Some(Step::Extend { from, lists, .. }) = next.map(|next| &next.step)
            && *from == slot
            && let [(of, direction)] = lists[..]
            && list.len() > 1
        {
            let entries = list.iter().take(FETCH_MAX);
            let lengths = entries.map(|entry| {
                let node = entry.load(Relaxed) as u32;
                self.store.list(of, direction, node).len()
            });
            std::hint::black_box(lengths.sum::<usize>());
        }
    }

    fn fail(&self, fault: Fault) -> Flow {
        self.fault.borrow_mut().get_or_insert(fault);
        ControlFlow::Break(())
    }

    /// Whether a match of the main part still is one. The elements of the match differ as before.
    pub(crate) fn holds(&self, binding: &mut Binding) -> Result<bool, Fault> {
        let part: &Part = &self.rule.main;
        let has_type = |node: &NodeSlot| {
            let of = self.store.node_type(at(binding, node.slot));
            of.is_some_and(|of| node.types.as_ref().is_none_or(|types| types.contains(&of)))
        };
        if !part.nodes.iter().all(has_type) {
            return Ok(false);
        }
        for edge in part.edges.iter().filter(|edge| edge.length.is_none()) {
            let number = at(binding, edge.slot);
            let (from, to) = (at(binding, edge.from), at(binding, edge.to));
            let (of, ends) = (self.store.edge_type(number), self.store.ends(number));
            let is_listed = edge.lists.iter().any(|(list, direction)| {
                let expected = if *direction == Direction::Out { (from, to) } else { (to, from) };
                of == Some(*list) && ends == Some(expected)
            });
            if !is_listed {
                return Ok(false);
            }
        }
        for condition in &part.conditions {
            if !self.is_true(condition, binding)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the deletions of the rule are possible: the dangling condition and the
    /// identification condition.
    pub(crate) fn is_applicable(&self, binding: &Binding) -> bool {
        let is_dpo = self.rule.semantics == Semantics::Dpo;
        let deleted_edges = |edge: u32| {
            self.rule.changes.iter().any(|change| {
                matches!(change, Change::DeleteEdge { slot } if at(binding, *slot) == edge)
            })
        };
        self.rule.changes.iter().all(|change| match change {
            Change::DeleteNode { slot, detach } => {
                let node = at(binding, *slot);
                let mut is_free = true;
                if (is_dpo || !detach) && node != NONE {
                    self.store.each_edge(node, |_, _, edge, _| is_free &= deleted_edges(edge));
                }
                is_free && !(is_dpo && self.is_shared(binding, *slot))
            }
            Change::DeleteEdge { slot } => !(is_dpo && self.is_shared(binding, *slot)),
            _ => true,
        })
    }

    /// Whether another element of the left side is bound to the element of a slot.
    fn is_shared(&self, binding: &Binding, slot: Slot) -> bool {
        if self.rule.matching == Matching::Injective {
            return false;
        }
        let kind = self.rule.slots[usize::from(slot)].1;
        let (nodes, edges) = (&self.rule.main.nodes, &self.rule.main.edges);
        let left = nodes.iter().map(|node| node.slot).chain(edges.iter().map(|edge| edge.slot));
        left.into_iter().any(|other| {
            other != slot
                && self.rule.slots[usize::from(other)].1 == kind
                && at(binding, other) == at(binding, slot)
        })
    }
}

/// Whether an edge from a node to itself is found for the second time: an undirected pattern
/// follows both lists of the node.
#[inline(always)]
fn is_second(
    lists: &[(EdgeType, Direction)],
    (of, direction): (EdgeType, Direction),
    from: u32,
    to: u32,
) -> bool {
    from == to && direction == Direction::In && lists.contains(&(of, Direction::Out))
}
