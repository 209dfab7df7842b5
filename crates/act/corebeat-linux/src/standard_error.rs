//! Lines on standard error that never wait for long: a control loop that waits for the reader of
//! its messages cannot undo its changes, and passes on no signal.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for a reader. After a line was left out, the next ones do not wait.
const WAIT: Duration = Duration::from_millis(100);

/// Writes a line to standard error if its reader accepts it within 0.1 s, and leaves it out
/// otherwise. The next line that is written states how many lines were left out. A failed write is
/// ignored.
///
/// `line` has its line feed. The reader may accept only the begin of a line.
pub fn write_error_line(line: &str) {
    static WRITER: Mutex<Option<Writer>> = Mutex::new(None);
    let mut writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    let error = std::io::stderr();
    writer.get_or_insert_with(|| Writer::new(error.as_fd())).write(error.as_fd(), line);
}

/// A stream that may have a reader.
struct Writer {
    way: Way,
    left_out: u64,
    /// Whether the reader has received only the begin of a line.
    is_cut: bool,
}

/// How to write without waiting. Other programs use the same open file, whose flags must stay.
enum Way {
    /// A second open file of the pipe or terminal, which does not wait.
    Reopened(OwnedFd),
    Socket,
    /// Files do not wait. A pipe that cannot be opened a second time is written if it has room,
    /// which another writer may take first.
    Direct,
}

impl Writer {
    /// The stream must not be replaced (`dup2`) later.
    fn new(stream: BorrowedFd<'_>) -> Writer {
        let way = match fstat(stream).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::Fifo | FileType::CharacterDevice) => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                let path = format!("/proc/self/fd/{}", stream.as_raw_fd());
                open(path, flags, Mode::empty()).map_or(Way::Direct, Way::Reopened)
            }
            Ok(FileType::Socket) => Way::Socket,
            _ => Way::Direct,
        };
        Writer { way, left_out: 0, is_cut: false }
    }

    fn write(&mut self, stream: BorrowedFd<'_>, line: &str) {
        let end = Instant::now() + if self.left_out > 0 { Duration::ZERO } else { WAIT };
        let mut text = String::new();
        if self.is_cut {
            text.push('\n');
        }
        if self.left_out > 0 {
            let count = self.left_out;
            text += &format!(
                "corebeat: left out {count} lines here, because standard error was not read\n"
            );
        }
        text += line;
        match self.try_write(stream, text.as_bytes(), end) {
            Err(Errno::AGAIN) => self.left_out += 1,
            Ok(()) | Err(_) => (self.left_out, self.is_cut) = (0, false),
        }
    }

    /// Writes the bytes, and waits for a reader until `end`.
    fn try_write(
        &mut self,
        stream: BorrowedFd<'_>,
        mut bytes: &[u8],
        end: Instant,
    ) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match self.write_some(stream, bytes) {
                Ok(written) => {
                    bytes = &bytes[written..];
                    self.is_cut = true;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if has_room(stream, end) => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    fn write_some(&self, stream: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
        match &self.way {
            Way::Reopened(file) => rustix::io::write(file, bytes),
            Way::Socket => {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                // SAFETY: the bytes live through the call.
                let sent = unsafe {
                    libc::send(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags)
                };
                usize::try_from(sent).map_err(|_| {
                    let why = std::io::Error::last_os_error();
                    Errno::from_io_error(&why).unwrap_or(Errno::IO)
                })
            }
            // A pipe with room accepts this number of bytes without a wait.
            Way::Direct if has_room(stream, Instant::now()) => {
                rustix::io::write(stream, &bytes[..bytes.len().min(libc::PIPE_BUF)])
            }
            Way::Direct => Err(Errno::AGAIN),
        }
    }
}

/// Waits until a stream accepts bytes, or has failed; at most until `end`.
fn has_room(stream: BorrowedFd<'_>, end: Instant) -> bool {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(stream, PollFlags::OUT)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return ready == Ok(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// Writes lines to a stream until one is left out, and returns their number.
    fn fill(writer: &mut Writer, stream: BorrowedFd<'_>) -> u64 {
        (0..)
            .find(|n| {
                writer.write(stream, &format!("corebeat: line {n}\n"));
                writer.left_out > 0
            })
            .unwrap()
    }

    /// Reads the stream, which has no other writer than `writer` and `stream`.
    fn check(mut reader: impl Read, stream: OwnedFd) {
        let mut writer = Writer::new(stream.as_fd());
        let written = fill(&mut writer, stream.as_fd());
        writer.write(stream.as_fd(), "corebeat: also left out\n");
        let mut first = [0; 8192];
        let read = reader.read(&mut first).unwrap();
        writer.write(stream.as_fd(), "corebeat: the last line\n");
        assert_eq!(writer.left_out, 0);
        drop((writer, stream));
        let mut text = String::from_utf8(first[..read].to_vec()).unwrap();
        reader.read_to_string(&mut text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let is_whole = (0..written as usize).all(|n| lines[n] == format!("corebeat: line {n}"));
        assert!(is_whole, "{lines:?}");
        let rest = lines[written as usize..].join("\n");
        assert!(rest.contains("left out 2 lines") && rest.ends_with("the last line"), "{rest}");
    }

    #[test]
    fn full_pipe_and_full_socket_lose_whole_lines_and_say_so() {
        let (reader, writer) = std::io::pipe().unwrap();
        check(reader, writer.into());
        let (reader, writer) = UnixStream::pair().unwrap();
        check(reader, writer.into());
    }

    #[test]
    fn pipe_that_cannot_be_opened_again_does_not_wait_either() {
        let (reader, stream) = std::io::pipe().unwrap();
        let mut writer = Writer { way: Way::Direct, left_out: 0, is_cut: false };
        assert!(fill(&mut writer, stream.as_fd()) > 0);
        drop(reader);
        // Without a reader, the write fails at once. A child of another test has inherited the
        // reader until it executes its program.
        let fails = |_| {
            writer.write(stream.as_fd(), "corebeat: nobody reads\n");
            std::thread::yield_now();
            writer.left_out == 0
        };
        assert!((0..1_000_000).any(fails));
    }
}
