//! The columns beside the bar: their contents, their format, and the order of rows by a column.

use crate::process::Process;
use crate::server::Served;
use crate::view::{Figures, Program, Thread};
use corebeat_machine::CpuId;
use std::borrow::Cow;
use std::cmp::Ordering;

/// Contents of a row: a thread or a program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cells<'a> {
    pub(crate) id: i32,
    pub(crate) name: &'a str,
    /// The process, unless it is the one in the row of the program.
    pub(crate) process: Option<&'a Process>,
    /// Number of threads, in the row of a program.
    pub(crate) threads: Option<usize>,
    /// Last CPU, in the row of a thread.
    pub(crate) cpu: Option<CpuId>,
    pub(crate) figures: &'a Figures,
    /// The servers of the program, in its row.
    pub(crate) server: Option<&'a Served>,
}

impl<'a> From<&'a Program> for Cells<'a> {
    fn from(p: &'a Program) -> Self {
        Cells {
            id: p.pid,
            name: &p.name,
            process: Some(&p.process),
            threads: Some(p.threads.len()),
            cpu: None,
            figures: &p.figures,
            server: p.server.as_ref(),
        }
    }
}

impl<'a> Cells<'a> {
    /// The row of a thread below the row of its program.
    pub(crate) fn of_thread(t: &'a Thread, program: &Program) -> Self {
        Cells {
            id: t.tid,
            name: &t.name,
            process: Some(&t.process).filter(|_| t.pid != program.pid),
            threads: None,
            cpu: t.cpu,
            figures: &t.figures,
            server: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    Id,
    User,
    Name,
    Threads,
    Cpu,
    Lock,
    Wait,
    Spin,
    Park,
    Voluntary,
    Involuntary,
    Migrations,
    Misses,
    LastCpu,
    Connections,
    Requests,
    Server,
    Function,
    Command,
}

impl Column {
    /// Columns beside number, name, CPU and bar, in the order in which they are added to a line.
    pub(crate) const EXTRA: [Column; 16] = [
        Column::User,
        Column::Requests,
        Column::Connections,
        Column::Server,
        Column::Lock,
        Column::Wait,
        Column::Spin,
        Column::Command,
        Column::Function,
        Column::Voluntary,
        Column::Involuntary,
        Column::Migrations,
        Column::Park,
        Column::Threads,
        Column::LastCpu,
        Column::Misses,
    ];

    /// Columns that can determine the order of rows, in the order in which a key selects them.
    pub(crate) const SORTS: [Column; 17] = [
        Column::Cpu,
        Column::Lock,
        Column::Wait,
        Column::Spin,
        Column::Function,
        Column::Voluntary,
        Column::Involuntary,
        Column::Migrations,
        Column::Misses,
        Column::Park,
        Column::Threads,
        Column::Requests,
        Column::Connections,
        Column::User,
        Column::Name,
        Column::Command,
        Column::Id,
    ];

    /// Title, and width in characters; the smallest width for texts.
    fn head(self) -> (&'static str, u16) {
        match self {
            Column::Id => ("ID", 7),
            Column::User => ("USER", 8),
            Column::Name => ("NAME", 10),
            Column::Threads => ("THR", 4),
            Column::Cpu => ("CPU%", 6),
            Column::Lock => ("LOCK%", 6),
            Column::Wait => ("WAIT%", 6),
            Column::Spin => ("SPIN%", 6),
            Column::Park => ("PARK%", 6),
            Column::Voluntary => ("VOL/s", 6),
            Column::Involuntary => ("INV/s", 6),
            Column::Migrations => ("MIG/s", 6),
            Column::Misses => ("MISS%", 6),
            Column::LastCpu => ("ON", 4),
            Column::Connections => ("CONN", 6),
            Column::Requests => ("REQ/s", 7),
            Column::Server => ("SERVER", 18),
            Column::Function => ("SPINNING IN", 12),
            Column::Command => ("COMMAND", 12),
        }
    }

    pub(crate) fn title(self) -> &'static str {
        self.head().0
    }

    pub(crate) fn width(self) -> u16 {
        self.head().1
    }

    /// Number in the column, if known.
    fn value(self, row: &Cells, span_s: f64) -> Option<f64> {
        let Figures { cpus_busy, shares, counters, .. } = row.figures;
        let rate = |count: Option<u64>| count.filter(|_| span_s > 0.0).map(|n| n as f64 / span_s);
        match self {
            Column::Id => Some(f64::from(row.id)),
            Column::User | Column::Name | Column::Function | Column::Command => None,
            Column::Server => None,
            Column::Connections => row.server.map(|server| server.connections as f64),
            Column::Requests => row.server.map(|server| server.requests_per_s),
            Column::Threads => row.threads.map(|n| n as f64),
            Column::Cpu => cpus_busy.map(|c| c * 100.0),
            Column::Lock => shares.lock.map(|s| s * 100.0),
            Column::Wait => shares.wait.map(|s| s * 100.0),
            Column::Spin => shares.spin.map(|s| s * 100.0),
            Column::Park => shares.park.map(|s| s * 100.0),
            Column::Voluntary => rate(counters.voluntary_switches),
            Column::Involuntary => rate(counters.involuntary_switches),
            Column::Migrations => rate(counters.migrations),
            Column::Misses => {
                let of = counters.cache_references.filter(|&r| r > 0)? as f64;
                Some(counters.cache_misses? as f64 / of * 100.0)
            }
            Column::LastCpu => row.cpu.map(|c| f64::from(c.0)),
        }
    }

    /// Text that determines the order, if known. `None` for a column of numbers.
    fn label<'a>(self, row: &Cells<'a>) -> Option<Cow<'a, str>> {
        match self {
            Column::Name => Some(row.name.into()),
            Column::User => Some(row.process?.user.as_deref()?.into()),
            Column::Function => Some(row.figures.spin_function.as_ref()?.short().into()),
            Column::Command => Some(row.process?.command.as_deref()?.into()),
            _ => None,
        }
    }

    /// Text in the column.
    pub(crate) fn text(self, row: &Cells, span_s: f64) -> String {
        let value = self.value(row, span_s);
        match self {
            // The program's row has the process of its threads.
            Column::User | Column::Command if row.process.is_none() => String::new(),
            Column::Command => {
                self.label(row).map_or_else(|| format!("[{}]", row.name), Cow::into_owned)
            }
            Column::User | Column::Name => self.label(row).unwrap_or("-".into()).into_owned(),
            // A program that does not spin has no function.
            Column::Function => self.label(row).unwrap_or_default().into_owned(),
            // A program has no last CPU, and a thread has no number of threads.
            Column::LastCpu if row.threads.is_some() => String::new(),
            Column::Threads if row.threads.is_none() => String::new(),
            // Most programs have no server.
            Column::Server => row.server.map_or_else(String::new, Served::variant),
            Column::Connections | Column::Requests if row.server.is_none() => String::new(),
            Column::Connections | Column::Requests => whole(value),
            Column::Id | Column::Threads | Column::LastCpu => whole(value),
            Column::Voluntary | Column::Involuntary | Column::Migrations => whole(value),
            _ => value.map_or_else(
                || "-".into(),
                |v| if v < 9999.0 { format!("{v:.1}") } else { format!("{v:.0}") },
            ),
        }
    }

    /// Order of two rows: largest values first, numbers and names ascending, unknown values last.
    pub(crate) fn order(self, a: &Cells, b: &Cells, span_s: f64, reversed: bool) -> Ordering {
        let flip = |order: Ordering| if reversed { order.reverse() } else { order };
        let order = match self {
            Column::User | Column::Name | Column::Function | Column::Command => {
                match (self.label(a), self.label(b)) {
                    (Some(x), Some(y)) => flip(x.cmp(&y)),
                    (x, y) => y.is_some().cmp(&x.is_some()),
                }
            }
            _ => match (self.value(a, span_s), self.value(b, span_s)) {
                (Some(x), Some(y)) if self == Column::Id => flip(x.total_cmp(&y)),
                (Some(x), Some(y)) => flip(y.total_cmp(&x)),
                (x, y) => y.is_some().cmp(&x.is_some()),
            },
        };
        order.then(a.id.cmp(&b.id))
    }
}

/// A whole number in at most six characters.
fn whole(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(v) if v < 999_999.5 => format!("{v:.0}"),
        Some(v) => format!("{:.1}M", v / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::{snapshot, thread, unknown_thread};
    use corebeat_linux::Function;

    fn program() -> Program {
        let threads = vec![
            thread(1, 1, "b", [0.1, 0.0, 0.5, 0.0]),
            thread(1, 2, "c", [0.9, 0.0, 0.0, 0.0]),
            thread(1, 3, "a", [0.5, 0.0, 0.1, 0.2]),
            unknown_thread(1, 4),
        ];
        Program::whole(1, &snapshot(threads).programs[0], 1_000_000_000)
    }

    fn sorted(column: Column, reversed: bool) -> Vec<i32> {
        let program = program();
        let mut rows: Vec<Cells> =
            program.threads.iter().map(|t| Cells::of_thread(t, &program)).collect();
        rows.sort_by(|a, b| column.order(a, b, 1.0, reversed));
        rows.iter().map(|r| r.id).collect()
    }

    #[test]
    fn rows_are_sorted_with_the_largest_first_and_unknown_last() {
        assert_eq!(sorted(Column::Cpu, false), [2, 3, 1, 4]);
        assert_eq!(sorted(Column::Cpu, true), [1, 3, 2, 4]);
        assert_eq!(sorted(Column::Lock, false), [1, 3, 2, 4]);
        assert_eq!(sorted(Column::Wait, false), [3, 1, 2, 4], "equal values by number");
        assert_eq!(sorted(Column::Voluntary, false), [1, 2, 3, 4]);
    }

    #[test]
    fn rows_are_sorted_by_name_and_number_ascending() {
        assert_eq!(sorted(Column::Name, false), [3, 1, 2, 4]);
        assert_eq!(sorted(Column::Name, true), [4, 2, 1, 3]);
        assert_eq!(sorted(Column::Id, false), [1, 2, 3, 4]);
        assert_eq!(sorted(Column::Id, true), [4, 3, 2, 1]);
    }

    #[test]
    fn text_of_an_unknown_value_is_a_dash() {
        let program = program();
        let text = |row: usize, column: Column| {
            column.text(&Cells::of_thread(&program.threads[row], &program), 2.0)
        };
        assert_eq!(text(3, Column::Cpu), "-");
        assert_eq!(text(3, Column::Voluntary), "-");
        assert_eq!((text(0, Column::Cpu), text(0, Column::Voluntary)), ("10.0".into(), "5".into()));
        assert_eq!(text(0, Column::LastCpu), "1");
        assert_eq!(Column::Threads.text(&Cells::from(&program), 1.0), "4");
        assert_eq!(whole(Some(12_345_678.0)), "12.3M");
    }

    #[test]
    fn every_extra_column_fits_its_title() {
        for column in Column::EXTRA {
            assert!(column.title().len() < usize::from(column.width()), "{column:?}");
        }
    }

    #[test]
    fn rows_are_sorted_by_the_function_in_which_they_spin() {
        let mut program = program();
        let function = |name: &str| {
            Some(Function::Named { name: name.into(), file: "/lib/libgomp.so.1".into() })
        };
        program.threads[0].figures.spin_function = function("gomp_barrier_wait_end");
        program.threads[2].figures.spin_function = function("do_spin");
        let mut rows: Vec<Cells> =
            program.threads.iter().map(|t| Cells::of_thread(t, &program)).collect();
        rows.sort_by(|a, b| Column::Function.order(a, b, 1.0, false));
        assert_eq!(rows.iter().map(|r| r.id).collect::<Vec<_>>(), [3, 1, 2, 4]);
        let texts: Vec<String> = rows.iter().map(|r| Column::Function.text(r, 1.0)).collect();
        assert_eq!(texts, ["do_spin", "gomp_barrier_wait_end", "", ""]);
    }
}
