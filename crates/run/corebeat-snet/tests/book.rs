//! The programs of the book's page on S-Net, each run on what the page says goes in, and compared with what it says comes
//! out. `in order` after `out` wants that order; else records may come in any.

use corebeat_lpel::Runtime;
use corebeat_snet::format::{Format, Reader, Writer};
use corebeat_snet::{Boxes, Network, Record, check, parse};

/// What a fence says, and what is in it.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let mut blocks = Vec::new();
    let mut rest = page;
    while let Some((_, from)) = rest.split_once("\n```") {
        let (kind, from) = from.split_once('\n').expect("a fence ends its line");
        // An empty block has no line of its own.
        let end =
            if from.starts_with("```") { 0 } else { from.find("\n```").expect("a block has an end") + 1 };
        blocks.push((kind, &from[..end]));
        rest = &from[end + 3..];
    }
    blocks
}

fn run(program: &str, input: &str, workers: usize) -> Vec<String> {
    let module = parse(program).unwrap_or_else(|remarks| panic!("{}\n{program}", remarks[0]));
    let checked = check(&module, None);
    if let Some(remark) = checked.diagnostics.first() {
        panic!("{remark}\n{program}");
    }
    let net = checked.net.unwrap();
    let mut boxes = Boxes::new();
    boxes.compile_bodies(net.boxes()).unwrap();
    let network = Network::new(net, |plan| boxes.find(plan)).unwrap();
    let input: Result<Vec<Record>, _> = Reader::new(input.as_bytes(), Format::Json).collect();
    let outcome = network.run(&Runtime::builder().workers(workers).build().unwrap(), input.unwrap()).unwrap();
    assert!(outcome.faults.is_empty(), "{}\n{program}", outcome.faults[0]);
    assert_eq!(outcome.kept, 0, "{program}");
    outcome.records.iter().map(line).collect()
}

/// A record as JSON, with its keys in their order.
fn line(record: &Record) -> String {
    let mut writer = Writer::new(Vec::new(), Format::Json);
    writer.write(record).unwrap();
    sorted(std::str::from_utf8(&writer.finish().unwrap()).unwrap())
}

fn sorted(line: &str) -> String {
    serde_json::from_str::<serde_json::Value>(line).unwrap().to_string()
}

#[test]
fn every_program_of_the_page_does_what_the_page_says() {
    let page = include_str!("../../../../docs/snet.md");
    let blocks = blocks(page);
    let mut programs = 0;
    for window in blocks.windows(3) {
        let [("snet", program), ("in", input), (out, output)] = window else { continue };
        assert!(out.starts_with("out"), "{program}");
        for workers in [1, 2] {
            let mut came = run(program, input, workers);
            let mut should: Vec<String> = output.lines().map(sorted).collect();
            if *out == "out" {
                came.sort();
                should.sort();
            }
            assert_eq!(came, should, "{program}");
        }
        programs += 1;
    }
    assert_eq!(programs, blocks.iter().filter(|(kind, _)| *kind == "snet").count(), "each program is run");
    assert!(programs > 10);
}
