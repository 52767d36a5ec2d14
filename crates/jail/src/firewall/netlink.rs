//! Messages to the kernel's nf_tables, as `nft` would send them.
//!
//! A message is a header, a family, and attributes: length, type and value, padded to four bytes. A batch takes effect as
//! a whole or not at all.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
    netlink::{self, SocketAddrNetlink},
};
use std::io::{self, ErrorKind};

// From linux/netfilter/nfnetlink.h and nf_tables.h.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = 0;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
const NESTED: u16 = 0x8000;
const ERROR: u16 = 2;
const HEADER: usize = 16;
/// IPv4 and IPv6 together.
const INET: u8 = 1;
const ACCEPT: u32 = 1;
const DROP: u32 = 0;
const REGISTER: u32 = 1;
/// The register of a rule's verdict.
const VERDICT: u32 = 0;
const META_FROM: u32 = 6;
const META_TO: u32 = 7;
const META_FAMILY: u32 = 15;
const META_PROTOCOL: u32 = 16;
const IPV4: u8 = 2;
const IPV6: u8 = 10;
const TCP: u8 = 6;
const UDP: u8 = 17;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const DESTINATION: u32 = 16;
const DESTINATION_PORT: u32 = 2;
const CT_STATE: u32 = 0;
/// The bits of the states `established` and `related`.
const KNOWN: u32 = 2 | 4;
/// An ICMP or ICMPv6 message: prohibited by an administrator.
const REJECT_BY_ICMP: u32 = 2;
const PROHIBITED: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chain {
    Input,
    Forward,
}

impl Chain {
    fn name(self) -> &'static str {
        match self {
            Chain::Input => "input",
            Chain::Forward => "forward",
        }
    }

    fn hook(self) -> u32 {
        match self {
            Chain::Input => 1,
            Chain::Forward => 2,
        }
    }
}

/// One condition of a rule, or its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// From an interface whose name begins like this.
    FromInterface(String),
    ToInterface(String),
    Ipv6,
    /// To an IPv4 address of a network.
    ToAddress([u8; 4], u8),
    Tcp,
    Udp,
    ToPort(u16),
    /// Belongs to no connection that was accepted before.
    BeginsConnection,
    Accept,
    /// Drops the packet and tells the sender.
    Refuse,
    Drop,
}

/// Messages that take effect together.
pub struct Batch {
    bytes: Vec<u8>,
    messages: u32,
}

impl Batch {
    pub fn new() -> Batch {
        let mut batch = Batch { bytes: Vec::new(), messages: 0 };
        batch.bound(BATCH_BEGIN);
        batch
    }

    pub fn add_table(&mut self, table: &str) {
        self.message(NEW_TABLE, CREATE, &text(1, table));
    }

    pub fn delete_table(&mut self, table: &str) {
        self.message(DELETE_TABLE, 0, &text(1, table));
    }

    /// Adds a chain that accepts what no rule decides.
    pub fn add_chain(&mut self, table: &str, chain: Chain, priority: i32) {
        let hook = [number(1, chain.hook()), attribute(2, &priority.to_be_bytes())].concat();
        let body =
            [text(1, table), text(3, chain.name()), nest(4, &hook), number(5, ACCEPT), text(7, "filter")];
        self.message(NEW_CHAIN, CREATE, &body.concat());
    }

    pub fn add_rule(&mut self, table: &str, chain: Chain, rule: &[Expr]) {
        let expressions: Vec<u8> = rule.iter().flat_map(encode).collect();
        let body = [text(1, table), text(2, chain.name()), nest(4, &expressions)];
        self.message(NEW_RULE, CREATE | APPEND, &body.concat());
    }

    /// Sends the batch and waits until the kernel has taken it.
    pub fn send(mut self) -> io::Result<()> {
        self.bound(BATCH_END);
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            flags,
            Some(netlink::NETFILTER),
        )?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        rustix::net::send(&socket, &self.bytes, SendFlags::empty())?;
        let mut buffer = vec![0; 64 << 10];
        let mut answers = 0;
        while answers < self.messages {
            let (length, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
            answers += read_answers(&buffer[..length])?;
        }
        Ok(())
    }

    fn message(&mut self, kind: u16, flags: u16, body: &[u8]) {
        self.messages += 1;
        self.push(SUBSYSTEM << 8 | kind, REQUEST | ACKNOWLEDGE | flags, [INET, 0, 0, 0], body);
    }

    /// The begin or the end of the batch, which name the subsystem.
    fn bound(&mut self, kind: u16) {
        let [high, low] = SUBSYSTEM.to_be_bytes();
        self.push(kind, REQUEST, [0, 0, high, low], &[]);
    }

    fn push(&mut self, kind: u16, flags: u16, family: [u8; 4], body: &[u8]) {
        let length = (HEADER + family.len() + body.len()) as u32;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.messages.to_ne_bytes());
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend(family);
        self.bytes.extend(body);
    }
}

/// Counts the acknowledgements in what the kernel sent; a refusal of any message is an error.
fn read_answers(mut bytes: &[u8]) -> io::Result<u32> {
    let mut count = 0;
    let word = |bytes: &[u8], at: usize| -> Option<[u8; 4]> { bytes.get(at..at + 4)?.try_into().ok() };
    while bytes.len() >= HEADER {
        let length = word(bytes, 0).map_or(0, u32::from_ne_bytes) as usize;
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        if length < HEADER || length > bytes.len() {
            return Err(io::Error::new(ErrorKind::InvalidData, "a malformed answer of nf_tables"));
        }
        if kind == ERROR {
            match word(bytes, HEADER).map_or(0, i32::from_ne_bytes) {
                0 => count += 1,
                code => return Err(io::Error::from_raw_os_error(-code)),
            }
        }
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    Ok(count)
}

fn encode(expr: &Expr) -> Vec<u8> {
    match expr {
        Expr::FromInterface(prefix) => [meta(META_FROM), equals(prefix.as_bytes())].concat(),
        Expr::ToInterface(prefix) => [meta(META_TO), equals(prefix.as_bytes())].concat(),
        Expr::Ipv6 => [meta(META_FAMILY), equals(&[IPV6])].concat(),
        Expr::ToAddress(address, bits) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(*bits)).unwrap_or(0);
            let network = u32::from_be_bytes(*address) & mask;
            [
                meta(META_FAMILY),
                equals(&[IPV4]),
                payload(NETWORK_HEADER, DESTINATION, 4),
                and(&mask.to_be_bytes()),
                equals(&network.to_be_bytes()),
            ]
            .concat()
        }
        Expr::Tcp => [meta(META_PROTOCOL), equals(&[TCP])].concat(),
        Expr::Udp => [meta(META_PROTOCOL), equals(&[UDP])].concat(),
        Expr::ToPort(port) => {
            [payload(TRANSPORT_HEADER, DESTINATION_PORT, 2), equals(&port.to_be_bytes())].concat()
        }
        Expr::BeginsConnection => {
            let state = [number(1, REGISTER), number(2, CT_STATE)].concat();
            [expression("ct", &state), and(&KNOWN.to_ne_bytes()), equals(&0u32.to_ne_bytes())].concat()
        }
        Expr::Accept => verdict(ACCEPT),
        Expr::Drop => verdict(DROP),
        Expr::Refuse => {
            let how = [number(1, REJECT_BY_ICMP), attribute(2, &[PROHIBITED])].concat();
            expression("reject", &how)
        }
    }
}

/// Loads a property of the packet.
fn meta(key: u32) -> Vec<u8> {
    expression("meta", &[number(1, REGISTER), number(2, key)].concat())
}

/// Loads bytes of a header of the packet.
fn payload(header: u32, offset: u32, length: u32) -> Vec<u8> {
    let body = [number(1, REGISTER), number(2, header), number(3, offset), number(4, length)];
    expression("payload", &body.concat())
}

fn and(mask: &[u8]) -> Vec<u8> {
    let zero = vec![0; mask.len()];
    let body = [
        number(1, REGISTER),
        number(2, REGISTER),
        number(3, mask.len() as u32),
        nest(4, &attribute(1, mask)),
        nest(5, &attribute(1, &zero)),
    ];
    expression("bitwise", &body.concat())
}

/// Ends the rule unless the register begins with these bytes.
fn equals(value: &[u8]) -> Vec<u8> {
    let body = [number(1, REGISTER), number(2, 0), nest(3, &attribute(1, value))];
    expression("cmp", &body.concat())
}

fn verdict(code: u32) -> Vec<u8> {
    let body = [number(1, VERDICT), nest(2, &nest(2, &number(1, code)))];
    expression("immediate", &body.concat())
}

fn expression(name: &str, body: &[u8]) -> Vec<u8> {
    nest(1, &[text(1, name), nest(2, body)].concat())
}

fn nest(kind: u16, body: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, body)
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = (4 + value.len()) as u16;
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
