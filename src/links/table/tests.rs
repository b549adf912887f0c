use std::borrow::Cow;

use jiff::Timestamp;

use super::*;
use crate::links::OutputFormat;
use crate::links::output::render;
use crate::links::view::{LinkEvent, OverrideKind, OverrideView};

const NOW: i64 = 1_700_000_000;

fn links() -> Vec<LinkView> {
    let link = |namespace: &str,
                service: &str,
                target: Option<&str>,
                state,
                reason: Option<&'static str>,
                age: Option<i64>| LinkView {
        namespace: namespace.to_owned(),
        service: service.to_owned(),
        dns_names: vec![
            format!("{service}-{namespace}.lb.internal"),
            format!("{service}.{namespace}.lb.internal"),
        ],
        target: target.map(str::to_owned),
        external_target: Some(format!("external-targets/{service}-{namespace}-ext")),
        state,
        reason: reason.map(Cow::Borrowed),
        overridden_by: None,
        created: age.and_then(|seconds| Timestamp::from_second(seconds).ok()),
        history: None,
    };
    vec![
        link("default", "my-sample-lb", Some("a.example"), ViewState::Ready, None, Some(NOW - 300)),
        LinkView {
            external_target: None,
            ..link("shop", "web", None, ViewState::Pending, Some("no target yet"), None)
        },
    ]
}

fn options() -> TableOptions {
    TableOptions { with_namespace: true, ..TableOptions::default() }
}

#[test]
fn columns_are_aligned_as_in_kubectl() {
    let expected = "\
NAMESPACE   SERVICE        DNS NAME                           TARGET      EXTERNAL TARGET                             STATE     AGE
default     my-sample-lb   my-sample-lb-default.lb.internal   a.example   external-targets/my-sample-lb-default-ext   Ready     5m
shop        web            web-shop.lb.internal               <pending>   <none>                                      Pending   <unknown>
";
    assert_eq!(render(&links(), None, false, NOW, options()).unwrap(), expected);
    let narrow = table(&links()[..1], NOW, TableOptions::default());
    assert_eq!(narrow[0].split("   ").next(), Some("SERVICE"));
    assert!(narrow.iter().all(|line| !line.ends_with(' ')), "{narrow:?}");
}

#[test]
fn wide_table_has_reasons_and_all_names() {
    let wide = table(&links(), NOW, TableOptions { wide: true, ..options() });
    assert!(
        wide[0].ends_with(
            "AGE         DNS NAMES                                                           LED BY   REASON"
        ),
        "{wide:#?}"
    );
    assert!(
        wide[2].ends_with(
            "web-shop.lb.internal,web.shop.lb.internal                           <none>   no target yet"
        ),
        "{wide:#?}"
    );
    let long = LinkView { reason: Some("why ".repeat(500).into()), ..links().swap_remove(0) };
    let wide = table(&[long], NOW, TableOptions { wide: true, ..options() });
    assert_eq!(wide[1].matches("why ").count(), 500);
}

#[test]
fn color_doesnt_move_columns() {
    let plain = table(&links(), NOW, options());
    let colored = table(&links(), NOW, TableOptions { color: true, ..options() });
    assert!(
        colored[1].contains("\x1b[32mReady\x1b[0m  ") && colored[2].contains("\x1b[33mPending\x1b[0m"),
        "{colored:?}"
    );
    let without = |line: &String| {
        ["\x1b[32m", "\x1b[33m", "\x1b[0m"].iter().fold(line.clone(), |line, code| line.replace(code, ""))
    };
    assert_eq!(colored.iter().map(without).collect::<Vec<_>>(), plain);
}

#[test]
fn single_link_is_shown_in_detail_with_its_history() {
    let expected = "\
Service:          default/my-sample-lb
State:            Ready
Target:           a.example
External target:  external-targets/my-sample-lb-default-ext
Created:          2023-11-14T22:08:20Z (5m ago)
DNS names:        my-sample-lb-default.lb.internal
                  my-sample-lb.default.lb.internal
";
    let described = |history: Option<Vec<LinkEvent>>| {
        let link = LinkView { history, ..links().swap_remove(0) };
        render(&[link], None, true, NOW, options()).unwrap().strip_prefix(expected).unwrap().to_owned()
    };
    let event = |age, state, target: Option<&str>| LinkEvent {
        time: Timestamp::from_second(NOW - age).unwrap(),
        state,
        target: target.map(str::to_owned),
    };
    assert!(described(None).starts_with("History:          <unknown>: "));
    assert_eq!(described(Some(Vec::new())), "History:          no change since lb-linker has started\n");
    let history =
        vec![event(3600, ViewState::Pending, None), event(125, ViewState::Ready, Some("a.example"))];
    let expected_history = "\
History:          without former times as Degraded, Unresolved or Unnamed
  AGE       STATE       TARGET
  60m       Pending     <none>
  2m5s      Ready       a.example
";
    assert_eq!(described(Some(history)), expected_history);
    // Several links are printed as a table: Services in several namespaces may have the same name.
    assert!(render(&links(), None, true, NOW, options()).unwrap().starts_with("NAMESPACE"));
}

#[test]
fn control_characters_are_escaped_in_every_format() {
    const HOSTILE: &str = "\u{1b}]0;x\u{7}\u{9b}2J\r\n\u{7f}";
    let overridden_by = OverrideView {
        kind: OverrideKind::StableName,
        namespace: HOSTILE.to_owned(),
        name: HOSTILE.to_owned(),
        source: Some(HOSTILE.to_owned()),
    };
    let event = LinkEvent {
        time: Timestamp::from_second(NOW).unwrap(),
        state: ViewState::Ready,
        target: Some(HOSTILE.to_owned()),
    };
    let link = LinkView {
        namespace: HOSTILE.to_owned(),
        service: HOSTILE.to_owned(),
        dns_names: vec![HOSTILE.to_owned(); 2],
        target: Some(HOSTILE.to_owned()),
        external_target: Some(HOSTILE.to_owned()),
        reason: Some(HOSTILE.to_owned().into()),
        overridden_by: Some(overridden_by),
        history: Some(vec![event]),
        ..links().swap_remove(0)
    };
    let wide = TableOptions { wide: true, ..options() };
    for (format, is_detail) in [
        (None, false),
        (None, true),
        (Some(OutputFormat::Wide), false),
        (Some(OutputFormat::Json), false),
        (Some(OutputFormat::Yaml), false),
        (Some(OutputFormat::Name), false),
    ] {
        let text = render(std::slice::from_ref(&link), format, is_detail, NOW, wide).unwrap();
        let found = text.chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(found, None, "{format:?} {is_detail}: {text:?}");
        match format {
            Some(OutputFormat::Json) => {
                let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
                assert_eq!(parsed["items"][0]["target"], HOSTILE);
            }
            Some(OutputFormat::Yaml) => {
                let parsed: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
                assert_eq!(parsed["items"][0]["target"], HOSTILE);
            }
            // A line break in a value is escaped, so it begins no new line.
            _ => assert!(
                !text.contains("2J\n") && text.contains("2J\\r\\n"),
                "{format:?} {is_detail}: {text:?}"
            ),
        }
    }
}

#[test]
fn overridden_link_shows_its_stable_name_and_source() {
    let overridden_by = OverrideView {
        kind: OverrideKind::StableName,
        namespace: "default".to_owned(),
        name: "my-sample-lb".to_owned(),
        source: Some("busan".to_owned()),
    };
    let links = [LinkView { overridden_by: Some(overridden_by), ..links().swap_remove(0) }];
    let text = |format, is_detail| render(&links, format, is_detail, NOW, options()).unwrap();
    assert!(
        text(None, true)
            .starts_with("Led by:           StableName default/my-sample-lb, source busan\nState: ")
    );
    let wide = table(&links, NOW, TableOptions { wide: true, ..options() });
    assert!(wide[1].ends_with("   StableName default/my-sample-lb, source busan   <none>"), "{wide:#?}");
    assert_eq!(text(Some(OutputFormat::Name), false), "stablename.linker.hsj.com/my-sample-lb\n");
    let json: serde_json::Value = serde_json::from_str(&text(Some(OutputFormat::Json), false)).unwrap();
    let expected = serde_json::json!({"kind": "StableName", "namespace": "default", "name": "my-sample-lb",
        "source": "busan"});
    assert_eq!(json["items"][0]["lead"], expected);
}

#[test]
fn json_yaml_and_names_have_the_same_links() {
    let text = |format| render(&links(), Some(format), false, NOW, options()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text(OutputFormat::Json)).unwrap();
    let yaml: serde_json::Value = serde_saphyr::from_str(&text(OutputFormat::Yaml)).unwrap();
    assert_eq!(json, yaml);
    assert_eq!(json["items"][0]["dnsNames"][0], "my-sample-lb-default.lb.internal");
    assert_eq!(json["items"][1]["reason"], "no target yet");
    assert_eq!(json["items"][1].get("target"), None);
    assert_eq!(text(OutputFormat::Name), "service/my-sample-lb\nservice/web\n");
    assert_eq!(
        render(&[], Some(OutputFormat::Json), false, NOW, options()).unwrap(),
        "{\n  \"items\": []\n}\n"
    );
    assert_eq!(render(&[], None, false, NOW, options()).unwrap(), "");
}
