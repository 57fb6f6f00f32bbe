//! The fields of a request to `/v1/messages`.

use serde_json::{Map, Value, json};

use super::blocks::conversation;
use super::tools::take_tools;
use crate::ChatRequest;
use crate::chat_body::{ChatBody, Names, renamed};
use crate::conversation::member;
use crate::error::ApiError;
use crate::fields::Fields;

const NAMES: Names = &[
    ("prompt", "messages"),
    ("stop", "stop_sequences"),
    ("max_completion_tokens", "max_tokens"),
    ("response_format", "output_config"),
    ("reasoning_effort", "output_config"),
    ("continue_final_message", "messages"),
];

/// A validated request of `/v1/messages` or `/v1/messages/count_tokens`.
#[derive(Debug, Clone, PartialEq)]
pub struct MessagesRequest {
    pub chat: ChatRequest,
}

impl MessagesRequest {
    /// Reads and validates a request body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        refuse(&mut fields)?;
        let mut chat = ChatBody::default();
        let system: Option<Value> = fields.take("system")?;
        let messages: Option<Vec<Value>> = fields.take("messages")?;
        let messages = messages.unwrap_or_default();
        let (messages, assistant_last) = conversation(system.as_ref(), &messages)?;
        chat.set("messages", messages);
        if assistant_last {
            // The response continues the assistant's last message.
            chat.set("continue_final_message", true);
            chat.set("add_generation_prompt", false);
        }
        if let Some(stop) = fields.take::<Vec<String>>("stop_sequences")? {
            chat.set("stop", stop);
        }
        take_tools(&mut fields, &mut chat)?;
        take_thinking(&mut fields, &mut chat)?;
        take_output(&mut fields, &mut chat)?;
        take_ignored(&mut fields)?;
        let chat = chat.read(&fields, NAMES)?;
        Ok(Self { chat })
    }

    /// Renames the fields in an error of the chat request to this protocol's names.
    pub fn renamed(error: ApiError) -> ApiError {
        renamed(error, NAMES)
    }
}

fn refuse(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    for name in ["mcp_servers", "container"] {
        let empty = |raw: &str| raw == "[]";
        if fields.take_raw(name).is_some_and(|raw| !empty(raw.get())) {
            let remedy = "nothing runs beside the model here; leave it out";
            return Err(ApiError::unsupported(name, remedy));
        }
    }
    Ok(())
}

/// Takes and ignores fields of other protocols, and fields that have no effect on this server.
fn take_ignored(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    fields.integer("n", 1..=1)?;
    for name in [
        "stream_options",
        "functions",
        "function_call",
        "logprobs",
        "top_logprobs",
        "metadata",
        "context_management",
    ] {
        fields.take_raw(name);
    }
    Ok(())
}

/// Passes the thinking switch as a chat template variable. The thinking budget is ignored:
/// `max_tokens` is the bound.
fn take_thinking(fields: &mut Fields<'_>, chat: &mut ChatBody) -> Result<(), ApiError> {
    let Some(thinking) = fields.take::<Value>("thinking")? else {
        return Ok(());
    };
    let think = match member(&thinking, "type") {
        Some("disabled") => false,
        Some("enabled" | "adaptive" | "between_tools") => true,
        _ => {
            let message = "thinking.type must be enabled, adaptive or disabled.";
            return Err(ApiError::invalid("thinking", message));
        }
    };
    let kwargs: Option<Map<String, Value>> = fields.take("chat_template_kwargs")?;
    let mut kwargs = kwargs.unwrap_or_default();
    kwargs.entry("enable_thinking").or_insert(think.into());
    chat.set("chat_template_kwargs", kwargs);
    Ok(())
}

fn take_output(fields: &mut Fields<'_>, chat: &mut ChatBody) -> Result<(), ApiError> {
    let config: Map<String, Value> = fields.take("output_config")?.unwrap_or_default();
    if let Some(effort) = config.get("effort").filter(|effort| !effort.is_null()) {
        chat.set("reasoning_effort", effort);
    }
    // The former location of the format.
    let older: Option<Value> = fields.take("output_format")?;
    let format = config.get("format").or(older.as_ref());
    let Some(format) = format.filter(|format| !format.is_null()) else {
        return Ok(());
    };
    let schema = format.get("schema").filter(|schema| schema.is_object());
    match (member(format, "type"), schema) {
        (Some("json_schema"), Some(schema)) => {
            let named = json!({"name": "output", "schema": schema, "strict": true});
            let format = json!({"type": "json_schema", "json_schema": named});
            chat.set("response_format", format);
            Ok(())
        }
        _ => {
            let message = "output_config.format must be {\"type\": \"json_schema\", \"schema\": \
                {...}}.";
            Err(ApiError::invalid("output_config", message))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::MaxTokens;

    fn parse(body: Value) -> Result<MessagesRequest, ApiError> {
        MessagesRequest::parse(body.to_string().as_bytes())
    }

    fn hi() -> Value {
        json!([{"role": "user", "content": "hi"}])
    }

    #[test]
    fn fields_have_their_names_in_chat() {
        let request = parse(json!({
            "model": "m", "max_tokens": 7, "system": "be kind", "messages": hi(),
            "stop_sequences": ["END"], "temperature": 0.5, "top_p": 0.25, "top_k": 3,
            "stream": true, "metadata": {"user_id": "u"},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "output_config": {"effort": "low"},
        }))
        .unwrap();
        let chat = request.chat;
        assert_eq!(
            chat.messages,
            json!([{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}])
        );
        assert_eq!(chat.common.max_tokens, MaxTokens::Exactly(7));
        assert_eq!(chat.common.stop, ["END"]);
        assert_eq!(chat.common.top_k, Some(3));
        assert!(chat.common.stream && chat.add_generation_prompt);
        assert_eq!(chat.template_kwargs["enable_thinking"], true);
        assert_eq!(chat.template_kwargs["reasoning_effort"], "low");
    }

    #[test]
    fn the_answer_goes_on_where_the_assistant_ended() {
        let messages = json!([{"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Well,"}]);
        let chat = parse(json!({"messages": messages})).unwrap().chat;
        assert!(chat.continue_final && !chat.add_generation_prompt);
    }

    #[test]
    fn what_cannot_be_served_is_refused_by_name() {
        for (name, value) in [
            ("mcp_servers", json!([{"name": "x"}])),
            ("container", json!("c")),
            ("messages", json!([])),
            ("messages", json!("hi")),
            ("max_tokens", json!(0)),
            ("stop_sequences", json!([""])),
            ("stop_sequences", json!("x")),
            ("thinking", json!({"type": "loud"})),
            ("output_config", json!({"format": {"type": "xml"}})),
            ("system", json!(3)),
            ("n", json!(2)),
        ] {
            let mut body = json!({"messages": hi(), "max_tokens": 5});
            body[name] = value.clone();
            let error = parse(body).unwrap_err();
            let got = (error.status, error.param.as_deref());
            assert_eq!(got, (400, Some(name)), "{name}: {value}");
        }
    }
}
