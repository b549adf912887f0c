//! The CustomResourceDefinition in deploy/crd/ and in the chart: made from `src/api`.

use lb_linker::api::crd::stable_names;
use serde_json::Value;

use crate::docs::{read, root};

const MANIFEST: &str = "deploy/crd/crd.yaml";
const TEMPLATE: &str = "charts/lb-linker/templates/crd.yaml";

/// Writes whole numbers without a fraction: Kubernetes' types hold limits as floating-point numbers.
fn with_whole_numbers(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(with_whole_numbers),
        Value::Array(items) => items.iter_mut().for_each(with_whole_numbers),
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().filter(|number| number.fract() == 0.0) {
                *value = (whole as i64).into();
            }
        }
        _ => {}
    }
}

fn definition() -> Value {
    let mut definition = serde_json::to_value(stable_names()).unwrap();
    with_whole_numbers(&mut definition);
    definition
}

fn yaml(value: &Value) -> String {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: 100, compact_list_indent: false };
    serde_saphyr::to_string_with_options(value, options).unwrap()
}

fn manifest() -> String {
    let comment = "# The custom resource StableName, with its status. Written by `make crd` from src/api/.\n#\n\
                   #   kubectl apply -f deploy/crd/\n#\n\
                   # Deleting it deletes all StableNames of the cluster. Needs Kubernetes 1.31 or newer.\n";
    comment.to_owned() + &yaml(&definition())
}

/// Returns the definition as a Helm template. `{{` in the rules is escaped, so that Helm doesn't evaluate it.
fn template() -> String {
    let definition = definition();
    let spec = yaml(&serde_json::json!({"spec": definition["spec"]})).replace("{{", "{{ \"{{\" }}");
    let head =
        ["apiVersion", "kind"].map(|field| format!("{field}: {}\n", definition[field].as_str().unwrap()));
    let name = definition["metadata"]["name"].as_str().unwrap();
    format!(
        "{{{{- /* Written by `make crd` from src/api/. The rules need Kubernetes 1.31. */}}}}\n\
         {{{{- if and .Values.crds.enabled (not .Values.remoteAccess.enabled) (semverCompare \">=1.31.0-0\" .Capabilities.KubeVersion.Version) }}}}\n\
         {}metadata:\n  name: {name}\n  labels:\n    {{{{- include \"lb-linker.labels\" . | nindent 4 }}}}\n  \
         {{{{- if .Values.crds.keep }}}}\n  annotations:\n    helm.sh/resource-policy: keep\n  {{{{- end }}}}\n\
         {spec}{{{{- end }}}}\n",
        head.concat()
    )
}

#[test]
fn crd_in_deploy_and_in_the_chart_matches_src_api() {
    for (path, expected) in [(MANIFEST, manifest()), (TEMPLATE, template())] {
        if std::env::var_os("LB_LINKER_WRITE_CRD").is_some() {
            std::fs::write(root().join(path), &expected).unwrap();
        }
        assert!(read(path) == expected, "{path} isn't what src/api says: run `make crd`");
    }
    assert_eq!(serde_saphyr::from_str::<Value>(&manifest()).unwrap(), definition());
}
