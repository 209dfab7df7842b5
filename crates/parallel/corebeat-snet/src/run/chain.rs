//! Stages of a star without boxes, in the task that holds the record.
//!
//! A stage whose synchrocells have merged keeps no state any more, and all such stages do the same
//! with a record. Therefore the chain contains only their number, and one replica for all of them:
//!
//! ```text
//!   stage (waits) --> 41 spent stages --> stage (waits) --> 3 spent stages --> new stage ...
//!                         |                                    |
//!                         +------------ one replica -----------+
//! ```
//!
//! A record that passes a spent stage unchanged also passes the spent stages after it, so it skips
//! all of them. Any other record passes through the replica once for each of them.

use std::mem::take;
use std::sync::Arc;

use corebeat_lpel::yield_now;

use super::code::StarCode;
use super::context::Context;
use super::guard::Fit;
use super::route::Routes;
use super::step::{self, ROUNDS_MAX, Step};
use crate::record::Record;

/// Stages of a star.
pub(crate) struct Chain {
    code: Arc<StarCode>,
    routes: Routes<Fit>,
    links: Vec<Link>,
    /// Steps of every spent stage.
    spent: Vec<Step>,
    outside: Vec<Record>,
    inside: Vec<Record>,
}

/// One or more stages.
enum Link {
    /// A stage with a synchrocell that has not merged.
    Waiting(Vec<Step>),
    /// Number of successive stages without state. No other link of this kind is beside it.
    Spent(u64),
}

/// Number of spent stages of a star that never has state.
const ENDLESS: u64 = u64::MAX;

/// Next stage of a record: a link, and the number of stages of this link before it.
#[derive(Default)]
struct At {
    link: usize,
    passed: u64,
}

impl Chain {
    pub(crate) fn new(code: Arc<StarCode>) -> Chain {
        Chain {
            code,
            routes: Routes::default(),
            links: Vec::new(),
            spent: Vec::new(),
            outside: Vec::new(),
            inside: Vec::new(),
        }
    }

    pub(crate) fn is_stateless(&self) -> bool {
        self.code.stateless
    }

    /// Processes stage by stage, so that records that leave early are first in the output.
    pub(crate) fn apply(
        &mut self,
        record: Record,
        context: &Arc<Context>,
        out: &mut dyn FnMut(Record),
    ) {
        let (mut outside, mut inside) = (take(&mut self.outside), take(&mut self.inside));
        outside.push(record);
        let (mut at, mut rounds) = (At::default(), 0);
        loop {
            for record in outside.drain(..) {
                match self.code.exits.fits(&mut self.routes, &record, context) {
                    Some(true) => out(record),
                    Some(false) => inside.push(record),
                    None => {}
                }
            }
            if inside.is_empty() {
                break;
            }
            self.stage(&mut at, &mut inside, context, &mut |record| outside.push(record));
            rounds += 1;
            if rounds == ROUNDS_MAX {
                rounds = 0;
                yield_now();
            }
        }
        (self.outside, self.inside) = (outside, inside);
    }

    /// Applies the next stage that changes these records, and moves on to the stage after it.
    fn stage(
        &mut self,
        at: &mut At,
        records: &mut Vec<Record>,
        context: &Arc<Context>,
        out: &mut dyn FnMut(Record),
    ) {
        if let Some(Link::Spent(count)) = self.links.get(at.link) {
            let mut pass = |record| step::all_pass(&mut self.spent, record);
            if at.passed < *count && (*count == ENDLESS || !records.iter().all(&mut pass)) {
                at.passed += 1;
                for record in records.drain(..) {
                    step::push(&mut self.spent, record, context, out);
                }
                return;
            }
            *at = At { link: at.link + 1, passed: 0 };
        }
        if at.link == self.links.len() {
            self.links.push(Link::Waiting(step::steps(&self.code.operand, context)));
        }
        let Link::Waiting(steps) = &mut self.links[at.link] else {
            unreachable!("links of spent stages are not adjacent")
        };
        for record in records.drain(..) {
            step::push(steps, record, context, out);
        }
        step::remove_spent(steps);
        if steps.iter().all(Step::is_stateless) {
            self.spend(at);
        } else {
            at.link += 1;
        }
    }

    /// Adds a stage that has lost its state to the spent stages beside it.
    fn spend(&mut self, at: &mut At) {
        let mut count = if self.code.stateless { ENDLESS } else { 1 };
        if let Some(Link::Spent(more)) = self.links.get(at.link + 1) {
            count += more;
            self.links.remove(at.link + 1);
        }
        *at = match at.link.checked_sub(1).map(|before| (before, &mut self.links[before])) {
            Some((link, Link::Spent(before))) => {
                let passed = *before + 1;
                *before += count;
                self.links.remove(at.link);
                At { link, passed }
            }
            _ => {
                let spent = std::mem::replace(&mut self.links[at.link], Link::Spent(count));
                if let Link::Waiting(steps) = spent {
                    self.spent = steps;
                }
                At { link: at.link, passed: 1 }
            }
        };
    }
}
