//! The origin of a look-up, which decides its limits and its first transport.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupOrigin {
    /// A client's query by UDP.
    Forward,
    /// A client's query by TCP or TLS.
    ForwardByTcp,
    /// The look-up of a link's target, or of an upstream's name.
    Target,
}
