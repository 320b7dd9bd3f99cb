//! Shows names: quoted for a shell when they are unusual, with control and direction characters escaped.
use std::fmt::Write;

/// A path as it can be pasted into a shell: plain if harmless, else in quotes, with escapes where
/// bytes are not printable. Nothing in it can move the cursor or reverse the text.
pub fn quoted(path: &[u8]) -> String {
    let text = std::str::from_utf8(path);
    if let Ok(text) = text
        && !text.is_empty()
        && text.chars().all(|c| c.is_alphanumeric() || "-_./,:+@%=~^".contains(c))
        && !text.starts_with('~')
    {
        return text.to_owned();
    }
    if let Ok(text) = text
        && !text.contains('\'')
        && text.chars().all(is_plain)
    {
        return format!("'{text}'");
    }
    ansi_c_quoted(path)
}

fn is_plain(c: char) -> bool {
    let direction =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !(c.is_control() || direction)
}

/// Lines for a terminal: bytes that could move the cursor or reverse the text are escaped as three octal digits.
pub fn printable(lines: &[u8]) -> Vec<u8> {
    let mut out = String::with_capacity(lines.len());
    for chunk in lines.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\n' || is_plain(c) {
                out.push(c);
            } else {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| escape(&mut out, b));
            }
        }
        chunk.invalid().iter().for_each(|b| escape(&mut out, *b));
    }
    out.into_bytes()
}

/// The form `$'…'` of bash, which can express any byte.
fn ansi_c_quoted(path: &[u8]) -> String {
    let mut out = String::from("$'");
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\'' => out.push_str("\\'"),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                c if is_plain(c) => out.push(c),
                c => c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| escape(&mut out, b)),
            }
        }
        chunk.invalid().iter().for_each(|b| escape(&mut out, *b));
    }
    out.push('\'');
    out
}

fn escape(out: &mut String, byte: u8) {
    // Always three digits, so that a digit that follows in the name is not read as part of the escape.
    let _ = write!(out, "\\{byte:03o}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_stay_and_odd_ones_can_be_pasted() {
        assert_eq!(quoted(b"a/b-1.txt"), "a/b-1.txt");
        assert_eq!(quoted(b"a b"), "'a b'");
        assert_eq!(quoted(b"it's"), "$'it\\'s'");
        assert_eq!(quoted(b"a\nb\xff"), "$'a\\nb\\377'");
        assert_eq!(quoted("a\u{202e}b".as_bytes()), "$'a\\342\\200\\256b'");
        assert_eq!(quoted(b""), "''");
        assert_eq!(quoted(b"~root"), "'~root'");
    }

    #[test]
    fn bash_reads_back_what_is_quoted() {
        for name in [&b"a\x01b'\\c\xfe\x37"[..], b"~x", b"a b", b"-n", b"$HOME `id`"] {
            let script = format!("printf %s {}", quoted(name));
            let out = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
            assert_eq!(out.stdout, name, "{script}");
        }
    }
}
