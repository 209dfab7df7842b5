//! What is read, in a buffer, and where in it something stands.

use std::io::{ErrorKind, Read};

use memchr::{memchr_iter, memrchr};

use super::Stop;

/// What the buffer has room for at first.
const BUFFER_BYTES: usize = 256 << 10;

/// A window on the source. From `start`, where the record that is being read begins, all bytes stay where they are.
pub(super) struct Input<R> {
    source: R,
    buffer: Vec<u8>,
    start: usize,
    /// The next byte to look at.
    pub(super) pos: usize,
    end: usize,
    /// The longest record that is kept.
    pub(super) record_max: usize,
    /// Lines and characters of the last line that have left the buffer.
    lines: u64,
    columns: u64,
    /// The source has no more.
    ended: bool,
}

impl<R: Read> Input<R> {
    pub(super) fn new(source: R, record_max: usize) -> Input<R> {
        Input {
            source,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            pos: 0,
            end: 0,
            record_max,
            lines: 0,
            columns: 0,
            ended: false,
        }
    }

    /// Reads more; `false` if there is no more. It waits only where a byte is wanted that is not there.
    pub(super) fn fill(&mut self) -> Result<bool, Stop> {
        if self.ended {
            return Ok(false);
        }
        if self.end - self.start >= self.record_max {
            return Err(Stop::Syntax {
                at: self.start,
                what: format!("a record of more than {} bytes: split it up", self.record_max),
            });
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(2 * self.end, 0);
        }
        // One byte more than the longest record tells that it is too long.
        let room = self.buffer.len().min(self.start + self.record_max);
        loop {
            match self.source.read(&mut self.buffer[self.end..room]) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(false);
                }
                Ok(n) => {
                    self.end += n;
                    return Ok(true);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Stop::Read(e)),
            }
        }
    }

    /// A record begins here: what is before it may go.
    pub(super) fn begin(&mut self) {
        self.start = self.pos;
        if self.pos == self.end || self.pos > self.buffer.len() / 8 * 7 {
            (self.lines, self.columns) = self.passed(self.pos);
            self.buffer.copy_within(self.pos..self.end, 0);
            self.end -= self.pos;
            self.pos = 0;
            self.start = 0;
        }
    }

    /// Goes past what is broken, to be begun from there: to `at`, at least past the record's first byte.
    pub(super) fn skip_to(&mut self, at: usize) {
        self.pos = at.max(self.start + 1).min(self.end);
        self.begin();
    }

    /// A byte order mark at the very beginning means nothing.
    pub(super) fn skip_mark(&mut self) -> Result<(), Stop> {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        while self.end < MARK.len() && MARK.starts_with(self.rest()) && self.fill()? {}
        if self.rest().starts_with(MARK) {
            self.pos += MARK.len();
            self.begin();
            self.columns = 0;
        }
        Ok(())
    }

    /// All bytes from a place on that are there.
    pub(super) fn from(&self, at: usize) -> &[u8] {
        &self.buffer[at..self.end]
    }

    /// The bytes between two places.
    pub(super) fn slice(&self, from: usize, to: usize) -> &[u8] {
        &self.buffer[from..to]
    }

    /// All bytes that are there and were not looked at.
    pub(super) fn rest(&self) -> &[u8] {
        &self.buffer[self.pos..self.end]
    }

    /// The next byte, if there is one.
    pub(super) fn peek(&mut self) -> Result<Option<u8>, Stop> {
        while self.pos == self.end {
            if !self.fill()? {
                return Ok(None);
            }
        }
        Ok(Some(self.buffer[self.pos]))
    }

    /// Where the first of `find` stands from `at` on, if there is one. `keep` bytes more may belong to it in the next part.
    pub(super) fn find(
        &mut self,
        at: usize,
        keep: usize,
        find: impl Fn(&[u8]) -> Option<usize>,
    ) -> Result<Option<usize>, Stop> {
        let mut from = at;
        loop {
            if let Some(i) = find(self.from(from)) {
                return Ok(Some(from + i));
            }
            from = self.end.saturating_sub(keep).max(from);
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Where the record begins.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// The end of what is there.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// The line and the column of a place, both from 1; columns count characters.
    pub(super) fn place(&self, at: usize) -> (u64, u64) {
        let (lines, columns) = self.passed(at);
        (lines + 1, columns + 1)
    }

    fn passed(&self, at: usize) -> (u64, u64) {
        let before = &self.buffer[..at];
        // A byte 0b10xxxxxx goes on with a character.
        let characters = |bytes: &[u8]| bytes.iter().filter(|&&b| b & 0xc0 != 0x80).count() as u64;
        match memrchr(b'\n', before) {
            Some(i) => (self.lines + memchr_iter(b'\n', before).count() as u64, characters(&before[i + 1..])),
            None => (self.lines, self.columns + characters(before)),
        }
    }
}
