//! The calls of servers to the system: time, threads, waits and sockets.
//!
//! The unit tests of this crate replace them by those of a simulation ([`crate::simulation`]) while
//! one runs: the same patterns, engine and connections then run with virtual sockets and virtual
//! time, in an order drawn from a seed. A program calls the system directly.

#[cfg(all(test, not(loom)))]
pub(crate) use crate::simulation::{Condvar, Mutex, Thread, accept, lock, now, read, send, spawn};
#[cfg(not(all(test, not(loom))))]
pub(crate) use direct::*;

#[cfg(not(all(test, not(loom))))]
mod direct {
    pub(crate) use corebeat_sync::{Condvar, Mutex, lock};

    use crate::listener;
    use corebeat_sync::quiet;
    use rustix::net::SendFlags;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::thread::JoinHandle;
    use std::time::{Duration, Instant};

    /// Returns the time since `begin`.
    pub(crate) fn now(begin: Instant) -> Duration {
        begin.elapsed()
    }

    pub(crate) fn read(socket: &OwnedFd, bytes: &mut [u8]) -> rustix::io::Result<usize> {
        rustix::io::read(socket, bytes)
    }

    /// Without the flag, a closed connection would end the process by SIGPIPE.
    pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
        rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)
    }

    pub(crate) fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
        listener::accept(listener)
    }

    /// A thread of a server.
    pub(crate) struct Thread(JoinHandle<()>);

    pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
        quiet::spawn(name, run).map(Thread)
    }

    impl Thread {
        /// Returns whether this is the calling thread.
        pub(crate) fn is_current(&self) -> bool {
            self.0.thread().id() == std::thread::current().id()
        }

        /// Waits for the end of the thread, which a panic may have caused.
        pub(crate) fn join(self) {
            drop(self.0.join());
        }
    }
}
