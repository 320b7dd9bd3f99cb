//! Texts that stand below the options of several verbs.

macro_rules! exit_codes {
    () => {
        "Exit codes:
  0  all done, nothing wrong
  1  compared, and the two sides differ
  2  wrong usage or configuration, or a refused loss: nothing was changed;
     or deletes that need --yes: nothing was deleted
  3  finished, but some entries failed, lost an attribute or were withheld
  4  finished; only entries are missing that vanished or changed at the source
  5  stopped by a limit that was given (--max-errors, --max-delete, --max-duration)
  6  temporary trouble: the job, or another one over its destination, is running already
  7  integrity failure: what was written does not read back equal
  8  could not go on
  9  waits for a human decision
  128+N  ended by signal N"
    };
}

macro_rules! patterns {
    () => {
        "Patterns (--include, --exclude, and files of them; lines that start with # or ; are comments):
  Rules are tried in the order in which they are given; the first that matches decides, and what
  none matches takes part. A directory that is left out is not entered, so nothing below it can be
  included again.
  name        matches an entry of that name at any depth
  a/b         matches that path at any depth; /a/b only directly below SOURCE
  dir/        matches directories only
  *  ?  [a-z] [[:digit:]] match within one name; ** matches across slashes, also inside a name (a**b);
  dir/*** matches dir and everything below it. Bytes count: ? is one byte
  A backslash takes the meaning from the character after it, in patterns that have any of * ? ["
    };
}

macro_rules! copy_examples {
    () => {
        "Examples:
  dmover copy run42 /scratch/           copy the tree into /scratch, keeping everything
  dmover copy -T run42 /scratch/copy    copy it as exactly that name
  dmover copy -n -i --exclude '*.tmp' a b
                                        say what would be done, change nothing
Interrupted? The same command goes on where it stopped, to the same place."
    };
}

macro_rules! sync_examples {
    () => {
        "Examples:
  dmover sync /old/projects /new/projects
                                        a pass; the same command again brings over what has changed
  dmover sync -n --delete a b           list what would be done, and what would go
  dmover sync --delete --max-delete=1% --trash /new/.trash a b
                                        mirror deletions, up to a hundredth of DEST, into a trash
Interrupted? The same command goes on."
    };
}

macro_rules! verify_examples {
    () => {
        "Examples:
  dmover verify run42 /scratch/run42    compare every entry, with the content of every file
  dmover verify --level=mtime a b       only what a look tells: types, sizes, times, owners, modes
  dmover verify --repair a b            bring over again what differs, and only that
  dmover verify --manifest run42.dm /archive
                                        is everything still there as it was when it was copied?
SOURCE is compared with DEST itself, not with something in DEST that has its name, unless SOURCE is a
file and DEST a directory, or -t is given."
    };
}

macro_rules! sum_examples {
    () => {
        "Examples:
  dmover sum run42 > run42.b3           digests of a tree, for 'dmover sum -c' or 'b3sum -c'
  dmover sum -c run42.b3                are the files still as they were?
  dmover sum -a sha256 --tag *.tar      SHA-256 of archives, each line with its type
  dmover sum --check-tree big > big.b3  a digest for every MiB as well, so that a check says where"
    };
}

macro_rules! completion_examples {
    () => {
        "Examples:
  dmover completions bash > /usr/share/bash-completion/completions/dmover
  dmover completions zsh > /usr/local/share/zsh/site-functions/_dmover
  dmover completions fish > /usr/share/fish/vendor_completions.d/dmover.fish
  source <(dmover completions bash)     for this shell only"
    };
}
