//! A TUN device in a namespace: packets that the kernel sends there can be read, and what is written arrives in the kernel.
//!
//! The device has offloads: the kernel passes up to 64 KiB of a stream in one packet, behind a virtio-net header, and takes such
//! packets back whole. One system call for each 1500 bytes took more than a processor at 1 Gbit/s.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::cluster::network::{ip, namespace_file};
use crate::cluster::tool::{run, tool};
use crate::python::python;

/// A device belongs to the namespace of the process that opened it, and its name and offloads are set by ioctl(2), for which testkit
/// would need unsafe code: so a script in that namespace does both and sends the descriptor.
const SCRIPT: &str = include_str!("../../../python/tun.py");
/// Packets that the kernel keeps for a thread that has no processor at the moment; what exceeds them would be lost uncounted.
const KERNEL_QUEUE: u32 = 20_000;

/// Tries to make such a device, in a namespace that vanishes with the attempt.
pub(in crate::cluster) fn probe() -> Result<()> {
    let attempt = ["ip", "tuntap", "add", "mode", "tun", "name", "probe0"];
    run(tool(&["unshare", "--net"]).args(attempt))?;
    Ok(())
}

/// One end of a line; the kernel removes the device when it is closed.
#[derive(Debug)]
pub(super) struct Device(OwnedFd);

impl Device {
    /// Makes a device with an address of its own and that of the other end.
    pub(super) fn create(
        namespace: &str,
        name: &str,
        [own, other]: [Ipv4Addr; 2],
        mtu_bytes: u32,
    ) -> Result<Self> {
        let device = Self(open(namespace, name).context("create a TUN device")?);
        // Without an IPv6 address the kernel sends nothing on its own.
        ip(
            Some(namespace),
            &format!(
                "link set {name} addrgenmode none mtu {mtu_bytes} txqueuelen {KERNEL_QUEUE}\n\
                 addr add {own} peer {other} dev {name}\n\
                 link set {name} up\n"
            ),
        )?;
        Ok(device)
    }

    /// Reads one packet with its virtio-net header; none if there is none at the moment.
    pub(super) fn read(&self, buffer: &mut [u8]) -> rustix::io::Result<Option<usize>> {
        match rustix::io::read(&self.0, buffer) {
            Ok(length) => Ok(Some(length)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes one packet with its virtio-net header. It is lost if the kernel has no room, as on any line.
    pub(super) fn write(&self, frame: &[u8]) -> rustix::io::Result<()> {
        match rustix::io::write(&self.0, frame) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn open(namespace: &str, name: &str) -> Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut net = std::ffi::OsString::from("--net=");
    net.push(namespace_file(namespace));
    let interpreter = python();
    let mut command = tool(&["nsenter"]);
    command.arg(net).arg(interpreter.get_program()).args(["-I", "-S", "-c", SCRIPT, name]);
    let output = command.stdin(OwnedFd::from(theirs)).output().context("start nsenter")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", output.status, said.trim());
    // The other end was closed with the command and its child, so this cannot wait for ever.
    drop(command);
    receive(&ours)?.context("no descriptor came")
}

/// The descriptor that a message carries.
fn receive(socket: &UnixStream) -> Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().next())
}
