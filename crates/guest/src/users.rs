//! Users of the sandbox, read from its own `/etc/passwd` and `/etc/group`.
//!
//! A static program cannot ask glibc for them (it would load shared libraries), and the host's must
//! not be asked.

use crate::fault::{Outcome, invalid};
use seawall_api::{ErrorKind, Fault, sandbox::WORKDIR};
use std::{fs, os::unix::fs::MetadataExt};

/// A user with all that running as it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub home: String,
    pub shell: String,
}

/// Finds a user by name, `UID` or `UID:GID`. Numbers need no entry.
pub fn find(wanted: &str) -> Outcome<User> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let group = fs::read_to_string("/etc/group").unwrap_or_default();
    find_in(wanted, &passwd, &group)
}

/// Gives the workspace to the sandbox's user. Where that fails, root can still use the box.
pub fn own_workspace(user: &User) {
    let found = fs::metadata(WORKDIR).map(|found| found.uid());
    if found.is_ok_and(|owner| owner != user.uid) {
        let _ = std::os::unix::fs::chown(WORKDIR, Some(user.uid), Some(user.gid));
    }
}

/// The user that the guest itself runs as.
pub fn own() -> User {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let mut user = find(&uid.to_string()).unwrap_or_else(|_| numbered(uid, gid));
    user.gid = gid;
    user
}

pub fn name_of_user(uid: u32) -> Option<String> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    lookup_name(&passwd, uid)
}

pub fn name_of_group(gid: u32) -> Option<String> {
    let group = fs::read_to_string("/etc/group").unwrap_or_default();
    lookup_name(&group, gid)
}

fn lookup_name(table: &str, id: u32) -> Option<String> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    })
}

fn numbered(uid: u32, gid: u32) -> User {
    let home = if uid == 0 { "/root" } else { "/" };
    User { name: uid.to_string(), uid, gid, groups: vec![gid], home: home.to_owned(), shell: String::new() }
}

fn find_in(wanted: &str, passwd: &str, group: &str) -> Outcome<User> {
    let (user, group_wanted) = match wanted.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (wanted, None),
    };
    if user.is_empty() || group_wanted == Some("") {
        return Err(invalid(format!("`{wanted}` is no user: give a name, UID or UID:GID")));
    }
    let entry = passwd
        .lines()
        .filter_map(parse_passwd)
        .find(|entry| entry.name == user || user.parse() == Ok(entry.uid));
    let mut found = match (entry, user.parse::<u32>()) {
        (Some(entry), _) => entry,
        (None, Ok(uid)) => numbered(uid, uid),
        // An image with nothing but a program has no /etc/passwd.
        (None, Err(_)) if user == "root" => User { name: "root".to_owned(), ..numbered(0, 0) },
        (None, Err(_)) => {
            let message = format!("there is no user `{user}` in the sandbox");
            return Err(Fault::new(ErrorKind::Invalid, message));
        }
    };
    if found.uid == u32::MAX || group_wanted == Some("4294967295") {
        // To the kernel it means "as it is", and that is root.
        return Err(invalid(format!("`{wanted}` is no user: 4294967295 is not a number of one")));
    }
    match group_wanted {
        Some(wanted) => {
            found.gid = group_id(wanted, group)?;
            found.groups = vec![found.gid];
        }
        None => found.groups = groups_of(&found, group),
    }
    Ok(found)
}

fn parse_passwd(line: &str) -> Option<User> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, uid, gid, _, home, shell, ..] = fields[..] else {
        return None;
    };
    Some(User {
        name: name.to_owned(),
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
        groups: Vec::new(),
        home: home.to_owned(),
        shell: shell.to_owned(),
    })
}

fn group_id(wanted: &str, group: &str) -> Outcome<u32> {
    if let Ok(gid) = wanted.parse() {
        return Ok(gid);
    }
    let found = group.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == wanted).then_some(fields.nth(1)?.parse().ok()?)
    });
    found.ok_or_else(|| invalid(format!("there is no group `{wanted}` in the sandbox")))
}

fn groups_of(user: &User, group: &str) -> Vec<u32> {
    let member = |line: &str| -> Option<u32> {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, gid, members, ..] = fields[..] else {
            return None;
        };
        members.split(',').any(|name| name == user.name).then_some(gid.parse().ok()?)
    };
    let mut groups = vec![user.gid];
    groups.extend(group.lines().filter_map(member).filter(|gid| *gid != user.gid));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000::/home/ann:/bin/zsh\nbroken\n";
    const GROUP: &str = "root:x:0:\nann:x:1000:\ndocker:x:998:bob,ann\n";

    #[test]
    fn p6_users_by_name_number_and_pair() {
        let ann = find_in("ann", PASSWD, GROUP).unwrap();
        assert_eq!((ann.uid, ann.gid, &ann.groups[..]), (1000, 1000, &[1000, 998][..]));
        assert_eq!(find_in("1000", PASSWD, GROUP).unwrap(), ann);
        assert_eq!(find_in("root", PASSWD, GROUP).unwrap().home, "/root");
        let pair = find_in("4000:docker", PASSWD, GROUP).unwrap();
        assert_eq!((pair.uid, pair.gid, &pair.groups[..]), (4000, 998, &[998][..]));
        assert_eq!(find_in("ann:5", PASSWD, GROUP).unwrap().groups, [5]);
    }

    #[test]
    fn who_is_not_there_is_named() {
        assert!(find_in("eve", PASSWD, GROUP).unwrap_err().message.contains("eve"));
        assert!(find_in("ann:eves", PASSWD, GROUP).unwrap_err().message.contains("eves"));
        assert!(find_in("", PASSWD, GROUP).is_err());
        assert!(find_in("4294967295", PASSWD, GROUP).is_err());
        assert!(find_in("ann:4294967295", PASSWD, GROUP).is_err());
        assert!(find_in("ann:", PASSWD, GROUP).is_err());
    }
}
