//! Trial of a template at start-up, with common conversations.

use serde_json::{Map, Value, json};

use super::ChatTemplate;
use crate::TextError;

impl ChatTemplate {
    /// Renders one user message, then a conversation with a system message, then a conversation
    /// with tools. Returns an entry for each of the last two conversations that the template
    /// refuses. A server renders a refused conversation in an alternative form.
    ///
    /// # Errors
    /// The template cannot render one user message.
    pub fn try_out(&self) -> Result<Vec<(&'static str, TextError)>, TextError> {
        let render = |messages: Value, tools: Option<&Value>| {
            self.render(&messages, true, tools, &Map::new()).map(drop)
        };
        let user = json!({"role": "user", "content": "Hello."});
        render(json!([user]), None)?;
        let system = json!({"role": "system", "content": "Be brief."});
        let function = json!({"name": "add", "description": "Adds two numbers.",
            "parameters": {"type": "object", "required": ["a"],
                "properties": {"a": {"type": "number", "description": "The first."}}}});
        let tools = json!([{"type": "function", "function": function}]);
        let call = json!({"name": "add", "arguments": "{\"a\": 1}"});
        let calls = json!([{"id": "abcdefgh1", "type": "function", "function": call}]);
        let round = json!([
            user,
            {"role": "assistant", "content": null, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "abcdefgh1", "name": "add", "content": "3"},
        ]);
        let tried = [
            ("a system turn", render(json!([system, user]), None)),
            ("a round of tools", render(round, Some(&tools))),
        ];
        let refused = tried.into_iter();
        Ok(refused
            .filter_map(|(what, result)| Some((what, result.err()?)))
            .collect())
    }
}
