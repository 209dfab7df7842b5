//! Laps repeat the same work. The first lap warms up, and the others run until the measured time
//! suffices.

use super::load::{Load, Outcome};
use std::time::{Duration, Instant};

/// The measured time of a lap, and its checksum.
pub(crate) type Lap = Result<(Duration, u64), String>;

/// Runs laps of a load. The time of the outcome is the mean.
pub(crate) fn laps(load: &Load, mut lap: impl FnMut() -> Lap) -> Result<Outcome, String> {
    let (_, checksum) = lap()?;
    let (mut time, mut count) = (Duration::ZERO, 0);
    while count == 0 || time < load.least() {
        let (taken, of_lap) = lap()?;
        if of_lap != checksum {
            return Err(format!(
                "two laps have different results: {checksum:016x}, then {of_lap:016x}"
            ));
        }
        time += taken;
        count += 1;
    }
    Ok(Outcome { seconds: time.as_secs_f64() / f64::from(count), checksum, bytes: 0 })
}

/// A lap that is measured as a whole.
pub(crate) fn whole(lap: impl FnOnce() -> Result<u64, String>) -> Lap {
    let begin = Instant::now();
    let checksum = lap()?;
    Ok((begin.elapsed(), checksum))
}

#[cfg(test)]
mod tests {
    use super::super::load::{Fields, Form, Work};
    use super::*;

    const LOAD: Load = Load {
        work: Work::Write,
        workers: 1,
        count: 1,
        depth: 0,
        labels: 1,
        form: Form::Json,
        fields: Fields::Small,
        least_ms: 0,
    };

    #[test]
    fn laps_exclude_the_first_and_must_agree() {
        let mut times = [9, 1, 2].map(Duration::from_secs).into_iter();
        let mut lap = || Ok((times.next().unwrap_or_default(), 7));
        let outcome = laps(&Load { least_ms: 1500, ..LOAD }, &mut lap).unwrap();
        assert_eq!((outcome.seconds, outcome.checksum), (1.5, 7));
        let mut checksums = 1..;
        let why = laps(&LOAD, || Ok((Duration::ZERO, checksums.next().unwrap_or(0)))).unwrap_err();
        assert!(why.contains("different results"), "{why}");
    }
}
