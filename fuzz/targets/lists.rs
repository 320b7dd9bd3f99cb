//! Whatever a line of a check list contains: it is read without a fault, and what is read well is written and read again as
//! it was.
#![no_main]
use dmover_digest::lines::{Style, parse, write};
use dmover_model::HashType;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, line)) = bytes.split_first() else { return };
    let nul = choice & 1 == 1;
    let asked = HashType::ALL.get(usize::from(choice >> 1)).copied();
    let Ok(Some(entry)) = parse(line, asked, nul) else { return };
    // What mutil leaves to the command line is written in another form.
    if entry.form.mutil {
        return;
    }
    let style = Style { nul, ..Style::default() };
    let mut written = Vec::new();
    write(&mut written, (&entry).into(), style);
    assert!(written.pop().is_some(), "a line has an end");
    let again = parse(&written, Some(entry.hash), nul).expect("what was written can be read");
    let again = again.expect("it is no comment");
    assert_eq!((again.name, again.digests), (entry.name, entry.digests));
    assert_eq!((again.form, again.hash), (entry.form, entry.hash));
});
