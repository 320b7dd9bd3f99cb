//! Parsing and formatting of sizes and durations.

/// Parses `64K`, `64KiB` (1024), `64KB` (1000), `1.5G` or a plain number of bytes, as coreutils do.
///
/// # Errors
/// A message that says what is wrong.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let factor = size_factor(suffix)
        .ok_or_else(|| format!("unknown size suffix '{suffix}' (use K, M, G, T, P, KB or KiB)"))?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(|| format!("'{text}' is too large"));
    }
    match number.parse::<f64>() {
        Ok(value) if value >= 0.0 && value * (factor as f64) < 1.8e19 => {
            Ok((value * factor as f64) as u64)
        }
        _ => Err(format!("'{text}' is not a size (examples: 4096, 64K, 1.5GiB, 10MB)")),
    }
}

fn size_factor(suffix: &str) -> Option<u64> {
    let power = |letter: u8| b"KMGTPE".iter().position(|l| *l == letter).map(|p| p as u32 + 1);
    let upper = suffix.to_ascii_uppercase();
    match upper.as_bytes() {
        [] | [b'B'] => Some(1),
        [letter] | [letter, b'I', b'B'] => Some(1024u64.pow(power(*letter)?)),
        [letter, b'B'] => Some(1000u64.pow(power(*letter)?)),
        _ => None,
    }
}

/// Parses `90s`, `1h30m`, `250ms`, `2d` or a plain number of seconds into milliseconds.
///
/// # Errors
/// A message that says what is wrong.
pub fn parse_duration_ms(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a duration (examples: 90s, 1h30m, 2d)");
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut total = 0u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let value: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let factor = match &rest[..letters] {
            "ms" => 1,
            "" | "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            _ => return Err(wrong()),
        };
        rest = &rest[letters..];
        total = value.checked_mul(factor).and_then(|v| total.checked_add(v)).ok_or_else(wrong)?;
    }
    Ok(total)
}

/// `1.5 GiB`: three digits and an IEC unit; exact below 1 KiB.
pub fn format_iec(bytes: u64) -> String {
    format_scaled(bytes, 1024.0, &["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// `1.5 GB`: three digits and a decimal unit; exact below 1 kB.
pub fn format_si(bytes: u64) -> String {
    format_scaled(bytes, 1000.0, &["kB", "MB", "GB", "TB", "PB", "EB"])
}

fn format_scaled(bytes: u64, base: f64, units: &[&str]) -> String {
    if (bytes as f64) < base {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / base;
    let mut unit = 0;
    while value >= base - 0.5 && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {}", units[unit])
}

/// `1d 02:14` above a day, `2:14:05` above an hour, else `14:05`.
pub fn format_duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{:02}", seconds % 60),
        (0, _) => format!("{hours}:{minutes:02}:{:02}", seconds % 60),
        _ => format!("{days}d {hours:02}:{minutes:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_coreutils() {
        assert_eq!(parse_size("64K"), Ok(65_536));
        assert_eq!(parse_size("64KiB"), Ok(65_536));
        assert_eq!(parse_size("64KB"), Ok(64_000));
        assert_eq!(parse_size("1.5G"), Ok(1_610_612_736));
        assert_eq!(parse_size("0"), Ok(0));
        assert!(parse_size("12Q").is_err());
        assert!(parse_size("-1").is_err());
        assert!(parse_size("99999999999E").is_err());
    }

    #[test]
    fn durations_add_up() {
        assert_eq!(parse_duration_ms("1h30m"), Ok(5_400_000));
        assert_eq!(parse_duration_ms("250ms"), Ok(250));
        assert_eq!(parse_duration_ms("7"), Ok(7_000));
        assert!(parse_duration_ms("soon").is_err());
        assert!(parse_duration_ms("").is_err());
    }

    #[test]
    fn formats_are_short() {
        assert_eq!(format_iec(1023), "1023 B");
        assert_eq!(format_iec(1_610_612_736), "1.50 GiB");
        assert_eq!(format_si(1_500_000), "1.50 MB");
        assert_eq!(format_duration(94_440), "1d 02:14");
    }
}
