//! Buffered input, and positions in it.

use std::io::{ErrorKind, Read};

use memchr::{memchr_iter, memrchr};

use super::ReadError;

/// Initial size of the buffer.
const BUFFER_BYTES: usize = 256 << 10;

/// A window of the source. Bytes from `start`, the beginning of the current record, keep their
/// position in the buffer.
pub(super) struct Input<R> {
    source: R,
    buffer: Vec<u8>,
    start: usize,
    /// Position of the next byte to read.
    pub(super) pos: usize,
    end: usize,
    /// Bytes of the longest record that is accepted.
    record_max: usize,
    /// Lines, and characters of the last line, before the buffer.
    lines: u64,
    columns: u64,
    /// Whether the source has ended.
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

    /// Reads more of the source. Returns `false` at its end. The caller calls this only if it needs
    /// a byte that the buffer does not hold, because the source may block.
    pub(super) fn fill(&mut self) -> Result<bool, ReadError> {
        if self.ended {
            return Ok(false);
        }
        if self.end - self.start >= self.record_max {
            let what = format!("the record has more than {} bytes: split it", self.record_max);
            return Err(ReadError::syntax(self.start, what));
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(2 * self.end, 0);
        }
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
                Err(e) => return Err(ReadError::Input(e)),
            }
        }
    }

    /// Marks the beginning of a record. The buffer may discard the bytes before it.
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

    /// Moves to `at` after an error, at least past the record's first byte, and marks the beginning
    /// of a record.
    pub(super) fn skip_to(&mut self, at: usize) {
        self.pos = at.max(self.start + 1).min(self.end);
        self.begin();
    }

    /// Skips a byte order mark at the beginning of the input.
    pub(super) fn skip_mark(&mut self) -> Result<(), ReadError> {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        while self.end < MARK.len() && MARK.starts_with(self.rest()) && self.fill()? {}
        if self.rest().starts_with(MARK) {
            self.pos += MARK.len();
            self.begin();
            self.columns = 0;
        }
        Ok(())
    }

    /// Buffered bytes from a position on.
    pub(super) fn from(&self, at: usize) -> &[u8] {
        &self.buffer[at..self.end]
    }

    /// Bytes between two positions.
    pub(super) fn slice(&self, from: usize, to: usize) -> &[u8] {
        &self.buffer[from..to]
    }

    /// Buffered bytes that have not been read.
    pub(super) fn rest(&self) -> &[u8] {
        &self.buffer[self.pos..self.end]
    }

    /// Returns the next byte, or `None` at the end of the input.
    pub(super) fn peek(&mut self) -> Result<Option<u8>, ReadError> {
        while self.pos == self.end {
            if !self.fill()? {
                return Ok(None);
            }
        }
        Ok(Some(self.buffer[self.pos]))
    }

    /// Returns the position of the first match of `find` from `at` on. A match may begin in the
    /// last `keep` bytes of the buffer and end in the bytes that are read next.
    pub(super) fn find(
        &mut self,
        at: usize,
        keep: usize,
        find: impl Fn(&[u8]) -> Option<usize>,
    ) -> Result<Option<usize>, ReadError> {
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

    /// Position of the beginning of the record.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// Position of the end of the buffered bytes.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Returns the line and the column of a position, both from 1. Columns count characters.
    pub(super) fn place(&self, at: usize) -> (u64, u64) {
        let (lines, columns) = self.passed(at);
        (lines + 1, columns + 1)
    }

    fn passed(&self, at: usize) -> (u64, u64) {
        let before = &self.buffer[..at];
        // A byte 0b10xxxxxx continues a character.
        let characters = |bytes: &[u8]| bytes.iter().filter(|&&b| b & 0xc0 != 0x80).count() as u64;
        match memrchr(b'\n', before) {
            Some(i) => (
                self.lines + memchr_iter(b'\n', before).count() as u64,
                characters(&before[i + 1..]),
            ),
            None => (self.lines, self.columns + characters(before)),
        }
    }
}
