//! One connection: questions in, answers out, in whatever order (RFC 7766 section 6.2.1.1).

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hickory_server::net::xfer::Protocol;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::frames::{Input, Output};
use super::places::{Answer, Place};
use crate::dns::handler::Handler;

/// Questions of one connection that are answered at once (RFC 7766 section 6.2.1.1 asks for more
/// than one); then it is read no further until one is done.
const MAX_PIPELINED: usize = 128;
/// How long a connection may be idle (RFC 7766 section 6.2.3).
const IDLE: Duration = Duration::from_secs(30);
/// How long the rest of what has begun may take: a question, the client's reading of answers, a TLS
/// handshake.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a connection needs.
pub(super) struct Connection {
    pub client: SocketAddr,
    pub handler: Arc<Handler>,
    pub place: Place,
    pub stop: CancellationToken,
}

impl Connection {
    /// Serves a connection by plain TCP until its client or `stop` ends it, or it is idle for long.
    ///
    /// # Errors
    /// If it breaks, or the client does what it shouldn't.
    pub async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        let stop = self.stop.clone();
        let mut session = Session::new(self, Protocol::Tcp);
        session.run(stream, stop.cancelled()).await
    }

    /// Does what [`Connection::serve`] does, by TLS (RFC 7858).
    ///
    /// # Errors
    /// Those of [`Connection::serve`], and if the handshake fails.
    pub async fn serve_tls(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        tls: TlsAcceptor,
    ) -> io::Result<()> {
        let stop = self.stop.clone();
        let stream = tokio::select! {
            handshake = timeout(PATIENCE, tls.accept(stream)) => handshake??,
            () = stop.cancelled() => return Ok(()),
        };
        let mut session = Session::new(self, Protocol::Tls);
        session.run(stream, stop.cancelled()).await
    }
}

/// A connection that questions can come from.
struct Session {
    connection: Connection,
    protocol: Protocol,
    input: Input,
    output: Output,
    /// Questions that wait for an upstream.
    waiting: JoinSet<io::Result<Option<Answer>>>,
    /// Whether questions are still taken.
    open: bool,
    /// When the last question was done with.
    rested: Instant,
}

impl Session {
    fn new(connection: Connection, protocol: Protocol) -> Self {
        let (input, output, waiting) = Default::default();
        Self { connection, protocol, input, output, waiting, open: true, rested: Instant::now() }
    }

    async fn run(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut stop = pin!(stop);
        let mut alarm = pin!(sleep_until(self.rested + IDLE));
        loop {
            self.take_questions().await?;
            // What the kernel takes at once needs no deadline.
            let written = futures::poll!(pin!(self.output.write(&mut writer)));
            if let Poll::Ready(written) = written {
                written?;
                if self.may_take() {
                    continue;
                }
            }
            if !self.open && self.waiting.is_empty() && self.output.is_empty() {
                break;
            }
            let deadline = self.deadline();
            if let Some(deadline) = deadline.filter(|deadline| *deadline != alarm.deadline()) {
                alarm.as_mut().reset(deadline);
            }
            let reading = self.open && !self.input.is_whole();
            tokio::select! {
                read = self.input.fill(&mut reader), if reading => self.open = read? > 0,
                written = self.output.write(&mut writer), if !self.output.is_empty() => written?,
                Some(answered) = self.waiting.join_next() => {
                    // One that panicked has no answer.
                    self.answered(answered.unwrap_or(Ok(None))?);
                }
                () = &mut alarm, if deadline.is_some() => {
                    if !self.is_idle() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    break;
                }
                () = &mut stop, if self.open => self.open = false,
            }
        }
        timeout(PATIENCE, writer.shutdown()).await?
    }

    /// Takes questions while there are any, and the client reads the answers.
    async fn take_questions(&mut self) -> io::Result<()> {
        while self.may_take()
            && let Some(message) = self.input.take()?
        {
            let Connection { client, ref handler, .. } = self.connection;
            let (handler, protocol) = (Arc::clone(handler), self.protocol);
            let places = Arc::clone(self.connection.place.places());
            let mut answering = Box::pin(async move {
                let answer = handler.answer(message, client, protocol).await;
                answer.map(|bytes| places.hold(bytes)).transpose()
            });
            // What we know is answered here and now.
            match futures::poll!(&mut answering) {
                Poll::Ready(answer) => self.answered(answer?),
                Poll::Pending => {
                    self.connection.place.work();
                    self.waiting.spawn(answering);
                }
            }
        }
        Ok(())
    }

    /// Whether there is a question to take, and room for it.
    fn may_take(&mut self) -> bool {
        self.open
            && self.input.is_whole()
            && !self.output.is_full()
            && self.waiting.len() < MAX_PIPELINED
            && self.connection.place.reserve(self.waiting.len())
    }

    fn answered(&mut self, answer: Option<Answer>) {
        if let Some(answer) = answer {
            self.output.push(answer);
        }
        if self.waiting.is_empty() {
            self.rested = Instant::now();
            self.connection.place.rest();
        } else {
            self.connection.place.reserve(self.waiting.len());
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.output.is_empty() && self.input.half_since().is_none()
    }

    /// When the client's time is up, if anything is waited for from it.
    fn deadline(&self) -> Option<Instant> {
        let idle = self.is_idle().then(|| self.rested + IDLE);
        let half = self.input.half_since().filter(|_| self.open).map(|since| since + PATIENCE);
        let unread = self.output.since().map(|since| since + PATIENCE);
        [idle, half, unread].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{Message, Query};
    use hickory_proto::rr::{Name, RecordType};
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};
    use tokio::task::JoinHandle;

    use super::super::places::Places;
    use super::*;
    use crate::dns::zone::Zone;
    use crate::metrics::Metrics;
    use crate::store::{Departed, Store};

    const CLIENT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 5353);

    fn connection(stop: &CancellationToken) -> Connection {
        let metrics = Arc::new(Metrics::new().unwrap());
        let (place, _) = Arc::new(Places::new(Arc::clone(&metrics))).admit(CLIENT).unwrap();
        let handler = Arc::new(Handler {
            zones: [Zone::new(&Name::from_ascii("lb.internal.").unwrap(), vec![]).unwrap()].into(),
            store: Arc::new(Store::new(Departed::Kept)),
            targets: Arc::default(),
            resolver: None,
            metrics,
            server: "dns://:53".to_owned(),
        });
        Connection { client: CLIENT, handler, place, stop: stop.clone() }
    }

    /// A connection whose two ends hold so many bytes.
    fn connected(bytes: usize) -> (DuplexStream, JoinHandle<io::Result<()>>, CancellationToken) {
        let (client, server) = duplex(bytes);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(connection(&stop).serve(server));
        (client, serving, stop)
    }

    /// A question as TCP frames it.
    fn framed() -> Vec<u8> {
        let mut message = Message::query();
        message.add_query(Query::query(Name::from_ascii("web.lb.internal.").unwrap(), RecordType::A));
        let message = message.to_vec().unwrap();
        [&u16::try_from(message.len()).unwrap().to_be_bytes(), &*message].concat()
    }

    async fn read_answer(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
        let mut answer = vec![0; stream.read_u16().await.unwrap().into()];
        stream.read_exact(&mut answer).await.unwrap();
        answer
    }

    fn is_timeout(ended: io::Result<()>) -> bool {
        ended.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_closed_after_30_seconds() {
        let (mut client, serving, _stop) = connected(4096);
        let mut start = Instant::now();
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_secs(20)).await;
            start = Instant::now();
            client.write_all(&framed()).await.unwrap();
            read_answer(&mut client).await;
        }
        serving.await.unwrap().unwrap();
        assert_eq!(start.elapsed().as_secs(), IDLE.as_secs());
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_question_is_cut_off_after_5_seconds_however_it_drips() {
        for whole_ones in 0..2 {
            let (mut client, serving, _stop) = connected(4096);
            for _ in 0..whole_ones {
                client.write_all(&framed()).await.unwrap();
            }
            let start = Instant::now();
            let drip = async {
                for byte in framed().chunks(1) {
                    client.write_all(byte).await.unwrap_or_default();
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            };
            let ended =
                tokio::select! { ended = serving => ended.unwrap(), () = drip => panic!("it drips on") };
            assert!(is_timeout(ended));
            assert_eq!(start.elapsed().as_secs(), PATIENCE.as_secs());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_read_no_further_and_cut_off() {
        // Far less than the answers.
        let (mut client, serving, _stop) = connected(64);
        let start = Instant::now();
        let mut sent = 0;
        let flood = async {
            while client.write_all(&framed()).await.is_ok() {
                sent += 1;
            }
            std::future::pending::<()>().await;
        };
        let ended = tokio::select! { ended = serving => ended.unwrap(), () = flood => unreachable!() };
        assert!(is_timeout(ended));
        assert_eq!(start.elapsed().as_secs(), PATIENCE.as_secs());
        assert!(sent < 500, "{sent} questions were taken");
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_but_reads_gets_every_answer() {
        let (mut client, serving, _stop) = connected(64);
        let (mut reader, mut writer) = tokio::io::split(&mut client);
        let ask = async {
            for _ in 0..200 {
                writer.write_all(&framed()).await.unwrap();
            }
        };
        let read = async {
            for _ in 0..200 {
                read_answer(&mut reader).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::join!(ask, read);
        drop(client);
        serving.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_asked_before_the_end_is_answered() {
        let (mut client, serving, stop) = connected(4096);
        client.write_all(&[framed(), framed()].concat()).await.unwrap();
        client.shutdown().await.unwrap();
        read_answer(&mut client).await;
        read_answer(&mut client).await;
        serving.await.unwrap().unwrap();
        assert!(!stop.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn stop_ends_it_at_once_with_half_a_question_and_in_a_handshake() {
        let (mut client, serving, stop) = connected(4096);
        client.write_all(&[0, 40, 1]).await.unwrap();
        let (_silent, handshaking, stop_tls) = handshaking();
        let start = Instant::now();
        stop.cancel();
        stop_tls.cancel();
        serving.await.unwrap().unwrap();
        handshaking.await.unwrap().unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    fn handshaking() -> (DuplexStream, JoinHandle<io::Result<()>>, CancellationToken) {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let nobody = Arc::new(rustls::server::ResolvesServerCertUsingSni::new());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(nobody);
        let (client, server) = duplex(4096);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(connection(&stop).serve_tls(server, Arc::new(config).into()));
        (client, serving, stop)
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_does_not_end_is_cut_off_after_5_seconds() {
        let (mut client, serving, _stop) = handshaking();
        let start = Instant::now();
        // The head of a handshake record (RFC 8446 section 5.1) whose body never comes.
        client.write_all(&[22, 3, 1, 1, 0]).await.unwrap();
        assert!(is_timeout(serving.await.unwrap()));
        assert_eq!(start.elapsed().as_secs(), PATIENCE.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_without_tls_where_tls_is_spoken_ends_at_once() {
        let (mut client, serving, _stop) = handshaking();
        let start = Instant::now();
        client.write_all(&framed()).await.unwrap();
        assert!(serving.await.unwrap().is_err());
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
