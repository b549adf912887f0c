//! The command line of lb-linker.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, reload};

use jiff::Timestamp;
use lb_linker::app::error::RunError;
use lb_linker::app::link_reader::LinkReader;
use lb_linker::app::link_source::LinkSource;
use lb_linker::app::run;
use lb_linker::cli::check::check;
use lb_linker::cli::flags::{Flags, LogFormat};
use lb_linker::dns::server::instance::SetDebug;
use lb_linker::links::output::render;
use lb_linker::links::table::{TableOptions, table};
use lb_linker::links::view::LinkView;
use lb_linker::links::{LinkFilter, OutputFormat};
use lb_linker::query::Question;
use lb_linker::scan::annotate::annotate;
use lb_linker::scan::report::report as scan_report;
use lb_linker::scan::{ScanScope, scan};
use lb_linker::sync::k8s::client::connect;
use lb_linker::takeover::takeover;
use tikv_jemallocator::Jemalloc;

/// The exit code for a failure at runtime, or for a cluster that lacks something.
const FAILED: u8 = 1;
/// The exit code for invalid flags and files.
const BAD_INPUT: u8 = 2;

/// jemalloc, because the C library's allocator mixes small short-lived allocations with long-lived ones, and can't
/// return the gaps to the system.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// jemalloc's settings: one arena, because little is allocated on hot paths; pages that are unused for 1 s return to
/// the system. The environment variable `_RJEM_MALLOC_CONF` overrides these settings.
#[expect(unsafe_code, reason = "jemalloc looks for its settings by this name")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_SETTINGS: &[u8; 95] =
    b"narenas:1,background_thread:true,max_background_threads:1,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// kube's warnings repeat an error on every retry, which lb-linker logs once; any packet can cause hickory's warnings.
const DEFAULT_LOG: &str = "info,hickory_proto=error,kube_client=off,kube_runtime=off,notify=off";

/// As [`DEFAULT_LOG`], for commands that only read: nothing about single Services, because their states tell it.
const READING_LOG: &str = "warn,lb_linker::sync::k8s::service_log=error,lb_linker::sync::events=error,\
    lb_linker::sync::external_target=error,hickory_proto=error,kube_client=off,kube_runtime=off,notify=off";

/// Stable DNS names for load balancers: watches LoadBalancer Services, keeps an ExternalName Service for
/// each, and answers DNS for them.
#[derive(Parser)]
#[command(name = "lb-linker", version, args_conflicts_with_subcommands = true)]
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
    /// code 1 if some Services couldn't be changed
    #[command(mut_args = |arg| { let hide = !for_takeover(arg.get_id().as_str()); arg.hide(hide) })]
    Takeover {
        #[command(flatten)]
        flags: Box<Flags>,
        /// Only print what would be done
        #[arg(long, conflicts_with = "manifests")]
        dry_run: bool,
    },
    /// List the links: load balancers, their DNS names, targets and states
    ///
    /// Asks the lb-linker that runs on the same machine or in the same Pod, at --admin-listen. Without one, or with
    /// --kubeconfig, --context or --manifests, reads the load balancers of the cluster or the manifests, and writes
    /// nothing: then give the same flags and variables as for `run`, so that names and targets are the same. With the
    /// name of one Service, prints that link in detail; a running lb-linker also tells its last changes.
    #[command(mut_args = |arg| { let hide = !for_links(arg.get_id().as_str()); arg.hide(hide) })]
    Links {
        /// Only Services of this name
        service: Option<String>,
        /// Only Services of this namespace [default: all namespaces]
        #[arg(short, long, value_name = "NAMESPACE", conflicts_with = "all_namespaces")]
        namespace: Option<String>,
        /// Services of all namespaces, which is the default
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        /// Format of the output [default: a table, or details of one link]
        #[arg(short, long, value_name = "FORMAT", value_enum)]
        output_format: Option<OutputFormat>,
        /// After the table, print each link that is new, changes or is removed, until Ctrl-C
        #[arg(short, long)]
        watch: bool,
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
        #[arg(short, long, value_name = "FORMAT", value_parser = ["json"], conflicts_with = "apply")]
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
    /// Print the completions for a shell
    ///
    /// For bash: `source <(lb-linker completion bash)`. For zsh and fish, write them to a file: docs/reference.md.
    Completion { shell: Shell },
    /// Ask a DNS server, as dig does
    ///
    /// Prints the answer; exit code 1 if there is none. A type is optional (A by default), and so is the server: an
    /// lb-linker on the same machine or in the same Pod, 127.0.0.1:53, is asked by default.
    #[command(
        override_usage = "lb-linker query [@ADDRESS[:PORT]] NAME [TYPE]",
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
        "selection",
        "sync",
        "dry_run",
    ]
    .contains(&flag)
}

/// Returns whether `links` uses a flag. It accepts all other flags of `run`, too.
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
        "watch_namespaces",
        "service_selector",
        "selection",
        "hostname_annotations",
        "hostname_namespaces",
        "cluster_domain",
        "target_domains",
        "target_nets",
        "denied_nets",
        "allowed_nets",
    ]
    .contains(&flag)
}

/// Returns whether `scan` uses a flag. It accepts all other flags of `run`, too.
fn for_scan(flag: &str) -> bool {
    let own = ["namespace", "output_format", "apply", "yes", "upstream"].contains(&flag);
    own || for_links(flag)
        && !["service", "all_namespaces", "watch", "admin_listen", "manifests"].contains(&flag)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return exit_with_error(&error.to_string(), FAILED),
    };
    let code = match cli.command {
        None => runtime.block_on(start(cli.flags)),
        Some(Command::Run { flags }) => runtime.block_on(start(*flags)),
        Some(Command::Check { flags, cluster }) => runtime.block_on(report(&flags, cluster)),
        Some(Command::Takeover { flags, dry_run }) => runtime.block_on(take_over(&flags, dry_run)),
        Some(Command::Links { output_format: Some(format), watch: true, .. })
            if format != OutputFormat::Wide =>
        {
            exit_with_error(
                "--watch prints a table: of the formats, only -o wide can be given with it",
                BAD_INPUT,
            )
        }
        Some(Command::Links { service, namespace, all_namespaces: _, output_format, watch, flags }) => {
            let filter = LinkFilter { namespace, service };
            runtime.block_on(links(*flags, &filter, output_format, watch))
        }
        Some(Command::Scan { namespace, output_format, apply, yes, flags }) => {
            let output = if output_format.is_some() { ScanOutput::Json } else { ScanOutput::Text };
            runtime.block_on(scan_cluster(*flags, namespace, output, apply.then_some(yes)))
        }
        Some(Command::Completion { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "lb-linker", &mut script);
            // Ignore EPIPE: stdout may be closed (`| head`).
            let _ = std::io::stdout().write_all(&script);
            ExitCode::SUCCESS
        }
        Some(Command::Query { arguments }) => runtime.block_on(query(&arguments)),
    };
    // Doesn't wait for blocking tasks: a file system that doesn't respond must not delay the exit.
    runtime.shutdown_background();
    code
}

async fn start(flags: Flags) -> ExitCode {
    let set_debug = match start_log(flags.log_format) {
        Ok(set_debug) => set_debug,
        Err(error) => return exit_with_error(&format!("RUST_LOG: {error}"), BAD_INPUT),
    };
    let stop = CancellationToken::new();
    if let Err(error) = stop_on_signals(&stop) {
        return exit_with_error(&error.to_string(), FAILED);
    }
    match run(flags, stop, set_debug).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

async fn report(flags: &Flags, ask_cluster: bool) -> ExitCode {
    let check_report = match check(flags, ask_cluster).await {
        Ok(check_report) => check_report,
        Err(error) => return fail(&error.into()),
    };
    let mut out = std::io::stdout().lock();
    for line in &check_report.lines {
        // Ignore EPIPE: stdout or stderr may be closed (`| head`).
        let _ = writeln!(out, "{line}");
    }
    for problem in check_report.input.iter().chain(&check_report.cluster) {
        exit_with_error(problem, 0);
    }
    if !check_report.input.is_empty() {
        ExitCode::from(BAD_INPUT)
    } else if !check_report.cluster.is_empty() {
        ExitCode::from(FAILED)
    } else {
        ExitCode::SUCCESS
    }
}

async fn take_over(flags: &Flags, dry_run: bool) -> ExitCode {
    if flags.manifests.is_some() {
        return exit_with_error("takeover is about a cluster: leave out --manifests", BAD_INPUT);
    }
    // Ignore EPIPE: stdout or stderr may be closed (`| head`).
    let progress = |line: &str| drop(writeln!(std::io::stderr(), "{line}"));
    let outcome = match takeover(flags, dry_run, progress).await {
        Ok(outcome) => outcome,
        Err(error) => return fail(&error.into()),
    };
    let mut out = std::io::stdout().lock();
    for line in &outcome.lines {
        let _ = writeln!(out, "{line}");
    }
    for problem in &outcome.problems {
        exit_with_error(problem, 0);
    }
    if outcome.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

/// Prints the links that a filter selects; with `watch` also later changes, until Ctrl-C.
async fn links(flags: Flags, filter: &LinkFilter, format: Option<OutputFormat>, watch: bool) -> ExitCode {
    log_warnings();
    let mut source = match LinkSource::open(flags, filter.clone()).await {
        Ok(source) => source,
        Err(error) => return fail(&error),
    };
    if let Some((name, address)) = source.instance() {
        let _ = writeln!(std::io::stderr(), "from {name}, the lb-linker at {address}");
    }
    let options = TableOptions {
        with_namespace: filter.namespace.is_none(),
        wide: format == Some(OutputFormat::Wide),
        color: std::io::stdout().is_terminal(),
        without_header: false,
    };
    let is_detail = filter.service.is_some() && !watch;
    let mut shown = source.links();
    let now = Timestamp::now().as_second();
    let text = match render(&shown, format, is_detail, now, options) {
        Ok(text) => text,
        Err(error) => return exit_with_error(&error.to_string(), FAILED),
    };
    if shown.is_empty() {
        let _ = writeln!(std::io::stderr(), "no load balancer found");
    }
    // EPIPE: stdout may be closed (`| head`).
    let print = |text: &str| write!(std::io::stdout(), "{text}").is_ok();
    let mut is_open = print(&text);
    if shown.is_empty() && is_detail {
        return ExitCode::from(FAILED);
    }
    while watch && is_open {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => break,
            changed = source.changed() => if let Err(error) = changed {
                return fail(&error);
            },
        }
        let current = source.links();
        let is_current = |link: &&LinkView| current.iter().any(|it| it.key() == link.key());
        let removed = shown.iter().filter(|link| !is_current(link)).map(LinkView::removed);
        let changed = current.iter().filter(|link| !shown.contains(link)).cloned();
        let changed: Vec<LinkView> = removed.chain(changed).collect();
        let options = TableOptions { without_header: true, ..options };
        is_open = table(&changed, Timestamp::now().as_second(), options)
            .iter()
            .all(|line| print(&format!("{line}\n")));
        shown = current;
    }
    ExitCode::SUCCESS
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ScanOutput {
    Text,
    Json,
}

/// Prints what a scan finds. With `apply`, also annotates Services, after a question unless it is `Some(true)`.
async fn scan_cluster(
    flags: Flags,
    namespace: Option<String>,
    output: ScanOutput,
    apply: Option<bool>,
) -> ExitCode {
    if flags.manifests.is_some() {
        return exit_with_error("scan is about a cluster: leave out --manifests", BAD_INPUT);
    }
    log_warnings();
    let resolvers = match flags.resolvers() {
        Ok(resolvers) => resolvers,
        Err(error) => return fail(&error.into()),
    };
    let connection = match connect(flags.kubeconfig.clone(), flags.context.clone()).await {
        Ok(connection) => connection,
        Err(error) => return fail(&error.into()),
    };
    let target_namespace = flags.target_namespace.clone();
    let reader = match LinkReader::open(flags).await {
        Ok(reader) => reader,
        Err(error) => return fail(&error),
    };
    let scope = ScanScope {
        client: &connection.client,
        store: &reader.store,
        target_namespace: &target_namespace,
        namespace: namespace.as_deref(),
        resolvers: &resolvers,
    };
    let found = match scan(&scope).await {
        Ok(found) => found,
        Err(error) => return exit_with_error(&error.explain(""), FAILED),
    };
    // Ignore EPIPE: stdout or stderr may be closed (`| head`).
    let print = |line: &str| drop(writeln!(std::io::stdout(), "{line}"));
    match output {
        ScanOutput::Text => scan_report(&found).iter().for_each(|line| print(line)),
        ScanOutput::Json => match serde_json::to_string_pretty(&found) {
            Ok(text) => print(&text),
            Err(error) => return exit_with_error(&error.to_string(), FAILED),
        },
    }
    for notice in &found.notices {
        exit_with_error(notice, 0);
    }
    let Some(without_question) = apply.filter(|_| !found.exact.is_empty()) else { return ExitCode::SUCCESS };
    if !without_question && !confirm(&format!("Annotate Services: {}?", found.exact.len())) {
        return exit_with_error("nothing was changed; --yes leaves out the question", FAILED);
    }
    let problems = annotate(&connection.client, &found.exact, print).await;
    for problem in &problems {
        exit_with_error(problem, 0);
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

/// Asks a question on the terminal. Returns whether the answer begins with y.
fn confirm(question: &str) -> bool {
    let _ = write!(std::io::stderr(), "{question} [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok()
        && answer.trim_start().to_ascii_lowercase().starts_with('y')
}

async fn query(arguments: &[String]) -> ExitCode {
    let question = match Question::parse(arguments) {
        Ok(question) => question,
        Err(error) => return exit_with_error(&error.to_string(), BAD_INPUT),
    };
    match question.ask().await {
        Ok(answer) => {
            // Ignore EPIPE: stdout or stderr may be closed (`| head`).
            let _ = writeln!(std::io::stdout(), "{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => exit_with_error(&error.to_string(), FAILED),
    }
}

/// Starts the log of a command that only reads: nothing but what keeps it from reading.
fn log_warnings() {
    let warnings = tracing_subscriber::fmt().with_env_filter(READING_LOG).with_writer(std::io::stderr);
    warnings.with_target(false).with_ansi(std::io::stderr().is_terminal()).init();
}

fn fail(error: &RunError) -> ExitCode {
    exit_with_error(&error.to_string(), if error.is_input() { BAD_INPUT } else { FAILED })
}

fn exit_with_error(problem: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "lb-linker: {problem}");
    ExitCode::from(code)
}

/// Starts the log; returns a function that switches the log level of DNS to `debug` and back.
fn start_log(format: LogFormat) -> Result<SetDebug, ParseError> {
    let directives = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| DEFAULT_LOG.to_owned());
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
        LogFormat::Json => registry.with(log.json()).init(),
    }
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
                std::process::exit(i32::from(FAILED));
            }
            stop.cancel();
            info!("{name}: stopping");
        }
    });
    Ok(())
}
