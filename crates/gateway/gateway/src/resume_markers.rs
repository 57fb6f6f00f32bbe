//! Resume markers: comments in a replica's stream, from which another replica can resume the
//! stream. They are collected and removed while the stream is relayed. The server writes them in
//! `crates/server/server/src/marks.rs`.
//!
//! An event is released to the client when the marker after it has arrived, because another replica
//! can then resume behind the event. Events after the last marker are held back: either they end
//! the response, or another replica computes them again.

use axum::body::Bytes;
use penstock_api_types::sse_reader::Event;
use penstock_api_types::{FAILED_MARK, MARK};

use crate::filter::joined;

/// Maximum sizes in bytes of the markers (some 40,000 tokens) and of the events held back. If one
/// of them is exceeded, events are forwarded at once and the stream cannot be resumed.
const MOST_MARKS: usize = 256 << 10;
const MOST_HELD: usize = 4 << 20;

/// The markers of one response, from one or several replicas.
#[derive(Debug, Default)]
pub(crate) struct Marked {
    /// Events after the last marker, and their size in bytes.
    held: Vec<Event>,
    held_bytes: usize,
    /// The markers so far, separated by commas.
    marks: Vec<u8>,
    /// Whether events are forwarded at once, in which case the stream cannot be resumed.
    flows: bool,
    /// Whether the replica has reported that it cannot continue.
    failed: bool,
}

impl Marked {
    /// For a stream that cannot be resumed: removes markers, holds nothing back.
    pub(crate) fn flowing() -> Self {
        Self {
            flows: true,
            ..Self::default()
        }
    }

    /// Processes an event from the replica. Appends to `out` the events that may now be sent to the
    /// client.
    pub(crate) fn pass(&mut self, event: Event, out: &mut Vec<Event>) {
        let mark = event.bytes().strip_prefix(MARK);
        match mark.map(<[u8]>::trim_ascii_end) {
            // the next event is an error, which is sent to the client if no other replica resumes
            Some(FAILED_MARK) => self.failed = !self.flows,
            Some(mark) => {
                self.note(mark);
                self.give(out);
            }
            None => {
                self.held_bytes += event.bytes().len();
                self.held.push(event);
            }
        }
        self.flows |= self.held_bytes > MOST_HELD;
        if self.flows {
            self.give(out);
        }
    }

    fn give(&mut self, out: &mut Vec<Event>) {
        self.held_bytes = 0;
        out.append(&mut self.held);
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

    /// The events held back, once the response has ended.
    pub(crate) fn rest(&mut self) -> Vec<Event> {
        self.held_bytes = 0;
        std::mem::take(&mut self.held)
    }

    /// Handles a broken stream. Returns the members of the array `resume` for another replica, or
    /// `None` if the response cannot be resumed; and the last bytes for the client if the failover
    /// fails. Drops the events held back, because the other replica computes them again.
    pub(crate) fn broken(&mut self) -> (Option<Vec<u8>>, Bytes) {
        let last = self.rest();
        let last = match std::mem::take(&mut self.failed) {
            true => joined(&last, &Bytes::new()),
            false => Bytes::new(),
        };
        ((!self.flows).then(|| self.marks.clone()), last)
    }

    /// Whether the replica has reported that it cannot continue.
    pub(crate) fn failed(&self) -> bool {
        self.failed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::events::reader;

    const STREAM: &[u8] = b"data: {\"a\":\":resume \"}\n\n:resume {\"seed\":1}\n\n:resume [1]\n\n\
        :resume [2]\n\ndata: 3\n\ndata: 4\n\n:resume [3,4]\n\ndata: end\n\n";

    /// The bytes released to the client after the events of `stream`.
    fn passed(marked: &mut Marked, stream: &[u8]) -> Vec<u8> {
        let (mut events, mut out) = (reader(), Vec::new());
        events.push(Bytes::copy_from_slice(stream));
        events.for_each(|event| marked.pass(event, &mut out));
        joined(&out, &Bytes::new()).into()
    }

    proptest! {
        #[test]
        fn marks_are_taken_out_and_what_has_none_is_held_back(length in 0..=STREAM.len()) {
            let mut marked = Marked::default();
            let out = passed(&mut marked, &STREAM[..length]);
            // computed another way: the client gets everything before the last complete marker
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
    }

    #[test]
    fn a_failure_keeps_its_error_for_a_client_without_another_replica() {
        let stream = b"data: a\n\n:resume {}\n\n:resume [1]\n\ndata: b\n\n\
            :resume \"failed\"\n\ndata: why\n\n";
        let mut marked = Marked::default();
        assert_eq!(passed(&mut marked, stream), b"data: a\n\n");
        assert!(marked.failed());
        let (known, last) = marked.broken();
        assert_eq!(known.unwrap(), b"{},[1]");
        assert_eq!(last, "data: b\n\ndata: why\n\n");
        assert!(!marked.failed());
        // if nothing is held back, the client has got the error already
        let mut marked = Marked::flowing();
        let out = passed(&mut marked, stream);
        assert_eq!(out, b"data: a\n\ndata: b\n\ndata: why\n\n");
        assert!(!marked.failed() && marked.broken().0.is_none());
    }

    #[test]
    fn a_stream_with_more_marks_than_are_kept_flows() {
        let (mut stream, mut wanted) = (Vec::new(), Vec::new());
        for at in 0..MOST_MARKS / 5 {
            let event = format!("data: {at}\n\n");
            wanted.extend_from_slice(event.as_bytes());
            stream.extend_from_slice(event.as_bytes());
            stream.extend_from_slice(b":resume [100]\n\n");
        }
        stream.extend_from_slice(b"data: end\n\n");
        wanted.extend_from_slice(b"data: end\n\n");
        let mut marked = Marked::default();
        let mut out = passed(&mut marked, &stream);
        out.extend_from_slice(&joined(&marked.rest(), &Bytes::new()));
        assert!(out == wanted);
        assert!(marked.broken().0.is_none());
    }

    #[test]
    fn a_stream_with_more_events_than_are_held_flows() {
        let event = format!("data: {}\n\n", "x".repeat(MOST_HELD / 3));
        let mut marked = Marked::default();
        let pass = |_| !passed(&mut marked, event.as_bytes()).is_empty();
        let outs: Vec<bool> = (0..4).map(pass).collect();
        assert_eq!(outs, [false, false, true, true]);
    }
}
