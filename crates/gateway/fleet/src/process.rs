//! Detects that a replica's process has ended or restarted, which empties its cache. Pure.

/// Tolerance in seconds between two reported start times of the same process; reported times are
/// rounded.
const SAME_START_S: f64 = 0.5;

/// Last observed state of a replica's process.
#[derive(Debug, Default)]
pub(crate) struct Process {
    there: bool,
    start: Option<f64>,
    work: Option<f64>,
}

impl Process {
    /// Records that the process sent a response.
    pub(crate) fn answered(&mut self) {
        self.there = true;
    }

    /// Records a report: the start time of the process, and the sum of its engine's counters.
    /// Returns whether process or engine have been replaced since the previous report.
    pub(crate) fn reported(&mut self, start: Option<f64>, work: Option<f64>) -> bool {
        let before = (self.start, self.work);
        (self.start, self.work) = (start.or(self.start), work.or(self.work));
        let later = |(old, new): (f64, f64)| (new - old).abs() > SAME_START_S;
        let other = before.0.zip(start).is_some_and(later);
        let less = before.1.zip(work).is_some_and(|(old, new)| new < old);
        other || less
    }

    /// Records a refused connection. Returns whether the process was alive before.
    pub(crate) fn refused(&mut self) -> bool {
        std::mem::take(self).there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_start_time_or_a_counter_that_falls_is_a_restart() {
        let mut process = Process::default();
        process.answered();
        assert!(!process.reported(Some(100.0), Some(5.0)));
        assert!(!process.reported(Some(100.2), Some(5.0)));
        assert!(!process.reported(None, None));
        assert!(!process.reported(Some(100.2), Some(9.0)));
        assert!(process.reported(Some(100.2), Some(8.0)));
        assert!(!process.reported(Some(100.2), Some(8.0)));
        assert!(process.reported(Some(160.0), Some(8.0)));
    }

    #[test]
    fn a_refused_connection_is_the_end_of_what_answered_before() {
        let mut process = Process::default();
        assert!(!process.refused(), "it had not come up yet");
        process.answered();
        process.reported(Some(100.0), Some(5.0));
        assert!(process.refused());
        assert!(!process.refused());
        process.answered();
        // the restart has been reported already, by the refused connection
        assert!(!process.reported(Some(160.0), Some(0.0)));
    }
}
