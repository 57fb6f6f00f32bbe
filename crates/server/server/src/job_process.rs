//! The process that runs one job of a request, a template or the trial of a grammar: it ends with
//! its job, and bounds its own memory and time before it reads it.

use std::io::{self, Write};
use std::process::{Command, Stdio};

/// Runs jobs of one kind.
#[derive(Debug, Clone)]
pub(crate) struct JobProcess {
    program: String,
    arguments: Vec<String>,
}

impl JobProcess {
    /// `command` is a program and its arguments, to which the kind is added; `None` where it is
    /// empty.
    pub(crate) fn new(command: &[String], kind: &str) -> Option<Self> {
        let (program, arguments) = command.split_first()?;
        let arguments = arguments.iter().cloned().chain([kind.to_owned()]);
        Some(Self {
            program: program.clone(),
            arguments: arguments.collect(),
        })
    }

    /// The outcome of a job; `None` where it came to no end.
    ///
    /// # Errors
    /// A process that cannot start or be awaited, which is no verdict on the job.
    pub(crate) fn run(&self, job: &str) -> io::Result<Option<String>> {
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        // The child reads all its input before it writes. An early end shows in its status.
        if let Some(mut input) = child.stdin.take() {
            let _ = input.write_all(job.as_bytes());
        }
        let output = child.wait_with_output()?;
        let whole = output.status.success();
        Ok(String::from_utf8(output.stdout).ok().filter(|_| whole))
    }
}
