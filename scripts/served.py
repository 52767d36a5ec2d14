"""A `seawall serve` of one's own for the long suites: started in a folder of its own, watched, ended by its process id."""
import http.client, json, os, shutil, signal, subprocess, tempfile, threading, time
from pathlib import Path
from urllib.parse import urlsplit


class Server:
    """The server, in a control group with a limit of memory where one is asked for. `restart` keeps data and keys."""

    def __init__(self, binary, settings="", memory_mb=None):
        self.binary, self.memory_mb = binary, memory_mb
        self.data = tempfile.mkdtemp(prefix="seawall-load-")
        Path(self.data, "seawall.toml").write_text(settings)
        self.group = self._make_group() if memory_mb else None
        self.process = self.address = None
        self.starts = 0
        self.start()
        self.operator = Path(self.data, "key").read_text().strip()

    def _make_group(self):
        name = f"seawall-load-{os.getpid()}"
        v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
        group = (v1 if v1.is_dir() else v2) / name
        group.mkdir(exist_ok=True)
        limit = "memory.limit_in_bytes" if v1.is_dir() else "memory.max"
        (group / limit).write_text(str(self.memory_mb << 20))
        return group

    def start(self):
        command = [self.binary, "--data", self.data, "--config", f"{self.data}/seawall.toml", "serve"]
        command += ["--listen", "127.0.0.1:0", "--print-url"]
        join = None
        if self.group:
            join = lambda: (self.group / "cgroup.procs").write_text("0")
        log = open(f"{self.data}/load.log", "ab")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, preexec_fn=join)
        line = self.process.stdout.readline().decode().strip()
        if not line:
            raise SystemExit(f"the server did not start: {self.log()[-2000:]}")
        self.address, self.starts = urlsplit(line), self.starts + 1
        # Nobody reads on: a full pipe must not hold it up.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def log(self):
        return Path(self.data, "load.log").read_text(errors="replace")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def restart(self):
        self.kill()
        self.start()

    def memory_mb_used(self):
        """Resident anonymous memory, in MiB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def alive(self):
        return self.process.poll() is None

    def call(self, method, path, key=None, body=None, timeout=30, read=True):
        """Status and body. A connection that breaks is status 0."""
        connection = http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=timeout)
        headers = {"Authorization": f"Bearer {key or self.operator}"}
        if body is not None:
            body, headers["Content-Type"] = json.dumps(body), "application/json"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            data = answer.read() if read else b""
            try:
                return answer.status, json.loads(data) if data else None
            except ValueError:
                return answer.status, data
        except (OSError, http.client.HTTPException):
            return 0, None
        finally:
            connection.close()

    def tenant(self, name, settings=None):
        """The secret of an admin key of a new account, and the account's id."""
        status, account = self.call("POST", "/accounts", body={"name": name, "settings": settings or {}})
        assert status == 201, (status, account)
        scopes = {"name": "first", "scopes": ["read", "run", "admin"]}
        status, key = self.call("POST", f"/accounts/{account['id']}/keys", body=scopes)
        assert status == 201, (status, key)
        return key["secret"], account["id"]

    def close(self):
        """Ends every sandbox, then the server, then removes what it had."""
        for _ in range(100):
            status, accounts = self.call("GET", "/accounts?limit=1000")
            if status != 200:
                break
            left = [account for account in accounts["items"] if account["name"] != "local"]
            for account in left:
                self.call("DELETE", f"/accounts/{account['id']}", timeout=300)
            if not left:
                break
        status, mine = self.call("GET", "/sandboxes?limit=1000")
        for sandbox in (mine or {}).get("items", []) if status == 200 else []:
            self.call("DELETE", f"/sandboxes/{sandbox['id']}?force=true&sync=false", timeout=120)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
        shutil.rmtree(self.data, ignore_errors=True)
        if self.group:
            for _ in range(50):
                try:
                    self.group.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)
