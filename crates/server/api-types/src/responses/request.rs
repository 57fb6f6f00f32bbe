//! The fields of a request to `/v1/responses`.

use serde_json::{Map, Value, json};

use super::body::Echo;
use super::items::conversation;
use super::tools::take_tools;
use crate::ChatRequest;
use crate::MAX_LOGPROBS;
use crate::chat_body::{ChatBody, Names, renamed};
use crate::error::ApiError;
use crate::fields::Fields;

const NAMES: Names = &[
    ("messages", "input"),
    ("prompt", "input"),
    ("max_tokens", "max_output_tokens"),
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format", "text"),
    ("reasoning_effort", "reasoning"),
];

/// Unsupported fields, each with the remedy that the error message gives.
const REFUSED: [(&str, &str); 4] = [
    (
        "previous_response_id",
        "responses are not stored here: send the whole conversation as input, the output items of \
         earlier responses included",
    ),
    (
        "conversation",
        "conversations are not stored here: send the whole conversation as input",
    ),
    (
        "prompt",
        "prompts are not stored here: send instructions and input",
    ),
    (
        "context_management",
        "conversations are not compacted here: send a shorter input",
    ),
];

/// A validated request of `/v1/responses` or `/v1/responses/input_tokens`.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponsesRequest {
    pub chat: ChatRequest,
    /// Request fields echoed in the response.
    pub echo: Echo,
}

impl ResponsesRequest {
    /// Reads and validates a request body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        refuse(&mut fields)?;
        let mut chat = ChatBody::default();
        let instructions: Option<String> = fields.take("instructions")?;
        let input: Option<Value> = fields.take("input")?;
        let input = input.ok_or_else(|| ApiError::invalid("input", "input is required."))?;
        chat.set("messages", conversation(instructions.as_deref(), &input)?);
        let max_output_tokens = fields.integer("max_output_tokens", 1..=i64::from(u32::MAX))?;
        if let Some(most) = max_output_tokens {
            chat.set("max_completion_tokens", most);
        }
        let tools = take_tools(&mut fields, &mut chat)?;
        let text = take_text(&mut fields, &mut chat)?;
        let reasoning = take_reasoning(&mut fields, &mut chat)?;
        let top_logprobs = take_logprobs(&mut fields, &mut chat)?;
        take_ignored(&mut fields)?;
        let metadata: Option<Map<String, Value>> = fields.take("metadata")?;
        let chat = chat.read(&fields, NAMES)?;
        let echo = Echo {
            instructions,
            max_output_tokens,
            metadata: metadata.unwrap_or_default(),
            parallel_tool_calls: tools.parallel,
            reasoning,
            temperature: chat.common.temperature,
            text,
            tool_choice: tools.choice,
            tools: tools.given,
            top_logprobs,
            top_p: chat.common.top_p,
        };
        Ok(Self { chat, echo })
    }

    /// Renames the fields in an error of the chat request to this protocol's names.
    pub fn renamed(error: ApiError) -> ApiError {
        renamed(error, NAMES)
    }
}

fn refuse(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    for (name, remedy) in REFUSED {
        let empty = |raw: &str| matches!(raw, "\"\"" | "[]");
        if fields.take_raw(name).is_some_and(|raw| !empty(raw.get())) {
            return Err(ApiError::unsupported(name, remedy));
        }
    }
    if fields.flag("background", false)? {
        let remedy = "responses are not stored here, so none could be fetched later; send false";
        return Err(ApiError::unsupported("background", remedy));
    }
    match fields.take::<String>("truncation")?.as_deref() {
        None | Some("disabled") => Ok(()),
        Some(_) => Err(ApiError::unsupported(
            "truncation",
            "input is not dropped here: send disabled, or less input",
        )),
    }
}

/// Takes and ignores fields of other protocols, and fields that have no effect on this server.
fn take_ignored(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    fields.integer("n", 1..=1)?;
    fields.flag("store", true)?;
    for name in ["stream_options", "functions", "function_call"] {
        fields.take_raw(name);
    }
    Ok(())
}

/// Takes `text`, the format of the output; returns it as echoed in the response.
fn take_text(fields: &mut Fields<'_>, chat: &mut ChatBody) -> Result<Value, ApiError> {
    let mut text: Map<String, Value> = fields.take("text")?.unwrap_or_default();
    let wrong = |message: &str| Err(ApiError::invalid("text", message));
    let format = text.get("format").filter(|format| !format.is_null());
    let kind = format.map(|format| format.get("type").and_then(Value::as_str));
    match (format, kind) {
        (None, _) => {
            text.insert("format".into(), json!({"type": "text"}));
        }
        (_, Some(Some("text"))) => {}
        (Some(format), Some(Some("json_object"))) => chat.set("response_format", format),
        (Some(Value::Object(format)), Some(Some("json_schema"))) => {
            if !format.get("schema").is_some_and(Value::is_object) {
                return wrong("text.format.schema must be an object.");
            }
            let mut schema = format.clone();
            schema.remove("type");
            schema.entry("name").or_insert_with(|| "output".into());
            let named = json!({"type": "json_schema", "json_schema": schema});
            chat.set("response_format", named);
        }
        _ => return wrong("text.format.type must be text, json_object or json_schema."),
    }
    Ok(Value::Object(text))
}

/// Takes `reasoning`; returns it as echoed. Its effort becomes a variable of the chat template.
fn take_reasoning(fields: &mut Fields<'_>, chat: &mut ChatBody) -> Result<Value, ApiError> {
    let reasoning: Map<String, Value> = fields.take("reasoning")?.unwrap_or_default();
    let text = |name: &str| match reasoning.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => {
            let message = format!("reasoning.{name} must be a string.");
            Err(ApiError::invalid("reasoning", message))
        }
    };
    let (effort, summary) = (text("effort")?, text("summary")?);
    if let Some(effort) = effort {
        chat.set("reasoning_effort", effort);
    }
    Ok(json!({"effort": effort, "summary": summary}))
}

/// Takes `top_logprobs`, and `include`, which may also request log-probabilities; returns the
/// number of alternatives per token.
fn take_logprobs(fields: &mut Fields<'_>, chat: &mut ChatBody) -> Result<u8, ApiError> {
    let include: Vec<String> = fields.take("include")?.unwrap_or_default();
    let top = fields.integer("top_logprobs", 0..=i64::from(MAX_LOGPROBS))?;
    let top = top.unwrap_or(0) as u8;
    let wanted = top > 0
        || include
            .iter()
            .any(|what| what == "message.output_text.logprobs");
    chat.set("logprobs", wanted);
    if wanted {
        chat.set("top_logprobs", top);
    }
    Ok(top)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{MaxTokens, ToolChoice};

    fn parse(body: Value) -> Result<ResponsesRequest, ApiError> {
        ResponsesRequest::parse(body.to_string().as_bytes())
    }

    #[test]
    fn fields_have_their_names_in_chat() {
        let request = parse(json!({
            "model": "m", "input": "hi", "instructions": "be kind", "max_output_tokens": 7,
            "temperature": 0.5, "top_p": 0.25, "seed": 3, "stream": true, "store": true,
            "reasoning": {"effort": "low", "summary": "auto"}, "top_logprobs": 2,
            "metadata": {"a": "b"}, "include": ["reasoning.encrypted_content"], "user": "u",
            "truncation": "disabled", "previous_response_id": null,
            "stream_options": {"include_obfuscation": false},
        }))
        .unwrap();
        let chat = &request.chat;
        assert_eq!(
            chat.messages,
            json!([{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}])
        );
        assert_eq!(chat.common.max_tokens, MaxTokens::Exactly(7));
        assert_eq!(chat.common.temperature, Some(0.5));
        assert_eq!(chat.common.seed, Some(3));
        assert!(chat.common.stream);
        assert_eq!(chat.logprobs, Some(2));
        assert_eq!(chat.template_kwargs["reasoning_effort"], "low");
        let echo = serde_json::to_value(&request.echo).unwrap();
        assert_eq!(echo["metadata"], json!({"a": "b"}));
        assert_eq!(
            echo["reasoning"],
            json!({"effort": "low", "summary": "auto"})
        );
        assert_eq!(echo["text"], json!({"format": {"type": "text"}}));
        let include = json!(["message.output_text.logprobs"]);
        let request = parse(json!({"input": "hi", "include": include})).unwrap();
        assert_eq!(request.chat.logprobs, Some(0));
    }

    #[test]
    fn choices_of_tools_are_those_of_chat() {
        let tool = |name: &str| json!({"type": "function", "name": name, "parameters": null});
        let choose = |choice: Value| {
            let body = json!({"input": "hi", "tools": [tool("f"), tool("g")],
                "tool_choice": choice});
            parse(body)
        };
        let tools = choose(json!({"type": "function", "name": "g"})).unwrap();
        assert_eq!(tools.chat.tools.choice, ToolChoice::Named("g".into()));
        let allowed = json!({"type": "allowed_tools", "mode": "required",
            "tools": [{"type": "function", "name": "g"}]});
        let tools = choose(allowed).unwrap();
        assert_eq!(tools.chat.tools.choice, ToolChoice::Required);
        assert_eq!(tools.chat.tools.list.len(), 1);
        assert_eq!(tools.echo.tools.len(), 2);
        for wrong in [
            json!("h"),
            json!({"type": "mcp"}),
            json!({"type": "function"}),
        ] {
            let error = choose(wrong).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("tool_choice"));
        }
    }

    #[test]
    fn what_cannot_be_served_is_refused_by_name() {
        for (name, value) in [
            ("previous_response_id", json!("resp_1")),
            ("conversation", json!({"id": "c"})),
            ("prompt", json!({"id": "p"})),
            ("background", json!(true)),
            ("truncation", json!("auto")),
            ("n", json!(2)),
            ("max_output_tokens", json!(0)),
            ("text", json!({"format": {"type": "xml"}})),
            ("text", json!({"format": {"type": "json_schema"}})),
            ("reasoning", json!({"effort": 3})),
            ("best_of", json!(3)),
            ("input", json!({})),
            ("input", json!(null)),
            ("instructions", json!([])),
            ("top_logprobs", json!(21)),
        ] {
            let mut body = json!({"input": "hi"});
            body[name] = value.clone();
            let error = parse(body).unwrap_err();
            let got = (error.status, error.param.as_deref());
            assert_eq!(got, (400, Some(name)), "{name}: {value}");
        }
    }
}
