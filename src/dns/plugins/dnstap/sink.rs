//! A connection to a sink: the handshake of Frame Streams, and the messages.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::{TlsConnector, TlsStream};
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::frames::{Control, FrameError, check_control, control, control_length};
use super::queue::{Frames, Lost};
use crate::dns::plugins::refusal_log::RefusalLog;
use crate::model::tls_error;

/// How long a sink may take to be connected, and to take up to [`BATCH`] bytes, as in CoreDNS.
pub(super) const TIMEOUT: Duration = Duration::from_secs(4);
/// The approximate maximum size of a write, in bytes.
const BATCH: usize = 64 << 10;
/// How long the last messages may take when the block ends.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// How long after the end of the block messages still come: of queries that were under way at a reload.
const SETTLE: Duration = Duration::from_millis(200);
/// The first and the longest pause before a sink is connected again. A connection that lasts as long as the longest
/// pause counts as a success.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Where a sink is, or where sinks connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Unix(PathBuf),
    /// A host and a port.
    Tcp(String),
    Tls(String),
}

pub(super) type SinkStream = Either<UnixStream, Either<TcpStream, TlsStream<TcpStream>>>;

#[derive(Debug, thiserror::Error)]
pub(super) enum SinkError {
    #[error("{}", tls_error::explain(.0).unwrap_or_else(|| .0.to_string()))]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("no connection within {} s", TIMEOUT.as_secs())]
    NoConnection,
    #[error("it doesn't read: {BATCH} bytes wait for {} s", TIMEOUT.as_secs())]
    Stuck,
    #[error("it has closed the connection")]
    Closed,
    #[error("it sends something after the handshake")]
    Unexpected,
}

/// A sink that takes messages.
#[derive(Debug)]
pub(super) struct Sink<S> {
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
}

/// A sink that lb-linker connects to.
pub(super) struct Outgoing {
    pub endpoint: Endpoint,
    /// The TLS client and the name in the sink's certificate, for [`Endpoint::Tls`].
    pub tls: Option<(TlsConnector, ServerName<'static>)>,
    /// The size of the send buffer of the kernel, in MiB.
    pub write_buffer: usize,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Tls(address) => write!(f, "tls://{address}"),
        }
    }
}

/// Runs `work`, but not longer than for [`GRACE`] after `stop` is cancelled. Returns whether it has ended by itself.
pub(super) async fn until_stopped(work: impl Future<Output = ()>, stop: &CancellationToken) -> bool {
    let late = async {
        stop.cancelled().await;
        sleep(GRACE).await;
    };
    tokio::select! {
        biased;
        () = work => true,
        () = late => false,
    }
}

// === impl Sink ===

impl<S: AsyncRead + AsyncWrite> Sink<S> {
    /// Begins with the handshake: READY, the sink's ACCEPT, START.
    pub async fn open(stream: S) -> Result<Self, SinkError> {
        let (reader, writer) = split(stream);
        let mut sink = Self { reader, writer };
        sink.write(&control(Control::Ready)).await?;
        sink.read_control(Control::Accept).await?;
        sink.write(&control(Control::Start)).await?;
        Ok(sink)
    }

    /// Sends the messages of a queue until `stop` was cancelled for [`SETTLE`].
    ///
    /// # Errors
    /// If the connection ends before.
    pub async fn send(
        mut self,
        frames: &mut Frames,
        lost: &Lost,
        stop: &CancellationToken,
    ) -> Result<(), SinkError> {
        let mut batch = Vec::new();
        let mut settled = pin!(async {
            stop.cancelled().await;
            sleep(SETTLE).await;
        });
        loop {
            let first = tokio::select! {
                biased;
                byte = self.reader.read_u8() => {
                    return Err(match byte {
                        Ok(_) => SinkError::Unexpected,
                        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => SinkError::Closed,
                        Err(error) => error.into(),
                    });
                }
                frame = frames.next() => frame,
                () = &mut settled => None,
            };
            let Some(first) = first else { break };
            batch.clear();
            batch.extend_from_slice(&first);
            let mut number = 1;
            while batch.len() < BATCH
                && let Some(frame) = frames.try_next()
            {
                batch.extend_from_slice(&frame);
                number += 1;
            }
            let written = timeout(TIMEOUT, self.write(&batch)).await;
            written.unwrap_or(Err(SinkError::Stuck)).inspect_err(|_| lost.add(number))?;
        }
        self.write(&control(Control::Stop)).await?;
        self.read_control(Control::Finish).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.writer.write_all(bytes).await?;
        Ok(self.writer.flush().await?)
    }

    async fn read_control(&mut self, expected: Control) -> Result<(), SinkError> {
        let mut start = [0; 8];
        self.reader.read_exact(&mut start).await?;
        let mut body = vec![0; control_length(start)?];
        self.reader.read_exact(&mut body).await?;
        Ok(check_control(&body, expected)?)
    }
}

// === impl Outgoing ===

impl Outgoing {
    /// Sends the messages of a queue to the sink until `stop` is cancelled, and connects again after each failure. If
    /// messages wait without a connection then, tries once more.
    pub async fn run(&self, mut frames: Frames, lost: &Lost, stop: &CancellationToken) {
        let failures = RefusalLog::default();
        let sending = async {
            let (mut pause, mut is_logged) = (PAUSES.0, false);
            let mut is_last = false;
            while !is_last || frames.waiting() > 0 {
                let begun = Instant::now();
                let outcome = match self.open().await {
                    Ok(sink) => {
                        if !is_logged {
                            info!("plugin/dnstap: connected to {}", self.endpoint);
                            is_logged = true;
                        }
                        sink.send(&mut frames, lost, stop).await
                    }
                    Err(error) => Err(error),
                };
                let Err(error) = outcome else { return };
                if !stop.is_cancelled() && failures.count().is_some() {
                    let to = &self.endpoint;
                    warn!(
                        "plugin/dnstap: no connection to {to}: {error}; it is tried again until there is one"
                    );
                    is_logged = false;
                }
                if begun.elapsed() >= PAUSES.1 {
                    pause = PAUSES.0;
                }
                if is_last {
                    return;
                }
                is_last = stop.run_until_cancelled(sleep(pause)).await.is_none();
                pause = PAUSES.1.min(pause * 2);
            }
        };
        until_stopped(sending, stop).await;
        lost.add(frames.waiting());
    }

    async fn open(&self) -> Result<Sink<SinkStream>, SinkError> {
        let opening = async { Sink::open(self.connect().await?).await };
        timeout(TIMEOUT, opening).await.unwrap_or(Err(SinkError::NoConnection))
    }

    async fn connect(&self) -> io::Result<SinkStream> {
        let address = match &self.endpoint {
            Endpoint::Unix(path) => return Ok(Either::Left(UnixStream::connect(path).await?)),
            Endpoint::Tcp(address) | Endpoint::Tls(address) => address,
        };
        let stream = TcpStream::connect(address).await?;
        // The kernel takes as much as it allows.
        SockRef::from(&stream).set_send_buffer_size(self.write_buffer << 20)?;
        Ok(Either::Right(match &self.tls {
            None => Either::Left(stream),
            Some((client, name)) => Either::Right(client.connect(name.clone(), stream).await?.into()),
        }))
    }
}

// === impl AnyServer ===

/// Accepts every certificate, for *skipverify*.
#[derive(Debug)]
struct AnyServer(WebPkiSupportedAlgorithms);

/// Returns a TLS client that accepts every certificate.
///
/// # Errors
/// If no TLS version can be used.
pub(super) fn unverified() -> Result<TlsConnector, Error> {
    let provider = ring::default_provider();
    let verifier = Arc::new(AnyServer(provider.signature_verification_algorithms));
    let builder =
        ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions()?;
    let config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    Ok(Arc::new(config).into())
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
