//! What is released: the image, the chart with both Helms, alerts and dashboard by promtool, the upgrade from an older
//! version, and large clusters. `make test-release` runs the tests in modules of this name: they take long, or what
//! they need takes long to build.

mod bursts;
pub mod chart;
mod image;
mod large_lists;
pub mod monitoring;
mod remote_chart;
mod upgrades;
