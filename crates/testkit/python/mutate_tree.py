"""Changes a tree at random until standard input ends: mutate_tree.py ROOT SEED [nomap].

Prints a line before the first change. Operations that lose a race fail, which is fine.
"""
import mmap
import os
import random
import select
import sys

root, seed = os.fsencode(sys.argv[1]), int(sys.argv[2])
maps = len(sys.argv) < 4
draw = random.Random(seed)
held = []


def entries(kind):
    found = []
    for at, directories, files in os.walk(root):
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
        for name in files:
            os.unlink(os.path.join(below, name))
        os.rmdir(below)


def change_mode():
    os.chmod(pick(draw.choice(["file", "directory"])), draw.choice([0o600, 0o644, 0o755, 0o700]))


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


OPERATIONS = [
    create, create, write, write, append, truncate, rename, rename_directory, exchange, link,
    symlink, unlink, make_directory, remove_directory, change_mode, replace, set_attribute, change_type,
] + ([write_mapped] * 4 if maps else [])

print("ready", flush=True)
done = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        draw.choice(OPERATIONS)()
        done += 1
    except (OSError, TypeError, ValueError):
        pass
    # A tree that has become large is thinned out.
    if done % 50 == 0 and len(entries("file")) > 400:
        remove_directory()
# Written to a last time while they are still mapped.
for mapping, descriptor in held:
    write_into(mapping, descriptor)
    mapping.close()
print(done, flush=True)
