//! Not built yet.

use super::setup::Setup;
use crate::dns::corefile::CorefileError;

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    Err(setup.lines[0].error("not built yet"))
}
