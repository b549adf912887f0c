//! Parses the lines of `cache` in a Corefile.

use std::time::Duration;

use crate::dns::corefile::arguments::zones_or_all;
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::plugins::cache::entry::Prefetch;
use crate::dns::plugins::cache::store::{CacheLimits, CacheOptions, ServeStale};
use crate::dns::plugins::setup::Setup;

/// Name of the plugin in a Corefile.
pub(super) const NAME: &str = "cache";

const KNOWN: &[&str] =
    &["success", "denial", "prefetch", "serve_stale", "serve_stale_policy", "servfail", "disable", "keepttl"];
/// CoreDNS's cache has 256 shards, each with room for at least 4 answers.
const SHARD_COUNT: usize = 256;
const MIN_SHARD_ENTRIES: usize = 4;
/// The maximum of `servfail` and of FAILURE_RECHECK (RFC 2308 section 7.1, RFC 8767 section 5).
const MAX_FAILURE: Duration = Duration::from_secs(300);
/// Defaults of `serve_stale` DURATION, and of `prefetch` DURATION and PERCENTAGE.
const DEFAULT_STALE_FOR: Duration = Duration::from_secs(3600);
const PREFETCH_WINDOW: Duration = Duration::from_secs(60);
const PREFETCH_PERCENT: u32 = 10;

#[derive(Debug)]
pub(super) struct ParsedOptions {
    pub(super) options: CacheOptions,
    pub(super) zones: ZoneSet,
    /// The zones in which positive answers aren't cached.
    pub(super) zones_without_success_cache: ZoneSet,
    /// The zones in which denials and failures aren't cached.
    pub(super) zones_without_denial_cache: ZoneSet,
}

/// Parses the only line of the plugin, with its options. If an option is repeated, the last values count;
/// `serve_stale_policy` can't be repeated.
pub(super) fn parse(setup: &Setup<'_>) -> Result<ParsedOptions, CorefileError> {
    let line = setup.only_line()?;
    let (options, zones) = match line.arguments() {
        [first, zones @ ..] if is_number(first) => (CacheOptions::capped(ttl(first)?), zones),
        zones => (CacheOptions::default(), zones),
    };
    let mut parsed = ParsedOptions {
        options,
        zones: setup.zones_or_own(zones)?,
        zones_without_success_cache: ZoneSet::default(),
        zones_without_denial_cache: ZoneSet::default(),
    };
    let mut policy: Option<&Directive> = None;
    for option in line.options() {
        option.no_block()?;
        let options = &mut parsed.options;
        match option.name() {
            "success" => bounds(option, &mut options.success)?,
            "denial" => bounds(option, &mut options.denial)?,
            "prefetch" => options.prefetch = prefetch(option)?,
            "serve_stale" => serve_stale(option, options)?,
            "serve_stale_policy" => {
                if let Some(first) = policy.replace(option) {
                    return Err(option.error(format!(
                        "serve_stale_policy can be there only once, and it is on line {} already",
                        first.position().line
                    )));
                }
                let word = option.single_argument("prefer_positive")?;
                if !word.text.eq_ignore_ascii_case("prefer_positive") {
                    return Err(word.unexpected("a policy: there is prefer_positive"));
                }
                options.prefer_positive = true;
            }
            "servfail" => {
                options.servfail = failure_duration(option.single_argument("a duration such as 5s")?)?
            }
            "disable" => disable(option, &mut parsed)?,
            "keepttl" => {
                option.no_arguments()?;
                options.keep_ttl = true;
            }
            _ => return Err(option.unknown(NAME, KNOWN)),
        }
    }
    if let Some(policy) = policy
        && !line.options().iter().any(|option| option.name() == "serve_stale")
    {
        return Err(policy.error("serve_stale_policy needs serve_stale"));
    }
    // `serve_stale` with less than a second is off, and then `prefer_positive` has no effect.
    parsed.options.prefer_positive &= parsed.options.serve_stale.is_some();
    Ok(parsed)
}

/// Returns whether a word is a number, and therefore not a zone.
fn is_number(word: &Token) -> bool {
    let digits = word.text.strip_prefix(['-', '+']).unwrap_or(&word.text);
    !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
}

fn ttl(word: &Token) -> Result<u32, CorefileError> {
    let what = "a TTL in seconds, from 1 to 4294967295";
    word.parse_in_range(1.., what)
}

/// Parses `CAPACITY [TTL] [MINTTL]`.
fn bounds(option: &Directive, bounds: &mut CacheLimits) -> Result<(), CorefileError> {
    let arguments = option.at_most(3)?;
    let capacity = arguments.first().ok_or_else(|| option.missing_argument("a capacity"))?;
    let capacity: usize = capacity.parse("a number of answers")?;
    bounds.capacity = (capacity / SHARD_COUNT).max(MIN_SHARD_ENTRIES).saturating_mul(SHARD_COUNT);
    if let Some(word) = arguments.get(1) {
        bounds.ttls.max = ttl(word)?;
    }
    if let Some(word) = arguments.get(2) {
        bounds.ttls.min = word.parse("a TTL in seconds, from 0 to 4294967295")?;
    }
    Ok(())
}

/// Parses `AMOUNT [DURATION [PERCENTAGE%]]`.
fn prefetch(option: &Directive) -> Result<Option<Prefetch>, CorefileError> {
    let arguments = option.at_most(3)?;
    let amount = arguments.first().ok_or_else(|| option.missing_argument("a number of queries"))?;
    let amount: u32 = amount.parse("a number of queries")?;
    let within = arguments.get(1).map(Token::duration).transpose()?.unwrap_or(PREFETCH_WINDOW);
    let percentage = arguments.get(2).map(|word| {
        let number = word.text.strip_suffix('%').and_then(|number| number.parse().ok());
        number
            .filter(|number| (10..=90).contains(number))
            .ok_or_else(|| word.unexpected("a percentage from 10% to 90%"))
    });
    let percentage = percentage.transpose()?.unwrap_or(PREFETCH_PERCENT);
    Ok((amount > 0).then_some(Prefetch { min_hits: amount, window: within, ttl_percent: percentage }))
}

/// Parses `[DURATION [immediate [TTL [RECHECK]] | verify [TIMEOUT [TTL [RECHECK]]]]]`.
fn serve_stale(option: &Directive, options: &mut CacheOptions) -> Result<(), CorefileError> {
    let arguments = option.at_most(5)?;
    let up_to = arguments.first().map(Token::duration).transpose()?.unwrap_or(DEFAULT_STALE_FOR);
    let mode = arguments.get(1).map(|word| (word, word.text.to_ascii_lowercase()));
    let (verify_timeout, rest) = match &mode {
        None => (None, &[][..]),
        Some((_, mode)) if mode == "immediate" => (None, &arguments[2..]),
        Some((_, mode)) if mode == "verify" => {
            let timeout = arguments.get(2).map(Token::duration).transpose()?.unwrap_or_default();
            (Some(timeout), arguments.get(3..).unwrap_or_default())
        }
        Some((word, _)) => return Err(word.unexpected("a mode: there are immediate and verify")),
    };
    if let Some(word) = rest.get(2) {
        return Err(word.error(format!(
            "immediate takes a response TTL and a failure recheck at most, and here is {:?}",
            word.text
        )));
    }
    let ttl = rest.first().map(whole_seconds).transpose()?.unwrap_or(0);
    options.failure_recheck = rest.get(1).map(failure_duration).transpose()?.unwrap_or_default();
    // As for all TTLs, only whole seconds count.
    let up_to = Duration::from_secs(up_to.as_secs());
    options.serve_stale = (!up_to.is_zero()).then_some(ServeStale { max_stale: up_to, verify_timeout, ttl });
    Ok(())
}

fn whole_seconds(word: &Token) -> Result<u32, CorefileError> {
    let duration = word.duration()?;
    let seconds = u32::try_from(duration.as_secs()).ok().filter(|_| duration.subsec_nanos() == 0);
    seconds.ok_or_else(|| word.unexpected("a TTL in whole seconds, such as 30s"))
}

/// Parses the time for which a failure is cached, or for which a failed refresh delays the next refresh; at most 5
/// minutes.
fn failure_duration(word: &Token) -> Result<Duration, CorefileError> {
    let duration = word.duration()?;
    if duration > MAX_FAILURE { Err(word.unexpected("a duration of at most 5m")) } else { Ok(duration) }
}

/// Parses `success|denial [ZONES...]`.
fn disable(option: &Directive, parsed: &mut ParsedOptions) -> Result<(), CorefileError> {
    let (part, words) =
        option.arguments().split_first().ok_or_else(|| option.missing_argument("success or denial"))?;
    let part_without = match &*part.text {
        "success" => &mut parsed.zones_without_success_cache,
        "denial" => &mut parsed.zones_without_denial_cache,
        _ => return Err(part.unexpected("a part of the cache: there are success and denial")),
    };
    *part_without = zones_or_all(words)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use hickory_proto::rr::Name;

    use super::*;
    use crate::dns::corefile::{self, FileSources};
    use crate::dns::plugins::setup::BlockBuilder;
    use crate::dns::plugins::tests::support::TestServer;
    use crate::dns::plugins::ttl_limits::TtlRange;

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        for (lines, message) in [
            ("cache\ncache", "3:1: cache can be there only once in a block, and it is on line 2 already"),
            ("cache 0", "2:7: \"0\" isn't a TTL in seconds, from 1 to 4294967295"),
            ("cache -5 example.org", "2:7: \"-5\" isn't a TTL in seconds, from 1 to 4294967295"),
            ("cache 30 a..b", "2:10: \"a..b\" isn't a zone, or a network such as 10.0.0.0/8"),
            (
                "cache {\nkeep\n}",
                "3:1: cache has no option \"keep\"; its options are success, denial, prefetch, serve_stale, \
                 serve_stale_policy, servfail, disable, keepttl",
            ),
            ("cache {\nkeepttl {\n}\n}", "3:1: keepttl takes no braces"),
            ("cache {\nkeepttl 5\n}", "3:9: keepttl takes no arguments, and here is \"5\""),
            ("cache {\nsuccess\n}", "3:1: success needs a capacity"),
            ("cache {\nsuccess many\n}", "3:9: \"many\" isn't a number of answers"),
            ("cache {\ndenial -1\n}", "3:8: \"-1\" isn't a number of answers"),
            ("cache {\ndenial 1 0\n}", "3:10: \"0\" isn't a TTL in seconds, from 1 to 4294967295"),
            ("cache {\nsuccess 1 1 -1\n}", "3:13: \"-1\" isn't a TTL in seconds, from 0 to 4294967295"),
            ("cache {\nsuccess 1 1 1 1\n}", "3:15: success takes 3 arguments at most, and here is \"1\""),
            ("cache {\nprefetch\n}", "3:1: prefetch needs a number of queries"),
            ("cache {\nprefetch -1\n}", "3:10: \"-1\" isn't a number of queries"),
            ("cache {\nprefetch 1 1\n}", "3:12: \"1\" isn't a duration such as 30s, 1m30s or 500ms"),
            ("cache {\nprefetch 1 1m 10\n}", "3:15: \"10\" isn't a percentage from 10% to 90%"),
            ("cache {\nprefetch 1 1m 91%\n}", "3:15: \"91%\" isn't a percentage from 10% to 90%"),
            (
                "cache {\nprefetch 1 1m 10% x\n}",
                "3:19: prefetch takes 3 arguments at most, and here is \"x\"",
            ),
            ("cache {\nserve_stale -1s\n}", "3:13: \"-1s\" isn't a duration such as 30s, 1m30s or 500ms"),
            (
                "cache {\nserve_stale 1h later\n}",
                "3:16: \"later\" isn't a mode: there are immediate and verify",
            ),
            (
                "cache {\nserve_stale 1h verify x\n}",
                "3:23: \"x\" isn't a duration such as 30s, 1m30s or 500ms",
            ),
            (
                "cache {\nserve_stale 1h immediate 1500ms\n}",
                "3:26: \"1500ms\" isn't a TTL in whole seconds, such as 30s",
            ),
            (
                "cache {\nserve_stale 1h verify 0 1200000h\n}",
                "3:25: \"1200000h\" isn't a TTL in whole seconds, such as 30s",
            ),
            ("cache {\nserve_stale 1h immediate 0 301s\n}", "3:28: \"301s\" isn't a duration of at most 5m"),
            (
                "cache {\nserve_stale 1h immediate 0 1s 1s\n}",
                "3:31: immediate takes a response TTL and a failure recheck at most, and here is \"1s\"",
            ),
            (
                "cache {\nserve_stale 1h verify 0 0 0 0\n}",
                "3:29: serve_stale takes 5 arguments at most, and here is \"0\"",
            ),
            ("cache {\nserve_stale_policy prefer_positive\n}", "3:1: serve_stale_policy needs serve_stale"),
            (
                "cache {\nserve_stale\nserve_stale_policy newest\n}",
                "4:20: \"newest\" isn't a policy: there is prefer_positive",
            ),
            ("cache {\nserve_stale\nserve_stale_policy\n}", "4:1: serve_stale_policy needs prefer_positive"),
            (
                "cache {\nserve_stale_policy prefer_positive\nserve_stale_policy prefer_positive\n}",
                "4:1: serve_stale_policy can be there only once, and it is on line 3 already",
            ),
            ("cache {\nservfail\n}", "3:1: servfail needs a duration such as 5s"),
            ("cache {\nservfail 6m\n}", "3:10: \"6m\" isn't a duration of at most 5m"),
            ("cache {\nservfail 5\n}", "3:10: \"5\" isn't a duration such as 30s, 1m30s or 500ms"),
            ("cache {\ndisable\n}", "3:1: disable needs success or denial"),
            (
                "cache {\ndisable all\n}",
                "3:9: \"all\" isn't a part of the cache: there are success and denial",
            ),
            (
                "cache {\ndisable denial a..b\n}",
                "3:16: \"a..b\" isn't a zone, or a network such as 10.0.0.0/8",
            ),
        ] {
            assert_eq!(TestServer::error(lines), format!("Corefile:{message}"), "{lines}");
        }
    }

    #[test]
    fn lines_set_the_options() {
        let seconds = Duration::from_secs;
        let bounds = |capacity, min, max| CacheLimits { capacity, ttls: TtlRange { min, max } };
        let default = CacheOptions::default;
        let stale =
            |verify_timeout, ttl| Some(ServeStale { max_stale: DEFAULT_STALE_FOR, verify_timeout, ttl });
        let popular = |amount, within, percentage| {
            Some(Prefetch { min_hits: amount, window: Duration::from_secs(within), ttl_percent: percentage })
        };
        for (lines, options) in [
            ("cache", default()),
            ("cache example.org", default()),
            ("cache 30 example.org", CacheOptions::capped(30)),
            ("cache {\nsuccess 0\n}", CacheOptions { success: bounds(1024, 5, 3600), ..default() }),
            ("cache {\nsuccess 5000 60 0\n}", CacheOptions { success: bounds(4864, 0, 60), ..default() }),
            (
                "cache 30 {\ndenial 2500 60 10\n}",
                CacheOptions { denial: bounds(2304, 10, 60), ..CacheOptions::capped(30) },
            ),
            ("cache {\nprefetch 0\n}", default()),
            ("cache {\nprefetch 10\n}", CacheOptions { prefetch: popular(10, 60, 10), ..default() }),
            ("cache {\nprefetch 1 10s 90%\n}", CacheOptions { prefetch: popular(1, 10, 90), ..default() }),
            ("cache {\nserve_stale\n}", CacheOptions { serve_stale: stale(None, 0), ..default() }),
            ("cache {\nserve_stale 500ms\nserve_stale_policy Prefer_Positive\n}", default()),
            (
                "cache {\nserve_stale 1h Immediate 30s 10s\nserve_stale_policy prefer_positive\n}",
                CacheOptions {
                    serve_stale: stale(None, 30),
                    failure_recheck: seconds(10),
                    prefer_positive: true,
                    ..default()
                },
            ),
            (
                "cache {\nserve_stale 1h verify\n}",
                CacheOptions { serve_stale: stale(Some(Duration::ZERO), 0), ..default() },
            ),
            (
                "cache {\nserve_stale 1h verify 2s 30s 5m\n}",
                CacheOptions {
                    serve_stale: stale(Some(seconds(2)), 30),
                    failure_recheck: seconds(300),
                    ..default()
                },
            ),
            ("cache {\nservfail 0\n}", CacheOptions { servfail: Duration::ZERO, ..default() }),
            ("cache {\nservfail 5m\n}", CacheOptions { servfail: seconds(300), ..default() }),
            ("cache {\ndisable denial example.org\n}", default()),
            ("cache {\nkeepttl\n}", CacheOptions { keep_ttl: true, ..default() }),
        ] {
            assert_eq!(parsed(lines).options, options, "{lines}");
        }
    }

    fn parsed(lines: &str) -> ParsedOptions {
        let variable = |_: &str| None;
        let text = format!(". {{\n{lines}\n}}\n");
        let sources = FileSources {
            variable: &variable,
            read: &|path| std::fs::read_to_string(path),
            glob: &|_| Vec::new(),
        };
        let blocks = corefile::parse(Path::new("Corefile"), &text, &sources).unwrap();
        let context = TestServer::block("whoami").shared;
        let (zones, mut builder) = ([Name::root()], BlockBuilder::default());
        parse(&Setup {
            lines: &blocks[0].lines,
            block: &blocks[0].lines,
            zones: &zones,
            builder: &mut builder,
            context: &context,
        })
        .unwrap()
    }
}
