//! Tools that a request offers to the model, in the formats of the chat endpoint. Other protocols
//! build the same plain data with [`Tool::new`] and [`Tools::new`].

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::fields::{Fields, read};
use crate::error::ApiError;

/// Maximum number of tools per request, as in OpenAI's API.
const MAX_TOOLS: usize = 128;
/// Maximum bytes of all tools of a request together. Their text is part of the prompt.
const MAX_TOOL_BYTES: usize = 256 << 10;
/// Maximum length of a tool's name, as in Anthropic's API; OpenAI's has 64.
const MAX_NAME_BYTES: usize = 128;

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// 1 to 128 of `a-z A-Z 0-9 _ - .`
    pub name: String,
    pub description: Option<String>,
    /// A JSON schema of an object; `None` for a function without parameters.
    pub parameters: Option<Map<String, Value>>,
    /// Enforce the schema even if tool calls are optional.
    pub strict: bool,
}

/// Tool choice: calls that the response must or may contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// No calls.
    None,
    /// Calls, text or both.
    Auto,
    /// At least one call.
    Required,
    /// One call of this function.
    Named(String),
}

/// The tools of a request. Without any, `list` is empty and `choice` is `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    /// Callable tools, after applying `allowed_tools`.
    pub list: Vec<Tool>,
    pub choice: ToolChoice,
    /// Allow several calls in one answer.
    pub parallel: bool,
    /// The request used `functions`: the response has `function_call` instead of `tool_calls`.
    pub legacy: bool,
}

impl Default for Tools {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            choice: ToolChoice::None,
            parallel: true,
            legacy: false,
        }
    }
}

impl Tool {
    /// A checked tool; `at` names its place in the request (`tools[3]`).
    ///
    /// # Errors
    /// A name that is not 1 to 128 of the allowed characters, parameters that are not an object.
    pub fn new(
        at: &str,
        name: String,
        description: Option<String>,
        parameters: Option<Value>,
        strict: bool,
    ) -> Result<Self, ApiError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(allowed) {
            return Err(invalid(format!(
                "{at}: a function's name has 1 to {MAX_NAME_BYTES} of the characters a-z, A-Z, \
                 0-9, _, - and the dot, not {name:.80?}."
            )));
        }
        let parameters = match parameters {
            None | Some(Value::Null) => None,
            Some(Value::Object(schema)) => Some(schema),
            Some(_) => {
                let message = format!("{at}: parameters of {name} must be a JSON schema object.");
                return Err(invalid(message));
            }
        };
        Ok(Self {
            name,
            description,
            parameters,
            strict,
        })
    }

    /// The tool in the format that chat templates expect.
    pub fn for_template(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".into(), self.name.clone().into());
        if let Some(description) = &self.description {
            function.insert("description".into(), description.clone().into());
        }
        let parameters = self.parameters.clone().map(Value::Object);
        let none = || json!({"type": "object", "properties": {}});
        function.insert("parameters".into(), parameters.unwrap_or_else(none));
        json!({"type": "function", "function": function})
    }
}

impl Tools {
    /// Validates the tools; `byte_length` is their size in the request.
    ///
    /// # Errors
    /// Too many tools or bytes, a duplicate name, or a choice of an unknown tool.
    pub fn new(
        list: Vec<Tool>,
        choice: ToolChoice,
        parallel: bool,
        byte_length: usize,
    ) -> Result<Self, ApiError> {
        if list.len() > MAX_TOOLS {
            let message = format!("tools: at most {MAX_TOOLS}, got {}.", list.len());
            return Err(invalid(message));
        }
        check_bytes(byte_length)?;
        for (index, tool) in list.iter().enumerate() {
            if list[..index].iter().any(|other| other.name == tool.name) {
                let message = format!("tools: the name {} is there twice.", tool.name);
                return Err(invalid(message));
            }
        }
        match &choice {
            ToolChoice::Required if list.is_empty() => {
                return Err(bad_choice("tool_choice required needs tools."));
            }
            ToolChoice::Named(name) if list.iter().all(|tool| tool.name != *name) => {
                let message = format!("tool_choice names {name:.80?}, which is not in tools.");
                return Err(bad_choice(message));
            }
            _ => {}
        }
        let choice = if list.is_empty() {
            ToolChoice::None
        } else {
            choice
        };
        Ok(Self {
            list,
            choice,
            parallel,
            legacy: false,
        })
    }

    /// Takes `tools`, `tool_choice`, `parallel_tool_calls` and the older `functions` and
    /// `function_call`.
    pub(super) fn take(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let parallel = fields.flag("parallel_tool_calls", true)?;
        let (functions, call) = (
            fields.take_raw("functions"),
            fields.take::<Value>("function_call")?,
        );
        let Some(raw) = fields.take_raw("tools").filter(|raw| raw.get() != "[]") else {
            let choice = fields.take::<Value>("tool_choice")?;
            return match functions {
                Some(raw) => {
                    check_bytes(raw.get().len())?;
                    let list: Vec<FunctionWire> = read("functions", raw)?;
                    let named = list.into_iter().enumerate();
                    let tools =
                        named.map(|(i, function)| function.checked(&format!("functions[{i}]")));
                    let choice = read_choice(call.or(choice))?;
                    let tools = tools.collect::<Result<_, _>>()?;
                    let tools = Self::new(tools, choice.choice, false, raw.get().len())?;
                    Ok(Self {
                        legacy: true,
                        ..tools
                    })
                }
                None => Self::new(Vec::new(), read_choice(choice)?.choice, parallel, 0),
            };
        };
        check_bytes(raw.get().len())?;
        let list: Vec<ToolWire> = read("tools", raw)?;
        let tools = list
            .into_iter()
            .enumerate()
            .map(|(i, tool)| tool.checked(i));
        let mut tools: Vec<Tool> = tools.collect::<Result<_, _>>()?;
        let ChoiceWire { choice, allowed } = read_choice(fields.take("tool_choice")?)?;
        if let Some(allowed) = allowed {
            tools = only(tools, &allowed)?;
        }
        Self::new(tools, choice, parallel, raw.get().len())
    }

    /// Whether the answer may contain calls.
    pub fn callable(&self) -> bool {
        self.choice != ToolChoice::None
    }

    /// The tools in the format that chat templates expect; `None` without any.
    pub fn for_template(&self) -> Option<Value> {
        let list: Vec<Value> = self.list.iter().map(Tool::for_template).collect();
        (!list.is_empty()).then_some(Value::Array(list))
    }
}

fn check_bytes(length: usize) -> Result<(), ApiError> {
    if length > MAX_TOOL_BYTES {
        let message = format!("tools: at most {MAX_TOOL_BYTES} bytes together, got {length}.");
        return Err(invalid(message));
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(expecting = "a tool, an object")]
struct ToolWire {
    #[serde(rename = "type")]
    kind: Option<String>,
    function: Option<FunctionWire>,
}

#[derive(Deserialize)]
#[serde(expecting = "a function, an object with a name")]
struct FunctionWire {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
    strict: Option<bool>,
}

impl ToolWire {
    fn checked(self, index: usize) -> Result<Tool, ApiError> {
        let at = format!("tools[{index}]");
        match (self.kind.as_deref(), self.function) {
            (Some("function") | None, Some(function)) => function.checked(&at),
            (Some("function") | None, None) => Err(invalid(format!("{at}.function is required."))),
            (Some(other), _) => Err(invalid(format!(
                "{at}: tools of type function only, this one is {other:.80?}."
            ))),
        }
    }
}

impl FunctionWire {
    fn checked(self, at: &str) -> Result<Tool, ApiError> {
        let strict = self.strict.unwrap_or(false);
        Tool::new(at, self.name, self.description, self.parameters, strict)
    }
}

/// A tool choice and, for `allowed_tools`, the names of the tools that it allows.
struct ChoiceWire {
    choice: ToolChoice,
    allowed: Option<Vec<String>>,
}

fn read_choice(value: Option<Value>) -> Result<ChoiceWire, ApiError> {
    let plain = |choice| ChoiceWire {
        choice,
        allowed: None,
    };
    let Some(value) = value else {
        return Ok(plain(ToolChoice::Auto));
    };
    if let Some(word) = value.as_str() {
        return word_choice(word).map(plain);
    }
    if value["type"] == "allowed_tools" {
        // The chat endpoint nests the settings, /v1/responses does not.
        let settings = value.get("allowed_tools").unwrap_or(&value);
        let mode = settings["mode"].as_str().unwrap_or("auto");
        let tools = settings["tools"].as_array();
        let names = tools.map(|tools| tools.iter().map(tool_name).collect::<Option<Vec<_>>>());
        let allowed = names.flatten().ok_or_else(|| {
            bad_choice("tool_choice.allowed_tools.tools must be a list of functions.")
        })?;
        return Ok(ChoiceWire {
            choice: word_choice(mode)?,
            allowed: Some(allowed),
        });
    }
    // The older `function_call` is `{"name": ..}`.
    match tool_name(&value) {
        Some(name) => Ok(plain(ToolChoice::Named(name))),
        None => Err(bad_choice(
            "tool_choice must be none, auto, required, a function or allowed_tools.",
        )),
    }
}

fn word_choice(word: &str) -> Result<ToolChoice, ApiError> {
    match word {
        "none" => Ok(ToolChoice::None),
        "auto" => Ok(ToolChoice::Auto),
        "required" => Ok(ToolChoice::Required),
        other => Err(bad_choice(format!(
            "tool_choice must be none, auto, required, a function or allowed_tools, not \
             {other:.80?}."
        ))),
    }
}

/// The name in `{"type": "function", "function": {"name": ..}}`, or in the flat `{"name": ..}`.
fn tool_name(value: &Value) -> Option<String> {
    let name = value["function"]["name"]
        .as_str()
        .or(value["name"].as_str());
    name.map(str::to_owned)
}

fn only(tools: Vec<Tool>, allowed: &[String]) -> Result<Vec<Tool>, ApiError> {
    for name in allowed {
        if tools.iter().all(|tool| tool.name != *name) {
            let message = format!("tool_choice allows {name:.80?}, which is not in tools.");
            return Err(bad_choice(message));
        }
    }
    let wanted = |tool: &Tool| allowed.contains(&tool.name);
    Ok(tools.into_iter().filter(wanted).collect())
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::invalid("tools", message)
}

fn bad_choice(message: impl Into<String>) -> ApiError {
    ApiError::invalid("tool_choice", message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const WEATHER: &str = r#"{"type":"function","function":{"name":"weather","description":"d",
        "parameters":{"type":"object","properties":{"city":{"type":"string"}}},"strict":true}}"#;
    const CLOCK: &str = r#"{"type":"function","function":{"name":"clock"}}"#;

    fn take(body: &str) -> Result<Tools, ApiError> {
        Tools::take(&mut Fields::parse(body.as_bytes()).unwrap())
    }

    fn both(rest: &str) -> Result<Tools, ApiError> {
        take(&format!(r#"{{"tools":[{WEATHER},{CLOCK}]{rest}}}"#))
    }

    fn names(tools: &Tools) -> Vec<&str> {
        tools.list.iter().map(|tool| tool.name.as_str()).collect()
    }

    #[test]
    fn tools_are_read() {
        let tools = both("").unwrap();
        assert_eq!(names(&tools), ["weather", "clock"]);
        assert_eq!(tools.choice, ToolChoice::Auto);
        assert!(tools.parallel && tools.list[0].strict && !tools.list[1].strict);
        assert_eq!(
            tools.for_template().unwrap()[0].to_string(),
            r#"{"type":"function","function":{"name":"weather","description":"d","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}"#
        );
        let none = take(r#"{"tools":[],"tool_choice":"auto"}"#).unwrap();
        assert_eq!((none.choice, none.list.len()), (ToolChoice::None, 0));
    }

    #[test]
    fn choices() {
        let choice = |text: &str| both(&format!(r#","tool_choice":{text}"#));
        assert_eq!(choice(r#""none""#).unwrap().choice, ToolChoice::None);
        assert_eq!(
            choice(r#""required""#).unwrap().choice,
            ToolChoice::Required
        );
        let named = choice(r#"{"type":"function","function":{"name":"clock"}}"#).unwrap();
        assert_eq!(named.choice, ToolChoice::Named("clock".into()));
        let allowed = choice(
            r#"{"type":"allowed_tools","allowed_tools":{"mode":"required",
                "tools":[{"type":"function","function":{"name":"clock"}}]}}"#,
        );
        let allowed = allowed.unwrap();
        assert_eq!(allowed.choice, ToolChoice::Required);
        assert_eq!(names(&allowed), ["clock"]);
    }

    #[test]
    fn the_older_functions() {
        let body = r#"{"functions":[{"name":"f","parameters":{"type":"object"}}],
            "function_call":{"name":"f"}}"#;
        let tools = take(body).unwrap();
        assert!(tools.legacy && !tools.parallel);
        assert_eq!(tools.choice, ToolChoice::Named("f".into()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let many = vec![CLOCK; 129].join(",");
        let long = format!(r#"{{"name":"f","description":"{}"}}"#, "x".repeat(300_000));
        for (body, param) in [
            (format!(r#"{{"tools":[{many}]}}"#), "tools"),
            (
                format!(r#"{{"tools":[{{"type":"function","function":{long}}}]}}"#),
                "tools",
            ),
            (format!(r#"{{"functions":[{long}]}}"#), "tools"),
            (format!(r#"{{"tools":[{CLOCK},{CLOCK}]}}"#), "tools"),
            (r#"{"tools":[{}]}"#.into(), "tools"),
            (r#"{"tools":{"a":1}}"#.into(), "tools"),
            (r#"{"tools":[{"type":"web_search"}]}"#.into(), "tools"),
            (
                r#"{"tools":[{"type":"function","function":{"name":"a b"}}]}"#.into(),
                "tools",
            ),
            (
                r#"{"tools":[{"type":"function","function":{"name":"f","parameters":[1]}}]}"#
                    .into(),
                "tools",
            ),
            (r#"{"tool_choice":"required"}"#.into(), "tool_choice"),
            (
                format!(r#"{{"tools":[{CLOCK}],"tool_choice":"sometimes"}}"#),
                "tool_choice",
            ),
            (
                format!(r#"{{"tools":[{CLOCK}],"tool_choice":{{"name":"other"}}}}"#),
                "tool_choice",
            ),
            (
                format!(r#"{{"tools":[{CLOCK}],"tool_choice":{{"type":"allowed_tools"}}}}"#),
                "tool_choice",
            ),
        ] {
            let error = take(&body).unwrap_err();
            let seen = (error.status, error.param.as_deref());
            assert_eq!(seen, (400, Some(param)), "{body:.200}");
        }
    }
}
