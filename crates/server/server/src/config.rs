//! The front door's configuration: JSON written by the command line, read once.

use std::path::PathBuf;

use penstock_http::{Limits, LogSettings, TlsFiles};
use penstock_output_parsers::{ReasoningFormat, ToolFormat};
use serde::Deserialize;

/// The configuration. There are no other inputs, the environment included.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub host: String,
    /// 0 lets the system choose; the ready line names the choice.
    pub port: u16,
    /// Not empty. The first is the name responses carry.
    pub served_model_names: Vec<String>,
    pub model_path: PathBuf,
    /// A file that replaces the model's own chat template.
    pub chat_template: Option<PathBuf>,
    /// A Unix socket to listen on instead.
    #[serde(default)]
    pub uds: Option<PathBuf>,
    #[serde(default)]
    pub tls: Option<TlsFiles>,
    /// A port for `/metrics` and the probes alone; `/metrics` is then on no other.
    #[serde(default)]
    pub metrics_port: Option<u16>,
    /// Special tokens that are spelled in messages are read as control tokens.
    #[serde(default)]
    pub allow_special_tokens: bool,
    /// Chat templates of requests are run.
    #[serde(default)]
    pub trust_request_chat_template: bool,
    /// The program, and its arguments, that runs a job of a request, the kind of which is added:
    /// one of those templates, or the trial of a grammar. Empty: templates run here, and no trials.
    #[serde(default)]
    pub job_command: Vec<String>,
    /// Format of tool calls, by name; `None` or `auto`: by the template.
    #[serde(default)]
    pub tool_call_parser: Option<String>,
    /// Format of reasoning, by name; `None` or `auto`: by the template; `none`: it is content.
    #[serde(default)]
    pub reasoning_parser: Option<String>,
    /// No key is required where there is neither one of these nor a file.
    pub api_keys: Vec<String>,
    /// Named keys with limits: docs/limits.md.
    #[serde(default)]
    pub api_key_file: Option<PathBuf>,
    /// Origins whose pages may use the server from a browser; `*` is all.
    #[serde(default)]
    pub allowed_origins: Vec<String>,
    /// The key of `/v1/kv`. `None` disables these endpoints.
    #[serde(default)]
    pub admin_api_key: Option<String>,
    pub generation_defaults: GenerationDefaults,
    /// Rows of the model's embedding; a tokenizer with more tokens is refused.
    #[serde(default)]
    pub vocab_size: Option<usize>,
    pub engine: EngineProcess,
    /// Requests that may wait beyond those the engine can run at once.
    pub max_queue: usize,
    /// The longest expected wait of those; `None`: any.
    #[serde(default)]
    pub max_queue_wait_s: Option<f64>,
    #[serde(default)]
    pub limits: Limits,
    /// How long open streams may go on after SIGTERM.
    pub drain_timeout_s: f64,
    /// An engine silent for this long is not healthy.
    pub stall_timeout_s: f64,
    /// Lowers the engine's own limit.
    pub max_model_len: Option<u32>,
    pub version: String,
    #[serde(default)]
    pub log: LogSettings,
    /// A line in the log for every request that has ended.
    #[serde(default)]
    pub access_log: bool,
    /// The socket of a service manager: `NOTIFY_SOCKET` of sd_notify(3).
    #[serde(default)]
    pub notify_socket: Option<String>,
    #[serde(default = "one")]
    pub worker_threads: usize,
}

/// Sampling parameters of requests without them. `None`: 1.0, off, 1.0 and random.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GenerationDefaults {
    pub temperature: Option<f32>,
    pub top_k: Option<i32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    /// `None`: a new one for each request. With one, the whole server is repeatable: like vLLM's
    /// `--seed`, equal requests get equal answers, because a request's draws depend on nothing but
    /// its seed and its own tokens.
    pub seed: Option<u64>,
}

/// How the engine is started and connected.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineProcess {
    /// The command to start, `{socket}` standing for the socket's path. `None`: an external engine
    /// connects.
    pub argv: Option<Vec<String>>,
    /// Standard input of the command.
    #[serde(default)]
    pub input: String,
    /// `None`: a fresh private directory.
    pub socket_dir: Option<PathBuf>,
    /// Where that private directory is made; `None`: in the temporary directory.
    #[serde(default)]
    pub runtime_dir: Option<PathBuf>,
}

fn one() -> usize {
    1
}

impl Config {
    /// Reads and checks the JSON; the error names the field.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let config: Self =
            serde_json::from_str(json).map_err(|e| format!("front door configuration: {e}"))?;
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
        Err(format!("front door configuration: {complaint}"))
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
                    "front door configuration: {field} is {name:?}; known are {list}"
                ));
            }
        }
        Ok(())
    }
}

fn is_duration(seconds: f64) -> bool {
    (0.0..=86_400.0).contains(&seconds)
}
