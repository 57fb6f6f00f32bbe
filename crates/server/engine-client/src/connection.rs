use std::io;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use penstock_wire::{EngineFrame, Frame, FrameError, FrameReader, FrontFrame};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

/// How a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Disconnect {
    #[error("closed")]
    Closed,
    #[error("broke: {0}")]
    Broken(io::Error),
    #[error("malformed: {0}")]
    Malformed(#[from] FrameError),
}

/// Where frames for the other end go.
pub type Outbox = UnboundedSender<OutgoingFrame>;

/// An encoded frame on its way to the other end. Until it is written it can be taken back.
#[derive(Debug, Clone)]
pub struct OutgoingFrame {
    /// `None` once it is taken.
    bytes: Arc<Mutex<Option<Vec<u8>>>>,
}

impl OutgoingFrame {
    pub fn new(bytes: Vec<u8>) -> Self {
        let bytes = Arc::new(Mutex::new(Some(bytes)));
        Self { bytes }
    }

    /// The bytes, for the first who asks: the connection that writes them, or the sender.
    pub fn take(&self) -> Option<Vec<u8>> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.take()
    }
}

/// One end of the wire, which receives frames of type `F`. Writing has a task of its own, so that
/// an end that does not read holds up nothing but its own frames.
pub struct Connection<F> {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    frames: FrameReader,
    outbox: Outbox,
    writer: JoinHandle<()>,
    received: PhantomData<fn() -> F>,
}

/// The front door's end.
pub(crate) type EngineConnection = Connection<EngineFrame>;

/// The engine's end, for engines written in Rust.
pub type FrontConnection = Connection<FrontFrame>;

/// Frames that wait together are written together, up to about this many bytes.
const WRITE_BYTES: usize = 256 << 10;

impl<F: Frame> Connection<F> {
    /// Speaks over `stream`, inside a tokio runtime.
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (read, write) = tokio::io::split(stream);
        let (outbox, waiting) = unbounded_channel();
        Self {
            stream: Box::new(read),
            frames: FrameReader::new(),
            outbox,
            writer: tokio::spawn(write_all(write, waiting)),
            received: PhantomData,
        }
    }

    /// Where to send encoded frames. Sends fail once the connection has ended.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Waits for a whole frame. Cancel safe.
    ///
    /// # Errors
    /// The connection has ended or carries no frames.
    pub async fn next_frame(&mut self) -> Result<F, Disconnect> {
        loop {
            if let Some(frame) = self.frames.next_frame()? {
                return Ok(frame);
            }
            match self.stream.read_buf(self.frames.spare()).await {
                Ok(0) => return Err(Disconnect::Closed),
                Ok(_) => {}
                Err(error) => return Err(Disconnect::Broken(error)),
            }
        }
    }
}

impl FrontConnection {
    /// Waits until everything sent has been written, and sends nothing any more. Other clones of
    /// the outbox have been dropped.
    pub async fn flush(&mut self) {
        self.outbox = unbounded_channel().0;
        // The writer ends with the channel; an error is one of a front door that has gone.
        let _ = (&mut self.writer).await;
    }

    /// Sends a frame. One that the wire cannot carry is dropped: engines make none.
    pub fn send(outbox: &Outbox, frame: &EngineFrame) {
        let mut bytes = Vec::new();
        if frame.encode(&mut bytes).is_ok() {
            let _ = outbox.send(OutgoingFrame::new(bytes));
        }
    }
}

impl<F> Drop for Connection<F> {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

/// Ends with the channel or with the first error, which the reading side notices and reports.
async fn write_all(
    mut stream: impl AsyncWrite + Unpin,
    mut waiting: UnboundedReceiver<OutgoingFrame>,
) {
    while let Some(frame) = waiting.recv().await {
        let mut bytes = frame.take().unwrap_or_default();
        while bytes.len() < WRITE_BYTES
            && let Ok(more) = waiting.try_recv()
        {
            bytes.extend(more.take().unwrap_or_default());
        }
        if stream.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
