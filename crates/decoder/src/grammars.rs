//! Grammars of the sequences: compiled, and their masks computed, on threads of their own while the
//! forward pass runs.
//!
//! The mask after a token is asked for when that token is drawn, so it is there before the next row
//! of logits unless the grammar is much slower than the model. A row waits for its mask.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use penstock_grammar::{Compiler, Mask, Matcher, Vocabulary};
use penstock_text::TextModel;
use penstock_wire::{FrameError, Grammar, MaskCost};

/// Time to compile a grammar. The front door has compiled it before: this is for a busy machine.
const COMPILE_LIMIT: Duration = Duration::from_secs(60);
/// Stack of a thread that computes masks: llguidance recurses over nested expressions.
const STACK: usize = 64 << 20;
const MOST_THREADS: usize = 4;

type Failed = String;

/// The threads, started with the first grammar.
pub(crate) struct Grammars {
    shared: Arc<Shared>,
    threads: usize,
    jobs: OnceLock<mpsc::Sender<Arc<Constraint>>>,
}

struct Shared {
    /// The checkpoint, which has the tokenizer.
    path: PathBuf,
    compiler: OnceLock<Result<Compiler, Failed>>,
    cost: Cost,
}

/// What masks have cost since it was taken last.
#[derive(Default)]
struct Cost {
    masks: AtomicU32,
    computing_ns: AtomicU64,
    waiting_ns: AtomicU64,
}

/// The grammar of one sequence, and the masks of its next rows.
pub(crate) struct Constraint {
    shared: Arc<Shared>,
    grammar: Grammar,
    ends: Vec<u32>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    matcher: Option<Matcher>,
    /// Tokens of the output that the matcher has not taken in.
    behind: Vec<u32>,
    /// Drafts that follow them in the plan.
    drafts: Vec<u32>,
    /// The mask before each of `drafts` and the one after, as far as they are computed; `None`
    /// after a draft that the grammar forbids: that row counts for nothing.
    masks: Vec<Option<Mask>>,
    failed: bool,
}

impl Grammars {
    pub(crate) fn new(path: PathBuf, threads: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                path,
                compiler: OnceLock::new(),
                cost: Cost::default(),
            }),
            threads: (threads / 2).clamp(1, MOST_THREADS),
            jobs: OnceLock::new(),
        }
    }

    /// A sequence with the encoded `grammar` whose `output` is known already; `ends` are the tokens
    /// that may end it.
    ///
    /// # Errors
    /// Bytes that are no grammar.
    pub(crate) fn start(
        &self,
        grammar: &[u8],
        ends: &[u32],
        output: &[i32],
    ) -> Result<Arc<Constraint>, FrameError> {
        let constraint = Arc::new(Constraint {
            shared: Arc::clone(&self.shared),
            grammar: Grammar::decode(grammar)?,
            ends: ends.to_vec(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        constraint.accept(output);
        self.work_on(&constraint);
        Ok(constraint)
    }

    /// The cost of masks since the last call.
    pub(crate) fn take_cost(&self) -> MaskCost {
        let cost = &self.shared.cost;
        let seconds = |ns: &AtomicU64| ns.swap(0, Ordering::Relaxed) as f64 * 1e-9;
        MaskCost {
            count: cost.masks.swap(0, Ordering::Relaxed),
            seconds: seconds(&cost.computing_ns),
            wait_seconds: seconds(&cost.waiting_ns),
        }
    }

    /// Has the masks of a sequence computed.
    pub(crate) fn work_on(&self, constraint: &Arc<Constraint>) {
        let jobs = self.jobs.get_or_init(|| self.start_threads());
        if jobs.send(Arc::clone(constraint)).is_err() {
            constraint.fail();
        }
    }

    /// They end when the last job is done and the sender gone.
    fn start_threads(&self) -> mpsc::Sender<Arc<Constraint>> {
        let (send, jobs) = mpsc::channel::<Arc<Constraint>>();
        let jobs = Arc::new(Mutex::new(jobs));
        for i in 0..self.threads {
            let jobs = Arc::clone(&jobs);
            let work = move || {
                while let Ok(job) = next(&jobs) {
                    job.work();
                }
            };
            let thread = std::thread::Builder::new().name(format!("penstock-mask{i}"));
            // Without any, the channel is closed and sequences with a grammar fail.
            let _ = thread.stack_size(STACK).spawn(work);
        }
        send
    }
}

fn next(jobs: &Mutex<mpsc::Receiver<Arc<Constraint>>>) -> Result<Arc<Constraint>, mpsc::RecvError> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner).recv()
}

fn add(to: &AtomicU64, began: Instant) {
    to.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
}

impl Shared {
    fn mask(&self, matcher: &mut Matcher) -> Result<Mask, Failed> {
        let began = Instant::now();
        let mask = matcher.mask().map_err(|e| e.to_string())?;
        add(&self.cost.computing_ns, began);
        self.cost.masks.fetch_add(1, Ordering::Relaxed);
        Ok(mask)
    }

    fn compiler(&self) -> Result<&Compiler, Failed> {
        let open = || compiler_of(&self.path);
        self.compiler
            .get_or_init(open)
            .as_ref()
            .map_err(Clone::clone)
    }
}

fn compiler_of(path: &Path) -> Result<Compiler, Failed> {
    let text = TextModel::open(path, None).map_err(|e| e.to_string())?;
    let vocabulary = Vocabulary::new(&text.tokenizer).map_err(|e| e.to_string())?;
    Ok(Compiler::new(vocabulary))
}

impl Constraint {
    /// Takes in tokens of the output; the masks are those of the row after.
    pub(crate) fn accept(&self, tokens: &[i32]) {
        let mut state = self.lock();
        state
            .behind
            .extend(tokens.iter().map(|&token| token as u32));
        state.drafts.clear();
        state.masks.clear();
    }

    /// Notes the drafts of the next step.
    pub(crate) fn expect(&self, drafts: &[i32]) {
        let mut state = self.lock();
        state.drafts = drafts.iter().map(|&token| token as u32).collect();
        state.masks.truncate(1);
    }

    /// Waits for the mask after so many drafts; `None` after one that the grammar forbids.
    ///
    /// # Errors
    /// The grammar cannot be followed.
    pub(crate) fn mask(&self, drafts: usize) -> Result<Option<Mask>, ()> {
        let waits = |state: &mut State| !state.failed && state.masks.len() <= drafts;
        let began = Instant::now();
        let state = self.changed.wait_while(self.lock(), waits);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        add(&self.shared.cost.waiting_ns, began);
        match state.masks.get(drafts) {
            Some(mask) if !state.failed => Ok(mask.clone()),
            _ => Err(()),
        }
    }

    fn work(&self) {
        let work = || self.lock().advance(&self.grammar, &self.ends, &self.shared);
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(())) => self.changed.notify_all(),
            Ok(Err(_)) | Err(_) => self.fail(),
        }
    }

    fn fail(&self) {
        self.lock().failed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Computes the masks that are missing.
    fn advance(&mut self, grammar: &Grammar, ends: &[u32], shared: &Shared) -> Result<(), Failed> {
        if self.failed {
            return Ok(());
        }
        let matcher = match &mut self.matcher {
            Some(matcher) => matcher,
            empty => {
                let compiled = shared.compiler()?.compile(grammar, COMPILE_LIMIT);
                let compiled = compiled.map_err(|e| e.to_string())?;
                empty.insert(compiled.matcher(ends.to_vec()))
            }
        };
        for token in self.behind.drain(..) {
            if !matcher.accept(token).map_err(|e| e.to_string())? {
                return Err(format!("token {token} does not follow"));
            }
        }
        if self.masks.is_empty() {
            self.masks.push(Some(shared.mask(matcher)?));
        }
        let mut taken = 0;
        while self.masks.len() <= self.drafts.len() {
            let at = self.masks.len() - 1;
            // Drafts before it may have been computed by an earlier job.
            let mut follows = self.masks[at].is_some();
            while follows && taken <= at {
                follows = matcher
                    .accept(self.drafts[taken])
                    .map_err(|e| e.to_string())?;
                taken += usize::from(follows);
            }
            let mask = match follows {
                true => Some(shared.mask(matcher)?),
                false => None,
            };
            self.masks.push(mask);
        }
        matcher.rollback(taken).map_err(|e| e.to_string())
    }
}
