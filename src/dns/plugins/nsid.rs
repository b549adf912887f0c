//! # Name
//!
//! *nsid* - identifies the answering server to clients that ask for it. If several servers share an address, a client
//! can't see which one it has reached. A client that sends the EDNS option NSID (RFC 5001; `dig +nsid`) gets the
//! identifier of this server. Errors that aren't an answer of a plugin, such as SERVFAIL because no upstream answers,
//! have none. Difference from CoreDNS: it has at most 128 bytes, so that it fits into the smallest answer.
//!
//! # Syntax
//!
//! Syntax: `nsid [DATA...]`; words are joined with spaces. The default is the host's name, in Kubernetes that of the
//! Pod. With `nsid Zone A`, `dig +nsid` shows `; NSID: 5a 6f 6e 65 20 41 ("Zone A")`.

use async_trait::async_trait;
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption, NSIDPayload};

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;

const NAME: &str = "nsid";
/// The maximum length of an NSID: a reply with the longest question, OPT and an extended error still fits into 512
/// bytes.
const MAX_BYTES: usize = 128;

#[derive(Debug)]
struct Nsid {
    data: NSIDPayload,
}

pub(super) fn hostname() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| "localhost".to_owned())
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_block()?;
    let words: Vec<&str> = line.arguments().iter().map(|word| &*word.text).collect();
    let data = if words.is_empty() { hostname() } else { words.join(" ") };
    if data.len() > MAX_BYTES {
        let long = format!("the identifier has {} bytes, and at most {MAX_BYTES} are allowed", data.len());
        return Err(line.error(long));
    }
    let data = NSIDPayload::new(data).map_err(|error| line.error(error.to_string()))?;
    setup.add_reusable(Nsid { data });
    Ok(())
}

#[async_trait]
impl Plugin for Nsid {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let is_asked = request.edns.as_ref().is_some_and(|edns| edns.option(EdnsCode::NSID).is_some());
        let mut reply = next.serve(request).await?;
        if is_asked {
            // An upstream's NSID would identify another server.
            reply.options.retain(|option| EdnsCode::from(option) != EdnsCode::NSID);
            reply.options.push(EdnsOption::NSID(self.data.clone()));
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;
    use super::*;

    async fn told(context: &TestServer) -> Vec<EdnsOption> {
        context.reply("example.org. A").await.unwrap().options
    }

    fn asking(lines: &str) -> TestServer {
        let mut context = TestServer::block(lines).edns(1232);
        let nothing = EdnsOption::NSID(NSIDPayload::new([]).unwrap());
        context.request.edns.as_mut().unwrap().options_mut().insert(nothing);
        context
    }

    fn nsid(data: &str) -> Vec<EdnsOption> {
        vec![EdnsOption::NSID(NSIDPayload::new(data).unwrap())]
    }

    #[tokio::test]
    async fn only_clients_that_ask_get_the_identifier() {
        assert_eq!(told(&asking("nsid Use  The \"Force  !\"\nwhoami")).await, nsid("Use The Force  !"));
        assert_eq!(told(&asking("nsid\nwhoami")).await, nsid(&hostname()));
        assert_eq!(told(&asking("nsid \"\"\nwhoami")).await, nsid(""));
        assert!(told(&TestServer::block("nsid x\nwhoami").edns(1232)).await.is_empty());
        assert!(told(&TestServer::block("nsid x\nwhoami")).await.is_empty());
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        let long = format!("nsid {}", "x".repeat(129));
        for (lines, expected) in [
            (&*long, "Corefile:2:1: the identifier has 129 bytes, and at most 128 are allowed"),
            ("nsid x {\n}", "Corefile:2:1: nsid takes no braces"),
            (
                "nsid\nnsid",
                "Corefile:3:1: nsid can be there only once in a block, and it is on line 2 already",
            ),
        ] {
            assert_eq!(TestServer::error(lines), expected);
        }
    }
}
