//! Reads models in AMALTHEA, the format of Eclipse APP4MC: `.amxmi` of versions 0.9 to 3.
//!
//! ```text
//!   text --> xml: elements with lines --> hardware, stimulus, code, mapping, requirement --> Model
//!                                             |
//!                                             `--> notes: what is not supported, and its effect
//! ```
//!
//! Each part handles the elements that it supports, lists those that do not affect times, and
//! notes every other element as optimistic.

mod code;
mod hardware;
mod mapping;
mod requirement;
mod stimulus;
mod value;
mod xml;

use crate::error::Error;
use crate::model::{CoreId, Effect, Model, Note, Policy, TaskId};
use std::collections::HashMap;
use xml::Element;

/// Reads a model.
///
/// # Errors
/// The first mistake, with its line and element.
pub fn read_amalthea(text: &str) -> Result<Model, Error> {
    let root = xml::parse(text)?;
    check_version(&root)?;
    let of = |name: &str| root.children.iter().filter(move |c| c.name == name).collect::<Vec<_>>();
    let mut reader = Reader {
        names: HashMap::new(),
        notes: vec![],
        repeated: vec![],
        tasks: vec![],
        policies: HashMap::new(),
        pinned: vec![],
        allocated: HashMap::new(),
        has_connections: false,
        hardware_parts: of("hwModel"),
    };
    reader.sections(&root);
    let mut model = Model::default();
    reader.hardware(&of("hwModel"), &mut model)?;
    let software = of("swModel");
    let stimuli = reader.stimuli(&of("stimuliModel"))?;
    let flows = reader.software(&software, &of("osModel"), &mut model)?;
    reader.activations(&flows, &stimuli, &mut model);
    reader.mapping(&of("mappingModel"), &of("osModel"), &flows, &mut model)?;
    reader.requirements(&of("constraintsModel"), &of("eventModel"), &flows, &mut model)?;
    model.notes = reader.notes();
    model.check()?;
    Ok(model)
}

/// The namespace of the root ends with the version.
fn check_version(root: &Element) -> Result<(), Error> {
    let marker = "app4mc.eclipse.org/amalthea/";
    let version = root.attributes().find_map(|(_, value)| Some(value.split_once(marker)?.1));
    let place = format!("line {}, <{}>", root.line, root.name);
    let Some(version) = version.filter(|_| root.name == "Amalthea") else {
        return Err(Error::new(place, "no AMALTHEA model; export the model from APP4MC as .amxmi"));
    };
    let mut numbers = version.split('.').map(|n| n.parse::<u32>().unwrap_or(u32::MAX));
    match (numbers.next(), numbers.next()) {
        (Some(0), Some(9)) | (Some(1..=3), _) => Ok(()),
        _ => Err(Error::new(
            place,
            format!("version '{version}' is not supported; convert the model to 0.9.5 to 3.3"),
        )),
    }
}

/// State of reading: indices by name, and the notes.
struct Reader<'a> {
    /// Index of an element by its kind and its key.
    names: HashMap<(&'static str, String), usize>,
    /// Notes about one element, in order.
    notes: Vec<Note>,
    /// Unsupported kinds of elements: description and effect, with the place of the first and the
    /// number of all.
    repeated: Vec<(String, Effect, String, usize)>,
    /// Where each task is defined.
    tasks: Vec<&'a Element>,
    /// The policy of each core to which a task is mapped.
    policies: HashMap<CoreId, Policy>,
    /// Tasks that one core runs, although its scheduler may have several.
    pinned: Vec<(TaskId, CoreId)>,
    /// The cores to which each task is allocated, sorted.
    allocated: HashMap<TaskId, Vec<CoreId>>,
    /// Cores reach memories through connections that they may share.
    has_connections: bool,
    /// The parts of the hardware.
    hardware_parts: Vec<&'a Element>,
}

impl<'a> Reader<'a> {
    fn note(&mut self, place: &str, effect: Effect, what: impl Into<String>, task: Option<TaskId>) {
        let (place, what) = (place.to_owned(), what.into());
        self.notes.push(Note { place, what, effect, task });
    }

    /// Notes an element of a kind of which there may be thousands.
    fn repeat(&mut self, element: &Element, effect: Effect, what: &str) {
        match self.repeated.iter_mut().find(|(known, ..)| known == what) {
            Some((.., count)) => *count += 1,
            None => self.repeated.push((what.to_owned(), effect, element.place(), 1)),
        }
    }

    fn notes(self) -> Vec<Note> {
        let mut notes = self.notes;
        for (what, effect, place, count) in self.repeated {
            let what = if count == 1 { what } else { format!("{what} ({count} times)") };
            notes.push(Note { place, what, effect, task: None });
        }
        notes
    }

    /// Notes the children of an element that are neither handled nor harmless.
    fn rest(&mut self, parent: &Element, handled: &[&str], harmless: &[&str]) {
        for child in &parent.children {
            let name = child.name.as_str();
            if handled.contains(&name) || name == "customProperties" || name == "tags" {
                continue;
            }
            let what = format!("<{name}> in <{}>", parent.name);
            match harmless.contains(&name) {
                true => self.repeat(child, Effect::None, &format!("{what} does not affect times")),
                false => self.repeat(child, Effect::Optimistic, &format!("{what} is ignored")),
            }
        }
    }

    fn sections(&mut self, root: &Element) {
        let handled = [
            "swModel",
            "hwModel",
            "osModel",
            "stimuliModel",
            "eventModel",
            "constraintsModel",
            "mappingModel",
        ];
        let harmless = ["commonElements", "componentsModel", "measurementModel", "configModel"];
        self.rest(root, &handled, &harmless);
    }

    /// Defines an element under its name and its identifier.
    fn define(
        &mut self,
        kind: &'static str,
        element: &Element,
        index: usize,
    ) -> Result<String, Error> {
        let name = element.get("name");
        if name.is_empty() {
            return Err(Error::new(element.place(), "the element has no name; write one"));
        }
        if self.names.insert((kind, name.to_owned()), index).is_some_and(|old| old != index) {
            return Err(Error::new(element.place(), "the name is used twice; write another"));
        }
        let id = key(element.get("xmi:id"));
        if !id.is_empty() {
            self.names.insert((kind, id), index);
        }
        Ok(name.to_owned())
    }

    /// The index that a reference names.
    fn find(&self, kind: &'static str, from: &Element, reference: &str) -> Result<usize, Error> {
        let key = key(reference);
        self.names.get(&(kind, key.clone())).copied().ok_or_else(|| {
            let what = format!("no {kind} '{key}' exists; define it, or correct the reference");
            Error::new(from.place(), what)
        })
    }

    /// The indices that an attribute with several references names.
    fn find_all(
        &self,
        kind: &'static str,
        from: &Element,
        attribute: &str,
    ) -> Result<Vec<usize>, Error> {
        from.get(attribute).split_whitespace().map(|r| self.find(kind, from, r)).collect()
    }
}

/// The name in a reference such as `A+name?type=Task`, in which names are encoded as in URLs.
fn key(reference: &str) -> String {
    let name = reference.split("?type=").next().unwrap_or(reference);
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [first, tail @ ..] = rest {
        let digit = |b: &u8| (*b as char).to_digit(16).map(|d| d as u8);
        rest = match (first, tail) {
            (b'%', [high, low, after @ ..]) if digit(high).is_some() && digit(low).is_some() => {
                bytes.push(digit(high).unwrap_or(0) * 16 + digit(low).unwrap_or(0));
                after
            }
            (b'+', _) => {
                bytes.push(b' ');
                tail
            }
            _ => {
                bytes.push(*first);
                tail
            }
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
