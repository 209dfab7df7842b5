//! Servers on other libraries: mio, may and monoio.

use super::hand;
use super::server::BUFFER_BYTES;
use may::go;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::{IoUringDriver, RuntimeBuilder};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{FromRawFd, IntoRawFd, RawFd};
use std::thread;

/// Number of reports of one wait.
const BATCH: usize = 256;

/// Starts loops on mio, as those that are written by hand.
pub(super) fn mio(listener: TcpListener, threads: usize) -> Result<(), String> {
    let mut registries = Vec::new();
    for _ in 0..threads {
        let poll = Poll::new().map_err(|e| format!("cannot create a set of mio: {e}"))?;
        registries.push(poll.registry().try_clone().map_err(|e| e.to_string())?);
        thread::spawn(move || echo(poll));
    }
    hand::accept(listener, move |n, fd: RawFd| {
        let token = Token(fd as usize);
        registries[n % threads].register(&mut SourceFd(&fd), token, Interest::READABLE)
    });
    Ok(())
}

fn echo(mut poll: Poll) {
    let (mut events, mut buffer) = (Events::with_capacity(BATCH), vec![0; 64 << 10]);
    loop {
        // An interrupted wait has no events.
        let _ = poll.poll(&mut events, None);
        events.iter().for_each(|event| hand::answer(event.token().0 as RawFd, &mut buffer));
    }
}

/// Starts coroutines of may, one for each connection.
pub(super) fn may(listener: TcpListener, threads: usize) {
    may::config().set_workers(threads);
    // SAFETY: the descriptor is that of a listener, which nothing else owns.
    let listener = unsafe { may::net::TcpListener::from_raw_fd(listener.into_raw_fd()) };
    go!(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            stream.set_nodelay(true).expect("the system sets an option");
            go!(move || {
                let mut buffer = [0; BUFFER_BYTES];
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..read]).is_err() {
                        break;
                    }
                }
            });
        }
    });
}

/// Starts runtimes of monoio on io_uring, each of which accepts connections.
pub(super) fn monoio(listener: &TcpListener, threads: usize) -> Result<(), String> {
    for _ in 0..threads {
        let listener = listener.try_clone().map_err(|e| e.to_string())?;
        listener.set_nonblocking(true).map_err(|e| e.to_string())?;
        thread::spawn(move || {
            let runtime = RuntimeBuilder::<IoUringDriver>::new().build();
            runtime.expect("the system permits io_uring").block_on(async {
                let listener = monoio::net::TcpListener::from_std(listener);
                let listener = listener.expect("the listener is valid");
                while let Ok((stream, _)) = listener.accept().await {
                    stream.set_nodelay(true).expect("the system sets an option");
                    monoio::spawn(talk(stream));
                }
            });
        });
    }
    Ok(())
}

async fn talk(mut stream: monoio::net::TcpStream) {
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    loop {
        let (read, received) = stream.read(buffer).await;
        let Ok(1..) = read else { return };
        let (written, sent) = stream.write_all(received).await;
        if written.is_err() {
            return;
        }
        buffer = sent;
    }
}
