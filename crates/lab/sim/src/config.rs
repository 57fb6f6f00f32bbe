//! Configuration of the simulator: JSON from the command line.

use std::path::PathBuf;

use penstock_http::bind_remedy;
use serde::Deserialize;

use crate::answers::{Answers, LengthDistribution};
use crate::batching::Batcher;
use crate::faults::{Fault, Faults};
use crate::profile::Profile;
use crate::vocabulary::Vocabulary;

/// Why a simulated engine failed.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A setting is invalid; nothing was started.
    #[error("{0}")]
    Config(String),
    #[error("the tokenizer cannot be used: {0}")]
    Text(#[from] penstock_tokenizer::TextError),
    #[error("cannot listen on {host}:{port}: {source}; {}", bind_remedy(.source))]
    Bind {
        host: String,
        port: u16,
        source: std::io::Error,
    },
    #[error("cannot connect to the API server at {path}: {source}")]
    Connect {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the API server at {path} broke the protocol: {source}")]
    Protocol {
        path: PathBuf,
        source: penstock_wire::FrameError,
    },
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the simulated engine did not start: {0}")]
    Engine(#[from] penstock_engine_client::EngineError),
}

/// Settings of one engine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EngineSettings {
    /// The engine's capacity and speed: the name of a preset, or the members of a profile.
    #[serde(default)]
    pub(crate) profile: ProfileChoice,
    /// A model whose tokenizer is used; `None`: synthetic words.
    #[serde(default)]
    pub(crate) tokenizer: Option<PathBuf>,
    #[serde(default)]
    pub(crate) seed: u64,
    /// Faults to inject, each as `KIND[:PROBABILITY[:PARAM]]`.
    #[serde(default)]
    pub(crate) faults: Vec<String>,
    /// Distribution of answer lengths in tokens: `MEAN[:CV]`.
    #[serde(default)]
    pub(crate) answer_tokens: Option<String>,
    /// If set, the process exits with status 1 this many seconds after it is ready.
    #[serde(default)]
    pub(crate) die_after_s: Option<f64>,
}

/// A profile, by its name or by its members.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum ProfileChoice {
    Preset(String),
    Members(serde_json::Map<String, serde_json::Value>),
}

impl Default for ProfileChoice {
    fn default() -> Self {
        Self::Preset("default".to_owned())
    }
}

/// Settings of simulated servers with OpenAI's API.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpConfig {
    pub(crate) host: String,
    /// Port of the first replica; those of the others follow. 0: the system chooses each port.
    pub(crate) port: u16,
    pub(crate) replicas: u16,
    /// Number of runtime threads, which all replicas share.
    pub(crate) threads: usize,
    pub(crate) served_model_name: String,
    pub(crate) version: String,
    pub(crate) engine: EngineSettings,
}

/// Settings of an engine that connects to an API server's socket.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WireConfig {
    pub(crate) engine: EngineSettings,
}

/// An engine's settings, validated.
pub(crate) struct Engine {
    pub(crate) profile: Profile,
    pub(crate) vocabulary: Vocabulary,
    pub(crate) faults: Faults,
    pub(crate) lengths: Option<LengthDistribution>,
    pub(crate) seed: u64,
    pub(crate) die_after_s: Option<f64>,
}

pub(crate) fn read<T: for<'a> Deserialize<'a>>(json: &str) -> Result<T, SimError> {
    serde_json::from_str(json).map_err(|error| SimError::Config(error.to_string()))
}

impl HttpConfig {
    pub(crate) fn check(&self) -> Result<(), SimError> {
        let complaint = if self.replicas == 0 {
            "replicas must be at least 1"
        } else if !(1..=64).contains(&self.threads) {
            "threads must be 1 to 64"
        } else if self.port != 0 && self.port.checked_add(self.replicas - 1).is_none() {
            "the ports of the last replicas are over 65535"
        } else {
            return Ok(());
        };
        Err(SimError::Config(complaint.to_owned()))
    }
}

impl ProfileChoice {
    pub(crate) fn resolve(self) -> Result<Profile, String> {
        let profile: Profile = match self {
            Self::Preset(name) => Profile::preset(&name).ok_or_else(|| {
                format!("there is no profile {name:?}, only default, fast, h100 and instant")
            })?,
            Self::Members(members) => {
                serde_json::from_value(members.into()).map_err(|e| format!("profile: {e}"))?
            }
        };
        match profile.complaint() {
            Some(complaint) => Err(format!("profile: {complaint}")),
            None => Ok(profile),
        }
    }
}

impl EngineSettings {
    pub(crate) fn open(self) -> Result<Engine, SimError> {
        let mut profile = self.profile.resolve().map_err(SimError::Config)?;
        let list = self.faults.iter().map(|text| text.parse::<Fault>());
        let list = list.collect::<Result<_, _>>().map_err(SimError::Config)?;
        let lengths = self.answer_tokens.map(|text| text.parse()).transpose();
        if self.die_after_s.is_some_and(|s| !(0.0..=1e9).contains(&s)) {
            let complaint = "die_after_s must be 0 to 1e9".to_owned();
            return Err(SimError::Config(complaint));
        }
        let vocabulary = match self.tokenizer {
            Some(path) => Vocabulary::of_model(&path)?,
            None => Vocabulary::made_up(profile.vocab_size)?,
        };
        profile.vocab_size = vocabulary.size;
        Ok(Engine {
            profile,
            vocabulary,
            faults: Faults {
                list,
                seed: self.seed,
            },
            lengths: lengths.map_err(SimError::Config)?,
            seed: self.seed,
            die_after_s: self.die_after_s,
        })
    }
}

impl Engine {
    pub(crate) fn batcher(&self) -> Batcher {
        let answers = Answers {
            words: self.vocabulary.words.clone(),
            eos: self.vocabulary.eos,
            seed: self.seed,
            lengths: self.lengths,
        };
        Batcher::new(self.profile.clone(), answers)
    }

    /// Completes when the engine's process must exit; never if it has no such time.
    pub(crate) async fn death(&self) {
        match self.die_after_s {
            Some(seconds) => {
                tokio::time::sleep(std::time::Duration::from_secs_f64(seconds)).await;
            }
            None => std::future::pending().await,
        }
    }
}
