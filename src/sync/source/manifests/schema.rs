//! The fields of Services, Ingresses and StableNames, as the API server knows them: an unknown field of a manifest is
//! an error, as in kubectl. Tests compare them with the types of Kubernetes and with the CRD, which are too large for
//! the program. Objects of Gateway API have the fields of version 1.6,
//! DNSEndpoints those of ExternalDNS 0.22; what isn't read of them may be anything.

/// What a value in a manifest has to be.
#[derive(Debug)]
pub(super) enum Schema {
    /// A value that isn't read.
    Any,
    Text,
    Time,
    Boolean,
    Integer,
    /// The number of a TCP or UDP port.
    Port,
    List(&'static Self),
    /// An object with any names, and texts as values.
    Texts,
    Object(&'static [Field]),
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) schema: Schema,
    pub(super) is_required: bool,
}

use Schema::{Any, Boolean, Integer, List, Object, Port, Text, Texts, Time};

const fn field(name: &'static str, schema: Schema) -> Field {
    Field { name, schema, is_required: false }
}

const fn required(name: &'static str, schema: Schema) -> Field {
    Field { name, schema, is_required: true }
}

pub(super) static SERVICE: Schema = Object(&[
    field("apiVersion", Text),
    field("kind", Text),
    field("metadata", METADATA),
    field("spec", Object(&SERVICE_SPEC)),
    field("status", Object(&SERVICE_STATUS)),
]);

const METADATA: Schema = Object(&[
    field("annotations", Texts),
    field("creationTimestamp", Time),
    field("deletionGracePeriodSeconds", Any),
    field("deletionTimestamp", Time),
    field("finalizers", List(&Text)),
    field("generateName", Any),
    field("generation", Any),
    field("labels", Texts),
    field(
        "managedFields",
        List(&Object(&[
            field("apiVersion", Any),
            field("fieldsType", Any),
            field("fieldsV1", Any),
            field("manager", Text),
            field("operation", Any),
            field("subresource", Any),
            field("time", Any),
        ])),
    ),
    field("name", Text),
    field("namespace", Text),
    field(
        "ownerReferences",
        List(&Object(&[
            field("apiVersion", Text),
            field("blockOwnerDeletion", Boolean),
            field("controller", Boolean),
            field("kind", Text),
            field("name", Text),
            field("uid", Text),
        ])),
    ),
    field("resourceVersion", Text),
    field("selfLink", Any),
    field("uid", Text),
]);

static SERVICE_SPEC: [Field; 20] = [
    field("allocateLoadBalancerNodePorts", Any),
    field("clusterIP", Text),
    field("clusterIPs", List(&Text)),
    field("externalIPs", Any),
    field("externalName", Text),
    field("externalTrafficPolicy", Any),
    field("healthCheckNodePort", Any),
    field("internalTrafficPolicy", Any),
    field("ipFamilies", Any),
    field("ipFamilyPolicy", Any),
    field("loadBalancerClass", Any),
    field("loadBalancerIP", Any),
    field("loadBalancerSourceRanges", Any),
    field(
        "ports",
        List(&Object(&[
            field("appProtocol", Text),
            field("name", Text),
            field("nodePort", Any),
            required("port", Port),
            field("protocol", Text),
            field("targetPort", Any),
        ])),
    ),
    field("publishNotReadyAddresses", Any),
    field("selector", Texts),
    field("sessionAffinity", Any),
    field("sessionAffinityConfig", Object(&[field("clientIP", Object(&[field("timeoutSeconds", Any)]))])),
    field("trafficDistribution", Any),
    field("type", Text),
];

pub(super) static INGRESS: Schema = Object(&[
    field("apiVersion", Text),
    field("kind", Text),
    field("metadata", METADATA),
    field("spec", Object(&INGRESS_SPEC)),
    field("status", Object(&INGRESS_STATUS)),
]);

const BACKEND: Schema = Object(&[
    field("resource", Object(&[field("apiGroup", Any), field("kind", Any), field("name", Any)])),
    field(
        "service",
        Object(&[field("name", Any), field("port", Object(&[field("name", Any), field("number", Any)]))]),
    ),
]);

static INGRESS_SPEC: [Field; 4] = [
    field("defaultBackend", BACKEND),
    field("ingressClassName", Text),
    field(
        "rules",
        List(&Object(&[
            field("host", Text),
            field(
                "http",
                Object(&[field(
                    "paths",
                    List(&Object(&[field("backend", BACKEND), field("path", Any), field("pathType", Any)])),
                )]),
            ),
        ])),
    ),
    field("tls", List(&Object(&[field("hosts", List(&Text)), field("secretName", Any)]))),
];

static INGRESS_STATUS: [Field; 1] = [field(
    "loadBalancer",
    Object(&[field(
        "ingress",
        List(&Object(&[
            field("hostname", Text),
            field("ip", Text),
            field("ports", List(&Object(&[field("error", Any), field("port", Any), field("protocol", Any)]))),
        ])),
    )]),
)];

const ALLOWED_ROUTES: Schema = Object(&[
    field("kinds", List(&Object(&[field("group", Text), field("kind", Text)]))),
    field("namespaces", Object(&[field("from", Text), field("selector", LABEL_SELECTOR)])),
]);

const LABEL_SELECTOR: Schema = Object(&[
    field(
        "matchExpressions",
        List(&Object(&[field("key", Text), field("operator", Text), field("values", List(&Text))])),
    ),
    field("matchLabels", Texts),
]);

static LISTENERS: Schema = Object(&[
    field("allowedRoutes", ALLOWED_ROUTES),
    field("hostname", Text),
    field("name", Text),
    field("port", Port),
    field("protocol", Text),
    field("tls", Any),
]);

const PARENT_REF: Schema = Object(&[
    field("group", Text),
    field("kind", Text),
    field("name", Text),
    field("namespace", Text),
    field("port", Port),
    field("sectionName", Text),
]);

const CONDITIONS: Schema = List(&Object(&[
    field("lastTransitionTime", Any),
    field("message", Any),
    field("observedGeneration", Any),
    field("reason", Any),
    field("status", Text),
    field("type", Text),
]));

pub(super) static GATEWAY: Schema = Object(&[
    field("apiVersion", Text),
    field("kind", Text),
    field("metadata", METADATA),
    field(
        "spec",
        Object(&[
            field("addresses", Any),
            field("allowedListeners", Any),
            field("defaultScope", Any),
            field("gatewayClassName", Text),
            field("infrastructure", Any),
            field("listeners", List(&LISTENERS)),
            field("tls", Any),
        ]),
    ),
    field(
        "status",
        Object(&[
            field("addresses", List(&Object(&[field("type", Text), field("value", Text)]))),
            field("attachedListenerSets", Any),
            field("conditions", Any),
            field("listeners", Any),
        ]),
    ),
]);

pub(super) static LISTENER_SET: Schema = Object(&[
    field("apiVersion", Text),
    field("kind", Text),
    field("metadata", METADATA),
    field("spec", Object(&[field("listeners", List(&LISTENERS)), field("parentRef", PARENT_REF)])),
    field("status", Object(&[field("conditions", CONDITIONS), field("listeners", Any)])),
]);

/// An HTTPRoute, a GRPCRoute or a TLSRoute.
pub(super) static ROUTE: Schema = Object(&[
    field("apiVersion", Text),
    field("kind", Text),
    field("metadata", METADATA),
    field(
        "spec",
        Object(&[
            field("hostnames", List(&Text)),
            field("parentRefs", List(&PARENT_REF)),
            field("rules", Any),
            field("useDefaultGateways", Any),
        ]),
    ),
    field(
        "status",
        Object(&[field(
            "parents",
            List(&Object(&[
                field("conditions", CONDITIONS),
                field("controllerName", Any),
                field("parentRef", PARENT_REF),
            ])),
        )]),
    ),
]);

pub(super) static DNS_ENDPOINT: Schema = Object(&[
    field("apiVersion", Text),
    field("kind", Text),
    field("metadata", METADATA),
    field(
        "spec",
        Object(&[field(
            "endpoints",
            List(&Object(&[
                field("dnsName", Text),
                field("labels", Texts),
                field("providerSpecific", List(&Object(&[field("name", Text), field("value", Text)]))),
                field("recordTTL", Integer),
                field("recordType", Text),
                field("setIdentifier", Text),
                field("targets", List(&Text)),
            ])),
        )]),
    ),
    field("status", Any),
]);

static SERVICE_STATUS: [Field; 2] = [
    field(
        "conditions",
        List(&Object(&[
            field("lastTransitionTime", Any),
            field("message", Any),
            field("observedGeneration", Any),
            field("reason", Any),
            field("status", Any),
            field("type", Any),
        ])),
    ),
    field(
        "loadBalancer",
        Object(&[field(
            "ingress",
            List(&Object(&[
                field("hostname", Text),
                field("ip", Text),
                field("ipMode", Any),
                field(
                    "ports",
                    List(&Object(&[field("error", Any), field("port", Any), field("protocol", Any)])),
                ),
            ])),
        )]),
    ),
];

pub(super) static STABLE_NAME: Schema = Object(&[
    field("apiVersion", Text),
    field("kind", Text),
    field("metadata", METADATA),
    required("spec", Object(&STABLE_NAME_SPEC)),
    field("status", Object(&STABLE_NAME_STATUS)),
]);

static STABLE_NAME_SPEC: [Field; 9] = [
    field(
        "alerts",
        Object(&[
            field("failedOverForSeconds", Integer),
            field("labels", Texts),
            field("notReadyForSeconds", Integer),
            field("ruleLabels", Texts),
        ]),
    ),
    field("allowFrom", List(&Text)),
    field(
        "check",
        Object(&[
            field("failureThreshold", Integer),
            field("periodSeconds", Integer),
            field("successThreshold", Integer),
            field("tcpPort", Integer),
            field("timeoutSeconds", Integer),
        ]),
    ),
    field("cutover", Object(&[field("maxWaitSeconds", Integer)])),
    field("failback", Object(&[field("afterSeconds", Integer), field("mode", Text)])),
    field("hostnames", List(&Text)),
    field("pin", Text),
    required(
        "sources",
        List(&Object(&[
            field("addresses", List(&Text)),
            field("hostname", Text),
            required("name", Text),
            field(
                "service",
                Object(&[field("cluster", Text), required("name", Text), field("namespace", Text)]),
            ),
        ])),
    ),
    field("ttlSeconds", Integer),
];

static STABLE_NAME_STATUS: [Field; 7] = [
    field(
        "conditions",
        List(&Object(&[
            required("lastTransitionTime", Time),
            required("message", Text),
            field("observedGeneration", Integer),
            required("reason", Text),
            required("status", Text),
            required("type", Text),
        ])),
    ),
    field("dnsNames", List(&Text)),
    field(
        "history",
        List(&Object(&[
            field("display", Text),
            field("reason", Text),
            field("since", Time),
            field("source", Text),
            field("until", Time),
        ])),
    ),
    field("observedGeneration", Integer),
    field("service", Text),
    field(
        "sources",
        List(&Object(&[
            field("message", Text),
            field("name", Text),
            field("offers", Text),
            field("since", Time),
            field("state", Text),
        ])),
    ),
    field(
        "target",
        Object(&[
            field("addresses", List(&Text)),
            field("display", Text),
            field("hostname", Text),
            field("serviceUID", Text),
            field("since", Time),
            field("source", Text),
            field("verified", Boolean),
        ]),
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::super::serde_fields::fields_of;
    use super::*;
    use crate::api::crd;

    /// Returns the paths of all fields, with `[]` for a list.
    fn paths(schema: &Schema) -> BTreeSet<String> {
        fn walk(path: &str, schema: &Schema, found: &mut BTreeSet<String>) {
            match schema {
                List(items) => walk(&format!("{path}[]"), items, found),
                Object(fields) => {
                    for Field { name, schema, .. } in *fields {
                        let path = format!("{path}.{name}");
                        walk(&path, schema, found);
                        found.insert(path);
                    }
                }
                _ => {}
            }
        }
        let mut found = BTreeSet::new();
        walk("", schema, &mut found);
        found
    }

    #[test]
    fn fields_of_a_service_are_those_of_kubernetes() {
        let theirs = fields_of::<k8s_openapi::api::core::v1::Service>();
        assert!(theirs.contains(".spec.sessionAffinityConfig.clientIP.timeoutSeconds"), "{theirs:#?}");
        let ours = paths(&SERVICE);
        let differ: Vec<_> = ours.symmetric_difference(&theirs).collect();
        assert!(differ.is_empty(), "in one of them only: {differ:#?}");
    }

    #[test]
    fn fields_of_an_ingress_are_those_of_kubernetes() {
        use k8s_openapi::api::networking::v1::{IngressSpec, IngressStatus};
        assert_eq!(paths(&Object(&INGRESS_SPEC)), fields_of::<IngressSpec>());
        assert_eq!(paths(&Object(&INGRESS_STATUS)), fields_of::<IngressStatus>());
    }

    /// Returns the schema in OpenAPI, with only what `Schema` has.
    fn open_api(schema: &Schema) -> Value {
        use serde_json::json;
        let mut object = match schema {
            Any => json!({}),
            Text => json!({"type": "string"}),
            Time => json!({"type": "string", "format": "date-time"}),
            Boolean => json!({"type": "boolean"}),
            Integer | Port => json!({"type": "integer"}),
            Texts => json!({"type": "object", "additionalProperties": {"type": "string"}}),
            List(items) => json!({"type": "array", "items": open_api(items)}),
            Object(fields) => {
                let properties: serde_json::Map<_, _> =
                    fields.iter().map(|field| (field.name.to_owned(), open_api(&field.schema))).collect();
                json!({"type": "object", "properties": properties})
            }
        };
        let Object(fields) = schema else { return object };
        let required: Vec<_> =
            fields.iter().filter(|field| field.is_required).map(|field| field.name).collect();
        if !required.is_empty() {
            object["required"] = json!(required);
        }
        object
    }

    /// Removes from an OpenAPI schema what [`open_api`] doesn't have.
    fn reduce(schema: &mut Value) {
        let Some(object) = schema.as_object_mut() else { return };
        object.retain(|key, value| match key.as_str() {
            "type" | "items" | "properties" | "additionalProperties" | "required" => true,
            "format" => value == "date-time",
            _ => false,
        });
        for key in ["items", "additionalProperties"] {
            object.get_mut(key).into_iter().for_each(reduce);
        }
        let properties = object.get_mut("properties").and_then(Value::as_object_mut);
        properties.into_iter().flat_map(|properties| properties.values_mut()).for_each(reduce);
    }

    #[test]
    fn fields_of_a_stable_name_are_those_of_the_crd() {
        let mut crd = serde_json::to_value(crd::stable_names()).unwrap();
        let mut theirs = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take();
        reduce(&mut theirs);
        let mut ours = open_api(&STABLE_NAME);
        for every_object_has in ["apiVersion", "kind", "metadata"] {
            ours["properties"].as_object_mut().unwrap().remove(every_object_has);
        }
        assert_eq!(ours, theirs);
    }
}
