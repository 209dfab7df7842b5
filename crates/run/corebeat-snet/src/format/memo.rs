//! What markup meant before.
//!
//! Records of one stream look alike: the same markup stands between the values of one and of the next. So the markup behind
//! each value is kept with what it meant, and where the same bytes come again behind the same markup, nothing of it is read
//! a second time: no name is looked up, and at the end the record's shape is known.
//!
//! ```text
//!          {"A":"        ","T":
//!   root ---------> A -----------> <T>      a value of text, a number
//!                   |               |  }
//!                   | "}            +----> {A, <T>}
//!                   +----> {A}
//! ```

use crate::error::TooMany;
use crate::label::Label;
use crate::record::Record;
use crate::shape::Shape;
use crate::value::{Element, Value};

/// Pieces of markup that are kept; with one more, all are forgotten.
const NODES_MAX: usize = 1024;
/// Pieces that may follow one piece.
const AFTER_MAX: usize = 16;
/// Bytes of a piece that is kept.
const MARKUP_BYTES_MAX: usize = 1024;

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A whole number.
    Tag,
    /// Nothing at all: a tag that is 0.
    Zero,
    /// A text in quotes.
    Text,
    /// Bytes in base64, in quotes.
    Bytes,
    /// A text as it is.
    Plain,
    /// One element.
    One(Element),
    /// Elements after `[`.
    Many(Element),
}

impl Content {
    /// Whether a value written so can begin with this byte; if not, more markup may come first, or another kind of value.
    #[inline(always)]
    fn begins(self, next: Option<&u8>) -> bool {
        match (self, next) {
            (Content::Tag, Some(b)) => b.is_ascii_digit() || *b == b'-',
            (Content::Plain, Some(b)) => !b"(< \t\r\n".contains(b),
            (Content::One(_), Some(b)) => !b"[ \t\r\n".contains(b),
            (Content::Zero, _) => true,
            (_, next) => next.is_some(),
        }
    }
}

/// What a piece of markup leads to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A value of this label. `plain`: the label's kind was not written but told from the value.
    Value { label: Label, content: Content, plain: bool },
    /// The record's end.
    End,
    /// The end of all records.
    Terminate,
}

/// What is known of a record whose labels are known.
struct Done {
    shape: Shape,
    /// Which values must change places to stand in the shape's order, one pair after the other.
    swaps: Box<[(usize, usize)]>,
}

struct Node {
    markup: Box<[u8]>,
    /// The first eight bytes of the markup, and which of their bits count.
    front: u64,
    mask: u64,
    /// What comes before it.
    before: usize,
    step: Step,
    /// At the record's end.
    done: Option<Done>,
    after: Vec<usize>,
}

impl Node {
    fn new(markup: &[u8], step: Step, before: usize) -> Node {
        let mut front = [0; 8];
        let short = markup.len().min(8);
        front[..short].copy_from_slice(&markup[..short]);
        let mask = if short == 8 { u64::MAX } else { (1 << (8 * short)) - 1 };
        Node {
            markup: markup.into(),
            front: u64::from_le_bytes(front),
            mask,
            before,
            step,
            done: None,
            after: Vec::new(),
        }
    }

    /// Whether this is at the front of the text.
    #[inline(always)]
    fn fits(&self, text: &[u8]) -> bool {
        let markup = match text.first_chunk() {
            // All of it, as a rule.
            Some(front) if self.markup.len() <= 8 => u64::from_le_bytes(*front) & self.mask == self.front,
            Some(front) => u64::from_le_bytes(*front) == self.front && text.starts_with(&self.markup),
            None => text.starts_with(&self.markup),
        };
        markup
            && match self.step {
                Step::Value { content, .. } => content.begins(text.get(self.markup.len())),
                Step::End | Step::Terminate => true,
            }
    }
}

/// The record that is being read, and what was learned from those before it.
pub(super) struct Draft {
    nodes: Vec<Node>,
    /// Where in the memory it stands; `None` if it is like no record before.
    at: Option<usize>,
    /// Its labels and whether they were plain: all of them, where they cannot be told from `at`.
    labels: Vec<(Label, bool)>,
    values: Vec<Value>,
}

impl Draft {
    pub(super) fn new() -> Draft {
        let mut draft = Draft { nodes: Vec::new(), at: None, labels: Vec::new(), values: Vec::new() };
        draft.begin();
        draft
    }

    /// A new record begins.
    pub(super) fn begin(&mut self) {
        if self.nodes.is_empty() || self.nodes.len() >= NODES_MAX {
            self.nodes.clear();
            self.nodes.push(Node::new(b"", Step::End, 0));
        }
        self.at = Some(0);
        self.labels.clear();
        self.values.clear();
    }

    /// This record is not to be remembered.
    pub(super) fn forget(&mut self) {
        self.at = None;
    }

    /// What markup at the front of `text` means, and its length, if it was seen here before.
    #[inline(always)]
    pub(super) fn follow(&mut self, text: &[u8]) -> Option<(usize, Step)> {
        let after = &self.nodes[self.at?].after;
        let first = *after.first()?;
        let next = if self.nodes[first].fits(text) { first } else { self.other(text)? };
        self.at = Some(next);
        let node = &self.nodes[next];
        Some((node.markup.len(), node.step))
    }

    /// What comes next, if not what came last.
    fn other(&mut self, text: &[u8]) -> Option<usize> {
        let at = self.at?;
        let i = self.nodes[at].after.iter().position(|&next| self.nodes[next].fits(text))?;
        self.nodes[at].after.swap(0, i);
        Some(self.nodes[at].after[0])
    }

    /// Keeps what markup means that was not known, if that is always what it means. `next`: the byte behind it.
    pub(super) fn learn(&mut self, markup: &[u8], step: Step, next: Option<&u8>) {
        self.labels(); // while they can be told from `at`
        let Some(at) = self.at else { return };
        let certain = match step {
            Step::Value { content, .. } => content.begins(next),
            Step::End => true,
            Step::Terminate => false,
        };
        let known = self.nodes[at].after.iter().find(|&&n| *self.nodes[n].markup == *markup);
        self.at = match known {
            // It came in two parts before, or its value began unlike others.
            Some(&n) if certain => Some(n),
            _ if !certain
                || self.nodes[at].after.len() == AFTER_MAX
                || self.nodes.len() == NODES_MAX
                || markup.len() > MARKUP_BYTES_MAX =>
            {
                None
            }
            _ => {
                let new = self.nodes.len();
                self.nodes.push(Node::new(markup, step, at));
                self.nodes[at].after.push(new);
                Some(new)
            }
        };
    }

    /// The labels so far, and whether they were plain.
    pub(super) fn labels(&mut self) -> &[(Label, bool)] {
        if let Some(mut at) = self.at {
            self.labels.clear();
            while let Node { before, step: Step::Value { label, plain, .. }, .. } = self.nodes[at] {
                self.labels.push((label, plain));
                at = before;
            }
            self.labels.reverse();
        }
        &self.labels
    }

    /// One more label, whose value comes next.
    #[inline(always)]
    pub(super) fn label(&mut self, label: Label, plain: bool) {
        if self.at.is_none() {
            self.labels.push((label, plain));
        }
    }

    /// One more value. It is put into its place at once: copies of what was just made from smaller parts are slow.
    #[inline(always)]
    pub(super) fn push(&mut self, value: Value) {
        self.values.push(value);
    }

    /// The whole record.
    #[inline(always)]
    pub(super) fn finish(&mut self) -> Result<Record, TooMany> {
        if let Some(at) = self.at
            && let Some(Done { shape, swaps }) = &self.nodes[at].done
        {
            for &(i, k) in swaps {
                self.values.swap(i, k);
            }
            return Ok(Record::new(*shape, self.values.drain(..)));
        }
        self.shape()
    }

    /// The whole record, of a shape that must be looked for.
    fn shape(&mut self) -> Result<Record, TooMany> {
        let ended = self.at;
        if let Some(at) = ended {
            self.at = Some(self.nodes[at].before); // the last value
        }
        let shape = Shape::new(self.labels().iter().map(|(label, _)| *label))?;
        let mut target: Vec<usize> = (self.labels.iter())
            .map(|(label, _)| shape.position(*label).expect("the shape was made of these labels"))
            .collect();
        let mut swaps = Vec::new();
        for i in 0..target.len() {
            while target[i] != i {
                let k = target[i];
                target.swap(i, k);
                self.values.swap(i, k);
                swaps.push((i, k));
            }
        }
        if let Some(at) = ended {
            self.nodes[at].done = Some(Done { shape, swaps: swaps.into() });
        }
        Ok(Record::new(shape, self.values.drain(..)))
    }
}
