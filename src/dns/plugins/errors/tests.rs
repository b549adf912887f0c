use crate::dns::plugins::errors::*;
use crate::dns::plugins::tests::support::TestServer;

/// The error of a block without a plugin after `errors`.
const WHY: &str = "no next plugin found";

fn consolidating(rest: &str) -> (TestServer, CancellationToken, tokio::task::JoinSet<()>) {
    TestServer::running(&format!("errors {{\nconsolidate {rest}\n}}"))
}

#[tokio::test]
async fn error_is_logged_as_in_coredns() {
    let context = TestServer::block("errors stdout");
    assert_eq!(context.ask("WWW.Example.org. AAAA").await, "SERVFAIL | | |");
    assert_eq!(context.lines(), [format!("[ERROR] plugin/errors: 2 www.example.org. AAAA: {WHY}")]);
    let fine = TestServer::block("errors\nwhoami");
    fine.ask("example.org. A").await;
    assert!(fine.lines().is_empty());
}

#[tokio::test(start_paused = true)]
async fn matching_errors_are_counted_from_the_first_one() {
    let (context, _stop, _tasks) = consolidating("90s \"^no next\" warning");
    for _ in 0..2 {
        sleep(Duration::from_secs(1000)).await;
        for _ in 0..3 {
            context.ask("example.org. A").await;
            sleep(Duration::from_secs(29)).await;
        }
        assert!(context.lines().is_empty());
        sleep(Duration::from_secs(4)).await;
        assert_eq!(
            context.lines(),
            ["[WARNING] plugin/errors: 3 errors like '^no next' occurred in last 1m30s"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn show_first_logs_the_first_error_but_no_count_of_one() {
    let (context, _stop, _tasks) = consolidating("30s found$ info show_first");
    let first = format!("[INFO] plugin/errors: 2 example.org. A: {WHY}");
    for (asked, then) in
        [(1, vec![]), (3, vec!["[INFO] plugin/errors: 3 errors like 'found$' occurred in last 30s"])]
    {
        for _ in 0..asked {
            context.ask("example.org. A").await;
        }
        assert_eq!(context.lines(), [&*first]);
        sleep(Duration::from_secs(31)).await;
        assert_eq!(context.lines(), then);
    }
}

#[tokio::test(start_paused = true)]
async fn first_matching_expression_counts_the_error() {
    let (context, _stop, _tasks) = TestServer::running(
        "errors {\nconsolidate 1s timeout\nconsolidate 2s next\nconsolidate 3s plugin\n}",
    );
    context.ask("example.org. A").await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(context.lines(), ["[ERROR] plugin/errors: 1 errors like 'next' occurred in last 2s"]);
    let (context, _stop, _tasks) = consolidating("1h timeout");
    context.ask("example.org. A").await;
    assert_eq!(context.lines().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn counted_errors_are_logged_at_the_end_of_the_block() {
    let (context, stop, mut tasks) = consolidating("1h next");
    context.ask("example.org. A").await;
    context.ask("example.org. A").await;
    stop.cancel();
    tasks.join_next().await;
    assert_eq!(context.lines(), ["[ERROR] plugin/errors: 2 errors like 'next' occurred in last 1h0m0s"]);
    context.ask("example.org. A").await;
    assert_eq!(context.lines(), [format!("[ERROR] plugin/errors: 2 example.org. A: {WHY}")]);
}

#[tokio::test]
async fn debug_lines_need_the_plugin_debug() {
    for (debug, expected) in [("", 0), ("debug\n", 1)] {
        let context =
            TestServer::block(&format!("{debug}errors {{\nconsolidate 1h next debug show_first\n}}"));
        context.ask("example.org. A").await;
        assert_eq!(context.lines().len(), expected);
    }
}

#[test]
fn durations_are_written_as_in_go() {
    for (text, expected) in [
        ("0", "0s"),
        ("1ns", "1ns"),
        ("1.5us", "1.5µs"),
        ("250ms", "250ms"),
        ("1s", "1s"),
        ("1500ms", "1.5s"),
        ("61.1s", "1m1.1s"),
        ("300s", "5m0s"),
        ("1h", "1h0m0s"),
        ("25h1m1.25s", "25h1m1.25s"),
    ] {
        assert_eq!(
            format_go_duration(crate::dns::corefile::arguments::go_duration(text).unwrap()),
            expected,
            "{text}"
        );
    }
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    let long = "x".repeat(10_001);
    let needs = "consolidate needs DURATION REGEXP [LEVEL] [show_first], such as: \
                 consolidate 5m \" i/o timeout$\" warning";
    let consolidate = |rest: &str| format!("errors {{\nconsolidate {rest}\n}}");
    for (lines, error) in [
        (
            "errors file.log".to_owned(),
            "2:8: \"file.log\" isn't stdout: errors are logged nowhere else".to_owned(),
        ),
        ("errors a b".to_owned(), "2:10: errors takes 1 argument at most, and here is \"b\"".to_owned()),
        (
            "errors\nerrors".to_owned(),
            "3:1: errors can be there only once in a block, and it is on line 2 already".to_owned(),
        ),
        (
            "errors {\nstacktrace on\n}".to_owned(),
            "3:12: stacktrace takes no arguments, and here is \"on\"".to_owned(),
        ),
        (
            "errors {\nsummarize 5m\n}".to_owned(),
            "3:1: errors has no option \"summarize\"; its options are consolidate, stacktrace".to_owned(),
        ),
        (consolidate(""), format!("3:1: {needs}")),
        (consolidate("5m"), format!("3:1: {needs}")),
        (
            consolidate("5m x error show_first now"),
            "3:35: consolidate takes 4 arguments at most, and here is \"now\"".to_owned(),
        ),
        (consolidate("soon x"), "3:13: \"soon\" isn't a duration such as 30s, 1m30s or 500ms".to_owned()),
        (consolidate("5m ("), "3:16: not a regular expression: unclosed group".to_owned()),
        (
            consolidate(&format!("5m {long}")),
            "3:16: a regular expression has 10000 bytes at most, and this has 10001".to_owned(),
        ),
        (
            consolidate("5m x fatal"),
            "3:18: \"fatal\" isn't one of warning, error, info, debug, show_first".to_owned(),
        ),
        (consolidate("5m x info error"), "3:23: consolidate has one level, and this is a second".to_owned()),
        (consolidate("5m x show_first info"), "3:29: the level has to stand before show_first".to_owned()),
    ] {
        assert_eq!(TestServer::error(&lines), format!("Corefile:{error}"), "{lines}");
    }
}
