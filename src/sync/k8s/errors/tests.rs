use kube::core::Status;
use rustls::{CertificateError, Error as TlsError};

use super::*;
use crate::captured_log::CapturedLog;
use crate::sync::k8s::service::Service;

#[test]
fn failed_credential_program_is_reported_without_its_output() {
    let kubeconfig = "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
users: [{name: u, user: {auth-provider: {name: gcp, config: {cmd-path: sh, cmd-args: '-c echo${IFS}secret;exit${IFS}3'}}}}]";
    let kubeconfig = kube::config::Kubeconfig::from_yaml(kubeconfig).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(async { kube::Client::try_from(config.await.unwrap()).err().unwrap() });
    assert!(format!("{error} {error:?}").contains("secret"), "{error:?}");
    assert_eq!(root_cause(&error), "the program for the credentials failed: exit status: 3");
}

#[test]
fn causes_of_tls_are_sentences_without_links() {
    let closed = "peer closed connection without sending TLS close_notify: https://docs.rs/rustls";
    let io_error = |kind, error: Box<dyn std::error::Error + Send + Sync>| io::Error::new(kind, error);
    for (error, expected) in [
        (io_error(io::ErrorKind::UnexpectedEof, closed.into()), "the connection was closed"),
        (
            io_error(
                io::ErrorKind::InvalidData,
                Box::new(TlsError::InvalidCertificate(CertificateError::UnknownIssuer)),
            ),
            "its certificate is signed by an unknown authority",
        ),
        (io_error(io::ErrorKind::Other, "busy".into()), "busy"),
    ] {
        let nested = kube::Error::Service(Box::new(io::Error::other(error)));
        assert_eq!(root_cause(&nested), expected);
    }
}

#[test]
fn request_without_an_answer_has_one_wording() {
    let error = kube::Error::Service(Box::new(Elapsed::new()));
    assert_eq!(describe(&error, "list Services", ""), "can't list Services: no answer within 10s");
}

#[tokio::test]
async fn refused_certificate_is_named_through_kube() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap().der().clone();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_no_client_auth();
    let config = config.with_single_cert(vec![certificate.clone()], key.into()).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config =
        kube::Config::new(format!("https://{}", listener.local_addr().unwrap()).parse().unwrap());
    config.default_retry = false;
    config.root_cert = Some(vec![certificate.to_vec()]);
    let client = kube::Client::try_from(config).unwrap();
    let serving = async {
        loop {
            let _ = acceptor.accept(listener.accept().await.unwrap().0).await;
        }
    };
    let error = tokio::select! {
        answer = client.apiserver_version() => answer.unwrap_err(),
        () = serving => unreachable!(),
    };
    let cause = root_cause(&error);
    assert!(cause.starts_with("its certificate is that of an authority (CA:TRUE): "), "{cause}");
}

#[tokio::test]
async fn refused_and_closed_connections_are_unreachable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let closing = tokio::spawn(async move { drop(listener.accept().await.unwrap()) });
    for scheme in ["https", "http"] {
        let mut config = kube::Config::new(format!("{scheme}://{address}").parse().unwrap());
        config.default_retry = false;
        let client = kube::Client::try_from(config).unwrap();
        let error = client.apiserver_version().await.unwrap_err();
        assert!(is_unreachable(&error), "{scheme}: {error:?}");
    }
    closing.await.unwrap();
    let answer = kube::Error::Api(Status::failure("no", "InternalError").boxed());
    assert!(!is_unreachable(&answer));
}

#[test]
fn recurring_error_is_logged_five_times_a_minute() {
    let mut throttled_log = ThrottledLog::default();
    let mut logged = 0;
    for _ in 0..1000 {
        logged += usize::from(throttled_log.suppressed(500).is_some());
        throttled_log.recovered("it is over");
    }
    assert_eq!(logged, 5);
    assert!(!throttled_log.recovered("it is over"), "the end is logged only if the start was");
    assert_eq!(throttled_log.suppressed(429), Some(0), "each HTTP code has its own limit");
    assert_eq!(throttled_log.suppressed(429), None);
    assert!(throttled_log.recovered("it is over") && !throttled_log.recovered("it is over"));
}

#[test]
fn failures_of_an_ended_error_dont_count_for_the_next() {
    let mut throttled_log = ThrottledLog::default();
    for _ in 0..2 {
        assert_eq!(throttled_log.suppressed(403), Some(0), "it is logged at once");
        assert_eq!(throttled_log.suppressed(403), None);
        assert!(throttled_log.recovered("again"));
    }
}

#[tokio::test(start_paused = true)]
async fn events_of_an_old_connection_do_not_end_an_outage() {
    let availability = ApiAvailability::default();
    let mut log = WatchLog::new(availability.clone(), "Services".to_owned(), "");
    let event = || Ok(Event::ListEnds { version: None, rewound: false });
    availability.report("connection refused");
    tokio::time::advance(SETTLED_AFTER).await;
    assert!(log.log_failure::<Service>(event()).is_some());
    assert!(availability.outage().is_some(), "another client's connection was refused");
    let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
    let error = WatchError::Watch(kube::Error::Service(Box::new(refused)));
    assert!(log.log_failure::<Service>(Err(error)).is_none());
    log.log_failure::<Service>(event());
    tokio::time::advance(SETTLED_AFTER).await;
    assert!(availability.outage().is_none(), "the watch has a new connection");
}

#[tokio::test(start_paused = true)]
async fn answer_between_failures_does_not_end_an_outage() {
    let (log_text, _logging) = CapturedLog::start(tracing::Level::INFO);
    let availability = ApiAvailability::default();
    for _ in 0..3 {
        availability.report("connection refused");
        availability.report_available();
        tokio::time::advance(SETTLED_AFTER / 2).await;
    }
    tokio::time::advance(SETTLED_AFTER).await;
    availability.report("connection refused");
    tokio::time::advance(SETTLED_AFTER).await;
    let answer = |code| Status::failure("no", "No").with_code(code);
    availability.report_status(&answer(503));
    assert!(availability.outage().is_some());
    assert!(!log_text.text().contains("answers again"), "{}", log_text.text());
    availability.report_status(&answer(404));
    assert!(availability.outage().is_none());
    assert!(log_text.text().contains("answers again"), "{}", log_text.text());
}

#[tokio::test(start_paused = true)]
async fn refusal_after_an_outage_is_no_return_of_the_server() {
    let (log_text, _logging) = CapturedLog::start(tracing::Level::INFO);
    let availability = ApiAvailability::default();
    availability.report("connection refused");
    tokio::time::advance(SETTLED_AFTER).await;
    availability.report_status(&Status::failure("Unauthorized", "").with_code(401));
    availability.report_alive();
    assert!(availability.outage().is_none() && availability.refusal().is_some());
    assert!(!log_text.text().contains("again"), "{}", log_text.text());
    availability.report_available();
    let text = log_text.text();
    assert!(
        text.contains("credentials again\n") && text.ends_with("the API server answers again\n"),
        "{text}"
    );
}

#[test]
fn command_that_asks_once_speaks_of_no_retry() {
    let (log_text, _logging) = CapturedLog::start(tracing::Level::INFO);
    let availability = ApiAvailability::of(|| "https://192.0.2.1:6443 of cluster west".to_owned());
    availability.ask_once();
    availability.report("Connection refused");
    availability.report_status(&Status::failure("Unauthorized", "").with_code(401));
    let mut log = WatchLog::new(availability, "load balancers of cluster west".to_owned(), "");
    let broken = Status::failure("Broken", "").with_code(500).boxed();
    assert!(log.log_failure::<Service>(Err(WatchError::List(kube::Error::Api(broken)))).is_none());
    let text = log_text.text();
    assert_eq!(text.matches(" WARN ").count(), 3, "{text}");
    assert!(text.contains("of cluster west: Connection refused\n") && !text.contains("retrying"), "{text}");
}

#[test]
fn refused_credentials_are_one_line_for_all_requests() {
    let (log_text, _logging) = CapturedLog::start(tracing::Level::INFO);
    let availability = ApiAvailability::of(|| "https://192.0.2.1:6443".to_owned());
    let refused =
        || WatchError::List(kube::Error::Api(Status::failure("Unauthorized", "").with_code(401).boxed()));
    let mut lease = ThrottledLog::default();
    for what in ["Services", "EndpointSlices"] {
        let mut log = WatchLog::new(availability.clone(), what.to_owned(), "");
        log.set_waiting(Some("no external target is written".to_owned()));
        assert!(log.log_failure::<Service>(Err(refused())).is_none());
        lease.report(401, "can't get Lease");
    }
    let text = log_text.text();
    let expected = "the API server doesn't accept lb-linker's credentials (401 Unauthorized): \
                    https://192.0.2.1:6443; retrying\n";
    assert!(text.ends_with(expected), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    availability.report_alive();
    availability.report_available();
    availability.report_available();
    let text = log_text.text();
    assert!(text.ends_with("the API server accepts lb-linker's credentials again\n"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn expired_watch_is_a_debug_line_unless_work_waits() {
    let (log_text, _logging) = CapturedLog::start(tracing::Level::DEBUG);
    let status = |code, reason| Box::new(Status::failure("too old", reason).with_code(code));
    let mut log = WatchLog::new(ApiAvailability::default(), "Services".to_owned(), "");
    let mut fails = |error, waiting: Option<&str>| {
        log.set_waiting(waiting.map(ToOwned::to_owned));
        assert!(log.log_failure::<Service>(Err(error)).is_none());
    };
    fails(WatchError::Ended(status(410, "Expired")), None);
    fails(WatchError::Watch(kube::Error::Api(status(410, "Expired"))), None);
    fails(WatchError::Ended(status(410, "Expired")), Some("no external target is written"));
    fails(WatchError::Ended(status(500, "InternalError")), None);
    let text = log_text.text();
    let levels: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(levels, ["DEBUG", "DEBUG", "WARN", "WARN"], "{text}");
}

#[tokio::test(start_paused = true)]
async fn refusal_of_a_watch_is_a_warning_once_it_lasts() {
    let (log_text, _logging) = CapturedLog::start(tracing::Level::WARN);
    let mut log = WatchLog::new(ApiAvailability::default(), "Services".to_owned(), "");
    let fails = |log: &mut WatchLog| {
        let status = Box::new(Status::failure("no", "Forbidden").with_code(403));
        assert!(log.log_failure::<Service>(Err(WatchError::List(kube::Error::Api(status)))).is_none());
    };
    for _ in 0..3 {
        fails(&mut log);
        tokio::time::advance(WARN_OF_REFUSAL_AFTER / 2).await;
        fails(&mut log);
        log.log_failure::<Service>(Ok(Event::ListEnds { version: None, rewound: false }));
    }
    assert_eq!(log_text.text(), "", "an API server that starts forbids everything for a moment");
    fails(&mut log);
    tokio::time::advance(WARN_OF_REFUSAL_AFTER).await;
    fails(&mut log);
    assert_eq!(log_text.text().matches("the API server forbids it").count(), 1);
}

#[test]
fn user_of_a_kubeconfig_gets_no_hint_about_manifests() {
    let forbidden = |user: &str| {
        let message = format!(
            "services is forbidden: User \"{user}\" cannot list resource \"services\" in API group \"\" at the cluster scope"
        );
        let status = Status::failure(&message, "Forbidden").with_code(403);
        describe(&kube::Error::Api(Box::new(status)), "list Services", WatchLog::READING)
    };
    let of = |user| forbidden(user).rsplit_once("); ").unwrap().1.to_owned();
    assert_eq!(of("ann"), "the user of the kubeconfig lacks this permission");
    assert!(of("system:anonymous").starts_with("the request had no credentials: "));
    assert_eq!(of("system:serviceaccount:lb-linker:lb-linker"), WatchLog::READING);
    assert!(forbidden("ann").contains("User \"ann\" cannot list resource \"services\""));
}

#[test]
fn only_new_parts_of_an_error_are_logged() {
    let (log_text, _logging) = CapturedLog::start(tracing::Level::WARN);
    let mut errors = ObjectErrors::default();
    let key = ServiceKey::new("shop", "web");
    let typo = "annotation ttl \"5m\" is ignored";
    assert_eq!(errors.set_parts(&key, &[typo]), [&typo]);
    // The status changes, and the annotation doesn't.
    for host in ["a is denied", "b is denied"] {
        assert_eq!(errors.set_parts(&key, &[host, typo]), [&host]);
        assert_eq!(errors.of(&key).as_deref(), Some(&*format!("{host}; {typo}")));
    }
    assert!(errors.set_parts(&key, &[typo]).is_empty());
    assert!(errors.set_parts::<&str>(&key, &[]).is_empty() && errors.of(&key).is_none());
    assert_eq!(errors.set_parts(&key, &[typo]), [&typo]);
    let lines = log_text.text();
    assert_eq!(lines.matches(typo).count(), 2, "{lines}");
}
