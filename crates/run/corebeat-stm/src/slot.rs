//! What others may know of a thread: whether it is in a transaction, how it stands, and how it went.

use crate::counter::{Cause, Counters};
use crate::global::{GLOBAL, lock};
use corebeat_sync::CachePadded;
use corebeat_sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The public side of a thread. It stays for ever; when the thread has ended, another gets it.
#[derive(Default)]
pub(crate) struct Slot {
    /// Among all slots, from 0.
    number: u32,
    own: CachePadded<Own>,
    told: CachePadded<Told>,
}

/// Written by the thread that has it.
#[derive(Default)]
struct Own {
    /// How often it has begun and ended an attempt: odd while it may see what others put out of sight.
    turn: AtomicU64,
    karma: AtomicU64,
    since: AtomicU64,
    waits: AtomicBool,
    aborts: [AtomicU64; Cause::ALL.len()],
    /// For traces: where in the program its transaction is.
    site: AtomicU64,
}

/// Written by others.
#[derive(Default)]
struct Told {
    /// The turn that is to end without success.
    doom: AtomicU64,
    /// For traces: the number of the slot that wanted that, and where in the program its transaction was.
    killer: AtomicU64,
    /// Something that it waits for has changed.
    woken: AtomicBool,
}

/// How a transaction stands beside others, by what it has said: when it began, and when it last met somebody.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Standing {
    /// How many cells it has opened, in this attempt and those before.
    pub karma: u64,
    /// Its place among all that ever met somebody: lower is older. `None`: it never did.
    pub since: Option<u64>,
    /// Whether it waits for somebody.
    pub waits: bool,
}

impl Slot {
    /// From now on, what is put out of sight may be seen by this thread. A `light` fence is to follow.
    #[inline(always)]
    pub(crate) fn begin(&self, turn: u64) {
        // Relaxed: the fence orders it.
        self.own.turn.store(turn, Ordering::Relaxed);
    }

    /// No more.
    #[inline(always)]
    pub(crate) fn end(&self, turn: u64) {
        // Release: pairs with the Acquire in `turn`, so that memory is freed after it was read.
        self.own.turn.store(turn, Ordering::Release);
    }

    pub(crate) fn turn(&self) -> u64 {
        self.own.turn.load(Ordering::Acquire)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// `killer` asks it to give up the attempt of this turn.
    pub(crate) fn doom(&self, turn: u64, killer: &Slot) {
        // Relaxed, as all that follows here: they are hints, and nothing hangs on when they are seen.
        let named = u64::from(killer.number) << 16 | u64::from(killer.site());
        self.told.killer.store(named, Ordering::Relaxed);
        self.told.doom.store(turn, Ordering::Relaxed);
    }

    /// Who asked last: the number of its slot, and where in the program it was.
    pub(crate) fn killer(&self) -> (u32, u16) {
        let named = self.told.killer.load(Ordering::Relaxed);
        ((named >> 16) as u32, named as u16)
    }

    /// Where in the program its transaction was when it last said so.
    pub(crate) fn site(&self) -> u16 {
        self.own.site.load(Ordering::Relaxed) as u16
    }

    pub(crate) fn tell_site(&self, site: u16) {
        self.own.site.store(site.into(), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn is_doomed(&self, turn: u64) -> bool {
        self.told.doom.load(Ordering::Relaxed) == turn
    }

    pub(crate) fn wake(&self) {
        // Release: pairs with the Acquire in `was_woken`.
        self.told.woken.store(true, Ordering::Release);
    }

    pub(crate) fn was_woken(&self) -> bool {
        let woken = self.told.woken.load(Ordering::Acquire);
        if woken {
            // Relaxed: nobody wakes it before it is on the list again.
            self.told.woken.store(false, Ordering::Relaxed);
        }
        woken
    }

    pub(crate) fn standing(&self) -> Standing {
        let since = self.own.since.load(Ordering::Relaxed);
        Standing {
            karma: self.own.karma.load(Ordering::Relaxed),
            since: (since != 0).then_some(since),
            waits: self.own.waits.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn stand(&self, standing: Standing) {
        self.own.karma.store(standing.karma, Ordering::Relaxed);
        self.own.since.store(standing.since.unwrap_or(0), Ordering::Relaxed);
        self.own.waits.store(standing.waits, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, cause: Cause) {
        let count = &self.own.aborts[cause as usize];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn add_to(&self, counters: &mut Counters) {
        let attempts = self.own.turn.load(Ordering::Relaxed) / 2;
        let mut aborts = 0;
        for (total, count) in counters.aborts.iter_mut().zip(&self.own.aborts) {
            let count = count.load(Ordering::Relaxed);
            *total += count;
            aborts += count;
        }
        counters.commits += attempts.saturating_sub(aborts);
    }
}

/// All slots, and those that nobody has.
#[derive(Default)]
pub(crate) struct Slots {
    // Boxed: locks and lists know their addresses.
    #[expect(clippy::vec_box, reason = "they must not move")]
    all: Vec<Box<Slot>>,
    free: Vec<&'static Slot>,
}

impl Slots {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Slots { all: Vec::new(), free: Vec::new() }
    }

    /// One for this thread.
    pub(crate) fn get() -> &'static Slot {
        let mut slots = lock(&GLOBAL.slots);
        if let Some(slot) = slots.free.pop() {
            return slot;
        }
        let number = slots.all.len() as u32;
        slots.all.push(Box::new(Slot { number, ..Slot::default() }));
        let slot: *const Slot = &**slots.all.last().expect("one was pushed");
        // SAFETY: it is boxed, and nothing is ever taken out of this list, which is static.
        unsafe { &*slot }
    }

    /// The thread that had it has ended.
    pub(crate) fn put_back(slot: &'static Slot) {
        lock(&GLOBAL.slots).free.push(slot);
    }

    /// Those in a transaction, with their turns.
    pub(crate) fn holdouts(into: &mut Vec<(&'static Slot, u64)>) {
        let slots = lock(&GLOBAL.slots);
        for slot in &slots.all {
            let turn = slot.turn();
            if turn % 2 == 1 {
                let slot: *const Slot = &**slot;
                // SAFETY: as in `get`.
                into.push((unsafe { &*slot }, turn));
            }
        }
    }

    pub(crate) fn counters() -> Counters {
        let mut counters = Counters::default();
        lock(&GLOBAL.slots).all.iter().for_each(|slot| slot.add_to(&mut counters));
        counters
    }
}
