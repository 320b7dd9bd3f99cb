//! Deletes that may be unintended: habits of other tools, and destinations with other content.
use dmover_local::error::CallFailed;
use dmover_local::mounts::MountTable;
use dmover_local::root::Root;
use dmover_local::root_content::{Top, TopDirectory};
use dmover_model::{
    Confirmed, DeletePolicy, Fatal, Identity, Name, PathBytes, Selection, TreePath,
};
use dmover_plan::filter::Filter;
use dmover_plan::temporary::is_temporary;
use std::os::unix::ffi::OsStrExt;

/// The names in the top directory of the destination before the job.
struct TopNames {
    /// Whether it has any entry that is not dmover's own.
    any: bool,
    /// Names that the source does not have and no rule excludes, if deletes are asked about.
    extra: Vec<Name>,
}

/// Refuses deletes that look like a habit of other tools, or like a wrong destination. Returns whether the destination
/// has content.
pub(crate) fn refuse_unmeant(
    selection: &Selection,
    root: &Root,
    (mounts, state): (&MountTable, Option<Identity>),
    delete: Option<&DeletePolicy>,
    (is_new, asks_for_copy): (bool, bool),
) -> Result<bool, Fatal> {
    let Some(side) = &root.destination else { return Ok(false) };
    let destination = match side.open_top(mounts) {
        Top::Open(destination) => destination,
        // The pass makes it.
        Top::Missing => return Ok(false),
        // The pass reports why it cannot be opened. If it can be then, it may have anything in it.
        Top::Closed => return Ok(true),
    };
    let asks = delete.is_some_and(|delete| delete.confirmed == Confirmed::None);
    let copy = asks_for_copy.then(|| source_name(root)).flatten();
    let filter =
        Filter::new(selection).map_err(|e| Fatal::refused(e.to_string(), "correct the rule"))?;
    // Deletes that need no answer are not looked for.
    let there = if asks && is_new { root.source.names_there() } else { None };
    let has = |name: &Name| match &there {
        Some(names) => Ok(names.contains(name.as_bytes())),
        None => root.source.has(name),
    };
    let is_extra = |name: &Name| -> Result<bool, CallFailed> {
        let Some(found) = destination.find(name)? else { return Ok(false) };
        Ok(filter.admits(name.as_bytes(), &found) && !has(name)?)
    };
    let is_own = |name: &Name| {
        let identity = destination.identity(name);
        is_temporary(name.as_bytes())
            // What cannot be looked into now may be removed later, so it has to be asked about.
            || destination.has_trash(name)
            || (state.is_some() && identity == state)
    };
    let shown = side.display().to_path();
    if let Some(copy) = copy.filter(|name| is_extra(name) == Ok(true) && !is_own(name)) {
        let inside = side.display().join(&TreePath::root().join(copy.as_bytes()));
        let message = format!(
            "--delete would remove '{}', which has the name of SOURCE, and everything else that \
            only '{}' contains",
            inside.to_path().display(),
            shown.display(),
        );
        let hint = format!(
            "sync makes DEST match SOURCE, not an entry in DEST. To update the copy: dmover sync \
            --delete '{}' '{}'. To make '{}' match SOURCE: add --yes",
            root.source.display().to_path().display(),
            inside.to_path().display(),
            shown.display(),
        );
        return Err(Fatal::Unmeant { message, hint });
    }
    if !is_new {
        return Ok(true);
    }
    let top = read_top(&destination, &|name| Ok(asks && is_extra(name)?), &is_own);
    if let Some(first) = top.extra.first().filter(|_| asks) {
        let example = side.display().join(&TreePath::root().join(first.as_bytes()));
        let (count, what) =
            (top.extra.len(), if top.extra.len() == 1 { "entry" } else { "entries" });
        let message = format!(
            "'{}' has content that this job did not copy: --delete would remove {count} {what} at \
            its top level, such as '{}', and everything below",
            shown.display(),
            example.to_path().display(),
        );
        let look = "list the deletes with --dry-run --itemize, then confirm them with --yes";
        let hint = match source_name(root) {
            Some(name) => format!(
                "{look}. To copy SOURCE into it: dmover sync '{}' '{}'",
                root.source.display().to_path().display(),
                side.display().join(&TreePath::root().join(name.as_bytes())).to_path().display(),
            ),
            None => look.to_owned(),
        };
        return Err(Fatal::Unmeant { message, hint });
    }
    Ok(top.any)
}

fn read_top(
    destination: &TopDirectory<'_>,
    is_extra: &dyn Fn(&Name) -> Result<bool, CallFailed>,
    is_own: &dyn Fn(&Name) -> bool,
) -> TopNames {
    let mut top = TopNames { any: false, extra: Vec::new() };
    let read = destination.each_name(|name| {
        let extra = is_extra(&name)?;
        if (extra || !top.any) && !is_own(&name) {
            top.any = true;
            top.extra.extend(Some(name).filter(|_| extra));
        }
        Ok(())
    });
    if read.is_err() {
        // An unreadable entry is not known to be dmover's own.
        top.any = true;
    }
    top.extra.sort_unstable();
    top
}

/// The name of the SOURCE directory; `None` after "..", which may lead through a symbolic link.
fn source_name(root: &Root) -> Option<Name> {
    let PathBytes(bytes) = root.source.display();
    let mut parts = bytes.split(|byte| *byte == b'/');
    if let Some(last) = parts.rfind(|part| !matches!(*part, b"" | b".")) {
        return Name::new(last).ok().filter(|name| name.as_bytes() != b"..");
    }
    let here = std::env::current_dir().ok().filter(|_| !bytes.starts_with(b"/"))?;
    Name::new(here.file_name()?.as_bytes()).ok()
}
