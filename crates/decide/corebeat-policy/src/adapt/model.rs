//! The models that ADAPT goes by: formulas that say how much of its time a program would spend in user mode.
//!
//! They are trained elsewhere (`corebeat train`); here they are only checked and evaluated.

use crate::sign::{Ratio, is_bystander};
use corebeat_machine::{ProgramSample, Topology};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The form of model files that is read and written here.
pub const MODEL_VERSION: u32 = 1;

/// How a program uses its resources: the thesis' resource-usage vector (section 6.2.3), as means over its threads' time. Shares are from
/// 0 to 1; what the machine cannot tell is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Running in user mode, and not only spinning: it stands for progress (section 6.2.1).
    pub usr: Option<f64>,
    /// Running in the kernel.
    pub sys: Option<f64>,
    /// Ready, not running.
    pub lat: Option<f64>,
    /// Waiting for locks: blocked, or spinning where that is seen.
    pub lock: Option<f64>,
    /// Misses of references to the last-level cache.
    pub mpa: Option<f64>,
    /// Threads that took part.
    pub threads: u32,
}

/// A [`Usage`] in the making: snapshots are added up.
#[derive(Debug, Clone, Default)]
pub struct Gauge {
    usr: Ratio,
    sys: Ratio,
    lat: Ratio,
    lock: Ratio,
    mpa: Ratio,
    threads: u32,
}

impl Gauge {
    /// Adds what was seen of the program in one snapshot.
    pub fn add(&mut self, p: &ProgramSample) {
        self.usr.add_share(p, |s| Some((s.user? - s.spin.unwrap_or(0.0)).max(0.0)));
        self.sys.add_share(p, |s| s.system);
        self.lat.add_share(p, |s| s.latency);
        self.lock.add_share(p, |s| Some(s.lock? + s.spin.unwrap_or(0.0)));
        self.mpa.add_counts(p, |t| t.counters.cache_misses.zip(t.counters.cache_references));
        let part = p.threads.iter().filter(|t| t.span_ns > 0 && !is_bystander(t)).count();
        self.threads = self.threads.max(part as u32);
    }

    /// What it comes to.
    pub fn usage(&self) -> Usage {
        Usage {
            usr: self.usr.get(),
            sys: self.sys.get(),
            lat: self.lat.get(),
            lock: self.lock.get(),
            mpa: self.mpa.get(),
            threads: self.threads,
        }
    }
}

/// What a model goes by: Table 6.1, of program A, whose performance is asked for, and of program B beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Predictor {
    /// A's misses of references to the last-level cache.
    MpaA,
    /// A's share of time in user mode.
    UsrA,
    /// A's share of time in the kernel.
    SysA,
    /// A's share of time ready, but not running.
    LatA,
    /// A's share of time waiting for locks.
    LockA,
    /// The machine's cores for each thread of A.
    CtA,
    /// B's misses of references to the last-level cache.
    MpaB,
    /// B's share of time in user mode.
    UsrB,
    /// B's share of time in the kernel.
    SysB,
    /// B's share of time ready, but not running.
    LatB,
    /// B's share of time waiting for locks.
    LockB,
    /// The machine's cores for each thread of B.
    CtB,
    /// The cores that A is given for each thread of it.
    RctA,
}

/// What is asked of a model.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// The program whose share of time in user mode is asked for, as it is alone on the whole machine.
    pub a: &'a Usage,
    /// The one beside it, if any, as it is alone.
    pub b: Option<&'a Usage>,
    /// The machine's cores.
    pub cores: u32,
    /// The cores that A is given.
    pub given: u32,
}

impl Predictor {
    /// Those that a model of two programs side by side may go by (Table 6.1).
    pub const PAAP: [Predictor; 12] = [
        Predictor::MpaA,
        Predictor::UsrA,
        Predictor::SysA,
        Predictor::LatA,
        Predictor::LockA,
        Predictor::CtA,
        Predictor::MpaB,
        Predictor::UsrB,
        Predictor::SysB,
        Predictor::LatB,
        Predictor::LockB,
        Predictor::CtB,
    ];
    /// Those that a model of one program on fewer cores may go by (section 6.2.1).
    pub const PACC: [Predictor; 6] = [
        Predictor::UsrA,
        Predictor::SysA,
        Predictor::LatA,
        Predictor::LockA,
        Predictor::CtA,
        Predictor::RctA,
    ];

    /// Its value in this case; `None` where the machine did not tell.
    pub fn value(self, case: Case<'_>) -> Option<f64> {
        let per_thread =
            |cores: u32, of: &Usage| (of.threads > 0).then(|| f64::from(cores) / f64::from(of.threads));
        match self {
            Predictor::MpaA => case.a.mpa,
            Predictor::UsrA => case.a.usr,
            Predictor::SysA => case.a.sys,
            Predictor::LatA => case.a.lat,
            Predictor::LockA => case.a.lock,
            Predictor::CtA => per_thread(case.cores, case.a),
            Predictor::MpaB => case.b?.mpa,
            Predictor::UsrB => case.b?.usr,
            Predictor::SysB => case.b?.sys,
            Predictor::LatB => case.b?.lat,
            Predictor::LockB => case.b?.lock,
            Predictor::CtB => per_thread(case.cores, case.b?),
            Predictor::RctA => per_thread(case.given, case.a),
        }
    }
}

/// A step of a decision tree: either an answer, or a question.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Step {
    /// Goes on at another step.
    Question {
        /// Which of the model's predictors is looked at.
        predictor: usize,
        /// The step for values up to this one is `below`, that for larger ones `above`.
        at: f64,
        /// A later step.
        below: usize,
        /// A later step.
        above: usize,
    },
    /// The prediction.
    Answer {
        /// The share of time in user mode.
        value: f64,
    },
}

/// How a prediction is made from the predictors' values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Formula {
    /// A sum (LR).
    Linear {
        /// What the sum begins with.
        intercept: f64,
        /// What each predictor's value is multiplied by.
        coefficients: Vec<f64>,
    },
    /// Questions (DT), beginning with the first.
    Tree {
        /// Its steps.
        steps: Vec<Step>,
    },
    /// The nearest samples (KNN), weighted by how near they are.
    Neighbours {
        /// How many.
        k: usize,
        /// What each predictor's value is divided by, so that they count alike.
        scales: Vec<f64>,
        /// The samples: the predictors' values divided so, and what was observed, last.
        samples: Vec<Vec<f64>>,
    },
}

impl Formula {
    /// The prediction for these values, one for each predictor.
    pub fn predict(&self, values: &[f64]) -> f64 {
        match self {
            Formula::Linear { intercept, coefficients } => {
                intercept + coefficients.iter().zip(values).map(|(c, v)| c * v).sum::<f64>()
            }
            Formula::Tree { steps } => {
                let mut at = 0;
                loop {
                    match steps[at] {
                        Step::Answer { value } => return value,
                        Step::Question { predictor, at: edge, below, above } => {
                            at = if values[predictor] <= edge { below } else { above };
                        }
                    }
                }
            }
            Formula::Neighbours { k, scales, samples } => {
                let distance = |sample: &[f64]| {
                    let parts = sample.iter().zip(values.iter().zip(scales));
                    parts.map(|(s, (v, scale))| (s - v / scale).powi(2)).sum::<f64>().sqrt()
                };
                let mut near: Vec<(f64, f64)> =
                    samples.iter().map(|s| (distance(s), s[values.len()])).collect();
                near.sort_by(|a, b| a.0.total_cmp(&b.0));
                near.truncate(*k);
                let same: Vec<f64> = near.iter().filter(|n| n.0 == 0.0).map(|n| n.1).collect();
                if !same.is_empty() {
                    return same.iter().sum::<f64>() / same.len() as f64;
                }
                let weight: f64 = near.iter().map(|n| 1.0 / n.0).sum();
                near.iter().map(|n| n.1 / n.0).sum::<f64>() / weight
            }
        }
    }

    /// In words.
    pub fn name(&self) -> &'static str {
        match self {
            Formula::Linear { .. } => "linear regression",
            Formula::Tree { .. } => "decision tree",
            Formula::Neighbours { .. } => "nearest neighbours",
        }
    }

    /// What is wrong with it for so many predictors.
    fn mistake(&self, predictors: usize) -> Option<String> {
        let finite = |numbers: &[f64]| numbers.iter().all(|n| n.is_finite());
        match self {
            Formula::Linear { intercept, coefficients } => {
                let is_right =
                    coefficients.len() == predictors && finite(coefficients) && intercept.is_finite();
                (!is_right).then(|| format!("a sum wants {predictors} coefficients, all finite"))
            }
            Formula::Tree { steps } => {
                let is_right = |(n, step): (usize, &Step)| match *step {
                    Step::Answer { value } => value.is_finite(),
                    Step::Question { predictor, at, below, above } => {
                        let later = |to: usize| to > n && to < steps.len();
                        predictor < predictors && at.is_finite() && later(below) && later(above)
                    }
                };
                let wrong = steps.iter().enumerate().position(|both| !is_right(both));
                let wrong = wrong.or(steps.is_empty().then_some(0));
                wrong.map(|n| {
                    format!("step {n} of the tree asks for a predictor or a later step that is not there")
                })
            }
            Formula::Neighbours { k, scales, samples } => {
                let is_right = (1..=samples.len()).contains(k)
                    && scales.len() == predictors
                    && scales.iter().all(|s| s.is_finite() && *s > 0.0)
                    && samples.iter().all(|s| s.len() == predictors + 1 && finite(s));
                (!is_right)
                    .then(|| format!("neighbours want k samples or more, of {} numbers", predictors + 1))
            }
        }
    }
}

/// How good a kind of formula was in training (Tables 6.3 and 6.5).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// The kind of formula, in words.
    pub kind: String,
    /// The adjusted R² on all samples.
    pub adjusted_r2: f64,
    /// 100 - sMAPE over the folds of the cross-validation, in per cent (equation 6.2).
    pub accuracy: f64,
}

/// One of the two models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitted {
    /// How many samples it was trained on.
    pub samples: usize,
    /// Into how many parts they were split for the cross-validation.
    pub folds: usize,
    /// What it goes by, in the order of their values.
    pub predictors: Vec<Predictor>,
    /// The variance inflation factor of each (section 6.2.1).
    pub inflation: Vec<f64>,
    /// All kinds that were tried.
    pub scores: Vec<Score>,
    /// The one that is used: that of the best accuracy.
    pub formula: Formula,
}

impl Fitted {
    /// The share of time in user mode that A would have, from 0 to 1. `None` where a predictor's value is not known.
    pub fn predict(&self, case: Case<'_>) -> Option<f64> {
        let values: Option<Vec<f64>> = self.predictors.iter().map(|p| p.value(case)).collect();
        values.map(|values| self.formula.predict(&values).clamp(0.0, 1.0))
    }

    fn mistake(&self, allowed: &[Predictor]) -> Option<String> {
        let strange = self.predictors.iter().find(|p| !allowed.contains(p));
        let strange = strange.map(|p| format!("it does not go by {p:?}"));
        strange.or_else(|| self.formula.mistake(self.predictors.len()))
    }
}

/// Which machine a model is of: what it is called, and how it is put together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Its processor, or that it is simulated, and how.
    pub name: String,
    /// Its CPUs.
    pub cpus: usize,
    /// Its last-level caches.
    pub caches: usize,
    /// The distances of its nodes, a row for each.
    pub distances: Vec<Vec<u32>>,
}

impl Identity {
    /// That of a machine of this topology.
    pub fn new(name: &str, topology: &Topology) -> Identity {
        let mut caches: Vec<u32> = topology.cpus().iter().map(|c| c.cache).collect();
        caches.sort_unstable();
        caches.dedup();
        Identity {
            name: name.to_owned(),
            cpus: topology.cpus().len(),
            caches: caches.len(),
            distances: topology.nodes().iter().map(|n| n.distances.clone()).collect(),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cpus, caches, nodes) = (self.cpus, self.caches, self.distances.len());
        write!(f, "{}, CPUs {cpus}, last-level caches {caches}, nodes {nodes}", self.name)
    }
}

/// Why a model is not to be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// It has another form.
    #[error(
        "it is of version {0}, and this Corebeat reads version {MODEL_VERSION}; train anew with 'corebeat train'"
    )]
    Version(u32),
    /// It was trained on another machine.
    #[error(
        "it was trained on another machine ({of}), and this is {here}; train one here with 'corebeat train'"
    )]
    Machine {
        /// Where it was trained.
        of: Box<Identity>,
        /// Where it is to be used.
        here: Box<Identity>,
    },
    /// It makes no sense.
    #[error("its {model} makes no sense: {what}; train anew with 'corebeat train'")]
    Sense {
        /// Which of the two.
        model: &'static str,
        /// What is wrong.
        what: String,
    },
}

/// What ADAPT predicts with, and where that comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// [`MODEL_VERSION`].
    pub version: u32,
    /// The machine that it was trained on.
    pub machine: Identity,
    /// The programs that it was trained with.
    pub programs: Vec<String>,
    /// How a program does with another one beside it, both on all cores (PAAP).
    pub paap: Fitted,
    /// How a program does on fewer cores, alone (PACC).
    pub pacc: Fitted,
}

impl Model {
    /// Whether it may be used here.
    ///
    /// # Errors
    /// [`ModelError`]: another version, another machine, or what makes no sense.
    pub fn check(&self, here: &Identity) -> Result<(), ModelError> {
        if self.version != MODEL_VERSION {
            return Err(ModelError::Version(self.version));
        }
        let models: [(_, _, &[Predictor]); 2] =
            [("paap", &self.paap, &Predictor::PAAP), ("pacc", &self.pacc, &Predictor::PACC)];
        for (model, fitted, allowed) in models {
            if let Some(what) = fitted.mistake(allowed) {
                return Err(ModelError::Sense { model, what });
            }
        }
        if self.machine != *here {
            let (of, here) = (Box::new(self.machine.clone()), Box::new(here.clone()));
            return Err(ModelError::Machine { of, here });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_give_what_is_computed_by_hand() {
        // Equation 6.3, as shares.
        let sum = Formula::Linear { intercept: 0.186, coefficients: vec![-0.3, 0.325] };
        assert!((sum.predict(&[0.2, 0.5]) - (0.186 - 0.06 + 0.1625)).abs() < 1e-12);
        let steps = vec![
            Step::Question { predictor: 1, at: 0.5, below: 1, above: 2 },
            Step::Answer { value: 0.3 },
            Step::Question { predictor: 0, at: 0.1, below: 3, above: 4 },
            Step::Answer { value: 0.6 },
            Step::Answer { value: 0.7 },
        ];
        let tree = Formula::Tree { steps };
        assert_eq!([[0.0, 0.5], [0.1, 0.6], [0.2, 0.6]].map(|v| tree.predict(&v)), [0.3, 0.6, 0.7]);
        let samples = vec![vec![0.0, 0.2], vec![1.0, 0.8], vec![9.0, 0.0]];
        let near = Formula::Neighbours { k: 2, scales: vec![10.0], samples };
        // At 2.5 of 10: 0.25 from the first, 0.75 from the second, so weights of 4 and 4/3.
        assert!((near.predict(&[2.5]) - (0.2 * 4.0 + 0.8 * 4.0 / 3.0) / (4.0 + 4.0 / 3.0)).abs() < 1e-12);
        assert_eq!(near.predict(&[10.0]), 0.8, "one that is there");
    }

    #[test]
    fn formulas_that_make_no_sense_are_told() {
        let question = |below, predictor| Step::Question { predictor, at: 0.5, below, above: 1 };
        let answer = Step::Answer { value: 0.5 };
        for formula in [
            Formula::Linear { intercept: 0.0, coefficients: vec![1.0] },
            Formula::Linear { intercept: f64::NAN, coefficients: vec![1.0, 1.0] },
            Formula::Tree { steps: vec![] },
            Formula::Tree { steps: vec![question(0, 0), answer] },
            Formula::Tree { steps: vec![question(2, 0), answer] },
            Formula::Tree { steps: vec![question(1, 2), answer] },
            Formula::Neighbours { k: 2, scales: vec![1.0; 2], samples: vec![vec![0.0; 3]] },
            Formula::Neighbours { k: 1, scales: vec![1.0, 0.0], samples: vec![vec![0.0; 3]] },
        ] {
            assert!(formula.mistake(2).is_some(), "{formula:?}");
        }
        assert_eq!(Formula::Tree { steps: vec![question(1, 1), answer] }.mistake(2), None);
    }

    #[test]
    fn prediction_without_a_predictor_is_none() {
        let fitted = Fitted {
            samples: 0,
            folds: 0,
            predictors: vec![Predictor::LockA, Predictor::RctA],
            inflation: vec![],
            scores: vec![],
            formula: Formula::Linear { intercept: 0.0, coefficients: vec![-1.0, 1.0] },
        };
        let known = Usage { lock: Some(0.1), threads: 8, ..Usage::default() };
        let predict = |a: Usage| fitted.predict(Case { a: &a, b: None, cores: 8, given: 4 });
        assert_eq!(predict(known), Some(0.4));
        assert_eq!(predict(Usage { lock: None, ..known }), None);
        assert_eq!(predict(Usage { threads: 0, ..known }), None);
    }
}
