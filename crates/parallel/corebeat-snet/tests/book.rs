//! Programs of the book's page on S-Net: each runs with its input on the page, and its output must
//! equal the output on the page, in any order, or in the same order for `out in order`.

use corebeat_lpel::Runtime;
use corebeat_snet::format::{Format, Reader, Writer};
use corebeat_snet::{Boxes, Network, Record, check, parse};

/// Kind and content of each fenced block.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let mut blocks = Vec::new();
    let mut rest = page;
    while let Some((_, from)) = rest.split_once("\n```") {
        let (kind, from) = from.split_once('\n').expect("a fence has a line");
        // An empty block has no line.
        let end = if from.starts_with("```") {
            0
        } else {
            from.find("\n```").expect("a block has an end") + 1
        };
        blocks.push((kind, &from[..end]));
        rest = &from[end + 3..];
    }
    blocks
}

fn run(program: &str, input: &str, workers: usize) -> Vec<String> {
    let module =
        parse(program).unwrap_or_else(|diagnostics| panic!("{}\n{program}", diagnostics[0]));
    let checked = check(&module, None);
    if let Some(diagnostic) = checked.diagnostics.first() {
        panic!("{diagnostic}\n{program}");
    }
    let net = checked.net.unwrap();
    let mut boxes = Boxes::new();
    boxes.compile_bodies(net.boxes()).unwrap();
    let network = Network::new(net, |plan| boxes.find(plan)).unwrap();
    let input: Result<Vec<Record>, _> = Reader::new(input.as_bytes(), Format::Json).collect();
    let runtime = Runtime::builder().workers(workers).build().unwrap();
    let outcome = network.run(&runtime, input.unwrap());
    let outcome = outcome.unwrap_or_else(|why| panic!("{why}\n{program}"));
    assert_eq!(outcome.kept, 0, "{program}");
    outcome.records.iter().map(line).collect()
}

/// A record as JSON with sorted keys.
fn line(record: &Record) -> String {
    let mut writer = Writer::new(Vec::new(), Format::Json);
    writer.write(record).unwrap();
    sorted(std::str::from_utf8(&writer.finish().unwrap()).unwrap())
}

fn sorted(line: &str) -> String {
    serde_json::from_str::<serde_json::Value>(line).unwrap().to_string()
}

#[test]
fn every_program_of_the_page_has_the_output_of_the_page() {
    let page = include_str!("../../../../docs/snet.md");
    let blocks = blocks(page);
    let mut programs = 0;
    for window in blocks.windows(3) {
        let [("snet", program), ("in", input), (out, output)] = window else { continue };
        assert!(out.starts_with("out"), "{program}");
        for workers in [1, 2] {
            let mut actual = run(program, input, workers);
            let mut expected: Vec<String> = output.lines().map(sorted).collect();
            if *out == "out" {
                actual.sort();
                expected.sort();
            }
            assert_eq!(actual, expected, "{program}");
        }
        programs += 1;
    }
    assert_eq!(
        programs,
        blocks.iter().filter(|(kind, _)| *kind == "snet").count(),
        "every program must run"
    );
    assert!(programs > 10);
}
