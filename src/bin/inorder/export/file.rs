//! A file that has its name only when it is whole.
//!
//! ```text
//!   FILE.partial, locked ── finish: on disk, renamed ──▶ FILE
//!        ▲    │
//!        │    └─ keep: on disk; a line may be torn by a crash ──▶ FILE.partial
//!        └─ --resume: behind its last whole line ──────────────────────┘
//! ```

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use uuid::Uuid;

use crate::failure::Failure;

/// How much is read at a time when the last line is looked for, backwards.
const CHUNK: u64 = 64 * 1024;

/// An export under way.
pub(super) struct Unfinished {
    file: BufWriter<File>,
    partial: PathBuf,
    path: PathBuf,
    replace: bool,
    last: Option<Last>,
}

/// The last event in a file.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Last {
    pub(super) id: i64,
    pub(super) event_id: Uuid,
}

impl Unfinished {
    pub(super) fn open(path: &Path, resume: bool, replace: bool) -> Result<Self, Failure> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let failed = |e: io::Error| Failure::failed(format!("opening {}: {e}", partial.display()));
        refuse_what_is_there(path, replace)?;
        let is_there = partial.try_exists().map_err(failed)?;
        if is_there && !resume {
            return Err(Failure::usage(format!(
                "{} is there, from an export that did not end; --resume goes on with it, or remove it",
                partial.display()
            )));
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&partial)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::failed(format!(
                    "another export writes {} at the moment",
                    partial.display()
                )));
            }
            Err(TryLockError::Error(e)) => return Err(failed(e)),
        }
        let last = cut_to_whole_lines(&mut file).map_err(failed)?;
        let last = last.map(|line| last_event(&line)).transpose().map_err(|e| {
            Failure::failed(format!("{} does not end with an event ({e}); remove it", partial.display()))
        })?;
        Ok(Self {
            file: BufWriter::with_capacity(1 << 20, file),
            partial,
            path: path.to_owned(),
            replace,
            last,
        })
    }

    pub(super) fn name(&self) -> String {
        self.partial.display().to_string()
    }

    pub(super) fn last(&self) -> Option<&Last> {
        self.last.as_ref()
    }

    pub(super) fn line(&mut self, line: &str) -> Result<(), Failure> {
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.write_all(b"\n"));
        written.map_err(|e| self.failed("writing", &e))
    }

    /// Everything is written: it gets its name.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        self.keep()?;
        refuse_what_is_there(&self.path, self.replace)?;
        std::fs::rename(&self.partial, &self.path).map_err(|e| self.failed("renaming", &e))?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new(".")));
        folder.and_then(|folder| folder.sync_all()).map_err(|e| self.failed("renaming", &e))
    }

    /// What is written so far is on disk.
    pub(super) fn keep(&mut self) -> Result<(), Failure> {
        let kept = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        kept.map_err(|e| self.failed("writing", &e))
    }

    fn failed(&self, what: &str, error: &io::Error) -> Failure {
        Failure::failed(format!("{what} {}: {error}", self.partial.display()))
    }
}

fn refuse_what_is_there(path: &Path, replace: bool) -> Result<(), Failure> {
    match path.try_exists() {
        Ok(true) if path.is_dir() => Err(Failure::usage(format!("{} is a folder", path.display()))),
        Ok(true) if !replace => Err(Failure::usage(format!(
            "{} is there already; --replace replaces it, when the new one is complete",
            path.display()
        ))),
        Ok(_) => Ok(()),
        Err(e) => Err(Failure::failed(format!("looking for {}: {e}", path.display()))),
    }
}

fn last_event(line: &[u8]) -> Result<Last, serde_json::Error> {
    serde_json::from_slice(line)
}

/// Cuts off a line that was torn, and answers the last whole one. What is written next comes behind that.
fn cut_to_whole_lines(file: &mut File) -> io::Result<Option<Vec<u8>>> {
    let length = file.metadata()?.len();
    let Some(end) = line_end_before(file, length)? else {
        file.set_len(0)?;
        return file.rewind().map(|()| None);
    };
    // Behind the line end before it, or at the beginning.
    let begin = line_end_before(file, end)?.map_or(0, |at| at + 1);
    file.seek(SeekFrom::Start(begin))?;
    let mut line = Vec::new();
    (&*file).take(end - begin).read_to_end(&mut line)?;
    file.set_len(end + 1)?;
    file.seek(SeekFrom::Start(end + 1))?;
    Ok(Some(line))
}

/// Where the last line end in front of a place is.
fn line_end_before(file: &mut File, place: u64) -> io::Result<Option<u64>> {
    let mut end = place;
    while end > 0 {
        let begin = end.saturating_sub(CHUNK);
        file.seek(SeekFrom::Start(begin))?;
        let mut part = Vec::new();
        (&*file).take(end - begin).read_to_end(&mut part)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(Some(begin + at as u64));
        }
        end = begin;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resumed(content: &str) -> (Option<String>, String) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content.as_bytes()).unwrap();
        let last = cut_to_whole_lines(&mut file).unwrap().map(|line| String::from_utf8(line).unwrap());
        file.write_all(b"next").unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        (last, text)
    }

    #[test]
    fn a_file_goes_on_behind_its_last_whole_line() {
        assert_eq!(resumed(""), (None, "next".into()));
        assert_eq!(resumed("torn"), (None, "next".into()));
        assert_eq!(resumed("one\n"), (Some("one".into()), "one\nnext".into()));
        assert_eq!(resumed("one\ntwo\nto"), (Some("two".into()), "one\ntwo\nnext".into()));
        let long = "x".repeat(200_000);
        assert_eq!(
            resumed(&format!("one\n{long}\n{long}")),
            (Some(long.clone()), format!("one\n{long}\nnext"))
        );
    }
}
