//! Builds structural tags (in xgrammar's format) that constrain an output to calls in the format of
//! its parser.

use serde_json::{Map, Value, json};

use crate::{ReasoningFormat, ToolFormat, ToolSchema, harmony, hermes, llama, marked, mistral};

/// The fixed parts of a model family's call format.
struct Shape {
    /// Text before and after all calls.
    around: [&'static str; 2],
    /// Text before one call's arguments; `{name}` is replaced by the tool's name.
    begin: &'static str,
    end: &'static str,
    between: &'static str,
    /// If set, the name is followed by a number and then by this text.
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
    /// The format of calls under a grammar: this format if its arguments are JSON, otherwise
    /// another format with JSON arguments.
    pub fn constrained(self) -> Self {
        match self {
            Self::Qwen3Coder | Self::Glm45 => Self::Hermes,
            Self::Pythonic => Self::Llama3Json,
            other => other,
        }
    }

    /// Whether calls start with a mark that separates them from text.
    pub fn is_marked(self) -> bool {
        self != Self::Pythonic
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

    /// A structural tag whose outputs are one or several calls of `tools`, with arguments that
    /// match the schemas. `reasoning`: the output starts inside reasoning, which ends first.
    pub fn demanding<'a>(
        self,
        tools: impl IntoIterator<Item = &'a ToolSchema>,
        several: bool,
        reasoning: Option<ReasoningFormat>,
    ) -> Value {
        let mut elements = Vec::new();
        let close = reasoning.and_then(ReasoningFormat::think);
        if let Some(close) = close.and_then(|marks| marks.close.first()) {
            elements.push(tag("", any_text(), *close));
            elements.push(text("\n\n"));
        }
        elements.push(self.shape().calls(tools, several));
        structural(sequence(elements))
    }

    /// A structural tag for free text in which each call mark starts a call of `tools`. Arguments
    /// of strict tools match the schemas; other arguments are any object. `reasoning` may come
    /// first; `begun`: the output starts inside it. `None` if the format does not mark calls.
    ///
    /// Calls have the format of required calls ([`Self::constrained`]).
    pub fn allowing(
        self,
        tools: &[ToolSchema],
        several: bool,
        reasoning: Option<ReasoningFormat>,
        begun: bool,
    ) -> Option<Value> {
        let tools = tools.iter().map(ToolSchema::held);
        let tools: Vec<_> = tools.collect();
        let answer = match self {
            _ if !self.is_marked() => return None,
            Self::Harmony => return Some(structural(self.messages(&tools))),
            Self::Llama3Json => self.shape().text_or_calls(&tools, several),
            _ => self
                .shape()
                .text_with_calls(self.openings(), &tools, several),
        };
        let Some(marks) = reasoning.and_then(ReasoningFormat::think) else {
            return Some(structural(answer));
        };
        let open = if begun { &[""][..] } else { marks.open };
        let thoughts = open.iter().map(|open| tag(open, any_text(), marks.close));
        let reasoned = sequence([any_of(thoughts), answer.clone()]);
        Some(structural(match begun {
            true => reasoned,
            false => any_of([reasoned, answer]),
        }))
    }

    /// Opening marks of calls.
    fn openings(self) -> Vec<&'static str> {
        match self {
            Self::Mistral => vec![mistral::OPEN],
            Self::DeepseekV3 => openings(&marked::DEEPSEEK_V3),
            Self::DeepseekV31 => openings(&marked::DEEPSEEK_V31),
            Self::KimiK2 => openings(&marked::KIMI_K2),
            _ => vec![hermes::OPEN],
        }
    }

    /// Tags for all kinds of Harmony's messages: reasoning, commentary, the answer, calls.
    fn messages(self, tools: &[ToolSchema]) -> Value {
        let message = |channel: &str, ends: &[&str]| {
            let begin = [harmony::CHANNEL, channel, harmony::MESSAGE].concat();
            tag(&begin, any_text(), ends)
        };
        let mut tags = vec![
            message("analysis", &[harmony::END]),
            message("commentary", &[harmony::END]),
            message("final", &[harmony::RETURN, harmony::END]),
        ];
        let shape = self.shape();
        tags.extend(tools.iter().map(|tool| shape.tag(tool)));
        separated(tags, shape.between, true)
    }
}

fn openings(marks: &'static marked::Marks) -> Vec<&'static str> {
    vec![marks.section[0], marks.open]
}

impl Shape {
    /// One or several calls, with the enclosing text.
    fn calls<'a>(&self, tools: impl IntoIterator<Item = &'a ToolSchema>, several: bool) -> Value {
        let tags = tools.into_iter().map(|tool| self.tag(tool)).collect();
        let calls = separated(tags, self.between, several);
        match self.around {
            ["", ""] => calls,
            [before, behind] => tag(before, calls, behind),
        }
    }

    /// Free text, with calls at each of `openings`.
    fn text_with_calls(
        &self,
        openings: Vec<&'static str>,
        tools: &[ToolSchema],
        several: bool,
    ) -> Value {
        let mut tags = match self.around {
            ["", ""] => Vec::new(),
            _ => vec![self.calls(tools, several)],
        };
        if openings
            .iter()
            .any(|opening| self.begin.starts_with(opening))
        {
            tags.extend(tools.iter().map(|tool| self.tag(tool)));
        }
        json!({
            "type": "triggered_tags",
            "triggers": openings,
            "tags": tags,
            "stop_after_first": !several,
        })
    }

    /// Calls, or a text that does not start like a call.
    fn text_or_calls(&self, tools: &[ToolSchema], several: bool) -> Value {
        let calls = self.calls(tools, several);
        let marked = sequence([text(llama::TAG), calls.clone()]);
        let other = json!({"type": "regex", "pattern": r"\s*([^{\s](.|\n)*)?"});
        any_of([calls, marked, other])
    }

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
                text(mark),
                schema,
            ]}),
        };
        let begin = self.begin.replace("{name}", &tool.name);
        tag(&begin, content, self.end)
    }
}

impl ToolSchema {
    /// The tool with the schema that the grammar enforces: its own schema if the tool is strict,
    /// otherwise any object.
    fn held(&self) -> Self {
        let any = || Some(Map::from_iter([("type".to_owned(), "object".into())]));
        Self {
            parameters: if self.strict {
                self.parameters.clone()
            } else {
                any()
            },
            ..self.clone()
        }
    }
}

fn structural(format: Value) -> Value {
    json!({"type": "structural_tag", "format": format})
}

fn text(value: &str) -> Value {
    json!({"type": "const_string", "value": value})
}

fn any_text() -> Value {
    json!({"type": "any_text"})
}

fn tag(begin: &str, content: Value, end: impl Into<Value>) -> Value {
    let end: Value = end.into();
    json!({"type": "tag", "begin": begin, "content": content, "end": end})
}

fn sequence(elements: impl IntoIterator<Item = Value>) -> Value {
    json!({"type": "sequence", "elements": elements.into_iter().collect::<Vec<_>>()})
}

fn any_of(elements: impl IntoIterator<Item = Value>) -> Value {
    json!({"type": "or", "elements": elements.into_iter().collect::<Vec<_>>()})
}

fn separated(tags: Vec<Value>, separator: &str, several: bool) -> Value {
    json!({
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": true,
        "stop_after_first": !several,
    })
}

/// Adds `"type": "object"` if it is missing in the schema.
fn as_object(mut schema: Value) -> Value {
    if let Some(schema) = schema.as_object_mut()
        && !schema.contains_key("type")
        && !schema.contains_key("$ref")
    {
        schema.insert("type".to_owned(), "object".into());
    }
    schema
}
