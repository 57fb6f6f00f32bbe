//! Frames with any content round-trip; arbitrary bytes are decoded or refused, without a panic and
//! within bounded memory.

use crate::common;
use penstock_wire::{
    Add, Cancel, EngineFrame, Fatal, Finish, Frame, FrameError, FrameReader, FrontFrame, Grammar,
    Hello, KvCommand, KvOrder, KvOutcome, KvPrefix, KvReply, LogprobRow, Output, Pooler,
    PoolerOutput, Problem, Ready, SamplingParams, Stage, Step, StepStats, TierKinds, TierTokens,
    TokenRequest, WIRE_VERSION,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn floats() -> impl Strategy<Value = f32> {
    prop_oneof![Just(f32::NEG_INFINITY), -1e30f32..0.0]
}

fn rows() -> impl Strategy<Value = Vec<LogprobRow>> {
    let row = (floats(), any::<u32>(), vec((any::<u32>(), floats()), 0..4));
    vec(
        row.prop_map(|(logprob, rank, alternatives)| LogprobRow {
            logprob,
            rank,
            alternatives,
        }),
        0..4,
    )
}

fn outputs() -> impl Strategy<Value = Output> {
    use Finish::{Cancelled, Error, Length, None, Rejected, Stop};
    let finish = prop::sample::select(vec![None, Stop, Length, Cancelled, Error, Rejected]);
    let stop_token = option::of(0..=i32::MAX as u32);
    let numbers = (any::<u64>(), finish, stop_token, any::<u32>(), any::<u32>());
    (
        numbers,
        vec(any::<u32>(), 0..6),
        rows(),
        rows(),
        option::of(".{0,8}"),
    )
        .prop_map(
            |(
                (id, finish, stop_token, cached_tokens, queue_us),
                tokens,
                logprobs,
                prompt_logprobs,
                error,
            )| Output {
                id,
                finish,
                stop_token,
                cached_tokens,
                tier_tokens: TierTokens {
                    ram: cached_tokens / 2,
                    disk: 0,
                    remote: cached_tokens / 4,
                },
                queue_us,
                vector: logprobs
                    .iter()
                    .map(|row: &LogprobRow| row.logprob)
                    .collect(),
                tokens,
                logprobs,
                prompt_logprobs,
                error,
            },
        )
}

fn steps() -> impl Strategy<Value = EngineFrame> {
    let stats =
        (any::<[u64; 4]>(), any::<[u32; 5]>(), 0f32..1e6).prop_map(|(wide, narrow, step_ms)| {
            StepStats {
                step: wide[0],
                running: narrow[0],
                waiting: narrow[1],
                blocks_used: narrow[2],
                blocks_total: narrow[3],
                preemptions_total: wide[1],
                prefix_query_tokens_total: wide[2],
                prefix_hit_tokens_total: wide[3],
                masks_total: wide[0],
                mask_seconds_total: step_ms.into(),
                mask_wait_seconds_total: 0.5,
                batch_tokens: narrow[4],
                step_ms,
            }
        });
    (stats, vec(outputs(), 0..8))
        .prop_map(|(stats, outputs)| EngineFrame::Step(Step { stats, outputs }))
}

fn starts() -> impl Strategy<Value = EngineFrame> {
    let hello = any::<u32>().prop_map(|pid| {
        EngineFrame::Hello(Hello {
            wire_version: WIRE_VERSION,
            pid,
        })
    });
    let stage = (".{0,12}", 0f64..1e9, ".{0,12}").prop_map(|(name, seconds, detail)| {
        EngineFrame::Stage(Stage {
            name,
            seconds,
            detail,
        })
    });
    let fatal = ".{0,40}".prop_map(|message| EngineFrame::Fatal(Fatal { message }));
    let ready = (
        any::<[u32; 8]>(),
        any::<u64>(),
        vec(any::<u32>(), 0..5),
        any::<[u8; 32]>(),
        ".{0,9}",
        ".{0,9}",
    );
    let ready = ready.prop_map(
        |(limits, kv_bytes, eos_token_ids, cache_identity, numerics, device)| {
            let [
                max_model_len,
                max_num_seqs,
                max_num_batched_tokens,
                max_queue,
                block_size,
                num_blocks,
                vocab_size,
                threads,
            ] = limits;
            EngineFrame::Ready(Ready {
                max_model_len,
                max_num_seqs,
                max_num_batched_tokens,
                max_queue,
                block_size,
                num_blocks,
                kv_bytes,
                vocab_size,
                eos_token_ids,
                cache_identity,
                numerics,
                device,
                threads,
                kv_tiers: TierKinds {
                    ram: threads & 1 != 0,
                    disk: threads & 2 != 0,
                    remote: threads & 4 != 0,
                },
                pooler: Pooler {
                    output: PoolerOutput::from_code((threads >> 3 & 3) as u8).unwrap(),
                    size: threads,
                    only: threads & 32 != 0,
                },
            })
        },
    );
    prop_oneof![hello, stage, fatal, ready]
}

/// TIERS and KV_REPLY.
fn tiers() -> impl Strategy<Value = EngineFrame> {
    let report = ".{0,40}".prop_map(EngineFrame::Tiers);
    use KvOutcome::{Done, Failed, Refused};
    let outcome = prop::sample::select(vec![Done, Refused, Failed]);
    let reply = (any::<u64>(), outcome, ".{0,20}")
        .prop_map(|(id, outcome, text)| EngineFrame::KvReply(KvReply { id, outcome, text }));
    prop_oneof![report, reply]
}

fn orders() -> impl Strategy<Value = FrontFrame> {
    let prefix = (vec(0..=i32::MAX as u32, 1..9), vec(any::<u8>(), 0..9))
        .prop_map(|(tokens, cache_salt)| KvPrefix { tokens, cache_salt });
    let order =
        (0..6, prefix, vec(any::<u8>(), 1..9)).prop_map(|(which, prefix, salt)| match which {
            0 => KvOrder::ClearAll,
            1 => KvOrder::ClearSalt(salt),
            2 => KvOrder::ClearPrefix(prefix),
            3 => KvOrder::Pin(prefix),
            4 => KvOrder::Unpin(prefix),
            _ => KvOrder::Report,
        });
    (any::<u64>(), order).prop_map(|(id, order)| FrontFrame::Kv(KvCommand { id, order }))
}

fn adds() -> impl Strategy<Value = FrontFrame> {
    let lengths = (1..=i32::MAX as u32).prop_flat_map(|max| (Just(max), 0..=max, any::<u32>()));
    let sampling = (
        0f32..10.0,
        0..=i32::MAX as u32,
        0.001f32..=1.0,
        any::<u64>(),
        any::<u32>(),
    );
    let wishes = (
        option::of(0..=20u8),
        option::of(0..=20u8),
        any::<bool>(),
        any::<bool>(),
    );
    let lists = (
        vec(0..=i32::MAX as u32, 1..20),
        vec(any::<u32>(), 0..4),
        vec(any::<u8>(), 0..9),
    );
    (any::<u64>(), lengths, sampling, wishes, lists).prop_map(
        |(id, lengths, sampling, wishes, lists)| {
            let request = TokenRequest {
                resumed: lengths.2 % (lists.0.len() as u32).min(lengths.0),
                prompt: lists.0,
                max_tokens: lengths.0,
                min_tokens: lengths.1,
                sampling: SamplingParams {
                    temperature: sampling.0,
                    top_k: sampling.1,
                    top_p: sampling.2,
                    seed: sampling.3,
                    choice: sampling.4,
                    logprobs: wishes.0,
                    ..common::logit_rules(&lists.1, sampling.2)
                },
                grammar: wishes.2.then(|| Grammar::json_object().into()),
                adapter: lengths.1,
                priority: lengths.1.cast_signed(),
                prompt_logprobs: wishes.1,
                ignore_eos: wishes.2,
                skip_prefix_cache: wishes.3,
                pool: wishes.2,
                expires: wishes.3,
                stop_token_ids: lists.1,
                cache_salt: lists.2,
            };
            FrontFrame::Add(Add { id, request })
        },
    )
}

fn cancels() -> impl Strategy<Value = FrontFrame> {
    vec(any::<u64>(), 0..9).prop_map(|ids| FrontFrame::Cancel(Cancel { ids }))
}

fn encoded(frame: &EngineFrame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes).map(|()| bytes).unwrap()
}

fn read_all<F: Frame>(reader: &mut FrameReader, chunk: &[u8]) -> Result<Vec<F>, FrameError> {
    reader.spare().extend_from_slice(chunk);
    std::iter::from_fn(|| reader.next_frame().transpose()).collect()
}

proptest! {
    #[test]
    fn engine_frames_survive(
        frame in prop_oneof![steps(), starts(), tiers()],
    ) {
        let bytes = encoded(&frame);
        prop_assert_eq!(EngineFrame::decode(bytes[4], &bytes[5..]).unwrap(), frame);
    }

    #[test]
    fn front_frames_survive(
        frame in prop_oneof![adds(), orders(), cancels()],
    ) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        prop_assert_eq!(FrontFrame::decode(bytes[4], &bytes[5..]).unwrap(), frame);
    }

    #[test]
    fn frames_survive_any_cut(
        frames in vec(prop_oneof![steps(), starts(), tiers()], 1..5),
        cut in 1usize..40,
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(encoded).collect();
        let mut reader = FrameReader::new();
        let read: Vec<EngineFrame> = bytes
            .chunks(cut)
            .flat_map(|chunk| read_all(&mut reader, chunk).unwrap())
            .collect();
        prop_assert_eq!(read, frames);
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        kind in 0u8..0x24,
        body in vec(any::<u8>(), 0..400),
    ) {
        let _ = EngineFrame::decode(kind, &body);
        let _ = FrontFrame::decode(kind, &body);
    }

    #[test]
    fn a_damaged_request_is_read_or_refused(
        frame in prop_oneof![adds(), orders()],
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        let at = 5 + at.index(bytes.len() - 5);
        prop_assert!(FrontFrame::decode(bytes[4], &bytes[5..at]).is_err());
        bytes[at] = byte;
        if let Ok(read) = FrontFrame::decode(bytes[4], &bytes[5..]) {
            read.encode(&mut Vec::new()).unwrap();
        }
    }

    #[test]
    fn a_damaged_frame_is_read_or_refused(
        frame in prop_oneof![steps(), tiers()],
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = encoded(&frame);
        let at = 5 + at.index(bytes.len() - 5);
        bytes[at] = byte;
        if let Ok(read) = EngineFrame::decode(bytes[4], &bytes[5..]) {
            let mut again = Vec::new();
            read.encode(&mut again).unwrap();
        }
    }

    #[test]
    fn a_shortened_or_lengthened_frame_is_refused(
        frame in prop_oneof![steps(), starts(), tiers()],
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encoded(&frame);
        let end = 5 + cut.index(bytes.len() - 5);
        prop_assert!(EngineFrame::decode(bytes[4], &bytes[5..end]).is_err());
        bytes.push(0);
        let error = EngineFrame::decode(bytes[4], &bytes[5..]).unwrap_err();
        prop_assert_eq!(error.problem, Problem::Trailing(1));
    }
}

/// Counts in a short frame declare up to 4 Gi items; refusing them must not allocate memory.
#[test]
fn absurd_counts_are_refused_before_memory_is_taken() {
    let mut step = vec![0u8; 80];
    step.extend(u32::MAX.to_le_bytes());
    let error = EngineFrame::decode(0x20, &step).unwrap_err();
    let found = (error.frame, error.field);
    assert_eq!(found, ("STEP", "request id"), "{error}");
    let mut cancel = u32::MAX.to_le_bytes().to_vec();
    cancel.extend([0; 8]);
    let error = FrontFrame::decode(0x11, &cancel).unwrap_err();
    assert_eq!(
        error.problem,
        Problem::Short {
            needed: u64::from(u32::MAX) * 8,
            left: 8
        }
    );
}

#[test]
fn errors_name_frame_field_and_offset() {
    let add = |change: fn(&mut TokenRequest)| {
        let mut request = TokenRequest {
            prompt: vec![1, 2],
            ..TokenRequest::default()
        };
        change(&mut request);
        let error = FrontFrame::Add(Add { id: 1, request })
            .encode(&mut Vec::new())
            .unwrap_err();
        (error.field, error.offset)
    };
    assert_eq!(add(|r| r.prompt.clear()), ("prompt", 8));
    assert_eq!(add(|r| r.prompt[1] = 1 << 31), ("prompt", 16));
    assert_eq!(add(|r| (r.resumed, r.max_tokens) = (2, 9)), ("resumed", 20));
    assert_eq!(add(|r| r.resumed = 1), ("resumed", 20));
    assert_eq!(add(|r| r.max_tokens = 0), ("max_tokens", 24));
    assert_eq!(add(|r| r.min_tokens = 2), ("min_tokens", 28));
    assert_eq!(
        add(|r| r.prompt_logprobs = Some(99)),
        ("prompt_logprobs", 32)
    );
    assert_eq!(
        add(|r| r.sampling.temperature = f32::NAN),
        ("temperature", 56)
    );
    assert_eq!(add(|r| r.sampling.top_k = 1 << 31), ("top_k", 60));
    assert_eq!(add(|r| r.sampling.top_p = 0.0), ("top_p", 64));
    assert_eq!(add(|r| r.sampling.logprobs = Some(21)), ("logprobs", 84));

    let other = encoded(&EngineFrame::Hello(Hello {
        wire_version: 1,
        pid: 1,
    }));
    let error = EngineFrame::decode(1, &other[5..]).unwrap_err();
    assert_eq!(error.problem, Problem::Version(1));
    assert_eq!((error.field, error.offset), ("version", 4));
    let error = EngineFrame::decode(0x02, &[2, 0, 0, 0, 0xff, 0xfe]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "STAGE frame, field name at byte 4: the text is not UTF-8"
    );
}

/// The error of an ADD frame with prompt [1, 2] and `damage` at `offset`.
fn damaged_add(offset: usize, damage: &[u8]) -> FrameError {
    let request = TokenRequest {
        prompt: vec![1, 2],
        ..TokenRequest::default()
    };
    let mut bytes = Vec::new();
    let add = FrontFrame::Add(Add { id: 1, request });
    add.encode(&mut bytes).unwrap();
    bytes[5 + offset..][..damage.len()].copy_from_slice(damage);
    FrontFrame::decode(0x10, &bytes[5..]).unwrap_err()
}

#[test]
fn a_received_request_outside_the_ranges_is_refused_by_name() {
    let longer = 255u32.to_le_bytes();
    for (field, offset, damage) in [
        ("prompt", 8, &[0; 4][..]),
        ("prompt", 16, &[0xff; 4]),
        ("resumed", 20, &[1]),
        ("max_tokens", 24, &[0; 4]),
        ("min_tokens", 28, &[0, 0, 0, 1]),
        ("prompt_logprobs", 32, &[0xfe, 0xff]),
        ("flags", 34, &[16]),
        ("version", 55, &[1]),
        ("temperature", 56, &[0, 0, 0xc0, 0x7f]),
        ("top_k", 60, &[0xff; 4]),
        ("top_p", 64, &[0; 4]),
        ("logprobs", 84, &[21, 0]),
    ] {
        let error = damaged_add(offset, damage);
        let found = (error.frame, error.field);
        assert_eq!(found, ("ADD", field), "{error}");
        assert_eq!(error.offset, offset, "{error}");
    }
    assert_eq!(damaged_add(51, &longer).field, "sampling");
}

#[test]
fn lengths_outside_the_limit_are_refused() {
    for length in [0u32, (64 << 20) + 1] {
        let mut reader = FrameReader::new();
        let error = read_all::<EngineFrame>(&mut reader, &length.to_le_bytes()).unwrap_err();
        assert_eq!(error.problem, Problem::Length(length as usize));
    }
    let message = "x".repeat(64 << 20);
    let mut bytes = vec![1, 2, 3];
    let error = EngineFrame::Fatal(Fatal { message })
        .encode(&mut bytes)
        .unwrap_err();
    assert_eq!(error.problem, Problem::Length((64 << 20) + 5));
    assert_eq!(bytes, [1, 2, 3], "nothing is left of the frame");
}

/// A clear command whose prefix was lost must not clear everything.
#[test]
fn orders_have_the_fields_that_they_need_and_no_others() {
    let body = |action: u8, tokens: &[u32], salt: &[u8]| {
        let mut body = 7u64.to_le_bytes().to_vec();
        body.push(action);
        body.extend((tokens.len() as u32).to_le_bytes());
        body.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        body.extend((salt.len() as u32).to_le_bytes());
        body.extend(salt);
        body
    };
    for (action, tokens, salt, field, offset) in [
        (1, &[5][..], &b""[..], "tokens", 9),
        (1, &[], b"s", "cache_salt", 13),
        (2, &[], b"", "cache_salt", 13),
        (2, &[5], b"s", "tokens", 9),
        (3, &[], b"s", "tokens", 9),
        (4, &[], b"", "tokens", 9),
        (5, &[1, 1 << 31], b"", "tokens", 17),
        (6, &[5], b"", "tokens", 9),
        (6, &[], b"s", "cache_salt", 13),
        (0, &[], b"", "action", 8),
        (7, &[], b"", "action", 8),
    ] {
        let error = FrontFrame::decode(0x13, &body(action, tokens, salt)).unwrap_err();
        assert_eq!((error.field, error.offset), (field, offset), "{error}");
    }
    let lost = FrontFrame::Kv(KvCommand {
        id: 1,
        order: KvOrder::Pin(KvPrefix::default()),
    });
    assert_eq!(lost.encode(&mut Vec::new()).unwrap_err().field, "tokens");
}
