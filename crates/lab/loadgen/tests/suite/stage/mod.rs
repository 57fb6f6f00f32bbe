//! Runs a load over memory, under the runtime's virtual clock.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use penstock_loadgen::{Alarm, Columns, Command, Connect, Request, Stamped, Target, run_load};
use tokio::io::{AsyncRead, DuplexStream, ReadBuf};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

/// The runtime's own timer, driven by the virtual clock.
struct Sleeper;

impl Alarm for Sleeper {
    async fn until(&mut self, due: Instant) {
        sleep_until(due).await;
    }
}

/// Runs a load to its end, or up to `stop_at` seconds. `settings` are fields of the target.
pub(crate) fn run<C: Connect + 'static>(
    settings: serde_json::Value,
    requests: Vec<Request>,
    stop_at: Option<f64>,
    connect: impl FnOnce() -> C,
) -> Columns {
    let mut target = settings;
    target["base_url"] = "http://script".into();
    target["path"] = "/v1/completions".into();
    target["keep_text"] = true.into();
    let target = Target::from_json(&target.to_string()).unwrap();
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build_local(LocalOptions::default())
        .unwrap();
    runtime.block_on(async move {
        let (commands, receiver) = mpsc::unbounded_channel();
        commands.send(Command::Add(requests)).unwrap();
        let ending = async move {
            match stop_at {
                None => commands.send(Command::Close).unwrap(),
                Some(at) => {
                    sleep(Duration::from_secs_f64(at)).await;
                    commands.send(Command::Stop).unwrap();
                }
            }
            // A load stops when its caller is dropped.
            commands.closed().await;
        };
        tokio::task::spawn_local(ending);
        run_load(target, connect(), Sleeper, receiver, <_>::default()).await
    })
}

/// `Connect::is_quiet` for a stream in memory.
pub(crate) fn is_quiet(stream: &mut Stamped<DuplexStream>) -> bool {
    let mut byte = [0];
    let mut buffer = ReadBuf::new(&mut byte);
    let mut cx = Context::from_waker(Waker::noop());
    let read = Pin::new(stream.stream()).poll_read(&mut cx, &mut buffer);
    matches!(read, Poll::Pending)
}
