//! What flows on streams.

use corebeat_lpel::Reader;

use crate::record::Record;

/// A record, or a word between entities.
pub(crate) enum Message {
    Record(Record),
    /// A barrier: what was sent before has been dealt with when it comes out.
    Mark(Mark),
    /// One more stream for the collector at the other end (Prokesch 2011, section 3.2.1: a new instance is registered).
    Join(Box<Reader<Message>>),
    /// To the collector of a parallel composition, from a stage that does nothing any more: the streams that came in there.
    /// How often each record of one has to be shown to the choice before it may go on stands beside it.
    #[allow(clippy::box_collection, reason = "a message has two words, and this one is seldom sent")]
    Adopt(Box<Vec<(Reader<Message>, u64)>>),
    /// To the collector of a deterministic star, from a stage: all that leaves here for this record has left; `deeper`: some
    /// went on to the next stage.
    Done {
        deeper: bool,
    },
}

/// What a barrier is for. Only who has sent one looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// What one record has caused in a deterministic combinator ends here.
    Group,
    /// Sent through a feedback loop, with the loop's number: comes back when the loop has dealt with all before it.
    Probe(u64),
}

/// To the collector of a deterministic parallel or split: where the next records come from.
pub(crate) enum Order {
    /// From this branch, up to the mark.
    Branch(usize),
    /// One more branch, with this number.
    Add(usize, Reader<Message>),
    /// A branch has come to its end, and its place is free.
    Remove(usize),
    /// A mark from outside.
    Mark(Mark),
}

// Records travel by the million: two words.
const _: () = assert!(size_of::<Message>() == 16);
