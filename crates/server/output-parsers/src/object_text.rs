//! Arguments that stand alone, a JSON object as a rule.

use crate::json::{Progress, Scan};
use crate::out::Out;

/// Passes the text of one object on. What is no object is passed on as it is.
#[derive(Debug, Default)]
pub(crate) struct ObjectText {
    scan: Scan,
    written: bool,
    /// The object is complete.
    done: bool,
    broken: bool,
}

impl ObjectText {
    /// Passes on what belongs to the arguments and says how much that is: all but what follows a
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

    /// The call has ended: one without arguments has an empty object.
    pub(crate) fn end(&mut self, out: &mut Out) {
        if !self.written {
            out.arguments("{}");
        }
    }
}
