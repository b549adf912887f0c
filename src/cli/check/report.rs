//! What a check finds.

/// What a check found.
#[derive(Debug, Default)]
pub struct CheckReport {
    /// Lines for people, in order.
    pub lines: Vec<String>,
    /// What is wrong with the input: flags and files.
    pub input: Vec<String>,
    /// What is wrong with the cluster: rights that are missing.
    pub cluster: Vec<String>,
}
