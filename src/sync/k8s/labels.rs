//! Labels and annotations of the objects that lb-linker writes, and its field manager.

/// The field manager of every write.
pub const FIELD_MANAGER: &str = "lb-linker";

/// The label that names the controller of an object, and its value. lb-linker uses the value of the earlier operator,
/// and so takes over the objects of that operator in place.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "lb-linker-operator");

/// The label that holds the name of the link's Service.
pub const ORIGINAL_NAME: &str = "original-service-name";

/// The label that holds the namespace of the link's Service.
pub const ORIGINAL_NAMESPACE: &str = "original-service-namespace";

/// The annotation that makes an ExternalName Service of any name follow a link.
pub const SOURCE: &str = "linker.hsj.com/source";

/// The annotation that holds the uid of the Service whose target an external target has.
pub const SERVICE_UID: &str = "linker.hsj.com/service-uid";

/// The annotation that holds the uid of the StableName that overrides the link.
pub const STABLE_NAME_UID: &str = "linker.hsj.com/stable-name-uid";

/// The label with the Service of an EndpointSlice.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The label that makes Kubernetes' own controllers leave an EndpointSlice alone.
pub(crate) const SLICE_MANAGED_BY: (&str, &str) = ("endpointslice.kubernetes.io/managed-by", "lb-linker");

/// The label that names the controller of a PrometheusRule, and its value.
pub(crate) const RULE_MANAGED_BY: (&str, &str) = (MANAGED_BY.0, "lb-linker");

/// The label of PrometheusRules that holds the name of the StableName.
pub(crate) const RULE_OWNER: &str = "linker.hsj.com/stable-name";

/// The annotation of PrometheusRules that lists the names of their labels from `spec.alerts.ruleLabels`.
pub(crate) const RULE_LABELS: &str = "linker.hsj.com/rule-labels";
