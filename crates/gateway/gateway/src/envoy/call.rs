//! A request proxied by Envoy, from its header to the end of the response.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{HeaderMap, Method, header};
use penstock_api_http::Failure;
use penstock_api_types::ApiError;
use penstock_extproc::{AnswerHead, BodyVisibility, Call, Change, Excess, Head, Picked, Refusal};
use penstock_http::{BodyError, HeldBody};

use crate::call::{ReadBody, prompt_of, read};
use crate::charge::{Charge, CostBasis};
use crate::envoy::answer::Answer;
use crate::envoy::inside::{Inside, Name};
use crate::gateway::Gateway;
use crate::headers::{BackendKey, X_API_KEY};

/// A request proxied by Envoy and, once a replica is picked, its response.
#[derive(Debug)]
pub(crate) struct EnvoyCall {
    inside: Arc<Inside>,
    only: Option<Arc<str>>,
    headers: HeaderMap,
    subset: Option<Vec<String>>,
    body: HeldBody,
    answer: Option<Answer>,
}

impl EnvoyCall {
    /// Starts a request whose body will follow. If `only` is given, no other pool is eligible.
    ///
    /// # Errors
    /// The request is rejected.
    pub(crate) fn begin(
        gateway: &Arc<Gateway>,
        only: Option<Arc<str>>,
        head: Head,
        name: Name,
    ) -> Result<Self, ApiError> {
        Ok(Self {
            inside: Arc::new(Inside::admit(gateway, &head, name)?),
            only,
            headers: head.headers,
            subset: head.subset,
            body: gateway.hold_body(),
            answer: None,
        })
    }

    /// The fields that routing needs, and the body with the cache salt of the API key. If Envoy
    /// does not forward the body, the request has no model.
    fn read(&self, body: Bytes, seen: BodyVisibility) -> Result<ReadBody, ApiError> {
        let caller = self.inside.permit.as_ref().map(|permit| &*permit.caller);
        let none = body.is_empty() && self.inside.name.method != Method::POST.as_str();
        if seen == BodyVisibility::Part
            && caller.is_some_and(|caller| caller.cache_salt("").is_some())
        {
            return Err(ApiError::internal(
                "The key has own_cache, and Envoy does not show the request's body: set \
                 request_body_mode to FULL_DUPLEX_STREAMED or BUFFERED.",
            ));
        }
        if none || seen == BodyVisibility::Part {
            return Ok(ReadBody {
                body,
                ..ReadBody::default()
            });
        }
        let name = &self.inside.name;
        read(&name.method, &name.path, &self.headers, body, caller)
    }

    async fn choose(&mut self, seen: BodyVisibility) -> Result<Picked, ApiError> {
        let gateway = &self.inside.gateway;
        let (body, _share) = std::mem::replace(&mut self.body, gateway.hold_body()).split();
        let read = self.read(body, seen)?;
        let (fields, body) = (read.fields, read.body);
        let asked = fields.model(&body);
        let path = &self.inside.name.path;
        let price = CostBasis::of(path, &fields, &body, self.inside.permit.is_some());
        let mut prompt = prompt_of(&fields, &body, &self.headers);
        prompt.subset = self.subset.take();
        let only = self.only.as_deref();
        let destination = gateway.destination(asked.as_deref(), only)?;
        destination.pool.tokenize(&mut prompt, path, &body).await;
        let caller = self.inside.permit.as_ref().map(|permit| &permit.caller);
        let class = gateway.class(&self.headers, caller.map(|one| &**one), &destination);
        prompt.priority = class.priority;
        let flow = &destination.pool.flow;
        let turn = flow.visit(class, body.len(), prompt.bytes).pass().await?;
        let model = destination.renamed.as_deref().or(asked.as_deref());
        let routed = destination
            .pool
            .route(model.unwrap_or_default(), &prompt, &[])
            .map_err(|none| destination.unroutable(none))?;
        drop(turn);
        let pool = &destination.pool.name;
        gateway.picks.add(&self.inside.name.id, pool, &routed);
        gateway.metrics.decided(self.inside.arrived.elapsed(), 0);
        let other = destination.renamed.as_deref();
        let other = other.and_then(|model| fields.renamed(&body, model));
        let ranked = routed.choice.decision.ranked.iter();
        let endpoints = ranked.take(1 + gateway.config.retries);
        let picked = Picked {
            endpoints: endpoints.map(|one| one.address.to_string()).collect(),
            is_rewritten: read.is_salted || other.is_some(),
            body: other.unwrap_or(body),
            change: self.change(),
        };
        let (inside, pool) = (self.inside.clone(), destination.pool.clone());
        let charge = Charge::begin(pool, caller.cloned(), price, &prompt);
        let asked = (asked, charge);
        self.answer = Some(Answer::new(inside, destination, routed, prompt, asked));
        Ok(picked)
    }

    /// Changes to the request's headers: sets the API key for the replica, and removes the offer of
    /// compression, so that the gateway can read the response.
    fn change(&self) -> Change {
        let mut change = Change {
            set: Vec::new(),
            remove: vec![header::ACCEPT_ENCODING],
        };
        match &self.inside.gateway.backend_key {
            BackendKey::Clients => {}
            BackendKey::None => change.remove.extend([header::AUTHORIZATION, X_API_KEY]),
            BackendKey::Own(bearer) => {
                change.set.push((header::AUTHORIZATION, bearer.clone()));
                change.remove.push(X_API_KEY);
            }
        }
        change
    }
}

impl Call for EnvoyCall {
    fn take(&mut self, bytes: Bytes) -> Result<(), Refusal> {
        let taken = self.body.push(&bytes, self.inside.gateway.most_bytes());
        taken.map_err(|error| self.inside.name.refusal(Failure::from(error).0))
    }

    fn exceeds(&self, excess: Excess) -> Refusal {
        let error = match excess {
            Excess::Room => BodyError::Busy,
            Excess::Time => BodyError::Timeout {
                seconds: self.inside.gateway.config.limits.body_timeout_s as u64,
            },
        };
        self.inside.name.refusal(Failure::from(error).0)
    }

    async fn pick(&mut self, seen: BodyVisibility) -> Result<Picked, Refusal> {
        let chosen = self.choose(seen).await;
        chosen.map_err(|error| self.inside.name.refusal(error))
    }

    fn answered(&mut self, head: &AnswerHead) -> Change {
        let answer = self.answer.as_mut();
        answer.map(|answer| answer.began(head)).unwrap_or_default()
    }

    fn pass(&mut self, bytes: Bytes) -> Bytes {
        match &mut self.answer {
            Some(answer) => answer.pass(bytes),
            None => bytes,
        }
    }

    fn end(&mut self) -> Bytes {
        let answer = self.answer.as_mut();
        answer.map(Answer::end).unwrap_or_default()
    }
}
