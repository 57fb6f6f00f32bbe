//! The engine behind a front door's socket: the frames of `docs/wire.md`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_wire::{
    EngineFrame, Finish, FrameReader, FrontFrame, Hello, KvOutcome, KvReply, Output, Ready, Stage,
    Step, StepStats, TierKinds, WIRE_VERSION,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::batching::Ask;
use crate::config::{Engine, SimError};
use crate::driver::{Clock, Command, Driver, Order, Publisher};
use crate::faults::{FaultKind, Faults};
use crate::profile::Profile;
use crate::run::Signals;
use crate::timer::PreciseTimer;

/// Serves the front door at `socket`; returns the exit status.
pub(crate) async fn live(socket: &Path, engine: Engine) -> Result<i32, SimError> {
    check_faults(&engine.faults)?;
    let mut signals = Signals::install()?;
    let stream = UnixStream::connect(socket).await;
    let stream = stream.map_err(|source| SimError::Connect {
        path: socket.to_owned(),
        source,
    })?;
    let (read, write) = stream.into_split();
    let (say, said) = unbounded_channel();
    let writer = tokio::spawn(speak(write, said));
    let publisher = WirePublisher {
        say: say.clone(),
        seats: HashMap::new(),
    };
    publisher.greet(&engine);
    let (commands, inbox) = unbounded_channel();
    let clock = Clock::new();
    let driver = Driver::new(
        engine.batcher(),
        publisher,
        inbox,
        clock,
        PreciseTimer::new()?,
    );
    let ears = Ears {
        commands,
        say,
        clock,
        faults: engine.faults.clone(),
        socket: socket.to_owned(),
    };
    tokio::select! {
        () = driver.run() => {
            // What a writer cannot write any more nobody waits for.
            let _ = writer.await;
            Ok(0)
        }
        ended = ears.listen(read) => ended.map(|()| 0),
        () = signals.next() => Ok(0),
        () = engine.death() => Ok(1),
    }
}

fn check_faults(faults: &Faults) -> Result<(), SimError> {
    let on_wire = |kind: &FaultKind| {
        matches!(
            kind,
            FaultKind::Refuse
                | FaultKind::ErrorEvent(_)
                | FaultKind::Stall(_)
                | FaultKind::EarlyStop(_)
        )
    };
    match faults.list.iter().find(|fault| !on_wire(&fault.kind)) {
        None => Ok(()),
        Some(fault) => Err(SimError::Config(format!(
            "fault {:?}: an engine on the wire has refuse, error-event, stall and early-stop only",
            fault.kind
        ))),
    }
}

async fn speak(mut write: OwnedWriteHalf, mut said: UnboundedReceiver<Vec<u8>>) {
    while let Some(frame) = said.recv().await {
        if write.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// What comes from the front door.
struct Ears {
    commands: UnboundedSender<Command<Option<FaultKind>>>,
    /// For what needs no driver to answer it.
    say: UnboundedSender<Vec<u8>>,
    clock: Clock,
    faults: Faults,
    socket: PathBuf,
}

impl Ears {
    /// Passes on frames until the connection ends.
    async fn listen(self, mut read: OwnedReadHalf) -> Result<(), SimError> {
        let mut frames = FrameReader::new();
        let mut requests = 0;
        loop {
            while let Some(frame) = frames.next_frame().map_err(|source| self.broken(source))? {
                let Some(order) = self.order(frame, &mut requests) else {
                    continue;
                };
                let at = self.clock.now();
                // Without a driver the engine has obeyed a SHUTDOWN.
                let _ = self.commands.send(Command { at, order });
            }
            match read.read_buf(frames.spare()).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
        }
    }

    /// What the driver is told; `None` for what has been answered here.
    fn order(&self, frame: FrontFrame, requests: &mut u64) -> Option<Order<Option<FaultKind>>> {
        let order = match frame {
            FrontFrame::Add(add) => {
                *requests += 1;
                let seat = self.faults.pick(*requests);
                let ask = Ask {
                    request: add.request,
                    natural: None,
                    early_stop: match seat {
                        Some(FaultKind::EarlyStop(count)) => Some(count),
                        _ => None,
                    },
                };
                Order::Add {
                    id: add.id,
                    ask: Box::new(ask),
                    seat,
                }
            }
            FrontFrame::Cancel(cancel) => Order::Cancel(cancel.ids),
            FrontFrame::Shutdown(_) => Order::Shutdown,
            FrontFrame::Kv(command) => {
                self.refuse(command.id);
                return None;
            }
        };
        Some(order)
    }

    fn refuse(&self, id: u64) {
        let reply = EngineFrame::KvReply(KvReply {
            id,
            outcome: KvOutcome::Refused,
            text: "a simulated engine keeps no KV to look after".to_owned(),
        });
        say(&self.say, &reply);
    }

    fn broken(&self, source: penstock_wire::FrameError) -> SimError {
        SimError::Protocol {
            path: self.socket.clone(),
            source,
        }
    }
}

/// Says to the front door what happens. Only requests with a fault have a seat.
struct WirePublisher {
    say: UnboundedSender<Vec<u8>>,
    seats: HashMap<u64, FaultySeat>,
}

struct FaultySeat {
    fault: FaultKind,
    sent: u32,
    struck: bool,
}

impl WirePublisher {
    fn greet(&self, engine: &Engine) {
        self.send(&EngineFrame::Hello(Hello {
            wire_version: WIRE_VERSION,
            pid: std::process::id(),
        }));
        self.send(&EngineFrame::Stage(Stage {
            name: "model simulated".to_owned(),
            seconds: 0.0,
            detail: String::new(),
        }));
        self.send(&EngineFrame::Ready(ready(
            &engine.profile,
            engine.vocabulary.eos(),
        )));
    }

    fn send(&self, frame: &EngineFrame) {
        say(&self.say, frame);
    }
}

fn say(writer: &UnboundedSender<Vec<u8>>, frame: &EngineFrame) {
    let mut bytes = Vec::new();
    // A step of these limits fits a frame, and a writer that is gone has nobody to write to.
    if frame.encode(&mut bytes).is_ok() {
        let _ = writer.send(bytes);
    }
}

fn ready(profile: &Profile, eos: u32) -> Ready {
    Ready {
        max_model_len: profile.max_model_len,
        max_num_seqs: profile.max_num_seqs,
        max_num_batched_tokens: profile.max_num_batched_tokens,
        max_queue: profile.max_queue,
        block_size: profile.block_size,
        num_blocks: profile.num_blocks,
        kv_bytes: 0,
        vocab_size: profile.vocab_size,
        eos_token_ids: vec![eos],
        cache_identity: profile.cache_identity(),
        numerics: "simulated".to_owned(),
        isa: "none".to_owned(),
        threads: 1,
        kv_tiers: TierKinds::default(),
    }
}

impl FaultySeat {
    /// What is sent instead of `output`, if anything.
    fn pass(&mut self, output: Output) -> Option<Output> {
        if self.struck {
            return None;
        }
        let instead = |finish, error: Option<&str>| Output {
            id: output.id,
            finish,
            error: error.map(str::to_owned),
            ..Output::default()
        };
        let ending = match self.fault {
            FaultKind::Refuse => Some(instead(Finish::Rejected, None)),
            FaultKind::ErrorEvent(after) if self.sent >= after => {
                Some(instead(Finish::Error, Some("a fault on purpose")))
            }
            FaultKind::Stall(after) if self.sent >= after => None,
            _ => {
                self.sent += output.tokens.len() as u32;
                return Some(output);
            }
        };
        self.struck = true;
        ending
    }
}

impl Publisher for WirePublisher {
    type Seat = Option<FaultKind>;

    fn open(&mut self, id: u64, seat: Option<FaultKind>) {
        if let Some(fault) = seat {
            let seat = FaultySeat {
                fault,
                sent: 0,
                struck: false,
            };
            self.seats.insert(id, seat);
        }
    }

    /// A stalled request ends like any other when it is cancelled.
    fn left(&mut self, id: u64) {
        if matches!(self.seats.get(&id), Some(seat) if matches!(seat.fault, FaultKind::Stall(_))) {
            self.seats.remove(&id);
        }
    }

    fn begun(&mut self, _stats: &StepStats) {}

    fn publish(&mut self, mut step: Step) -> Vec<u64> {
        let mut broken = Vec::new();
        let mut outputs = Vec::with_capacity(step.outputs.len());
        for output in step.outputs.drain(..) {
            let Some(seat) = self.seats.get_mut(&output.id) else {
                outputs.push(output);
                continue;
            };
            let (id, goes_on) = (output.id, output.finish == Finish::None);
            let passed = seat.pass(output);
            let ends = passed
                .as_ref()
                .is_some_and(|output| output.finish != Finish::None);
            if goes_on && ends {
                broken.push(id);
            }
            if !goes_on {
                self.seats.remove(&id);
            }
            outputs.extend(passed);
        }
        step.outputs = outputs;
        self.send(&EngineFrame::Step(step));
        broken
    }

    fn heartbeat(&mut self, step: Step) {
        self.send(&EngineFrame::Step(step));
    }

    fn slipped(&mut self, by: Duration) {
        eprintln!("penstock-sim: the host is {by:?} behind the model; the timeline was moved");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use penstock_wire::{KvCommand, KvOrder};

    use super::*;

    #[test]
    fn orders_about_the_cache_are_refused_and_no_work_for_the_driver() {
        let (commands, _inbox) = unbounded_channel();
        let (say, mut said) = unbounded_channel();
        let ears = Ears {
            commands,
            say,
            clock: Clock::new(),
            faults: Faults::default(),
            socket: PathBuf::new(),
        };
        let frame = FrontFrame::Kv(KvCommand {
            id: 7,
            order: KvOrder::ClearAll,
        });
        assert!(ears.order(frame, &mut 0).is_none());
        let mut frames = FrameReader::new();
        frames.spare().extend(said.try_recv().unwrap());
        let Some(EngineFrame::KvReply(reply)) = frames.next_frame().unwrap() else {
            panic!("not a reply")
        };
        assert_eq!((reply.id, reply.outcome), (7, KvOutcome::Refused));
    }
}
