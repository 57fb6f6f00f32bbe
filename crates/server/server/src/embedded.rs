//! The server's endpoints before an engine of the same process.

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

/// The endpoints before the engine at the other end of `stream`, once that is ready. Of `config`,
/// the address, the engine's process and the time limits have no meaning here.
///
/// # Errors
/// The engine ended before it was ready.
pub async fn router_over(
    config: Config,
    text: Arc<TextModel>,
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
) -> Result<Router, EngineError> {
    let metrics = Arc::new(Metrics::new(&config.served_model_names[0], &config.version));
    let engine = Engine::over(stream, Arc::new(EngineLog::new(metrics.clone())));
    engine.wait_ready().await?;
    let keys = Keys::plain(config.api_keys.clone());
    let app = App::new(config, keys, engine, metrics);
    app.set_text(text);
    Ok(router(Arc::new(app)))
}
