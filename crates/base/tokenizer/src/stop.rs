//! Stop strings in streamed text.

/// Result of pushing one piece of text.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct StopOutcome {
    /// Text that can be sent now: it cannot become part of a stop string.
    pub emit: String,
    /// Index of the matched stop string in the list given to [`StopStrings::new`].
    pub stopped: Option<usize>,
}

/// Matches stop strings in streamed text and holds back a tail that may become one.
///
/// The first complete match ends the text, so the result does not depend on how the text is split
/// into pieces. If several matches end at the same character, the longest one is reported; of equal
/// matches, the first in the list. Empty stop strings never match.
///
/// Each pattern is a Knuth-Morris-Pratt automaton: linear time in the text for any patterns.
#[derive(Debug, Clone)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    include_stop: bool,
    held: String,
    stopped: Option<usize>,
}

impl StopStrings {
    pub fn new(stops: Vec<String>) -> Self {
        let patterns = stops
            .into_iter()
            .map(|stop| Pattern::new(stop.into_bytes()))
            .collect();
        Self {
            patterns,
            include_stop: false,
            held: String::new(),
            stopped: None,
        }
    }

    /// Whether the emitted text includes the stop string that ends it; by default it does not.
    pub fn include_stop(mut self, include: bool) -> Self {
        self.include_stop = include;
        self
    }

    /// Processes the next piece. After a stop, further pieces are dropped and reported as stopped.
    pub fn push(&mut self, piece: &str) -> StopOutcome {
        if self.stopped.is_some() {
            return StopOutcome {
                emit: String::new(),
                stopped: self.stopped,
            };
        }
        if self.patterns.is_empty() {
            return StopOutcome {
                emit: piece.to_owned(),
                stopped: None,
            };
        }
        let scanned = self.held.len();
        self.held.push_str(piece);
        for end in scanned + 1..=self.held.len() {
            let byte = self.held.as_bytes()[end - 1];
            if let Some(index) = advance_all(&mut self.patterns, byte) {
                return self.stop_at(index, end);
            }
        }
        let partial = self
            .patterns
            .iter()
            .map(|pattern| pattern.matched)
            .max()
            .unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - partial);
        StopOutcome {
            emit: std::mem::replace(&mut self.held, kept),
            stopped: None,
        }
    }

    /// Ends the text and releases the held-back tail.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn stop_at(&mut self, index: usize, end: usize) -> StopOutcome {
        self.stopped = Some(index);
        let mut emit = std::mem::take(&mut self.held);
        emit.truncate(if self.include_stop {
            end
        } else {
            end - self.patterns[index].bytes.len()
        });
        StopOutcome {
            emit,
            stopped: self.stopped,
        }
    }
}

/// Feeds one byte to every pattern; returns the longest one that it completes.
fn advance_all(patterns: &mut [Pattern], byte: u8) -> Option<usize> {
    let mut complete: Option<usize> = None;
    for index in 0..patterns.len() {
        let longer = |other: usize| patterns[index].bytes.len() > patterns[other].bytes.len();
        let preferred = complete.is_none_or(longer);
        if patterns[index].advance(byte) && preferred {
            complete = Some(index);
        }
    }
    complete
}

#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// `borders[i]`: length of the longest proper prefix of the pattern that is a suffix of its
    /// bytes up to i.
    borders: Vec<usize>,
    /// Length of the longest prefix of the pattern that is a suffix of the text so far.
    matched: usize,
}

impl Pattern {
    fn new(bytes: Vec<u8>) -> Self {
        let mut borders = vec![0; bytes.len()];
        let mut length = 0;
        for index in 1..bytes.len() {
            while length > 0 && bytes[index] != bytes[length] {
                length = borders[length - 1];
            }
            length += usize::from(bytes[index] == bytes[length]);
            borders[index] = length;
        }
        Self {
            bytes,
            borders,
            matched: 0,
        }
    }

    /// Processes the next byte of the text; returns true if the pattern is complete. Must not be
    /// called again after that.
    fn advance(&mut self, byte: u8) -> bool {
        if self.bytes.is_empty() {
            return false;
        }
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}
