//! What the tests of the plugins share, and the tests of all of them.

mod manuals;
pub(crate) mod support;

#[test]
fn the_page_tells_the_order_that_there_is() {
    let supported = super::ORDER.iter().filter(|(_, set_up)| set_up.is_some());
    let names: Vec<&str> = supported.map(|(name, _)| *name).collect();
    let page = include_str!("../plugins.rs").replace("\n//! ", " ");
    assert!(page.contains(&names.join(", ")), "{}", names.join(", "));
}
