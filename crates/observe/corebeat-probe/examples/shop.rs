//! A shop whose calls are recorded: `cargo run --example shop -- FILE`.

use corebeat_probe::{Handover, block, probe, record, switch};
use corebeat_trace::Trace;
use std::error::Error;
use std::thread;

struct Catalog;
struct Order<'a>(&'a Catalog);

impl Catalog {
    #[probe]
    fn price(&self, article: u32) -> Option<u32> {
        (article < 5).then(|| block!("look up", { article * 3 + 1 }))
    }
}

impl Order<'_> {
    #[probe]
    fn total(&self, articles: &[u32]) -> Option<u32> {
        articles.iter().map(|article| self.0.price(*article)).sum()
    }
}

#[probe]
fn serve(customers: u32) -> u32 {
    let served = (0..customers).map(|customer| {
        let handover = Handover::new();
        let serve = thread::spawn(move || {
            let _handed = handover.accept();
            Order(&Catalog).total(&[customer, customer + 1])
        });
        serve.join().ok().flatten().unwrap_or(0)
    });
    served.sum()
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: shop FILE")?;

    let trace = Trace::create(path)?;
    record(&trace)?;
    switch("shop::*", true)?;
    println!("{}", serve(5));
    trace.finish()?;
    Ok(())
}
