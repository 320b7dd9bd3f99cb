//! The power-cut device loses what it should lose and keeps what it must keep.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use dmover_testkit::image::FileSystem;
use dmover_testkit::powercut::PowerCutDevice;

const SIZE: u64 = 64 << 20;
const JOURNALING: [FileSystem; 2] = [FileSystem::Ext4, FileSystem::Xfs];

fn device(test: &str, file_system: FileSystem) -> Option<PowerCutDevice> {
    PowerCutDevice::create_or_skip(test, file_system, SIZE)
}

fn pattern() -> Vec<u8> {
    (0..4 << 20).map(|at: u32| (at % 251) as u8 + 1).collect()
}

fn past() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_234_567_890)
}

/// Writes as a copier does that gives the file its full size first.
fn write_presized(path: &Path, flush: bool) {
    let data = pattern();
    let file = File::create(path).unwrap();
    file.set_len(data.len() as u64).unwrap();
    file.write_all_at(&data, 0).unwrap();
    if flush {
        file.sync_data().unwrap();
    }
    file.set_modified(past()).unwrap();
}

/// Makes the journal commit, as somebody else's fsync does on every busy machine.
fn commit(device: &PowerCutDevice) {
    File::create(device.path().join("bystander")).unwrap().sync_all().unwrap();
}

/// Whether a file that was never flushed looks complete after a cut and holds only zeros.
fn lies(device: PowerCutDevice) -> bool {
    let file_system = device.file_system();
    write_presized(&device.path().join("lying"), false);
    write_presized(&device.path().join("honest"), true);
    commit(&device);
    let device = device.cut().unwrap();
    for name in ["lying", "honest"] {
        let data = fs::metadata(device.path().join(name)).unwrap();
        assert_eq!(data.len(), pattern().len() as u64, "{file_system} {name}");
        assert_eq!(data.modified().unwrap(), past(), "{file_system} {name}");
    }
    let content = |name: &str| fs::read(device.path().join(name)).unwrap();
    assert!(content("honest") == pattern(), "{file_system}");
    content("lying").iter().all(|byte| *byte == 0)
}

#[test]
fn control_a_presized_file_without_fsync_survives_looking_complete() {
    let test = "control_a_presized_file_without_fsync_survives_looking_complete";
    for file_system in JOURNALING {
        // Whoever calls sync on this machine at the wrong moment saves the data: hence the tries.
        let mut tries = (0..5).map_while(|_| device(test, file_system)).peekable();
        if tries.peek().is_some() {
            assert!(tries.any(lies), "{file_system}: the data always survived");
        }
    }
}

#[test]
fn what_was_not_committed_is_gone_and_power_can_be_cut_again() {
    let test = "what_was_not_committed_is_gone_and_power_can_be_cut_again";
    for file_system in JOURNALING {
        let Some(mut device) = device(test, file_system) else { continue };
        let mut lost = 0; // a sync by somebody else may save it now and then
        for round in 0..3 {
            let at = |name: &str| device.path().join(format!("{name}-{round}"));
            fs::write(at("kept"), "kept").unwrap();
            File::open(at("kept")).unwrap().sync_all().unwrap();
            File::open(device.path()).unwrap().sync_all().unwrap();
            fs::write(at("lost"), "lost").unwrap();
            device = device.cut().unwrap();
            let at = |name: &str| device.path().join(format!("{name}-{round}"));
            lost += usize::from(!at("lost").exists());
            for earlier in 0..=round {
                let kept = device.path().join(format!("kept-{earlier}"));
                assert_eq!(fs::read_to_string(kept).unwrap(), "kept", "{file_system}");
            }
        }
        assert!(lost > 0, "{file_system}: nothing was ever lost");
    }
}

#[test]
fn power_is_cut_while_writers_run() {
    for file_system in JOURNALING {
        let Some(device) = device("power_is_cut_while_writers_run", file_system) else { continue };
        let (safe, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let root = device.path().to_owned();
        let held = File::create(root.join("held")).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..100_000_u64 {
                    let written = fs::write(root.join(number.to_string()), number.to_le_bytes())
                        .and_then(|()| File::open(root.join(number.to_string()))?.sync_all())
                        .and_then(|()| File::open(&root)?.sync_all());
                    if written.is_err() || stop.load(Ordering::SeqCst) {
                        break; // the power is gone
                    }
                    safe.store(number + 1, Ordering::SeqCst);
                }
            });
            while safe.load(Ordering::SeqCst) < 20 {
                thread::yield_now();
            }
            device.cut_power().unwrap();
            stop.store(true, Ordering::SeqCst);
        });
        let device = device.recover().unwrap();
        assert!(held.sync_all().is_err(), "the old file system stays dead");
        for number in 0..safe.load(Ordering::SeqCst) {
            let content = fs::read(device.path().join(number.to_string())).unwrap();
            assert_eq!(content, number.to_le_bytes(), "{file_system} {number}");
        }
        fs::write(device.path().join("alive"), "").unwrap();
    }
}

#[test]
fn a_device_that_is_not_cut_leaves_nothing_behind() {
    let test = "a_device_that_is_not_cut_leaves_nothing_behind";
    let Some(device) = device(test, FileSystem::Ext4) else { return };
    let path = device.path().to_owned();
    drop(device);
    assert!(!path.exists());
    assert!(PowerCutDevice::create(FileSystem::Tmpfs, SIZE).is_err());
}
