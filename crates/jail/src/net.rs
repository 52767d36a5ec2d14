//! Network namespaces: a loopback, and no way out.

use rustix::{
    fd::OwnedFd,
    fs::{Mode, OFlags},
    net::{AddressFamily, SocketType},
};
use std::{fs, io};

/// A new network namespace as a descriptor. This process moves into it.
pub fn namespace() -> io::Result<OwnedFd> {
    // SAFETY: changes this process only, which has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    raise_loopback()?;
    // Root of the box has no power over this namespace, so what root may elsewhere is allowed to all.
    allow("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    allow("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    Ok(rustix::fs::open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Where the kernel does not offer it, only low ports and `ping` are missing.
fn allow(setting: &str, value: &str) {
    let _ = fs::write(setting, value);
}

fn raise_loopback() -> io::Result<()> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: an all-zero ifreq is valid; the name fits and ends with zero; the kernel reads no more.
    let raised = unsafe {
        use std::os::fd::AsRawFd;
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)
    };
    if raised == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
