//! Texts below the options of several verbs.

macro_rules! exit_codes {
    () => {
        "Exit codes:
  0  success: everything is done
  1  compared, and the two sides differ
  2  usage or configuration error, or refused because data could be lost: nothing
     was changed; or deletes need --yes: nothing was deleted
  3  finished, but entries failed or lost an attribute, or deletes were withheld
  4  finished; only entries that vanished or changed at the source are missing
  5  stopped by --max-errors, --max-delete or --max-duration
  6  temporary failure, retry later: another run writes to the same place, or there
     is no broker or mover
  7  integrity failure: data does not read back equal, or does not match its manifest
  8  fatal error: dmover could not continue
  9  waits for a human decision
  128+N  ended by signal N"
    };
}

macro_rules! patterns {
    () => {
        "Patterns (of --include, --exclude, --filter, and in files, where # or ; starts a comment line):
  Rules are tried in the given order, and the first one that matches decides. An entry that no
  rule matches is included. dmover does not enter an excluded directory, so no rule can include
  entries below it.
  name        matches an entry of this name at any depth
  a/b         matches this path at any depth; /a/b matches only directly below SOURCE
  dir/        matches directories only
  dir/***     matches dir and everything below it
  *  ?  [a-z]  [[:digit:]]
              match within one name; ? matches one byte, which may be a part of a character
  **          matches across slashes, also inside a name (a**b)
  \\           escapes the next character, in patterns that contain *, ? or ["
    };
}

macro_rules! copy_examples {
    () => {
        "Examples:
  dmover copy run42 /scratch/           copy the tree to /scratch/run42
  dmover copy -T run42 /scratch/copy    copy the tree to /scratch/copy
  dmover copy -n -i --exclude '*.tmp' a b
                                        list what would be done; change nothing
To resume after an interruption, run the same command again."
    };
}

macro_rules! sync_examples {
    () => {
        "Examples:
  dmover sync /old/projects /new/projects
                                        make a pass; later ones copy changes
  dmover sync -n --delete a b           list copies and deletes; change nothing
  dmover sync --delete --max-delete=1% --trash /new/.trash a b
                                        delete at most 1% of DEST, into a trash
To resume after an interruption, run the same command again."
    };
}

macro_rules! verify_examples {
    () => {
        "Examples:
  dmover verify run42 /scratch/run42    compare all entries and their content
  dmover verify --level=mtime a b       compare only metadata
  dmover verify --repair a b            copy again only what differs
  dmover verify --manifest run42.dm /archive
                                        compare a tree with its manifest
SOURCE is compared with DEST itself, not with the entry of that name in DEST,
unless SOURCE is a file and DEST a directory, or -t is given."
    };
}

macro_rules! sum_examples {
    () => {
        "Examples:
  dmover sum run42 > run42.b3           list the digests of a tree
  dmover sum -c run42.b3                check the files of a list
  dmover sum -a sha256 --tag *.tar      SHA-256 digests, in lines with the type
  dmover sum --check-tree big > big.b3  list digests of pieces as well"
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
