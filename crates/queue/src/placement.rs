//! Where movers run: on this host, on hosts over ssh, or on the nodes of a batch job.
//!
//! A *post* keeps movers running at a place ([`Site`]): a local process, an ssh, or an srun. [`conduct`] starts a
//! broker and posts, runs the job in a separate process, and ends all of them. Batch scripts ([`script`]) call dmover
//! again on their first node. Nothing here decides what is copied. A process that dies costs repeated work and no data,
//! because the journal of the job is authoritative.
mod launcher;
mod owner;
pub mod script;
mod site;
mod supervisor;

pub use owner::{remove_broker, unused_brokers};
pub use site::{
    BrokerPlace, Given, Site, address_of_interface, address_towards, host_behind_ssh, slurm_nodes,
};
pub use supervisor::{Conduct, Ended, conduct};

use std::os::unix::ffi::OsStrExt;

/// How many movers, and on how many hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of hosts or nodes.
    pub places: Option<u32>,
    /// Movers on each of them.
    pub each: u32,
}

impl Shape {
    /// Parses `N`, `N:PER_NODE` and `:PER_NODE`.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number = |word: &str| match word.parse::<u32>() {
            Ok(number) if number > 0 => Ok(number),
            _ => {
                Err(format!("'{word}' is not a number of movers: use N or N:PER_NODE, such as 8:2"))
            }
        };
        let (places, each) = text.split_once(':').unwrap_or((text, "1"));
        let places = if places.is_empty() && text.len() > 1 { None } else { Some(number(places)?) };
        Ok(Self { places, each: number(each)? })
    }
}

/// Parses a list of hosts separated by commas; duplicates are removed.
///
/// # Errors
/// A host name that is empty, or that ssh would take for an option.
pub fn parse_hosts(text: &str) -> Result<Vec<String>, String> {
    let mut hosts: Vec<String> = Vec::new();
    for host in text.split(',').map(str::trim) {
        if host.is_empty() {
            return Err("the list of hosts contains an empty name".into());
        }
        if host.starts_with('-') || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(format!("'{}' is not the name of a host", host.escape_debug()));
        }
        if !hosts.iter().any(|known| known == host) {
            hosts.push(host.to_owned());
        }
    }
    Ok(hosts)
}

/// Quotes a word for any POSIX shell.
pub(crate) fn shell_word(word: &std::ffi::OsStr) -> Vec<u8> {
    let bytes = word.as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./,:+@%=^".contains(byte);
    if !bytes.is_empty() && bytes.iter().all(is_plain) {
        return bytes.to_vec();
    }
    let mut quoted = vec![b'\''];
    for byte in bytes {
        match byte {
            b'\'' => quoted.extend(b"'\\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

/// Quotes a command line for any POSIX shell.
pub(crate) fn shell_line<S: AsRef<std::ffi::OsStr>>(words: &[S]) -> Vec<u8> {
    let quoted: Vec<Vec<u8>> = words.iter().map(|word| shell_word(word.as_ref())).collect();
    quoted.join(&b' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn shapes_have_places_and_movers_on_each() {
        let shape = |places, each| Ok(Shape { places, each });
        assert_eq!(Shape::parse("8"), shape(Some(8), 1));
        assert_eq!(Shape::parse("8:2"), shape(Some(8), 2));
        assert_eq!(Shape::parse(":4"), shape(None, 4));
        for wrong in ["", ":", "0", "8:", "8:0", "-1", "a", "8:2:1", "1.5"] {
            let error = Shape::parse(wrong).unwrap_err();
            assert!(error.contains("N:PER_NODE"), "{wrong}: {error}");
        }
    }

    #[test]
    fn hosts_are_listed_once_and_are_no_options() {
        assert_eq!(parse_hosts("a, me@b,a").unwrap(), ["a", "me@b"]);
        for wrong in ["", "a,,b", "a,-oProxyCommand=x", "a b", "a\nb"] {
            assert!(parse_hosts(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn words_pass_a_shell_unharmed() {
        let words = ["plain/x", "", "two words", "it's", "*$`\"\\~\n#", "-x"];
        let text = shell_line(&words.map(OsStr::new));
        let script = [b"printf '%s|' ".as_slice(), &text].concat();
        let shell =
            std::process::Command::new("sh").arg("-c").arg(OsStr::from_bytes(&script)).output();
        let said = String::from_utf8(shell.unwrap().stdout).unwrap();
        assert_eq!(said, words.map(|word| format!("{word}|")).concat());
    }
}
