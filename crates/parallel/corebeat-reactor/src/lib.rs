//! Sockets for tasks of LPEL, and servers that run a handler for each connection, in the patterns
//! Half-Sync/Half-Async, Leader/Followers and thread-per-core.
//!
//! Place in the loop: parallel; uses base, `corebeat-lpel`, whose tasks wait for the sockets, and
//! `corebeat-probe`, which records the steps of a request.
//!
//! The feature `tokio` implements the traits of `tokio::io` for the streams.
//!
//! # Example
//!
//! A task serves each connection. A task that waits for a socket blocks itself and not its worker.
//!
//! ```
//! use corebeat_lpel::{Runtime, spawn};
//! use corebeat_reactor::{TcpListener, TcpStream, attach};
//! use std::io::{Read, Write, copy};
//!
//! let runtime = attach(Runtime::builder()).build()?; // idle workers detect readiness
//! let answer = runtime.run(|| -> std::io::Result<_> {
//!     let mut listener = TcpListener::bind(([127, 0, 0, 1], 0).into())?;
//!     let address = listener.get_ref().local_addr()?;
//!     spawn(move || {
//!         let (mut reader, mut writer) = listener.accept()?.split();
//!         copy(&mut reader, &mut writer) // until the client ends its data
//!     });
//!     let (mut reader, mut writer) = TcpStream::connect(address)?.split();
//!     writer.write_all(b"hello")?;
//!     drop(writer); // ends the data
//!     let mut answer = String::new();
//!     reader.read_to_string(&mut answer)?;
//!     Ok(answer)
//! })??;
//! assert_eq!(answer, "hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A server calls a handler with the bytes that arrived, where the system wrote them:
//!
//! ```
//! use corebeat_reactor::{Config, Exchange, Server};
//! use std::io::{Read, Write};
//!
//! let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
//! let address = listener.local_addr()?;
//! let server = Server::start(Config::default(), listener, || {
//!     |exchange: &mut Exchange<'_>| {
//!         let input = exchange.input();
//!         exchange.output().extend_from_slice(input);
//!         exchange.consume(input.len());
//!     }
//! })?;
//! let mut client = std::net::TcpStream::connect(address)?;
//! client.write_all(b"hello")?;
//! let mut answer = [0; 5];
//! client.read_exact(&mut answer)?;
//! assert_eq!(&answer, b"hello");
//! server.stop(std::time::Duration::from_secs(5)); // lets requests in progress finish
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Model
//!
//! ```text
//!   TcpStream  TcpListener  UdpSocket          Server: a Handler for each connection
//!       |  try; if the system has nothing,         |  Pattern: which thread detects,
//!       v  wait                                    v           which thread processes
//!   source: a slot for each direction          connection: one thread at a time has its turn
//!       |  registered at                           |  in one of the
//!       v                                          v
//!   detector of the worker, or shared          interest sets
//!       |                                          |
//!       +-- Notify: edge-triggered epoll, one-shot epoll, poll, io_uring ---+
//! ```
//!
//! - **Sockets.** A task tries an operation. If the system has nothing, the task leaves its waker
//!   in the *slot* of the direction, and waits. Stackful tasks, and threads that are no tasks, use
//!   [`Read`](std::io::Read) and [`Write`](std::io::Write); async tasks use the traits of
//!   `futures-io`, or those of `tokio::io`. The copy functions of std and futures work.
//! - **Detectors.** A worker of a runtime from [`attach`] has a detector, which it turns when it is
//!   idle and every 64 dispatches. A socket registers at the detector of the worker whose task
//!   waits, so that one thread detects the event and runs the task. All other callers share a
//!   detector with a thread of its own.
//! - **Servers.** The threads of a [`Server`] divide detection and processing by a [`Pattern`], and
//!   detect by a [`Mechanism`]; all twelve combinations work, those with io_uring where the system
//!   permits it ([`check_mechanism`]). A connection without input and output in progress has no
//!   buffers.
//! - **Switches.** A [`Control`] measures the load of a server, and switches it to another
//!   [`Variant`] while it runs. An instance of a variant is a *regime*: threads enter the new one,
//!   and each connection moves to an interest set of it in a turn of its own. `corebeat-server`
//!   decides when to switch.
//! - **Probes.** The steps of a server have probes (`corebeat_reactor::*`), which are off:
//!   `sense` (the wait for reports), `queue` (of Half-Sync/Half-Async), and `turn` (a report is
//!   handled) with `receive`, `process` (the handler), `send` and `rearm`. In a trace, a turn is a
//!   callee of the step that queued its report (`probes_follow_a_request`).
//! - **Back-pressure.** A server reads nothing from a connection while output for it is pending, so
//!   that the peer's own buffers fill up.
//!
//! # Invariants
//!
//! 1. A waiting task misses no report (`slot`; `loom_reading_task_misses_no_report`), and a worker
//!    that waits for reports misses no wake-up (`parking`; `loom_parked_thread_misses_no_news`).
//! 2. One thread at a time handles a connection, and it handles every report (`turn`;
//!    `loom_threads_take_turns_with_edges`, `loom_threads_take_turns_with_one_shots`, with planted
//!    faults in `loom_turn_faults_are_detected`).
//! 3. No byte is lost, duplicated or reordered, however the data is split
//!    (`echo_through_random_splits_returns_the_same_bytes` for tasks and for servers,
//!    `frames_through_random_splits_are_answered_once`).
//! 4. A task that waits for a socket blocks no other task
//!    (`waiting_tasks_do_not_block_their_worker`), is no part of a deadlock
//!    (`wait_for_a_peer_outside_is_no_deadlock`), and ends if it is cancelled
//!    (`aborted_tasks_close_their_connections`).
//! 5. A socket works on every runtime and thread to which it moves
//!    (`stream_moves_between_runtimes_and_threads`, `halves_work_on_two_workers`).
//! 6. A descriptor is closed with its socket (`ten_thousand_connections_leave_no_descriptor`). A
//!    lack of descriptors ends no connection, and causes no loop
//!    (`missing_descriptors_fail_a_call_and_keep_the_connection`,
//!    `missing_descriptors_delay_a_connection_without_spinning`).
//! 7. A server that stops answers the requests in progress (`stop_finishes_requests_in_progress`),
//!    also if one of its own threads stops it (`server_that_a_handler_ends_sends_the_response`).
//! 8. A switch leaves no connection behind (`members`;
//!    `loom_switch_moves_a_connection_in_its_turn`,
//!    `loom_switch_moves_a_connection_that_enters`, with planted faults in
//!    `loom_switch_faults_are_detected`). It loses no byte and closes no connection
//!    (`switches_lose_no_byte_and_close_no_connection`, `output_and_requests_in_progress_move`).
//!
//! 9. A mechanism that the system forbids is an error, and a running server continues
//!    (`forbidden_io_uring_is_an_error_and_the_server_continues`). Reports of io_uring for which
//!    there is no memory are not lost (`reports_without_room_are_not_lost`), and its requests keep
//!    no closed connection open (`removed_descriptor_is_closed_with_its_last_owner`).
//! 10. A child of fork uses no lock of a server
//!     (`control_in_a_child_of_fork_has_no_effect_and_takes_no_lock`).
//! 11. A handler in a wait that nothing interrupts delays no connection that another thread may
//!     handle (`handler_that_nothing_interrupts_delays_no_connection_of_another_thread`).
//! 12. Servers answer all clients under random networks, orders of steps, pauses and switches. They
//!     close every connection whose idle time is over and whose peer makes no progress, and do not
//!     spin while the system lacks memory (`simulated_servers_answer_all_clients`). A seed repeats
//!     a run (`simulation_with_equal_seeds_has_equal_histories`). Planted faults are detected
//!     (`planted_faults_of_a_simulated_server_are_detected`).
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | reason |
//! | --- | --- | --- | --- |
//! | report (`slot`) | Release | Acquire in `view` | the system call follows the event |
//! | parked, unparked (`parking`) | AcqRel | these exchanges | one side finds the other |
//! | turn ended (`turn`) | Release | Acquire in `begin` | publishes the connection |
//! | mark in a turn (`turn`) | Release | Acquire in `end` | the turn finds the event |
//! | a sweep finds a connection late (`server`) | Relaxed | Relaxed | the turn, or its mark |
//! | a set retires (`members`) | Relaxed | Relaxed | the turn and its mark publish it |
//!
//! # Failure
//!
//! Sockets return the errors of the system as [`std::io::Error`], `TimedOut` if a limit is over,
//! and an error of kind `Other` in a child of fork that inherited them or in a task that is
//! unwinding. Servers return [`Error`] if they cannot start. A panic of a handler closes its
//! connection. This crate panics if the system cannot wait for an interest set, which happens if a
//! program closes descriptors that it does not own.
//!
//! # Limits
//!
//! This crate supports Linux. Tasks do not use io_uring, and servers use it to detect events only.
//! Names are not resolved, because the functions of the system block their thread: resolve them in
//! a blocking task. A task that uses a socket in a
//! destructor while it unwinds receives an error. A peer that still sends when a handler closes the
//! connection may lose the end of the response, as with every close of a socket with unread data.

mod detector;
mod io;
mod listener;
mod members;
#[cfg(all(test, loom))]
mod model;
mod notify;
mod parking;
mod pattern;
mod server;
#[cfg(all(test, not(loom)))]
mod simulation;
mod slot;
mod source;
mod stream;
mod system;
mod table;
mod turn;
mod udp;

pub use detector::attach;
pub use listener::{Accept, Listener, TcpListener, UnixListener};
pub use server::{
    Config, Control, Error, Exchange, Handler, Load, Mechanism, Pattern, Server, Stats, ThreadLoad,
    Variant, check_mechanism,
};
pub use stream::{ReadHalf, Socket, Stream, TcpStream, UnixStream, WriteHalf};
pub use udp::UdpSocket;
