//! Selects a model's output format by name, or by its chat template.

use std::sync::Arc;

use crate::ToolSchema;
use crate::harmony;
use crate::hermes::{self, Hermes};
use crate::llama::{self, Llama};
use crate::machine::Machine;
use crate::marked::{self, Marked};
use crate::mistral::{self, Mistral};
use crate::pythonic::{self, Pythonic};
use crate::tagged::{self, Tagged};
use crate::think::{self, ThinkMarks};

/// Format of a model's tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    Hermes,
    Qwen3Coder,
    Llama3Json,
    Pythonic,
    Mistral,
    DeepseekV3,
    DeepseekV31,
    KimiK2,
    Glm45,
    Harmony,
}

/// Format of a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// Between `<think>` and `</think>`.
    Think,
    /// Like `Think`, but the output may start inside reasoning, without the opening mark.
    ThinkOpened,
    Mistral,
    Seed,
    Granite,
    Harmony,
}

/// Format names, as in vLLM.
const TOOL_FORMATS: &[(&str, ToolFormat)] = &[
    ("hermes", ToolFormat::Hermes),
    ("qwen3_coder", ToolFormat::Qwen3Coder),
    ("qwen3_xml", ToolFormat::Qwen3Coder),
    ("llama3_json", ToolFormat::Llama3Json),
    ("llama4_json", ToolFormat::Llama3Json),
    ("llama4_pythonic", ToolFormat::Pythonic),
    ("pythonic", ToolFormat::Pythonic),
    ("mistral", ToolFormat::Mistral),
    ("deepseek_v3", ToolFormat::DeepseekV3),
    ("deepseek_v31", ToolFormat::DeepseekV31),
    ("kimi_k2", ToolFormat::KimiK2),
    ("glm45", ToolFormat::Glm45),
    ("openai", ToolFormat::Harmony),
];

const REASONING_FORMATS: &[(&str, ReasoningFormat)] = &[
    ("qwen3", ReasoningFormat::Think),
    ("deepseek_r1", ReasoningFormat::ThinkOpened),
    ("glm45", ReasoningFormat::Think),
    ("kimi_k2", ReasoningFormat::Think),
    ("mistral", ReasoningFormat::Mistral),
    ("seed_oss", ReasoningFormat::Seed),
    ("granite", ReasoningFormat::Granite),
    ("openai_gptoss", ReasoningFormat::Harmony),
];

/// Strings that occur in the templates of one family only, most specific first.
const TOOL_SIGNS: &[(&str, ToolFormat)] = &[
    (harmony::CHANNEL, ToolFormat::Harmony),
    ("```json", ToolFormat::DeepseekV3),
    (marked::SEPARATOR, ToolFormat::DeepseekV31),
    ("<|tool_calls_section_begin|>", ToolFormat::KimiK2),
    (mistral::OPEN, ToolFormat::Mistral),
    ("<function=", ToolFormat::Qwen3Coder),
    ("<arg_key>", ToolFormat::Glm45),
    (hermes::OPEN, ToolFormat::Hermes),
    (pythonic::OPEN, ToolFormat::Pythonic),
    (llama::TAG, ToolFormat::Llama3Json),
];

const REASONING_SIGNS: &[(&str, ReasoningFormat)] = &[
    (harmony::CHANNEL, ReasoningFormat::Harmony),
    ("<seed:think>", ReasoningFormat::Seed),
    ("[THINK]", ReasoningFormat::Mistral),
    ("</think>", ReasoningFormat::Think),
    ("Here is my thought process:", ReasoningFormat::Granite),
];

impl ToolFormat {
    /// The format with one of [`Self::names`].
    pub fn by_name(name: &str) -> Option<Self> {
        by_name(TOOL_FORMATS, name)
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        TOOL_FORMATS.iter().map(|(name, _)| *name)
    }

    /// Detects the format in a chat template; `None` if the template does not support tools.
    pub fn of_template(template: &str) -> Option<Self> {
        let deepseek = template.contains(marked::SEPARATOR);
        let shows = |&&(sign, format): &&(&str, Self)| {
            template.contains(sign) && (format != Self::DeepseekV3 || deepseek)
        };
        TOOL_SIGNS.iter().find(shows).map(|(_, format)| *format)
    }

    /// Marks that the detokenizer must keep for the parser, even if they are special tokens.
    pub fn marks(self) -> Vec<&'static str> {
        let marked = |marks: &marked::Marks| {
            let [begin, end] = marks.section;
            vec![
                begin,
                end,
                marks.open,
                marks.arguments,
                marks.close,
                marked::SEPARATOR,
            ]
        };
        match self {
            Self::Hermes | Self::Qwen3Coder => vec![hermes::OPEN, hermes::CLOSE],
            Self::Llama3Json => vec![llama::TAG],
            Self::Pythonic => vec![pythonic::OPEN, pythonic::CLOSE],
            Self::Mistral => vec![mistral::OPEN, mistral::ARGUMENTS, mistral::ID],
            Self::DeepseekV3 => marked(&marked::DEEPSEEK_V3),
            Self::DeepseekV31 => marked(&marked::DEEPSEEK_V31),
            Self::KimiK2 => marked(&marked::KIMI_K2),
            Self::Glm45 => vec![
                hermes::OPEN,
                hermes::CLOSE,
                "<arg_key>",
                "</arg_key>",
                "<arg_value>",
                "</arg_value>",
            ],
            Self::Harmony => HARMONY_MARKS.to_vec(),
        }
    }

    /// Creates the parser of calls; `None` if reasoning and calls are one format.
    pub(crate) fn machine(self, tools: Arc<[ToolSchema]>) -> Option<Box<dyn Machine>> {
        Some(match self {
            Self::Hermes => Box::new(Hermes::default()),
            Self::Qwen3Coder => Box::new(Tagged::new(&tagged::QWEN3_CODER, tools)),
            Self::Llama3Json => Box::new(Llama::new(tools)),
            Self::Pythonic => Box::new(Pythonic::new(tools)),
            Self::Mistral => Box::new(Mistral::default()),
            Self::DeepseekV3 => Box::new(Marked::new(&marked::DEEPSEEK_V3)),
            Self::DeepseekV31 => Box::new(Marked::new(&marked::DEEPSEEK_V31)),
            Self::KimiK2 => Box::new(Marked::new(&marked::KIMI_K2)),
            Self::Glm45 => Box::new(Tagged::new(&tagged::GLM_45, tools)),
            Self::Harmony => return None,
        })
    }
}

const HARMONY_MARKS: &[&str] = &[
    harmony::CHANNEL,
    harmony::START,
    harmony::MESSAGE,
    harmony::END,
    harmony::CALL,
    harmony::RETURN,
    harmony::CONSTRAIN,
];

impl ReasoningFormat {
    /// The format with one of [`Self::names`].
    pub fn by_name(name: &str) -> Option<Self> {
        by_name(REASONING_FORMATS, name)
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        REASONING_FORMATS.iter().map(|(name, _)| *name)
    }

    /// Detects the format in a chat template.
    pub fn of_template(template: &str) -> Option<Self> {
        let shows = |(sign, _): &&(&str, Self)| template.contains(sign);
        REASONING_SIGNS
            .iter()
            .find(shows)
            .map(|(_, format)| *format)
    }

    /// Marks that the detokenizer must keep for the parser, even if they are special tokens.
    pub fn marks(self) -> Vec<&'static str> {
        match self.think() {
            Some(marks) => [marks.open, marks.close].concat(),
            None => HARMONY_MARKS.to_vec(),
        }
    }

    pub(crate) fn think(self) -> Option<&'static ThinkMarks> {
        match self {
            Self::Think | Self::ThinkOpened => Some(&think::THINK),
            Self::Mistral => Some(&think::MISTRAL),
            Self::Seed => Some(&think::SEED),
            Self::Granite => Some(&think::GRANITE),
            Self::Harmony => None,
        }
    }
}

fn by_name<T: Copy>(list: &[(&str, T)], name: &str) -> Option<T> {
    let found = list.iter().find(|(known, _)| *known == name);
    found.map(|(_, format)| *format)
}
