//! # Name
//!
//! *nsid* - tells clients that ask for it which server has answered.
//!
//! # Description
//!
//! Where several servers have one address, a client can't see which of them it has reached. One that asks for it by
//! EDNS (option NSID, RFC 5001; `dig +nsid`) gets the identifier of this one with its answer. Errors that no plugin
//! has put into an answer, such as SERVFAIL where no upstream answers, go without it.
//!
//! Differences from CoreDNS:
//! - The identifier has at most 128 bytes, so that the smallest answer has room for it.
//!
//! # Syntax
//!
//! ```text
//! nsid [DATA...]
//! ```
//!
//! - `DATA` is the identifier. Several words are one, with a space between them. Without it the host's name is the
//!   identifier: in Kubernetes that of the Pod.
//!
//! # Examples
//!
//! ```text
//! . {
//!     nsid Zone A
//!     forward . /etc/resolv.conf
//! }
//! ```
//!
//! What `dig +nsid` shows then:
//!
//! ```text
//! ; NSID: 5a 6f 6e 65 20 41 ("Zone A")
//! ```

use async_trait::async_trait;
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption, NSIDPayload};

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;

const NAME: &str = "nsid";
/// 512 bytes, without the header, the longest question, OPT and an extended error.
const MAX_BYTES: usize = 128;

#[derive(Debug)]
struct Nsid {
    data: NSIDPayload,
}

/// Returns the name of the host.
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
        let long = format!("the identifier has {} bytes, and {MAX_BYTES} is the most", data.len());
        return Err(line.error(long));
    }
    let data = NSIDPayload::new(data).map_err(|error| line.error(error.to_string()))?;
    setup.add(Nsid { data });
    Ok(())
}

#[async_trait]
impl Plugin for Nsid {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reusable(&self) -> bool {
        true
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let is_asked = request.edns.as_ref().is_some_and(|edns| edns.option(EdnsCode::NSID).is_some());
        let mut reply = next.serve(request).await?;
        if is_asked {
            // An upstream's would be of another server.
            reply.options.retain(|option| EdnsCode::from(option) != EdnsCode::NSID);
            reply.options.push(EdnsOption::NSID(self.data.clone()));
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestSite;
    use super::*;

    async fn told(context: &TestSite) -> Vec<EdnsOption> {
        context.reply("example.org. A").await.unwrap().options
    }

    fn asking(lines: &str) -> TestSite {
        let mut context = TestSite::block(lines).edns(1232);
        let nothing = EdnsOption::NSID(NSIDPayload::new([]).unwrap());
        context.request.edns.as_mut().unwrap().options_mut().insert(nothing);
        context
    }

    fn nsid(data: &str) -> Vec<EdnsOption> {
        vec![EdnsOption::NSID(NSIDPayload::new(data).unwrap())]
    }

    #[tokio::test]
    async fn who_asks_for_it_gets_the_identifier_and_nobody_else() {
        assert_eq!(told(&asking("nsid Use  The \"Force  !\"\nwhoami")).await, nsid("Use The Force  !"));
        assert_eq!(told(&asking("nsid\nwhoami")).await, nsid(&hostname()));
        assert_eq!(told(&asking("nsid \"\"\nwhoami")).await, nsid(""));
        assert!(told(&TestSite::block("nsid x\nwhoami").edns(1232)).await.is_empty());
        assert!(told(&TestSite::block("nsid x\nwhoami")).await.is_empty());
    }

    #[test]
    fn what_isnt_right_is_named() {
        let long = format!("nsid {}", "x".repeat(129));
        for (lines, expected) in [
            (&*long, "Corefile:2:1: the identifier has 129 bytes, and 128 is the most"),
            ("nsid x {\n}", "Corefile:2:1: nsid takes no braces"),
            (
                "nsid\nnsid",
                "Corefile:3:1: nsid can be there only once in a block, and it is on line 2 already",
            ),
        ] {
            assert_eq!(TestSite::error(lines), expected);
        }
    }
}
