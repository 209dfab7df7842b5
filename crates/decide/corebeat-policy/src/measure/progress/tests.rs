use super::*;
use crate::ratio::sample;

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
