//! Boxes in a library in Rust, for the tests of `export_boxes!`.

use corebeat_snet::body::Out;
use corebeat_snet::{Boxes, Error, Tag, Value, export_boxes};

export_boxes!(boxes());

fn boxes() -> Result<Boxes, Error> {
    Boxes::new().with("half", "(numbers, <n>) -> (numbers) | (<rest>)", half)?.with(
        "pass",
        "(A) -> (A)",
        |(a,): (Value,), out: &mut Out| out.emit(1, (a,)),
    )
}

fn half((numbers, n): (Vec<f64>, Tag), out: &mut Out<'_>) -> Result<bool, String> {
    match n.0 {
        0 => Err("n is 0".into()),
        1 => panic!("n is 1"),
        2 => out.emit(1, (Value::native(numbers),)),
        n => {
            out.emit(1, (numbers.into_iter().map(|x| x / 2.0).collect::<Vec<_>>(),))?;
            out.emit(2, (Tag(n % 2),))
        }
    }
}
