//! A scripted engine in the test's own process, on the real socket and the real frames.
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
    Add, EngineFrame, Fatal, Finish, FrameReader, FrontFrame, Hello, KvOrder, KvOutcome, KvReply,
    Output, Ready, Stage, Step, StepStats, TierKinds, TierReport, WIRE_VERSION,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// One thing the engine does for a request.
#[derive(Debug, Clone)]
pub enum Action {
    Wait(Duration),
    /// Sends this output in a STEP of its own; the request's id is filled in.
    Send(Output),
    /// Closes the connection.
    Die,
    /// Says FATAL and closes the connection.
    Fatal(String),
    /// Says nothing any more, heartbeats included, and keeps the connection.
    Stall,
}

/// One token for each output, `delay` before each; the last finishes with [`Finish::Length`].
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

/// A full queue.
pub fn reject() -> Vec<Action> {
    vec![Action::Send(Output {
        finish: Finish::Rejected,
        ..Output::default()
    })]
}

/// What an engine does about an ADD.
pub type Answer = dyn Fn(&Add) -> Vec<Action> + Send + Sync;

/// What an engine replies to an order about its cache; `None` is no reply.
pub type Obedience = dyn Fn(&KvOrder) -> Option<(KvOutcome, String)> + Send + Sync;

/// How the engine behaves.
#[derive(Clone)]
pub struct Script {
    pub wire_version: u16,
    pub stages: Vec<Stage>,
    pub ready: Ready,
    /// Time between STEPs without outputs.
    pub heartbeat: Duration,
    pub answer: Arc<Answer>,
    pub obey: Arc<Obedience>,
    /// Sent after READY.
    pub tiers: Option<TierReport>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("ready", &self.ready)
            .finish_non_exhaustive()
    }
}

impl Script {
    /// `answer` says what happens after each ADD. An answer that ends without a finish leaves its
    /// request open until a CANCEL.
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
        isa: "none".to_owned(),
        threads: 1,
        kv_tiers: TierKinds::default(),
    }
}

/// What the front door asked for so far.
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
    /// Connects to the front door's socket, waiting for it to listen, and starts to follow the
    /// script.
    pub async fn connect(socket: &Path, script: Script) -> Self {
        let stream = loop {
            match UnixStream::connect(socket).await {
                Ok(stream) => break stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        let (log, logged) = watch::channel(Log::default());
        let task = tokio::spawn(async move {
            let (read, write) = stream.into_split();
            let (say, said) = unbounded_channel();
            let session = Session {
                write,
                script,
                log,
                say,
                open: HashMap::new(),
                step: 0,
                stalled: false,
            };
            // The connection may end at any word; tests see that on the other side.
            let _ = session.run(read, said).await;
        });
        Self { log: logged, task }
    }

    /// What was asked for so far.
    pub fn log(&self) -> Log {
        self.log.borrow().clone()
    }

    /// Waits until the log satisfies `wanted`, and returns it.
    ///
    /// # Panics
    /// When the connection ends before.
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

/// What an answer wants done, and for which request.
type Said = (u64, Action);

struct Session {
    write: OwnedWriteHalf,
    script: Script,
    log: watch::Sender<Log>,
    say: UnboundedSender<Said>,
    open: HashMap<u64, JoinHandle<()>>,
    step: u64,
    stalled: bool,
}

enum Next {
    Front(Option<FrontFrame>),
    Said(Said),
    Heartbeat,
}

impl Session {
    /// `None` ends the session.
    async fn run(
        mut self,
        mut read: OwnedReadHalf,
        mut said: UnboundedReceiver<Said>,
    ) -> Option<()> {
        self.start().await?;
        let mut frames = FrameReader::new();
        let mut heartbeat = tokio::time::interval(self.script.heartbeat);
        loop {
            let next = tokio::select! {
                frame = next_frame(&mut read, &mut frames) => Next::Front(frame),
                Some(said) = said.recv() => Next::Said(said),
                _ = heartbeat.tick() => Next::Heartbeat,
            };
            match next {
                Next::Front(frame) => self.obey(frame?).await?,
                Next::Said((id, action)) => self.act(id, action).await?,
                Next::Heartbeat => self.send_step(Vec::new()).await?,
            }
        }
    }

    async fn start(&mut self) -> Option<()> {
        let hello = Hello {
            wire_version: self.script.wire_version,
            pid: std::process::id(),
        };
        self.send(&EngineFrame::Hello(hello)).await?;
        for stage in self.script.stages.clone() {
            self.send(&EngineFrame::Stage(stage)).await?;
        }
        self.send(&EngineFrame::Ready(self.script.ready.clone()))
            .await?;
        match self.script.tiers.clone() {
            Some(report) => self.send(&EngineFrame::Tiers(report)).await,
            None => Some(()),
        }
    }

    async fn obey(&mut self, frame: FrontFrame) -> Option<()> {
        match frame {
            FrontFrame::Add(add) => {
                let actions = (self.script.answer)(&add);
                self.open.insert(
                    add.id,
                    tokio::spawn(play(add.id, actions, self.say.clone())),
                );
                self.log.send_modify(|log| log.adds.push(add));
                Some(())
            }
            FrontFrame::Cancel(cancel) => {
                self.log.send_modify(|log| log.cancels.extend(&cancel.ids));
                self.cancel(cancel.ids).await
            }
            FrontFrame::Kv(command) => {
                let (id, reply) = (command.id, (self.script.obey)(&command.order));
                self.log.send_modify(|log| log.orders.push(command.order));
                match reply {
                    Some((outcome, text)) => {
                        let reply = KvReply { id, outcome, text };
                        self.send(&EngineFrame::KvReply(reply)).await
                    }
                    None => Some(()),
                }
            }
            FrontFrame::Shutdown(_) => {
                self.log.send_modify(|log| log.shutdown = true);
                let ids = self.open.keys().copied().collect();
                self.cancel(ids).await?;
                None
            }
        }
    }

    async fn cancel(&mut self, ids: Vec<u64>) -> Option<()> {
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
        self.send_step(outputs).await
    }

    async fn act(&mut self, id: u64, action: Action) -> Option<()> {
        match action {
            Action::Send(output) if self.open.contains_key(&id) => {
                if output.finish != Finish::None {
                    self.open.remove(&id);
                }
                self.send_step(vec![Output { id, ..output }]).await
            }
            // Said before its request was cancelled.
            Action::Send(_) | Action::Wait(_) => Some(()),
            Action::Die => None,
            Action::Fatal(message) => {
                self.send(&EngineFrame::Fatal(Fatal { message })).await?;
                None
            }
            Action::Stall => {
                self.stalled = true;
                Some(())
            }
        }
    }

    async fn send_step(&mut self, outputs: Vec<Output>) -> Option<()> {
        if self.stalled {
            return Some(());
        }
        self.step += u64::from(!outputs.is_empty());
        let running = self.open.len() as u32;
        let stats = StepStats {
            step: self.step,
            running,
            blocks_used: running,
            blocks_total: self.script.ready.num_blocks,
            batch_tokens: outputs
                .iter()
                .map(|output| output.tokens.len() as u32)
                .sum(),
            step_ms: 1.0,
            ..StepStats::default()
        };
        self.send(&EngineFrame::Step(Step { stats, outputs })).await
    }

    async fn send(&mut self, frame: &EngineFrame) -> Option<()> {
        let mut bytes = Vec::new();
        frame
            .encode(&mut bytes)
            .expect("a script says what the wire can carry");
        self.write.write_all(&bytes).await.ok()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.open.values().for_each(JoinHandle::abort);
    }
}

async fn play(id: u64, actions: Vec<Action>, say: UnboundedSender<Said>) {
    for action in actions {
        match action {
            Action::Wait(duration) => tokio::time::sleep(duration).await,
            other => {
                // The session has ended.
                if say.send((id, other)).is_err() {
                    return;
                }
            }
        }
    }
}

async fn next_frame(read: &mut OwnedReadHalf, frames: &mut FrameReader) -> Option<FrontFrame> {
    loop {
        if let Some(frame) = frames
            .next_frame()
            .expect("the front door sends valid frames")
        {
            return Some(frame);
        }
        if read.read_buf(frames.spare()).await.ok()? == 0 {
            return None;
        }
    }
}
