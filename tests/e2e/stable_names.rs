//! StableNames in a real API server: which objects the CRD accepts, and what kubectl prints.

pub(crate) mod bad_input;

use std::path::PathBuf;
use std::sync::OnceLock;

use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::core::response::StatusCause;
use lb_linker::api::crd;
use lb_linker::api::stable_name::StableName;
use lb_linker::api::status::SourceState;
use serde_json::{Value, json};

use crate::harness::clients::client;
use crate::harness::cluster::Ingress;
use crate::harness::control_plane::ControlPlane;
use crate::harness::linker::run_to_end;
use crate::harness::{deploy, eventually, permission};

/// A StableName with every field of the spec.
const WEB: &str = "
apiVersion: linker.hsj.com/v1alpha1
kind: StableName
metadata: {name: web}
spec:
  sources:
    - {name: seoul, service: {name: web}}
    - {name: busan, service: {name: web, namespace: shop-dr}}
    - {name: fixed, hostname: lb.example.com}
    - {name: last, addresses: [192.0.2.10, 2001:db8::10]}
  check: {periodSeconds: 30, timeoutSeconds: 2, failureThreshold: 3, successThreshold: 2, tcpPort: 443}
  cutover: {maxWaitSeconds: 300}
  failback: {mode: Automatic, afterSeconds: 300}
  pin: busan
  hostnames: [www.shop.lb.internal]
  ttlSeconds: 5
  allowFrom: [app]
  alerts: {ruleLabels: {release: monitoring}, labels: {team: shop}, notReadyForSeconds: 300, failedOverForSeconds: 900}
";

/// Returns a control plane with `deploy/crd/`, and a namespace for one test.
async fn plane_and_namespace() -> (&'static ControlPlane, String) {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    let plane = ControlPlane::shared_for_stable_names();
    INSTALLED.get_or_init(|| {
        plane.kubectl(&["apply", "--validate=strict", "-f", deploy().join("crd").to_str().unwrap()]);
        plane.wait_for_crds(&["stablenames.linker.hsj.com"]);
    });
    (plane, plane.cluster().await.create_namespace("sn").await)
}

async fn api(plane: &ControlPlane, namespace: &str) -> Api<StableName> {
    Api::namespaced(plane.admin_client().await, namespace)
}

async fn create(api: &Api<StableName>, name: &str, spec: Value) -> Result<StableName, kube::Error> {
    let object = StableName::new(name, serde_json::from_value(spec).unwrap());
    api.create(&PostParams::default(), &object).await
}

async fn patch_status(api: &Api<StableName>, name: &str, status: Value) -> StableName {
    let patch = Patch::Merge(json!({"status": status}));
    let patched = api.patch_status(name, &PatchParams::default(), &patch).await;
    patched.unwrap_or_else(|error| panic!("the status of {name}: {error}"))
}

/// Returns the reasons for which the API server refuses an object.
async fn refusal(api: &Api<StableName>, name: &str, spec: Value) -> Vec<StatusCause> {
    match create(api, name, spec).await {
        Err(kube::Error::Api(status)) if status.code == 422 => status.details.unwrap().causes,
        other => panic!("{name}: {other:?}"),
    }
}

/// Creates a ServiceAccount with this ClusterRole in its namespace, and returns its kubeconfig.
async fn account(plane: &ControlPlane, namespace: &str, name: &str, role: &str) -> PathBuf {
    plane.create_service_account(namespace, name);
    let subject = format!("{namespace}:{name}");
    let (binds, to) = (format!("--clusterrole={role}"), format!("--serviceaccount={subject}"));
    plane.kubectl(&["-n", namespace, "create", "rolebinding", name, &binds, &to]);
    // The role `view` has no rules, because the controller that copies them doesn't run here.
    if role != "view" {
        let verb = if role == "lb-linker-crd-edit" { "create" } else { "list" };
        let user = format!("--as=system:serviceaccount:{subject}");
        permission(plane, true, &[verb, "stablenames.linker.hsj.com", "-n", namespace, &user]).await;
    }
    plane.kubeconfig_for_service_account(namespace, name)
}

fn is_forbidden<T>(answer: kube::Result<T>) -> bool {
    matches!(answer, Err(kube::Error::Api(status)) if status.code == 403)
}

fn condition(kind: &str, status: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": "Tested", "message": message,
        "observedGeneration": 1, "lastTransitionTime": "2026-11-22T10:20:00Z"})
}

/// Returns the rows of a table that kubectl printed, with ` | ` between the cells. Cells can be empty, so columns begin
/// where the words of the header begin.
fn rows(table: &str) -> Vec<String> {
    let header = table.lines().next().unwrap();
    let is_start = |i: &usize| header[..*i].ends_with(' ') && !header[*i..].starts_with(' ');
    let starts: Vec<usize> = [0].into_iter().chain((1..header.len()).filter(is_start)).collect();
    let row = |line: &str| {
        let ends = starts[1..].iter().chain([&usize::MAX]);
        let cell =
            |(start, end): (&usize, &usize)| line.get(*start..line.len().min(*end)).unwrap_or_default();
        starts.iter().zip(ends).map(cell).map(str::trim).collect::<Vec<_>>().join(" | ")
    };
    table.lines().map(row).collect()
}

#[tokio::test]
async fn bad_input_is_refused_with_field_and_message() {
    let (plane, namespace) = plane_and_namespace().await;
    let api = api(plane, &namespace).await;
    for case in bad_input::cases() {
        let causes = refusal(&api, &case.name, case.spec).await;
        let [cause, rest @ ..] = &causes[..] else { panic!("{}: no cause", case.given) };
        // Rules at the root of an object have no field.
        let field = if case.field == "metadata.name" { "<nil>" } else { &case.field };
        assert_eq!(cause.field, field, "{}: {causes:?}", case.given);
        assert!(cause.message.ends_with(&case.message), "{}: {}", case.given, cause.message);
        let skipped = |cause: &StatusCause| cause.message.contains("some validation rules were not checked");
        assert!(rest.iter().all(skipped), "{}: {causes:?}", case.given);
    }
}

#[tokio::test]
async fn input_at_the_limits_is_accepted() {
    let (plane, namespace) = plane_and_namespace().await;
    let api = api(plane, &namespace).await;
    for (given, name, spec) in bad_input::accepted() {
        let created = create(&api, &name, spec.clone()).await;
        let created = created.unwrap_or_else(|error| panic!("{given}: {error}"));
        assert_eq!(serde_json::to_value(&created.spec).unwrap(), spec, "{given}");
        api.delete(&name, &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn kubectl_refuses_unknown_fields() {
    let (plane, namespace) = plane_and_namespace().await;
    let manifest = format!("{WEB}  ttl: 5\n");
    let apply = ["apply", "-n", &namespace, "-f", "-"];
    let refused = plane.try_kubectl_stdin(&apply, &manifest).unwrap_err();
    assert!(refused.contains("unknown field \"spec.ttl\""), "{refused}");
}

#[tokio::test]
async fn stored_spec_is_what_was_applied() {
    let (plane, namespace) = plane_and_namespace().await;
    plane.kubectl_stdin(&["apply", "-n", &namespace, "-f", "-"], WEB);
    let stored = plane.kubectl(&["get", "sn", "web", "-n", &namespace, "-o", "json"]);
    let stored: Value = serde_json::from_str(&stored).unwrap();
    let applied: Value = serde_saphyr::from_str(WEB).unwrap();
    assert_eq!(stored["spec"], applied["spec"]);
    let object: StableName = serde_json::from_value(stored).unwrap();
    assert_eq!(serde_json::to_value(&object.spec).unwrap(), applied["spec"]);

    // Missing fields and null stay missing.
    let spec = "spec: {sources: [{name: a, hostname: a.example, service: null}], check: {}, pin: null, alerts: null}";
    let manifest = format!("{}{spec}", WEB.split("spec:").next().unwrap().replace("web", "small"));
    plane.kubectl_stdin(&["apply", "-n", &namespace, "-f", "-"], &manifest);
    let stored = plane.kubectl(&["get", "sn", "small", "-n", &namespace, "-o", "jsonpath={.spec}"]);
    let stored: Value = serde_json::from_str(&stored).unwrap();
    assert_eq!(stored, json!({"sources": [{"name": "a", "hostname": "a.example"}], "check": {}}));
}

#[tokio::test]
async fn status_patch_is_merged_and_keeps_the_generation() {
    let (plane, namespace) = plane_and_namespace().await;
    let api = api(plane, &namespace).await;
    plane.kubectl_stdin(&["apply", "-n", &namespace, "-f", "-"], WEB);
    let status = json!({
        "observedGeneration": 1,
        "target": {"source": "busan", "hostname": "web-dr-77c0d.lb.example-cloud.com",
            "display": "web-dr-77c0d.lb.example-cloud.com", "serviceUID": "6c1f0d4e-52a4-4a53-9d3c-4d4ce6a5d7f1",
            "since": "2026-11-22T10:20:00Z", "verified": true},
        "sources": [
            {"name": "seoul", "state": "Unhealthy", "offers": "web-4fb5d0.lb.example-cloud.com",
                "since": "2026-11-22T10:19:30Z", "message": "NXDOMAIN"},
            {"name": "busan", "state": "Healthy", "offers": "web-dr-77c0d.lb.example-cloud.com",
                "since": "2026-11-20T08:00:00Z"},
        ],
        "history": [{"source": "seoul", "display": "web-4fb5d0.lb.example-cloud.com",
            "since": "2026-11-20T08:00:00Z", "until": "2026-11-22T10:20:00Z", "reason": "FailedOver"}],
        "service": "external-targets/web-shop-ext",
        "dnsNames": ["web.shop.lb.internal", "web-shop.lb.internal", "www.shop.lb.internal"],
        "conditions": [condition("Ready", "True", "leads to busan; seoul: NXDOMAIN")],
    });
    let written = patch_status(&api, "web", status.clone()).await;
    let read = api.get("web").await.unwrap();
    assert_eq!(read, written);
    assert_eq!(serde_json::to_value(read.status.as_ref().unwrap()).unwrap(), status);
    assert_eq!(read.metadata.generation, Some(1));

    // A merge patch changes the fields that it names, and null removes a field.
    let cleared = patch_status(&api, "web", json!({"target": {"verified": false}, "history": null})).await;
    let mut expected = status;
    expected["target"]["verified"] = json!(false);
    expected.as_object_mut().unwrap().remove("history");
    assert_eq!(serde_json::to_value(cleared.status.unwrap()).unwrap(), expected);
    let withdrawn = patch_status(&api, "web", json!({"target": null})).await;
    assert_eq!(withdrawn.status.unwrap().target, None);
}

#[tokio::test]
async fn status_of_a_later_version_is_accepted_and_decoded() {
    let (plane, namespace) = plane_and_namespace().await;
    let api = api(plane, &namespace).await;
    create(&api, "web", json!({"sources": [{"name": "a", "hostname": "a.example"}]})).await.unwrap();
    let status = json!({
        "target": {"source": "a", "proxy": "p.example"},
        "sources": [{"name": "a", "state": "Draining"}, {"state": "Healthy"}, {}],
        "history": [{"reason": "RolledBack"}],
        "conditions": [condition("Routed", "Perhaps", "")],
        "weights": [1],
    });
    let status = patch_status(&api, "web", status).await.status.unwrap();
    let states: Vec<_> = status.sources.iter().map(|source| source.state.clone()).collect();
    let draining = SourceState::Unknown("Draining".to_owned());
    assert_eq!(states, [Some(draining), Some(SourceState::Healthy), None]);
    assert_eq!((&*status.history[0].reason, &*status.conditions[0].status), ("RolledBack", "Perhaps"));
    assert_eq!(api.list(&Default::default()).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn status_takes_only_times_that_can_be_decoded() {
    let (plane, namespace) = plane_and_namespace().await;
    let api = api(plane, &namespace).await;
    create(&api, "web", json!({"sources": [{"name": "a", "hostname": "a.example"}]})).await.unwrap();
    let patch = |since: &str| json!({"status": {"target": {"source": "a", "since": since}}});
    for since in ["2026-01-01T00:00:00+26:00", "2026-01-01T00:00:00ZTxyz", "9999-12-31T23:59:59-23:00"] {
        let patch = Patch::Merge(patch(since));
        let refused = api.patch_status("web", &Default::default(), &patch).await.unwrap_err();
        assert!(refused.to_string().contains("status.target.since"), "{refused}");
    }
    for since in ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456Z"] {
        let patch = Patch::Merge(patch(since));
        let target =
            api.patch_status("web", &Default::default(), &patch).await.unwrap().status.unwrap().target;
        assert!(target.unwrap().since.is_some(), "{since}");
    }
}

#[tokio::test]
async fn kubectl_get_prints_source_target_and_state() {
    let (plane, namespace) = plane_and_namespace().await;
    let api = api(plane, &namespace).await;
    let spec = json!({"sources": [{"name": "seoul", "hostname": "a.example"}]});
    for name in ["fixed", "fresh", "web"] {
        create(&api, name, spec.clone()).await.unwrap();
    }
    // kubectl prints 20d until 12 hours after the start of the test.
    let since = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(20 * 24 + 12);
    let since = since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let status = |source: &str, display: &str, degraded: &str, message: &str| {
        json!({
            "target": {"source": source, "display": display, "since": since, "verified": true},
            "service": "external-targets/web-shop-ext",
            "conditions": [condition("Degraded", degraded, ""), condition("Ready", "True", message),
                condition("Resolved", "True", "")],
        })
    };
    let host = "web-dr-77c0d.lb.example-cloud.com";
    patch_status(&api, "web", status("busan", host, "True", "leads to busan; seoul: NXDOMAIN")).await;
    patch_status(&api, "fixed", status("seoul", "192.0.2.10,2001:db8::10", "False", "leads to seoul")).await;

    // Returns the header and the rows of this test, without the first column (namespace) and the last one (age).
    let get = |args: &[&str]| {
        let rows = rows(&plane.kubectl(&[&["get", "-A"], args].concat()));
        let cells = |row: &String| {
            let (cells, age) = row.rsplit_once(" | ").unwrap();
            assert!(age == "AGE" || age.starts_with(|c: char| c.is_ascii_digit()), "{row}");
            cells
                .strip_prefix(&format!("{namespace} | "))
                .or(cells.strip_prefix("NAMESPACE | "))
                .map(str::to_owned)
        };
        rows.iter().filter_map(cells).collect::<Vec<_>>()
    };
    let narrow = get(&["sn"]);
    assert_eq!(
        narrow,
        [
            "NAME | READY | SOURCE | TARGET | SINCE | PROGRESSING",
            "fixed | True | seoul | 192.0.2.10,2001:db8::10 | 20d | ",
            "fresh |  |  |  |  | ",
            "web | True | busan | web-dr-77c0d.lb.example-cloud.com | 20d | ",
        ]
    );
    let more = [
        " | RESOLVED | DEGRADED | SERVICE | MESSAGE",
        " | True | False | external-targets/web-shop-ext | leads to seoul",
        " |  |  |  | ",
        " | True | True | external-targets/web-shop-ext | leads to busan; seoul: NXDOMAIN",
    ];
    let wide: Vec<String> = narrow.iter().zip(more).map(|(row, more)| format!("{row}{more}")).collect();
    assert_eq!(get(&["sn", "-o", "wide"]), wide);
    assert_eq!(get(&["lb-linker"]), narrow);
    let selected = get(&["sn", "--field-selector", "status.target.source=busan"]);
    assert_eq!(selected, [&*narrow[0], &*narrow[3]]);
}

#[tokio::test]
async fn kubectl_wait_needs_the_condition_of_this_generation() {
    let (plane, namespace) = plane_and_namespace().await;
    let api = api(plane, &namespace).await;
    create(&api, "web", json!({"sources": [{"name": "a", "hostname": "a.example"}]})).await.unwrap();
    let is_ready = || {
        let wait = ["wait", "--for=condition=Ready", "sn/web", "-n", &namespace, "--timeout=0"];
        plane.try_kubectl(&wait).is_ok()
    };
    assert!(!is_ready());
    patch_status(&api, "web", json!({"conditions": [condition("Ready", "True", "")]})).await;
    assert!(is_ready());
    let edit = Patch::Merge(json!({"spec": {"ttlSeconds": 7}}));
    let edited = api.patch("web", &PatchParams::default(), &edit).await.unwrap();
    assert_eq!(edited.metadata.generation, Some(2));
    assert!(!is_ready());
}

#[tokio::test]
async fn applying_again_changes_nothing() {
    let (plane, namespace) = plane_and_namespace().await;
    let api = api(plane, &namespace).await;
    let apply = ["apply", "--server-side", "-n", &namespace, "-f", "-"];
    plane.kubectl_stdin(&apply, WEB);
    patch_status(&api, "web", json!({"conditions": [condition("Ready", "True", "")]})).await;
    let before = api.get("web").await.unwrap();
    plane.kubectl_stdin(&apply, WEB);
    let after = api.get("web").await.unwrap();
    assert_eq!(after, before);
    assert_eq!(after.metadata.generation, Some(1));

    // Another manager replaces the list of sources as a whole.
    let fewer = WEB.replace("    - {name: seoul, service: {name: web}}\n", "");
    plane.kubectl_stdin(&[&apply[..], &["--field-manager=other", "--force-conflicts"]].concat(), &fewer);
    let sources = api.get("web").await.unwrap().spec.sources;
    let names: Vec<&str> = sources.iter().map(|source| &*source.name).collect();
    assert_eq!(names, ["busan", "fixed", "last"]);
}

#[tokio::test]
async fn kubectl_explain_describes_every_field() {
    let (plane, _) = plane_and_namespace().await;
    // The API server publishes the schema a moment after the resource.
    eventually("the schema", || async { plane.try_kubectl(&["explain", "sn.spec.sources"]).ok() }).await;
    let sources = plane.kubectl(&["explain", "sn.spec.sources"]);
    for text in ["name", "service", "hostname", "addresses", "A fixed hostname, such as lb.example.com"] {
        assert!(sources.contains(text), "{sources}");
    }
    for path in [
        "",
        ".spec",
        ".spec.sources",
        ".spec.sources.service",
        ".spec.check",
        ".spec.cutover",
        ".spec.failback",
        ".spec.alerts",
        ".status",
        ".status.target",
        ".status.sources",
        ".status.history",
        ".status.conditions",
    ] {
        let explained = plane.kubectl(&["explain", &format!("sn{path}")]);
        assert!(!explained.contains("<no description>"), "{explained}");
    }
}

#[tokio::test]
async fn applied_crd_is_that_of_the_program() {
    let (plane, _) = plane_and_namespace().await;
    let definition = serde_json::to_string(&crd::stable_names()).unwrap();
    // kubectl ends with 1 if there is a difference.
    assert_eq!(plane.try_kubectl_stdin(&["diff", "-f", "-"], &definition), Ok(String::new()));
    let other = definition.replace("\"maxItems\":8,", "\"maxItems\":9,");
    assert_ne!(other, definition);
    plane.try_kubectl_stdin(&["diff", "-f", "-"], &other).unwrap_err();
}

#[tokio::test]
async fn aggregated_roles_edit_the_spec_but_not_the_status() {
    let (plane, namespace) = plane_and_namespace().await;
    let spec = json!({"sources": [{"name": "a", "hostname": "a.example"}]});
    let (edit, status) = (json!({"spec": {"ttlSeconds": 7}}), json!({"status": {"observedGeneration": 1}}));
    let (edit, status) = (Patch::Merge(edit), Patch::Merge(status));
    let as_user = async |role: &str| -> Api<StableName> {
        let user = account(plane, &namespace, role, role).await;
        Api::namespaced(client(&user).await, &namespace)
    };
    let params = PatchParams::default();

    let editor = as_user("lb-linker-crd-edit").await;
    let created = create(&editor, "web", spec.clone()).await.unwrap();
    editor.patch("web", &params, &edit).await.unwrap();
    assert!(is_forbidden(editor.patch_status("web", &params, &status).await));
    assert!(is_forbidden(editor.replace_status("web", &PostParams::default(), &created).await));
    // A status in the object itself is ignored.
    editor.patch("web", &params, &status).await.unwrap();

    let viewer = as_user("lb-linker-crd-view").await;
    let seen = viewer.get("web").await.unwrap();
    assert_eq!((seen.spec.ttl_seconds, seen.status), (Some(7), None));
    assert_eq!(viewer.list(&ListParams::default()).await.unwrap().items.len(), 1);
    assert!(is_forbidden(create(&viewer, "other", spec.clone()).await));
    assert!(is_forbidden(viewer.patch_status("web", &params, &status).await));
    assert!(is_forbidden(viewer.delete("web", &DeleteParams::default()).await));

    let linker = as_user("lb-linker-crd").await;
    let listed = linker.list(&ListParams::default()).await.unwrap();
    let version = listed.metadata.resource_version.unwrap();
    assert!(linker.watch(&WatchParams::default(), &version).await.is_ok());
    linker.patch_status("web", &params, &status).await.unwrap();
    assert!(is_forbidden(linker.patch("web", &params, &edit).await));
    assert!(is_forbidden(create(&linker, "other", spec).await));
    assert!(is_forbidden(linker.delete("web", &DeleteParams::default()).await));

    editor.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    assert_eq!(linker.list(&ListParams::default()).await.unwrap().items, []);
}

#[tokio::test]
async fn roles_of_kubernetes_select_the_aggregated_roles() {
    let (plane, _) = plane_and_namespace().await;
    let get = |role: &str| -> Value {
        serde_json::from_str(&plane.kubectl(&["get", "clusterrole", role, "-o", "json"])).unwrap()
    };
    // The controller that copies the rules doesn't run here.
    let selects = |role: &str, aggregated: &str| {
        let (role, labels) = (get(role), get(aggregated)["metadata"]["labels"].clone());
        let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array().unwrap().iter();
        let mut selectors = selectors.map(|selector| selector["matchLabels"].as_object().unwrap());
        selectors.any(|wanted| wanted.iter().all(|(label, value)| labels[label] == *value))
    };
    for (role, selected) in [("view", [true, false]), ("edit", [false, true]), ("admin", [false, true])] {
        let found = ["lb-linker-crd-view", "lb-linker-crd-edit"].map(|aggregated| selects(role, aggregated));
        assert_eq!(found, selected, "{role}");
    }
    // edit and admin have the rules of view.
    assert!(selects("edit", "view") && selects("admin", "edit"));
}

#[tokio::test]
async fn check_cluster_lists_permissions_for_an_installed_crd() {
    let (plane, namespace) = plane_and_namespace().await;
    let check = |user: &PathBuf, sync: &str| {
        let output = run_to_end([
            "check",
            "--cluster",
            "--upstream=none",
            "--kubeconfig",
            user.to_str().unwrap(),
            "--watch-namespaces",
            &namespace,
            "--sync",
            sync,
        ]);
        let printed = String::from_utf8(output.stdout).unwrap();
        let lines = printed.lines().filter(|line| line.to_lowercase().contains("stablenames"));
        (lines.map(str::to_owned).collect::<Vec<_>>(), output.status.code())
    };
    let permissions = ["list stablenames", "watch stablenames", "patch stablenames/status"];
    let user = account(plane, &namespace, "with", "lb-linker-crd").await;
    let granted = permissions.map(|permission| format!("yes  {permission} in namespace {namespace}"));
    assert_eq!(check(&user, "on").0, granted);
    assert_eq!(check(&user, "plan").0, granted[..2]);
    assert_eq!(check(&user, "off").0, granted[..2]);
    let user = account(plane, &namespace, "without", "view").await;
    let missing = permissions.map(|permission| format!("NO   {permission} in namespace {namespace}"));
    let errors = permissions.map(|permission| {
        format!(
            "error: the permission to {permission} in namespace {namespace} is missing; it is in deploy/crd/"
        )
    });
    assert_eq!(check(&user, "on"), ([missing, errors].concat(), Some(1)));
}

#[tokio::test]
async fn links_and_scan_print_stable_names() {
    let (plane, namespace) = plane_and_namespace().await;
    let (api, cluster) = (api(plane, &namespace).await, plane.cluster().await);
    let (current, former) =
        (format!("now-{namespace}.lb.example.com"), format!("old-{namespace}.lb.example.com"));
    let spec = json!({"sources": [{"name": "a", "hostname": current}], "allowFrom": ["elsewhere"]});
    create(&api, "web", spec.clone()).await.unwrap();
    create(&api, "waiting", spec).await.unwrap();
    // For Services of other namespaces, `scan` finds a StableName only if its target comes from a Service.
    let status = json!({"target": {"source": "a", "hostname": current, "display": current, "serviceUID": "of-a"},
        "history": [{"source": "a", "display": former}]});
    patch_status(&api, "web", status).await;
    let other = cluster.create_namespace("sn-follows").await;
    for (name, hostname) in [("current", &current), ("former", &former)] {
        let spec = json!({"type": "ExternalName", "externalName": hostname});
        cluster.create_service(&other, json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    let kubeconfig = plane.admin_kubeconfig();
    let run = |command: &str, arguments: &[&str]| {
        let common = [command, "--kubeconfig", kubeconfig.to_str().unwrap(), "--upstream", "none"];
        let output = run_to_end([&common[..], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let links = run("links", &["-n", &namespace, "-o", "wide"]);
    let by = format!("   StableName {namespace}/web, source a   its external target doesn't exist");
    assert!(links.lines().any(|line| line.starts_with("web ") && line.contains(&by)), "{links}");
    let waits = "the StableName announces no target yet";
    assert!(links.lines().any(|line| line.starts_with("waiting ") && line.ends_with(waits)), "{links}");

    let found: Value = serde_json::from_str(&run("scan", &["-n", &other, "-o", "json"])).unwrap();
    let web = format!("{namespace}/web");
    assert_eq!(found["exact"][0]["service"], "current", "{found}");
    assert_eq!(found["exact"][0]["loadBalancer"], web, "{found}");
    assert_eq!(found["sources"][0]["service"], "former", "{found}");
    assert_eq!(found["sources"][0]["stableNames"], json!([web]), "{found}");
    let report = run("scan", &["-n", &other, "--apply", "--yes"]);
    let applied =
        format!("{web}: spec.allowFrom=elsewhere,{other}\n{other}/current: linker.hsj.com/source={web}\n");
    assert!(report.ends_with(&applied), "{report}");
    let allowed = api.get("web").await.unwrap().spec.allow_from.unwrap();
    assert_eq!(allowed, ["elsewhere", &other]);
}

#[tokio::test]
async fn exported_stable_name_keeps_its_target_in_manifests() {
    let (plane, namespace) = plane_and_namespace().await;
    let (api, cluster) = (api(plane, &namespace).await, plane.cluster().await);
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("seoul.example.com")]).await;
    let uid = cluster.get_service(&namespace, "web").await.unwrap().metadata.uid.unwrap();
    plane.kubectl_stdin(&["apply", "-n", &namespace, "-f", "-"], WEB);
    let status = json!({
        "observedGeneration": 1,
        "target": {"source": "seoul", "hostname": "former.example.com", "display": "former.example.com",
            "serviceUID": uid, "since": "2026-11-22T10:20:00Z", "verified": true},
        "sources": [{"name": "seoul", "state": "Healthy", "offers": "seoul.example.com", "message": "NXDOMAIN"}],
        "conditions": [condition("Ready", "True", "")],
    });
    patch_status(&api, "web", status).await;
    let directory = tempfile::tempdir().unwrap();
    for what in ["sn", "sn/web", "sn,services"] {
        for format in ["yaml", "json"] {
            let exported =
                plane.kubectl(&["get", what, "-n", &namespace, "-o", format, "--show-managed-fields"]);
            let file = directory.path().join(format!("all.{format}"));
            std::fs::write(&file, exported).unwrap();
            let manifests = ["--manifests", directory.path().to_str().unwrap()];
            let output = run_to_end([&["links", "-o", "json"][..], &manifests].concat());
            let errors = String::from_utf8(output.stderr).unwrap();
            let links: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{errors}"));
            assert_eq!(links["items"][0]["target"], "former.example.com", "{what} {format}: {links}");
            assert_eq!(links["items"][0]["lead"]["source"], "seoul", "{what} {format}: {links}");
            assert_eq!(links["items"].as_array().unwrap().len(), 1, "{what} {format}: {links}");
            std::fs::remove_file(file).unwrap();
        }
    }
}
