//! Admission policies for tests.

use serde_json::{Value, json};

use super::control_plane::ControlPlane;

/// An admission policy for requests about Services.
pub struct AdmissionPolicy<'a> {
    /// The name of the policy, and of its binding.
    pub name: &'a str,
    /// The operations, such as `CREATE`.
    pub operations: &'a [&'a str],
    /// A CEL expression that is true for the requests to which the policy applies.
    pub condition: &'a str,
}

impl AdmissionPolicy<'_> {
    /// Makes the API server refuse requests for which the CEL expression of `validation` is false. `validation` is
    /// `{"expression": …}`, perhaps with `reason` and `message`. The policy takes effect a moment later.
    pub fn validate(&self, plane: &ControlPlane, validation: &Value) {
        let spec = json!({"validations": [validation]});
        self.apply(plane, "ValidatingAdmissionPolicy", spec, json!({"validationActions": ["Deny"]}));
    }

    /// Makes the API server apply the changes of a CEL expression, such as `Object{…}`, to the objects of requests. The
    /// policy takes effect a moment later.
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
