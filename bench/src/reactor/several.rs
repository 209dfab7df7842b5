//! Cases of which one run yields several quantities, each with a table of its own.

use crate::round::{Measured, Rounds, Subject as Turn, interleave};
use crate::row::{Better, Series, Table};
use crate::session::Session;
use std::cell::RefCell;

/// A quantity. Its name follows that of the case.
pub(super) struct Quantity {
    pub(super) name: String,
    pub(super) unit: &'static str,
    pub(super) better: Better,
}

/// A subject, whose runs return the values of the quantities in their order.
pub(super) struct Subject<'a> {
    pub(super) name: String,
    pub(super) run: Box<dyn FnMut() -> Result<Vec<f64>, String> + 'a>,
}

/// Returns the names of the tables of a case.
pub(super) fn names(case: &str, quantities: &[Quantity]) -> Vec<String> {
    quantities.iter().map(|quantity| format!("{case}, {}", quantity.name)).collect()
}

/// Measures the subjects in turn, and emits the selected tables of the case.
pub(super) fn measure(
    session: &Session,
    bench: &'static str,
    case: &str,
    quantities: &[Quantity],
    subjects: Vec<Subject<'_>>,
) {
    let tables = names(case, quantities);
    let [first, ..] = quantities else { return };
    if !tables.iter().any(|table| session.selects(table)) {
        return;
    }
    let runs: Vec<RefCell<Vec<Vec<f64>>>> = subjects.iter().map(|_| RefCell::default()).collect();
    let all: Vec<String> = subjects.iter().map(|subject| subject.name.clone()).collect();
    let turns =
        subjects.into_iter().zip(&runs).map(|(subject, runs)| turn(subject, runs)).collect();
    let Rounds { series, line_ns } = interleave(session, case, first.unit, turns);
    let of = |series: &Series, at: usize| {
        let runs = all.iter().position(|name| *name == series.subject).map(|n| &runs[n]);
        let values = runs.map(|runs| runs.borrow().iter().map(|run| run[at]).collect());
        Series { subject: series.subject.clone(), values: values.unwrap_or_default(), cut_runs: 0 }
    };
    for (at, (quantity, case)) in quantities.iter().zip(tables).enumerate() {
        if session.selects(&case) {
            let Quantity { unit, better, .. } = *quantity;
            let series = series.iter().map(|series| of(series, at)).collect();
            session.emit(&Table { bench, case, unit, better, series, line_ns: line_ns.clone() });
        }
    }
}

/// Returns a subject whose value is the first quantity, and which keeps all of them.
fn turn<'a>(subject: Subject<'a>, runs: &'a RefCell<Vec<Vec<f64>>>) -> Turn<'a> {
    let Subject { name, mut run } = subject;
    Turn::new(name, move || {
        let values = run()?;
        let value = *values.first().ok_or("the run has no value")?;
        runs.borrow_mut().push(values);
        Ok(Measured::Value(value))
    })
}
