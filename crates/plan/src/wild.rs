//! Patterns with the meaning that they have in rsync(1), matched byte by byte.

/// The result of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Yes,
    No,
    /// No later position can match either.
    Never,
    /// Only a `**` further up may still find a position.
    UpToTwoStars,
}

/// Where in a path a match may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// At its start.
    Start,
    /// This many components before its end.
    Last(usize),
    /// After any slash.
    Anywhere,
}

/// Whether a pattern matches a whole text, beginning at one of these positions.
pub(crate) fn matches(pattern: &[u8], text: &[u8], begin: Begin) -> bool {
    match begin {
        Begin::Start => run(pattern, text) == Ending::Yes,
        Begin::Last(components) => {
            last(text, components).is_some_and(|text| run(pattern, text) == Ending::Yes)
        }
        Begin::Anywhere => {
            let mut text = text;
            loop {
                match run(pattern, text) {
                    Ending::Yes => return true,
                    Ending::Never => return false,
                    Ending::No | Ending::UpToTwoStars => {}
                }
                let Some(slash) = text.iter().position(|byte| *byte == b'/') else { return false };
                text = &text[slash + 1..];
            }
        }
    }
}

/// The last components of a path; `None`: it has fewer.
fn last(text: &[u8], components: usize) -> Option<&[u8]> {
    let mut slashes = text.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/');
    match slashes.nth(components - 1) {
        Some((at, _)) => Some(&text[at + 1..]),
        None => {
            let has = text.split(|byte| *byte == b'/').count();
            (has == components).then_some(text)
        }
    }
}

fn run(mut pattern: &[u8], mut text: &[u8]) -> Ending {
    while let [own, rest @ ..] = pattern {
        let Some(byte) = text.first().copied() else {
            if *own != b'*' {
                return Ending::Never;
            }
            // Stars match nothing as well.
            let more = pattern.iter().any(|own| *own != b'*');
            return if more { Ending::Never } else { Ending::Yes };
        };
        match *own {
            b'*' => return star(rest, text),
            b'?' if byte == b'/' => return Ending::No,
            b'?' => pattern = rest,
            b'[' => match class(rest, byte) {
                None => return Ending::Never,
                Some((false, _)) => return Ending::No,
                Some((true, rest)) => pattern = rest,
            },
            b'\\' => match rest {
                [escaped, rest @ ..] if *escaped == byte => pattern = rest,
                _ => return Ending::No,
            },
            own if own == byte => pattern = rest,
            _ => return Ending::No,
        }
        text = &text[1..];
    }
    if text.is_empty() { Ending::Yes } else { Ending::No }
}

/// Matches the pattern after a star.
fn star(rest: &[u8], mut text: &[u8]) -> Ending {
    let crosses = rest.first() == Some(&b'*');
    let stars = rest.iter().take_while(|byte| crosses && **byte == b'*').count();
    let rest = &rest[stars..];
    if rest.is_empty() {
        let stops = !crosses && text.contains(&b'/');
        return if stops { Ending::UpToTwoStars } else { Ending::Yes };
    }
    while let [byte, after @ ..] = text {
        match run(rest, text) {
            Ending::No if !crosses && *byte == b'/' => return Ending::UpToTwoStars,
            Ending::No => {}
            Ending::UpToTwoStars if crosses => {}
            ended => return ended,
        }
        text = after;
    }
    Ending::Never
}

/// Whether a byte is in the set after an opening bracket, and the pattern after the set. `None`: the set has no end, or
/// names an unknown class.
fn class(set: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let mut at = 0;
    let inverted = matches!(set.first()?, b'!' | b'^');
    at += usize::from(inverted);
    let (mut found, mut before) = (false, None);
    loop {
        let own = *set.get(at)?;
        before = match own {
            b'\\' => {
                at += 1;
                let own = *set.get(at)?;
                found |= own == byte;
                Some(own)
            }
            b'-' if before.is_some() && set.get(at + 1).is_some_and(|next| *next != b']') => {
                at += 1;
                let mut end = set[at];
                if end == b'\\' {
                    at += 1;
                    end = *set.get(at)?;
                }
                found |= before.is_some_and(|start| (start..=end).contains(&byte));
                None
            }
            b'[' if set.get(at + 1) == Some(&b':') => {
                let start = at + 2;
                let end = start + set.get(start..)?.iter().position(|own| *own == b']')?;
                match set[start..end].strip_suffix(b":") {
                    Some(name) => {
                        found |= is_in(name, byte)?;
                        at = end;
                        None
                    }
                    // No class: a bracket like any other byte.
                    None => {
                        found |= byte == b'[';
                        Some(b'[')
                    }
                }
            }
            own => {
                found |= own == byte;
                Some(own)
            }
        };
        at += 1;
        if set.get(at) == Some(&b']') {
            return Some((found != inverted && byte != b'/', &set[at + 1..]));
        }
    }
}

/// The pattern after a set; `None`: the set has no end.
pub(crate) fn end_of_set(set: &[u8]) -> Option<&[u8]> {
    class(set, 0).map(|(_, rest)| rest)
}

/// Whether a byte is in a named class of the C locale; `None`: the class does not exist.
fn is_in(name: &[u8], byte: u8) -> Option<bool> {
    Some(match name {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => byte.is_ascii_whitespace() || byte == 0x0b,
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => return None,
    })
}
