//! Labels: the names of what a record holds.

use std::collections::HashMap;
use std::fmt;
use std::sync::{LazyLock, RwLock};

use crate::error::TooMany;

/// What stands behind a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Data that only boxes look into; written `A`.
    Field,
    /// A whole number that networks compute with; written `<T>`.
    Tag,
    /// A tag that takes part in subtyping by being there exactly or not at all; written `<#B>`.
    BindingTag,
}

/// The name of a field or of a tag. Labels are numbers inside, made once for a name, so that comparing them costs nothing.
///
/// `A` and `<A>` are different labels. The order is: fields, tags, binding tags; within those the order of first use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(u32);

/// Different labels in one process. Names come from programs and from records, and are kept for ever.
pub const LABELS_MAX: usize = 1 << 16;

const KIND_SHIFT: u32 = 30;

#[derive(Default)]
struct Table {
    numbers: HashMap<&'static str, u32>,
    names: Vec<&'static str>,
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);

impl Label {
    /// The label of this kind and name (without the brackets).
    ///
    /// # Errors
    ///
    /// When there are [`LABELS_MAX`] names already.
    pub fn new(kind: Kind, name: &str) -> Result<Label, TooMany> {
        let known = TABLE.read().unwrap_or_else(|e| e.into_inner()).numbers.get(name).copied();
        let number = match known {
            Some(number) => number,
            None => {
                let mut table = TABLE.write().unwrap_or_else(|e| e.into_inner());
                match table.numbers.get(name) {
                    Some(&number) => number, // somebody was faster
                    None if table.names.len() == LABELS_MAX => return Err(TooMany::Labels),
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

    /// What stands behind it.
    #[inline]
    pub fn kind(self) -> Kind {
        match self.0 >> KIND_SHIFT {
            0 => Kind::Field,
            1 => Kind::Tag,
            _ => Kind::BindingTag,
        }
    }

    /// Its name, without brackets.
    pub fn name(self) -> &'static str {
        TABLE.read().unwrap_or_else(|e| e.into_inner()).names[(self.0 & ((1 << KIND_SHIFT) - 1)) as usize]
    }
}

/// As it is written in a program: `A`, `<T>`, `<#B>`.
impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Kind::Field => f.write_str(self.name()),
            Kind::Tag => write!(f, "<{}>", self.name()),
            Kind::BindingTag => write!(f, "<#{}>", self.name()),
        }
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
