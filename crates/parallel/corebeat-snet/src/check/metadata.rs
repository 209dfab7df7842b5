//! Warnings about unsupported metadata.

use crate::ast::{Definition, Element};
use crate::diagnostic::Diagnostic;

/// Observers of one block of metadata that a warning lists.
const SHOWN_MAX: usize = 8;

/// Returns a warning for each block of metadata, also inside nets, that declares observers.
pub(super) fn warnings(definitions: &[Definition]) -> Vec<Diagnostic> {
    definitions
        .iter()
        .flat_map(|definition| match definition {
            Definition::Net(net) => warnings(&net.definitions),
            Definition::Metadata(metadata) => {
                let options: Vec<String> =
                    metadata.elements.iter().flat_map(options).take(SHOWN_MAX).collect();
                let warning = || {
                    Diagnostic::warning(
                        "observers in metadata are not supported",
                        metadata.span,
                        "declares observers",
                    )
                    .help(format!("use `corebeat net run {}`", options.join(" ")))
                };
                (!options.is_empty()).then(warning).into_iter().collect()
            }
            _ => Vec::new(),
        })
        .collect()
}

/// Options of the command line for the observers of a box or a net: `<net name="n/f"><observer
/// type="before" file="seen"/></net>` is `--observe f:before=seen`.
fn options(of: &Element) -> Vec<String> {
    let path = attribute(of, "name").unwrap_or("NAME");
    let name = path.rsplit('/').next().unwrap_or(path);
    let observers = of.children.iter().filter(|child| child.name == "observer");
    let option = |observer: &Element| {
        let place = attribute(observer, "type").map_or(String::new(), |place| format!(":{place}"));
        let port = || {
            Some(format!("={}:{}", attribute(observer, "address")?, attribute(observer, "port")?))
        };
        let file = attribute(observer, "file").map(|file| format!("={file}"));
        format!("--observe {name}{place}{}", file.or_else(port).unwrap_or_default())
    };
    observers.map(option).collect()
}

fn attribute<'a>(element: &'a Element, name: &str) -> Option<&'a str> {
    element.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}
