//! Tests of all plugins, and helpers for the tests of single plugins.

pub(crate) mod fake_upstream;
mod manuals;
pub(crate) mod support;

#[test]
fn module_comment_lists_the_plugins_in_their_order() {
    let supported = super::ORDER.iter().filter(|(_, set_up)| set_up.is_some());
    let names: Vec<&str> = supported.map(|(name, _)| *name).collect();
    let page = include_str!("../plugins.rs").replace("\n//! ", " ");
    assert!(page.contains(&names.join(", ")), "{}", names.join(", "));
}
