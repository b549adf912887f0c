//! The result of `lb-linker check`.

/// The errors that `lb-linker check` has found.
#[derive(Debug, Default)]
pub struct CheckReport {
    /// Lines for people, in order.
    pub lines: Vec<String>,
    /// Errors in flags and files.
    pub input: Vec<String>,
    /// Errors in the cluster, such as missing permissions.
    pub cluster: Vec<String>,
}
