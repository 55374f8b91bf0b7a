# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Machines, and the keepers of their workers. See mycelya_agent.py."""

import contextlib
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import threading
import time

from mycelya_files import (
    full_path,
    kept_folder,
    log_tail,
    machines_folder,
    matches,
    read_json,
    socket_folder,
    write_file,
    writing,
)

KILL_WAIT = 5.0  # seconds after SIGKILL
UNKNOWN = {"code": -1, "signal": 0}  # how a worker has ended


class Machine:
    """The folder of a machine."""

    def __init__(self, id_):
        self.id = id_
        self.path = os.path.join(machines_folder(), id_)

    def file(self, name):
        return os.path.join(self.path, name)

    def facts(self):
        """What is known of the worker; None if it does not run."""
        return read_json(self.file("machine.json")) if self.runs() else None

    def runs(self):
        return self.held("alive")

    def held(self, name):
        """Whether a process holds a FIFO open for writing."""
        try:
            fd = os.open(self.file(name), os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            return os.read(fd, 1) != b""
        except BlockingIOError:
            return True
        finally:
            os.close(fd)

    def ended(self, wait):
        """Waits for the end of the keeper, at most so many seconds."""
        until = time.monotonic() + wait
        try:
            fd = os.open(self.file("alive"), os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return True
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            while True:
                with contextlib.suppress(BlockingIOError):
                    if os.read(fd, 1) == b"":
                        return True
                left = until - time.monotonic()
                if left <= 0:
                    return False
                poll.poll(min(left, 3600) * 1000)
        finally:
            os.close(fd)

    def hold(self, name):
        """Opens a FIFO for writing; also for reading, so that it does not wait."""
        path = self.file(name)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        return os.open(path, os.O_RDWR)

    @contextlib.contextmanager
    def locked(self):
        with writing(self.path):
            os.makedirs(self.path, 0o700, exist_ok=True)
            fd = os.open(self.file("lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def stop(self, grace, drain):
        """Ends the worker. drain: its sessions may answer what has arrived."""
        facts = self.facts()
        first = signal.SIGTERM if drain else signal.SIGHUP
        for number, wait in ((first, grace + 0.5), (signal.SIGKILL, KILL_WAIT)):
            if facts is None or self.ended(0):
                return True
            with contextlib.suppress(ProcessLookupError):
                os.kill(facts["pid"], number)
            if self.ended(wait):
                return True
        return False

    def remove(self):
        """Removes what is left of a machine whose worker has ended."""
        if os.path.isdir(self.path):
            with self.locked():
                if not self.runs():
                    shutil.rmtree(self.path, ignore_errors=True)

    def exit(self):
        """How the worker has ended, with the end of its log."""
        out = read_json(self.file("exit.json")) or UNKNOWN
        return {**out, "log": log_tail(self.file("log"))}


class Keeper:
    """The parent of a worker, in a process of its own."""

    def __init__(self, machine, request, files, lib):
        self.machine, self.request, self.run = machine, request, socket_folder()
        self.address = os.path.join(self.run, "s")
        self.arguments = [
            files[0],
            *("--socket", self.address, "--credentials", "-", "--stdin-eof"),
            *("--state", kept_folder(machine, request)),
            *request["arguments"],
        ]
        if request["weights"]:
            self.arguments += ["--weights", full_path(request["weights"])]
        if lib:
            self.arguments += ["--exec", files[1], "--torch-lib", lib]

    def start(self):
        """Returns a pipe for the commit, and a pipe with the worker's first words."""
        alive = self.machine.hold("alive")
        commit, commits = os.pipe()
        ready, readies = os.pipe()
        if os.fork() == 0:
            try:
                os.setsid()
                self.keep(commit, readies, {alive, commit, readies})
            finally:
                os._exit(0)
        for fd in (alive, commit, readies):
            os.close(fd)
        return commits, ready

    def keep(self, commit, ready, mine):
        """Runs the worker. Only these descriptors stay open: others end the locks and
        pipes of the agent, and the stream of ssh."""
        for fd in range(3, 64):
            if fd not in mine:
                with contextlib.suppress(OSError):
                    os.close(fd)
        path, flags = self.machine.file("log"), os.O_CREAT | os.O_TRUNC | os.O_WRONLY
        log, null = os.open(path, flags, 0o600), os.open(os.devnull, os.O_RDWR)
        for fd, number in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, number)
        passed = self.request["environment"]
        environment = {k: v for k, v in os.environ.items() if matches(k, passed)}
        code = None
        try:
            worker = subprocess.Popen(
                self.arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            facts = {"error": "start", "text": os.strerror(error.errno or 0)}
            if error.errno == errno.ENOEXEC:
                facts["error"] = "program"
            os.write(ready, json.dumps(facts).encode())
        else:
            code = self.serve(worker, commit, ready)
        exit_ = UNKNOWN if code is None else ended(code)
        with contextlib.suppress(OSError):
            write_file(self.machine.file("exit.json"), json.dumps(exit_))
        shutil.rmtree(self.run, ignore_errors=True)

    def serve(self, worker, commit, ready):
        """Takes care of a worker until it has ended, and returns its code."""
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(self.request["worker"].encode())
            worker.stdin.flush()
        committed = threading.Event()

        def wait_for_commit():
            if os.read(commit, 1) == b"":
                worker.kill()  # nobody uses it
            committed.set()

        threading.Thread(target=wait_for_commit, daemon=True).start()
        line = worker.stdout.readline().decode("utf-8", "replace")
        facts = {
            **self.request["machine_facts"],
            "pid": worker.pid,
            "socket": self.address,
            "program": self.arguments[0],
            "began": time.time(),
        }
        with contextlib.suppress(OSError):
            write_file(self.machine.file("machine.json"), json.dumps(facts))
        with contextlib.suppress(OSError):
            os.write(ready, json.dumps({**facts, "line": line}).encode())
        os.close(ready)
        rest = open(2, "wb", closefd=False)  # prints of libraries
        copying = shutil.copyfileobj, (worker.stdout, rest)
        threading.Thread(target=copying[0], args=copying[1], daemon=True).start()
        return worker.wait()


def ended(code):
    """How a process has ended, from the code of subprocess."""
    return {"code": code, "signal": 0} if code >= 0 else {"code": -1, "signal": -code}


def running():
    """The machines of this host whose workers run."""
    try:
        ids = sorted(os.listdir(machines_folder()))
    except OSError:
        return []
    out = []
    for id_ in ids:
        machine = Machine(id_)
        facts = machine.facts()
        if facts is not None:
            out.append({**facts, "id": id_, "used": machine.held("used")})
    return out
