//! The output of `lb-linker names`.

use serde::Serialize;

use super::OutputFormat;
use super::names::{NameView, ObjectView};
use super::output::{RenderError, json};
use super::table::columns;
use crate::model::excerpt::{examples, printable};

#[derive(Serialize)]
struct NameList<'a> {
    items: &'a [NameView],
}

/// Returns the text to print. Without a format, it is a table, or the details of the name if `is_detail` is set.
///
/// # Errors
/// If the names can't be represented in the format.
pub fn render(
    names: &[NameView],
    format: Option<OutputFormat>,
    is_detail: bool,
) -> Result<String, RenderError> {
    let lines = match (format, names) {
        (Some(OutputFormat::Json), _) => return Ok(json(&NameList { items: names })? + "\n"),
        (Some(OutputFormat::Yaml), _) => return Ok(serde_saphyr::to_string(&NameList { items: names })?),
        (Some(OutputFormat::Name), _) => names.iter().map(|name| printable(&name.name, &[])).collect(),
        (_, []) => Vec::new(),
        (None, [name]) if is_detail => detail(name),
        (format, _) => table(names, format == Some(OutputFormat::Wide)),
    };
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

fn table(names: &[NameView], wide: bool) -> Vec<String> {
    let mut header = vec!["NAME", "SOURCE", "OBJECT", "TARGET", "STATE", "ALSO ASKED FOR BY"];
    header.extend(wide.then_some("REASON"));
    let row = |view: &NameView| {
        let NameView { name, source, object, target, state, reason, shared_with, also_asking } = view;
        let more = match shared_with.len() {
            0 => String::new(),
            number => format!(" and {number} more"),
        };
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "<none>".to_owned());
        let mut cells = vec![
            name.clone(),
            source.clone(),
            object.text() + &more,
            text(target),
            state.to_string(),
            list(also_asking),
        ];
        cells.extend(wide.then(|| text(reason)));
        // Control characters are escaped: the list may come from another program that listens at `--admin-listen`.
        cells.iter().map(|cell| printable(cell, &[])).collect()
    };
    let rows: Vec<Vec<String>> = names.iter().map(row).collect();
    let mut all = vec![header];
    all.extend(rows.iter().map(|row| row.iter().map(String::as_str).collect()));
    columns(&all)
}

fn detail(view: &NameView) -> Vec<String> {
    let NameView { name, source, object, target, state, reason, shared_with, also_asking } = view;
    let mut lines = vec![
        format!("Name:               {name}"),
        format!("Source:             {source}"),
        format!("Object:             {}", object.text()),
        format!("State:              {state}"),
    ];
    lines.extend(reason.as_ref().map(|reason| format!("Reason:             {reason}")));
    lines.push(format!("Target:             {}", target.as_deref().unwrap_or("<none>")));
    for (label, objects) in [("Shared with:", shared_with), ("Also asked for by:", also_asking)] {
        let labels = std::iter::once(label).chain(std::iter::repeat(""));
        let objects = objects.iter().zip(labels);
        lines.extend(objects.map(|(object, label)| format!("{label:20}{}", object.text())));
    }
    lines.iter().map(|line| printable(line, &[])).collect()
}

fn list(objects: &[ObjectView]) -> String {
    match objects {
        [] => "<none>".to_owned(),
        _ => examples(objects.iter().map(ObjectView::text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::view::ViewState;

    fn object(name: &str) -> ObjectView {
        ObjectView { kind: "Ingress".to_owned(), namespace: "shop".to_owned(), name: name.to_owned() }
    }

    fn names() -> Vec<NameView> {
        let pending = NameView {
            name: "a.lb.internal".to_owned(),
            source: "ingress".to_owned(),
            object: object("web"),
            target: None,
            state: ViewState::Pending,
            reason: Some("its status names no target yet".to_owned()),
            shared_with: vec![object("two"), object("three")],
            also_asking: Vec::new(),
        };
        let ready = NameView {
            name: "b.lb.internal".to_owned(),
            target: Some("192.0.2.1".to_owned()),
            state: ViewState::Ready,
            reason: None,
            shared_with: Vec::new(),
            also_asking: vec![object("thief")],
            ..pending.clone()
        };
        vec![pending, ready]
    }

    #[test]
    fn table_and_details_of_names() {
        let table = render(&names(), Some(OutputFormat::Wide), false).unwrap();
        let expected = "\
NAME            SOURCE    OBJECT                        TARGET      STATE     ALSO ASKED FOR BY    REASON
a.lb.internal   ingress   Ingress shop/web and 2 more   <none>      Pending   <none>               its status names no target yet
b.lb.internal   ingress   Ingress shop/web              192.0.2.1   Ready     Ingress shop/thief   <none>
";
        assert_eq!(table, expected);
        let details = render(&names()[..1], None, true).unwrap();
        let expected = "\
Name:               a.lb.internal
Source:             ingress
Object:             Ingress shop/web
State:              Pending
Reason:             its status names no target yet
Target:             <none>
Shared with:        Ingress shop/two
                    Ingress shop/three
";
        assert_eq!(details, expected);
        assert_eq!(
            render(&names(), Some(OutputFormat::Name), false).unwrap(),
            "a.lb.internal\nb.lb.internal\n"
        );
        let json: serde_json::Value =
            serde_json::from_str(&render(&names(), Some(OutputFormat::Json), false).unwrap()).unwrap();
        assert_eq!(json["items"][1]["alsoAsking"][0]["name"], "thief");
    }

    #[test]
    fn names_of_a_foreign_program_cant_control_the_terminal() {
        let hostile = NameView {
            name: "\u{1b}[2J\r\n".to_owned(),
            object: object("\u{9b}2J"),
            reason: Some("\u{9b}2J".to_owned()),
            ..names()[0].clone()
        };
        for format in [
            None,
            Some(OutputFormat::Wide),
            Some(OutputFormat::Json),
            Some(OutputFormat::Yaml),
            Some(OutputFormat::Name),
        ] {
            for is_detail in [false, true] {
                let text = render(std::slice::from_ref(&hostile), format, is_detail).unwrap();
                let found = text.chars().find(|c| c.is_control() && *c != '\n');
                assert_eq!(found, None, "{format:?}: {text:?}");
            }
        }
    }
}
