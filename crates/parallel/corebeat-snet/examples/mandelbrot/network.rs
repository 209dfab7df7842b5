//! Boxes of the network, and a function that runs the network.

use corebeat_lpel::Runtime;
use corebeat_snet::body::Out;
use corebeat_snet::{Boxes, Error, Kind, Label, Network, Record, Shared, Tag, Value, check, parse};

use super::fractal::{self, Plane, Strip, View};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// An image that strips are added to.
struct Image {
    view: View,
    shades: Vec<u8>,
}

impl Image {
    fn add(&mut self, strip: Strip, shades: &[u8]) {
        self.shades[strip.first_row * self.view.width..][..shades.len()].copy_from_slice(shades);
    }
}

/// A computed strip.
struct Piece {
    strip: Strip,
    shades: Vec<u8>,
}

fn boxes() -> Result<Boxes, Error> {
    Boxes::new()
        .with(
            "splitter",
            "(view, <strips>) -> (params, <strip>, <strips>) \
             | (params, <strip>, <strips>, <first>)",
            |(view, Tag(strips)): (Shared<View>, Tag), out: &mut Out| {
                for (i, strip) in (0..strips).zip(view.strips(strips as usize)) {
                    let params = Shared::new(strip);
                    if i == 0 {
                        out.emit(2, (params, Tag(i), Tag(strips), Tag(1)))?;
                    } else {
                        out.emit(1, (params, Tag(i), Tag(strips)))?;
                    }
                }
                Ok::<_, String>(())
            },
        )?
        .with("genSubPlane", "(params) -> (plane)", |(strip,): (Shared<Strip>,), out: &mut Out| {
            let plane = fractal::plane(&fractal::corner(*strip));
            out.emit(1, (Shared::new((*strip, plane)),))
        })?
        .with(
            "escTime",
            "(plane) -> (times)",
            |(plane,): (Shared<(Strip, Plane)>,), out: &mut Out| {
                out.emit(1, (Shared::new(fractal::times(&plane.1)),))
            },
        )?
        .with(
            "escVals",
            "(plane) -> (values)",
            |(plane,): (Shared<(Strip, Plane)>,), out: &mut Out| {
                out.emit(1, (Shared::new((plane.0, fractal::values(&plane.1))),))
            },
        )?
        .with("normItCount", "(times, values) -> (shades)", norm)?
        .with("init", "(shades, <strip>, <strips>, <first>) -> (image, <rest>)", init)?
        .with("add", "(image, <rest>, shades, <strip>) -> (image, <rest>)", add)
}

type Values = (Strip, Vec<Option<f64>>);

fn norm(
    (times, values): (Shared<Vec<u32>>, Shared<Values>),
    out: &mut Out,
) -> Result<bool, String> {
    let shades = fractal::shades(&times, &values.1);
    out.emit(1, (Shared::new(Piece { strip: values.0, shades }),))
}

fn init(
    (piece, _, Tag(strips), _): (Shared<Piece>, Tag, Tag, Tag),
    out: &mut Out,
) -> Result<bool, String> {
    let view = piece.strip.view;
    let mut image = Image { view, shades: vec![0; view.width * view.height] };
    image.add(piece.strip, &piece.shades);
    out.emit(1, (Shared::new(image), Tag(strips - 1)))
}

fn add(
    (image, Tag(rest), piece, _): (Shared<Image>, Tag, Shared<Piece>, Tag),
    out: &mut Out,
) -> Result<bool, String> {
    // Not shared any more: the record that contained it no longer exists.
    let mut image = image.into_inner().map_err(|_| "another record shares the image")?;
    image.add(piece.strip, &piece.shades);
    out.emit(1, (Shared::new(image), Tag(rest - 1)))
}

/// Computes an image in `strips` strips.
pub(crate) fn image(runtime: &Runtime, view: View, strips: usize) -> Outcome<Vec<u8>> {
    let module =
        parse(include_str!("mandelbrot.snet")).map_err(|diagnostics| diagnostics[0].to_string())?;
    let checked = check(&module, None);
    let net = checked.net.ok_or_else(|| checked.diagnostics[0].to_string())?;
    let boxes = boxes()?;
    let network = Network::new(net, |plan| boxes.find(plan))?;
    let record = Record::from_pairs([
        (Label::new(Kind::Field, "view")?, Value::native(view)),
        (Label::new(Kind::Tag, "strips")?, Value::Tag(strips as i32)),
    ])?;
    let outcome = network.run(runtime, [record])?;
    let [record] = <[Record; 1]>::try_from(outcome.records)
        .map_err(|_| "the network did not return exactly one record")?;
    let image =
        record.get(Label::new(Kind::Field, "image")?).and_then(Value::downcast_ref::<Image>);
    Ok(image.ok_or("the record has no image")?.shades.clone())
}
