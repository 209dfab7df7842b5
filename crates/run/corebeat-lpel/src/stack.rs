//! Stacks: cut from large mappings, with a guard below each, and used again.
//!
//! ```text
//!   mapping   | guard | stack 0        | guard | stack 1        | guard | ...
//!                     ^ limit      base ^
//!                                  grows down; the page at the base is the only one that a blocked task touches
//! ```
//!
//! A guard of its own mapping costs the kernel two areas a stack, and a process has 65,530 (`vm.max_map_count`): some
//! 32,000 stacks. Linux 6.13 and later have guards inside a mapping (`MADV_GUARD_INSTALL`), so that a million stacks need
//! a few thousand areas. Where that is missing, guards are `PROT_NONE` areas, and the limit above holds.
//!
//! All stacks of a mapping begin at the same offset in their pages, and so their first lines would fall into the same few
//! sets of the first-level cache. Each stack's base is moved down by a few lines more than its neighbour's.

use std::io;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Bytes of a guard.
pub(crate) const GUARD: usize = PAGE;
/// A mapping has at most so many stacks, and at least one.
const STACKS_MAX: usize = 256;
/// ... and about so many bytes.
const MAPPING: usize = 64 << 20;
/// Bases are moved by a multiple of this, in bytes: two lines, since processors fetch them in pairs.
const COLOUR: usize = 128;
/// How many such places there are, within the first page.
const COLOURS: usize = 8;

/// A stack, on loan from its pool.
pub(crate) struct Stack {
    mapping: NonNull<Mapping>,
    number: usize,
    base: usize,
}

impl Stack {
    /// The highest address, where it begins.
    pub(crate) fn base(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.base).expect("a mapping is not at address 0")
    }

    /// The lowest address, guard included.
    pub(crate) fn limit(&self) -> NonZeroUsize {
        // SAFETY: a mapping lives as long as stacks of it are on loan.
        let mapping = unsafe { self.mapping.as_ref() };
        NonZeroUsize::new(mapping.start(self.number)).expect("a mapping is not at address 0")
    }
}

/// One area of memory, cut into stacks of one size.
struct Mapping {
    address: NonNull<u8>,
    /// Bytes from one stack to the next.
    stride: usize,
    stacks: usize,
    /// The first so many have their guard and were on loan before.
    used: usize,
    /// Numbers of those that came back.
    free: Vec<usize>,
}

impl Mapping {
    fn new(stack_size: usize) -> io::Result<Mapping> {
        // What is moved down is not taken from what was asked for.
        let stride = (stack_size + (COLOURS - 1) * COLOUR).next_multiple_of(PAGE) + GUARD;
        let stacks = (MAPPING / stride).clamp(1, STACKS_MAX);
        let reserve = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | reserve);
        // SAFETY: a new private area, wherever the kernel likes.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), stride * stacks, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if !cfg!(miri) {
            // Huge pages would give each blocked task 2 MiB.
            // SAFETY: our area; advice that fails changes nothing.
            unsafe { libc::madvise(address, stride * stacks, libc::MADV_NOHUGEPAGE) };
        }
        let address = NonNull::new(address.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Mapping { address, stride, stacks, used: 0, free: Vec::new() })
    }

    fn start(&self, number: usize) -> usize {
        self.address.as_ptr().addr() + number * self.stride
    }

    /// Gives the pages of a stack that nobody uses back to the system.
    fn discard(&self, number: usize) {
        let (offset, bytes) = (number * self.stride + GUARD, self.stride - GUARD);
        if !cfg!(miri) {
            // SAFETY: inside our area, above the guard, and not on loan. Advice that fails changes nothing.
            unsafe { libc::madvise(self.address.as_ptr().add(offset).cast(), bytes, libc::MADV_DONTNEED) };
        }
    }

    fn is_exhausted(&self) -> bool {
        self.free.is_empty() && self.used == self.stacks
    }

    fn on_loan(&self) -> usize {
        self.used - self.free.len()
    }

    /// Takes a stack out: its number and base.
    fn take(&mut self) -> io::Result<(usize, usize)> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                // SAFETY: inside our area, which nobody uses yet here.
                unsafe { guard(self.address.as_ptr().add(self.used * self.stride)) }?;
                self.used += 1;
                self.used - 1
            }
        };
        let base = self.start(number) + self.stride - (number % COLOURS) * COLOUR;
        Ok((number, base))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our area, and no stack of it is on loan.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.stride * self.stacks) };
    }
}

/// A mapping that a pool owns. No box: stacks point to it as well.
struct Owned(NonNull<Mapping>);

impl Owned {
    fn new(mapping: Mapping) -> Owned {
        Owned(NonNull::from(Box::leak(Box::new(mapping))))
    }
}

impl Deref for Owned {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        // SAFETY: from a box, and ours until it is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl DerefMut for Owned {
    fn deref_mut(&mut self) -> &mut Mapping {
        // SAFETY: as above; stacks look at it only in calls of their own.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: from a box, and dropped once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Makes a page fault on every access.
///
/// # Safety
///
/// The page is mapped, and nobody uses it.
unsafe fn guard(page: *mut u8) -> io::Result<()> {
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    if cfg!(miri) {
        // Nothing runs there.
        return Ok(());
    }
    // SAFETY: the caller's word.
    if unsafe { libc::madvise(page.cast(), PAGE, MADV_GUARD_INSTALL) } == 0 {
        return Ok(());
    }
    // SAFETY: the caller's word.
    if unsafe { libc::mprotect(page.cast(), PAGE, libc::PROT_NONE) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// The stacks of one size of one worker.
pub(crate) struct Pool {
    stack_size: usize,
    /// Those with stacks to lend are at the end.
    mappings: Vec<Owned>,
}

impl Pool {
    /// Stacks of `stack_size` bytes, guards not counted.
    pub(crate) fn new(stack_size: usize) -> Pool {
        Pool { stack_size, mappings: Vec::new() }
    }

    pub(crate) fn stack_size(&self) -> usize {
        self.stack_size
    }

    /// Lends a stack.
    pub(crate) fn take(&mut self) -> io::Result<Stack> {
        if self.mappings.last().is_none_or(|m| m.is_exhausted()) {
            match self.mappings.iter().rposition(|m| !m.is_exhausted()) {
                Some(at) => {
                    let last = self.mappings.len() - 1;
                    self.mappings.swap(at, last);
                }
                None => self.mappings.push(Owned::new(Mapping::new(self.stack_size)?)),
            }
        }
        let mapping = self.mappings.last_mut().expect("there is one, see above");
        let (number, base) = mapping.take()?;
        Ok(Stack { mapping: mapping.0, number, base })
    }

    /// Takes a stack back, whose memory may be given back to the system.
    pub(crate) fn give_back(&mut self, stack: Stack) {
        let mut mapping = stack.mapping;
        // SAFETY: it lives because this stack was on loan; the pool is the only one to touch it.
        let mapping = unsafe { mapping.as_mut() };
        mapping.free.push(stack.number);
        if mapping.on_loan() == 0 {
            self.mappings.retain(|m| m.0 != stack.mapping);
        } else {
            mapping.discard(stack.number);
        }
    }
}
