//! The grammar of an output that may or must hold calls. The arguments of a tool that is not strict
//! are any object where no grammar honours its schema.

use std::sync::Arc;

use penstock_grammar::GrammarError;
use penstock_openai::{ApiError, ChatRequest, OutputGrammar, ToolChoice};
use penstock_parsers::ToolSchema;
use penstock_wire::{Grammar, GrammarKind};
use serde_json::{Map, Value};

use crate::app::App;
use crate::grammar::api_error;
use crate::grammar_trial;
use crate::reading::Reading;

const TOOLS: &str = "tools";

/// Calls that a grammar is to hold.
pub(crate) struct HeldCalls {
    reading: Reading,
    /// Those that may be called.
    tools: Vec<ToolSchema>,
    /// Those of the tools that are followed.
    schemas: Vec<Grammar>,
    several: bool,
    /// Nothing but calls.
    demanded: bool,
}

/// Whether calls of a tool are held to its schema.
fn is_followed(tool: &ToolSchema, demanded: bool) -> bool {
    tool.strict || demanded
}

fn schema(tool: &ToolSchema) -> Grammar {
    let schema = tool.parameters.clone().unwrap_or_default();
    Grammar::new(GrammarKind::JsonSchema, Value::Object(schema).to_string())
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
        let callable: Vec<ToolSchema> = reading.tools()?.iter().filter(wanted).cloned().collect();
        let followed = callable.iter().filter(|tool| is_followed(tool, demanded));
        Some(Self {
            schemas: followed.map(schema).collect(),
            tools: callable,
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
        let busy = |error| api_error(TOOLS, TOOLS, &error);
        let tried = grammar_trial::try_out(app, &self.schemas).await;
        let turn = grammar_trial::turn(app, &self.schemas)
            .await
            .map_err(busy)?;
        let app = Arc::clone(app);
        let held = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            self.held(&app, &tried)
        });
        held.await
            .unwrap_or_else(|_| Err(ApiError::internal("Reading the tools failed.")))
    }

    /// `tried` is what the trial of the large schemas found.
    fn held(
        mut self,
        app: &App,
        tried: &Result<(), GrammarError>,
    ) -> Result<OutputGrammar, ApiError> {
        let tokenizer = &app.text()?.tokenizer;
        let verdicts = app.grammars.check_schemas(tokenizer, &self.schemas, tried);
        let demanded = self.demanded;
        let followed = self
            .tools
            .iter_mut()
            .filter(|tool| is_followed(tool, demanded));
        for (tool, verdict) in followed.zip(verdicts) {
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
