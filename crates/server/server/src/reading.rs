//! Parses the text of a choice into reasoning, content and tool calls.

use std::sync::Arc;

use penstock_api_types::{ChatRequest, FinishReason, OutputGrammar, ToolChoice, Tools};
use penstock_output_parsers::{
    OutputEvent, OutputParser, ParserRules, ReasoningFormat, ToolFormat, ToolSchema,
};
use penstock_tokenizer::TextModel;
use penstock_wire::{Grammar, GrammarKind};

use crate::config::Config;

/// Bytes at the end of the prompt in which templates open or close the reasoning.
const PROMPT_END: usize = 64;

/// The model's formats for tool calls and reasoning, detected once when the template is loaded.
#[derive(Debug)]
pub(crate) struct Formats {
    pub(crate) tools: ToolFormat,
    reasoning: Option<ReasoningFormat>,
    /// Special tokens that the tool-call parser needs in the text.
    tool_marks: Vec<u32>,
    reasoning_marks: Vec<u32>,
}

impl Formats {
    /// Selects the tool format: the format of the flag, else the format detected in the template,
    /// else Hermes. Hermes is also used to add tools to templates without tool support.
    pub(crate) fn of(text: &TextModel, config: &Config) -> Self {
        let template = text.template.as_ref();
        let source = template.map_or("", |template| template.sources());
        let native = template.is_some_and(|template| template.knows_tools());
        let tools = config.tool_call_parser.as_deref();
        let tools = tools.and_then(ToolFormat::by_name).or_else(|| {
            let found = ToolFormat::of_template(source);
            found.filter(|_| native)
        });
        let tools = tools.unwrap_or(ToolFormat::Hermes);
        let reasoning = match config.reasoning_parser.as_deref() {
            None | Some("auto") => ReasoningFormat::of_template(source),
            Some(name) => ReasoningFormat::by_name(name),
        };
        let ids = |marks: Vec<&str>| {
            let ids = marks
                .into_iter()
                .filter_map(|mark| text.tokenizer.token_id(mark));
            ids.filter(|&id| text.tokenizer.is_special(id)).collect()
        };
        Self {
            tools,
            reasoning,
            tool_marks: ids(tools.marks()),
            reasoning_marks: ids(reasoning.map(ReasoningFormat::marks).unwrap_or_default()),
        }
    }
}

/// Parser settings for the outputs of one request.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    rules: ParserRules,
    prompt_end: String,
    /// Special tokens kept in the text.
    pub(crate) kept: Arc<[u32]>,
    include_reasoning: bool,
    finish: FinishReason,
}

impl Reading {
    pub(crate) fn new(formats: &Formats, request: &ChatRequest, prompt: &str) -> Self {
        let tools = &request.tools;
        let callable = tools.callable();
        let format = match tools.choice {
            ToolChoice::Required | ToolChoice::Named(_) => formats.tools.constrained(),
            _ if strict(request) && formats.tools.is_marked() => formats.tools.constrained(),
            _ => formats.tools,
        };
        let mut kept = formats.reasoning_marks.clone();
        if callable {
            kept.extend(&formats.tool_marks);
        }
        let start = prompt.len().saturating_sub(PROMPT_END);
        let start = (start..prompt.len()).find(|&at| prompt.is_char_boundary(at));
        Self {
            rules: ParserRules {
                tools: callable.then(|| (format, schemas(tools))),
                reasoning: formats.reasoning,
                max_calls: (!tools.parallel).then_some(1),
            },
            prompt_end: prompt[start.unwrap_or(prompt.len())..].to_owned(),
            kept: kept.into(),
            include_reasoning: request.include_reasoning,
            finish: finish(tools),
        }
    }
}

impl Reading {
    /// The callable tools.
    pub(crate) fn tools(&self) -> Option<&[ToolSchema]> {
        self.rules.tools.as_ref().map(|(_, tools)| &tools[..])
    }

    /// Whether the output may contain calls of strict tools in a format that marks calls in the
    /// text. False if the request has another grammar, or `ignore_eos`, with which no output is
    /// complete.
    pub(crate) fn is_strict(&self, request: &ChatRequest) -> bool {
        let marked = self
            .rules
            .tools
            .as_ref()
            .is_some_and(|(format, _)| format.is_marked());
        marked && strict(request)
    }

    /// Grammar of text that may contain calls of `tools`; `None` if the format does not mark them.
    pub(crate) fn allow(&self, tools: &[ToolSchema], several: bool) -> Option<OutputGrammar> {
        let (format, _) = self.rules.tools.as_ref()?;
        let begun = OutputParser::new(&self.rules, &self.prompt_end).reasons();
        let tag = format.allowing(tools, several, self.rules.reasoning, begun)?;
        Some(structural("tools", &tag))
    }

    /// Grammar of an output that consists of calls of `tools`.
    pub(crate) fn demand(&self, tools: &[ToolSchema], several: bool) -> Option<OutputGrammar> {
        let (format, _) = self.rules.tools.as_ref()?;
        let reasons = OutputParser::new(&self.rules, &self.prompt_end).reasons();
        let reasoning = self.rules.reasoning.filter(|_| reasons);
        let tag = format.demanding(tools, several, reasoning);
        Some(structural("tool_choice", &tag))
    }
}

fn structural(field: &'static str, tag: &serde_json::Value) -> OutputGrammar {
    let grammar = Grammar::new(GrammarKind::StructuralTag, tag.to_string());
    OutputGrammar { field, grammar }
}

/// Whether the arguments of strict tools are constrained, but the text around calls is not.
fn strict(request: &ChatRequest) -> bool {
    let (tools, common) = (&request.tools, &request.common);
    tools.choice == ToolChoice::Auto
        && tools.list.iter().any(|tool| tool.strict)
        && common.grammar.is_none()
        && !common.ignore_eos
}

fn schemas(tools: &Tools) -> Arc<[ToolSchema]> {
    let schema = |tool: &penstock_api_types::Tool| ToolSchema {
        name: tool.name.clone(),
        parameters: tool.parameters.clone(),
        strict: tool.strict,
    };
    tools.list.iter().map(schema).collect()
}

/// Finish reason of a response with calls; `stop` if the request names the function, as in OpenAI.
fn finish(tools: &Tools) -> FinishReason {
    match tools.choice {
        ToolChoice::Named(_) => FinishReason::Stop,
        _ if tools.legacy => FinishReason::FunctionCall,
        _ => FinishReason::ToolCalls,
    }
}

/// Parser of one choice's text.
#[derive(Debug)]
pub(crate) struct Reader {
    parser: OutputParser,
    reading: Reading,
    /// Seed of the call ids.
    seed: u64,
}

impl Reader {
    pub(crate) fn new(reading: Reading, seed: u64) -> Self {
        Self {
            parser: OutputParser::new(&reading.rules, &reading.prompt_end),
            reading,
            seed,
        }
    }

    /// Appends the events of more text.
    pub(crate) fn push(&mut self, text: &str, events: &mut Vec<OutputEvent>) {
        let new = self.parser.push(text);
        self.append(new, events);
    }

    /// Appends the held-back events; maps the engine's finish reason to the choice's.
    pub(crate) fn finish(
        &mut self,
        finish: FinishReason,
        events: &mut Vec<OutputEvent>,
    ) -> FinishReason {
        let new = self.parser.finish();
        self.append(new, events);
        match finish {
            FinishReason::Stop if self.parser.calls() > 0 => self.reading.finish,
            other => other,
        }
    }

    /// Whether the next text is reasoning.
    pub(crate) fn reasons(&self) -> bool {
        self.parser.reasons()
    }

    fn append(&self, new: Vec<OutputEvent>, events: &mut Vec<OutputEvent>) {
        for mut event in new {
            match &mut event {
                OutputEvent::ToolCallStart { index, id, .. } if id.is_empty() => {
                    *id = self.call_id(*index);
                }
                OutputEvent::Reasoning(_) if !self.reading.include_reasoning => continue,
                _ => {}
            }
            OutputEvent::append(events, event);
        }
    }

    /// Mistral's templates require ids of 9 letters and digits; other templates accept any id.
    fn call_id(&self, index: usize) -> String {
        let index = index as u64;
        match self.reading.rules.tools {
            Some((ToolFormat::Mistral, _)) => {
                let digits = (self.seed.wrapping_add(index)) % 0x10_0000_0000;
                format!("{digits:09x}")
            }
            _ => format!("call_{:016x}{index:02x}", self.seed),
        }
    }
}
