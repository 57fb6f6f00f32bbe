//! Load that a replica pushes: one line of JSON for each engine step. Pure.

use serde::Deserialize;

use crate::load::Reported;

/// Maximum length of a line in bytes; a typical line has about 100.
const MAX_LINE: usize = 4096;
/// Upper bound for reported numbers of requests and KV tokens.
const MOST: f32 = 1e9;

/// One line, parsed. Unknown members are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(crate) struct Line {
    /// Step number of the engine; a decrease means that the engine was replaced.
    pub step: u64,
    waiting: f32,
    running: f32,
    kv_use: Option<f32>,
    kv_tokens: Option<f32>,
}

impl Line {
    /// A copy of the `polled` report with the load of this line.
    pub(crate) fn over(&self, polled: &Reported) -> Reported {
        Reported {
            waiting: self.waiting.clamp(0.0, MOST),
            running: self.running.clamp(0.0, MOST),
            kv_use: self.kv_use.map(|share| share.clamp(0.0, 1.0)),
            kv_tokens: self
                .kv_tokens
                .map(|tokens| tokens.clamp(0.0, MOST))
                .or(polled.kv_tokens),
            ..polled.clone()
        }
    }
}

/// Splits a stream into lines. Buffers at most one incomplete line.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// Processes received data. Returns the last complete line in it, because earlier ones are
    /// outdated.
    ///
    /// # Errors
    /// Describes the malformed line.
    pub(crate) fn take(&mut self, data: &[u8]) -> Result<Option<Line>, String> {
        let mut pieces = data.rsplitn(3, |byte| *byte == b'\n');
        let (rest, ended, before) = (pieces.next(), pieces.next(), pieces.next());
        let Some(ended) = ended else {
            self.begin(data)?;
            return Ok(None);
        };
        if before.is_some() {
            self.begun.clear();
        }
        self.begin(ended)?;
        let line = parsed(&self.begun)?;
        self.begun.clear();
        self.begin(rest.unwrap_or_default())?;
        Ok(line)
    }

    fn begin(&mut self, more: &[u8]) -> Result<(), String> {
        if self.begun.len() + more.len() > MAX_LINE {
            return Err(format!("a line is longer than {MAX_LINE} bytes"));
        }
        self.begun.extend_from_slice(more);
        Ok(())
    }
}

/// `None` for an empty line.
fn parsed(line: &[u8]) -> Result<Option<Line>, String> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let line = serde_json::from_slice(line);
    line.map(Some)
        .map_err(|error| format!("a line states no load: {error}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(step: u64) -> String {
        format!("{{\"step\":{step},\"waiting\":1,\"running\":2,\"kv_use\":0.25}}\n")
    }

    fn steps(pieces: &[&[u8]]) -> Vec<u64> {
        let mut lines = Lines::default();
        let take = |piece: &&[u8]| lines.take(piece).unwrap().map(|line| line.step);
        pieces.iter().filter_map(take).collect()
    }

    #[test]
    fn a_line_replaces_the_load_and_nothing_else() {
        let polled = Reported {
            engine: "vllm:",
            waiting: 9.0,
            kv_use: Some(0.9),
            kv_tokens: Some(640.0),
            max_adapters: 4,
            work: Some(7.0),
            ..Reported::default()
        };
        let mut lines = Lines::default();
        let line = lines.take(line(3).as_bytes()).unwrap().unwrap();
        let expected = Reported {
            waiting: 1.0,
            running: 2.0,
            kv_use: Some(0.25),
            ..polled.clone()
        };
        assert_eq!(line.over(&polled), expected);
    }

    #[test]
    fn the_last_line_of_many_counts() {
        let three = [line(1), line(2), line(3)].concat();
        assert_eq!(steps(&[three.as_bytes()]), [3]);
        let (begin, end) = three.as_bytes().split_at(three.len() - 5);
        assert_eq!(steps(&[begin, end]), [2, 3]);
        assert_eq!(steps(&[b"", b"\n", b"\r\n"]), [0; 0]);
    }

    #[test]
    fn garbage_and_huge_lines_are_refused_and_not_kept() {
        for garbage in [
            "<html>\n",
            "{}\n",
            "{\"step\":-1,\"waiting\":1,\"running\":2}\n",
            "{\"step\":1,\"waiting\":\"many\",\"running\":2}\n",
            "[1\n",
            "\u{fffd}\n",
        ] {
            assert!(
                Lines::default().take(garbage.as_bytes()).is_err(),
                "{garbage}"
            );
        }
        let mut lines = Lines::default();
        let error = lines.take(&[b' '; 1 << 20]).unwrap_err();
        assert!(error.contains("4096 bytes"), "{error}");
        assert_eq!(lines.begun.len(), 0);
        let piece = [b' '; 100];
        let fit = (0..100).take_while(|_| lines.take(&piece).is_ok()).count();
        assert_eq!(fit, 40);
    }

    #[test]
    fn numbers_stay_in_bounds() {
        let text =
            "{\"step\":1,\"waiting\":-5,\"running\":1e30,\"kv_use\":7,\"kv_tokens\":1e300}\n";
        let line = Lines::default().take(text.as_bytes()).unwrap().unwrap();
        let found = line.over(&Reported::default());
        let numbers = (found.waiting, found.running, found.kv_use, found.kv_tokens);
        assert_eq!(numbers, (0.0, 1e9, Some(1.0), Some(1e9)));
    }

    proptest! {
        /// However the bytes are cut, the last line arrives, and no more than one line is buffered.
        #[test]
        fn cuts_do_not_matter(count in 1u64..20, size in 1usize..200) {
            let text: String = (1..=count).map(line).collect();
            let mut lines = Lines::default();
            let mut last = None;
            for piece in text.as_bytes().chunks(size) {
                last = lines.take(piece).unwrap().or(last);
                prop_assert!(lines.begun.len() < line(count).len());
            }
            prop_assert_eq!(last.map(|line| line.step), Some(count));
        }
    }
}
