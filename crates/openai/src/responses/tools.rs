//! Tools and their choice.

use serde_json::{Map, Value, json};

use crate::chat_body::ChatBody;
use crate::conversation::{member, required};
use crate::error::ApiError;
use crate::fields::Fields;

/// Tools that need a host behind the API, and that agents send to every server. The model is not
/// offered them: it cannot call what it does not know. The response lists those it has.
const LEFT_OUT: [&str; 8] = [
    "web_search",
    "web_search_preview",
    "local_shell",
    "shell",
    "apply_patch",
    "custom",
    "namespace",
    "tool_search",
];

/// Tools as the response repeats them.
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
            Some(kind) if LEFT_OUT.contains(&kind) => {}
            kind => return Err(refused(index, kind.unwrap_or("of no type"))),
        }
    }
    chat.set("tools", functions);
    let choice: Option<Value> = fields.take("tool_choice")?;
    let choice = choice.unwrap_or_else(|| "auto".into());
    chat.set("tool_choice", &choice);
    let parallel = fields.flag("parallel_tool_calls", true)?;
    chat.set("parallel_tool_calls", parallel);
    Ok(Tools {
        given,
        choice,
        parallel,
    })
}

fn refused(index: usize, kind: &str) -> ApiError {
    let message = format!(
        "tools[{index}] is {kind:.60}: this server has function tools only; tools that run at \
         OpenAI are not here."
    );
    ApiError::invalid("tools", message)
}

/// Chat nests what is flat here.
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
            {"type": "namespace", "name": "n", "tools": []},
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
    fn tools_of_openai_are_refused() {
        for body in [
            json!({"tools": [{"type": "file_search"}]}),
            json!({"tools": [{"type": "mcp"}]}),
            json!({"tools": [3]}),
            json!({"tools": [{"type": "function"}]}),
        ] {
            let error = take(body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("tools"));
        }
    }
}
