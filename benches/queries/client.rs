//! A client of our own: for answers that are looked at, and for latencies, of which dnsperf tells only the mean.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::sets::Question;

/// Questions under way while answers are looked at.
const WINDOW: usize = 50;
/// How long an answer may take before the question is asked again, and for how long that goes on.
const PATIENCE: Duration = Duration::from_millis(500);
const DEADLINE: Duration = Duration::from_secs(10);

/// A socket that talks to one server.
pub struct Client {
    socket: UdpSocket,
}

impl Client {
    pub fn new(server: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(server)?;
        Ok(Self { socket })
    }

    /// Asks every question once, and returns the answers in their order.
    ///
    /// # Errors
    /// When an answer is missing, or still wrong when it has been asked for again: what is behind an alias may not be
    /// known at once.
    pub fn ask_all(&self, questions: &[Question]) -> Result<Vec<Vec<u8>>, String> {
        let mut answers = Vec::with_capacity(questions.len());
        for (number, window) in questions.chunks(WINDOW).enumerate() {
            answers.extend(self.ask_window(number * WINDOW, window)?);
        }
        Ok(answers)
    }

    /// Asks some questions at once, by ids from `first` on: an answer that comes late isn't taken for another one's.
    fn ask_window(&self, first: usize, questions: &[Question]) -> Result<Vec<Vec<u8>>, String> {
        let mut answers: Vec<Option<Vec<u8>>> = vec![None; questions.len()];
        let mut problem = "no answer".to_owned();
        self.socket.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
        let deadline = Instant::now() + DEADLINE;
        while answers.iter().any(Option::is_none) && Instant::now() < deadline {
            for (i, question) in questions.iter().enumerate().filter(|(i, _)| answers[*i].is_none()) {
                // A port where nobody listens yet.
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

    /// Waits until the server answers this question rightly.
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
