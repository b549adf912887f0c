//! The resource StableName: [`decision`] is pure, [`controller`] watches, checks and writes.

pub mod controller;
pub mod decision;
