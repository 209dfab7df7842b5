//! The servers. Each prints its port, and serves until its input ends.

use super::{Options, READY, Subject, hand, peer};
use corebeat_lpel::{Runtime, spawn, spawn_async};
use corebeat_reactor::{Config, Exchange, Mechanism, Pattern, Server, attach};
use corebeat_server::{AdaptiveServer, ServerPolicy};
use std::io::{Read, Write};
use std::net::TcpListener;

/// Memory of a task for a message. The size is that of small requests of real servers.
pub(super) const BUFFER_BYTES: usize = 1024;

/// Largest number of connections of servers with such a limit.
const CONNECTIONS_MAX: usize = 100_000;

pub(super) fn run(options: &Options) -> Result<(), String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|e| format!("cannot bind: {e}"))?;
    let port = listener.local_addr().map_err(|e| e.to_string())?.port();
    rustix::net::listen(&listener, 4096).map_err(|e| e.to_string())?;
    let threads = options.threads;
    let handlers = |pattern, mechanism| Config {
        pattern,
        mechanism,
        threads: Some(threads),
        connections: CONNECTIONS_MAX,
        ..Config::default()
    };
    let (core, edge) = (Pattern::ThreadPerCore, Mechanism::Edge);
    match options.subject {
        Subject::Corebeat => serve(listener, port, handlers(core, edge)),
        Subject::Adaptive => adaptive(listener, port, threads),
        Subject::Leader => serve(listener, port, handlers(Pattern::LeaderFollowers, edge)),
        Subject::HalfSync => serve(listener, port, handlers(Pattern::HalfSyncHalfAsync, edge)),
        Subject::OneShot => serve(listener, port, handlers(core, Mechanism::OneShot)),
        Subject::Poll => serve(listener, port, handlers(core, Mechanism::Poll)),
        Subject::IoUring => serve(listener, port, handlers(core, Mechanism::IoUring)),
        Subject::Stackful => tasks(listener, port, threads, false),
        Subject::Async => tasks(listener, port, threads, true),
        Subject::Hand => {
            hand::start(listener, threads)?;
            wait(port);
            Ok(())
        }
        Subject::Tokio => tokio_tasks(listener, port, threads),
        Subject::Mio => {
            peer::mio(listener, threads)?;
            wait(port);
            Ok(())
        }
        Subject::May => {
            peer::may(listener, threads);
            wait(port);
            Ok(())
        }
        Subject::Monoio => {
            peer::monoio(&listener, threads)?;
            wait(port);
            Ok(())
        }
        Subject::Go | Subject::Node => Err("this subject is a program of its own".into()),
    }
}

/// Prints the port, and waits for the end of the input.
fn wait(port: u16) {
    println!("{READY}{port}");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn echo(exchange: &mut Exchange<'_>) {
    let input = exchange.input();
    exchange.output().extend_from_slice(input);
    exchange.consume(input.len());
}

fn adaptive(listener: TcpListener, port: u16, workers: usize) -> Result<(), String> {
    let policy = Some(ServerPolicy::new(workers));
    let options = corebeat_server::Options { policy, ..Default::default() };
    let server = AdaptiveServer::start(options, listener, || echo);
    let _server = server.map_err(|e| e.to_string())?;
    wait(port);
    Ok(())
}

fn serve(listener: TcpListener, port: u16, config: Config) -> Result<(), String> {
    let _server = Server::start(config, listener, || echo).map_err(|e| e.to_string())?;
    wait(port);
    Ok(())
}

fn tasks(listener: TcpListener, port: u16, threads: usize, is_async: bool) -> Result<(), String> {
    let runtime = attach(Runtime::builder().workers(threads).pin(false)).build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    let mut listener =
        corebeat_reactor::TcpListener::from_std(listener).map_err(|e| e.to_string())?;
    if is_async {
        runtime.spawn_async(async move {
            while let Ok(mut stream) = listener.accept_async().await {
                spawn_async(async move {
                    let mut buffer = [0; BUFFER_BYTES];
                    while let Ok(read @ 1..) =
                        futures_util::AsyncReadExt::read(&mut stream, &mut buffer).await
                    {
                        let part = &buffer[..read];
                        if futures_util::AsyncWriteExt::write_all(&mut stream, part).await.is_err()
                        {
                            break;
                        }
                    }
                });
            }
        });
    } else {
        runtime.spawn(move || {
            while let Ok(mut stream) = listener.accept() {
                spawn(move || {
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
    wait(port);
    Ok(())
}

fn tokio_tasks(listener: TcpListener, port: u16, threads: usize) -> Result<(), String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    listener.set_nonblocking(true).map_err(|e| e.to_string())?;
    let runtime = match threads {
        1 => tokio::runtime::Builder::new_current_thread().enable_io().build(),
        n => tokio::runtime::Builder::new_multi_thread().worker_threads(n).enable_io().build(),
    };
    let runtime = runtime.map_err(|e| format!("cannot build a Tokio runtime: {e}"))?;
    let serve = async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(async move {
                let mut buffer = [0; BUFFER_BYTES];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    if stream.write_all(&buffer[..read]).await.is_err() {
                        break;
                    }
                }
            });
        }
        #[expect(unreachable_code, reason = "states the type of errors")]
        std::io::Result::Ok(())
    };
    // A current-thread runtime runs where it is waited for.
    std::thread::spawn(move || runtime.block_on(serve));
    wait(port);
    Ok(())
}
