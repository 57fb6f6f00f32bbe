//! What an output must look like to be calls: structural tags in xgrammar's form, of the format
//! that the parser reads.

use serde_json::{Value, json};

use crate::{ReasoningFormat, ToolFormat, ToolSchema};

/// The parts of a family's format around the arguments.
struct Shape {
    /// Around all calls.
    around: [&'static str; 2],
    /// Around one call's arguments; `{name}` stands for the tool's.
    begin: &'static str,
    end: &'static str,
    between: &'static str,
    /// A number stands behind the name, then this.
    numbered: Option<&'static str>,
}

const HERMES: Shape = Shape {
    around: ["", ""],
    begin: "<tool_call>\n{\"name\": \"{name}\", \"arguments\": ",
    end: "}\n</tool_call>",
    between: "\n",
    numbered: None,
};

impl ToolFormat {
    /// The format in which calls are demanded: this one, or Hermes where arguments are not JSON.
    pub fn constrained(self) -> Self {
        match self {
            Self::Qwen3Coder | Self::Glm45 => Self::Hermes,
            Self::Pythonic => Self::Llama3Json,
            other => other,
        }
    }

    fn shape(self) -> Shape {
        match self {
            Self::Hermes | Self::Qwen3Coder | Self::Glm45 => HERMES,
            Self::Llama3Json | Self::Pythonic => Shape {
                begin: "{\"name\": \"{name}\", \"parameters\": ",
                end: "}",
                between: "; ",
                ..HERMES
            },
            Self::Mistral => Shape {
                around: ["[TOOL_CALLS][", "]"],
                begin: "{\"name\": \"{name}\", \"arguments\": ",
                end: "}",
                between: ", ",
                numbered: None,
            },
            Self::DeepseekV3 => Shape {
                around: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
                begin: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
                end: "\n```<｜tool▁call▁end｜>",
                between: "\n",
                numbered: None,
            },
            Self::DeepseekV31 => Shape {
                around: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
                begin: "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
                end: "<｜tool▁call▁end｜>",
                between: "",
                numbered: None,
            },
            Self::KimiK2 => Shape {
                around: ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
                begin: "<|tool_call_begin|>functions.{name}:",
                end: "<|tool_call_end|>",
                between: "",
                numbered: Some("<|tool_call_argument_begin|>"),
            },
            Self::Harmony => Shape {
                begin: "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
                end: "<|call|>",
                between: "<|start|>assistant",
                ..HERMES
            },
        }
    }

    /// A structural tag whose outputs are calls of `tools`, one or several; the arguments follow
    /// the schemas. `reasoning`: the output begins within reasoning, which ends first.
    pub fn demanding<'a>(
        self,
        tools: impl IntoIterator<Item = &'a ToolSchema>,
        several: bool,
        reasoning: Option<ReasoningFormat>,
    ) -> Value {
        let shape = self.shape();
        let tags: Vec<Value> = tools.into_iter().map(|tool| shape.tag(tool)).collect();
        let calls = json!({
            "type": "tags_with_separator",
            "tags": tags,
            "separator": shape.between,
            "at_least_one": true,
            "stop_after_first": !several,
        });
        let text = |value: &str| json!({"type": "const_string", "value": value});
        let mut elements = Vec::new();
        let close = reasoning.and_then(ReasoningFormat::think);
        if let Some(close) = close.and_then(|marks| marks.close.first()) {
            let thoughts = json!({"type": "any_text"});
            elements.push(json!({"type": "tag", "begin": "", "content": thoughts, "end": close}));
            elements.push(text("\n\n"));
        }
        let [before, behind] = shape.around;
        elements.extend((!before.is_empty()).then(|| text(before)));
        elements.push(calls);
        elements.extend((!behind.is_empty()).then(|| text(behind)));
        json!({"type": "structural_tag", "format": {"type": "sequence", "elements": elements}})
    }
}

impl Shape {
    fn tag(&self, tool: &ToolSchema) -> Value {
        let schema = match &tool.parameters {
            Some(schema) => Value::Object(schema.clone()),
            None => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        };
        let schema = json!({"type": "json_schema", "json_schema": as_object(schema)});
        let content = match self.numbered {
            None => schema,
            Some(mark) => json!({"type": "sequence", "elements": [
                {"type": "regex", "pattern": "[0-9]{1,3}"},
                {"type": "const_string", "value": mark},
                schema,
            ]}),
        };
        let begin = self.begin.replace("{name}", &tool.name);
        json!({"type": "tag", "begin": begin, "content": content, "end": self.end})
    }
}

/// Arguments are an object, also where the schema forgets to say so.
fn as_object(mut schema: Value) -> Value {
    if let Some(schema) = schema.as_object_mut()
        && !schema.contains_key("type")
        && !schema.contains_key("$ref")
    {
        schema.insert("type".to_owned(), "object".into());
    }
    schema
}
