use std::sync::Arc;

use crate::harmony::Harmony;
use crate::machine::Machine;
use crate::out::Out;
use crate::think::Think;
use crate::{OutputEvent, ReasoningFormat, ToolFormat, ToolSchema};

/// Settings of an output's parser.
#[derive(Debug, Clone, Default)]
pub struct ParserRules {
    /// `None` = no text is a call.
    pub tools: Option<(ToolFormat, Arc<[ToolSchema]>)>,
    pub reasoning: Option<ReasoningFormat>,
    /// Maximum number of reported calls; later ones are dropped.
    pub max_calls: Option<usize>,
}

/// Parser of one output. The events of [`Self::push`] and [`Self::finish`], joined by
/// [`OutputEvent::append`], do not depend on the chunk boundaries.
#[derive(Debug)]
pub struct OutputParser {
    think: Option<Think>,
    calls: Calls,
    out: Out,
}

#[derive(Debug)]
enum Calls {
    None,
    Machine(Box<dyn Machine>),
    /// Reasoning and calls in a common format.
    Harmony(Harmony),
}

impl OutputParser {
    /// `prompt_end`: the end of the prompt's text, in which templates may open or close the
    /// reasoning.
    pub fn new(rules: &ParserRules, prompt_end: &str) -> Self {
        let with_calls = rules.tools.is_some();
        let in_channels = rules.reasoning == Some(ReasoningFormat::Harmony)
            || matches!(rules.tools, Some((ToolFormat::Harmony, _)));
        let machine = || {
            let (format, tools) = rules.tools.clone()?;
            format.machine(tools).map(Calls::Machine)
        };
        let calls = if in_channels {
            Calls::Harmony(Harmony::new(with_calls))
        } else {
            machine().unwrap_or(Calls::None)
        };
        Self {
            think: rules.reasoning.and_then(|format| think(format, prompt_end)),
            calls,
            out: Out::new(with_calls, rules.max_calls),
        }
    }

    /// Parses more text.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        if let Some(think) = &mut self.think {
            let content = think.push(text, &mut self.out);
            self.content(&content);
        } else {
            self.content(text);
        }
        std::mem::take(&mut self.out.events)
    }

    /// Ends the output and emits the held-back text.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        if let Some(think) = &mut self.think {
            let content = think.finish(&mut self.out);
            self.content(&content);
        }
        match &mut self.calls {
            Calls::None => {}
            Calls::Machine(machine) => machine.finish(&mut self.out),
            Calls::Harmony(harmony) => harmony.finish(&mut self.out),
        }
        self.out.finish();
        std::mem::take(&mut self.out.events)
    }

    /// Whether the next text is reasoning.
    pub fn reasons(&self) -> bool {
        match (&self.think, &self.calls) {
            (Some(think), _) => think.reasons(),
            (None, Calls::Harmony(harmony)) => harmony.reasons(),
            _ => false,
        }
    }

    /// Number of calls so far.
    pub fn calls(&self) -> usize {
        self.out.calls
    }

    fn content(&mut self, text: &str) {
        match &mut self.calls {
            Calls::None => self.out.content(text),
            Calls::Machine(machine) => machine.push(text, &mut self.out),
            Calls::Harmony(harmony) => harmony.push(text, &mut self.out),
        }
    }
}

fn think(format: ReasoningFormat, prompt_end: &str) -> Option<Think> {
    let marks = format.think()?;
    let prompt = prompt_end.trim_end();
    let ends = |list: &[&str]| list.iter().any(|mark| prompt.ends_with(mark));
    if ends(marks.close) {
        return None;
    }
    let opened = format == ReasoningFormat::ThinkOpened || ends(marks.open);
    Some(Think::new(marks, opened))
}
