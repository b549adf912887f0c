//! Writes databases in MaxMind's format: <https://maxmind.github.io/MaxMind-DB/>. The tests of *geoip* have some in
//! `fuzz/seeds/geoip`.

use std::net::IpAddr;

use Value::{Flag, Float, List, Long, Map, Number, Short, Text};

/// A value in the data section.
#[derive(Clone)]
enum Value {
    Text(&'static str),
    Short(u16),
    Number(u32),
    Long(u64),
    Float(f64),
    Flag(bool),
    List(Vec<Value>),
    Map(Vec<(&'static str, Value)>),
}

/// A record of the search tree.
#[derive(Clone, Copy)]
enum Record {
    Empty,
    Node(usize),
    /// An offset in the data section.
    Data(usize),
}

/// A tree of IPv6 addresses, with the IPv4 addresses at `::/96` and `::ffff:0:0/96`.
struct Tree {
    nodes: Vec<[Record; 2]>,
    data: Vec<u8>,
}

impl Value {
    fn write(&self, out: &mut Vec<u8>) {
        let number = |out: &mut Vec<u8>, kind, bytes: &[u8]| {
            let bytes = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
            head(out, kind, bytes.len());
            out.extend(bytes);
        };
        match self {
            Text(text) => {
                head(out, 2, text.len());
                out.extend(text.as_bytes());
            }
            Float(value) => {
                head(out, 3, 8);
                out.extend(value.to_be_bytes());
            }
            Short(value) => number(out, 5, &value.to_be_bytes()),
            Number(value) => number(out, 6, &value.to_be_bytes()),
            Long(value) => number(out, 9, &value.to_be_bytes()),
            Flag(value) => head(out, 14, usize::from(*value)),
            List(values) => {
                head(out, 11, values.len());
                values.iter().for_each(|value| value.write(out));
            }
            Map(fields) => {
                head(out, 7, fields.len());
                for (name, value) in fields {
                    Text(name).write(out);
                    value.write(out);
                }
            }
        }
    }
}

/// Writes the control byte of a value, and what follows for extended types and sizes from 29 to 284.
fn head(out: &mut Vec<u8>, kind: u8, size: usize) {
    let low = u8::try_from(size.min(29)).unwrap();
    if kind > 7 {
        out.extend([low, kind - 7]);
    } else {
        out.push(kind << 5 | low);
    }
    if size >= 29 {
        out.push(u8::try_from(size - 29).unwrap());
    }
}

impl Tree {
    fn new() -> Self {
        let mut tree = Self { nodes: vec![[Record::Empty; 2]], data: Vec::new() };
        let ipv4 = tree.node(0, 96);
        // The node of `::ffff:0:0/95`, whose second half is the IPv4 tree.
        let mapped = tree.node(0xffff_0000_0000, 95);
        tree.nodes[mapped][1] = Record::Node(ipv4);
        tree
    }

    /// Returns the node for the first bits of an address, and adds it if needed.
    fn node(&mut self, address: u128, bits: u32) -> usize {
        let mut at = 0;
        for bit in 0..bits {
            let side = usize::from(address >> (127 - bit) & 1 == 1);
            at = match self.nodes[at][side] {
                Record::Node(next) => next,
                _ => {
                    self.nodes.push([Record::Empty; 2]);
                    let next = self.nodes.len() - 1;
                    self.nodes[at][side] = Record::Node(next);
                    next
                }
            };
        }
        at
    }

    fn insert(&mut self, network: &str, value: &Value) {
        let (address, bits) = network.split_once('/').unwrap();
        let bits: u32 = bits.parse().unwrap();
        let (address, bits) = match address.parse().unwrap() {
            IpAddr::V4(address) => (u32::from(address).into(), bits + 96),
            IpAddr::V6(address) => (u128::from(address), bits),
        };
        let parent = self.node(address, bits - 1);
        let side = usize::from(address >> (128 - bits) & 1 == 1);
        self.nodes[parent][side] = Record::Data(self.data.len());
        value.write(&mut self.data);
    }

    fn write(&self, kind: &'static str) -> Vec<u8> {
        let number = self.nodes.len();
        let mut out = Vec::new();
        for record in self.nodes.iter().flatten() {
            let value = match record {
                Record::Empty => number,
                Record::Node(node) => *node,
                Record::Data(offset) => number + 16 + offset,
            };
            out.extend(&u32::try_from(value).unwrap().to_be_bytes()[1..]);
        }
        out.extend([0; 16]);
        out.extend(&self.data);
        out.extend(b"\xab\xcd\xefMaxMind.com");
        let metadata = Map(vec![
            ("binary_format_major_version", Short(2)),
            ("binary_format_minor_version", Short(0)),
            ("build_epoch", Long(1_700_000_000)),
            ("database_type", Text(kind)),
            ("description", Map(vec![("en", Text("A test"))])),
            ("ip_version", Short(6)),
            ("languages", List(vec![Text("en")])),
            ("node_count", Number(u32::try_from(number).unwrap())),
            ("record_size", Short(24)),
        ]);
        metadata.write(&mut out);
        out
    }
}

fn database(kind: &'static str, networks: &[(&str, Value)]) -> Vec<u8> {
    let mut tree = Tree::new();
    for (network, value) in networks {
        tree.insert(network, value);
    }
    tree.write(kind)
}

/// Returns databases: of cities, of autonomous systems, of a type without labels, and of cities with a wrong value.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let names = |name| Map(vec![("de", Text("Ort")), ("en", Text(name))]);
    let region = |code| Map(vec![("iso_code", Text(code)), ("names", names("Region"))]);
    let whole = |city, latitude| {
        Map(vec![
            ("city", Map(vec![("geoname_id", Number(1)), ("names", names(city))])),
            ("continent", Map(vec![("code", Text("EU")), ("names", names("Europe"))])),
            (
                "country",
                Map(vec![
                    ("is_in_european_union", Flag(true)),
                    ("iso_code", Text("GB")),
                    ("names", names("United Kingdom")),
                ]),
            ),
            (
                "location",
                Map(vec![
                    ("latitude", Float(latitude)),
                    ("longitude", Float(-0.1315)),
                    ("time_zone", Text("Europe/London")),
                ]),
            ),
            ("postal", Map(vec![("code", Text("CB4"))])),
            ("subdivisions", List(vec![region("ENG"), Map(vec![]), region("CAM")])),
        ])
    };
    let empty_names = Map(vec![("city", Map(vec![("names", Map(vec![("de", Text("Ort"))]))]))]);
    let cities = [
        ("127.0.0.1/32", whole("Cambridge", 52.2242)),
        ("81.2.69.0/24", whole("Cambridge of a very long name, which has more than 28 bytes", 1e-7)),
        ("127.0.0.3/32", empty_names),
        ("127.0.0.4/32", Map(vec![])),
        ("2001:db8::/32", whole("Six", 10.0)),
    ];
    let system = |number, name| {
        Map(vec![
            ("autonomous_system_number", Number(number)),
            ("autonomous_system_organization", Text(name)),
        ])
    };
    let systems = [
        ("127.0.0.1/32", system(12345, "Test ASN Organization")),
        ("127.0.0.3/32", system(0, "Not routed")),
        ("127.0.0.4/32", Map(vec![])),
        ("2001:db8::/32", system(u32::MAX, "The last one")),
    ];
    let wrong = [("127.0.0.2/32", Map(vec![("city", Text("no map"))]))];
    vec![
        ("city", database("GeoLite2-City", &cities)),
        ("asn", database("GeoLite2-ASN", &systems)),
        ("isp", database("GeoIP2-ISP", &systems)),
        ("unknown", database("GeoLite2-Unknown", &systems)),
        ("wrong", database("GeoIP2-Country", &wrong)),
    ]
}
