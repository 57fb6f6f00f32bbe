//! Golden frames, byte for byte, shared with the Python codec's tests.
use std::path::Path;

use penstock_wire::{
    Add, Cancel, EngineFrame, Fatal, Finish, Frame, FrontFrame, Grammar, GrammarKind, Hello,
    KvCommand, KvOrder, KvOutcome, KvPrefix, KvReply, LogprobRow, Output, Pooler, PoolerOutput,
    Ready, SamplingParams, Shutdown, Stage, Step, StepStats, TierKinds, TierTokens, TokenRequest,
    WIRE_VERSION,
};

const BIG_ID: u64 = (1 << 63) + 5;

fn golden_bytes(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../tests/golden/wire")
        .join(format!("{name}.hex"));
    let text = std::fs::read_to_string(&path).unwrap();
    let hex: String = text
        .lines()
        .map(|line| line.split('#').next().unwrap().trim())
        .collect();
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn check<F: Frame + PartialEq + std::fmt::Debug>(
    name: &str,
    frame: &F,
    encode: impl Fn(&F, &mut Vec<u8>) -> Result<(), penstock_wire::FrameError>,
) {
    let golden = golden_bytes(name);
    let mut encoded = Vec::new();
    encode(frame, &mut encoded).unwrap();
    assert_eq!(encoded, golden, "{name}");
    assert_eq!(
        &F::decode(golden[4], &golden[5..]).unwrap(),
        frame,
        "{name}"
    );
}

fn check_engine(name: &str, frame: &EngineFrame) {
    check(name, frame, EngineFrame::encode);
}

fn check_front(name: &str, frame: &FrontFrame) {
    check(name, frame, FrontFrame::encode);
}

#[test]
fn start() {
    check_engine(
        "hello",
        &EngineFrame::Hello(Hello {
            wire_version: WIRE_VERSION,
            pid: 305_419_896,
        }),
    );
    check_engine(
        "stage",
        &EngineFrame::Stage(Stage {
            name: "weights packed".to_owned(),
            seconds: 0.625,
            detail: "97 MB → 8-bit".to_owned(),
        }),
    );
    let message =
        "tensor blk.3.attn_q.weight ends at byte 77, the file has 64 — truncated".to_owned();
    check_engine("fatal", &EngineFrame::Fatal(Fatal { message }));
}

#[test]
fn ready() {
    check_engine(
        "ready",
        &EngineFrame::Ready(Ready {
            max_model_len: 8192,
            max_num_seqs: 32,
            max_num_batched_tokens: 2048,
            max_queue: 256,
            block_size: 16,
            num_blocks: 2912,
            kv_bytes: 5_368_709_120,
            vocab_size: 49152,
            eos_token_ids: vec![2, 128_009],
            cache_identity: std::array::from_fn(|i| 100 + i as u8),
            numerics: "w4a8-bf16".to_owned(),
            device: "avx512-vnni".to_owned(),
            threads: 2,
            kv_tiers: TierKinds {
                ram: true,
                disk: false,
                remote: true,
            },
            pooler: Pooler {
                output: PoolerOutput::UnitEmbedding,
                size: 576,
                only: true,
            },
        }),
    );
}

#[test]
fn step() {
    let stats = StepStats {
        step: 4_294_967_301,
        running: 2,
        waiting: 7,
        blocks_used: 33,
        blocks_total: 2912,
        preemptions_total: 4,
        prefix_query_tokens_total: 5_000_000_000,
        prefix_hit_tokens_total: 4_000_000_000,
        masks_total: 5_000_000_000,
        mask_seconds_total: 0.625,
        mask_wait_seconds_total: 0.125,
        batch_tokens: 514,
        step_ms: 12.5,
    };
    let first = Output {
        id: 1,
        cached_tokens: 48,
        tier_tokens: TierTokens {
            ram: 32,
            disk: 0,
            remote: 8,
        },
        queue_us: 1500,
        tokens: vec![17],
        logprobs: vec![LogprobRow {
            logprob: -0.75,
            rank: 2,
            alternatives: vec![(90, -0.5), (17, -0.75)],
        }],
        prompt_logprobs: vec![
            LogprobRow {
                logprob: -3.25,
                rank: 12,
                alternatives: vec![],
            },
            LogprobRow {
                logprob: f32::NEG_INFINITY,
                rank: 49152,
                alternatives: vec![(5, -0.125)],
            },
        ],
        ..Output::default()
    };
    let stopped = Output {
        id: BIG_ID,
        finish: Finish::Stop,
        stop_token: Some(2),
        tokens: vec![400, 49151, 2],
        ..Output::default()
    };
    let rejected = Output {
        id: 3,
        finish: Finish::Rejected,
        queue_us: 4_000_000_000,
        error: Some("die Schlange ist voll ✗".to_owned()),
        ..Output::default()
    };
    let pooled = Output {
        id: 4,
        finish: Finish::Stop,
        vector: vec![0.5, -0.25, 1.5],
        ..Output::default()
    };
    check_engine(
        "step",
        &EngineFrame::Step(Step {
            stats,
            outputs: vec![first, stopped, rejected, pooled],
        }),
    );
}

#[test]
fn heartbeat() {
    let stats = StepStats {
        step: 9,
        blocks_total: 64,
        preemptions_total: 1,
        prefix_query_tokens_total: 2,
        prefix_hit_tokens_total: 3,
        ..StepStats::default()
    };
    check_engine(
        "heartbeat",
        &EngineFrame::Step(Step {
            stats,
            outputs: Vec::new(),
        }),
    );
}

#[test]
fn front_door() {
    let request = TokenRequest {
        prompt: vec![1, 49151, 0, 2_147_483_647],
        resumed: 2,
        max_tokens: 700,
        min_tokens: 3,
        prompt_logprobs: Some(20),
        ignore_eos: false,
        skip_prefix_cache: true,
        pool: true,
        expires: true,
        stop_token_ids: vec![2, 7],
        cache_salt: b"tenant\x00\xff".to_vec(),
        grammar: Some(Grammar::new(GrammarKind::Regex, "é+").into()),
        adapter: 3,
        priority: -7,
        sampling: SamplingParams {
            temperature: 0.75,
            top_k: 40,
            top_p: 0.875,
            seed: u64::MAX - 1,
            min_p: 0.25,
            choice: 3,
            logprobs: None,
            repetition_penalty: 1.5,
            presence_penalty: -0.5,
            frequency_penalty: 0.125,
            bias: vec![(5, -100.0)],
            allowed: vec![5, 6],
            banned: vec![vec![9], vec![9, 10]],
            suppressed: vec![2],
            suppressed_until: 12,
        },
    };
    check_front(
        "add",
        &FrontFrame::Add(Add {
            id: BIG_ID,
            request,
        }),
    );
    check_front(
        "cancel",
        &FrontFrame::Cancel(Cancel {
            ids: vec![7, BIG_ID],
        }),
    );
    check_front("shutdown", &FrontFrame::Shutdown(Shutdown));
}

#[test]
fn tiers() {
    let report = r#"{"tiers": [{"name": "disk:/var/kv é"}]}"#.to_owned();
    check_engine("tiers", &EngineFrame::Tiers(report));
}

#[test]
fn administration() {
    let prefix = KvPrefix {
        tokens: vec![1, 49151, 2_147_483_647],
        cache_salt: b"tenant\x00\xff".to_vec(),
    };
    check_front(
        "kv",
        &FrontFrame::Kv(KvCommand {
            id: BIG_ID,
            order: KvOrder::Pin(prefix),
        }),
    );
    check_engine(
        "kv_reply",
        &EngineFrame::KvReply(KvReply {
            id: BIG_ID,
            outcome: KvOutcome::Refused,
            text: "half of the RAM tier is pinned – unpin something first".to_owned(),
        }),
    );
}
