//! Copies of trees with every hard case between hosts.
use super::bench::{PROGRAM, pattern, snapshot};
use super::ends::{Ends, WAYS, Way, assert_idle, count, ends};
use dmover_testkit::compare::snapshot_atimes;
use dmover_testkit::tree::{self, HardTree, TreeOptions};
use std::path::Path;

/// A 70 MiB file without holes or repeated blocks beside the hard cases, and sizes between 1 B and 5 MiB.
fn large_files(bench: &super::Bench, seed: u64) {
    bench.sh(&format!(
        r"mkdir s/large
        python3 - <<'END'
import random
draw = random.Random({seed})
for size in [1, 3, 1000, 65537, 1 << 20, (5 << 20) - 1, 5 << 20, 70 << 20]:
    open('s/large/%d' % size, 'wb').write(draw.randbytes(size))
END
        ln s/large/1000 s/names/across
        touch -d 1960-02-03T04:05:06.789012345Z s/large/3
        touch -d 2030-02-03T04:05:06.000000001Z s/large/1"
    ));
}

#[test]
fn the_hard_case_tree_arrives_each_way_and_the_source_keeps_its_access_times() {
    let ends = ends!("the_hard_case_tree_arrives_each_way_and_the_source_keeps_its_access_times");
    let bench = &ends.bench;
    let seed = std::env::var("DMOVER_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| std::process::id().into());
    println!("seed {seed} (DMOVER_TEST_SEED repeats it)");
    let options = TreeOptions::probe(bench.root(), 150).unwrap().without("huge");
    let report = HardTree::generate(&bench.at("s"), seed, &options).unwrap();
    println!("without {:?}", report.skipped);
    large_files(bench, seed);
    let before = snapshot_atimes(&bench.at("s")).unwrap();
    let state = snapshot(&bench.at("s")).without_blocks();
    for way in WAYS {
        println!("{way:?}");
        let run = ends.job(way, "copy --json -T", ("s", "d")).expect_code(0);
        assert_eq!(run.said().unwrap().tell(), "", "{}", run.tell());
        before.assert_same(&snapshot_atimes(&bench.at("s")).unwrap());
        bench.assert_same("s", "d");
        let copied = snapshot(&bench.at("d")).without_blocks();
        let again = ends.job(way, "copy --json -T", ("s", "d")).expect_code(0);
        assert_idle(&again);
        let changes = copied.changes(&snapshot(&bench.at("d")).without_blocks());
        assert_eq!(changes, Vec::<String>::new(), "the second run");
        tree::remove(&bench.at("d")).unwrap();
    }
    assert_eq!(state.changes(&snapshot(&bench.at("s")).without_blocks()), Vec::<String>::new());
    tree::cleanup(bench.root()).unwrap();
}

#[test]
fn holes_of_a_file_above_4_gib_are_not_sent() {
    let ends = ends!();
    let bench = &ends.bench;
    bench.sh("mkdir s; truncate -s 5G s/f; printf x | dd of=s/f bs=1 seek=4294967295 conv=notrunc status=none");
    for way in WAYS {
        let run = ends.job(way, "copy --json -T", ("s", "d")).expect_code(0);
        assert_eq!(run.said().unwrap().tell(), "");
        bench.assert_same("s", "d");
        bench.sh("rm -r d");
    }
}

#[test]
fn zeros_become_holes_on_demand_and_holes_zeros() {
    let ends = ends!();
    let bench = &ends.bench;
    bench.write("s/mixed", [pattern(200_000), vec![0; 2_000_000], pattern(5)].concat());
    bench.sh("truncate -s 3M s/hole");
    let occupied =
        |path: &str| bench.sh(&format!("du -B1 {path} | cut -f1")).trim().parse::<u64>().unwrap();
    for way in WAYS {
        ends.job(way, "copy --json -T --sparse=always", ("s", "d")).expect_code(0);
        assert!(occupied("d/mixed") < 1_000_000, "{way:?}");
        bench.sh("diff -r s d");
        ends.job(way, "copy --json -T --sparse=never", ("s", "n")).expect_code(0);
        assert!(occupied("n/hole") >= 3 << 20, "{way:?}");
        bench.sh("diff -r s n; rm -r d n");
    }
}

#[test]
fn attributes_are_chosen_as_locally() {
    let ends = ends!("attributes_are_chosen_as_locally");
    let bench = &ends.bench;
    bench.sh("mkdir s; echo 1 > s/f; chown 12:34 s/f; chmod 4751 s/f; touch -d '2001-02-03 04:05:06.789' s/f
        setfattr -n user.a -v 1 s/f; setfattr -n trusted.b -v 2 s/f; setfacl -m u:99:rw s/f; chmod 4751 s/f");
    let look = "stat -c '%a %u:%g' d/f; getfattr -d -m - -e hex d/f; getfacl -cs d/f";
    for options in [
        "--no-preserve=mode,times,xattr,acl,owner",
        "--preserve=times",
        "--preserve=mode,xattr",
        "--usermap 12:5000:10 --groupmap 34:3",
        "--no-preserve=acl",
    ] {
        bench.dmover(&format!("copy -T {options} s d")).expect_code(0);
        let wanted = bench.sh(look);
        for way in WAYS {
            bench.sh("rm -r d");
            ends.job(way, &format!("copy -T {options}"), ("s", "d")).expect_code(0);
            assert_eq!(bench.sh(look), wanted, "{way:?} {options}");
        }
        bench.sh("rm -r d");
    }
}

/// A dmover at the other host, which has users and groups of its own.
fn agent_with_other_users(ends: &Ends) -> String {
    let bench = &ends.bench;
    bench.write("users", "root:x:0:0::/root:/bin/sh\ndaemon:x:5001:6001::/:/bin/sh\nstranger:x:5002:6001::/:/bin/sh\n");
    bench.write("groups", "root:x:0:\ndaemon:x:6001:\ngames:x:6002:\n");
    let (users, groups) = (bench.at("users"), bench.at("groups"));
    let mounts = format!(
        "mount --bind {} /etc/passwd; mount --bind {} /etc/group; exec {PROGRAM} \"$@\"",
        users.display(),
        groups.display()
    );
    bench.write("agent", format!("#!/bin/sh\nexec unshare -m sh -c '{mounts}' dmover \"$@\"\n"));
    bench.sh("chmod 755 agent");
    format!("--agent {}", bench.at("agent").display())
}

#[test]
fn owners_are_found_by_name_on_both_sides() {
    let ends = ends!("owners_are_found_by_name_on_both_sides");
    let bench = &ends.bench;
    let agent = agent_with_other_users(&ends);
    let id = |of: &str| bench.sh(of).trim().to_owned();
    let (daemon, games) = (id("id -u daemon"), id("getent group games | cut -d: -f3"));
    bench.sh(
        "mkdir s; cd s; for f in own named stranger none; do echo $f > $f; done
        chown 5001:6002 own; setfacl -m u:5001:rw,g:6002:r named; chown 5002:6001 stranger; chown 5003:0 none",
    );
    let owner = |path: &str| bench.sh(&format!("stat -c %u:%g {path}")).trim().to_owned();
    let from = Way { source: "far:", destination: "" };
    let line = |verb: &str, options: &str| format!("{verb} {agent} --owners-by-name {options}");
    let run = ends.job(from, &line("copy --json -T", ""), ("s", "d")).expect_code(0);
    assert_eq!(owner("d/own"), format!("{daemon}:{games}"));
    let group = id("getent group daemon | cut -d: -f3");
    assert_eq!(owner("d/stranger"), format!("5002:{group}"), "a name that is not here");
    assert_eq!(owner("d/none"), "5003:0", "no name there");
    let acl = bench.sh("getfacl -n -c d/named");
    assert!(acl.contains(&format!("user:{daemon}:rw")), "{acl}");
    assert!(acl.contains(&format!("group:{games}:r")), "{acl}");
    // Each owner once, also if many entries have it.
    assert_eq!(count(&run, "owners_without_account"), 2, "{}", run.tell());
    assert_idle(&ends.job(from, &line("sync --json", ""), ("s", "d")).expect_code(0));
    ends.job(from, &line("verify", ""), ("s", "d")).expect_code(0);
    ends.job(from, &format!("verify {agent}"), ("s", "d")).expect_code(1);
    // Rules come first, and the one for all others last.
    let rules = "--usermap 5001:77,*:65534";
    ends.job(from, &line("sync", rules), ("s", "d")).expect_code(0);
    assert_eq!(owner("d/own"), format!("77:{games}"));
    assert_eq!(
        [owner("d/stranger"), owner("d/none")],
        [format!("65534:{group}"), "65534:0".into()]
    );
    // Back: the host of DEST asks this one.
    bench.sh(&format!("rm -r s; chown {daemon}:{games} d/own; setfacl -m u:{daemon}:rw d/named"));
    let back = Way { source: "", destination: "far:" };
    ends.job(back, &line("copy -T", ""), ("d", "s")).expect_code(0);
    assert_eq!(owner("s/own"), "5001:6002");
    let acl = bench.sh("getfacl -n -c s/named");
    assert!(acl.contains("user:5001:rw"), "{acl}");
    // An owner whose name cannot be found out is an error of the entry, which gets no other owner.
    bench.sh("rm -r d; mkdir bin; printf '#!/bin/sh\\n[ $2 != 5003 ] || exit 1; exec /usr/bin/getent \"$@\"\\n' > bin/getent; chmod 755 bin/getent");
    bench.sh(&format!("sed -i '2i PATH={}:$PATH' agent", bench.at("bin").display()));
    bench.sh("chown 5003:0 s/none");
    let run = ends.job(from, &line("copy -T", ""), ("s", "d")).expect_code(3);
    assert!(run.stderr.contains("s/none") || run.stderr.contains("d/none"), "{}", run.tell());
    assert!(!bench.at("d/none").exists() && bench.at("d/own").exists(), "{}", run.tell());
    bench.sh("rm s/none");
    // Here both sides are one host.
    bench.dmover("copy -T --owners-by-name d e").expect_code(0);
    bench.assert_same("d", "e");
    let run = ends.run(
        &line("copy", ""),
        &[ends.at("far:", "s/own"), ends.at("far:", "s/named"), bench.at("e").into()],
    );
    assert!(run.expect_code(2).stderr.contains("takes one SOURCE"));
}

#[test]
fn tables_may_have_names_of_both_hosts() {
    let ends = ends!("tables_may_have_names_of_both_hosts");
    let bench = &ends.bench;
    let agent = agent_with_other_users(&ends);
    let id = |of: &str| bench.sh(of).trim().to_owned();
    let (bin, games) = (id("id -u bin"), id("getent group games | cut -d: -f3"));
    // daemon is 5001, and stranger 5002 at the other host.
    bench.sh(
        "mkdir s; cd s; for f in one two three four; do echo $f > $f; done
        chown 5001:6001 one; setfacl -m u:5001:rw,g:6001:r one; chown 5002:6002 two; chown 5003:6002 three",
    );
    bench.write("people", "daemon bin\nstranger 77 # by number\n5003 games\n");
    let owner = |path: &str| bench.sh(&format!("stat -c %u:%g {path}")).trim().to_owned();
    let from = Way { source: "far:", destination: "" };
    let line = |verb: &str| {
        format!(
            "{verb} {agent} --usermap @{} --groupmap daemon:games,6002:3",
            bench.at("people").display()
        )
    };
    ends.job(from, &line("copy -T"), ("s", "d")).expect_code(0);
    assert_eq!(owner("d/one"), format!("{bin}:{games}"));
    assert_eq!(owner("d/two"), "77:3");
    let game = id("id -u games");
    assert_eq!(owner("d/three"), format!("{game}:3"));
    assert_eq!(owner("d/four"), "0:0", "root has no rule");
    let acl = bench.sh("getfacl -n -c d/one");
    assert!(acl.contains(&format!("user:{bin}:rw")), "{acl}");
    assert!(acl.contains(&format!("group:{games}:r")), "{acl}");
    ends.job(from, &line("verify"), ("s", "d")).expect_code(0);
    assert_idle(&ends.job(from, &line("sync --json"), ("s", "d")).expect_code(0));
    // The first rule for an account counts, whatever names it.
    for (rules, uid) in [("daemon:bin,5001:games", &bin), ("5001:games,daemon:bin", &game)] {
        bench.sh("rm -rf e");
        ends.job(from, &format!("copy -T {agent} --usermap {rules}"), ("s", "e")).expect_code(0);
        assert_eq!(owner("e/one").split(':').next(), Some(uid.as_str()), "{rules}");
    }
    // For all others, before equal names; to there: the names of DEST are those of its host.
    let back = Way { source: "", destination: "far:" };
    bench.sh("rm -r s; chown bin:games d/one d/two; chown 0:0 d/three");
    let rules = "--usermap bin:stranger,*:daemon --groupmap games:daemon,*:games";
    ends.job(back, &format!("copy -T {agent} {rules}"), ("d", "s")).expect_code(0);
    assert_eq!([owner("s/one"), owner("s/three")], ["5002:6001", "5001:6002"]);
    // An account that DEST does not have is refused before anything is written.
    for (way, rule) in [(from, "daemon:nosuch"), (back, "bin:www-data"), (from, "*:nosuch")] {
        bench.sh("rm -rf e");
        let (source, target) = if way == from { ("s", "e") } else { ("d", "e") };
        let run = ends.job(way, &format!("copy -T {agent} --usermap {rule}"), (source, target));
        let name = rule.split(':').next_back().unwrap();
        assert!(run.expect_code(2).stderr.contains(name), "{rule}");
        assert!(!bench.at("e").exists(), "{rule}");
    }
    // All of them, since a table has many.
    let rules = "bin:nosuch,games:daemon,daemon:neither";
    let run = ends.job(from, &format!("copy -T {agent} --usermap {rules}"), ("s", "e"));
    assert!(run.expect_code(2).stderr.contains("has no users 'nosuch', 'neither'"));
    // On one host.
    bench.sh("rm -rf e; chown bin:games d/one");
    bench.dmover("copy -T --usermap bin:games --groupmap games:bin d e").expect_code(0);
    assert_eq!(owner("e/one"), format!("{game}:{}", id("getent group bin | cut -d: -f3")));
}

#[test]
fn links_are_followed_as_locally() {
    let ends = ends!();
    let bench = &ends.bench;
    bench.sh(
        "mkdir -p s/d out; echo 1 > out/f; ln -s ../out/f s/f; ln -s ../out s/o; ln -s d s/inside
        ln -s nowhere s/dangling; ln -s s root; echo 2 > s/d/g",
    );
    for (options, source) in
        [("-L", "s"), ("-H", "root"), ("-P", "s"), ("-P", "root"), ("-L --allow-loss=none", "root")]
    {
        let line = format!("copy --json -T {options}");
        let wanted = bench.dmover(&format!("{line} {source} w"));
        for way in WAYS {
            let run = ends.job(way, &line, (source, "d"));
            assert_eq!(run.code(), wanted.code(), "{way:?} {options}: {}", run.tell());
            if Path::new(&bench.at("w")).exists() {
                bench.assert_same("w", "d");
            }
            bench.sh("rm -rf d");
        }
        bench.sh("rm -rf w");
    }
}
