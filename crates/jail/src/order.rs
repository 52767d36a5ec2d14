//! What a launcher is asked for, as bytes: fields of a tag, a length and a value. Descriptors travel beside
//! them, in the order of [`Order::FDS`].

use std::io;

/// Tags of the fields.
const SANDBOX: u8 = 1;
const ENV: u8 = 2;
const USER: u8 = 3;
const CGROUP: u8 = 5;
const MOUNT: u8 = 6;
const OPEN_FILES: u8 = 7;
const DISKS: u8 = 9;
const COUNTERS: u8 = 10;

/// Bytes of an order at the most: environments are bounded by the service.
pub const MAX_ORDER: usize = 160 << 10;

/// A box to be launched.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Order {
    pub sandbox: String,
    pub env: Vec<(String, String)>,
    /// The user of processes, unless a call names one. None: the box's default.
    pub user: Option<String>,
    pub cgroup: CgroupPlace,
    /// Which counters come along: kills for memory, refusals of processes.
    pub counters: [bool; 2],
    /// Folders of the host, in the order of their descriptors.
    pub mounts: Vec<HostFolder>,
    pub open_files: Option<u64>,
    pub disks: Disks,
}

/// Which files of a box are on a disk of a fixed size. The mount of such a disk comes in place of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Disks {
    /// None: folders come.
    #[default]
    None,
    /// Its own and its workspace, on one disk, which comes in place of the volume.
    One,
    /// Its own alone.
    Own,
    /// Its workspace alone.
    Work,
    /// Its own and its workspace, each on a disk.
    Two,
}

impl Disks {
    const ALL: [Disks; 5] = [Disks::None, Disks::One, Disks::Own, Disks::Work, Disks::Two];
}

/// Where the box is put, so that its limits hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CgroupPlace {
    #[default]
    None,
    /// A descriptor of its folder comes along.
    V2,
    /// As many `tasks` files come along.
    V1(usize),
}

/// A folder of the host that the box sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFolder {
    pub target: String,
    pub writable: bool,
}

impl Order {
    /// Descriptors that always come, before those of the cgroup, the counters and the mounts: where to answer, the
    /// box's folder, its files, its volume, and the program that is `sudo` in it.
    pub const FDS: usize = 5;

    /// How many come in all.
    pub fn fds(&self) -> usize {
        let cgroups = match self.cgroup {
            CgroupPlace::None => 0,
            CgroupPlace::V2 => 1,
            CgroupPlace::V1(count) => count,
        };
        let counters = self.counters.iter().filter(|comes| **comes).count();
        Order::FDS + cgroups + counters + self.mounts.len()
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut field = |tag: u8, value: &[u8]| {
            out.push(tag);
            out.extend_from_slice(&(value.len() as u32).to_ne_bytes());
            out.extend_from_slice(value);
        };
        field(SANDBOX, self.sandbox.as_bytes());
        for (key, value) in &self.env {
            field(ENV, format!("{key}={value}").as_bytes());
        }
        if let Some(user) = &self.user {
            field(USER, user.as_bytes());
        }
        match self.cgroup {
            CgroupPlace::None => {}
            CgroupPlace::V2 => field(CGROUP, &[2]),
            CgroupPlace::V1(count) => field(CGROUP, &[1, count as u8]),
        }
        for mount in &self.mounts {
            let mut value = vec![u8::from(mount.writable)];
            value.extend_from_slice(mount.target.as_bytes());
            field(MOUNT, &value);
        }
        if let Some(limit) = self.open_files {
            field(OPEN_FILES, &limit.to_ne_bytes());
        }
        field(COUNTERS, &self.counters.map(u8::from));
        field(DISKS, &[self.disks as u8]);
        out
    }

    pub fn parse(mut bytes: &[u8]) -> io::Result<Order> {
        let mut order = Order::default();
        while let Some((tag, value, rest)) = next(bytes) {
            bytes = rest;
            let text = || String::from_utf8(value.to_vec()).map_err(|_| broken("text"));
            match tag {
                SANDBOX => order.sandbox = text()?,
                USER => order.user = Some(text()?),
                ENV => {
                    let text = text()?;
                    let (key, value) = text.split_once('=').ok_or_else(|| broken("a variable"))?;
                    order.env.push((key.to_owned(), value.to_owned()));
                }
                CGROUP => {
                    order.cgroup = match value {
                        [2] => CgroupPlace::V2,
                        [1, count] => CgroupPlace::V1(usize::from(*count)),
                        _ => return Err(broken("a cgroup")),
                    }
                }
                MOUNT => {
                    let (writable, target) = value.split_first().ok_or_else(|| broken("a mount"))?;
                    let target = String::from_utf8(target.to_vec()).map_err(|_| broken("a mount"))?;
                    order.mounts.push(HostFolder { target, writable: *writable != 0 });
                }
                OPEN_FILES => {
                    let bytes = value.try_into().map_err(|_| broken("a limit"))?;
                    order.open_files = Some(u64::from_ne_bytes(bytes));
                }
                DISKS => {
                    let found = Disks::ALL.into_iter().find(|disks| value == [*disks as u8]);
                    order.disks = found.ok_or_else(|| broken("disks"))?;
                }
                COUNTERS => match value {
                    [oom, pids] => order.counters = [*oom != 0, *pids != 0],
                    _ => return Err(broken("counters")),
                },
                _ => return Err(broken("a field")),
            }
        }
        match bytes.is_empty() {
            true => Ok(order),
            false => Err(broken("its end")),
        }
    }
}

fn next(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(u32::from_ne_bytes(*length) as usize)?;
    Some((*tag, value, rest))
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("an order with a broken part: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_survives_its_way() {
        let order = Order {
            sandbox: "x".into(),
            env: vec![("A".into(), "b=c".into()), ("E".into(), String::new())],
            user: Some("root".into()),
            cgroup: CgroupPlace::V1(3),
            mounts: vec![HostFolder { target: "/data".into(), writable: true }],
            open_files: Some(1 << 20),
            disks: Disks::Two,
            counters: [true, false],
        };
        let bytes = order.to_bytes();
        assert_eq!(Order::parse(&bytes).unwrap(), order);
        assert_eq!(order.fds(), 10);
        for end in 1..bytes.len() {
            assert_ne!(Order::parse(&bytes[..end]).ok(), Some(order.clone()), "{end}");
        }
    }
}
