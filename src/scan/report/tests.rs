use super::*;
use crate::scan::findings::{AddressMatch, Ambiguous, RemoteMatch, SourceMatch, Stale, TargetMatch};

fn exact(namespace: &str, service: &str, load_balancer: &str, needs_allow_from: bool) -> ExactMatch {
    ExactMatch {
        namespace: namespace.to_owned(),
        service: service.to_owned(),
        external_name: "a.lb.example".to_owned(),
        load_balancer: load_balancer.to_owned(),
        is_stable_name: false,
        needs_allow_from,
        allowed: vec!["billing".to_owned()],
        version: None,
    }
}

#[test]
fn allow_from_commands_precede_source_commands() {
    let found =
        [exact("shop", "a", "lb/x", true), exact("shop", "b", "lb/x", true), exact("lb", "c", "lb/x", false)];
    assert_eq!(
        commands(&found),
        [
            "kubectl -n lb annotate --overwrite service x linker.hsj.com/allow-from=billing,shop",
            "kubectl -n shop annotate service a linker.hsj.com/source=lb/x",
            "kubectl -n shop annotate service b linker.hsj.com/source=lb/x",
            "kubectl -n lb annotate service c linker.hsj.com/source=lb/x",
        ]
    );
}

#[test]
fn more_namespaces_than_the_limit_give_no_command() {
    let others = (0..MAX_ENTRIES).map(|i| exact(&format!("team-{i}"), "a", "lb/x", true));
    let found: Vec<ExactMatch> = others.chain([exact("lb", "c", "lb/x", false)]).collect();
    let expected = [
        "# lb/x would have to allow 101 namespaces, more than the 100 that lb-linker reads: allow all with *, or some by hand",
        "kubectl -n lb annotate service c linker.hsj.com/source=lb/x",
    ];
    assert_eq!(commands(&found), expected);
    assert_eq!(commands(&found[1..]).len(), 1 + MAX_ENTRIES);
}

#[test]
fn stable_name_allows_namespaces_in_its_spec() {
    let found = [ExactMatch { is_stable_name: true, ..exact("shop", "a", "lb/x", true) }];
    let commands = commands(&found);
    assert_eq!(
        commands[0],
        "kubectl -n lb patch stablename x --type=merge -p '{\"spec\":{\"allowFrom\":[\"billing\",\"shop\"]}}'"
    );
    assert_eq!(commands[1], "kubectl -n shop annotate service a linker.hsj.com/source=lb/x");
    let report = report(&Scan { exact: found.into(), ..Scan::default() });
    assert!(report.iter().any(|line| line.ends_with("a.lb.example    StableName lb/x")), "{report:#?}");
}

#[test]
fn report_begins_with_findings_that_need_a_decision() {
    let scan = Scan {
        probable: vec![Stale {
            namespace: "shop".to_owned(),
            service: "old".to_owned(),
            external_name: "old.lb.example".to_owned(),
            dns: "NXDOMAIN".to_owned(),
        }],
        exact: vec![exact("shop", "a", "lb/x", false)],
        ambiguous: vec![Ambiguous {
            namespace: "shop".to_owned(),
            service: "both".to_owned(),
            external_name: "b.lb.example".to_owned(),
            load_balancers: vec!["lb/x".to_owned(), "lb/y".to_owned()],
        }],
        sources: vec![SourceMatch {
            namespace: "shop".to_owned(),
            service: "standby".to_owned(),
            external_name: "c.lb.example".to_owned(),
            stable_names: vec!["lb/x".to_owned()],
        }],
        addresses: vec![AddressMatch {
            kind: "EndpointSlice",
            namespace: "shop".to_owned(),
            name: "db-1".to_owned(),
            address: "192.0.2.1".parse().unwrap(),
            load_balancer: "lb/z".to_owned(),
            replacement: "external-targets/z-lb-ext".to_owned(),
        }],
        targets: vec![TargetMatch {
            namespace: "shop".to_owned(),
            service: "front".to_owned(),
            external_name: "d.lb.example".to_owned(),
            objects: vec!["Gateway infra/public".to_owned(), "Ingress shop/web".to_owned()],
        }],
        remote: vec![RemoteMatch {
            namespace: "shop".to_owned(),
            service: "west".to_owned(),
            external_name: "e.lb.example".to_owned(),
            remote: RemoteLoadBalancer {
                cluster: "west".to_owned(),
                load_balancer: "lb/w".to_owned(),
                name: "w.lb.west.lb.internal".to_owned(),
            },
        }],
        notices: Vec::new(),
    };
    let expected = "\
Probably stale: no load balancer has this hostname any more. Decide which load balancer is meant:

  NAMESPACE   SERVICE   EXTERNAL NAME    DNS
  shop        old       old.lb.example   NXDOMAIN

Several load balancers have this hostname. Decide which one is meant:

  NAMESPACE   SERVICE   EXTERNAL NAME   LOAD BALANCERS
  shop        both      b.lb.example    lb/x,lb/y

These Services name a source or a former target of a StableName. Decide whether they are to follow \
the StableName:

  NAMESPACE   SERVICE   EXTERNAL NAME   STABLENAMES
  shop        standby   c.lb.example    lb/x

These Services name the hostname of an Ingress or Gateway, and can't follow it. With --sources \
service,ingress,gateway the hosts of Ingresses and routes are DNS names in the zones:

  NAMESPACE   SERVICE   EXTERNAL NAME   OBJECTS
  shop        front     d.lb.example    Gateway infra/public,Ingress shop/web

These Services name a load balancer of a remote cluster, and can't follow it. Use the DNS name that \
lb-linker gives it instead:

  NAMESPACE   SERVICE   EXTERNAL NAME   CLUSTER   LOAD BALANCER   USE INSTEAD
  shop        west      e.lb.example    west      lb/w            w.lb.west.lb.internal

Objects with an address of a load balancer. The last column names what has its present addresses:

  NAMESPACE   KIND            NAME   ADDRESS     LOAD BALANCER   USE INSTEAD
  shop        EndpointSlice   db-1   192.0.2.1   lb/z            external-targets/z-lb-ext

These Services name a load balancer of this cluster, and can follow it:

  NAMESPACE   SERVICE   EXTERNAL NAME   LOAD BALANCER
  shop        a         a.lb.example    lb/x

The commands for it (or run this command with --apply):

  kubectl -n shop annotate service a linker.hsj.com/source=lb/x

lb-linker needs the permissions of deploy/source/ to change these Services.";
    assert_eq!(report(&scan).join("\n"), expected);
    assert_eq!(report(&Scan::default()), [NOTHING_EXACT]);
}

#[test]
fn objects_are_named_in_the_order_of_their_changes() {
    let found = [exact("shop", "a", "lb/x", true), exact("shop", "b", "lb/x", false)];
    let changed = crate::scan::annotate::changed_objects(&found);
    assert_eq!(changed, ["Service lb/x", "Service shop/a", "Service shop/b"]);
}
