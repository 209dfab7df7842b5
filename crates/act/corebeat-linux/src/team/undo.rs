//! Undoes the team sizes in a channel, also one that a killed Corebeat left, and removes the file.

use super::{CHANNEL_PREFIX, Channel, LEN, MAGIC, Map, SIZE_AS_ASKED, Slot, VERSION};
use crate::process::{self, thread_id};
use corebeat_machine::Restored;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering::*;

/// Returns whether a path may name the file of a channel. No other file is opened or removed.
pub(crate) fn is_channel_name(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    path.is_absolute() && name.is_some_and(|name| name.starts_with(CHANNEL_PREFIX))
}

/// Permits the sizes that programs request, and removes the file of the channel. If `acts` is not
/// set, changes nothing. Returns one line for each limited process and one for the file; none if
/// the file is gone. A process that relies on a size that it has read keeps this size.
///
/// The path may come from a journal, and the file may be damaged: both are validated.
///
/// # Errors
/// The reason for which the file is not used, or not removed.
pub(crate) fn undo(path: &Path, acts: bool) -> Result<Restored, String> {
    let Some((map, _)) = open_file(path)? else { return Ok(Restored::default()) };
    let channel = map.channel();
    let header = &channel.header;
    if (header.magic.load(Relaxed), header.version.load(Relaxed)) != (MAGIC, VERSION) {
        return Err("it is damaged, or of another version; inspect and remove it".into());
    }
    let mut restored = Restored::default();
    for slot in &channel.slots {
        let Some(pid) = process_in(slot) else { continue };
        match limit(channel, slot) {
            Some(Limit::Set(size)) => restored
                .undone
                .push(format!("process {pid}: OpenMP teams of at most {size} -> as requested")),
            Some(Limit::Read(size)) => restored.left.push(format!(
                "process {pid} keeps OpenMP teams of {size}: it has read this size, and may rely \
                 on the size"
            )),
            None => {}
        }
    }
    restored.undone.push(format!("team channel {}: created -> removed", path.display()));
    if acts {
        channel.set_size_of_all(None);
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.to_string()),
            _ => {}
        }
    }
    Ok(restored)
}

/// Limit of the teams of a process.
enum Limit {
    /// Set by Corebeat.
    Set(u32),
    /// Read by the program, which may rely on the size.
    Read(u32),
}

/// Returns the limit of the teams of a process, as `limit` in preload/team.c.
fn limit(channel: &Channel, slot: &Slot) -> Option<Limit> {
    if slot.is_fixed() {
        let size = slot.frozen.load(Relaxed);
        return (1..slot.size_max.load(Relaxed)).contains(&size).then_some(Limit::Read(size));
    }
    let size = match slot.size.load(Relaxed) {
        0 => channel.header.size.load(Relaxed),
        size => size,
    };
    let is_set = size != 0 && size != SIZE_AS_ASKED && !channel.is_expired();
    is_set.then_some(Limit::Set(size))
}

/// Returns the process that uses a slot, unless it has ended.
fn process_in(slot: &Slot) -> Option<i32> {
    let pid = i32::try_from(slot.owner.load(Acquire)).ok().filter(|pid| *pid > 0)?;
    let process = thread_id(pid).ok().flatten()?;
    process::signal(process, None).is_ok_and(|exists| exists).then_some(pid)
}

/// Opens the file of a channel. `None` if it does not exist.
///
/// # Errors
/// The reason for which the file cannot be a channel of this user.
pub(super) fn open_file(path: &Path) -> Result<Option<(Map, OwnedFd)>, String> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match open(path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err("it is a symbolic link".into()),
        Err(e) => return Err(io::Error::from(e).to_string()),
    };
    let stat = fstat(&file).map_err(|e| io::Error::from(e).to_string())?;
    if stat.st_uid != geteuid().as_raw() {
        return Err(format!("it belongs to user {}", stat.st_uid));
    }
    let is_plain = FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_nlink == 1;
    if !is_plain || stat.st_size != LEN as i64 {
        return Err("it is not the file of a team channel; inspect and remove it".into());
    }
    let map = Map::new(&file).map_err(|e| e.to_string())?;
    Ok(Some((map, file)))
}

#[cfg(test)]
mod tests {
    use super::super::TeamChannel;
    use super::*;
    use std::os::unix::fs::symlink;

    /// A channel that limits the teams of this process.
    fn limited() -> TeamChannel {
        let channel = TeamChannel::create().unwrap();
        let shared = channel.map.channel();
        shared.slots[3].owner.store(std::process::id(), Release);
        channel.set_size(None, Some(2)).unwrap();
        // The limit must not expire during a test.
        shared.header.beat_ns.store(u64::MAX, Relaxed);
        channel
    }

    #[test]
    fn undo_reports_and_ends_the_limit_and_removes_the_file() {
        let channel = limited();
        let (path, pid) = (channel.path().to_owned(), std::process::id());
        let expected = [
            format!("process {pid}: OpenMP teams of at most 2 -> as requested"),
            format!("team channel {}: created -> removed", path.display()),
        ];
        assert_eq!(undo(&path, false).unwrap().undone, expected);
        assert!(path.exists() && channel.size() == Some(2), "nothing is changed");
        assert_eq!(undo(&path, true).unwrap().undone, expected);
        assert!(!path.exists() && channel.size().is_none());
        assert_eq!(undo(&path, true), Ok(Restored::default()), "the file is gone");
    }

    #[test]
    fn limit_without_effect_is_not_listed() {
        let channel = limited();
        let slot = &channel.map.channel().slots[3];
        let lines = || undo(channel.path(), false).unwrap();
        assert_eq!(lines().undone.len(), 2);
        slot.size.store(SIZE_AS_ASKED, Relaxed);
        assert_eq!(lines().undone.len(), 1, "the process gets what it requests");
        slot.size.store(0, Relaxed);
        slot.fixed.store(1, Release);
        assert_eq!(lines().undone.len(), 1, "the program has read its maximum");
        // The program has read the size 2 in a team, although it would have 4 threads.
        slot.frozen.store(2, Relaxed);
        slot.size_max.store(4, Relaxed);
        let [left] = &lines().left[..] else { panic!("{:?}", lines()) };
        assert!(left.contains("keeps OpenMP teams of 2"), "{left}");
        slot.owner.store(i32::MAX as u32, Release);
        assert_eq!(lines().left, [""; 0], "the process has ended");
    }

    #[test]
    fn file_that_is_no_channel_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("corebeat-team-1");
        let refused = |why: &str| {
            let error = undo(&path, true).unwrap_err();
            assert!(error.contains(why) && !error.contains('\n'), "'{why}': {error}");
            assert!(path.symlink_metadata().is_ok(), "{why}: the file is kept");
        };
        fs::write(&path, "short").unwrap();
        refused("not the file of a team channel");
        fs::write(&path, vec![7; LEN]).unwrap();
        refused("damaged");
        assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 7), "nothing is written");
        fs::hard_link(&path, dir.path().join("second")).unwrap();
        refused("not the file of a team channel");
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            refused("belongs to user 65534");
        }
        fs::remove_file(&path).unwrap();
        let channel = limited();
        symlink(channel.path(), &path).unwrap();
        refused("symbolic link");
        assert_eq!(channel.size(), Some(2));
    }

    #[test]
    fn name_of_a_channel_is_absolute_and_has_the_prefix() {
        let is_name = |path: &str| is_channel_name(Path::new(path));
        assert!(is_name("/dev/shm/corebeat-team-1-2"));
        assert!(!is_name("corebeat-team-1-2") && !is_name("/home/corebeat-team-1/x"));
    }
}
