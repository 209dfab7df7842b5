//! Values with units, and ranges of distributions.

use super::xml::Element;
use crate::error::Error;
use crate::model::Range;
use crate::time::Time;

/// A child with a value and a unit of time, in nanoseconds.
pub(super) fn time(parent: &Element, name: &str, up: bool) -> Result<Option<u64>, Error> {
    let Some(child) = parent.child(name) else { return Ok(None) };
    let unit = match child.get("unit") {
        "" => "ns",
        unit => unit,
    };
    let time = Time::of(child.get("value"), unit, up);
    time.map(|t| Some(t.ns)).map_err(|e| Error::new(parent.place(), format!("{name}: {e}")))
}

/// A whole number that tools may print as 1.0E8. Fractions are rounded up if `up`, else down.
pub(super) fn number(element: &Element, attribute: &str, up: bool) -> Result<Option<u64>, Error> {
    let text = element.get(attribute);
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = || {
        let what = format!("{attribute} '{text}' is no number from 0 to 2^52; correct it");
        Error::new(element.place(), what)
    };
    if let Ok(number) = text.parse::<u64>() {
        return if number <= 1 << 52 { Ok(Some(number)) } else { Err(wrong()) };
    }
    let number = text.parse::<f64>().map_err(|_| wrong())?;
    let number = if up { number.ceil() } else { number.floor() };
    if !(0.0..=(1u64 << 52) as f64).contains(&number) {
        return Err(wrong());
    }
    Ok(Some(number as u64))
}

/// The range of a distribution, or `None` if its worst case has no bound.
pub(super) fn range(element: &Element) -> Result<Option<Range>, Error> {
    if let Some(value) = number(element, "value", true)? {
        let best = number(element, "value", false)?.unwrap_or(value);
        return Ok(Some(Range { best, worst: value }));
    }
    if element.kind() == "DiscreteValueHistogram" || element.child("entries").is_some() {
        let mut all: Option<Range> = None;
        for entry in element.all("entries") {
            let Some(range) = bounds(entry)? else { return Ok(None) };
            all = Some(all.map_or(range, |a| a.or(range)));
        }
        return Ok(all);
    }
    bounds(element)
}

fn bounds(element: &Element) -> Result<Option<Range>, Error> {
    let best = number(element, "lowerBound", false)?.unwrap_or(0);
    let worst = number(element, "upperBound", true)?;
    if worst.is_some_and(|worst| worst < best) {
        return Err(Error::new(element.place(), "lowerBound above upperBound; exchange them"));
    }
    Ok(worst.map(|worst| Range { best, worst }))
}

/// Decimal and binary prefixes with their factors.
const PREFIXES: [(&str, f64); 9] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("k", 1e3),
    ("K", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
];

/// A number of bases, such as bytes, from a child with a value and a unit of one of the bases with
/// their sizes.
fn measure(parent: &Element, name: &str, bases: &[(&str, f64)]) -> Result<Option<f64>, Error> {
    let Some(child) = parent.child(name) else { return Ok(None) };
    let (value, unit) = (child.get("value"), child.get("unit"));
    let wrong = |what: String| Error::new(parent.place(), format!("{name}: {what}"));
    let number = value.parse::<f64>().ok().filter(|v| (0.0..1e18).contains(v));
    let number = number.ok_or_else(|| wrong(format!("'{value}' is no number; correct it")))?;
    let factor = bases.iter().find_map(|(base, size)| {
        let prefix = unit.strip_suffix(base)?;
        let known = PREFIXES.iter().find(|(p, _)| *p == prefix).map(|(_, factor)| *factor);
        known.or(prefix.is_empty().then_some(1.0)).map(|factor| factor * size)
    });
    let factor = factor.ok_or_else(|| wrong(format!("unit '{unit}' is unknown; correct it")))?;
    Ok(Some(number * factor))
}

/// A size in bytes, rounded up.
pub(super) fn size(parent: &Element) -> Result<Option<u64>, Error> {
    let bytes = measure(parent, "size", &[("bit", 0.125), ("B", 1.0)])?;
    Ok(bytes.map(|b| b.ceil() as u64))
}

/// A frequency in hertz, rounded down.
pub(super) fn frequency(parent: &Element) -> Result<Option<u64>, Error> {
    Ok(measure(parent, "defaultValue", &[("Hz", 1.0)])?.map(|hz| hz as u64))
}

/// A rate of data in bytes per second.
pub(super) fn data_rate(parent: &Element) -> Result<Option<f64>, Error> {
    measure(parent, "dataRate", &[("bitPerSecond", 0.125), ("BPerSecond", 1.0)])
}

/// A time that is an attribute with a unit beside it, or a child with a value and a unit.
pub(super) fn time_of(element: &Element, name: &str, up: bool) -> Result<Option<u64>, Error> {
    if element.get(name).is_empty() {
        return time(element, name, up);
    }
    let unit = if element.get("unit").is_empty() { "ns" } else { element.get("unit") };
    let time = Time::of(element.get(name), unit, up);
    time.map(|t| Some(t.ns)).map_err(|e| Error::new(element.place(), format!("{name}: {e}")))
}
