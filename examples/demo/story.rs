//! The steps of the demo, and the expected state after each step.

use std::error::Error;
use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use hickory_proto::rr::{Name, RecordType};

use crate::manifests::{self, LoadBalancer};
use crate::screen::{Row, Screen};
use crate::stage::{Environment, NODATA, NXDOMAIN, Question, State, record};

/// lb-linker's default zone.
const ZONE: &str = "lb.internal";
/// The demo's `--delete-delay`, in seconds.
const DELETE_DELAY: u64 = 2;
/// The load balancer that is recreated, and the one that is removed: namespace and name.
const RECREATED: (&str, &str) = ("default", "my-sample-lb");
const REMOVED: (&str, &str) = ("elk", "kibana");
/// The last part of the first label of the recreated load balancer's hostname.
const NEW_PART: &str = "9c1e7";

// The column titles of the tables.
const SERVICES: [&str; 2] = ["SERVICE", "LOAD BALANCER"];
const TARGETS: [&str; 2] = ["EXTERNAL TARGET", "LEADS TO"];
const ANSWERS: [&str; 2] = ["QUESTION", "ANSWER"];

/// A load balancer, and its expected state.
struct Link {
    balancer: LoadBalancer,
    expected: Expected,
}

enum Expected {
    /// The load balancer has this hostname, which has these addresses.
    Hostname(String, [IpAddr; 2]),
    /// The load balancer has these addresses.
    Addresses(Vec<IpAddr>),
    /// The load balancer is deleted, and its external target still points at this hostname.
    Leaving(String),
    /// The load balancer and its external target are deleted.
    Left,
}

/// Runs the demo.
///
/// # Errors
/// If a state isn't as expected.
pub async fn tell(stay: bool) -> Result<(), Box<dyn Error>> {
    let screen = Screen::new();
    screen.heading("lb-linker demo")?;
    let mut stage = Environment::set(screen, &format!("{DELETE_DELAY}s")).await?;
    let mut links = load_balancers_get_names(&mut stage).await?;
    one_is_recreated(&mut stage, &mut links).await?;
    one_is_removed(&mut stage, &mut links).await?;
    if stay {
        stay_on(&mut stage).await?;
    }
    stage.screen.heading("The end: lb-linker gets SIGTERM")?;
    let screen = stage.clear().await?;
    screen.say("\nWhat was shown was checked as well. To ask questions and edit manifests yourself:\n")?;
    screen.command("cargo run --example demo -- --stay")?;
    Ok(())
}

async fn load_balancers_get_names(stage: &mut Environment) -> Result<Vec<Link>, Box<dyn Error>> {
    let mut links = Vec::new();
    for balancer in stage.load_balancers()? {
        let expected = match balancer.hostname() {
            Some(host) => Expected::Hostname(host.to_owned(), stage.cloud.create(absolute(host)?)),
            None => Expected::Addresses(balancer.addresses().map(str::parse).collect::<Result<_, _>>()?),
        };
        links.push(Link { balancer, expected });
    }
    // The load balancer that will be recreated comes first.
    links.sort_by_key(|link| !link.is(RECREATED));
    let (seen, _) = stage.wait_for(&picture(&links), Instant::now()).await?;

    let screen = &stage.screen;
    screen.heading("1. Load balancers get names that stay")?;
    screen.say("In manifests/, a copy of examples/manifests, stand these load balancers:\n")?;
    screen.table(SERVICES, &services(&links), None)?;
    screen.say(
        "\nFor each lb-linker keeps an external target, here as files in external-targets/: an ExternalName\n\
         Service for a hostname, a headless Service with EndpointSlices for addresses:\n",
    )?;
    screen.table(TARGETS, &seen.targets, None)?;
    screen.say("\nOne of them as it is written:\n")?;
    let object = find(&mut links, RECREATED)?.external_target();
    screen.file(&fs::read_to_string(stage.targets().join(format!("{object}.yaml")))?)?;
    screen.say("\nAnd it answers DNS for every load balancer, under two names:\n")?;
    screen.table(ANSWERS, &seen.answers, None)?;
    let (question, _) = &seen.answers[0];
    screen.say("\nThe same question with dig, or with this project's own tool:\n")?;
    let (ip, port) = (stage.dns.ip(), stage.dns.port());
    screen.command(&format!("dig @{ip} -p {port} {question}"))?;
    screen.command(&format!("cargo run --example ask -- @{} {question}", stage.dns))?;
    Ok(links)
}

async fn one_is_recreated(stage: &mut Environment, links: &mut [Link]) -> Result<(), Box<dyn Error>> {
    let (before, services_before) = (picture(links), services(links));
    let link = find(links, RECREATED)?;
    let Expected::Hostname(old, _) = &link.expected else { return Err("it should have a hostname".into()) };
    let (old, new) = (old.clone(), renewed(old)?);
    let (namespace, name) = RECREATED;

    stage.screen.heading(&format!("2. {namespace}/{name} is deleted and recreated"))?;
    stage
        .screen
        .say("The cloud gives it another hostname and forgets the old one. Its manifest shows that:\n")?;
    stage.cloud.delete(&absolute(&old)?);
    link.expected = Expected::Hostname(new.clone(), stage.cloud.create(absolute(&new)?));
    let since = Instant::now();
    manifests::replace(&link.balancer.file, &old, &new)?;
    let (seen, took) = stage.wait_for(&picture(links), since).await?;
    for balancer in stage.load_balancers()? {
        let link = find(links, (&balancer.namespace, &balancer.name))?;
        link.balancer = balancer;
    }

    let screen = &stage.screen;
    screen.say(&format!(
        "\n{took:.0?} later the external target and the DNS answers have changed, too. What is new has a *:\n"
    ))?;
    screen.table(SERVICES, &services(links), Some(&services_before))?;
    screen.say("")?;
    screen.table(TARGETS, &seen.targets, Some(&before.targets))?;
    screen.say("")?;
    screen.table(ANSWERS, &seen.answers, Some(&before.answers))?;

    let question = Question { name: old, qtype: RecordType::A };
    let answer = stage.ask(&question).await?;
    stage.screen.say("\nWho has written down the old hostname asks in vain:\n")?;
    stage.screen.table(ANSWERS, &[(question.to_string(), answer.clone())], None)?;
    if answer == [NXDOMAIN] {
        Ok(())
    } else {
        Err(format!("expected answer to {question}: {NXDOMAIN}; but it is: {}", answer.join(", ")).into())
    }
}

async fn one_is_removed(stage: &mut Environment, links: &mut [Link]) -> Result<(), Box<dyn Error>> {
    let before = picture(links);
    let link = find(links, REMOVED)?;
    let Expected::Hostname(host, _) = &link.expected else { return Err("it should have a hostname".into()) };
    let (namespace, name) = REMOVED;

    stage.screen.heading(&format!("3. {namespace}/{name} is deleted for good"))?;
    stage.screen.say(&format!(
        "lb-linker keeps the external target for another {DELETE_DELAY} s (--delete-delay), in case that the load\n\
         balancer comes back. Meanwhile its DNS names are still there, but lead nowhere:\n"
    ))?;
    stage.cloud.delete(&absolute(host)?);
    link.expected = Expected::Leaving(host.clone());
    let since = Instant::now();
    fs::remove_file(&link.balancer.file)?;
    let (leaving, took) = stage.wait_for(&picture(links), since).await?;
    stage.screen.say(&format!("\n{took:.0?} later:\n"))?;
    stage.screen.table(TARGETS, &leaving.targets, Some(&before.targets))?;
    stage.screen.say("")?;
    stage.screen.table(ANSWERS, &changed_rows(&leaving.answers, &before.answers), None)?;

    stage.screen.say("\nThen the external target goes, and the names with it:\n")?;
    find(links, REMOVED)?.expected = Expected::Left;
    let (left, took) = stage.wait_for(&picture(links), since).await?;
    stage.screen.say(&format!("\n{took:.1?} after the load balancer:\n"))?;
    stage.screen.table(TARGETS, &left.targets, Some(&leaving.targets))?;
    stage.screen.say("")?;
    stage.screen.table(ANSWERS, &changed_rows(&left.answers, &leaving.answers), None)?;
    if took >= Duration::from_secs(DELETE_DELAY) {
        Ok(())
    } else {
        Err(format!("expected the external target to go after {DELETE_DELAY} s, but it went sooner").into())
    }
}

async fn stay_on(stage: &mut Environment) -> Result<(), Box<dyn Error>> {
    stage.screen.heading("Your turn, until Ctrl-C")?;
    stage.screen.say(&format!(
        "Edit the files in {} and look at {}.\n\
         The DNS server in the role of the cloud's knows the hostnames that you have seen, and no others.\n",
        stage.manifests().display(),
        stage.targets().display()
    ))?;
    let question = "my-sample-lb-default.lb.internal A";
    stage.screen.command(&format!("cargo run --example ask -- @{} {question}", stage.dns))?;
    stage.follow_log().await
}

impl Link {
    fn is(&self, (namespace, name): (&str, &str)) -> bool {
        self.balancer.namespace == namespace && self.balancer.name == name
    }

    fn external_target(&self) -> String {
        format!("{}-{}-ext", self.balancer.name, self.balancer.namespace)
    }

    /// Returns the queries for the load balancer, and the expected answers.
    fn answers(&self) -> Vec<Row> {
        let LoadBalancer { namespace, name, .. } = &self.balancer;
        let dashed = format!("{name}-{namespace}.{ZONE}");
        let dotted = format!("{name}.{namespace}.{ZONE}");
        let third = if self.balancer.hostname().is_some() { RecordType::CNAME } else { RecordType::A };
        [(&dashed, RecordType::A), (&dashed, RecordType::AAAA), (&dotted, third)]
            .into_iter()
            .map(|(name, qtype)| {
                (Question { name: name.clone(), qtype }.to_string(), self.expected.answer(qtype))
            })
            .collect()
    }
}

impl Expected {
    fn answer(&self, qtype: RecordType) -> Vec<String> {
        let records = |addresses: &[IpAddr]| -> Vec<String> {
            addresses
                .iter()
                .filter(|ip| if ip.is_ipv4() { qtype == RecordType::A } else { qtype == RecordType::AAAA })
                .map(|ip| record(qtype, &ip.to_string()))
                .collect()
        };
        match self {
            Self::Hostname(host, behind) => {
                let mut lines = vec![record(RecordType::CNAME, host)];
                lines.extend(records(behind));
                lines
            }
            Self::Addresses(addresses) => records(addresses),
            Self::Leaving(_) => vec![NODATA.to_owned()],
            Self::Left => vec![NXDOMAIN.to_owned()],
        }
    }
}

/// Returns the expected state of all load balancers.
fn picture(links: &[Link]) -> State {
    let mut targets: Vec<Row> = links
        .iter()
        .filter_map(|link| match &link.expected {
            Expected::Hostname(host, _) | Expected::Leaving(host) => {
                Some((link.external_target(), vec![host.clone()]))
            }
            Expected::Addresses(ips) => {
                Some((link.external_target(), ips.iter().map(ToString::to_string).collect()))
            }
            Expected::Left => None,
        })
        .collect();
    targets.sort();
    State { targets, answers: links.iter().flat_map(Link::answers).collect() }
}

/// Returns the rows of the load balancers in the manifests.
fn services(links: &[Link]) -> Vec<Row> {
    links
        .iter()
        .map(|Link { balancer, .. }| {
            let host = balancer.hostname().into_iter();
            let ingress = host.chain(balancer.addresses()).map(ToOwned::to_owned).collect();
            (format!("{}/{}", balancer.namespace, balancer.name), ingress)
        })
        .collect()
}

/// Returns the rows that have changed.
fn changed_rows(rows: &[Row], before: &[Row]) -> Vec<Row> {
    rows.iter().filter(|row| !before.contains(row)).cloned().collect()
}

fn find<'a>(links: &'a mut [Link], key: (&str, &str)) -> Result<&'a mut Link, Box<dyn Error>> {
    links
        .iter_mut()
        .find(|link| link.is(key))
        .ok_or_else(|| format!("there is no manifest of {}/{}", key.0, key.1).into())
}

fn absolute(host: &str) -> Result<Name, Box<dyn Error>> {
    let mut name = Name::from_ascii(host)?;
    name.set_fqdn(true);
    Ok(name)
}

/// Returns the hostname of the recreated load balancer, made from its old hostname.
fn renewed(host: &str) -> Result<String, Box<dyn Error>> {
    let (label, domain) = host.split_once('.').ok_or("the hostname has a domain")?;
    let (stem, _) = label.rsplit_once('-').ok_or("the hostname has parts")?;
    Ok(format!("{stem}-{NEW_PART}.{domain}"))
}
