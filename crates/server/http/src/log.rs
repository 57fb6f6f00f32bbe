//! The process log: `tracing` events as lines of a bounded queue, written to standard error by a
//! thread.
//!
//! Standard error may be a full pipe, or one without a reader. Callers never block or fail: a line
//! that finds the queue full is dropped and counted, and the count is logged later. (The worker of
//! `tracing-appender` does not count lines that cannot be written, and has no bounded flush.)

use std::fmt::{Debug, Write as _};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber, span};
use tracing_subscriber::Registry;
use tracing_subscriber::fmt::format::Writer as TimeWriter;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// Capacity of the queue, in lines.
const QUEUE: usize = 1024;
const FLUSH_TICK: Duration = Duration::from_millis(2);
/// Length of a time with milliseconds, without its zone.
const MILLISECONDS: usize = "2026-01-31T12:00:00.000".len();

/// The least severe level that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warning,
    #[default]
    Info,
    Debug,
    Trace,
}

/// Format of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// `2026-01-31T12:00:00.000Z INFO penstock: message`.
    #[default]
    Text,
    /// An object with the members `time`, `level`, `source` and `message`, and the event's own
    /// fields.
    Json,
}

/// Log level and format.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSettings {
    pub level: LogLevel,
    pub format: LogFormat,
}

static LOG: OnceLock<Arc<LineQueue>> = OnceLock::new();

/// Logs the process's events from now on. A no-op after the first call.
pub fn configure_log(settings: LogSettings) {
    LOG.get_or_init(|| {
        let (subscriber, queue) = start(std::io::stderr(), settings);
        // fails only beside another subscriber, and this is the only place that sets one
        let _ = tracing::subscriber::set_global_default(subscriber);
        queue
    });
}

/// Waits until all logged lines are written, for at most `patience`.
pub fn flush_log(patience: Duration) {
    if let Some(queue) = LOG.get() {
        queue.flush(patience);
    }
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warning => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

/// A subscriber whose thread writes events to `out`, and its queue.
fn start(
    out: impl Write + Send + 'static,
    settings: LogSettings,
) -> (impl Subscriber + Send + Sync, Arc<LineQueue>) {
    let (lines, waiting) = sync_channel(QUEUE);
    let queue = Arc::new(LineQueue {
        lines,
        counts: Arc::default(),
    });
    let format = settings.format;
    let worker = Worker {
        out,
        format,
        counts: queue.counts.clone(),
    };
    // Without a thread the queue fills and lines are dropped; the service continues.
    let _ = std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || worker.run(&waiting));
    let layer = LineLayer {
        format,
        queue: queue.clone(),
    };
    let level = LevelFilter::from(settings.level);
    (Registry::default().with(level).with(layer), queue)
}

/// Turns events of Penstock's crates into lines.
struct LineLayer {
    format: LogFormat,
    queue: Arc<LineQueue>,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LineLayer {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target().starts_with("penstock")
    }

    fn on_new_span(&self, of: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let mut fields = LineFields::default();
        of.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let (mut fields, level) = (LineFields::default(), event.metadata().level());
        // Lines of more severe levels name their request themselves.
        if *level >= Level::DEBUG {
            for span in context.event_scope(event).into_iter().flatten() {
                if let Some(outer) = span.extensions().get::<LineFields>() {
                    fields.take(outer);
                }
            }
        }
        event.record(&mut fields);
        self.queue.push(fields.line(self.format, level));
    }
}

/// The message of a line and its other fields, as members of a JSON object.
#[derive(Default)]
struct LineFields {
    message: String,
    members: String,
}

impl LineFields {
    fn member(&mut self, field: &Field, value: impl Into<Value>) {
        let _ = write!(self.members, ",\"{}\":{}", field.name(), value.into());
    }

    /// Adds the fields of an enclosing span. Its message precedes the event's.
    fn take(&mut self, span: &Self) {
        let _ = write!(self.message, "{}: ", span.message);
        self.members.push_str(&span.members);
    }

    fn line(&self, format: LogFormat, level: &Level) -> String {
        let mut time = String::with_capacity(32);
        let _ = SystemTime.format_time(&mut TimeWriter::new(&mut time));
        time.truncate(MILLISECONDS);
        let word = match *level {
            Level::WARN => "WARNING",
            other => other.as_str(),
        };
        let (message, members) = (&self.message, &self.members);
        match format {
            LogFormat::Text => format!("{time}Z {word} penstock: {message}\n"),
            LogFormat::Json => format!(
                "{{\"time\":\"{time}Z\",\"level\":\"{}\",\"source\":\"penstock\",\
                 \"message\":{}{members}}}\n",
                word.to_ascii_lowercase(),
                Value::from(message.as_str())
            ),
        }
    }
}

impl Visit for LineFields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            self.member(field, format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.member(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.member(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.member(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.member(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.member(field, value);
    }
}

/// Lines on their way to the thread that writes them.
struct LineQueue {
    lines: SyncSender<String>,
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

impl LineQueue {
    fn push(&self, line: String) {
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

/// The thread's end of the queue, which writes the lines to `out`.
struct Worker<W> {
    out: W,
    format: LogFormat,
    counts: Arc<QueueCounts>,
}

impl<W: Write> Worker<W> {
    fn run(mut self, waiting: &Receiver<String>) {
        while let Ok(line) = waiting.recv() {
            self.report_dropped();
            if self.write(&line).is_err() {
                self.counts.dropped.fetch_add(1, Ordering::AcqRel);
            }
            self.counts.handled.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn report_dropped(&mut self) {
        let dropped = self.counts.dropped.load(Ordering::Acquire);
        if dropped == 0 {
            return;
        }
        let notice = LineFields {
            message: format!("{dropped} lines of the log could not be written"),
            ..LineFields::default()
        };
        if self.write(&notice.line(self.format, &Level::WARN)).is_ok() {
            self.counts.dropped.fetch_sub(dropped, Ordering::AcqRel);
        }
    }

    fn write(&mut self, line: &str) -> std::io::Result<()> {
        self.out.write_all(line.as_bytes())?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
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

    const PATIENCE: Duration = Duration::from_secs(10);

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
        let (subscriber, queue) = start(gate, settings);
        with_default(subscriber, || permitted(&permit, &queue));
        queue.flush(PATIENCE);
        lines.try_iter().collect()
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
        assert!(all.iter().any(|line| line.ends_with(" INFO penstock: 0\n")));
        assert!(all.last().unwrap().ends_with(" penstock: the last\n"));
        let notices = all.iter().filter(|line| line.contains(" could not be "));
        let counts = notices.map(|line| {
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
        let all = logged(LogSettings::default(), |permit, queue| {
            permit.send(false).unwrap();
            error!("lost");
            queue.flush(PATIENCE);
            open(permit, 2);
            error!("found");
        });
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(all[0].contains("WARNING penstock: 1 lines of the log"));
        assert!(all[1].ends_with(" ERROR penstock: found\n"));
    }

    #[test]
    fn each_level_has_the_lines_of_those_above_it() {
        let words = ["ERROR", "WARNING", "INFO", "DEBUG", "TRACE"];
        let json = ["error", "warning", "info", "debug", "trace"];
        for (at, name) in json.into_iter().enumerate() {
            let level = serde_json::from_value(name.into()).unwrap();
            for format in [LogFormat::Text, LogFormat::Json] {
                let all = logged(LogSettings { level, format }, |permit, _| {
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
            let all = logged(LogSettings { level, format }, |permit, _| {
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
                LogFormat::Text => "TIME INFO penstock: a \"line\"\n",
                LogFormat::Json => concat!(
                    r#"{"time":"TIME","level":"info","source":"penstock","#,
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
    fn the_lines_of_a_request_name_it_below_info() {
        for (format, wanted) in [
            (
                LogFormat::Text,
                [" INFO penstock: x\n", " DEBUG penstock: id-1: x\n"],
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
            let all = logged(LogSettings { level, format }, |permit, _| {
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
}
