//! The interface `org.varlink.service`, which every Varlink service has.
//!
//! Its [text](DESCRIPTION) says what the names mean.

use serde::{Deserialize, Serialize};

/// The interface's name.
pub const INTERFACE: &str = "org.varlink.service";
/// The interface's text.
pub const DESCRIPTION: &str = include_str!("org.varlink.service.varlink");

/// The method `GetInfo`.
pub const GET_INFO: &str = "org.varlink.service.GetInfo";
/// What [`GET_INFO`] gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// Who made the service.
    pub vendor: String,
    /// What it is called.
    pub product: String,
    /// Its version.
    pub version: String,
    /// Where more is told.
    pub url: String,
    /// The interfaces that it has.
    pub interfaces: Vec<String>,
}

/// The method `GetInterfaceDescription`.
pub const GET_INTERFACE_DESCRIPTION: &str = "org.varlink.service.GetInterfaceDescription";
/// What [`GET_INTERFACE_DESCRIPTION`] takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// Which interface.
    pub interface: String,
}
/// What [`GET_INTERFACE_DESCRIPTION`] gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// The interface's text.
    pub description: String,
}
