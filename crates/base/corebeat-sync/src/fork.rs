//! Keeps shared memory and locked files out of children of fork, recognises values that a child has
//! inherited, and lets a child continue with the state of its parent, or with own state.
//!
//! [`KeptOut`] is for memory and files, [`Process`] and [`Uninherited`] for values that rely on
//! threads. A thread that does not exist in a child may have held a lock at the fork: with a
//! [`ForkMutex`] the child inherits the value, with [`PerProcess`] it creates its own.
//! [`call_in_children`] is for state of threads.
//!
//! A child inherits the mappings and the open files of its parent, and possibly code that continues
//! to use them. A lock of a file (`flock`) belongs to the open file, so a child that outlives its
//! parent would hold the lock. Before `fork` returns in the child, this module replaces the memory
//! by private memory filled with zeros, and the descriptors by descriptors of unconnected sockets.
//!
//! The kernel's own mechanisms are unsuitable. After `MADV_DONTFORK` the child would crash at its
//! next access, and `MADV_WIPEONFORK` works only on private memory. No flag closes a descriptor on
//! fork. Record locks (`F_SETLK`) are not inherited, but a process loses such a lock as soon as it
//! closes any other descriptor of the file, such as that of a reader.
//!
//! # Handlers of the program
//!
//! This module registers handlers (`pthread_atfork`) when the program or library that contains it
//! is loaded, before another thread can use it. Registration at the first use would be too late: a
//! thread may use the module for the first time between the handlers before a fork and the fork.
//! The handler before a fork takes a lock, the handlers after the fork release it, and each
//! [`ForkMutex`] waits for it meanwhile.
//!
//! The C library calls the handlers before a fork in the reverse order of their registration, and
//! the others in that order. Handlers that are registered later may therefore use this module.
//! Those that are registered before it is loaded run while the lock is held: they must not use
//! functions that use this module, which would wait for their own thread, and must not take a lock
//! that another thread holds while it uses such functions: both threads would wait for each other.
//! In turn, a later handler must not take a lock that is needed inside of a [`ForkMutex`]. The only
//! such lock is that of the allocator, so this module allocates before it registers: an allocator
//! that registers handlers at its first use has done so.
//!
//! # Limits
//!
//! `vfork`, and `clone` called without the C library, are not covered. Neither is a fork that
//! another thread began before this module is loaded (`dlopen`).

use crate::const_unless_loom;
use crate::descriptor::above_standard;
use std::cell::Cell;
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Number of forks between the first process that uses this module and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process in which a value was created. A child of fork has none of the threads of its parent,
/// so a value that relies on threads cannot work in another process than its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// Returns the calling process. If the C library cannot register handlers, children are equal
    /// to their parents.
    #[inline]
    pub fn current() -> Process {
        registered();
        Process(forks())
    }

    /// Returns whether this is the calling process.
    #[inline(always)]
    pub fn is_current(self) -> bool {
        self.0 == forks()
    }
}

#[inline(always)]
fn forks() -> u32 {
    // Relaxed: written before `fork` returns in the child, whose other threads start later.
    FORKS.load(Ordering::Relaxed)
}

/// A value that children of fork can neither use nor drop, such as the handle of a thread: the
/// thread does not exist in the child, and the C library may have reused its memory for a thread of
/// the child, which the drop of the handle would detach.
#[derive(Debug)]
pub struct Uninherited<T> {
    process: Process,
    value: ManuallyDrop<T>,
}

impl<T> Uninherited<T> {
    /// The value belongs to the calling process.
    pub fn new(value: T) -> Uninherited<T> {
        Uninherited { process: Process::current(), value: ManuallyDrop::new(value) }
    }

    /// Returns the value, or `None` in a child of fork.
    pub fn into_inner(self) -> Option<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so nothing uses the value afterwards.
        this.process.is_current().then(|| unsafe { ManuallyDrop::take(&mut this.value) })
    }
}

impl<T> Drop for Uninherited<T> {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: nothing uses the value after the drop of its owner.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// Held for writing by a thread that forks, and for reading by a thread that modifies a value that
/// must be consistent in children. A reader that arrives while a thread waits to fork waits
/// for that fork.
static FORKING: RwLock<()> = RwLock::new(());

thread_local! {
    /// The lock of a thread that forks. Without a destructor, so that an ending thread may fork.
    static HELD: Cell<Option<ManuallyDrop<RwLockWriteGuard<'static, ()>>>> =
        const { Cell::new(None) };
}

/// Prevents that another thread forks while the guard exists. A thread with a guard must not get a
/// second one: a thread that waits to fork would block both.
fn prevent_fork() -> Option<RwLockReadGuard<'static, ()>> {
    // Models do not fork, and their threads are one thread of the system.
    if cfg!(loom) {
        return None;
    }
    registered();
    Some(FORKING.read().unwrap_or_else(PoisonError::into_inner))
}

/// A lock that a child of fork finds free, and its value consistent: `fork` waits until no other
/// thread holds a lock of this type. The C library treats the locks of its allocator in the same
/// way.
///
/// For short critical sections: all other locks of this type wait for a thread that waits to fork.
/// A thread that holds such a lock must not wait for other threads, fork, use a second such lock or
/// a function of this module, or run code of the user, which might do that.
#[derive(Debug)]
pub struct ForkMutex<T>(crate::Mutex<T>);

impl<T> ForkMutex<T> {
    const_unless_loom! {
        /// Creates a free lock.
        pub fn new(value: T) -> ForkMutex<T> {
            ForkMutex(crate::Mutex::new(value))
        }
    }

    /// Locks the value, also after a panic of a thread that held the lock ([`crate::lock`]).
    pub fn lock(&self) -> ForkGuard<crate::MutexGuard<'_, T>> {
        let no_fork = prevent_fork();
        ForkGuard { guard: crate::lock(&self.0), _no_fork: no_fork }
    }
}

/// Guard of a [`ForkMutex`].
#[derive(Debug)]
pub struct ForkGuard<G> {
    /// Dropped first.
    guard: G,
    _no_fork: Option<RwLockReadGuard<'static, ()>>,
}

impl<G: Deref> Deref for ForkGuard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for ForkGuard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// Calls `f` in each later child of fork, in its only thread, before `fork` returns there. Only the
/// first call with a function has an effect. `f` must not use this module other than by
/// [`ForkMutex`]. If the C library cannot register handlers, `f` is not called.
pub fn call_in_children(f: fn()) {
    let mut list = lock();
    if !list.calls.iter().any(|&other| ptr::fn_addr_eq(other, f)) {
        list.calls.push(f);
    }
}

/// The work in a child.
struct List {
    /// Memory and descriptors that children do not inherit, each with the number of its owner.
    kept: Vec<(u64, Kept)>,
    calls: Vec<fn()>,
}

// Not a `ForkMutex`, because the list is not a part of models.
static LIST: Mutex<List> = Mutex::new(List { kept: Vec::new(), calls: Vec::new() });

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// Address and size in bytes.
    Memory { start: usize, bytes: usize },
    /// A descriptor and its file, in a child the file that has replaced it. The program may have
    /// closed the descriptor, and opened another file with the same number.
    File { fd: RawFd, identity: Option<Identity> },
}

/// Device and inode of a file.
type Identity = (libc::dev_t, libc::ino_t);

/// Returns the file of a descriptor; `None` if the descriptor is not open.
fn identity(fd: RawFd) -> Option<Identity> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the pointer refers to memory for the result, which a successful call fills.
    unsafe {
        let is_open = libc::fstat(fd, stat.as_mut_ptr()) == 0;
        is_open.then(|| stat.assume_init()).map(|stat| (stat.st_dev, stat.st_ino))
    }
}

/// Memory or a file that children of fork do not inherit until this value is dropped. Drop it
/// before the memory is unmapped, or the file is closed: another mapping or file may then have the
/// same address or descriptor.
#[derive(Debug)]
#[must_use]
pub struct KeptOut(u64);

impl KeptOut {
    /// Replaces this memory in children by zeros that are private to the child.
    ///
    /// # Errors
    ///
    /// The C library cannot register handlers.
    ///
    /// # Safety
    ///
    /// The memory is a whole mapping, starts at a multiple of the page size, and stays mapped while
    /// the returned value exists. A child may find zeros in it at any time.
    pub unsafe fn memory(start: usize, bytes: usize) -> io::Result<KeptOut> {
        Ok(KeptOut::add(&mut *handled()?, Kept::Memory { start, bytes }))
    }

    /// Opens a file that children do not inherit: their descriptor is that of an unconnected
    /// socket. The descriptor is none of the standard ones. A fork of another thread waits until
    /// `open` returns, so `open` must not wait for long.
    ///
    /// # Errors
    ///
    /// The error of `open`; the process has no descriptor left; or the C library cannot register
    /// handlers.
    pub fn file(open: impl FnOnce() -> io::Result<File>) -> io::Result<(KeptOut, File)> {
        KeptOut::descriptor(|| Ok(File::from(above_standard(open()?.into())?)))
    }

    /// As [`KeptOut::file`], for a value whose descriptor must not change. The descriptor may be a
    /// standard one, unless `open` holds [`StandardTaken`](crate::descriptor::StandardTaken).
    ///
    /// # Errors
    ///
    /// The error of `open`; or the C library cannot register handlers.
    pub fn descriptor<F: AsRawFd>(
        open: impl FnOnce() -> io::Result<F>,
    ) -> io::Result<(KeptOut, F)> {
        let mut list = handled()?;
        let file = open()?;
        let fd = file.as_raw_fd();
        let kept = Kept::File { fd, identity: identity(fd) };
        Ok((KeptOut::add(&mut list, kept), file))
    }

    fn add(list: &mut List, kept: Kept) -> KeptOut {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the lock of the list orders the calls.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        list.kept.push((number, kept));
        KeptOut(number)
    }

    /// Returns whether the descriptor still refers to the file, or in a child to the socket that
    /// has replaced the file. Otherwise the program has closed the descriptor, and its number may
    /// be that of another file, which the owner of this file must not close. True for memory.
    pub fn is_open(&self) -> bool {
        let list = lock();
        let kept = list.kept.iter().find(|(number, _)| *number == self.0);
        kept.is_some_and(|(_, kept)| match *kept {
            Kept::Memory { .. } => true,
            Kept::File { fd, identity: own } => own.is_some() && identity(fd) == own,
        })
    }
}

impl Drop for KeptOut {
    fn drop(&mut self) {
        let kept = &mut lock().kept;
        if let Some(index) = kept.iter().position(|(number, _)| *number == self.0) {
            kept.swap_remove(index);
        }
    }
}

fn lock() -> ForkGuard<MutexGuard<'static, List>> {
    let no_fork = prevent_fork();
    ForkGuard { guard: LIST.lock().unwrap_or_else(PoisonError::into_inner), _no_fork: no_fork }
}

/// 0 if the handlers are registered, an error number, or [`NOT_LOADED`].
static REGISTERED: AtomicI32 = AtomicI32::new(NOT_LOADED);

const NOT_LOADED: i32 = -1;

/// The loader calls this function before `main`, or before `dlopen` returns.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    // Miri does not fork. Relaxed: loading is over when other threads use this module.
    if REGISTERED.load(Ordering::Relaxed) == NOT_LOADED && !cfg!(miri) {
        // An allocator has registered its handlers then.
        drop(black_box(Box::new(0_u8)));
        // SAFETY: the handlers may be called at any time. `dlclose` of this library removes them.
        let result = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        REGISTERED.store(result, Ordering::Relaxed);
    }
}

/// Returns 0 or the error number of the registration.
#[inline]
fn registered() -> i32 {
    // Relaxed: see `at_load`.
    match REGISTERED.load(Ordering::Relaxed) {
        NOT_LOADED => load_now(),
        result => result,
    }
}

/// Registers for a library that is loaded earlier. The use of the static also makes every linker
/// keep it.
#[cold]
fn load_now() -> i32 {
    // SAFETY: the pointer is that of a static.
    let at_load = unsafe { ptr::read_volatile(&raw const AT_LOAD) };
    at_load();
    REGISTERED.load(Ordering::Relaxed).max(0)
}

/// Locks the list, if the handlers are registered.
fn handled() -> io::Result<ForkGuard<MutexGuard<'static, List>>> {
    match registered() {
        0 => Ok(lock()),
        failed => Err(io::Error::from_raw_os_error(failed)),
    }
}

extern "C" fn prepare() {
    let held = FORKING.write().unwrap_or_else(PoisonError::into_inner);
    HELD.set(Some(ManuallyDrop::new(held)));
}

extern "C" fn parent() {
    drop(HELD.take().map(ManuallyDrop::into_inner));
}

extern "C" fn child() {
    // Relaxed: see `forks`.
    FORKS.fetch_add(1, Ordering::Relaxed);
    parent();
    // Free, because a thread that locks the list prevents forks. This thread does not, so that the
    // calls may.
    let mut list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
    for (_, kept) in &mut list.kept {
        match kept {
            Kept::Memory { start, bytes } => clear(*start, *bytes),
            Kept::File { fd, identity: own } if own.is_some() && identity(*fd) == *own => {
                replace(*fd);
                *own = identity(*fd);
            }
            // The program has closed the descriptor.
            Kept::File { .. } => {}
        }
    }
    list.calls.iter().for_each(|call| call());
}

fn clear(start: usize, bytes: usize) {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_ANONYMOUS;
    // SAFETY: the memory is a mapping of this size in which the child may find zeros, and the child
    // has no other thread. If the system has no memory, the mapping of the parent stays, which is
    // better than none.
    unsafe { libc::mmap(start as *mut libc::c_void, bytes, access, flags, -1, 0) };
}

/// Closes the inherited file. The descriptor stays open, because the owner of the file in the
/// child's memory may close it, and would otherwise close a later file with the same number. A
/// socket has an inode of its own, by which [`KeptOut::is_open`] recognises it.
fn replace(fd: RawFd) {
    // SAFETY: the descriptor is that of a file in the list, which nothing in the child relies on.
    // It is closed first, so that the process is below its limit of descriptors.
    unsafe {
        libc::close(fd);
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let other = libc::socket(libc::AF_UNIX, kind, 0);
        if other >= 0 && other != fd {
            libc::dup3(other, fd, libc::O_CLOEXEC);
            libc::close(other);
        }
    }
}

/// A value that each process creates for itself. A child of fork does not use the value of its
/// parent, because a thread that does not exist in the child may have held its lock. For the same
/// reason no value is freed.
#[derive(Debug)]
pub struct PerProcess<T>(AtomicPtr<OfProcess<T>>);

#[derive(Debug)]
struct OfProcess<T> {
    process: Process,
    value: T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// No process has a value yet.
    pub const fn unset() -> Self {
        PerProcess(AtomicPtr::new(ptr::null_mut()))
    }

    /// The value of this process. The first call creates the value; in a child of fork `create`
    /// receives the value of the parent, of which it must use no lock. If several threads create a
    /// value at the same time, all of them receive the first one.
    pub fn get(&self, create: impl Fn(Option<&T>) -> T) -> &'static T {
        let process = Process::current();
        // Acquire: pairs with the exchange below, so that the value is initialised.
        let mut loaded = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: the pointer is null or refers to a value, and values are never freed.
            let parent = match unsafe { loaded.as_ref() } {
                Some(own) if own.process == process => return &own.value,
                other => other,
            };
            let value = create(parent.map(|parent| &parent.value));
            let new = Box::into_raw(Box::new(OfProcess { process, value }));
            // Release for threads that load the pointer; Acquire for the value of a faster thread.
            match self.0.compare_exchange(loaded, new, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: never freed after this point.
                Ok(_) => return unsafe { &(*new).value },
                Err(other) => {
                    // SAFETY: no other thread has read this pointer.
                    drop(unsafe { Box::from_raw(new) });
                    loaded = other;
                }
            }
        }
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;
    use corebeat_test_group::in_child;
    use std::io::Write;
    use std::os::fd::IntoRawFd;

    fn is_socket(fd: RawFd) -> bool {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        link.is_ok_and(|link| link.to_string_lossy().starts_with("socket:"))
    }

    #[test]
    fn child_is_another_process_than_its_ancestors() {
        let own = Process::current();
        assert!(own.is_current() && own == Process::current());
        assert!(in_child(|| {
            let child = Process::current();
            let in_grandchild = in_child(|| !own.is_current() && !child.is_current());
            !own.is_current() && child.is_current() && in_grandchild
        }));
        assert!(own.is_current());
    }

    /// A test of its own process, in which nothing else uses this module.
    #[test]
    fn handlers_are_registered_at_load() {
        const ALONE: &str = "COREBEAT_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            assert_eq!(REGISTERED.load(Ordering::Relaxed), 0);
            return;
        }
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        test.args(["fork::tests::handlers_are_registered_at_load", "--exact"]).env(ALONE, "1");
        let output = test.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    fn null() -> io::Result<File> {
        File::options().write(true).open("/dev/null")
    }

    #[test]
    fn child_inherits_no_file_that_is_kept_out() {
        let (kept, mut file) = KeptOut::file(null).unwrap();
        let inherited = null().unwrap();
        let fd = file.as_raw_fd();
        assert!(kept.is_open());
        assert!(in_child(|| {
            let in_grandchild = in_child(|| is_socket(fd) && kept.is_open());
            is_socket(fd) && kept.is_open() && in_grandchild
        }));
        assert!(in_child(|| !is_socket(inherited.as_raw_fd())));
        // The file of the parent is the same as before.
        assert!(!is_socket(fd) && kept.is_open());
        file.write_all(b"x").unwrap();
        drop(kept);
        assert!(in_child(|| !is_socket(fd)));
    }

    #[test]
    fn child_inherits_a_file_of_the_program_with_the_number_of_a_closed_file() {
        let (kept, file) = KeptOut::file(null).unwrap();
        let (fd, own) = (file.into_raw_fd(), File::open("/dev/zero").unwrap());
        // As if the program closed all descriptors and then opened its own file; no file of another
        // test can have the number in between.
        // SAFETY: both descriptors are open, and no value owns the second one.
        assert_eq!(unsafe { libc::dup2(own.as_raw_fd(), fd) }, fd);
        assert!(!kept.is_open());
        assert!(in_child(|| identity(fd) == identity(own.as_raw_fd()) && !kept.is_open()));
        drop(kept);
        // SAFETY: no value owns the descriptor.
        unsafe { libc::close(fd) };
    }

    #[test]
    fn child_neither_uses_nor_drops_a_value_that_is_not_inherited() {
        use std::rc::Rc;
        let count = Rc::new(());
        let value = || Uninherited::new(count.clone());
        let (dropped, used) = (value(), value());
        let mut own = Some((dropped, used));
        assert!(in_child(|| {
            let (dropped, used) = own.take().unwrap();
            drop(dropped);
            used.into_inner().is_none() && Rc::strong_count(&count) == 3
        }));
        let (dropped, used) = own.take().unwrap();
        drop(dropped);
        assert!(used.into_inner().is_some() && Rc::strong_count(&count) == 1);
    }

    #[test]
    fn child_creates_its_own_value_even_if_the_value_of_the_parent_is_locked() {
        static NUMBER: PerProcess<Mutex<u32>> = PerProcess::unset();
        let number = || NUMBER.get(|parent| Mutex::new(if parent.is_some() { 2 } else { 1 }));
        let held = number().lock().unwrap();
        assert!(in_child(|| *number().lock().unwrap() == 2 && ptr::eq(number(), number())));
        assert_eq!(*held, 1);
        assert!(number().try_lock().is_err(), "the value of the parent is the same as before");
    }

    #[test]
    fn child_finds_a_lock_free_and_its_value_consistent() {
        static PAIR: ForkMutex<[u32; 2]> = ForkMutex::new([0; 2]);
        let (locked, is_locked) = std::sync::mpsc::channel();
        let holder = std::thread::spawn(move || {
            let mut pair = PAIR.lock();
            pair[0] = 1;
            locked.send(()).unwrap();
            // Until a thread waits to fork.
            while FORKING.try_read().is_ok() {
                std::thread::yield_now();
            }
            pair[1] = 1;
        });
        is_locked.recv().unwrap();
        assert!(in_child(|| *PAIR.lock() == [1; 2] && in_child(|| *PAIR.lock() == [1; 2])));
        holder.join().unwrap();
        assert_eq!(*PAIR.lock(), [1; 2]);
    }

    #[test]
    fn call_in_children_calls_a_function_once_in_each_child() {
        static CALLS: ForkMutex<u32> = ForkMutex::new(0);
        fn count() {
            *CALLS.lock() += 1;
        }
        call_in_children(count);
        call_in_children(count);
        let calls = |number| *CALLS.lock() == number;
        assert!(in_child(|| calls(1) && in_child(|| calls(2))));
        assert!(calls(0));
    }

    #[test]
    fn error_of_open_is_returned() {
        let missing = KeptOut::file(|| File::open("/nonexistent/file"));
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn child_finds_zeros_in_memory_that_is_kept_out() {
        let (access, bytes) = (libc::PROT_READ | libc::PROT_WRITE, 4096);
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: the system chooses an unused address.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let value = start.cast::<u64>();
        // SAFETY: the memory is mapped.
        unsafe { value.write_volatile(7) };
        // SAFETY: the memory is a mapping of this size, which is unmapped after the value is gone.
        let kept = unsafe { KeptOut::memory(start as usize, bytes) }.unwrap();
        // SAFETY: the memory is mapped, also in the child.
        assert!(in_child(|| unsafe {
            value.write_volatile(value.read_volatile() + 1);
            value.read_volatile() == 1
        }));
        // SAFETY: the memory is mapped.
        assert_eq!(unsafe { value.read_volatile() }, 7);
        drop(kept);
        // SAFETY: the memory is mapped, and no reference to it is left.
        unsafe { libc::munmap(start, bytes) };
    }
}
