//! Measures subjects in turn (A B C A B C), so that a change of the machine affects all subjects.

use crate::line;
use crate::row::{Better, Series, Table, figure};
use crate::session::Session;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Measured {
    Value(f64),
    /// The run was ended at its limit. The true value is larger.
    Over(f64),
}

pub(crate) struct Subject<'a> {
    name: String,
    measure: Box<dyn FnMut() -> Result<Measured, String> + 'a>,
}

impl<'a> Subject<'a> {
    pub(crate) fn new(
        name: impl Into<String>,
        measure: impl FnMut() -> Result<Measured, String> + 'a,
    ) -> Self {
        Subject { name: name.into(), measure: Box::new(measure) }
    }
}

/// The values of all subjects in their order, and the cost of a cache line before each round.
pub(crate) struct Rounds {
    pub(crate) series: Vec<Series>,
    pub(crate) line_ns: Vec<f64>,
}

/// Measures the subjects of a case in turn, and emits their table.
pub(crate) fn measure(
    session: &Session,
    bench: &'static str,
    case: &str,
    (unit, better): (&'static str, Better),
    subjects: Vec<Subject>,
) {
    let Rounds { series, line_ns } = interleave(session, case, unit, subjects);
    session.emit(&Table { bench, case: case.to_owned(), unit, better, series, line_ns });
}

/// Measures each subject once per round. A subject that failed, or that was ended at its limit, is
/// not measured again in this case, because more rounds would only take time.
pub(crate) fn interleave(
    session: &Session,
    case: &str,
    unit: &str,
    mut subjects: Vec<Subject>,
) -> Rounds {
    let all: Vec<String> = subjects.iter().map(|s| s.name.clone()).collect();
    subjects.retain(|s| session.selects_subject(&s.name));
    if subjects.is_empty() {
        session.record_failure(format!(
            "{case}: no subject has this name; there are '{}'",
            all.join("', '")
        ));
    }
    let mut series: Vec<Series> =
        subjects.iter().map(|s| Series { subject: s.name.clone(), ..Series::default() }).collect();
    let mut out = vec![false; subjects.len()];
    let mut line_ns = Vec::new();
    for round in 1..=session.rounds() {
        line_ns.extend(line::cost_ns());
        for (i, subject) in
            subjects.iter_mut().enumerate().filter(|(i, _)| !out[*i]).collect::<Vec<_>>()
        {
            let measured = (subject.measure)();
            let shown = match measured {
                Ok(Measured::Value(value)) => {
                    series[i].values.push(value);
                    format!("{} {unit}", figure(value))
                }
                Ok(Measured::Over(value)) => {
                    series[i].values.push(value);
                    series[i].cut_runs += 1;
                    out[i] = true;
                    format!("over {} {unit}", figure(value))
                }
                Err(why) => {
                    out[i] = true;
                    session.record_failure(format!("{case}, {}: {why}", subject.name));
                    continue;
                }
            };
            session.report(&format!(
                "{case}, round {round} of {}: {} {shown}",
                session.rounds(),
                subject.name
            ));
        }
    }
    Rounds { series, line_ns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn interleave_takes_turns_and_drops_subjects_that_failed_or_were_cut() {
        let session = Session::new(false, true, None, Vec::new()).unwrap();
        let order = RefCell::new(String::new());
        let subject = |name: &'static str, measured: Result<Measured, String>| {
            let order = &order;
            Subject::new(name, move || {
                order.borrow_mut().push_str(name);
                measured.clone()
            })
        };
        let subjects = vec![
            subject("a", Ok(Measured::Value(1.0))),
            subject("b", Ok(Measured::Over(20.0))),
            subject("c", Err("wrong".into())),
            subject("d", Ok(Measured::Value(2.0))),
        ];
        let rounds = interleave(&session, "case", "s", subjects);
        assert_eq!(order.take(), "abcdadadadad");
        assert_eq!((rounds.series[0].values.len(), rounds.series[1].cut_runs), (5, 1));
        assert!(rounds.series[2].values.is_empty());
        assert_eq!(session.failures(), ["case, c: wrong"]);
    }
}
