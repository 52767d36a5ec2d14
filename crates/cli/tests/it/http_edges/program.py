"""A program that listens in a sandbox: it tells what it was asked, and echoes WebSockets. Only the standard library."""

import base64
import hashlib
import json
import struct
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Program(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self):
        if self.headers.get("upgrade", "").lower() == "websocket":
            return self.echo()
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        told = {
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "length": len(body),
            "sum": hashlib.sha256(body).hexdigest(),
        }
        text = json.dumps(told).encode()
        self.send_response(418 if self.path.startswith("/teapot") else 200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(text)))
        self.send_header("set-cookie", "own=1; Path=/; Domain=example.com")
        self.send_header("set-cookie", "seawall_80=stolen")
        self.send_header("strict-transport-security", "max-age=1")
        self.send_header("x-own", "yes")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = answer

    # Frames as they come, without their masks.
    def echo(self):
        key = self.headers["sec-websocket-key"].encode()
        self.send_response(101)
        self.send_header("upgrade", "websocket")
        self.send_header("connection", "upgrade")
        self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key + GUID).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2:
                return
            size = head[1] & 0x7F
            if size == 126:
                size = struct.unpack("!H", self.rfile.read(2))[0]
            elif size == 127:
                size = struct.unpack("!Q", self.rfile.read(8))[0]
            mask = self.rfile.read(4)
            payload = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(size)))
            if size < 126:
                lead = bytes([head[0], size])
            elif size < 65536:
                lead = bytes([head[0], 126]) + struct.pack("!H", size)
            else:
                lead = bytes([head[0], 127]) + struct.pack("!Q", size)
            self.wfile.write(lead + payload)
            if head[0] & 0x0F == 8:
                return


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Program).serve_forever()
