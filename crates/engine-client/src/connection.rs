use penstock_wire::{EngineFrame, FrameReader};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use crate::failure::EngineFailure;
use crate::requests::Outbox;

/// One engine's connection. Writing has a task of its own, so that an engine that does not read
/// holds up nobody.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: OwnedReadHalf,
    frames: FrameReader,
    outbox: Outbox,
    writer: JoinHandle<()>,
}

/// Frames that wait together are written together, up to about this many bytes.
const WRITE_BYTES: usize = 256 << 10;

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        let (outbox, waiting) = unbounded_channel();
        let writer = tokio::spawn(write_all(write, waiting));
        Self {
            stream: read,
            frames: FrameReader::new(),
            outbox,
            writer,
        }
    }

    pub(crate) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Waits for a whole frame. Cancel safe.
    pub(crate) async fn next_frame(&mut self) -> Result<EngineFrame, EngineFailure> {
        loop {
            if let Some(frame) = self.frames.next_frame()? {
                return Ok(frame);
            }
            match self.stream.read_buf(self.frames.spare()).await {
                Ok(0) => return Err(EngineFailure::Closed),
                Ok(_) => {}
                Err(error) => return Err(EngineFailure::Broken(error)),
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

/// Ends with the channel or with the first error: the reading side notices the end of the
/// connection too, and reports it.
async fn write_all(mut stream: OwnedWriteHalf, mut waiting: UnboundedReceiver<Vec<u8>>) {
    while let Some(mut bytes) = waiting.recv().await {
        while bytes.len() < WRITE_BYTES
            && let Ok(more) = waiting.try_recv()
        {
            bytes.extend_from_slice(&more);
        }
        if stream.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
