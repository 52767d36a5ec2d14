"""Git's own HTTP server (git http-backend) behind a gate that only HUB_TOKEN opens. The first line is the port."""
import base64
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN, ROOT = os.environ["HUB_TOKEN"], os.environ["HUB_ROOT"]


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def serve(self):
        body = self.body()
        given = self.headers.get("authorization", "")
        wanted = "Basic " + base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()
        if TOKEN and given != wanted:
            self.answer(401, [("www-authenticate", 'Basic realm="hub"')], b"no\n")
            return
        path, _, query = self.path.partition("?")
        env = {
            "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": ROOT, "GIT_HTTP_EXPORT_ALL": "1", "REMOTE_USER": "t",
            "PATH_INFO": path, "QUERY_STRING": query, "REQUEST_METHOD": self.command, "REMOTE_ADDR": "127.0.0.1",
            "CONTENT_TYPE": self.headers.get("content-type", ""), "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "HTTP_GIT_PROTOCOL": self.headers.get("git-protocol", ""), "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
        }
        ran = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True)
        head, _, rest = ran.stdout.partition(b"\r\n\r\n")
        headers = [tuple(line.split(": ", 1)) for line in head.decode().split("\r\n") if ": " in line]
        status = next((int(value.split()[0]) for name, value in headers if name.lower() == "status"), 200)
        self.answer(status, [h for h in headers if h[0].lower() not in ("status", "content-length")], rest)

    do_GET = do_POST = serve


server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
print(server.server_address[1], flush=True)
sys.stdout.close()
server.serve_forever()
