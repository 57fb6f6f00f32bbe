//! Converts requests of other protocols to the body of a chat request. The parser of chat requests
//! then reads that body, so that limits, errors and defaults are the same.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::chat::ChatRequest;
use super::fields::Fields;
use crate::error::ApiError;

/// Pairs of chat's field name and the other protocol's name.
pub(crate) type Names = &'static [(&'static str, &'static str)];

/// Builder of the body of a chat request.
#[derive(Debug, Default)]
pub(crate) struct ChatBody(Vec<(&'static str, Box<RawValue>)>);

impl ChatBody {
    pub(crate) fn set(&mut self, name: &'static str, value: impl Serialize) {
        // Plain data with string keys always serialises.
        if let Ok(raw) = to_raw_value(&value) {
            self.0.push((name, raw));
        }
    }

    #[cfg(test)]
    pub(crate) fn get(&self, name: &str) -> Option<serde_json::Value> {
        let (_, raw) = self.0.iter().find(|(known, _)| *known == name)?;
        serde_json::from_str(raw.get()).ok()
    }

    /// Parses the result as a chat request. Remaining fields of the original body keep their
    /// meaning in chat; fields set here override them.
    pub(crate) fn read(self, rest: &Fields<'_>, names: Names) -> Result<ChatRequest, ApiError> {
        let mut text = Vec::new();
        let own = self.0.iter().map(|(name, raw)| (*name, &**raw));
        for (name, raw) in rest.remaining().chain(own) {
            text.push(if text.is_empty() { b'{' } else { b',' });
            let name = serde_json::to_vec(name).unwrap_or_default();
            text.extend_from_slice(&name);
            text.push(b':');
            text.extend_from_slice(raw.get().as_bytes());
        }
        text.push(b'}');
        ChatRequest::parse(&text).map_err(|error| renamed(error, names))
    }
}

/// Replaces chat's field names in an error by those of the client's protocol.
pub(crate) fn renamed(mut error: ApiError, names: Names) -> ApiError {
    let known = error.param.as_deref().and_then(|param| {
        let known = names.iter().find(|(chat, _)| *chat == param);
        known.copied()
    });
    if let Some((chat, own)) = known {
        error.message = error.message.replace(chat, own);
        error.param = Some(own.into());
    }
    error
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::MaxTokens;
    use serde_json::json;

    #[test]
    fn what_was_not_taken_goes_on_to_chat_and_errors_have_the_other_names() {
        let read = |body: &str, most: u32| {
            let fields = Fields::parse(body.as_bytes()).unwrap();
            let mut chat = ChatBody::default();
            chat.set("messages", json!([{"role": "user", "content": "hi"}]));
            chat.set("max_tokens", most);
            chat.read(&fields, &[("max_tokens", "most")])
        };
        let request = read(r#"{"seed": 3, "max_tokens": 7}"#, 4).unwrap();
        assert_eq!(request.common.seed, Some(3));
        assert_eq!(request.common.max_tokens, MaxTokens::Exactly(4));
        let error = read("{}", 0).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("most"));
        assert_eq!(error.message, "most must be at least 1, got 0.");
        let error = read(r#"{"best_of": 3}"#, 4).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("best_of"));
    }
}
