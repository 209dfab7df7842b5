//! `corebeat generate`: man pages and shell completions, from the definitions of `--help`.

use clap::builder::Resettable;
use clap_complete::Shell;
use corebeat_command::{Done, Failure};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The shells, and the folders in which they search for completions, below `/usr/share`,
/// `/usr/local/share` and `~/.local/share`. (zsh searches where its `fpath` states.)
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/site-functions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Folder such as ~/.local/share, which gets man/man1, bash-completion, zsh and fish
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn main(options: Options, program: clap::Command) -> Done {
    let written = write(&options.folder, program);
    written.map_err(|(path, why)| {
        Failure::usage(format!("cannot write {}: {why}; name another folder", path.display()))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn write(folder: &Path, mut program: clap::Command) -> Result<(), (PathBuf, io::Error)> {
    let pages = folder.join("man/man1");
    let at = |path: &Path| {
        let path = path.to_owned();
        move |why| (path, why)
    };
    fs::create_dir_all(&pages).map_err(at(&pages))?;
    // Pages of equal definitions are equal: they have no commit.
    let documented = program.clone().long_version(Resettable::Reset);
    clap_mangen::generate_to(documented, &pages).map_err(at(&pages))?;
    for (shell, place) in SHELLS {
        let place = folder.join(place);
        fs::create_dir_all(&place).map_err(at(&place))?;
        clap_complete::generate_to(shell, &mut program, "corebeat", &place).map_err(at(&place))?;
    }
    Ok(())
}
