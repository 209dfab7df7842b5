//! The command `bench list`: the benches, their peers, and the missing tools.

use crate::Bench;
use crate::session::Session;
use crate::tool::Origin;
use serde_json::json;
use std::io::Write;

pub(crate) fn print(session: &Session, benches: impl Iterator<Item = &'static Bench>) {
    let mut out = std::io::stdout();
    for bench in benches {
        let cases = (bench.cases)(session);
        let missing: Vec<_> = bench.tools.iter().filter(|t| t.path().is_none()).collect();
        // A closed pipe ends the output.
        let _ = if session.json {
            let tools: Vec<_> = bench
                .tools
                .iter()
                .map(|t| {
                    let here = !missing.contains(&t);
                    match t.origin {
                        Origin::Package(package) | Origin::Header(package) => {
                            json!({"program": t.program, "package": package, "here": here})
                        }
                        Origin::Maven(artifact) => {
                            json!({"program": t.program, "artifact": artifact, "here": here})
                        }
                        Origin::Python(package) => {
                            json!({"program": t.program, "module": package, "here": here})
                        }
                        Origin::Source(variable) => {
                            json!({"program": t.program, "variable": variable, "here": here})
                        }
                    }
                })
                .collect();
            let object = json!({
                "bench": bench.name, "summary": bench.summary, "cases": cases, "peers": bench.peers, "tools": tools
            });
            writeln!(out, "{object}")
        } else {
            let gaps: String =
                missing.iter().map(|t| format!("\n  missing  {}", t.advice())).collect();
            let tools: Vec<_> = bench.tools.iter().map(|t| t.program).collect();
            writeln!(
                out,
                "{}  {}\n  cases    {}\n  beside   {}\n  uses     {}{gaps}\n",
                bench.name,
                bench.summary,
                cases.join("; "),
                bench.peers.join("; "),
                if tools.is_empty() { "no other programs".into() } else { tools.join(", ") },
            )
        };
    }
}
