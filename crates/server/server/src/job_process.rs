//! A process that runs one job of a request: a chat template or a grammar trial. It exits after the
//! job, and limits its own memory and time before it reads the job.

use std::io::{self, Write};
use std::process::{Command, Stdio};

/// Runs jobs of one kind.
#[derive(Debug, Clone)]
pub(crate) struct JobProcess {
    program: String,
    arguments: Vec<String>,
}

impl JobProcess {
    /// `command` is a program and its arguments; `kind` is appended. `None` if it is empty.
    pub(crate) fn new(command: &[String], kind: &str) -> Option<Self> {
        let (program, arguments) = command.split_first()?;
        let arguments = arguments.iter().cloned().chain([kind.to_owned()]);
        Some(Self {
            program: program.clone(),
            arguments: arguments.collect(),
        })
    }

    /// Runs a job and returns its output; `None` if the process failed or hit a limit.
    ///
    /// # Errors
    /// The process cannot be started or waited for; the job itself may be valid.
    pub(crate) fn run(&self, job: &str) -> io::Result<Option<String>> {
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        // The child reads all input before it writes. If it exits early, its status is the error.
        if let Some(mut input) = child.stdin.take() {
            let _ = input.write_all(job.as_bytes());
        }
        let output = child.wait_with_output()?;
        let whole = output.status.success();
        Ok(String::from_utf8(output.stdout).ok().filter(|_| whole))
    }
}
