//! The custom resource ExternalTarget: its types, the rules for its fields, and its CRD.

pub mod crd;
pub mod external_target;
mod rules;
pub mod status;
pub mod validation;
