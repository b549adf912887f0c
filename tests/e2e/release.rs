//! What is released: the image, the chart with both Helms, alerts and dashboard by promtool, and the upgrade from an
//! older version. `make test-release` runs the tests in modules of this name: what they need takes long to build.

pub mod chart;
mod image;
pub mod monitoring;
mod upgrades;
