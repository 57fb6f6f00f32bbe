//! The `process_*` metrics of prometheus_client, of this process.

use std::fmt::{Display, Write};
use std::fs;

use rustix::time::{ClockId, clock_gettime};

/// Appends the samples; values that the system does not provide are omitted.
pub fn write_process(out: &mut String) {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9;
    let cpu = "process_cpu_seconds_total";
    sample(out, cpu, "counter", "User and system time.", seconds);
    if let Some(started) = started() {
        let (name, help) = ("process_start_time_seconds", "Unix time of the start.");
        sample(out, name, "gauge", help, started);
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (name, help, field) in [
        ("process_virtual_memory_bytes", "Virtual memory.", "VmSize:"),
        (
            "process_resident_memory_bytes",
            "Resident memory.",
            "VmRSS:",
        ),
    ] {
        if let Some(kib) = number_after(&status, field) {
            sample(out, name, "gauge", help, kib * 1024);
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        let open = open.count();
        sample(out, "process_open_fds", "gauge", "Open descriptors.", open);
    }
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    if let Some(most) = number_after(&limits, "Max open files") {
        let help = "Most open descriptors.";
        sample(out, "process_max_fds", "gauge", help, most);
    }
}

/// Start time of the process in Unix seconds; the same on every call.
fn started() -> Option<f64> {
    // in jiffies (10 ms on every Linux) since boot, whose time is in /proc/stat
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    let jiffies: f64 = after_name.split_whitespace().nth(19)?.parse().ok()?;
    let boot = number_after(&fs::read_to_string("/proc/stat").ok()?, "btime")?;
    Some(boot as f64 + jiffies / 100.0)
}

fn sample(out: &mut String, name: &str, kind: &str, help: &str, value: impl Display) {
    let _ = writeln!(
        out,
        "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"
    );
}

/// The first number of the line that begins with `field`.
fn number_after(text: &str, field: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(field))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_samples_are_there_and_positive() {
        let mut out = String::new();
        write_process(&mut out);
        let samples: Vec<&str> = out.lines().filter(|l| l.starts_with("process_")).collect();
        assert_eq!(samples.len(), 6, "{out}");
        for sample in samples {
            let value: f64 = sample.split(' ').nth(1).unwrap().parse().unwrap();
            assert!(value > 0.0, "{sample}");
        }
    }

    #[test]
    fn the_start_is_before_now_and_stays() {
        let now = std::time::SystemTime::now();
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        let start = started().unwrap();
        assert!(start < now.as_secs_f64() + 1.0);
        assert!(start > now.as_secs_f64() - 86_400.0);
        assert_eq!(started(), Some(start));
    }
}
