# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Scripts run in processes forked from one that has imported torch.

The import takes most of a short script's time. The server imports torch but not the
device: each process registers the device itself, from its own environment.

The client sends a request as JSON, with four descriptors: standard input, output and
error, and a pipe. The server writes the process ID and, at its end, the wait status
into the pipe.
"""

import atexit
import concurrent.futures
import faulthandler
import functools
import gc
import importlib
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

NUMBER = struct.Struct("i")
MOST_BYTES = 1 << 20  # of a request


# ---- The server ----


def forked(connection: str, *modules: str) -> tuple[types.CodeType, dict]:
    """Imports modules, and serves requests on a socket, given by its descriptor.

    Returns in each forked process with the code to run and its namespace. The server
    itself exits when the client closes the connection.
    """
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    request, fds = serve(socket.socket(fileno=int(connection)))
    os.setsid()
    for standard in range(3):
        os.dup2(fds[standard], standard)
    faulthandler.enable(2)
    for fd in fds:
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    script, *_ = sys.argv = request["command"]
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [os.path.dirname(script), *filter(None, entries)]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = script
    torch._import_device_backends()
    return compile(Path(script).read_bytes(), script, "exec"), main.__dict__


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
            data, fds, _, _ = socket.recv_fds(connection, MOST_BYTES, 4)
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
            *standard, pipes[pid] = fds
            os.write(pipes[pid], NUMBER.pack(pid))
            for fd in standard:
                os.close(fd)


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

    def __init__(self, pid: int, pipes: dict[str, int], status: int):
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = os.fdopen(pipes["stdin"], "w") if "stdin" in pipes else None
        self.stdout = os.fdopen(pipes["stdout"])
        self.stderr = os.fdopen(pipes["stderr"]) if "stderr" in pipes else None
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

    def communicate(self, timeout: float | None = None) -> list[str]:
        """Waits for the end of the process and of its output; returns the output."""
        if self._texts is None:
            files = [f for f in (self.stdout, self.stderr) if f is not None]
            self._texts = [self._threads.submit(f.read) for f in files]
        _, late = concurrent.futures.wait(self._texts, timeout)
        if late:
            raise subprocess.TimeoutExpired([self.pid], timeout)
        self.wait(timeout)
        self._threads.shutdown()
        return [text.result() for text in self._texts]

    def send_signal(self, number: int) -> None:
        """Sends a signal unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def server(*modules: str) -> socket.socket:
    """The connection to this process's server, started at the first call."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(
        [sys.executable, "-u", __file__, str(there.fileno()), *modules],
        pass_fds=[there.fileno()],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    there.close()
    atexit.register(here.close)
    return here


def start(
    command: list[str],
    env: dict[str, str],
    modules: tuple[str, ...] = (),
    stdin: bool = False,
    stderr: int | None = None,
) -> Process:
    """Starts a Python script with arguments in a session of its own.

    The server has imported `modules`. Standard input is empty unless `stdin` asks for
    a pipe; `stderr` is a descriptor to use instead of a pipe.
    """
    request = {"command": command, "env": env, "folder": os.getcwd()}
    ours: dict[str, int] = {}
    ours["stdout"], out = os.pipe()
    ours["status"], status = os.pipe()
    if stdin:
        read, ours["stdin"] = os.pipe()
    else:
        read = os.open(os.devnull, os.O_RDONLY)
    if stderr is None:
        ours["stderr"], err = os.pipe()
    else:
        err = os.dup(stderr)
    fds = [read, out, err, status]
    socket.send_fds(server(*modules), [json.dumps(request).encode()], fds)
    for fd in fds:
        os.close(fd)
    first = os.read(ours["status"], NUMBER.size)
    if not first:
        raise RuntimeError("The server has ended; its output says why.")
    (pid,) = NUMBER.unpack(first)
    return Process(pid, ours, ours.pop("status"))


if __name__ == "__main__":
    exec(*forked(*sys.argv[1:]))
