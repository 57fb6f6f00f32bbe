//! The fields `tools` and `tool_choice` of `/v1/responses`.

use serde_json::{Map, Value, json};

use crate::chat_body::ChatBody;
use crate::conversation::{member, required};
use crate::error::ApiError;
use crate::fields::Fields;

/// Tools as echoed in the response: functions only. Agents send hosted tools (such as web search)
/// to every server. The server behind the API would have to run them, so they are dropped and not
/// offered to the model.
#[derive(Debug)]
pub(super) struct Tools {
    pub(super) given: Vec<Value>,
    pub(super) choice: Value,
    pub(super) parallel: bool,
}

pub(super) fn take_tools(fields: &mut Fields<'_>, chat: &mut ChatBody) -> Result<Tools, ApiError> {
    let sent: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let (mut given, mut functions) = (Vec::new(), Vec::new());
    for (index, tool) in sent.into_iter().enumerate() {
        match member(&tool, "type") {
            Some("function") => {
                functions.push(function(index, &tool)?);
                given.push(tool);
            }
            Some(_) => {}
            None => {
                let message = format!("tools[{index}] has no type.");
                return Err(ApiError::invalid("tools", message));
            }
        }
    }
    chat.set("tools", functions);
    let choice: Option<Value> = fields.take("tool_choice")?;
    let choice = choice.unwrap_or_else(|| "auto".into());
    chat.set("tool_choice", functions_only(&choice)?);
    let parallel = fields.flag("parallel_tool_calls", true)?;
    chat.set("parallel_tool_calls", parallel);
    Ok(Tools {
        given,
        choice,
        parallel,
    })
}

/// Removes dropped tools from the tool choice. A choice that requires a dropped tool is an error.
fn functions_only(choice: &Value) -> Result<Value, ApiError> {
    let is_function = |tool: &Value| matches!(member(tool, "type"), None | Some("function"));
    let mut choice = choice.clone();
    match member(&choice, "type") {
        Some("allowed_tools") => {
            if let Some(Value::Array(tools)) = choice.get_mut("tools") {
                tools.retain(is_function);
            }
        }
        Some(kind) if !is_function(&choice) => {
            let message = format!(
                "tool_choice demands {kind:.60}: this server has function tools only; tools that \
                 run at OpenAI are not here."
            );
            return Err(ApiError::invalid("tool_choice", message));
        }
        _ => {}
    }
    Ok(choice)
}

/// Converts a function tool from the flat format of this endpoint to chat's nested one.
fn function(index: usize, tool: &Value) -> Result<Value, ApiError> {
    required(tool, "name", || format!("tools[{index}]"))?;
    let mut function: Map<String, Value> = tool.as_object().cloned().unwrap_or_default();
    function.retain(|name, value| {
        let known = ["name", "description", "parameters", "strict"];
        known.contains(&name.as_str()) && !value.is_null()
    });
    Ok(json!({"type": "function", "function": function}))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn take(body: Value) -> Result<(Tools, ChatBody), ApiError> {
        let body = body.to_string();
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        let mut chat = ChatBody::default();
        take_tools(&mut fields, &mut chat).map(|tools| (tools, chat))
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "name": name, "parameters": {"type": "object"},
               "strict": false, "description": null})
    }

    #[test]
    fn functions_are_nested_and_tools_of_a_host_left_out() {
        let sent = json!([
            tool("f"), {"type": "web_search", "external_web_access": true},
            {"type": "namespace", "name": "n", "tools": []}, {"type": "image_generation"},
            {"type": "mcp", "server_label": "s"}, {"type": "of_next_year"},
        ]);
        let (tools, chat) = take(json!({"tools": sent, "tool_choice": "auto"})).unwrap();
        assert_eq!(tools.given, [tool("f")]);
        assert!(tools.parallel);
        let function = json!({"name": "f", "parameters": {"type": "object"}, "strict": false});
        assert_eq!(
            chat.get("tools").unwrap(),
            json!([{"type": "function", "function": function}])
        );
    }

    #[test]
    fn choices_are_among_functions() {
        let allowed = json!({"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "web_search"}, {"type": "function", "name": "f"}]});
        let (tools, chat) = take(json!({"tools": [tool("f")], "tool_choice": allowed})).unwrap();
        assert_eq!(
            chat.get("tool_choice").unwrap()["tools"],
            json!([{"type": "function", "name": "f"}])
        );
        assert_eq!(tools.choice, allowed);
    }

    #[test]
    fn what_is_no_tool_and_what_cannot_be_demanded_is_refused() {
        for (body, param) in [
            (json!({"tools": [3]}), "tools"),
            (json!({"tools": [{}]}), "tools"),
            (json!({"tools": [{"type": "function"}]}), "tools"),
            (
                json!({"tool_choice": {"type": "image_generation"}}),
                "tool_choice",
            ),
            (
                json!({"tool_choice": {"type": "mcp", "server_label": "s"}}),
                "tool_choice",
            ),
        ] {
            let error = take(body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param));
        }
    }
}
