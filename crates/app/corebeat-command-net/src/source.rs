//! The sources of records: a file, a socket, standard input.

use corebeat_command::{Failure, print_error};
use corebeat_snet::format::Format;
use std::fs::File;
use std::io::{self, Cursor, ErrorKind, Read};
use std::net::TcpListener;
use std::path::Path;

/// Largest number of bytes of white space before the first record.
const WHITE_MAX: usize = 1 << 20;

/// A source and its name in messages.
pub(crate) struct Source {
    pub(crate) name: String,
    channel: Channel,
}

/// The channel of a source. Accepting a connection waits, so the reading thread does it.
enum Channel {
    Ready(Box<dyn Read + Send>),
    Listener(TcpListener),
}

impl Source {
    /// Opens a file, listens on an address, or takes standard input.
    pub(crate) fn open(file: Option<&Path>, address: Option<&str>) -> Result<Source, Failure> {
        let (name, channel) = match (file, address) {
            (Some(path), _) => {
                (path.display().to_string(), open(path).map(|file| Channel::Ready(Box::new(file))))
            }
            (None, Some(address)) => {
                let address = with_host(address);
                let channel = listen(&address).map(Channel::Listener);
                (address, channel)
            }
            (None, None) => ("standard input".into(), Ok(Channel::Ready(Box::new(io::stdin())))),
        };
        match channel {
            Ok(channel) => Ok(Source { name, channel }),
            Err(e) => Err(Failure::usage(format!("cannot read records from {name}: {e}"))),
        }
    }

    /// Waits for the connection, if any, and returns the reader.
    pub(crate) fn wait(self) -> io::Result<Box<dyn Read + Send>> {
        match self.channel {
            Channel::Ready(source) => Ok(source),
            Channel::Listener(listener) => {
                listener.accept().map(|(stream, _)| Box::new(stream) as _)
            }
        }
    }
}

/// Opens a file. Refuses a directory, which would fail only when it is read.
fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() { Err(ErrorKind::IsADirectory.into()) } else { Ok(file) }
}

fn listen(address: &str) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    print_error(format_args!("listening on {}\n", listener.local_addr()?));
    Ok(listener)
}

/// Completes a port without a host to an address of this machine.
pub(crate) fn with_host(address: &str) -> String {
    if address.contains(':') { address.to_owned() } else { format!("127.0.0.1:{address}") }
}

/// Determines the format of records by the first byte that is not white space. Returns the format
/// and a reader of the whole source.
pub(crate) fn find_form(mut source: impl Read) -> io::Result<(Format, impl Read)> {
    let mut begin = Vec::new();
    let mut piece = [0; 4 << 10];
    let form = loop {
        let read = match source.read(&mut piece) {
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        begin.extend_from_slice(&piece[..read]);
        match first(&begin) {
            Some(b'<') => break Format::Xml,
            None if read > 0 && begin.len() < WHITE_MAX => {}
            _ => break Format::Json,
        }
    };
    Ok((form, Cursor::new(begin).chain(source)))
}

/// The first byte after a byte order mark and white space.
fn first(begin: &[u8]) -> Option<u8> {
    let mark = &[0xef, 0xbb, 0xbf][..];
    let text = begin.strip_prefix(mark).unwrap_or(begin);
    if mark.starts_with(text) {
        return None;
    }
    text.iter().copied().find(|b| !b.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one byte per call.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let n = self.0.len().min(to.len()).min(1);
            to[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    #[test]
    fn form_is_found_by_the_first_byte_and_nothing_is_lost() {
        for (text, expected) in [
            (&b"<record type=\"terminate\"/>"[..], Format::Xml),
            (b" \r\n\t<?xml version=\"1.0\"?>", Format::Xml),
            (b"\xef\xbb\xbf <record/>", Format::Xml),
            (b"\xef\xbb\xbf{}", Format::Json),
            (b"\n{\"a\": \"<\"}", Format::Json),
            (b"nothing", Format::Json),
            (b"\xef", Format::Json),
            (b"  \n", Format::Json),
            (b"", Format::Json),
        ] {
            let (form, mut source) = find_form(Slow(text)).unwrap();
            let mut read = Vec::new();
            source.read_to_end(&mut read).unwrap();
            assert_eq!((form, read.as_slice()), (expected, text));
        }
    }

    #[test]
    fn form_of_white_space_without_end_is_taken_as_json() {
        assert_eq!(find_form(io::repeat(b' ')).unwrap().0, Format::Json);
    }
}
