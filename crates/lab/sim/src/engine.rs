//! The engine's end of the protocol between API server and engine, for the simulated engine
//! (docs/wire.md).

use std::path::Path;
use std::sync::Arc;

use penstock_engine_client::{Disconnect, FrontConnection, Outbox};
use penstock_wire::{
    EngineFrame, FrameError, FrontFrame, Hello, KvOutcome, KvReply, Pooler, PoolerOutput, Ready,
    Stage, TierKinds, WIRE_VERSION,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::mpsc::unbounded_channel;

use crate::batching::Ask;
use crate::config::{Engine, SimError};
use crate::counters::Counters;
use crate::driver::{Clock, Command, Driver, Order};
use crate::faults::{FaultKind, Faults};
use crate::profile::Profile;
use crate::timer::{PreciseTimer, Timer};

/// Natural length of an answer in tokens, if the request has no length of its own.
pub(crate) const NATURAL_LENGTH: u32 = 128;

/// Serves the API server that listens on `socket`, until it sends SHUTDOWN or disconnects.
pub(crate) async fn serve_socket(socket: &Path, engine: &Engine) -> Result<(), SimError> {
    let stream = UnixStream::connect(socket).await;
    let stream = stream.map_err(|source| SimError::Connect {
        path: socket.to_owned(),
        source,
    })?;
    let connection = FrontConnection::new(stream);
    let counters = Arc::new(Counters::reported());
    let served = serve(
        connection,
        engine,
        &engine.faults,
        PreciseTimer::new()?,
        counters,
    )
    .await;
    served.map_err(|source| SimError::Protocol {
        path: socket.to_owned(),
        source,
    })
}

/// Starts an engine in this process. Returns the API server's end of a stream to it; the engine
/// ends when this end is dropped.
pub(crate) fn spawn(
    engine: Arc<Engine>,
    timer: impl Timer + Send + 'static,
    counters: Arc<Counters>,
) -> impl AsyncRead + AsyncWrite + Send + 'static {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    tokio::spawn(async move {
        let connection = FrontConnection::new(ours);
        // Both ends are in this program, so no frame is malformed.
        let _ = serve(connection, &engine, &Faults::default(), timer, counters).await;
    });
    theirs
}

async fn serve(
    mut connection: FrontConnection,
    engine: &Engine,
    faults: &Faults,
    timer: impl Timer,
    counters: Arc<Counters>,
) -> Result<(), FrameError> {
    let outbox = connection.outbox().clone();
    greet(&outbox, engine, counters.reports());
    let (commands, inbox) = unbounded_channel();
    let clock = Clock::new();
    let driver = Driver::new(
        engine.batcher(),
        inbox,
        outbox.clone(),
        clock,
        timer,
        counters,
    );
    let listen = async {
        let mut requests = Requests {
            profile: &engine.profile,
            faults,
            count: 0,
        };
        loop {
            let frame = match connection.next_frame().await {
                Ok(frame) => frame,
                Err(Disconnect::Malformed(error)) => return Err(error),
                Err(_) => return Ok(()),
            };
            let at = clock.now();
            if let Some(order) = requests.order(frame, &outbox) {
                // A send error means that the driver has ended, so that the engine has processed a
                // SHUTDOWN.
                let _ = commands.send(Command { at, order });
            }
        }
    };
    tokio::select! {
        () = driver.run() => {}
        ended = listen => return ended,
    }
    drop(outbox);
    connection.flush().await;
    Ok(())
}

fn greet(outbox: &Outbox, engine: &Engine, with_stage: bool) {
    let send = |frame| FrontConnection::send(outbox, &frame);
    send(EngineFrame::Hello(Hello {
        wire_version: WIRE_VERSION,
        pid: std::process::id(),
    }));
    if with_stage {
        send(EngineFrame::Stage(Stage {
            name: "model simulated".to_owned(),
            seconds: 0.0,
            detail: String::new(),
        }));
    }
    send(EngineFrame::Ready(ready(
        &engine.profile,
        engine.vocabulary.eos,
    )));
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
        device: "none".to_owned(),
        threads: 1,
        kv_tiers: TierKinds::default(),
        pooler: Pooler {
            output: PoolerOutput::UnitEmbedding,
            size: profile.vector_size,
            only: false,
        },
    }
}

/// Converts frames to orders for the driver; numbers the requests from 1.
struct Requests<'a> {
    profile: &'a Profile,
    faults: &'a Faults,
    count: u64,
}

impl Requests<'_> {
    /// The order for a frame; `None` if the frame is answered here.
    fn order(&mut self, frame: FrontFrame, outbox: &Outbox) -> Option<Order> {
        Some(match frame {
            FrontFrame::Add(add) => {
                self.count += 1;
                let fault = self.faults.pick(self.count);
                let request = add.request;
                // If the client sets no limit, the API server sends the maximum possible
                // `max_tokens`.
                let all = request.prompt.len() + request.max_tokens as usize;
                let open_ended = all >= self.profile.max_model_len as usize;
                let ask = Ask {
                    natural: open_ended.then_some(NATURAL_LENGTH),
                    early_stop: match fault {
                        Some(FaultKind::EarlyStop(count)) => Some(count),
                        _ => None,
                    },
                    request,
                };
                Order::Add {
                    id: add.id,
                    ask: Box::new(ask),
                    fault,
                }
            }
            FrontFrame::Cancel(cancel) => Order::Cancel(cancel.ids),
            FrontFrame::Shutdown(_) => Order::Shutdown,
            FrontFrame::Kv(command) => {
                let reply = EngineFrame::KvReply(KvReply {
                    id: command.id,
                    outcome: KvOutcome::Refused,
                    text: "a simulated engine keeps no KV to look after".to_owned(),
                });
                FrontConnection::send(outbox, &reply);
                return None;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use penstock_wire::{FrameReader, KvCommand, KvOrder};

    use super::*;

    #[test]
    fn orders_about_the_cache_are_refused_and_no_work_for_the_driver() {
        let (outbox, mut sent) = unbounded_channel();
        let mut requests = Requests {
            profile: &Profile::default(),
            faults: &Faults::default(),
            count: 0,
        };
        let frame = FrontFrame::Kv(KvCommand {
            id: 7,
            order: KvOrder::ClearAll,
        });
        assert!(requests.order(frame, &outbox).is_none());
        let mut frames = FrameReader::new();
        frames
            .spare()
            .extend(sent.try_recv().unwrap().take().unwrap());
        let Some(EngineFrame::KvReply(reply)) = frames.next_frame().unwrap() else {
            panic!("not a reply")
        };
        assert_eq!((reply.id, reply.outcome), (7, KvOutcome::Refused));
    }
}
