//! The decisions about a StableName: which of its sources is announced. Pure functions and data: no I/O, no clock,
//! no types of Kubernetes.
//!
//! The leader feeds the results of its checks into [`checks::CheckRecords`], and calls
//! [`mass_failure::MassFailureGuard::decide`] whenever an input changes and when the last decision asks for it. The
//! decision contains the whole status: a new leader continues from the status alone. All times are wall clock times,
//! because the status contains them.

pub mod checks;
mod conditions;
pub mod decide;
pub mod facts;
mod history;
pub mod mass_failure;
#[cfg(test)]
mod model_tests;
pub mod outlook;
mod rules;
mod sources;
pub mod spec;
pub mod status;
#[cfg(test)]
mod test_support;
pub(crate) mod times;
pub mod upstream_answers;
