//! # Name
//!
//! *import* - includes a snippet, or other files.
//!
//! # Description
//!
//! *import* is allowed wherever a plugin or a server block is, and is replaced before the Corefile is parsed further. A
//! snippet is a block that has one name in parentheses instead of zones; it has to precede its imports. A file's path
//! is relative to the importing file. More than a thousand imports are an error, because they are probably recursive.
//!
//! # Syntax
//!
//! Syntax: `import SNIPPET [ARGUMENTS...]`, or `import PATTERN`.
//!
//! - **SNIPPET** is the name without the parentheses. In the snippet `{args.0}` is the first of **ARGUMENTS**,
//!   `{args.1}` the second, and so on; CoreDNS 1.14 has no arguments.
//! - **PATTERN** is the path of a file, with at most one `*` and one `?`, which also match a dot at the beginning of a
//!   name. A pattern without a matching file is ignored; the file of a path without a wildcard has to exist. Matching
//!   directories are skipped, so `dir/*` may be the volume of a ConfigMap; CoreDNS fails at directories.
//!
//! # Examples
//!
//! ```text
//! (upstream) {
//!     errors
//!     cache {args.0}
//!     forward . 192.0.2.53
//! }
//! . {
//!     import upstream 300
//! }
//! import conf.d/*.conf
//! ```

/// The name for lists of plugins; the parser replaces `import` before plugins are set up.
pub(super) const NAME: &str = "import";
