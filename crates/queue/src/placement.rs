//! Where movers run: here, on hosts that ssh leads to, or on the nodes of a batch job.
//!
//! A *post* is something that keeps movers running at a place ([`Site`]): a process here, an ssh, an srun. [`conduct`] starts a
//! broker and posts, has the job done in a process of its own, and ends all of them. Batch scripts ([`script`])
//! call dmover again on their first node. Nothing here decides what is copied, and whatever dies here costs work and no data: the
//! journal of the job is the truth.
mod conduct;
mod owner;
mod post;
pub mod script;
mod site;

pub use conduct::{Conduct, Ended, conduct};
pub use owner::{remove_broker, unused_brokers};
pub use site::{
    BrokerPlace, Given, Site, address_of_interface, address_towards, host_behind_ssh, slurm_nodes,
};

use std::os::unix::ffi::OsStrExt;

/// How many movers, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Hosts or nodes.
    pub places: Option<u32>,
    /// Movers on each of them.
    pub each: u32,
}

impl Shape {
    /// Understands `N`, `N:PER_NODE` and `:PER_NODE`.
    ///
    /// # Errors
    /// What is wrong with it.
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

/// Hosts between commas, each once, in their order.
///
/// # Errors
/// One that ssh would take for an option, or that is empty.
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

/// A word as every POSIX shell reads it back.
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

/// A command line as every POSIX shell reads it back.
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
