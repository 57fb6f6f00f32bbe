//! Publishes batches of KV events: a PUB socket, and a ROUTER for replays.
//!
//! A single thread serves all subscribers. Publishing never blocks: if a subscriber is slow,
//! batches for it are dropped, and it detects the gap by the sequence numbers.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener as StdListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::sleep;

use crate::connection::{Connection, Incoming};
use crate::endpoint::Endpoint;
use crate::msgpack::Malformed;
use crate::zmtp::{Traffic, message};

/// Interval of connection attempts to a listening subscriber.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum number of connections per endpoint.
const MAX_PEERS: usize = 256;
/// Maximum total length of a subscriber's topics in bytes.
const MAX_TOPICS: usize = 16 << 10;

/// Endpoints and limits of a publisher.
#[derive(Debug, Clone)]
pub struct PublisherSettings {
    pub events: Endpoint,
    pub replay: Option<Endpoint>,
    pub topic: String,
    /// Number of past batches kept for replays.
    pub buffer_steps: usize,
    /// High-water mark: maximum number of batches queued per subscriber; more are dropped.
    pub hwm: usize,
}

/// Why a publisher cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("cannot listen on tcp://{host}:{port}: {source}")]
    Bind {
        host: String,
        port: u16,
        source: io::Error,
    },
    #[error("{0}")]
    System(#[from] io::Error),
}

/// A publisher of KV events. Its thread ends when the value is dropped.
#[derive(Debug)]
pub struct Publisher {
    shared: Arc<PublisherConfig>,
    runtime: Option<Runtime>,
    ports: (u16, Option<u16>),
}

#[derive(Debug)]
struct PublisherConfig {
    topic: Vec<u8>,
    buffer_steps: usize,
    hwm: usize,
    state: Mutex<PublisherState>,
}

#[derive(Debug, Default)]
struct PublisherState {
    next: u64,
    past: VecDeque<(u64, Bytes)>,
    peers: Vec<Peer>,
    /// Id of the next peer.
    named: u64,
}

#[derive(Debug)]
struct Peer {
    name: u64,
    subscriptions: Vec<Bytes>,
    messages: mpsc::Sender<Bytes>,
}

impl Peer {
    fn subscribe(&mut self, topic: &[u8]) -> Result<(), Malformed> {
        let bytes: usize = self.subscriptions.iter().map(|one| one.len() + 1).sum();
        if bytes + topic.len() >= MAX_TOPICS {
            return Err(Malformed("a subscriber has too many topics"));
        }
        // copied, because a slice would keep the whole receive buffer alive
        self.subscriptions.push(Bytes::copy_from_slice(topic));
        Ok(())
    }
}

impl Publisher {
    /// Starts the publisher. It listens if the endpoint has a `*`; otherwise it connects, with
    /// retries.
    ///
    /// # Errors
    /// [`PublishError`]
    pub fn start(settings: PublisherSettings) -> Result<Self, PublishError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kv-events")
            .enable_all()
            .build()?;
        let shared = Arc::new(PublisherConfig {
            topic: settings.topic.into_bytes(),
            buffer_steps: settings.buffer_steps,
            hwm: settings.hwm.max(1),
            state: Mutex::default(),
        });
        let _inside = runtime.enter();
        let replay = settings.replay.as_ref().map(bind).transpose()?;
        let mut ports = (settings.events.port, None);
        if let Some(listener) = replay {
            ports.1 = Some(listener.local_addr()?.port());
            let shared = shared.clone();
            runtime.spawn(accept(listener, move |stream| {
                replay_to(shared.clone(), stream)
            }));
        }
        if settings.events.listens() {
            let listener = bind(&settings.events)?;
            ports.0 = listener.local_addr()?.port();
            let shared = shared.clone();
            runtime.spawn(accept(listener, move |stream| {
                publish_to(shared.clone(), stream)
            }));
        } else {
            runtime.spawn(reach(shared.clone(), settings.events));
        }
        Ok(Self {
            shared,
            runtime: Some(runtime),
            ports,
        })
    }

    /// Ports of the events and of the replay, including those chosen by the system.
    pub fn ports(&self) -> (u16, Option<u16>) {
        self.ports
    }

    /// Sends a batch to all subscribers, without blocking.
    pub fn publish(&self, batch: Vec<u8>) {
        let mut state = self.shared.state();
        let number = state.next;
        state.next += 1;
        let payload = Bytes::from(batch);
        let topic = &self.shared.topic;
        let whole = Bytes::from(message(&[topic, &number.to_be_bytes(), &payload]));
        state.past.push_back((number, payload));
        let over = state.past.len().saturating_sub(self.shared.buffer_steps);
        state.past.drain(..over);
        for peer in &state.peers {
            if peer
                .subscriptions
                .iter()
                .any(|start| topic.starts_with(start))
            {
                let _ = peer.messages.try_send(whole.clone());
            }
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl PublisherConfig {
    fn state(&self) -> MutexGuard<'_, PublisherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new peer and returns its queue; `None` if [`MAX_PEERS`] are connected.
    fn join(&self) -> Option<(u64, mpsc::Receiver<Bytes>)> {
        let (messages, receiver) = mpsc::channel(self.hwm);
        let mut state = self.state();
        if state.peers.len() >= MAX_PEERS {
            return None;
        }
        let name = state.named;
        state.named += 1;
        state.peers.push(Peer {
            name,
            subscriptions: Vec::new(),
            messages,
        });
        Some((name, receiver))
    }

    fn leave(&self, name: u64) {
        self.state().peers.retain(|peer| peer.name != name);
    }

    /// # Errors
    /// The peer exceeds the limit of its topics.
    fn receive(&self, name: u64, traffic: Traffic) -> Result<(), Malformed> {
        let mut state = self.state();
        let Some(peer) = state.peers.iter_mut().find(|peer| peer.name == name) else {
            return Ok(());
        };
        let subscriptions = &mut peer.subscriptions;
        let mut cancel = |topic: &Bytes| {
            if let Some(at) = subscriptions.iter().position(|one| one == topic) {
                subscriptions.swap_remove(at);
            }
        };
        match traffic {
            Traffic::Cancel(topic) => cancel(&topic),
            Traffic::Subscribe(topic) => return peer.subscribe(&topic),
            // ZMTP 3.0 encodes subscriptions and cancellations as messages
            Traffic::Message(frames) => match frames.as_slice() {
                [one] if one.first() == Some(&1) => return peer.subscribe(&one[1..]),
                [one] if one.first() == Some(&0) => cancel(&one.slice(1..)),
                _ => {}
            },
            Traffic::Ready | Traffic::Ping(_) | Traffic::Other => {}
        }
        Ok(())
    }
}

fn bind(endpoint: &Endpoint) -> Result<TcpListener, PublishError> {
    let bound = endpoint
        .to_bind()
        .and_then(|found| StdListener::bind(&*found));
    let listener = bound.map_err(|source| PublishError::Bind {
        host: endpoint.host.clone(),
        port: endpoint.port,
        source,
    })?;
    listener.set_nonblocking(true)?;
    Ok(TcpListener::from_std(listener)?)
}

async fn accept<Served: Future<Output = io::Result<()>> + Send + 'static>(
    listener: TcpListener,
    serve: impl Fn(TcpStream) -> Served,
) {
    let room = Arc::new(Semaphore::new(MAX_PEERS));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let served = serve(stream);
                tokio::spawn(async move {
                    let _ = served.await;
                    drop(place);
                });
            }
            Err(_) => sleep(RETRY).await,
        }
    }
}

/// Connects to a subscriber that listens and publishes to it. Reconnects after the connection ends.
async fn reach(shared: Arc<PublisherConfig>, endpoint: Endpoint) {
    loop {
        if let Ok(stream) = TcpStream::connect(endpoint.to_connect()).await {
            let _ = publish_to(shared.clone(), stream).await;
        }
        sleep(RETRY).await;
    }
}

async fn publish_to(shared: Arc<PublisherConfig>, stream: TcpStream) -> io::Result<()> {
    let connection = Connection::greet(stream, "PUB").await?;
    let Some((name, mut messages)) = shared.join() else {
        return Ok(());
    };
    let Connection {
        incoming,
        mut writer,
    } = connection;
    let send = async {
        while let Some(message) = messages.recv().await {
            writer.write_all(&message).await?;
        }
        Ok(())
    };
    let ended = tokio::select! {
        ended = listen(&shared, name, incoming) => ended,
        ended = send => ended,
    };
    shared.leave(name);
    ended
}

async fn listen(shared: &PublisherConfig, name: u64, mut incoming: Incoming) -> io::Result<()> {
    loop {
        let traffic = incoming.next().await?;
        shared.receive(name, traffic)?;
    }
}

/// Sends the batches from the requested number on, then the end marker.
async fn replay_to(shared: Arc<PublisherConfig>, stream: TcpStream) -> io::Result<()> {
    let mut connection = Connection::greet(stream, "ROUTER").await?;
    loop {
        let frames = connection.message().await?;
        let [empty, number] = frames.as_slice() else {
            continue;
        };
        let Ok(first) = <[u8; 8]>::try_from(&number[..]) else {
            continue;
        };
        let first = u64::from_be_bytes(first);
        let past: Vec<(u64, Bytes)> = {
            let state = shared.state();
            let wanted = state.past.iter().filter(|(number, _)| *number >= first);
            wanted.cloned().collect()
        };
        for (number, payload) in past {
            let whole = message(&[empty, &number.to_be_bytes(), &payload]);
            connection.send(&whole).await?;
        }
        let end = message(&[empty, &u64::MAX.to_be_bytes(), b""]);
        connection.send(&end).await?;
    }
}
