//! Who is measured.

use clap::ValueEnum;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Subject {
    Corebeat,
    ObjectsOnly,
    ProcessorAsObject,
    /// Ours, and nobody collects.
    Idle,
    GcArena,
    Go,
    Java,
    Actix,
    Ractor,
}

impl Subject {
    /// What it is called in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Subject::Corebeat => "corebeat",
            Subject::ObjectsOnly => "objects only",
            Subject::ProcessorAsObject => "processor as object",
            Subject::Idle => "corebeat, no collections",
            Subject::GcArena => "gc-arena",
            Subject::Go => "go",
            Subject::Java => "java, serial",
            Subject::Actix => "actix",
            Subject::Ractor => "ractor",
        }
    }
}
