//! The second part of the demo: the cloud announces a hostname before it resolves, and a StableName waits.

use std::error::Error;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::api_server::ApiServer;
use crate::client::{self, Client, Counts, Resolver};
use crate::linker::Linker;
use crate::screen::{BOLD, DIM, GREEN, Screen};
use crate::story::{
    EVENT_TIMEOUT, EXTERNAL_TARGET, NEW, POLL, STABLE, Stage, absolute, arguments, ipv4, wait_for_answer,
};

const NEXT: &str = "default-my-sample-lb-4-a63f8.kr.lb.example-cloud.com";

const SERVICE: &str = "/api/v1/namespaces/default/services/my-sample-lb";
const OBJECT: &str = "/apis/linker.hsj.com/v1alpha1/namespaces/default/stablenames/my-sample-lb";
const TARGETS: &str = "/api/v1/namespaces/external-targets/services";

/// How many seconds a hostname is announced before it resolves.
const UNRESOLVED: u64 = 3;

/// Runs the second part, with the load balancer of [`NEW`] and another one.
///
/// # Errors
/// If something isn't as expected.
pub async fn tell(screen: &mut Screen, stage: &Stage) -> Result<(), Box<dyn Error>> {
    let [old, new] = stage.balancers.as_slice() else { return Err("two load balancers are needed".into()) };
    let api = ApiServer::start().await?;
    api.create(SERVICE, service());
    api.create(OBJECT, external_target());
    let kubeconfig = stage.directory.path().join("kubeconfig");
    fs::write(&kubeconfig, api.kubeconfig())?;
    let upstream = stage.cloud.dns.to_string();
    let source = [["--kubeconfig", "kubeconfig"], ["--leader-election", "off"]];
    let mut linker = Linker::start(stage.directory.path(), &arguments(&upstream, source))?;
    let (dns, _) = linker.dns_address().await?;
    wait_for_answer(dns, old).await?;
    expect(&api, OBJECT, "/status/target/verified", &json!(true)).await?;
    let resolver = Resolver { server: dns, name: absolute(STABLE)?, cache: Duration::ZERO };
    let client = Client::start(resolver, old.address.port());

    screen.line("")?;
    screen.line(&screen.paint(BOLD, "With a StableName, the name moves only to what works"))?;
    let note = "This lb-linker reads the Service and a StableName from a small API server of this demo.";
    screen.line(&screen.paint(DIM, note))?;
    api.patch(SERVICE, &announcing(NEXT));
    screen.line(&format!("  announced        {NEXT}, which doesn't resolve yet"))?;
    let announced = Instant::now();
    for _ in 0..UNRESOLVED {
        sleep(Duration::from_secs(1)).await;
        let (after, Counts { succeeded, failed, .. }) = (announced.elapsed().as_secs_f64(), client.counts());
        screen.line(&format!("  {after:4.1} s   B {succeeded:3} ok {failed:3} failed"))?;
    }
    let answer = client::ipv4(dns, &absolute(STABLE)?).await?;
    if answer != ipv4(old)? {
        return Err(format!("lb-linker should answer as before until {NEXT} resolves: {answer}").into());
    }
    expect(&api, &format!("{TARGETS}/{EXTERNAL_TARGET}"), "/spec/externalName", &json!(NEW)).await?;

    stage.cloud.create(absolute(NEXT)?, ipv4(new)?);
    let resolves = Instant::now();
    screen.line(&format!("  it resolves      {NEXT} → {}", new.address.ip()))?;
    let moved = wait_for_answer(dns, new).await?.duration_since(resolves);
    expect(&api, &format!("{TARGETS}/{EXTERNAL_TARGET}"), "/spec/externalName", &json!(NEXT)).await?;
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while client.counts().switched.is_none_or(|at| at < resolves) && Instant::now() < deadline {
        sleep(POLL).await;
    }
    let counts = client.counts();
    if counts.failed > 0 || counts.switched.is_none_or(|at| at < resolves) {
        return Err(format!("client B should have moved without a failed request: {counts:?}").into());
    }
    screen.line("")?;
    let verdict = format!(
        "B  0 requests failed. lb-linker kept the old load balancer for {UNRESOLVED} s, and moved {} ms after",
        moved.as_millis()
    );
    screen.line(&screen.paint(GREEN, &verdict))?;
    screen.line(&screen.paint(GREEN, "   the new hostname resolved"))?;
    screen.line(&format!("   external target  {EXTERNAL_TARGET} → {NEXT}"))?;
    linker.kill()
}

fn service() -> Value {
    let mut service = announcing(NEW);
    service["metadata"] = json!({"name": "my-sample-lb", "namespace": "default"});
    service["spec"] = json!({"type": "LoadBalancer", "ports": [{"port": 443}]});
    service
}

/// Returns the status of a load balancer with this hostname.
fn announcing(host: &str) -> Value {
    json!({"status": {"loadBalancer": {"ingress": [{"hostname": host}]}}})
}

fn external_target() -> Value {
    json!({
        "apiVersion": "linker.hsj.com/v1alpha1",
        "kind": "StableName",
        "metadata": {"name": "my-sample-lb", "namespace": "default"},
        "spec": {"sources": [{"name": "cloud", "service": {"name": "my-sample-lb"}}]},
    })
}

/// Waits until a field of an object has this value.
async fn expect(api: &ApiServer, path: &str, field: &str, value: &Value) -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    loop {
        let object = api.get(path);
        if object.pointer(field) == Some(value) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{field} of {path} should be {value}: {object}").into());
        }
        sleep(POLL).await;
    }
}
