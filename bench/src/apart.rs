//! Subjects that do the same work, each in a separate process that prints a value and a checksum. A
//! subject is a part of this program or a program in another language.

use crate::child::{Ended, Running, last_line};
use crate::program::{threads, word_after};
use crate::round::{self, Measured, Subject as Turn};
use crate::row::Better;
use crate::session::Session;
use clap::ValueEnum;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

/// The limit of a run.
pub(crate) const RUN_MAX: Duration = Duration::from_secs(120);

/// The same work for several subjects.
pub(crate) struct Case<S, L> {
    pub(crate) name: String,
    /// The name in tables, the subject, and its load. Loads may differ.
    pub(crate) subjects: Vec<(String, S, L)>,
}

impl<S: ValueEnum, L: Clone> Case<S, L> {
    /// A case in which each subject has its own name, and all subjects have the same load.
    pub(crate) fn new<'a>(
        case: impl Into<String>,
        subjects: impl IntoIterator<Item = &'a S>,
        load: L,
    ) -> Self
    where
        S: 'a,
    {
        let subjects = subjects.into_iter().map(|s| (name(s), s.clone(), load.clone()));
        Case { name: case.into(), subjects: subjects.collect() }
    }
}

pub(crate) fn names<S, L>(cases: &[Case<S, L>]) -> Vec<String> {
    cases.iter().map(|case| case.name.clone()).collect()
}

pub(crate) fn count_workers(n: usize) -> String {
    if n == 1 { "1 worker".into() } else { format!("{n} workers") }
}

/// The name of a subject, a work or a figure.
pub(crate) fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
}

/// Measures the selected cases, each with the subjects of `turns`, and emits their tables.
pub(crate) fn measure<'a, S, L>(
    session: &'a Session,
    bench: &'static str,
    unit: impl Fn(&Case<S, L>) -> (&'static str, Better),
    cases: &'a [Case<S, L>],
    turns: impl Fn(&'a Case<S, L>) -> Result<Vec<Turn<'a>>, String>,
) -> Result<(), String> {
    for case in cases.iter().filter(|case| session.selects(&case.name)) {
        round::measure(session, bench, &case.name, unit(case), turns(case)?);
    }
    Ok(())
}

/// Measures the selected cases, each subject with one function, and emits their tables.
pub(crate) fn measure_each<S: Copy, L: Copy>(
    session: &Session,
    bench: &'static str,
    unit: impl Fn(&Case<S, L>) -> (&'static str, Better),
    cases: &[Case<S, L>],
    run: impl Fn(S, L) -> Result<Measured, String>,
) -> Result<(), String> {
    let run = &run;
    measure(session, bench, unit, cases, |case| {
        let turn = |(name, subject, load): &'_ (String, S, L)| {
            let (subject, load) = (*subject, *load);
            Turn::new(name, move || run(subject, load))
        };
        Ok(case.subjects.iter().map(turn).collect())
    })
}

/// The powers of two from 1 to the number of CPUs of this process: 1 and 2 on two CPUs.
pub(crate) fn thread_counts(session: &Session) -> impl Iterator<Item = usize> + Clone + use<> {
    let cpus = session.cpus;
    (0..usize::BITS).map(|power| 1 << power).take_while(move |&count| count <= cpus)
}

/// The names of the cases of [`measure_threads`].
pub(crate) fn thread_cases(session: &Session) -> Vec<String> {
    thread_counts(session).map(threads).collect()
}

/// Measures nanoseconds of subjects with each of [`thread_counts`], and emits their tables.
pub(crate) fn measure_threads<S: ValueEnum + Copy>(
    session: &Session,
    bench: &'static str,
    unit: &'static str,
    does: impl Fn(S) -> bool,
    run: impl Fn(S, usize) -> Result<Measured, String>,
) -> Result<(), String> {
    let subjects: Vec<S> = S::value_variants().iter().copied().filter(|&s| does(s)).collect();
    let case = |count| Case::new(threads(count), &subjects, count);
    let cases: Vec<Case<S, usize>> = thread_counts(session).map(case).collect();
    measure_each(session, bench, |_| (unit, Better::Lower), &cases, run)
}

/// A part of this program, which computes a value and a checksum from its options.
pub(crate) type Part = fn(&str) -> Result<(f64, u64), String>;

/// The command that runs a part of this program.
pub(crate) fn command(
    session: &Session,
    part: &str,
    options: &impl Serialize,
) -> Result<Command, String> {
    let mut command = Command::new(own_path()?);
    command.env("TMPDIR", session.folder()).args(["subject", part]);
    command.arg(serde_json::to_string(options).map_err(|e| e.to_string())?);
    Ok(command)
}

/// The options that [`command`] passes to a part.
pub(crate) fn options<T: DeserializeOwned>(json: &str) -> Result<T, String> {
    serde_json::from_str(json).map_err(|e| format!("cannot parse the options '{json}': {e}"))
}

/// The path of this program.
pub(crate) fn own_path() -> Result<String, String> {
    let path = std::env::current_exe()
        .map_err(|e| format!("cannot find the path of this program: {e}"))?;
    Ok(path.to_string_lossy().into_owned())
}

/// The output of a subject.
pub(crate) struct Printed {
    pub(crate) value: f64,
    pub(crate) checksum: String,
    text: String,
}

impl Printed {
    /// The output of a subject that ended by itself within [`RUN_MAX`].
    pub(crate) fn new(ended: Ended) -> Result<Printed, String> {
        if ended.status.is_none() {
            return Err(format!("the subject did not end within {RUN_MAX:?}"));
        }
        ended.check()?;
        let text = ended.stdout;
        Ok(Printed { value: word(&text, "value ")?, checksum: word(&text, "checksum ")?, text })
    }

    /// The number after the first occurrence of a text.
    pub(crate) fn number(&self, before: &str) -> Result<f64, String> {
        word(&self.text, before)
    }
}

fn word<T: FromStr>(text: &str, before: &str) -> Result<T, String> {
    let word = word_after(text, before).ok_or_else(|| {
        format!("the subject did not print '{before}'; its last line is: {}", last_line(text))
    })?;
    word.parse().map_err(|_| format!("'{word}' after '{before}' is not a number"))
}

pub(crate) fn run(command: Command) -> Result<Printed, String> {
    Printed::new(Running::start(command, false)?.wait(RUN_MAX)?)
}

/// Runs a subject that checks its results itself, and returns its value.
pub(crate) fn value(command: Command) -> Result<Measured, String> {
    Ok(Measured::Value(run(command)?.value))
}
