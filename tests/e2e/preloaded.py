# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Scripts run in processes forked from one that has imported torch.

The import takes most of a short script's time. The server imports torch but not the
device: each process registers the device itself, from its own environment.

The client sends a request as JSON, with three descriptors: standard output, standard
error, and a pipe. The server writes the process ID and, at its end, the wait status
into the pipe.
"""

import atexit
import concurrent.futures
import functools
import gc
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import types
from pathlib import Path

import torch

SERVER = "import preloaded, sys; exec(preloaded.forked(int(sys.argv[1])))"
NUMBER = struct.Struct("i")
MOST_BYTES = 1 << 20  # of a request


# ---- The server ----


def forked(fd: int) -> types.CodeType:
    """Serves requests on the socket fd; returns in each forked process with its code.

    The server itself exits when the client closes the connection.
    """
    gc.collect()
    gc.freeze()
    request, fds = serve(socket.socket(fileno=fd))
    os.setsid()
    os.dup2(fds[0], 1)
    os.dup2(fds[1], 2)
    for fd in fds:
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    script, *_ = sys.argv = request["command"]
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [os.path.dirname(script), *filter(None, entries)]
    main = sys.modules["__main__"]
    del main.preloaded
    main.__file__ = script
    torch._import_device_backends()
    return compile(Path(script).read_bytes(), script, "exec")


def serve(connection: socket.socket) -> tuple[dict, list[int]]:
    """Forks a process for each request and returns in it, with the request."""
    pipes: dict[int, int] = {}  # process ID -> the descriptor for its status
    ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    ready = selectors.DefaultSelector()
    ready.register(connection, selectors.EVENT_READ)
    ready.register(ended, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj == ended:
                os.read(ended, 4096)
                report_ended(pipes)
                continue
            data, fds, _, _ = socket.recv_fds(connection, MOST_BYTES, 3)
            if not data:
                sys.exit()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for fd in (*pipes.values(), ended, wake):
                    os.close(fd)
                ready.close()
                connection.close()
                return json.loads(data), fds
            os.write(fds[2], NUMBER.pack(pid))
            os.close(fds[0])
            os.close(fds[1])
            pipes[pid] = fds[2]


def report_ended(pipes: dict[int, int]) -> None:
    """Writes the statuses of processes that have ended."""
    for pid, pipe in list(pipes.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            try:
                os.write(pipe, NUMBER.pack(status))
            except BrokenPipeError:  # the client has forgotten the process
                pass
            os.close(pipes.pop(pid))


# ---- The client ----


class Process:
    """A process of the server, with the methods of subprocess.Popen that tests use."""

    def __init__(self, pid: int, out: int, err: int, status: int):
        self.pid = pid
        self.returncode: int | None = None
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        self._status = os.fdopen(status, "rb")
        self._threads = concurrent.futures.ThreadPoolExecutor(3)
        self._texts = None
        self._end = self._threads.submit(self._status.read)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end; raises subprocess.TimeoutExpired."""
        try:
            (status,) = NUMBER.unpack(self._end.result(timeout))
        except concurrent.futures.TimeoutError:
            raise subprocess.TimeoutExpired([self.pid], timeout) from None
        self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for the end of the process and of its output; returns the output."""
        if self._texts is None:
            files = self.stdout, self.stderr
            self._texts = [self._threads.submit(f.read) for f in files]
        _, late = concurrent.futures.wait(self._texts, timeout)
        if late:
            raise subprocess.TimeoutExpired([self.pid], timeout)
        self.wait(timeout)
        self._threads.shutdown()
        out, err = (text.result() for text in self._texts)
        return out, err

    def send_signal(self, number: int) -> None:
        """Sends a signal unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def server() -> socket.socket:
    """The connection to this process's server, started at the first call."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(
        [sys.executable, "-u", "-c", SERVER, str(there.fileno())],
        pass_fds=[there.fileno()],
        cwd=os.path.dirname(__file__),  # where SERVER finds this module
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    there.close()
    atexit.register(here.close)
    return here


def start(command: list[str], env: dict[str, str]) -> Process:
    """Starts a Python script with arguments in a session of its own."""
    request = {"command": command, "env": env, "folder": os.getcwd()}
    out, err, status = os.pipe(), os.pipe(), os.pipe()
    fds = [pair[1] for pair in (out, err, status)]
    socket.send_fds(server(), [json.dumps(request).encode()], fds)
    for fd in fds:
        os.close(fd)
    first = os.read(status[0], NUMBER.size)
    if not first:
        raise RuntimeError("The server has ended; its output says why.")
    (pid,) = NUMBER.unpack(first)
    return Process(pid, out[0], err[0], status[0])
