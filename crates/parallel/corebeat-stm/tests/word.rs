//! Transactions on words, as a library for another language uses them.

#![cfg(not(loom))]

use corebeat_stm::word::{Words, time};
use corebeat_stm::{Abort, Cause};
use std::alloc::{Layout, alloc, dealloc};
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};

const WORDS: usize = 16;
const BALANCE: usize = 100;
const ROUNDS: usize = if cfg!(miri) { 30 } else { 20_000 };

/// Words share locks by their addresses: the tests are serialized, so that words of one test do not
/// fail another one.
static TURN: Mutex<()> = Mutex::new(());

/// Runs attempts until one commits. Uses the functions without slow paths where they suffice.
fn run(words: &mut Words, only_reads: bool, mut f: impl FnMut(&mut Words) -> Result<(), Abort>) {
    // SAFETY: each of these tests uses an object in one thread.
    if only_reads || unsafe { words.try_begin() }.is_none() {
        words.begin(only_reads);
    }
    loop {
        // SAFETY: a transaction of this thread is open; nothing was freed.
        if f(words).is_ok() && unsafe { words.try_commit() || words.commit() } {
            return;
        }
        // SAFETY: as above; the words outlive the transaction.
        unsafe { words.restart() };
    }
}

fn load(words: &mut Words, word: &AtomicUsize) -> Result<usize, Abort> {
    // SAFETY: the word outlives the transaction; other threads write it in transactions.
    unsafe { words.try_load(word.as_ptr()).map_or_else(|| words.load(word.as_ptr()), Ok) }
}

fn store(words: &mut Words, word: &AtomicUsize, value: usize, mask: usize) -> Result<(), Abort> {
    // SAFETY: as above.
    unsafe {
        if words.try_store(word.as_ptr(), value, mask) {
            return Ok(());
        }
        words.store(word.as_ptr(), value, mask)
    }
}

/// A thread that commits alone may give a word the same version several times, but none that any
/// thread has obtained.
#[test]
fn versions_that_a_thread_has_obtained_increase_with_each_write() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let word = AtomicUsize::new(0);
    let mut words = Words::new();
    let mut newest = 0;
    for round in 0..200 {
        run(&mut words, false, |words| store(words, &word, round, usize::MAX));
        if round % 3 == 0 {
            // SAFETY: the word outlives the call, and other threads do not use it.
            let (value, version) = unsafe { words.peek(word.as_ptr()) };
            assert!(value == round && version > newest && version <= time(), "round {round}");
            // SAFETY: as above; no transaction is open.
            newest = unsafe { words.poke(word.as_ptr(), round, usize::MAX, version) }.unwrap();
            assert!(newest > version && newest <= time(), "round {round}");
        }
    }
}

/// Reads the word, and increments it after the other thread has changed it between the two waits.
/// Returns whether the first attempt failed, as it must.
fn increment_late(words: &mut Words, word: &AtomicUsize, barrier: &Barrier) -> bool {
    words.begin(false);
    let seen = load(words, word).unwrap();
    barrier.wait();
    barrier.wait();
    let is_stored = store(words, word, seen + 1, usize::MAX).is_ok();
    // SAFETY: a transaction of this thread is open; the word outlives it.
    let is_lost = is_stored && unsafe { words.commit() };
    if !is_lost {
        // SAFETY: as above.
        unsafe { words.abandon() };
        increment(words, word);
    }
    !is_lost
}

fn increment(words: &mut Words, word: &AtomicUsize) {
    run(words, false, |words| {
        let value = load(words, word)?;
        store(words, word, value + 1, usize::MAX)
    });
}

/// Two threads become the sole writer in turns, and each ends the claim of the other one. Each has
/// an open transaction while the other one commits.
#[test]
fn alternating_sole_writers_lose_no_increment() {
    const PHASES: usize = if cfg!(miri) { 2 } else { 40 };
    /// A thread that commits alone is the sole writer after this number.
    const COMMITS: usize = 250;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (total, barrier) = (AtomicUsize::new(0), Barrier::new(2));
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (total, barrier) = (&total, &barrier);
            scope.spawn(move || {
                let mut words = Words::new();
                // Checked at the end, because the other thread would wait for this one for ever.
                let (mut is_sole, mut is_refused) = (true, true);
                for phase in 0..PHASES {
                    if phase % 2 == number {
                        barrier.wait();
                        (0..COMMITS).for_each(|_| increment(&mut words, total));
                        let before = time();
                        (0..COMMITS).for_each(|_| increment(&mut words, total));
                        is_sole &= time() == before;
                        is_refused &= increment_late(&mut words, total, barrier);
                    } else {
                        is_refused &= increment_late(&mut words, total, barrier);
                        barrier.wait();
                    }
                }
                assert!(is_sole && is_refused, "sole: {is_sole}, refused: {is_refused}");
            });
        }
    });
    run(&mut Words::new(), true, |words| {
        assert_eq!(load(words, &total)?, PHASES * (2 * COMMITS + 2));
        Ok(())
    });
}

#[test]
fn words_with_shared_locks_change_atomically() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let accounts: Vec<_> = (0..WORDS).map(|_| AtomicUsize::new(BALANCE)).collect();
    std::thread::scope(|scope| {
        for number in 0..2 {
            let accounts = &accounts;
            scope.spawn(move || {
                let mut words = Words::new();
                for round in 0..ROUNDS {
                    // Often adjacent words under one lock, and sometimes the same word.
                    let (from, to) = ((round * 7 + number) % WORDS, (round * 5 + number) % WORDS);
                    run(&mut words, false, |words| {
                        let less = load(words, &accounts[from])?;
                        store(words, &accounts[from], less.wrapping_sub(1), usize::MAX)?;
                        let more = load(words, &accounts[to])?;
                        store(words, &accounts[to], more.wrapping_add(1), usize::MAX)
                    });
                    let mut sum = 0usize;
                    run(&mut words, true, |words| {
                        sum = 0;
                        for account in accounts {
                            sum = sum.wrapping_add(load(words, account)?);
                        }
                        Ok(())
                    });
                    assert_eq!(sum, WORDS * BALANCE);
                }
            });
        }
    });
}

#[test]
fn aborted_attempt_restores_words() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let pair = [AtomicUsize::new(0x1111), AtomicUsize::new(2)];
    let mut words = Words::new();
    words.begin(false);
    for value in [3, 4] {
        store(&mut words, &pair[0], value, 0xff).unwrap();
        store(&mut words, &pair[1], value, usize::MAX).unwrap();
    }
    assert_eq!(load(&mut words, &pair[0]).unwrap(), 0x1104);
    // SAFETY: a transaction of this thread is open.
    let cause = unsafe {
        words.abort();
        words.abandon()
    };
    assert_eq!(cause, Cause::Explicit);
    assert!(!words.is_open());
    assert_eq!([&pair[0], &pair[1]].map(|word| word.load(Ordering::Relaxed)), [0x1111, 2]);
}

#[test]
fn freed_block_stays_readable_for_active_attempts() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // An attempt fails if the block and the link share a lock by chance: not with all of these
    // links.
    let links = [const { AtomicUsize::new(0) }; 64];
    assert!(links.iter().any(|link| matches!(read_freed_block(link), Ok(5))));
}

/// Returns what a reader finds in the block of `link` after another thread has freed the block.
fn read_freed_block(link: &AtomicUsize) -> Result<usize, Abort> {
    static FREED: AtomicUsize = AtomicUsize::new(0);
    unsafe fn free(block: *mut ()) {
        FREED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the block is allocated below, and has no reader.
        unsafe { dealloc(block.cast(), Layout::new::<usize>()) };
    }
    let before = FREED.load(Ordering::Relaxed);
    // SAFETY: the size is not 0.
    let block = unsafe { alloc(Layout::new::<usize>()) }.cast::<usize>();
    // SAFETY: the block was just allocated.
    unsafe { block.write(5) };
    let block = block.expose_provenance();
    link.store(block, Ordering::Relaxed);
    let mut reader = Words::new();
    // Writes of other tests under the lock of the link may be newer than the clock, so a snapshot
    // would fail.
    run(&mut reader, false, |words| load(words, link).map(drop));
    reader.begin(true);
    let found = with_exposed_provenance_mut::<usize>(load(&mut reader, link).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut words = Words::new();
            words.begin(false);
            store(&mut words, link, 0, usize::MAX).unwrap();
            // SAFETY: no transaction finds the block after that.
            assert!(unsafe {
                words.commit_and_free(
                    &mut vec![with_exposed_provenance_mut(block)],
                    |_| None,
                    free,
                    || (),
                )
            });
            corebeat_stm::reclaim();
        });
    });
    assert_eq!(FREED.load(Ordering::Relaxed), before);
    // SAFETY: the block exists until the end of this attempt.
    let read = unsafe { reader.load(found) };
    // SAFETY: a transaction of this thread is open.
    unsafe {
        match read {
            Ok(_) => assert!(reader.commit()),
            Err(_) => assert_eq!(reader.abandon(), Cause::Snapshot),
        }
    }
    // Ended threads may still be registered.
    while FREED.load(Ordering::Relaxed) == before {
        corebeat_stm::reclaim();
    }
    read
}

#[test]
fn peek_and_poke_use_the_version_of_the_word() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let word = AtomicUsize::new(0x1111);
    let mut words = Words::new();
    // SAFETY: the word outlives this test, and other threads write it in transactions; no
    // transaction of this thread is open at a poke.
    unsafe {
        let (value, version) = words.peek(word.as_ptr());
        assert_eq!(value, 0x1111);
        let newer = words.poke(word.as_ptr(), 0x2222, 0xff, version).unwrap();
        assert!(newer > version);
        assert_eq!(words.peek(word.as_ptr()), (0x1122, newer));
        assert!(corebeat_stm::word::time() >= newer);
        assert_eq!(words.poke(word.as_ptr(), 3, usize::MAX, version), Err(newer));
        assert!(words.poke(word.as_ptr(), 4, usize::MAX, u64::MAX).unwrap() > newer);
        words.begin(false);
        store(&mut words, &word, 5, usize::MAX).unwrap();
        assert_eq!(words.peek(word.as_ptr()).0, 5);
        words.abandon();
        assert_eq!(words.peek(word.as_ptr()).0, 4);
    }
}

#[test]
fn limited_attempt_fails_at_newer_words() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let word = AtomicUsize::new(0);
    let mut words = Words::new();
    // SAFETY: as above.
    unsafe {
        let version = words.poke(word.as_ptr(), 1, usize::MAX, u64::MAX).unwrap();
        for (may_extend, version_max, fails) in
            [(false, version - 1, true), (false, version, false), (true, u64::MAX, false)]
        {
            words.peek(word.as_ptr());
            words.begin(false);
            words.limit(may_extend, version_max);
            assert_eq!(load(&mut words, &word).is_err(), fails);
            assert_eq!(store(&mut words, &word, 2, usize::MAX).is_err(), fails);
            let cause = words.abandon();
            assert_eq!(cause == Cause::Extension, fails);
        }
        // Written by another thread after the attempt began.
        for may_extend in [false, true] {
            words.begin(false);
            words.limit(may_extend, u64::MAX);
            let other = || Words::new().poke(word.as_ptr(), 7, usize::MAX, u64::MAX).is_ok();
            assert!(std::thread::scope(|scope| scope.spawn(other).join().unwrap()));
            assert_eq!(load(&mut words, &word).is_ok(), may_extend);
            words.abandon();
        }
    }
}

#[test]
fn touched_word_is_newer_and_unchanged() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let word = AtomicUsize::new(7);
    let mut words = Words::new();
    // SAFETY: the word outlives this test; only transactions write it.
    let look = || unsafe { Words::new().peek(word.as_ptr()) };
    let (_, before) = look();
    // SAFETY: a transaction of this thread is open.
    let renew = |words: &mut Words| unsafe { words.touch(word.as_ptr()) };
    run(&mut words, false, |words| {
        // One call for all words that share the lock.
        renew(words)?;
        renew(words)
    });
    let (value, after) = look();
    assert!(value == 7 && after > before, "{value}, {after} after {before}");
    // Together with writes, in either order.
    for is_first in [false, true] {
        words.begin(false);
        if is_first {
            renew(&mut words).unwrap();
        }
        store(&mut words, &word, 8, usize::MAX).unwrap();
        renew(&mut words).unwrap();
        // SAFETY: a transaction of this thread is open.
        unsafe {
            words.abort();
            assert_eq!(words.abandon(), Cause::Explicit);
        }
        assert_eq!(look().0, 7);
    }
}
