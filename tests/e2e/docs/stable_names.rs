//! docs/stable-names.md: its commands, run in their order beside a running lb-linker, and its outputs; and the
//! conditions in docs/stable-names-reference.md.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use regex::Regex;

use super::health_check::{fenced, gitops, health};
use super::{STABLE_NAMES, repository};
use crate::harness::cluster::Ingress;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{FaultyUpstream, address, answers};
use crate::harness::linker::Linker;
use crate::harness::programs::programs;
use crate::harness::{EVENT_TIMEOUT, PollPauses, apply_deploy, eventually};
use crate::recreation::wait_for_external_target;

/// The hostnames of the load balancers on the page.
const SEOUL: &str = "web-4fb5d0.lb.example-cloud.com";
const BUSAN: &str = "web-dr-77c0d.lb.example-cloud.com";

/// Sets the status of a quota to used up, as a controller-manager does, and creates a StableName, which the quota
/// refuses.
const OVER_QUOTA: &str = r#"
count='{"count/stablenames.linker.hsj.com":"20"}'
kubectl patch resourcequota stable-names -n shop --subresource=status --type=merge \
    -p "{\"status\":{\"hard\":$count,\"used\":$count}}"
kubectl create --dry-run=server -n shop -f - <<'EOF' || exit 0
apiVersion: linker.hsj.com/v1alpha1
kind: StableName
metadata: {name: one-too-many}
spec: {sources: [{name: fixed, hostname: lb.example.com}]}
EOF
"#;

/// Commands of the page, and the output that it shows for them.
struct Step {
    commands: String,
    output: Option<String>,
}

/// Returns the commands of the page.
fn steps() -> Vec<Step> {
    let page = fs::read_to_string(repository().join(STABLE_NAMES)).unwrap();
    let mut steps: Vec<Step> = Vec::new();
    let mut is_after_blank = true;
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            if language == "text" {
                steps.last_mut().expect("an output follows its commands").output = Some(block.join("\n"));
            }
            continue;
        }
        let text = line.trim_start();
        let depth = line.len() - text.len();
        if depth >= 4 && is_after_blank {
            assert!(text.starts_with("kubectl "), "{text} isn't a command that this test can run");
            let mut commands = format!("{text}\n");
            while let Some(line) = lines.next_if(|line| !line.is_empty()) {
                commands.push_str(&line[depth..]);
                commands.push('\n');
            }
            steps.push(Step { commands, output: None });
        }
        is_after_blank = text.is_empty();
    }
    steps
}

/// Runs commands with kubectl, and returns their output.
///
/// # Panics
/// If a command fails.
fn run(plane: &ControlPlane, commands: &str) -> String {
    let mut shell = Command::new("sh");
    for (name, value) in plane.kubectl_command().get_envs() {
        shell.env(name, value.unwrap());
    }
    let folder = programs().kubectl.parent().unwrap();
    shell.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
    let script = format!("exec 2>&1\n{commands}");
    shell.args(["-ec", &script]).current_dir(repository()).stdin(Stdio::null());
    let output = shell.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{commands}{text}");
    text
}

/// Returns the lines with one space between words, and with `AGE` in place of each age.
fn words(output: &str) -> Vec<String> {
    let age = Regex::new(r"^\d+[smhd](\d+[smh])?$").unwrap();
    let word = |word: &str| if age.is_match(word) { "AGE".to_owned() } else { word.to_owned() };
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    output.lines().map(line).collect()
}

/// Runs commands, and checks that they print what the page shows. Repeats `kubectl get`, because the first checks of
/// standby sources, and the writes of the results, may take some seconds.
async fn run_step(plane: &ControlPlane, step: &Step) {
    let is_read = step.commands.lines().all(|line| line.starts_with("kubectl get "));
    let (deadline, mut pauses) = (Instant::now() + EVENT_TIMEOUT, PollPauses::new());
    loop {
        let output = run(plane, &step.commands);
        let is_expected = |expected| words(&output) == words(expected);
        if step.output.as_deref().is_none_or(is_expected) {
            return println!("{}{output}", step.commands);
        }
        let goes_on = is_read && Instant::now() < deadline;
        let expected = step.output.as_deref().unwrap_or_default();
        assert!(goes_on, "{}gives\n{output}instead of\n{expected}", step.commands);
        pauses.next().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_the_page_print_the_outputs_on_the_page() {
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    for namespace in ["shop", "shop-dr"] {
        plane.create_namespace(namespace);
    }
    let cluster = plane.cluster().await;
    for (namespace, name, host) in
        [("shop", "web", Some(SEOUL)), ("shop-dr", "web", Some(BUSAN)), ("shop", "next", None)]
    {
        cluster.create_load_balancer(namespace, name).await;
        if let Some(host) = host {
            cluster.set_ingress(namespace, name, &[Ingress::Hostname(host)]).await;
        }
    }
    let upstream = FaultyUpstream::start(|asked, _| vec![address(asked, 1, 5)]).await;
    let address = upstream.address.to_string();
    let linker = Linker::in_cluster(&plane, "external-targets", &["--upstream", &address]);
    linker.ready().await;

    let question = "web.shop.lb.internal. CNAME";
    let steps = steps();
    assert!(steps.len() > 10 && steps.iter().filter(|step| step.output.is_some()).count() > 5);
    for step in &steps {
        if step.commands.contains("kubectl explain") {
            // The API server publishes the schema of a new CRD a moment later.
            let is_known = || async { plane.try_kubectl(&["explain", "sn.spec"]).ok() };
            eventually("the schema of StableNames", is_known).await;
        }
        run_step(&plane, step).await;
        if step.commands.contains("create quota") {
            let refusal = "exceeded quota: stable-names";
            let is_refused = || async { run(&plane, OVER_QUOTA).contains(refusal).then_some(()) };
            eventually("the quota is in force", is_refused).await;
        }
        if step.commands.contains("--for=condition=Ready") && step.commands.contains("sn/web ") {
            let object = run(&plane, "kubectl get sn web -n shop -o json");
            let object: serde_json::Value = serde_json::from_str(&object).unwrap();
            let (status, message) = health(&object);
            assert_eq!(status, "Healthy", "{message}");
            let source = object["status"]["target"]["source"].as_str().unwrap();
            assert!(message.contains(source), "{message}");
            let target = object["status"]["target"]["hostname"].as_str().unwrap();
            answers(linker.dns, question, &format!("{target}.")).await;
            wait_for_external_target(&cluster, "external-targets", "web-shop-ext", target).await;
        }
    }
    answers(linker.dns, question, &format!("{SEOUL}.")).await;
}

/// Returns the texts between backticks in a column of the tables of a section.
fn column(page: &str, heading: &str, column: usize) -> BTreeSet<String> {
    let text = fs::read_to_string(repository().join(page)).unwrap();
    let (_, section) = text.split_once(&format!("\n{heading}\n")).unwrap();
    let level = format!("\n{} ", heading.split(' ').next().unwrap());
    let section = section.split(&level).next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(column + 1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

#[test]
fn page_has_all_condition_reasons_of_the_program() {
    let source = |file: &str| fs::read_to_string(repository().join("src/sync").join(file)).unwrap();
    let conditions = source("stable_name/decision/conditions.rs");
    let reason = Regex::new(r#""([A-Z][a-z]+[A-Z][A-Za-z]+|Accepted|Unverified)""#).unwrap();
    let refusal = Regex::new(r#"Self::\w+ => "(\w+)""#).unwrap();
    let refusals = source("stable_name/decision/spec.rs");
    let found = reason.captures_iter(&conditions).chain(refusal.captures_iter(&refusals));
    let mut known: BTreeSet<String> = found.map(|found| found[1].to_owned()).collect();
    known.insert("CutoverTimedOut".to_owned());
    let page = column("docs/stable-names-reference.md", "## Conditions", 2);
    let missing: Vec<_> = known.difference(&page).collect();
    assert!(missing.is_empty(), "the page lacks {missing:?}");
}

#[test]
fn yaml_of_the_page_and_its_files_is_an_object() {
    assert_eq!(gitops("flux-kustomization.yaml")["kind"], "Kustomization");
    for block in fenced("yaml") {
        let value: serde_json::Value = serde_saphyr::from_str(&block).unwrap();
        assert!(value.is_object(), "{block}");
    }
}
