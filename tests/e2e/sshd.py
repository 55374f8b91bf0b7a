# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A real ssh server on the loopback interface, for this user only."""

import getpass
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from helpers import needs, processes

PATIENCE = 60.0  # seconds, for slow machines


class Host:
    """A server, and what a client needs for it. What workers keep lies in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("home", "state", "cache", "tmp"):
            (folder / name).mkdir(mode=0o700)
        for key in ("host", "id"):
            kind = ["-t", "ed25519", "-N", "", "-f", str(folder / key)]
            needs("ssh-keygen")
            subprocess.run(["ssh-keygen", "-q", *kind], check=True)
        shutil.copy(folder / "id.pub", folder / "authorized")
        environment = {
            "HOME": folder / "home",
            "XDG_STATE_HOME": folder / "state",
            "XDG_CACHE_HOME": folder / "cache",
            "TMPDIR": folder / "tmp",
            "OMP_WAIT_POLICY": "passive",
        }
        variables = " ".join(f"{name}={value}" for name, value in environment.items())
        lines = [
            "ListenAddress 127.0.0.1",
            f"HostKey {folder}/host",
            f"AuthorizedKeysFile {folder}/authorized",
            "PidFile none",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            f"SetEnv {variables}",
        ]
        (folder / "sshd_config").write_text("\n".join(lines) + "\n")
        self.server = self._start()
        public = (folder / "host.pub").read_text()
        (folder / "known").write_text(f"[127.0.0.1]:{self.port} {public}")
        lines = [
            "Host loop",
            "HostName 127.0.0.1",
            f"Port {self.port}",
            f"User {getpass.getuser()}",
            f"IdentityFile {folder}/id",
            "IdentitiesOnly yes",
            "IdentityAgent none",
            f"UserKnownHostsFile {folder}/known",
            "GlobalKnownHostsFile none",
        ]
        (folder / "config").write_text("\n".join(lines) + "\n")
        self.options = {
            "host": "loop",
            "ssh": shlex.join(["ssh", "-F", str(folder / "config")]),
            "python": sys.executable,
        }

    def _start(self) -> subprocess.Popen:
        """Starts sshd on a free port, which another process may take in between."""
        sshd = shutil.which("sshd") or "/usr/sbin/sshd"
        if os.getuid() == 0:  # sshd wants this folder, which the system's service makes
            os.makedirs("/run/sshd", 0o755, exist_ok=True)
        for _ in range(5):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
            config = ["-f", str(self.folder / "sshd_config"), "-p", str(self.port)]
            server = subprocess.Popen(
                [sshd, "-D", "-e", *config], stderr=(self.folder / "log").open("w")
            )
            if self._answers(server):
                return server
        raise AssertionError((self.folder / "log").read_text())

    def _answers(self, server: subprocess.Popen) -> bool:
        end = time.monotonic() + PATIENCE
        while server.poll() is None and time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self.port), 5).close()
                return True
            except ConnectionRefusedError:
                time.sleep(0.02)
        return False

    def processes(self, word: bytes = b"") -> list[int]:
        """The processes that the server has started, with a word in their arguments."""
        mine = f"XDG_CACHE_HOME={self.folder}".encode()
        return [
            pid
            for pid, environment, arguments in processes()
            if mine in environment and word in arguments
        ]

    def clients(self, word: bytes) -> list[int]:
        """The ssh processes that clients have started, with a word in arguments."""
        config = f"{self.folder}/config".encode()
        return [pid for pid, _, a in processes() if config in a and word in a]

    def stop(self) -> None:
        self.server.kill()
        self.server.wait()


def eventually(condition) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
