//! The options of other tools, one row each.

/// The verbs for which a row of the table holds.
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
    /// The verb with this name, if the table has rows for it.
    pub(super) fn of(name: &str) -> Option<Self> {
        [Self::Copy, Self::Sync].into_iter().find(|verb| verb.name() == name)
    }

    /// The names of the verbs, as the user types them.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Sync => "sync",
            Self::Both => "copy, sync",
        }
    }
}

/// How dmover treats an option of another tool.
#[derive(Debug, Clone, Copy)]
pub enum Fate {
    /// dmover accepts it without any effect, for this reason.
    Ignored(&'static str),
    /// dmover replaces it with these words.
    Means(&'static [&'static str]),
    /// It takes a value, and dmover has it under this name.
    Renamed(&'static str),
    /// dmover refuses it (exit code 2); the text says what to do instead.
    Refused(&'static str),
}

/// An option of another tool.
#[derive(Debug, Clone, Copy)]
pub struct Habit {
    /// All names of the option.
    pub names: &'static [&'static str],
    /// The verbs for which this row holds.
    pub verbs: Verbs,
    /// How dmover treats the option.
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

const REMOTE: &str = "the other host runs dmover over ssh: --ssh-command takes ssh with its options, --agent the path \
                      of dmover there";
const DELETES: &str = "use --delete=during, --delete=delay or --delete=after";
const NEVER_DELETES: &str = "copy never deletes anything at DEST; use 'dmover sync --delete', which takes =during, =delay or =after";
const OWNERS: &str =
    "--no-preserve=owner drops both owners and groups; there is no option for one of them";
const SHARED: &str = "use 'dmover snapshot create SOURCE DIR': each snapshot shares unchanged files with the previous one";
const RESUMES: &str = "omit it: the same command resumes an interrupted copy";
const TEMPORARY: &str = "omit it: each temporary file is in the directory of the file that it replaces, because it is renamed";
const CP: &str = "dmover only copies: use 'cp -s' or 'cp -l' to make links; for --parents name the directories in DEST";

/// All rows. An option that is not here and that dmover does not have is an error.
pub const HABITS: &[Habit] = &[
    // Kept or done by default.
    row(&["-p", "--perms"], BOTH, Ignored("modes are kept")),
    row(&["-l", "--links"], SYNC, Ignored("symbolic links are copied as links")),
    row(&["--links"], COPY, Ignored("symbolic links are copied as links")),
    row(&["-t"], SYNC, Ignored("times are kept")),
    row(&["--times"], BOTH, Ignored("times are kept")),
    row(&["-g", "--group"], BOTH, Ignored("groups are kept")),
    row(&["-o"], SYNC, Ignored("owners are kept")),
    row(&["--owner"], BOTH, Ignored("owners are kept")),
    row(&["-D"], SYNC, Ignored("devices, FIFOs and sockets are kept")),
    row(&["--devices", "--specials"], BOTH, Ignored("devices, FIFOs and sockets are kept")),
    row(&["-U", "--atimes"], BOTH, Ignored("access times are kept")),
    row(&["-E", "--executability"], BOTH, Ignored("modes are kept")),
    row(
        &["--numeric-ids"],
        BOTH,
        Ignored("owners are kept by number; --owners-by-name is rsync's default"),
    ),
    row(&["--super"], BOTH, Ignored("all attributes that this user may set are set")),
    row(&["-d"], COPY, Ignored("symbolic links are copied as links, hard links are kept")),
    row(&["--no-dereference"], COPY, Ignored("symbolic links are copied as links")),
    row(&["-f"], COPY, Ignored("entries that differ are replaced")),
    row(&["--remove-destination"], COPY, Ignored("a file that differs is replaced by a new file")),
    row(
        &["-P", "--partial"],
        BOTH,
        Ignored("a terminal shows progress; the same command resumes an interrupted copy"),
    ),
    row(&["--human-readable"], BOTH, Ignored("sizes always have units")),
    row(&["--info"], BOTH, Ignored("a terminal shows progress")),
    row(&["-z"], BOTH, Means(&["--compress=always"])),
    row(
        &["--no-whole-file"],
        BOTH,
        Ignored("another host sends only what differs of a file, unless --whole-file is given"),
    ),
    row(
        &["--inc-recursive", "--no-inc-recursive", "--no-i-r", "--fast-list", "--no-traverse"],
        BOTH,
        Ignored("directories are read while files are copied"),
    ),
    row(&["-y", "--fuzzy"], SYNC, Ignored("sync detects renamed files by itself")),
    row(&["--create-empty-src-dirs"], BOTH, Ignored("empty directories are copied")),
    row(&["--metadata"], BOTH, Ignored("attributes are kept")),
    row(&["--strip-trailing-slashes"], COPY, Ignored("a trailing slash has no meaning")),
    row(&["--track-renames"], SYNC, Ignored("sync detects renamed files by itself")),
    row(&["--no-compress", "--no-z"], BOTH, Means(&["--compress=never"])),
    row(
        &["-4", "-6", "--ipv4", "--ipv6", "--no-motd"],
        BOTH,
        Ignored("no network is used between mounted file systems"),
    ),
    row(&["-8", "--8-bit-output"], BOTH, Ignored("names are shown whatever their bytes are")),
    row(&["-s", "--protect-args", "--secluded-args"], SYNC, Ignored("no remote shell reads them")),
    row(&["--protect-args", "--secluded-args"], COPY, Ignored("no remote shell reads them")),
    // The same option under another name.
    row(&["-S"], SYNC, Means(&["--sparse=always"])),
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
    // Options with another meaning, or without a counterpart.
    row(
        &["-l"],
        COPY,
        Refused(
            "cp -l makes hard links: use cp -l; rsync -l copies symbolic links: omit it, they are copied; scp -l \
             limits the rate: use --bwlimit",
        ),
    ),
    row(
        &["-S"],
        COPY,
        Refused(
            "cp -S names the suffix of backups: use --suffix=SUFFIX; rsync -S makes holes: use --sparse=always",
        ),
    ),
    row(
        &["-o"],
        COPY,
        Refused(
            "rsync -o keeps owners: omit it, they are kept; scp -o takes an option of ssh: use \
             --ssh-command 'ssh -o OPTION'",
        ),
    ),
    row(
        &["-D"],
        COPY,
        Refused(
            "rsync -D keeps devices, FIFOs and sockets: omit it, they are kept; scp -D names an sftp server, which \
             dmover does not use",
        ),
    ),
    row(&["-s", "--symbolic-link", "--link", "--attributes-only", "--parents"], COPY, Refused(CP)),
    row(&["-b"], COPY, Refused("use --backup or --backup=numbered")),
    row(
        &["-b", "--backup", "--backup-dir", "--suffix"],
        SYNC,
        Refused(
            "--trash DIR keeps entries that --delete removes; 'dmover copy --backup' keeps files that it replaces",
        ),
    ),
    row(
        &["-R", "--relative"],
        SYNC,
        Refused(
            "sync copies the contents of SOURCE to DEST and is always recursive: add the directories that rsync \
             would create to DEST",
        ),
    ),
    row(
        &["--relative"],
        COPY,
        Refused(
            "add the directories that rsync would create to DEST, or list paths by --files-from",
        ),
    ),
    row(&["-e", "--rsh"], BOTH, Renamed("--ssh-command")),
    row(&["--rsync-path"], BOTH, Refused("--agent names the path of dmover at the other host")),
    row(&["--blocking-io"], BOTH, Ignored("it makes no difference with ssh")),
    row(&["-3"], BOTH, Ignored("two other hosts exchange content directly if a port is open")),
    row(
        &["-F"],
        BOTH,
        Refused(
            "dmover does not read rule files in each directory; name a file by --filter='merge FILE'",
        ),
    ),
    row(
        &["-C", "--cvs-exclude"],
        BOTH,
        Refused(
            "dmover has no list of names to exclude by default; use --exclude or --exclude-from",
        ),
    ),
    row(
        &["-m", "--prune-empty-dirs"],
        BOTH,
        Refused(
            "dmover does not prune empty directories; exclude directories by --exclude 'NAME/'",
        ),
    ),
    row(
        &["-u", "--update"],
        SYNC,
        Refused(
            "sync also replaces entries that are newer in DEST; 'dmover copy -T -u' skips them",
        ),
    ),
    row(
        &["-d", "--dirs"],
        SYNC,
        Refused("sync is always recursive; exclude deeper levels by --exclude '/*/*'"),
    ),
    row(
        &["-c", "--checksum"],
        COPY,
        Refused(
            "copy does not compare content: 'dmover sync --checksum' does; --overwrite=always copies all files",
        ),
    ),
    row(&["-I", "--ignore-times"], COPY, Refused("use --overwrite=always")),
    row(
        &["-I", "--ignore-times"],
        SYNC,
        Refused("use --checksum, which compares the content of files that look equal"),
    ),
    row(
        &["--size-only"],
        BOTH,
        Refused(
            "files of equal size may differ in content, so times are compared as well; 'dmover verify \
             --level=size' compares sizes and copies nothing",
        ),
    ),
    row(
        &["--existing", "--ignore-non-existing"],
        BOTH,
        Refused(
            "list the files that DEST has, and copy those: dmover copy -T --files-from LIST SOURCE DEST",
        ),
    ),
    row(&["--ignore-existing"], SYNC, Refused("use 'dmover copy -T --no-clobber SOURCE DEST'")),
    row(
        &["--remove-source-files", "--remove-sent-files"],
        BOTH,
        Refused(
            "dmover never removes anything at SOURCE; check the copy by 'dmover verify', then remove SOURCE yourself",
        ),
    ),
    row(
        &["--chown"],
        BOTH,
        Refused("use --usermap=FROM:TO and --groupmap=FROM:TO, which map owners and groups"),
    ),
    row(
        &["--chmod"],
        BOTH,
        Refused(
            "dmover keeps modes; with --no-preserve=mode the umask sets the modes of new entries",
        ),
    ),
    row(&["--files-from"], SYNC, Refused("use 'dmover copy -T --files-from FILE SOURCE DEST'")),
    row(
        &["--timeout", "--contimeout"],
        BOTH,
        Refused(
            "omit it: the kernel decides how long dmover waits for a file system; --max-duration limits the job",
        ),
    ),
    row(
        &["--stop-after", "--time-limit", "--stop-at"],
        BOTH,
        Refused("use --max-duration, such as --max-duration=90m"),
    ),
    row(&["--append", "--append-verify"], BOTH, Refused(RESUMES)),
    row(&["--link-dest", "--compare-dest", "--copy-dest"], BOTH, Refused(SHARED)),
    row(&["-T", "--temp-dir"], SYNC, Refused(TEMPORARY)),
    row(&["--temp-dir", "--partial-dir"], BOTH, Refused(TEMPORARY)),
    row(
        &["--delay-updates"],
        BOTH,
        Refused("omit it: an existing file is replaced only when the new one is complete"),
    ),
    row(
        &["--modify-window"],
        BOTH,
        Refused("omit it: times are compared at the coarser resolution of SOURCE and DEST"),
    ),
    row(
        &["-O", "--omit-dir-times", "-J", "--omit-link-times"],
        BOTH,
        Refused("use --no-preserve=times, which drops all times"),
    ),
    row(&["-N", "--crtimes"], BOTH, Refused("omit it: Linux cannot set creation times")),
    row(
        &["-k", "--copy-dirlinks", "-K", "--keep-dirlinks"],
        BOTH,
        Refused("symbolic links are copied as links; --dereference follows all of them"),
    ),
    row(
        &["--safe-links", "--copy-unsafe-links", "--munge-links"],
        BOTH,
        Refused("symbolic links are copied as they are, and followed only with --dereference"),
    ),
    row(&["--mkpath"], BOTH, Refused("create the parent directories of DEST first: mkdir -p")),
    row(&["--out-format"], BOTH, Refused("use --format; --help lists its letters")),
    row(&["--no-owner", "--no-o", "--no-group", "--no-g"], BOTH, Refused(OWNERS)),
    row(
        &["--fake-super"],
        BOTH,
        Refused("dmover does not store owners in attributes; run as root to keep owners"),
    ),
    row(
        &["--force"],
        SYNC,
        Refused("omit it: --delete removes a directory where SOURCE has an entry of another type"),
    ),
    row(&["--force"], COPY, Ignored("entries that differ are replaced")),
    row(&["--delete-before"], SYNC, Refused(DELETES)),
    row(
        &["--delete-excluded", "--delete-missing-args"],
        SYNC,
        Refused("sync never deletes entries that a rule excludes; remove them by hand"),
    ),
    row(
        &["--ignore-errors"],
        SYNC,
        Refused("sync deletes nothing after it failed to read a directory; fix that error first"),
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
    row(
        &["--no-links", "--no-l"],
        BOTH,
        Refused("symbolic links are copied as links; follow them by -L, or exclude them by name"),
    ),
    row(
        &["--no-D", "--no-devices", "--no-specials"],
        BOTH,
        Refused("devices, FIFOs and sockets are copied; exclude them by name"),
    ),
    row(
        &["--compress-level", "--zl", "--compress-choice", "--zc"],
        BOTH,
        Refused(
            "omit it: data streams between hosts are compressed by Zstandard, level 1, see --compress",
        ),
    ),
    row(
        &["--list-only"],
        BOTH,
        Refused("use ls or find to list files; -n -i lists what a run would do"),
    ),
    row(
        &["-B", "--block-size"],
        BOTH,
        Refused("omit it: a file that differs is copied without block checksums"),
    ),
    row(
        &["-M", "--remote-option", "--address", "--port", "--sockopts", "--password-file"],
        BOTH,
        Refused(REMOTE),
    ),
    row(
        &["--preallocate"],
        BOTH,
        Refused("omit it: dmover decides for each file whether it reserves its space first"),
    ),
    row(&["--debug"], BOTH, Refused("use -vv, or set DMOVER_LOG=debug")),
    row(
        &["--write-batch", "--only-write-batch", "--read-batch"],
        BOTH,
        Refused("dmover has no batch files; run the same command for each destination"),
    ),
    row(&["--immutable"], BOTH, Refused("use 'dmover copy --no-clobber', which skips what exists")),
    row(&["--use-json-log"], BOTH, Refused("use --log-file FILE with --log-format=json")),
    row(
        &["--checkers"],
        BOTH,
        Refused("use -j N, which limits operations of all kinds in progress"),
    ),
];
