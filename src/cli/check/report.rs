//! The result of `lb-linker check`.

/// The output of `lb-linker check`: lines to print, and the errors that it has found.
#[derive(Debug, Default)]
pub struct CheckReport {
    /// Lines for the user, in order.
    pub lines: Vec<String>,
    /// What may be wrong in flags and files, for standard error.
    pub warnings: Vec<String>,
    /// Errors in flags and files, for standard error.
    pub input_errors: Vec<String>,
    /// Errors in the cluster, such as missing permissions: the end of the report.
    pub cluster_errors: Vec<String>,
}

impl CheckReport {
    /// Adds the lines and the errors of another report.
    pub(super) fn append(&mut self, other: Self) {
        let Self { lines, warnings, input_errors, cluster_errors } = other;
        self.lines.extend(lines);
        self.warnings.extend(warnings);
        self.input_errors.extend(input_errors);
        self.cluster_errors.extend(cluster_errors);
    }
}
