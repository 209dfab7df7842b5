//! Programs in S-Net, read and checked.

use crate::failure::{Failure, tell};
use crate::input;
use crate::net::remark;
use corebeat_snet::ast::Definition;
use corebeat_snet::diagnostic::{Diagnostic, Severity};
use corebeat_snet::plan::Net;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

/// Bytes of a program.
const PROGRAM_MAX: u64 = 16 << 20;

/// Which network.
#[derive(clap::Args)]
pub(crate) struct Which {
    /// The program; '-' for standard input
    #[arg(value_name = "FILE.snet")]
    file: PathBuf,
    /// The network in it; else the one named as the file, else the last one
    #[arg(long, value_name = "NAME")]
    net: Option<String>,
}

/// A program, and what there is to say of it.
pub(crate) struct Program {
    /// The name of its file.
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) remarks: Vec<Diagnostic>,
    /// The network, if nothing is wrong.
    pub(crate) net: Option<Net>,
}

impl Which {
    /// Whether the program comes from standard input.
    pub(crate) fn is_standard_input(&self) -> bool {
        self.file == Path::new("-")
    }

    /// Reads the program and checks it.
    pub(crate) fn read(&self) -> Result<Program, Failure> {
        let name = match self.is_standard_input() {
            true => "standard input".to_owned(),
            false => self.file.display().to_string(),
        };
        let source: io::Result<Box<dyn Read>> = match self.is_standard_input() {
            true => Ok(Box::new(io::stdin().lock())),
            false => File::open(&self.file).map(|file| Box::new(file) as Box<dyn Read>),
        };
        let text = input::text(&name, source, PROGRAM_MAX, "program in S-Net")?;

        let module = match corebeat_snet::parse(&text) {
            Ok(module) => module,
            Err(remarks) => return Ok(Program { name, text, remarks, net: None }),
        };
        let nets = || {
            module.definitions.iter().filter_map(|d| match d {
                Definition::Net(net) => Some(net.name.text.as_str()),
                _ => None,
            })
        };
        if let Some(wanted) = &self.net
            && !nets().any(|net| net == wanted)
        {
            let there: Vec<&str> = nets().collect();
            let there = if there.is_empty() { "none".into() } else { there.join(", ") };
            return Err(Failure::usage(format!(
                "there is no net '{wanted}' in {name}; those there are: {there}"
            )));
        }
        let wanted = self.net.as_deref().or(self.file.file_stem().and_then(|s| s.to_str()));
        let checked = corebeat_snet::check(&module, wanted);
        Ok(Program { name, text, remarks: checked.diagnostics, net: checked.net })
    }
}

impl Program {
    /// Says on standard error what there is to say. The network, if nothing is wrong.
    pub(crate) fn tell(self) -> Result<Net, Failure> {
        let fancy =
            std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        for remark in &self.remarks {
            tell(format_args!("{}\n\n", remark::text(remark, &self.name, &self.text, fancy)));
        }
        self.sound()
    }

    /// The network, if nothing is wrong.
    pub(crate) fn sound(self) -> Result<Net, Failure> {
        let errors = self.remarks.iter().filter(|r| r.severity == Severity::Error).count();
        let count = if errors == 1 { "1 error".into() } else { format!("{errors} errors") };
        self.net.ok_or_else(|| Failure::wrong(format!("{}: {count}", self.name)))
    }
}
