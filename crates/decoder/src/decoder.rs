//! The decoder as others see it: loaded once, stepped by its own thread.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock_formats::Checkpoint;
use penstock_kernels::{Cpu, Isa, KvLayout, KvPool, KvType, Packed, PoolHandle};

use crate::collectives::{Alone, Collectives};
use crate::error::DecoderError;
use crate::forward::{Buffers, GroupBlocks, forward};
use crate::logits::{HeadBuffers, read_off};
use crate::model::Model;
use crate::options::Options;
use crate::recipe::WeightRecipes;
use crate::shard::Shard;
use crate::spec::DecoderSpec;
use crate::step::{Limits, Registration, StepOutput, StepPlan};

/// Facts about a loaded decoder.
#[derive(Clone, Debug)]
pub struct Info {
    /// Weight forms, activation form and KV type, for example `w4+w8/int8/kv-bf16`: part of the
    /// cache identity.
    pub numerics: String,
    /// Instruction set in use.
    pub isa: Isa,
    /// Compute threads.
    pub threads: usize,
    /// Fingerprint of the checkpoint.
    pub fingerprint: [u8; 32],
    /// Packed weights.
    pub weights_bytes: usize,
    /// KV pool, when all of it has been touched.
    pub kv_bytes: usize,
    /// What the KV pool holds.
    pub kv: KvShare,
    /// Start-up stages: name, seconds, detail.
    pub stages: Vec<(String, f64, String)>,
}

/// The part of the model's keys and values that a rank's pool holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvShare {
    /// Layers, counted over the whole model.
    pub layers: Range<usize>,
    /// KV heads, counted over the whole model, in the order of their extents in a block.
    pub heads: Range<usize>,
    /// Layers of the whole model.
    pub all_layers: usize,
    /// KV heads of the whole model.
    pub all_heads: usize,
}

type Answer = Arc<(Mutex<Option<Result<StepOutput, DecoderError>>>, Condvar)>;

/// A step under way.
pub struct Ticket {
    answer: Answer,
}

impl Ticket {
    /// Waits for the step; `None` when `timeout` passed first (ask again) or the result was already
    /// taken.
    ///
    /// # Errors
    /// A plan that breaks the contract, or a forward pass that failed.
    pub fn result(&self, timeout: Duration) -> Option<Result<StepOutput, DecoderError>> {
        let (slot, ready) = &*self.answer;
        let slot = slot.lock().unwrap_or_else(|e| e.into_inner());
        let (mut slot, _) = ready
            .wait_timeout_while(slot, timeout, |s| s.is_none())
            .unwrap_or_else(|e| e.into_inner());
        slot.take()
    }
}

/// A loaded model with its KV pool and threads.
///
/// Steps run one after another on the decoder's own thread and its pool; [`Decoder::submit`]
/// returns at once.
pub struct Decoder {
    info: Info,
    pool: PoolHandle,
    jobs: Option<mpsc::Sender<(StepPlan, Answer)>>,
    thread: Option<JoinHandle<()>>,
}

struct Runner {
    cpu: Cpu,
    model: Model,
    /// One pool for each KV group.
    kv: Vec<KvPool>,
    limits: Limits,
    slots: Vec<Option<Registration>>,
    buffers: Buffers,
    head: HeadBuffers,
    collectives: Box<dyn Collectives>,
}

impl Decoder {
    /// Opens the checkpoint at `path` (GGUF file or directory), packs its weights and reserves the
    /// KV pool.
    ///
    /// # Errors
    /// See [`DecoderError`].
    pub fn load(
        spec_json: &str,
        weights_json: &str,
        path: &Path,
        options: &Options,
    ) -> Result<Self, DecoderError> {
        let spec = DecoderSpec::parse(spec_json)?;
        let shard = Shard::whole(&spec);
        Self::load_shard(spec, weights_json, path, options, shard, Box::new(Alone))
    }

    /// The same for one rank's part, with the means to reach the others.
    ///
    /// # Errors
    /// See [`DecoderError`].
    pub fn load_shard(
        spec: DecoderSpec,
        weights_json: &str,
        path: &Path,
        options: &Options,
        shard: Shard,
        collectives: Box<dyn Collectives>,
    ) -> Result<Self, DecoderError> {
        let weights = WeightRecipes::parse(weights_json, spec.depth())?;
        let cpu = Cpu::new(options.isa, options.threads)?;
        let mut stages = Stages::default();
        let checkpoint = Checkpoint::open(path)?;
        let fingerprint = checkpoint.fingerprint();
        stages.end(
            "model read",
            format!("{} tensors", checkpoint.names().count()),
        );
        let model = Model::load(&cpu, &checkpoint, spec, &weights, options.numerics, shard)?;
        drop(checkpoint);
        let weights_bytes = model.matrices().map(Packed::bytes).sum();
        let forms = forms(&model);
        stages.end(
            "weights packed",
            format!(
                "{} as {forms}, {} on {} threads",
                mib(weights_bytes),
                options.isa,
                options.threads
            ),
        );
        let runner = Runner::new(cpu, model, options, collectives);
        let (pool, kv) = (runner.kv[0].handle(), runner.share());
        let bytes = |pool: &KvPool| pool.blocks() * pool.layout().block_bytes();
        let kv_bytes = runner.kv.iter().map(bytes).sum();
        let tokens = options.num_blocks * options.block_size;
        let kv_name = if options.kv == KvType::F32 {
            "f32"
        } else {
            "bf16"
        };
        stages.end(
            "KV allocated",
            format!(
                "{} blocks, {tokens} tokens, {} {kv_name}, touched as used",
                options.num_blocks,
                mib(kv_bytes)
            ),
        );
        let numerics = format!("{forms}/kv-{kv_name}");
        let (isa, threads) = (options.isa, options.threads);
        let info = Info {
            numerics,
            isa,
            threads,
            fingerprint,
            weights_bytes,
            kv_bytes,
            kv,
            stages: stages.ended,
        };
        let (jobs, queue) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("penstock-cpu0".into())
            .spawn(move || runner.serve(&queue))?;
        Ok(Self {
            info,
            pool,
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Facts about the decoder.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The KV pool, for those who borrow blocks of it between steps. It outlives the decoder.
    pub fn pool(&self) -> PoolHandle {
        self.pool.clone()
    }

    /// Starts a step.
    pub fn submit(&self, plan: StepPlan) -> Ticket {
        let answer: Answer = Arc::default();
        let sent = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send((plan, Arc::clone(&answer))).is_ok());
        if !sent {
            *answer.0.lock().unwrap_or_else(|e| e.into_inner()) =
                Some(Err(DecoderError::Failed("an earlier step failed".into())));
        }
        Ticket { answer }
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was answered as an error of its step.
            let _ = thread.join();
        }
    }
}

impl Runner {
    fn new(cpu: Cpu, model: Model, options: &Options, collectives: Box<dyn Collectives>) -> Self {
        let layout = |layers: usize| KvLayout {
            layers,
            kv_heads: model.heads.kv_heads(),
            head_dim: model.heads.head_dim,
            block_size: options.block_size,
            dtype: options.kv,
        };
        let limits = Limits {
            slots: options.max_num_seqs,
            tokens: options.max_batched_tokens,
            vocab: model.spec.vocab,
            max_position: model.spec.max_position,
            block_size: options.block_size,
            blocks: options.num_blocks,
        };
        let groups = model.kv_groups().iter();
        let kv = groups
            .map(|group| KvPool::new(layout(group.layers.len()), options.num_blocks))
            .collect();
        let slots = vec![None; options.max_num_seqs];
        Self {
            cpu,
            model,
            kv,
            limits,
            slots,
            buffers: Buffers::default(),
            head: HeadBuffers::default(),
            collectives,
        }
    }

    fn share(&self) -> KvShare {
        let Model { spec, shard, .. } = &self.model;
        KvShare {
            layers: shard.layers(),
            heads: shard.kv_heads(spec),
            all_layers: spec.depth(),
            all_heads: spec.attention().kv_heads,
        }
    }

    fn serve(mut self, queue: &mpsc::Receiver<(StepPlan, Answer)>) {
        while let Ok((plan, answer)) = queue.recv() {
            let result = catch_unwind(AssertUnwindSafe(|| self.step(plan)));
            let broken = result.is_err();
            let result = result.unwrap_or_else(|panic| Err(DecoderError::Failed(message(&*panic))));
            if let Err(error @ (DecoderError::Failed(_) | DecoderError::Lost(_))) = &result {
                self.collectives.end(&error.to_string());
            }
            *answer.0.lock().unwrap_or_else(|e| e.into_inner()) = Some(result);
            answer.1.notify_all();
            if broken {
                return;
            }
        }
    }

    fn step(&mut self, mut plan: StepPlan) -> Result<StepOutput, DecoderError> {
        plan.check(&self.limits)?;
        let table = &plan.blocks;
        let claim = |pool| {
            Ok(GroupBlocks {
                lease: plan.claim(pool)?,
                table,
            })
        };
        let mut kv = self
            .kv
            .iter_mut()
            .map(claim)
            .collect::<Result<Vec<_>, DecoderError>>()?;
        for registration in plan.registrations.drain(..) {
            let slot = registration.slot;
            self.slots[slot] = Some(registration);
        }
        if let Some(slot) = plan
            .slots
            .iter()
            .find(|&&s| self.slots[s as usize].is_none())
        {
            return Err(DecoderError::Plan(format!(
                "slot {slot} was never registered"
            )));
        }
        forward(
            &self.cpu,
            &self.model,
            &mut kv,
            &plan,
            &mut self.buffers,
            &mut *self.collectives,
        )?;
        drop(kv);
        Ok(read_off(
            &self.cpu,
            &self.model,
            &plan,
            &self.slots,
            &mut self.buffers,
            &mut self.head,
            &mut *self.collectives,
        )?)
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "unknown panic".into())
}

/// The weight forms in use with their activation form: `w4+w8/int8`.
fn forms(model: &Model) -> String {
    let mut names: Vec<&str> = model.matrices().map(|m| m.form().name()).collect();
    names.sort_unstable();
    names.dedup();
    let activations = if names.iter().any(|n| n.starts_with('w')) {
        "int8"
    } else {
        // A stage without layers between the first and the last has no weights.
        names.first().copied().unwrap_or("none")
    };
    format!("{}/{activations}", names.join("+"))
}

fn mib(bytes: usize) -> String {
    format!("{:.0} MiB", bytes as f64 / (1 << 20) as f64)
}

struct Stages {
    since: Instant,
    ended: Vec<(String, f64, String)>,
}

impl Default for Stages {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            ended: Vec::new(),
        }
    }
}

impl Stages {
    fn end(&mut self, name: &str, detail: String) {
        self.ended
            .push((name.to_owned(), self.since.elapsed().as_secs_f64(), detail));
        self.since = Instant::now();
    }
}
