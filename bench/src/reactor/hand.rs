//! The subject written by hand: edge-triggered epoll loops, each with its connections. It handles
//! what the bench needs: no limits, no timeouts, and no output that the system does not take.

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;

const BATCH: usize = 256;

pub(super) fn start(listener: TcpListener, threads: usize) -> Result<(), String> {
    let set = || epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| e.to_string());
    let sets: Vec<OwnedFd> = (0..threads).map(|_| set()).collect::<Result<_, _>>()?;
    let sets = Arc::new(sets);
    for thread in 0..threads {
        let sets = sets.clone();
        std::thread::spawn(move || echo(&sets[thread]));
    }
    accept(listener, move |n, fd| {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        // SAFETY: the caller keeps the descriptor open.
        let stream = unsafe { BorrowedFd::borrow_raw(fd) };
        let key = epoll::EventData::new_u64(fd as u64);
        Ok(epoll::add(&sets[n % threads], stream, key, flags)?)
    });
    Ok(())
}

/// Accepts connections on a thread of its own, and passes each descriptor with its number to a
/// function that adds it to a loop. The loop owns the descriptor ([`answer`]).
pub(super) fn accept(
    listener: TcpListener,
    add: impl Fn(usize, RawFd) -> std::io::Result<()> + Send + 'static,
) {
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let options = [stream.set_nodelay(true), stream.set_nonblocking(true)];
            assert!(options.iter().all(Result::is_ok));
            add(n, stream.into_raw_fd()).expect("the set takes a connection");
        }
    });
}

fn echo(set: &OwnedFd) {
    let empty =
        epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    let (mut events, mut buffer) = ([empty; BATCH], vec![0; 64 << 10]);
    loop {
        let count = epoll::wait(set, &mut events[..], None).unwrap_or(0);
        events[..count].iter().for_each(|event| answer(event.data.u64() as RawFd, &mut buffer));
    }
}

/// Answers what has arrived at a connection of the calling loop. Closes it at the end of the data.
pub(super) fn answer(number: RawFd, buffer: &mut [u8]) {
    // SAFETY: the descriptor is open until this function closes it, and no report follows.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    loop {
        match rustix::io::read(fd, &mut *buffer) {
            Ok(0) => {
                // SAFETY: the loop owns the descriptor, and uses it no more.
                return drop(unsafe { OwnedFd::from_raw_fd(number) });
            }
            Ok(read) => {
                let _ = rustix::net::send(fd, &buffer[..read], SendFlags::NOSIGNAL);
                if read < buffer.len() {
                    return;
                }
            }
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
