//! Streams of messages in every order that Envoy sends them in.

mod rig;

use proptest::prelude::*;
use rig::*;

use super::*;
use crate::messages::{CommonResponse, HttpTrailers, Kind, Mutation, Struct, Value, ValueList};
use crate::replies::ENDPOINT;

#[test]
fn full_duplex_answers_after_the_body_and_sends_everything_back() {
    let large = vec![b'x'; 150_000];
    let ran = run(
        DUPLEX,
        vec![
            request_head(false, &[]),
            request_body(large[..70_000].to_vec(), false),
            request_body(large[70_000..].to_vec(), false),
            request_body("", true),
            answer_begins(false),
            answer_body("first", false),
            answer_body("", false),
            answer_body(" last|", true),
        ],
    );
    assert!(ran.replies[..3].iter().all(Vec::is_empty));
    assert_eq!(ran.words()[..2], ["request header", "request body"]);
    let picked = &ran.replies[3][0];
    assert_eq!(set(picked, ENDPOINT), Some(ENDPOINTS.as_bytes()));
    assert_eq!(set(picked, "content-length"), None);
    assert_eq!(in_metadata(picked), Some(ENDPOINTS));
    assert!(common(picked).clear_route_cache);
    assert_eq!(streamed(&ran.all(), is_request_body), (large, true));
    let answer = streamed(&ran.all(), is_answer_body);
    assert_eq!(answer, (b"first last|".to_vec(), true));
    let notes = [
        "POST /v1/x",
        "pick All 150000",
        "answered 200 by ?",
        "passed 5",
        "passed 0",
    ];
    assert_eq!(ran.notes[..5], notes);
    assert_eq!(ran.notes[5..], ["passed 6", "end"]);
}

#[test]
fn trailers_end_a_body_in_full_duplex() {
    let trailers = HttpTrailers {};
    let ran = run(
        DUPLEX,
        vec![
            request_head(false, &[]),
            request_body("abc", false),
            Part::RequestTrailers(trailers),
            answer_begins(false),
            answer_body("x|y", false),
            Part::ResponseTrailers(trailers),
        ],
    );
    let words = [
        "request header",
        "request body",
        "request trailers",
        "answer header",
    ];
    assert_eq!(ran.words()[..4], words);
    assert_eq!(
        ran.words()[4..],
        ["answer body", "answer body", "answer trailers"]
    );
    assert_eq!(
        streamed(&ran.all(), is_request_body),
        (b"abc".to_vec(), false)
    );
    assert_eq!(
        streamed(&ran.all(), is_answer_body),
        (b"x|y".to_vec(), false)
    );
    assert_eq!(ran.notes.last().unwrap(), "end");
}

#[test]
fn buffered_picks_with_the_body_and_rewrites_it_in_place() {
    let requests = |text| {
        vec![
            request_head(false, &[]),
            request_body(text, true),
            answer_begins(false),
            answer_body("same", false),
            answer_body("x|", false),
            answer_body("", true),
        ]
    };
    let ran = run(BUFFERED, requests("rename"));
    assert_eq!(ran.replies.iter().map(Vec::len).collect::<Vec<_>>(), [1; 6]);
    assert_eq!(common(&ran.replies[0][0]), &CommonResponse::default());
    let picked = &ran.replies[1][0];
    assert_eq!(set(picked, ENDPOINT), Some(ENDPOINTS.as_bytes()));
    assert_eq!(set(picked, "content-length"), Some(&b"7"[..]));
    assert_eq!(in_metadata(picked), Some(ENDPOINTS));
    let mutation = |reply: &ProcessingResponse| {
        let mutation = common(reply).body_mutation.clone();
        mutation.and_then(|mutation| mutation.mutation)
    };
    assert_eq!(mutation(picked), Some(Mutation::Body("renamed".into())));
    assert_eq!(mutation(&ran.replies[3][0]), None);
    assert_eq!(
        mutation(&ran.replies[4][0]),
        Some(Mutation::Body("x".into()))
    );
    let plain = run(BUFFERED, requests("other"));
    assert_eq!(mutation(&plain.replies[1][0]), None);
    assert_eq!(set(&plain.replies[1][0], "content-length"), None);
}

#[test]
fn modes_without_the_body_in_time_pick_by_the_header() {
    for (mode, seen) in [
        (BodyMode::None, "pick Part 0"),
        (BodyMode::Streamed, "pick Part 0"),
        (BodyMode::Grpc, "pick Part 0"),
    ] {
        let modes = (mode, BodyMode::None);
        let ran = run(
            modes,
            vec![request_head(false, &[]), request_body("x", true)],
        );
        assert_eq!(ran.words(), ["request header", "request body"], "{mode:?}");
        assert_eq!(
            set(&ran.replies[0][0], ENDPOINT),
            Some(ENDPOINTS.as_bytes())
        );
        assert_eq!(ran.notes[1], seen);
    }
    let partial = (BodyMode::BufferedPartial, BodyMode::None);
    let ran = run(
        partial,
        vec![request_head(false, &[]), request_body("x", false)],
    );
    assert_eq!(ran.notes[1], "pick Part 1");
}

#[test]
fn a_request_without_a_body_is_picked_at_once_in_every_mode() {
    for mode in [
        BodyMode::None,
        BodyMode::Streamed,
        BodyMode::Buffered,
        BodyMode::BufferedPartial,
        BodyMode::FullDuplexStreamed,
    ] {
        let ran = run(
            (mode, mode),
            vec![request_head(true, &[]), answer_begins(true)],
        );
        assert_eq!(ran.words(), ["request header", "answer header"], "{mode:?}");
        assert_eq!(ran.notes[1..], ["pick All 0", "answered 200 by ?", "end"]);
    }
}

#[test]
fn refusals_are_answers_from_here_and_the_last_reply() {
    let refused = |modes, requests: Vec<Part>| {
        let ran = run(modes, requests);
        let Some(Reply::Immediate(answer)) = &ran.all().last().unwrap().response else {
            panic!("{:?}", ran.words());
        };
        assert_eq!(answer.details, "shed");
        let header = &answer.headers.as_ref().unwrap().set_headers[0];
        assert_eq!(header.header.as_ref().unwrap().key, "retry-after");
        (
            answer.status.unwrap().code,
            ran.all().len(),
            ran.notes.last().unwrap().clone(),
        )
    };
    let again = || answer_begins(false);
    let early = vec![request_head(false, &[("refuse", "1")]), again()];
    assert_eq!(refused(DUPLEX, early), (429, 1, "POST /v1/x".to_owned()));
    let by_body = || vec![request_head(false, &[]), request_body("no", true), again()];
    assert_eq!(refused(DUPLEX, by_body()), (503, 1, "left".to_owned()));
    assert_eq!(refused(BUFFERED, by_body()), (503, 2, "left".to_owned()));
    let large = vec![
        request_head(false, &[]),
        request_body(vec![0; 1_000_001], false),
    ];
    assert_eq!(refused(DUPLEX, large), (413, 1, "left".to_owned()));
}

#[test]
fn what_is_out_of_order_is_named() {
    let error = |requests| run(DUPLEX, requests).error.unwrap();
    assert_eq!(
        error(vec![request_body("x", true)]).code,
        Code::InvalidArgument
    );
    error(vec![answer_begins(false)]);
    error(vec![request_head(false, &[]), answer_begins(false)]);
    error(vec![request_head(true, &[]), answer_body("x", false)]);
    error(vec![request_head(true, &[]), request_head(true, &[])]);
    let empty = ProcessingRequest::default();
    assert!(run_all(vec![empty]).error.is_some());
}

#[test]
fn a_stream_that_ends_early_is_a_client_that_left() {
    let gone = |modes, requests| run(modes, requests).notes.pop().unwrap();
    let picked = || vec![request_head(true, &[])];
    assert_eq!(gone(DUPLEX, picked()), "left");
    let answered = || vec![request_head(true, &[]), answer_begins(false)];
    assert_eq!(gone(DUPLEX, answered()), "left");
    // if Envoy shows no bodies, the response ends when Envoy closes the stream
    assert_eq!(gone((BodyMode::None, BodyMode::None), answered()), "end");
}

#[test]
fn the_first_message_without_modes_is_that_of_an_older_envoy() {
    let older = |request| ProcessingRequest {
        protocol_config: None,
        ..message(DUPLEX, request)
    };
    let first = older(request_head(false, &[]));
    let ran = run_all(vec![first, older(request_body("x", true))]);
    assert_eq!(ran.words(), ["request header", "request body"]);
    assert_eq!(in_metadata(&ran.replies[1][0]), Some(ENDPOINTS));
}

#[test]
fn subsets_and_served_endpoints_are_read_in_both_forms() {
    let text = |text: &str| Kind::Text(text.to_owned());
    let value = |kind| Value { kind: Some(kind) };
    let values = ["a:1", "b:2"].map(|one| value(text(one))).to_vec();
    for (hint, wanted) in [
        (text("a:1, b:2,"), "POST /v1/x of a:1 b:2"),
        (Kind::List(ValueList { values }), "POST /v1/x of a:1 b:2"),
        (text(""), "POST /v1/x of "),
    ] {
        let mut metadata = Metadata::default();
        let subset = Struct::of("x-gateway-destination-endpoint-subset", hint);
        metadata
            .filter_metadata
            .insert("envoy.lb.subset_hint".to_owned(), subset);
        let mut first = message(DUPLEX, request_head(true, &[]));
        first.metadata_context = Some(metadata);
        let mut metadata = Metadata::default();
        let served = Struct::of("x-gateway-destination-endpoint-served", text("b:2"));
        metadata
            .filter_metadata
            .insert("envoy.lb".to_owned(), served);
        let mut second = message(DUPLEX, answer_begins(true));
        second.metadata_context = Some(metadata);
        let ran = run_all(vec![first, second]);
        assert_eq!(ran.notes[0], wanted);
        assert_eq!(ran.notes[2], "answered 200 by b:2");
    }
}

proptest! {
    #[test]
    fn any_cut_of_the_body_gives_the_same_choice_and_the_same_body(
        text in prop::collection::vec(any::<u8>(), 0..2000),
        cuts in prop::collection::vec(0usize..2000, 0..8),
        with_trailers: bool,
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|pair| text[pair[0]..pair[1]].to_vec());
        let mut requests = vec![request_head(false, &[])];
        let last = cuts.len() - 2;
        for (at, piece) in pieces.enumerate() {
            requests.push(request_body(piece, at == last && !with_trailers));
        }
        if with_trailers {
            requests.push(Part::RequestTrailers(HttpTrailers {}));
        }
        let ran = run(DUPLEX, requests);
        let wanted = format!("pick All {}", text.len());
        prop_assert_eq!(&ran.notes[1], &wanted);
        prop_assert_eq!(streamed(&ran.all(), is_request_body), (text, !with_trailers));
        prop_assert_eq!(in_metadata(ran.all()[0]), Some(ENDPOINTS));
    }
}
