//! The log, written to a gate that stands in for standard error.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender};

use tracing::subscriber::with_default;
use tracing::{debug, debug_span, error, info, trace, warn};

use super::*;

/// Stands in for standard error: each write waits for a permission, and fails if it is denied.
struct Gate {
    permissions: Receiver<bool>,
    written: SyncSender<String>,
}

impl Write for Gate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.permissions.recv() {
            Ok(true) => {
                let text = String::from_utf8_lossy(bytes).into_owned();
                self.written.send(text).map_err(io::Error::other)?;
                Ok(bytes.len())
            }
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const PATIENCE: Duration = Duration::from_secs(300);

/// Logs to a gate with these permissions; returns the written lines.
fn logged(
    settings: LogSettings,
    permitted: impl FnOnce(&SyncSender<bool>, &LineQueue),
) -> Vec<String> {
    let (permit, permissions) = sync_channel(10_000);
    let (written, lines) = sync_channel(10_000);
    let gate = Gate {
        permissions,
        written,
    };
    let (subscriber, queue) = start(gate, "server", settings);
    with_default(subscriber, || permitted(&permit, &queue));
    queue.flush(PATIENCE);
    lines.try_iter().collect()
}

fn text_or_json(level: LogLevel, format: LogFormat) -> LogSettings {
    LogSettings {
        level,
        format,
        color: false,
    }
}

fn open(permit: &SyncSender<bool>, writes: usize) {
    (0..writes).for_each(|_| permit.send(true).unwrap());
}

#[test]
fn a_log_that_is_not_read_drops_lines_and_says_so_later() {
    let all = logged(LogSettings::default(), |permit, queue| {
        for number in 0..3000 {
            info!("{number}");
        }
        open(permit, 3000);
        queue.flush(PATIENCE);
        info!("the last");
    });
    assert!(
        all.iter()
            .any(|line| line.ends_with(" INFO penstock.server: 0\n"))
    );
    assert!(
        all.last()
            .unwrap()
            .ends_with(" penstock.server: the last\n")
    );
    let notices = all.iter().filter(|line| line.contains(" could not be "));
    let counts = notices.map(|line| {
        let words = line.split("penstock.server: ").nth(1).unwrap();
        words.split(' ').next().unwrap().parse::<usize>().unwrap()
    });
    let counts: Vec<usize> = counts.collect();
    let lost: usize = counts.iter().sum();
    assert_eq!(all.len() - counts.len() + lost, 3001);
    assert!(lost >= 3000 - QUEUE - 1, "{counts:?}");
}

#[test]
fn a_log_that_cannot_be_written_counts_too() {
    let all = logged(LogSettings::default(), |permit, queue| {
        permit.send(false).unwrap();
        error!("lost");
        queue.flush(PATIENCE);
        open(permit, 2);
        error!("found");
    });
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0].contains("WARNING penstock.server: 1 lines of the log"));
    assert!(all[1].ends_with(" ERROR penstock.server: found\n"));
}

#[test]
fn each_level_has_the_lines_of_those_above_it() {
    let words = ["ERROR", "WARNING", "INFO", "DEBUG", "TRACE"];
    let json = ["error", "warning", "info", "debug", "trace"];
    for (at, name) in json.into_iter().enumerate() {
        let level = serde_json::from_value(name.into()).unwrap();
        for format in [LogFormat::Text, LogFormat::Json] {
            let all = logged(text_or_json(level, format), |permit, _| {
                open(permit, 5);
                error!("x");
                warn!("x");
                info!("x");
                debug!("x");
                trace!("x");
                error!(target: "h2", "x");
            });
            let shown = all.iter().map(|line| match format {
                LogFormat::Text => line.split(' ').nth(1).unwrap().to_owned(),
                LogFormat::Json => {
                    let line: Value = serde_json::from_str(line).unwrap();
                    line["level"].as_str().unwrap().to_owned()
                }
            });
            let wanted = match format {
                LogFormat::Text => &words[..=at],
                LogFormat::Json => &json[..=at],
            };
            assert_eq!(shown.collect::<Vec<_>>(), wanted);
        }
    }
}

#[test]
fn lines_have_a_fixed_form() {
    let (path, key, duration) = ("/v1/\"x\"", None::<&str>, 0.25);
    for format in [LogFormat::Text, LogFormat::Json] {
        let level = LogLevel::Info;
        let all = logged(text_or_json(level, format), |permit, _| {
            open(permit, 1);
            info!(
                path,
                status = 200u16,
                key,
                duration,
                complete = true,
                left = -1,
                "a \"line\""
            );
        });
        let wanted = match format {
            LogFormat::Text => "TIME INFO penstock.server: a \"line\"\n",
            LogFormat::Json => concat!(
                r#"{"time":"TIME","level":"info","source":"penstock.server","#,
                r#""message":"a \"line\"","path":"/v1/\"x\"","status":200,"#,
                r#""duration":0.25,"complete":true,"left":-1}"#,
                "\n"
            ),
        };
        let (before, after) = wanted.split_once("TIME").unwrap();
        let line = all[0].strip_prefix(before).unwrap();
        let time = line.strip_suffix(after).unwrap();
        let shape: String = time
            .chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000Z");
    }
}

#[test]
fn colors_are_escape_sequences_around_the_same_line() {
    let colored = LogSettings {
        color: true,
        ..LogSettings::default()
    };
    let all = logged(colored, |permit, _| {
        open(permit, 2);
        info!("x");
        error!("y");
    });
    assert!(all[0].ends_with("Z\x1b[0m \x1b[32mINFO\x1b[0m \x1b[2mpenstock.server:\x1b[0m x\n"));
    assert!(all[1].contains(" \x1b[1;31mERROR\x1b[0m "));
    let json = LogSettings {
        format: LogFormat::Json,
        ..colored
    };
    let all = logged(json, |permit, _| {
        open(permit, 1);
        info!("x");
    });
    assert!(!all[0].contains('\x1b'));
}

#[test]
fn the_lines_of_a_request_name_it_below_info() {
    for (format, wanted) in [
        (
            LogFormat::Text,
            [
                " INFO penstock.server: x\n",
                " DEBUG penstock.server: id-1: x\n",
            ],
        ),
        (
            LogFormat::Json,
            [
                r#""message":"x"}"#,
                r#""message":"id-1: x","request_id":"id-1"}"#,
            ],
        ),
    ] {
        let level = LogLevel::Debug;
        let all = logged(text_or_json(level, format), |permit, _| {
            open(permit, 2);
            let request = debug_span!("request", message = %"id-1", request_id = "id-1");
            request.in_scope(|| {
                info!("x");
                debug!("x");
            });
        });
        for (line, end) in all.iter().zip(wanted) {
            assert!(line.trim_end().ends_with(end.trim_end()), "{line}");
        }
        assert_eq!(all.len(), 2);
    }
}
