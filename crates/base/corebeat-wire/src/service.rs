//! The interface `org.varlink.service`, which every Varlink service has.
//!
//! The [text](DESCRIPTION) of the interface explains the names.

use serde::{Deserialize, Serialize};

/// Name of the interface.
pub const INTERFACE: &str = "org.varlink.service";
/// Text of the interface.
pub const DESCRIPTION: &str = include_str!("org.varlink.service.varlink");

/// The method `GetInfo`.
pub const GET_INFO: &str = "org.varlink.service.GetInfo";
/// Result of [`GET_INFO`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// Vendor of the service.
    pub vendor: String,
    /// Name of the service.
    pub product: String,
    /// Version of the service.
    pub version: String,
    /// Address of its documentation.
    pub url: String,
    /// Its interfaces.
    pub interfaces: Vec<String>,
}

/// The method `GetInterfaceDescription`.
pub const GET_INTERFACE_DESCRIPTION: &str = "org.varlink.service.GetInterfaceDescription";
/// Parameters of [`GET_INTERFACE_DESCRIPTION`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// Name of the interface.
    pub interface: String,
}
/// Result of [`GET_INTERFACE_DESCRIPTION`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// Text of the interface.
    pub description: String,
}
