//! Trains what the policy `adapt` predicts with: samples of programs, selection of predictors, cross-validation.
//!
//! Place in the loop: app; stands on decide and act.
//!
//! # Example
//!
//! ```
//! use corebeat_sim::{Hardware, Program, Step, Team, Work};
//! use corebeat_train::{Simulated, read, write};
//!
//! let program = |n: u32| {
//!     let held = Step::Lock { name: "l".into(), steps: vec![Work::us(f64::from(n)).into()] };
//!     let steps = vec![Work::us(50.0).into(), held];
//!     let steps = vec![Step::Repeat { times: None, shared: false, steps }];
//!     Program::new(&format!("p{n}"), vec![Team::new(2 + n, steps)])
//! };
//! let (machine, programs) = (Hardware::flat(8), (1..7).map(program).collect());
//! let mut range = Simulated { machine, programs, warm_ns: 5_000_000, window_ns: 20_000_000, seed: 1 };
//! let model = range.train()?;
//! assert_eq!((model.paap.samples, model.pacc.samples), (6 * 6, 6 * 6));
//! assert_eq!(read(&write(&model))?, model);
//! # Ok::<(), corebeat_train::Error>(())
//! ```
//!
//! # Model
//!
//! ```text
//!   Range: a machine and programs           Samples                     fit                       Model
//!   each alone, on fewer cores,   ---->  12 programs: 144 and 72 --->  predictors by Akaike's --> as JSON
//!   and beside each                                                    criterion and VIF; sum,
//!                                                                      tree or neighbours
//! ```
//!
//! Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems* (2012), section 6.2.1. What is predicted is the share of time
//! that a program spends in user mode, which stands for its progress: beside another program on all cores (PAAP), and alone on fewer (PACC).
//! The library smartcore fits the sums and grows the trees; trees are pruned to the depth that predicts best, neighbours are as many as
//! predict best. As many folds as programs: what was seen of each is predicted by what was seen of the others. The model itself, which the policy
//! evaluates, is [`Model`].
//!
//! # Invariants
//!
//! 1. The same samples give the same model (`training_repeats_itself`).
//! 2. A tree answers as the library's does (`tree_predicts_as_the_library_does`).
//! 3. A model that is written is read back as it was, and one that is cut off is refused (`model_file_is_read_back_and_refused_where_it_is_torn`).
//! 4. Predictors that the machine does not tell are in no model (`unknown_predictors_are_left_out`).
//!
//! # Failure
//!
//! [`Error`] says what to do; nothing panics.
//!
//! # Limits
//!
//! All samples of a machine: a model says nothing of another.
#![forbid(unsafe_code)]

mod fit;
mod sample;
mod simulated;

pub use fit::{INFLATION_MAX, PROGRAMS_MIN, fit};
pub use sample::{Range, Samples, Watched};
pub use simulated::{Simulated, identity};

use corebeat_policy::adapt::Model;

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Too few programs.
    #[error("to train takes {PROGRAMS_MIN} programs or more; give it more than {found}")]
    Few {
        /// How many there are.
        found: usize,
    },
    /// Nothing to go by.
    #[error(
        "the programs all do the same, or the machine does not tell how they use it; there is nothing to learn"
    )]
    Unknown,
    /// A program was over before it had been watched.
    #[error("'{0}' ends before it has been watched; give it more to do")]
    Short(String),
    /// A program or a machine could not be run.
    #[error("{0}")]
    Run(String),
    /// A file that is no model.
    #[error("it is no model, or is cut off: {0}; train anew with 'corebeat train'")]
    Text(String),
}

impl Error {
    /// One that comes from where programs are run.
    pub fn run(what: impl std::fmt::Display) -> Error {
        Error::Run(what.to_string())
    }
}

/// A model as text.
pub fn write(model: &Model) -> String {
    serde_json::to_string_pretty(model).unwrap_or_default() + "\n"
}

/// The model of a text. Whether it may be used somewhere says [`Model::check`].
///
/// # Errors
/// [`Error::Text`] where it is none.
pub fn read(text: &str) -> Result<Model, Error> {
    serde_json::from_str(text).map_err(|e| Error::Text(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::Topology;
    use corebeat_policy::adapt::{Identity, Predictor, Usage};

    /// Programs of which it is known what becomes of them: all share the cores, and locks cost what they cost.
    struct Formal {
        programs: Vec<Usage>,
        counts_misses: bool,
    }

    impl Formal {
        fn new(counts_misses: bool) -> Formal {
            let program = |n: u32| {
                let lock = f64::from(n % 4) * 0.12;
                let sys = f64::from(n % 3) * 0.01;
                let usr = 0.98 - lock - sys;
                let mpa = counts_misses.then_some(f64::from(n % 5) / 10.0);
                Usage {
                    usr: Some(usr),
                    sys: Some(sys),
                    lat: Some(0.02),
                    lock: Some(lock),
                    mpa,
                    threads: 4 + n,
                }
            };
            Formal { programs: (0..12).map(program).collect(), counts_misses }
        }
    }

    impl Range for Formal {
        fn programs(&self) -> Vec<String> {
            (0..self.programs.len()).map(|n| format!("p{n}")).collect()
        }

        fn cores(&self) -> u32 {
            16
        }

        fn run(&mut self, programs: &[usize], cores: u32) -> Result<Vec<Usage>, Error> {
            let threads: u32 = programs.iter().map(|&p| self.programs[p].threads).sum();
            let share = (f64::from(cores) / f64::from(threads)).min(1.0);
            let crowded = if self.counts_misses { 0.6 } else { 0.0 };
            let of = |&p: &usize| {
                let alone = self.programs[p];
                let others: f64 = programs.iter().map(|&o| self.programs[o].mpa.unwrap_or(0.0)).sum();
                Usage { usr: alone.usr.map(|usr| usr * share * (1.0 - crowded * others)), ..alone }
            };
            Ok(programs.iter().map(of).collect())
        }
    }

    fn model(mut range: Formal) -> Model {
        let samples = Samples::collect(&mut range).unwrap();
        fit(&samples, Identity::new("formal", &Topology::flat(16))).unwrap()
    }

    #[test]
    fn training_repeats_itself() {
        let first = model(Formal::new(true));
        assert_eq!(first, model(Formal::new(true)));
        assert_eq!((first.paap.samples, first.paap.folds), (144, 12));
        assert_eq!((first.pacc.samples, first.pacc.folds), (72, 12));
        for fitted in [&first.paap, &first.pacc] {
            assert_eq!(fitted.scores.len(), 3);
            let best = fitted.scores.iter().map(|s| s.accuracy).fold(0.0, f64::max);
            let used = fitted.scores.iter().find(|s| s.kind == fitted.formula.name()).unwrap();
            assert_eq!(used.accuracy, best, "the best is used");
            assert!(best > 85.0, "{fitted:?}");
            assert!(fitted.inflation.iter().all(|vif| *vif <= INFLATION_MAX), "{fitted:?}");
        }
    }

    #[test]
    fn unknown_predictors_are_left_out() {
        let misses = [Predictor::MpaA, Predictor::MpaB];
        let has = |model: &Model| misses.iter().any(|p| model.paap.predictors.contains(p));
        assert!(has(&model(Formal::new(true))));
        assert!(!has(&model(Formal::new(false))));
    }

    #[test]
    fn model_file_is_read_back_and_refused_where_it_is_torn() {
        let model = model(Formal::new(true));
        let text = write(&model);
        assert_eq!(read(&text).unwrap(), model);
        let end = text.trim_end().len();
        for cut in (0..end).step_by(7) {
            let told = read(&text[..cut]).unwrap_err().to_string();
            assert!(told.starts_with("it is no model") && told.lines().count() == 1, "{told}");
        }
        let strange = text.replacen("\"predictors\": [", "\"predictors\": [\"luck_a\",", 1);
        let told = read(&strange).unwrap_err().to_string();
        assert!(told.contains("luck_a") && told.lines().count() == 1, "{told}");
        let here = model.machine.clone();
        assert!(model.check(&here).is_ok());
        let other = Identity { cpus: 8, ..here.clone() };
        let told = model.check(&other).unwrap_err().to_string();
        assert!(told.contains("another machine (formal, CPUs 16") && told.lines().count() == 1, "{told}");
        let old = Model { version: 0, ..model };
        assert!(old.check(&here).unwrap_err().to_string().contains("version 0"));
    }

    #[test]
    fn too_few_programs_and_programs_that_are_all_alike_are_told() {
        let identity = || Identity::new("formal", &Topology::flat(16));
        let mut few = Formal::new(true);
        few.programs.truncate(2);
        let samples = Samples::collect(&mut few).unwrap();
        assert!(matches!(fit(&samples, identity()), Err(Error::Few { found: 2 })));
        let mut alike = Formal::new(true);
        alike.programs = vec![alike.programs[0]; 5];
        let samples = Samples::collect(&mut alike).unwrap();
        assert!(matches!(fit(&samples, identity()), Err(Error::Unknown)));
    }
}
