use super::*;
use proptest::prelude::*;

fn identity() -> Identity {
    Identity::parse(&Identity::make(Duration::from_hours(48)).unwrap(), "it").unwrap()
}

#[test]
fn a_certificate_is_valid_within_its_time_only() {
    let own = identity();
    assert_eq!(own.why_invalid(), None);
    let now = UnixTime::now().as_secs();
    let at = |seconds: u64| {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        is_valid(&own.certificate, time).map_err(|error| why_invalid(&error))
    };
    assert_eq!(at(now + 47 * 3600), Ok(()));
    let why = at(now + 49 * 3600).unwrap_err();
    assert!(
        why.starts_with("it has expired at 2") && why.contains("the clock here shows 2"),
        "{why}"
    );
    // The clock of the other side may be a day behind.
    assert_eq!(at(now - 23 * 3600), Ok(()));
    let why = at(now - 25 * 3600).unwrap_err();
    assert!(why.starts_with("it is valid from 2"), "{why}");
}

#[test]
fn a_certificate_that_was_changed_is_not_valid() {
    let own = identity();
    let mut bytes = own.certificate.to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert!(is_valid(&bytes.into(), UnixTime::now()).is_err());
}

#[test]
fn an_identity_needs_a_key_and_a_certificate() {
    let text = Identity::make(Duration::from_hours(1)).unwrap();
    let (key, certificate) = text.split_once("-----BEGIN CERT").unwrap();
    let refused = |text: &str| Identity::parse(text, "the file").unwrap_err().to_string();
    assert!(refused(key).contains("the file has no certificate"));
    assert!(refused(&format!("-----BEGIN CERT{certificate}")).contains("the file has no key"));
    assert!(refused("").contains("no certificate"));
}

#[test]
fn fingerprints_are_read_as_openssl_prints_them_too() {
    let own = identity().fingerprint();
    let plain = own.to_string();
    let digits = plain.strip_prefix("sha256:").unwrap();
    let pairs: Vec<_> = digits.as_bytes().chunks(2).map(String::from_utf8_lossy).collect();
    let as_openssl = format!("SHA256:{}", pairs.join(":").to_uppercase());
    assert_eq!(as_openssl.parse(), Ok(own));
    for also in [
        format!("sha256 Fingerprint={}", pairs.join(":").to_uppercase()),
        pairs.join(":"),
        digits.to_owned(),
    ] {
        assert_eq!(also.parse(), Ok(own), "{also}");
    }
    for wrong in ["", "sha256:", "sha256:ab", "ab", &plain[..70], &format!("{plain}00")] {
        assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
    }
    assert!(plain.replace("sha256", "sha1").parse::<Fingerprint>().is_err());
}

#[test]
fn known_agents_have_a_name_and_perhaps_a_port() {
    let [one, two] = [identity(), identity()].map(|own| own.fingerprint());
    let text = KnownAgents::default().with("DTN7.example", 2812, one);
    assert_eq!(text, format!("dtn7.example {one}\n"));
    let known = KnownAgents::parse(&text, "it").unwrap();
    let text = known.with("fe80::1", 7000, two);
    let known = KnownAgents::parse(&format!("# a comment\n\n{text}"), "it").unwrap();
    assert_eq!(known.of("dtn7.Example", 2812), [one]);
    assert_eq!(known.of("fe80::1", 7000), [two]);
    assert_eq!(known.of("dtn7.example", 7000), []);
    // A new certificate takes the place of the old one.
    let known = KnownAgents::parse(&known.with("dtn7.example", 2812, two), "it").unwrap();
    assert_eq!(known.of("dtn7.example", 2812), [two]);
    for (wrong, why) in
        [("a b c", "two words"), ("dtn7 sha256:1", "no fingerprint"), ("dtn7", "two words")]
    {
        let error = KnownAgents::parse(&format!("\n{wrong}"), "the list").unwrap_err().to_string();
        assert!(error.starts_with("the list, line 2: ") && error.contains(why), "{error}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_list_or_refused(text in "\\PC{0,80}") {
        let _ = KnownAgents::parse(&text, "it");
        let _ = text.parse::<Fingerprint>();
        let _ = Identity::parse(&text, "it");
    }
}
