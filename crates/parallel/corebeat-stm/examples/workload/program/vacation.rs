//! Customers book the cheapest of several seats, rooms and cars, and cancel their bookings.
//! Transactions have medium lengths.

use corebeat_stm::{Abort, TCell, Tx, atomically, snapshot};
use fastrand::Rng;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const OFFERS: usize = 64;
const CUSTOMERS: usize = 128;
const ROUNDS: usize = 6_000;
/// Number of offers that a customer compares.
const COMPARED: usize = 8;

/// A kind of seat, room or car, of which there are `total`.
struct Offer {
    total: i64,
    free: TCell<i64>,
    price: TCell<i64>,
}

/// A booking of a customer; the latest one comes first.
struct Booking {
    offer: usize,
    rest: TCell<Option<Arc<Booking>>>,
}

struct Agency {
    offers: Vec<Offer>,
    customers: Vec<TCell<Option<Arc<Booking>>>>,
}

pub(crate) fn run(threads: usize, times: usize) -> Duration {
    let mut random = Rng::with_seed(2);
    let mut offer = || {
        let total = 20 + random.usize(0..20) as i64;
        Offer { total, free: TCell::new(total), price: TCell::new(random.usize(0..1_000) as i64) }
    };
    let agency = Agency {
        offers: (0..OFFERS).map(|_| offer()).collect(),
        customers: (0..CUSTOMERS).map(|_| TCell::new(None)).collect(),
    };
    let begin = Instant::now();
    thread::scope(|scope| {
        for number in 0..threads {
            let agency = &agency;
            scope.spawn(move || {
                let mut random = Rng::with_seed(3 + number as u64);
                for _ in 0..ROUNDS * times / threads {
                    let customer = &agency.customers[random.usize(0..CUSTOMERS)];
                    match random.usize(0..10) {
                        0..8 => {
                            let compared: [usize; COMPARED] =
                                std::array::from_fn(|_| random.usize(0..OFFERS));
                            atomically(|tx| agency.book(tx, customer, &compared))
                        }
                        8 => atomically(|tx| agency.cancel(tx, customer)),
                        _ => {
                            let (offer, price) =
                                (random.usize(0..OFFERS), random.usize(0..1_000) as i64);
                            atomically(|tx| tx.write(&agency.offers[offer].price, price))
                        }
                    }
                }
            });
        }
    });
    let time = begin.elapsed();
    agency.check();
    time
}

impl Agency {
    fn book<'t>(
        &'t self,
        tx: &mut Tx<'t, '_>,
        customer: &'t TCell<Option<Arc<Booking>>>,
        compared: &[usize],
    ) -> Result<(), Abort> {
        let mut best = None;
        for &offer in compared {
            let (free, price) =
                (tx.read(&self.offers[offer].free)?, tx.read(&self.offers[offer].price)?);
            if free > 0 && best.is_none_or(|(least, _)| price < least) {
                best = Some((price, offer));
            }
        }
        let Some((_, offer)) = best else { return Ok(()) };
        tx.update(&self.offers[offer].free, |free| free - 1)?;
        let rest = TCell::new(tx.share(customer)?);
        tx.write(customer, Some(Arc::new(Booking { offer, rest })))
    }

    fn cancel<'t>(
        &'t self,
        tx: &mut Tx<'t, '_>,
        customer: &'t TCell<Option<Arc<Booking>>>,
    ) -> Result<(), Abort> {
        let mut next = tx.read(customer)?;
        while let Some(booking) = next {
            tx.update(&self.offers[booking.offer].free, |free| free + 1)?;
            next = tx.read(&booking.rest)?;
        }
        tx.write(customer, None)
    }

    /// Checks that each item is either free or booked.
    fn check(&self) {
        let booked = snapshot(|tx| {
            let mut booked = vec![0; OFFERS];
            for customer in &self.customers {
                let mut next = tx.read(customer)?;
                while let Some(booking) = next {
                    booked[booking.offer] += 1;
                    next = tx.read(&booking.rest)?;
                }
            }
            Ok(booked)
        });
        for (offer, booked) in self.offers.iter().zip(booked) {
            let free = snapshot(|tx| tx.read(&offer.free));
            assert!(free >= 0 && free + booked == offer.total);
        }
    }
}
