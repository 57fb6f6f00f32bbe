//! A scripted engine for tests, in the test's own process, on the real socket and frames.
//!
//! ```no_run
//! # use penstock_engine_client::testing::{FakeEngine, Script, tokens};
//! # use std::{path::Path, time::Duration};
//! # async fn test(engine: penstock_engine_client::Engine) {
//! let script = Script::new(|_add| tokens(&[5, 6, 7], Duration::from_millis(1)));
//! let fake = FakeEngine::connect(engine.socket_path(), script).await;
//! # }
//! ```

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_wire::{
    Add, EngineFrame, Fatal, Finish, FrontFrame, Hello, KvOrder, KvOutcome, KvReply, Output,
    Pooler, Ready, Stage, Step, StepStats, TierKinds, WIRE_VERSION,
};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::{Disconnect, FrontConnection};

/// One action of the engine for a request.
#[derive(Debug, Clone)]
pub enum Action {
    Wait(Duration),
    /// Sends this output in a STEP of its own; the request's id is filled in.
    Send(Output),
    /// Closes the connection, as if the engine had crashed.
    Die,
    /// Sends FATAL and closes the connection.
    Fatal(String),
    /// Stops sending, heartbeats included, and keeps the connection open.
    Stall,
}

/// One output per token, each after `delay`; the last finishes with [`Finish::Length`].
pub fn tokens(ids: &[u32], delay: Duration) -> Vec<Action> {
    let finish = |at| {
        if at + 1 == ids.len() {
            Finish::Length
        } else {
            Finish::None
        }
    };
    let output = |(at, id): (usize, &u32)| Output {
        tokens: vec![*id],
        finish: finish(at),
        ..Output::default()
    };
    ids.iter()
        .enumerate()
        .flat_map(|item| [Action::Wait(delay), Action::Send(output(item))])
        .collect()
}

/// The actions of an engine whose queue is full.
pub fn reject() -> Vec<Action> {
    vec![Action::Send(Output {
        finish: Finish::Rejected,
        ..Output::default()
    })]
}

/// The actions that answer an ADD.
pub type Answer = dyn Fn(&Add) -> Vec<Action> + Send + Sync;

/// Function that returns the reply to a KV cache command; `None`: no reply.
pub type Obedience = dyn Fn(&KvOrder) -> Option<(KvOutcome, String)> + Send + Sync;

/// Behaviour of the scripted engine.
#[derive(Clone)]
pub struct Script {
    pub wire_version: u16,
    pub stages: Vec<Stage>,
    pub ready: Ready,
    /// Time between STEPs without outputs.
    pub heartbeat: Duration,
    pub answer: Arc<Answer>,
    pub obey: Arc<Obedience>,
    /// Report of the KV tiers, sent after READY.
    pub tiers: Option<String>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("ready", &self.ready)
            .finish_non_exhaustive()
    }
}

impl Script {
    /// `answer` returns the actions for each ADD. If none of them finishes the request, it stays
    /// open until a CANCEL.
    pub fn new(answer: impl Fn(&Add) -> Vec<Action> + Send + Sync + 'static) -> Self {
        Self {
            wire_version: WIRE_VERSION,
            stages: vec![Stage {
                name: "model read".to_owned(),
                seconds: 0.25,
                detail: "fake".to_owned(),
            }],
            ready: small_engine(),
            heartbeat: Duration::from_millis(100),
            answer: Arc::new(answer),
            obey: Arc::new(|_| Some((KvOutcome::Done, "{}".to_owned()))),
            tiers: None,
        }
    }
}

/// The limits of a small model; vocabulary and end token are those of SmolLM2.
pub fn small_engine() -> Ready {
    Ready {
        max_model_len: 8192,
        max_num_seqs: 32,
        max_num_batched_tokens: 2048,
        max_queue: 64,
        block_size: 16,
        num_blocks: 1024,
        kv_bytes: 1 << 24,
        vocab_size: 49152,
        eos_token_ids: vec![2],
        cache_identity: [7; 32],
        numerics: "fake".to_owned(),
        device: "none".to_owned(),
        threads: 1,
        kv_tiers: TierKinds::default(),
        pooler: Pooler::default(),
    }
}

/// Frames received from the API server so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Log {
    pub adds: Vec<Add>,
    pub cancels: Vec<u64>,
    pub orders: Vec<KvOrder>,
    pub shutdown: bool,
}

/// A connected engine. Dropping it closes the connection.
#[derive(Debug)]
pub struct FakeEngine {
    log: watch::Receiver<Log>,
    task: JoinHandle<()>,
}

impl FakeEngine {
    /// Connects to the API server's socket, waiting until it listens, and starts the script.
    pub async fn connect(socket: &Path, script: Script) -> Self {
        let stream = loop {
            match UnixStream::connect(socket).await {
                Ok(stream) => break stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        let (log, logged) = watch::channel(Log::default());
        let (actions, wanted) = unbounded_channel();
        let task = tokio::spawn(async move {
            let session = Session {
                connection: FrontConnection::new(stream),
                script,
                log,
                actions,
                open: HashMap::new(),
                step: 0,
                stalled: false,
            };
            // The connection may end at any frame; tests see that on the other side.
            let _ = session.run(wanted).await;
        });
        Self { log: logged, task }
    }

    /// The frames received so far.
    pub fn log(&self) -> Log {
        self.log.borrow().clone()
    }

    /// Waits until the log satisfies `wanted`, and returns it.
    ///
    /// # Panics
    /// The connection ends first.
    pub async fn wait_log(&mut self, wanted: impl FnMut(&Log) -> bool) -> Log {
        self.log
            .wait_for(wanted)
            .await
            .expect("the fake engine's connection ended before the log was as wanted")
            .clone()
    }

    /// Closes the connection.
    pub fn kill(self) {}
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The id of a request, and an action for it.
type Wanted = (u64, Action);

struct Session {
    connection: FrontConnection,
    script: Script,
    log: watch::Sender<Log>,
    actions: UnboundedSender<Wanted>,
    open: HashMap<u64, JoinHandle<()>>,
    step: u64,
    stalled: bool,
}

impl Session {
    /// Runs until the connection or the script ends. A `None` from any handler ends the session.
    async fn run(mut self, mut wanted: UnboundedReceiver<Wanted>) -> Option<()> {
        self.start();
        let period = self.script.heartbeat;
        let mut heartbeat = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
        loop {
            tokio::select! {
                frame = self.connection.next_frame() => match frame {
                    Ok(frame) => self.obey(frame).await?,
                    Err(Disconnect::Malformed(error)) => panic!("from the API server: {error}"),
                    Err(_) => return None,
                },
                Some((id, action)) = wanted.recv() => self.act(id, action).await?,
                _ = heartbeat.tick() => self.send_step(Vec::new()),
            }
        }
    }

    fn start(&self) {
        self.send(&EngineFrame::Hello(Hello {
            wire_version: self.script.wire_version,
            pid: std::process::id(),
        }));
        for stage in self.script.stages.clone() {
            self.send(&EngineFrame::Stage(stage));
        }
        self.send(&EngineFrame::Ready(self.script.ready.clone()));
        if let Some(report) = self.script.tiers.clone() {
            self.send(&EngineFrame::Tiers(report));
        }
    }

    async fn obey(&mut self, frame: FrontFrame) -> Option<()> {
        match frame {
            FrontFrame::Add(add) => {
                let actions = (self.script.answer)(&add);
                let task = tokio::spawn(play(add.id, actions, self.actions.clone()));
                self.open.insert(add.id, task);
                self.log.send_modify(|log| log.adds.push(add));
            }
            FrontFrame::Cancel(cancel) => {
                self.log.send_modify(|log| log.cancels.extend(&cancel.ids));
                self.cancel(cancel.ids);
            }
            FrontFrame::Kv(command) => {
                let (id, reply) = (command.id, (self.script.obey)(&command.order));
                self.log.send_modify(|log| log.orders.push(command.order));
                if let Some((outcome, text)) = reply {
                    self.send(&EngineFrame::KvReply(KvReply { id, outcome, text }));
                }
            }
            FrontFrame::Shutdown(_) => {
                self.log.send_modify(|log| log.shutdown = true);
                let ids = self.open.keys().copied().collect();
                self.cancel(ids);
                return self.end().await;
            }
        }
        Some(())
    }

    fn cancel(&mut self, ids: Vec<u64>) {
        let mut outputs = Vec::new();
        for id in ids {
            if let Some(task) = self.open.remove(&id) {
                task.abort();
                outputs.push(Output {
                    id,
                    finish: Finish::Cancelled,
                    ..Output::default()
                });
            }
        }
        self.send_step(outputs);
    }

    async fn act(&mut self, id: u64, action: Action) -> Option<()> {
        match action {
            Action::Send(output) if self.open.contains_key(&id) => {
                if output.finish != Finish::None {
                    self.open.remove(&id);
                }
                self.send_step(vec![Output { id, ..output }]);
            }
            // The request was cancelled meanwhile.
            Action::Send(_) | Action::Wait(_) => {}
            Action::Die => return self.end().await,
            Action::Fatal(message) => {
                self.send(&EngineFrame::Fatal(Fatal { message }));
                return self.end().await;
            }
            Action::Stall => self.stalled = true,
        }
        Some(())
    }

    /// Flushes queued frames and ends the session.
    async fn end(&mut self) -> Option<()> {
        self.connection.flush().await;
        None
    }

    fn send_step(&mut self, outputs: Vec<Output>) {
        if self.stalled {
            return;
        }
        self.step += u64::from(!outputs.is_empty());
        let running = self.open.len() as u32;
        let batch_tokens = outputs.iter().map(|output| output.tokens.len() as u32);
        let stats = StepStats {
            step: self.step,
            running,
            blocks_used: running,
            blocks_total: self.script.ready.num_blocks,
            batch_tokens: batch_tokens.sum(),
            step_ms: 1.0,
            ..StepStats::default()
        };
        self.send(&EngineFrame::Step(Step { stats, outputs }));
    }

    fn send(&self, frame: &EngineFrame) {
        FrontConnection::send(self.connection.outbox(), frame);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.open.values().for_each(JoinHandle::abort);
    }
}

async fn play(id: u64, actions: Vec<Action>, wanted: UnboundedSender<Wanted>) {
    for action in actions {
        match action {
            Action::Wait(duration) => tokio::time::sleep(duration).await,
            other => {
                // A send error means that the session has ended.
                if wanted.send((id, other)).is_err() {
                    return;
                }
            }
        }
    }
}
