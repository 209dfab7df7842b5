//! Models from samples: selection of predictors and of the kind of formula.
//!
//! The library fits linear models and grows trees. The procedure is the thesis' (section 6.2.1):
//! predictors are selected forwards and backwards by Akaike's criterion, redundant predictors are
//! removed by their variance inflation, and a cross-validation selects the kind of formula. Each
//! fold has the samples of one program.

use crate::Error;
use crate::sample::{Samples, Table};
use corebeat_policy::adapt::{
    Fitted, Formula, Identity, MODEL_VERSION, Model, Predictor, Score, Step,
};
use serde_json::Value;
use smartcore::linalg::basic::matrix::DenseMatrix;
use smartcore::linear::linear_regression::{LinearRegression, LinearRegressionParameters};
use smartcore::tree::decision_tree_regressor::{
    DecisionTreeRegressor, DecisionTreeRegressorParameters,
};

/// Maximum variance inflation; a predictor above it is redundant (section 6.2.1).
pub const INFLATION_MAX: f64 = 5.0;
/// Minimum number of programs: with fewer, predictions for other programs are impossible.
pub const PROGRAMS_MIN: usize = 3;
/// Candidates for the maximum depth of trees, and the minimum number of samples of a leaf.
const DEPTHS: std::ops::RangeInclusive<u16> = 1..=6;
const LEAF_SAMPLES: usize = 3;
/// Candidates for the number of neighbours.
const NEIGHBOURS: [usize; 3] = [3, 5, 7];
/// Minimum deviation of a predictor; below it, the predictor is a constant.
const SPREAD_MIN: f64 = 1e-6;

/// Trains both models.
///
/// # Errors
/// [`Error::Few`] for too few programs, and [`Error::Unknown`] if no predictor varies.
pub fn fit(samples: &Samples, machine: Identity) -> Result<Model, Error> {
    let programs: Vec<String> = samples.programs.iter().map(|p| p.name.clone()).collect();
    if programs.len() < PROGRAMS_MIN {
        return Err(Error::Few { found: programs.len() });
    }
    let paap = fitted(&samples.paap(), &Predictor::PAAP)?;
    let pacc = fitted(&samples.pacc(), &Predictor::PACC)?;
    Ok(Model { version: MODEL_VERSION, machine, programs, paap, pacc })
}

/// Trains one model: selects predictors, tries all kinds of formula, and keeps the best.
fn fitted(table: &Table, allowed: &[Predictor]) -> Result<Fitted, Error> {
    let known: Vec<Predictor> =
        allowed.iter().copied().filter(|p| table.spread(*p) > SPREAD_MIN).collect();
    if table.rows.len() < 2 || known.is_empty() {
        return Err(Error::Unknown);
    }
    let predictors = selected(table, &known);
    let inflation = inflations(table, &predictors);
    let data = table.data(&predictors);
    let mut kinds: Vec<Vec<Kind>> = vec![vec![Kind::Linear]];
    kinds.push(DEPTHS.map(Kind::Tree).collect());
    kinds.push(NEIGHBOURS.into_iter().map(Kind::Neighbours).collect());
    let best = |kinds: Vec<Kind>| -> Option<(Kind, f64)> {
        let tried = kinds.into_iter().filter_map(|kind| Some((kind, accuracy(&data, kind)?)));
        // Of equal scores, the first, which is the simplest.
        tried.reduce(|best, other| if other.1 > best.1 { other } else { best })
    };
    let mut scores = Vec::new();
    let mut chosen: Option<(Formula, f64)> = None;
    for (kind, accuracy) in kinds.into_iter().filter_map(best) {
        let Some(formula) = kind.formula(&data) else { continue };
        let adjusted_r2 = adjusted_r2(&data, &formula);
        scores.push(Score { kind: formula.name().into(), adjusted_r2, accuracy });
        if chosen.as_ref().is_none_or(|best| accuracy > best.1) {
            chosen = Some((formula, accuracy));
        }
    }
    let (formula, _) = chosen.ok_or(Error::Unknown)?;
    Ok(Fitted { samples: data.len(), folds: data.folds(), predictors, inflation, scores, formula })
}

/// Samples as input of formulas: the predictors' values, the observed value, and the program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Data {
    pub(crate) values: Vec<Vec<f64>>,
    pub(crate) observed: Vec<f64>,
    pub(crate) program: Vec<usize>,
}

impl Data {
    fn len(&self) -> usize {
        self.observed.len()
    }

    fn programs(&self) -> Vec<usize> {
        let mut programs = self.program.clone();
        programs.sort_unstable();
        programs.dedup();
        programs
    }

    fn folds(&self) -> usize {
        self.programs().len()
    }

    /// The samples of this program, or those of the others.
    fn part(&self, program: usize, of_it: bool) -> Data {
        let mut part = Data::default();
        for i in (0..self.len()).filter(|&i| (self.program[i] == program) == of_it) {
            part.values.push(self.values[i].clone());
            part.observed.push(self.observed[i]);
            part.program.push(self.program[i]);
        }
        part
    }
}

/// A kind of formula.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Linear,
    /// With this maximum depth.
    Tree(u16),
    Neighbours(usize),
}

impl Kind {
    /// A formula of this kind for these samples; `None` for too few samples.
    fn formula(self, data: &Data) -> Option<Formula> {
        match self {
            Kind::Linear => linear(data),
            Kind::Tree(depth) => tree(data, depth),
            Kind::Neighbours(k) => neighbours(data, k),
        }
    }
}

fn linear(data: &Data) -> Option<Formula> {
    let columns = data.values.first()?.len();
    if data.len() <= columns + 1 {
        return None;
    }
    let x = DenseMatrix::from_2d_vec(&data.values).ok()?;
    let line =
        LinearRegression::fit(&x, &data.observed, LinearRegressionParameters::default()).ok()?;
    let coefficients: Vec<f64> = {
        use smartcore::linalg::basic::arrays::Array;
        line.coefficients().iterator(0).copied().collect()
    };
    let intercept = *line.intercept();
    let is_right = intercept.is_finite() && coefficients.iter().all(|c| c.is_finite());
    is_right.then_some(Formula::Linear { intercept, coefficients })
}

fn tree(data: &Data, depth: u16) -> Option<Formula> {
    if data.len() < 2 * LEAF_SAMPLES {
        return None;
    }
    let x = DenseMatrix::from_2d_vec(&data.values).ok()?;
    let parameters = DecisionTreeRegressorParameters {
        max_depth: Some(depth),
        min_samples_leaf: LEAF_SAMPLES,
        min_samples_split: 2 * LEAF_SAMPLES,
        seed: Some(1),
    };
    let tree = DecisionTreeRegressor::fit(&x, &data.observed, parameters).ok()?;
    let steps = steps(&serde_json::to_value(&tree).ok()?)?;
    Some(Formula::Tree { steps })
}

/// The steps of a tree. The library exposes its nodes only in serialised form;
/// `tree_predicts_as_the_library_does` checks the conversion.
fn steps(written: &Value) -> Option<Vec<Step>> {
    let nodes = written["tree_regressor"]["nodes"].as_array()?;
    let index = |value: &Value| value.as_u64().map(|n| n as usize);
    let step = |node: &Value| {
        Some(match (index(&node["true_child"]), index(&node["false_child"])) {
            (Some(below), Some(above)) => Step::Question {
                predictor: index(&node["split_feature"])?,
                at: node["split_value"].as_f64()?,
                below,
                above,
            },
            _ => Step::Answer { value: node["output"].as_f64()? },
        })
    };
    nodes.iter().map(step).collect()
}

fn neighbours(data: &Data, k: usize) -> Option<Formula> {
    if data.len() < k {
        return None;
    }
    let scales: Vec<f64> = (0..data.values[0].len())
        .map(|column| deviation(data.values.iter().map(|row| row[column])).max(SPREAD_MIN))
        .collect();
    let sample = |(row, observed): (&Vec<f64>, &f64)| {
        row.iter().zip(&scales).map(|(v, scale)| v / scale).chain([*observed]).collect()
    };
    let samples = data.values.iter().zip(&data.observed).map(sample).collect();
    Some(Formula::Neighbours { k, scales, samples })
}

pub(crate) fn deviation(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = values.clone().count().max(1) as f64;
    let mean = values.clone().sum::<f64>() / count;
    (values.map(|v| (v - mean).powi(2)).sum::<f64>() / count).sqrt()
}

/// Selects predictors that improve the criterion and are not redundant.
fn selected(table: &Table, known: &[Predictor]) -> Vec<Predictor> {
    let mut chosen: Vec<Predictor> = Vec::new();
    let mut best = akaike(table, &chosen);
    loop {
        let with = |p: &Predictor| {
            let mut changed = chosen.clone();
            match changed.iter().position(|c| c == p) {
                Some(at) => drop(changed.remove(at)),
                None => changed.push(*p),
            }
            changed
        };
        let changed = known.iter().map(with).map(|c| (akaike(table, &c), c));
        match changed.min_by(|a, b| a.0.total_cmp(&b.0)) {
            // By more than rounding errors, which could lead to an endless loop.
            Some((criterion, changed)) if criterion < best - 1e-9 => {
                (best, chosen) = (criterion, changed)
            }
            _ => break,
        }
    }
    while chosen.len() > 1 {
        let inflations = inflations(table, &chosen);
        let worst = (0..chosen.len()).max_by(|&a, &b| inflations[a].total_cmp(&inflations[b]));
        match worst.filter(|&at| inflations[at] > INFLATION_MAX) {
            Some(at) => drop(chosen.remove(at)),
            None => break,
        }
    }
    if chosen.is_empty() {
        // No predictor improves the criterion. The best one is still a model; its accuracy shows
        // how weak it is.
        chosen.extend(
            known.iter().min_by(|a, b| akaike(table, &[**a]).total_cmp(&akaike(table, &[**b]))),
        );
    }
    chosen.sort_unstable();
    chosen
}

/// Akaike's criterion of a linear model: n ln(RSS / n) + 2 (predictors + 1).
fn akaike(table: &Table, predictors: &[Predictor]) -> f64 {
    let data = table.data(predictors);
    let count = data.len() as f64;
    let Some(left) = unexplained(&data) else { return f64::INFINITY };
    count * (left / count).max(f64::MIN_POSITIVE).ln() + 2.0 * (predictors.len() + 1) as f64
}

/// The sum of squares that a linear model of the predictors does not explain.
fn unexplained(data: &Data) -> Option<f64> {
    let count = data.len() as f64;
    if data.values.first().is_none_or(Vec::is_empty) {
        return Some(deviation(data.observed.iter().copied()).powi(2) * count);
    }
    let formula = linear(data)?;
    let square = |(row, observed): (&Vec<f64>, &f64)| (observed - formula.predict(row)).powi(2);
    Some(data.values.iter().zip(&data.observed).map(square).sum())
}

/// The inflation of the variance of each predictor's coefficient by the others: 1 / (1 - R²), where
/// R² is the share of the predictor that the others explain.
fn inflations(table: &Table, predictors: &[Predictor]) -> Vec<f64> {
    let of = |p: &Predictor| {
        let others: Vec<Predictor> = predictors.iter().copied().filter(|o| o != p).collect();
        let mut data = table.data(&others);
        data.observed = table.data(&[*p]).values.into_iter().map(|row| row[0]).collect();
        let all = deviation(data.observed.iter().copied()).powi(2) * data.len() as f64;
        match unexplained(&data) {
            Some(left) if left > 1e-12 * all => all / left,
            Some(_) => f64::MAX,
            None => 1.0,
        }
    };
    predictors.iter().map(of).collect()
}

/// 100 - sMAPE (equation 6.2) in a cross-validation that leaves out one program at a time. `None`
/// for too few samples.
fn accuracy(data: &Data, kind: Kind) -> Option<f64> {
    let mut errors = Vec::new();
    for program in data.programs() {
        let formula = kind.formula(&data.part(program, false))?;
        let held_out = data.part(program, true);
        let error = |(row, observed): (&Vec<f64>, &f64)| {
            smape(*observed, formula.predict(row).clamp(0.0, 1.0))
        };
        errors.extend(held_out.values.iter().zip(&held_out.observed).map(error));
    }
    (!errors.is_empty()).then(|| 100.0 - errors.iter().sum::<f64>() / errors.len() as f64)
}

/// A symmetric error, in percent.
fn smape(observed: f64, predicted: f64) -> f64 {
    let middle = (observed + predicted) / 2.0;
    if middle > 0.0 { (observed - predicted).abs() / middle * 100.0 } else { 0.0 }
}

/// The explained share of the variance, adjusted for the number of predictors.
fn adjusted_r2(data: &Data, formula: &Formula) -> f64 {
    let (count, predictors) = (data.len() as f64, data.values[0].len() as f64);
    let square = |(row, observed): (&Vec<f64>, &f64)| (observed - formula.predict(row)).powi(2);
    let left: f64 = data.values.iter().zip(&data.observed).map(square).sum();
    let all = deviation(data.observed.iter().copied()).powi(2) * count;
    let share = if all > 0.0 { left / all } else { 1.0 };
    1.0 - share * (count - 1.0) / (count - predictors - 1.0).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data(rows: &[(f64, f64, usize)]) -> Data {
        Data {
            values: rows.iter().map(|r| vec![r.0]).collect(),
            observed: rows.iter().map(|r| r.1).collect(),
            program: rows.iter().map(|r| r.2).collect(),
        }
    }

    #[test]
    fn cross_validation_matches_a_manual_calculation() {
        // Three programs with two samples each; all but the last lie on y = 0.1 + x / 10.
        let rows = [
            (1.0, 0.2, 0),
            (2.0, 0.3, 0),
            (3.0, 0.4, 1),
            (4.0, 0.5, 1),
            (5.0, 0.6, 2),
            (6.0, 0.8, 2),
        ];
        let data = data(&rows);
        // Without program 2 the line is exact: it predicts 0.6, and 0.7 instead of 0.8 (2 * 0.1 /
        // 1.5 = 13.33%). Without program 1 the line through (1, .2), (2, .3), (5, .6), (6, .8): the
        // means are 3.5 and 0.475, the slope is 1.95 / 17 = 0.114706, so 3 gives 0.417647 and 4
        // gives 0.532353: 4.3165% and 6.2678%. Without program 0 the line through (3, .4), (4, .5),
        // (5, .6), (6, .8): means 4.5 and 0.575, slope 0.65 / 5 = 0.13, so 1 gives 0.12 and 2 gives
        // 0.25: 50% and 18.1818%.
        let errors: [f64; 6] = [50.0, 18.181818, 4.316547, 6.267806, 0.0, 13.333333];
        let by_hand = 100.0 - errors.iter().sum::<f64>() / 6.0;
        let found = accuracy(&data, Kind::Linear).unwrap();
        assert!((found - by_hand).abs() < 1e-4, "{found} and {by_hand}");
    }

    #[test]
    fn explained_variance_matches_a_manual_calculation() {
        // x = 1, 2, 3, 4 and y = 1, 3, 2, 4: R² is 0.64, which leaves 1.8 of the sum of squares 5.
        let data = data(&[(1.0, 1.0, 0), (2.0, 3.0, 0), (3.0, 2.0, 1), (4.0, 4.0, 1)]);
        assert!((unexplained(&data).unwrap() - 1.8).abs() < 1e-9);
        let formula = linear(&data).unwrap();
        assert!((adjusted_r2(&data, &formula) - (1.0 - 0.36 * 3.0 / 2.0)).abs() < 1e-9);
        assert_eq!(smape(0.5, 0.25), 0.25 / 0.375 * 100.0);
        assert_eq!(smape(0.0, 0.0), 0.0);
    }

    proptest! {
        #[test]
        fn tree_predicts_as_the_library_does(
            rows in proptest::collection::vec((0.0f64..1.0, 0.0f64..1.0, 0.0f64..1.0), 12..60),
            depth in 1u16..6,
        ) {
            let data = Data {
                values: rows.iter().map(|r| vec![r.0, r.1]).collect(),
                observed: rows.iter().map(|r| r.2).collect(),
                program: vec![0; rows.len()],
            };
            let formula = tree(&data, depth).unwrap();
            let x = DenseMatrix::from_2d_vec(&data.values).unwrap();
            let parameters = DecisionTreeRegressorParameters {
                max_depth: Some(depth), min_samples_leaf: LEAF_SAMPLES,
                min_samples_split: 2 * LEAF_SAMPLES, seed: Some(1),
            };
            let tree = DecisionTreeRegressor::fit(&x, &data.observed, parameters).unwrap();
            let theirs = tree.predict(&x).unwrap();
            for (row, theirs) in data.values.iter().zip(theirs) {
                prop_assert!((formula.predict(row) - theirs).abs() < 1e-12);
            }
        }
    }
}
