//! `corebeat rewrite query --changes`: rows that appear and disappear.

use crate::print;
use crate::report::Reporter;
use crate::source::failure;
use corebeat_command::Failure;
use corebeat_rewrite::{Apply, Control, Graph, LiveQuery, Options, Rule, Table, Value, run};
use std::collections::HashMap;

/// Evaluates queries, applies changes one after another, and prints the rows that each change adds
/// to the results and removes from them.
pub(crate) fn follow(
    graph: &mut Graph,
    queries: &[Rule],
    changes: &[Rule],
    reporter: &Reporter,
    is_json: bool,
) -> Result<(), Failure> {
    if let Some(rule) = queries.iter().find(|rule| !rule.returns()) {
        let why = format!("{} has no RETURN; move changes to the file of --changes", rule.name());
        return Err(Failure::data(why));
    }
    if let Some(rule) = changes.iter().find(|rule| rule.returns()) {
        let why = format!("{} changes nothing; move queries out of --changes", rule.name());
        return Err(Failure::data(why));
    }
    let how = reporter.run_options();
    let mut live = Vec::new();
    for rule in queries {
        let query = LiveQuery::new(graph, rule).map_err(failure)?;
        let table = query.table();
        reporter.clear();
        match is_json {
            true => {
                let rows = missing(&table, &Table::default());
                print::difference((rule.name(), None), &table.columns, &[], &rows, true)?;
            }
            false => print::table(&table, false)?,
        }
        live.push((rule, query, table));
    }
    for change in changes {
        apply(graph, change, &how)?;
        for (rule, query, table) in &mut live {
            query.update(graph).map_err(failure)?;
            let new = query.table();
            let (gone, added) = (missing(table, &new), missing(&new, table));
            if !gone.is_empty() || !added.is_empty() {
                reporter.clear();
                let place = (rule.name(), Some(change.name()));
                print::difference(place, &new.columns, &gone, &added, is_json)?;
            }
            *table = new;
        }
    }
    Ok(())
}

/// Applies a change to all of its matches that do not overlap.
fn apply(graph: &mut Graph, change: &Rule, how: &Options) -> Result<(), Failure> {
    let rules = std::slice::from_ref(change);
    run(graph, rules, &Control::Rule(0, Apply::All), how).map_err(failure).map(drop)
}

/// The rows of a table that another one has less often.
fn missing<'a>(of: &'a Table, from: &Table) -> Vec<&'a [Value]> {
    // Values have no hash: a float may be NaN.
    let key = |row: &[Value]| format!("{row:?}");
    let mut rest = HashMap::<String, usize>::new();
    from.rows.iter().for_each(|row| *rest.entry(key(row)).or_default() += 1);
    let is_missing = |row: &&[Value]| match rest.get_mut(&key(row)) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    of.rows.iter().map(Vec::as_slice).filter(is_missing).collect()
}
