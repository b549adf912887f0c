//! The command line of lb-linker.

mod compare;
mod json_log;
mod leading_flags;
mod links;
mod names;
mod output;
mod scan;
mod stub;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, reload};

use self::compare::{compare, server};
use self::json_log::JsonLines;
use self::leading_flags::arguments;
use self::links::{links, list_followers};
use self::names::list_names;
use self::output::{BAD_INPUT, FAILED, confirm, exit_with_error, fail, print_problem};
use self::scan::{ScanOutput, scan_cluster};
use self::stub::{StubAction, stub};
use crate::app::run;
use crate::cli::check::check;
use crate::cli::flags::{Flags, LogFormat};
use crate::cli::mistyped_variables::{LogFilterProblem, log_filter, refused_variable};
use crate::cli::replaced_flags::replaced_flags;
use crate::dns::server::instance::SetDebug;
use crate::links::names::NameFilter;
use crate::links::{LinkFilter, OutputFormat};
use crate::model::excerpt::printable;
use crate::query::{Question, SHORT};
use crate::stub::platform::Resolver;
use crate::sync::k8s::client::{ApiServer, kill_credential_programs};
use crate::takeover::takeover;
/// Warnings of kube and errors of rustls-platform-verifier repeat on every retry what lb-linker logs once; any packet can
/// cause hickory's warnings, and any client of DNS over HTTPS or QUIC those of h2 and quinn.
const DEFAULT_LOG: &str = "info,h2=error,hickory_proto=error,kube_client=off,kube_runtime=off,notify=off,quinn_proto=error,rustls_platform_verifier=off";

/// Stable DNS names for load balancers: watches LoadBalancer Services, keeps an ExternalName Service for
/// each, and answers DNS for them.
#[derive(Parser)]
#[command(
    name = "lb-linker",
    version,
    args_conflicts_with_subcommands = true,
    override_usage = "lb-linker [OPTIONS] [COMMAND]"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Subcommand)]
enum Command {
    /// Watch load balancers, write external targets and answer DNS; the default
    Run {
        #[command(flatten)]
        flags: Box<Flags>,
    },
    /// Validate flags and files, and print the flags in force; exit code 2 if they are wrong
    Check {
        #[command(flatten)]
        flags: Box<Flags>,
        /// Also ask the API server for each permission that is needed; exit code 1 if one is missing
        #[arg(long, conflicts_with = "manifests")]
        cluster: bool,
    },
    /// Remove the earlier operator's finalizer from Services, and list its orphaned external targets; exit
    /// code 1 if some Services weren't changed
    #[command(mut_args = |arg| { let hide = !for_takeover(arg.get_id().as_str()); arg.hide(hide) })]
    Takeover {
        #[command(flatten)]
        flags: Box<Flags>,
        /// Only print what would be done
        #[arg(long, conflicts_with = "manifests")]
        dry_run: bool,
        /// Don't ask
        #[arg(long, conflicts_with = "dry_run")]
        yes: bool,
    },
    /// List the links: load balancers, their DNS names, targets and states
    ///
    /// Asks the lb-linker that runs on the same machine or in the same Pod, at --admin-listen. Without one, or with
    /// --kubeconfig, --context or --manifests, reads the load balancers of the cluster or the manifests, and writes
    /// nothing: then give the same flags and variables as for `run`, so that names and targets are the same. With the
    /// name of one Service, prints that link in detail; a running lb-linker also tells its last changes.
    #[command(mut_args = |arg| { let hide = !for_links(arg.get_id().as_str()); arg.hide(hide) })]
    Links {
        /// Only Services of this name, the Service of this namespace and name, or the link with this DNS name
        #[arg(value_name = "[NAMESPACE/]SERVICE")]
        service: Option<String>,
        /// Only Services of this namespace [default: all namespaces]
        #[arg(short, long, value_name = "NAMESPACE", conflicts_with = "all_namespaces")]
        namespace: Option<String>,
        /// Services of all namespaces, which is the default
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        /// Format of the output [default: a table, or details of one link]
        #[arg(short, value_name = "FORMAT", value_enum)]
        output_format: Option<OutputFormat>,
        /// After the table, print each link that is new, changes or is removed, until Ctrl-C
        #[arg(short, long)]
        watch: bool,
        /// Instead of the load balancers, list the Services that follow one by linker.hsj.com/source
        #[arg(long, conflicts_with = "watch")]
        followers: bool,
        #[command(flatten)]
        flags: Box<Flags>,
    },
    /// List the DNS names of all sources, with the objects that have them or ask for them
    ///
    /// Reads them as `links` does: from the lb-linker that runs on the same machine or in the same Pod, at
    /// --admin-listen, else from the cluster or the manifests. With a name, prints that name in detail, or the wildcard
    /// that answers it; exit code 1 if there is none.
    #[command(mut_args = |arg| { let hide = !for_names(arg.get_id().as_str()); arg.hide(hide) })]
    Names {
        /// Only this name, or the wildcard that answers it
        name: Option<String>,
        /// Only names that objects of this namespace ask for [default: all namespaces]
        #[arg(short, long, value_name = "NAMESPACE", conflicts_with = "all_namespaces")]
        namespace: Option<String>,
        /// Names of all namespaces, which is the default
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        /// Format of the output [default: a table, or details of one name]
        #[arg(short, value_name = "FORMAT", value_enum)]
        output_format: Option<OutputFormat>,
        #[command(flatten)]
        flags: Box<Flags>,
    },
    /// Find ExternalName Services that name a load balancer and were written by hand, and let them follow it
    ///
    /// Reads all Services, and asks the resolvers of --upstream whether unknown hostnames of load balancers exist. Prints
    /// the commands with which Services follow their load balancer; with --apply, asks and then sets these annotations.
    /// Give the same flags as for `run`.
    #[command(mut_args = |arg| { let hide = !for_scan(arg.get_id().as_str()); arg.hide(hide) })]
    Scan {
        /// Only objects of this namespace [default: all namespaces]
        #[arg(short, long, value_name = "NAMESPACE")]
        namespace: Option<String>,
        /// Format of the output [default: tables and commands]
        #[arg(short, value_name = "FORMAT", value_parser = ["json"], conflicts_with = "apply")]
        output_format: Option<String>,
        /// Annotate the Services that name exactly one load balancer
        #[arg(long, conflicts_with = "manifests")]
        apply: bool,
        /// With --apply: don't ask
        #[arg(long, requires = "apply")]
        yes: bool,
        #[command(flatten)]
        flags: Box<Flags>,
    },
    /// Let the DNS of the cluster forward the zones to lb-linker, and find where that fails
    ///
    /// Prints what to add for each part of the cluster's DNS, with the cluster IP of lb-linker's Service, and changes
    /// nothing. --apply adds it to the ConfigMaps of CoreDNS and NodeLocal DNSCache, unless another tool manages them,
    /// beside what they have for other zones; --remove takes it out again; both print the differences and ask first. --verify asks lb-linker, CoreDNS,
    /// NodeLocal DNSCache and the resolver of the Pod for the name of a load balancer; run it in a Pod, such as
    /// lb-linker's. The zones are those of --zone or --corefile, as for `run`; --verify also uses the other
    /// flags about links.
    #[command(mut_args = |arg| { let hide = !for_stub(arg.get_id().as_str()); arg.hide(hide) })]
    Stub {
        /// Print the configuration of this resolver [default: all resolvers of the cluster]
        #[arg(value_enum, conflicts_with_all = ["apply", "remove", "verify"])]
        resolver: Option<Resolver>,
        /// Add the zones to the ConfigMaps of CoreDNS and NodeLocal DNSCache
        #[arg(long, conflicts_with = "manifests")]
        apply: bool,
        /// Remove what --apply has added for the zones
        #[arg(long, conflicts_with_all = ["apply", "manifests"])]
        remove: bool,
        /// Ask each resolver, and name the first that answers wrongly; exit code 1 if there is one
        #[arg(long, conflicts_with_all = ["apply", "remove", "manifests"])]
        verify: bool,
        /// With --apply or --remove: don't ask
        #[arg(long)]
        yes: bool,
        /// lb-linker's Service [default: the one in the namespace of this Pod, or that of the release]
        #[arg(long, value_name = "NAMESPACE/NAME")]
        service: Option<String>,
        #[command(flatten)]
        flags: Box<Flags>,
    },
    /// Ask two DNS servers for all names of the cluster, and print where their answers differ
    ///
    /// For a change from CoreDNS to lb-linker, before any client is moved. Reads Services, EndpointSlices, Namespaces and
    /// Pods, and asks both servers for their names in --cluster-domain, for the PTR records of their addresses, and for as
    /// many names that don't exist: A, AAAA, SRV, PTR, TXT, CNAME, HTTPS and SOA. What differs is asked again; differences
    /// that the manual of the plugin kubernetes explains are only counted. Exit code 1 if answers differ, 2 if the servers
    /// can't be compared.
    #[command(
        mut_args = |arg| { let hide = !for_compare(arg.get_id().as_str()); arg.hide(hide) },
        after_help = "Example: lb-linker compare --server 10.96.0.10 --server 10.96.0.53"
    )]
    Compare {
        /// A server; the flag is given twice. Port 53 by default
        #[arg(long = "server", value_name = "ADDRESS[:PORT]", required = true, value_parser = server)]
        servers: Vec<SocketAddr>,
        /// Questions per second to each server
        #[arg(
            long,
            value_name = "NUMBER",
            default_value_t = 500,
            value_parser = clap::value_parser!(u32).range(1..=10_000)
        )]
        rate: u32,
        #[command(flatten)]
        flags: Box<Flags>,
    },
    /// Print the completions for a shell
    ///
    /// For bash: `source <(lb-linker completion bash)`. For zsh and fish, write them to a file: docs/reference.md.
    Completion { shell: Shell },
    /// Ask a DNS server, as dig does
    ///
    /// Prints the answer; exit code 1 if there is none. A type is optional (A by default), and so is the server: an
    /// lb-linker on the same machine or in the same Pod, 127.0.0.1:53, is asked by default. As in dig, +short prints only
    /// the data of the answer.
    #[command(
        override_usage = "lb-linker query [@ADDRESS[:PORT]] NAME [TYPE] [+short]",
        after_help = "Example: lb-linker query @127.0.0.1:5301 my-sample-lb-default.lb.internal CNAME"
    )]
    Query {
        /// The server, the name and the type
        #[arg(value_name = "ARGUMENT", hide = true)]
        arguments: Vec<String>,
    },
}

/// Returns whether `takeover` uses a flag. `takeover` accepts all other flags as well, because `run` and `takeover` may
/// share environment variables.
fn for_takeover(flag: &str) -> bool {
    [
        "kubeconfig",
        "context",
        "target_namespace",
        "instance",
        "lease_name",
        "watch_namespaces",
        "service_selector",
        "load_balancer_classes",
        "selection",
        "annotation_prefixes",
        "sync",
        "dry_run",
        "yes",
    ]
    .contains(&flag)
}

/// Returns whether `links` uses a flag. `links` accepts all other flags of `run`, too.
fn for_links(flag: &str) -> bool {
    [
        "service",
        "namespace",
        "all_namespaces",
        "output_format",
        "watch",
        "admin_listen",
        "kubeconfig",
        "context",
        "manifests",
        "corefile",
        "zones",
        "target_namespace",
        "instance",
        "watch_namespaces",
        "service_selector",
        "load_balancer_classes",
        "selection",
        "hostname_annotations",
        "annotation_prefixes",
        "hostname_namespaces",
        "cluster_domain",
        "target_domains",
        "target_nets",
        "denied_nets",
        "allowed_nets",
    ]
    .contains(&flag)
}

/// Returns whether `names` uses a flag. `names` accepts all other flags of `run`, too.
fn for_names(flag: &str) -> bool {
    ["name", "sources"].contains(&flag) || for_links(flag) && !["service", "watch"].contains(&flag)
}

/// Returns whether `scan` uses a flag. `scan` accepts all other flags of `run`, too.
fn for_scan(flag: &str) -> bool {
    let own = ["namespace", "output_format", "apply", "yes", "upstream"].contains(&flag);
    own || for_links(flag)
        && !["service", "all_namespaces", "watch", "admin_listen", "manifests"].contains(&flag)
}

/// Returns whether `stub` uses a flag. `stub` accepts all other flags of `run`, too.
fn for_stub(flag: &str) -> bool {
    let own = ["resolver", "apply", "remove", "verify", "yes", "service"].contains(&flag);
    own || for_links(flag)
        && !["namespace", "all_namespaces", "output_format", "watch", "admin_listen", "manifests"]
            .contains(&flag)
}

/// Returns whether `compare` uses a flag. `compare` accepts all other flags of `run`, too.
fn for_compare(flag: &str) -> bool {
    ["servers", "rate", "kubeconfig", "context", "cluster_domain"].contains(&flag)
}

/// Reads the command line and the environment. Ends the process if they are wrong, or ask for help.
fn command_line() -> Result<Cli, ExitCode> {
    let mut command = Cli::command();
    let arguments = arguments(&command);
    let matches = command.try_get_matches_from_mut(arguments).unwrap_or_else(|error| {
        if let Some(variable) = refused_variable(&error) {
            // Ignore EPIPE: stderr may be closed.
            let _ = writeln!(std::io::stderr(), "lb-linker: the environment variable {variable} is wrong:");
        }
        error.exit()
    });
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let of_command = matches.subcommand().map_or(&matches, |(_, of_command)| of_command);
    match replaced_flags(of_command) {
        Some(problem) => Err(exit_with_error(&problem, BAD_INPUT)),
        None => Ok(cli),
    }
}

/// Runs lb-linker with the arguments and the environment of this process. Returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match command_line() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return exit_with_error(&format!("no thread can be started: {error}"), FAILED),
    };
    let code = execute(cli, &runtime);
    // Doesn't wait for blocking tasks: a file system that doesn't respond must not delay the exit.
    runtime.shutdown_background();
    kill_credential_programs();
    code
}

/// Runs the command.
fn execute(cli: Cli, runtime: &Runtime) -> ExitCode {
    match cli.command {
        None => runtime.block_on(start(cli.flags)),
        Some(Command::Run { flags }) => runtime.block_on(start(*flags)),
        Some(Command::Check { flags, cluster }) => runtime.block_on(report(&flags, cluster)),
        Some(Command::Takeover { flags, dry_run, yes }) => runtime.block_on(take_over(&flags, dry_run, !yes)),
        Some(Command::Links { output_format: Some(format), watch: true, .. })
            if format != OutputFormat::Wide =>
        {
            exit_with_error(
                "--watch prints a table: of the formats, only -o wide can be given with it",
                BAD_INPUT,
            )
        }
        Some(Command::Links {
            service,
            namespace,
            all_namespaces: _,
            output_format,
            watch,
            followers,
            flags,
        }) => match LinkFilter::new(namespace, service) {
            Err(error) => exit_with_error(&error.to_string(), BAD_INPUT),
            Ok(filter) if followers => runtime.block_on(list_followers(*flags, &filter, output_format)),
            Ok(filter) => runtime.block_on(links(*flags, &filter, output_format, watch)),
        },
        Some(Command::Names { name, namespace, all_namespaces: _, output_format, flags }) => {
            let filter = NameFilter { name, namespace, ..NameFilter::default() };
            runtime.block_on(list_names(*flags, &filter, output_format))
        }
        Some(Command::Scan { namespace, output_format, apply, yes, flags }) => {
            let output = if output_format.is_some() { ScanOutput::Json } else { ScanOutput::Text };
            runtime.block_on(scan_cluster(*flags, namespace, output, apply.then_some(yes)))
        }
        Some(Command::Stub { apply: false, remove: false, yes: true, .. }) => {
            exit_with_error("--yes needs --apply or --remove", BAD_INPUT)
        }
        Some(Command::Stub { resolver, apply, remove, verify, yes, service, flags }) => {
            let action = match (apply, remove, verify) {
                (true, ..) => StubAction::Apply { ask: !yes },
                (_, true, _) => StubAction::Remove { ask: !yes },
                (.., true) => StubAction::Verify,
                _ => StubAction::Print(resolver),
            };
            runtime.block_on(stub(*flags, service.as_deref(), action))
        }
        Some(Command::Compare { servers, rate, flags }) => runtime.block_on(compare(&flags, &servers, rate)),
        Some(Command::Completion { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "lb-linker", &mut script);
            // Ignore EPIPE: stdout may be closed (`| head`).
            let _ = std::io::stdout().write_all(&script);
            ExitCode::SUCCESS
        }
        Some(Command::Query { arguments }) => runtime.block_on(query(&arguments)),
    }
}

async fn start(flags: Flags) -> ExitCode {
    let set_debug = match start_log(flags.log_format) {
        Ok(set_debug) => set_debug,
        Err(error) => return refuse_log_filter(&error),
    };
    let stop = CancellationToken::new();
    if let Err(error) = stop_on_signals(&stop) {
        return exit_with_error(&format!("signals can't be waited for: {error}"), FAILED);
    }
    match run(flags, stop, set_debug).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Returns the directives of the log filter, and what is wrong with them.
fn log_directives() -> (String, Option<LogFilterProblem>) {
    log_filter(std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| DEFAULT_LOG.to_owned()))
}

fn refuse_log_filter(error: &ParseError) -> ExitCode {
    exit_with_error(&format!("{}: {error}", EnvFilter::DEFAULT_ENV), BAD_INPUT)
}

async fn report(flags: &Flags, ask_cluster: bool) -> ExitCode {
    let (directives, problem) = log_directives();
    if let Err(error) = EnvFilter::try_new(directives) {
        return refuse_log_filter(&error);
    }
    let mut check_report = match check(flags, ask_cluster).await {
        Ok(check_report) => check_report,
        Err(error) => return fail(&error.into()),
    };
    match problem {
        Some(LogFilterProblem { text, is_typing_error: true }) => check_report.input_errors.push(text),
        problem => check_report.lines.extend(problem.map(|problem| problem.text)),
    }
    let mut out = std::io::stdout().lock();
    let found = check_report.cluster_errors.iter().map(|error| format!("error: {error}"));
    for line in check_report.lines.iter().cloned().chain(found) {
        // Ignore EPIPE: stdout may be closed (`| head`).
        let _ = writeln!(out, "{}", printable(&line, &['\t']));
    }
    let warnings = check_report.warnings.iter().map(|warning| format!("warning: {warning}"));
    warnings.chain(check_report.input_errors.iter().cloned()).for_each(|problem| print_problem(&problem));
    if !check_report.input_errors.is_empty() {
        ExitCode::from(BAD_INPUT)
    } else if !check_report.cluster_errors.is_empty() {
        ExitCode::from(FAILED)
    } else {
        ExitCode::SUCCESS
    }
}

async fn take_over(flags: &Flags, dry_run: bool, ask: bool) -> ExitCode {
    if flags.manifests.is_some() {
        return exit_with_error("takeover is about a cluster: leave out --manifests", BAD_INPUT);
    }
    // Ignore EPIPE: stderr and stdout may be closed.
    let progress = |line: &str| drop(writeln!(std::io::stderr(), "{line}"));
    let print = |line: &String| drop(writeln!(std::io::stdout(), "{}", printable(line, &[])));
    let objection = |objects: &[String], plan: &[String], server: &ApiServer| {
        if !ask {
            return None;
        }
        plan.iter().for_each(print);
        confirm(objects, server).err()
    };
    let outcome = match takeover(flags, dry_run, objection, progress).await {
        Ok(outcome) => outcome,
        Err(error) => return fail(&error.into()),
    };
    outcome.lines.iter().for_each(print);
    for problem in &outcome.problems {
        print_problem(problem);
    }
    if outcome.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

async fn query(arguments: &[String]) -> ExitCode {
    let (short, arguments): (Vec<_>, Vec<_>) =
        arguments.iter().cloned().partition(|argument| argument == SHORT);
    let question = match Question::parse(&arguments) {
        Ok(question) => question,
        Err(error) => return exit_with_error(&error.to_string(), BAD_INPUT),
    };
    match question.ask().await {
        Ok(answer) => {
            let text = if short.is_empty() { format!("{answer}\n") } else { answer.short() };
            // Ignore EPIPE: stdout may be closed (`| head`).
            let _ = write!(std::io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(error) => exit_with_error(&error.to_string(), FAILED),
    }
}

/// Starts the log; returns a function that switches the log level of DNS to `debug` and back.
fn start_log(format: LogFormat) -> Result<SetDebug, ParseError> {
    let (directives, problem) = log_directives();
    let (filter, handle) = reload::Layer::new(EnvFilter::try_new(&directives)?);
    let log = tracing_subscriber::fmt::layer()
        .with_target(false)
        // A closed stderr must not stop the task that logs.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => registry.with(log).init(),
        LogFormat::Json => registry.with(log.with_ansi(false).event_format(JsonLines)).init(),
    }
    problem.iter().for_each(|problem| warn!("{}", problem.text));
    Ok(Box::new(move |debug| {
        let directives =
            if debug { format!("{directives},lb_linker::dns=debug") } else { directives.clone() };
        // The directives were valid at the start, and remain valid with one more.
        if let Ok(filter) = EnvFilter::try_new(directives) {
            let _ = handle.reload(filter);
        }
    }))
}

/// Stops gracefully at the first SIGTERM or SIGINT, and exits at once at the second one.
fn stop_on_signals(stop: &CancellationToken) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Ignores SIGHUP, like CoreDNS, and SIGUSR1, which may come before its handler is installed.
    for harmless in [SignalKind::hangup(), SignalKind::user_defined1()] {
        drop(signal(harmless)?);
    }
    let stop = stop.clone();
    tokio::spawn(async move {
        for last in [false, true] {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if last {
                kill_credential_programs();
                std::process::exit(i32::from(FAILED));
            }
            stop.cancel();
            info!("{name}: stopping");
        }
    });
    Ok(())
}
