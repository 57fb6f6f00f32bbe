//! Background computation of grammar masks: threads compile the sequences' grammars and compute
//! their masks while the forward pass runs.
//!
//! The mask after a token is requested when that token is sampled, so it is ready before the next
//! row of logits unless the grammar is much slower than the model. A row of the batch waits for its
//! mask for a short time and is then skipped, so that a grammar does not delay other rows.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use penstock_tokenizer::TextModel;
use penstock_wire::{Grammar, MaskCost};

use crate::compiler::{Compiled, Compiler};
use crate::error::{GrammarError, MatchError};
use crate::mask::Mask;
use crate::matcher::Matcher;
use crate::vocabulary::Vocabulary;

/// Timeout for compiling a grammar. Generous, because the API server has already compiled the
/// grammar: only a busy machine takes longer.
const COMPILE_LIMIT: Duration = Duration::from_secs(60);
/// Stack size of mask threads: llguidance recurses over nested expressions.
const STACK: usize = 64 << 20;
const MOST_THREADS: usize = 4;

/// Reason of a grammar's failure.
type Reason = String;

/// The background threads that compute masks; they start with the first grammar.
pub struct Grammars {
    shared: Arc<MaskContext>,
    threads: usize,
    jobs: OnceLock<mpsc::Sender<Arc<Constraint>>>,
}

struct MaskContext {
    /// Path of the checkpoint, which contains the tokenizer.
    path: PathBuf,
    compiler: OnceLock<Result<Compiler, Reason>>,
    cost: Cost,
}

/// Cost of masks since it was last taken.
#[derive(Default)]
struct Cost {
    masks: AtomicU32,
    computing_ns: AtomicU64,
    waiting_ns: AtomicU64,
}

/// The grammar of one sequence, and the masks for its rows of the next batch.
pub struct Constraint {
    shared: Arc<MaskContext>,
    jobs: mpsc::Sender<Arc<Constraint>>,
    grammar: Grammar,
    ends: Vec<u32>,
    since: Instant,
    state: Mutex<ReaderState>,
    changed: Condvar,
}

/// Answer to a batch row that requests its mask.
pub enum RowMask {
    /// The row's mask; `None` after a draft that the grammar forbids.
    Mask(Option<Mask>),
    Late,
    /// The grammar failed.
    Failed,
}

#[derive(Default)]
struct ReaderState {
    compiled: bool,
    /// `None` while a thread uses the reader.
    reader: Option<Reader>,
    /// Whether a thread is compiling the grammar or reading.
    busy: bool,
    /// Output tokens that the reader has not yet read.
    behind: Vec<u32>,
    /// Number of `accept` calls: a mask whose computation began before the last one is discarded.
    accepted: u64,
    /// Draft tokens that follow the output in the next plan.
    drafts: Vec<u32>,
    /// Computed masks: before each of `drafts`, and after the last. `None` after a draft that the
    /// grammar forbids; that row is discarded.
    masks: Vec<Option<Mask>>,
    failed: bool,
}

/// A matcher, and the drafts that it has read after the output.
struct Reader {
    matcher: Matcher,
    drafts: Vec<u32>,
}

enum Task {
    Read(Vec<u32>),
    /// Compute the mask after these drafts; valid while `accepted` is unchanged.
    Mask {
        drafts: Vec<u32>,
        accepted: u64,
    },
}

impl Grammars {
    /// `path` is the checkpoint, which contains the tokenizer; `threads` is the number of compute
    /// threads.
    pub fn new(path: PathBuf, threads: usize) -> Self {
        Self {
            shared: Arc::new(MaskContext {
                path,
                compiler: OnceLock::new(),
                cost: Cost::default(),
            }),
            threads: (threads / 2).clamp(1, MOST_THREADS),
            jobs: OnceLock::new(),
        }
    }

    /// Starts a sequence with a grammar and the `output` tokens that it already has. `ends` are the
    /// tokens that may end the output.
    pub fn start(&self, grammar: Grammar, ends: &[u32], output: &[i32]) -> Arc<Constraint> {
        let constraint = Arc::new(Constraint {
            shared: Arc::clone(&self.shared),
            jobs: self.jobs().clone(),
            since: Instant::now(),
            grammar,
            ends: ends.to_vec(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        constraint.accept(output);
        constraint.queue();
        constraint
    }

    /// The cost of masks since the previous call.
    pub fn take_cost(&self) -> MaskCost {
        let cost = &self.shared.cost;
        let seconds = |ns: &AtomicU64| ns.swap(0, Ordering::Relaxed) as f64 * 1e-9;
        MaskCost {
            count: cost.masks.swap(0, Ordering::Relaxed),
            seconds: seconds(&cost.computing_ns),
            wait_seconds: seconds(&cost.waiting_ns),
        }
    }

    fn jobs(&self) -> &mpsc::Sender<Arc<Constraint>> {
        self.jobs.get_or_init(|| self.start_threads())
    }

    /// The threads exit when the queue is empty and the sender is dropped.
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
            // If no thread starts, the channel is closed and sequences with a grammar fail.
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

impl MaskContext {
    fn compiler(&self) -> Result<&Compiler, Reason> {
        let open = || compiler_of(&self.path);
        self.compiler
            .get_or_init(open)
            .as_ref()
            .map_err(Clone::clone)
    }
}

fn compiler_of(path: &Path) -> Result<Compiler, Reason> {
    let text = TextModel::open(path, None).map_err(|e| e.to_string())?;
    let vocabulary = Vocabulary::new(&text.tokenizer).map_err(|e| e.to_string())?;
    Ok(Compiler::new(vocabulary))
}

impl Constraint {
    /// Appends output tokens; the next masks are for the position after these tokens.
    pub fn accept(&self, tokens: &[i32]) {
        let mut state = self.lock();
        let tokens = tokens.iter().map(|&token| token as u32);
        state.behind.extend(tokens);
        state.accepted += 1;
        state.drafts.clear();
        state.masks.clear();
    }

    /// Sets the draft tokens of the next step.
    pub fn expect(&self, drafts: &[i32]) {
        let mut state = self.lock();
        state.drafts = drafts.iter().map(|&token| token as u32).collect();
        state.masks.truncate(1);
    }

    /// Queues the computation of missing masks.
    pub fn queue(self: &Arc<Self>) {
        if self.jobs.send(Arc::clone(self)).is_err() {
            self.fail();
        }
    }

    /// The mask after `drafts` draft tokens; waits for it until `until`.
    pub fn mask(self: &Arc<Self>, drafts: usize, until: Instant) -> RowMask {
        let began = Instant::now();
        let missing = |state: &mut ReaderState| !state.failed && state.masks.len() <= drafts;
        let wait = until.saturating_duration_since(began);
        let waited = self.changed.wait_timeout_while(self.lock(), wait, missing);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        add(&self.shared.cost.waiting_ns, began);
        match state.masks.get(drafts) {
            _ if state.failed => RowMask::Failed,
            Some(mask) => RowMask::Mask(mask.clone()),
            None if !state.compiled && self.since.elapsed() > COMPILE_LIMIT => RowMask::Failed,
            None => {
                drop(state);
                // Retry: the compilation may have found no free thread.
                self.queue();
                RowMask::Late
            }
        }
    }

    fn work(self: &Arc<Self>) {
        match catch_unwind(AssertUnwindSafe(|| self.advance())) {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => self.fail(),
        }
    }

    /// Computes missing masks, in one thread at a time, including tasks that arrive meanwhile.
    fn advance(self: &Arc<Self>) -> Result<(), Reason> {
        let mut state = self.lock();
        if state.busy || state.failed {
            return Ok(());
        }
        state.busy = true;
        let Some(mut reader) = state.reader.take() else {
            drop(state);
            return self.compile();
        };
        while let Some(task) = state.next_task() {
            drop(state);
            match task {
                Task::Read(tokens) => reader.read(&tokens)?,
                Task::Mask { drafts, accepted } => {
                    let mask = reader.mask(&drafts, &self.shared.cost)?;
                    self.lock().put(mask, &drafts, accepted);
                    self.changed.notify_all();
                }
            }
            state = self.lock();
        }
        state.reader = Some(reader);
        state.busy = false;
        Ok(())
    }

    fn compile(self: &Arc<Self>) -> Result<(), Reason> {
        let this = Arc::clone(self);
        let then = move |outcome: Result<Compiled, GrammarError>| {
            let matcher = outcome.map(|compiled| compiled.matcher(this.ends.clone()));
            let mut state = this.lock();
            state.busy = false;
            match matcher {
                Ok(matcher) => {
                    state.compiled = true;
                    state.reader = Some(Reader::new(matcher));
                }
                // Retried when the late row queues the constraint again.
                Err(GrammarError::Busy) => return,
                Err(_) => state.failed = true,
            }
            drop(state);
            this.queue();
            this.changed.notify_all();
        };
        self.shared.compiler()?.start(&self.grammar, then);
        Ok(())
    }

    fn fail(&self) {
        self.lock().failed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, ReaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReaderState {
    fn next_task(&mut self) -> Option<Task> {
        if self.failed {
            return None;
        }
        if !self.behind.is_empty() {
            return Some(Task::Read(std::mem::take(&mut self.behind)));
        }
        let drafts = self.drafts.get(..self.masks.len())?.to_vec();
        let accepted = self.accepted;
        Some(Task::Mask { drafts, accepted })
    }

    /// Stores a mask unless the tokens have changed since its computation started.
    fn put(&mut self, mask: Option<Mask>, drafts: &[u32], accepted: u64) {
        let same = self.accepted == accepted && self.drafts.starts_with(drafts);
        if same && self.masks.len() == drafts.len() {
            self.masks.push(mask);
        }
    }
}

impl Reader {
    fn new(matcher: Matcher) -> Self {
        Self {
            matcher,
            drafts: Vec::new(),
        }
    }

    fn read(&mut self, tokens: &[u32]) -> Result<(), Reason> {
        self.keep(0)?;
        for &token in tokens {
            if !self.matcher.accept(token).map_err(text)? {
                return Err(format!("token {token} does not follow"));
            }
        }
        Ok(())
    }

    /// The mask after `drafts`; `None` if the grammar forbids one of them.
    fn mask(&mut self, drafts: &[u32], cost: &Cost) -> Result<Option<Mask>, Reason> {
        let pairs = self.drafts.iter().zip(drafts);
        self.keep(pairs.take_while(|(a, b)| a == b).count())?;
        while let Some(&draft) = drafts.get(self.drafts.len()) {
            if !self.matcher.accept(draft).map_err(text)? {
                return Ok(None);
            }
            self.drafts.push(draft);
        }
        let began = Instant::now();
        let mask = self.matcher.mask().map_err(text)?;
        add(&cost.computing_ns, began);
        cost.masks.fetch_add(1, Ordering::Relaxed);
        Ok(Some(mask))
    }

    /// Rolls back all drafts except the first `count`.
    fn keep(&mut self, count: usize) -> Result<(), Reason> {
        let back = self.drafts.len() - count;
        self.drafts.truncate(count);
        self.matcher.rollback(back).map_err(text)
    }
}

fn text(error: MatchError) -> Reason {
    error.to_string()
}
