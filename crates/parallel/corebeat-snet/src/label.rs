//! Labels: names of fields and tags.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{LazyLock, RwLock};

use crate::error::Error;

/// Kind of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Data that only boxes read, written `A`.
    Field,
    /// Whole number that networks compute with, written `<T>`.
    Tag,
    /// Tag that a type and its subtypes must have in common, written `<#B>`.
    BindingTag,
}

/// Name of a field or a tag. A label is a unique number for its name, so that comparisons are
/// cheap.
///
/// `A` and `<A>` are different labels. The order is: fields, tags, binding tags, and within each
/// kind the order of first use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(u32);

/// Different label names in one process. Names come from programs and records, and are never freed.
pub const LABELS_MAX: usize = 1 << 16;

const KIND_SHIFT: u32 = 30;

#[derive(Default)]
struct Table {
    numbers: HashMap<&'static str, u32>,
    names: Vec<&'static str>,
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);

impl Label {
    /// Returns the label of this kind and name (without brackets).
    ///
    /// # Errors
    ///
    /// Returns an error if the name is new and the process has [`LABELS_MAX`] names.
    pub fn new(kind: Kind, name: &str) -> Result<Label, Error> {
        let known = TABLE.read().unwrap_or_else(|e| e.into_inner()).numbers.get(name).copied();
        let number = match known {
            Some(number) => number,
            None => {
                let mut table = TABLE.write().unwrap_or_else(|e| e.into_inner());
                match table.numbers.get(name) {
                    Some(&number) => number, // another thread has added the name
                    None if table.names.len() == LABELS_MAX => return Err(Error::TooManyLabels),
                    None => {
                        let number = table.names.len() as u32;
                        let name: &'static str = Box::leak(name.into());
                        table.names.push(name);
                        table.numbers.insert(name, number);
                        number
                    }
                }
            }
        };
        Ok(Label((kind as u32) << KIND_SHIFT | number))
    }

    /// Kind of the label.
    #[inline]
    pub fn kind(self) -> Kind {
        match self.0 >> KIND_SHIFT {
            0 => Kind::Field,
            1 => Kind::Tag,
            _ => Kind::BindingTag,
        }
    }

    /// Name without brackets.
    pub fn name(self) -> &'static str {
        TABLE.read().unwrap_or_else(|e| e.into_inner()).names
            [(self.0 & ((1 << KIND_SHIFT) - 1)) as usize]
    }
}

/// Notation of programs: `A`, `<T>`, `<#B>`.
impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Kind::Field => f.write_str(self.name()),
            Kind::Tag => write!(f, "<{}>", self.name()),
            Kind::BindingTag => write!(f, "<#{}>", self.name()),
        }
    }
}

/// Reads the notation that `Display` writes.
impl FromStr for Label {
    type Err = Error;

    fn from_str(text: &str) -> Result<Label, Error> {
        match text.strip_prefix('<').and_then(|text| text.strip_suffix('>')) {
            None => Label::new(Kind::Field, text),
            Some(name) => match name.strip_prefix('#') {
                None => Label::new(Kind::Tag, name),
                Some(name) => Label::new(Kind::BindingTag, name),
            },
        }
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
