//! Threads that transfer money and trace each transfer:
//! `cargo run --release -p corebeat-trace --example bank -- bank.cbt [TRANSFERS]`.

use corebeat_trace::{Event, Trace, emit};
use std::sync::Mutex;
use std::{env, process, thread};

#[derive(Event)]
#[event(name = "bank.transfer")]
struct Transfer {
    from: u32,
    to: u32,
    cents: i64,
}

#[derive(Event)]
#[event(name = "bank.refused")]
struct Refused<'a> {
    from: u32,
    why: &'a str,
}

const ACCOUNTS: usize = 64;
const THREADS: u32 = 2;

fn main() {
    let mut args = env::args().skip(1);
    let (Some(path), transfers) = (args.next(), args.next().map_or(Ok(10_000), |n| n.parse()))
    else {
        eprintln!("usage: bank FILE [TRANSFERS]");
        process::exit(2);
    };
    let transfers: u32 = transfers.expect("TRANSFERS must be a number");
    let trace = Trace::create(&path).unwrap_or_else(|e| panic!("{e}"));
    trace.install().expect("no other trace is installed");
    let accounts = Mutex::new([1000i64; ACCOUNTS]);
    thread::scope(|scope| {
        for teller in 0..THREADS {
            let work =
                || (0..transfers).for_each(|n| transfer(&accounts, n.wrapping_mul(2_654_435_761)));
            let builder = thread::Builder::new().name(format!("teller {teller}"));
            builder.spawn_scoped(scope, work).expect("a thread can be started");
        }
    });
    let sum: i64 = accounts.into_inner().expect("no thread has panicked").iter().sum();
    assert_eq!(sum, 1000 * ACCOUNTS as i64);
    println!("{:?}", trace.finish().unwrap_or_else(|e| panic!("{e}")));
}

fn transfer(accounts: &Mutex<[i64; ACCOUNTS]>, random: u32) {
    let place = |bits: u32| (bits as usize) % ACCOUNTS;
    let (from, to, cents) = (place(random >> 8), place(random >> 16), i64::from(random >> 24));
    let mut accounts = accounts.lock().expect("no thread has panicked");
    if accounts[from] < cents {
        return emit(&Refused { from: from as u32, why: "not enough money" });
    }
    accounts[from] -= cents;
    accounts[to] += cents;
    emit(&Transfer { from: from as u32, to: to as u32, cents });
}
