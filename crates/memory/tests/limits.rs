//! Limits and abilities that the tmpfs of the other test does not have, and faults.
#![allow(clippy::unwrap_used, reason = "functions of a test are test code as well")]

use dmover_memory::faults::{Call, Fault, Rule, When, Where};
use dmover_memory::{
    Actor, AtimeRule, Clock, Device, Disk, Errno, Handle, Open, Profile, Quota, Renaming, SetTime,
    SimulatedTime, User, XattrMode,
};
use dmover_model::Timestamp;

const START_S: i64 = 1_700_000_001;

fn disk(profile: Profile) -> Disk {
    Disk::new(profile, Clock::new(SimulatedTime::starting_at(START_S), 1000), 1)
}

fn calls<T>(disk: &mut Disk, actor: &Actor, calls: impl FnOnce(&mut User<'_>, Handle) -> T) -> T {
    let mut user = disk.as_user(actor);
    let root = user.root();
    let result = calls(&mut user, root);
    user.close(root).unwrap();
    result
}

fn with<T>(disk: &mut Disk, body: impl FnOnce(&mut User<'_>, Handle) -> T) -> T {
    calls(disk, &Actor::root(), body)
}

fn new_file(user: &mut User<'_>, directory: Handle, name: &[u8]) -> Handle {
    user.open(directory, name, Open::new_file(0o644)).unwrap()
}

#[test]
fn space_ends_at_the_exact_block() {
    let profile = Profile {
        block_bytes: 512,
        capacity_bytes: 10 * 512,
        capacity_inodes: 3,
        ..Profile::default()
    };
    let mut disk = disk(profile);
    with(&mut disk, |user, root| {
        let file = new_file(user, root, b"f");
        assert_eq!(user.write(file, 0, &[1; 9 * 512]), Ok(9 * 512));
        assert_eq!(user.write(file, 9 * 512 - 1, &[2; 1000]), Ok(513), "as much as fits");
        assert_eq!(user.write(file, 10 * 512, b"x"), Err(Errno::NOSPC));
        assert_eq!(user.write(file, 0, &[3; 10 * 512]), Ok(10 * 512), "blocks that it has");
        assert_eq!(user.allocate(file, 10 * 512, 1, true), Err(Errno::NOSPC));
        user.punch(file, 0, 512).unwrap();
        assert_eq!(user.write(file, 10 * 512, b"x"), Ok(1));
        user.symlink(b"t", root, b"l").unwrap();
        assert_eq!(user.make_directory(root, b"d", 0o755), Err(Errno::NOSPC));
        user.unlink(root, b"f").unwrap();
        assert_eq!(user.make_directory(root, b"d", 0o755), Err(Errno::NOSPC), "the file is open");
        user.close(file).unwrap();
        user.make_directory(root, b"d", 0o755).unwrap();
    });
    assert_eq!(disk.usage().blocks, 0);
}

#[test]
fn a_quota_binds_its_user_only() {
    let quota = Quota { bytes: 2 * 4096, inodes: 2 };
    let profile = Profile { quotas: [(1000, quota)].into(), ..Profile::default() };
    let mut disk = disk(profile);
    with(&mut disk, |user, root| user.set_mode(root, 0o777).unwrap());
    calls(&mut disk, &Actor::user(1000, 1000), |user, root| {
        let file = new_file(user, root, b"f");
        assert_eq!(user.write(file, 0, &[1; 9000]), Ok(8192));
        assert_eq!(user.write(file, 8192, b"x"), Err(Errno::DQUOT));
        user.make_directory(root, b"d", 0o755).unwrap();
        assert_eq!(user.make_directory(root, b"e", 0o755), Err(Errno::DQUOT));
        user.close(file).unwrap();
    });
    calls(&mut disk, &Actor::user(1001, 1000), |user, root| {
        user.make_directory(root, b"e", 0o755).unwrap();
    });
    with(&mut disk, |user, root| user.set_owner((root, b"e"), Some(1000), None).unwrap());
    assert_eq!(disk.usage_of(1000).inodes, 3, "privileged users are exempt");
}

#[test]
fn sizes_of_names_links_files_and_attributes_are_limited() {
    let profile = Profile {
        links_max: 3,
        file_bytes_max: 5000,
        xattr_bytes_max: 20,
        name_bytes_max: 10,
        ..Profile::default()
    };
    let mut disk = disk(profile);
    with(&mut disk, |user, root| {
        let file = new_file(user, root, b"f");
        assert_eq!(user.write(file, 4990, &[1; 100]), Ok(10));
        assert_eq!(user.write(file, 5000, b"x"), Err(Errno::FBIG));
        assert_eq!(user.truncate(file, 5001), Err(Errno::FBIG));
        user.link(file, root, b"g").unwrap();
        user.link((root, b"g"), root, b"h").unwrap();
        assert_eq!(user.link(file, root, b"i"), Err(Errno::MLINK));
        user.make_directory(root, b"d", 0o755).unwrap();
        assert_eq!(user.make_directory(root, b"e", 0o755), Err(Errno::MLINK));
        assert_eq!(user.symlink(b"t", root, b"elevenbytes"), Err(Errno::NAMETOOLONG));
        user.set_xattr(file, b"user.a", b"0123456789", XattrMode::Set).unwrap();
        assert_eq!(user.set_xattr(file, b"user.b", b"", XattrMode::Set), Err(Errno::NOSPC));
        user.set_xattr(file, b"user.a", b"01234567890123", XattrMode::Replace).unwrap();
    });
}

#[test]
fn flags_forbid_what_they_say() {
    let mut disk = disk(Profile::default());
    with(&mut disk, |user, root| {
        let file = new_file(user, root, b"f");
        user.write(file, 0, b"abc").unwrap();
        user.close(file).unwrap();
        user.set_flags((root, b"f"), true, false).unwrap();
        assert_eq!(user.open(root, b"f", Open::WRITE), Err(Errno::PERM));
        assert_eq!(user.unlink(root, b"f"), Err(Errno::PERM));
        assert_eq!(user.link((root, b"f"), root, b"g"), Err(Errno::PERM));
        assert_eq!(user.set_mode((root, b"f"), 0o600), Err(Errno::PERM));
        let renamed = user.rename((root, b"f"), (root, b"g"), Renaming::Replace);
        assert_eq!(renamed, Err(Errno::PERM));
        assert_eq!(user.set_times((root, b"f"), SetTime::Now, SetTime::Now), Err(Errno::PERM));
        assert!(user.stat((root, b"f")).unwrap().immutable);
        user.set_flags((root, b"f"), false, true).unwrap();
        assert_eq!(user.open(root, b"f", Open::WRITE), Err(Errno::PERM));
        let append = Open { appends: true, ..Open::WRITE };
        let file = user.open(root, b"f", append).unwrap();
        assert_eq!(user.write(file, 0, b"d"), Ok(1));
        assert_eq!(user.truncate(file, 0), Err(Errno::PERM));
        assert_eq!(user.stat(file).unwrap().size, 4);
        user.set_times(file, SetTime::Now, SetTime::Now).unwrap();
        user.make_directory(root, b"d", 0o755).unwrap();
        let directory = user.open(root, b"d", Open::DIRECTORY).unwrap();
        user.make_directory(directory, b"x", 0o755).unwrap();
        user.set_flags(directory, false, true).unwrap();
        user.make_directory(directory, b"y", 0o755).unwrap();
        assert_eq!(user.remove_directory(directory, b"x"), Err(Errno::PERM));
        user.set_flags(directory, true, false).unwrap();
        assert_eq!(user.make_directory(directory, b"z", 0o755), Err(Errno::PERM));
    });
    calls(&mut disk, &Actor::user(0, 0), |user, root| {
        assert_eq!(user.set_flags((root, b"f"), false, false), Err(Errno::PERM));
    });
}

#[test]
fn a_file_system_may_lack_most_of_it() {
    let mut disk = disk(Profile::fat());
    with(&mut disk, |user, root| {
        let file = new_file(user, root, b"Name");
        user.write(file, 10_000, b"x").unwrap();
        assert_eq!(user.stat(file).unwrap().blocks, 24, "no holes");
        assert_eq!(user.next_hole(file, 0), Ok(10_001));
        assert_eq!(user.punch(file, 0, 4096), Err(Errno::NOTSUP));
        assert_eq!(user.link(file, root, b"other"), Err(Errno::PERM));
        assert_eq!(user.symlink(b"t", root, b"l"), Err(Errno::PERM));
        assert_eq!(user.make_node(root, b"p", Device::Fifo, 0o600), Err(Errno::PERM));
        assert_eq!(user.list_xattrs(file), Err(Errno::NOTSUP));
        assert_eq!(user.set_flags(file, true, false), Err(Errno::NOTSUP));
        assert_eq!(user.set_owner(file, Some(5), None), Err(Errno::PERM));
        let exchanged = user.rename((root, b"Name"), (root, b"x"), Renaming::New);
        assert_eq!(exchanged, Err(Errno::INVAL));
        let odd = Timestamp { seconds: START_S, nanoseconds: 5 };
        user.set_times(file, SetTime::Omit, SetTime::To(odd)).unwrap();
        let even = Timestamp { seconds: START_S - 1, nanoseconds: 0 };
        assert_eq!(user.stat(file).unwrap().mtime, even);
        let early = Timestamp { seconds: 5, nanoseconds: 0 };
        user.set_times(file, SetTime::Omit, SetTime::To(early)).unwrap();
        assert_eq!(user.stat(file).unwrap().mtime.seconds, 315_532_800);
        // The case is kept, and ignored.
        assert!(user.stat((root, b"nAME")).is_ok());
        assert_eq!(user.open(root, b"NAME", Open::new_file(0o644)), Err(Errno::EXIST));
        let (listed, _) = user.list(root, None, 10).unwrap();
        assert_eq!(listed[0].name, b"Name");
    });
}

#[test]
fn blocks_are_shared_until_one_is_written() {
    let mut disk = disk(Profile::xfs());
    with(&mut disk, |user, root| {
        let old = new_file(user, root, b"old");
        user.write(old, 0, &[1; 10_000]).unwrap();
        let new = new_file(user, root, b"new");
        assert_eq!(user.clone_range((old, 0), (new, 100), 0), Err(Errno::INVAL), "not aligned");
        user.clone_range((old, 0), (new, 0), 0).unwrap();
        user.write(new, 0, &[2; 10]).unwrap();
        let mut bytes = vec![0; 20_000];
        assert_eq!(user.read(new, 0, &mut bytes), Ok(10_000));
        assert_eq!((&bytes[..10], &bytes[10..10_000]), (&[2; 10][..], &[1; 9_990][..]));
        assert_eq!(user.read(old, 0, &mut bytes), Ok(10_000));
        assert_eq!(bytes[..10_000], [1; 10_000]);
    });
    assert_eq!(disk.usage().blocks, 4);
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let mut disk = disk(Profile::default());
    with(&mut disk, |user, root| new_file(user, root, b"f"));
    disk.set_read_only(true);
    with(&mut disk, |user, root| {
        assert_eq!(user.open(root, b"f", Open::WRITE), Err(Errno::ROFS));
        assert_eq!(user.make_directory(root, b"d", 0o755), Err(Errno::ROFS));
        assert_eq!(user.make_directory(root, b"f", 0o755), Err(Errno::EXIST));
        assert_eq!(user.unlink(root, b"f"), Err(Errno::ROFS));
        assert_eq!(user.set_mode((root, b"f"), 0o600), Err(Errno::ROFS));
        assert!(user.open(root, b"f", Open::READ).is_ok());
    });
}

#[test]
fn times_are_as_coarse_as_the_stamps() {
    let mut disk = disk(Profile { stamp_step_ns: 4_000_000, ..Profile::default() });
    let time = disk.clock().time().clone();
    with(&mut disk, |user, root| {
        let file = new_file(user, root, b"f");
        let write = |user: &mut User<'_>| {
            user.write(file, 0, b"x").unwrap();
            user.stat(file).unwrap().mtime
        };
        let first = write(user);
        assert_eq!(write(user), first, "a change that no time shows");
        time.advance_ns(4_000_000);
        assert!(write(user) > first);
    });
}

#[test]
fn a_read_shows_as_the_mount_says() {
    for (rule, changes) in
        [(AtimeRule::Never, false), (AtimeRule::Relative, false), (AtimeRule::Always, true)]
    {
        let mut disk = disk(Profile { atime: rule, ..Profile::default() });
        with(&mut disk, |user, root| {
            let file = new_file(user, root, b"f");
            user.read(file, 0, &mut [0]).unwrap();
            let first = user.stat(file).unwrap().atime;
            user.read(file, 0, &mut [0]).unwrap();
            assert_eq!(user.stat(file).unwrap().atime != first, changes, "{rule:?}");
            let before = user.stat(file).unwrap().atime;
            let silent = user.reopen(file, Open { keeps_atime: true, ..Open::READ }).unwrap();
            user.read(silent, 0, &mut [0]).unwrap();
            assert_eq!(user.stat(file).unwrap().atime, before, "{rule:?}");
        });
    }
}

#[test]
fn listings_have_an_order_of_their_own_and_lose_nothing_meanwhile() {
    let names: Vec<Vec<u8>> = (0..100).map(|n: u32| n.to_string().into_bytes()).collect();
    let order = |seed| {
        let clock = Clock::new(SimulatedTime::starting_at(START_S), 0);
        let mut disk = Disk::new(Profile::default(), clock, seed);
        with(&mut disk, |user, root| {
            for name in &names {
                let file = new_file(user, root, name);
                user.close(file).unwrap();
            }
            let mut found = Vec::new();
            let mut cursor = None;
            loop {
                let (part, next) = user.list(root, cursor.as_ref(), 7).unwrap();
                for entry in part {
                    user.unlink(root, &entry.name).unwrap();
                    found.push(entry.name);
                }
                cursor = next;
                if cursor.is_none() {
                    return found;
                }
            }
        })
    };
    let (one, same, other) = (order(1), order(1), order(2));
    assert_eq!(one, same);
    assert_ne!(one, other);
    let mut sorted = one.clone();
    sorted.sort();
    assert_ne!(sorted, one);
    let mut expected = names.clone();
    expected.sort();
    assert_eq!(sorted, expected);
}

#[test]
fn inode_numbers_are_used_again_where_the_file_system_does_so() {
    for reuses_inodes in [true, false] {
        let mut disk = disk(Profile { reuses_inodes, ..Profile::default() });
        with(&mut disk, |user, root| {
            let file = new_file(user, root, b"f");
            let old = user.stat(file).unwrap().identity;
            user.unlink(root, b"f").unwrap();
            let other = new_file(user, root, b"g");
            assert_ne!(user.stat(other).unwrap().identity, old, "the old one is open");
            user.close(file).unwrap();
            let new = new_file(user, root, b"h");
            assert_eq!(user.stat(new).unwrap().identity == old, reuses_inodes);
        });
    }
}

#[test]
fn a_walk_stays_on_the_disk_and_ends() {
    let mut disk = disk(Profile::default());
    with(&mut disk, |user, root| {
        user.make_directory(root, b"d", 0o755).unwrap();
        let directory = user.open(root, b"d", Open::DIRECTORY).unwrap();
        new_file(user, directory, b"f");
        user.symlink(b"../../../d/f", directory, b"up").unwrap();
        user.symlink(b"/d/f", root, b"absolute").unwrap();
        user.symlink(b"loop", root, b"loop").unwrap();
        let expected = user.stat((directory, b"f")).unwrap();
        for path in [b"d/up".as_slice(), b"absolute", b"/d/./../d/f"] {
            let found = user.walk(root, path, true).unwrap();
            assert_eq!(user.stat(found).unwrap().identity, expected.identity);
        }
        assert_eq!(user.walk(root, b"loop", true), Err(Errno::LOOP));
        assert_eq!(user.walk(root, b"d/f/", true), Err(Errno::NOTDIR));
        assert!(user.walk(root, b"loop", false).is_ok());
    });
}

#[test]
fn faults_strike_where_and_when_a_rule_says() {
    let mut disk = disk(Profile::default());
    let rule = |call, when, fault| Rule {
        call: Some(call),
        at: Where::Path(b"d/*".to_vec()),
        when,
        fault,
    };
    let faults = disk.faults_mut();
    faults.add(rule(Call::MakeDirectory, When::Always, Fault::ErrorAfter(Errno::IO)));
    faults.add(rule(Call::Write, When::Nth(1), Fault::Partial(2)));
    faults.add(rule(Call::Read, When::Nth(1), Fault::Altered));
    faults.add(rule(Call::Read, When::Nth(2), Fault::Hang));
    faults.add(rule(Call::Stat, When::Always, Fault::Delay(5_000_000_000)));
    faults.add(rule(Call::Close, When::Always, Fault::Error(Errno::IO)));
    faults.trace_last(3);
    with(&mut disk, |user, root| {
        user.make_directory(root, b"d", 0o755).unwrap();
        let directory = user.open(root, b"d", Open::DIRECTORY).unwrap();
        assert_eq!(user.make_directory(directory, b"x", 0o755), Err(Errno::IO));
        let again = user.make_directory(directory, b"x", 0o755);
        assert_eq!(again, Err(Errno::IO), "a lost reply hides every error");
        let file = new_file(user, directory, b"f");
        assert_eq!(user.write(file, 0, b"abc"), Ok(2));
        assert_eq!(user.write(file, 2, b"c"), Ok(1));
        let mut bytes = [0; 3];
        assert_eq!(user.read(file, 0, &mut bytes), Ok(3));
        assert_ne!(&bytes, b"abc");
        assert_eq!(user.read(file, 0, &mut bytes), Err(Errno::HANGS));
        assert_eq!(user.read(file, 0, &mut bytes), Ok(3));
        assert_eq!(&bytes, b"abc");
        user.stat(file).unwrap();
        assert_eq!(user.close(file), Err(Errno::IO));
        assert_eq!(user.read(file, 0, &mut bytes), Err(Errno::BADF), "closed all the same");
        user.close(directory).unwrap();
    });
    assert_eq!(disk.clock().now().seconds, START_S + 5);
    disk.faults_mut().clear();
    with(&mut disk, |user, root| assert!(user.walk(root, b"d/x", true).is_ok()));
    let last = disk.faults().trace().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(last.len(), 3);
    assert!(last.iter().any(|line| line.contains("Open") && line.ends_with("ok")), "{last:?}");
}

#[test]
fn one_seed_gives_one_run() {
    let run = |seed| {
        let clock = Clock::new(SimulatedTime::starting_at(START_S), 1000);
        let mut disk = Disk::new(Profile::default(), clock, seed);
        let faults = disk.faults_mut();
        let fault = Fault::Error(Errno::IO);
        faults.add(Rule { call: None, at: Where::Anywhere, when: When::Chance(0.3), fault });
        faults.trace_last(1000);
        let actor = Actor::root();
        let mut user = disk.as_user(&actor);
        let root = user.root();
        for number in 0..100_u8 {
            let _ = user.make_directory(root, &[b'a' + number % 26], 0o755);
        }
        disk.faults().trace().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert!(run(1).iter().any(|line| line.contains("EIO (Error(EIO))")));
}
