//! Decides whether something may be removed: an external target and its parts, a finalizer, a link, the target or the
//! override of a StableName. Pure: callers gather the facts, and ask for missing facts.

pub mod facts;
pub mod reason;
pub mod verdict;

#[cfg(test)]
mod tests;
