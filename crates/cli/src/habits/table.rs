//! The options of other tools, one row each.

/// A verb that has habits of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbs {
    /// `copy`
    Copy,
    /// `sync`
    Sync,
    /// `copy` and `sync`
    Both,
}

impl Verbs {
    /// The verb of this name, if it has habits.
    pub(super) fn of(name: &str) -> Option<Self> {
        [Self::Copy, Self::Sync].into_iter().find(|verb| verb.name() == name)
    }

    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Sync => "sync",
            Self::Both => "copy, sync",
        }
    }
}

/// What becomes of an option.
#[derive(Debug, Clone, Copy)]
pub enum Fate {
    /// It is accepted and has no effect; why.
    Ignored(&'static str),
    /// It stands for these words.
    Means(&'static [&'static str]),
    /// It has a value, and this name here.
    Renamed(&'static str),
    /// It is an error (2); what to do instead.
    Refused(&'static str),
}

/// An option of another tool.
#[derive(Debug, Clone, Copy)]
pub struct Habit {
    /// Its names.
    pub names: &'static [&'static str],
    /// Where this row holds.
    pub verbs: Verbs,
    /// What becomes of it.
    pub fate: Fate,
}

/// The row of an option that was typed for a verb.
pub(super) fn find(verb: Verbs, typed: &str) -> Option<&'static Habit> {
    let is_it = |habit: &&Habit| {
        habit.names.contains(&typed) && (habit.verbs == verb || habit.verbs == Verbs::Both)
    };
    HABITS.iter().find(is_it)
}

const fn row(names: &'static [&'static str], verbs: Verbs, fate: Fate) -> Habit {
    Habit { names, verbs, fate }
}

use Fate::{Ignored, Means, Refused, Renamed};

const COPY: Verbs = Verbs::Copy;
const SYNC: Verbs = Verbs::Sync;
const BOTH: Verbs = Verbs::Both;

const REMOTE: &str =
    "both trees have to be mounted on this host: other hosts are not supported yet";
const DELETES: &str = "it is --delete=during, --delete=delay or --delete=after here";
const NEVER_DELETES: &str = "copy never deletes anything at DEST; 'dmover sync --delete' does, and takes during, delay or after";
const OWNERS: &str = "owners and groups go together: --no-preserve=owner leaves out both";
const SHARED: &str =
    "'dmover snapshot create SOURCE DIR' keeps copies side by side that share what did not change";
const RESUMES: &str = "leave it out: the same command continues an interrupted copy";
const TEMPORARY: &str = "leave it out: a temporary file is made beside the file that it replaces, so that it can be renamed";
const CP: &str = "dmover only copies: 'cp -s' and 'cp -l' make links; for --parents name the directories at DEST";

/// All rows. An option that is not here and that dmover does not have is an error.
pub const HABITS: &[Habit] = &[
    // Kept, or done, without a word.
    row(&["-p", "--perms"], BOTH, Ignored("modes are kept")),
    row(&["-l", "--links"], SYNC, Ignored("symbolic links are copied as links")),
    row(&["--links"], COPY, Ignored("symbolic links are copied as links")),
    row(&["-t"], SYNC, Ignored("times are kept")),
    row(&["--times"], BOTH, Ignored("times are kept")),
    row(&["-g", "--group"], BOTH, Ignored("groups are kept")),
    row(&["-o", "--owner"], BOTH, Ignored("owners are kept")),
    row(&["-D", "--devices", "--specials"], BOTH, Ignored("devices, FIFOs and sockets are kept")),
    row(&["-U", "--atimes"], BOTH, Ignored("access times are kept")),
    row(&["-E", "--executability"], BOTH, Ignored("modes are kept")),
    row(&["--numeric-ids"], BOTH, Ignored("owners are kept by number")),
    row(&["--super"], BOTH, Ignored("what the user may set is set")),
    row(&["-d"], COPY, Ignored("links are copied as links, hard links are kept")),
    row(&["--no-dereference"], COPY, Ignored("symbolic links are copied as links")),
    row(&["-f"], COPY, Ignored("what differs is replaced")),
    row(&["--remove-destination"], COPY, Ignored("a file is replaced by a new one")),
    row(
        &["-P", "--partial"],
        BOTH,
        Ignored("a terminal shows progress; the same command continues an interrupted copy"),
    ),
    row(&["--human-readable"], BOTH, Ignored("sizes have units")),
    row(&["--info"], BOTH, Ignored("a terminal shows progress")),
    row(&["-z", "--compress"], BOTH, Ignored("nothing is compressed between mounted file systems")),
    row(
        &["-W", "--whole-file", "--no-whole-file"],
        BOTH,
        Ignored("a file that differs is copied whole"),
    ),
    row(
        &["--inc-recursive", "--no-inc-recursive", "--no-i-r", "--fast-list", "--no-traverse"],
        BOTH,
        Ignored("directories are read while files are copied"),
    ),
    row(&["-y", "--fuzzy"], SYNC, Ignored("renamed files are found by themselves")),
    row(&["--create-empty-src-dirs"], BOTH, Ignored("empty directories are copied")),
    row(&["--metadata"], BOTH, Ignored("attributes are kept")),
    row(&["--strip-trailing-slashes"], COPY, Ignored("a slash at the end means nothing")),
    // The same under another name.
    row(&["-S"], BOTH, Means(&["--sparse=always"])),
    row(&["--itemize-changes"], BOTH, Means(&["--itemize"])),
    row(&["--copy-links"], BOTH, Means(&["--dereference"])),
    row(&["--del"], SYNC, Means(&["--delete=during"])),
    row(&["--no-perms", "--no-p"], BOTH, Means(&["--no-preserve=mode"])),
    row(&["--no-times", "--no-t"], BOTH, Means(&["--no-preserve=times"])),
    row(&["--ignore-existing"], COPY, Means(&["--no-clobber"])),
    row(&["--delete-during"], SYNC, Means(&["--delete=during"])),
    row(&["--delete-delay"], SYNC, Means(&["--delete=delay"])),
    row(&["--delete-after"], SYNC, Means(&["--delete=after"])),
    row(&["--max-age"], BOTH, Renamed("--newer")),
    row(&["--min-age"], BOTH, Renamed("--older")),
    row(&["--transfers"], BOTH, Renamed("--threads")),
    row(&["-f"], SYNC, Renamed("--filter")),
    // Something else, or nothing.
    row(
        &["-l"],
        COPY,
        Refused(
            "cp -l makes hard links: use cp for that; rsync -l: leave it out, links are copied as links; \
             scp -l: --bwlimit",
        ),
    ),
    row(&["-s", "--symbolic-link", "--link", "--attributes-only", "--parents"], COPY, Refused(CP)),
    row(&["-b"], COPY, Refused("it is --backup or --backup=numbered here")),
    row(
        &["-b", "--backup", "--backup-dir", "--suffix"],
        SYNC,
        Refused(
            "--trash DIR keeps what --delete removes; 'dmover copy --backup' keeps what it replaces",
        ),
    ),
    row(
        &["-R", "--relative"],
        SYNC,
        Refused(
            "contents go to contents: write at DEST the directories that rsync would make there; \
             sync is always recursive",
        ),
    ),
    row(
        &["--relative"],
        COPY,
        Refused(
            "write at DEST the directories that rsync would make there, or list paths by --files-from",
        ),
    ),
    row(&["-e", "--rsh", "--rsync-path", "--blocking-io"], BOTH, Refused(REMOTE)),
    row(
        &["-F"],
        BOTH,
        Refused(
            "rule files in each directory are not supported; name one by --filter='merge FILE'",
        ),
    ),
    row(
        &["-C", "--cvs-exclude"],
        BOTH,
        Refused(
            "no list of names is left out by default; name them by --exclude or --exclude-from",
        ),
    ),
    row(
        &["-m", "--prune-empty-dirs"],
        BOTH,
        Refused(
            "a directory is made also if nothing in it takes part; leave it out by --exclude 'NAME/'",
        ),
    ),
    row(
        &["-u", "--update"],
        SYNC,
        Refused(
            "sync makes DEST match SOURCE, also where DEST is newer; 'dmover copy -T -u' skips what is newer there",
        ),
    ),
    row(
        &["-d", "--dirs"],
        SYNC,
        Refused("sync is always recursive; leave out what is deeper by --exclude '/*/*'"),
    ),
    row(
        &["-c", "--checksum"],
        COPY,
        Refused(
            "copy compares no content with what exists: 'dmover sync --checksum' does, --overwrite=always copies all",
        ),
    ),
    row(&["-I", "--ignore-times"], COPY, Refused("it is --overwrite=always here")),
    row(
        &["-I", "--ignore-times"],
        SYNC,
        Refused("it is --checksum here: files that look equal are compared"),
    ),
    row(
        &["--size-only"],
        BOTH,
        Refused(
            "a file of the same size may have other content, so times are compared as well; \
             'dmover verify --level=size' only compares",
        ),
    ),
    row(
        &["--existing", "--ignore-non-existing"],
        BOTH,
        Refused("there is nothing like it; list the files by 'dmover copy -T --files-from'"),
    ),
    row(&["--ignore-existing"], SYNC, Refused("it is 'dmover copy -T --no-clobber SOURCE DEST'")),
    row(
        &["--remove-source-files", "--remove-sent-files"],
        BOTH,
        Refused(
            "dmover never removes anything at SOURCE; prove the copy by 'dmover verify', then remove SOURCE",
        ),
    ),
    row(
        &["--chown"],
        BOTH,
        Refused("owners are mapped by number: --usermap=FROM:TO and --groupmap=FROM:TO"),
    ),
    row(
        &["--chmod"],
        BOTH,
        Refused("modes are kept; --no-preserve=mode makes new entries by the umask"),
    ),
    row(&["--files-from"], SYNC, Refused("it is 'dmover copy -T --files-from FILE SOURCE DEST'")),
    row(
        &["--timeout", "--contimeout"],
        BOTH,
        Refused(
            "leave it out: the kernel decides how long a file system is waited for; --max-duration stops the job",
        ),
    ),
    row(
        &["--stop-after", "--time-limit", "--stop-at"],
        BOTH,
        Refused("it is --max-duration here, such as 90m"),
    ),
    row(&["--append", "--append-verify"], BOTH, Refused(RESUMES)),
    row(&["--link-dest", "--compare-dest", "--copy-dest"], BOTH, Refused(SHARED)),
    row(&["-T", "--temp-dir"], SYNC, Refused(TEMPORARY)),
    row(&["--temp-dir", "--partial-dir"], BOTH, Refused(TEMPORARY)),
    row(
        &["--delay-updates"],
        BOTH,
        Refused("leave it out: each file appears under its name when it is complete"),
    ),
    row(
        &["--modify-window"],
        BOTH,
        Refused("leave it out: times are compared in the steps in which DEST keeps them"),
    ),
    row(
        &["-O", "--omit-dir-times", "-J", "--omit-link-times"],
        BOTH,
        Refused("--no-preserve=times leaves out all times"),
    ),
    row(&["-N", "--crtimes"], BOTH, Refused("the time of creation cannot be set on Linux")),
    row(
        &["-k", "--copy-dirlinks", "-K", "--keep-dirlinks"],
        BOTH,
        Refused("a symbolic link is copied as a link, or followed everywhere by --dereference"),
    ),
    row(
        &["--safe-links", "--copy-unsafe-links", "--munge-links"],
        BOTH,
        Refused("symbolic links are copied as they are, and never followed without --dereference"),
    ),
    row(&["--mkpath"], BOTH, Refused("make the directories above DEST first: mkdir -p")),
    row(&["--out-format"], BOTH, Refused("it is --format here; its letters are in --help")),
    row(&["--no-owner", "--no-o", "--no-group", "--no-g"], BOTH, Refused(OWNERS)),
    row(
        &["--fake-super"],
        BOTH,
        Refused("owners are kept as owners, or counted as lost; copy as root to keep them"),
    ),
    row(
        &["--force"],
        SYNC,
        Refused("leave it out: --delete lets a directory go where SOURCE has something else"),
    ),
    row(&["--force"], COPY, Ignored("what differs is replaced")),
    row(&["--delete-before"], SYNC, Refused(DELETES)),
    row(
        &["--delete-excluded", "--delete-missing-args"],
        SYNC,
        Refused("what a rule leaves out is not deleted; remove it by hand"),
    ),
    row(
        &["--ignore-errors"],
        SYNC,
        Refused("nothing is deleted after a directory could not be read: mend that first"),
    ),
    row(
        &[
            "--delete",
            "--del",
            "--delete-before",
            "--delete-during",
            "--delete-delay",
            "--delete-after",
            "--delete-excluded",
        ],
        COPY,
        Refused(NEVER_DELETES),
    ),
    row(&["--checkers"], BOTH, Refused("-j N bounds the operations in flight, of every kind")),
];
