//! The producer's side of a stream: writes events into the buffers of one thread.

use crate::counter::{self, Fix};
use crate::event::sealed::Encode;
use crate::event::{EVENT_BYTES_MAX, Event, Kind};
use crate::packet::{
    self, FIX_EVENT_BYTES, KIND_BITS, RUN_BYTES_MAX, TICKS_MAX, TIMED_BYTES, UNTIMED_BYTES,
};
use crate::ring::{Ring, Taken};
use crate::run;
use crate::trace::{Shared, WhenFull, lock};
use corebeat_sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
use corebeat_sync::{Arc, Condvar, Mutex};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

/// One thread's access to a trace: a stream of its events, in the order in which they were emitted.
///
/// Most programs need no `Log`, because [`emit`](crate::emit) keeps one for each thread. A `Log`
/// cannot leave its thread:
///
/// ```compile_fail
/// fn elsewhere(log: corebeat_trace::Log) {
///     std::thread::spawn(move || drop(log));
/// }
/// ```
pub struct Log {
    stream: Arc<Stream>,
    not_send: PhantomData<*const ()>,
}

/// Recorded when a buffer is opened.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Opened {
    pub(crate) begin: Fix,
    /// Events lost before this buffer.
    pub(crate) lost: u64,
}

/// Recorded when a buffer is handed over.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Closed {
    pub(crate) end: Fix,
    pub(crate) real_offset_ns: i64,
}

/// The data that a thread (the producer) shares with the consumer of its buffers.
#[repr(C, align(64))]
pub(crate) struct Stream {
    // ---- the producer's fields, in one cache line
    /// Limit of the open slot; null while none is open. Written by the producer. A consumer that
    /// takes the contents of the open slot sets it to null, which makes the producer take the slow
    /// path and open another slot.
    end: AtomicPtr<u8>,
    /// The counter at the last event or fix. Used only by the producer.
    last: Cell<u64>,
    /// Copy of `end` for the producer. The consumer never resets it.
    limit: Cell<*mut u8>,
    /// Number of lost events. Written by the producer.
    lost: AtomicU64,
    /// Number of buffers opened so far. Used only by the producer.
    opened: Cell<u64>,
    ring: Ring<Opened, Closed>,
    // ---- shared fields
    /// Number of lost events in the last packet. Used only by the consumer.
    written_lost: AtomicU64,
    /// Whether the producer has ended.
    ended: AtomicBool,
    /// With `room`, blocks a producer that waits for a free slot.
    room_lock: Mutex<()>,
    room: Condvar,
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: u32,
    pub(crate) thread: u32,
    pub(crate) name: String,
}

// SAFETY: only the producer uses `limit`, `last` and `opened`, as the contracts of the unsafe
// methods state; their values are valid on any thread.
unsafe impl Send for Stream {}
// SAFETY: only the producer uses `limit`, `last` and `opened`, as the contracts of the unsafe
// methods state; all other fields are `Sync`.
unsafe impl Sync for Stream {}

impl Log {
    pub(crate) fn new(shared: &Arc<Shared>) -> Option<Log> {
        Some(Log { stream: Shared::register(shared)?, not_send: PhantomData })
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Logs an event with a few stores, plus a read of the cycle counter if its kind is timed. The
    /// call never waits, except with [`WhenFull::Wait`]; an event that finds no room is counted as
    /// lost. After the trace is finished, and in a child of fork, the call does nothing.
    #[inline(always)]
    pub fn emit<E: Event>(&self, event: &E) {
        // User code runs in these two calls and may log, too. No user code runs afterwards.
        let (kind, fields) = (E::kind(), event.fields());
        // SAFETY: this thread is the producer.
        unsafe { self.stream.emit(kind, E::TIMED, &fields, counter::now) };
    }

    /// Number of buffers that this log has opened so far. If the number changes over an
    /// [`emit`](Log::emit), that call took the slow path: it touched new memory, woke a collector,
    /// or waited for room.
    #[inline(always)]
    pub fn opened(&self) -> u64 {
        self.stream.opened.get()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // SAFETY: this thread is the producer, and this is its last call.
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
            opened: Cell::new(0),
            written_lost: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            room_lock: Mutex::new(()),
            room: Condvar::new(),
            shared,
            number,
            thread: rustix::thread::gettid().as_raw_nonzero().get() as u32,
            name: std::thread::current().name().unwrap_or_default().to_owned(),
        }
    }

    // ---- producer

    /// Logs an event. Returns whether the trace is still recorded.
    ///
    /// # Safety
    ///
    /// Only the producer calls this.
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
        // Relaxed: null only requests the slow path; no data depends on it.
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
                // SAFETY: that many bytes are free, and they belong to the producer.
                unsafe { self.ring.advance(write(at, number, timed.then_some(ticks), fields)) };
                return true;
            }
        }
        // A copy, so that `fields` needs no address on the fast path.
        let fields = *fields;
        // SAFETY: guaranteed by the caller.
        unsafe { self.emit_slowly(kind, timed, &fields, now) }
    }

    /// Logs two to sixteen untimed events, each with one of these values as its only field, if the
    /// buffer has room. Returns whether it logged them.
    ///
    /// # Safety
    ///
    /// Only the producer calls this.
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
                // SAFETY: that many bytes are free, and they belong to the producer.
                unsafe { self.ring.advance(run::write(at, number, values)) };
                true
            }
            _ => false,
        }
    }

    /// Logs an event that needs a new kind, a new buffer, or a fix before it.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn emit_slowly(
        &self,
        kind: &'static Kind,
        timed: bool,
        fields: &dyn Encode,
        now: fn() -> u64,
    ) -> bool {
        if self.shared.is_finished() {
            return false;
        }
        let bytes = FIX_EVENT_BYTES + head_bytes(timed) + fields.bytes();
        let (Some(number), true) =
            (kind.number().or_else(|| kind.register()), bytes <= EVENT_BYTES_MAX)
        else {
            self.count_lost();
            return true;
        };
        // SAFETY: guaranteed by the caller.
        if !unsafe { self.make_room(bytes) } {
            // An event after the end of the trace is not lost: it may go into the next trace.
            let continues = !self.shared.is_finished();
            if continues {
                self.count_lost();
            }
            return continues;
        }
        let mut ticks = now().wrapping_sub(self.last.get());
        let mut at = self.ring.at();
        // SAFETY: a fix and the event fit into the slot.
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

    /// Ensures that the open slot has room for an event. Returns whether it has.
    #[cold]
    unsafe fn make_room(&self, bytes: usize) -> bool {
        let at = self.ring.at();
        // Relaxed: as in `emit`.
        let is_wanted = self.end.load(Ordering::Relaxed).is_null();
        if !at.is_null() && !is_wanted && at.addr() + bytes <= self.limit.get().addr() {
            return true;
        }
        // A thread that lost its slot detects immediately that no slot is free.
        if at.is_null() && !self.ring.has_room() && self.shared.options.when_full == WhenFull::Drop
        {
            return false;
        }
        if self.shared.is_forked() {
            return false;
        }
        // SAFETY: guaranteed by the caller.
        let end = unsafe { self.hand_over() };
        if self.shared.options.when_full == WhenFull::Wait {
            let mut room_lock = lock(&self.room_lock);
            while !self.ring.has_room() && !self.shared.is_finished() {
                room_lock = self.room.wait(room_lock).unwrap_or_else(|e| e.into_inner());
            }
        }
        if self.shared.is_finished() || !self.ring.has_room() {
            return false;
        }
        // Without waiting, one fix is the end of one buffer and the begin of the next.
        let begin = end
            .filter(|_| self.shared.options.when_full == WhenFull::Drop)
            .unwrap_or_else(Fix::take);
        // Relaxed: the producer itself wrote this value.
        let lost = self.lost.load(Ordering::Relaxed);
        // SAFETY: guaranteed by the caller; no slot is open, and a slot is free.
        let (start, limit) = unsafe { self.ring.open(Opened { begin, lost }) };
        debug_assert!(start.addr() + bytes <= limit.addr());
        self.opened.set(self.opened.get() + 1);
        self.last.set(begin.counter);
        self.limit.set(limit);
        // Relaxed: only the producer depends on the value.
        self.end.store(limit, Ordering::Relaxed);
        // SeqCst: either this fence or the fence in `Trace::end` comes first. Either this thread
        // reads below that the trace is finished, or `take_rest` sets `end` to null afterwards, so
        // that the next event does not go into a buffer that has no consumer any more.
        fence(Ordering::SeqCst);
        if self.shared.is_finished() {
            self.end.store(ptr::null_mut(), Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Closes the open slot, if any, and hands it over. Returns its closing fix.
    unsafe fn hand_over(&self) -> Option<Fix> {
        if self.ring.at().is_null() {
            return None;
        }
        // SAFETY: guaranteed by the caller.
        let end = unsafe { self.close() };
        self.shared.handed_over(self);
        Some(end)
    }

    /// Closes the open slot.
    unsafe fn close(&self) -> Fix {
        let end = Fix::take();
        self.end.store(ptr::null_mut(), Ordering::Relaxed);
        self.limit.set(ptr::null_mut());
        // SAFETY: guaranteed by the caller.
        unsafe { self.ring.close(Closed { end, real_offset_ns: counter::real_offset_ns() }) };
        end
    }

    /// Hands over the last buffer and marks the stream as ended.
    unsafe fn finish(&self) {
        if !self.shared.is_forked() {
            if !self.ring.at().is_null() {
                // SAFETY: guaranteed by the caller.
                unsafe { self.close() };
            }
            // Release: pairs with Acquire in `is_ended`; a collector that reads the flag reads the
            // last slot.
            self.ended.store(true, Ordering::Release);
            self.shared.ended(self);
        }
    }

    fn count_lost(&self) {
        // Relaxed: the producer itself wrote this value. Release: pairs with Acquire in `lost`; a
        // consumer that reads the count reads the buffers that were opened before the loss.
        self.lost.store(self.lost.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    // ---- consumer

    /// Whether the stream receives no further events.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Number of events lost so far.
    pub(crate) fn lost(&self) -> u64 {
        // Acquire: pairs with Release in `count_lost`.
        self.lost.load(Ordering::Acquire)
    }

    /// Number of lost events for a packet of this buffer. The numbers of a stream never decrease.
    pub(crate) fn lost_before(&self, full: &Full<'_>) -> u64 {
        // Relaxed: only the consumer uses the value.
        let lost = full.opened.lost.max(self.written_lost.load(Ordering::Relaxed));
        self.written_lost.store(lost, Ordering::Relaxed);
        lost
    }

    /// Contents without events, if events were lost after all those that were taken. Otherwise the
    /// next buffer contains the number of lost events.
    ///
    /// # Safety
    ///
    /// Only the consumer calls this.
    pub(crate) unsafe fn loss(&self) -> Option<Full<'_>> {
        let lost = self.lost();
        // Relaxed: as in `lost_before`.
        if lost == self.written_lost.load(Ordering::Relaxed) {
            return None;
        }
        // Before the check: events that are taken later have later times.
        let begin = Fix::take();
        // SAFETY: guaranteed by the caller.
        let is_drained = unsafe { self.ring.is_drained() };
        let opened = Opened { begin, lost };
        is_drained.then_some(Full { opened, closed: None, bytes: &[], is_partial: false })
    }

    /// Passes each full slot to `each`, and then returns it to the producer.
    ///
    /// # Safety
    ///
    /// Only the consumer calls this.
    pub(crate) unsafe fn drain(&self, mut each: impl FnMut(Full<'_>)) {
        // SAFETY: guaranteed by the caller; the slot's contents are not used after `free`.
        while let Some(taken) = unsafe { self.ring.next() } {
            each(taken);
            // SAFETY: as above.
            unsafe { self.ring.free() };
            if self.shared.options.when_full == WhenFull::Wait {
                self.wake();
            }
        }
    }

    /// Passes the contents of the open slot to `each` if no slot is full. The next event of the
    /// producer opens another slot, so that the times of this slot end here.
    ///
    /// # Safety
    ///
    /// Only the consumer calls this.
    pub(crate) unsafe fn peek(&self, each: impl FnOnce(Full<'_>)) {
        // SAFETY: guaranteed by the caller; no slot is returned here.
        if let Some(taken) = unsafe { self.ring.peek() } {
            // Relaxed: null only requests the slow path; no data depends on it. If the producer has
            // opened another slot in the meantime, either that slot stays short or the request is
            // overwritten.
            self.end.store(ptr::null_mut(), Ordering::Relaxed);
            each(taken);
        }
    }

    /// Wakes a producer that waits for a free slot.
    pub(crate) fn wake(&self) {
        // With the lock, the producer has either not yet checked, or it waits.
        drop(lock(&self.room_lock));
        self.room.notify_one();
    }

    /// Takes everything that is left.
    ///
    /// # Safety
    ///
    /// Only the consumer calls this, and calls nothing else afterwards.
    pub(crate) unsafe fn take_rest(&self) -> Vec<Full<'_>> {
        self.end.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { self.ring.take_rest() }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.recycle(self.ring.take_memory());
    }
}

/// The contents of a buffer.
pub(crate) type Full<'a> = Taken<'a, Opened, Closed>;

/// Bytes of an event before its fields.
#[inline(always)]
const fn head_bytes(timed: bool) -> usize {
    if timed { TIMED_BYTES } else { UNTIMED_BYTES }
}

/// Writes an event. Returns its end. `ticks` is `None` for untimed events.
///
/// # Safety
///
/// The event fits at `at`.
#[inline(always)]
unsafe fn write(
    at: *mut u8,
    number: u16,
    ticks: Option<u64>,
    fields: &(impl Encode + ?Sized),
) -> *mut u8 {
    // SAFETY: head and fields fit, by the contract of this function.
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
