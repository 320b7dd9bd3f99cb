//! Inode flags, project ids and times: what has to be set last.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use rustix::fs::{FileType, IFlags, Timespec, Timestamps};

use super::builder::{Builder, Place};
use super::features::FLAGS;

const SET_PROJECT: &str = include_str!("../../python/set_project.py");

/// Gives entries a project id; directories hand it on.
pub(super) fn set_project<P: AsRef<Path>>(project: u32, paths: &[P]) -> Result<()> {
    let mut child = crate::python::python()
        .args(["-I", "-", &project.to_string()])
        .args(paths.iter().map(AsRef::as_ref))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start python3")?;
    child.stdin.take().context("no stdin")?.write_all(SET_PROJECT.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("set project {project}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Files with a project of their own, and directories that hand theirs on.
pub fn projects(builder: &mut Builder, place: &Place) -> Result<()> {
    if !builder.features.project {
        builder.skip("project", "no project ids here, or not for this user");
        return Ok(());
    }
    builder.file(place, "file", 10)?;
    let directory = builder.directory(place, "directory")?;
    builder.file(&directory, "before", 10)?;
    builder.case("project-none-inside", directory.join("before"));
    let here = |name: &str| place.through_proc(OsStr::new(name));
    set_project(4242, &[here("file"), here("directory")])?;
    builder.case("project-file", place.join("file"));
    builder.case("project-directory", directory.path.clone());
    builder.file(&directory, "inherited", 10)?;
    builder.case("project-inherited", directory.join("inherited"));
    let below = builder.directory(&directory, "below")?;
    builder.file(&below, "inside", 10)?;
    builder.case("project-inherited", below.path);
    builder.file(place, "large", 10)?;
    set_project(4_000_000_000, &[here("large")])?;
    builder.case("project-large", place.join("large"));
    Ok(())
}

/// Every inode flag that stays here, on a file and on a directory with content.
pub fn flags(builder: &mut Builder, place: &Place) -> Result<()> {
    for (name, flag) in FLAGS {
        let case = format!("flag-{name}");
        if !builder.features.flags.contains(flag) {
            builder.skip(&case, "the flag does not stay");
            continue;
        }
        let directory = builder.directory(place, format!("{name}-directory"))?;
        builder.file(&directory, "inside", 5000)?;
        let below = builder.directory(&directory, "below")?;
        builder.file(&below, "inside", 10)?;
        builder.final_flags(directory.path.clone(), flag);
        builder.case(&case, directory.path);
        // Only for directories.
        if flag == IFlags::DIRSYNC {
            continue;
        }
        let file = format!("{name}-file");
        builder.file_with(place, &file, |builder, opened| {
            // NOCOW takes effect only while a file is empty.
            if flag == IFlags::NOCOW {
                rustix::fs::ioctl_setflags(opened, rustix::fs::ioctl_getflags(opened)? | flag)?;
            }
            builder.fill(opened, 0, 5000)
        })?;
        if flag != IFlags::NOCOW {
            builder.final_flags(place.join(&file), flag);
        }
        builder.case(&case, place.join(&file));
    }
    combined(builder, place)
}

/// Flags together with other states that must be set before them.
fn combined(builder: &mut Builder, place: &Place) -> Result<()> {
    if !builder.features.flags.contains(IFlags::IMMUTABLE) {
        return Ok(());
    }
    let directory = builder.directory(place, "combined")?;
    builder.file(&directory, "read-only", 100)?;
    directory.mode("read-only", 0o400)?;
    builder.final_flags(directory.join("read-only"), IFlags::IMMUTABLE);
    if builder.features.owners {
        builder.file(&directory, "setuid", 100)?;
        directory.owner("setuid", (12345, 54321))?;
        directory.mode("setuid", 0o4755)?;
        builder.final_flags(directory.join("setuid"), IFlags::IMMUTABLE);
    }
    if builder.features.hardlinks {
        builder.file(&directory, "linked", 100)?;
        builder.link((&directory, OsStr::new("linked")), place, "linked-outside")?;
        builder.final_flags(directory.join("linked"), IFlags::IMMUTABLE);
        builder.case("flag-hardlink", directory.join("linked"));
    }
    builder.final_mode(&directory, 0o555);
    builder.final_flags(directory.path.clone(), IFlags::IMMUTABLE);
    builder.case("flag-combined", directory.path);
    Ok(())
}

/// Seconds and nanoseconds at the edges of what programs and disks store.
const TIMES: [(&str, i64, i64); 14] = [
    ("epoch", 0, 0),
    ("epoch-plus-1ns", 0, 1),
    ("epoch-minus-1ns", -1, 999_999_999),
    ("epoch-minus-1s", -1, 0),
    ("1960", -315_619_200, 5),
    ("32-bit-first", -(1 << 31), 0),
    ("32-bit-last", (1 << 31) - 1, 999_999_999),
    ("2038", 1 << 31, 1),
    ("2106", 1 << 32, 100),
    ("2200", 7_258_118_400, 123_456_789),
    ("1ns", 1_600_000_000, 1),
    ("999999999ns", 1_600_000_000, 999_999_999),
    ("1us", 1_600_000_000, 1000),
    ("900ns", 1_600_000_000, 900),
];

/// Far and fine times on files, directories, symlinks and FIFOs, and on the top of the tree.
pub fn times(builder: &mut Builder, place: &Place) -> Result<()> {
    let (first, last) = builder.features.far_times;
    let mut times = TIMES.to_vec();
    times.extend([("first", first, 0), ("last", last, 0)]);
    if !builder.features.nanoseconds {
        builder.skip("time-nanoseconds", "times are kept by the second");
        for time in &mut times {
            time.2 = 0;
        }
    }
    let (possible, out_of_range): (Vec<_>, Vec<_>) =
        times.into_iter().partition(|(_, seconds, _)| (first..=last).contains(seconds));
    for (name, ..) in out_of_range {
        builder.skip(&format!("time-{name}"), format!("times reach from {first} to {last}"));
    }
    let spec = |at: (&str, i64, i64)| Timespec { tv_sec: at.1, tv_nsec: at.2 };
    for (index, time) in possible.iter().enumerate() {
        let accessed = possible[(index + 1) % possible.len()];
        let both = Timestamps { last_access: spec(accessed), last_modification: spec(*time) };
        let case = format!("time-{}", time.0);
        for kind in ["file", "symlink", "fifo"] {
            let name = format!("{kind}-{}", time.0);
            match kind {
                "file" => builder.file(place, &name, 10)?,
                "symlink" => builder.symlink(place, &name, b"nowhere")?,
                _ => builder.node(place, &name, FileType::Fifo, (0, 0))?,
            }
            place.times(OsStr::new(&name), &both)?;
            builder.case(&case, place.join(&name));
        }
        let directory = builder.directory(place, format!("directory-{}", time.0))?;
        builder.file(&directory, "inside", 10)?;
        builder.final_times(&directory.path, both.clone());
        builder.case(&case, directory.path);
        if time.0 == "2200" {
            builder.final_times(Path::new(""), both);
            builder.case("time-top", Path::new("").into());
        }
    }
    Ok(())
}
