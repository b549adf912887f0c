//! How long tests with a short and a long form run.

/// Returns `full` in `make chaos` (with `LB_LINKER_CHAOS=full` in the environment), otherwise `short`.
pub fn scaled<T>(full: T, short: T) -> T {
    if std::env::var("LB_LINKER_CHAOS").is_ok_and(|value| value == "full") { full } else { short }
}
