//! Answers to programs that count CPUs, so that they start as many threads as can run.
//!
//! A program counts CPUs by itself, or reads the variable of its runtime. [`VARIABLES`] lists the
//! variables with the count of each runtime; `docs/cpus.md` has the sources. The preloaded library
//! answers `sysconf(_SC_NPROCESSORS_ONLN)`, `get_nprocs` and `omp_get_num_procs`.
//!
//! An answer is given only where the program would count more CPUs than it may use. An unlimited
//! program therefore keeps its environment.

use crate::Allowance;
use serde::Serialize;
use std::ffi::{OsStr, OsString};

/// Variable with the largest count that the preloaded library answers (`preload/team.c`).
const LIBRARY_VARIABLE: &str = "COREBEAT_CPUS";
/// Name of the library's answer in a report.
const LIBRARY_ANSWER: &str = "sysconf(_SC_NPROCESSORS_ONLN)";

/// CPUs that a runtime counts without its variable. Of several versions, the largest count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    /// The online CPUs of the host.
    Online,
    /// The CPUs of the affinity mask and the cpuset.
    Affinity,
    /// Also the quota of the control group, or one thread: never more than the program may use.
    Usable,
}

/// A variable that sets the thread count of a runtime.
#[derive(Debug)]
struct Variable {
    name: &'static str,
    count: Count,
    /// Variables of the user that the runtime reads where `name` is not set.
    others: &'static [&'static str],
    /// Smallest answer, for a runtime that is slower with fewer threads than it would start.
    least: usize,
}

const fn variable(name: &'static str, count: Count, others: &'static [&'static str]) -> Variable {
    Variable { name, count, others, least: 1 }
}

/// Every variable that Corebeat sets or, with `--override`, lowers. A user's value of the first one
/// is always lowered.
const VARIABLES: [Variable; 14] = [
    variable("OMP_NUM_THREADS", Count::Affinity, &[]),
    variable(
        "OPENBLAS_NUM_THREADS",
        Count::Affinity,
        &["OPENBLAS_DEFAULT_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"],
    ),
    variable("MKL_NUM_THREADS", Count::Affinity, &["MKL_DOMAIN_NUM_THREADS", "OMP_NUM_THREADS"]),
    variable("NUMEXPR_MAX_THREADS", Count::Online, &["NUMEXPR_NUM_THREADS", "OMP_NUM_THREADS"]),
    variable("NUMBA_NUM_THREADS", Count::Affinity, &[]),
    variable("LOKY_MAX_CPU_COUNT", Count::Affinity, &[]),
    // Go itself counts at least 2 under a quota.
    Variable { least: 2, ..variable("GOMAXPROCS", Count::Affinity, &[]) },
    variable("PYTHON_CPU_COUNT", Count::Online, &[]),
    variable("RAYON_NUM_THREADS", Count::Usable, &[]),
    variable("TOKIO_WORKER_THREADS", Count::Usable, &[]),
    variable("POLARS_MAX_THREADS", Count::Usable, &[]),
    variable("DOTNET_PROCESSOR_COUNT", Count::Usable, &[]),
    variable("BLIS_NUM_THREADS", Count::Usable, &[]),
    variable("JULIA_NUM_THREADS", Count::Usable, &[]),
];

/// An answer to programs that count CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// Variable or function.
    pub name: &'static str,
    /// The answer: a number, or a list that begins with the number.
    pub value: String,
    /// The user's value of the variable, if Corebeat has lowered it.
    pub replaced: Option<String>,
}

impl Answer {
    /// Returns the environment variable that gives this answer, and its value.
    pub fn variable(&self) -> (OsString, OsString) {
        let name = if self.name == LIBRARY_ANSWER { LIBRARY_VARIABLE } else { self.name };
        (name.into(), self.value.clone().into())
    }
}

/// Returns the answers for programs with this allowance, on a host with this number of online CPUs.
///
/// `current` returns the user's value of a variable, which stays, with two exceptions: a value of
/// `OMP_NUM_THREADS` above the allowance is lowered, and with `overrides` the value of each
/// variable. `library` is set if the programs load the preloaded library.
pub fn answers(
    allowance: &Allowance,
    online: usize,
    current: impl Fn(&str) -> Option<OsString>,
    overrides: bool,
    library: bool,
) -> Vec<Answer> {
    let usable = allowance.threads_max();
    let counted = |count| match count {
        Count::Online => online.max(allowance.cpus.len()),
        Count::Affinity => allowance.cpus.len(),
        Count::Usable => usable,
    };
    let answer = |variable: &Variable| {
        let Variable { name, count, others, least } = *variable;
        let value = usable.max(least.min(allowance.cpus.len()));
        if let Some(asked) = current(name) {
            let is_lowered = overrides || name == "OMP_NUM_THREADS";
            let value = is_lowered.then(|| lowered(&asked, value)).flatten()?;
            return Some(Answer { name, value, replaced: Some(asked.into_string().ok()?) });
        }
        let is_chosen = !overrides && others.iter().any(|other| current(other).is_some());
        (value < counted(count) && !is_chosen).then(|| Answer {
            name,
            value: value.to_string(),
            replaced: None,
        })
    };
    let by_library = (library && usable < counted(Count::Online)).then(|| Answer {
        name: LIBRARY_ANSWER,
        value: usable.to_string(),
        replaced: None,
    });
    VARIABLES.iter().filter_map(answer).chain(by_library).collect()
}

/// Returns a list of thread counts with its first number lowered; `None` if the number is not
/// larger. Only the first number of a list concerns outermost teams. An invalid text stays, so that
/// the runtime reports it as usual.
fn lowered(asked: &OsStr, usable: usize) -> Option<String> {
    let numbers: Option<Vec<u64>> = asked
        .to_str()?
        .split(',')
        .map(|n| n.trim().parse().ok().filter(|&n: &u64| n > 0))
        .collect();
    match numbers?.as_slice() {
        [first, rest @ ..] if *first > usable as u64 => {
            Some(rest.iter().fold(usable.to_string(), |list, n| format!("{list},{n}")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(
        cpus: &str,
        quota: Option<f64>,
        user: &[(&str, &str)],
        overrides: bool,
    ) -> Vec<Answer> {
        let allowance = Allowance { cpus: cpus.parse().unwrap(), quota };
        let current =
            |name: &str| user.iter().find(|(set, _)| *set == name).map(|(_, v)| OsString::from(v));
        answers(&allowance, 4, current, overrides, true)
    }

    fn names(answers: &[Answer]) -> Vec<&'static str> {
        answers.iter().map(|answer| answer.name).collect()
    }

    #[test]
    fn unlimited_program_gets_no_answer() {
        assert_eq!(given("0-3", None, &[], false), []);
        assert_eq!(given("0-3", Some(3.5), &[], true), []);
        assert_eq!(given("0-3", None, &[("OMP_NUM_THREADS", "4")], true), []);
    }

    #[test]
    fn answers_go_to_runtimes_that_count_more_cpus() {
        let affinity = ["NUMEXPR_MAX_THREADS", "PYTHON_CPU_COUNT", LIBRARY_ANSWER];
        assert_eq!(names(&given("0-1", None, &[], false)), affinity);
        let quota = given("0-3", Some(1.5), &[], false);
        assert_eq!(quota.len(), 9, "{quota:?}");
        assert!(quota.iter().all(|answer| answer.value == "2" && answer.replaced.is_none()));
        let counts_quota =
            |name: &&str| VARIABLES.iter().any(|v| v.name == *name && v.count == Count::Usable);
        assert!(!names(&quota).iter().any(counts_quota));
        let library = quota.last().unwrap().variable();
        assert_eq!(library, ("COREBEAT_CPUS".into(), "2".into()));
    }

    #[test]
    fn choices_of_the_user_stay() {
        let user = [("OPENBLAS_NUM_THREADS", "4"), ("GOMAXPROCS", "1"), ("NUMBA_NUM_THREADS", "")];
        let rest = names(&given("0-3", Some(2.0), &user, false));
        assert!(!user.iter().any(|(name, _)| rest.contains(name)), "{rest:?}");
        // These runtimes read OMP_NUM_THREADS.
        let user = [("OMP_NUM_THREADS", "1")];
        let rest = names(&given("0-3", Some(2.0), &user, false));
        assert_eq!(
            rest,
            [
                "NUMBA_NUM_THREADS",
                "LOKY_MAX_CPU_COUNT",
                "GOMAXPROCS",
                "PYTHON_CPU_COUNT",
                LIBRARY_ANSWER
            ]
        );
    }

    #[test]
    fn go_starts_two_threads_under_a_small_quota() {
        let go = |cpus, user: &[(&str, &str)]| {
            let answers = given(cpus, Some(0.5), user, true);
            answers.into_iter().find(|answer| answer.name == "GOMAXPROCS").map(|a| a.value)
        };
        assert_eq!(go("0-3", &[]).as_deref(), Some("2"));
        assert_eq!(go("0-3", &[("GOMAXPROCS", "8")]).as_deref(), Some("2"));
        assert_eq!(go("0-1", &[]), None);
        assert_eq!(go("1", &[("GOMAXPROCS", "8")]).as_deref(), Some("1"));
    }

    #[test]
    fn override_lowers_every_variable_of_the_user() {
        let user = [("GOMAXPROCS", "8"), ("RAYON_NUM_THREADS", "8"), ("JULIA_NUM_THREADS", "4,1")];
        let answers = given("0-3", Some(2.0), &user, true);
        for (name, value) in user {
            let answer = answers.iter().find(|answer| answer.name == name).unwrap();
            assert_eq!(answer.replaced.as_deref(), Some(value));
            assert_eq!(answer.value, value.replacen(|c: char| c.is_ascii_digit(), "2", 1));
        }
        let kept = given("0-3", Some(2.0), &[("GOMAXPROCS", "1")], true);
        assert!(!names(&kept).contains(&"GOMAXPROCS"), "a smaller count stays");
    }

    #[test]
    fn thread_count_above_the_cpus_is_lowered() {
        let lowered = |text: &str| lowered(OsStr::new(text), 2);
        assert_eq!(lowered("8").as_deref(), Some("2"));
        assert_eq!(lowered(" 8 , 3").as_deref(), Some("2,3"));
        for kept in ["2", "1,9", "many", "0", ""] {
            assert_eq!(lowered(kept), None, "{kept}");
        }
        let list = given("0-1", None, &[("OMP_NUM_THREADS", "8")], false);
        let first = &list[0];
        assert_eq!((first.value.as_str(), first.replaced.as_deref()), ("2", Some("8")));
    }
}
