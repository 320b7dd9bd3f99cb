//! Default ACLs of the destination, beside cp and rsync.
use crate::bench::{Bench, PROGRAM};

const LOOK: &str = r"find . -printf '%P %y %m\n' | sort; find . ! -type l | sort | xargs getfacl -n -p | grep -v '^# owner' | grep -v '^# group'";

#[test]
fn what_is_made_below_a_default_acl_gets_what_cp_gives_it() {
    let acls = [
        "u::rwx,g::rwx,o::---",
        "u::rwx,g::r-x,o::r-x",
        "u::rwx,u:12345:rwx,g::r-x,g:777:r--,m::rwx,o::---",
        "u::rw-,g::---,o::---",
    ];
    let lines = [
        "cp f t/x",
        "cp -r s t",
        "cp -r s/. t",
        "cp n t/old",
        "cp -b n t/old",
        "cp -a s t",
        "cp -p f t/x",
        "cp -r --preserve=timestamps s t",
    ];
    // cp 9.1 mixes the creation mask in where a directory may be written to by group or others; rsync does not (below).
    for acl in acls {
        for line in lines {
            let bench = Bench::new();
            let run = |at: &str, program: &str| {
                bench.sh(&format!(
                    "umask 0; mkdir {at}; cd {at}; mkdir -p s/d/e t; echo x > f; echo y > s/d/g; echo n > n; mkfifo s/pipe; ln -s g s/d/l
                     chmod 644 f n; chmod 755 s s/d s/d/g; chmod 600 s/d/e; chmod 664 s/pipe; echo old > t/old; chmod 664 t/old
                     chmod 755 t; setfacl -d -m {acl} t; {program}{line}; {LOOK}"
                ))
            };
            let (theirs, ours) = (run("theirs", ""), run("ours", &format!("{PROGRAM} ")));
            assert_eq!(theirs, ours, "{acl}: {line}");
        }
    }
}

#[test]
fn modes_that_are_not_kept_obey_a_default_acl_as_those_of_rsync() {
    for acl in ["u::rwx,g::rwx,o::---", "u::rwx,u:12345:rwx,g::r-x,m::rwx,o::---"] {
        let bench = Bench::new();
        bench.sh(&format!(
            "mkdir -p s/d theirs ours; echo x > s/f; echo y > s/d/g; chmod 644 s/f; chmod 755 s/d/g; chmod 775 s/d
             setfacl -d -m {acl} theirs ours; rsync -rt s/ theirs/s"
        ));
        for words in ["--no-preserve=mode", "--no-preserve=mode,acl"] {
            bench.sh("rm -rf ours/s");
            bench.dmover(&format!("copy -q {words} -T s ours/s")).expect_code(0);
            let look = |at: &str| bench.sh(&format!("cd {at}/s; {LOOK}"));
            assert_eq!(look("theirs"), look("ours"), "{acl} {words}");
        }
    }
}
