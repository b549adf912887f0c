//! Namespaces of several clusters. In the home cluster a namespace is written as it is; `west/shop` is the namespace `shop`
//! of the remote cluster `west`.

use std::borrow::Cow;

/// The separator of cluster and namespace, which neither contains.
const SEPARATOR: char = '/';

/// Returns the cluster and the plain name of a namespace; no cluster for the home cluster.
#[must_use]
pub fn split(namespace: &str) -> (Option<&str>, &str) {
    match namespace.split_once(SEPARATOR) {
        Some((cluster, plain)) => (Some(cluster), plain),
        None => (None, namespace),
    }
}

/// Returns the remote cluster of a namespace; `None` for the home cluster.
#[must_use]
pub fn cluster_of(namespace: &str) -> Option<&str> {
    split(namespace).0
}

/// Returns a namespace of a cluster, given its plain name, or `*` for all.
#[must_use]
pub fn in_cluster<'a>(cluster: Option<&str>, plain: &'a str) -> Cow<'a, str> {
    match cluster {
        Some(cluster) => format!("{cluster}{SEPARATOR}{plain}").into(),
        None => plain.into(),
    }
}

/// Returns whether an entry of a list of namespaces, as [`seen_from`] returns it, means a namespace: `*` means the
/// namespaces of the home cluster, and `west/*` those of the cluster west.
#[must_use]
pub fn means(entry: &str, namespace: &str) -> bool {
    let ((of_entry, plain), (cluster, _)) = (split(entry), split(namespace));
    entry == namespace || plain == "*" && of_entry == cluster
}

/// Returns the domain of a namespace below each zone: `shop`, or `shop.west`.
#[must_use]
pub fn domain_of(namespace: &str) -> Cow<'_, str> {
    match split(namespace) {
        (Some(cluster), plain) => format!("{plain}.{cluster}").into(),
        (None, plain) => plain.into(),
    }
}

/// Returns a namespace that an object of `cluster` names, as it is written in the home cluster: a plain name is one of its
/// own cluster, and `home` is the name of the home cluster.
#[must_use]
pub fn seen_from<'a>(cluster: Option<&str>, named: &'a str, home: &str) -> Cow<'a, str> {
    match split(named) {
        (Some(of_home), plain) if of_home == home => plain.into(),
        (Some(_), _) => named.into(),
        (None, plain) => in_cluster(cluster, plain),
    }
}

/// Returns a namespace in a sentence: `namespace shop`, or `namespace shop of cluster west`.
#[must_use]
pub fn in_words(namespace: &str) -> String {
    match split(namespace) {
        (Some(cluster), plain) => format!("namespace {plain} of cluster {cluster}"),
        (None, plain) => format!("namespace {plain}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_means_the_namespaces_of_one_cluster() {
        for (entry, namespace, expected) in [
            ("shop", "shop", true),
            ("shop", "west/shop", false),
            ("*", "shop", true),
            ("*", "west/shop", false),
            ("west/*", "west/shop", true),
            ("west/*", "shop", false),
            ("west/*", "east/shop", false),
            ("west/shop", "west/shop", true),
            ("west/shop", "west/other", false),
        ] {
            assert_eq!(means(entry, namespace), expected, "{entry} {namespace}");
        }
    }

    #[test]
    fn objects_name_namespaces_of_their_own_cluster() {
        for (cluster, named, expected) in [
            (None, "shop", "shop"),
            (None, "home/shop", "shop"),
            (None, "west/shop", "west/shop"),
            (Some("west"), "shop", "west/shop"),
            (Some("west"), "*", "west/*"),
            (Some("west"), "home/shop", "shop"),
            (Some("west"), "home/*", "*"),
            (Some("west"), "east/shop", "east/shop"),
        ] {
            assert_eq!(seen_from(cluster, named, "home"), expected, "{cluster:?} {named}");
        }
    }
}
