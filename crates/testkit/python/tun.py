"""Makes a TUN device in this process's network namespace, and sends its descriptor over standard input, a socket."""
import fcntl
import os
import socket
import struct
import sys

TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000

device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
request = struct.pack("16sH22x", sys.argv[1].encode(), IFF_TUN | IFF_NO_PI)
fcntl.ioctl(device, TUNSETIFF, request)
with socket.socket(fileno=0) as peer:
    socket.send_fds(peer, [b"."], [device])
