//! Exports calls as a log for the tools of Kieker.
//!
//! The format is that of the file writer of Kieker 1.13: `kieker.map` assigns numbers to classes of
//! records, and each line of the `.dat` file is a record (`kieker.common.record.flow.trace`). Names
//! are written as in Java: `bank::Account::pay` becomes `bank.Account.pay()`. A run of calls is a
//! trace of Kieker. The parent of a handed-over run is the trace of its caller.
//!
//! `java -cp kieker-1.13-emf.jar kieker.tools.traceAnalysis.TraceAnalysisTool -i FOLDER -o OTHER
//! --plot-Deployment-Component-Dependency-Graph none` draws the log.

use crate::call::{Calls, Operation, Outcome};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Classes of records, by number.
const MAP: &str = "\
    $0=kieker.common.record.misc.KiekerMetadataRecord\n\
    $1=kieker.common.record.flow.trace.TraceMetadata\n\
    $2=kieker.common.record.flow.trace.operation.BeforeOperationEvent\n\
    $3=kieker.common.record.flow.trace.operation.AfterOperationEvent\n\
    $4=kieker.common.record.flow.trace.operation.AfterOperationFailedEvent\n";

/// Writes `kieker.map` and `kieker-1.dat` into a folder, which is created if necessary.
///
/// Calls that did not return are written as failed, with the reason.
///
/// # Errors
///
/// The folder cannot be written.
pub fn export(calls: &Calls, host: &str, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("kieker.map"), MAP)?;
    let mut log = BufWriter::new(File::create(folder.join("kieker-1.dat"))?);
    write(calls, host, &mut log)?;
    log.flush()
}

/// Writes the lines of the `.dat` file.
///
/// # Errors
///
/// The output cannot be written.
pub fn write(calls: &Calls, host: &str, log: &mut impl Write) -> io::Result<()> {
    let host = plain(host);
    let real_ns = |ns: u64| ns.saturating_add_signed(calls.real_offset_ns());
    let begin_ns = real_ns(calls.calls().first().map_or(0, |call| call.begin_ns));
    let records = calls.traces() as usize + 2 * calls.calls().len() + 1;
    writeln!(log, "$0;{begin_ns};1.13;corebeat;{host};1;false;0;NANOSECONDS;{records}")?;
    // Position of each call in its trace.
    let mut orders = vec![0u32; calls.calls().len()];
    for (trace, run) in calls.runs().iter().enumerate() {
        let Some(root) = run.first().map(|number| &calls.calls()[*number as usize]) else {
            continue;
        };
        let (parent_trace, parent_order) = match root.parent {
            Some(parent) => (
                i64::from(calls.calls()[parent as usize].trace),
                i64::from(orders[parent as usize]),
            ),
            None => (-1, -1),
        };
        let (tid, _) = calls.thread(root.thread);
        let at_ns = real_ns(root.begin_ns);
        writeln!(
            log,
            "$1;{at_ns};{trace};{tid};<no-session-id>;{host};{parent_trace};{parent_order}"
        )?;
        for (order, (number, enters)) in (0u32..).zip(calls.steps(run)) {
            let call = &calls.calls()[number as usize];
            let at_ns = real_ns(if enters { call.begin_ns } else { call.end_ns });
            let (class, function) = names(calls.operation(call));
            let (record, cause) = match (enters, call.outcome) {
                (true, _) => (2, String::new()),
                (false, Outcome::Returned) => (3, String::new()),
                (false, outcome) => (4, format!(";{}", outcome.remark())),
            };
            if enters {
                orders[number as usize] = order;
            }
            writeln!(
                log,
                "${record};{at_ns};{at_ns};{trace};{order};{class}.{function}();{class}{cause}"
            )?;
        }
    }
    Ok(())
}

/// Class and operation in the notation of Java: without type parameters; for `<Type as Trait>` only
/// the type.
fn names(operation: &Operation) -> (String, String) {
    let place = operation.place().trim_start_matches('<');
    let place = place.split_once(" as ").map_or(place, |(of, _)| of);
    let place = place.split(['<', '>']).find(|part| !part.is_empty()).unwrap_or("program");
    let place = place.trim_end_matches("::").replace("::", ".");
    let class = place.split('.').map(plain).collect::<Vec<_>>().join(".");
    (class, plain(operation.function()))
}

/// Replaces the characters that Kieker does not accept in a name.
fn plain(text: &str) -> String {
    let word: String = text
        .chars()
        .map(|c| if c.is_alphanumeric() || "_-$".contains(c) { c } else { '_' })
        .collect();
    if word.is_empty() { "_".into() } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_notation_of_java() {
        let java = |name: &str| {
            let (class, function) = names(&Operation { name: name.into(), ..Operation::default() });
            format!("{class}.{function}")
        };
        assert_eq!(java("bank::Account::pay"), "bank.Account.pay");
        assert_eq!(java("<bank::Account<u8> as shop::Pay>::pay"), "bank.Account.pay");
        assert_eq!(java("bank::Account<a::B>::pay"), "bank.Account.pay");
        assert_eq!(java("main"), "program.main");
        assert_eq!(java("a::read; all\n"), "a.read__all_");
        assert_eq!(java("<&[u8] as a::B>::c"), "__u8_.c");
        assert_eq!(java("::"), "program._");
    }
}
