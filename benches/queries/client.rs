//! A client that checks answers and measures each latency, because dnsperf reports only the mean latency.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::sets::Question;

/// Outstanding queries while answers are checked.
const WINDOW: usize = 50;
/// The time after which a query is repeated.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);
/// The time in which all queries of a window must be answered.
const DEADLINE: Duration = Duration::from_secs(10);

pub struct Client {
    socket: UdpSocket,
}

impl Client {
    pub fn new(server: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(server)?;
        Ok(Self { socket })
    }

    /// Sends every query, and returns the answers in the order of the queries.
    ///
    /// # Errors
    /// If an answer is missing, or is still wrong after retries: a server may not have resolved a CNAME's target at
    /// first.
    pub fn ask_all(&self, questions: &[Question]) -> Result<Vec<Vec<u8>>, String> {
        let mut answers = Vec::with_capacity(questions.len());
        for (number, window) in questions.chunks(WINDOW).enumerate() {
            answers.extend(self.ask_window(number * WINDOW, window)?);
        }
        Ok(answers)
    }

    /// Sends several queries at once with ids from `first` on, so that a late answer doesn't match another query.
    fn ask_window(&self, first: usize, questions: &[Question]) -> Result<Vec<Vec<u8>>, String> {
        let mut answers: Vec<Option<Vec<u8>>> = vec![None; questions.len()];
        let mut problem = "no answer".to_owned();
        self.socket.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(|error| error.to_string())?;
        let deadline = Instant::now() + DEADLINE;
        while answers.iter().any(Option::is_none) && Instant::now() < deadline {
            for (i, question) in questions.iter().enumerate().filter(|(i, _)| answers[*i].is_none()) {
                // The server may not listen yet.
                if self.send(question, first + i).is_err() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            let mut missing = answers.iter().filter(|answer| answer.is_none()).count();
            let mut buffer = [0; 4096];
            while missing > 0 {
                let Ok(length) = self.socket.recv(&mut buffer) else { break };
                let id = usize::from(u16::from_be_bytes([buffer[0], buffer[1]]));
                let place = id.wrapping_sub(first);
                let Some(question) = questions.get(place) else { continue };
                if answers[place].is_some() {
                    continue;
                }
                missing -= 1;
                match question.check(&buffer[..length]) {
                    Ok(()) => answers[place] = Some(buffer[..length].to_vec()),
                    Err(wrong) => problem = wrong,
                }
            }
        }
        answers.into_iter().collect::<Option<_>>().ok_or(problem)
    }

    fn send(&self, question: &Question, id: usize) -> io::Result<()> {
        let mut bytes = [0; 512];
        let message = &mut bytes[..question.bytes.len()];
        message.copy_from_slice(&question.bytes);
        message[..2].copy_from_slice(&(id as u16).to_be_bytes());
        self.socket.send(message).map(drop)
    }

    /// Waits until the server answers this query correctly. Fails after 60 s, or once `ended` returns true.
    pub fn wait_for(&self, question: &Question, ended: &mut dyn FnMut() -> bool) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut last = "no answer".to_owned();
        while Instant::now() < deadline && !ended() {
            self.socket
                .set_read_timeout(Some(Duration::from_millis(100)))
                .map_err(|error| error.to_string())?;
            let mut buffer = [0; 4096];
            let answer = self.send(question, 0).and_then(|()| self.socket.recv(&mut buffer));
            match answer.map(|length| question.check(&buffer[..length])) {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(wrong)) => last = wrong,
                Err(_) => {}
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(last)
    }
}
