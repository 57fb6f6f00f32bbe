//! The event loop of a replay: arrivals, ends of steps and polls, in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use penstock_fleet::Reported;
use penstock_prefix::Digest;
use penstock_wire::{Finish, Step, TokenRequest};

use super::gateway::Gateway;
use super::oracle::{self, Outlook};
use super::policy::{Decision, Policy};
use super::prompts;
use super::report::Report;
use super::setup::{Arrival, Setup};
use crate::answers::Answers;
use crate::batching::{Ask, Batcher, Inside};
use crate::config::SimError;
use crate::profile::Profile;
use crate::random::mix;

const SAMPLE: Duration = Duration::from_secs(1);
/// Number of arrivals from one call of `progress` to the next.
const PROGRESS: usize = 64;

/// An event. Simultaneous events are processed in the order of the variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A replica's step ends.
    Step(usize),
    /// A replica's metrics are polled.
    Poll(usize),
    /// KV use is sampled.
    Sample,
    /// A request arrives.
    Arrival(usize),
}

struct Node {
    profile: Profile,
    batcher: Batcher,
    /// When the step in flight ends; `None`: no step is in flight.
    busy: Option<Duration>,
}

pub(super) struct Run {
    setup: Setup,
    policy: Policy,
    nodes: Vec<Node>,
    gateways: Vec<Gateway>,
    /// Index of the gateway that each request goes to.
    asked: Vec<usize>,
    events: BinaryHeap<Reverse<(Duration, Event)>>,
    poll: Duration,
    /// Number of requests that have not ended.
    open: usize,
    first: Vec<Option<f64>>,
    report: Report,
}

impl Run {
    pub(super) fn new(mut setup: Setup) -> Result<Self, SimError> {
        check(&setup)?;
        let seed = setup.seed;
        let choices = std::mem::take(&mut setup.engines);
        let nodes = choices.into_iter().map(|choice| {
            let profile = choice.resolve().map_err(SimError::Config)?;
            let answers = Answers {
                words: (1..16).collect(),
                eos: 0,
                seed,
                lengths: None,
            };
            Ok(Node {
                batcher: Batcher::new(profile.clone(), answers),
                profile,
                busy: None,
            })
        });
        let nodes: Vec<Node> = nodes.collect::<Result<_, SimError>>()?;
        let tokens = |node: &Node| node.profile.num_blocks as f32 * node.profile.block_size as f32;
        let capacities: Vec<f32> = nodes.iter().map(tokens).collect();
        let none = penstock_routing::ProfileSpec::default();
        let choice = super::setup::PolicyChoice::Profile(none);
        let policy = Policy::new(std::mem::replace(&mut setup.policy, choice))?;
        let requests = setup.arrivals.len();
        let poll = Duration::from_secs_f64(setup.poll_s);
        let gateway = || {
            let (tokens, reservations) = (setup.block_tokens, setup.reservations);
            Gateway::new(capacities.clone(), tokens, reservations, 3 * poll)
        };
        Ok(Self {
            policy,
            asked: (0..requests).map(|id| gateway_of(&setup, id)).collect(),
            gateways: (0..setup.gateways).map(|_| gateway()).collect(),
            events: BinaryHeap::new(),
            poll,
            open: requests,
            first: vec![None; requests],
            report: Report::with_requests(requests),
            nodes,
            setup,
        })
    }

    /// Runs until every request has ended.
    pub(super) fn play(
        mut self,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Report, SimError> {
        let nodes = self.nodes.len() as u32;
        for node in 0..nodes {
            // Polls are staggered, because a poller visits its targets in turn.
            self.at(self.poll * node / nodes, Event::Poll(node as usize));
        }
        self.at(Duration::ZERO, Event::Sample);
        self.expect(0);
        while self.open > 0 {
            let Some(Reverse((now, event))) = self.events.pop() else {
                return Err(SimError::Config("requests are lost".to_owned()));
            };
            for gateway in &mut self.gateways {
                gateway.advance(now);
            }
            match event {
                Event::Step(node) => self.step_ends(node, now),
                Event::Poll(node) => {
                    for gateway in &mut self.gateways {
                        gateway.polled(node, self.nodes[node].reported());
                    }
                    self.at(now + self.poll, event);
                }
                Event::Sample => {
                    let used = self
                        .nodes
                        .iter()
                        .map(|node| node.reported().kv_use.unwrap_or(0.0));
                    self.report.kv_use.push(used.collect());
                    self.at(now + SAMPLE, event);
                }
                Event::Arrival(id) => {
                    self.arrives(id, now)?;
                    self.expect(id + 1);
                    let total = self.setup.arrivals.len();
                    if id.is_multiple_of(PROGRESS) && !progress(id, total) {
                        return Err(SimError::Config("the replay was ended".to_owned()));
                    }
                }
            }
        }
        let preemptions = self.nodes.iter().map(|node| node.batcher.stats());
        self.report.preemptions = preemptions.map(|stats| stats.preemptions_total).sum();
        Ok(self.report)
    }

    fn at(&mut self, time: Duration, event: Event) {
        self.events.push(Reverse((time, event)));
    }

    fn expect(&mut self, id: usize) {
        if let Some(next) = self.setup.arrivals.get(id) {
            let at = Duration::from_secs_f64(next.at);
            self.at(at, Event::Arrival(id));
        }
    }

    fn arrives(&mut self, id: usize, now: Duration) -> Result<(), SimError> {
        let block = self.setup.block_tokens;
        let arrival = &self.setup.arrivals[id];
        let seconds = now.as_secs_f64();
        let links = prompts::links(arrival, block);
        let prompt_tokens = arrival.input_tokens as f32;
        let gateway = &mut self.gateways[self.asked[id]];
        let view = gateway.view();
        let (cached, unknown) = gateway.cached(&links, prompt_tokens);
        let caches = gateway.caches();
        let asked = Decision {
            view: &view,
            cached: &cached,
            unknown,
            caches: &caches,
            links_sent: gateway.links_sent(),
            prompt_tokens,
            ticket: self.setup.seed.wrapping_add(id as u64),
        };
        let vocabulary = self.nodes[0].profile.vocab_size;
        let prompt = prompts::tokens(arrival, id, block, vocabulary);
        let outlooks = || outlooks(&self.nodes, &prompt, arrival, now);
        let to = self.policy.choose(&asked, outlooks)?;
        self.report.sent[id] = seconds;
        self.report.replica[id] = to as u32;
        self.report.prompt_tokens[id] = arrival.input_tokens;
        self.report.expected[id] = cached[to];
        let pace = &view[to].pace;
        let tokens = view[to].backlog_tokens + prompt_tokens - cached[to];
        self.report.foretold[id] = f64::from(tokens / pace.prefill_tokens_per_s + pace.decode_s);
        gateway.sent(id, to, &links, prompt_tokens);
        let request = TokenRequest {
            prompt,
            max_tokens: arrival.output_tokens,
            ignore_eos: true,
            ..TokenRequest::default()
        };
        let ask = Ask {
            request,
            ..Ask::default()
        };
        self.nodes[to].batcher.add(id as u64, ask, now);
        if self.nodes[to].busy.is_none() {
            self.begin(to, now);
        }
        Ok(())
    }

    fn begin(&mut self, at: usize, now: Duration) {
        let node = &mut self.nodes[at];
        node.busy = node.batcher.schedule(now).map(|cost| now + cost);
        match node.busy {
            Some(end) => self.at(end, Event::Step(at)),
            None => {
                let step = node.batcher.idle_step();
                self.note(step, now);
            }
        }
    }

    fn step_ends(&mut self, node: usize, now: Duration) {
        let step = self.nodes[node].batcher.apply();
        self.note(step, now);
        self.begin(node, now);
    }

    fn note(&mut self, step: Step, now: Duration) {
        let now = now.as_secs_f64();
        for output in step.outputs {
            let id = output.id as usize;
            if !output.tokens.is_empty() {
                if self.first[id].is_none() {
                    self.first[id] = Some(now);
                    self.report.cached[id] = output.cached_tokens;
                }
                let tokens = output.tokens.len() as u32;
                self.report.output_tokens[id] += tokens;
                self.gateways[self.asked[id]].tokens(id, tokens);
            }
            if output.finish != Finish::None {
                self.ended(id, output.finish, now);
            }
        }
    }

    fn ended(&mut self, id: usize, finish: Finish, now: f64) {
        let tokens = self.report.output_tokens[id];
        self.gateways[self.asked[id]].ended(id);
        self.open -= 1;
        if finish != Finish::Length {
            self.report.failed += 1;
            return;
        }
        self.report.end[id] = now;
        if let Some(first) = self.first[id] {
            self.report.ttft[id] = first - self.report.sent[id];
            if tokens > 1 {
                self.report.tpot[id] = (now - first) / f64::from(tokens - 1);
            }
        }
    }
}

impl Node {
    fn reported(&self) -> Reported {
        let stats = self.batcher.stats();
        let blocks = stats.blocks_total as f32;
        Reported {
            waiting: stats.waiting as f32,
            running: stats.running as f32,
            kv_use: Some(stats.blocks_used as f32 / blocks),
            kv_tokens: Some(blocks * self.profile.block_size as f32),
            ..Reported::default()
        }
    }
}

/// Index of the gateway that a request goes to: a random one, as behind a load balancer of
/// connections.
fn gateway_of(setup: &Setup, id: usize) -> usize {
    (mix(mix(setup.seed) ^ id as u64) % setup.gateways.max(1) as u64) as usize
}

/// Predicts how the prompt would fare on each replica.
fn outlooks(nodes: &[Node], prompt: &[u32], arrival: &Arrival, now: Duration) -> Vec<Outlook> {
    let names: Vec<Digest> = nodes[0].batcher.names(prompt);
    let outlook = |node: &Node| {
        let cached = node.batcher.cached(&names, prompt.len());
        let newcomer = Inside {
            prompt_left: prompt.len() - cached,
            outputs_left: arrival.output_tokens as usize,
            context: cached,
            waiting: true,
        };
        let inside: Vec<Inside> = node.batcher.inside().collect();
        let begins = node.busy.map_or(Duration::ZERO, |end| end - now);
        let begins = begins.as_secs_f64();
        oracle::outlook(
            &node.profile,
            node.batcher.prompts(),
            &inside,
            newcomer,
            begins,
        )
    };
    nodes.iter().map(outlook).collect()
}

fn check(setup: &Setup) -> Result<(), SimError> {
    let ascending = setup.arrivals.windows(2).all(|two| two[0].at <= two[1].at);
    let sane = |one: &Arrival| {
        (0.0..1e9).contains(&one.at) && one.input_tokens > 0 && one.output_tokens > 0
    };
    let complaint = if setup.engines.is_empty() {
        "there are no engines"
    } else if !(1..=64).contains(&setup.gateways) {
        "gateways must be 1 to 64"
    } else if setup.block_tokens == 0 {
        "block_tokens must be at least 1"
    } else if !(0.001..=3600.0).contains(&setup.poll_s) {
        "poll_s must be 0.001 to 3600"
    } else if setup.arrivals.is_empty() || !ascending || !setup.arrivals.iter().all(sane) {
        "arrivals must ascend in time and have tokens"
    } else {
        return Ok(());
    };
    Err(SimError::Config(complaint.to_owned()))
}
