//! Sockets for datagrams.

use crate::io::{Direction, Io, Lane};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// A UDP socket for tasks. [`UdpSocket::try_clone`] makes a second one, so that one task receives
/// and another one sends.
#[derive(Debug)]
pub struct UdpSocket {
    io: Io<std::net::UdpSocket>,
    receives: Lane,
    sends: Lane,
}

impl UdpSocket {
    /// Binds a socket to an address; port 0 selects an unused port.
    ///
    /// # Errors
    ///
    /// The error of the system, as for an address in use.
    pub fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
        UdpSocket::from_std(std::net::UdpSocket::bind(address)?)
    }

    /// Takes a socket of the standard library, and makes it non-blocking.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<UdpSocket> {
        socket.set_nonblocking(true)?;
        Ok(UdpSocket {
            io: Io::new(socket),
            receives: Lane::new(Direction::Read),
            sends: Lane::new(Direction::Write),
        })
    }

    /// Returns the socket, for its address, its peer and its options. It must stay non-blocking.
    pub fn get_ref(&self) -> &std::net::UdpSocket {
        &self.io.socket
    }

    /// Returns a second object for the same socket of the system, with the same limits of waits.
    ///
    /// # Errors
    ///
    /// The error of the system, which may lack descriptors.
    pub fn try_clone(&self) -> io::Result<UdpSocket> {
        let mut clone = UdpSocket::from_std(self.io.socket.try_clone()?)?;
        (clone.receives.limit, clone.sends.limit) = (self.receives.limit, self.sends.limit);
        Ok(clone)
    }

    /// Sets the limit of each wait in the functions that are not async; the error of a late call is
    /// [`TimedOut`](io::ErrorKind::TimedOut). `None`, the default, is no limit.
    pub fn set_timeout(&mut self, limit: Option<Duration>) {
        (self.receives.limit, self.sends.limit) = (limit, limit);
    }

    /// Receives a datagram. Returns its length and the address of its sender. Bytes that exceed the
    /// buffer are lost.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn recv_from(&mut self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.io.run(&self.receives, |socket| Ok((socket.recv_from(buffer)?, false)))
    }

    /// Sends a datagram to an address.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn send_to(&mut self, buffer: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.io.run(&self.sends, |socket| Ok((socket.send_to(buffer, to)?, false)))
    }

    /// Receives a datagram, as [`UdpSocket::recv_from`] does, in an async task.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub async fn recv_from_async(&mut self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let UdpSocket { io, receives, .. } = self;
        poll_fn(|context| {
            io.poll(receives, context, |socket| Ok((socket.recv_from(buffer)?, false)))
        })
        .await
    }

    /// Sends a datagram, as [`UdpSocket::send_to`] does, in an async task.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub async fn send_to_async(&mut self, buffer: &[u8], to: SocketAddr) -> io::Result<usize> {
        let UdpSocket { io, sends, .. } = self;
        poll_fn(|context| {
            io.poll(sends, context, |socket| Ok((socket.send_to(buffer, to)?, false)))
        })
        .await
    }
}
