//! Sockets that accept connections.

use crate::io::{Direction, Io, Lane, Transfer};
use crate::stream::{Socket, Stream};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Accepts TCP connections for tasks.
pub type TcpListener = Listener<std::net::TcpListener>;
/// Accepts connections over a Unix socket for tasks.
pub type UnixListener = Listener<std::os::unix::net::UnixListener>;

/// Time for which a task waits after the system lacked descriptors or memory for a connection. The
/// connection stays in the queue of the system, so that a task without this wait would spin.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

/// Number of connections that may wait to be accepted. The standard library requests 128. The
/// system drops the first packet of further connections, whose peers try again after a second.
pub(crate) const BACKLOG: i32 = 4096;

/// Sockets of the standard library that a [`Listener`] may contain. This trait is sealed.
pub trait Accept: AsFd + Send + Sync + sealed::Accept + 'static {
    /// Socket of an accepted connection.
    type Socket: Socket;
}

impl Accept for std::net::TcpListener {
    type Socket = std::net::TcpStream;
}

impl Accept for std::os::unix::net::UnixListener {
    type Socket = std::os::unix::net::UnixStream;
}

pub(crate) mod sealed {
    pub trait Accept {
        fn set_nonblocking(&self) -> std::io::Result<()>;
    }

    impl Accept for std::net::TcpListener {
        fn set_nonblocking(&self) -> std::io::Result<()> {
            Self::set_nonblocking(self, true)
        }
    }

    impl Accept for std::os::unix::net::UnixListener {
        fn set_nonblocking(&self) -> std::io::Result<()> {
            Self::set_nonblocking(self, true)
        }
    }
}

/// A socket that accepts connections: [`TcpListener`] or [`UnixListener`].
#[derive(Debug)]
pub struct Listener<L: Accept> {
    io: Io<L>,
    lane: Lane,
}

impl<L: Accept> Listener<L> {
    /// Takes a listener of the standard library, and makes it non-blocking.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn from_std(listener: L) -> io::Result<Listener<L>> {
        listener.set_nonblocking()?;
        Ok(Listener { io: Io::new(listener), lane: Lane::new(Direction::Read) })
    }

    /// Returns the socket, for its address and options. It must stay non-blocking.
    pub fn get_ref(&self) -> &L {
        &self.io.socket
    }

    /// Sets the limit of each wait in [`Listener::accept`]; the error of a late call is
    /// [`TimedOut`](io::ErrorKind::TimedOut). `None`, the default, is no limit.
    pub fn set_timeout(&mut self, limit: Option<Duration>) {
        self.lane.limit = limit;
    }

    /// Waits for a connection, and accepts it. A TCP connection has TCP_NODELAY set. Connections
    /// that fail before they are accepted are skipped.
    ///
    /// # Errors
    ///
    /// The error of the system. If it lacks descriptors or memory, this function returns after 10
    /// milliseconds, so that a caller that tries again does not spin; the connection still waits.
    pub fn accept(&mut self) -> io::Result<Stream<L::Socket>> {
        let result = self.io.run(&self.lane, accept_one).and_then(Stream::accepted);
        if result.as_ref().is_err_and(is_shortage) {
            corebeat_lpel::sleep(PAUSE);
        }
        result
    }

    /// Waits for a connection, and accepts it, as [`Listener::accept`] does, in an async task of
    /// LPEL.
    ///
    /// # Errors
    ///
    /// As for [`Listener::accept`].
    ///
    /// # Panics
    ///
    /// If the system lacks descriptors or memory, and another executor than LPEL polls the future.
    pub async fn accept_async(&mut self) -> io::Result<Stream<L::Socket>> {
        let Listener { io, lane } = self;
        let accepted = poll_fn(|context| io.poll(lane, context, accept_one)).await;
        let result = accepted.and_then(Stream::accepted);
        if result.as_ref().is_err_and(is_shortage) {
            corebeat_lpel::sleep_async(PAUSE).await;
        }
        result
    }
}

impl TcpListener {
    /// Listens at an address; port 0 selects an unused port.
    ///
    /// # Errors
    ///
    /// The error of the system, as for an address in use.
    pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
        let listener = std::net::TcpListener::bind(address)?;
        rustix::net::listen(&listener, BACKLOG)?;
        TcpListener::from_std(listener)
    }
}

impl UnixListener {
    /// Listens at a path, which must not exist. The caller removes the file afterwards.
    ///
    /// # Errors
    ///
    /// The error of the system, as for a path that exists.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        UnixListener::from_std(std::os::unix::net::UnixListener::bind(path)?)
    }
}

fn accept_one(listener: &impl AsFd) -> Transfer<OwnedFd> {
    accept(listener).map(|fd| (fd, false))
}

/// Accepts a connection, which is non-blocking. Skips connections that have failed.
pub(crate) fn accept(listener: &impl AsFd) -> io::Result<OwnedFd> {
    loop {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => return Ok(fd),
            // Errors of the connection, not of the listener (accept(2)).
            Err(
                Errno::CONNABORTED
                | Errno::NETDOWN
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH
                | Errno::INTR,
            ) => {}
            Err(why) => return Err(why.into()),
        }
    }
}

/// Returns whether the system lacks descriptors or memory.
pub(crate) fn is_shortage(why: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    shortages.iter().any(|errno| why.raw_os_error() == Some(errno.raw_os_error()))
}
