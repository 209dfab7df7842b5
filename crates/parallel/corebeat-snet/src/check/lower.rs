//! Conversion of a verified net into a plan.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::Error;
use crate::plan::{self, Branch, FeedbackPlan, Node, ParallelPlan, SplitPlan, StarPlan};
use crate::shape::Shape;

use super::flow::taken;
use super::part::{Kind, NetPart, Part, PatternPart, visit};
use super::row::Row;

/// Returns the plan of a net with these inputs and outputs.
pub(super) fn lower(net: &NetPart, input: &[Row], output: &[Row]) -> Result<plan::Net, Error> {
    let mut boxes = HashMap::new();
    visit(&net.body, &mut |part| {
        if let Kind::Box(box_part) = &part.kind {
            boxes.entry(box_part.name_span.start).or_insert_with(|| box_part.plan.clone());
        }
    });
    let mut boxes: Vec<_> = boxes.into_iter().collect();
    boxes.sort_by_key(|(place, _)| *place);
    Ok(plan::Net {
        name: net.name.to_string(),
        root: Lower::default().node(&net.body)?,
        input: shapes(input.iter())?,
        output: shapes(output.iter())?,
        boxes: boxes.into_iter().map(|(_, plan)| plan).collect(),
    })
}

fn shapes<'a>(rows: impl Iterator<Item = &'a Row>) -> Result<Vec<Shape>, Error> {
    rows.map(Row::shape).collect()
}

#[derive(Default)]
struct Lower {
    /// Nodes of nets, so that all uses share one node.
    nets: HashMap<usize, Arc<Node>>,
}

impl Lower {
    fn node(&mut self, part: &Part) -> Result<Node, Error> {
        Ok(match &part.kind {
            Kind::Identity => Node::Identity,
            Kind::Box(box_part) => Node::Box(box_part.plan.clone()),
            Kind::Filter(filter) => Node::Filter(filter.plan.clone()),
            Kind::Sync(sync) => Node::Sync(sync.plan.clone()),
            Kind::Serial(parts) => {
                Node::Serial(parts.iter().map(|p| self.node(p)).collect::<Result<_, _>>()?)
            }
            Kind::Parallel { deterministic, branches } => {
                let branches = branches.iter().map(|branch| {
                    Ok::<_, Error>(Branch {
                        accepts: shapes(taken(branch).rows())?,
                        node: self.node(branch)?,
                    })
                });
                let branches = branches.collect::<Result<_, Error>>()?;
                Node::Parallel(Arc::new(ParallelPlan { deterministic: *deterministic, branches }))
            }
            Kind::Star { deterministic, operand, exits } => {
                let (operand, exits) = (self.node(operand)?, guarded(exits));
                Node::Star(Arc::new(StarPlan { deterministic: *deterministic, operand, exits }))
            }
            Kind::Split { deterministic, placed, operand, tag } => {
                Node::Split(Arc::new(SplitPlan {
                    deterministic: *deterministic,
                    placed: *placed,
                    operand: self.node(operand)?,
                    tag: *tag,
                }))
            }
            Kind::Feedback { operand, patterns } => {
                let (operand, patterns) = (self.node(operand)?, guarded(patterns));
                Node::Feedback(Arc::new(FeedbackPlan { operand, patterns }))
            }
            Kind::Place { operand, place } => Node::Place(Arc::new(self.node(operand)?), *place),
            Kind::Net(net) => {
                let node = match self.nets.get(&net.number) {
                    Some(node) => node.clone(),
                    None => {
                        let node = Arc::new(self.node(&net.body)?);
                        self.nets.insert(net.number, node.clone());
                        node
                    }
                };
                Node::Net(net.name.clone(), node)
            }
        })
    }
}

fn guarded(patterns: &[PatternPart]) -> Vec<plan::Guarded> {
    patterns.iter().map(|p| p.plan.clone()).collect()
}
