//! Models of ADAPT: formulas that predict the share of time that a program spends in user mode.
//!
//! `corebeat train` trains the models; this module checks and evaluates them.

use crate::ratio::{Ratio, is_bystander};
use corebeat_machine::{ProgramSample, Topology};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Version of the model files that this module reads and writes.
pub const MODEL_VERSION: u32 = 1;

/// Resource usage of a program: the resource-usage vector of the thesis (section 6.2.3), as means
/// over the threads' time. Shares are from 0 to 1; unknown values are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Share of time in user mode without spinning, a measure of progress (section 6.2.1).
    pub usr: Option<f64>,
    /// Share of time in the kernel.
    pub sys: Option<f64>,
    /// Run-queue wait: share of time runnable but not running.
    pub lat: Option<f64>,
    /// Share of time waiting for other threads (lock and park, and spinning where detected): the
    /// lock time of the thesis' Solaris.
    pub lock: Option<f64>,
    /// Misses per reference of the last-level cache.
    pub mpa: Option<f64>,
    /// Number of active threads.
    pub threads: u32,
}

/// Accumulator of a [`Usage`] over snapshots.
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
    /// Adds the sample of the program in one snapshot.
    pub fn add(&mut self, p: &ProgramSample) {
        self.usr.add_share(p, |s| Some((s.user? - s.spin.unwrap_or(0.0)).max(0.0)));
        self.sys.add_share(p, |s| s.system);
        self.lat.add_share(p, |s| s.wait);
        self.lock.add_share(p, |s| Some(s.lock_or_park()? + s.spin.unwrap_or(0.0)));
        self.mpa.add_counts(p, |t| t.counters.cache_misses.zip(t.counters.cache_references));
        let part = p.threads.iter().filter(|t| t.span_ns > 0 && !is_bystander(t)).count();
        self.threads = self.threads.max(part as u32);
    }

    /// Returns the usage.
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

/// Predictors of a model (Table 6.1): values of program A, whose performance is predicted, and of
/// program B beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Predictor {
    /// A's misses per reference of the last-level cache.
    MpaA,
    /// A's share of time in user mode.
    UsrA,
    /// A's share of time in the kernel.
    SysA,
    /// A's share of time runnable but not running.
    LatA,
    /// A's share of time waiting for locks.
    LockA,
    /// Cores of the machine per thread of A.
    CtA,
    /// B's misses per reference of the last-level cache.
    MpaB,
    /// B's share of time in user mode.
    UsrB,
    /// B's share of time in the kernel.
    SysB,
    /// B's share of time runnable but not running.
    LatB,
    /// B's share of time waiting for locks.
    LockB,
    /// Cores of the machine per thread of B.
    CtB,
    /// Cores of A per thread of A.
    RctA,
}

/// Input of a prediction.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// Usage of the program whose share is predicted, alone on the whole machine.
    pub a: &'a Usage,
    /// Usage of the other program alone, if there is one.
    pub b: Option<&'a Usage>,
    /// Number of cores of the machine.
    pub cores: u32,
    /// Number of cores of A.
    pub given: u32,
}

impl Predictor {
    /// Predictors of a model of two programs on the same cores (Table 6.1).
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

    /// Returns the value of the predictor; `None` if the value is unknown.
    pub fn value(self, case: Case<'_>) -> Option<f64> {
        let per_thread = |cores: u32, of: &Usage| {
            (of.threads > 0).then(|| f64::from(cores) / f64::from(of.threads))
        };
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

/// A step of a decision tree: an inner node or a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Step {
    /// An inner node, which selects another step.
    Question {
        /// Index of the predictor to compare.
        predictor: usize,
        /// Threshold: values up to it select `below`, larger ones `above`.
        at: f64,
        /// Index of a later step.
        below: usize,
        /// Index of a later step.
        above: usize,
    },
    /// A leaf, which contains the prediction.
    Answer {
        /// Predicted share of time in user mode.
        value: f64,
    },
}

/// Formula that computes a prediction from the values of the predictors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Formula {
    /// A linear regression (LR).
    Linear {
        /// The intercept.
        intercept: f64,
        /// One coefficient for each predictor.
        coefficients: Vec<f64>,
    },
    /// A decision tree (DT), evaluated from the first step on.
    Tree {
        /// The steps.
        steps: Vec<Step>,
    },
    /// The nearest samples (KNN), weighted by their inverse distances.
    Neighbours {
        /// Number of samples.
        k: usize,
        /// Divisor of each predictor's value, so that all predictors have the same influence.
        scales: Vec<f64>,
        /// The samples: the scaled values of the predictors, followed by the observed share.
        samples: Vec<Vec<f64>>,
    },
}

impl Formula {
    /// Returns the prediction for one value for each predictor.
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

    /// Returns the name of the kind of formula.
    pub fn name(&self) -> &'static str {
        match self {
            Formula::Linear { .. } => "linear regression",
            Formula::Tree { .. } => "decision tree",
            Formula::Neighbours { .. } => "nearest neighbours",
        }
    }

    /// Returns a description of the first error, for this number of predictors.
    fn error(&self, predictors: usize) -> Option<String> {
        let finite = |numbers: &[f64]| numbers.iter().all(|n| n.is_finite());
        match self {
            Formula::Linear { intercept, coefficients } => {
                let is_right = coefficients.len() == predictors
                    && finite(coefficients)
                    && intercept.is_finite();
                (!is_right)
                    .then(|| format!("a linear formula requires {predictors} finite coefficients"))
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
                wrong
                    .map(|n| format!("step {n} of the tree refers to an invalid predictor or step"))
            }
            Formula::Neighbours { k, scales, samples } => {
                let is_right = (1..=samples.len()).contains(k)
                    && scales.len() == predictors
                    && scales.iter().all(|s| s.is_finite() && *s > 0.0)
                    && samples.iter().all(|s| s.len() == predictors + 1 && finite(s));
                (!is_right).then(|| {
                    format!(
                        "nearest neighbours require at least k samples of {} numbers",
                        predictors + 1
                    )
                })
            }
        }
    }
}

/// Quality of a kind of formula in training (Tables 6.3 and 6.5).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// Name of the kind of formula.
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
    /// Number of samples for training.
    pub samples: usize,
    /// Number of folds of the cross-validation.
    pub folds: usize,
    /// Predictors, in the order of the values.
    pub predictors: Vec<Predictor>,
    /// Variance inflation factor of each predictor (section 6.2.1).
    pub inflation: Vec<f64>,
    /// Scores of all kinds of formulas.
    pub scores: Vec<Score>,
    /// The formula with the best accuracy.
    pub formula: Formula,
}

impl Fitted {
    /// Predicts the share of time that A spends in user mode, from 0 to 1. `None` if the value of a
    /// predictor is unknown.
    pub fn predict(&self, case: Case<'_>) -> Option<f64> {
        let values: Option<Vec<f64>> = self.predictors.iter().map(|p| p.value(case)).collect();
        values.map(|values| self.formula.predict(&values).clamp(0.0, 1.0))
    }

    fn error(&self, allowed: &[Predictor]) -> Option<String> {
        let invalid = self.predictors.iter().find(|p| !allowed.contains(p));
        let invalid = invalid.map(|p| format!("{p:?} is not a predictor of this model"));
        invalid.or_else(|| self.formula.error(self.predictors.len()))
    }
}

/// Identity of the machine of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Name of the processor, or a description of the simulated machine.
    pub name: String,
    /// Number of CPUs.
    pub cpus: usize,
    /// Number of last-level caches.
    pub caches: usize,
    /// Distances of the nodes, one row for each node.
    pub distances: Vec<Vec<u32>>,
}

impl Identity {
    /// Returns the identity of a machine with this topology.
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

/// Reason why a model cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The text is not a model.
    #[error("not a model, or truncated: {0}; train again with 'corebeat train'")]
    Text(String),
    /// The model has another version.
    #[error(
        "the model has version {0}, but this program reads version {MODEL_VERSION}; train a new \
         model with 'corebeat train'"
    )]
    Version(u32),
    /// The model was trained on another machine.
    #[error(
        "the model was trained on another machine ({of}), but this machine is {here}; train a \
         model on this machine with 'corebeat train'"
    )]
    Machine {
        /// Machine of the training.
        of: Box<Identity>,
        /// This machine.
        here: Box<Identity>,
    },
    /// The model is invalid.
    #[error("the formula {model} is invalid: {what}; train a new model with 'corebeat train'")]
    Sense {
        /// Name of the formula.
        model: &'static str,
        /// The error.
        what: String,
    },
}

/// The two models of ADAPT and their origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// [`MODEL_VERSION`].
    pub version: u32,
    /// Machine of the training.
    pub machine: Identity,
    /// Programs of the training.
    pub programs: Vec<String>,
    /// Performance beside another program, both on all cores (PAAP).
    pub paap: Fitted,
    /// Performance alone on fewer cores (PACC).
    pub pacc: Fitted,
}

impl Model {
    /// Returns the model as text, in JSON.
    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Returns the model of a text. [`Model::check`] checks whether it is valid for a machine.
    ///
    /// # Errors
    /// [`ModelError::Text`] if the text is not a model.
    pub fn parse(text: &str) -> Result<Model, ModelError> {
        serde_json::from_str(text).map_err(|e| ModelError::Text(e.to_string()))
    }

    /// Checks that the model is valid for a machine.
    ///
    /// # Errors
    /// [`ModelError`], if the model is invalid or has another version or machine.
    pub fn check(&self, here: &Identity) -> Result<(), ModelError> {
        if self.version != MODEL_VERSION {
            return Err(ModelError::Version(self.version));
        }
        let models: [(_, _, &[Predictor]); 2] =
            [("paap", &self.paap, &Predictor::PAAP), ("pacc", &self.pacc, &Predictor::PACC)];
        for (model, fitted, allowed) in models {
            if let Some(what) = fitted.error(allowed) {
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
mod tests;
