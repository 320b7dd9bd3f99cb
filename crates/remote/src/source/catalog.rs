//! What the catalog of a pass asks of a tree at another host.
use dmover_model::{EntryError, ListedName, Operation, Revisit, TreePath};
use dmover_net::frame::PAYLOAD_MAX;
use dmover_tree::{CatalogPart, DescribedEntry, Looked, LookedAcl, RemoteCatalog};
use dmover_wire::agent::{CATALOG_MAX, Request};
use serde::de::DeserializeOwned;
use std::ops::ControlFlow;

use super::RemoteSource;
use super::asking::{About, Asked};
use super::hosts::Choice;

/// About how many bytes an element of a request takes, besides its path.
const ELEMENT_BYTES: usize = 64;

/// Calls `each` with as much as one request may ask for, until all was asked for.
fn in_requests<T>(
    mut asked: &[T],
    path: impl Fn(&T) -> &TreePath,
    mut each: impl FnMut(&[T]) -> Result<(), EntryError>,
) -> Result<(), EntryError> {
    while !asked.is_empty() {
        let mut bytes = 0;
        let fits = asked.iter().take(CATALOG_MAX).take_while(|element| {
            bytes += path(element).as_bytes().len() + ELEMENT_BYTES;
            bytes <= PAYLOAD_MAX
        });
        // One that is too long alone is refused when it is sent.
        let (now, later) = asked.split_at(fits.count().max(1));
        each(now)?;
        asked = later;
    }
    Ok(())
}

impl RemoteSource {
    /// Asks about directories, and again about those that are not complete if a host was lost.
    fn ask_about_directories<T, E: DeserializeOwned>(
        &self,
        directories: &[T],
        request: impl Fn(&[T]) -> Request,
        each: &mut dyn FnMut(CatalogPart<E>) -> bool,
    ) -> Result<(), EntryError> {
        let asking = &self.shared.asking;
        let root = TreePath::root();
        let about: About<'_> = (Operation::ReadDirectory, &root, b"");
        let mut told = Told { complete: 0, is_open: false };
        asking.despite_losses(|| {
            let left = directories.get(told.complete..).unwrap_or_default();
            told.is_open = false;
            let asked = asking.send(&request(left), Choice::First, about)?;
            loop {
                let parts: Vec<CatalogPart<E>> = asking.receive(&asked, about)?;
                let is_last = parts.is_empty();
                for part in parts {
                    if told.take(&part, directories.len()).is_break() {
                        return Err(self.violation(&asked));
                    }
                    if !each(part) {
                        return Ok(());
                    }
                }
                if is_last && (told.is_open || told.complete != directories.len()) {
                    return Err(self.violation(&asked));
                }
                if is_last {
                    return Ok(());
                }
            }
        })
    }

    /// Asks about entries, with an answer for each.
    fn ask_about_entries<T: DeserializeOwned>(
        &self,
        paths: &[TreePath],
        request: impl Fn(Vec<TreePath>) -> Request,
    ) -> Result<Vec<T>, EntryError> {
        let (asking, root) = (&self.shared.asking, TreePath::root());
        let about: About<'_> = (Operation::Stat, &root, b"");
        let mut all = Vec::with_capacity(paths.len());
        in_requests(
            paths,
            |path| path,
            |now| {
                let request = request(now.to_vec());
                let found: Vec<T> = asking.despite_losses(|| {
                    let asked = asking.send(&request, Choice::First, about)?;
                    let found: Vec<T> = asking.receive(&asked, about)?;
                    if found.len() == now.len() { Ok(found) } else { Err(self.violation(&asked)) }
                })?;
                all.extend(found);
                Ok(())
            },
        )?;
        Ok(all)
    }

    fn violation(&self, asked: &Asked) -> EntryError {
        let root = TreePath::root();
        let about: About<'_> = (Operation::ReadDirectory, &root, b"");
        self.shared.asking.violation(about, asked, "an answer for the catalog cannot be right")
    }
}

/// How far the answer has come.
struct Told {
    /// Directories that are complete.
    complete: usize,
    /// Another one has begun.
    is_open: bool,
}

impl Told {
    /// Takes a part of the answer. Breaks if it does not fit to what came before.
    fn take<E>(&mut self, part: &CatalogPart<E>, asked: usize) -> ControlFlow<()> {
        let fits = match part {
            CatalogPart::Directory(..) => !self.is_open && self.complete < asked,
            CatalogPart::Entries(_) | CatalogPart::End => self.is_open,
            CatalogPart::Failed(_) => self.complete < asked,
        };
        match part {
            CatalogPart::Directory(..) => self.is_open = true,
            CatalogPart::Entries(_) => {}
            CatalogPart::End | CatalogPart::Failed(_) => {
                self.is_open = false;
                self.complete += 1;
            }
        }
        if fits { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

impl RemoteCatalog for RemoteSource {
    fn objects(&self, paths: &[TreePath]) -> Result<Vec<Looked>, EntryError> {
        self.ask_about_entries(paths, Request::Objects)
    }

    fn acls(&self, paths: &[TreePath]) -> Result<Vec<LookedAcl>, EntryError> {
        self.ask_about_entries(paths, Request::Acls)
    }

    fn revisit(
        &self,
        directories: &[Revisit],
        each: &mut dyn FnMut(CatalogPart<ListedName>) -> bool,
    ) -> Result<(), EntryError> {
        in_requests(
            directories,
            |directory| &directory.path,
            |now| self.ask_about_directories(now, |left| Request::Revisit(left.to_vec()), each),
        )
    }

    fn describe(
        &self,
        directories: &[TreePath],
        each: &mut dyn FnMut(CatalogPart<DescribedEntry>) -> bool,
    ) -> Result<(), EntryError> {
        in_requests(
            directories,
            |path| path,
            |now| self.ask_about_directories(now, |left| Request::Describe(left.to_vec()), each),
        )
    }
}
