//! Parses the line of `kubernetes`.

use std::collections::BTreeSet;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use kube::config::{Kubeconfig, KubeconfigError};

use super::NAME;
use crate::dns::corefile::arguments::zones_or_all;
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::message::query::whole_wire_name;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::plugins::setup::Setup;
use crate::dns::upstream::tls::{ConnectorError, connector, root_certificates};
use crate::label_selector::selector;
use crate::model::api_server::server_url;
use crate::model::excerpt::{examples, sentence};
use crate::model::hostname::to_presentation;
use crate::model::names::is_label;
use crate::store::cluster::answer::{PodMode, Rules, is_reverse};
use crate::store::cluster::registry::{ApiLimits, ClientTls, ClusterSpec, Connection};

const KNOWN: [&str; 18] = [
    "apiserver_burst",
    "apiserver_max_inflight",
    "apiserver_qps",
    "endpoint",
    "endpoint_pod_names",
    "fallthrough",
    "ignore",
    "kubeconfig",
    "labels",
    "multicluster",
    "namespace_labels",
    "namespaces",
    "noendpoints",
    "pods",
    "startup_timeout",
    "tls",
    "ttl",
    "zonal",
];
const VERIFIED: &str = "verified";
/// The TTL of records, and its maximum, in seconds.
const TTL: u32 = 5;
const MAX_TTL: u32 = 3600;
const STARTUP_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Options {
    pub(super) spec: ClusterSpec,
    pub(super) zones: ZoneSet,
    pub(super) rules: Rules,
    pub(super) fallthrough: Option<ZoneSet>,
    pub(super) startup_timeout: Duration,
}

/// The options as they are read.
struct Parsed<'a> {
    ttl: u32,
    pods: PodMode,
    by_pods: bool,
    has_endpoints: bool,
    zonal: Option<&'a Directive>,
    multicluster: Vec<Box<[u8]>>,
    ignores_empty: bool,
    namespaces: Option<BTreeSet<Box<str>>>,
    labels: String,
    namespace_labels: Option<(&'a Directive, String)>,
    fallthrough: Option<ZoneSet>,
    startup_timeout: Duration,
    endpoint: Option<&'a Directive>,
    tls: Option<&'a Directive>,
    kubeconfig: Option<&'a Directive>,
    limits: ApiLimits,
}

pub(super) fn parse(setup: &mut Setup<'_>) -> Result<Options, CorefileError> {
    let line = setup.only_line().map_err(|CorefileError { position, message }| {
        let remedy =
            "name all zones of a cluster on one line; another cluster needs a server block of its own";
        position.error(format!("{message}: {remedy}"))
    });
    let line = line?.clone();
    let zones = setup.cluster_zones(&line)?;
    let wire: Vec<Box<[u8]>> = zones.all().iter().map(|zone| whole_wire_name(zone).into()).collect();
    let Some(primary) = wire.iter().find(|zone| !is_reverse(zone)).cloned() else {
        return Err(line.missing_argument("a zone that isn't a reverse zone, such as cluster.local"));
    };
    let mut parsed = Parsed::default();
    for option in line.options() {
        option.no_block()?;
        if option.name() == "multicluster" {
            parsed.multicluster = multicluster(option, &zones)?;
            if option.arguments().is_empty() {
                setup.builder.warnings.push(option.error("multicluster has no effect without zones"));
            }
        } else {
            parsed.read(option)?;
        }
    }
    parsed.check(&line)?;
    let connection = connection(setup, &line, &parsed)?;
    let own_addresses = (setup.context.own_addresses)(&setup.builder.bind);
    let rules = Rules {
        zones: wire,
        primary,
        pods: parsed.pods,
        zonal: parsed.zonal.is_some(),
        multicluster: parsed.multicluster,
        ttl: parsed.ttl,
        ignores_empty: parsed.ignores_empty,
        selects_namespaces: parsed.namespaces.is_some() || parsed.namespace_labels.is_some(),
        namespaces: parsed.namespaces,
        // A loopback address is that of each client itself.
        own_addresses: own_addresses.into_iter().filter(|ip| !ip.is_loopback()).collect(),
    };
    let spec = ClusterSpec {
        connection,
        limits: parsed.limits,
        labels: parsed.labels,
        namespace_labels: parsed.namespace_labels.map(|(_, labels)| labels).unwrap_or_default(),
        has_endpoints: parsed.has_endpoints,
        has_pods: parsed.pods == PodMode::Verified,
        names_endpoints_by_pods: parsed.by_pods,
        has_imports: !rules.multicluster.is_empty(),
        has_zones: parsed.zonal.is_some(),
    };
    let (fallthrough, startup_timeout) = (parsed.fallthrough, parsed.startup_timeout);
    Ok(Options { spec, zones, rules, fallthrough, startup_timeout })
}

impl Default for Parsed<'_> {
    fn default() -> Self {
        Self {
            ttl: TTL,
            pods: PodMode::default(),
            by_pods: false,
            has_endpoints: true,
            zonal: None,
            multicluster: Vec::new(),
            ignores_empty: false,
            namespaces: None,
            labels: String::new(),
            namespace_labels: None,
            fallthrough: None,
            startup_timeout: STARTUP_TIMEOUT,
            endpoint: None,
            tls: None,
            kubeconfig: None,
            limits: ApiLimits::default(),
        }
    }
}

impl<'a> Parsed<'a> {
    fn read(&mut self, option: &'a Directive) -> Result<(), CorefileError> {
        match option.name() {
            "endpoint" => self.endpoint = Some(option),
            "tls" => self.tls = Some(option),
            "kubeconfig" => self.kubeconfig = Some(option),
            "namespaces" => {
                let names = option.required_arguments("names of namespaces")?;
                if let Some(wrong) = names.iter().find(|name| !is_label(&name.text)) {
                    return Err(wrong.unexpected(
                        "the name of a namespace: at most 63 of a-z, 0-9 and -, without - at either end",
                    ));
                }
                self.namespaces
                    .get_or_insert_default()
                    .extend(names.iter().map(|name| name.text.as_str().into()));
            }
            "labels" => self.labels = labels(option)?,
            "namespace_labels" => self.namespace_labels = Some((option, labels(option)?)),
            "pods" => self.pods = pod_mode(option)?,
            "endpoint_pod_names" => {
                option.no_arguments()?;
                self.by_pods = true;
            }
            "noendpoints" => {
                option.no_arguments()?;
                self.has_endpoints = false;
            }
            "ttl" => {
                let what = "a number of seconds from 0 to 3600";
                self.ttl = option.single_argument(what)?.parse_in_range(0..=MAX_TTL, what)?;
            }
            "fallthrough" => self.fallthrough = Some(zones_or_all(option.arguments())?),
            "ignore" => {
                let word = option.single_argument("empty_service")?;
                if word.text != "empty_service" {
                    return Err(word.unexpected_of("empty_service", &["empty_service"]));
                }
                self.ignores_empty = true;
            }
            "startup_timeout" => {
                self.startup_timeout = option.single_argument("a duration such as 5s")?.duration()?;
            }
            "apiserver_qps" => self.limits.qps = limit(option, |qps: &f64| *qps >= 0.0 && qps.is_finite())?,
            "apiserver_burst" => self.limits.burst = limit(option, |_| true)?,
            "apiserver_max_inflight" => self.limits.max_inflight = limit(option, |_| true)?,
            "zonal" => {
                option.no_arguments()?;
                self.zonal = Some(option);
            }
            name @ ("upstream" | "resyncperiod" | "transfer") => {
                return Err(option.error(format!(
                    "CoreDNS doesn't have kubernetes's option {name} any more, and it did nothing at last: delete it"
                )));
            }
            _ => return Err(option.unknown(NAME, &KNOWN)),
        }
        Ok(())
    }

    /// Checks the options in combination.
    fn check(&self, line: &Directive) -> Result<(), CorefileError> {
        let line_of = |name: &str| {
            let option = line.options().iter().find(|option| option.name() == name);
            option.map_or(0, |option| option.position().line)
        };
        if let (Some((option, _)), Some(_)) = (&self.namespace_labels, &self.namespaces) {
            return Err(option.error(format!(
                "namespaces (line {}) and namespace_labels can't both be there: delete either of them",
                line_of("namespaces")
            )));
        }
        if let (Some(option), false) = (self.zonal, self.has_endpoints) {
            return Err(option.error(format!(
                "zonal reads endpoints, and noendpoints (line {}) leaves them out: delete either of them",
                line_of("noendpoints")
            )));
        }
        Ok(())
    }
}

/// Returns the zones of ServiceImports, which have to be among the zones of the plugin.
fn multicluster(option: &Directive, zones: &ZoneSet) -> Result<Vec<Box<[u8]>>, CorefileError> {
    let mut found = Vec::new();
    for word in option.arguments() {
        for zone in ZoneSet::new(word.zones()?).all() {
            if !zones.all().contains(zone) {
                let own: Vec<String> = zones.all().iter().map(to_presentation).collect();
                let zone = to_presentation(zone);
                return Err(word.error(format!(
                    "{zone} isn't a zone of kubernetes here, which has {}: add it to the line of kubernetes",
                    own.join(", ")
                )));
            }
            found.push(whole_wire_name(zone).into());
        }
    }
    Ok(found)
}

fn limit<T: FromStr>(option: &Directive, is_valid: impl Fn(&T) -> bool) -> Result<T, CorefileError> {
    let what = "a number of 0 or more";
    let word = option.single_argument(what)?;
    word.text.parse().ok().filter(is_valid).ok_or_else(|| word.unexpected(what))
}

/// Returns a label selector in the form that the API server reads.
fn labels(option: &Directive) -> Result<String, CorefileError> {
    let words = option.required_arguments("a label selector such as app=web")?;
    let text: Vec<&str> = words.iter().map(|word| &*word.text).collect();
    let text = text.join(" ");
    let selector = selector(&text).map_err(|why| words[0].error(format!("{text:?} is {why}")))?;
    Ok(selector.to_string())
}

fn pod_mode(option: &Directive) -> Result<PodMode, CorefileError> {
    let what = "disabled, insecure or verified";
    let word = option.single_argument(what)?;
    match word.text.as_str() {
        "disabled" => Ok(PodMode::Disabled),
        "insecure" => Ok(PodMode::Insecure),
        VERIFIED => Ok(PodMode::Verified),
        _ => Err(word.unexpected_of(what, &["disabled", "insecure", VERIFIED])),
    }
}

/// Returns whether the line of `kubernetes` has the option by which Pods are watched.
pub(in crate::dns::plugins) fn verifies_pods(line: &Directive) -> bool {
    let mode = line.options().iter().rev().find(|option| option.name() == "pods");
    mode.is_some_and(|mode| mode.arguments().iter().any(|word| word.text == VERIFIED))
}

/// Returns why a label of `kubernetes` is never known in a block.
pub(in crate::dns::plugins) fn missing_for(label: &str, block: &[Directive]) -> Option<&'static str> {
    let label = label.strip_prefix("kubernetes/")?;
    let Some(line) = block.iter().find(|line| line.name() == NAME) else {
        return Some("the block has no kubernetes");
    };
    match label {
        "zone" if !line.options().iter().any(|option| option.name() == "zonal") => {
            Some("kubernetes has no line zonal")
        }
        "client-namespace" | "client-pod-name" if !verifies_pods(line) => {
            Some("kubernetes has no line pods verified")
        }
        _ => None,
    }
}

/// Returns the API server to read from: that of `kubeconfig`, else of `endpoint`, else lb-linker's own.
fn connection(
    setup: &mut Setup<'_>,
    line: &Directive,
    parsed: &Parsed<'_>,
) -> Result<Connection, CorefileError> {
    let tls = parsed.tls.map(|option| tls(setup, option)).transpose()?;
    if let Some(option) = parsed.kubeconfig {
        let words = option.at_most(2)?;
        let [path, context @ ..] = words else {
            return Err(option.missing_argument("a kubeconfig file, and perhaps a context"));
        };
        let file = setup.path(&path.text);
        check_kubeconfig(path, &file, context.first())?;
        let context = context.first().map(|word| word.text.clone());
        return Ok(Connection::Kubeconfig { path: file, context });
    }
    if let Some(option) = parsed.endpoint {
        let what = "the URL of an API server, such as https://192.0.2.1:6443";
        let words = option.required_arguments(what)?;
        if let [_, further, ..] = words {
            setup.builder.warnings.push(further.error("only the first URL has an effect, as in CoreDNS"));
        }
        if server_url(&words[0].text).is_none() {
            return Err(words[0].unexpected(what));
        }
        if tls.is_none() && words[0].text.starts_with("https:") {
            setup.builder.warnings.push(words[0].error(
                "without tls only the system's certificate authorities are trusted, and lb-linker has no credentials; name \
                 both by tls CERT KEY CACERT",
            ));
        }
        return Ok(Connection::Endpoint { url: words[0].text.clone(), tls });
    }
    if let Some(option) = parsed.tls {
        setup.builder.warnings.push(option.error("tls has no effect without endpoint"));
    }
    if !setup.context.has_own_cluster {
        return Err(line.error(
            "kubernetes reads an API server, and with --manifests there is none: name one with the option kubeconfig, or with \
             endpoint",
        ));
    }
    Ok(Connection::Own)
}

fn tls(setup: &Setup<'_>, option: &Directive) -> Result<ClientTls, CorefileError> {
    let what = "three files: a certificate, its key, and the certificate of the authority";
    let [certificate, key, authority] = option.at_most(3)? else { return Err(option.missing_argument(what)) };
    let read = |word: &Token| {
        let path = setup.path(&word.text);
        match std::fs::read(&path) {
            Ok(bytes) => Ok((path, bytes)),
            Err(error) => Err(word.error(format!("{}: can't be read: {error}", path.display()))),
        }
    };
    let files = [read(certificate)?, read(key)?, read(authority)?];
    let [(_, of_certificate), (_, of_key), (_, of_authority)] = &files;
    let wrong = |at: usize, why: String| {
        let order = "; the order is: certificate, key, certificate of the authority";
        [certificate, key, authority][at].error(format!("{}: {why}{order}", files[at].0.display()))
    };
    let roots = root_certificates(of_authority).map_err(|error| wrong(2, error.to_string()))?;
    if let Err(error) = connector(Some(roots), Some((of_certificate, of_key))) {
        return Err(wrong(usize::from(matches!(error, ConnectorError::Key(_))), error.to_string()));
    }
    let [certificate, key, authority] = files.map(|(path, _)| path);
    Ok(ClientTls { certificate, key, authority })
}

/// Checks that a kubeconfig can be read, and has the context, by default the current one, with an API server.
pub(in crate::dns::plugins) fn check_kubeconfig(
    word: &Token,
    path: &Path,
    context: Option<&Token>,
) -> Result<(), CorefileError> {
    let place = path.display();
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| {
        let why = match error {
            KubeconfigError::ReadConfig(error, _) => error.to_string(),
            error => sentence(&error.to_string()).to_string(),
        };
        word.error(format!("{place}: can't be read: {why}"))
    })?;
    let contexts = &kubeconfig.contexts;
    let known = sentence(&examples(contexts.iter().map(|context| &*context.name))).to_string();
    let current = kubeconfig.current_context.as_deref().filter(|current| !current.is_empty());
    let (at, name) = match (context, current) {
        _ if contexts.is_empty() => {
            let why = "it has no contexts, so it names no API server: name a kubeconfig that kubectl can use";
            return Err(word.error(format!("{place}: {why}")));
        }
        (Some(context), _) => (context, &*context.text),
        (None, Some(current)) => (word, current),
        (None, None) => {
            let why = "it has no current-context: name a context after the file";
            return Err(word.error(format!("{place}: {why}; it has {known}")));
        }
    };
    let Some(found) = contexts.iter().find(|context| context.name == name) else {
        return Err(at.error(format!("the kubeconfig has no context {name:?}; it has {known}")));
    };
    let cluster = found.context.as_ref().map(|context| &*context.cluster).unwrap_or_default();
    let of_cluster = kubeconfig.clusters.iter().find(|known| known.name == cluster);
    let server = of_cluster.and_then(|known| known.cluster.as_ref()?.server.as_deref());
    match server.filter(|server| !server.is_empty()) {
        Some(_) => Ok(()),
        None => Err(at.error(format!(
            "the kubeconfig has no cluster {cluster:?} with a server, which its context {name:?} names"
        ))),
    }
}
