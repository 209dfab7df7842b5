//! Runs servers under random networks, and checks what each client receives.

use super::network::{ANSWER_MAX, Client, Read};
use super::{Fault, WORLD, World};
use crate::server::{Config, Exchange, Mechanism, Pattern, Server, Variant};
use corebeat_lpel::{Runtime, Scope, spawn};
use corebeat_sync::lock as lock_std;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// Virtual time of a whole run. A run with a lost report does not end by itself.
const RUN_MAX: Duration = Duration::from_secs(100);
/// Workers of the runtime: the seed draws which of them makes the next step.
const WORKERS: usize = 3;
/// Bytes of a request. The server answers it by the same bytes in the opposite order.
const REQUEST_BYTES: usize = 3;

/// Limit of the idle time of a connection, and the longest period of its sweeps.
const IDLE: Duration = Duration::from_millis(100);
const SWEEP: Duration = Duration::from_millis(25);
/// Time of a pause, and that between two of them, in which the server processes what came.
const PAUSE: Duration = Duration::from_millis(120);
const RUNS: Duration = Duration::from_millis(10);
/// Time for which the system lacks memory for output.
const SHORTAGE: Duration = Duration::from_millis(50);
/// First byte of a request that never ends.
const ENDLESS: u8 = u8::MAX;

/// Number of seeds of a normal run, and of a long one.
const SEEDS: u64 = 100;
const SEEDS_LONG: u64 = 100_000;

/// Answers complete requests, and the rest at the end of the data.
fn reverse(exchange: &mut Exchange<'_>) {
    let input = exchange.input();
    if input.first() == Some(&ENDLESS) && !exchange.is_end() {
        return;
    }
    let whole =
        if exchange.is_end() { input.len() } else { input.len() / REQUEST_BYTES * REQUEST_BYTES };
    for request in input[..whole].chunks(REQUEST_BYTES) {
        exchange.output().extend(request.iter().rev());
    }
    exchange.consume(whole);
}

fn answer(data: &[u8]) -> Vec<u8> {
    data.chunks(REQUEST_BYTES).flat_map(|request| request.iter().rev().copied()).collect()
}

/// Draws from the seed.
fn draw(world: &World, choices: &[u64]) -> u64 {
    *lock_std(&world.state).random.choice(choices).unwrap_or(&0)
}

fn variant(world: &World) -> Variant {
    let mut state = lock_std(&world.state);
    let mut choose = |count: usize| state.random.usize(..count);
    let pattern = [Pattern::ThreadPerCore, Pattern::LeaderFollowers, Pattern::HalfSyncHalfAsync];
    let pattern = pattern[choose(3)];
    let mechanism = [Mechanism::Edge, Mechanism::OneShot, Mechanism::Poll, Mechanism::IoUring];
    let mechanism = mechanism[choose(4)];
    Variant { pattern, mechanism, threads: 1 + pattern.detectors() + choose(3) }
}

/// Sends data and checks its answer. Some clients reset the connection instead of reading all.
fn talk(world: &Arc<World>) {
    let client = Client::connect(world);
    let length = draw(world, &[0, 1, 10, 100, 3000]) as usize;
    let data: Vec<u8> = {
        let mut state = lock_std(&world.state);
        std::iter::repeat_with(|| state.random.u8(..ENDLESS)).take(length).collect()
    };
    let resets = draw(world, &[0, 0, 0, 1]) == 1;
    let (mut rest, mut received, mut has_ended) = (&data[..], Vec::new(), false);
    let mut waited = Duration::ZERO;
    loop {
        if !has_ended {
            let count = draw(world, &[1, 2, 30, 1000]).min(rest.len() as u64) as usize;
            client.write(&rest[..count]);
            rest = &rest[count..];
            if rest.is_empty() {
                client.end();
                has_ended = true;
            }
        } else if resets {
            return client.reset();
        }
        // The peer of an idle connection would read nothing for longer.
        let counts = if waited < IDLE / 4 { &[0, 1, 50, 5000] } else { &[1, 1, 50, 5000] };
        let count = draw(world, counts) as usize;
        let pause = match client.read(&mut received, count) {
            Read::End => break,
            // The pauses of a client that waits for an answer grow, and are shorter than the idle
            // time of its connection.
            Read::Nothing if has_ended => waited.clamp(Duration::from_micros(1), IDLE / 4),
            Read::Nothing => Duration::from_nanos(draw(world, &[0, 300, 10_000])),
            Read::Bytes => {
                waited = Duration::ZERO;
                Duration::from_nanos(draw(world, &[0, 300, 10_000]))
            }
        };
        if has_ended {
            waited += pause;
        }
        if waited > ANSWER_MAX {
            return world.violate(format!(
                "no answer after {} of {} bytes",
                received.len(),
                data.len()
            ));
        }
        world.sleep(pause);
    }
    if received != answer(&data) {
        let (received, sent) = (received.len(), data.len());
        world.violate(format!("{received} wrong bytes are the answer to {sent} bytes"));
    }
}

/// Makes no progress: sends a part of a request, or one that does not end, byte by byte. Checks
/// that the server closes the connection when its idle time is over. It may stay open at one sweep,
/// so that the server processes bytes that came during a pause, or just before.
fn idle(world: &Arc<World>) {
    let client = Client::connect(world);
    let drips = draw(world, &[0, 1]) == 1;
    client.write(if drips { &[ENDLESS] } else { &[0, 0][..draw(world, &[0, 1, 2]) as usize] });
    let (mut received, mut before) = (Vec::new(), None);
    while !matches!(client.read(&mut received, usize::MAX), Read::End) {
        world.sleep(SWEEP / 10);
        let Some(accepted) = client.accepted() else { continue };
        if drips {
            client.write(&[ENDLESS]);
        }
        let (now, pause_end, pauses) = {
            let state = lock_std(&world.state);
            (state.now, state.pause_end, state.pauses)
        };
        let (number, total) = *before.get_or_insert(pauses);
        let ran = (now - accepted).saturating_sub(pauses.1 - total);
        let is_over = now >= pause_end && ran > IDLE + 3 * SWEEP;
        if is_over || now >= pause_end + RUNS / 2 && pauses.0 >= number + 3 {
            return world.violate(format!(
                "a connection is open after {ran:?} without progress and {} pauses",
                pauses.0 - number
            ));
        }
    }
    if !received.is_empty() {
        world.violate("an incomplete request has an answer".into());
    }
}

/// Serves clients while the server switches, and stops it.
fn serve(world: &Arc<World>, listener: TcpListener, clients: usize) {
    let Variant { pattern, mechanism, threads } = variant(world);
    let idle_timeout = (draw(world, &[0, 1]) == 1).then_some(IDLE);
    let config =
        Config { pattern, mechanism, threads: Some(threads), idle_timeout, ..Config::default() };
    let server = match Server::start(config, listener, || reverse) {
        Ok(server) => server,
        Err(why) => return world.violate(format!("the server does not start: {why}")),
    };
    let start = |behave: fn(&Arc<World>)| {
        let world = world.clone();
        spawn(move || behave(&world))
    };
    let idles = if idle_timeout.is_some() { draw(world, &[0, 1, 2]) } else { 0 };
    let mut tasks: Vec<_> = (0..clients).map(|_| start(talk)).collect();
    tasks.extend((0..idles).map(|_| start(idle)));
    let control = server.control();
    for _ in 0..draw(world, &[0, 1, 6]) {
        world.sleep(Duration::from_nanos(draw(world, &[0, 1000, 100_000])));
        let happens = draw(world, &[0, 1, 2, 3]);
        if happens == 0 {
            world.begin_shortage(SHORTAGE);
        } else if idle_timeout.is_some() && happens < 3 {
            world.pause(PAUSE);
            world.sleep(RUNS);
        } else if let Err(why) = control.switch(variant(world)) {
            world.violate(format!("the server does not switch: {why}"));
        }
    }
    for task in tasks {
        if let Err(why) = task.join() {
            world.violate(format!("a client failed: {why}"));
        }
    }
    if lock_std(&world.state).violation.is_some() {
        // Its end would wait for threads that are not woken.
        return std::mem::forget(server);
    }
    let panics = server.stats().panics;
    server.stop(ANSWER_MAX);
    if panics > 0 {
        world.violate(format!("{panics} handlers panicked"));
    }
}

/// Runs a simulation. Returns the digest of its history, or what a check has found.
fn run(seed: u64, fault: Option<Fault>) -> Result<u64, String> {
    let runtime = Runtime::builder().workers(WORKERS).deterministic(seed).build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    // No client connects to it: the simulation has a queue of its own.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| e.to_string())?;
    let world = World::new(seed, fault);
    WORLD.set(Some(world.clone()));
    let scope: Scope = runtime.scope();
    let clients = 1 + draw(&world, &[0, 1, 5]) as usize;
    let of_task = world.clone();
    let task = scope.spawn(move || serve(&of_task, listener, clients));
    let is_over = scope.wait_timeout(RUN_MAX);
    let (violation, history) = {
        let state = lock_std(&world.state);
        (state.violation.clone(), state.history)
    };
    let result = match violation {
        Some(why) => Err(why),
        None if !is_over => Err("a thread of the server is not woken".into()),
        None => task.join().map(|()| history).map_err(|why| format!("a task failed: {why}")),
    };
    if result.is_err() {
        // Its tasks wait for ever.
        std::mem::forget(runtime);
    }
    WORLD.set(None);
    result
}

/// The seeds of a test: that of `COREBEAT_REACTOR_SEED`, or a range, which is longer if
/// `COREBEAT_SOAK` is set.
fn seeds() -> std::ops::Range<u64> {
    let replayed = std::env::var("COREBEAT_REACTOR_SEED").ok().and_then(|seed| seed.parse().ok());
    let count = if std::env::var_os("COREBEAT_SOAK").is_some() { SEEDS_LONG } else { SEEDS };
    replayed.map_or(0..count, |seed| seed..seed + 1)
}

#[test]
fn simulated_servers_answer_all_clients() {
    for seed in seeds() {
        if let Err(why) = run(seed, None) {
            panic!(
                "seed {seed}: {why}; replay: COREBEAT_REACTOR_SEED={seed} cargo test \
                 -p corebeat-reactor --lib simulated_servers_answer_all_clients"
            );
        }
    }
}

#[test]
fn simulation_with_equal_seeds_has_equal_histories() {
    let histories: Vec<_> = (0..20).map(|seed| run(seed, None).unwrap()).collect();
    for (seed, history) in histories.iter().enumerate() {
        assert_eq!(run(seed as u64, None), Ok(*history), "seed {seed}");
    }
    assert!(histories[1..].iter().any(|history| *history != histories[0]));
}

#[test]
fn planted_faults_of_a_simulated_server_are_detected() {
    let faults = [
        Fault::LostRearm,
        Fault::LostEntry,
        Fault::SharedTurn,
        Fault::LostMark,
        Fault::LostNotification,
        Fault::LostUnlock,
        Fault::LostWake,
        Fault::NoPatience,
        Fault::EndlessPatience,
        Fault::BusyRetry,
        Fault::LostRetry,
    ];
    for fault in faults {
        let found = (0..200).find_map(|seed| run(seed, Some(fault)).err().map(|why| (seed, why)));
        let (seed, why) = found.unwrap_or_else(|| panic!("{fault:?} is not detected"));
        println!("{fault:?}: {why} (seed {seed})");
    }
}
