"""Sets project id and inheritance of one file or directory: project_of.py ID INHERIT PATH.

Exit status 0 only if both stay.
"""

import fcntl
import os
import stat
import struct
import sys

FS_IOC_FSGETXATTR = 0x801C581F
FS_IOC_FSSETXATTR = 0x401C5820
XFLAG_PROJINHERIT = 0x200
LAYOUT = "IIIII8x"


def main():
    project, inherit, path = int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3]
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOATIME)
        fields = list(struct.unpack(LAYOUT, fcntl.ioctl(fd, FS_IOC_FSGETXATTR, bytes(28))))
        fields[0] &= ~XFLAG_PROJINHERIT
        # Only a directory has anything to hand down, and what has no project hands none down.
        if inherit and project and stat.S_ISDIR(os.fstat(fd).st_mode):
            fields[0] |= XFLAG_PROJINHERIT
        fields[3] = project
        fcntl.ioctl(fd, FS_IOC_FSSETXATTR, struct.pack(LAYOUT, *fields))
        kept = struct.unpack(LAYOUT, fcntl.ioctl(fd, FS_IOC_FSGETXATTR, bytes(28)))
        return 0 if (kept[3], kept[0] & XFLAG_PROJINHERIT) == (project, fields[0] & XFLAG_PROJINHERIT) else 1
    except OSError as error:
        print(f"project_of: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
