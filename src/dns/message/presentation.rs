//! Names, types, classes and rcodes in the presentation format of the library miekg/dns, which CoreDNS uses. miekg/dns
//! knows more types, classes and rcodes than hickory, and has other names for some of them.

mod codes;
pub(crate) mod names;

pub use codes::{
    class_name, class_text, parse_class, parse_class_or_number, parse_rcode, parse_type,
    parse_type_or_number, rcode_name, rcode_text, type_name, type_text,
};
pub use names::{lower_name_text, name_text, parse_name};
pub(crate) use names::{unescape, write_name};
