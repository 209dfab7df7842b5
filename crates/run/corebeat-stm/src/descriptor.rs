//! What a thread keeps of its transaction, and how one goes: all that is done to locks and memory is here.
//!
//! ```text
//!              +--------------------- again, after a pause --------------------+
//!              v                                                               |
//!   begin: time = clock     read   free and not newer than time? else extend   |
//!              |            own    take the lock, note the old value           |
//!              +----------> ....   what is written stands in memory at once,   +--- roll back: old values, a new version
//!                             |    behind the lock                             |         ^
//!                             v                                                |         |
//!                           commit: version = clock + 1;  nothing that was read has changed?
//!                             |                                                          no
//!                             v yes
//!                           release the locks with the version
//! ```

use crate::clock::Now;
use crate::contention::{ASKED_MAX, Decision, Standing};
use crate::counter::Cause;
use crate::fault::{Fault, is_planted};
use crate::global::GLOBAL;
use crate::limbo::{Dead, Limbo};
use crate::lock::{Lock, VERSION_MAX, holder, owner};
use crate::pause::{Random, pause};
use crate::place::Place;
use crate::reads::{Notes, Reads, push_where_room};
use crate::slot::{Slot, Slots};
use crate::trace::{self, Teller};
use crate::waiter::wake;
use corebeat_sync::asymmetric;
use corebeat_sync::atomic::Ordering;
use std::cell::Cell;
#[cfg(not(loom))]
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr::{self, NonNull};

/// A transaction that has failed so often shuts the gate: then it cannot fail again.
const FAILED_MAX: u32 = 100;

/// The attempt cannot go on: hand this on, out of the closure. The transaction begins again, or waits.
#[derive(Debug)]
#[must_use = "hand it on with `?`: the attempt is lost"]
pub struct Abort(());

/// How an attempt goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Reads what is not newer than its begin, and notes nothing.
    Snapshot,
    /// Notes what it reads, and what it overwrites.
    Full,
    /// Has shut the gate: nothing that it reads can change, so it notes what it overwrites only.
    Alone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    /// It wants to wait.
    Retry,
    Lost(Cause),
}

/// Something that was overwritten.
struct Write {
    place: NonNull<Place>,
    old: *mut (),
    /// For values that are to be dropped: how. Set once the new value stands there.
    drop: Option<unsafe fn(*mut ())>,
    /// The lock, if this is what it was taken for.
    lock: Option<NonNull<Lock>>,
}

pub(crate) struct Descriptor {
    /// What it reads is not newer.
    time: u64,
    /// How our locks look.
    owner: u64,
    mode: Mode,
    fate: Fate,
    is_irrevocable: bool,
    /// What it reads may be newer than its begin, if all that it has read before is still so. Always, but for transactions on
    /// words that were told otherwise in this attempt.
    may_extend: bool,
    /// There is more to do at the end than to give locks back: values that are to be dropped were written, or others were
    /// met.
    is_untidy: bool,
    /// How many `or_else` we are in.
    branches: u32,
    reads: Reads,
    writes: Vec<Write>,
    turn: u64,
    slot: &'static Slot,
    /// The version of the last commit.
    version: u64,
    /// How often this transaction has failed.
    failed: u32,
    standing: Standing,
    /// Values that were replaced, or taken back.
    limbo: Limbo,
    random: Random,
    /// Where the transaction stands in the program, if it said so.
    site: Option<&'static Location<'static>>,
    teller: Teller,
}

struct Owner(Cell<*mut Descriptor>);

impl Owner {
    fn leave(&self) {
        let descriptor = self.0.replace(ptr::null_mut());
        if !descriptor.is_null() {
            MINE.with(|mine| mine.set(ptr::null_mut()));
            // SAFETY: it was made from a box by `Descriptor::make`, and the thread has forgotten it.
            let mut descriptor = unsafe { Box::from_raw(descriptor) };
            // A thread of a program in C may end in the midst of a transaction.
            descriptor.give_up(Cause::Explicit);
            let slot = descriptor.slot;
            drop(descriptor);
            Slots::put_back(slot);
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A thread of a model is at its end: what is static may be gone when its destructors run.
#[cfg(all(test, loom))]
pub(crate) fn leave() {
    OWNER.with(Owner::leave);
}

corebeat_sync::thread_local! {
    /// Null before the first transaction, [`BUSY`] during one.
    static MINE: Cell<*mut Descriptor> = const { Cell::new(ptr::null_mut()) };
    static OWNER: Owner = const { Owner(Cell::new(ptr::null_mut())) };
}

const BUSY: *mut Descriptor = ptr::without_provenance_mut(1);

/// The only way to this thread's descriptor, while it lasts.
pub(crate) struct Mine(*mut Descriptor);

impl Mine {
    /// Takes it.
    ///
    /// # Panics
    ///
    /// Somebody has it.
    #[inline(always)]
    pub(crate) fn take() -> Mine {
        let mine = MINE.with(|mine| mine.replace(BUSY));
        if mine.addr() <= BUSY.addr() { Mine(Descriptor::make(mine)) } else { Mine(mine) }
    }

    /// Keeps it, for a transaction that goes on after whoever has begun it has returned.
    #[inline(always)]
    #[cfg(not(loom))]
    pub(crate) fn keep(self) -> NonNull<Descriptor> {
        let mine = ManuallyDrop::new(self);
        // SAFETY: from a box (`Descriptor::make`).
        unsafe { NonNull::new_unchecked(mine.0) }
    }

    /// Ends that.
    ///
    /// # Safety
    ///
    /// It is from `keep`, in this thread, and is not used in another way from here on.
    #[inline(always)]
    #[cfg(not(loom))]
    pub(crate) unsafe fn kept(descriptor: NonNull<Descriptor>) -> Mine {
        Mine(descriptor.as_ptr())
    }

    #[inline(always)]
    pub(crate) fn get(&mut self) -> &mut Descriptor {
        // SAFETY: it lives as long as the thread, and we are the only way there.
        unsafe { &mut *self.0 }
    }

    /// Gives it back, and frees what may be freed.
    #[inline(always)]
    pub(crate) fn done(mut self) {
        if std::mem::take(&mut self.get().is_untidy) {
            self.tidy();
        }
    }

    #[cold]
    fn tidy(mut self) {
        if self.get().limbo.is_full() {
            self.sweep();
        }
    }

    /// Frees what can be freed, and says how much that was.
    pub(crate) fn sweep(mut self) -> usize {
        let graves = self.get().limbo.sweep();
        // What is dropped may want to do transactions.
        drop(self);
        graves.bury()
    }
}

impl Drop for Mine {
    #[inline(always)]
    fn drop(&mut self) {
        MINE.with(|mine| mine.set(self.0));
    }
}

impl Descriptor {
    #[cold]
    fn make(mine: *mut Descriptor) -> *mut Descriptor {
        assert!(
            mine.is_null(),
            "a transaction begins inside another one of this thread: pass `tx` on instead"
        );
        let slot = Slots::get();
        // Makes `light` free, if it can be.
        asymmetric::heavy();
        let descriptor = Box::into_raw(Box::new(Descriptor {
            time: 0,
            owner: owner(slot),
            mode: Mode::Full,
            fate: Fate::Open,
            is_irrevocable: false,
            may_extend: true,
            is_untidy: false,
            branches: 0,
            reads: Reads::default(),
            writes: Vec::new(),
            turn: slot.turn(),
            slot,
            version: 0,
            failed: 0,
            standing: Standing::default(),
            limbo: Limbo::default(),
            random: Random::new((slot as *const Slot).addr() as u64),
            site: None,
            teller: Teller::new(),
        }));
        // In destructors of thread-local data ours may be gone. Then this one, and its slot, stay behind.
        let _ = OWNER.try_with(|own| own.0.set(descriptor));
        descriptor
    }

    /// For traces: where in the program the next transaction is.
    #[inline(always)]
    pub(crate) fn stand_at(&mut self, site: &'static Location<'static>) {
        self.site = Some(site);
    }

    /// The first attempt begins.
    #[inline(always)]
    pub(crate) fn start(&mut self, mode: Mode) {
        self.mode = mode;
        if mode == Mode::Snapshot && self.version > GLOBAL.clock.now().time {
            // What we have written ourselves is from the future: no need to stumble over it.
            GLOBAL.clock.bring_to(self.version);
        }
        self.begin();
    }

    #[inline(always)]
    fn begin(&mut self) {
        self.reads.note(if self.mode == Mode::Full { Notes::All } else { Notes::None });
        if trace::is_on() {
            self.tell_start();
        }
        self.turn += 1;
        self.slot.begin(self.turn);
        asymmetric::light();
        self.fate = Fate::Open;
        self.branches = 0;
        self.may_extend = true;
        self.time = if self.mode == Mode::Alone { VERSION_MAX } else { GLOBAL.clock.now().time };
    }

    #[inline(always)]
    fn end(&mut self) {
        self.turn += 1;
        self.slot.end(self.turn);
    }

    /// What is in `place`. It stays as long as the attempt.
    ///
    /// # Safety
    ///
    /// Both stay as long as the attempt; `lock` is always the same for `place`.
    #[inline(always)]
    pub(crate) unsafe fn read(&mut self, lock: &Lock, place: &Place) -> Result<*mut (), Abort> {
        if let Some(value) = self.read_at_once(lock, place) {
            return Ok(value);
        }
        // SAFETY: as here.
        unsafe { self.read_slowly(lock, place) }
    }

    /// As `read`, if nobody is in the way.
    #[inline(always)]
    pub(crate) fn read_at_once(&mut self, lock: &Lock, place: &Place) -> Option<*mut ()> {
        let seen = lock.look();
        let value = place.get();
        let is_read = seen <= self.time && lock.is_still(seen) && self.reads.push_at_once(lock);
        is_read.then_some(value)
    }

    #[cold]
    unsafe fn read_slowly(&mut self, lock: &Lock, place: &Place) -> Result<*mut (), Abort> {
        loop {
            let seen = lock.look();
            let value = place.get();
            if seen == self.owner || seen > VERSION_MAX && is_planted(Fault::Held) {
                return Ok(value);
            }
            if seen > VERSION_MAX {
                self.meet(lock, seen, Cause::ReadConflict)?;
            } else if seen > self.time && !is_planted(Fault::Time) {
                self.extend(lock, seen)?;
            } else if lock.is_still(seen) {
                self.reads.push(lock);
                return Ok(value);
            }
        }
    }

    /// Makes `place` ours to write, and says what it holds. With `anew` its value is noted even if it is ours already.
    ///
    /// # Safety
    ///
    /// As for `read`.
    #[inline(always)]
    pub(crate) unsafe fn own(&mut self, lock: &Lock, place: &Place, anew: bool) -> Result<*mut (), Abort> {
        if let Some(old) = self.own_at_once(lock, place) {
            return Ok(old);
        }
        // SAFETY: as here.
        unsafe { self.own_slowly(lock, place, anew) }
    }

    /// As `own`, if nobody is in the way, nor ourselves.
    #[inline(always)]
    pub(crate) fn own_at_once(&mut self, lock: &Lock, place: &Place) -> Option<*mut ()> {
        let seen = lock.look();
        let has_room = self.writes.len() < self.writes.capacity();
        if seen <= self.time && self.mode == Mode::Full && has_room && lock.take(seen, self.owner) {
            let old = place.own();
            let write = Write { place: place.into(), old, drop: None, lock: Some(lock.into()) };
            push_where_room(&mut self.writes, write);
            return Some(old);
        }
        None
    }

    #[inline(always)]
    fn note(&mut self, lock: Option<&Lock>, place: &Place) -> *mut () {
        let old = place.own();
        self.writes.push(Write { place: place.into(), old, drop: None, lock: lock.map(NonNull::from) });
        old
    }

    // Not cold: what is written twice comes here.
    #[inline(never)]
    unsafe fn own_slowly(&mut self, lock: &Lock, place: &Place, anew: bool) -> Result<*mut (), Abort> {
        loop {
            let seen = lock.look();
            if seen == self.owner {
                if anew || self.branches > 0 {
                    return Ok(self.note(None, place));
                }
                return Ok(place.own());
            }
            if self.mode == Mode::Snapshot {
                return Err(self.lose(Cause::Snapshot));
            }
            if seen > VERSION_MAX {
                self.meet(lock, seen, Cause::WriteConflict)?;
            } else if seen > self.time {
                self.extend(lock, seen)?;
            } else {
                if self.mode == Mode::Alone {
                    // Who has shut the gate takes what is from the future as well; its version is to be higher all the same.
                    GLOBAL.clock.bring_to(seen);
                }
                if lock.take(seen, self.owner) {
                    return Ok(self.note(Some(lock), place));
                }
            }
        }
    }

    /// Writes what is ours since `own`.
    #[inline(always)]
    pub(crate) fn put(&mut self, place: &Place, value: *mut (), drop: Option<unsafe fn(*mut ())>) {
        place.put(value);
        if drop.is_some() {
            // Values that are dropped are noted each time.
            if let Some(write) = self.writes.last_mut() {
                write.drop = drop;
            }
            self.is_untidy = true;
        }
    }

    /// All that was read is from one moment as late as `version`, if nothing of it has changed.
    fn extend(&mut self, lock: &Lock, version: u64) -> Result<(), Abort> {
        match self.mode {
            _ if !self.may_extend => {
                GLOBAL.clock.bring_to(version);
                self.teller.blame(lock, None);
                return Err(self.lose(Cause::Extension));
            }
            Mode::Snapshot => {
                GLOBAL.clock.bring_to(version);
                self.teller.blame(lock, None);
                return Err(self.lose(Cause::Snapshot));
            }
            Mode::Alone => return Ok(()),
            Mode::Full => {}
        }
        GLOBAL.clock.bring_to(version);
        let Now { time, .. } = GLOBAL.clock.now();
        if !self.is_valid() {
            self.blame_changed();
            return Err(self.lose(Cause::Extension));
        }
        self.time = time;
        Ok(())
    }

    /// In this attempt nothing is read that is newer than `version_max`, and without `may_extend` nothing that is newer than
    /// what could be read until now.
    #[cfg(not(loom))]
    pub(crate) fn bound(&mut self, may_extend: bool, version_max: u64) {
        if !self.is_irrevocable {
            self.may_extend = may_extend;
            self.time = self.time.min(version_max);
        }
    }

    /// How its locks look.
    #[cfg(not(loom))]
    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// The version of its last commit.
    #[cfg(not(loom))]
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Whether nothing that was read has been written since by others.
    #[inline(always)]
    fn is_valid(&self) -> bool {
        if is_planted(Fault::Validation) {
            return true;
        }
        self.reads.to_check().iter().all(|lock| {
            // SAFETY: what is read stays as long as the attempt.
            let seen = unsafe { lock.as_ref() }.look();
            seen <= self.time || seen == self.owner
        })
    }

    /// For traces: what has changed.
    #[cold]
    fn blame_changed(&mut self) {
        let (time, owner) = (self.time, self.owner);
        // SAFETY: what is read stays as long as the attempt.
        let locks = self.reads.to_check().iter().map(|lock| unsafe { lock.as_ref() });
        let changed = locks.map(|lock| (lock, lock.look())).find(|(_, seen)| *seen > time && *seen != owner);
        if let Some((lock, seen)) = changed {
            self.teller.blame(lock, holder(seen));
        }
    }

    /// Somebody holds a lock that we want. `Ok` when that is over.
    #[cold]
    fn meet(&mut self, lock: &Lock, seen: u64, cause: Cause) -> Result<(), Abort> {
        let Some(other) = holder(seen) else { return Ok(()) };
        let standing = self.stand();
        let result = self.wait_for(other, lock, seen, cause, standing);
        // It waits no more, whichever way that ended.
        self.slot.stand(standing);
        result
    }

    fn wait_for(
        &mut self,
        other: &'static Slot,
        lock: &Lock,
        seen: u64,
        cause: Cause,
        standing: Standing,
    ) -> Result<(), Abort> {
        let manager = GLOBAL.choice.get();
        let mut asked = 0;
        loop {
            // First the turn, then the lock: so it is the turn in which the lock is held.
            let turn = other.turn();
            if lock.look() != seen {
                break;
            }
            let decision = if self.mode == Mode::Alone {
                Decision::Kill
            } else if asked == ASKED_MAX {
                Decision::Abort
            } else if self.slot.is_doomed(self.turn) {
                self.teller.blame_killer(self.slot);
                return Err(self.lose(Cause::Killed));
            } else {
                manager.meet(standing, other.standing(), asked)
            };
            match decision {
                Decision::Abort => {
                    self.teller.blame(lock, Some(other));
                    return Err(self.lose(cause));
                }
                Decision::Kill => other.doom(turn, self.slot),
                Decision::Wait => {}
            }
            if asked == 0 {
                self.slot.stand(Standing { waits: true, ..standing });
            }
            pause(1 << asked.min(10));
            asked = asked.saturating_add(1);
        }
        Ok(())
    }

    /// Tells others how we stand, which is for them and for us alike.
    fn stand(&mut self) -> Standing {
        self.is_untidy = true;
        if self.standing.since.is_none() {
            // Relaxed: that numbers differ is all that is asked for.
            self.standing.since = Some(GLOBAL.met.fetch_add(1, Ordering::Relaxed) + 1);
        }
        let opened = self.opened();
        let standing = Standing { karma: self.standing.karma + opened, ..self.standing };
        self.slot.stand(standing);
        standing
    }

    /// How many cells were read to be looked at again, and written: the same, whoever is told of it.
    fn opened(&self) -> u64 {
        (self.reads.count_to_check() + self.writes.len()) as u64
    }

    /// The transaction is over: the next one begins with nothing.
    fn forget_standing(&mut self) {
        if self.standing != Standing::default() {
            self.standing = Standing::default();
            self.slot.stand(self.standing);
        }
    }

    pub(crate) fn lose(&mut self, cause: Cause) -> Abort {
        if !matches!(self.fate, Fate::Lost(_)) {
            self.fate = Fate::Lost(cause);
        }
        Abort(())
    }

    pub(crate) fn retry(&mut self) -> Abort {
        assert!(!self.is_irrevocable, "an irrevocable transaction cannot retry");
        if self.fate == Fate::Open {
            self.fate = Fate::Retry;
        }
        Abort(())
    }

    /// Whether it cannot fail any more.
    #[cfg(not(loom))]
    pub(crate) fn is_irrevocable(&self) -> bool {
        self.is_irrevocable
    }

    /// From here on it cannot fail.
    pub(crate) fn make_irrevocable(&mut self) -> Result<(), Abort> {
        if self.mode != Mode::Alone {
            if self.mode == Mode::Snapshot {
                return Err(self.lose(Cause::Snapshot));
            }
            if !GLOBAL.clock.shut() {
                return Err(self.lose(Cause::Gate));
            }
            if !self.is_valid() {
                self.blame_changed();
                GLOBAL.clock.open();
                return Err(self.lose(Cause::Validation));
            }
            self.mode = Mode::Alone;
            if !trace::is_on() || !self.teller.is_full() {
                self.reads.note(Notes::None);
            }
            self.time = VERSION_MAX;
        }
        self.is_irrevocable = true;
        Ok(())
    }

    /// An `or_else` begins: what is written from here on can be taken back by itself.
    pub(crate) fn branch(&mut self) -> usize {
        self.branches += 1;
        self.writes.len()
    }

    /// Its first part is over. Whether the second is to be tried: then all is as at `mark`, but that locks are still held.
    pub(crate) fn join(&mut self, mark: usize, ok: bool) -> bool {
        self.branches -= 1;
        if ok || self.fate != Fate::Retry {
            return false;
        }
        self.fate = Fate::Open;
        self.undo(mark);
        true
    }

    /// Takes back what was written since.
    fn undo(&mut self, mark: usize) {
        for write in self.writes[mark..].iter_mut().rev() {
            // SAFETY: what is written stays as long as the attempt.
            let place = unsafe { write.place.as_ref() };
            if let Some(drop) = write.drop.take() {
                self.limbo.put(Dead { value: place.own(), drop });
            }
            if !is_planted(Fault::Undo) {
                place.put(write.old);
            }
        }
    }

    /// The closure is done. Whether the transaction has taken place; if not, see `again`.
    #[inline(always)]
    pub(crate) fn commit(&mut self) -> bool {
        let done = if self.writes.is_empty() {
            // What it has read was there at one moment, as late as its begin.
            !matches!(self.fate, Fate::Lost(_))
        } else {
            self.commit_writes()
        };
        if done {
            self.finish();
        }
        done
    }

    #[inline(always)]
    fn commit_writes(&mut self) -> bool {
        if matches!(self.fate, Fate::Lost(_)) {
            return false;
        }
        // After all locks were taken: see the proof on the front page.
        let Now { time, is_shut } = GLOBAL.clock.now();
        if self.mode == Mode::Full {
            if is_shut && !is_planted(Fault::Gate) {
                self.fate = Fate::Lost(Cause::Gate);
                return false;
            }
            if self.slot.is_doomed(self.turn) {
                self.teller.blame_killer(self.slot);
                self.fate = Fate::Lost(Cause::Killed);
                return false;
            }
            if !self.is_valid() {
                self.blame_changed();
                self.fate = Fate::Lost(Cause::Validation);
                return false;
            }
        }
        self.version = if is_planted(Fault::Version) { time } else { time + 1 };
        for write in &self.writes {
            if let Some(lock) = write.lock {
                // SAFETY: as in `undo`.
                unsafe { lock.as_ref() }.release(self.version);
            }
        }
        wake(|| bits(&self.writes));
        true
    }

    #[inline(always)]
    fn finish(&mut self) {
        if trace::is_on() {
            self.tell_commit();
        }
        self.reads.clear();
        if self.is_untidy || self.failed != 0 || self.mode == Mode::Alone {
            self.finish_slowly();
        } else {
            self.writes.clear();
            self.end();
        }
    }

    #[cold]
    fn finish_slowly(&mut self) {
        for write in self.writes.drain(..) {
            if let Some(drop) = write.drop {
                self.limbo.put(Dead { value: write.old, drop });
            }
        }
        self.open();
        self.failed = 0;
        self.forget_standing();
        self.end();
    }

    /// After a commit: these are out of sight now, and dropped when no attempt reads them.
    #[cfg(not(loom))]
    #[inline(never)]
    pub(crate) fn bury(&mut self, values: &mut Vec<*mut ()>, drop: unsafe fn(*mut ())) {
        values.drain(..).for_each(|value| self.limbo.put(Dead { value, drop }));
        self.is_untidy = true;
    }

    #[inline(always)]
    fn tell_start(&mut self) {
        self.teller.start(self.slot, self.site);
        if self.mode != Mode::Full && self.teller.is_full() {
            self.reads.note(Notes::Rows);
        }
    }

    #[inline(always)]
    fn tell_commit(&mut self) {
        // Else its begin was not told.
        if !self.teller.is_current() {
            return;
        }
        if self.teller.is_full() {
            self.tell_accesses();
        }
        self.teller.commit();
    }

    #[inline(always)]
    fn tell_accesses(&mut self) {
        if !self.reads.is_empty() {
            self.tell_reads();
        }
        if !self.writes.is_empty() {
            self.tell_writes();
        }
    }

    #[inline(never)]
    fn tell_reads(&mut self) {
        trace::tell_reads(&mut self.reads);
    }

    #[inline(never)]
    fn tell_writes(&self) {
        trace::tell_writes(&self.writes, |write| write.lock);
    }

    /// Opens the gate, if we have shut it.
    fn open(&mut self) {
        self.is_irrevocable = false;
        if self.mode == Mode::Alone {
            self.mode = Mode::Full;
            GLOBAL.clock.open();
        }
    }

    /// Everything is as before the attempt, which is over.
    fn roll_back(&mut self, cause: Cause) {
        self.undo(0);
        if !self.writes.is_empty() {
            // As a commit of what was there. Who read what we had written must see that the lock has changed.
            let version = GLOBAL.clock.now().time + 1;
            for write in &self.writes {
                if let Some(lock) = write.lock {
                    // SAFETY: as in `undo`.
                    unsafe { lock.as_ref() }.release(version);
                }
            }
            self.version = version;
        }
        if trace::is_on() && self.teller.is_current() {
            let accesses =
                self.reads.count() + self.writes.iter().filter(|write| write.lock.is_some()).count();
            if self.teller.is_full() {
                self.tell_accesses();
            }
            self.teller.abort(accesses, cause);
        }
    }

    /// Why the attempt has failed.
    pub(crate) fn cause(&self) -> Cause {
        match self.fate {
            Fate::Lost(cause) => cause,
            Fate::Retry => Cause::Retry,
            // An `Abort` from somewhere else.
            Fate::Open => Cause::Validation,
        }
    }

    /// The attempt has failed: prepares the next one, and begins it. Waits meanwhile, as the cause wants.
    #[cold]
    pub(crate) fn again(&mut self) {
        assert!(!self.is_irrevocable, "an irrevocable transaction was given up: `Abort` from another one");
        let cause = self.cause();
        self.slot.count(cause);
        if cause == Cause::Retry && self.mode == Mode::Full {
            self.wait();
        } else {
            self.standing.karma += self.opened();
            self.roll_back(cause);
            self.reads.clear();
            self.writes.clear();
            self.end();
            self.pause(cause);
        }
        self.begin();
    }

    fn pause(&mut self, cause: Cause) {
        match cause {
            // What was read must be known, to be waited for.
            Cause::Retry => {
                self.open();
                self.failed = 0;
                self.mode = Mode::Full;
            }
            // It may wait for others to commit: they can, and soon.
            Cause::Explicit => {
                self.open();
                pause(u32::MAX);
            }
            Cause::Snapshot => self.mode = Mode::Full,
            _ => {
                self.failed += 1;
                if self.mode != Mode::Alone && self.failed >= FAILED_MAX {
                    while !GLOBAL.clock.shut() {
                        pause(u32::MAX);
                    }
                    self.mode = Mode::Alone;
                } else if cause == Cause::Gate {
                    while GLOBAL.clock.now().is_shut {
                        pause(u32::MAX);
                    }
                } else {
                    let spins = GLOBAL.choice.get().pause_spins(self.failed);
                    pause(self.random.below(spins));
                }
            }
        }
    }

    /// Rolls back, and waits until something that was read has changed.
    fn wait(&mut self) {
        // What we hold ourselves gets a version that we know; of the rest we know that it is not newer than `time`.
        let mut unchanged = self.is_valid();
        let owner = self.owner;
        self.reads.retain(|lock| {
            // SAFETY: as in `is_valid`.
            unsafe { lock.as_ref() }.look() != owner
        });
        self.roll_back(Cause::Retry);
        let own = |writes: &[Write]| writes.iter().filter_map(|write| write.lock).collect::<Vec<_>>();
        let own = own(&self.writes);
        // SAFETY: as in `is_valid`.
        let look = |lock: &NonNull<Lock>| unsafe { lock.as_ref() }.look();
        // SAFETY: as in `is_valid`.
        let bit = |lock: &NonNull<Lock>| unsafe { lock.as_ref() }.bit();
        let bits = self.reads.to_check().iter().chain(&own).map(bit).fold(0, |bits, bit| bits | bit);
        if unchanged {
            GLOBAL.waiters.join(self.slot, bits);
            unchanged = self.reads.to_check().iter().all(|lock| look(lock) <= self.time)
                && own.iter().all(|lock| look(lock) == self.version);
            if !unchanged {
                GLOBAL.waiters.leave(self.slot);
            }
        }
        self.reads.clear();
        self.writes.clear();
        self.failed = 0;
        self.end();
        if unchanged {
            assert!(bits != 0, "`retry` of a transaction that has read nothing would wait for ever");
            GLOBAL.waiters.sleep(self.slot);
        }
    }

    /// There is no next attempt: the closure panicked, or the like.
    #[cold]
    pub(crate) fn give_up(&mut self, cause: Cause) {
        if self.turn.is_multiple_of(2) {
            // The attempt is over already.
            return;
        }
        self.slot.count(cause);
        self.roll_back(cause);
        self.reads.clear();
        self.writes.clear();
        self.open();
        self.failed = 0;
        self.forget_standing();
        self.end();
    }
}

fn bits(writes: &[Write]) -> u64 {
    let locks = writes.iter().filter_map(|write| write.lock);
    // SAFETY: as in `undo`.
    locks.map(|lock| unsafe { lock.as_ref() }.bit()).fold(0, |bits, bit| bits | bit)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::contention::{self, Backoff, ContentionManager, Suicide};
    use crate::fault::test::on_pause;
    use crate::history::turn;
    use crate::{TCell, atomically, snapshot};
    use std::rc::Rc;

    /// A cell that another thread holds. Where this one would pause, the other is asked whether it gives it back: with how
    /// often it was asked before, and how this one stands.
    fn held(
        manager: &'static dyn ContentionManager,
        gives_back: impl Fn(u32, Standing) -> bool + 'static,
    ) -> &'static TCell<u64> {
        contention::set(manager);
        let cell: &TCell<u64> = Box::leak(Box::new(TCell::new(7)));
        let (other, own) = (Slots::get(), Mine::take().get().slot);
        let lock = cell.parts().0;
        assert!(lock.take(0, owner(other)));
        let asked = Cell::new(0);
        on_pause(Rc::new(move || {
            let before = asked.replace(asked.get() + 1);
            assert!(before < 10 * FAILED_MAX, "it is asked for ever");
            if lock.look() > VERSION_MAX && gives_back(before, own.standing()) {
                lock.release(0);
                Slots::put_back(other);
            }
        }));
        cell
    }

    #[test]
    fn snapshot_that_fails_again_and_again_gets_its_way() {
        let _turn = turn();
        let cell = held(&Suicide, |_, _| GLOBAL.clock.now().is_shut);
        assert_eq!(snapshot(|tx| tx.read(cell)), 7);
        assert!(!GLOBAL.clock.now().is_shut);
    }

    #[test]
    fn transaction_that_gave_up_does_not_wait() {
        let _turn = turn();
        let cell = held(&Backoff, |before, standing| {
            assert_eq!(standing.waits, before < 8, "asked the {before}th time");
            before == 8
        });
        assert_eq!(atomically(|tx| tx.read(cell)), 7);
    }

    #[test]
    fn transaction_that_met_somebody_says_what_it_has_opened_until_it_is_over() {
        let _turn = turn();
        let others = [TCell::new(1u64), TCell::new(2)];
        let cell = held(&Backoff, |_, standing| {
            assert_eq!((standing.karma, standing.since.is_some()), (2, true));
            true
        });
        let sum = atomically(|tx| {
            tx.update(&others[1], |n| n + 1)?;
            Ok(tx.read(&others[0])? + tx.read(cell)?)
        });
        assert_eq!(sum, 8);
        assert_eq!(Mine::take().get().slot.standing(), Standing::default());
    }
}
