//! Handle of a load (requests that are sent when they are due). The load runs on a separate thread.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use thiserror::Error;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;

use crate::alarm::TimerFd;
use crate::connect::Tcp;
use crate::progress::Progress;
use crate::record::Columns;
use crate::schedule::{Command, Request, run_load};
use crate::target::{Target, TargetError};

/// Number of tasks that run between two polls of the sockets.
const TASKS_BETWEEN_POLLS: u32 = 16;
/// Maximum due time in seconds since the start; an `Instant` may not represent later ones.
const LATEST_DUE: f64 = 1e9;

/// Errors of the handle's methods.
#[derive(Debug, Error)]
pub enum RunError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("due time {due}: must be between the one before ({last}) and {LATEST_DUE} seconds")]
    Due { due: f64, last: f64 },
    #[error("the load {0}")]
    State(&'static str),
    #[error("the load's thread: {0}")]
    Thread(String),
}

/// A load: requests are added, sent when due, and recorded. A drop stops it.
#[derive(Debug)]
pub struct LoadRun {
    progress: Arc<Progress>,
    state: Mutex<RunState>,
    end: Arc<End>,
}

#[derive(Debug)]
struct RunState {
    commands: mpsc::UnboundedSender<Command>,
    last_due: f64,
    closed: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Ready(Box<Ready>),
    Running(JoinHandle<Result<Columns, String>>),
    Taken,
}

/// What the load's thread needs.
#[derive(Debug)]
struct Ready {
    target: Target,
    connect: Tcp,
    commands: mpsc::UnboundedReceiver<Command>,
    progress: Arc<Progress>,
}

/// Lets the handle wait for the end of the load's thread.
#[derive(Debug, Default)]
struct End {
    reached: Mutex<bool>,
    changed: Condvar,
}

/// Signals on drop that the load's thread has ended, and therefore also after a panic.
struct AtEnd(Arc<End>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        *self
            .0
            .reached
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}

impl LoadRun {
    /// `target` is JSON as for [`Target::from_json`].
    pub fn new(target: &str) -> Result<Self, RunError> {
        let target = Target::from_json(target)?;
        let connect = Tcp::new(&target)?;
        let (sender, commands) = mpsc::unbounded_channel();
        let progress = Arc::new(Progress::default());
        let ready = Ready {
            target,
            connect,
            commands,
            progress: Arc::clone(&progress),
        };
        Ok(Self {
            progress,
            state: Mutex::new(RunState {
                commands: sender,
                last_due: 0.0,
                closed: false,
                stage: Stage::Ready(Box::new(ready)),
            }),
            end: Arc::default(),
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds requests with ascending due times, before or after the start. If one of them is
    /// invalid, none is added.
    pub fn add(&self, requests: Vec<Request>) -> Result<(), RunError> {
        let mut state = self.state();
        if state.closed {
            return Err(RunError::State("is closed; nothing can be added"));
        }
        let mut last = state.last_due;
        for request in &requests {
            if !(last..=LATEST_DUE).contains(&request.due) {
                let due = request.due;
                return Err(RunError::Due { due, last });
            }
            last = request.due;
        }
        state.last_due = last;
        // After the load's end nothing is added; the columns show this.
        let _ = state.commands.send(Command::Add(requests));
        Ok(())
    }

    /// Starts the load: due times count from now.
    pub fn start(&self) -> Result<(), RunError> {
        let mut state = self.state();
        match std::mem::replace(&mut state.stage, Stage::Taken) {
            Stage::Ready(ready) => {
                let end = AtEnd(Arc::clone(&self.end));
                let thread = std::thread::Builder::new().name("penstock-load".to_owned());
                let spawned = thread.spawn(move || {
                    let _end = end;
                    run(*ready)
                });
                let spawned = spawned.map_err(|e| RunError::Thread(e.to_string()))?;
                state.stage = Stage::Running(spawned);
                Ok(())
            }
            other => {
                state.stage = other;
                Err(RunError::State("has been started before"))
            }
        }
    }

    /// Declares that no more requests will be added. Without this call, a load ends only when
    /// stopped.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let _ = state.commands.send(Command::Close);
    }

    /// Stops the load: no more requests are sent, and open ones are aborted.
    pub fn stop(&self) {
        let mut state = self.state();
        state.closed = true;
        let _ = state.commands.send(Command::Stop);
    }

    /// Waits up to `limit` for the load's end. Returns whether it has ended.
    pub fn wait(&self, limit: Duration) -> Result<bool, RunError> {
        if matches!(self.state().stage, Stage::Ready(_)) {
            return Err(RunError::State("has not been started"));
        }
        let reached = self
            .end
            .reached
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .end
            .changed
            .wait_timeout_while(reached, limit, |reached| !*reached);
        Ok(*waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Takes the records; possible once, after the load's end.
    pub fn take(&self) -> Result<Columns, RunError> {
        let mut state = self.state();
        match std::mem::replace(&mut state.stage, Stage::Taken) {
            Stage::Running(thread) if self.wait_ended() => match thread.join() {
                Ok(Ok(columns)) => Ok(columns),
                Ok(Err(problem)) => Err(RunError::Thread(problem)),
                Err(panic) => Err(RunError::Thread(panic_message(panic.as_ref()))),
            },
            Stage::Taken => Err(RunError::State("has given its records away already")),
            unfinished => {
                state.stage = unfinished;
                Err(RunError::State("has not ended"))
            }
        }
    }

    fn wait_ended(&self) -> bool {
        *self
            .end
            .reached
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LoadRun {
    fn drop(&mut self) {
        self.stop();
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("ended in a panic: {}", text.unwrap_or_default())
}

fn run(ready: Ready) -> Result<Columns, String> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .event_interval(TASKS_BETWEEN_POLLS)
        .build_local(LocalOptions::default())
        .map_err(|e| e.to_string())?;
    let mut columns = runtime.block_on(async {
        let alarm = TimerFd::new().map_err(|e| format!("timerfd: {e}"))?;
        let Ready {
            target,
            connect,
            commands,
            progress,
        } = ready;
        let load = run_load(target, connect, alarm, commands, progress);
        // A separate task, so that it is not polled after each of the other tasks.
        let load = tokio::task::spawn_local(load).await;
        load.map_err(|e| panic_message(e.into_panic().as_ref()))
    })?;
    // Does not wait for a name resolution that is still pending.
    runtime.shutdown_background();
    let cpu = clock_gettime(ClockId::ThreadCPUTime);
    columns.cpu_s = Duration::new(
        u64::try_from(cpu.tv_sec).unwrap_or(0),
        u32::try_from(cpu.tv_nsec).unwrap_or(0),
    )
    .as_secs_f64();
    Ok(columns)
}
