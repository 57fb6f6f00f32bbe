//! The process that runs the template of a request, one for each: it ends with its template, and
//! bounds its own memory and time before it reads one.

use std::io::Write;
use std::process::{Command, Stdio};

use penstock_text::Elsewhere;

/// Runs templates by `command`, a program and its arguments.
pub(crate) fn by(command: Vec<String>) -> Elsewhere {
    Elsewhere::new(move |job| run(&command, job))
}

fn run(command: &[String], job: &str) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // It reads all before it writes. Where it has ended, its status says so.
    if let Some(mut input) = child.stdin.take() {
        let _ = input.write_all(job.as_bytes());
    }
    let output = child.wait_with_output().ok()?;
    let whole = output.status.success();
    String::from_utf8(output.stdout).ok().filter(|_| whole)
}
