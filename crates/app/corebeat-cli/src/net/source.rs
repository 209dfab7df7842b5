//! Where records come from.

use crate::failure::{Failure, tell};
use corebeat_snet::format::Format;
use std::fs::File;
use std::io::{self, Cursor, ErrorKind, Read};
use std::net::TcpListener;
use std::path::Path;

/// White space before the first record.
const WHITE_MAX: usize = 1 << 20;

/// A source, and what it is called.
pub(crate) struct Source {
    pub(crate) name: String,
    way: Way,
}

/// How records come; who listens waits only in the thread that reads.
enum Way {
    Ready(Box<dyn Read + Send>),
    Listener(TcpListener),
}

impl Source {
    /// A file, or who connects to an address, or standard input.
    pub(crate) fn open(file: Option<&Path>, address: Option<&str>) -> Result<Source, Failure> {
        let (name, way) = match (file, address) {
            (Some(path), _) => {
                (path.display().to_string(), open(path).map(|file| Way::Ready(Box::new(file))))
            }
            (None, Some(address)) => {
                let address = with_host(address);
                let way = listen(&address).map(Way::Listener);
                (address, way)
            }
            (None, None) => ("standard input".into(), Ok(Way::Ready(Box::new(io::stdin())))),
        };
        match way {
            Ok(way) => Ok(Source { name, way }),
            Err(e) => Err(Failure::usage(format!("cannot read records from {name}: {e}"))),
        }
    }

    /// What is to be read, when it is there.
    pub(crate) fn wait(self) -> io::Result<Box<dyn Read + Send>> {
        match self.way {
            Way::Ready(source) => Ok(source),
            Way::Listener(listener) => listener.accept().map(|(stream, _)| Box::new(stream) as _),
        }
    }
}

/// A file; a folder would be noticed only by who reads it.
fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() { Err(ErrorKind::IsADirectory.into()) } else { Ok(file) }
}

fn listen(address: &str) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    tell(format_args!("listening on {}\n", listener.local_addr()?));
    Ok(listener)
}

/// An address; of this machine, if it is only a port.
pub(crate) fn with_host(address: &str) -> String {
    if address.contains(':') { address.to_owned() } else { format!("127.0.0.1:{address}") }
}

/// The form of records, by the first byte that is no white space; and all there is to read, from its begin.
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

/// The first byte that means something: the mark of UTF-8 means nothing.
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

    /// Gives a byte at a time.
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
