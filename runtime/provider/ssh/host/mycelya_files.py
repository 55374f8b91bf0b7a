# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Answers, folders and files of the host. See mycelya_agent.py."""

import contextlib
import errno
import glob
import hashlib
import importlib.util
import json
import os
import platform
import re
import socket
import sys
import tempfile
import urllib.parse

MARK = "MYCELYA-AGENT|"
LOG_BYTES = 64 << 10  # of a worker's log that are sent
MAX_SOCKET = 100  # bytes of a socket's path, which Linux bounds by 107


class Refusal(Exception):
    """A reason why a request cannot be done: a word, and facts for a sentence."""

    def __init__(self, error, **facts):
        super().__init__(error)
        self.answer = {"error": error, **facts}


def say(**answer):
    """Writes an answer; nothing if nobody reads."""
    with contextlib.suppress(OSError):
        os.write(1, f"{MARK}{json.dumps(answer)}\n".encode())


def matches(name, patterns):
    """Whether a name is in a list, in which "X*" stands for all that begin with X."""
    return any(
        name.startswith(p[:-1]) if p.endswith("*") else name == p for p in patterns
    )


def private(path, flags):
    return os.open(path, flags, 0o600)


def write_file(path, text):
    """Writes a file that only this user can read, at once and as a whole."""
    with open(path + ".new", "w", opener=private) as f:
        f.write(text)
    os.replace(path + ".new", path)


def read_json(path):
    """The object in a file; None if there is none."""
    try:
        with open(path) as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def log_tail(path):
    """The end of a log; from the start of a line on if something before it is cut."""
    try:
        with open(path, "rb") as f:
            cut = f.seek(max(0, os.fstat(f.fileno()).st_size - LOG_BYTES)) > 0
            text = f.read()
    except OSError:
        return ""
    if cut and b"\n" in text:
        text = text.split(b"\n", 1)[1]
    return text.decode("utf-8", "replace")


def user_folder(variable, *default):
    base = os.environ.get(variable, "")
    return base if os.path.isabs(base) else os.path.expanduser(os.path.join(*default))


def machines_folder():
    """The folder of this host's machines: several hosts may share a home."""
    base = user_folder("XDG_STATE_HOME", "~", ".local", "state")
    host = urllib.parse.quote(socket.gethostname() or "localhost", safe="")
    return os.path.join(base, "mycelya", "hosted", host)


def cache_folder(request):
    if request["folder"]:
        return os.path.abspath(os.path.expanduser(request["folder"]))
    return os.path.join(user_folder("XDG_CACHE_HOME", "~", ".cache"), "mycelya")


def find_torch(request):
    """torch's folder of libraries, its version, and the pack of files for it.

    torch is not imported.
    """
    if request["backend"] != "torch":
        return "", "", request["packs"][0]
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin:
        return use(request, os.path.dirname(spec.origin))
    refusal = Refusal("torch", python=sys.executable, version=platform.python_version())
    for root in elsewhere() if request["search"] else ():
        try:
            out = use(request, root)
            request["found"] = root.partition("/lib/python")[0]
            return out
        except Refusal as other:
            refusal = other
    raise refusal


def use(request, root):
    """What find_torch returns for a folder of torch."""
    version = ""
    with contextlib.suppress(OSError), open(os.path.join(root, "version.py")) as f:
        found = re.search(r"""(?m)^__version__.*= ['"]([^'"]+)""", f.read())
        version = found.group(1) if found else ""
    return os.path.join(root, "lib"), version, choose(request, version)


def elsewhere():
    """Folders of torch in environments, where these usually lie."""
    conda = (
        "~/miniconda3",
        "~/miniforge3",
        "~/mambaforge",
        "~/anaconda3",
        "/opt/conda",
    )
    places = [os.environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    places += ["~/venv", "~/.venv", "~/.virtualenvs/*", "/opt/venv"]
    places += [place for root in conda for place in (root, root + "/envs/*")]
    for place in filter(None, places):
        path = os.path.join(
            os.path.expanduser(place), "lib/python3*/site-packages/torch"
        )
        yield from sorted(glob.glob(path))


def choose(request, version):
    """The pack for a version of torch: the newest that is not newer than it."""
    wanted = release(version)
    fitting = [p for p in request["packs"] if release(p["torch"]) <= wanted]
    newest = max(fitting, key=lambda p: release(p["torch"]), default=None)
    if newest is None or release(newest["torch"])[0] != wanted[0]:
        names = sorted((p["torch"] for p in request["packs"]), key=release)
        ours = request["torch"]
        raise Refusal(
            "version", python=sys.executable, version=version, text=ours, names=names
        )
    return newest


def release(version):
    """The parts of a version on which a library for torch depends: (2, 15)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def check_system(request):
    system, machine = platform.system(), platform.machine()
    if [system, machine] != [request["system"], request["machine"]]:
        raise Refusal("architecture", system=system, machine=machine)


@contextlib.contextmanager
def writing(path):
    """Turns errors of the file system into refusals."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = f"{error.filename or path}: {os.strerror(error.errno or 0)}"
        raise Refusal("full" if full else "folder", path=path, text=text) from None


def programs(request, pack):
    """The folder of a pack's files. Only this user can write to it."""
    path = os.path.join(cache_folder(request), "bin", pack["hash"])
    with writing(path):
        os.makedirs(path, 0o700, exist_ok=True)
        os.utime(path)  # for prune
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        raise Refusal("noexec", path=path)
    return path


def missing(pack, path):
    """The files of the pack that this host lacks, or has with other bytes."""
    return [f for f in pack["files"] if digest(os.path.join(path, f[0])) != f[2]]


def digest(path):
    h = hashlib.sha256()
    try:
        with open(path, "rb") as f:
            while piece := f.read(1 << 20):
                h.update(piece)
    except OSError:
        return ""
    return h.hexdigest()


def install(pack, path):
    """Takes the files that are missing from stdin."""
    lacking = missing(pack, path)
    if lacking:
        say(need=[want for _, _, want in lacking])
    for name, size, want in lacking:
        with writing(path):
            fd, new = tempfile.mkstemp(prefix=name + ".", dir=path)
            try:
                with os.fdopen(fd, "wb") as f:
                    h = copy(f, size)
                    os.fchmod(f.fileno(), 0o700)
                if h != want:
                    raise Refusal("damaged", path=name)
                os.replace(new, os.path.join(path, name))
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(new)


def copy(to, size):
    """Copies bytes from stdin, and returns their hash."""
    h = hashlib.sha256()
    while size > 0:
        piece = sys.stdin.buffer.read(min(size, 1 << 20))
        if not piece:
            raise SystemExit(0)  # the client has gone
        h.update(piece)
        to.write(piece)
        size -= len(piece)
    return h.hexdigest()


def socket_folder():
    """A private folder with a short path."""
    for base in (tempfile.gettempdir(), "/tmp"):
        with writing(base):
            path = tempfile.mkdtemp(prefix="mycelya-", dir=base)
        if len(os.path.join(path, "s").encode()) <= MAX_SOCKET and "|" not in path:
            return path
        os.rmdir(path)
    raise Refusal("folder", path=base, text="the path is too long for a socket")


def kept_path(kept):
    return os.path.join(machines_folder(), "kept", kept)


def full_path(path):
    return os.path.abspath(os.path.expanduser(path))


def kept_folder(machine, request):
    """The folder for what sessions keep: that of a worker that replaces another."""
    if request["state"]:
        return full_path(request["state"])
    if request["kept"]:
        return os.path.join(machines_folder(), "kept", request["kept"])
    return machine.file("kept")


def entries(folder):
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except OSError:
        return []


def modified(path):
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0
