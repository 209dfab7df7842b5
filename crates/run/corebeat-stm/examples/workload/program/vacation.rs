//! Customers book the cheapest of some seats, rooms and cars, and give up what they have: transactions of medium length.

use super::Random;
use corebeat_stm::{Abort, TCell, Tx, atomically, snapshot};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const OFFERS: usize = 64;
const CUSTOMERS: usize = 128;
const ROUNDS: usize = 6_000;
/// How many offers a customer looks at.
const LOOKS: usize = 8;

/// A seat, a room or a car that there is so many times.
struct Offer {
    total: i64,
    free: TCell<i64>,
    price: TCell<i64>,
}

/// What a customer has booked, the last first.
struct Booking {
    offer: usize,
    rest: TCell<Option<Arc<Booking>>>,
}

struct Agency {
    offers: Vec<Offer>,
    customers: Vec<TCell<Option<Arc<Booking>>>>,
}

pub(crate) fn run(threads: usize, times: usize) -> Duration {
    let mut random = Random(2);
    let mut offer = || {
        let total = 20 + random.below(20) as i64;
        Offer { total, free: TCell::new(total), price: TCell::new(random.below(1_000) as i64) }
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
                let mut random = Random(3 + number as u64);
                for _ in 0..ROUNDS * times / threads {
                    let customer = &agency.customers[random.below(CUSTOMERS)];
                    match random.below(10) {
                        0..8 => {
                            let looks: [usize; LOOKS] = std::array::from_fn(|_| random.below(OFFERS));
                            atomically(|tx| agency.book(tx, customer, &looks))
                        }
                        8 => atomically(|tx| agency.give_up(tx, customer)),
                        _ => {
                            let (offer, price) = (random.below(OFFERS), random.below(1_000) as i64);
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
        looks: &[usize],
    ) -> Result<(), Abort> {
        let mut best = None;
        for &offer in looks {
            let (free, price) = (tx.read(&self.offers[offer].free)?, tx.read(&self.offers[offer].price)?);
            if free > 0 && best.is_none_or(|(least, _)| price < least) {
                best = Some((price, offer));
            }
        }
        let Some((_, offer)) = best else { return Ok(()) };
        tx.update(&self.offers[offer].free, |free| free - 1)?;
        let rest = TCell::new(tx.share(customer)?);
        tx.write(customer, Some(Arc::new(Booking { offer, rest })))
    }

    fn give_up<'t>(
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

    /// What is booked is what is not free.
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
