//! `seawall shell` and `run -t` on a real terminal: size, keys, exit code, and the terminal as it was.
//!
//! The other end of the terminal is held by a small Python program, which has the calls for it in its
//! standard library; here they would be `unsafe`.

use crate::world::{World, processes_with, stderr, stdout};
use std::{
    io::Write,
    process::{Command, Stdio},
};

/// A terminal with a program on it; `sys.argv` says which.
const TERMINAL: &str = r#"
import fcntl, os, pty, re, select, signal, struct, sys, termios, time

LIMIT = 30

class Terminal:
    def __init__(self, rows, cols):
        self.seen, self.at, self.code = b'', 0, None
        self.master, self.slave = pty.openpty()
        self.resize(rows, cols)
        # This end stays open, so that the settings can be looked at after the program has gone.
        self.before = self.settings()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)
            for fd in (0, 1, 2):
                os.dup2(self.slave, fd)
            os.closerange(3, 256)
            os.execvp(sys.argv[1], sys.argv[1:])

    def settings(self):
        # Without the speeds, which a terminal of this kind has none of.
        now = termios.tcgetattr(self.slave)
        return now[:4] + now[6:]

    def is_raw(self):
        return self.settings()[3] & (termios.ICANON | termios.ECHO | termios.ISIG) == 0

    def resize(self, rows, cols):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack('HHHH', rows, cols, 0, 0))

    def type(self, text):
        os.write(self.master, text.encode())

    def read(self, seconds):
        ready, _, _ = select.select([self.master], [], [], seconds)
        if ready:
            self.seen += os.read(self.master, 65536)

    # Whether the pattern was printed behind the last one that was found.
    def has(self, pattern, seconds):
        until = time.monotonic() + seconds
        while True:
            found = re.search(pattern, self.seen[self.at:])
            if found:
                self.at += found.end()
                return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            self.read(left)

    def expect(self, pattern):
        if not self.has(pattern, LIMIT):
            self.fail('%r was not printed' % pattern)

    def until(self, what, holds):
        until = time.monotonic() + LIMIT
        while not holds():
            if time.monotonic() > until:
                self.fail('not so: ' + what)
            self.read(0.05)

    def ended(self):
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def end(self, code):
        self.until('it has ended', self.ended)
        if self.code != code:
            self.fail('it ended with %r instead of %r' % (self.code, code))
        if self.settings() != self.before:
            self.fail('the terminal was %r and is %r' % (self.before, self.settings()))
        print('ok')

    def fail(self, why):
        sys.stderr.write('%s; on the terminal: %r\n' % (why, self.seen))
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
        sys.exit(1)

# How many processes of this machine have this text as an argument.
def processes_with(argument):
    count = 0
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open('/proc/%s/cmdline' % pid, 'rb') as line:
                count += argument.encode() in line.read().split(b'\0')
        except OSError:
            pass
    return count

# What is typed is echoed, so what is waited for must not stand in it.
def open_shell():
    terminal = Terminal(30, 100)
    terminal.expect(rb'\S')
    terminal.type("echo rea''dy\r")
    terminal.expect(rb'ready')
    if not terminal.is_raw():
        terminal.fail('the terminal is not raw')
    return terminal
"#;

const SHELL: &str = r#"
mark = os.environ['MARK']
terminal = open_shell()

terminal.type('stty size\r')
terminal.expect(rb'\b30 100\r?\n')

# The kernel tells the program; so does this, as a terminal of another kind might.
terminal.resize(40, 120)
os.kill(terminal.pid, signal.SIGWINCH)
# Sizes and keys travel apart, so the first answer may still be the old one.
for _ in range(20):
    terminal.type('stty size\r')
    if terminal.has(rb'\b40 120\r?\n', 1):
        break
else:
    terminal.fail('the new size did not arrive')

terminal.type('sleep %s\r' % mark)
terminal.until('it sleeps', lambda: processes_with(mark) == 1)
terminal.type('\x03')
terminal.until('it was woken', lambda: processes_with(mark) == 0)
terminal.type('echo code=$?\r')
terminal.expect(rb'code=130')

terminal.type('exit 7\r')
terminal.end(7)
"#;

const TERMINATED: &str = r#"
terminal = open_shell()
os.kill(terminal.pid, signal.SIGTERM)
terminal.end(143)
"#;

const TTY: &str = r#"
terminal = Terminal(30, 100)
terminal.expect(rb'tty 30 100\r?\n')
terminal.end(0)
"#;

/// Whatever it shows, it does nothing but what the program itself does: it dims what is beside the answer.
const HOSTILE: &str = r#"
terminal = Terminal(30, 200)
terminal.until('it has ended', terminal.ended)
terminal.has(rb'never printed', 0.2)
seen = terminal.seen.decode()
for own in ('\x1b[2m', '\x1b[0m', '\r\n'):
    seen = seen.replace(own, '')
if any(c in seen for c in '\x1b\x07\x9b\r\u202e\u2066\u200b\u2028') or r'\u{1b}[2J' not in seen or 'evil' not in seen:
    terminal.fail('it reached the terminal')
terminal.end(0)
"#;

/// What a box might say to whoever looks: a title, a cleared screen, a line that is overwritten, text from right to left.
const SAID: &str = r"printf 'begin\033]0;owned\007\033[2J\302\2331m\342\200\256evil\342\201\246 \342\200\213\342\200\250 overwritten\rend\n'";

/// Whether there is a Python for the driver. Without one the test is skipped by name, unless everything is
/// to be tested.
fn can_run(test: &str) -> bool {
    let modules = "import fcntl, os, pty, termios; os.waitstatus_to_exitcode";
    let python = Command::new("python3").args(["-c", modules]).stdin(Stdio::null()).output();
    let why = match python {
        Ok(output) if output.status.success() => return true,
        Ok(output) => stderr(&output),
        Err(error) => error.to_string(),
    };
    let required = std::env::var("SEAWALL_TEST_REQUIRE").is_ok_and(|what| what == "all");
    assert!(!required, "{test}: needs python3 of 3.9 or newer: {why}");
    // Past the harness, which shows nothing of a test that passes.
    let reason = why.lines().last().unwrap_or_default();
    #[allow(clippy::explicit_write)] // The test harness hides what eprintln! says when a test passes.
    writeln!(std::io::stderr(), "skipped: {test}: needs python3 of 3.9 or newer ({reason})").unwrap();
    false
}

/// Plays a scenario on a terminal with `seawall args…` on it.
fn play(world: &World, scenario: &str, mark: &str, args: &[&str]) {
    let script = format!("{TERMINAL}{scenario}");
    let mut driver = world.command_of("python3");
    driver.args(["-c", &script, env!("CARGO_BIN_EXE_seawall")]).args(args);
    // A plain prompt, whoever runs the tests.
    let output = driver.env("MARK", mark).env("TERM", "dumb").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "ok\n");
}

/// A duration of sleep that no other process of this machine has.
fn unique() -> String {
    (3_000_000 + std::process::id()).to_string()
}

#[test]
fn p6_a_shell_is_a_real_terminal() {
    if !can_run("p6_a_shell_is_a_real_terminal") {
        return;
    }
    let world = World::new();
    let id = world.create();
    let mark = unique();
    play(&world, SHELL, &mark, &["shell", &id]);
    assert_eq!(processes_with(&mark), 0);
    // The sandbox is still there, and still runs.
    assert_eq!(world.ok(["exec", &id, "--", "echo", "here"]), "here\n");
}

#[test]
fn p6_a_signal_gives_the_terminal_back() {
    if !can_run("p6_a_signal_gives_the_terminal_back") {
        return;
    }
    let world = World::new();
    let id = world.create();
    play(&world, TERMINATED, "", &["shell", &id]);
}

#[test]
fn p5_run_with_a_terminal() {
    if !can_run("p5_run_with_a_terminal") {
        return;
    }
    let world = World::new();
    let command = "test -t 0 && test -t 1 && test -t 2 && echo tty $(stty size)";
    play(&world, TTY, "", &["run", "-t", "--", "sh", "-c", command]);
    assert!(world.is_empty());
}

#[test]
fn what_others_say_drives_no_terminal() {
    if !can_run("what_others_say_drives_no_terminal") {
        return;
    }
    let world = World::new();
    let conversation = seawall_api::ConversationId::generate().to_string();
    play(&world, HOSTILE, "", &["chat", "-c", &conversation, SAID]);
    play(&world, HOSTILE, "", &["chat", "-c", &conversation, &format!("{SAID} >&2; exit 3")]);
    play(&world, HOSTILE, "", &["messages", &conversation]);
    let all = world.json(["conversations", "--json"]);
    let sandbox = all["items"][0]["sandbox_id"].as_str().unwrap().to_owned();
    // A command's own output is its own, and what it printed earlier is text of others.
    let command = ["exec", &sandbox, "--", "sh", "-c", SAID];
    assert!(world.ok(command).contains("\x1b[2J"), "into a pipe it goes as it is");
    play(&world, HOSTILE, "", &["logs", &sandbox]);
    let piped = world.ok(["logs", &sandbox]);
    assert!(piped.contains("\x1b[2J") && piped.contains("overwritten\rend"), "{piped:?}");
}
