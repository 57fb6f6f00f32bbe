//! Lifecycle of a server process: log, runtime and drain.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tracing::{error, info};

use crate::{LogSettings, Signals, configure_log, flush_log};

/// Time-out for flushing the log at exit.
const LOG_PATIENCE: Duration = Duration::from_secs(1);
/// Signals within this time of the first count as one: the command `timeout` signals the process
/// and then its process group.
const ONE_SIGNAL: Duration = Duration::from_millis(200);

/// Configures the log of the program `name` and runs `live` on a runtime of `workers` threads plus
/// at most `blocking` for blocking work. Flushes the log and returns the result of `live`.
///
/// # Errors
/// The runtime cannot start.
pub fn run_process<T>(
    settings: LogSettings,
    name: &'static str,
    (workers, blocking): (usize, usize),
    live: impl Future<Output = T>,
) -> std::io::Result<T> {
    configure_log(name, settings);
    // The standard hook writes to standard error, which may block.
    std::panic::set_hook(Box::new(|panic| error!("{panic}")));
    let runtime: Runtime = Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(blocking)
        .thread_name(name)
        .enable_all()
        .build()?;
    let result = runtime.block_on(live);
    // Does not wait for blocking threads, which may still work for disconnected clients.
    runtime.shutdown_background();
    flush_log(LOG_PATIENCE);
    Ok(result)
}

/// Drains after the first signal. `drain` gets a future that completes on a second signal, which
/// ends the `open` requests at once. Returns the exit code: 1 after a second signal, else 0.
pub async fn wind_down(
    open: usize,
    signals: &mut Signals,
    drain: impl AsyncFnOnce(std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>),
) -> i32 {
    info!("draining: {open} requests open; a second signal ends them at once");
    let mut cut = false;
    let hurry = async {
        let first = Instant::now();
        while first.elapsed() < ONE_SIGNAL {
            signals.next().await;
        }
        cut = true;
    };
    drain(Box::pin(hurry)).await;
    info!("stopped");
    i32::from(cut)
}
