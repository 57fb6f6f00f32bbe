//! Credential plugins: commands that print credentials, configured by `exec` in kubeconfig files
//! (kind `ExecCredential` of client.authentication.k8s.io). A command runs again when its
//! credentials expire or the server rejects them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use penstock_http::Identity;
use serde::Deserialize;
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::credentials::Credentials;

/// Time-out of the command. Long, because plugins of cloud providers contact login servers.
const PATIENCE: Duration = Duration::from_secs(60);

/// The command and its arguments.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plugin {
    pub program: PathBuf,
    #[serde(default)]
    pub args: Vec<String>,
    /// Variables that the command gets in addition to this process's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// `client.authentication.k8s.io/v1` or `v1beta1`. The output must have the same version.
    pub api_version: String,
}

/// Hides arguments and environment, because they may contain secrets.
impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plugin({:?})", self.program)
    }
}

/// The credentials that the plugin printed last.
#[derive(Default)]
pub(crate) struct CredentialCache(Mutex<Option<Issue>>);

/// Hides secrets.
impl fmt::Debug for CredentialCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialCache(..)")
    }
}

#[derive(Clone)]
struct Issue {
    token: Option<String>,
    identity: Option<Identity>,
    /// When the credentials expire; `None`: the plugin printed no time.
    expires: Option<SystemTime>,
}

impl CredentialCache {
    /// Replaces token and client certificate in `credentials` by the plugin's, if it has them. Runs
    /// the plugin unless its last credentials are still valid.
    ///
    /// # Errors
    /// Describes the problem and names the command.
    pub(crate) async fn add_to(
        &self,
        credentials: &mut Credentials,
        plugin: &Plugin,
    ) -> Result<(), String> {
        let mut last = self.0.lock().await;
        let now = SystemTime::now();
        let usable = |one: &Issue| one.expires.is_none_or(|expires| now < expires);
        let issue = match last.take().filter(usable) {
            Some(issue) => issue,
            None => {
                let issue = plugin.run().await;
                issue.map_err(|error| format!("{}: {error}", plugin.program.display()))?
            }
        };
        let Issue {
            token, identity, ..
        } = last.insert(issue).clone();
        credentials.token = token.or(credentials.token.take());
        credentials.trust.identity = identity.or(credentials.trust.identity.take());
        Ok(())
    }

    /// Drops the cached credentials after the server has refused them.
    pub(crate) async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: String,
    kind: String,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

impl Plugin {
    async fn run(&self) -> Result<Issue, String> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(&self.env);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = output.map_err(|_| format!("no end in {} s", PATIENCE.as_secs()))?;
        let output = output.map_err(|error| error.to_string())?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim_end().lines().last().unwrap_or_default();
            return Err(format!("{}: {last}", output.status));
        }
        self.read(&output.stdout)
    }

    fn read(&self, stdout: &[u8]) -> Result<Issue, String> {
        // leaves out the parser's message, which may quote a secret
        let printed = serde_json::from_slice::<ExecCredential>(stdout);
        let Ok(printed) = printed else {
            return Err("it printed no ExecCredential".to_owned());
        };
        if printed.kind != "ExecCredential" || printed.api_version != self.api_version {
            let (kind, version) = (&printed.kind, &printed.api_version);
            let wanted = &self.api_version;
            return Err(format!(
                "it printed a {kind} of {version}, not an ExecCredential of {wanted}"
            ));
        }
        let status = printed.status;
        let identity = match (status.client_certificate_data, status.client_key_data) {
            (Some(chain), Some(key)) => Some(Identity { chain, key }),
            (None, None) => None,
            _ => return Err("it printed a certificate or a key alone".to_owned()),
        };
        if status.token.is_none() && identity.is_none() {
            return Err("it printed neither a token nor a certificate".to_owned());
        }
        // Times are in UTC, as Kubernetes writes them.
        let time = |text: String| humantime::parse_rfc3339(&text);
        Ok(Issue {
            token: status.token.map(|token| token.trim().to_owned()),
            identity,
            // An invalid time counts as expired, so that the command runs for each request.
            expires: status
                .expiration_timestamp
                .map(|text| time(text).unwrap_or(SystemTime::UNIX_EPOCH)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin() -> Plugin {
        Plugin {
            program: "plugin".into(),
            args: vec!["hush".to_owned()],
            env: BTreeMap::new(),
            api_version: "client.authentication.k8s.io/v1".to_owned(),
        }
    }

    fn read(status: &str) -> Result<Issue, String> {
        let version = plugin().api_version;
        let text = format!(
            r#"{{"apiVersion": "{version}", "kind": "ExecCredential", "status": {status}}}"#
        );
        plugin().read(text.as_bytes())
    }

    #[test]
    fn what_it_prints_is_a_credential_or_named() {
        let issue = read(r#"{"token": "t\n", "expirationTimestamp": "soon"}"#)
            .ok()
            .unwrap();
        assert_eq!(issue.token.as_deref(), Some("t"));
        assert_eq!(
            issue.expires,
            Some(SystemTime::UNIX_EPOCH),
            "never trusted again"
        );
        let until = r#"{"token": "t", "expirationTimestamp": "2026-11-23T05:40:07Z"}"#;
        let issue = read(until).ok().unwrap();
        // from `date -u -d TEXT +%s`
        let wanted = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_412_407);
        assert_eq!(issue.expires, Some(wanted));
        let pair = r#"{"clientCertificateData": "c", "clientKeyData": "k"}"#;
        let issue = read(pair).ok().unwrap();
        assert!(issue.identity.is_some() && issue.expires.is_none());
        let wrong = |status| read(status).err().unwrap();
        assert!(wrong("{}").contains("neither"));
        assert!(wrong(r#"{"clientKeyData": "k"}"#).contains("alone"));
        let printed = |text: &str| plugin().read(text.as_bytes()).err().unwrap();
        assert_eq!(printed("token: hush"), "it printed no ExecCredential");
        let old = r#"{"apiVersion": "client.authentication.k8s.io/v1beta1",
            "kind": "ExecCredential", "status": {"token": "t"}}"#;
        assert!(printed(old).contains("v1beta1, not"));
        assert_eq!(format!("{:?}", plugin()), r#"Plugin("plugin")"#);
    }

    #[tokio::test]
    async fn a_command_that_fails_says_why() {
        let mut plugin = plugin();
        plugin.program = "/bin/sh".into();
        plugin.args = ["-c", "echo first >&2; echo 'no login' >&2; exit 3"]
            .map(str::to_owned)
            .into();
        let error = plugin.run().await.err().unwrap();
        assert!(
            error.contains("exit status: 3") && error.ends_with(": no login"),
            "{error}"
        );
        plugin.program = "/nowhere/plugin".into();
        assert!(plugin.run().await.is_err());
    }
}
