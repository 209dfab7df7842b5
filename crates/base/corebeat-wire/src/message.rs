//! Contents of messages: calls, replies and refusals.

use crate::Error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A call as received by a service.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Call {
    /// Interface and method, separated by a dot.
    pub method: String,
    /// The parameters, or null.
    #[serde(default)]
    pub parameters: Value,
    /// Whether the client expects no answer.
    #[serde(default)]
    pub oneway: bool,
    /// Whether the client expects several answers.
    #[serde(default)]
    pub more: bool,
    /// Whether the client requests another protocol.
    #[serde(default)]
    pub upgrade: bool,
}

impl Call {
    /// Parses the text of a message.
    ///
    /// # Errors
    /// [`Error::Garbled`].
    pub fn read(text: &[u8]) -> Result<Call, Error> {
        read(text)
    }

    /// Converts the parameters.
    ///
    /// # Errors
    /// [`Refusal::InvalidParameter`], with the reason.
    pub fn parameters<P: DeserializeOwned>(&mut self) -> Result<P, Refusal> {
        let given = match self.parameters.take() {
            Value::Null => Value::Object(serde_json::Map::new()),
            given => given,
        };
        serde_json::from_value(given)
            .map_err(|e| Refusal::InvalidParameter { parameter: e.to_string() })
    }
}

/// A refusal by a service. The names are those of the interfaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "error", content = "parameters")]
pub enum Refusal {
    /// The object belongs to another user, or its mode does not permit the operation.
    #[error("{why}")]
    #[serde(rename = "io.corebeat.Host.NotAllowed")]
    NotAllowed {
        /// Advice for the user.
        why: String,
    },
    /// The group does not exist, or is not accessible.
    #[error("{why}")]
    #[serde(rename = "io.corebeat.Host.NoSuchGroup")]
    NoSuchGroup {
        /// Advice for the user.
        why: String,
    },
    /// The process does not have this claim.
    #[error("{why}")]
    #[serde(rename = "io.corebeat.Host.NoSuchClaim")]
    NoSuchClaim {
        /// Advice for the user.
        why: String,
    },
    /// A limit is reached.
    #[error("the limit of {limit} {what} is reached: {}", remedy(what))]
    #[serde(rename = "io.corebeat.Host.TooMany")]
    TooMany {
        /// The limited objects.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// An argument is invalid.
    #[error("{why}")]
    #[serde(rename = "io.corebeat.Host.BadRequest")]
    BadRequest {
        /// The reason.
        why: String,
    },
    /// The service does not have the interface.
    #[error("the service has no interface {interface}: use a client and a service of one version")]
    #[serde(rename = "org.varlink.service.InterfaceNotFound")]
    InterfaceNotFound {
        /// The interface.
        interface: String,
    },
    /// The interface does not have the method.
    #[error("the service has no method {method}: use a client and a service of one version")]
    #[serde(rename = "org.varlink.service.MethodNotFound")]
    MethodNotFound {
        /// The method.
        method: String,
    },
    /// The service does not implement the method.
    #[error("the service does not implement {method}: use a client and a service of one version")]
    #[serde(rename = "org.varlink.service.MethodNotImplemented")]
    MethodNotImplemented {
        /// The method.
        method: String,
    },
    /// A parameter is missing, unknown, or has the wrong type.
    #[error("a parameter of the call is invalid: {parameter}")]
    #[serde(rename = "org.varlink.service.InvalidParameter")]
    InvalidParameter {
        /// The parameter, and the reason.
        parameter: String,
    },
    /// The client may not call the method.
    #[error("the service does not permit this call: ask its user or root")]
    #[serde(rename = "org.varlink.service.PermissionDenied")]
    PermissionDenied {},
    /// The method has several answers and must be called with `more`.
    #[error("the method has several answers: call it with \"more\"")]
    #[serde(rename = "org.varlink.service.ExpectedMore")]
    ExpectedMore {},
}

/// The advice for a user who has reached the limit of these objects.
pub fn remedy(what: &str) -> &'static str {
    match what.split(' ').next() {
        Some("calls") => "call less often",
        Some("connections") => "end programs that use the daemon",
        _ => "end some that are not needed",
    }
}

/// A call as sent by a client.
#[derive(Serialize)]
pub(crate) struct Asked<'a, P> {
    pub(crate) method: &'a str,
    pub(crate) parameters: &'a P,
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) more: bool,
}

/// The text of an answer.
///
/// # Errors
/// [`Error::Garbled`] if JSON cannot represent the value, such as a map whose keys are not strings.
pub fn answer<R: Serialize>(parameters: &R, continues: bool) -> Result<Vec<u8>, Error> {
    #[derive(Serialize)]
    struct Answer<'a, R> {
        parameters: &'a R,
        #[serde(skip_serializing_if = "is_false")]
        continues: bool,
    }
    write(&Answer { parameters, continues })
}

/// The text of a refusal.
///
/// # Errors
/// None in practice: refusals contain only strings and numbers.
pub fn refuse(refusal: &Refusal) -> Result<Vec<u8>, Error> {
    write(refusal)
}

/// An answer as received by a client.
#[derive(Deserialize)]
pub(crate) struct Answer {
    error: Option<String>,
    #[serde(default)]
    parameters: Value,
    /// Whether further answers to the same call follow.
    #[serde(default)]
    pub(crate) continues: bool,
}

impl Answer {
    /// Parses the text of a message.
    ///
    /// # Errors
    /// [`Error::Garbled`].
    pub(crate) fn read(text: &[u8]) -> Result<Answer, Error> {
        read(text)
    }

    /// Converts the parameters.
    ///
    /// # Errors
    /// [`Error::Refused`], and [`Error::Garbled`].
    pub(crate) fn parameters<R: DeserializeOwned>(self) -> Result<R, Error> {
        let parameters = match self.parameters {
            Value::Null => Value::Object(serde_json::Map::new()),
            given => given,
        };
        let Some(error) = self.error else {
            return serde_json::from_value(parameters).map_err(garbled);
        };
        let said = format!("{error} {parameters}");
        let whole = serde_json::json!({ "error": error, "parameters": parameters });
        let refusal: Result<Refusal, _> = serde_json::from_value(whole);
        Err(refusal.map_or(Error::Garbled(said), Error::Refused))
    }
}

pub(crate) fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(garbled)
}

fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(text).map_err(garbled)
}

fn garbled(e: serde_json::Error) -> Error {
    Error::Garbled(e.to_string())
}

// Serde passes a reference.
fn is_false(value: &bool) -> bool {
    !*value
}
