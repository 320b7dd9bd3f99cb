//! The digest depends on the content, the function and the leaf, never on splits and movers.
use super::{Bench, has};
use dmover_testkit::skip;
use rand::{Rng, SeedableRng};

/// Trees as `docs/digests.md` defines them, in another language.
const REFERENCE: &str = r#"
import hashlib, sys, zlib
def digest(hash, data):
    if hash == "crc32":
        return zlib.crc32(data).to_bytes(4, "big")
    return hashlib.new(hash, data).digest()
def tree(hash, leaves):
    if len(leaves) == 1:
        return leaves[0]
    left = 1
    while left * 2 < len(leaves):
        left *= 2
    return digest(hash, tree(hash, leaves[:left]) + tree(hash, leaves[left:]))
hash, leaf, start, end, name = sys.argv[1:]
data = open(name, "rb").read()[int(start):int(end)]
leaf = int(leaf) or len(data) or 1
if hash == "crc32":
    leaf = len(data) or 1
leaves = [digest(hash, data[at:at + leaf]) for at in range(0, len(data), leaf)]
print(tree(hash, leaves or [digest(hash, b"")]).hex())
"#;

/// The full count runs as the lane `digests`.
#[test]
fn random_shapes_have_the_digest_of_the_reference() {
    let seed = 4;
    let rounds = 60;
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let bench = Bench::new();
    bench.write("reference.py", REFERENCE);
    if !has("b3sum") {
        skip!("b3sum is missing");
    }
    for round in 0..rounds {
        let hash =
            ["blake3", "md5", "sha1", "sha256", "sha512", "crc32"][random.random_range(0..6)];
        let size: u64 = match random.random_range(0..4) {
            0 => random.random_range(0..3),
            1 => 1 << random.random_range(8..22),
            _ => random.random_range(0..4_000_000),
        };
        let content: Vec<u8> = (0..size).map(|_| random.random()).collect();
        bench.write("f", content);
        let leaf = random.random_range(0..2u64) * random.random_range(1..300_000u64);
        let start = random.random_range(0..3u64) / 2 * random.random_range(0..size + 1);
        let length = random.random_range(1..size + 2);
        let ranged = random.random_range(0..2) == 1;
        let (start, end) = if ranged { (start, (start + length).min(size)) } else { (0, size) };
        let expected = if hash == "blake3" {
            bench.sh(&format!(
                "tail -c +{} f | head -c {} | b3sum",
                start + 1,
                end.saturating_sub(start)
            ))
        } else {
            bench.sh(&format!("python3 reference.py {hash} {leaf} {start} {end} f"))
        };
        for _ in 0..3 {
            let split = random.random_range(0..2_000_000u64) * random.random_range(0..2);
            let threads = random.random_range(1..8);
            let leaves = if leaf > 0 { format!("--hash-leaf-size {leaf}") } else { String::new() };
            let range =
                if ranged { format!("--offset {start} --length {length}") } else { String::new() };
            let line =
                format!("sum -a {hash} -j {threads} --split-size {split} {leaves} {range} f");
            let out = bench.out(&line);
            let digest = out.trim_end().rsplit('#').next().unwrap().split(' ').next().unwrap();
            assert_eq!(
                digest,
                expected.split_whitespace().next().unwrap(),
                "seed {seed} round {round}: {line}, {size} bytes"
            );
        }
    }
}
