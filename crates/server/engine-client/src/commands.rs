//! Operator commands for the KV cache, and the engine's replies.

use std::sync::atomic::Ordering;

use penstock_wire::{FrameError, FrontFrame, KvCommand, KvOrder, KvReply};
use tokio::sync::oneshot;

use crate::CommandError;
use crate::connection::OutgoingFrame;
use crate::engine::Engine;
use crate::requests::{Answer, Requests};

impl Engine {
    /// Sends a KV cache command and waits for the engine's reply, without a time-out. Dropping the
    /// future does not cancel the command: the engine may have executed it.
    ///
    /// # Errors
    /// No engine is ready, the engine is lost before it replies, or the command is invalid on the
    /// wire.
    pub async fn command(&self, order: KvOrder) -> Result<KvReply, CommandError> {
        let shared = &self.handle.shared;
        let answer = shared.requests.command(order)?;
        let answer = answer.ok_or_else(|| CommandError::NotReady {
            reason: shared.state.borrow().to_string(),
        })?;
        let lost = |reason: &str| CommandError::Lost {
            reason: reason.to_owned(),
        };
        match answer.await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(reason)) => Err(lost(&reason)),
            // Not expected: the sender stays in the table of commands until it gets a reply or a
            // failure.
            Err(_) => Err(lost("the server was stopped")),
        }
    }
}

impl Requests {
    /// Sends the command to the engine; `None` when no engine is ready.
    pub(crate) fn command(
        &self,
        order: KvOrder,
    ) -> Result<Option<oneshot::Receiver<Answer>>, FrameError> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut frame = Vec::new();
        FrontFrame::Kv(KvCommand { id, order }).encode(&mut frame)?;
        let mut table = self.lock();
        let Some(outbox) = &table.outbox else {
            return Ok(None);
        };
        // A send fails if the connection has just ended; the supervisor then fails the command.
        let _ = outbox.send(OutgoingFrame::new(frame));
        let (sender, answer) = oneshot::channel();
        table.commands.insert(id, sender);
        Ok(Some(answer))
    }

    /// Delivers a reply to its command. Replies without a pending command are dropped.
    pub(crate) fn answer(&self, reply: KvReply) {
        if let Some(sender) = self.lock().commands.remove(&reply.id) {
            let _ = sender.send(Ok(reply));
        }
    }
}
