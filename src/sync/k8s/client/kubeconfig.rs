//! Reads kubeconfigs as kubectl does.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kube::Config;
use kube::config::{
    AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedAuthInfo, NamedCluster,
    NamedContext,
};

use super::settings::of_kubeconfig;
use super::{ApiServer, ClientError, LoadedConfig};
use crate::model::api_server::server_url;
use crate::model::excerpt::{MAX_LINES, located, value};
use crate::store::cluster::registry::ClientTls;

/// Returns the configuration of a context of a kubeconfig, by default of its current context.
///
/// # Errors
/// If the kubeconfig can't be read or used.
pub(super) async fn of_kubeconfig_file(
    path: &Path,
    context: Option<String>,
) -> Result<LoadedConfig, ClientError> {
    let place = path.display().to_string();
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| wrong(&place, error))?;
    of_context(kubeconfig, context, vec![path.to_owned()], place).await
}

/// Returns the configuration for the API server at a URL.
///
/// # Errors
/// If the URL or a file can't be used.
pub(super) async fn of_endpoint(url: &str, tls: Option<&ClientTls>) -> Result<LoadedConfig, ClientError> {
    const NAME: &str = "endpoint";
    let text = |path: &Path| Some(path.to_string_lossy().into_owned());
    let cluster = Cluster {
        server: Some(url.to_owned()),
        certificate_authority: tls.and_then(|tls| text(&tls.authority)),
        ..Cluster::default()
    };
    let user = AuthInfo {
        client_certificate: tls.and_then(|tls| text(&tls.certificate)),
        client_key: tls.and_then(|tls| text(&tls.key)),
        ..AuthInfo::default()
    };
    let context = Context { cluster: NAME.to_owned(), user: Some(NAME.to_owned()), ..Context::default() };
    let kubeconfig = Kubeconfig {
        clusters: vec![NamedCluster { name: NAME.to_owned(), cluster: Some(cluster), ..Default::default() }],
        auth_infos: vec![NamedAuthInfo {
            name: NAME.to_owned(),
            auth_info: Some(user),
            ..Default::default()
        }],
        contexts: vec![NamedContext { name: NAME.to_owned(), context: Some(context), ..Default::default() }],
        ..Kubeconfig::default()
    };
    of_context(kubeconfig, Some(NAME.to_owned()), Vec::new(), "the Corefile".to_owned()).await
}

/// Returns the configuration of a context of kubectl's kubeconfig: `$KUBECONFIG`, or `~/.kube/config`.
///
/// # Errors
/// As for [`of_kubeconfig_file`].
pub(super) async fn of_default_kubeconfig(context: Option<String>) -> Result<LoadedConfig, ClientError> {
    match std::env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) {
        Some(paths) => {
            let files = std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty());
            of_files(files.collect(), paths.to_string_lossy().into_owned(), context).await
        }
        None => {
            let files = std::env::home_dir().map(|home| home.join(".kube/config"));
            of_files(files.into_iter().collect(), "~/.kube/config".to_owned(), context).await
        }
    }
}

/// Merges kubeconfigs; those that don't exist are skipped. `place` is the name of all of them in messages.
async fn of_files(
    files: Vec<PathBuf>,
    place: String,
    context: Option<String>,
) -> Result<LoadedConfig, ClientError> {
    let mut merged: Option<Kubeconfig> = None;
    // The first file that has a context counts.
    let mut file_of: HashMap<String, String> = HashMap::new();
    for file in &files {
        let in_file = |error| wrong(&file.display().to_string(), error);
        let mut next = match Kubeconfig::read_from(file) {
            Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == ErrorKind::NotFound => continue,
            read => read.map_err(in_file)?,
        };
        // `current-context: ""` doesn't hide that of the next file.
        next.current_context = next.current_context.filter(|context| !context.is_empty());
        for context in &next.contexts {
            file_of.entry(context.name.clone()).or_insert_with(|| file.display().to_string());
        }
        merged = Some(match merged {
            Some(merged) => merged.merge(next).map_err(in_file)?,
            None => next,
        });
    }
    match merged {
        Some(kubeconfig) => {
            let mut loaded = of_context(kubeconfig, context, files, place).await?;
            if let Some((context, place)) = &mut loaded.server.context
                && let Some(file) = file_of.remove(context)
            {
                *place = file;
            }
            Ok(loaded)
        }
        None => Err(ClientError::NoCluster(match &*files {
            [file] => file.display().to_string(),
            _ => place,
        })),
    }
}

/// Returns the configuration of a context, by default of the current context. `files` are those of the kubeconfig.
async fn of_context(
    mut kubeconfig: Kubeconfig,
    context: Option<String>,
    mut files: Vec<PathBuf>,
    place: String,
) -> Result<LoadedConfig, ClientError> {
    let current = kubeconfig.current_context.clone().filter(|context| !context.is_empty());
    let Some(used) = context.or(current) else {
        let contexts = contexts_of(&kubeconfig);
        return Err(ClientError::Kubeconfig(format!(
            "{place}: it has no current-context; name a context by --context, or with --remote and in a Corefile after the path of the \
             kubeconfig{contexts}"
        )));
    };
    if !kubeconfig.contexts.iter().any(|context| context.name == used) {
        let contexts = contexts_of(&kubeconfig);
        return Err(ClientError::Kubeconfig(format!(
            "{place}: it has no context {}{contexts}",
            value(&used)
        )));
    }
    files.extend(complete(&mut kubeconfig, &used, &place)?);
    let user = kubeconfig.contexts.iter().find(|context| context.name == used);
    let user = user.and_then(|context| context.context.as_ref()?.user.clone()).unwrap_or_default();
    let options = KubeConfigOptions { context: Some(used.clone()), ..Default::default() };
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.map_err(|error| wrong(&place, error))?;
    if config.cluster_url.scheme_str() != Some("https") {
        // kubectl sends no credentials without TLS.
        config.auth_info = AuthInfo {
            impersonate: config.auth_info.impersonate,
            impersonate_uid: config.auth_info.impersonate_uid,
            impersonate_groups: config.auth_info.impersonate_groups,
            impersonate_user_extra: config.auth_info.impersonate_user_extra,
            ..AuthInfo::default()
        };
    }
    let mut server = ApiServer::of(&config, Some((used, place)));
    let is_https = config.cluster_url.scheme_str() == Some("https");
    server.anonymous_user = (is_https && !has_credentials(&config.auth_info)).then_some(user);
    Ok(LoadedConfig { config, server, files })
}

/// Returns whether a user of a kubeconfig can authenticate itself.
fn has_credentials(user: &AuthInfo) -> bool {
    user.token.is_some()
        || user.token_file.is_some()
        || user.client_certificate.is_some()
        || user.client_certificate_data.is_some()
        || user.username.is_some()
        || user.exec.is_some()
        || user.auth_provider.is_some()
}

/// Returns a clause with the contexts that a kubeconfig has.
fn contexts_of(kubeconfig: &Kubeconfig) -> String {
    let all = &kubeconfig.contexts;
    let names: Vec<String> =
        all.iter().take(MAX_LINES).map(|context| value(&context.name).to_string()).collect();
    let more = all.len() - names.len();
    match (&*names, more) {
        ([], _) => "; it has no contexts".to_owned(),
        (_, 0) => format!("; it has {}", names.join(", ")),
        _ => format!("; it has {} and {more} more", names.join(", ")),
    }
}

/// Adds the scheme to the server of a context's cluster if it is missing. Returns the files that the context names:
/// certificates, key and token.
fn complete(kubeconfig: &mut Kubeconfig, name: &str, place: &str) -> Result<Vec<PathBuf>, ClientError> {
    let context = kubeconfig.contexts.iter().find(|context| context.name == name);
    let Some(context) = context.and_then(|context| context.context.as_ref()) else { return Ok(Vec::new()) };
    let cluster = kubeconfig.clusters.iter_mut().find(|cluster| cluster.name == context.cluster);
    let Some(cluster) = cluster.and_then(|cluster| cluster.cluster.as_mut()) else { return Ok(Vec::new()) };
    // The server may have a password.
    let wrong = || {
        ClientError::Kubeconfig(format!(
            "{place}: the server of cluster {} is neither a URL such as https://192.0.2.1:6443 nor a host with a port",
            value(&context.cluster)
        ))
    };
    let Some(server) = cluster.server.as_deref().filter(|server| !server.is_empty()) else {
        let name = value(&context.cluster);
        return Err(ClientError::Kubeconfig(format!("{place}: cluster {name} has no field \"server\"")));
    };
    cluster.server = Some(server_url(server).ok_or_else(wrong)?);
    let user = kubeconfig.auth_infos.iter().find(|user| context.user.as_ref() == Some(&user.name));
    let user = user.and_then(|user| user.auth_info.as_ref());
    let credentials = user.map(|user| [&user.client_certificate, &user.client_key, &user.token_file]);
    let credentials = credentials.into_iter().flatten().flatten();
    Ok(cluster.certificate_authority.iter().chain(credentials).map(PathBuf::from).collect())
}

/// Returns the error for the kubeconfig at `place`, with the position of the mistake.
fn wrong(place: &str, error: KubeconfigError) -> ClientError {
    ClientError::Kubeconfig(match error {
        KubeconfigError::ReadConfig(error, path) => format!("{}: {error}", path.display()),
        KubeconfigError::Parse(error) => located(place, &error),
        KubeconfigError::LoadClusterOfContext(cluster) => {
            format!("{place}: the context's cluster {cluster:?} isn't in it")
        }
        error => format!("{place}: {}", of_kubeconfig(&error)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXTS: &str = "users: [{name: u, user: {token: secret}}]
contexts: [{name: a, context: {cluster: c, user: u}}, {name: \"b\\n\", context: {cluster: c, user: u}}]
";

    fn with_server(server: &str) -> String {
        format!("clusters: [{{name: c, cluster: {{server: {server}}}}}]\n{CONTEXTS}current-context: a\n")
    }

    /// Returns a directory with these files, and their paths.
    fn written(texts: &[&str]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let directory = tempfile::tempdir().unwrap();
        let write = |(index, text): (usize, &&str)| {
            let path = directory.path().join(format!("config-{index}"));
            std::fs::write(&path, text).unwrap();
            path
        };
        let paths = texts.iter().enumerate().map(write).collect();
        (directory, paths)
    }

    async fn error(text: &str, context: Option<&str>) -> String {
        let (_directory, paths) = written(&[text]);
        let loaded = of_kubeconfig_file(&paths[0], context.map(ToOwned::to_owned)).await;
        let error = loaded.err().unwrap().to_string();
        error.strip_prefix(&format!("kubeconfig {}: ", paths[0].display())).unwrap_or(&error).to_owned()
    }

    #[tokio::test]
    async fn server_without_https_gets_no_credentials() {
        for (server, token, scheme) in [
            ("127.0.0.1:6443", false, "http://"),
            ("http://127.0.0.1:6443", false, ""),
            ("https://127.0.0.1:6443", true, ""),
        ] {
            let (_directory, paths) = written(&[&with_server(server)]);
            let LoadedConfig { config, server: shown, .. } =
                of_kubeconfig_file(&paths[0], None).await.unwrap();
            assert_eq!(config.auth_info.token.is_some(), token, "{server}");
            let expected = format!("{scheme}{server} (context \"a\" of {})", paths[0].display());
            assert_eq!(shown.to_string(), expected);
        }
        let reason = error(&with_server("'https://ann:secret@:1:2'"), None).await;
        let expected = "the server of cluster \"c\" is neither a URL such as https://192.0.2.1:6443 nor a host with a port";
        assert_eq!(reason, expected);
    }

    #[tokio::test]
    async fn user_without_credentials_is_named() {
        let text = with_server("https://192.0.2.1");
        for (user, expected) in [
            ("token: secret", ""),
            ("exec: {command: /bin/true, apiVersion: client.authentication.k8s.io/v1}", ""),
            ("as: ann", ", whose user \"u\" has no credentials"),
        ] {
            let (_directory, paths) = written(&[&text.replace("token: secret", user)]);
            let LoadedConfig { server, .. } = of_kubeconfig_file(&paths[0], None).await.unwrap();
            let place = paths[0].display();
            assert_eq!(
                server.to_string(),
                format!("https://192.0.2.1 (context \"a\" of {place}{expected})"),
                "{user}"
            );
        }
    }

    #[tokio::test]
    async fn mistake_is_named_by_its_field() {
        let misspelled = with_server("https://192.0.2.1").replace("server:", "sever:");
        assert_eq!(error(&misspelled, None).await, "cluster \"c\" has no field \"server\"");
        let authority = |field: &str| {
            with_server(&format!("https://192.0.2.1, {field}")).replace("{{", "{").replace("}}}", "}}")
        };
        let missing = error(&authority("certificate-authority: /nowhere/ca.crt"), None).await;
        let expected = "certificate-authority \"/nowhere/ca.crt\" can't be read: No such file";
        assert!(missing.starts_with(expected), "{missing}");
        let base64 = error(&authority("certificate-authority-data: '?'"), None).await;
        assert!(base64.starts_with("certificate-authority-data isn't base64: "), "{base64}");
    }

    #[tokio::test]
    async fn wrong_context_is_answered_with_those_that_exist() {
        let text = with_server("https://192.0.2.1");
        assert_eq!(error(&text, Some("c")).await, "it has no context \"c\"; it has \"a\", \"b\\n\"");
        let without = text.replace("current-context: a", "current-context: ''");
        let expected = "it has no current-context; name a context by --context, or with --remote and in a Corefile after \
                        the path of the kubeconfig; it has \"a\", \"b\\n\"";
        assert_eq!(error(&without, None).await, expected);
        assert_eq!(error("{}", Some("a")).await, "it has no context \"a\"; it has no contexts");
        let many: Vec<String> = (0..1000).map(|i| format!("{{name: c{i}}}")).collect();
        let reason = error(&format!("contexts: [{}]", many.join(", ")), Some("a")).await;
        assert!(reason.ends_with("\"c18\", \"c19\" and 980 more"), "{reason}");
    }

    #[tokio::test]
    async fn missing_files_of_a_list_are_skipped() {
        let good = with_server("https://192.0.2.1");
        let (directory, paths) = written(&["current-context: ''\nclusters: null\n", &good, "kind: ["]);
        let missing = directory.path().join("missing");
        let load =
            |files: &[&PathBuf]| of_files(files.iter().copied().cloned().collect(), "all".to_owned(), None);
        for files in [&[&missing, &paths[1]][..], &[&paths[1], &missing], &[&paths[0], &missing, &paths[1]]] {
            let loaded = load(files).await.unwrap();
            let expected = format!("https://192.0.2.1 (context \"a\" of {})", paths[1].display());
            assert_eq!(loaded.server.to_string(), expected);
            assert!(loaded.files.contains(&missing), "it may be written later");
        }
        let error = load(&[&missing, &paths[2]]).await.err().unwrap().to_string();
        assert!(error.starts_with(&format!("kubeconfig {}:1:", paths[2].display())), "{error}");
        for files in [&[&missing, &missing][..], &[]] {
            let error = load(files).await.err().unwrap().to_string();
            assert!(error.contains("there is no kubeconfig all; name one with --kubeconfig"), "{error}");
        }
    }

    #[test]
    fn files_that_a_context_names_are_returned() {
        let mut kubeconfig = Kubeconfig::from_yaml(
            "clusters:
- {name: a, cluster: {server: https://192.0.2.1, certificate-authority: /a/ca.crt}}
- {name: b, cluster: {server: https://192.0.2.2, certificate-authority: /b/ca.crt}}
users:
- {name: ann, user: {client-certificate: /ann.crt, client-key: /ann.key}}
- {name: ben, user: {tokenFile: /ben.token}}
contexts:
- {name: one, context: {cluster: a, user: ann}}
- {name: two, context: {cluster: b, user: ben}}
",
        )
        .unwrap();
        let mut files = |context| {
            let files = complete(&mut kubeconfig, context, "").unwrap();
            files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(files("one"), ["/a/ca.crt", "/ann.crt", "/ann.key"]);
        assert_eq!(files("two"), ["/b/ca.crt", "/ben.token"]);
        assert!(files("three").is_empty());
    }
}
