//! Stacks: parts of large mappings, with a guard below each, which are reused.
//!
//! ```text
//!   mapping   | guard | stack 0        | guard | stack 1        | guard | ...
//!                     ^ limit      base ^
//!                                  grows down; a blocked task typically touches one page
//! ```
//!
//! A guard with protection of its own costs two memory areas of the kernel per stack. A process has
//! at most 65,530 areas (`vm.max_map_count`), so about 32,000 stacks. Linux 6.13 and later support
//! guards inside an area (`MADV_GUARD_INSTALL`): a million stacks need a few thousand areas. On
//! older kernels, guards are `PROT_NONE` areas, and the limit above holds.
//!
//! If all stacks of a mapping began at the same offset in their pages, their first cache lines
//! would fall into the same few sets of the first-level cache. Therefore the bases of neighbouring
//! stacks differ by a few cache lines (cache colouring).

use std::io;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Bytes of a guard.
pub(crate) const GUARD: usize = PAGE;
/// Largest number of stacks in a mapping. The smallest is 1.
const STACKS_MAX: usize = 256;
/// Approximate size of a mapping, in bytes.
const MAPPING: usize = 64 << 20;
/// Distance of two colours, in bytes: two cache lines, because processors fetch lines in pairs.
const COLOUR: usize = 128;
/// Number of colours, within the first page.
const COLOURS: usize = 8;

/// Room for a value at the start of a stack, in bytes, beside the requested size.
const HEAD: usize = 128;

/// A stack on loan from its pool.
pub(crate) struct Stack {
    mapping: NonNull<Mapping>,
    number: usize,
    base: usize,
}

impl Stack {
    /// Returns the highest address, where the stack begins.
    pub(crate) fn base(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.base).expect("a mapping is not at address 0")
    }

    /// Returns the lowest address, guard included.
    pub(crate) fn limit(&self) -> NonZeroUsize {
        // SAFETY: a mapping lives as long as one of its stacks is on loan.
        let mapping = unsafe { self.mapping.as_ref() };
        NonZeroUsize::new(mapping.start(self.number)).expect("a mapping is not at address 0")
    }

    /// Reserves memory for a value at the start of the stack.
    #[cfg(not(any(miri, corebeat_threads)))]
    pub(crate) fn reserve<T>(&mut self) -> NonNull<T> {
        /// Alignment of a stack, in bytes.
        const ALIGNMENT: usize = 16;
        const { assert!(size_of::<T>() <= HEAD && align_of::<T>() <= ALIGNMENT) };
        self.base -= size_of::<T>().next_multiple_of(ALIGNMENT);
        // SAFETY: as in `limit`.
        let address = unsafe { self.mapping.as_ref() }.address;
        address.with_addr(Stack::base(self)).cast()
    }
}

/// Returns the distance of two stacks, in bytes, guard included. Neither the head nor colouring
/// reduces the requested size.
fn stride(stack_size: usize) -> usize {
    (stack_size + HEAD + (COLOURS - 1) * COLOUR).next_multiple_of(PAGE) + GUARD
}

/// Returns the lowest address, guard included, of a stack of `stack_size` bytes with a value at
/// this address by `Stack::reserve`.
#[cfg(not(any(miri, corebeat_threads)))]
pub(crate) fn limit_of(reserved: usize, stack_size: usize) -> usize {
    // The value and the colour are within the last page.
    const { assert!(HEAD + (COLOURS - 1) * COLOUR < PAGE) };
    reserved.next_multiple_of(PAGE) - stride(stack_size)
}

/// An area of memory, divided into stacks of one size.
struct Mapping {
    address: NonNull<u8>,
    /// Distance of two stacks, in bytes.
    stride: usize,
    stacks: usize,
    /// Number of stacks at the start that have their guard, and were on loan before.
    used: usize,
    /// Numbers of returned stacks.
    free: Vec<usize>,
}

impl Mapping {
    fn new(stack_size: usize) -> io::Result<Mapping> {
        let stride = stride(stack_size);
        let stacks = (MAPPING / stride).clamp(1, STACKS_MAX);
        let reserve = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | reserve);
        // SAFETY: a new private area, at an address that the kernel selects.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), stride * stacks, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if !cfg!(miri) {
            // With huge pages, each blocked task would use 2 MiB.
            // SAFETY: the area of this mapping; failing advice changes nothing.
            unsafe { libc::madvise(address, stride * stacks, libc::MADV_NOHUGEPAGE) };
        }
        let address = NonNull::new(address.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Mapping { address, stride, stacks, used: 0, free: Vec::new() })
    }

    fn start(&self, number: usize) -> usize {
        self.address.as_ptr().addr() + number * self.stride
    }

    /// Returns the pages of an unused stack to the system.
    fn discard(&self, number: usize) {
        let (offset, bytes) = (number * self.stride + GUARD, self.stride - GUARD);
        if !cfg!(miri) {
            // SAFETY: inside the area, above the guard, and not on loan. Failing advice changes
            // nothing.
            unsafe {
                libc::madvise(self.address.as_ptr().add(offset).cast(), bytes, libc::MADV_DONTNEED)
            };
        }
    }

    fn is_exhausted(&self) -> bool {
        self.free.is_empty() && self.used == self.stacks
    }

    fn on_loan(&self) -> usize {
        self.used - self.free.len()
    }

    /// Takes a stack. Returns its number and base.
    fn take(&mut self) -> io::Result<(usize, usize)> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                // SAFETY: an unused page of the area.
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
        // SAFETY: the area of this mapping, of which no stack is on loan.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.stride * self.stacks) };
    }
}

/// A mapping that a pool owns. It is no box, because stacks have pointers to the mapping as well.
struct Owned(NonNull<Mapping>);

impl Owned {
    fn new(mapping: Mapping) -> Owned {
        Owned(NonNull::from(Box::leak(Box::new(mapping))))
    }
}

impl Deref for Owned {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        // SAFETY: from a box, which this value owns.
        unsafe { self.0.as_ref() }
    }
}

impl DerefMut for Owned {
    fn deref_mut(&mut self) -> &mut Mapping {
        // SAFETY: as above; stacks read the mapping only inside their own methods.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: from a box, and dropped once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Makes every access to a page fault.
///
/// # Safety
///
/// The page is mapped and unused.
unsafe fn guard(page: *mut u8) -> io::Result<()> {
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    if cfg!(miri) {
        // Under Miri, tasks run on stacks of threads.
        return Ok(());
    }
    // SAFETY: by the contract of this function.
    if unsafe { libc::madvise(page.cast(), PAGE, MADV_GUARD_INSTALL) } == 0 {
        return Ok(());
    }
    // SAFETY: by the contract of this function.
    if unsafe { libc::mprotect(page.cast(), PAGE, libc::PROT_NONE) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// The stacks of one size that belong to one worker.
pub(crate) struct Pool {
    stack_size: usize,
    /// Mappings with free stacks are at the end.
    mappings: Vec<Owned>,
}

impl Pool {
    /// Creates a pool of stacks of `stack_size` bytes, without guards.
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
        let mapping = self.mappings.last_mut().expect("the match above ensures a mapping");
        let (number, base) = mapping.take()?;
        Ok(Stack { mapping: mapping.0, number, base })
    }

    /// Takes a stack back. Its memory may be returned to the system.
    pub(crate) fn give_back(&mut self, stack: Stack) {
        let mut mapping = stack.mapping;
        // SAFETY: the mapping lives because this stack was on loan. Only the pool changes it.
        let mapping = unsafe { mapping.as_mut() };
        mapping.free.push(stack.number);
        if mapping.on_loan() == 0 {
            self.mappings.retain(|m| m.0 != stack.mapping);
        } else {
            mapping.discard(stack.number);
        }
    }
}
