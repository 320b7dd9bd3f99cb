"""Compares two directory trees and prints each difference as one line of JSON.

It shares no code with the program under test and uses only the standard library.
Directories are opened relative to their parents, so a path may be longer than PATH_MAX.
Nothing is written to either tree: files are opened with O_NOATIME and, where the caller may,
both trees are seen through a private mount clone with noatime, because readlink() has no flag.

The last line is {"summary": {...}}. Exit status: 0 same, 1 different, 2 trouble.
"""

import argparse
import array
import base64
import collections
import ctypes
import errno
import fcntl
import fnmatch
import json
import os
import resource
import stat
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
FS_IOC_GETFLAGS = 0x80086601
FS_IOC_FSGETXATTR = 0x801C581F
XFLAG_PROJINHERIT = 0x200
# Flags that a user sets on purpose; the rest describe the file system's own state.
USER_FLAGS = {
    0x01: "secure deletion",
    0x02: "undeletable",
    0x04: "compress",
    0x08: "sync",
    0x10: "immutable",
    0x20: "append",
    0x40: "nodump",
    0x80: "noatime",
    0x400: "nocompress",
    0x8000: "notail",
    0x10000: "dirsync",
    0x20000: "topdir",
    0x800000: "nocow",
}
USER_FLAGS_MASK = sum(USER_FLAGS)

CHUNK = 1 << 20
# Below this size looking for holes costs more than reading.
SMALL = 1 << 16
LEFTOVER = b".dmover-"
# EOVERFLOW: the kernel opens a file of 2 GiB or more for a FUSE ioctl without O_LARGEFILE.
UNSUPPORTED = (errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EOVERFLOW)

TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "char",
    stat.S_IFBLK: "block",
}


def arguments():
    parser = argparse.ArgumentParser(description="compare two directory trees")
    parser.add_argument("source", type=os.fsencode)
    parser.add_argument("destination", type=os.fsencode)
    parser.add_argument("--ignore", default="", help="kinds, comma separated; KIND@TYPE narrows")
    parser.add_argument("--ignore-xattr", action="append", default=[], metavar="GLOB")
    parser.add_argument("--mtime-granularity", type=int, default=1, metavar="NS")
    parser.add_argument("--atime", action="store_true", help="compare access times too")
    parser.add_argument("--slack", type=int, default=256 << 10, metavar="BYTES")
    parser.add_argument("--limit", type=int, default=10000, help="lines printed at most")
    return parser.parse_args()


def open_root(path):
    """A descriptor of a tree, through a noatime mount clone if that is allowed."""
    plain = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    clone = noatime_clone(path)
    if clone is None:
        return plain
    try:
        seen = os.open(b".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=clone)
    except OSError:
        return plain
    finally:
        os.close(clone)
    os.close(plain)
    return seen


def noatime_clone(path):
    """open_tree(2) and mount_setattr(2); None where they are missing or not permitted."""
    at_fdcwd, recursive, empty_path, clone = -100, 0x8000, 0x1000, 1
    libc = ctypes.CDLL(None, use_errno=True)
    tree = libc.syscall(428, at_fdcwd, path, clone | os.O_CLOEXEC | recursive)
    if tree < 0:
        return None
    noatime, nodiratime, atime_mask = 0x10, 0x80, 0x70
    attributes = struct.pack("QQQQ", noatime | nodiratime, atime_mask, 0, 0)
    if libc.syscall(442, tree, b"", empty_path | recursive, attributes, len(attributes)) < 0:
        os.close(tree)
        return None
    return tree


def open_quietly(name, parent, flags):
    """Opens without following and without touching the access time."""
    flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(name, flags | os.O_NOATIME, dir_fd=parent)
    except PermissionError:
        # O_NOATIME is for the owner and for root only.
        return os.open(name, flags, dir_fd=parent)


def through_proc(parent, name):
    """A short path to an entry, for the calls that know no directory descriptor."""
    return b"/proc/self/fd/%d/%s" % (parent, name)


XATTR_SIZE_MAX = 65536


def xattr_value(target, name, follow):
    """The value, asked for with room for any: zfs-fuse answers a small buffer wrongly, as os.getxattr has."""
    if isinstance(target, int):
        call = LIBC.fgetxattr
    else:
        call = LIBC.getxattr if follow else LIBC.lgetxattr
    buffer = ctypes.create_string_buffer(XATTR_SIZE_MAX)
    length = call(target, os.fsencode(name), buffer, XATTR_SIZE_MAX)
    if length < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return buffer.raw[:length]


def xattrs(target, follow, globs):
    """All extended attributes that the caller may see, of a descriptor or of a path."""
    found = {}
    options = {} if follow else {"follow_symlinks": False}
    try:
        names = os.listxattr(target, **options)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return found
        raise
    for name in names:
        # XFS shows the same ACL a second time under its own name, btrfs the compress flag.
        shown_twice = name.startswith(("trusted.SGI_ACL_", "btrfs.compression"))
        if shown_twice or any(fnmatch.fnmatch(name, g) for g in globs):
            continue
        found[name] = xattr_value(target, name, follow)
    return found


def inode_flags(fd):
    value = array.array("L", [0])
    try:
        fcntl.ioctl(fd, FS_IOC_GETFLAGS, value, True)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return 0
        raise
    return value[0] & USER_FLAGS_MASK


def project(fd):
    """(project id, whether children inherit it)."""
    try:
        raw = fcntl.ioctl(fd, FS_IOC_FSGETXATTR, bytes(28))
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return (0, False)
        raise
    xflags, _extsize, _nextents, project_id = struct.unpack_from("IIII", raw)
    return (project_id, bool(xflags & XFLAG_PROJINHERIT))


def flag_names(value):
    return ",".join(name for bit, name in USER_FLAGS.items() if value & bit) or "none"


def show(value):
    """A value as text that every JSON reader takes, so without lone surrogates."""
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


def next_data(fd, position, size):
    """The offset of the next data at or after `position`; `size` if only a hole follows."""
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        if error.errno in UNSUPPORTED:
            return position
        raise


def read_exactly(fd, length, position):
    data = os.pread(fd, length, position)
    while len(data) < length:
        more = os.pread(fd, length - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def first_mismatch(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def content_mismatch(source, destination, size):
    """The offset of the first byte that differs, or None. Holes in both are not read."""
    position = 0
    while position < size:
        if size > SMALL:
            position = min(
                next_data(source, position, size), next_data(destination, position, size)
            )
            if position >= size:
                break
        length = min(CHUNK, size - position)
        ours, theirs = (read_exactly(fd, length, position) for fd in (source, destination))
        if ours != theirs:
            return position + first_mismatch(ours, theirs)
        position += length
    return None


class Comparison:
    """The state of one run: options, counters and what is known about hard links."""

    def __init__(self, options):
        self.options = options
        self.ignored = set(filter(None, options.ignore.split(",")))
        self.kinds = collections.Counter()
        self.entries = 0
        self.bytes = 0
        self.printed = 0
        self.atimes_lost = 0
        self.trouble = False
        self.same_root = False
        # Per side: inode of one side -> (inode of the other side, first name).
        self.forward = {}
        self.backward = {}

    def report(self, path, kind, entry_type, source, destination):
        tags = {kind, f"{kind}@{entry_type}"}
        if not path:
            tags.add(f"{kind}@top")
        if kind == "error":
            self.trouble = True
        elif tags & self.ignored:
            return
        self.kinds[kind] += 1
        if self.printed >= self.options.limit:
            return
        self.printed += 1
        line = {
            "path_b64": base64.b64encode(path).decode(),
            "path": path.decode("utf-8", "backslashreplace"),
            "type": entry_type,
            "kind": kind,
            "source": show(source),
            "destination": show(destination),
        }
        print(json.dumps(line))

    def wants(self, kind):
        return kind not in self.ignored

    def restore_atime(self, before, now, **target):
        """For file systems that ignore O_NOATIME, and for readlink without a mount clone."""
        if before.st_atime_ns == now.st_atime_ns:
            return
        path = target.pop("path")
        try:
            os.utime(path, ns=(before.st_atime_ns, now.st_mtime_ns), **target)
        except OSError:
            self.atimes_lost += 1

    # --- one entry -------------------------------------------------------------------------

    def entry(self, parents, name, path):
        """Compares one name that both sides have; true if both are directories."""
        self.entries += 1
        stats = [os.lstat(name, dir_fd=fd) for fd in parents]
        source, destination = stats
        types = [TYPES.get(stat.S_IFMT(s.st_mode), "unknown") for s in stats]
        if types[0] != types[1]:
            self.report(path, "type", types[0], types[0], types[1])
            return False
        kind = types[0]
        self.common(path, kind, source, destination)
        if kind != "dir":
            self.hard_links(path, kind, source, destination)
        if kind == "symlink":
            self.symlink(parents, name, path, stats)
        if kind in ("file", "dir"):
            self.opened(parents, name, path, kind, stats)
        else:
            found = [
                xattrs(through_proc(fd, name), False, self.options.ignore_xattr) for fd in parents
            ]
            self.attributes(path, kind, *found)
        return kind == "dir"

    def common(self, path, kind, source, destination):
        modes = [stat.S_IMODE(s.st_mode) for s in (source, destination)]
        if modes[0] != modes[1]:
            self.report(path, "mode", kind, *(f"{mode:04o}" for mode in modes))
        if source.st_uid != destination.st_uid:
            self.report(path, "uid", kind, source.st_uid, destination.st_uid)
        if source.st_gid != destination.st_gid:
            self.report(path, "gid", kind, source.st_gid, destination.st_gid)
        if kind in ("char", "block") and source.st_rdev != destination.st_rdev:
            numbers = [(os.major(s.st_rdev), os.minor(s.st_rdev)) for s in (source, destination)]
            self.report(path, "rdev", kind, *numbers)
        granule = self.options.mtime_granularity
        if abs(source.st_mtime_ns - destination.st_mtime_ns) >= granule:
            self.report(path, "mtime", kind, source.st_mtime_ns, destination.st_mtime_ns)
        if self.options.atime and abs(source.st_atime_ns - destination.st_atime_ns) >= granule:
            self.report(path, "atime", kind, source.st_atime_ns, destination.st_atime_ns)

    def hard_links(self, path, kind, source, destination):
        """Names of one inode at the source must be names of one inode at the destination."""
        ours = (source.st_dev, source.st_ino)
        theirs = (destination.st_dev, destination.st_ino)
        if ours == theirs and not self.same_root:
            self.report(path, "hardlink", kind, "an inode of its own", "the source's inode")
        if source.st_nlink < 2 and destination.st_nlink < 2:
            return
        known, first = self.forward.setdefault(ours, (theirs, path))
        if known != theirs:
            self.report(path, "hardlink", kind, f"same inode as {first!r}", "another inode")
        known, first = self.backward.setdefault(theirs, (ours, path))
        if known != ours:
            self.report(path, "hardlink", kind, "another inode", f"same inode as {first!r}")

    def symlink(self, parents, name, path, stats):
        targets = [os.readlink(name, dir_fd=fd) for fd in parents]
        if targets[0] != targets[1]:
            self.report(path, "target", "symlink", *targets)
        for fd, before in zip(parents, stats):
            now = os.lstat(name, dir_fd=fd)
            self.restore_atime(before, now, path=name, dir_fd=fd, follow_symlinks=False)

    def opened(self, parents, name, path, kind, stats):
        """What needs a descriptor: content, attributes, inode flags, project."""
        opened = []
        try:
            extra = os.O_DIRECTORY if kind == "dir" else 0
            for fd in parents:
                opened.append(open_quietly(name, fd, extra))
            found = [xattrs(fd, True, self.options.ignore_xattr) for fd in opened]
            self.attributes(path, kind, *found)
            if self.wants("flags"):
                flags = [inode_flags(fd) for fd in opened]
                if flags[0] != flags[1]:
                    self.report(path, "flags", kind, *map(flag_names, flags))
            if self.wants("project"):
                projects = [project(fd) for fd in opened]
                if projects[0] != projects[1]:
                    self.report(path, "project", kind, *projects)
            if kind == "file":
                self.data(path, opened, stats)
        finally:
            for fd in opened:
                os.close(fd)

    def attributes(self, path, kind, source, destination):
        for name in sorted(source.keys() | destination.keys()):
            values = source.get(name), destination.get(name)
            if values[0] == values[1]:
                continue
            what = "xattr"
            if name.startswith("system.posix_acl_"):
                what = "acl"
            elif name == "security.capability":
                what = "capability"
            shown = (f"{name}=absent" if v is None else f"{name}={v!r}" for v in values)
            self.report(path, what, kind, *shown)

    def data(self, path, opened, stats):
        source, destination = stats
        if source.st_size != destination.st_size:
            self.report(path, "size", "file", source.st_size, destination.st_size)
        elif self.wants("content"):
            self.bytes += source.st_size
            offset = content_mismatch(opened[0], opened[1], source.st_size)
            if offset is not None:
                self.report(path, "content", "file", f"at offset {offset}", "other byte")
            for fd, before in zip(opened, stats):
                self.restore_atime(before, os.fstat(fd), path=fd)
        if self.wants("allocation"):
            self.allocation(path, opened, stats)

    def allocation(self, path, opened, stats):
        """More blocks at the destination mean that holes were filled."""
        used = [s.st_blocks * 512 for s in stats]
        if used[1] <= used[0] + self.options.slack:
            return
        # Delayed and speculative allocation settle when the data is flushed.
        for fd in opened:
            try:
                os.fsync(fd)
            except OSError:
                pass
        used = [os.fstat(fd).st_blocks * 512 for fd in opened]
        if used[1] > used[0] + self.options.slack:
            self.report(path, "allocation", "file", *(f"{bytes_} bytes" for bytes_ in used))

    # --- the trees -------------------------------------------------------------------------

    def guarded(self, parents, name, path):
        try:
            return self.entry(parents, name, path)
        except OSError as error:
            self.report(path, "error", "unknown", str(error), "")
            return False

    def directory(self, parents, path):
        """Compares the names of one directory; the names that are directories on both sides."""
        listed = []
        for fd in parents:
            before = os.fstat(fd)
            listed.append({os.fsencode(name) for name in os.listdir(fd)})
            self.restore_atime(before, os.fstat(fd), path=fd)
        source, destination = listed
        deeper = []
        for name in sorted(source | destination):
            full = path + b"/" + name if path else name
            if name in destination and name.startswith(LEFTOVER):
                self.report(full, "leftover", "unknown", name in source, True)
            elif name not in destination:
                self.report(full, "missing", self.type_of(parents[0], name), "present", "absent")
            elif name not in source:
                self.report(full, "extra", self.type_of(parents[1], name), "absent", "present")
            elif self.guarded(parents, name, full):
                deeper.append(name)
        deeper.reverse()
        return deeper

    def type_of(self, parent, name):
        try:
            return TYPES.get(stat.S_IFMT(os.lstat(name, dir_fd=parent).st_mode), "unknown")
        except OSError:
            return "unknown"

    def run(self, roots):
        """Depth first; one pair of descriptors is open for each level."""
        identities = [(s.st_dev, s.st_ino) for s in map(os.fstat, roots)]
        self.same_root = identities[0] == identities[1]
        self.guarded(roots, b".", b"")
        stack = [(roots, b"", self.directory(roots, b""))]
        while stack:
            parents, path, deeper = stack[-1]
            if not deeper:
                for fd in parents:
                    os.close(fd)
                stack.pop()
                continue
            name = deeper.pop()
            full = path + b"/" + name if path else name
            try:
                opened = [open_quietly(name, fd, os.O_DIRECTORY) for fd in parents]
                stack.append((opened, full, self.directory(opened, full)))
            except OSError as error:
                self.report(full, "error", "dir", str(error), "")

    def summary(self):
        return {
            "entries": self.entries,
            "bytes": self.bytes,
            "differences": sum(self.kinds.values()),
            "kinds": dict(sorted(self.kinds.items())),
            "atimes_lost": self.atimes_lost,
        }


def main():
    options = arguments()
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    comparison = Comparison(options)
    try:
        comparison.run([open_root(options.source), open_root(options.destination)])
    except OSError as error:
        print(f"compare_trees: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"summary": comparison.summary()}))
    if comparison.trouble:
        return 2
    return 1 if comparison.kinds else 0


if __name__ == "__main__":
    sys.exit(main())
