//! `corebeat restore`: undoes what a Corebeat that was killed has left changed.

use crate::failure::{Done, print, tell};
use corebeat_linux::{Restored, restore_all, state_dir};
use std::process::ExitCode;

pub(crate) fn main() -> Done {
    let restored = restore_all(&state_dir()?)?;
    say(&restored);
    if let Some(line) = rest(&restored) {
        print(line)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What there is to say of what was not looked at, and where there was nothing.
fn rest(restored: &Restored) -> Option<String> {
    let had_some = !restored.undone.is_empty() || !restored.left.is_empty();
    match restored.live {
        0 => (!had_some).then(|| "nothing to restore\n".into()),
        live => {
            let whose = if live == 1 { "a Corebeat".into() } else { format!("{live} Corebeats") };
            let none = if had_some { "" } else { "nothing to restore: " };
            Some(format!("{none}what {whose} at work may have changed is put back when that ends\n"))
        }
    }
}

/// Says on standard error what was undone, and what was left alone and why.
fn say(restored: &Restored) {
    for line in &restored.undone {
        tell(format_args!("corebeat: restored {line}\n"));
    }
    for line in &restored.left {
        tell(format_args!("corebeat: left alone: {line}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_those_at_work_are_told_of() {
        let line = |undone: &[&str], live| {
            let undone = undone.iter().map(|line| (*line).to_owned()).collect();
            rest(&Restored { undone, left: vec![], live })
        };
        assert_eq!(line(&[], 0).unwrap(), "nothing to restore\n");
        assert_eq!(line(&["nice of 7"], 0), None);
        let one = "nothing to restore: what a Corebeat at work may have changed is put back when that ends\n";
        assert_eq!(line(&[], 1).unwrap(), one);
        assert!(line(&["nice of 7"], 2).unwrap().starts_with("what 2 Corebeats at work"));
    }
}
