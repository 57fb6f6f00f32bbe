//! Grammars of outputs that may or must contain tool calls. If the schema of a non-strict tool does
//! not compile, the grammar accepts any JSON object as the tool's arguments.

use std::sync::Arc;

use penstock_api_types::{ApiError, ChatRequest, OutputGrammar, ToolChoice};
use penstock_output_parsers::ToolSchema;
use penstock_structured_output::GrammarError;
use penstock_wire::{Grammar, GrammarKind};
use serde_json::{Map, Value};

use crate::app::App;
use crate::grammar::{Verdict, api_error};
use crate::grammar_trial::{self, Screening};
use crate::reading::Reading;

const TOOLS: &str = "tools";

/// Constraint on the tool calls of an output.
pub(crate) struct CallConstraint {
    reading: Reading,
    /// Callable tools.
    tools: Vec<ToolSchema>,
    several: bool,
    /// The output must consist of tool calls only.
    demanded: bool,
    /// The grammar of the calls with the schemas of all tools unchanged.
    whole: OutputGrammar,
}

/// Whether the grammar enforces the schema of a tool.
fn is_followed(tool: &ToolSchema, demanded: bool) -> bool {
    tool.strict || demanded
}

fn schema(tool: &ToolSchema) -> Grammar {
    let schema = tool.parameters.clone().unwrap_or_default();
    Grammar::new(GrammarKind::JsonSchema, Value::Object(schema).to_string())
}

/// Builds the grammar of calls of `tools`.
fn tag(
    reading: &Reading,
    tools: &[ToolSchema],
    several: bool,
    demanded: bool,
) -> Result<OutputGrammar, ApiError> {
    let grammar = match demanded {
        true => reading.demand(tools, several),
        false => reading.allow(tools, several),
    };
    grammar.ok_or_else(|| ApiError::internal("Calls of this model have no mark."))
}

impl CallConstraint {
    /// `None` if the request does not constrain its calls.
    ///
    /// # Errors
    /// 500 if the request needs constrained calls and the model's format cannot tell calls from
    /// text.
    pub(crate) fn of(reading: &Reading, request: &ChatRequest) -> Result<Option<Self>, ApiError> {
        let tools = &request.tools;
        let (demanded, named) = match &tools.choice {
            ToolChoice::Required => (true, None),
            ToolChoice::Named(name) => (true, Some(name)),
            _ => (false, None),
        };
        if !demanded && !reading.is_strict(request) {
            return Ok(None);
        }
        let Some(callable) = reading.tools() else {
            return Ok(None);
        };
        let wanted = |tool: &&ToolSchema| named.is_none_or(|name| tool.name == *name);
        let tools: Vec<ToolSchema> = callable.iter().filter(wanted).cloned().collect();
        let several = request.tools.parallel && named.is_none();
        Ok(Some(Self {
            whole: tag(reading, &tools, several, demanded)?,
            reading: reading.clone(),
            tools,
            several,
            demanded,
        }))
    }

    pub(crate) fn demanded(&self) -> bool {
        self.demanded
    }

    /// Returns the grammar. Checks the schemas one by one only if the whole does not compile: to
    /// name a faulty strict tool, or to accept any object as the arguments of a faulty non-strict
    /// tool. The relaxed grammar is compiled later ([`crate::wanted_grammar::checked`]).
    ///
    /// # Errors
    /// 400 with the name of a strict tool whose schema does not compile; 503 if the compiler is
    /// busy.
    pub(crate) async fn grammar(self, app: &Arc<App>) -> Result<OutputGrammar, ApiError> {
        let busy = |error| api_error(TOOLS, TOOLS, &error);
        let fault = match grammar_trial::verdict(app, &self.whole.grammar).await {
            Ok(()) => return Ok(self.whole),
            Err(GrammarError::Busy) => return Err(busy(GrammarError::Busy)),
            Err(fault) => fault,
        };
        let followed = self
            .tools
            .iter()
            .filter(|tool| is_followed(tool, self.demanded));
        let schemas = Screening::of(followed.map(schema).collect());
        let trial = schemas.trial(app).await;
        let turn = schemas.turn(app).await.map_err(busy)?;
        let app = Arc::clone(app);
        let grammar = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            self.of_honoured(&app, &schemas, &trial, &fault)
        });
        grammar
            .await
            .unwrap_or_else(|_| Err(ApiError::internal("Reading the tools failed.")))
    }

    /// Builds the grammar with any object in place of schemas that do not compile. `trial` is the
    /// result for the large schemas. `fault` is the error of the whole grammar; it is returned if
    /// each schema compiles alone.
    fn of_honoured(
        mut self,
        app: &App,
        schemas: &Screening,
        trial: &Verdict,
        fault: &GrammarError,
    ) -> Result<OutputGrammar, ApiError> {
        let tokenizer = &app.text()?.tokenizer;
        let verdicts = app.grammars.check_schemas(tokenizer, schemas.iter(), trial);
        let demanded = self.demanded;
        let followed = self
            .tools
            .iter_mut()
            .filter(|tool| is_followed(tool, demanded));
        let mut is_relaxed = false;
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
                    is_relaxed = true;
                }
            }
        }
        if !is_relaxed {
            return Err(api_error(TOOLS, TOOLS, fault));
        }
        tag(&self.reading, &self.tools, self.several, self.demanded)
    }
}
