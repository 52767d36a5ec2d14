//! `sudo` in a box: with no new privileges a setuid program is a plain program, so the guest, which is root of the
//! box, runs the command for whoever asks. Root of a box is nobody outside of it.

pub mod applet;

use crate::{
    fault::{Outcome, from_io, invalid},
    process::{handover::Order, launch, pool::Kept, run, words::Said},
    state::Guest,
    users,
};
use rustix::{
    fd::{AsFd, OwnedFd},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags},
};
use std::{fs, io, io::IoSliceMut, mem::MaybeUninit, os::unix::fs::PermissionsExt, rc::Rc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{UnixListener, UnixStream},
    task::spawn_local,
};

/// Where it is asked. The folder is the guest's own.
pub const FOLDER: &str = "/run/seawall";
pub const SOCKET: &str = "/run/seawall/sudo.sock";
/// A request at the most.
const MAX_REQUEST: usize = 128 << 10;
/// Stdin, stdout, stderr, the directory.
const FDS: usize = 4;

/// What is asked for: a user, a command, its environment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub user: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
}

impl Request {
    /// Texts that end with zero: the user, the number of arguments, those, the environment.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |text: &str| {
            out.extend_from_slice(text.as_bytes());
            out.push(0);
        };
        put(&self.user);
        put(&self.args.len().to_string());
        self.args.iter().for_each(|arg| put(arg));
        self.env.iter().for_each(|(key, value)| put(&format!("{key}={value}")));
        out
    }

    fn parse(bytes: &[u8]) -> Option<Request> {
        let texts = bytes.strip_suffix(&[0])?.split(|byte| *byte == 0);
        let mut texts = texts.map(|text| String::from_utf8_lossy(text).into_owned());
        let (user, count) = (texts.next()?, texts.next()?.parse().ok()?);
        let args: Vec<String> = texts.by_ref().take(count).collect();
        let pair = |text: String| text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        (args.len() == count && count > 0).then(|| Request {
            user,
            args,
            env: texts.filter_map(pair).collect(),
        })
    }
}

/// Takes requests for ever. Where there is no place for the socket, there is no `sudo`.
pub fn serve(guest: &Rc<Guest>) -> io::Result<()> {
    fs::create_dir_all(FOLDER)?;
    let _ = fs::remove_file(SOCKET);
    let listener = UnixListener::bind(SOCKET)?;
    fs::set_permissions(SOCKET, fs::Permissions::from_mode(0o666))?;
    let guest = guest.clone();
    spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let guest = guest.clone();
            spawn_local(async move {
                if let Err(error) = request(guest, stream).await {
                    crate::say!("sudo: {error}");
                }
            });
        }
    });
    Ok(())
}

async fn request(guest: Rc<Guest>, mut stream: UnixStream) -> io::Result<()> {
    let (bytes, fds) = receive(&stream).await?;
    match started(&guest, &bytes, fds) {
        Ok(kept) => follow(kept, stream).await,
        Err(fault) => {
            let mut answer = vec![b'e'];
            answer.extend_from_slice(fault.message.as_bytes());
            stream.write_all(&answer).await
        }
    }
}

/// The request comes in one piece, with its descriptors.
async fn receive(stream: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    loop {
        stream.readable().await?;
        let taken = stream.try_io(Interest::READABLE, || {
            let mut bytes = vec![0; MAX_REQUEST];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let parts = &mut [IoSliceMut::new(&mut bytes)];
            let length = rustix::net::recvmsg(stream, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
            bytes.truncate(length);
            let mut fds = Vec::new();
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    fds.extend(received);
                }
            }
            Ok((bytes, fds))
        });
        match taken {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

fn started(guest: &Rc<Guest>, bytes: &[u8], fds: Vec<OwnedFd>) -> Outcome<Kept> {
    let request = Request::parse(bytes).ok_or_else(|| invalid("a broken request"))?;
    let fds: [OwnedFd; FDS] = fds.try_into().map_err(|_| invalid("a request without its descriptors"))?;
    let user = users::find(&request.user)?;
    let launch = launch::for_another(guest, &user, &request.args, request.env)?;
    let bytes = launch.to_bytes();
    let order = Order { bytes: &bytes, pointers: launch.pointers(), fds: fds.each_ref().map(AsFd::as_fd) };
    Ok(Kept::for_order(guest, &order)?.0)
}

/// Until the command ends. Whoever asked may send signals meanwhile, and takes the command along when he goes.
async fn follow(kept: Kept, mut stream: UnixStream) -> io::Result<()> {
    let mut signal = [0; 4];
    let code = loop {
        tokio::select! {
            said = run::listen(&kept.ctl) => match said {
                Some(Said::Exited { status }) => break Ok(run::shell_code(status)),
                Some(Said::Failed { errno, .. }) => break Err(io::Error::from_raw_os_error(errno)),
                Some(Said::Gone) | None => break Ok(1),
                Some(Said::Started { .. }) => {}
            },
            heard = stream.read_exact(&mut signal) => match heard {
                Ok(_) => kept.signal(i32::from_ne_bytes(signal)),
                Err(_) => {
                    kept.kill();
                    return Ok(());
                }
            },
        }
    };
    let answer = match &code {
        Ok(code) => [&b"c"[..], &code.to_ne_bytes()].concat(),
        Err(error) => [&b"e"[..], from_io("the command", error).message.as_bytes()].concat(),
    };
    stream.write_all(&answer).await?;
    if code.is_ok() {
        kept.settle().await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_its_way() {
        let request = Request {
            user: "root".into(),
            args: vec!["sh".into(), String::new(), "a b".into()],
            env: vec![("X".into(), "a=b".into())],
        };
        let bytes = request.to_bytes();
        assert_eq!(Request::parse(&bytes), Some(request));
        assert_eq!(Request::parse(b"root\x000\x00"), None);
        assert_eq!(Request::parse(b""), None);
    }
}
