//! Scripted servers with exact delays: every column must be exact to the virtual millisecond.

use crate::script;
use std::path::{Path, PathBuf};

use crate::script::Load;
use penstock_loadgen::Columns;
use serde_json::{Value, json};

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/golden/bench")
}

fn golden(name: &str) -> (Load, Value) {
    let path = goldens().join(name).with_extension("json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut golden: Value = serde_json::from_str(&text).unwrap();
    let expected = golden["columns"].take();
    (serde_json::from_value(golden).unwrap(), expected)
}

/// Times with nanosecond precision, the clock's resolution; NaN becomes null.
fn times(column: &[f64]) -> Value {
    let rounded = column.iter().map(|time| (time * 1e9).round() / 1e9);
    rounded.collect::<Vec<f64>>().into()
}

fn as_json(columns: Columns) -> Value {
    json!({
        "due": times(&columns.due),
        "sent": times(&columns.sent),
        "resent": columns.resent,
        "connected": times(&columns.connected),
        "ended": times(&columns.ended),
        "status": columns.status,
        "prompt_tokens": columns.prompt_tokens,
        "completion_tokens": columns.completion_tokens,
        "cached_tokens": columns.cached_tokens,
        "event_counts": columns.event_counts,
        "event_times": times(&columns.event_times),
        "text_events": columns.text_events,
        "failure": columns.failure,
        "detail": columns.detail,
        "finish": columns.finish,
        "text": columns.text,
        "duration": columns.duration,
    })
}

fn check(name: &str) {
    let (load, expected) = golden(name);
    let recorded = as_json(script::play(&load));
    for (column, expected) in expected.as_object().unwrap() {
        assert_eq!(&recorded[column], expected, "{name}: {column}");
    }
    assert_eq!(
        recorded.as_object().unwrap().len(),
        expected.as_object().unwrap().len()
    );
}

#[test]
fn streams_with_bundles_and_splits() {
    check("stream");
}

#[test]
fn places_are_given_first_come_first_served() {
    check("queue");
}

#[test]
fn a_stalled_server_delays_no_other_request() {
    check("stalled");
}

#[test]
fn every_failure_has_its_kind() {
    check("failures");
}

#[test]
fn an_event_without_output_is_no_token() {
    check("role");
}

#[test]
fn a_stop_cuts_what_is_open() {
    check("stopped");
}

#[test]
fn every_golden_is_checked() {
    let mut names: Vec<String> = std::fs::read_dir(goldens())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".json"))
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "failures.json",
            "queue.json",
            "role.json",
            "stalled.json",
            "stopped.json",
            "stream.json"
        ]
    );
}
