//! Messages on streams.

use corebeat_lpel::Reader;

use crate::record::Record;

/// A record, or a control message between entities.
pub(crate) enum Message {
    Record(Record),
    /// A barrier. It leaves an entity after the results of all messages before it.
    Mark(Mark),
    /// One more stream for the collector that reads this stream (Prokesch 2011, section 3.2.1: a
    /// new instance is registered).
    Join(Box<Reader<Message>>),
    /// Input streams of a stage that has become the identity, for the collector of a parallel
    /// composition. Each has the number of times that its records must pass the choice.
    #[allow(clippy::box_collection, reason = "a message has two words, and this message is rare")]
    Adopt(Box<Vec<(Reader<Message>, u64)>>),
    /// From a stage to the collector of a deterministic star: all outputs of this stage for the
    /// current record have been sent. `deeper`: records continued to the next stage.
    Done {
        deeper: bool,
    },
}

/// Purpose of a barrier. Only its sender interprets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// End of the outputs that one record caused in a deterministic combinator.
    Group,
    /// Sent through the feedback loop with this number. It returns after the results of all records
    /// before it.
    Probe(u64),
}

/// Message to the collector of a deterministic parallel composition or split: source of the next
/// records.
pub(crate) enum Order {
    /// Records of this branch, up to the barrier.
    Branch(usize),
    /// A new branch with this number.
    Add(usize, Reader<Message>),
    /// This branch has ended, and its number is free.
    Remove(usize),
    /// A barrier from outside.
    Mark(Mark),
}

// Messages are moved very often: two words.
const _: () = assert!(size_of::<Message>() == 16);
