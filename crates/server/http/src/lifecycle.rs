//! The life of a process that serves: its log, its runtime, and how it winds down.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use crate::{Level, LogSettings, Signals, configure_log, flush_log, log};

/// How long the last lines of the log may take to be written.
const LOG_PATIENCE: Duration = Duration::from_secs(1);
/// Signals within this time of the first are the same wish: `timeout` sends its own to the process
/// and then to the process group.
const ONE_SIGNAL: Duration = Duration::from_millis(200);

/// Runs `live` on a runtime of `workers` threads, and for blocking work of at most `blocking`, with
/// the log set up; returns what it returns, once the log is written.
///
/// # Errors
/// The runtime cannot start.
pub fn run_process<T>(
    settings: LogSettings,
    name: &'static str,
    (workers, blocking): (usize, usize),
    live: impl Future<Output = T>,
) -> std::io::Result<T> {
    configure_log(settings);
    // The standard hook writes to standard error, which may block.
    std::panic::set_hook(Box::new(|panic| log(Level::Error, panic.to_string())));
    let runtime: Runtime = Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(blocking)
        .thread_name(name)
        .enable_all()
        .build()?;
    let result = runtime.block_on(live);
    // A thread that still works for a client who has left must not hold up the exit.
    runtime.shutdown_background();
    flush_log(LOG_PATIENCE);
    Ok(result)
}

/// Drains after a first signal. `drain` gets a future that is ready with a second signal, which
/// ends the `open` requests at once. Returns the exit code: 1 if there was one, or else 0.
pub async fn wind_down(
    open: usize,
    signals: &mut Signals,
    drain: impl AsyncFnOnce(std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>),
) -> i32 {
    let text = format!("draining: {open} requests open; a second signal ends them at once");
    log(Level::Info, text);
    let mut cut = false;
    let hurry = async {
        let first = Instant::now();
        while first.elapsed() < ONE_SIGNAL {
            signals.next().await;
        }
        cut = true;
    };
    drain(Box::pin(hurry)).await;
    log(Level::Info, "stopped".to_owned());
    i32::from(cut)
}
