//! # Name
//!
//! *import* - puts a snippet, or other files, in its place.
//!
//! # Description
//!
//! It stands wherever a plugin or a server block can stand, and is replaced before anything else is looked at. A
//! snippet is a block whose only name is in parentheses; it has to stand before its imports. A file's path is relative
//! to the file that imports it. More than a thousand imports are taken for an import of itself.
//!
//! # Syntax
//!
//! ```text
//! import SNIPPET [ARGUMENTS...]
//! import PATTERN
//! ```
//!
//! - **SNIPPET** is the name of a snippet, without the parentheses. In it `{args.0}` is the first of **ARGUMENTS**,
//!   `{args.1}` the second, and so on; CoreDNS 1.14 has no arguments.
//! - **PATTERN** is the path of a file, with one `*` or `?` at most, in its last part. A pattern that no file fits is
//!   nothing; a path without a wildcard has to be there.
//!
//! # Examples
//!
//! ```text
//! (upstream) {
//!     errors
//!     cache {args.0}
//!     forward . 192.0.2.53
//! }
//! example.org {
//!     import upstream 30
//! }
//! . {
//!     import upstream 300
//! }
//! import conf.d/*.conf
//! ```

/// What the parser knows it by.
pub(super) const NAME: &str = "import";
