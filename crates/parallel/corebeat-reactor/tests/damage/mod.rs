//! Damaged inputs for the parsers of the examples.
//!
//! `COREBEAT_SOAK` is set for a long run: it has [`CASES_LONG`] inputs instead of [`CASES`].

use fastrand::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Number of inputs of a normal run.
const CASES: u64 = 20_000;
/// Number of inputs of a long run.
const CASES_LONG: u64 = 10_000_000;
/// Number of inputs that a thread takes at once.
const BATCH: u64 = 1000;
/// Largest number of words of an input.
const WORDS_MAX: usize = 200;
/// Largest number of repetitions of a part.
const REPETITIONS_MAX: usize = 40;

/// Valid inputs, as the words of which they consist, and words that are likely to reveal a limit.
pub(crate) struct Words {
    pub(crate) valid: &'static [&'static [&'static [u8]]],
    pub(crate) odd: &'static [&'static [u8]],
}

impl Words {
    fn any(&self, random: &mut Rng) -> &'static [u8] {
        let words = match random.u8(..3) {
            0 => self.odd,
            _ => random.choice(self.valid).unwrap(),
        };
        random.choice(words).unwrap()
    }

    /// Returns some valid inputs in a row, with random changes.
    pub(crate) fn damaged(&self, random: &mut Rng) -> Vec<u8> {
        let mut words = Vec::new();
        for _ in 0..random.usize(1..4) {
            words.extend_from_slice(random.choice(self.valid).unwrap());
        }
        for _ in 0..random.usize(..4) {
            let from = random.usize(..words.len());
            let to = from + random.usize(..=(words.len() - from).min(8));
            match random.u8(..6) {
                0 => drop(words.drain(from..to)),
                1 => {
                    let part = words[from..to].repeat(random.usize(1..REPETITIONS_MAX));
                    drop(words.splice(to..to, part));
                }
                2 => words.insert(from, self.any(random)),
                3 | 4 => words[from] = self.any(random),
                _ => words.truncate(from),
            }
            words.truncate(WORDS_MAX);
            if words.is_empty() {
                words.push(self.any(random));
            }
        }
        let mut input = words.concat();
        if let (0, 1..) = (random.u8(..4), input.len()) {
            let at = random.usize(..input.len());
            match random.u8(..3) {
                0 => input[at] = random.u8(..),
                1 => input.truncate(at),
                _ => input.insert(at, random.u8(..)),
            }
        }
        input
    }
}

/// Lengths of the parts in which an input arrives.
pub(crate) fn parts(random: &mut Rng) -> Vec<usize> {
    let most = random.choice([1, 4, 30, 300]).unwrap();
    (0..random.usize(1..6)).map(|_| random.usize(1..=most)).collect()
}

/// Calls a check with damaged inputs. The check returns whether the parser accepts the input, or
/// what is wrong. Returns the number of accepted inputs among all, or the first finding.
pub(crate) fn search(
    words: &Words,
    check: impl Fn(&[u8], &mut Rng) -> Result<bool, String> + Sync,
) -> Result<(u64, u64), String> {
    let cases = if std::env::var_os("COREBEAT_SOAK").is_some() { CASES_LONG } else { CASES };
    let only = std::env::var("COREBEAT_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let (next, accepted, finding) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(None));
    let try_seed = |seed| {
        let mut random = Rng::with_seed(seed);
        let input = words.damaged(&mut random);
        let checked = catch_unwind(AssertUnwindSafe(|| check(&input, &mut random)));
        let result = checked.unwrap_or_else(|_| Err("the parser panics".into()));
        result.map_err(|why| format!("seed {seed} (COREBEAT_SEED={seed}): {why}: {input:?}"))
    };
    let search = || {
        while finding.lock().unwrap().is_none() {
            let begin = next.fetch_add(BATCH, Ordering::SeqCst);
            for seed in begin..cases.min(begin + BATCH) {
                match try_seed(seed) {
                    Ok(is_accepted) => {
                        accepted.fetch_add(u64::from(is_accepted), Ordering::SeqCst);
                    }
                    Err(why) => drop(finding.lock().unwrap().get_or_insert(why)),
                }
            }
            if begin >= cases {
                return;
            }
        }
    };
    if let Some(seed) = only {
        return try_seed(seed).map(|is_accepted| (u64::from(is_accepted), 1));
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(search))));
    match finding.into_inner().unwrap() {
        Some(why) => Err(why),
        None => Ok((accepted.into_inner(), cases)),
    }
}

/// As [`search`], for a parser without a known fault.
pub(crate) fn fuzz(
    name: &str,
    words: &Words,
    check: impl Fn(&[u8], &mut Rng) -> Result<bool, String> + Sync,
) {
    let (accepted, cases) = search(words, check).unwrap_or_else(|why| panic!("{name}: {why}"));
    println!("{name}: {cases} inputs, {accepted} of them accepted");
    // Inputs of both kinds: otherwise the changes are too rare or too many.
    assert!(cases == 1 || (1..cases).contains(&accepted), "{accepted} of {cases}");
}
