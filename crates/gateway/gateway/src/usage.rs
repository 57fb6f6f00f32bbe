//! The token counts in the member `usage` of a response.

use serde_json::Value;

/// The token counts of a response so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: Option<u32>,
    pub(crate) completion_tokens: Option<u32>,
    /// Prompt tokens whose KV came from a cache.
    pub(crate) cached_tokens: Option<u32>,
}

impl Usage {
    /// Merges a later `usage`, with OpenAI's names or Anthropic's. Counts that are absent or null
    /// keep their earlier values. Returns whether the `usage` has output tokens.
    pub(crate) fn note(&mut self, json: &[u8]) -> bool {
        let Ok(usage) = serde_json::from_slice::<Value>(json) else {
            return false;
        };
        let completion = count(&usage, &["completion_tokens", "output_tokens"]);
        // Anthropic's input tokens exclude cached ones
        let read = count(&usage, &["cache_read_input_tokens"]);
        let created = count(&usage, &["cache_creation_input_tokens"]);
        let cached = read.unwrap_or(0).saturating_add(created.unwrap_or(0));
        let mut details = ["prompt_tokens_details", "input_tokens_details"].into_iter();
        let details = details.find_map(|name| count(usage.get(name)?, &["cached_tokens"]));
        self.cached_tokens = details.or(read).or(self.cached_tokens);
        let prompt = count(&usage, &["prompt_tokens", "input_tokens"]);
        let prompt = prompt.map(|prompt| prompt.saturating_add(cached));
        // rerankers report only the total
        let rest =
            || Some(count(&usage, &["total_tokens"])?.saturating_sub(completion.unwrap_or(0)));
        self.prompt_tokens = prompt.or_else(rest).or(self.prompt_tokens);
        self.completion_tokens = completion.or(self.completion_tokens);
        completion.is_some()
    }
}

/// The first of these members that is a number. Accepts 6.0, which some encoders write for 6.
fn count(usage: &Value, names: &[&str]) -> Option<u32> {
    let count = names.iter().find_map(|name| usage.get(name)?.as_f64())?;
    (count >= 0.0).then_some(count as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(all: &[&str]) -> (Option<u32>, Option<u32>) {
        let mut usage = Usage::default();
        for one in all {
            usage.note(one.as_bytes());
        }
        (usage.prompt_tokens, usage.completion_tokens)
    }

    #[test]
    fn cached_tokens_are_found_under_each_api_s_name() {
        for (usage, wanted) in [
            (r#"{"prompt_tokens_details":{"cached_tokens":5}}"#, Some(5)),
            (r#"{"input_tokens_details":{"cached_tokens":6}}"#, Some(6)),
            (r#"{"cache_read_input_tokens":7}"#, Some(7)),
            (r#"{"prompt_tokens_details":null}"#, None),
            ("{}", None),
        ] {
            let mut found = Usage::default();
            found.note(usage.as_bytes());
            assert_eq!(found.cached_tokens, wanted, "{usage}");
        }
    }

    #[test]
    fn all_names_count_and_what_is_not_said_is_not_known() {
        let openai = r#"{"prompt_tokens":7,"completion_tokens":3.0,"total_tokens":10}"#;
        assert_eq!(noted(&[openai]), (Some(7), Some(3)));
        assert_eq!(
            noted(&[openai, "null", "{}", "7", "{", "[]"]),
            (Some(7), Some(3))
        );
        let anthropic = r#"{"input_tokens":5,"cache_read_input_tokens":4,"output_tokens":1}"#;
        assert_eq!(noted(&[anthropic]), (Some(9), Some(1)));
        assert_eq!(
            noted(&[anthropic, r#"{"output_tokens":20}"#]),
            (Some(9), Some(20))
        );
        assert_eq!(noted(&[r#"{"total_tokens":6}"#]), (Some(6), None));
        assert_eq!(noted(&["null"]), (None, None));
        assert_eq!(
            noted(&[r#"{"prompt_tokens":null,"completion_tokens":-1}"#]),
            (None, None)
        );
    }
}
