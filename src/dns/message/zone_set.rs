//! Finds the zone of a name.

use hickory_proto::rr::Name;

/// Zones, absolute and in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneSet(Vec<Name>);

impl ZoneSet {
    /// Returns a set of zones given in any order and case.
    #[must_use]
    pub fn new(zones: impl IntoIterator<Item = Name>) -> Self {
        Self(zones.into_iter().map(|zone| absolute(&zone)).collect())
    }

    /// Returns the longest zone that contains a name.
    #[must_use]
    pub fn closest(&self, name: &Name) -> Option<&Name> {
        self.0.iter().filter(|zone| zone.zone_of(name)).max_by_key(|zone| zone.iter().len())
    }

    #[must_use]
    pub fn contains(&self, name: &Name) -> bool {
        self.0.iter().any(|zone| zone.zone_of(name))
    }

    #[must_use]
    pub fn all(&self) -> &[Name] {
        &self.0
    }
}

/// Returns a zone as an absolute name in lower case.
#[must_use]
pub fn absolute(zone: &Name) -> Name {
    let mut zone = zone.to_lowercase();
    zone.set_fqdn(true);
    zone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closest_zone_is_the_longest() {
        let name = |text| Name::from_ascii(text).unwrap();
        let zones = ZoneSet::new([name("Example."), name("."), name("a.b.example")]);
        for (of, closest) in [
            ("www.EXAMPLE.", Some("example.")),
            ("b.example.", Some("example.")),
            ("x.a.B.example.", Some("a.b.example.")),
            ("test.", Some(".")),
        ] {
            assert_eq!(zones.closest(&name(of)).map(ToString::to_string).as_deref(), closest, "{of}");
        }
        assert!(!ZoneSet::new([name("example.")]).contains(&name("test.")));
    }
}
