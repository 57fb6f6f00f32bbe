//! What an answer says of its tokens, read as it passes.

use memchr::memmem;
use serde::Deserialize;

/// Bytes at the end of an answer in which its usage is looked for. OpenAI's and Anthropic's answers
/// and streams have it in their last event or member.
const TAIL: usize = 4096;

/// The counts of an answer, under OpenAI's names or Anthropic's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Usage {
    #[serde(default, alias = "input_tokens")]
    pub(crate) prompt_tokens: u32,
    #[serde(default, alias = "output_tokens")]
    pub(crate) completion_tokens: u32,
}

/// An answer's bytes so far.
#[derive(Debug, Default)]
pub(crate) struct UsageReader {
    tail: Vec<u8>,
}

impl UsageReader {
    pub(crate) fn see(&mut self, bytes: &[u8]) {
        if bytes.len() >= TAIL {
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[bytes.len() - TAIL..]);
            return;
        }
        if self.tail.len() + bytes.len() > 2 * TAIL {
            let surplus = self.tail.len() + bytes.len() - TAIL;
            self.tail.drain(..surplus.min(self.tail.len()));
        }
        self.tail.extend_from_slice(bytes);
    }

    /// The last usage that is no null.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let name = b"\"usage\":";
        let mut found = memmem::rfind_iter(&self.tail, name);
        found.find_map(|at| {
            let rest = &self.tail[at + name.len()..];
            let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<Usage>();
            values.next()?.ok()
        })
    }
}

/// Events of a stream in these bytes. One that is cut at its mark is missed: the count is for
/// rates.
pub(crate) fn events(bytes: &[u8]) -> u32 {
    let first = u32::from(bytes.starts_with(b"data:"));
    first + memmem::find_iter(bytes, b"\ndata:").count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parts: &[&[u8]]) -> Option<Usage> {
        let mut reader = UsageReader::default();
        parts.iter().for_each(|part| reader.see(part));
        reader.usage()
    }

    #[test]
    fn usage_is_found_in_any_cut() {
        let text = format!(
            "data: {{\"x\":\"{}\",\"usage\":null}}\n\ndata: {{\"usage\": {{\"prompt_tokens\":7,\
             \"completion_tokens\":3,\"d\":{{}}}}}}\n\ndata: [DONE]\n\n",
            "y".repeat(9000)
        );
        let wanted = Usage {
            prompt_tokens: 7,
            completion_tokens: 3,
        };
        for size in [1, 3, 100, 4096, 100_000] {
            let parts: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            assert_eq!(read(&parts), Some(wanted), "{size}");
        }
    }

    #[test]
    fn anthropic_s_names_count_and_no_usage_is_none() {
        let found = read(&[br#"{"usage":{"input_tokens":5,"output_tokens":2}}"#]).unwrap();
        assert_eq!((found.prompt_tokens, found.completion_tokens), (5, 2));
        assert_eq!(read(&[b"{\"usage\":null}", b""]), None);
        assert_eq!(read(&[b"\"usage\":"]), None);
    }

    #[test]
    fn events_are_counted_at_line_starts() {
        assert_eq!(events(b"data: a\n\ndata: data: b\n\n"), 2);
        assert_eq!(events(b": data: x\n\n"), 0);
    }
}
