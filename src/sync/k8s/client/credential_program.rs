//! Runs the program that a kubeconfig names for credentials (`exec`), and tells when it has to run again. kube would
//! run it three times for a client, take a failed run for one without credentials, and renew no credentials without an
//! expirationTimestamp.

use std::io::{self, IsTerminal, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::ByteString;
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::model::excerpt::value;
use crate::model::names;

/// How long a run may take that may ask the user, as for a login.
const INTERACTIVE_LIMIT: Duration = Duration::from_secs(300);
/// How long any other run may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How often it is checked whether a program has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum size of what a program prints, in bytes.
const MAX_OUTPUT: u64 = 1 << 20;

/// Age at which credentials without an end are renewed.
const MAX_AGE: Duration = Duration::from_secs(3600);
/// Credentials are renewed so long before their end.
const MARGIN: Duration = Duration::from_secs(60);
/// The shortest pause between two runs, which is the first one; each further one is twice as long.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two runs.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// After this time without a run, pauses begin with the shortest one again.
const SETTLED: Duration = Duration::from_secs(300);

/// A run that gave no credentials. The output of the program isn't repeated, because it may be secret.
#[derive(Debug, thiserror::Error)]
#[error("the program for the credentials, {}, {failure}", value(.program))]
pub struct ProgramError {
    program: String,
    failure: Failure,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("can't be started: {0}")]
    Start(io::Error),
    #[error("can't be started: {0}; {1}")]
    StartWithHint(io::Error, String),
    #[error("can't be waited for: {0}")]
    Wait(io::Error),
    #[error("has not ended within {0:?}")]
    Hangs(Duration),
    #[error("failed: {0}")]
    Status(ExitStatus),
    #[error("didn't print an ExecCredential of at most {MAX_OUTPUT} bytes")]
    Output,
    #[error("printed neither a token nor a client certificate with its key")]
    Empty,
    #[error("printed an expirationTimestamp that isn't a time as in 2026-01-31T12:00:00Z")]
    Expiration,
}

/// What the program prints.
#[derive(Deserialize)]
struct ExecCredential {
    status: Option<CredentialStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CredentialStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// The credentials of a run, without the credentials.
pub(super) struct Obtained {
    /// The time until they are renewed.
    lifetime: Duration,
    /// The time until their end; `None` if they have none.
    valid_for: Option<Duration>,
    hash: String,
}

impl Obtained {
    /// Returns what a program has given that hasn't run yet.
    pub(super) fn nothing() -> Self {
        Self { lifetime: Duration::ZERO, valid_for: None, hash: String::new() }
    }
}

/// Which run of the program it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// It may use the terminal.
    First,
    Later,
}

/// Returns whether the credentials of a configuration come from a program.
pub(super) fn uses_program(auth: &AuthInfo) -> bool {
    // The same precedence as in kube.
    let has_password = auth.username.is_some() && auth.password.is_some();
    let has_token = auth.token.is_some() || auth.token_file.is_some();
    auth.exec.is_some() && !has_password && auth.auth_provider.is_none() && !has_token
}

/// Replaces the program of a configuration, if one is used, with the credentials that it prints. Blocking.
///
/// # Errors
/// If the program gives no credentials.
pub(super) fn obtain(auth: &mut AuthInfo, run: Run) -> Result<Option<Obtained>, ProgramError> {
    if !uses_program(auth) {
        return Ok(None);
    }
    let exec = auth.exec.take().unwrap_or_default();
    let interactive = is_interactive(&exec, run, io::stdin().is_terminal());
    let limit = if interactive { INTERACTIVE_LIMIT } else { LIMIT };
    let found =
        output_of(&exec, interactive, limit).and_then(|output| apply(auth, &output, Timestamp::now()));
    let program = exec.command.unwrap_or_default();
    found.map(Some).map_err(|failure| ProgramError { program, failure })
}

/// Returns whether a run may use the terminal.
fn is_interactive(exec: &ExecConfig, run: Run, has_terminal: bool) -> bool {
    run == Run::First && has_terminal && exec.interactive_mode != Some(ExecInteractiveMode::Never)
}

/// Puts printed credentials into a configuration.
fn apply(auth: &mut AuthInfo, output: &[u8], now: Timestamp) -> Result<Obtained, Failure> {
    // Some programs print YAML, of which JSON is a part.
    let printed: Value = serde_saphyr::from_slice(output).map_err(|_| Failure::Output)?;
    let printed: ExecCredential = serde_json::from_value(printed).map_err(|_| Failure::Output)?;
    let status = printed.status.unwrap_or_default();
    let valid_for = match status.expiration_timestamp {
        None => None,
        Some(time) => {
            let end: Timestamp = time.parse().map_err(|_| Failure::Expiration)?;
            Some(Duration::try_from(end.duration_since(now)).unwrap_or_default())
        }
    };
    let lifetime = valid_for.map_or(MAX_AGE, |rest| rest.saturating_sub(MARGIN));
    let pair = status.client_certificate_data.zip(status.client_key_data);
    if status.token.is_none() && pair.is_none() {
        return Err(Failure::Empty);
    }
    let hash = names::hash_of(format!("{:?} {pair:?}", status.token));
    auth.token = status.token.map(SecretString::from);
    if let Some((certificate, key)) = pair {
        auth.client_certificate_data = base64(certificate);
        auth.client_key_data = base64(key).map(SecretString::from);
    }
    Ok(Obtained { lifetime, valid_for, hash })
}

fn base64(text: String) -> Option<String> {
    let encoded = serde_json::to_value(ByteString(text.into_bytes())).ok()?;
    encoded.as_str().map(ToOwned::to_owned)
}

/// The programs that are running, or the negative ids of their process groups.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Kills the programs that are running. Otherwise they would go on after the end of this process.
pub fn kill_credential_programs() {
    for program in &*RUNNING.lock() {
        let _ = kill(*program, Signal::SIGKILL);
    }
}

/// Runs a program, and returns what it prints. A program that exceeds `limit` is killed.
fn output_of(exec: &ExecConfig, interactive: bool, limit: Duration) -> Result<Vec<u8>, Failure> {
    let mut command = command_of(exec, interactive);
    let failed = |error| match &exec.install_hint {
        Some(hint) => Failure::StartWithHint(error, value(hint).to_string()),
        None => Failure::Start(error),
    };
    let mut running = RUNNING.lock();
    let mut child = command.spawn().map_err(failed)?;
    // A script's own programs may hang, too, and hold its output open: without a terminal, all of its group is killed.
    let id = i32::try_from(child.id()).ok().map(|id| Pid::from_raw(if interactive { id } else { -id }));
    running.extend(id);
    drop(running);
    let deadline = Instant::now() + limit;
    let ended = match child.stdout.take().map(read_in_thread).transpose() {
        Ok(output) => wait(&mut child, output, deadline),
        Err(error) => Err(Failure::Wait(error)),
    };
    if !matches!(ended, Ok(Some(_))) {
        let _ = id.map(|id| kill(id, Signal::SIGKILL));
        let _ = child.wait();
    }
    RUNNING.lock().retain(|running| Some(*running) != id);
    match ended? {
        Some((status, output)) if status.success() => Ok(output),
        Some((status, _)) => Err(Failure::Status(status)),
        None => Err(Failure::Hangs(limit)),
    }
}

fn command_of(exec: &ExecConfig, interactive: bool) -> Command {
    let mut command = Command::new(exec.command.as_deref().unwrap_or_default());
    command.args(exec.args.iter().flatten()).stdout(Stdio::piped());
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    let mut spec = json!({"interactive": interactive});
    if exec.provide_cluster_info {
        spec["cluster"] = json!(exec.cluster);
    }
    let info = json!({"apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec});
    command.env("KUBERNETES_EXEC_INFO", info.to_string());
    if !interactive {
        // Its messages may be secret, and of any length.
        command.stdin(Stdio::null()).stderr(Stdio::null()).process_group(0);
    }
    command
}

/// Returns the status and the output of a program; `None` if it hasn't ended before `deadline`.
fn wait(
    child: &mut Child,
    output: Option<Receiver<io::Result<Vec<u8>>>>,
    deadline: Instant,
) -> Result<Option<(ExitStatus, Vec<u8>)>, Failure> {
    let status = loop {
        match child.try_wait().map_err(Failure::Wait)? {
            Some(status) => break status,
            None if Instant::now() >= deadline => return Ok(None),
            None => thread::sleep(POLL_INTERVAL),
        }
    };
    let rest = deadline.saturating_duration_since(Instant::now());
    match output.map(|output| output.recv_timeout(rest)) {
        Some(Ok(output)) => Ok(Some((status, output.map_err(Failure::Wait)?))),
        Some(Err(_)) => Ok(None),
        None => Ok(Some((status, Vec::new()))),
    }
}

fn read_in_thread(stdout: ChildStdout) -> io::Result<Receiver<io::Result<Vec<u8>>>> {
    let (sender, receiver) = channel();
    let read = move || {
        let mut output = Vec::new();
        let mut start = stdout.take(MAX_OUTPUT);
        let read = start.read_to_end(&mut output);
        // A program that can't print would fail, and its status would say nothing about the length.
        let read = read.and_then(|_| io::copy(&mut start.into_inner(), &mut io::sink()));
        let _ = sender.send(read.map(|_| output));
    };
    thread::Builder::new().name("credentials".to_owned()).spawn(read)?;
    Ok(receiver)
}

/// When the program has to run again.
pub(super) struct Renewal {
    /// The end of the last run.
    at: Instant,
    /// The time from it to the next run, unless the API server refuses the credentials first; `None` without a program.
    lifetime: Option<Duration>,
    /// The end of the credentials in use, if they have one.
    end: Option<Instant>,
    hash: String,
    /// The number of runs of which each came less than [`SETTLED`] after the previous one.
    repeated: u32,
}

impl Renewal {
    pub(super) fn new(obtained: Option<Obtained>, now: Instant) -> Self {
        let lifetime = obtained.as_ref().map(|new| new.lifetime);
        let end = obtained.as_ref().and_then(|new| now.checked_add(new.valid_for?));
        let hash = obtained.map(|new| new.hash).unwrap_or_default();
        Self { at: now, lifetime, end, hash, repeated: 0 }
    }

    /// Returns whether a run has given credentials.
    pub(super) fn has_credentials(&self) -> bool {
        !self.hash.is_empty()
    }

    pub(super) fn has_program(&self) -> bool {
        self.lifetime.is_some()
    }

    /// Returns whether the program has to run: its credentials are refused, or too old.
    pub(super) fn is_due(&self, are_refused: bool, now: Instant) -> bool {
        self.lifetime.is_some_and(|lifetime| are_refused || now.duration_since(self.at) >= lifetime)
    }

    /// Returns whether the program mustn't run yet. A pause doesn't reach beyond the end of the credentials.
    pub(super) fn pauses(&self, now: Instant) -> bool {
        let mut pause = Duration::from_secs(1 << self.repeated.min(6)).min(MAX_PAUSE);
        if let Some(end) = self.end.filter(|end| *end > self.at) {
            pause = pause.min(end.duration_since(self.at).max(MIN_PAUSE));
        }
        self.has_program() && now.duration_since(self.at) < pause
    }

    /// Notes a run. Returns whether it gave other credentials than the last one.
    pub(super) fn renewed(&mut self, obtained: Option<Obtained>, now: Instant) -> bool {
        let repeated = self.repeated(now);
        let new = Self { repeated, ..Self::new(obtained, now) };
        let differs = new.hash != self.hash;
        *self = new;
        differs
    }

    /// Notes that a run has failed, or couldn't begin: the program runs again after the pause.
    pub(super) fn failed(&mut self, now: Instant) {
        self.repeated = self.repeated(now);
        (self.at, self.lifetime) = (now, Some(Duration::ZERO));
    }

    fn repeated(&self, now: Instant) -> u32 {
        // At the end of the credentials, new ones are more urgent than before.
        let has_ended = self.end.is_some_and(|end| self.at < end && end <= now);
        if now.duration_since(self.at) < SETTLED && !has_ended { self.repeated.saturating_add(1) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    fn exec(script: &str) -> ExecConfig {
        ExecConfig {
            command: Some("sh".to_owned()),
            args: Some(vec!["-c".to_owned(), script.to_owned()]),
            ..ExecConfig::default()
        }
    }

    fn obtained(script: &str) -> Result<AuthInfo, String> {
        let mut auth = AuthInfo { exec: Some(exec(script)), ..AuthInfo::default() };
        obtain(&mut auth, Run::Later).map(|_| auth).map_err(|error| error.to_string())
    }

    #[test]
    fn failed_program_is_reported_without_its_output() {
        let failure = |script: &str| obtained(script).unwrap_err();
        let named = |rest: &str| format!("the program for the credentials, \"sh\", {rest}");
        assert_eq!(failure("echo secret; exit 3"), named("failed: exit status: 3"));
        assert_eq!(failure("echo secret"), named("didn't print an ExecCredential of at most 1048576 bytes"));
        assert_eq!(failure("yes secret | head -c 2000000"), failure("echo secret"));
        let empty = named("printed neither a token nor a client certificate with its key");
        for status in ["{}", "{clientKeyData: secret}"] {
            assert_eq!(failure(&format!("echo '{{status: {status}}}'")), empty);
        }
        let text = failure("echo '{status: {token: secret, expirationTimestamp: soon}}'");
        assert!(text.contains("expirationTimestamp that isn't a time") && !text.contains("secret"), "{text}");
        let mut auth = AuthInfo {
            exec: Some(ExecConfig {
                command: Some("/missing".to_owned()),
                install_hint: Some("install it".to_owned()),
                ..ExecConfig::default()
            }),
            ..AuthInfo::default()
        };
        let error = obtain(&mut auth, Run::First).err().unwrap().to_string();
        assert!(error.contains("\"/missing\", can't be started: No such file"), "{error}");
        assert!(error.ends_with("; \"install it\""), "{error}");
    }

    #[test]
    fn token_and_certificate_of_a_program_are_used() {
        let auth = obtained("echo '{\"status\": {\"token\": \"t\"}}'").unwrap();
        assert!(auth.token.is_some() && auth.exec.is_none() && auth.client_key_data.is_none());
        let auth = obtained("echo 'status: {clientCertificateData: cert, clientKeyData: key}'").unwrap();
        assert_eq!(auth.client_certificate_data.as_deref(), Some("Y2VydA=="));
        assert!(auth.client_key_data.is_some() && auth.token.is_none());
    }

    #[test]
    fn program_gets_its_variables_and_no_input() {
        let script = "test \"$(cat)\" = '' && case $KUBERNETES_EXEC_INFO in \
            (*'\"apiVersion\":\"v1\"'*'\"interactive\":false'*) echo \"{status: {token: $TOKEN}}\" ;; esac";
        let mut exec = exec(script);
        exec.api_version = Some("v1".to_owned());
        exec.env = Some(vec![
            [("name", "TOKEN"), ("value", "abc")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        ]);
        let printed = output_of(&exec, false, LIMIT).unwrap();
        assert_eq!(String::from_utf8_lossy(&printed), "{status: {token: abc}}\n");
    }

    /// Returns whether a process has ended, even if its parent hasn't waited for it yet.
    fn has_ended(id: i32) -> bool {
        let is_zombie = || {
            let status = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            status.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
        };
        kill(Pid::from_raw(id), None) == Err(Errno::ESRCH) || is_zombie()
    }

    #[test]
    fn hanging_program_is_killed_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        // Both the program and its child hang; then only the child, which holds the output open.
        for (name, end) in [("both", "wait"), ("child", "true")] {
            let file = directory.path().join(name);
            let script = format!("sleep 1000 & echo $! >'{}'; {end}", file.display());
            let mut limit = Duration::from_millis(200);
            // On a busy machine, the program may be killed before it has a child.
            let child = loop {
                let error = output_of(&exec(&script), false, limit).unwrap_err();
                assert!(matches!(error, Failure::Hangs(_)), "{script}: {error}");
                let id = std::fs::read_to_string(&file).unwrap_or_default();
                if let Ok(id) = id.trim().parse() {
                    break id;
                }
                limit *= 2;
            };
            let deadline = Instant::now() + LIMIT;
            while !has_ended(child) {
                assert!(Instant::now() < deadline, "{script}: the child still runs");
                thread::sleep(POLL_INTERVAL);
            }
        }
    }

    #[test]
    fn only_a_first_run_at_a_terminal_is_interactive() {
        let mut exec = exec("");
        assert!(is_interactive(&exec, Run::First, true));
        assert!(!is_interactive(&exec, Run::First, false) && !is_interactive(&exec, Run::Later, true));
        exec.interactive_mode = Some(ExecInteractiveMode::Never);
        assert!(!is_interactive(&exec, Run::First, true));
    }

    #[test]
    fn program_without_a_terminal_has_no_place_for_messages() {
        let script = "test /proc/self/fd/2 -ef /dev/null && echo '{status: {token: t}}'";
        assert!(output_of(&exec(script), false, LIMIT).is_ok());
    }

    #[test]
    fn other_credentials_take_precedence_over_the_program() {
        let mut auth = AuthInfo { exec: Some(exec("exit 1")), ..AuthInfo::default() };
        auth.token = Some(SecretString::from("t".to_owned()));
        assert!(obtain(&mut auth, Run::Later).is_ok_and(|obtained| obtained.is_none()));
    }

    #[test]
    fn credentials_are_renewed_hourly_or_before_their_end() {
        let now: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        for (end, expected) in [
            ("", 3600),
            ("2026-01-31T12:15:00Z", 14 * 60),
            ("2026-01-31T21:15:00+09:00", 14 * 60),
            ("2026-01-31T14:00:00Z", 119 * 60),
            ("2026-01-31T12:00:30Z", 0),
            ("2026-01-31T11:00:00Z", 0),
        ] {
            let end = if end.is_empty() { String::new() } else { format!(", expirationTimestamp: '{end}'") };
            let output = format!("{{status: {{token: t{end}}}}}");
            let obtained = apply(&mut AuthInfo::default(), output.as_bytes(), now).ok().unwrap();
            assert_eq!(obtained.lifetime, Duration::from_secs(expected), "{end}");
        }
    }

    #[test]
    fn runs_pause_twice_as_long_each_time_up_to_a_minute() {
        let seconds = Duration::from_secs;
        let start = Instant::now();
        let obtained = || Some(Obtained { lifetime: MAX_AGE, valid_for: None, hash: "a".to_owned() });
        let mut renewal = Renewal::new(obtained(), start);
        assert!(
            !renewal.is_due(false, start + seconds(3599)) && renewal.is_due(false, start + seconds(3600))
        );
        let mut now = start + seconds(3600);
        let mut pauses = Vec::new();
        // The program fails, and then prints what the API server refuses.
        for run in 0..9 {
            assert!(renewal.is_due(true, now) && !renewal.pauses(now));
            if run < 4 {
                renewal.failed(now);
                assert!(renewal.is_due(false, now), "the credentials are still too old");
            } else {
                assert!(!renewal.renewed(obtained(), now), "they are the same");
                assert!(!renewal.is_due(false, now));
            }
            let pause = (1..).find(|pause| !renewal.pauses(now + seconds(*pause))).unwrap();
            pauses.push(pause);
            now += seconds(pause);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        now += seconds(300);
        renewal.failed(now);
        assert!(!renewal.pauses(now + seconds(1)));
        assert!(renewal.renewed(
            Some(Obtained { lifetime: MAX_AGE, valid_for: None, hash: "b".to_owned() }),
            now + seconds(1)
        ));
    }

    #[test]
    fn pause_ends_with_the_credentials() {
        let seconds = Duration::from_secs;
        let start = Instant::now();
        let obtained = |valid_for| {
            let lifetime = seconds(valid_for).saturating_sub(MARGIN);
            Some(Obtained { lifetime, valid_for: Some(seconds(valid_for)), hash: "a".to_owned() })
        };
        let run = |end: u64, last: u64, prints: bool| -> Vec<u64> {
            let mut renewal = Renewal::new(obtained(end), start);
            let mut times = Vec::new();
            for time in 1..=last {
                let now = start + seconds(time);
                if renewal.is_due(false, now) && !renewal.pauses(now) {
                    times.push(time);
                    if prints {
                        renewal.renewed(obtained(end.saturating_sub(time)), now);
                    } else {
                        renewal.failed(now);
                    }
                }
            }
            times
        };
        // The program prints the same token until its end and beyond; then it fails.
        for prints in [true, false] {
            let times = run(140, 200, prints);
            assert_eq!(times, [80, 82, 86, 94, 110, 140, 141, 143, 147, 155, 171], "{prints}");
        }
        assert_eq!(run(3, 8, true), [1, 3, 4, 6]);
    }

    #[test]
    fn configuration_without_a_program_is_never_due() {
        let now = Instant::now();
        let renewal = Renewal::new(None, now);
        assert!(!renewal.is_due(true, now + SETTLED) && !renewal.pauses(now));
    }
}
