//! Arguments of a call that stand alone, without an object around them; usually a JSON object.

use crate::json::{Progress, Scan};
use crate::out::Out;

/// Forwards the text of one object. Text that is not an object is forwarded unchanged.
#[derive(Debug, Default)]
pub(crate) struct ObjectText {
    scan: Scan,
    written: bool,
    /// The object is complete.
    done: bool,
    broken: bool,
}

impl ObjectText {
    /// Forwards the text of the arguments and returns its length: everything except text after a
    /// complete object.
    pub(crate) fn feed(&mut self, text: &str, out: &mut Out) -> usize {
        if self.done {
            return 0;
        }
        let rest = if self.written {
            text
        } else {
            text.trim_start()
        };
        let skipped = text.len() - rest.len();
        if rest.is_empty() {
            return skipped;
        }
        if !self.written && !rest.starts_with('{') {
            self.broken = true;
        }
        self.written = true;
        if self.broken {
            out.arguments(rest);
            return text.len();
        }
        let (used, progress) = self.scan.take(rest);
        out.arguments(&rest[..used]);
        match progress {
            Progress::More => {}
            Progress::Done => self.done = true,
            Progress::Failed => {
                self.broken = true;
                out.arguments(&rest[used..]);
                return text.len();
            }
        }
        skipped + used
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// Ends the call. A call without arguments gets an empty object.
    pub(crate) fn end(&mut self, out: &mut Out) {
        if !self.written {
            out.arguments("{}");
        }
    }
}
