//! Rules for bridges whose sandboxes may reach public addresses and nothing else (nf_tables).
//!
//! All rules are in one table of our own. Its chains come before those of other programs: a refusal here is final, while
//! an acceptance leaves the decision to later chains. So the rules of Docker, firewalld or an operator can only refuse
//! more, and a restart of Docker leaves ours alone.
//!
//! | chain | packets | rule |
//! | --- | --- | --- |
//! | `forward` | from a bridge | to a name server of the operator's, port 53: accepted |
//! | | | IPv6, mail (port 25), and every address that is not public: refused |
//! | | to a bridge | that begin a connection: dropped |
//! | `input` | from a bridge to this machine | to a name server, port 53: accepted; all else refused |
//!
//! Packets between two ports of one bridge pass through no chain here; [`isolate_ports`] stops them.

mod netlink;

use netlink::{Batch, Chain, Expr};
use std::{fs, io, net::Ipv4Addr, path::Path};

/// The ranges that are not public: the kernel's, private, shared, link-local, benchmarking, multicast and reserved ones, and
/// the internal address of one cloud. 203.0.113.0/24, which is for documentation, is left out: no machine has it.
const REFUSED: [([u8; 4], u8); 14] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([168, 63, 129, 16], 32),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([224, 0, 0, 0], 3),
];
const DNS: u16 = 53;
const MAIL: u16 = 25;
/// Before the chains of other programs, which have priority 0.
const PRIORITY: i32 = -10;

/// The rules of one installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// The name of the table. No other program uses it.
    pub table: String,
    /// The beginning of the names of all bridges.
    pub bridges: String,
    /// Name servers that sandboxes may ask although their addresses are not public.
    pub name_servers: Vec<Ipv4Addr>,
    /// Further ranges that are refused, such as public addresses behind which the operator's own machines stand.
    pub refused: Vec<(Ipv4Addr, u8)>,
}

impl Rules {
    /// Puts the rules into force in the network namespace of this process, in one step. It can be repeated.
    pub fn install(&self) -> io::Result<()> {
        let mut batch = Batch::new();
        // A table must exist to be deleted.
        batch.add_table(&self.table);
        batch.delete_table(&self.table);
        batch.add_table(&self.table);
        for chain in [Chain::Forward, Chain::Input] {
            batch.add_chain(&self.table, chain, PRIORITY);
        }
        for (chain, rule) in self.rules() {
            batch.add_rule(&self.table, chain, &rule);
        }
        batch.send()
    }

    /// Removes the rules.
    pub fn remove(&self) -> io::Result<()> {
        let mut batch = Batch::new();
        batch.add_table(&self.table);
        batch.delete_table(&self.table);
        batch.send()
    }

    fn rules(&self) -> Vec<(Chain, Vec<Expr>)> {
        let from = || vec![Expr::FromInterface(self.bridges.clone())];
        let with = |more: &[Expr]| [from(), more.to_vec()].concat();
        let mut rules = Vec::new();
        for chain in [Chain::Forward, Chain::Input] {
            for server in &self.name_servers {
                let address = Expr::ToAddress(server.octets(), 32);
                for protocol in [Expr::Udp, Expr::Tcp] {
                    rules.push((chain, with(&[address.clone(), protocol, Expr::ToPort(DNS), Expr::Accept])));
                }
            }
        }
        rules.push((Chain::Forward, with(&[Expr::Ipv6, Expr::Refuse])));
        rules.push((Chain::Forward, with(&[Expr::Tcp, Expr::ToPort(MAIL), Expr::Refuse])));
        let own = self.refused.iter().map(|(address, bits)| (address.octets(), *bits));
        for (address, bits) in REFUSED.into_iter().chain(own) {
            rules.push((Chain::Forward, with(&[Expr::ToAddress(address, bits), Expr::Refuse])));
        }
        let to = Expr::ToInterface(self.bridges.clone());
        rules.push((Chain::Forward, vec![to, Expr::BeginsConnection, Expr::Drop]));
        rules.push((Chain::Input, with(&[Expr::Refuse])));
        rules
    }
}

/// Stops all traffic between the ports of a bridge. Returns how many ports it has. Ports that come later are not isolated.
pub fn isolate_ports(bridge: &str) -> io::Result<usize> {
    let ports = Path::new("/sys/class/net").join(bridge).join("brif");
    let mut count = 0;
    for port in fs::read_dir(&ports)? {
        match fs::write(port?.path().join("isolated"), "1") {
            // The container of this port has ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            written => {
                written?;
                count += 1;
            }
        }
    }
    Ok(count)
}

/// Whether this network namespace has a bridge.
pub fn has_bridge(bridge: &str) -> bool {
    Path::new("/sys/class/net").join(bridge).join("bridge").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules {
            table: "seawall-test".to_owned(),
            bridges: "swtest".to_owned(),
            name_servers: vec![Ipv4Addr::new(10, 0, 0, 2)],
            refused: vec![(Ipv4Addr::new(8, 8, 8, 0), 24)],
        }
    }

    /// The verdict of the forward chain for a TCP connection from a bridge, as the kernel would evaluate the rules.
    fn verdict(to: [u8; 4], port: u16) -> Option<Expr> {
        let holds = |expr: &Expr| match expr {
            Expr::ToAddress(net, bits) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(*bits)).unwrap_or(0);
                u32::from_be_bytes(to) & mask == u32::from_be_bytes(*net) & mask
            }
            Expr::ToPort(wanted) => port == *wanted,
            Expr::Tcp | Expr::FromInterface(_) => true,
            Expr::Udp | Expr::Ipv6 | Expr::ToInterface(_) | Expr::BeginsConnection => false,
            Expr::Accept | Expr::Refuse | Expr::Drop => true,
        };
        let forward = rules().rules().into_iter().filter(|(chain, _)| *chain == Chain::Forward);
        forward
            .map(|(_, rule)| rule)
            .find(|rule| rule.iter().all(holds))
            .and_then(|rule| rule.last().cloned())
    }

    #[test]
    fn only_public_addresses_are_reached() {
        for (to, port, wanted) in [
            ([1, 1, 1, 1], 443, None),
            ([203, 0, 113, 1], 80, None),
            ([1, 1, 1, 1], 25, Some(Expr::Refuse)),
            ([10, 0, 0, 2], 53, Some(Expr::Accept)),
            ([10, 0, 0, 2], 80, Some(Expr::Refuse)),
            ([169, 254, 169, 254], 80, Some(Expr::Refuse)),
            ([100, 127, 0, 1], 80, Some(Expr::Refuse)),
            ([100, 128, 0, 1], 80, None),
            ([172, 31, 255, 255], 80, Some(Expr::Refuse)),
            ([172, 32, 0, 1], 80, None),
            ([255, 255, 255, 255], 80, Some(Expr::Refuse)),
            ([223, 255, 255, 255], 80, None),
            ([168, 63, 129, 16], 80, Some(Expr::Refuse)),
            ([8, 8, 8, 8], 443, Some(Expr::Refuse)),
        ] {
            assert_eq!(verdict(to, port), wanted, "{to:?}:{port}");
        }
    }

    #[test]
    fn the_kernel_takes_the_rules() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // In a network namespace of its own, on a thread that ends with it.
        let installed = std::thread::spawn(|| {
            // SAFETY: changes only this thread, which ends with the test.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            let rules = rules();
            rules.install()?;
            rules.install()?;
            rules.remove()?;
            rules.remove()
        });
        installed.join().unwrap().unwrap();
    }
}
