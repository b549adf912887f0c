//! The status page, in Chromium. The pictures are left in `target/status-page/`.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::browser::Browser;
use crate::harness::linker::Linker;
use crate::harness::{eventually, replace_file};

/// WebDriver's characters for keys.
const ESCAPE: &str = "\u{e00c}";
const ENTER: &str = "\u{e007}";
const ARROW_DOWN: &str = "\u{e015}";

fn manifest(name: &str, hostname: Option<&str>) -> String {
    let ingress = hostname.map(|hostname| format!("{{hostname: {hostname}}}")).unwrap_or_default();
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop, creationTimestamp: \
         '2026-01-05T10:00:00Z'}}\nspec: {{type: LoadBalancer}}\nstatus: {{loadBalancer: {{ingress: [{ingress}]}}}}\n"
    )
}

/// A browser that shows the status page of an lb-linker that reads manifests.
struct Page {
    browser: Browser,
    directory: TempDir,
    _linker: Linker,
}

impl Page {
    async fn open(manifests: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("services.yaml"), manifests).unwrap();
        let linker =
            Linker::start(["--manifests", directory.path().to_str().unwrap(), "--identity", "replica-1"]);
        let admin = linker.admin().await;
        linker.ready().await;
        let browser = Browser::start();
        browser.open(&format!("http://{admin}/"));
        Self { browser, directory, _linker: linker }
    }

    /// Waits until a JavaScript expression has this value.
    async fn shows(&self, expression: &str, expected: Value) {
        let last = || self.browser.value(expression);
        let what = format!("{expected} as {expression}, which is {}", last());
        eventually(&what, || async { (last() == expected).then_some(()) }).await;
    }

    async fn shows_count(&self, text: &str) {
        self.shows("document.querySelector('#count').textContent", json!(text)).await;
    }

    fn screenshot(&self, name: &str) {
        let directory = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/target/status-page"));
        fs::create_dir_all(&directory).unwrap();
        for scheme in ["light", "dark"] {
            self.browser.prefer(scheme);
            self.browser.screenshot(&directory.join(format!("{name}-{scheme}.png")));
        }
    }
}

/// A JavaScript expression for the names of the Services in the rows of links.
const ROWS: &str = "[...document.querySelectorAll('tr.link')].map((row) => row.children[1].textContent)";

#[tokio::test]
async fn status_page_shows_links_and_their_changes() {
    let page = Page::open(&[manifest("db", None), manifest("web", Some("a.example.com"))].concat()).await;
    page.shows(ROWS, json!(["db", "web"])).await;
    let instance = page.browser.value("document.querySelector('#instance').innerText.replace(/\\s+/g, ' ')");
    let instance = instance.as_str().unwrap();
    assert!(instance.contains("replica replica-1") && instance.contains("zones lb.internal"), "{instance}");
    let changed =
        [manifest("db", None), manifest("mail", None), manifest("web", Some("b.example.com"))].concat();
    replace_file(&page.directory.path().join("services.yaml"), changed);
    page.shows(ROWS, json!(["db", "mail", "web"])).await;
    page.browser.click("button[data-link='shop/web']");
    let detail = "document.querySelector('tr.detail')?.innerText.includes('web-shop.lb.internal')";
    page.shows(detail, json!(true)).await;
    page.shows("document.querySelectorAll('tr.detail time').length", json!(2)).await;
    page.screenshot("3-links");
    assert_eq!(page.browser.console_entries(), Vec::<String>::new());
    // The page may load nothing from other hosts.
    page.browser.value("document.body.append(Object.assign(new Image(), {src: 'http://192.0.2.1/a.png'}))");
    let refused = || async {
        page.browser.console_entries().into_iter().find(|line| line.contains("Content Security"))
    };
    eventually("the refusal of a foreign image", refused).await;
}

#[tokio::test]
async fn status_page_tells_why_a_link_is_degraded() {
    let ignored = manifest("web", Some("a.example.com"))
        .replace("namespace: shop", "namespace: shop, annotations: {linker.hsj.com/ttl: 5m}");
    let page = Page::open(&ignored).await;
    page.shows("document.querySelector('tr.link .state')?.textContent", json!("Degraded")).await;
    page.browser.click("button[data-link='shop/web']");
    let detail = "document.querySelector('tr.detail')?.innerText.includes('linker.hsj.com/ttl')";
    page.shows(detail, json!(true)).await;
    // In manifests no Service follows.
    let followers = "document.querySelector('#follower-note').innerText";
    page.shows(followers, json!("No Service follows a load balancer.")).await;
    page.shows("document.querySelector('#notice').hidden", json!(true)).await;
}

#[tokio::test]
async fn keyboard_searches_and_opens_links_on_the_status_page() {
    let page = Page::open(&[manifest("db", None), manifest("web", Some("a.example.com"))].concat()).await;
    page.shows_count("2 links").await;
    page.browser.type_keys("/a.exa");
    page.shows_count("1 of 2 links").await;
    page.browser.type_keys(&[ARROW_DOWN, ENTER].concat());
    page.shows("document.querySelector('[aria-expanded=true]')?.textContent", json!("web")).await;
    page.browser.type_keys(ESCAPE);
    page.shows("document.querySelector('tr.detail')", Value::Null).await;
    page.browser.type_keys(&["/", ESCAPE].concat());
    page.shows_count("2 links").await;
    page.browser.click("button[data-state=Pending]");
    page.shows(ROWS, json!(["db"])).await;
    page.browser.click("button[data-state=Pending]");
    page.shows_count("2 links").await;
}

#[tokio::test]
async fn status_page_shows_at_most_500_links() {
    let mut manifests = String::new();
    for i in 0..501 {
        let hostname = (i % 7 != 0).then(|| format!("shop-web-{i}-4-fb5d0.kr.lb.example-cloud.com"));
        write!(manifests, "{}", manifest(&format!("web-{i:03}"), hostname.as_deref())).unwrap();
    }
    let page = Page::open(&manifests).await;
    page.shows_count("501 links").await;
    page.shows("document.querySelectorAll('tr.link').length", json!(500)).await;
    page.shows("document.querySelector('#more').hidden", json!(false)).await;
    page.screenshot("500-links");
    page.browser.type_keys("/web-500");
    page.shows(ROWS, json!(["web-500"])).await;
}

#[tokio::test]
async fn status_page_says_that_lb_linker_is_gone() {
    let Page { browser, directory, _linker: mut linker } = Page::open(&manifest("web", None)).await;
    let expression = "document.querySelector('#problem').innerText";
    linker.stop();
    let shown =
        || async { (browser.value(expression) == "lb-linker doesn't answer; trying again").then_some(()) };
    eventually("a message", shown).await;
    drop(directory);
}
