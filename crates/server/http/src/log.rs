//! The process log: a bounded queue of lines, written to standard error by a thread.
//!
//! Standard error may be a full pipe, or one without a reader. Callers never block or fail: a line
//! that finds the queue full is dropped and counted, and the count is logged later.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Deserialize;

/// Capacity of the queue, in lines.
const QUEUE: usize = 1024;
const FLUSH_TICK: Duration = Duration::from_millis(2);

/// Severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Error,
    Warning,
    #[default]
    Info,
}

/// Format of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// `2026-01-31T12:00:00.000Z INFO penstock: message`.
    #[default]
    Text,
    /// An object with the members `time`, `level`, `source` and `message`, and the line's own
    /// fields.
    Json,
}

/// Log level and format.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSettings {
    /// Lines less severe than this are discarded.
    pub level: Level,
    pub format: LogFormat,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Configures the log. A no-op after the first call or the first line.
pub fn configure_log(settings: LogSettings) {
    LOG.get_or_init(|| Log::start(std::io::stderr(), settings));
}

/// Logs a line. Never blocks.
pub fn log(level: Level, message: impl Into<String>) {
    let default = || Log::start(std::io::stderr(), LogSettings::default());
    LOG.get_or_init(default).line(level, message.into());
}

/// Logs a line with `members` as fields of its JSON form. Never blocks.
pub fn log_with(level: Level, message: impl Into<String>, members: LogFields) {
    let default = || Log::start(std::io::stderr(), LogSettings::default());
    LOG.get_or_init(default)
        .line_with(level, message.into(), members);
}

/// Escapes control characters, so that the text fits on one log line.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// Waits until all logged lines are written, for at most `patience`.
pub fn flush_log(patience: Duration) {
    if let Some(log) = LOG.get() {
        log.flush(patience);
    }
}

/// Structured fields of a line.
#[derive(Debug, Clone, Default)]
pub struct LogFields(Vec<(&'static str, serde_json::Value)>);

impl LogFields {
    /// Adds a field, unless its value is null.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<serde_json::Value>) -> Self {
        let value = value.into();
        if !value.is_null() {
            self.0.push((name, value));
        }
        self
    }
}

struct Line {
    at: SystemTime,
    level: Level,
    message: String,
    members: LogFields,
}

struct Log {
    settings: LogSettings,
    lines: SyncSender<Line>,
    counts: Arc<QueueCounts>,
}

#[derive(Default)]
struct QueueCounts {
    /// Lines that entered the queue.
    queued: AtomicU64,
    /// Queued lines that left the queue, written or not.
    handled: AtomicU64,
    /// Dropped lines that are not yet reported in the log.
    dropped: AtomicU64,
}

impl Log {
    fn start(out: impl Write + Send + 'static, settings: LogSettings) -> Self {
        let (lines, waiting) = sync_channel(QUEUE);
        let counts = Arc::new(QueueCounts::default());
        let writer = Writer {
            out,
            format: settings.format,
            counts: counts.clone(),
        };
        // Without a thread the queue fills and lines are dropped; the service continues.
        let _ = std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || writer.run(&waiting));
        Self {
            settings,
            lines,
            counts,
        }
    }

    fn line(&self, level: Level, message: String) {
        self.line_with(level, message, LogFields::default());
    }

    fn line_with(&self, level: Level, message: String, members: LogFields) {
        if level > self.settings.level {
            return;
        }
        let at = SystemTime::now();
        let line = Line {
            at,
            level,
            message,
            members,
        };
        self.counts.queued.fetch_add(1, Ordering::AcqRel);
        if self.lines.try_send(line).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::AcqRel);
            self.counts.handled.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn flush(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let wanted = self.counts.queued.load(Ordering::Acquire);
        while self.counts.handled.load(Ordering::Acquire) < wanted && Instant::now() < deadline {
            std::thread::sleep(FLUSH_TICK);
        }
    }
}

/// The writing end of the queue.
struct Writer<W> {
    out: W,
    format: LogFormat,
    counts: Arc<QueueCounts>,
}

impl<W: Write> Writer<W> {
    fn run(mut self, waiting: &Receiver<Line>) {
        while let Ok(line) = waiting.recv() {
            self.say_dropped(line.at);
            if self.write(&line).is_err() {
                self.counts.dropped.fetch_add(1, Ordering::AcqRel);
            }
            self.counts.handled.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn say_dropped(&mut self, at: SystemTime) {
        let dropped = self.counts.dropped.load(Ordering::Acquire);
        let said = Line {
            at,
            level: Level::Warning,
            message: format!("{dropped} lines of the log could not be written"),
            members: LogFields::default(),
        };
        if dropped > 0 && self.write(&said).is_ok() {
            self.counts.dropped.fetch_sub(dropped, Ordering::AcqRel);
        }
    }

    fn write(&mut self, line: &Line) -> std::io::Result<()> {
        let Line {
            at,
            level,
            message,
            members,
        } = line;
        let time = rfc3339(at.duration_since(UNIX_EPOCH).unwrap_or_default());
        let word = match level {
            Level::Error => "ERROR",
            Level::Warning => "WARNING",
            Level::Info => "INFO",
        };
        let line = match self.format {
            LogFormat::Text => format!("{time} {word} penstock: {message}\n"),
            LogFormat::Json => {
                let message = serde_json::Value::from(message.as_str());
                let members = members.0.iter();
                let members: String = members
                    .map(|(name, value)| format!(",\"{name}\":{value}"))
                    .collect();
                format!(
                    "{{\"time\":\"{time}\",\"level\":\"{}\",\"source\":\"penstock\",\
                     \"message\":{message}{members}}}\n",
                    word.to_ascii_lowercase()
                )
            }
        };
        self.out.write_all(line.as_bytes())?;
        self.out.flush()
    }
}

/// Formats a time in UTC with milliseconds. The date follows Howard Hinnant's `civil_from_days`,
/// whose years begin in March.
fn rfc3339(since_1970: Duration) -> String {
    let (days, second) = (since_1970.as_secs() / 86_400, since_1970.as_secs() % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let leaps = day_of_era / 1460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leaps) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since_1970.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{Receiver, SyncSender};

    use super::*;

    /// Standard error that takes a write for each permission, and fails those that are denied.
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

    fn gated(settings: LogSettings) -> (Log, SyncSender<bool>, Receiver<String>) {
        let (permit, permissions) = sync_channel(10_000);
        let (written, lines) = sync_channel(10_000);
        let gate = Gate {
            permissions,
            written,
        };
        (Log::start(gate, settings), permit, lines)
    }

    #[test]
    fn a_log_that_is_not_read_drops_lines_and_says_so_later() {
        let (log, permit, lines) = gated(LogSettings::default());
        for number in 0..3000 {
            log.line(Level::Info, number.to_string());
        }
        for _ in 0..3000 {
            permit.send(true).unwrap();
        }
        log.flush(Duration::from_secs(10));
        log.line(Level::Info, "the last".to_owned());
        log.flush(Duration::from_secs(10));
        let all: Vec<String> = lines.try_iter().collect();
        assert!(all.iter().any(|line| line.ends_with(" INFO penstock: 0\n")));
        assert!(all.last().unwrap().ends_with(" penstock: the last\n"));
        let said = all.iter().filter(|line| line.contains(" could not be "));
        let counts = said.map(|line| {
            let words = line.split("penstock: ").nth(1).unwrap();
            words.split(' ').next().unwrap().parse::<usize>().unwrap()
        });
        let counts: Vec<usize> = counts.collect();
        let lost: usize = counts.iter().sum();
        assert_eq!(all.len() - counts.len() + lost, 3001);
        assert!(lost >= 3000 - QUEUE - 1, "{counts:?}");
    }

    #[test]
    fn a_log_that_cannot_be_written_counts_too() {
        let (log, permit, lines) = gated(LogSettings::default());
        permit.send(false).unwrap();
        log.line(Level::Error, "lost".to_owned());
        log.flush(Duration::from_secs(10));
        for _ in 0..2 {
            permit.send(true).unwrap();
        }
        log.line(Level::Error, "found".to_owned());
        log.flush(Duration::from_secs(10));
        let all: Vec<String> = lines.try_iter().collect();
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(all[0].contains("WARNING penstock: 1 lines of the log"));
        assert!(all[1].ends_with(" ERROR penstock: found\n"));
    }

    #[test]
    fn levels_and_json() {
        let settings = LogSettings {
            level: Level::Warning,
            format: LogFormat::Json,
        };
        let (log, permit, lines) = gated(settings);
        permit.send(true).unwrap();
        log.line(Level::Info, "left out".to_owned());
        log.line(Level::Warning, "a \"quote\"\n".to_owned());
        log.flush(Duration::from_secs(10));
        let line: serde_json::Value = serde_json::from_str(&lines.try_recv().unwrap()).unwrap();
        assert_eq!(line["message"], "a \"quote\"\n");
        assert_eq!(line["level"], "warning");
        assert!(lines.try_recv().is_err());
    }

    #[test]
    fn parts_of_a_line_are_members_of_its_json_and_no_part_of_its_text() {
        for format in [LogFormat::Json, LogFormat::Text] {
            let level = Level::Info;
            let (log, permit, lines) = gated(LogSettings { level, format });
            permit.send(true).unwrap();
            let members = LogFields::default().with("status", 200);
            let members = members.with("path", "/v1/\"x\"").with("key", None::<u8>);
            log.line_with(Level::Info, "a line".to_owned(), members);
            log.flush(Duration::from_secs(10));
            let line = lines.try_recv().unwrap();
            if format == LogFormat::Text {
                assert!(line.ends_with(" INFO penstock: a line\n"));
                continue;
            }
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(line["status"], 200);
            assert_eq!(line["path"], "/v1/\"x\"");
            assert_eq!(line["message"], "a line");
            assert!(line.get("key").is_none());
        }
    }

    #[test]
    fn a_text_stays_as_it_is_but_for_control_characters() {
        assert_eq!(
            one_line("'Bearer \"KEY\"' é 日本"),
            "'Bearer \"KEY\"' é 日本"
        );
        assert_eq!(
            one_line("a\nb\u{1b}[0m\u{2028}"),
            "a\\nb\\u{1b}[0m\\u{2028}"
        );
    }

    #[test]
    fn times_are_rfc_3339() {
        // Of `date -u -d @SECONDS +%FT%TZ`.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_399, "2000-02-28T23:59:59.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (951_868_800, "2000-03-01T00:00:00.007Z"),
            (1_798_761_599, "2026-12-31T23:59:59.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        ] {
            assert_eq!(rfc3339(Duration::from_millis(seconds * 1000 + 7)), text);
        }
    }
}
