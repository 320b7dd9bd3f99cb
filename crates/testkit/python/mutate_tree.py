"""Changes a tree at random: mutate_tree.py ROOT SEED [nomap] [attributes] [steps=N].

It goes on until standard input ends, or makes N attempts. Prints a line before the first change, and the number of
changes at the end. Operations that lose a race fail, which is fine. `attributes`: every kind of metadata changes, too.
"""
import array
import fcntl
import mmap
import os
import random
import select
import struct
import sys

root, seed, words = os.fsencode(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
maps = "nomap" not in words
steps = next((int(word[6:]) for word in words if word.startswith("steps=")), None)
draw = random.Random(seed)
held = []


def entries(kind):
    found = []
    for at, directories, files in os.walk(root):
        directories.sort()
        files.sort()
        if kind == "directory":
            found.append(at)
        else:
            found.extend(os.path.join(at, name) for name in files)
    return found


def pick(kind):
    found = entries(kind)
    return draw.choice(found) if found else None


def regular():
    """Opening a FIFO would wait for somebody at its other end."""
    path = pick("file")
    if path is None or os.path.islink(path) or not os.path.isfile(path):
        raise OSError("no regular file")
    return path


def new_name():
    return os.path.join(pick("directory") or root, b"n%d" % draw.randrange(10**9))


def content():
    return draw.randbytes(draw.choice([0, 10, 4096, 20_000]))


def create():
    with open(new_name(), "xb") as file:
        file.write(content())


def write():
    with open(regular(), "r+b") as file:
        file.seek(draw.randrange(10_000))
        file.write(draw.randbytes(draw.randrange(1, 5000)))


def append():
    with open(regular(), "ab") as file:
        file.write(content())


def truncate():
    os.truncate(regular(), draw.randrange(9000))


def write_into(mapping, descriptor):
    """A page beyond the end of a file cannot be written to, and trying ends the process."""
    size = min(os.fstat(descriptor).st_size, len(mapping))
    if size:
        mapping[draw.randrange(size)] = draw.randrange(256)


def write_mapped():
    """Writes through a mapping now, and again later, when the page is writable and no time moves."""
    if len(held) > 3 or (held and draw.random() < 0.5):
        one = draw.choice(held)
        for _ in range(draw.randrange(1, 4)):
            write_into(*one)
        if draw.random() < 0.3:
            held.remove(one)
            one[0].close()
            os.close(one[1])
        return
    path = regular()
    if os.path.getsize(path) == 0:
        return
    with open(path, "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    # Open for reading only: what makes it open for writing is the mapping.
    held.append((mapping, os.open(path, os.O_RDONLY)))
    write_into(*held[-1])


def rename():
    os.rename(pick("file"), new_name())


def rename_directory():
    at = pick("directory")
    if at != root:
        os.rename(at, new_name())


def exchange():
    one, other = pick("file"), pick("file")
    between = new_name()
    os.rename(one, between)
    os.rename(other, one)
    os.rename(between, other)


def link():
    os.link(pick("file"), new_name(), follow_symlinks=False)


def symlink():
    os.symlink(b"to-%d" % draw.randrange(99), new_name())


def unlink():
    os.unlink(pick("file"))


def make_directory():
    os.mkdir(new_name())


def remove_directory():
    at = pick("directory")
    if at == root:
        return
    for below, directories, files in os.walk(at, topdown=False):
        # Links to directories count as directories.
        links = [name for name in directories if os.path.islink(os.path.join(below, name))]
        for name in files + links:
            os.unlink(os.path.join(below, name))
        os.rmdir(below)


def change_mode():
    """Directories stay open to their owner: without privilege nobody could read them."""
    kind = draw.choice(["file", "directory"])
    os.chmod(pick(kind), draw.choice([0o755, 0o700] if kind == "directory" else [0o600, 0o644, 0o755]))


def replace():
    path, between = pick("file"), new_name()
    with open(between, "xb") as file:
        file.write(content())
    os.rename(between, path)


def set_attribute():
    os.setxattr(pick("file"), b"user.x", b"%d" % draw.randrange(9), follow_symlinks=False)


def change_type():
    path = pick("file")
    os.unlink(path)
    draw.choice([lambda: os.mkdir(path), lambda: os.symlink(b"x", path), lambda: os.mkfifo(path)])()


def pick_any():
    return pick(draw.choice(["file", "file", "directory"]))


def set_times():
    times = tuple(draw.randrange(2 * 10**18) for _ in range(2))
    os.utime(pick_any(), ns=times, follow_symlinks=False)


def set_any_attribute():
    space = draw.choice([b"user.", b"user.", b"trusted."])
    value = draw.randbytes(draw.choice([0, 1, 20, 900]))
    os.setxattr(pick_any(), space + b"a%d" % draw.randrange(4), value, follow_symlinks=False)


def remove_attribute():
    path = pick_any()
    os.removexattr(path, draw.choice(os.listxattr(path, follow_symlinks=False)), follow_symlinks=False)


def set_acl():
    """linux/posix_acl_xattr.h: a version, then tag, permissions and id of each entry."""
    user_obj, user, group_obj, mask, other = 0x01, 0x02, 0x04, 0x10, 0x20
    entries = [(user_obj, 7, -1), (user, draw.randrange(8), 1000 + draw.randrange(3)), (group_obj, draw.randrange(8), -1),
               (mask, draw.randrange(8), -1), (other, draw.randrange(8), -1)]
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    if draw.random() < 0.5:
        os.setxattr(pick("directory"), b"system.posix_acl_default", value)
    else:
        path = pick_any()
        if not os.path.islink(path):
            os.setxattr(path, b"system.posix_acl_access", value)


def set_owner():
    ids = [draw.choice([-1, 0, 1000, 12345]) for _ in range(2)]
    os.chown(pick_any(), *ids, follow_symlinks=False)


def set_mode_bits():
    path = pick_any()
    if not os.path.islink(path):
        os.chmod(path, draw.randrange(0o10000) | (0o700 if os.path.isdir(path) else 0o400))


def set_capability():
    """linux/capability.h: version 2, permitted and inheritable sets."""
    value = struct.pack("<5I", 0x02000000, 1 << draw.randrange(30), 0, 0, 0)
    os.setxattr(regular(), b"security.capability", value)


def set_flags():
    """FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of linux/fs.h: nodump and noatime change nothing that a test needs."""
    path = pick("directory") if draw.random() < 0.3 else regular()
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        flags = array.array("L", [0])
        fcntl.ioctl(descriptor, 0x80086601, flags)
        flags[0] ^= draw.choice([0x40, 0x80])
        fcntl.ioctl(descriptor, 0x40086602, flags)
    finally:
        os.close(descriptor)


def make_special():
    os.mknod(new_name(), draw.choice([0o010644, 0o020600, 0o060640, 0o140755]), os.makedev(1, draw.randrange(9)))


def make_sparse():
    with open(new_name(), "xb") as file:
        for _ in range(draw.randrange(3)):
            file.seek(draw.randrange(1 << 20))
            file.write(draw.randbytes(5000))
        file.truncate(draw.randrange(1 << 20))


OPERATIONS = [
    create, create, write, write, append, truncate, rename, rename_directory, exchange, link,
    symlink, unlink, make_directory, remove_directory, change_mode, replace, set_attribute, change_type,
] + ([write_mapped] * 4 if maps else [])
if "attributes" in words:
    OPERATIONS += [
        set_times, set_times, set_any_attribute, set_any_attribute, remove_attribute, remove_attribute, set_acl, set_acl,
        set_owner, set_mode_bits, set_capability, set_flags, make_special, make_sparse,
    ]

print("ready", flush=True)
done = attempts = 0
while not select.select([sys.stdin], [], [], 0)[0] if steps is None else attempts < steps:
    attempts += 1
    try:
        draw.choice(OPERATIONS)()
        done += 1
    except (OSError, TypeError, ValueError, IndexError):
        pass
    # A tree that has become large is thinned out.
    if done % 50 == 0 and len(entries("file")) > 400:
        remove_directory()
# Written to a last time while they are still mapped.
for mapping, descriptor in held:
    write_into(mapping, descriptor)
    mapping.close()
print(done, flush=True)
