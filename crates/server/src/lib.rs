//! The front door: OpenAI's API over HTTP on one side, one engine on the other.
//!
//! [`run`] is the whole life of the process: bind, start the engine, serve, drain. A generation
//! request is one function in `endpoints/`, read downward; everything it calls is named after what
//! it does. Nothing here blocks the runtime: long texts are tokenized on a thread of their own, and
//! a stream is rendered by a task that the connection's departure ends.

mod admission;
mod app;
mod body;
mod choices;
mod config;
mod connections;
mod endpoints;
mod envelope;
mod failure;
mod generation;
mod ids;
mod logprobs;
mod metrics;
mod pipe;
mod render;
mod routes;
mod run;
mod server;
mod startup;
mod stream;
mod submit;

pub use config::{Config, EngineProcess, GenerationDefaults};
pub use run::run;
pub use server::{Server, StartError};
pub use startup::StartupError;
