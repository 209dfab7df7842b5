//! What is in a message: a call, a reply, a refusal.

use crate::Error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A call as a service reads it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Call {
    /// Interface and method, with a dot between.
    pub method: String,
    /// What it is called with; null where nothing is.
    #[serde(default)]
    pub parameters: Value,
    /// No answer is wanted.
    #[serde(default)]
    pub oneway: bool,
    /// Several answers are wanted.
    #[serde(default)]
    pub more: bool,
    /// Another protocol is wanted from here on.
    #[serde(default)]
    pub upgrade: bool,
}

impl Call {
    /// Reads a message's text.
    ///
    /// # Errors
    /// [`Error::Garbled`].
    pub fn read(text: &[u8]) -> Result<Call, Error> {
        read(text)
    }

    /// The parameters as a type of ours.
    ///
    /// # Errors
    /// [`Refusal::InvalidParameter`], which says what is wrong.
    pub fn parameters<P: DeserializeOwned>(&mut self) -> Result<P, Refusal> {
        let given = match self.parameters.take() {
            Value::Null => Value::Object(serde_json::Map::new()),
            given => given,
        };
        serde_json::from_value(given).map_err(|e| Refusal::InvalidParameter { parameter: e.to_string() })
    }
}

/// Why a service will not do what it is asked for. The names are those of the interfaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "error", content = "parameters")]
pub enum Refusal {
    /// It is somebody else's, or its mode does not allow it.
    #[error("not allowed: {why}")]
    #[serde(rename = "io.corebeat.Host.NotAllowed")]
    NotAllowed {
        /// What to do about it.
        why: String,
    },
    /// There is no such group, or none that one may see.
    #[error("no such group: {why}")]
    #[serde(rename = "io.corebeat.Host.NoSuchGroup")]
    NoSuchGroup {
        /// What to do about it.
        why: String,
    },
    /// This process has no such claim.
    #[error("no such claim: {why}")]
    #[serde(rename = "io.corebeat.Host.NoSuchClaim")]
    NoSuchClaim {
        /// What to do about it.
        why: String,
    },
    /// A limit is reached.
    #[error("too many: {what}, at most {limit}")]
    #[serde(rename = "io.corebeat.Host.TooMany")]
    TooMany {
        /// Of what.
        what: String,
        /// How many there may be.
        limit: u64,
    },
    /// It cannot be meant so.
    #[error("{why}")]
    #[serde(rename = "io.corebeat.Host.BadRequest")]
    BadRequest {
        /// What is wrong with it.
        why: String,
    },
    /// The service does not have the interface.
    #[error("no such interface: {interface}")]
    #[serde(rename = "org.varlink.service.InterfaceNotFound")]
    InterfaceNotFound {
        /// Which one.
        interface: String,
    },
    /// The interface does not have the method.
    #[error("no such method: {method}")]
    #[serde(rename = "org.varlink.service.MethodNotFound")]
    MethodNotFound {
        /// Which one.
        method: String,
    },
    /// The service does not offer it.
    #[error("not offered here: {method}")]
    #[serde(rename = "org.varlink.service.MethodNotImplemented")]
    MethodNotImplemented {
        /// Which one.
        method: String,
    },
    /// A parameter is missing, is too much, or has the wrong type.
    #[error("wrong parameters: {parameter}")]
    #[serde(rename = "org.varlink.service.InvalidParameter")]
    InvalidParameter {
        /// Which one, and what is wrong with it.
        parameter: String,
    },
    /// One may not ask this at all.
    #[error("not allowed")]
    #[serde(rename = "org.varlink.service.PermissionDenied")]
    PermissionDenied {},
    /// The method answers several times, and was not asked with `more`.
    #[error("the method has to be called with more")]
    #[serde(rename = "org.varlink.service.ExpectedMore")]
    ExpectedMore {},
}

/// A call as a client writes it.
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
/// [`Error::Garbled`] for what JSON cannot say, such as a map whose keys are no strings.
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
/// None that could happen: refusals are strings and numbers.
pub fn refuse(refusal: &Refusal) -> Result<Vec<u8>, Error> {
    write(refusal)
}

/// What a client reads: the parameters, and whether more is to come.
///
/// # Errors
/// [`Error::Refused`], and [`Error::Garbled`].
pub(crate) fn read_answer<R: DeserializeOwned>(text: &[u8]) -> Result<(R, bool), Error> {
    #[derive(Deserialize)]
    struct Answer {
        error: Option<String>,
        #[serde(default)]
        parameters: Value,
        #[serde(default)]
        continues: bool,
    }
    let mut answer: Answer = read(text)?;
    if answer.parameters.is_null() {
        answer.parameters = Value::Object(serde_json::Map::new());
    }
    if let Some(error) = answer.error {
        let said = format!("{error} {}", answer.parameters);
        let whole = serde_json::json!({ "error": error, "parameters": answer.parameters });
        let refusal: Result<Refusal, _> = serde_json::from_value(whole);
        return Err(refusal.map_or(Error::Garbled(said), Error::Refused));
    }
    let parameters = serde_json::from_value(answer.parameters).map_err(garbled)?;
    Ok((parameters, answer.continues))
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

// Serde asks with a reference.
fn is_false(value: &bool) -> bool {
    !*value
}
