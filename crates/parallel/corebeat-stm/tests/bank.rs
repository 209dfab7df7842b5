//! Transfers between accounts on many more threads than CPUs. Short, unless `cargo xtask soak` sets
//! a duration.

use corebeat_stm::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const ACCOUNTS: usize = 256;
const BALANCE: i64 = 1_000;
/// Number of threads per CPU.
const CROWD: usize = 8;
/// Time limit of this test per minute of a soak.
const SHARE: Duration = Duration::from_secs(15);
/// Maximum growth of memory after the first tenth: values wait while a preempted thread is in a
/// transaction, and there are millions of transactions per second. A leak would be gigabytes.
const GROWTH_MAX_KIB: usize = 256 << 10;

/// An immutable account: each change creates another one.
struct Account {
    balance: i64,
    alive: Arc<AtomicUsize>,
}

impl Account {
    fn new(balance: i64, alive: &Arc<AtomicUsize>) -> Arc<Account> {
        alive.fetch_add(1, Ordering::Relaxed);
        Arc::new(Account { balance, alive: alive.clone() })
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Bank {
    words: Vec<TCell<i64>>,
    values: Vec<TCell<Arc<Account>>>,
    alive: Arc<AtomicUsize>,
}

impl Bank {
    fn new() -> Bank {
        let alive = Arc::default();
        let words = (0..ACCOUNTS).map(|_| TCell::new(BALANCE)).collect();
        let values = (0..ACCOUNTS).map(|_| TCell::new(Account::new(BALANCE, &alive))).collect();
        Bank { words, values, alive }
    }

    fn transfer(&self, random: u64) {
        let [from, to] = [random, random >> 16].map(|n| n as usize % ACCOUNTS);
        let amount = (random >> 32) as i64 % 10;
        match random >> 60 {
            0..8 => atomically(|tx| {
                tx.update(&self.words[from], |balance| balance - amount)?;
                tx.update(&self.words[to], |balance| balance + amount)
            }),
            8..14 => atomically(|tx| {
                let balance = tx.read(&self.values[from])?.balance;
                tx.write(&self.values[from], Account::new(balance - amount, &self.alive))?;
                tx.update(&self.values[to], |old| Account::new(old.balance + amount, &self.alive))
            }),
            14 => atomically(|tx| {
                // Only if the balance is sufficient; the second part does nothing.
                tx.or_else(
                    |tx| {
                        tx.update(&self.words[to], |balance| balance + amount)?;
                        if tx.read(&self.words[from])? < amount {
                            return tx.retry();
                        }
                        tx.update(&self.words[from], |balance| balance - amount)
                    },
                    |_| Ok(()),
                )
            }),
            _ => self.audit(),
        }
    }

    fn audit(&self) {
        let sums = snapshot(|tx| {
            let mut sums = (0, 0);
            for (word, value) in self.words.iter().zip(&self.values) {
                sums.0 += tx.read(word)?;
                sums.1 += tx.read(value)?.balance;
            }
            Ok(sums)
        });
        assert_eq!(sums, (ACCOUNTS as i64 * BALANCE, ACCOUNTS as i64 * BALANCE));
    }
}

fn resident_kib() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn transfers_on_an_oversubscribed_machine_preserve_the_sum() {
    let minutes: Option<u32> =
        std::env::var("COREBEAT_SOAK").ok().map(|minutes| minutes.parse().unwrap());
    let bank = Bank::new();
    let threads = CROWD * thread::available_parallelism().map_or(2, usize::from);
    let is_over = AtomicBool::new(false);
    let grown = thread::scope(|scope| {
        for number in 0..threads {
            let (bank, is_over) = (&bank, &is_over);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(number as u64);
                let mut rounds = 0;
                while !is_over.load(Ordering::Relaxed) && (minutes.is_some() || rounds < 500) {
                    bank.transfer(random.u64(..));
                    rounds += 1;
                }
            });
        }
        let minutes = minutes?;
        let begin = Instant::now();
        let mut first = 0;
        while begin.elapsed() < SHARE * minutes {
            thread::sleep(SHARE * minutes / 10);
            bank.audit();
            first = if first == 0 { resident_kib() } else { first };
        }
        is_over.store(true, Ordering::Relaxed);
        Some(resident_kib().saturating_sub(first))
    });
    bank.audit();
    if let Some(grown) = grown {
        println!("{threads} threads, growth after the first tenth: {grown} KiB, {:?}", counters());
        assert!(grown <= GROWTH_MAX_KIB, "memory grows: {grown} KiB");
    }
    // Ended threads leave their retired values to others, perhaps after they were joined.
    while bank.alive.load(Ordering::Relaxed) > ACCOUNTS {
        reclaim();
        thread::yield_now();
    }
    assert_eq!(bank.alive.load(Ordering::Relaxed), ACCOUNTS);
}
