//! Policies for all programs of a host: CPU shares and exclusive CPUs.

pub mod claims;
pub mod fair;
