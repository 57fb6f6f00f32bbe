//! The process log: `tracing` events as lines of a bounded queue, written to standard error by a
//! thread.
//!
//! Standard error may be a full pipe, or a pipe without a reader. Callers never block or fail: if
//! the queue is full, a line is dropped and counted, and the count is logged later. (The worker of
//! `tracing-appender` does not count lines that cannot be written, and has no bounded flush.)

use std::fmt::{Debug, Write as _};
use std::io::{IsTerminal, Write};
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
    /// `2026-01-31T12:00:00.000Z INFO penstock.server: message`.
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
    /// Whether text has colors where standard error is a terminal.
    pub color: bool,
}

static LOG: OnceLock<Arc<LineQueue>> = OnceLock::new();

/// Logs the process's events from now on, under the name `penstock.PROGRAM`. A no-op after the
/// first call.
pub fn configure_log(program: &'static str, settings: LogSettings) {
    LOG.get_or_init(|| {
        let out = std::io::stderr();
        let color = settings.color && out.is_terminal();
        let (subscriber, queue) = start(out, program, LogSettings { color, ..settings });
        // fails only if another subscriber is set, and this is the only place that sets one
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
    program: &'static str,
    settings: LogSettings,
) -> (impl Subscriber + Send + Sync, Arc<LineQueue>) {
    let (lines, waiting) = sync_channel(QUEUE);
    let queue = Arc::new(LineQueue {
        lines,
        counts: Arc::default(),
    });
    let style = Style {
        program,
        format: settings.format,
        color: settings.color,
    };
    let worker = Worker {
        out,
        style,
        counts: queue.counts.clone(),
    };
    // Without a thread the queue fills and lines are dropped; the service continues.
    let _ = std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || worker.run(&waiting));
    let layer = LineLayer {
        style,
        queue: queue.clone(),
    };
    let level = LevelFilter::from(settings.level);
    (Registry::default().with(level).with(layer), queue)
}

/// Turns events of Penstock's crates into lines.
struct LineLayer {
    style: Style,
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
        self.queue.push(fields.line(self.style, level));
    }
}

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// The escape sequence that colors the word of `level`.
fn color(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "\x1b[1;31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        _ => "\x1b[36m",
    }
}

/// Properties that all log lines of a process share.
#[derive(Debug, Clone, Copy)]
struct Style {
    program: &'static str,
    format: LogFormat,
    color: bool,
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

    fn line(&self, style: Style, level: &Level) -> String {
        let mut time = String::with_capacity(32);
        let _ = SystemTime.format_time(&mut TimeWriter::new(&mut time));
        time.truncate(MILLISECONDS);
        let word = match *level {
            Level::WARN => "WARNING",
            other => other.as_str(),
        };
        let (message, members) = (&self.message, &self.members);
        let program = style.program;
        match style.format {
            LogFormat::Text if style.color => format!(
                "{DIM}{time}Z{PLAIN} {}{word}{PLAIN} {DIM}penstock.{program}:{PLAIN} {message}\n",
                color(level)
            ),
            LogFormat::Text => format!("{time}Z {word} penstock.{program}: {message}\n"),
            LogFormat::Json => format!(
                "{{\"time\":\"{time}Z\",\"level\":\"{}\",\"source\":\"penstock.{program}\",\
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
    style: Style,
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
        if self.write(&notice.line(self.style, &Level::WARN)).is_ok() {
            self.counts.dropped.fetch_sub(dropped, Ordering::AcqRel);
        }
    }

    fn write(&mut self, line: &str) -> std::io::Result<()> {
        self.out.write_all(line.as_bytes())?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests;
