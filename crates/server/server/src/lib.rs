//! The HTTP server before one engine (the front door): OpenAI's API.
//!
//! [`run`] is the whole life of the process: bind, start the engine, serve, drain. A generation
//! request is one function in `endpoints/`, read downward. Nothing here blocks the runtime: long
//! texts are tokenized on a thread of their own, and a stream is rendered by a task that ends with
//! its connection.

mod admission;
mod app;
mod call_grammar;
mod choice;
mod choices;
mod config;
mod delta;
mod embedded;
mod endpoints;
mod engine;
mod grammar;
mod grammar_trial;
mod job_process;
mod jobs;
mod lanes;
mod lengths;
mod load;
mod logprobs;
mod marks;
mod metrics;
mod offsets;
mod pooling;
mod reading;
mod render;
mod request_meta;
mod resume;
mod routes;
mod run;
mod sampling;
mod server;
mod startup;
mod stream;
mod submit;
mod wanted_grammar;

pub use config::{Config, EngineProcess, GenerationDefaults};
pub use embedded::router_over;
pub use penstock_api_http::Failure;
pub use run::run;
pub use server::{Server, StartError};
pub use startup::StartupError;
