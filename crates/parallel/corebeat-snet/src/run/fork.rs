//! Split point of a parallel composition with boxes.

use std::sync::Arc;

use corebeat_lpel::{Reader, Writer};

use super::choose::ChooseCode;
use super::context::Context;
use super::line::{Line, send};
use super::message::{Mark, Message, Order};
use super::route::Routes;
use crate::record::Record;

/// Passes each record to one of several lines.
pub(crate) struct Fork {
    code: Arc<ChooseCode>,
    routes: Routes<Option<usize>>,
    branches: Vec<Line>,
    /// Reports the order to the collector of a deterministic composition.
    order: Option<Writer<Order>>,
}

impl Fork {
    pub(crate) fn new(
        code: Arc<ChooseCode>,
        branches: Vec<Line>,
        order: Option<Writer<Order>>,
    ) -> Fork {
        Fork { code, routes: Routes::default(), branches, order }
    }

    pub(crate) fn record(&mut self, record: Record, context: &Arc<Context>) {
        let Some(branch) = self.code.branch(&mut self.routes, &record, context) else { return };
        if let Some(order) = &mut self.order {
            send(order, Order::Branch(branch));
            self.branches[branch].record(record, context);
            self.branches[branch].mark(Mark::Group, context);
        } else {
            self.branches[branch].record(record, context);
        }
    }

    pub(crate) fn is_of(&self, code: &Arc<ChooseCode>) -> bool {
        Arc::ptr_eq(&self.code, code)
    }

    /// Hands these streams over to its collector.
    pub(crate) fn hand_over(&mut self, streams: Vec<(Reader<Message>, u64)>) {
        if let Some(direct) = self.code.direct {
            self.branches[direct].send(Message::Adopt(Box::new(streams)));
        }
    }

    pub(crate) fn mark(&mut self, mark: Mark, context: &Arc<Context>) {
        match &mut self.order {
            Some(order) => send(order, Order::Mark(mark)),
            None => self.branches.iter_mut().for_each(|branch| branch.mark(mark, context)),
        }
    }
}
