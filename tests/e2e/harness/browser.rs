//! A real browser, Chromium, driven by ChromeDriver with the WebDriver protocol.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use k8s_openapi::ByteString;
use nix::unistd::geteuid;
use serde_json::{Value, json};

use super::EVENT_TIMEOUT;
use super::port::HeldPort;
use super::process::Process;

/// A browser window. Dropping it ends the browser.
pub struct Browser {
    driver: SocketAddr,
    session: String,
    _process: Process,
    _port: HeldPort,
}

impl Browser {
    /// Starts ChromeDriver and a window.
    ///
    /// # Panics
    /// If Chromium or ChromeDriver isn't installed.
    pub fn start() -> Self {
        let mut command = Command::new("chromedriver");
        // With port 0, ChromeDriver takes a free port of ::1, and exits if that port is in use on 127.0.0.1.
        let port = HeldPort::take().unwrap();
        command.arg(format!("--port={}", port.number())).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Process::spawn(command)
            .unwrap_or_else(|error| panic!("chromedriver ({error}): install Debian's chromium-driver"));
        let mut lines = BufReader::new(process.stdout().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("started successfully")), "chromedriver doesn't start");
        let driver = port.local();
        let mut arguments = vec![
            "--headless=new",
            "--window-size=1280,900",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            // The browser reaches only 127.0.0.1.
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            // The browser ends with ChromeDriver.
            "--remote-debugging-pipe",
        ];
        if geteuid().is_root() {
            arguments.push("--no-sandbox");
        }
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}
        }}});
        let answer = call(driver, "POST", "/session", &capabilities);
        let session = format!("/session/{}", answer["sessionId"].as_str().expect("a session"));
        Self { driver, session, _process: process, _port: port }
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        call(self.driver, "POST", &format!("{}{path}", self.session), body)
    }

    pub fn open(&self, url: &str) {
        self.post("/url", &json!({"url": url}));
    }

    /// Sets the media feature `prefers-color-scheme` for all pages: `light` or `dark`.
    pub fn prefer(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.post(
            "/goog/cdp/execute",
            &json!({"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}}),
        );
    }

    /// Returns the value of an expression in the page.
    pub fn value(&self, expression: &str) -> Value {
        self.post("/execute/sync", &json!({"script": format!("return {expression}"), "args": []}))
    }

    /// Sends keys to the focused element. Special keys are those of WebDriver, such as `\u{e00c}` for Escape.
    pub fn type_keys(&self, keys: &str) {
        let actions = keys.chars().flat_map(|key| {
            [
                json!({"type": "keyDown", "value": key.to_string()}),
                json!({"type": "keyUp", "value": key.to_string()}),
            ]
        });
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions.collect::<Vec<_>>()});
        self.post("/actions", &json!({"actions": [keyboard]}));
    }

    /// Clicks on the first element that a CSS selector finds. One script finds and clicks the element, because the page
    /// may replace the element at any time.
    pub fn click(&self, selector: &str) {
        self.value(&format!("document.querySelector({}).click()", Value::from(selector)));
    }

    /// Writes a picture of the window, as PNG.
    pub fn screenshot(&self, path: &Path) {
        let answer = call(self.driver, "GET", &format!("{}/screenshot", self.session), &Value::Null);
        let picture: ByteString = serde_json::from_value(answer).expect("a picture in base64");
        std::fs::write(path, picture.0).unwrap();
    }

    /// Returns all entries of the browser's console, such as the error about a script that the page's policy refuses.
    pub fn console_entries(&self) -> Vec<String> {
        let log = self.post("/se/log", &json!({"type": "browser"}));
        log.as_array().into_iter().flatten().map(ToString::to_string).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = request(self.driver, "DELETE", &self.session, &Value::Null);
    }
}

/// Sends a request to ChromeDriver, and returns the field `value` of the response.
fn call(driver: SocketAddr, method: &str, path: &str, body: &Value) -> Value {
    let mut answer = request(driver, method, path, body).expect("chromedriver answers");
    let value = answer["value"].take();
    assert!(value.get("error").is_none(), "{method} {path}: {}", value["message"]);
    value
}

fn request(driver: SocketAddr, method: &str, path: &str, body: &Value) -> std::io::Result<Value> {
    let mut stream = TcpStream::connect(driver)?;
    stream.set_read_timeout(Some(EVENT_TIMEOUT))?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {driver}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = BufReader::new(stream);
    let mut length = 0;
    let mut line = String::new();
    while answer.read_line(&mut line)? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
        line.clear();
    }
    let mut text = vec![0; length];
    answer.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
