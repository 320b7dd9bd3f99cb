//! Lines that name a file and its digest, as coreutils, BSD, `b3sum`, `xxhsum` and mutil write them.
//!
//! ```text
//! HEX  NAME                       plain (' *' instead of two blanks means binary, which is the same on POSIX)
//! TYPE (NAME) = HEX               tagged
//! #dmover#TYPE[,leaf=BYTES][,piece=BYTES][,range=START-END]#HEX  NAME
//! #mutil#[START-END]#HEX  NAME    mutil's, of whatever type was asked for
//! # anything else                 a comment
//! ```
//! The forms after '#' are comments to all other tools. `leaf` makes it the digest of a tree (see
//! `docs/digests.md`), `range` says that only bytes from START to before END count, and with `piece` HEX has
//! one digest for every so many bytes instead of that of the whole. A line that begins with a backslash has
//! `\\`, `\n` and `\r` in its name for these characters.
use dmover_model::{ByteRange, Digest, HashType};

/// How much of the content a line speaks of, and how its digest is put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Bytes of a leaf; `None`: the plain digest.
    pub leaf: Option<u64>,
    /// Only these bytes.
    pub range: Option<ByteRange>,
    /// One digest for every so many bytes.
    pub piece: Option<u64>,
    /// Mutil wrote it, so that sizes of leaves and pieces are on the command line.
    pub mutil: bool,
}

impl Form {
    /// The plain digest of a whole file.
    pub const PLAIN: Self = Self { leaf: None, range: None, piece: None, mutil: false };
}

/// What one line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The file, as it was named.
    pub name: Vec<u8>,
    /// The function.
    pub hash: HashType,
    /// Whether the line says so itself; if not, it was told or guessed by its length.
    pub hash_is_certain: bool,
    /// What the digest is of.
    pub form: Form,
    /// The digest, or that of each piece.
    pub digests: Vec<Digest>,
}

/// What is to stand in a line.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// The file, as it was named.
    pub name: &'a [u8],
    /// The function.
    pub hash: HashType,
    /// What the digest is of.
    pub form: Form,
    /// The digest, or that of each piece.
    pub digests: &'a [Digest],
}

impl<'a> From<&'a Entry> for Line<'a> {
    fn from(Entry { name, hash, form, digests, .. }: &'a Entry) -> Self {
        Self { name, hash: *hash, form: *form, digests }
    }
}

/// Why a line cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// It has none of the known forms.
    #[error("is neither 'DIGEST  NAME' nor 'TYPE (NAME) = DIGEST'")]
    Form,
    /// The digest has another length.
    #[error("has {found} hexadecimal digits; {hash} needs {expected}")]
    Length {
        /// The function that was expected.
        hash: HashType,
        /// Its digits.
        expected: usize,
        /// The digits of the line.
        found: usize,
    },
    /// No function has a digest of this length.
    #[error("has {0} hexadecimal digits; no known digest has this length")]
    NoSuchLength(usize),
    /// Another function than the one that was asked for.
    #[error("is a {found} digest, not a {expected} digest")]
    OtherHash {
        /// What was asked for.
        expected: HashType,
        /// What the line has.
        found: HashType,
    },
    /// A function that is not known.
    #[error("names the unknown digest '{0}'")]
    UnknownHash(String),
    /// Something that is not a name.
    #[error("has no usable name: {0}")]
    Name(&'static str),
}

/// How lines are written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Style {
    /// `TYPE (NAME) = HEX`.
    pub tag: bool,
    /// Lines end with NUL and nothing is escaped.
    pub nul: bool,
    /// `HEX *NAME`.
    pub binary: bool,
    /// What other tools do not know is written as mutil writes it.
    pub mutil: bool,
}

/// Reads one line, which has no end of line any more. `None`: a comment, or nothing.
///
/// Without a function that is asked for, tagged lines tell theirs and others are guessed by their length;
/// of those with 64 digits BLAKE3 is taken. With `nul`, names are not escaped.
pub fn parse(line: &[u8], asked: Option<HashType>, nul: bool) -> Result<Option<Entry>, LineError> {
    if let Some(rest) = line.strip_prefix(b"#dmover#") {
        return parse_own(rest, asked, nul).map(Some);
    }
    if let Some(rest) = line.strip_prefix(b"#mutil#") {
        return parse_mutil(rest, asked, nul).map(Some);
    }
    if line.is_empty() || line.starts_with(b"#") {
        return Ok(None);
    }
    let start = line.iter().position(|c| !matches!(c, b' ' | b'\t')).unwrap_or(line.len());
    let line = &line[start..];
    let (escaped, line) = match line.strip_prefix(b"\\") {
        Some(rest) if !nul => (true, rest),
        _ => (false, line),
    };
    if let Some((tag, name, hex)) = split_tagged(line) {
        let hash = match_tag(tag)?;
        expect(asked, hash)?;
        let digests = vec![one(hash, hex)?];
        let (name, form) = (unescape(name, escaped)?, Form::PLAIN);
        return Ok(Some(Entry { name, hash, hash_is_certain: true, form, digests }));
    }
    let (hex, name) = split_plain(line)?;
    let hash = match asked {
        Some(hash) => hash,
        None => guess(hex.len())?,
    };
    let digests = vec![one(hash, hex)?];
    let (name, form) = (unescape(name, escaped)?, Form::PLAIN);
    Ok(Some(Entry { name, hash, hash_is_certain: asked.is_some(), form, digests }))
}

/// Appends one line with its end.
pub fn write(text: &mut Vec<u8>, Line { name, hash, form, digests }: Line<'_>, style: Style) {
    let push_hex = |text: &mut Vec<u8>| digests.iter().for_each(|digest| digest.push_hex(text));
    text.reserve(name.len() + 2 * hash.digest_bytes() * digests.len() + 4);
    let start = text.len();
    push_prefix(text, hash, &form);
    let plain = text.len() == start;
    let escaped = is_special(name) && !style.nul;
    let push_name = |text: &mut Vec<u8>| {
        if escaped { text.extend(escape(name)) } else { text.extend_from_slice(name) }
    };
    if escaped {
        text.push(b'\\');
    }
    if style.tag && plain {
        text.extend_from_slice(hash.tag().as_bytes());
        text.extend_from_slice(b" (");
        push_name(text);
        text.extend_from_slice(b") = ");
        push_hex(text);
    } else {
        push_hex(text);
        text.extend_from_slice(if style.binary { b" *" } else { b"  " });
        push_name(text);
    }
    text.push(if style.nul { 0 } else { b'\n' });
}

/// Appends what makes a line a comment to other tools; nothing for a plain digest.
fn push_prefix(text: &mut Vec<u8>, hash: HashType, form: &Form) {
    let Form { leaf, range, piece, mutil } = form;
    if leaf.is_none() && range.is_none() && piece.is_none() {
        return;
    }
    let range = range.map(|ByteRange { start, end }| format!("{start}-{end}"));
    let words = if *mutil {
        format!("#mutil#{}#", range.unwrap_or_default())
    } else {
        let mut words = format!("#dmover#{hash}");
        words.extend(leaf.map(|leaf| format!(",leaf={leaf}")));
        words.extend(piece.map(|piece| format!(",piece={piece}")));
        words.extend(range.map(|range| format!(",range={range}")));
        words.push('#');
        words
    };
    text.extend_from_slice(words.as_bytes());
}

fn parse_own(rest: &[u8], asked: Option<HashType>, nul: bool) -> Result<Entry, LineError> {
    let at = rest.iter().position(|c| *c == b'#').ok_or(LineError::Form)?;
    let words = std::str::from_utf8(&rest[..at]).map_err(|_| LineError::Form)?;
    let mut words = words.split(',');
    let word = words.next().unwrap_or_default();
    let hash = HashType::parse(word)
        .ok_or_else(|| LineError::UnknownHash(word.escape_debug().collect()))?;
    expect(asked, hash)?;
    let mut form = Form::PLAIN;
    for word in words {
        match word.split_once('=') {
            Some(("leaf", bytes)) => form.leaf = Some(parse_size(bytes)?),
            Some(("piece", bytes)) => form.piece = Some(parse_size(bytes)?),
            Some(("range", range)) => form.range = Some(parse_range(range).ok_or(LineError::Form)?),
            _ => return Err(LineError::Form),
        }
    }
    finish(&rest[at + 1..], hash, form, nul)
}

fn parse_mutil(rest: &[u8], asked: Option<HashType>, nul: bool) -> Result<Entry, LineError> {
    let at = rest.iter().position(|c| *c == b'#').ok_or(LineError::Form)?;
    let range = match &rest[..at] {
        b"" => None,
        text => {
            let range = std::str::from_utf8(text).ok().and_then(parse_range);
            Some(range.ok_or(LineError::Form)?)
        }
    };
    // Mutil's own default.
    let hash = asked.unwrap_or(HashType::Md5);
    let form = Form { leaf: None, piece: None, range, mutil: true };
    let mut entry = finish(&rest[at + 1..], hash, form, nul)?;
    entry.hash_is_certain = asked.is_some();
    Ok(entry)
}

/// The part after the second '#'.
fn finish(line: &[u8], hash: HashType, form: Form, nul: bool) -> Result<Entry, LineError> {
    let (escaped, line) = match line.strip_prefix(b"\\") {
        Some(rest) if !nul => (true, rest),
        _ => (false, line),
    };
    let (hex, name) = split_plain(line)?;
    let digits = 2 * hash.digest_bytes();
    let many = form.piece.is_some() || form.mutil;
    let whole = if many { hex.len() % digits == 0 } else { hex.len() == digits };
    if !whole || hex.is_empty() {
        return Err(LineError::Length { hash, expected: digits, found: hex.len() });
    }
    let digests = hex.chunks(digits).map(|hex| one(hash, hex)).collect::<Result<_, _>>()?;
    let name = unescape(name, escaped)?;
    Ok(Entry { name, hash, hash_is_certain: true, form, digests })
}

/// `START-END` with START before END.
pub fn parse_range(text: &str) -> Option<ByteRange> {
    let (start, end) = text.split_once('-')?;
    let range = ByteRange { start: start.parse().ok()?, end: end.parse().ok()? };
    (!range.is_empty()).then_some(range)
}

fn parse_size(text: &str) -> Result<u64, LineError> {
    text.parse().ok().filter(|bytes| *bytes > 0).ok_or(LineError::Form)
}

fn expect(asked: Option<HashType>, found: HashType) -> Result<(), LineError> {
    match asked {
        Some(expected) if expected != found => Err(LineError::OtherHash { expected, found }),
        _ => Ok(()),
    }
}

fn one(hash: HashType, hex: &[u8]) -> Result<Digest, LineError> {
    let expected = 2 * hash.digest_bytes();
    if hex.len() != expected {
        return Err(LineError::Length { hash, expected, found: hex.len() });
    }
    Digest::from_hex(hex).ok_or(LineError::Form)
}

fn guess(digits: usize) -> Result<HashType, LineError> {
    use HashType::{Blake3, Crc24Rfc2440, Crc32, Md5, Sha1, Sha224, Sha384, Sha512};
    let likely = [Blake3, Md5, Sha1, Sha224, Sha384, Sha512, Crc32, Crc24Rfc2440];
    let found = likely.into_iter().find(|hash| 2 * hash.digest_bytes() == digits);
    found.ok_or(LineError::NoSuchLength(digits))
}

fn match_tag(tag: &[u8]) -> Result<HashType, LineError> {
    // OpenSSL 3 says SHA2-256.
    let sha2 = tag.strip_prefix(b"SHA2-").map(|bits| [b"SHA", bits].concat());
    let known = sha2.as_deref().unwrap_or(tag);
    let found = HashType::ALL.iter().copied().find(|hash| hash.tag().as_bytes() == known);
    found.ok_or_else(|| LineError::UnknownHash(tag.escape_ascii().to_string()))
}

/// `TYPE (NAME) = HEX`, also without the blanks, as openssl writes it.
fn split_tagged(line: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let open = line.iter().position(|c| *c == b'(')?;
    let tag = line[..open].strip_suffix(b" ").unwrap_or(&line[..open]);
    let is_tag = |c: &u8| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == b'-';
    if tag.is_empty() || !tag.iter().all(is_tag) {
        return None;
    }
    // A name may have any of these characters; the digest has none.
    let close = line.iter().rposition(|c| *c == b')').filter(|close| *close > open)?;
    let rest = line[close + 1..].trim_ascii_start().strip_prefix(b"=")?;
    Some((tag, &line[open + 1..close], rest.trim_ascii()))
}

/// `HEX  NAME`, `HEX *NAME`, or `HEX NAME` as BSD's tools write it with -r.
fn split_plain(line: &[u8]) -> Result<(&[u8], &[u8]), LineError> {
    let digits = line.iter().position(|c| !c.is_ascii_hexdigit()).ok_or(LineError::Form)?;
    let (hex, rest) = line.split_at(digits);
    let rest = rest.strip_prefix(b" ").or_else(|| rest.strip_prefix(b"\t"));
    let rest = rest.filter(|_| !hex.is_empty()).ok_or(LineError::Form)?;
    let name = rest.strip_prefix(b" ").or_else(|| rest.strip_prefix(b"*")).unwrap_or(rest);
    Ok((hex, name))
}

/// Adds a name as `sha256sum -c` prints it: with a backslash before it if anything in it had to be escaped.
pub fn push_escaped(line: &mut Vec<u8>, name: &[u8]) {
    if is_special(name) {
        line.push(b'\\');
        line.extend_from_slice(&escape(name));
    } else {
        line.extend_from_slice(name);
    }
}

fn is_special(name: &[u8]) -> bool {
    name.iter().any(|c| matches!(c, b'\\' | b'\n' | b'\r'))
}

fn escape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + 8);
    for c in name {
        match c {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            other => out.push(*other),
        }
    }
    out
}

fn unescape(name: &[u8], escaped: bool) -> Result<Vec<u8>, LineError> {
    if name.is_empty() {
        return Err(LineError::Name("it is empty"));
    }
    if name.contains(&0) {
        return Err(LineError::Name("it contains a NUL"));
    }
    if !escaped {
        return Ok(name.to_vec());
    }
    let mut out = Vec::with_capacity(name.len());
    let mut bytes = name.iter();
    while let Some(c) = bytes.next() {
        out.push(match c {
            b'\\' => match bytes.next() {
                Some(b'\\') => b'\\',
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                _ => {
                    return Err(LineError::Name(
                        "a backslash is followed by a character other than \\, n or r",
                    ));
                }
            },
            other => *other,
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MD5: &str = "d41d8cd98f00b204e9800998ecf8427e";

    fn plain(line: &str) -> Entry {
        parse(line.as_bytes(), None, false).unwrap().unwrap()
    }

    #[test]
    fn the_usual_lines_are_read() {
        for line in [
            format!("{MD5}  a b"),
            format!("{MD5} *a b"),
            format!("{MD5} a b"),
            format!("  {MD5}  a b"),
            format!("{}  a b", MD5.to_uppercase()),
            format!("MD5 (a b) = {MD5}"),
            format!("MD5(a b)= {MD5}"),
        ] {
            let entry = plain(&line);
            assert_eq!((entry.name.as_slice(), entry.hash), (&b"a b"[..], HashType::Md5), "{line}");
            assert_eq!(entry.digests[0].to_string(), MD5);
        }
        assert_eq!(plain(&format!("MD5 (a) = (b)) = {MD5}")).name, b"a) = (b)");
        assert_eq!(plain(&format!("\\{MD5}  a\\nb\\\\c\\rd")).name, b"a\nb\\c\rd");
        assert_eq!(plain(&format!("\\MD5 (a\\nb) = {MD5}")).name, b"a\nb");
        assert_eq!(parse(b"# a comment", None, false), Ok(None));
    }

    #[test]
    fn lines_that_cannot_be_used_say_why() {
        let error = |line: &str, asked| parse(line.as_bytes(), asked, false).unwrap_err();
        assert_eq!(error(" ", None), LineError::Form);
        assert_eq!(parse(b"", None, false), Ok(None));
        assert_eq!(error("nothing here", None), LineError::Form);
        assert_eq!(error(&format!("{MD5}x  a"), None), LineError::Form);
        assert_eq!(error(&format!("{}  a", &MD5[1..]), None), LineError::NoSuchLength(31));
        let (hash, expected, found) = (HashType::Sha1, 40, 32);
        let length = LineError::Length { hash, expected, found };
        assert_eq!(error(&format!("{MD5}  a"), Some(HashType::Sha1)), length);
        assert!(matches!(error(&format!("SHA3 (a) = {MD5}"), None), LineError::UnknownHash(_)));
        assert!(matches!(
            error(&format!("MD5 (a) = {MD5}"), Some(HashType::Sha1)),
            LineError::OtherHash { .. }
        ));
        assert!(matches!(error(&format!("\\{MD5}  a\\x"), None), LineError::Name(_)));
        assert!(matches!(error(&format!("\\{MD5}  a\\"), None), LineError::Name(_)));
        assert!(matches!(error(&format!("{MD5}  "), None), LineError::Name(_)));
        for own in
            ["sha9#00  a", "md5,leaf=0#00  a", "md5,range=5-5#00  a", "md5,piece=x#00  a", "md5"]
        {
            assert!(parse(format!("#dmover#{own}").as_bytes(), None, false).is_err(), "{own}");
        }
    }

    fn entries() -> impl Strategy<Value = Entry> {
        let name = prop::collection::vec(1u8..=255, 1..40);
        let hash = prop::sample::select(HashType::ALL.to_vec());
        let leaf = prop::option::of(1u64..1 << 40);
        let range = prop::option::of((0u64..1 << 40, 1u64..1 << 40));
        (name, hash, leaf, range, 1usize..4, any::<u8>()).prop_map(
            |(name, hash, leaf, range, count, byte)| {
                let range = range.map(|(start, length)| ByteRange { start, end: start + length });
                let piece = (count > 1).then_some(4096);
                let digest = Digest::new(&vec![byte; hash.digest_bytes()]).unwrap();
                let form = Form { leaf, piece, range, mutil: false };
                let digests = vec![digest; count];
                Entry { name, hash, hash_is_certain: true, form, digests }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(entry in entries(), tag: bool, nul: bool, binary: bool) {
            let style = Style { tag, nul, binary, mutil: false };
            let mut line = Vec::new();
            write(&mut line, (&entry).into(), style);
            prop_assert_eq!(line.pop(), Some(if nul { 0 } else { b'\n' }));
            prop_assert!(nul || !line.contains(&b'\n'));
            let read = parse(&line, Some(entry.hash), nul).unwrap().unwrap();
            prop_assert_eq!(read, entry);
        }

        #[test]
        fn no_line_is_a_fault(line: Vec<u8>, prefix in prop::sample::select(vec!["", "#dmover#", "#mutil#", "\\", "MD5 ("])) {
            let line = [prefix.as_bytes(), &line].concat();
            let _ = parse(&line, None, false);
            let _ = parse(&line, Some(HashType::Crc24Rfc2440), true);
        }
    }
}
