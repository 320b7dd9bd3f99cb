//! Answers that the standards and the authors' own test vectors give.
use dmover_digest::{Fold, Hasher, Pieces};
use dmover_model::HashType::{
    Blake3, Crc24Rfc2440, Crc32, Crc32Rfc1510, Crc32c, Md5, Sha1, Sha224, Sha256, Sha384, Sha512,
    Xxh3,
};
use dmover_model::{Digest, HashType, Shape};

/// Input and digest, with where they come from.
const ANSWERS: &[(HashType, &str, &str)] = &[
    // RFC 1321, A.5
    (Md5, "", "d41d8cd98f00b204e9800998ecf8427e"),
    (Md5, "abc", "900150983cd24fb0d6963f7d28e17f72"),
    (Md5, "message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
    // FIPS 180-4 examples
    (Sha1, "abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
    (Sha1, "", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
    (Sha224, "abc", "23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7"),
    (Sha256, "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    (
        Sha256,
        "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
    ),
    (
        Sha384,
        "abc",
        "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7",
    ),
    (
        Sha512,
        "abc",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
    ),
    // The BLAKE3 authors' vectors: the empty input; "abc" from their own tool
    (Blake3, "", "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
    (Blake3, "abc", "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
    // The check values of the catalogue of parametrised CRC algorithms
    (Crc32, "123456789", "cbf43926"),
    (Crc32c, "123456789", "e3069283"),
    (Crc24Rfc2440, "123456789", "21cf02"),
    // RFC 3961, A.5, which gives the octets of the same check in the other order
    (Crc32Rfc1510, "foo", "7332bc33"),
    (Crc32Rfc1510, "test0123456789", "b83e88d6"),
    (Crc32Rfc1510, "MASSACHVSETTS INSTITVTE OF TECHNOLOGY", "e34180f7"),
    // RFC 3720, B.4: 32 bytes of zeroes (below), and the author's own for XXH3
    (Xxh3, "", "99aa06d3014798d86001c324468d497f"),
];

#[test]
fn every_function_gives_the_answers_of_its_standard() {
    for (hash, input, expected) in ANSWERS {
        assert_eq!(
            Hasher::digest(*hash, input.as_bytes()).to_string(),
            *expected,
            "{hash} {input}"
        );
    }
    assert_eq!(Hasher::digest(Crc32c, &[0; 32]).to_string(), "8a9136aa");
    for hash in HashType::ALL {
        assert!(ANSWERS.iter().any(|(known, ..)| known == hash), "{hash} has no known answer");
        assert_eq!(Hasher::digest(*hash, b"x").as_bytes().len(), hash.digest_bytes());
    }
}

/// The first vectors of the BLAKE3 authors that have more than one chunk: byte n is n modulo 251.
#[test]
fn blake3_of_several_chunks_is_as_published() {
    let input = |length: usize| (0..length).map(|n| (n % 251) as u8).collect::<Vec<_>>();
    for (length, expected) in [
        (1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"),
        (1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"),
        (2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a"),
        (31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47"),
    ] {
        let shape = Shape::plain(Blake3, length as u64, 1024);
        assert_eq!(in_parts(&shape, &input(length), 1).to_string(), expected, "{length}");
    }
}

/// Hashes `content` in stretches of `pieces` pieces each, as movers would, in reverse order.
fn in_parts(shape: &Shape, content: &[u8], pieces: u64) -> Digest {
    let mut parts = Vec::new();
    let mut first = 0;
    while first < shape.pieces() {
        let last = (first + pieces).min(shape.pieces()) - 1;
        let (start, end) = (shape.bounds(first).0, shape.bounds(last).1);
        parts.push((start, end));
        first = last + 1;
    }
    let mut made: Vec<(u64, Vec<Digest>)> = Vec::new();
    for (start, end) in parts.into_iter().rev() {
        let mut hasher = Pieces::new(*shape, start);
        // In odd steps, so that no border of a read is one of a piece.
        content[start as usize..end as usize].chunks(777).for_each(|block| hasher.update(block));
        made.push((start, hasher.finish()));
    }
    made.sort_by_key(|(start, _)| *start);
    let all: Vec<Digest> = made.into_iter().flat_map(|(_, digests)| digests).collect();
    Fold::of(shape, &all).expect("every piece was made")
}

#[test]
fn the_digest_does_not_depend_on_how_a_file_was_split() {
    use rand::{Rng, SeedableRng};
    let seed = 20_261_122;
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    for round in 0..300 {
        let hash = HashType::ALL[random.random_range(0..HashType::ALL.len())];
        let length = random.random_range(0..40_000usize) * random.random_range(0..2usize)
            + [0, 1, 1023, 1024, 1025, 4096, 8192][random.random_range(0..7)];
        let content: Vec<u8> = (0..length).map(|_| random.random()).collect();
        let leaf = random.random_range(1..5000);
        let whole = Hasher::digest(hash, &content);
        let tree = reference_tree(hash, &content, leaf);
        for _ in 0..3 {
            let piece = random.random_range(1..30_000);
            let pieces = random.random_range(1..5);
            let what = format!(
                "seed {seed} round {round}: {hash}, {length} bytes, {piece} a piece, leaf {leaf}"
            );
            let plain = Shape::plain(hash, length as u64, piece);
            assert_eq!(in_parts(&plain, &content, pieces), whole, "{what}");
            let shape = Shape::tree(hash, length as u64, leaf, piece);
            let expected = if hash.is_parallel() { whole } else { tree };
            assert_eq!(in_parts(&shape, &content, pieces), expected, "{what}, as a tree");
        }
    }
}

/// The tree as its definition says, without pieces and stacks.
fn reference_tree(hash: HashType, content: &[u8], leaf: u64) -> Digest {
    fn node(hash: HashType, leaves: &[Digest]) -> Digest {
        let [only] = leaves else {
            let left = 1 << (usize::BITS - 1 - (leaves.len() - 1).leading_zeros());
            let (one, other) = leaves.split_at(left);
            let both = [node(hash, one).as_bytes(), node(hash, other).as_bytes()].concat();
            return Hasher::digest(hash, &both);
        };
        *only
    }
    if content.is_empty() {
        return Hasher::digest(hash, content);
    }
    let leaves: Vec<_> =
        content.chunks(leaf as usize).map(|leaf| Hasher::digest(hash, leaf)).collect();
    node(hash, &leaves)
}

#[test]
fn a_tree_of_the_wrong_number_of_pieces_has_no_digest() {
    let shape = Shape::plain(Blake3, 10_000, 1024);
    let piece = Hasher::digest(Blake3, b"");
    assert_eq!(Fold::of(&shape, &[piece; 9]), None);
    assert!(Fold::of(&shape, &[piece; 10]).is_some());
}
