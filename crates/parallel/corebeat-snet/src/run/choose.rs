//! Choice of a branch.

use std::convert::Infallible;
use std::sync::Arc;

use super::code::Code;
use super::context::Context;
use super::route::{Routes, Table};
use crate::plan::ParallelPlan;
use crate::record::Record;

/// Executable parallel composition.
pub(crate) struct ChooseCode {
    plan: Arc<ParallelPlan>,
    pub(crate) branches: Vec<Code>,
    pub(crate) inline: bool,
    /// Branch that leads to the collector without a box.
    pub(crate) direct: Option<usize>,
    table: Table<Option<usize>>,
}

impl ChooseCode {
    pub(crate) fn new(plan: Arc<ParallelPlan>, branches: Vec<Code>) -> ChooseCode {
        let direct = branches.iter().position(Code::inline);
        ChooseCode {
            plan,
            inline: branches.iter().all(Code::inline),
            direct,
            branches,
            table: Table::default(),
        }
    }

    /// Whether its collector may adopt the streams of a stage (see
    /// [`collect_choice`](super::collector)). Adoption builds branches again, so they must be
    /// stateless.
    pub(crate) fn adopts(&self) -> bool {
        !self.inline
            && !self.plan.deterministic
            && self.direct.is_some()
            && self.branches.iter().all(Code::stateless)
    }

    pub(crate) fn deterministic(&self) -> bool {
        self.plan.deterministic
    }

    /// Returns the branch for this record. If there is none, reports a fault.
    #[inline]
    pub(crate) fn branch(
        &self,
        routes: &mut Routes<Option<usize>>,
        record: &Record,
        context: &Context,
    ) -> Option<usize> {
        let branch = self.route(routes, record);
        if branch.is_none() {
            self.report_refusal(record, context);
        }
        branch
    }

    /// Returns the branch for this record, if there is one.
    #[inline]
    pub(crate) fn route(
        &self,
        routes: &mut Routes<Option<usize>>,
        record: &Record,
    ) -> Option<usize> {
        let shape = record.shape();
        let Ok(branch) =
            routes.get(shape, &self.table, || Ok::<_, Infallible>(self.plan.branch(shape)));
        *branch
    }

    #[cold]
    fn report_refusal(&self, record: &Record, context: &Context) {
        let mut takes = String::new();
        for variant in self.plan.branches.iter().flat_map(|b| &b.accepts) {
            takes += if takes.is_empty() { "" } else { " | " };
            takes += &variant.to_string();
        }
        context.fault(
            "a parallel composition",
            format_args!("no branch takes the record: the branches take {takes}"),
            record,
        );
    }
}
