//! The fields `tools` and `tool_choice` of `/v1/messages`.

use serde_json::{Map, Value, json};

use crate::chat_body::ChatBody;
use crate::conversation::{member, required};
use crate::error::ApiError;
use crate::fields::Fields;

pub(super) fn take_tools(fields: &mut Fields<'_>, chat: &mut ChatBody) -> Result<(), ApiError> {
    let tools: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let choice: Option<Value> = fields.take("tool_choice")?;
    if tools.is_empty() {
        return Ok(());
    }
    // A tool of another type runs at Anthropic, or has a schema that only Anthropic's models know,
    // so it is skipped.
    let ours = |(_, tool): &(usize, &Value)| matches!(member(tool, "type"), None | Some("custom"));
    let functions: Result<Vec<_>, _> = tools
        .iter()
        .enumerate()
        .filter(ours)
        .map(function)
        .collect();
    chat.set("tools", functions?);
    let Some(choice) = choice else {
        return Ok(());
    };
    let chosen = match member(&choice, "type") {
        Some(word @ ("auto" | "none")) => json!(word),
        Some("any") => json!("required"),
        Some("tool") => {
            let name = required(&choice, "name", || "tool_choice".to_owned())?;
            json!({"type": "function", "function": {"name": name}})
        }
        _ => {
            let message = "tool_choice.type must be auto, any, tool or none.";
            return Err(ApiError::invalid("tool_choice", message));
        }
    };
    chat.set("tool_choice", chosen);
    if choice.get("disable_parallel_tool_use") == Some(&json!(true)) {
        chat.set("parallel_tool_calls", false);
    }
    Ok(())
}

fn function((index, tool): (usize, &Value)) -> Result<Value, ApiError> {
    let at = || format!("tools[{index}]");
    let mut function = Map::new();
    function.insert("name".into(), required(tool, "name", at)?.into());
    let schema = tool.get("input_schema").filter(|schema| schema.is_object());
    let Some(schema) = schema else {
        let message = format!("{}.input_schema must be an object.", at());
        return Err(ApiError::invalid("tools", message));
    };
    function.insert("parameters".into(), schema.clone());
    for name in ["description", "strict"] {
        if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
            function.insert(name.into(), value.clone());
        }
    }
    Ok(json!({"type": "function", "function": function}))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn take(body: Value) -> Result<ChatBody, ApiError> {
        let body = body.to_string();
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        let mut chat = ChatBody::default();
        take_tools(&mut fields, &mut chat).map(|()| chat)
    }

    fn tool() -> Value {
        json!({"name": "f", "description": "d", "input_schema": {"type": "object"}})
    }

    #[test]
    fn tools_and_choices_in_the_words_of_chat() {
        let chat = take(json!({"tools": [tool()]})).unwrap();
        let function = json!({"name": "f", "parameters": {"type": "object"}, "description": "d"});
        assert_eq!(
            chat.get("tools").unwrap(),
            json!([{"type": "function", "function": function}])
        );
        assert!(chat.get("tool_choice").is_none());
        for (choice, expected) in [
            (json!({"type": "auto"}), json!("auto")),
            (json!({"type": "none"}), json!("none")),
            (json!({"type": "any"}), json!("required")),
            (
                json!({"type": "tool", "name": "f"}),
                json!({"type": "function", "function": {"name": "f"}}),
            ),
        ] {
            let chat = take(json!({"tools": [tool()], "tool_choice": choice})).unwrap();
            assert_eq!(chat.get("tool_choice").unwrap(), expected);
            assert!(chat.get("parallel_tool_calls").is_none());
        }
        let one = json!({"type": "any", "disable_parallel_tool_use": true});
        let chat = take(json!({"tools": [tool()], "tool_choice": one})).unwrap();
        assert_eq!(chat.get("parallel_tool_calls").unwrap(), false);
    }

    #[test]
    fn tools_of_anthropic_are_left_out() {
        let theirs = json!({"type": "web_search_20250305", "name": "web_search"});
        let chat = take(json!({"tools": [theirs, tool()]})).unwrap();
        assert_eq!(chat.get("tools").unwrap().as_array().unwrap().len(), 1);
        for body in [
            json!({"tools": [theirs]}),
            json!({"tools": [theirs], "tool_choice": {"type": "auto"}}),
        ] {
            assert_eq!(take(body).unwrap().get("tools").unwrap(), json!([]));
        }
        for tool in [json!({"name": "f"}), json!({"input_schema": {}}), json!(1)] {
            let error = take(json!({"tools": [tool]})).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("tools"));
        }
        let body = json!({"tools": [tool()], "tool_choice": {"type": "all"}});
        assert_eq!(
            take(body).err().unwrap().param.as_deref(),
            Some("tool_choice")
        );
    }
}
