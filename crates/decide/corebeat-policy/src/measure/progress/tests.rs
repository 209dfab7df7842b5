use super::*;
use crate::ratio::sample;

#[test]
fn starved_program_has_lost_its_progress() {
    let work = |user: f64| {
        let mut p = sample::program();
        sample::thread(&mut p, user, 0.0, 1.0 - user).span_ns = 1_000_000_000;
        let mut work = Work::default();
        work.add(&p, &Snapshot { span_ns: 1_000_000_000, ..Snapshot::default() });
        work
    };
    let gain =
        |now, before| work(now).gain_over(&work(before)).map(|gain| (gain * 1e6).round() / 1e6);
    assert_eq!(gain(0.5, 1.0), Some(-0.5));
    assert_eq!(gain(0.01, 1.0), Some(-0.99));
    assert_eq!(gain(0.5, 0.01), Some(4.0), "at least: a tenth of a second counts");
    assert_eq!(gain(0.01, 0.02), None);
}

#[test]
fn instructions_without_known_spin_are_no_measure() {
    let mut p = sample::program();
    sample::thread(&mut p, 0.5, 0.0, 0.5).counters.instructions = Some(1000);
    let mut snapshot = Snapshot { span_ns: 1_000_000_000, ..Snapshot::default() };
    assert_eq!(Measure::Instructions.amount(&p, &snapshot), None);
    p.threads[0].shares.spin = Some(0.125);
    assert_eq!(Measure::Instructions.amount(&p, &snapshot), Some(750.0));
    assert_eq!(Measure::UserTime.amount(&p, &snapshot), Some(0.375));
    assert_eq!(Measure::Regions.amount(&p, &snapshot), None);
    // Counted as a whole: others have half a CPU too, and a quarter of the program's user time
    // is spinning.
    p.threads[0].counters.instructions = None;
    snapshot.host.counters.instructions = Some(1000);
    snapshot.host.others_busy = Some(0.5);
    assert_eq!(Measure::Instructions.amount(&p, &snapshot), Some(375.0));
}
