//! The command lines that people type first who come from rsync, cp, scp and rclone.
use super::Bench;

/// What has to happen.
enum Outcome {
    /// DEST is as SOURCE.
    Same,
    /// SOURCE is in DEST, or was copied as DEST.
    Copied,
    /// Nothing is done, and that was asked for.
    Nothing,
    /// Nothing is done, the exit code is 2, and the message says this.
    Says(&'static str),
    /// The host is not there, and the exit code is 6.
    NoHost,
}
use Outcome::{Copied, NoHost, Nothing, Same, Says};

const LINES: &[(&str, Outcome)] = &[
    // rsync
    ("sync -av src/ dst/", Same),
    ("sync -a src dst", Same),
    ("sync -avP src dst", Same),
    ("sync -avz src dst", Same),
    ("sync -aHAXS src dst", Same),
    ("sync -rlptgoD src dst", Same),
    ("sync -rlptgoDHAXS --numeric-ids src dst", Same),
    ("sync -rvz --progress src dst", Same),
    ("sync -a --info=progress2 src dst", Same),
    ("sync -a --partial --human-readable src dst", Same),
    ("sync -aW src dst", Same),
    ("sync -a --no-whole-file --no-inc-recursive src dst", Same),
    ("sync -a --stats src dst", Same),
    ("sync -a --exclude=*.tmp src dst", Same),
    ("sync -aHAX --delete src dst", Same),
    ("sync -a --delete-after src dst", Same),
    ("sync -a --del src dst", Same),
    ("sync -c src dst", Same),
    ("sync -ax src dst", Same),
    ("sync -a --inplace src dst", Same),
    ("sync -a --bwlimit=10m src dst", Same),
    ("sync -a --max-size=10M src dst", Same),
    ("sync -a --checksum --whole-file src dst", Same),
    ("sync --archive --verbose --human-readable src dst", Same),
    ("sync -a --log-file=log src dst", Same),
    ("sync -a --perms --times src dst", Same),
    ("sync -a --no-perms src dst", Same),
    ("sync -ay src dst", Same),
    ("sync -a --max-age=24h src dst", Same),
    ("sync -n -i src dst", Nothing),
    ("sync -a --itemize-changes --dry-run src dst", Nothing),
    ("sync -avh src dst", Says("-h is help here")),
    ("sync -h src dst", Says("-h is help here")),
    ("-av src/ dst", Says("name the verb first")),
    ("submit --local copy src dst", Says("put '--' before the job")),
    ("manifest src", Says("its commands are print, filter, diff")),
    ("manifest compare src dst", Says("its commands are print")),
    ("manifest print src", Says("is a directory")),
    ("sync -avh -- src dst", Says("-h is help here")),
    ("copy -h -- src dst", Says("-h is help here")),
    ("sync -aR src dst", Says("copies the contents of SOURCE")),
    ("sync -ae ssh src dst", Same),
    ("sync -a --rsh=ssh src dst", Same),
    ("sync -a src host.invalid:/dst", NoHost),
    ("sync -a --link-dest=../old src dst", Says("dmover snapshot create")),
    ("sync -a --filter=-_*.o src dst", Same),
    ("sync -a -f -_*.o src dst", Same),
    ("sync -a --filter=merge_rules src dst", Same),
    ("sync -a --exclude-from=rules src dst", Same),
    ("sync -a --filter=:_.rsync-filter src dst", Says("in each directory")),
    ("sync -aF src dst", Says("in each directory")),
    ("sync -a --filter=P_*.o src dst", Says("one side only")),
    ("sync -a --filter=-s_*.o src dst", Says("modifier s")),
    ("sync -a --filter=x src dst", Says("merge FILE")),
    ("sync -a --size-only src dst", Says("times are compared as well")),
    ("sync -a --existing src dst", Says("--files-from")),
    ("sync -a --ignore-existing src dst", Says("copy -T --no-clobber")),
    ("sync -a --remove-source-files src dst", Says("never removes anything at SOURCE")),
    ("sync -a --chown=root:root src dst", Says("--usermap")),
    ("sync -a --chmod=D755,F644 src dst", Says("--no-preserve=mode")),
    ("sync -a --files-from=list src dst", Says("copy -T --files-from")),
    ("sync -a --timeout=60 src dst", Says("--max-duration")),
    ("sync -a --bwlimit=1000 src dst", Says("1000K is KiB per second")),
    ("sync -u src dst", Says("copy -T -u")),
    ("sync -a --delete-before src dst", Says("--delete=during")),
    ("sync -a --delete-excluded src dst", Says("by hand")),
    ("sync -a --append src dst", Says("resumes an interrupted copy")),
    ("sync -a --backup --suffix=.bak src dst", Says("--trash")),
    ("sync -a -T . src dst", Says("temporary file")),
    ("sync -a --out-format=%n src dst", Says("--format")),
    ("sync -a --safe-links src dst", Says("copied as they are")),
    ("sync -aO src dst", Says("--no-preserve=times")),
    ("sync -am src dst", Says("--exclude 'NAME/'")),
    ("sync -a --no-o --no-g src dst", Says("--no-preserve=owner")),
    ("sync -a --mkpath src x/dst", Says("mkdir -p")),
    ("rsync -a src dst", Says("dmover sync")),
    ("sync -a --sparse src dst", Says("--sparse=always")),
    ("sync -a --no-compress -8 -4 --no-motd src dst", Same),
    ("sync -as src dst", Same),
    ("sync -a --track-renames src dst", Same),
    ("sync -a --compress-level=9 src dst", Says("see --compress")),
    ("sync -a --no-links src dst", Says("follow them by -L")),
    ("sync -a --no-D src dst", Says("devices, FIFOs and sockets are copied")),
    ("sync -a --list-only src dst", Says("-n -i lists")),
    ("sync -a --write-batch=b src dst", Says("no batch files")),
    ("sync -a --debug=ALL src dst", Says("DMOVER_LOG=debug")),
    ("sync -a --bwlimit=0 src dst", Says("omit the option")),
    ("sync -aV src dst", Says("-V is the version here")),
    ("sync -a src x dst", Says("'dmover copy' takes several")),
    ("src dst", Says("name the verb first")),
    ("synk -a src dst", Says("there is the verb 'sync'")),
    ("verify -a src dst", Says("verify compares whole trees")),
    ("submit --local -- copy -avh src dst", Says("--help or -V")),
    ("submit --local -- sync -h", Says("--help or -V")),
    ("submit --template slurm -- copy src dst", Says("takes no job")),
    // cp
    ("copy -r src dst", Copied),
    ("copy -R src dst", Copied),
    ("copy -rp src dst", Copied),
    ("copy -a src dst", Copied),
    ("copy -av src dst", Copied),
    ("copy -rf src dst", Copied),
    ("copy -au src dst", Copied),
    ("copy -dr src dst", Copied),
    ("copy -rP src dst", Copied),
    ("copy --no-clobber -r src dst", Copied),
    ("copy -r --reflink=auto --sparse=always src dst", Copied),
    ("copy -r --strip-trailing-slashes src/ dst", Copied),
    ("copy -n src dst", Nothing),
    ("copy -rt src dst", Says("-t names the directory")),
    ("copy -rt src dst --exclude *.tmp", Says("rsync -t keeps times")),
    ("copy -rt dst src src/f -j 4", Says("-t names the directory")),
    ("copy -S .bak src dst", Says("--suffix=SUFFIX")),
    ("copy -aHAXS src dst", Says("--sparse=always")),
    ("copy -rl src dst", Says("cp -l makes hard links")),
    ("copy -rs src dst", Says("use 'cp -s' or 'cp -l' to make links")),
    ("copy -rb src dst", Says("--backup")),
    ("copy --parents src/f dst", Says("for --parents name the directories")),
    ("copy --attributes-only src dst", Says("dmover only copies")),
    ("mv src dst", Says("removes nothing at the source")),
    ("du src", Says("use cat, du or find")),
    ("version", Says("use 'dmover --version'")),
    ("copy -h -t dst", Says("-h is help here")),
    ("copy -h --read-stdin", Says("-h is help here")),
    ("cp -rg src dst", Says("use -p or -a")),
    // scp
    ("copy -rq src dst", Copied),
    ("copy -r3 src dst", Copied),
    ("copy -r -l 1000 src dst", Says("use --bwlimit")),
    ("copy -rP 2222 src dst", Says("scp -P takes a port")),
    ("copy -o Compression=no src dst", Says("rsync -o keeps owners")),
    ("copy -D server src dst", Says("rsync -D keeps devices")),
    ("copy -rf +_*.o src dst", Says("use --filter")),
    ("copy -rC src dst", Says("no list of names")),
    ("copy -r src host.invalid:dst", NoHost),
    // rclone
    ("sync -P src dst", Same),
    ("sync --progress src dst", Same),
    ("sync --transfers 8 --create-empty-src-dirs --metadata src dst", Same),
    ("sync --fast-list src dst", Same),
    ("copy --stats 30s src dst", Says("--stats=30s")),
    ("copy --info progress2 src dst", Says("omit --info")),
    ("copy -P --ignore-existing src dst", Copied),
    ("sync --checkers 8 src dst", Says("-j N")),
    ("copy --checksum src dst", Says("dmover sync --checksum")),
    ("copy --ignore-times src dst", Says("--overwrite=always")),
    ("copy src remote.invalid:dst", NoHost),
    ("check src dst", Says("dmover verify")),
    ("cryptcheck src dst", Says("dmover verify")),
    ("bisync src dst", Says("one direction")),
    ("copyto src dst", Says("copy -T")),
    ("moveto src dst", Says("removes nothing at the source")),
    ("md5sum src", Says("sum -a md5")),
    ("copy --immutable src dst", Says("--no-clobber")),
    ("move src dst", Says("dmover verify")),
];

#[test]
fn command_lines_of_other_tools_work_or_say_what_to_type() {
    let bench = Bench::new();
    bench.sh("printf -- '- *.o\\n' > rules; echo f > list");
    for (line, outcome) in LINES {
        bench.sh(
            "rm -rf src dst x; mkdir -p src/d; echo one > src/f; echo two > src/d/g; ln -s f src/l",
        );
        let run = bench.dmover(line);
        let code = run.code();
        let made = bench.exists("dst") || bench.exists("x");
        match outcome {
            Same | Copied => {
                assert_eq!(code, Some(0), "{line}: {}", run.tell());
                assert_eq!(bench.sh("rsync -nac --delete --out-format=%n src/ dst/"), "", "{line}");
            }
            Nothing => assert!(code == Some(0) && !made, "{line}: {}", run.tell()),
            Says(words) => {
                assert!(code == Some(2) && !made, "{line}: {}", run.tell());
                assert!(run.stderr.contains(words), "{line}: {}", run.tell());
            }
            NoHost => {
                assert!(code == Some(6) && !made, "{line}: {}", run.tell());
                let words = "cannot find the address of the host";
                assert!(run.stderr.contains(words), "{line}: {}", run.tell());
            }
        }
    }
}

#[test]
fn a_mistyped_option_is_not_suggested_as_a_file() {
    let bench = Bench::new();
    bench.sh("mkdir src dst");
    let run = bench.dmover("verify --delete src dst").expect_code(2);
    assert!(!run.stderr.contains("-- --delete"), "{}", run.tell());
    let run = bench.dmover("jobs -l").expect_code(2);
    assert!(!run.stderr.contains("kept by default"), "{}", run.tell());
}
