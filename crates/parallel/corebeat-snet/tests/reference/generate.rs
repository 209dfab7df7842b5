//! Random networks with input records.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use corebeat_snet::body::BoxBody;
use corebeat_snet::plan::{BoxPlan, Net, Node};
use corebeat_snet::{Kind, Record, Shape, Value};
use proptest::collection::vec;
use proptest::prelude::*;

use super::STEPS_MAX;
use super::function::{Functions, ids, number};
use super::grow::{self, Dice, Form, Gene, Grower, Place};
use super::interpreter::{Outcome, interpret};
use super::source::source;

/// Input records of a network.
const INPUT_MAX: usize = 8;
/// Maximum number of output records for one input record.
const FANOUT_MAX: u32 = 27;
/// Orders that are tried before a result counts as wrong.
const SHUFFLES: u64 = 8;

/// Property of a network under every schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The output records are equal, in any order.
    Confluent,
    /// The output records are equal, in the same order.
    Ordered,
    /// The output records are equal except for their fields. Fields hold ids, and each id leaves
    /// exactly once (in parts, if a box outputs several records), or ends in a cell.
    Merging,
}

/// A network and its input.
#[derive(Clone)]
pub(crate) struct Case {
    /// Network.
    pub(crate) net: Arc<Net>,
    /// Input records.
    pub(crate) input: Vec<Record>,
    /// Property of the output.
    pub(crate) class: Class,
    functions: Functions,
}

/// Cases of a class. Failing cases are simplified.
pub(crate) fn cases(class: Class) -> impl Strategy<Value = Case> {
    let records = vec(vec(any::<u8>(), 0..6), 1..=INPUT_MAX);
    let records = prop_oneof![1 => Just(Vec::new()), 20 => records];
    (vec(any::<u8>(), 0..6), vec(gene(), 1..4), records)
        .prop_map(move |(shapes, genes, records)| Case::new(class, &shapes, &genes, &records))
}

fn gene() -> impl Strategy<Value = Gene> {
    use Form::*;
    let leaf = prop_oneof![
        1 => Just(Identity),
        6 => Just(Box),
        6 => Just(Filter),
        3 => Just(Bind),
        3 => Just(Sync),
        3 => Just(Merge),
    ];
    let leaf = (leaf, vec(any::<u8>(), 0..40)).prop_map(|(form, dice)| Gene {
        form,
        dice,
        inner: Vec::new(),
    });
    leaf.prop_recursive(4, 24, 3, |inner| {
        let form = prop_oneof![
            2 => Just(Serial),
            6 => Just(Parallel),
            4 => Just(Star),
            3 => Just(Split),
            2 => Just(Feedback),
            1 => Just(Place),
            1 => Just(Net),
            3 => Just(Join),
        ];
        (form, vec(any::<u8>(), 0..12), vec(inner, 1..4)).prop_map(|(form, dice, inner)| Gene {
            form,
            dice,
            inner,
        })
    })
}

impl Case {
    fn new(class: Class, shapes: &[u8], genes: &[Gene], records: &[Vec<u8>]) -> Case {
        let dice = &mut Dice(shapes);
        let mut input = Vec::new();
        for _ in 0..1 + dice.below(3) {
            let shape = input_shape(class, dice);
            if !input.contains(&shape) {
                input.push(shape);
            }
        }
        let mut grower = Grower::new(class);
        let place = Place {
            lossless: class == Class::Merging,
            budget: FANOUT_MAX,
            unique: class == Class::Confluent,
            looped: false,
            depth: 0,
        };
        let all = grow::Part { node: Node::Identity, shapes: input.clone(), most: 1 };
        let first = grower.unified(dice, all);
        let rest = grower.serial(genes, &first.shapes, place);
        let parts =
            [first.node, rest.node].into_iter().filter(|node| !matches!(node, Node::Identity));
        let root = grow::in_series(parts.collect());
        let records = records.iter().enumerate();
        let records =
            records.map(|(i, dice)| input_record(class, &input, i, &mut Dice(dice))).collect();
        let net = Net::new("main", root, input, rest.shapes);
        Case { net: Arc::new(net), input: records, class, functions: grower.functions }
    }

    /// The network as source text.
    pub(crate) fn source(&self) -> String {
        source(&self.net, |plan| format!("{:?}", self.functions[&plan.name]))
    }

    /// Functions of its boxes, by name.
    pub(crate) fn bodies(&self) -> BTreeMap<String, Arc<dyn BoxBody>> {
        let bodies = self.functions.iter();
        bodies
            .map(|(name, function)| (name.clone(), Arc::clone(function) as Arc<dyn BoxBody>))
            .collect()
    }

    fn interpreted(&self, seed: Option<u64>) -> Outcome {
        let call = |plan: &BoxPlan, values: &[Value]| self.functions[&plan.name].call(plan, values);
        interpret(&self.net, &call, &self.input, seed, STEPS_MAX)
    }

    /// Expected output.
    pub(crate) fn outcome(&self) -> Outcome {
        self.interpreted(None)
    }

    /// Checks an output with these numbers of failed records and of records in cells.
    ///
    /// # Errors
    ///
    /// Returns the difference, and whether the case itself has different results in different
    /// orders.
    pub(crate) fn check(
        &self,
        records: &[Record],
        errors: usize,
        kept: usize,
    ) -> Result<(), String> {
        let expected = self.outcome();
        self.agree(&expected, records, errors, kept).map_err(|wrong| {
            let to_blame = (0..SHUFFLES).find_map(|seed| {
                let other = self.shuffled(seed);
                self.agree(&expected, &other.records, other.errors.len(), other.kept).err()
            });
            match to_blame {
                None => format!("{wrong}\n{expected:#?}"),
                Some(other) => {
                    format!(
                        "{wrong}\nand the interpreter has another result in another order: {other}"
                    )
                }
            }
        })
    }

    /// Output with another order of events.
    pub(crate) fn shuffled(&self, seed: u64) -> Outcome {
        self.interpreted(Some(seed))
    }

    fn agree(
        &self,
        expected: &Outcome,
        records: &[Record],
        errors: usize,
        kept: usize,
    ) -> Result<(), String> {
        if kept != expected.kept {
            return Err(format!("{kept} records in cells instead of {}", expected.kept));
        }

        if errors != expected.errors.len() {
            return Err(format!(
                "{errors} records ended by errors instead of {}, after {} steps: {:?}",
                expected.errors.len(),
                expected.steps,
                expected.errors
            ));
        }
        let with_fields = self.class != Class::Merging;
        let lines = |records: &[Record]| {
            let mut lines: Vec<String> =
                records.iter().map(|record| line(record, with_fields)).collect();
            if self.class != Class::Ordered {
                lines.sort();
            }
            lines
        };
        let (should, are) = (lines(&expected.records), lines(records));
        if should != are {
            let first = (0..).find(|i| should.get(*i) != are.get(*i)).expect("the outputs differ");
            return Err(format!(
                "{} records instead of {}; the first that differs is {:?} instead of {:?}",
                are.len(),
                should.len(),
                are.get(first),
                should.get(first)
            ));
        }
        if with_fields {
            return Ok(());
        }
        let parts = records.iter().flat_map(|record| record.values()).flat_map(ids);
        whole(parts.collect(), self.input.len(), expected.kept == 0)
    }
}

/// The program, the functions of its boxes, and the input.
impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}\n{}", self.class, self.source())?;
        self.input.iter().try_for_each(|record| writeln!(f, "{}", line(record, true)))
    }
}

fn input_shape(class: Class, dice: &mut Dice<'_>) -> Shape {
    let mut labels = match class {
        Class::Merging => vec![dice.pick(&grow::fields())],
        Class::Confluent | Class::Ordered => {
            [dice.some(&grow::fields(), 1), vec![grow::number()]].concat()
        }
    };
    labels.extend(dice.some(&grow::tags(), 0));
    if dice.once_in(5) {
        labels.push(grow::binding());
    }
    grow::shape(labels)
}

fn input_record(class: Class, shapes: &[Shape], i: usize, dice: &mut Dice<'_>) -> Record {
    let mut labels = dice.pick(shapes).labels().to_vec();
    if dice.once_in(4) {
        // Labels that the net does not need.
        let more = [vec![grow::field("E")], grow::tags(), grow::fields()].concat();
        let more = if class == Class::Merging { grow::tags() } else { more };
        labels.push(dice.pick(&more));
    }
    let pairs = labels.into_iter().map(|label| {
        let value = match label.kind() {
            _ if label == grow::number() => Value::Tag(i as i32),
            Kind::Tag | Kind::BindingTag => Value::Tag(dice.below(7) as i32 - 2),
            Kind::Field if class == Class::Merging => Value::from(i.to_string().as_str()),
            Kind::Field => number(i as u64 * 1000 + dice.below(2) as u64),
        };
        (label, value)
    });
    Record::from_pairs(pairs).expect("a test uses few labels")
}

/// A record in one line, with labels sorted by name.
fn line(record: &Record, with_fields: bool) -> String {
    let mut entries: Vec<String> = record
        .iter()
        .map(|(label, value)| match value {
            _ if label.kind() == Kind::Field && !with_fields => label.to_string(),
            value => match value.as_str() {
                Some(text) => format!("{label}: {text}"),
                None => format!("{label}: {value:?}"),
            },
        })
        .collect();
    entries.sort();
    format!("{{{}}}", entries.join(", "))
}

/// Checks that each of `count` ids occurs once, whole or in parts. Ids may be missing unless `all`
/// is set.
fn whole(ids: Vec<String>, count: usize, all: bool) -> Result<(), String> {
    let set: BTreeSet<&String> = ids.iter().collect();
    if set.len() < ids.len() {
        return Err(format!("some ids occur twice: {ids:?}"));
    }
    let known = |id: &&String| {
        id.split('.').next().and_then(|id| id.parse().ok()).is_some_and(|id: usize| id < count)
    };
    if !set.iter().all(known) {
        return Err(format!("some ids are not in the input: {ids:?}"));
    }
    // Each id as a path of parts: `3.0/2.1/2` is the second half of the first half of 3.
    let paths: Vec<Vec<&str>> = ids.iter().map(|id| id.split('.').collect()).collect();
    for id in 0..count {
        let name = id.to_string();
        let own: Vec<&[&str]> =
            paths.iter().filter(|path| path[0] == name).map(|path| &path[1..]).collect();
        if !complete(&own, all) {
            return Err(format!("id {id} is incomplete: {ids:?}"));
        }
    }
    Ok(())
}

fn complete(paths: &[&[&str]], all: bool) -> bool {
    if paths.is_empty() {
        return !all;
    }
    if paths.iter().any(|path| path.is_empty()) {
        return paths.len() == 1;
    }
    let parts: usize =
        paths[0][0].split('/').nth(1).and_then(|n| n.parse().ok()).expect("a part is of some");
    let one = |i: usize| {
        let name = format!("{i}/{parts}");
        let own: Vec<&[&str]> =
            paths.iter().filter(|path| path[0] == name).map(|path| &path[1..]).collect();
        (own.len(), complete(&own, all))
    };
    let each: Vec<(usize, bool)> = (0..parts).map(one).collect();
    each.iter().all(|(_, complete)| *complete)
        && each.iter().map(|(n, _)| n).sum::<usize>() == paths.len()
}
