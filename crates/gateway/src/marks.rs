//! The marks in a replica's stream, taken out as it passes (`crates/server/src/marks.rs`).
//!
//! Events go to the client when the mark behind them has come, with which another replica can go
//! on. What is behind the last mark is held back: it is the end of the answer, or is made again.

use axum::body::Bytes;
use memchr::memmem;
use penstock_openai::{FAILED_MARK, MARK};

const END: &[u8] = b"\n\n";
/// Most bytes of marks, and of events that are held back: beyond that the stream goes through as
/// it comes, and cannot go on elsewhere. Some 40,000 tokens.
const MOST_MARKS: usize = 256 << 10;
const MOST_HELD: usize = 4 << 20;

/// The marks of one answer, from one replica or several.
#[derive(Debug, Default)]
pub(crate) struct Marked {
    /// Behind the last mark.
    held: Vec<u8>,
    /// Bytes of it in which no mark begins.
    scanned: usize,
    /// The marks so far, with commas between.
    marks: Vec<u8>,
    /// More than is kept: nothing is held back but marks that are cut.
    flows: bool,
    /// The replica says that it cannot go on.
    failed: bool,
}

impl Marked {
    /// The events that the client may have, once more bytes of the replica have come.
    pub(crate) fn pass(&mut self, bytes: &[u8]) -> Bytes {
        self.held.extend_from_slice(bytes);
        let mut out = Vec::new();
        while let Some(at) = self.next_mark() {
            let mark = at + MARK.len();
            let Some(length) = memmem::find(&self.held[mark..], END) else {
                self.scanned = at;
                break;
            };
            let rest = self.held.split_off(mark + length + END.len());
            let whole = std::mem::replace(&mut self.held, rest);
            self.scanned = 0;
            match &whole[mark..mark + length] {
                // what comes now is an error, for a client that has nowhere else to go
                FAILED_MARK => {
                    self.failed = true;
                    self.held.splice(..0, whole[..at].iter().copied());
                }
                mark => {
                    self.note(mark);
                    out.extend_from_slice(&whole[..at]);
                }
            }
        }
        if self.flows || self.held.len() > MOST_HELD {
            self.flows = true;
            let whole = memmem::rfind(&self.held, END).map_or(0, |at| at + END.len());
            out.extend(self.held.drain(..whole));
            self.scanned = 0;
        }
        out.into()
    }

    /// Where the next mark begins; all before it has been looked at if there is none.
    fn next_mark(&mut self) -> Option<usize> {
        let found = memmem::find_iter(&self.held[self.scanned..], MARK);
        let mut found = found.map(|at| self.scanned + at);
        let begins = |at: &usize| *at == 0 || self.held[at - 1] == b'\n';
        let next = found.find(begins);
        if next.is_none() {
            // a part of one may be there; and the line's start
            self.scanned = self.held.len().saturating_sub(MARK.len());
        }
        next
    }

    fn note(&mut self, mark: &[u8]) {
        if self.marks.len() + mark.len() >= MOST_MARKS {
            self.flows = true;
        }
        if self.flows {
            return;
        }
        if !self.marks.is_empty() {
            self.marks.push(b',');
        }
        self.marks.extend_from_slice(mark);
    }

    /// What was held back, when the answer has ended.
    pub(crate) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }

    /// The members of the array `resume`, for another replica, `None` where the answer cannot go
    /// on; and what the client gets if there is no other. The rest that was held back is dropped.
    pub(crate) fn broken(&mut self) -> (Option<Vec<u8>>, Bytes) {
        let last = self.rest();
        let says_why = std::mem::take(&mut self.failed);
        self.scanned = 0;
        let last = if says_why { last } else { Bytes::new() };
        ((!self.flows).then(|| self.marks.clone()), last)
    }

    /// Whether the replica itself says that it cannot go on.
    pub(crate) fn failed(&self) -> bool {
        self.failed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &[u8] = b"data: {\"a\":\":resume \"}\n\n:resume {\"seed\":1}\n\n:resume [1]\n\n\
        :resume [2]\n\ndata: 3\n\ndata: 4\n\n:resume [3,4]\n\ndata: end\n\n";

    /// What came out, part by part, and what was held back at the end.
    fn passed(marked: &mut Marked, stream: &[u8], sizes: &[usize]) -> Vec<u8> {
        let (mut out, mut rest) = (Vec::new(), stream);
        for size in sizes.iter().cycle() {
            let (part, others) = rest.split_at(rest.len().min((*size).max(1)));
            out.extend_from_slice(&marked.pass(part));
            rest = others;
            if rest.is_empty() {
                break;
            }
        }
        out
    }

    proptest! {
        #[test]
        fn marks_are_taken_out_and_what_has_none_is_held_back_however_it_is_cut(
            sizes in prop::collection::vec(1..60usize, 1..20),
            length in 0..=STREAM.len(),
        ) {
            let mut marked = Marked::default();
            let out = passed(&mut marked, &STREAM[..length], &sizes);
            // by hand: everything up to the last whole mark
            let text = std::str::from_utf8(&STREAM[..length]).unwrap();
            let mut wanted = String::new();
            let mut marks: Vec<&str> = Vec::new();
            let mut held = String::new();
            for block in text.split_inclusive("\n\n") {
                match block.strip_prefix(":resume ").and_then(|mark| mark.strip_suffix("\n\n")) {
                    Some(mark) => {
                        wanted.push_str(&std::mem::take(&mut held));
                        marks.push(mark);
                    }
                    None => held.push_str(block),
                }
            }
            prop_assert_eq!(String::from_utf8(out).unwrap(), wanted);
            prop_assert!(!marked.failed());
            let (known, last) = marked.broken();
            prop_assert_eq!(String::from_utf8(known.unwrap()).unwrap(), marks.join(","));
            prop_assert!(last.is_empty());
        }

        #[test]
        fn a_failure_keeps_its_error_for_a_client_without_another_replica(
            sizes in prop::collection::vec(1..60usize, 1..20),
        ) {
            let mut marked = Marked::default();
            let stream = b"data: a\n\n:resume {}\n\n:resume [1]\n\ndata: b\n\n\
                :resume \"failed\"\n\n\
                data: why\n\n";
            let out = passed(&mut marked, stream, &sizes);
            prop_assert_eq!(&out[..], b"data: a\n\n");
            prop_assert!(marked.failed());
            let (known, last) = marked.broken();
            prop_assert_eq!(&known.unwrap()[..], b"{},[1]");
            prop_assert_eq!(&last[..], b"data: b\n\ndata: why\n\n");
            prop_assert!(!marked.failed());
        }

        #[test]
        fn a_stream_with_more_marks_than_are_kept_flows(
            sizes in prop::collection::vec(1..5000usize, 1..20),
        ) {
            let mut stream = Vec::new();
            let mut wanted = Vec::new();
            for at in 0..MOST_MARKS / 5 {
                let event = format!("data: {at}\n\n");
                wanted.extend_from_slice(event.as_bytes());
                stream.extend_from_slice(event.as_bytes());
                stream.extend_from_slice(b":resume [100]\n\n");
            }
            stream.extend_from_slice(b"data: end\n\n");
            wanted.extend_from_slice(b"data: end\n\n");
            let mut marked = Marked::default();
            let mut out = passed(&mut marked, &stream, &sizes);
            out.extend_from_slice(&marked.rest());
            prop_assert!(out == wanted);
            prop_assert!(marked.broken().0.is_none());
        }
    }
}
