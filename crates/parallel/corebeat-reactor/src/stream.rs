//! Connected stream sockets.

#[cfg(feature = "tokio")]
mod tokio;

use crate::io::{Direction, Io, Lane, Transfer};
use futures_io::{AsyncRead, AsyncWrite};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::future::poll_fn;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::SocketAddr as UnixSocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A TCP connection for tasks.
pub type TcpStream = Stream<std::net::TcpStream>;
/// A connection over a Unix socket for tasks.
pub type UnixStream = Stream<std::os::unix::net::UnixStream>;

/// Sockets of the standard library that a [`Stream`] may contain. This trait is sealed.
pub trait Socket: AsFd + From<OwnedFd> + Send + Sync + sealed::Socket + 'static {}

impl<S: AsFd + From<OwnedFd> + Send + Sync + sealed::Socket + 'static> Socket for S {}

pub(crate) mod sealed {
    use std::io::{self, IoSlice, Read, Write};
    use std::net::Shutdown;

    /// Operations of a socket, which do not wait.
    pub trait Socket {
        fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;
        fn send(&self, buffer: &[u8]) -> io::Result<usize>;
        fn send_all_of(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize>;
        fn close(&self, how: Shutdown) -> io::Result<()>;
        fn set_nonblocking(&self) -> io::Result<()>;
        fn take_error(&self) -> io::Result<Option<io::Error>>;
        /// Sets the options that a new connection has by default.
        fn set_defaults(&self) -> io::Result<()>;
    }

    macro_rules! socket {
        ($($type:ty, |$socket:ident| $defaults:expr;)*) => {$(
            impl Socket for $type {
                fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
                    let mut socket = self;
                    socket.read(buffer)
                }
                fn send(&self, buffer: &[u8]) -> io::Result<usize> {
                    let mut socket = self;
                    socket.write(buffer)
                }
                fn send_all_of(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
                    let mut socket = self;
                    socket.write_vectored(buffers)
                }
                fn close(&self, how: Shutdown) -> io::Result<()> {
                    self.shutdown(how)
                }
                fn set_nonblocking(&self) -> io::Result<()> {
                    Self::set_nonblocking(self, true)
                }
                fn take_error(&self) -> io::Result<Option<io::Error>> {
                    Self::take_error(self)
                }
                fn set_defaults(&self) -> io::Result<()> {
                    let $socket = self;
                    $defaults
                }
            }
        )*};
    }
    socket! {
        std::net::TcpStream, |socket| socket.set_nodelay(true);
        std::os::unix::net::UnixStream, |_socket| Ok(());
    }
}

/// A connection for tasks: [`TcpStream`] or [`UnixStream`].
///
/// A stackful task, and a thread that is no task, uses it by [`Read`] and [`Write`]; an async task
/// uses it by [`AsyncRead`] and [`AsyncWrite`] of `futures-io`, or, with the feature `tokio`, by
/// the traits of `tokio::io`. A caller that has to wait blocks itself, and its
/// worker continues with other tasks. Dropping the stream closes the connection.
#[derive(Debug)]
pub struct Stream<S: Socket> {
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
}

impl<S: Socket> Stream<S> {
    fn new(socket: S) -> Stream<S> {
        let io = Arc::new(Io::new(socket));
        Stream {
            reader: ReadHalf { io: io.clone(), lane: Lane::new(Direction::Read) },
            writer: WriteHalf { io, lane: Lane::new(Direction::Write), is_alone: false },
        }
    }

    pub(crate) fn accepted(fd: OwnedFd) -> io::Result<Stream<S>> {
        let socket = S::from(fd);
        socket.set_defaults()?;
        Ok(Stream::new(socket))
    }

    /// Takes a connection of the standard library, and makes it non-blocking.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn from_std(socket: S) -> io::Result<Stream<S>> {
        socket.set_nonblocking()?;
        Ok(Stream::new(socket))
    }

    /// Returns the socket, for its addresses and options. It must stay non-blocking. Do not read
    /// from it or write to it: the waits of this type would miss their events.
    pub fn get_ref(&self) -> &S {
        &self.reader.io.socket
    }

    /// Sets the limit of each wait to read in [`Read`]; the error of a late read is
    /// [`TimedOut`](io::ErrorKind::TimedOut). `None`, the default, is no limit. A future has a
    /// limit by [`timeout`](corebeat_lpel::timeout()).
    pub fn set_read_timeout(&mut self, limit: Option<Duration>) {
        self.reader.set_timeout(limit);
    }

    /// Sets the limit of each wait to write in [`Write`], as [`Stream::set_read_timeout`] does.
    pub fn set_write_timeout(&mut self, limit: Option<Duration>) {
        self.writer.set_timeout(limit);
    }

    /// Closes directions of the connection. The peer that reads finds the end of the data.
    ///
    /// # Errors
    ///
    /// The error of the system, as for a connection that is closed already.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.get_ref().close(how)
    }

    /// Divides the stream, so that one task reads and another one writes. The connection is closed
    /// after the drop of both halves.
    pub fn split(mut self) -> (ReadHalf<S>, WriteHalf<S>) {
        self.writer.is_alone = true;
        (self.reader, self.writer)
    }
}

impl TcpStream {
    /// Connects to an address, and sets TCP_NODELAY. Resolve names in a blocking task: the
    /// functions of the system for names block their thread.
    ///
    /// # Errors
    ///
    /// The error of the system, as for an address at which no program listens.
    pub fn connect(address: SocketAddr) -> io::Result<TcpStream> {
        let (mut stream, is_pending) = begin_connect(address)?;
        if is_pending {
            let WriteHalf { io, lane, .. } = &mut stream.writer;
            io.run(lane, finish_connect)?;
        }
        Ok(stream)
    }

    /// Connects to an address, as [`TcpStream::connect`] does, in an async task.
    ///
    /// # Errors
    ///
    /// As for [`TcpStream::connect`].
    pub async fn connect_async(address: SocketAddr) -> io::Result<TcpStream> {
        let (mut stream, is_pending) = begin_connect(address)?;
        if is_pending {
            let WriteHalf { io, lane, .. } = &mut stream.writer;
            poll_fn(|context| io.poll(lane, context, finish_connect)).await?;
        }
        Ok(stream)
    }
}

/// Begins to connect. Returns also whether the connection is pending.
fn begin_connect(address: SocketAddr) -> io::Result<(TcpStream, bool)> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    let is_pending = match net::connect(&socket, &address) {
        Ok(()) => false,
        Err(rustix::io::Errno::INPROGRESS) => true,
        Err(why) => return Err(why.into()),
    };
    Ok((TcpStream::accepted(socket)?, is_pending))
}

/// Checks a pending connection.
fn finish_connect(socket: &std::net::TcpStream) -> Transfer<()> {
    if let Some(why) = socket.take_error()? {
        return Err(why);
    }
    match socket.peer_addr() {
        Ok(_) => Ok(((), false)),
        Err(why) if why.kind() == io::ErrorKind::NotConnected => {
            Err(io::ErrorKind::WouldBlock.into())
        }
        Err(why) => Err(why),
    }
}

impl UnixStream {
    /// Connects to a socket in the file system. Never waits.
    ///
    /// # Errors
    ///
    /// The error of the system; [`WouldBlock`](io::ErrorKind::WouldBlock) if too many connections
    /// wait at the listener.
    pub fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        // Checks the path, whose length is limited.
        UnixSocketAddr::from_pathname(&path)?;
        let address = net::SocketAddrUnix::new(path.as_ref())?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        net::connect(&socket, &address)?;
        UnixStream::accepted(socket)
    }

    /// Returns two connected streams.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (one, two) = std::os::unix::net::UnixStream::pair()?;
        Ok((UnixStream::from_std(one)?, UnixStream::from_std(two)?))
    }
}

/// The half of a [`Stream`] that is read from.
#[derive(Debug)]
pub struct ReadHalf<S: Socket> {
    io: Arc<Io<S>>,
    lane: Lane,
}

/// The half of a [`Stream`] that is written to. Dropping it closes this direction of the
/// connection, so that the peer finds the end of the data.
#[derive(Debug)]
pub struct WriteHalf<S: Socket> {
    io: Arc<Io<S>>,
    lane: Lane,
    /// Whether the halves were separated.
    is_alone: bool,
}

impl<S: Socket> ReadHalf<S> {
    /// Sets the limit of each wait, as [`Stream::set_read_timeout`] does.
    pub fn set_timeout(&mut self, limit: Option<Duration>) {
        self.lane.limit = limit;
    }

    /// Receives bytes, for the traits of async tasks. An empty buffer does not wait.
    fn poll_receive(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.io.poll(&self.lane, context, |socket| receive(socket, buffer))
    }
}

impl<S: Socket> WriteHalf<S> {
    /// Sets the limit of each wait, as [`Stream::set_write_timeout`] does.
    pub fn set_timeout(&mut self, limit: Option<Duration>) {
        self.lane.limit = limit;
    }

    /// Sends bytes, for the traits of async tasks. An empty buffer does not wait.
    fn poll_send(&self, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.io.poll(&self.lane, context, |socket| send(socket, buffer))
    }

    /// Ends the data. As in the streams of Tokio and of async-io, that is no error if the
    /// connection has ended already, for instance by a reset.
    fn end(&self) -> io::Result<()> {
        match self.io.socket.close(Shutdown::Write) {
            Err(why) if why.kind() == io::ErrorKind::NotConnected => Ok(()),
            closed => closed,
        }
    }
}

impl<S: Socket> Drop for WriteHalf<S> {
    fn drop(&mut self) {
        if self.is_alone {
            // The peer may have closed the connection already.
            let _ = self.io.socket.close(Shutdown::Write);
        }
    }
}

fn receive<S: Socket>(socket: &S, buffer: &mut [u8]) -> Transfer<usize> {
    let read = socket.receive(buffer)?;
    Ok((read, 0 < read && read < buffer.len()))
}

fn send<S: Socket>(socket: &S, buffer: &[u8]) -> Transfer<usize> {
    let written = socket.send(buffer)?;
    Ok((written, written < buffer.len()))
}

fn send_all_of<S: Socket>(socket: &S, buffers: &[IoSlice<'_>]) -> Transfer<usize> {
    let written = socket.send_all_of(buffers)?;
    Ok((written, written < buffers.iter().map(|buffer| buffer.len()).sum()))
}

impl<S: Socket> Read for ReadHalf<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.io.run(&self.lane, |socket| receive(socket, buffer))
    }
}

impl<S: Socket> Write for WriteHalf<S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.io.run(&self.lane, |socket| send(socket, buffer))
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.io.run(&self.lane, |socket| send_all_of(socket, buffers))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Socket> Read for Stream<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

impl<S: Socket> Write for Stream<S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.writer.write(buffer)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.writer.write_vectored(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Socket> AsyncRead for ReadHalf<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_receive(context, buffer)
    }
}

impl<S: Socket> AsyncWrite for WriteHalf<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, buffer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let WriteHalf { io, lane, .. } = &mut *self;
        io.poll(lane, context, |socket| send_all_of(socket, buffers))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.end())
    }
}

impl<S: Socket> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.reader).poll_read(context, buffer)
    }
}

impl<S: Socket> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(context, buffer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write_vectored(context, buffers)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_close(context)
    }
}
