//! # Name
//!
//! *root* - sets the directory that relative paths of the block start from. The default is the working directory. A
//! directory that doesn't exist only causes a warning: it may appear later.
//!
//! # Syntax
//!
//! Syntax: `root PATH`.

use std::io::ErrorKind;

use super::setup::Setup;
use crate::dns::corefile::CorefileError;

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    // The last line counts, as in CoreDNS.
    for line in setup.lines {
        line.no_block()?;
        let word = line.single_argument("the path of a directory")?;
        setup.builder.root = word.text.clone().into();
        match setup.builder.root.metadata() {
            Ok(found) if !found.is_dir() => return Err(word.unexpected("a directory")),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let warning = word.error(format!("the directory {:?} doesn't exist yet", word.text));
                setup.builder.warnings.push(warning);
            }
            Err(error) => return Err(word.error(format!("{:?} can't be used: {error}", word.text))),
            Ok(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;

    #[test]
    fn missing_directory_is_accepted_and_a_file_is_rejected() {
        for (lines, expected) in [
            ("root", "Corefile:2:1: root needs the path of a directory"),
            ("root a b", "Corefile:2:8: root takes 1 argument at most, and here is \"b\""),
            ("root /dev/null", "Corefile:2:6: \"/dev/null\" isn't a directory"),
        ] {
            assert_eq!(TestServer::error(lines), expected);
        }
        TestServer::block("root /nowhere/to/be/found\nwhoami");
    }
}
