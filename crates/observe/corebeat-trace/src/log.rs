//! A thread's side: events go into its buffer.

use crate::counter::{self, Fix};
use crate::event::sealed::Encode;
use crate::event::{EVENT_BYTES_MAX, Event, Kind};
use crate::packet::{self, FIX_EVENT_BYTES, KIND_BITS, RUN_BYTES_MAX, TICKS_MAX, TIMED_BYTES, UNTIMED_BYTES};
use crate::ring::{Ring, Taken};
use crate::run;
use crate::trace::{Shared, WhenFull, lock};
use corebeat_sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
use corebeat_sync::{Arc, Condvar, Mutex};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

/// One thread's own way into a trace: a stream of its events, in the order in which they were emitted.
///
/// Most programs need none: [`emit`](crate::emit) keeps one for each thread. It stays with its thread:
///
/// ```compile_fail
/// fn elsewhere(log: corebeat_trace::Log) {
///     std::thread::spawn(move || drop(log));
/// }
/// ```
pub struct Log {
    stream: Arc<Stream>,
    stays: PhantomData<*const ()>,
}

/// What is known of a buffer when it is begun.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Opened {
    pub(crate) begin: Fix,
    /// Events lost before it.
    pub(crate) lost: u64,
}

/// ... and when it is handed over.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Closed {
    pub(crate) end: Fix,
    pub(crate) real_offset_ns: i64,
}

/// What a thread and the one who takes its buffers share.
#[repr(C, align(64))]
pub(crate) struct Stream {
    // ---- the filler's, in one line
    /// Where the open slot ends; null while none is open. The filler writes it; who takes what is in the open slot sets it to
    /// null, so that the filler looks up, and begins another one.
    end: AtomicPtr<u8>,
    /// The counter at the last event or fix. The filler's alone.
    last: Cell<u64>,
    /// As `end`, the filler's alone, which nobody else sets to null.
    limit: Cell<*mut u8>,
    /// Events that there was no room for. Written by the filler.
    lost: AtomicU64,
    ring: Ring<Opened, Closed>,
    // ---- of both
    /// The filler is gone.
    ended: AtomicBool,
    /// For a filler that waits for room.
    gate: Mutex<()>,
    room: Condvar,
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: u32,
    pub(crate) thread: u32,
    pub(crate) name: String,
}

// SAFETY: `limit` and `last` are used by the filler alone, as methods that only it may call say; what they hold may be anywhere.
unsafe impl Send for Stream {}
// SAFETY: `limit` and `last` are used by the filler alone, as methods that only it may call say; all else may be shared.
unsafe impl Sync for Stream {}

impl Log {
    pub(crate) fn new(shared: &Arc<Shared>) -> Option<Log> {
        Some(Log { stream: Shared::enlist(shared)?, stays: PhantomData })
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Logs an event: a few stores, and a look at the cycle counter if its kind has time stamps. It never waits, unless the
    /// trace was built so; an event that there is no room for is counted. Does nothing once the trace is finished, and in a
    /// child of fork.
    #[inline(always)]
    pub fn emit<E: Event>(&self, event: &E) {
        // Code of others runs in these two, which may log as well, and not from there on.
        let (kind, fields) = (E::kind(), event.fields());
        // SAFETY: this is the filler's thread.
        unsafe { self.stream.emit(kind, E::TIMED, &fields, counter::now) };
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // SAFETY: this is the filler's thread, and its last call.
        unsafe { self.stream.finish() };
    }
}

impl Stream {
    pub(crate) fn new(shared: Arc<Shared>, number: u32) -> Stream {
        Stream {
            ring: Ring::new(shared.options.buffers, shared.memory()),
            end: AtomicPtr::new(ptr::null_mut()),
            limit: Cell::new(ptr::null_mut()),
            last: Cell::new(0),
            lost: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            gate: Mutex::new(()),
            room: Condvar::new(),
            shared,
            number,
            thread: rustix::thread::gettid().as_raw_nonzero().get() as u32,
            name: std::thread::current().name().unwrap_or_default().to_owned(),
        }
    }

    // ---- for the filler

    /// Logs an event. Whether the trace goes on.
    ///
    /// # Safety
    ///
    /// Only the filler calls this.
    #[inline(always)]
    pub(crate) unsafe fn emit<F: Encode + Copy>(
        &self,
        kind: &'static Kind,
        timed: bool,
        fields: &F,
        now: fn() -> u64,
    ) -> bool {
        let at = self.ring.at();
        let bytes = head_bytes(timed) + fields.bytes();
        // Relaxed: whoever sets it to null wants to be noticed, and nothing else.
        let end = self.end.load(Ordering::Relaxed);
        if let Some(number) = kind.number()
            && at.addr() + bytes <= end.addr()
        {
            let counter = if timed { now() } else { 0 };
            let ticks = counter.wrapping_sub(self.last.get());
            if !timed || ticks <= TICKS_MAX {
                if timed {
                    self.last.set(counter);
                }
                // SAFETY: there is room for that many bytes, which are the filler's.
                unsafe { self.ring.advance(write(at, number, timed.then_some(ticks), fields)) };
                return true;
            }
        }
        // A copy, so that it need not have an address on the usual way.
        let fields = *fields;
        // SAFETY: the caller's.
        unsafe { self.emit_slowly(kind, timed, &fields, now) }
    }

    /// Logs events without time stamps, each with one of these two to sixteen as its only field, if there is room at once.
    /// Whether it did.
    ///
    /// # Safety
    ///
    /// Only the filler calls this.
    #[inline(always)]
    pub(crate) unsafe fn emit_run<const COUNT: usize>(
        &self,
        kind: &'static Kind,
        values: &[u32; COUNT],
    ) -> bool {
        let at = self.ring.at();
        // Relaxed: as in `emit`.
        let end = self.end.load(Ordering::Relaxed);
        match kind.number() {
            Some(number) if at.addr() + RUN_BYTES_MAX <= end.addr() => {
                // SAFETY: there is room for that many bytes, which are the filler's.
                unsafe { self.ring.advance(run::write(at, number, values)) };
                true
            }
            _ => false,
        }
    }

    /// With a new kind, or a new buffer, or a fix before it.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn emit_slowly(
        &self,
        kind: &'static Kind,
        timed: bool,
        fields: &dyn Encode,
        now: fn() -> u64,
    ) -> bool {
        if self.shared.is_over() {
            return false;
        }
        let bytes = FIX_EVENT_BYTES + head_bytes(timed) + fields.bytes();
        let (Some(number), true) = (kind.number().or_else(|| kind.enlist()), bytes <= EVENT_BYTES_MAX) else {
            self.lose();
            return true;
        };
        // SAFETY: the caller's.
        if !unsafe { self.make_room(bytes) } {
            // A trace that is over has lost nothing: the event may go into the next one.
            let goes_on = !self.shared.is_over();
            if goes_on {
                self.lose();
            }
            return goes_on;
        }
        let mut ticks = now().wrapping_sub(self.last.get());
        let mut at = self.ring.at();
        // SAFETY: there is room for a fix and the event.
        unsafe {
            if timed && ticks > TICKS_MAX {
                let fix = Fix::take();
                at.cast::<[u8; FIX_EVENT_BYTES]>().write(packet::fix_event(&fix));
                at = at.add(FIX_EVENT_BYTES);
                self.last.set(fix.counter);
                ticks = 0;
            } else if timed {
                self.last.set(self.last.get().wrapping_add(ticks));
            }
            self.ring.advance(write(at, number, timed.then_some(ticks), fields));
        }
        true
    }

    /// Opens a slot with room for an event, if there is room.
    #[cold]
    unsafe fn make_room(&self, bytes: usize) -> bool {
        let at = self.ring.at();
        // Relaxed: as in `emit`.
        let is_wanted = self.end.load(Ordering::Relaxed).is_null();
        if !at.is_null() && !is_wanted && at.addr() + bytes <= self.limit.get().addr() {
            return true;
        }
        // What lost its slot finds out at once that there still is none.
        if at.is_null() && !self.ring.has_room() && self.shared.options.when_full == WhenFull::Drop {
            return false;
        }
        if self.shared.is_forked() {
            return false;
        }
        // SAFETY: the caller's.
        let end = unsafe { self.hand_over() };
        if self.shared.options.when_full == WhenFull::Wait {
            let mut gate = lock(&self.gate);
            while !self.ring.has_room() && !self.shared.is_over() {
                gate = self.room.wait(gate).unwrap_or_else(|e| e.into_inner());
            }
        }
        if self.shared.is_over() || !self.ring.has_room() {
            return false;
        }
        // Where nobody waited, one fix is the end of one buffer and the begin of the next.
        let begin = end.filter(|_| self.shared.options.when_full == WhenFull::Drop).unwrap_or_else(Fix::take);
        // Relaxed: for the filler, it has written this itself.
        let lost = self.lost.load(Ordering::Relaxed);
        // SAFETY: the caller's; no slot is open, and there is room.
        let (start, limit) = unsafe { self.ring.open(Opened { begin, lost }) };
        debug_assert!(start.addr() + bytes <= limit.addr());
        self.last.set(begin.counter);
        self.limit.set(limit);
        // Relaxed: only the filler goes by it.
        self.end.store(limit, Ordering::Relaxed);
        // SeqCst: one of this fence and that of who ends the trace is first. Either we see here that it is over, or `rest` sets `end`
        // to null after this: the next event does not go into a buffer that nobody takes any more.
        fence(Ordering::SeqCst);
        if self.shared.is_over() {
            self.end.store(ptr::null_mut(), Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Closes the open slot, if one is open. When that was.
    unsafe fn hand_over(&self) -> Option<Fix> {
        if self.ring.at().is_null() {
            return None;
        }
        // SAFETY: the caller's.
        let end = unsafe { self.close() };
        self.shared.handed_over(self);
        Some(end)
    }

    /// Closes the slot that is open.
    unsafe fn close(&self) -> Fix {
        let end = Fix::take();
        self.end.store(ptr::null_mut(), Ordering::Relaxed);
        self.limit.set(ptr::null_mut());
        // SAFETY: the caller's.
        unsafe { self.ring.close(Closed { end, real_offset_ns: counter::real_offset_ns() }) };
        end
    }

    /// Hands over what there is, for good.
    unsafe fn finish(&self) {
        if !self.shared.is_forked() {
            if !self.ring.at().is_null() {
                // SAFETY: the caller's.
                unsafe { self.close() };
            }
            // Release: pairs with Acquire in `is_ended`; who sees it sees the last slot as well.
            self.ended.store(true, Ordering::Release);
            self.shared.ended(self);
        }
    }

    fn lose(&self) {
        // Relaxed: a count. Nobody else writes it.
        self.lost.store(self.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    // ---- for the taker

    /// Whether nothing more is going to come.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Events lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Takes what is full, and gives it back when `each` is done with it.
    ///
    /// # Safety
    ///
    /// Only the taker calls this.
    pub(crate) unsafe fn drain(&self, mut each: impl FnMut(Full<'_>)) {
        // SAFETY: the caller's; what was told is not used any more after it is given back.
        while let Some(taken) = unsafe { self.ring.next() } {
            each(taken);
            // SAFETY: as above.
            unsafe { self.ring.free() };
            if self.shared.options.when_full == WhenFull::Wait {
                self.wake();
            }
        }
    }

    /// Takes what is in the open slot, where no slot is full. The filler's next event begins another slot, so that times are
    /// right there.
    ///
    /// # Safety
    ///
    /// Only the taker calls this.
    pub(crate) unsafe fn peek(&self, each: impl FnOnce(Full<'_>)) {
        // SAFETY: the caller's; nothing is given back here.
        if let Some(taken) = unsafe { self.ring.peek() } {
            // Relaxed: it wants to be noticed, and nothing else. If the filler has opened another slot meanwhile, that one is
            // short, or this is not noticed.
            self.end.store(ptr::null_mut(), Ordering::Relaxed);
            each(taken);
        }
    }

    /// Lets a filler that waits look again.
    pub(crate) fn wake(&self) {
        // It has either seen what there is to see, or waits.
        drop(lock(&self.gate));
        self.room.notify_one();
    }

    /// Takes all, and nothing any more.
    ///
    /// # Safety
    ///
    /// Only the taker calls this, as its last.
    pub(crate) unsafe fn rest(&self) -> Vec<Full<'_>> {
        self.end.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { self.ring.rest() }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.keep(self.ring.take_memory());
    }
}

/// What is in a buffer.
pub(crate) type Full<'a> = Taken<'a, Opened, Closed>;

/// Bytes before the fields.
#[inline(always)]
const fn head_bytes(timed: bool) -> usize {
    if timed { TIMED_BYTES } else { UNTIMED_BYTES }
}

/// Writes an event; where it ends. `ticks` are `None` where it has no time stamp.
///
/// # Safety
///
/// There is room for it.
#[inline(always)]
unsafe fn write(at: *mut u8, number: u16, ticks: Option<u64>, fields: &(impl Encode + ?Sized)) -> *mut u8 {
    // SAFETY: there is room for head and fields.
    unsafe {
        let at = match ticks {
            Some(ticks) => {
                let head = u32::from(number) | (ticks as u32) << KIND_BITS;
                at.cast::<[u8; TIMED_BYTES]>().write(head.to_le_bytes());
                at.add(TIMED_BYTES)
            }
            None => {
                at.cast::<[u8; UNTIMED_BYTES]>().write(number.to_le_bytes());
                at.add(UNTIMED_BYTES)
            }
        };
        fields.encode(at)
    }
}
