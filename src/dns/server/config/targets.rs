//! Finds links whose targets no block can resolve.

use super::Configuration;
use crate::dns::plugins::setup::LinkLine;

impl Configuration {
    /// Warns of blocks with names of links, whose targets stay in the view of the block, if all blocks of the root zone
    /// have another view. If there is none, targets have to be in other zones.
    pub(super) fn warn_of_targets_without_a_block(&mut self) {
        for number in 0..self.blocks.len() {
            let builder = &self.blocks[number].builder;
            let Some(LinkLine { plugin, position, .. }) = builder.link_lines.first() else { continue };
            let own = builder.view();
            let lacks_root = self.listeners.iter().any(|listener| {
                let of_root = listener.zones.iter().filter(|(zone, _)| zone.is_root());
                let mut views = of_root.map(|(_, block)| self.blocks[*block].builder.view()).peekable();
                let has_block = listener.zones.iter().any(|(_, block)| *block == number);
                has_block && views.peek().is_some() && views.all(|view| view.is_some() && view != own)
            });
            if lacks_root {
                let with = own.map(|own| format!("with the view {own}, or ")).unwrap_or_default();
                let warning = position.error(format!(
                    "{plugin}: hostnames of load balancers aren't resolved here, because all blocks for . have another \
                     view; add one {with}without a view"
                ));
                self.blocks[number].builder.warnings.push(warning);
            }
        }
    }
}
