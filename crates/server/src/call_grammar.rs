//! The grammar of an output that may or must hold calls. The arguments of a tool that is not strict
//! are any object where no grammar honours its schema.

use std::sync::Arc;

use penstock_grammar::GrammarError;
use penstock_openai::{ApiError, ChatRequest, OutputGrammar, ToolChoice};
use penstock_parsers::ToolSchema;
use serde_json::{Map, Value};

use crate::app::App;
use crate::grammar::api_error;
use crate::reading::Reading;

const TOOLS: &str = "tools";

/// Calls that a grammar is to hold.
pub(crate) struct HeldCalls {
    reading: Reading,
    /// Those that may be called.
    tools: Vec<ToolSchema>,
    several: bool,
    /// Nothing but calls.
    demanded: bool,
}

impl HeldCalls {
    /// `None` where the request leaves its calls free.
    pub(crate) fn of(reading: &Reading, request: &ChatRequest) -> Option<Self> {
        let tools = &request.tools;
        let (demanded, named) = match &tools.choice {
            ToolChoice::Required => (true, None),
            ToolChoice::Named(name) => (true, Some(name)),
            _ => (false, None),
        };
        if !demanded && !reading.is_strict(request) {
            return None;
        }
        let wanted = |tool: &&ToolSchema| named.is_none_or(|name| tool.name == *name);
        Some(Self {
            tools: reading.tools()?.iter().filter(wanted).cloned().collect(),
            reading: reading.clone(),
            several: tools.parallel && named.is_none(),
            demanded,
        })
    }

    pub(crate) fn demanded(&self) -> bool {
        self.demanded
    }

    /// The grammar, when the schemas have been tried.
    ///
    /// # Errors
    /// 400 with the name of a strict tool whose schema no grammar honours; 503.
    pub(crate) async fn grammar(self, app: &Arc<App>) -> Result<OutputGrammar, ApiError> {
        let app = Arc::clone(app);
        let tried = tokio::task::spawn_blocking(move || self.tried(&app));
        tried
            .await
            .unwrap_or_else(|_| Err(ApiError::internal("Reading the tools failed.")))
    }

    fn tried(mut self, app: &App) -> Result<OutputGrammar, ApiError> {
        let followed = |tool: &&mut ToolSchema| tool.strict || self.demanded;
        let mut tools: Vec<&mut ToolSchema> = self.tools.iter_mut().filter(followed).collect();
        let text = |tool: &&mut ToolSchema| {
            let schema = tool.parameters.clone().unwrap_or_default();
            Value::Object(schema).to_string()
        };
        let schemas = tools.iter().map(text).collect();
        let verdicts = app.grammars.check_schemas(&app.text()?.tokenizer, schemas);
        for (tool, verdict) in tools.iter_mut().zip(verdicts) {
            match verdict {
                Ok(()) => {}
                Err(error) if tool.strict || error == GrammarError::Busy => {
                    let what = format!("tools: the parameters of {}", tool.name);
                    return Err(api_error(TOOLS, &what, &error));
                }
                Err(_) => {
                    let any = Map::from_iter([("type".to_owned(), "object".into())]);
                    tool.parameters = Some(any);
                }
            }
        }
        let grammar = match self.demanded {
            true => self.reading.demand(&self.tools, self.several),
            false => self.reading.allow(&self.tools, self.several),
        };
        grammar.ok_or_else(|| ApiError::internal("Calls of this model have no mark."))
    }
}
