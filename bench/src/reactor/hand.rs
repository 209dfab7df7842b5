//! The subject written by hand: edge-triggered epoll loops, each with its connections. It handles
//! what the bench needs: no limits, no timeouts, and no output that the system does not take.

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
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
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let options = [stream.set_nodelay(true), stream.set_nonblocking(true)];
            assert!(options.iter().all(Result::is_ok));
            let fd = OwnedFd::from(stream);
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            let number = std::os::fd::AsRawFd::as_raw_fd(&fd) as u64;
            let key = epoll::EventData::new_u64(number);
            epoll::add(&sets[n % threads], &fd, key, flags).expect("the set takes a connection");
            // The loop closes the descriptor.
            std::mem::forget(fd);
        }
    });
    Ok(())
}

fn echo(set: &OwnedFd) {
    let empty =
        epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    let (mut events, mut buffer) = ([empty; BATCH], vec![0; 64 << 10]);
    loop {
        let count = epoll::wait(set, &mut events[..], None).unwrap_or(0);
        for event in &events[..count] {
            let number = event.data.u64() as std::os::fd::RawFd;
            // SAFETY: the descriptor is open until this loop closes it.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
            loop {
                match rustix::io::read(fd, &mut buffer[..]) {
                    Ok(0) => {
                        // SAFETY: this loop owns the descriptor, and uses it no more.
                        drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number) });
                        break;
                    }
                    Ok(read) => {
                        let _ = rustix::net::send(fd, &buffer[..read], SendFlags::NOSIGNAL);
                        if read < buffer.len() {
                            break;
                        }
                    }
                    Err(Errno::INTR) => {}
                    Err(_) => break,
                }
            }
        }
    }
}
