//! Transactions on words, as a library for another language uses them.

#![cfg(not(loom))]

use corebeat_stm::{Abort, Cause, word::Words};
use std::alloc::{Layout, alloc, dealloc};
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const WORDS: usize = 16;
const BALANCE: usize = 100;
const ROUNDS: usize = if cfg!(miri) { 30 } else { 20_000 };

/// Words share locks by their addresses: tests take turns, so that none is refused because of another's words.
static TURN: Mutex<()> = Mutex::new(());

/// Runs an attempt again and again until it is committed.
fn run(words: &mut Words, only_reads: bool, mut f: impl FnMut(&mut Words) -> Result<(), Abort>) {
    words.begin(only_reads);
    loop {
        // SAFETY: it is in a transaction of this thread; nothing was freed.
        if f(words).is_ok() && unsafe { words.commit(&mut Vec::new(), unreachable) } {
            return;
        }
        // SAFETY: as above; the words outlive it.
        unsafe { words.again() };
    }
}

unsafe fn unreachable(_: *mut ()) {
    unreachable!("nothing was freed");
}

fn load(words: &mut Words, word: &AtomicUsize) -> Result<usize, Abort> {
    // SAFETY: it outlives the transaction; others write it in transactions.
    unsafe { words.load(word.as_ptr()) }
}

fn store(words: &mut Words, word: &AtomicUsize, value: usize, mask: usize) -> Result<(), Abort> {
    // SAFETY: as above.
    unsafe { words.store(word.as_ptr(), value, mask) }
}

#[test]
fn words_that_share_locks_change_all_at_once() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let accounts: Vec<_> = (0..WORDS).map(|_| AtomicUsize::new(BALANCE)).collect();
    std::thread::scope(|scope| {
        for number in 0..2 {
            let accounts = &accounts;
            scope.spawn(move || {
                let mut words = Words::new();
                for round in 0..ROUNDS {
                    // Often neighbours, under one lock, and sometimes the same.
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
fn attempt_that_is_refused_leaves_words_as_they_were() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let pair = [AtomicUsize::new(0x1111), AtomicUsize::new(2)];
    let mut words = Words::new();
    words.begin(false);
    for value in [3, 4] {
        store(&mut words, &pair[0], value, 0xff).unwrap();
        store(&mut words, &pair[1], value, usize::MAX).unwrap();
    }
    assert_eq!(load(&mut words, &pair[0]).unwrap(), 0x1104);
    // SAFETY: it is in a transaction of this thread.
    let cause = unsafe {
        words.refuse();
        words.give_up()
    };
    assert_eq!(cause, Cause::Explicit);
    assert!(!words.is_open());
    assert_eq!([&pair[0], &pair[1]].map(|word| word.load(Ordering::Relaxed)), [0x1111, 2]);
}

#[test]
fn block_that_is_freed_stays_for_attempts_that_know_it() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // An attempt is refused where the block's lock happens to be the link's: not with each of these.
    let links = [const { AtomicUsize::new(0) }; 64];
    assert!(links.iter().any(|link| matches!(attempt_reads_what_is_freed(link), Ok(5))));
}

/// What a reader finds in the block that `link` led to, after another thread freed it.
fn attempt_reads_what_is_freed(link: &AtomicUsize) -> Result<usize, Abort> {
    static FREED: AtomicUsize = AtomicUsize::new(0);
    unsafe fn free(block: *mut ()) {
        FREED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: allocated below, and nobody reads it.
        unsafe { dealloc(block.cast(), Layout::new::<usize>()) };
    }
    let before = FREED.load(Ordering::Relaxed);
    // SAFETY: no size of 0.
    let block = unsafe { alloc(Layout::new::<usize>()) }.cast::<usize>();
    // SAFETY: just allocated.
    unsafe { block.write(5) };
    let block = block.expose_provenance();
    link.store(block, Ordering::Relaxed);
    let mut reader = Words::new();
    // What other tests have written under the link's lock may be newer than the clock shows: so a snapshot would be refused.
    run(&mut reader, false, |words| load(words, link).map(drop));
    reader.begin(true);
    let found = with_exposed_provenance_mut::<usize>(load(&mut reader, link).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut words = Words::new();
            words.begin(false);
            store(&mut words, link, 0, usize::MAX).unwrap();
            // SAFETY: nobody finds the block after that.
            assert!(unsafe { words.commit(&mut vec![with_exposed_provenance_mut(block)], free) });
            corebeat_stm::reclaim();
        });
    });
    assert_eq!(FREED.load(Ordering::Relaxed), before);
    // SAFETY: it stays as long as this attempt.
    let read = unsafe { reader.load(found) };
    // SAFETY: in a transaction of this thread.
    unsafe {
        match read {
            Ok(_) => assert!(reader.commit(&mut Vec::new(), free)),
            Err(_) => assert_eq!(reader.give_up(), Cause::Snapshot),
        }
    }
    // The threads that have ended may still be known.
    while FREED.load(Ordering::Relaxed) == before {
        corebeat_stm::reclaim();
    }
    read
}

#[test]
fn word_alone_is_read_and_written_with_its_version() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let word = AtomicUsize::new(0x1111);
    let mut words = Words::new();
    // SAFETY: it outlives all of this, and others write it in transactions; in none of this thread when it is poked.
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
        words.give_up();
        assert_eq!(words.peek(word.as_ptr()).0, 4);
    }
}

#[test]
fn attempt_that_is_bounded_fails_where_something_is_newer() {
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
            words.bound(may_extend, version_max);
            assert_eq!(load(&mut words, &word).is_err(), fails);
            assert_eq!(store(&mut words, &word, 2, usize::MAX).is_err(), fails);
            let cause = words.give_up();
            assert_eq!(cause == Cause::Extension, fails);
        }
        // Written by another thread after it had begun.
        for may_extend in [false, true] {
            words.begin(false);
            words.bound(may_extend, u64::MAX);
            let other = || Words::new().poke(word.as_ptr(), 7, usize::MAX, u64::MAX).is_ok();
            assert!(std::thread::scope(|scope| scope.spawn(other).join().unwrap()));
            assert_eq!(load(&mut words, &word).is_ok(), may_extend);
            words.give_up();
        }
    }
}

#[test]
fn renewed_word_is_newer_and_as_it_was() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let word = AtomicUsize::new(7);
    let mut words = Words::new();
    // SAFETY: it outlives this; only transactions write it.
    let look = || unsafe { Words::new().peek(word.as_ptr()) };
    let (_, before) = look();
    // SAFETY: it is in a transaction of this thread.
    let renew = |words: &mut Words| unsafe { words.renew(word.as_ptr()) };
    run(&mut words, false, |words| {
        // Once for all words that share its lock.
        renew(words)?;
        renew(words)
    });
    let (value, after) = look();
    assert!(value == 7 && after > before, "{value}, {after} after {before}");
    // With what is written there, whichever comes first.
    for is_first in [false, true] {
        words.begin(false);
        if is_first {
            renew(&mut words).unwrap();
        }
        store(&mut words, &word, 8, usize::MAX).unwrap();
        renew(&mut words).unwrap();
        // SAFETY: it is in a transaction of this thread.
        unsafe {
            words.refuse();
            assert_eq!(words.give_up(), Cause::Explicit);
        }
        assert_eq!(look().0, 7);
    }
}
