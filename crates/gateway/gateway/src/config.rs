//! The gateway's configuration: JSON written by the command line, read once.

use std::path::PathBuf;

use penstock_fleet::{Settings, Source};
use penstock_http::{Limits, LogSettings, TlsFiles, shortened};
use penstock_routing::{Profile, ProfileSpec};
use serde::Deserialize;

use crate::flow::FlowSettings;
use crate::hedge::HedgeSettings;
use crate::mirror::MirrorSettings;

/// The configuration. There are no other inputs, the environment included.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub host: String,
    /// 0 lets the system choose; the ready line names the choice.
    pub port: u16,
    /// A Unix socket to listen on instead.
    #[serde(default)]
    pub uds: Option<PathBuf>,
    #[serde(default)]
    pub tls: Option<TlsFiles>,
    /// Clients find all endpoints below this path, too: `/llm`.
    #[serde(default)]
    pub root_path: Option<String>,
    /// No key is required where there is neither one of these nor a file.
    #[serde(default)]
    pub api_keys: Vec<String>,
    #[serde(default)]
    pub api_key_file: Option<PathBuf>,
    /// The key that replicas want. With it, or with keys of its own, the gateway keeps the
    /// client's key to itself.
    #[serde(default)]
    pub backend_api_key: Option<String>,
    #[serde(default)]
    pub allowed_origins: Vec<String>,
    #[serde(default)]
    pub access_log: bool,
    /// Answers carry the decision and its reasons in `x-penstock-decision`.
    #[serde(default)]
    pub explain: bool,
    /// Not empty; names are distinct.
    pub pools: Vec<PoolConfig>,
    /// Rules by model name; without any, a model is where replicas list it.
    #[serde(default)]
    pub models: Vec<ModelRule>,
    /// Priorities that requests ask for by name.
    #[serde(default)]
    pub objectives: Vec<Objective>,
    /// Requests that are forwarded at once; more get 429.
    #[serde(default = "most_requests")]
    pub max_requests: usize,
    /// Envoy asks here where its requests go.
    #[serde(default)]
    pub ext_proc: Option<ExtProc>,
    /// Further replicas that a request may be sent to when one fails before its first byte.
    #[serde(default = "retries")]
    pub retries: usize,
    /// For how long a stream that broke off looks for another replica. 0: it ends with an error.
    #[serde(default = "resume_timeout")]
    pub resume_timeout_s: f64,
    /// Bytes of requests that are kept for that; streams beyond them do not go on.
    #[serde(default = "resume_bytes")]
    pub resume_bytes: usize,
    /// Streams of servers that do not mark theirs go on by their text.
    #[serde(default)]
    pub resume_by_text: bool,
    #[serde(default = "connect_timeout")]
    pub connect_timeout_s: f64,
    #[serde(default)]
    pub limits: Limits,
    /// How long open streams may go on after SIGTERM.
    #[serde(default)]
    pub drain_timeout_s: f64,
    pub version: String,
    #[serde(default)]
    pub log: LogSettings,
    #[serde(default)]
    pub notify_socket: Option<String>,
    #[serde(default = "one")]
    pub worker_threads: usize,
    /// Files that the configuration was made from; it is read again when one changes.
    #[serde(default)]
    pub watched: Vec<PathBuf>,
    /// What the log is to say of how it was made.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// All members as they were given.
    #[serde(skip)]
    pub(crate) given: serde_json::Map<String, serde_json::Value>,
}

/// The endpoint picker for Envoy. It has the certificate of the proxy.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtProc {
    pub host: String,
    /// 0 lets the system choose.
    pub port: u16,
    /// The only pool that it picks from; `None`: by the rules, as the proxy.
    #[serde(default)]
    pub pool: Option<String>,
}

/// Replicas that serve the same models.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    pub name: String,
    pub source: Source,
    #[serde(default)]
    pub fleet: Settings,
    #[serde(default)]
    pub profile: ProfileSpec,
    #[serde(default)]
    pub flow: FlowSettings,
    /// A request that waits for long is sent to a second replica.
    #[serde(default)]
    pub hedge: Option<HedgeSettings>,
    /// A share of the requests goes to another pool, too, to be compared.
    #[serde(default)]
    pub mirror: Option<MirrorSettings>,
    /// Directory or GGUF file of the model that all replicas serve: its tokenizer and chat
    /// template make the tokens that KV events speak of.
    #[serde(default)]
    pub tokenizer: Option<PathBuf>,
    /// Goes with a tokenizer.
    #[serde(default)]
    pub kv_events: Option<KvEvents>,
}

/// Where replicas publish which KV blocks they hold. In endpoints `{host}`, `{port}` and `{LABEL}`
/// stand for a replica's own.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvEvents {
    /// `tcp://{host}:5557`
    pub endpoint: String,
    /// Where past events are sent again.
    #[serde(default)]
    pub replay_endpoint: Option<String>,
    /// Beginning of the topics that are followed.
    #[serde(default)]
    pub topic: String,
}

/// Where requests for a model go.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRule {
    /// As requests spell it; `*` is every other name.
    pub name: String,
    /// One is drawn by weight.
    pub targets: Vec<Target>,
    /// The priority of requests without an objective.
    #[serde(default)]
    pub priority: i32,
}

/// What the header `x-gateway-inference-objective` names.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    pub name: String,
    /// `None`: requests to every pool.
    #[serde(default)]
    pub pool: Option<String>,
    /// Higher ones first; those below 0 do not wait.
    pub priority: i32,
}

/// A pool, and the model's name there.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    pub pool: String,
    /// `None`: as asked for. Else requests and answers are rewritten.
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default = "one_weight")]
    pub weight: u32,
}

/// Whether a path is of plain segments, beside those of the gateway's own endpoints.
fn is_root(path: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~');
    let segment = |one: &str| !one.is_empty() && one.bytes().all(plain);
    let mut segments = path.split('/');
    let rooted = segments.next() == Some("");
    let first = segments.clone().next().unwrap_or_default();
    rooted && !OWN.contains(&first) && segments.all(segment)
}

/// First segments of the gateway's own endpoints.
const OWN: [&str; 11] = [
    "v1",
    "health",
    "ping",
    "ready",
    "version",
    "metrics",
    "rerank",
    "score",
    "pooling",
    "tokenize",
    "detokenize",
];

fn most_requests() -> usize {
    10_000
}

fn retries() -> usize {
    2
}

fn resume_timeout() -> f64 {
    10.0
}

fn resume_bytes() -> usize {
    256 << 20
}

fn connect_timeout() -> f64 {
    2.0
}

fn one() -> usize {
    1
}

fn one_weight() -> u32 {
    1
}

impl Config {
    /// # Errors
    /// Text that is no configuration, or a rule that cannot work; the text names it.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let mut config: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        config.given = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match config.complaint() {
            Some(complaint) => Err(complaint),
            None => Ok(config),
        }
    }

    fn complaint(&self) -> Option<String> {
        if self.pools.is_empty() {
            return Some("a gateway needs a pool".to_owned());
        }
        if let Some(root) = self.root_path.as_deref().filter(|root| !is_root(root)) {
            let root = shortened(root, 100);
            return Some(format!("root_path {root:?} is not like /llm or /team/llm"));
        }
        let mut names: Vec<&str> = self.pools.iter().map(|pool| pool.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Some(format!("there are two pools {:?}", twice[0]));
        }
        let alone = |pool: &&PoolConfig| pool.tokenizer.is_some() != pool.kv_events.is_some();
        if let Some(pool) = self.pools.iter().find(alone) {
            let name = &pool.name;
            return Some(format!(
                "pool {name:?}: tokenizer and kv_events go together"
            ));
        }
        for pool in &self.pools {
            let mirror = pool.mirror.as_ref();
            let mirror = mirror.and_then(|mirror| mirror.complaint(&pool.name, &names));
            let hedge = pool.hedge.as_ref().and_then(HedgeSettings::complaint);
            let profile = Profile::new(pool.profile.clone())
                .err()
                .map(|error| error.to_string());
            let complaint = pool.flow.complaint().or(mirror).or(hedge);
            if let Some(complaint) = complaint.or(profile) {
                return Some(format!("pool {:?}: {complaint}", pool.name));
            }
        }
        let pools = self.objectives.iter().filter_map(|one| one.pool.as_ref());
        let unknown = |pool: &&String| names.binary_search(&pool.as_str()).is_err();
        if let Some(pool) = pools.into_iter().find(unknown) {
            let known = names.join(", ");
            return Some(format!(
                "an objective names pool {pool:?}; there are {known}"
            ));
        }
        let picker = self.ext_proc.as_ref();
        if let Some(pool) = picker.and_then(|picker| picker.pool.as_deref())
            && names.binary_search(&pool).is_err()
        {
            let known = names.join(", ");
            return Some(format!("ext_proc names pool {pool:?}; there are {known}"));
        }
        for (at, rule) in self.models.iter().enumerate() {
            let name = &rule.name;
            if self.models[..at].iter().any(|other| other.name == *name) {
                return Some(format!("there are two rules for model {name:?}"));
            }
            if rule.targets.iter().all(|target| target.weight == 0) {
                return Some(format!(
                    "the rule for model {name:?} has no target with a weight"
                ));
            }
            let unknown = |target: &&Target| names.binary_search(&target.pool.as_str()).is_err();
            if let Some(target) = rule.targets.iter().find(unknown) {
                let (pool, known) = (&target.pool, names.join(", "));
                return Some(format!(
                    "the rule for model {name:?} names pool {pool:?}; there are {known}"
                ));
            }
        }
        None
    }
}
