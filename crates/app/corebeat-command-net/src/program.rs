//! Reading and checking S-Net programs.

use crate::remark;
use corebeat_command::{Failure, print_error, read_text};
use corebeat_snet::ast::Definition;
use corebeat_snet::diagnostic::{Diagnostic, Severity};
use corebeat_snet::plan::Net;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

/// Largest size of a program in bytes.
const PROGRAM_MAX: u64 = 16 << 20;

/// A path of the file that is open as standard input.
pub(crate) const STANDARD_INPUT: &str = "/dev/stdin";

/// A path of the file that is open as standard output.
pub(crate) const STANDARD_OUTPUT: &str = "/dev/stdout";

/// The network of a command.
#[derive(clap::Args)]
pub(crate) struct Which {
    /// Program in S-Net; '-' for standard input
    #[arg(value_name = "FILE.snet")]
    file: PathBuf,
    /// Network in the program [default: the network with the name of the file, else the last one]
    #[arg(long, value_name = "NAME")]
    net: Option<String>,
}

/// A program with the remarks on it.
pub(crate) struct Program {
    /// The name of its file.
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) remarks: Vec<Diagnostic>,
    /// The network, if the program has no error.
    pub(crate) net: Option<Net>,
}

impl Which {
    /// Whether the program comes from standard input.
    pub(crate) fn is_standard_input(&self) -> bool {
        self.file == Path::new("-")
    }

    /// The file of the program, which may be that of standard input.
    pub(crate) fn file(&self) -> &Path {
        if self.is_standard_input() { Path::new(STANDARD_INPUT) } else { &self.file }
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
        let text = read_text(&name, source, PROGRAM_MAX, "program in S-Net")?;

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
            let known: Vec<&str> = nets().collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            return Err(Failure::usage(format!(
                "{name} has no net '{wanted}'; its nets are: {known}"
            )));
        }
        let wanted = self.net.as_deref().or(self.file.file_stem().and_then(|s| s.to_str()));
        let checked = corebeat_snet::check(&module, wanted);
        Ok(Program { name, text, remarks: checked.diagnostics, net: checked.net })
    }
}

impl Program {
    /// Prints the remarks on standard error. Returns the network if the program has no error.
    pub(crate) fn report_remarks(self) -> Result<Net, Failure> {
        let fancy = std::io::stderr().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        for remark in &self.remarks {
            print_error(format_args!(
                "{}\n\n",
                remark::text(remark, &self.name, &self.text, fancy)
            ));
        }
        self.sound()
    }

    /// Returns the network if the program has no error.
    pub(crate) fn sound(self) -> Result<Net, Failure> {
        let errors = self.remarks.iter().filter(|r| r.severity == Severity::Error).count();
        let count = if errors == 1 { "1 error".into() } else { format!("{errors} errors") };
        self.net.ok_or_else(|| Failure::data(format!("{}: {count}", self.name)))
    }
}
