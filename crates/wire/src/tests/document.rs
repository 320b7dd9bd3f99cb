//! `docs/wire.md` shows what the types are.
use dmover_observe::Counter;

use super::arbitrary::{Form, Forms, learn};
use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/wire.md");

/// Learns the forms of a message and of all that is in it.
fn teach<T: DeserializeOwned>(forms: &mut Forms) {
    for seed in 0..20_000u64 {
        let _: T = learn(seed.wrapping_mul(0x5851_f42d_4c95_7f2d), forms);
    }
}

/// The row of the document about a type, without its name.
fn row(name: &str) -> &'static str {
    let begin = format!("| `{name}` | ");
    let mut rows = DOCUMENT.lines().filter_map(|line| line.strip_prefix(&begin));
    let found = rows.next().unwrap_or_else(|| panic!("docs/wire.md has no row for {name}"));
    assert_eq!(rows.next(), None, "docs/wire.md has two rows for {name}");
    found
}

/// Words in backticks: fields, and variants with the number before them.
fn words(row: &'static str) -> Vec<(Option<usize>, &'static str)> {
    let parts: Vec<&str> = row.split('`').collect();
    let pairs = parts.chunks_exact(2);
    let number = |before: &str| before.split_whitespace().next_back()?.parse().ok();
    pairs.map(|pair| (number(pair[0]), pair[1])).collect()
}

/// The same as a document must have them for a form.
fn expected(form: &Form) -> Vec<(Option<usize>, &'static str)> {
    match form {
        Form::Fields(fields) => fields.iter().map(|field| (None, *field)).collect(),
        Form::Variants(variants, fields) => {
            let of = |variant| fields.get(variant).copied().unwrap_or_default();
            let all = variants.iter().enumerate().map(|(number, variant)| {
                let fields = of(*variant).iter().map(|field| (None, *field));
                std::iter::once((Some(number), *variant)).chain(fields)
            });
            all.flatten().collect()
        }
    }
}

#[test]
fn the_document_has_every_field_and_variant_in_order() {
    let mut forms = Forms::new();
    for_each_message!(teach(&mut forms));
    assert!(forms.len() > 90, "{} types", forms.len());
    for (name, form) in &forms {
        // A shape is checked when it is read.
        let name = if *name == "RawShape" { "Shape" } else { *name };
        assert_eq!(words(row(name)), expected(form), "{name}");
    }
    let envelopes = [
        ("Sealed", &["mover", "turn", "number", "code", "body"][..]),
        ("Signed", &["by", "signature", "body"]),
    ];
    for (name, fields) in envelopes {
        // The row has a word more, as an example.
        let words = words(row(name)).into_iter().filter(|(_, word)| *word != "U…");
        assert_eq!(words.map(|(_, word)| word).collect::<Vec<_>>(), fields, "{name}");
    }
}

#[test]
fn counters_have_the_numbers_of_the_document() {
    let known: Vec<_> = Counter::ALL.iter().map(|c| c.name()).enumerate().collect();
    let shown: Vec<_> =
        words(row("Counter")).into_iter().map(|(number, name)| (number.unwrap(), name)).collect();
    assert_eq!(shown, known);
}

/// A number with commas between groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().collect();
    String::from_utf8(groups.join(&b',')).unwrap()
}

#[test]
fn the_limits_are_those_of_the_document() {
    for text in [
        format!("This program speaks protocol {PROTOCOL} and protocol {OLDEST}:"),
        format!("| value, decompressed | {} MiB,", SIZE_MAX >> 20),
        format!("| {} Mi | refused. A list then has", NUMBERS_MAX >> 20),
        format!("of a file of at most {} bytes", grouped(SHORT_MAX)),
        format!("has at most {} pieces", grouped(PIECES_MAX)),
        format!("ping `{:02x} {:02x}`", PING[0], PING[1]),
    ] {
        assert!(DOCUMENT.contains(&text), "{text}");
    }
}

/// The type, the bytes and the value of each example.
fn examples() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let lines = DOCUMENT.lines().skip_while(|line| *line != "## Examples");
    let lines = lines.filter_map(|line| line.strip_prefix("    "));
    lines.map(|line| {
        let mut words = line.splitn(3, ' ');
        let [name, hex, shown] = [(); 3].map(|()| words.next().unwrap());
        (name, hex, shown)
    })
}

/// Reads an example and writes it again.
fn exemplify<T: Serialize + DeserializeOwned + Debug>(hex: &str, shown: &str) {
    let value: T = decode(&bytes_of(hex)).unwrap_or_else(|error| panic!("{shown}: {error}"));
    assert_eq!(format!("{value:?}"), shown);
    assert_eq!(encode(&value), bytes_of(hex), "{shown}");
}

#[test]
fn the_examples_of_the_document_are_read_and_written() {
    let mut seen = std::collections::BTreeSet::new();
    for (name, hex, shown) in examples() {
        seen.insert(name);
        let bytes = bytes_of(hex);
        match name {
            "Call" => exemplify::<Call>(hex, shown),
            "Reply" => exemplify::<Reply>(hex, shown),
            "TaskMessage" => exemplify::<TaskMessage>(hex, shown),
            "OutcomeMessage" => exemplify::<OutcomeMessage>(hex, shown),
            "LogMessage" => exemplify::<LogMessage>(hex, shown),
            "PoolMessage" => exemplify::<PoolMessage>(hex, shown),
            "Request" => exemplify::<Request>(hex, shown),
            "ContentPart" => exemplify::<ContentPart>(hex, shown),
            "Control" => exemplify::<Broadcast>(hex, shown),
            "Sealed" => {
                let Some(Envelope::Sealed(sealed)) = open(&bytes) else { panic!("{shown}") };
                assert_eq!(format!("{sealed:?}"), shown);
                assert_eq!(sealed.to_bytes(), bytes);
            }
            "Signed" => {
                let Some(Envelope::Signed(signed)) = open(&bytes) else { panic!("{shown}") };
                assert_eq!(format!("{signed:?}"), shown);
                assert_eq!(signed.to_bytes(), bytes);
            }
            "bundle" => {
                let messages = unbundle(&bytes).unwrap();
                assert_eq!(format!("{messages:?}"), shown);
                let messages: Vec<_> = messages.into_iter().map(Bytes::copy_from_slice).collect();
                assert_eq!(bundle(messages.iter()), bytes);
            }
            _ => panic!("{name} is no message"),
        }
    }
    assert_eq!(seen.len(), 12, "{seen:?}");
}
