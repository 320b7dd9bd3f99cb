//! Reads list files: paths below the source, or lines with pairs of paths.
use dmover_engine::{JobList, Pair};
use dmover_model::{ByteRange, JobSpec, ListFile, PathBytes, RangeCopy, TreePath, percent_decode};
use std::io::Read;

/// Reads and checks the list of a job.
///
/// # Errors
/// A message that names the list and the line.
pub(crate) fn read(spec: &JobSpec) -> Result<JobList, String> {
    let Some(list) = &spec.selection.list else { return Ok(JobList::None) };
    let bytes = read_bytes(list)?;
    let separator = if list.nul { 0 } else { b'\n' };
    let lines = bytes.split(|b| *b == separator).enumerate().filter(|(_, l)| !l.is_empty());
    if list.pairs {
        let pairs = lines.map(|(i, line)| pair(line).map_err(|e| at(list, i, &e)));
        return Ok(JobList::Pairs(pairs.collect::<Result<_, _>>()?));
    }
    let paths = lines.map(|(i, line)| tree_path(line).map_err(|e| at(list, i, &e)));
    Ok(JobList::Paths(paths.collect::<Result<_, _>>()?))
}

fn at(list: &ListFile, index: usize, what: &str) -> String {
    let shown = match &list.path.0[..] {
        b"-" => "standard input".to_owned(),
        path => dmover_job::quote::quoted(path),
    };
    format!("{shown}, line {}: {what}", index + 1)
}

fn read_bytes(list: &ListFile) -> Result<Vec<u8>, String> {
    let fail = |e: std::io::Error| format!("cannot read '{}': {e}", list.path.to_path().display());
    if list.path.0 == b"-" {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map_err(fail)?;
        return Ok(bytes);
    }
    std::fs::read(list.path.to_path()).map_err(fail)
}

/// A path below the source. Leading `./` and repeated or trailing slashes are ignored. `..` and absolute paths are errors,
/// because they would leave the source.
fn tree_path(line: &[u8]) -> Result<TreePath, String> {
    let shown = dmover_job::quote::quoted(line);
    if line.starts_with(b"/") {
        return Err(format!("{shown} is absolute; list paths below the source"));
    }
    let components: Vec<&[u8]> =
        line.split(|b| *b == b'/').filter(|c| !c.is_empty() && *c != b".").collect();
    TreePath::new(components.join(&b'/')).map_err(|e| format!("{shown} leaves the source: {e}"))
}

/// The fields of a line, separated by blanks.
pub(crate) fn fields(line: &[u8]) -> Vec<&[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|f| !f.is_empty()).collect()
}

/// `SOURCE DEST [RANGES]` with percent escapes; ranges are `START-END`, comma-separated, END excluded.
fn pair(line: &[u8]) -> Result<Pair, String> {
    let fields = fields(line);
    let (source, destination, ranges) = match fields[..] {
        [source, destination] => (source, destination, None),
        [source, destination, ranges] => (source, destination, Some(byte_ranges(ranges)?)),
        _ => {
            return Err("expected SOURCE DEST [RANGES], with blanks in names escaped as %20".into());
        }
    };
    let path = |field: &[u8]| PathBytes(percent_decode(field));
    let range = ranges.map(|ranges| RangeCopy { ranges, destination_offset: None });
    Ok((path(source), path(destination), range))
}

pub(crate) fn byte_ranges(field: &[u8]) -> Result<Vec<ByteRange>, String> {
    let text = String::from_utf8_lossy(field);
    text.split(',')
        .map(|range| {
            let ends = range.split_once('-').map(|(a, b)| (a.parse::<u64>(), b.parse::<u64>()));
            match ends {
                Some((Ok(start), Ok(end))) if start <= end => Ok(ByteRange { start, end }),
                _ => Err(format!("'{range}' is not a range START-END")),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_source_are_refused() {
        for bad in [&b"../x"[..], b"a/../../x", b"/etc/passwd", b"a\0b"] {
            assert!(tree_path(bad).is_err(), "{bad:?}");
        }
        assert_eq!(tree_path(b"./a//b/").unwrap().as_bytes(), b"a/b");
    }

    #[test]
    fn pairs_are_unescaped() {
        let (source, destination, range) = pair(b"a%20b /c%0Ad 0-10,20-30").unwrap();
        assert_eq!((source.0, destination.0), (b"a b".to_vec(), b"/c\nd".to_vec()));
        assert_eq!(range.unwrap().ranges.len(), 2);
        assert!(pair(b"only-one").is_err());
        assert!(pair(b"a b 9-1").is_err());
    }
}
