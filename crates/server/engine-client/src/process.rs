use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// The engine's process. For an external engine it is empty: it never exits and gets no signals.
///
/// The kernel kills the process when the thread that started it ends (`PR_SET_PDEATHSIG`). Each
/// process therefore has a dedicated thread with the same lifetime, because the runtime may end its
/// worker threads earlier. Dropping kills the process.
#[derive(Debug)]
pub(crate) struct EngineProcess {
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    /// `None` once the process is being reaped: the kernel may then reuse its pid.
    pid: Arc<Mutex<Option<i32>>>,
    exit: watch::Receiver<Option<ExitStatus>>,
}

/// Time-out for the kernel to end a killed process.
const AFTER_KILL: Duration = Duration::from_secs(5);

impl EngineProcess {
    pub(crate) fn external() -> Self {
        Self { running: None }
    }

    /// Starts `argv` with `{socket}` replaced and `input` as standard input. Standard output and
    /// error are inherited.
    pub(crate) async fn start(argv: &[String], input: String, socket: &Path) -> io::Result<Self> {
        let argv: Vec<String> = argv
            .iter()
            .map(|arg| arg.replace("{socket}", &socket.to_string_lossy()))
            .collect();
        let (started, is_started) = oneshot::channel();
        std::thread::Builder::new()
            .name("engine-process".to_owned())
            .spawn(move || run(&argv, &input, started))?;
        is_started.await.map_err(io::Error::other)?
    }

    /// Waits for the end of the process.
    pub(crate) async fn exited(&mut self) -> ExitStatus {
        let Some(running) = &mut self.running else {
            return std::future::pending().await;
        };
        match running
            .exit
            .wait_for(Option::is_some)
            .await
            .map(|status| *status)
        {
            Ok(Some(status)) => status,
            _ => std::future::pending().await,
        }
    }

    /// Waits until `deadline` for the process to exit, then sends SIGKILL, because the process
    /// ignores SIGTERM and SIGINT. A process that the kernel cannot kill (for example, in
    /// uninterruptible disk sleep) is abandoned after another time-out.
    pub(crate) async fn end(&mut self, deadline: Instant) {
        if self.running.is_some() && timeout_at(deadline, self.exited()).await.is_err() {
            let _ = timeout(AFTER_KILL, self.kill()).await;
        }
    }

    /// Sends SIGKILL and waits for the exit.
    pub(crate) async fn kill(&mut self) {
        if self.running.is_some() {
            self.signal(libc::SIGKILL);
            self.exited().await;
        }
    }

    fn signal(&self, signal: i32) {
        let Some(running) = &self.running else { return };
        let pid = running.pid.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pid) = *pid {
            // SAFETY: kill accesses no memory of this process; the lock keeps `pid` from being
            // reaped, so it is still our child.
            unsafe { libc::kill(pid, signal) };
        }
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
    }
}

/// Body of a process's thread: starts the process, waits for it, reports its exit.
fn run(argv: &[String], input: &str, started: oneshot::Sender<io::Result<EngineProcess>>) {
    let mut child = match command(argv).spawn() {
        Ok(child) => child,
        Err(error) => return drop(started.send(Err(error))),
    };
    let number = child.id().cast_signed();
    let pid = Arc::new(Mutex::new(Some(number)));
    let (exited, exit) = watch::channel(None);
    let running = Running {
        pid: Arc::clone(&pid),
        exit,
    };
    // Without a receiver the value is dropped here, which kills the process.
    drop(started.send(Ok(EngineProcess {
        running: Some(running),
    })));
    if let Some(mut stdin) = child.stdin.take() {
        // A write fails only if the process has exited.
        let _ = stdin.write_all(input.as_bytes());
    }
    wait_without_reaping(number);
    *pid.lock().unwrap_or_else(PoisonError::into_inner) = None;
    // Cannot fail for an exited child that is not reaped.
    let status = child.wait().unwrap_or_else(|_| ExitStatus::from_raw(0));
    exited.send_replace(Some(status));
}

fn command(argv: &[String]) -> Command {
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).stdin(Stdio::piped());
    // SAFETY: getpid has no preconditions.
    let parent = unsafe { libc::getpid() };
    // SAFETY: between fork and exec the closure makes system calls only and neither allocates nor
    // locks.
    unsafe {
        command.pre_exec(move || {
            ignore_stops();
            die_with(parent)
        });
    }
    command
}

/// Ignores stop signals. Ctrl-C, a closed terminal and a service stop signal the whole process
/// group, but only the API server may stop its engine. The disposition survives exec, and children
/// inherit it.
fn ignore_stops() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: SIG_IGN is a valid disposition for each and installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Makes the kernel kill the calling process when the thread that started it ends.
fn die_with(parent: i32) -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number and touches no memory; getppid has no
    // preconditions.
    let (set, actual_parent) = unsafe {
        (
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL),
            libc::getppid(),
        )
    };
    match set {
        0 if actual_parent == parent => Ok(()),
        // Race: the parent died before prctl took effect.
        0 => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn wait_without_reaping(pid: i32) {
    loop {
        // SAFETY: siginfo_t is plain data that waitid overwrites; pid is our own child, not reaped
        // yet.
        let result = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(
                libc::P_PID,
                pid.cast_unsigned(),
                &mut info,
                libc::WEXITED | libc::WNOWAIT,
            )
        };
        let interrupted = io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        if result == 0 || !interrupted {
            return;
        }
    }
}
