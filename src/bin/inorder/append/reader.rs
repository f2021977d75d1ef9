//! Reads the file ahead, on a thread of its own, while what was read before is being appended.

use std::io::{self, BufRead, BufReader, Read};

use inorder::NewEvent;
use tokio::sync::mpsc;

use super::{Ids, line};

/// Events that go into one append.
const BATCH_EVENTS: usize = 500;
/// Bytes of the file that go into one append, about.
const BATCH_BYTES: u64 = 4 * 1024 * 1024;
/// A longer line is no event.
const LINE_BYTES: usize = 64 * 1024 * 1024;
/// Batches that lie ready.
const READY: usize = 3;
/// What is read at a time.
const BUFFER: usize = 1024 * 1024;

/// What comes out of the file, in its order.
#[derive(Debug)]
pub(super) enum Piece {
    Batch(Batch),
    /// A line that is no event.
    Bad {
        line: u64,
        why: String,
    },
    /// The file cannot be read any further.
    Failed(io::Error),
}

/// Events, each with the number of its line.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) lines: Vec<u64>,
    pub(super) events: Vec<NewEvent>,
    /// How much of the file lies before the end of this batch.
    pub(super) read_to: u64,
}

/// Starts reading. `eager`: what was read is handed on before more is waited for, as from a pipe.
pub(super) fn read(from: Box<dyn Read + Send>, eager: bool, ids: Option<Ids>) -> mpsc::Receiver<Piece> {
    let (send, receive) = mpsc::channel(READY);
    std::thread::spawn(move || {
        let mut reading = Reading {
            from: BufReader::with_capacity(BUFFER, from),
            eager,
            ids,
            send,
            batch: Batch::default(),
            read: 0,
        };
        // An error: nobody wants to know more.
        let _ = reading.read_all();
    });
    receive
}

/// The receiver is gone.
struct Unwanted;

struct Reading {
    from: BufReader<Box<dyn Read + Send>>,
    eager: bool,
    ids: Option<Ids>,
    send: mpsc::Sender<Piece>,
    batch: Batch,
    read: u64,
}

impl Reading {
    fn read_all(&mut self) -> Result<(), Unwanted> {
        let mut text = Vec::new();
        let mut began = 0;
        for number in 1.. {
            if self.eager && !self.from.buffer().contains(&b'\n') {
                self.flush()?;
            }
            let length = match next_line(&mut self.from, &mut text) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) => {
                    self.flush()?;
                    return self.hand_on(Piece::Failed(error));
                }
            };
            self.read += length;
            if number == 1 && text.starts_with(b"\xEF\xBB\xBF") {
                text.drain(..3);
            }
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let parsed = match text.len() {
                0..=LINE_BYTES => line::parse(number, &text, self.ids),
                _ => Err("it is longer than 64 MiB; is this a file with one event a line?".into()),
            };
            match parsed {
                Ok(event) => {
                    self.batch.lines.push(number);
                    self.batch.events.push(event);
                    self.batch.read_to = self.read;
                }
                Err(why) => {
                    self.flush()?;
                    self.hand_on(Piece::Bad { line: number, why })?;
                }
            }
            if self.batch.events.len() >= BATCH_EVENTS || self.read - began >= BATCH_BYTES {
                self.flush()?;
                began = self.read;
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Unwanted> {
        if self.batch.events.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        self.hand_on(Piece::Batch(batch))
    }

    fn hand_on(&self, piece: Piece) -> Result<(), Unwanted> {
        self.send.blocking_send(piece).map_err(|_| Unwanted)
    }
}

/// Reads up to the end of a line, which is not put into `text`; of a line that is too long, only somewhat more than is
/// allowed. Answers how many bytes were read; 0 at the end.
fn next_line(from: &mut impl BufRead, text: &mut Vec<u8>) -> io::Result<u64> {
    text.clear();
    let mut length = 0;
    loop {
        let part = match from.fill_buf() {
            Ok(part) => part,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let end = part.iter().position(|byte| *byte == b'\n');
        let kept = &part[..end.unwrap_or(part.len())];
        if text.len() <= LINE_BYTES {
            text.extend_from_slice(kept);
        }
        let taken = end.map_or(part.len(), |end| end + 1);
        from.consume(taken);
        length += taken as u64;
        if end.is_some() || taken == 0 {
            return Ok(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<String> {
        let mut pieces = read(Box::new(io::Cursor::new(text.to_owned())), false, Some(Ids::Derive));
        let mut shown = Vec::new();
        while let Some(piece) = pieces.blocking_recv() {
            shown.push(match piece {
                Piece::Batch(batch) => format!("{:?} to {}", batch.lines, batch.read_to),
                Piece::Bad { line, .. } => format!("{line} is bad"),
                Piece::Failed(e) => e.to_string(),
            });
        }
        shown
    }

    #[test]
    fn lines_are_counted_as_an_editor_counts_them() {
        let event = r#"{"event_type":"t","payload":1}"#;
        assert_eq!(event.len(), 30);
        let text = format!("\u{feff}{event}\r\n\n{event}\nnonsense\n   \n{event}");
        assert_eq!(pieces(&text), ["[1, 3] to 67", "4 is bad", "[6] to 110"]);
        assert!(pieces("").is_empty());
    }

    #[test]
    fn a_batch_has_a_bound() {
        let text = "{\"event_type\":\"t\",\"payload\":1}\n".repeat(1_001);
        let shown = pieces(&text);
        assert_eq!(shown.len(), 3);
        assert_eq!(shown[2], "[1001] to 31031");
    }
}
