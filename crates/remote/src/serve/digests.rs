//! Digests of files, so that content need not be sent to be compared.
use dmover_local::content::Tools;
use dmover_local::digest;
use dmover_local::session::{Session, Temporaries};
use dmover_model::{
    ByteRange, Digest, EntryError, ErrorClass, JobId, Operation, PathBytes, Shape, Side,
};
use dmover_net::connection::{Broken, Channel};
use dmover_plan::temporary::TemporaryNames;
use dmover_wire::agent::{Answer, DigestPart, FileAt};
use dmover_wire::encode;

use super::progress::Hashing;
use super::tree::{OpenFile, Tree};
use crate::hashing::fits;
use crate::joined::send;

/// The buffer for content that is hashed.
const BUFFER_BYTES: usize = 1 << 20;

impl Tree {
    /// Hashes a range of a file, and tells the progress.
    pub(super) fn digests(
        &self,
        at: &FileAt,
        shapes: &[Shape],
        (start, range): (u64, ByteRange),
        channel: &Channel,
    ) -> Result<(), Broken> {
        let hashing = Hashing::new(channel);
        let made = self.file(at).and_then(|file| {
            if !fits(shapes, start, range) {
                return Err(no_range(file.shown.clone()));
            }
            self.check_version(at)?;
            let made = self.hash(&file, shapes, (start, range), &hashing)?;
            self.check_version(at)?;
            Ok(made)
        });
        hashing.finish()?;
        let last = made.map_or_else(DigestPart::Failed, DigestPart::Done);
        send(channel, &encode(&last))
    }

    fn hash(
        &self,
        OpenFile { content, shown }: &OpenFile,
        shapes: &[Shape],
        (start, range): (u64, ByteRange),
        hashing: &Hashing<'_>,
    ) -> Answer<Vec<Vec<Digest>>> {
        // Nothing is written, so these names are not used.
        let names = TemporaryNames::new(&JobId::of_hash("000000000000"), 0);
        let mut tools = Tools::new((BUFFER_BYTES, 0), false);
        let local = self.host.local(hashing);
        let names = Temporaries::new(&names, 0);
        let mut session = Session::new(local, hashing, &mut tools, names);
        let shown = &|| shown.clone();
        let mut all = Vec::with_capacity(shapes.len());
        let mut rest = shapes;
        // Two at a time, which is what jobs ask for: the content is read once for both.
        while let [first, second, more @ ..] = rest {
            all.extend(digest::digests(
                &mut session,
                content,
                ([*first, *second], start),
                range,
                shown,
            )?);
            rest = more;
        }
        if let [last] = rest {
            all.extend(digest::digests(&mut session, content, ([*last], start), range, shown)?);
        }
        Ok(all)
    }
}

/// The error of a request that cannot be answered for any file.
pub(super) fn no_range(path: PathBytes) -> EntryError {
    let words = "no digests can be made of this range";
    let class = ErrorClass::Unsupported;
    EntryError::plain(Side::Source, Operation::Read, class, path, words)
}
