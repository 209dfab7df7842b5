//! Damaged AMALTHEA models: each is read, or rejected in one line with a place, and a verdict
//! "schedulable" holds in simulation.

use corebeat_verify::{Activation, Job, Jobs, Simulation, System, Verdict, analyse, read_amalthea};
use fastrand::Rng;

const MODELS: [&str; 4] = [
    include_str!("amalthea/hierarchicalExample.amxmi"),
    include_str!("amalthea/partitioned_fpp.amxmi"),
    include_str!("amalthea/modeling_example_periodic_8.amxmi"),
    include_str!("../examples/engine.amxmi"),
];

/// Number of models: few in tests, up to 10 million in long runs, 200,000 for each minute that
/// `COREBEAT_SOAK` states.
#[expect(clippy::disallowed_methods, reason = "a test reads how long it shall run")]
fn inputs() -> u64 {
    let minutes = std::env::var("COREBEAT_SOAK").ok().and_then(|n| n.parse::<u64>().ok());
    minutes.map_or(600, |minutes| (minutes * 200_000).clamp(600, 10_000_000))
}

/// The requirement of the example that is not met.
const LATE: &str = "<limitValue value=\"12\" unit=\"ms\"/>";

/// A value that a model hardly expects.
const VALUES: [&str; 12] = [
    "",
    "0",
    "-1",
    "1e30",
    "NaN",
    "18446744073709551616",
    "4503599627370497",
    "0.1",
    "ps",
    "s",
    "Lambda",
    "OSEK",
];

/// The text with a part removed, doubled, exchanged or replaced.
fn damage(text: &str, random: &mut Rng) -> String {
    let find = |from: usize, what: char| text[from..].find(what).map(|at| from + at);
    let start = (0..4).find_map(|_| {
        let from = random.usize(..text.len());
        text.is_char_boundary(from).then_some(from)
    });
    let Some(from) = start else { return text.to_owned() };
    let replace = |begin: usize, end: usize, middle: &str| {
        format!("{}{middle}{}", &text[..begin], &text[end..])
    };
    match random.u8(..20) {
        // An attribute's value.
        0..10 => {
            let value_at = |from: usize| {
                let begin = from + text[from..].find("=\"")? + 2;
                Some((begin, find(begin, '"')?))
            };
            let Some((begin, end)) = value_at(from) else { return text.to_owned() };
            let other = random.usize(..begin);
            let other = if text.is_char_boundary(other) { value_at(other) } else { None };
            let value = match (random.bool(), other) {
                (true, Some((begin, end))) => &text[begin..end],
                _ => VALUES[random.usize(..VALUES.len())],
            };
            replace(begin, end, value)
        }
        // A line, which often is an element.
        10..17 => {
            let begin = text[..from].rfind('\n').map_or(0, |at| at + 1);
            let end = find(from, '\n').map_or(text.len(), |at| at + 1);
            let line = &text[begin..end];
            let middle = if random.bool() { line.repeat(2) } else { String::new() };
            replace(begin, end, &middle)
        }
        // A few bytes.
        17..19 => {
            let end = (from..text.len()).filter(|at| text.is_char_boundary(*at));
            let end = end.take(random.usize(1..20)).last().unwrap_or(text.len());
            let middle = ["", "<", ">", "\"", "&amp;", "&x;", "0", "/"];
            replace(from, end, middle[random.usize(..middle.len())])
        }
        // The rest.
        _ => text[..from].to_owned(),
    }
}

/// Jobs with the worst execution times, from random phases.
fn jobs(system: &System, random: &mut Rng) -> Jobs {
    let longest = system.entries.iter().filter_map(|e| e.deadline_ns).max().unwrap_or(1);
    let of = |entry: &corebeat_verify::Entry| {
        let execution_ns = entry.execution_ns.worst;
        let (period, first, spans): (u64, Option<u64>, &[u64]) = match &entry.activation {
            Activation::Periodic { period_ns, offset_ns, .. } => (*period_ns, *offset_ns, &[]),
            Activation::Sporadic { distance_ns } => (*distance_ns, None, &[]),
            Activation::Curve(spans) => (spans[0].max(spans[spans.len() - 1]), None, spans),
            Activation::After(_) => {
                return vec![Job { arrival_ns: 0, release_ns: 0, execution_ns }];
            }
        };
        let first = first.unwrap_or_else(|| if random.bool() { 0 } else { random.u64(..period) });
        let count = if spans.is_empty() { (longest / period).clamp(1, 200) * 2 } else { 3 };
        (0..count)
            .map(|k| first + k * period)
            .map(|at| Job { arrival_ns: at, release_ns: at, execution_ns })
            .collect()
    };
    system.entries.iter().map(of).collect()
}

#[test]
fn fuzzed_models_are_never_wrongly_schedulable() {
    let (mut verdicts, mut errors) = ([0u64; 3], 0u64);
    for round in 0..inputs() {
        let mut random = Rng::with_seed(round);
        let mut text = MODELS[random.usize(..MODELS.len())].to_owned();
        if random.bool() {
            // Without the deadline that is missed, the example is schedulable.
            text = MODELS[3].replace(LATE, &LATE.replace("12", "18"));
        }
        for _ in 0..random.u8(1..3) {
            if !text.is_empty() {
                text = damage(&text, &mut random);
            }
        }
        let model = match read_amalthea(&text) {
            Ok(model) => model,
            Err(e) => {
                errors += 1;
                let line = e.to_string();
                let (place, _) = line.split_once(':').unwrap_or_default();
                let is_placed = ["line", "<", "'", "model"].iter().any(|p| place.contains(p));
                assert!(!line.contains('\n') && is_placed, "round {round}: {line}");
                continue;
            }
        };
        assert_eq!(model.check(), Ok(()), "round {round}");
        let report = analyse(&model);
        verdicts[report.verdict as usize] += 1;
        if report.verdict != Verdict::Schedulable {
            continue;
        }
        let bounds: Vec<_> = report.tasks.iter().map(|t| (t.task, t.response_ns)).collect();
        let system = System::new(&model, None);
        let mut simulation = Simulation::new(&system);
        for _ in 0..2 {
            simulation.run(&jobs(&system, &mut random), u64::MAX, None);
            assert_eq!(simulation.miss(), None, "round {round}");
            for (entry, response) in system.entries.iter().zip(simulation.responses()) {
                let bound = bounds.iter().find(|(task, _)| *task == entry.task);
                let holds = bound.is_some_and(|(_, b)| b.is_some_and(|b| *response <= b));
                assert!(holds, "round {round}: {response} {bound:?} of {entry:?}");
            }
        }
    }
    println!("schedulable, unknown, not schedulable: {verdicts:?}; rejected: {errors}");
    assert!(verdicts.iter().all(|n| *n > 3) && errors > 10, "{verdicts:?} {errors}");
}
