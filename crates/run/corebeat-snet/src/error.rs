//! What can go wrong.

use thiserror::Error;

use crate::label::LABELS_MAX;
use crate::shape::SHAPES_MAX;

/// More different names than one process keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TooMany {
    /// Of labels.
    #[error("more than {LABELS_MAX} different labels: give records that differ in values, not in names")]
    Labels,
    /// Of sets of labels.
    #[error(
        "more than {SHAPES_MAX} different sets of labels: give records that differ in values, not in names"
    )]
    Shapes,
}
