//! Values of options: what is accepted, and what to type instead.

pub(super) fn threads(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(number @ 1..=1024) => Ok(number),
        _ => Err("must be a number from 1 to 1024".into()),
    }
}

pub(super) fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("must be a number of at least 1".into()),
        Ok(number) => Ok(number),
    }
}

/// Letters that may follow '%' in a template.
const TEMPLATE_LETTERS: &str = "indatle0%";

pub(super) fn template(text: &str) -> Result<String, String> {
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '%' {
            let letter = chars.next();
            if !letter.is_some_and(|letter| TEMPLATE_LETTERS.contains(letter)) {
                let shown = letter.map(String::from).unwrap_or_default();
                return Err(format!(
                    "unknown placeholder '%{shown}'; use %i %n %d %a %t %l %e %0 %%"
                ));
            }
        }
    }
    Ok(text.to_owned())
}

pub(super) fn size(text: &str) -> Result<u64, String> {
    dmover_model::units::parse_size(text)
}

pub(super) fn positive_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("must be more than 0".into()),
        bytes => Ok(bytes),
    }
}

/// A rate with a unit: rsync and scp count in KiB and Kbit, other programs in bytes, so a plain number is ambiguous.
pub(super) fn rate(text: &str) -> Result<u64, String> {
    if ["0", "off"].contains(&text) {
        return Err("means no limit in rsync and rclone: omit the option".into());
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "needs a unit: {text}K is KiB per second, as in rsync; {text}B is bytes per second"
        ));
    }
    positive_size(text)
}

pub(super) fn buffer(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes @ 0x1_0000..=0x4000_0000 => Ok(bytes),
        _ => Err("must be between 64K and 1G".into()),
    }
}

pub(super) fn memory(text: &str) -> Result<u64, String> {
    match size(text)? {
        0..0x80_0000 => Err("must be at least 8M".into()),
        bytes => Ok(bytes),
    }
}

pub(super) fn positive_duration(text: &str) -> Result<u64, String> {
    match duration(text)? {
        0 => Err("must be more than 0".into()),
        time => Ok(time),
    }
}

pub(super) fn duration(text: &str) -> Result<u64, String> {
    dmover_model::units::parse_duration_ms(text)
}

pub(super) fn hash_type(text: &str) -> Result<dmover_model::HashType, String> {
    dmover_model::HashType::parse(text).ok_or_else(|| {
        let all: Vec<_> = dmover_model::HashType::ALL.iter().map(|hash| hash.word()).collect();
        format!("must be one of {}", all.join(", "))
    })
}

/// Values of `--verify` of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadBackArg {
    /// Reads nothing back.
    None,
    /// Reads back everything that was written.
    All,
    /// Reads back this many millionths of the files.
    Sample(u32),
}

pub(super) fn read_back(text: &str) -> Result<ReadBackArg, String> {
    match (text, text.strip_prefix("sample:")) {
        ("none", _) => Ok(ReadBackArg::None),
        ("read-back", _) => Ok(ReadBackArg::All),
        (_, Some(share)) => Ok(ReadBackArg::Sample(percentage(share)?)),
        _ => Err("must be none, read-back or sample:PERCENT".into()),
    }
}

/// A percentage, in millionths.
pub(super) fn percentage(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    match number {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => {
            Ok(((percent * 10_000.0).round() as u32).max(1))
        }
        _ => Err("must be more than 0 and at most 100, such as 5 or 0.1%".into()),
    }
}
