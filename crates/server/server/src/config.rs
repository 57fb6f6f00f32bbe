//! The API server's configuration: JSON written by the command line, read once.

use std::path::PathBuf;

use penstock_http::{Limits, LogSettings, TlsFiles};
use penstock_output_parsers::{ReasoningFormat, ToolFormat};
use serde::Deserialize;

/// The configuration: the only input; environment variables are not read.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub host: String,
    /// 0 selects a free port, which the ready line names.
    pub port: u16,
    /// Never empty. The first name is the default in responses.
    pub served_model_names: Vec<String>,
    pub model_path: PathBuf,
    /// The server has no tokenizer: text in requests is rejected, outputs have none. `model_path`
    /// is a tokenizer of names only.
    #[serde(default)]
    pub skip_tokenizer_init: bool,
    /// A file that replaces the model's own chat template.
    pub chat_template: Option<PathBuf>,
    /// A Unix socket to listen on instead of host and port.
    #[serde(default)]
    pub uds: Option<PathBuf>,
    #[serde(default)]
    pub tls: Option<TlsFiles>,
    /// A separate port for `/metrics` and the probes; the main port then does not serve `/metrics`.
    #[serde(default)]
    pub metrics_port: Option<u16>,
    /// Encode special tokens in the text of messages as control tokens.
    #[serde(default)]
    pub allow_special_tokens: bool,
    /// Accept chat templates in requests.
    #[serde(default)]
    pub trust_request_chat_template: bool,
    /// Command that runs a job of a request (a chat template or a grammar trial) in a separate
    /// process; the kind of job is appended as an argument. If empty, templates run in this process
    /// and grammar trials are skipped.
    #[serde(default)]
    pub job_command: Vec<String>,
    /// Tool-call format by name; `None` or `auto`: detected in the template.
    #[serde(default)]
    pub tool_call_parser: Option<String>,
    /// Reasoning format by name; `None` or `auto`: detected in the template; `none`: reasoning is
    /// part of the content.
    #[serde(default)]
    pub reasoning_parser: Option<String>,
    /// API keys. With neither keys nor a key file, no key is required.
    pub api_keys: Vec<String>,
    /// Named keys with limits: docs/limits.md.
    #[serde(default)]
    pub api_key_file: Option<PathBuf>,
    /// CORS: origins allowed to use the server from a browser; `*` allows all.
    #[serde(default)]
    pub allowed_origins: Vec<String>,
    /// The key of `/v1/kv`. `None` disables these endpoints.
    #[serde(default)]
    pub admin_api_key: Option<String>,
    pub generation_defaults: GenerationDefaults,
    /// Number of rows of the model's embedding; a tokenizer with more tokens is rejected.
    #[serde(default)]
    pub vocab_size: Option<usize>,
    pub engine: EngineProcess,
    /// Queue length: number of requests that may wait while the engine runs its maximum number of
    /// requests.
    pub max_queue: usize,
    /// Upper bound on the expected wait in the queue; `None`: unbounded.
    #[serde(default)]
    pub max_queue_wait_s: Option<f64>,
    #[serde(default)]
    pub limits: Limits,
    /// Drain time-out: time that open streams have to finish after SIGTERM.
    pub drain_timeout_s: f64,
    /// An engine that sends no STEP message for this long counts as unhealthy.
    pub stall_timeout_s: f64,
    /// Number of ranks of the engine, for the metrics.
    #[serde(default = "one_rank")]
    pub ranks: u32,
    /// Upper bound on the context length, if lower than the engine's.
    pub max_model_len: Option<u32>,
    pub version: String,
    #[serde(default)]
    pub log: LogSettings,
    /// Serve the web page at `/` to browsers.
    #[serde(default = "on")]
    pub ui: bool,
    /// Log one line per completed request.
    #[serde(default)]
    pub access_log: bool,
    /// URL of the collector to which traces are exported, by OTLP over HTTP.
    #[serde(default)]
    pub otlp_traces_endpoint: Option<String>,
    /// The socket of a service manager: `NOTIFY_SOCKET` of sd_notify(3).
    #[serde(default)]
    pub notify_socket: Option<String>,
    #[serde(default = "one")]
    pub worker_threads: usize,
}

/// Default sampling parameters. `None`: temperature 1.0 and top_p 1.0, the others off, a random
/// seed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GenerationDefaults {
    pub temperature: Option<f32>,
    pub top_k: Option<i32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    /// `None`: a random seed per request. With a seed, the server is deterministic, as vLLM is with
    /// `--seed`: equal requests get equal responses, because sampling depends only on the seed and
    /// the request's own tokens.
    pub seed: Option<u64>,
}

/// How to start and connect the engine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineProcess {
    /// Command to start; `{socket}` is replaced by the socket's path. `None`: an external engine
    /// connects.
    pub argv: Option<Vec<String>>,
    /// Standard input of the command.
    #[serde(default)]
    pub input: String,
    /// Directory of the engine's socket; `None`: a new private directory.
    pub socket_dir: Option<PathBuf>,
    /// Parent of the private directory; `None`: the temporary directory.
    #[serde(default)]
    pub runtime_dir: Option<PathBuf>,
}

fn on() -> bool {
    true
}

fn one() -> usize {
    1
}

fn one_rank() -> u32 {
    1
}

impl Config {
    /// Parses and validates the JSON; the error names the field.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let config: Self =
            serde_json::from_str(json).map_err(|e| format!("API server configuration: {e}"))?;
        config.check_parsers()?;
        let complaint = if config.served_model_names.is_empty() {
            "served_model_names must not be empty"
        } else if config.api_keys.iter().any(String::is_empty) {
            "api_keys must not hold an empty key"
        } else if config.admin_api_key.as_deref() == Some("") {
            "admin_api_key must not be empty"
        } else if !is_duration(config.drain_timeout_s) {
            "drain_timeout_s must be between 0 and 86400"
        } else if !is_duration(config.stall_timeout_s) || config.stall_timeout_s == 0.0 {
            "stall_timeout_s must be more than 0 and at most 86400"
        } else if !config.max_queue_wait_s.is_none_or(is_duration) {
            "max_queue_wait_s must be between 0 and 86400"
        } else if config.max_model_len == Some(0) {
            "max_model_len must be at least 1"
        } else if config.uds.is_some() && config.tls.is_some() {
            "uds and tls exclude one another"
        } else if !(1..=2).contains(&config.worker_threads) {
            "worker_threads must be 1 or 2"
        } else {
            return Ok(config);
        };
        Err(format!("API server configuration: {complaint}"))
    }
}

impl Config {
    fn check_parsers(&self) -> Result<(), String> {
        let tools: Vec<_> = ["auto"].into_iter().chain(ToolFormat::names()).collect();
        let reasoning: Vec<_> = ["auto", "none"]
            .into_iter()
            .chain(ReasoningFormat::names())
            .collect();
        for (field, name, known) in [
            ("tool_call_parser", &self.tool_call_parser, tools),
            ("reasoning_parser", &self.reasoning_parser, reasoning),
        ] {
            if let Some(name) = name.as_deref().filter(|name| !known.contains(name)) {
                let list = known.join(", ");
                return Err(format!(
                    "API server configuration: {field} is {name:?}; known are {list}"
                ));
            }
        }
        Ok(())
    }
}

fn is_duration(seconds: f64) -> bool {
    (0.0..=86_400.0).contains(&seconds)
}
