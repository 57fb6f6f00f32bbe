//! The API server (*front door*): an HTTP server with OpenAI's API for one engine.
//!
//! [`run`] is the lifecycle of the process: bind, start the engine, serve, drain. Each generation
//! endpoint is one function in `endpoints/`. Nothing blocks the runtime: long texts are tokenized
//! on blocking threads, and a stream is rendered by a task that ends with its connection.

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
