//! Admission policies that a test puts into an API server.

use serde_json::{Value, json};

use super::control_plane::ControlPlane;

/// Which requests about Services an admission policy looks at.
pub struct AdmissionPolicy<'a> {
    /// The name of the policy, and of its binding.
    pub name: &'a str,
    /// The operations, such as `CREATE`.
    pub operations: &'a [&'a str],
    /// A CEL expression that is true for the requests that it looks at.
    pub condition: &'a str,
}

impl AdmissionPolicy<'_> {
    /// Has the API server refuse the requests for which a validation isn't true: `{"expression": …}`, with `reason` and
    /// `message` where the test needs them. It is in force a moment later.
    pub fn validate(&self, plane: &ControlPlane, validation: &Value) {
        let spec = json!({"validations": [validation]});
        self.apply(plane, "ValidatingAdmissionPolicy", spec, json!({"validationActions": ["Deny"]}));
    }

    /// Has the API server apply a CEL expression, such as `Object{…}`, to the objects. It is in force a moment later.
    pub fn mutate(&self, plane: &ControlPlane, expression: &str) {
        let mutation =
            json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}});
        let spec = json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never", "mutations": [mutation]});
        self.apply(plane, "MutatingAdmissionPolicy", spec, json!({}));
    }

    fn apply(&self, plane: &ControlPlane, kind: &str, mut spec: Value, mut binding: Value) {
        let Self { name, operations, condition } = self;
        spec["matchConstraints"] = json!({"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": operations, "resources": ["services"]},
        ]});
        spec["matchConditions"] = json!([{"name": "ours", "expression": condition}]);
        binding["policyName"] = json!(name);
        let object = |kind: &str, spec: &Value| {
            let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                "metadata": {"name": name}, "spec": spec});
            serde_json::from_value(object).expect("an object")
        };
        plane.apply_objects(&[object(kind, &spec), object(&format!("{kind}Binding"), &binding)]);
    }
}
