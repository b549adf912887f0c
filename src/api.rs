//! The custom resource StableName: its types, the rules for its fields, and its CRD.

pub mod crd;
pub mod limits;
mod rules;
pub mod stable_name;
pub mod status;
pub mod validation;
