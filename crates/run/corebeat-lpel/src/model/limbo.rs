//! Memory that others may look at.
