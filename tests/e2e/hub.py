# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A hub for tests, on two ports of the loopback interface.

One server has the interface of huggingface.co, the other one the bytes of large files.
They fail on purpose where a test says so.
"""

import hashlib
import json
import threading
import time
from collections import deque
from contextlib import contextmanager
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_PACED = 256 << 10  # bytes
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Repo:
    """A repository. `token` may read it; with `gated`, others are told so."""

    def __init__(self, files, token="", gated=False):
        self.files = {name: bytes(data) for name, data in files.items()}
        self.token = token
        self.gated = gated
        self.wrong = {}  # bytes that are not those of the hash

    @cached_property
    def listing(self):
        """The entries of all files, whose hashes are computed once."""
        return [self._entry(name, data) for name, data in self.files.items()]

    @staticmethod
    def _entry(name, data):
        oid = hashlib.sha256(data).hexdigest()
        lfs = {"oid": oid, "size": len(data), "pointerSize": 134}
        oid = hashlib.sha1(data).hexdigest()
        entry = {"type": "file", "path": name, "size": len(data), "oid": oid}
        return {**entry, "lfs": lfs}


class Hub:
    """The state that both servers share, and what they have seen."""

    def __init__(self, repos):
        self.repos = repos
        self.lock = threading.Lock()
        self.faults = deque()  # of the next requests for bytes
        self.cut = 0  # bytes after which each connection ends; 0: never
        self.rate = 0  # bytes per second of all connections; 0: no limit
        self.due = 0.0  # when the bytes that were sent have come at this rate
        self.served = 0  # bytes of files
        self.tokens = set()  # that came to the server of the bytes
        self.api = _server(self, _Api)
        self.bytes = _server(self, _Bytes)

    def url(self, server):
        return f"http://127.0.0.1:{server.server_address[1]}"

    def send(self, file, data):
        """Sends bytes, at the hub's rate."""
        if not self.rate:
            return file.write(data)
        for at in range(0, len(data), _PACED):
            part = data[at : at + _PACED]
            with self.lock:
                self.due = max(self.due, time.monotonic()) + len(part) / self.rate
                pause = self.due - time.monotonic()
            time.sleep(max(pause, 0))
            file.write(part)

    def fault(self):
        with self.lock:
            return self.faults.popleft() if self.faults else ""


@contextmanager
def running(repos):
    hub = Hub(repos)
    threads = [
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        for server in (hub.api, hub.bytes)
    ]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server in (hub.api, hub.bytes):
            server.shutdown()
            server.server_close()


def _server(hub, handler):
    class Handler(handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()


class _Api(_Handler):
    def do_GET(self):
        parts = [unquote(p) for p in urlsplit(self.path).path.strip("/").split("/")]
        if parts[:2] == ["api", "models"]:
            parts = parts[2:]
        name, what, revision = "/".join(parts[:2]), parts[2], parts[3]
        repo = self.hub.repos.get(name)
        token = self.headers.get("Authorization", "")
        allowed = repo and (not repo.token or token == f"Bearer {repo.token}")
        if repo is None or not (allowed or repo.gated):
            return self.reply(401, X_Error_Code="RepoNotFound")
        if revision not in ("main", COMMIT):
            return self.reply(404, X_Error_Code="RevisionNotFound")
        if what == "revision":
            return self.reply(200, json.dumps({"sha": COMMIT}).encode())
        file = "/".join(parts[4:])
        if what == "tree":
            files = [f for f in repo.listing if f["path"].startswith(file)]
            if file and not files:
                return self.reply(404, X_Error_Code="EntryNotFound")
            return self.reply(200, json.dumps(files).encode())
        if not allowed:
            return self.reply(403, X_Error_Code="GatedRepo")
        to = f"{self.hub.url(self.hub.bytes)}/{name}/{file}?signature=secret"
        return self.reply(302, Location=to)


class _Bytes(_Handler):
    def do_GET(self):
        owner, name, file = urlsplit(self.path).path.strip("/").split("/", 2)
        repo = self.hub.repos[f"{owner}/{name}"]
        data = memoryview(repo.wrong.get(file, repo.files[file]))
        if token := self.headers.get("Authorization"):
            self.hub.tokens.add(token)
        size = len(data)
        begin, end = 0, size
        if wanted := self.headers.get("Range"):
            first, last = wanted.removeprefix("bytes=").split("-")
            begin, end = int(first), int(last) + 1
        fault = self.hub.fault() if self.command == "GET" else ""
        if fault == "429":
            return self.reply(429, Retry_After=0)
        if fault == "503":
            return self.reply(503)
        if fault == "reset":
            self.close_connection = True
            return None
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(end - begin))
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.end_headers()
        if self.command == "HEAD":
            return None
        if fault == "cut":
            end = begin + (end - begin) // 2
            self.close_connection = True
        if 0 < self.hub.cut < end - begin:
            end = begin + self.hub.cut
            self.close_connection = True
        with self.hub.lock:  # first: a test reads it when the worker has the bytes
            self.hub.served += end - begin
        try:
            self.hub.send(self.wfile, data[begin:end])
        except OSError:  # the worker has ended the fetch
            self.close_connection = True
        return None
