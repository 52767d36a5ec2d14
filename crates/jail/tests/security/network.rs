//! The network: a box has a loopback of its own, and nothing else.

use super::probe::{
    Arg::{B, N},
    Attempt, Facts, Outcome, apart, best, call, host, judged, no_control, nothing, refused, untried, won,
};
use libc::{CLONE_NEWNET, EAFNOSUPPORT, ECONNREFUSED, ENETUNREACH, ENOENT, EPERM};
use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as UnixAddress, UnixStream},
    },
    time::Duration,
};

/// Of sockets that keep messages apart; not every libc names it.
const SEQPACKET: libc::c_int = 5;
const PATIENCE: Duration = Duration::from_secs(3);
const NO_NET: &str = "not every host is on the net";

pub const ATTEMPTS: &[Attempt] = &[
    host("local_network", local_network, &[ENETUNREACH]),
    host("datagram_to_the_local_network", datagram_to_the_local_network, &[ENETUNREACH]),
    no_control("internet", internet, ENETUNREACH, NO_NET),
    no_control("internet_of_ipv6", internet_of_ipv6, ENETUNREACH, NO_NET),
    no_control("metadata_service", metadata_service, ENETUNREACH, NO_NET),
    no_control("multicast", multicast, ENETUNREACH, NO_NET),
    host("loopback", loopback, &[ECONNREFUSED]),
    host("loopback_of_ipv6", loopback_of_ipv6, &[ECONNREFUSED]),
    host("any_address", any_address, &[ECONNREFUSED]),
    host("abstract_socket", abstract_socket, &[ECONNREFUSED]),
    host("socket_file", socket_file, &[ENOENT]),
    host("interfaces", interfaces, &[0]),
    apart("change_an_interface", change_an_interface, CLONE_NEWNET, &[EPERM]),
    host("raw_socket", raw_socket, &[EPERM]),
    host("raw_socket_of_ipv6", raw_socket_of_ipv6, &[EPERM]),
    host("packet_socket", packet_socket, &[EAFNOSUPPORT]),
    host("machine_socket", machine_socket, &[EAFNOSUPPORT]),
    host("crypto_socket", crypto_socket, &[EAFNOSUPPORT]),
    host("kernel_events", kernel_events, &[EAFNOSUPPORT]),
    host("firewall", firewall, &[EAFNOSUPPORT]),
    host("audit", audit, &[EAFNOSUPPORT]),
    host("sockets_of_all", sockets_of_all, &[EAFNOSUPPORT]),
    host("other_families", other_families, &[EAFNOSUPPORT]),
    host("foreign_sender", foreign_sender, &[EPERM]),
];

fn connect(address: &str, port: &str) -> Outcome {
    match (address.parse::<IpAddr>(), port.parse::<u16>()) {
        (Ok(address), Ok(port)) => {
            let address = SocketAddr::new(address, port);
            judged(TcpStream::connect_timeout(&address, PATIENCE), &address.to_string())
        }
        _ => untried("the host has no such address"),
    }
}

fn local_network(facts: &Facts) -> Outcome {
    connect(facts.get("lan"), facts.get("port"))
}

fn send(address: &str, port: u16) -> Outcome {
    let Ok(address) = address.parse::<IpAddr>() else { return untried("the host has no such address") };
    let sent = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"x", (address, port)));
    judged(sent, &address.to_string())
}

fn datagram_to_the_local_network(facts: &Facts) -> Outcome {
    send(facts.get("lan"), 9)
}

fn internet(_: &Facts) -> Outcome {
    connect("1.1.1.1", "80")
}

fn internet_of_ipv6(_: &Facts) -> Outcome {
    connect("2606:4700:4700::1111", "80")
}

/// Where clouds give keys to whoever asks.
fn metadata_service(_: &Facts) -> Outcome {
    connect("169.254.169.254", "80")
}

fn multicast(_: &Facts) -> Outcome {
    send("224.0.0.251", 5353)
}

fn loopback(facts: &Facts) -> Outcome {
    connect("127.0.0.1", facts.get("port"))
}

fn loopback_of_ipv6(facts: &Facts) -> Outcome {
    connect(&Ipv6Addr::LOCALHOST.to_string(), facts.get("port6"))
}

fn any_address(facts: &Facts) -> Outcome {
    connect("0.0.0.0", facts.get("port"))
}

fn abstract_socket(facts: &Facts) -> Outcome {
    let address = UnixAddress::from_abstract_name(facts.get("abstract"));
    judged(address.and_then(|address| UnixStream::connect_addr(&address)), "an abstract socket")
}

fn socket_file(facts: &Facts) -> Outcome {
    judged(UnixStream::connect(facts.get("socket")), "a socket in a folder")
}

fn open(family: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> Outcome {
    let kind = kind | libc::SOCK_CLOEXEC;
    let opened = call(libc::SYS_socket, [N(family.into()), N(kind.into()), N(protocol.into())]);
    judged(opened, "socket")
}

fn raw_socket(_: &Facts) -> Outcome {
    open(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)
}

fn raw_socket_of_ipv6(_: &Facts) -> Outcome {
    open(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6)
}

fn packet_socket(_: &Facts) -> Outcome {
    open(libc::AF_PACKET, libc::SOCK_RAW, 0)
}

/// To the machine around a virtual machine.
fn machine_socket(_: &Facts) -> Outcome {
    open(libc::AF_VSOCK, libc::SOCK_STREAM, 0)
}

fn crypto_socket(_: &Facts) -> Outcome {
    open(libc::AF_ALG, SEQPACKET, 0)
}

fn kernel_events(_: &Facts) -> Outcome {
    open(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT)
}

fn firewall(_: &Facts) -> Outcome {
    open(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER)
}

fn audit(_: &Facts) -> Outcome {
    open(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT)
}

fn sockets_of_all(_: &Facts) -> Outcome {
    open(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG)
}

/// Many a hole was in a family that hardly anybody uses.
fn other_families(_: &Facts) -> Outcome {
    let usual = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    // One that every kernel has comes first: on the host the others might load modules.
    let others = [libc::AF_PACKET].into_iter().chain(1..46).filter(|family| !usual.contains(family));
    let kinds = [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, SEQPACKET];
    best(others.flat_map(|family| kinds.map(|kind| open(family, kind, 0))))
}

/// Packets that seem to come from others.
fn foreign_sender(_: &Facts) -> Outcome {
    use std::os::fd::AsRawFd;
    let Ok(socket) = UdpSocket::bind("127.0.0.1:0") else { return untried("no socket") };
    let mut on = 1u32.to_ne_bytes();
    let (level, option) = (N(libc::SOL_IP.into()), N(libc::IP_TRANSPARENT.into()));
    let set = call(libc::SYS_setsockopt, [N(socket.as_raw_fd().into()), level, option, B(&mut on), N(4)]);
    judged(set, "setsockopt")
}

fn interfaces(_: &Facts) -> Outcome {
    match interface_names() {
        Err(error) => refused(&error, "netlink"),
        Ok(names) => match names.iter().find(|name| *name != "lo") {
            Some(name) => won(format!("there is {name}")),
            None => nothing(format!("{names:?}")),
        },
    }
}

const HEADER: usize = 16;
const LINK_INFO: usize = 16;
const ROOM: usize = 1 << 16;

/// Asks the kernel for all interfaces.
fn interface_names() -> io::Result<Vec<String>> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    let socket = call(libc::SYS_socket, [N(libc::AF_NETLINK.into()), N(kind.into()), N(0)])?;
    let mut request = [0u8; HEADER + LINK_INFO];
    request[..4].copy_from_slice(&((HEADER + LINK_INFO) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    request[6..8].copy_from_slice(&flags.to_ne_bytes());
    let length = N(request.len() as i64);
    call(libc::SYS_sendto, [N(socket), B(&mut request), length, N(0), N(0), N(0)])?;
    let (mut names, mut answer) = (Vec::new(), vec![0u8; ROOM]);
    loop {
        let got = call(libc::SYS_recvfrom, [N(socket), B(&mut answer), N(ROOM as i64), N(0), N(0), N(0)])?;
        if got == 0 || take_names(&answer[..got as usize], &mut names) {
            return Ok(names);
        }
    }
}

fn half_word(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 2).map_or(0, |two| usize::from(u16::from_ne_bytes([two[0], two[1]])))
}

/// Whether that was the last message of the answer.
fn take_names(mut messages: &[u8], names: &mut Vec<String>) -> bool {
    const NAME: usize = 3;
    // No message is longer than half a word tells.
    while messages.len() >= HEADER && half_word(messages, 0) >= HEADER {
        let length = half_word(messages, 0).min(messages.len());
        if half_word(messages, 4) != usize::from(libc::RTM_NEWLINK) {
            return true;
        }
        let mut attributes = messages.get(HEADER + LINK_INFO..length).unwrap_or_default();
        while attributes.len() >= 4 && half_word(attributes, 0) >= 4 {
            let size = half_word(attributes, 0).min(attributes.len());
            if half_word(attributes, 2) == NAME {
                let name = String::from_utf8_lossy(&attributes[4..size]);
                names.push(name.trim_end_matches('\0').to_owned());
            }
            attributes = attributes.get(size.next_multiple_of(4)..).unwrap_or_default();
        }
        messages = messages.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

/// Raises the loopback; in a new network namespace it is down.
fn change_an_interface(_: &Facts) -> Outcome {
    use std::os::fd::AsRawFd;
    let Ok(socket) = UdpSocket::bind("0.0.0.0:0") else { return untried("no socket") };
    // A name of 16 bytes, then the flags.
    let mut request = [0u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16] = (libc::IFF_UP | libc::IFF_RUNNING) as u8;
    let (socket, what) = (N(socket.as_raw_fd().into()), N(libc::SIOCSIFFLAGS as i64));
    judged(call(libc::SYS_ioctl, [socket, what, B(&mut request)]), "SIOCSIFFLAGS")
}
