//! Requests and commands to the engine.

use penstock_wire::{KvOrder, KvReply, TokenRequest};

use crate::engine::Engine;
use crate::{CommandError, RequestStream, SubmitError};

impl Engine {
    /// Sends a request to the engine. Never waits.
    ///
    /// # Errors
    /// When no engine is ready, or when the request breaks the rules of the wire.
    pub fn submit(&self, request: TokenRequest) -> Result<RequestStream, SubmitError> {
        self.submit_holding(request, ())
    }

    /// [`Engine::submit`]; `hold` is dropped when the engine has ended the request: a stream that
    /// is dropped before leaves the engine busy until it has obeyed.
    ///
    /// # Errors
    /// The same.
    pub fn submit_holding(
        &self,
        request: TokenRequest,
        hold: impl Send + 'static,
    ) -> Result<RequestStream, SubmitError> {
        let stream = self
            .handle
            .shared
            .requests
            .submit(request, Box::new(hold))?;
        stream.ok_or_else(|| SubmitError::NotReady {
            reason: self.handle.shared.state.borrow().to_string(),
        })
    }

    /// Sends an operator's order about the cache and waits for the engine's reply, for as long as
    /// the engine lives. Dropping the future leaves the order as it is: the engine may have obeyed.
    ///
    /// # Errors
    /// When no engine is ready, when it is lost before it replies, or when the order breaks the
    /// rules of the wire.
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
            // Unused senders are kept by what this handle shares with the supervisor.
            Err(_) => Err(lost("the engine was shut down")),
        }
    }
}
