use super::*;

#[test]
fn formulas_match_manual_calculations() {
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
    // The value 2.5 of 10 has the distances 0.25 and 0.75, so the weights are 4 and 4/3.
    assert!(
        (near.predict(&[2.5]) - (0.2 * 4.0 + 0.8 * 4.0 / 3.0) / (4.0 + 4.0 / 3.0)).abs() < 1e-12
    );
    assert_eq!(near.predict(&[10.0]), 0.8, "an exact match");
}

#[test]
fn invalid_formulas_are_detected() {
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
        assert!(formula.error(2).is_some(), "{formula:?}");
    }
    assert_eq!(Formula::Tree { steps: vec![question(1, 1), answer] }.error(2), None);
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
