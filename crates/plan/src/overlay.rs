//! The layers of an overlay file system, from its mount options.
use std::path::PathBuf;

use crate::overlap::{MountLine, unescape};

/// The directories of an overlay.
///
/// The kernel reports the words that mount(8) received. A path that is ambiguous is listed in both readings. A path
/// without a leading slash is relative to an unknown directory.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Layers {
    /// The lower layers.
    pub lower: Vec<PathBuf>,
    /// The upper layer, which receives changes.
    pub upper: Vec<PathBuf>,
}

/// The layers of a mount. `None`: it is not an overlay.
pub fn layers(line: &MountLine) -> Option<Layers> {
    if line.file_system != "overlay" {
        return None;
    }
    let mut layers = Layers::default();
    for option in line.options.split(|byte| *byte == b',') {
        let Some(at) = option.iter().position(|byte| *byte == b'=') else { continue };
        let value = decoded(&option[at + 1..]);
        match &option[..at] {
            b"lowerdir" => layers.lower.extend(split(&value).iter().flat_map(|one| ways(one))),
            // Since Linux 6.7 one by one, without escapes of their own.
            b"lowerdir+" | b"datadir+" => layers.lower.extend(ways(&value)),
            b"upperdir" => layers.upper.extend(ways(&value)),
            _ => {}
        }
    }
    Some(layers)
}

/// Decodes three octal digits.
fn decoded(value: &[u8]) -> Vec<u8> {
    use std::os::unix::ffi::OsStringExt;
    unescape(value).into_os_string().into_vec()
}

/// The parts between colons; a colon after a backslash belongs to a name. Two colons precede data-only layers.
fn split(value: &[u8]) -> Vec<Vec<u8>> {
    let (mut parts, mut part, mut is_escaped) = (Vec::new(), Vec::new(), false);
    for byte in value {
        if *byte == b':' && !is_escaped {
            parts.push(std::mem::take(&mut part));
        } else {
            part.push(*byte);
        }
        is_escaped = *byte == b'\\' && !is_escaped;
    }
    parts.push(part);
    parts.retain(|part| !part.is_empty());
    parts
}

/// A path as it is, and without the backslashes that quote characters.
fn ways(value: &[u8]) -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let mut plain = Vec::with_capacity(value.len());
    let mut bytes = value.iter();
    while let Some(byte) = bytes.next() {
        plain.extend(if *byte == b'\\' { bytes.next() } else { Some(byte) });
    }
    let mut ways = vec![value.to_vec()];
    if plain != value {
        ways.push(plain);
    }
    ways.into_iter().map(|path| std::ffi::OsString::from_vec(path).into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlap::parse_mountinfo;

    fn of(options: &str) -> Layers {
        let line = format!("5 1 0:68 / /m rw - overlay overlay {options}\n");
        layers(&parse_mountinfo(line.as_bytes())[0]).unwrap()
    }

    #[test]
    fn layers_are_found_in_the_options() {
        let of = |options: &str| {
            let Layers { lower, upper } = of(options);
            let words = |paths: Vec<PathBuf>| {
                paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join("|")
            };
            (words(lower), words(upper))
        };
        let both = |lower: &str, upper: &str| (lower.to_owned(), upper.to_owned());
        assert_eq!(of("rw,lowerdir=/l,upperdir=/u,workdir=/w,uuid=on"), both("/l", "/u"));
        assert_eq!(of("ro,lowerdir=/a:/b::/data"), both("/a|/b|/data", ""));
        assert_eq!(of("rw,lowerdir+=/a,lowerdir+=/b,datadir+=/d"), both("/a|/b|/d", ""));
        assert_eq!(of("rw,lowerdir=/a\\040b\\054c"), both("/a b,c", ""), "escapes of the kernel");
        assert_eq!(of("rw,lowerdir=/a\\134:b:/c"), both("/a\\:b|/a:b|/c", ""), "and of mount(8)");
        assert_eq!(of("rw,upperdir=/u\\072v,lowerdir=/l"), both("/l", "/u:v"));
        assert_eq!(of("rw,lowerdir=l:../x"), both("l|../x", ""), "relative to nobody knows what");
    }

    #[test]
    fn other_file_systems_have_no_layers() {
        let line = b"5 1 8:1 / /m rw - ext4 /dev/sda1 rw,upperdir=/u\n";
        assert_eq!(layers(&parse_mountinfo(line)[0]), None);
        assert_eq!(parse_mountinfo(b"5 1 8:1 / /m rw - ext4 /dev/sda1\n")[0].options, b"");
    }
}
