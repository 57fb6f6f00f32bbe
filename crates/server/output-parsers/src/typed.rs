//! Converts arguments written as plain text to JSON, using the types in the tool's schema.

use serde_json::{Map, Value};

use crate::call_object::MAX_HELD;
use crate::out::Out;
use crate::{ToolSchema, python};

/// Writes the arguments object of one call, parameter by parameter.
#[derive(Debug)]
pub(crate) struct TypedArguments {
    parameters: Option<Map<String, Value>>,
    first: bool,
    value: Option<TypedValue>,
}

/// A parameter's value during parsing.
#[derive(Debug)]
enum TypedValue {
    /// A string, whose text is emitted immediately.
    String,
    /// Other types are held back until complete and then converted.
    Held(String, Types),
}

/// Allowed types of a parameter, as far as the schema specifies them.
#[derive(Debug, Clone, Copy, Default)]
struct Types {
    string: bool,
    other: bool,
    null: bool,
}

impl TypedArguments {
    pub(crate) fn new(tools: &[ToolSchema], name: &str) -> Self {
        let tool = tools.iter().find(|tool| tool.name == name);
        Self {
            parameters: tool.and_then(|tool| tool.parameters.clone()),
            first: true,
            value: None,
        }
    }

    /// Starts the value of the parameter `name`.
    pub(crate) fn begin(&mut self, name: &str, out: &mut Out) {
        let types = self.types(name);
        out.arguments(if self.first { "{" } else { ", " });
        self.first = false;
        out.arguments(&Value::from(name).to_string());
        out.arguments(": ");
        self.value = Some(if types.string && !types.other && !types.null {
            out.arguments("\"");
            TypedValue::String
        } else {
            TypedValue::Held(String::new(), types)
        });
    }

    pub(crate) fn text(&mut self, text: &str, out: &mut Out) {
        match &mut self.value {
            Some(TypedValue::String) => out.arguments(&escaped(text)),
            Some(TypedValue::Held(held, _)) => {
                held.push_str(text);
                if held.len() > MAX_HELD {
                    out.arguments("\"");
                    out.arguments(&escaped(held));
                    self.value = Some(TypedValue::String);
                }
            }
            None => {}
        }
    }

    pub(crate) fn end_value(&mut self, out: &mut Out) {
        match self.value.take() {
            Some(TypedValue::String) => out.arguments("\""),
            Some(TypedValue::Held(held, types)) => {
                out.arguments(&converted(&held, types).to_string());
            }
            None => {}
        }
    }

    /// Ends an output that was cut off inside a value. The JSON stays unclosed, so that it does not
    /// look complete.
    pub(crate) fn cut_off(&mut self, out: &mut Out) {
        if let Some(TypedValue::Held(held, _)) = self.value.take() {
            out.arguments(&held);
        }
    }

    /// Ends a complete call.
    pub(crate) fn end(&mut self, out: &mut Out) {
        self.end_value(out);
        out.arguments(if self.first { "{}" } else { "}" });
    }

    fn types(&self, name: &str) -> Types {
        let properties = self.parameters.as_ref().and_then(|p| p.get("properties"));
        let mut types = Types::default();
        if let Some(schema) = properties.and_then(|p| p.get(name)) {
            add_types(schema, &mut types, 8);
        }
        types
    }
}

fn add_types(schema: &Value, types: &mut Types, depth: u32) {
    let mut add = |word: &Value| match word.as_str() {
        Some("string") => types.string = true,
        Some("null") => types.null = true,
        Some(_) => types.other = true,
        None => {}
    };
    match schema.get("type") {
        Some(Value::Array(words)) => words.iter().for_each(&mut add),
        Some(word) => add(word),
        None => {}
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        types.string |= values.iter().any(Value::is_string);
        types.other |= values.iter().any(|v| !v.is_string() && !v.is_null());
    }
    for word in ["anyOf", "oneOf"] {
        let list = schema.get(word).and_then(Value::as_array);
        for part in list.into_iter().flatten().take(64) {
            if depth > 0 {
                add_types(part, types, depth - 1);
            }
        }
    }
}

/// Converts text to a value: JSON, Python's constants, or else the text itself.
fn converted(text: &str, types: Types) -> Value {
    let trimmed = text.trim();
    let null = matches!(trimmed, "null" | "None");
    if null && (types.null || !types.string) {
        return Value::Null;
    }
    if types.string && !types.other {
        return text.into();
    }
    let read = serde_json::from_str(trimmed).ok();
    let read = read.or_else(|| python::literal(trimmed));
    // Quoted text is kept unchanged if the schema does not specify the type.
    match read {
        Some(Value::String(inner)) if types.other => inner.into(),
        Some(Value::String(_)) | None => text.into(),
        Some(value) => value,
    }
}

/// A chunk of a JSON string, without quotes.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
