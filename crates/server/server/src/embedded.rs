//! The server's endpoints for an engine in the same process.

use std::sync::Arc;

use axum::Router;
use penstock_engine_client::{Engine, EngineError};
use penstock_http::Keys;
use penstock_tokenizer::TextModel;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::app::App;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::routes::router;
use crate::startup::EngineLog;

/// Waits until the engine at the other end of `stream` is ready and returns a router of the
/// endpoints. The address, engine process and time limits of `config` are ignored.
///
/// # Errors
/// The engine was lost before it was ready.
pub async fn router_over(
    config: Config,
    text: Arc<TextModel>,
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
) -> Result<Router, EngineError> {
    let metrics = Arc::new(Metrics::new(&config.served_model_names[0], &config.version));
    let engine = Engine::over(stream, Arc::new(EngineLog::new(metrics.clone())));
    engine.wait_ready().await?;
    let keys = Keys::plain(config.api_keys.clone());
    let app = App::new(config, (keys, None), engine, metrics);
    app.set_text(text);
    Ok(router(Arc::new(app)))
}
