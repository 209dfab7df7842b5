//! Flow of rows of labels through a net, as records flow at run time.

use std::collections::HashMap;
use std::rc::Rc;

use crate::ast::Span;
use crate::label::Label;

use super::part::{BoxPart, FilterPart, Kind, NetPart, Part, PatternPart, SyncPart, Type};
use super::row::{Mark, Row, Rows};
use super::{ROWS_MAX, WORK_MAX};

/// Purpose of the flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// One row enters, to determine whether a part takes it. Synchrocells find every partner, and
    /// nothing is noted.
    Infer,
    /// Every possible row enters, and the results are noted.
    Verify,
}

/// Observations at a part.
#[derive(Default)]
pub(super) struct Note {
    /// Row that the part cannot take.
    pub(super) failure: Option<Failure>,
    /// For a filter: a row without all labels that the filter removes.
    pub(super) lack: Option<Failure>,
    /// Some of the rows that arrived.
    pub(super) came: Vec<Row>,
    /// For a parallel composition: which branches received rows. For a synchrocell: which patterns
    /// matched. For a star or a feedback: whether a row left.
    pub(super) hit: Vec<bool>,
}

/// A row that cannot continue.
#[derive(Clone)]
pub(super) struct Failure {
    pub(super) row: Row,
    pub(super) mark: Mark,
}

/// Rows that a note stores as examples.
const CAME_MAX: usize = 16;

/// A net by its number, and entering rows, each with whether it is certain.
type Sent = (usize, Vec<(Row, bool)>);

pub(super) struct Flow {
    pub(super) mode: Mode,
    /// Whether a row could not continue. Used in `Infer`.
    pub(super) failed: bool,
    work: u64,
    /// Place at which a bound was exceeded.
    pub(super) gave_up: Option<Span>,
    /// Output of a net for its input, and whether a row failed.
    known: HashMap<Sent, (Rows, bool)>,
    /// Notes by the numbers of parts.
    pub(super) notes: HashMap<usize, Note>,
}

impl Flow {
    pub(super) fn new(mode: Mode) -> Flow {
        Flow {
            mode,
            failed: false,
            work: 0,
            gave_up: None,
            known: HashMap::new(),
            notes: HashMap::new(),
        }
    }

    /// Returns the output of a part for these rows.
    pub(super) fn through(&mut self, part: &Part, rows: Rows) -> Rows {
        if rows.is_empty() && (self.mode == Mode::Infer || !part.starts) {
            return rows;
        }
        if !self.afford(&rows, part.span) {
            return Rows::default();
        }
        match &part.kind {
            Kind::Identity => rows,
            Kind::Box(box_part) => self.through_box(part, box_part, rows),
            Kind::Filter(filter) => self.through_filter(part, filter, rows),
            Kind::Sync(sync) => self.through_sync(part, sync, rows),
            Kind::Serial(parts) => parts.iter().fold(rows, |rows, part| self.through(part, rows)),
            Kind::Parallel { branches, .. } => self.through_parallel(part, branches, rows),
            Kind::Star { operand, exits, .. } => self.through_star(part, operand, exits, rows),
            Kind::Split { operand, tag, .. } => self.through_split(part, operand, *tag, rows),
            Kind::Feedback { operand, patterns } => {
                self.through_feedback(part, operand, patterns, rows)
            }
            Kind::Place { operand, .. } => self.through(operand, rows),
            Kind::Net(net) => self.through_net(part, net, rows),
        }
    }

    /// Adds the work for these rows. Returns whether all bounds hold.
    pub(super) fn afford(&mut self, rows: &Rows, span: Span) -> bool {
        self.spend(1 + rows.iter().map(|(row, _)| 1 + row.len() as u64).sum::<u64>(), span);
        if rows.len() > ROWS_MAX {
            self.gave_up.get_or_insert(span);
        }
        self.gave_up.is_none()
    }

    pub(super) fn spend(&mut self, work: u64, span: Span) {
        self.work += work;
        if self.work > WORK_MAX {
            self.gave_up.get_or_insert(span);
        }
    }

    fn note(&mut self, part: &Part) -> Option<&mut Note> {
        (self.mode == Mode::Verify).then(|| self.notes.entry(part.number).or_default())
    }

    /// Notes the arrival of rows, and prepares the note for `hits` hits.
    fn came(&mut self, part: &Part, rows: &Rows, hits: usize) {
        if let Some(note) = self.note(part) {
            note.hit.resize(hits, false);
            for (row, _) in rows.iter() {
                if note.came.len() < CAME_MAX && !note.came.contains(row) {
                    note.came.push(row.clone());
                }
            }
        }
    }

    fn hit(&mut self, part: &Part, which: usize) {
        if let Some(note) = self.note(part) {
            note.hit[which] = true;
        }
    }

    fn fail(&mut self, part: &Part, row: Row, mark: Mark) {
        self.failed |= mark.certain;
        if let Some(note) = self.note(part)
            && note.failure.as_ref().is_none_or(|known| mark.certain && !known.mark.certain)
        {
            note.failure = Some(Failure { row, mark });
        }
    }

    fn lack(&mut self, part: &Part, row: Row, mark: Mark) {
        if let Some(note) = self.note(part) {
            note.lack.get_or_insert(Failure { row, mark });
        }
    }

    fn through_box(&mut self, part: &Part, box_part: &BoxPart, rows: Rows) -> Rows {
        let mut out = Rows::default();
        let Some(input) = &box_part.input else {
            if self.mode == Mode::Verify {
                let mark = Mark { certain: true, origin: part.span };
                box_part.outputs.iter().for_each(|row| {
                    out.add(row.clone(), mark);
                });
            }
            rows.into_iter().for_each(|(row, mark)| self.fail(part, row, mark));
            return out;
        };
        for (row, mark) in rows {
            if row.is_subtype_of(input) {
                self.put(
                    &mut out,
                    part,
                    &box_part.outputs,
                    row.past(&box_part.keeps),
                    mark.certain,
                );
            } else {
                self.fail(part, row, mark);
            }
        }
        out
    }

    fn through_filter(&mut self, part: &Part, filter: &FilterPart, rows: Rows) -> Rows {
        let mut out = Rows::default();
        for (row, mark) in rows {
            if row.binding() != filter.pattern.binding() || !row.includes(&filter.needs) {
                self.fail(part, row, mark);
                continue;
            }
            self.put(&mut out, part, &filter.outputs, row.past(&filter.pattern), mark.certain);
            if !row.includes(&filter.pattern) {
                self.lack(part, row, mark);
            }
        }
        out
    }

    /// Adds the outputs of a box or a filter, with the labels that flow past.
    fn put(&mut self, out: &mut Rows, part: &Part, outputs: &[Row], past: Row, certain: bool) {
        self.spend((outputs.len() * (1 + past.len())) as u64, part.span);
        for output in outputs {
            out.add(output.union(&past), Mark { certain, origin: part.span });
        }
    }

    /// A record may be stored and merged, or it may pass because its pattern has a record already.
    /// Of the merged records, only the record of the first pattern keeps its other labels.
    fn through_sync(&mut self, part: &Part, sync: &SyncPart, rows: Rows) -> Rows {
        self.came(part, &rows, sync.patterns.len());
        let mut out = Rows::default();
        // For each pattern, whether a row matches, and whether it is certain.
        let mut fits: Vec<Option<bool>> = vec![None; sync.patterns.len()];
        let mut kept = Vec::new(); // rows that match a pattern
        for (row, mark) in rows {
            let (mut some, mut all) = (false, true);
            for (fit, pattern) in fits.iter_mut().zip(&sync.patterns) {
                if row.is_subtype_of(&pattern.row) {
                    *fit = Some(fit.unwrap_or(false) | mark.certain);
                    some = true;
                } else {
                    all = false;
                }
            }
            if some {
                kept.push((row.clone(), mark));
            }
            // A row that matches all patterns or none certainly passes unchanged.
            out.add(row, Mark { certain: mark.certain && (all || !some), ..mark });
        }
        for (i, _) in fits.iter().enumerate().filter(|(_, fit)| fit.is_some()) {
            self.hit(part, i);
        }
        match self.mode {
            Mode::Infer => {
                for (row, mark) in kept {
                    // Labels beyond the patterns come from the record of the first pattern.
                    let first = row.is_subtype_of(&sync.patterns[0].row);
                    let merged = if first { row.union(&sync.all) } else { sync.all.clone() };
                    out.add(merged, Mark { certain: mark.certain && first, origin: part.span });
                }
            }
            Mode::Verify if fits.iter().all(Option::is_some) => {
                let certain = fits.iter().all(|fit| *fit == Some(true));
                for (row, mark) in kept {
                    if row.is_subtype_of(&sync.patterns[0].row) {
                        let mark = Mark { certain: certain && mark.certain, origin: part.span };
                        out.add(row.union(&sync.all), mark);
                    }
                }
            }
            Mode::Verify => {}
        }
        out
    }

    fn through_parallel(&mut self, part: &Part, branches: &[Rc<Part>], rows: Rows) -> Rows {
        self.came(part, &rows, branches.len());
        let mut routes: HashMap<usize, Rows> = HashMap::new();
        for (row, mark) in rows {
            let variants: usize = branches.iter().map(|b| taken(b).accepts.len()).sum();
            self.spend((variants + row.len()) as u64, part.span);
            match branch(branches, &row) {
                Some(i) => {
                    self.hit(part, i);
                    routes.entry(i).or_default().add(row, mark);
                }
                None => self.fail(part, row, mark),
            }
        }
        let mut out = Rows::default();
        for (i, operand) in branches.iter().enumerate() {
            let rows = routes.remove(&i).unwrap_or_default();
            out.add_all(self.through(operand, rows));
        }
        out
    }

    fn through_star(
        &mut self,
        part: &Part,
        operand: &Part,
        exits: &[PatternPart],
        rows: Rows,
    ) -> Rows {
        let mut out = Rows::default();
        let mut inside = Rows::default();
        let mut next = rows;
        let mut first = true;
        loop {
            let mut entered = Rows::default();
            for (row, mark) in next {
                let leaves = leaves(&row, exits);
                if leaves.may {
                    if !first {
                        self.hit(part, 0);
                    }
                    out.add(row.clone(), mark);
                }
                if !leaves.must && inside.add(row.clone(), mark) {
                    entered.add(row, mark);
                }
            }
            if first && !inside.is_empty() {
                self.came(part, &inside, 1);
            }
            first = false;
            if entered.is_empty() || !self.afford(&inside, part.span) {
                return out;
            }
            // Synchrocells can merge any rows inside the star.
            let together = operand.syncs && self.mode == Mode::Verify;
            next = self.through(operand, if together { inside.clone() } else { entered });
        }
    }

    fn through_split(&mut self, part: &Part, operand: &Part, tag: Label, rows: Rows) -> Rows {
        let mut inside = Rows::default();
        for (row, mark) in rows {
            if row.contains(tag) {
                inside.add(row, mark);
            } else {
                self.fail(part, row, mark);
            }
        }
        self.through(operand, inside)
    }

    fn through_feedback(
        &mut self,
        part: &Part,
        operand: &Part,
        patterns: &[PatternPart],
        rows: Rows,
    ) -> Rows {
        let mut out = Rows::default();
        let mut inside = Rows::default();
        let mut next = rows;
        loop {
            let mut entered = Rows::default();
            for (row, mark) in next {
                if inside.add(row.clone(), mark) {
                    entered.add(row, mark);
                }
            }
            if entered.is_empty()
                && !(inside.is_empty() && operand.starts && self.mode == Mode::Verify)
            {
                return out;
            }
            if !self.afford(&inside, operand.span) {
                return out;
            }
            let together = operand.syncs && self.mode == Mode::Verify;
            let made = self.through(operand, if together { inside.clone() } else { entered });
            if !made.is_empty() {
                self.came(part, &made, 1);
            }
            next = Rows::default();
            for (row, mark) in made {
                let back = leaves(&row, patterns);
                if !back.must {
                    self.hit(part, 0);
                    out.add(row.clone(), mark);
                }
                if back.may {
                    next.add(row, mark);
                }
            }
            if next.is_empty() {
                return out;
            }
        }
    }

    fn through_net(&mut self, part: &Part, net: &NetPart, rows: Rows) -> Rows {
        let rows = match &net.declared {
            None => rows,
            Some(declared) => {
                let mut taken = Rows::default();
                for (row, mark) in rows {
                    if row.is_one_of(declared.inputs().map(|(row, _)| row)) {
                        taken.add(row, mark);
                    } else {
                        self.fail(part, row, mark);
                    }
                }
                taken
            }
        };
        self.inside(net, rows)
    }

    /// Returns the output of a net for rows inside it. Results are stored and used again.
    pub(super) fn inside(&mut self, net: &NetPart, rows: Rows) -> Rows {
        let key =
            (net.number, rows.iter().map(|(row, mark)| (row.clone(), mark.certain)).collect());
        if let Some((out, failed)) = self.known.get(&key) {
            self.failed |= failed;
            return out.clone();
        }
        let before = std::mem::replace(&mut self.failed, false);
        let out = self.through(&net.body, rows);
        if self.gave_up.is_none() {
            self.known.insert(key, (out.clone(), self.failed));
        }
        self.failed |= before;
        out
    }
}

/// Returns the inferred type of a part.
pub(super) fn taken(part: &Part) -> &Type {
    part.takes.get().expect("the type of a part is inferred before rows flow through")
}

/// Returns the branch for a row, as [`ParallelPlan::branch`](crate::plan::ParallelPlan::branch).
pub(super) fn branch(branches: &[Rc<Part>], row: &Row) -> Option<usize> {
    let mut best: Option<(usize, usize)> = None; // labels, branch
    for (i, part) in branches.iter().enumerate() {
        for variant in taken(part).rows() {
            if best.is_none_or(|(labels, _)| variant.len() > labels) && row.is_subtype_of(variant) {
                best = Some((variant.len(), i));
            }
        }
    }
    best.map(|(_, branch)| branch)
}

/// Match of a row with patterns.
pub(super) struct Fit {
    /// Whether the row matches for some values.
    pub(super) may: bool,
    /// Whether the row matches for all values.
    pub(super) must: bool,
}

pub(super) fn leaves(row: &Row, patterns: &[PatternPart]) -> Fit {
    let mut fit = Fit { may: false, must: false };
    for pattern in patterns.iter().filter(|p| row.is_subtype_of(&p.row)) {
        fit.may = true;
        fit.must |= !pattern.guarded();
    }
    fit
}
