//! Training of the models of the policy `adapt`: samples of programs, selection of predictors,
//! cross-validation.
//!
//! Place in the loop: lab; uses decide and act.
//!
//! # Example
//!
//! ```
//! use corebeat_policy::adapt::Model;
//! use corebeat_sim::{Hardware, Program, Step, Team, Work};
//! use corebeat_train::Simulated;
//!
//! let program = |n: u32| {
//!     let held = Step::Lock { name: "l".into(), steps: vec![Work::us(f64::from(n)).into()] };
//!     let steps = vec![Work::us(50.0).into(), held];
//!     let steps = vec![Step::Repeat { times: None, shared: false, steps }];
//!     Program::new(&format!("p{n}"), vec![Team::new(2 + n, steps)])
//! };
//! let (machine, programs) = (Hardware::flat(8), (1..7).map(program).collect());
//! let (warm_ns, window_ns) = (5_000_000, 20_000_000);
//! let mut testbed = Simulated { machine, programs, warm_ns, window_ns, seed: 1 };
//! let model = testbed.train()?;
//! assert_eq!((model.paap.samples, model.pacc.samples), (6 * 6, 6 * 6));
//! assert_eq!(Model::parse(&model.to_text())?, model);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Model
//!
//! ```text
//!   Testbed: machine, programs        Samples                 fit                       Model
//!   each alone, on fewer cores, --->  12 programs:     --->   predictors by Akaike's --> JSON
//!   and beside each other             144 and 72 samples      criterion and VIF; linear
//!                                                             model, tree or neighbours
//! ```
//!
//! Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems* (2012), section
//! 6.2.1. The models predict the share of time in user mode, which represents a program's progress:
//! beside another program on all cores (PAAP), and alone on fewer cores (PACC). The library
//! smartcore fits the linear models and grows the trees. The depth of trees and the number of
//! neighbours are those that predict best. The cross-validation has one fold per program: the
//! samples of each program are predicted from the samples of the others. The policy evaluates the
//! [`Model`](corebeat_policy::adapt::Model).
//!
//! # Invariants
//!
//! 1. The same samples yield the same model (`training_is_deterministic`).
//! 2. A tree predicts the same values as the library's tree (`tree_predicts_as_the_library_does`).
//! 3. A written model is read back unchanged, and a truncated one is rejected
//!    (`model_file_is_read_back_and_rejected_if_truncated`).
//! 4. A model has no predictors that the machine does not measure
//!    (`unknown_predictors_are_left_out`).
//!
//! # Failure
//!
//! [`Error`] states the reason and the remedy. No function panics.
//!
//! # Limits
//!
//! All samples are of one machine. A model is not valid for another machine.
#![forbid(unsafe_code)]

mod fit;
mod sample;
mod simulated;

pub use fit::{INFLATION_MAX, PROGRAMS_MIN, fit};
pub use sample::{ProgramSamples, Samples, Testbed};
pub use simulated::{Simulated, identity};

/// Reason why there is no model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too few programs.
    #[error("training requires {PROGRAMS_MIN} programs or more; name more than {found}")]
    Few {
        /// Number of programs.
        found: usize,
    },
    /// The samples do not vary, or the machine does not measure the predictors.
    #[error(
        "the programs behave alike, or the machine does not measure their use of it; train with \
         different programs"
    )]
    Unknown,
    /// A program ended before it was measured.
    #[error("'{0}' ends before it is measured; give it more work")]
    Short(String),
    /// A program or a machine could not run.
    #[error("{0}")]
    Run(String),
}

impl Error {
    /// Returns the error of a testbed.
    pub fn run(what: impl std::fmt::Display) -> Error {
        Error::Run(what.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::Topology;
    use corebeat_policy::adapt::{Identity, Model, Predictor, Usage};

    /// Programs whose results follow a formula: they share the cores, and have fixed lock times.
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

    impl Testbed for Formal {
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
                let others: f64 =
                    programs.iter().map(|&o| self.programs[o].mpa.unwrap_or(0.0)).sum();
                Usage { usr: alone.usr.map(|usr| usr * share * (1.0 - crowded * others)), ..alone }
            };
            Ok(programs.iter().map(of).collect())
        }
    }

    fn model(mut testbed: Formal) -> Model {
        let samples = Samples::collect(&mut testbed).unwrap();
        fit(&samples, Identity::new("formal", &Topology::flat(16))).unwrap()
    }

    #[test]
    fn training_is_deterministic() {
        let first = model(Formal::new(true));
        assert_eq!(first, model(Formal::new(true)));
        assert_eq!((first.paap.samples, first.paap.folds), (144, 12));
        assert_eq!((first.pacc.samples, first.pacc.folds), (72, 12));
        for fitted in [&first.paap, &first.pacc] {
            assert_eq!(fitted.scores.len(), 3);
            let best = fitted.scores.iter().map(|s| s.accuracy).fold(0.0, f64::max);
            let used = fitted.scores.iter().find(|s| s.kind == fitted.formula.name()).unwrap();
            assert_eq!(used.accuracy, best, "the model uses the best formula");
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
    fn model_file_is_read_back_and_rejected_if_truncated() {
        let model = model(Formal::new(true));
        let text = model.to_text();
        assert_eq!(Model::parse(&text).unwrap(), model);
        let end = text.trim_end().len();
        for cut in (0..end).step_by(7) {
            let message = Model::parse(&text[..cut]).unwrap_err().to_string();
            assert!(
                message.starts_with("not a model") && message.lines().count() == 1,
                "{message}"
            );
        }
        let strange = text.replacen("\"predictors\": [", "\"predictors\": [\"luck_a\",", 1);
        let message = Model::parse(&strange).unwrap_err().to_string();
        assert!(message.contains("luck_a") && message.lines().count() == 1, "{message}");
        let own = model.machine.clone();
        assert!(model.check(&own).is_ok());
        let other = Identity { cpus: 8, ..own.clone() };
        let message = model.check(&other).unwrap_err().to_string();
        assert!(
            message.contains("another machine (formal, CPUs 16") && message.lines().count() == 1,
            "{message}"
        );
        let old = Model { version: 0, ..model };
        assert!(old.check(&own).unwrap_err().to_string().contains("version 0"));
    }

    #[test]
    fn too_few_and_identical_programs_are_rejected() {
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
