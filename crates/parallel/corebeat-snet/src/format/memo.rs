//! Memo of parsed markup.
//!
//! Records of one stream have the same markup between their values. The reader stores the markup
//! after each value together with its meaning. If the same bytes follow the same markup again, the
//! reader does not parse them: it looks up no name, and at the end it has the record's shape.
//!
//! ```text
//!          {"A":"        ","T":
//!   root ---------> A -----------> <T>      a text value, a number
//!                   |               |  }
//!                   | "}            +----> {A, <T>}
//!                   +----> {A}
//! ```

use crate::error::Error;
use crate::label::Label;
use crate::record::{Record, Spare};
use crate::shape::Shape;
use crate::value::{Element, Value};

/// Pieces of markup that are stored. One more piece discards all.
const NODES_MAX: usize = 1024;
/// Pieces that can follow one piece.
const AFTER_MAX: usize = 16;
/// Bytes of the longest piece that is stored.
const MARKUP_BYTES_MAX: usize = 1024;

/// Notation of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A whole number.
    Tag,
    /// No text: the tag is 0.
    Zero,
    /// Text in quotes.
    Text,
    /// Bytes in base64, in quotes.
    Bytes,
    /// Text without quotes.
    Plain,
    /// One element.
    One(Element),
    /// Elements after `[`.
    Many(Element),
}

impl Content {
    /// Whether a value in this notation can begin with this byte. If not, more markup or a value in
    /// another notation can follow.
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

/// Meaning of a piece of markup.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A value of this label follows. `plain`: the value, not the markup, determines the label's
    /// kind.
    Value { label: Label, content: Content, plain: bool },
    /// End of the record.
    End,
    /// End of all records.
    Terminate,
}

/// Stored result for a record with known labels.
struct Done {
    shape: Shape,
    /// Pairs of values to exchange, in this order, to obtain the order of the shape.
    swaps: Box<[(usize, usize)]>,
}

struct Node {
    markup: Box<[u8]>,
    /// First eight bytes of the markup, and the mask of their valid bits.
    front: u64,
    mask: u64,
    /// Piece before this piece.
    before: usize,
    step: Step,
    /// Set at the end of a record.
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

    /// Whether the text begins with this markup.
    #[inline(always)]
    fn fits(&self, text: &[u8]) -> bool {
        let markup = match text.first_chunk() {
            // The common case: the first bytes are the whole markup.
            Some(front) if self.markup.len() <= 8 => {
                u64::from_le_bytes(*front) & self.mask == self.front
            }
            Some(front) => {
                u64::from_le_bytes(*front) == self.front && text.starts_with(&self.markup)
            }
            None => text.starts_with(&self.markup),
        };
        markup
            && match self.step {
                Step::Value { content, .. } => content.begins(text.get(self.markup.len())),
                Step::End | Step::Terminate => true,
            }
    }
}

/// The current record, and the memo of the records before it.
pub(super) struct Draft {
    nodes: Vec<Node>,
    /// Current piece of the memo. `None` if the record differs from all stored ones.
    at: Option<usize>,
    /// Labels of the record, and whether they are plain. Complete only if `at` is `None`.
    labels: Vec<(Label, bool)>,
    values: Vec<Value>,
}

impl Draft {
    pub(super) fn new() -> Draft {
        let mut draft =
            Draft { nodes: Vec::new(), at: None, labels: Vec::new(), values: Vec::new() };
        draft.begin();
        draft
    }

    /// Begins a new record.
    pub(super) fn begin(&mut self) {
        if self.nodes.is_empty() || self.nodes.len() >= NODES_MAX {
            self.nodes.clear();
            self.nodes.push(Node::new(b"", Step::End, 0));
        }
        self.at = Some(0);
        self.labels.clear();
        self.values.clear();
    }

    /// Excludes the current record from the memo.
    pub(super) fn forget(&mut self) {
        self.at = None;
    }

    /// Returns the length and the meaning of the markup at the start of `text` if it is stored.
    #[inline(always)]
    pub(super) fn follow(&mut self, text: &[u8]) -> Option<(usize, Step)> {
        let after = &self.nodes[self.at?].after;
        let first = *after.first()?;
        let next = if self.nodes[first].fits(text) { first } else { self.other(text)? };
        self.at = Some(next);
        let node = &self.nodes[next];
        Some((node.markup.len(), node.step))
    }

    /// Searches the pieces that did not occur last.
    fn other(&mut self, text: &[u8]) -> Option<usize> {
        let at = self.at?;
        let i = self.nodes[at].after.iter().position(|&next| self.nodes[next].fits(text))?;
        self.nodes[at].after.swap(0, i);
        Some(self.nodes[at].after[0])
    }

    /// Stores the meaning of markup if the markup always has this meaning. `next` is the byte after
    /// the markup.
    pub(super) fn learn(&mut self, markup: &[u8], step: Step, next: Option<&u8>) {
        self.labels(); // `at` changes below
        let Some(at) = self.at else { return };
        let certain = match step {
            Step::Value { content, .. } => content.begins(next),
            Step::End => true,
            Step::Terminate => false,
        };
        let known = self.nodes[at].after.iter().find(|&&n| *self.nodes[n].markup == *markup);
        self.at = match known {
            // The source delivered it in two parts, or its value began with another byte.
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

    /// Labels of the record so far, and whether they are plain.
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

    /// Adds a label. Its value follows.
    #[inline(always)]
    pub(super) fn label(&mut self, label: Label, plain: bool) {
        if self.at.is_none() {
            self.labels.push((label, plain));
        }
    }

    /// Adds a value. Inlined, so that the value is built in place: a copy of words that were just
    /// written in smaller parts stalls.
    #[inline(always)]
    pub(super) fn push(&mut self, value: Value) {
        self.values.push(value);
    }

    /// Returns the finished record.
    #[inline(always)]
    pub(super) fn finish(&mut self) -> Result<Record, Box<Error>> {
        if let Some(at) = self.at
            && let Some(Done { shape, swaps }) = &self.nodes[at].done
        {
            for &(i, k) in swaps {
                self.values.swap(i, k);
            }
            return Ok(Spare::default().record(*shape, self.values.drain(..)));
        }
        self.shape()
    }

    /// Returns the finished record after a search for its shape.
    fn shape(&mut self) -> Result<Record, Box<Error>> {
        let ended = self.at;
        if let Some(at) = ended {
            self.at = Some(self.nodes[at].before); // the piece before the last value
        }
        let shape = Shape::new(self.labels().iter().map(|(label, _)| *label))?;
        let mut target: Vec<usize> = (self.labels.iter())
            .map(|(label, _)| shape.position(*label).expect("the shape consists of these labels"))
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
        Ok(Spare::default().record(shape, self.values.drain(..)))
    }
}
