"""Makes a TUN device in this process's network namespace, and sends its descriptor over standard input, a socket."""
import errno
import fcntl
import os
import socket
import struct
import sys

TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
TUNSETVNETHDRSZ = 0x400454D8
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
IFF_VNET_HDR = 0x4000
# Checksums, segments of TCP over IPv4 and IPv6, and the congestion mark in the first of them.
OFFLOADS = 0x01 | 0x02 | 0x04 | 0x08
# Segments of UDP, since Linux 6.2; the kernel takes both flags or none.
UDP_OFFLOADS = 0x20 | 0x40
# struct virtio_net_hdr without the fields that only virtio itself uses.
HEADER_BYTES = 10

device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
request = struct.pack("16sH22x", sys.argv[1].encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR)
fcntl.ioctl(device, TUNSETIFF, request)
fcntl.ioctl(device, TUNSETVNETHDRSZ, struct.pack("i", HEADER_BYTES))
try:
    fcntl.ioctl(device, TUNSETOFFLOAD, OFFLOADS | UDP_OFFLOADS)
except OSError as error:
    if error.errno != errno.EINVAL:
        raise
    fcntl.ioctl(device, TUNSETOFFLOAD, OFFLOADS)
with socket.socket(fileno=0) as peer:
    socket.send_fds(peer, [b"."], [device])
