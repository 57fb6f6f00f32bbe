//! Shared by the decoder tests: fixtures, a simple scheduler, and files to damage.
#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod codes;
pub(crate) mod files;
pub(crate) mod logits;
pub(crate) mod ranks;
pub(crate) mod traffic;

use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_checkpoint::Checkpoint;
use penstock_decoder::{Decoder, DecoderError, DecoderSpec, Numerics, Options, StepFuture};
use penstock_kernels::{AttentionMask, Isa, KvType, WeightFormat};
use penstock_wire::{
    LogprobRow, MAX_LOGPROBS, Pooling, Registration, SamplingParams, StepPlan, StepResult,
};
use serde_json::Value;

pub(crate) const FAMILIES: [&str; 38] = [
    "alternating",
    "biased",
    "deepseek2",
    "deepseek2.gguf",
    "deepseek3",
    "deepseek3.gguf",
    "gemma2",
    "gemma2plain",
    "gemma2plain.gguf",
    "gemma3",
    "gemma3.gguf",
    "glm4moe",
    "glm4moe.gguf",
    "gpt2",
    "gpt2.gguf",
    "gptoss",
    "gptoss.gguf",
    "llama",
    "llama3",
    "llama3.gguf",
    "llama4",
    "llama4moe",
    "llama4moe.gguf",
    "mistral",
    "mixed",
    "mixtral",
    "mixtral.gguf",
    "phi3",
    "phi3.gguf",
    "qwen2",
    "qwen2moe",
    "qwen2moe.gguf",
    "qwen3",
    "qwen3.gguf",
    "qwen3moe",
    "qwen3moe.gguf",
    "yarn",
    "yarn.gguf",
];

/// Numeric formats that the tests use.
pub(crate) const NUMERICS: [(Numerics, KvType); 5] = [
    (Numerics::Exact, KvType::F32),
    (
        Numerics::AsStored {
            floats: WeightFormat::F32,
        },
        KvType::Bf16,
    ),
    (
        Numerics::AsStored {
            floats: WeightFormat::Bf16,
        },
        KvType::Bf16,
    ),
    (Numerics::Int8, KvType::Bf16),
    (Numerics::Int4, KvType::Bf16),
];

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures")
}

pub(crate) fn checkpoint(name: &str) -> PathBuf {
    fixtures().join("tiny").join(name)
}

/// Spec and weight recipes of a tiny checkpoint.
pub(crate) fn spec(name: &str) -> (Value, Value) {
    let text = std::fs::read_to_string(fixtures().join(format!("specs/{name}.json"))).unwrap();
    let both: Value = serde_json::from_str(&text).unwrap();
    (both["spec"].clone(), both["weights"].clone())
}

/// Number of experts of a tiny checkpoint, if it has any.
pub(crate) fn experts(name: &str) -> Option<usize> {
    let spec = DecoderSpec::parse(&spec(name).0.to_string()).unwrap();
    spec.experts()
}

/// Results computed by transformers.
pub(crate) struct Reference {
    pub(crate) tokens: Vec<i32>,
    pub(crate) greedy: Vec<i32>,
    /// One row of logits per token.
    pub(crate) logits: Vec<Vec<f32>>,
}

pub(crate) fn reference(name: &str) -> Reference {
    let folder = checkpoint(name.trim_end_matches(".gguf"));
    let facts: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("reference.json")).unwrap())
            .unwrap();
    let ints = |key: &str| {
        facts[key]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_i64().unwrap() as i32)
            .collect()
    };
    let bytes = std::fs::read(folder.join("logits.f32")).unwrap();
    let logits: Vec<f32> = bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let vocab = facts["shape"][1].as_u64().unwrap() as usize;
    Reference {
        tokens: ints("tokens"),
        greedy: ints("greedy"),
        logits: logits.chunks(vocab).map(<[f32]>::to_vec).collect(),
    }
}

/// Blocks per KV group.
pub(crate) const BLOCKS: usize = 1024;

/// Exact numerics, 16-token blocks, one thread.
pub(crate) fn options(isa: Isa) -> Options {
    Options {
        threads: 1,
        max_num_seqs: 64,
        max_batched_tokens: 4096,
        block_size: 16,
        kv: KvType::F32,
        numerics: Numerics::Exact,
        isa,
    }
}

pub(crate) fn load(name: &str, options: &Options) -> Decoder {
    allocated(load_only(name, options), BLOCKS)
}

/// A decoder without KV blocks.
pub(crate) fn load_only(name: &str, options: &Options) -> Decoder {
    let ((spec, weights), path) = (spec(name), checkpoint(name));
    Decoder::load(&spec.to_string(), &weights.to_string(), &path, options).unwrap()
}

/// The decoder with `blocks` blocks per KV group.
pub(crate) fn allocated(decoder: Decoder, blocks: usize) -> Decoder {
    let groups = decoder.kv_spec().groups.len();
    decoder.allocate(&vec![blocks; groups]).unwrap();
    decoder
}

/// Instruction sets of this CPU; prints the ones that are skipped.
pub(crate) fn isas() -> Vec<Isa> {
    let (have, lack): (Vec<_>, Vec<_>) = Isa::all().into_iter().partition(|isa| isa.available());
    for isa in lack {
        println!("not tested, this CPU lacks {isa}");
    }
    have
}

pub(crate) const GREEDY: SamplingParams = SamplingParams::GREEDY;

/// Registers a sequence, with `alternatives` for every prompt token and, up to the limit of the
/// parameters, for every sampled token.
pub(crate) fn registration(
    slot: usize,
    sampling: SamplingParams,
    alternatives: Option<usize>,
) -> Registration {
    let logprobs = alternatives.map(|k| k.min(usize::from(MAX_LOGPROBS)) as u8);
    let sampling = SamplingParams {
        logprobs,
        ..sampling
    };
    Registration {
        slot: slot as u32,
        sampling: sampling.encode().unwrap(),
        prompt_logprobs: alternatives.map_or(-1, |k| k as i32),
        grammar: 0,
        adapter: 0,
        pooling: Pooling::None,
        history: Vec::new(),
        prompt_len: 0,
    }
}

/// Anything that computes steps: a decoder, or the ranks of one.
pub(crate) trait Compute {
    fn decoders(&self) -> Vec<&Decoder>;

    fn submit(&self, plan: StepPlan) -> Vec<StepFuture> {
        let decoders = self.decoders().into_iter();
        decoders.map(|d| d.submit(plan.clone())).collect()
    }

    /// The result of the sampling rank.
    fn finish(&self, futures: Vec<StepFuture>) -> Result<StepResult, DecoderError>;

    fn compute(&self, plan: StepPlan) -> Result<StepResult, DecoderError> {
        self.finish(self.submit(plan))
    }

    /// Attention mask of each KV group.
    fn seen(&self) -> Vec<AttentionMask> {
        let groups = &self.decoders()[0].kv_spec().groups;
        groups.iter().map(|group| group.seen).collect()
    }
}

impl Compute for Decoder {
    fn decoders(&self) -> Vec<&Decoder> {
        vec![self]
    }

    fn finish(&self, futures: Vec<StepFuture>) -> Result<StepResult, DecoderError> {
        finish(&futures[0])
    }
}

/// Waits for a step; removes its timing from the result.
pub(crate) fn finish(future: &StepFuture) -> Result<StepResult, DecoderError> {
    let result = future.result(Duration::from_secs(120));
    let result = result.expect("the step ended in time")?;
    assert!(result.seconds > 0.0);
    Ok(StepResult {
        seconds: 0.0,
        ..result
    })
}

/// Runs one step to completion.
pub(crate) fn step(decoder: &Decoder, plan: StepPlan) -> Result<StepResult, DecoderError> {
    finish(&decoder.submit(plan))
}

/// A request of the simple scheduler.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) prompt: Vec<i32>,
    pub(crate) new_tokens: usize,
    pub(crate) sampling: SamplingParams,
    /// Alternatives for every token, of the prompt and after.
    pub(crate) logprobs: usize,
}

/// Answer to a request: sampled tokens, their log-probabilities, and the prompt's from its second
/// token on. If more alternatives are requested than sampled tokens may have, `prompt` has one more
/// row, for the position after the prompt; it scores token 0, regardless of the sampled token.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<i32>,
    pub(crate) logprobs: Vec<LogprobRow>,
    pub(crate) prompt: Vec<LogprobRow>,
}

struct Running {
    tokens: Vec<i32>,
    computed: usize,
    blocks: Vec<i32>,
    answer: Answer,
}

/// Runs all requests together and admits one more in each step. `chunk` returns the maximum prompt
/// tokens per step.
pub(crate) fn run(
    decoder: &impl Compute,
    options: &Options,
    requests: &[Request],
    mut chunk: impl FnMut() -> usize,
) -> Vec<Answer> {
    let mut blocks = (0..BLOCKS as i32).rev();
    let mut running: Vec<Running> = requests
        .iter()
        .map(|r| {
            let needed = (r.prompt.len() + r.new_tokens).div_ceil(options.block_size);
            let (tokens, blocks) = (r.prompt.clone(), blocks.by_ref().take(needed).collect());
            Running {
                tokens,
                computed: 0,
                blocks,
                answer: Answer::default(),
            }
        })
        .collect();
    for round in 1.. {
        let open = |(i, r): &(usize, &Running)| r.answer.tokens.len() < requests[*i].new_tokens;
        let batch: Vec<usize> = running
            .iter()
            .enumerate()
            .take(round)
            .filter(open)
            .map(|(i, _)| i)
            .collect();
        if batch.is_empty() {
            break;
        }
        let mut plan = StepPlan {
            added_offsets: vec![0],
            ..StepPlan::default()
        };
        for &i in &batch {
            add(&mut plan, i, &requests[i], &running[i], chunk());
            whole_tables(&mut plan, decoder.seen().len(), &running[i].blocks);
        }
        let output = decoder.compute(plan.clone()).unwrap();
        take(&plan, output, &mut running);
    }
    running.into_iter().map(|r| r.answer).collect()
}

fn add(plan: &mut StepPlan, i: usize, request: &Request, r: &Running, chunk: usize) {
    if r.computed == 0 {
        let wanted = Some(request.logprobs);
        plan.registrations
            .push(registration(i, request.sampling.clone(), wanted));
    }
    let length = chunk.clamp(1, r.tokens.len() - r.computed);
    let end = r.computed + length;
    plan.slots.push(i as i32);
    plan.starts.push(r.computed as i32);
    plan.lengths.push(length as i32);
    plan.tokens.extend(&r.tokens[r.computed..end]);
    let after = if request.logprobs > usize::from(MAX_LOGPROBS) {
        0
    } else {
        -1
    };
    let target = |p: usize| match request.prompt.get(p) {
        Some(&token) => token,
        None if p == request.prompt.len() => after,
        None => -1,
    };
    plan.targets.extend((r.computed + 1..=end).map(target));
    plan.sample.push(i8::from(end == r.tokens.len()));
}

/// Adds the same full table for each KV group.
pub(crate) fn whole_tables(plan: &mut StepPlan, groups: usize, table: &[i32]) {
    for _ in 0..groups {
        plan.kept.push(0);
        plan.added.extend(table);
        plan.added_offsets.push(plan.added.len() as i32);
    }
}

fn take(plan: &StepPlan, output: StepResult, running: &mut [Running]) {
    let mut tokens = output.tokens.into_iter();
    for (index, &slot) in plan.slots.iter().enumerate() {
        let r = &mut running[slot as usize];
        r.computed += plan.lengths[index] as usize;
        for token in tokens.by_ref().take(output.counts[index] as usize) {
            r.tokens.push(token);
            r.answer.tokens.push(token);
        }
    }
    let running_at = |index: u32| plan.slots[index as usize] as usize;
    for (index, rows) in output.logprobs {
        running[running_at(index)].answer.logprobs.extend(rows);
    }
    for (index, rows) in output.prompt_logprobs {
        running[running_at(index)].answer.prompt.extend(rows);
    }
}

/// Splitmix64 (Steele, Lea and Flood 2014).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }
}

/// A tensor to write: name, type in safetensors spelling, shape, bytes.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// All tensors of a tiny safetensors checkpoint.
pub(crate) fn tensors(name: &str) -> Vec<Stored> {
    let checkpoint = Checkpoint::open(&checkpoint(name)).unwrap();
    let read = |name: &str| {
        let view = checkpoint.tensor(name).unwrap();
        let dtype = format!("{:?}", view.dtype).to_uppercase();
        Stored {
            name: name.to_owned(),
            dtype,
            shape: view.shape.clone(),
            bytes: view.data.to_vec(),
        }
    };
    checkpoint.names().map(read).collect()
}

/// A test's temporary directory, removed at the end of the test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(test: &str) -> Self {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, tensors: &[Stored]) {
        std::fs::write(self.0.join("model.safetensors"), safetensors(tensors)).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn safetensors(tensors: &[Stored]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for t in tensors {
        let begin = data.len();
        data.extend(&t.bytes);
        let range = [begin, data.len()];
        let entry = serde_json::json!({
            "dtype": t.dtype, "shape": t.shape, "data_offsets": range,
        });
        header.insert(t.name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        &data,
    ]
    .concat()
}

/// The default model; prints why the test is skipped if it is missing.
pub(crate) fn default_model() -> Option<PathBuf> {
    let home = std::env::var_os("HOME")
        .map(PathBuf::from)
        .unwrap_or_default();
    let cached = home.join(".cache/penstock/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let path = std::env::var_os("PENSTOCK_MODEL").map_or(cached, PathBuf::from);
    if path.is_file() {
        return Some(path);
    }
    println!(
        "SKIPPED: no default model at {}: run `penstock pull smollm2` or set PENSTOCK_MODEL",
        path.display()
    );
    None
}
