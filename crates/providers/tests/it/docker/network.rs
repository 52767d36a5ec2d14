//! Networks of containers: public addresses are reached, and nothing else.

use super::{
    daemon::Daemon,
    world::{DEBIAN, World, sh},
};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    sandbox::{Egress, SandboxSpec},
};
use seawall_core::ports::{Provider, Volumes};
use seawall_providers::docker::{DockerSettings, NetworkSettings};
use std::{net::TcpListener, process::Command, thread};

/// Another machine: a network namespace with addresses of its own, each of which answers at port 8080.
struct Machine {
    name: String,
    server: std::process::Child,
}

const PUBLIC: &str = "203.0.113.1";
const HOST: &str = "203.0.113.2";
const PRIVATE: [&str; 3] = ["10.77.0.1", "192.168.77.1", "169.254.169.254"];
const SERVER: &str = "
import http.server, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'reached')
    def log_message(self, *args): pass
socketserver.TCPServer.allow_reuse_address = True
socketserver.TCPServer(('0.0.0.0', 8080), Handler).serve_forever()
";

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().unwrap();
    assert!(status.success(), "ip {args}");
}

impl Machine {
    fn new() -> Machine {
        let name = format!("sw-test-{}", std::process::id());
        let (outer, inner) = (format!("swt{}", std::process::id()), format!("swu{}", std::process::id()));
        ip(&format!("netns add {name}"));
        ip(&format!("link add {outer} type veth peer name {inner} netns {name}"));
        ip(&format!("addr add {HOST}/24 dev {outer}"));
        ip(&format!("link set {outer} up"));
        ip(&format!("-n {name} addr add {PUBLIC}/24 dev {inner}"));
        ip(&format!("-n {name} link set {inner} up"));
        ip(&format!("-n {name} link set lo up"));
        ip(&format!("-n {name} route add default via {HOST}"));
        for address in PRIVATE {
            ip(&format!("-n {name} addr add {address}/32 dev lo"));
            ip(&format!("route add {address}/32 via {PUBLIC}"));
        }
        let mut server = Command::new("ip");
        server.args(["netns", "exec", &name, "python3", "-c", SERVER]);
        let machine = Machine { name, server: server.spawn().unwrap() };
        // What the rules refuse can be reached from here, so that a refusal shows the rules.
        for address in [PUBLIC].iter().chain(&PRIVATE) {
            let is_up = (0..200).any(|_| {
                thread::sleep(std::time::Duration::from_millis(25));
                std::net::TcpStream::connect((*address, 8080)).is_ok()
            });
            assert!(is_up, "{address} cannot be reached from this machine");
        }
        machine
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        ip(&format!("netns del {}", self.name));
    }
}

/// Prints `reached` or why not, within a second.
fn get(address: &str, port: u16) -> String {
    format!(
        "python3 -c \"
import urllib.request
try:
    print(urllib.request.urlopen('http://{address}:{port}', timeout=3).read().decode())
except Exception as error:
    print('refused' if 'timed out' not in str(error) else 'timed out')
\""
    )
}

fn settings() -> DockerSettings {
    DockerSettings { image: Some(DEBIAN.to_owned()), ..DockerSettings::default() }
}

fn open() -> SandboxSpec {
    SandboxSpec { allow_network: true, ..SandboxSpec::default() }
}

async fn reaches_only_public_addresses(world: &World, id: SandboxId, other: &str) {
    let guest = world.guest(id);
    let see = async |address: &str, port| sh(&guest, Some("root"), &get(address, port)).await.1;
    assert_eq!(see(PUBLIC, 8080).await, "reached\n");
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let gateway = sh(&guest, None, "python3 - <<'EOF'\nimport socket,struct\nfor l in open('/proc/net/route').readlines()[1:]:\n  f=l.split()\n  if f[1]=='00000000': print(socket.inet_ntoa(struct.pack('<L',int(f[2],16))))\nEOF").await.1;
    for address in [HOST, gateway.trim()] {
        assert_eq!(see(address, port).await, "refused\n", "this machine, by {address}");
    }
    for address in PRIVATE {
        assert_eq!(see(address, 8080).await, "refused\n", "{address}");
    }
    // Within a network the other's hardware address is not found, which takes the kernel a while.
    assert_ne!(see(other, 8080).await, "reached\n", "another sandbox, {other}");
}

async fn address_of(world: &World, id: SandboxId) -> String {
    let format = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
    world.docker(&["inspect", "--format", format, &format!("seawall-{id}")])
}

/// A sandbox that answers at port 8080, and its address.
async fn answering(world: &World, account: AccountId) -> (SandboxId, String) {
    let id = SandboxId::generate();
    world.provider.create(id, &open(), account).await.unwrap();
    world.provider.start(id).await.unwrap();
    let script = format!("setsid python3 -c \"{SERVER}\" > /dev/null 2>&1 &");
    sh(&world.guest(id), None, &script).await;
    let up = format!("until {} | grep -q reached; do sleep 0.05; done", get("127.0.0.1", 8080));
    assert_eq!(sh(&world.guest(id), None, &up).await.0, Some(0));
    (id, address_of(world, id).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn t7_a_network_reaches_public_addresses_and_nothing_else() {
    let test = "t7_a_network_reaches_public_addresses_and_nothing_else";
    let Some(daemon) = Daemon::with_bridges(test) else { return };
    let machine = Machine::new();
    let world = World::on(&daemon.address(), settings());
    let account = AccountId::generate();
    let (same, same_address) = answering(&world, account).await;
    let (other, other_address) = answering(&world, AccountId::generate()).await;
    let id = SandboxId::generate();
    world.provider.create(id, &open(), account).await.unwrap();
    assert_eq!(world.provider.start(id).await.unwrap().egress, Egress::Docker);
    for address in [&same_address, &other_address] {
        reaches_only_public_addresses(&world, id, address).await;
    }
    // A sandbox without a network of its own has none, also beside those.
    let (closed, guest) = world.sandbox(SandboxSpec::default()).await;
    assert_eq!(sh(&guest, None, &get(PUBLIC, 8080)).await.1, "refused\n");
    assert_eq!(world.provider.get(closed).await.unwrap().egress, Egress::None);
    // Docker writes its own rules anew.
    daemon.restart("-TERM");
    for again in [same, other, id] {
        world.provider.start(again).await.unwrap();
    }
    let (_, other_address) = answering(&world, AccountId::generate()).await;
    reaches_only_public_addresses(&world, id, &other_address).await;
    for info in world.provider.list().await.unwrap() {
        world.remove(info.id).await;
    }
    assert_eq!(world.docker(&["network", "ls", "-q", "--filter", "label=seawall.installation"]), "");
    drop(machine);
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_a_network_is_refused_without_rules_and_a_named_one_is_external() {
    let test = "p2_a_network_is_refused_without_rules";
    let Some(world) = World::with(test, settings()) else { return };
    let missing = SandboxSpec { network: Some("no-such-network".to_owned()), ..SandboxSpec::default() };
    let refused = world.create(SandboxId::generate(), &missing).await.unwrap_err();
    assert!(refused.to_string().contains("no-such-network"), "{refused}");
    let host = SandboxSpec { network: Some("host".to_owned()), ..SandboxSpec::default() };
    assert_eq!(world.create(SandboxId::generate(), &host).await.unwrap_err().kind(), ErrorKind::Invalid);
    let name = format!("test-{}", SandboxId::generate());
    world.docker(&["network", "create", "--internal", &name]);
    let spec = SandboxSpec { network: Some(name.clone()), ..SandboxSpec::default() };
    let (id, guest) = world.sandbox(spec).await;
    assert_eq!(world.provider.get(id).await.unwrap().egress, Egress::External);
    assert_eq!(sh(&guest, None, "ls /sys/class/net").await.1, "eth0\nlo\n");
    world.provider.remove(id, Volumes::Delete).await.unwrap();
    world.docker(&["network", "rm", &name]);
    let unchecked = NetworkSettings { unchecked: true, ..NetworkSettings::default() };
    let remote = DockerSettings {
        transport: seawall_providers::docker::Transport::Exec,
        networks: unchecked,
        ..settings()
    };
    let Some(remote) = World::with(test, remote) else { return };
    let tenant =
        remote.provider.create(SandboxId::generate(), &open(), AccountId::generate()).await.unwrap_err();
    assert_eq!(tenant.kind(), ErrorKind::LimitUnenforceable);
    let (id, _) = remote.sandbox(open()).await;
    assert_eq!(remote.provider.get(id).await.unwrap().egress, Egress::External);
    remote.remove(id).await;
}
