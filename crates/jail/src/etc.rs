//! What is in a box's `/etc`: a few files that we make, and copies of what the host's programs need.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    path::Path,
};

/// Names that may be copied from the host. None of them holds a secret on any system we know; of directories
/// only what all may read is taken.
const COPIED: &[&str] = &[
    "ImageMagick-6",
    "ImageMagick-7",
    "R",
    "alternatives",
    "bash.bashrc",
    "bash_completion",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "emacs",
    "ethertypes",
    "fedora-release",
    "fonts",
    "gai.conf",
    "glvnd",
    "host.conf",
    "inputrc",
    "java-17-openjdk",
    "java-21-openjdk",
    "java-25-openjdk",
    "jvm",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "magic",
    "magic.mime",
    "mime.types",
    "nanorc",
    "os-release",
    "perl",
    "pki",
    "profile",
    "protocols",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
    "redhat-release",
    "rpc",
    "services",
    "sgml",
    "skel",
    "ssl",
    "system-release",
    "terminfo",
    "timezone",
    "vim",
    "vulkan",
    "xattr.conf",
    "xml",
];

/// Directories in those that are left out.
const LEFT_OUT: [&str; 3] = ["private", "rsyslog", "entitlement"];

/// The whole of what is copied, at the most: nobody's `/etc` has more of these.
const MAX_BYTES: u64 = 64 << 20;

/// What every box calls itself.
pub const HOSTNAME: &str = "sandbox";

/// Made by us, whatever the host has.
const MADE: [&str; 6] = ["passwd", "group", "hosts", "hostname", "resolv.conf", "nsswitch.conf"];

pub fn is_made(name: &str) -> bool {
    MADE.contains(&name) || name == "mtab"
}

/// The files that we make. Without `users` there is root alone.
pub fn files(users: bool, bash: bool) -> Vec<(&'static str, String)> {
    let shell = if bash { "/bin/bash" } else { "/bin/sh" };
    let mut passwd = format!("root:x:0:0:root:/root:{shell}\n");
    let mut group = "root:x:0:\n".to_owned();
    if users {
        passwd += &format!("user:x:1000:1000:user:/home/user:{shell}\n");
        group += "user:x:1000:\ntty:x:5:\nstaff:x:50:\n";
        passwd += "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n";
        group += "nogroup:x:65534:\n";
    }
    vec![
        ("passwd", passwd),
        ("group", group),
        ("hosts", format!("127.0.0.1\tlocalhost {HOSTNAME}\n::1\tlocalhost\n")),
        ("hostname", format!("{HOSTNAME}\n")),
        ("resolv.conf", String::new()),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".to_owned()),
    ]
}

/// Copies what boxes may have of the host's `/etc` into `to`, which must not exist yet.
pub fn copy(to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    let mut left = MAX_BYTES;
    for name in COPIED {
        copy_entry(&Path::new("/etc").join(name), &to.join(name), &mut left)?;
    }
    Ok(())
}

/// Changes when what would be copied does, as far as the top of it tells.
pub fn stamp() -> String {
    let of = |name: &&str| {
        let found = fs::symlink_metadata(Path::new("/etc").join(name)).ok()?;
        Some(format!("{name} {} {}\n", found.mtime(), found.mtime_nsec()))
    };
    let certificates = fs::metadata("/etc/ssl/certs").map_or(0, |found| found.mtime());
    COPIED.iter().filter_map(of).chain([format!("certs {certificates}\n")]).collect()
}

/// What is missing, not for all to read, or neither file, link nor directory is left out.
fn copy_entry(from: &Path, to: &Path, left: &mut u64) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(from) else { return Ok(()) };
    let kind = found.file_type();
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if kind.is_dir() && found.mode() & 0o005 == 0o005 {
        fs::create_dir(to)?;
        fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            if !LEFT_OUT.iter().any(|left_out| name == *left_out) {
                copy_entry(&from.join(&name), &to.join(&name), left)?;
            }
        }
        return Ok(());
    }
    if !kind.is_file() || found.mode() & 0o004 == 0 || found.len() > *left {
        return Ok(());
    }
    *left -= found.len();
    let mut content = Vec::new();
    // It may be gone, or not ours to read after all.
    let Ok(mut file) = fs::File::open(from) else { return Ok(()) };
    file.read_to_end(&mut content)?;
    let mode = if found.mode() & 0o111 != 0 { 0o755 } else { 0o644 };
    let mut copy = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(to)?;
    copy.write_all(&content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_is_copied() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("etc");
        copy(&to).unwrap();
        for name in
            ["shadow", "gshadow", "sudoers", "ssh", "ssl/private", "passwd", "apt", "docker", "gitconfig"]
        {
            assert!(!to.join(name).exists(), "{name}");
        }
    }

    #[test]
    fn root_alone_or_with_users() {
        let all = |users| files(users, true).into_iter().map(|(_, text)| text).collect::<String>();
        assert!(all(true).contains("user:x:1000"));
        assert!(!all(false).contains("1000"));
    }
}
