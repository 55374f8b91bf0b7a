# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The part of the provider "ssh" that runs on the worker's host.

The client sends this program with a request over the stdin of ssh, so that no value is
part of a command line. The program needs the standard library of Python 3.9 only. It
answers with lines of JSON after MARK; other lines, which shells print, mean nothing. It
never writes a secret to a log or an error.

    <state>/mycelya/hosted/<host name>/<id>/   mode 0700, one for each machine
        machine.json    the worker's process, its socket, its clocks
        exit.json       how the worker has ended
        client.pem      the client's credentials, of a machine that outlives its client
        log             of the worker
        kept/           what the sessions of such a machine keep
        alive           a FIFO that the keeper holds open for writing
        used            a FIFO that the agents of clients hold open for writing
        lock            held while a worker is started
    <folder>/bin/<hash>/    the worker program and its libraries, named by their content

A keeper is the parent of one worker. It leaves the session of ssh, so that the worker
outlives a connection that is lost, and writes down how the worker ends. The worker ends
with its keeper, because the keeper holds its stdin.
"""

import contextlib
import errno
import json
import os
import platform
import queue
import select
import shutil
import sys
import tempfile
import threading
import time

from mycelya_files import (
    Refusal,
    cache_folder,
    check_system,
    entries,
    find_torch,
    install,
    kept_path,
    log_tail,
    machines_folder,
    missing,
    modified,
    programs,
    read_json,
    say,
    write_file,
    writing,
)
from mycelya_machines import (
    KILL_WAIT,
    Keeper,
    Machine,
    running,
)

LOST_WAIT = 1.0  # seconds in which a lost connection ends both directions
DAY = 86400
CLIENT_WAIT = 3600  # seconds; clients try to connect again for ten minutes


class Events:
    """What happens to the agent of a client, from threads that wait for it."""

    def __init__(self):
        self.queue = queue.Queue()

    def follow(self, name, function, *arguments):
        """Puts (name, result) into the queue when a function returns."""

        def wait():
            self.queue.put((name, function(*arguments)))

        threading.Thread(target=wait, daemon=True).start()

    def next(self):
        return self.queue.get()


def read_command():
    """The next command of the client; None if its end of the stream is closed."""
    line = sys.stdin.buffer.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def lost():
    """Whether the connection of ssh has ended, and not only the client.

    A client that ends closes its stdin only. A lost connection closes stdout as well.
    """
    poll = select.poll()
    poll.register(1, 0)  # POLLERR is always reported
    return bool(poll.poll(LOST_WAIT * 1000))


def start(request):
    check_system(request)
    lib, version, pack = find_torch(request)
    program = programs(request, pack)
    install(pack, program)
    machine = Machine(request["id"])
    with machine.locked():
        facts = machine.facts()
        if facts is not None:
            raise Refusal("name", pid=facts["pid"])
        for name in ("exit.json", "machine.json"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(machine.file(name))
        with writing(machine.path):
            if request["detached"]:
                write_file(machine.file("client.pem"), request["client"])
            files = [os.path.join(program, name) for name, _, _ in pack["files"]]
            keeper = Keeper(machine, request, files, lib)
            commits, ready = keeper.start()
    events = Events()
    events.follow("command", read_command)
    events.follow("ready", read_all, ready)
    what, value = events.next()
    if what == "ready" and value.get("line"):
        used = machine.hold("used")
        found = request.get("found", "")
        say(**value, torch=version, found=found, host=platform.node())
        what, value = events.next()
        if what == "command" and value and value["do"] == "commit":
            os.write(commits, b"c")
            os.close(commits)
            prune(request)
            follow(machine, events)
            os.close(used)
            return
        value = {}
    os.close(commits)
    machine.ended(KILL_WAIT)
    if what == "ready":
        exit_ = machine.exit()
        refused = {"error": "start", "text": "", **value, "exit": exit_}
        say(**refused)
    if request["detached"]:
        with contextlib.suppress(OSError):
            os.remove(machine.file("machine.json"))
    else:
        machine.remove()


def read_all(fd):
    """The object that comes through a pipe."""
    with open(fd, "rb") as f:
        text = f.read()
    return json.loads(text) if text else {}


def follow(machine, events):
    """Serves a client until its end, or until that of the worker."""
    facts = machine.facts() or read_json(machine.file("machine.json")) or {}
    detached = facts.get("detached", False)
    events.follow("ended", machine.ended, 1e9)
    events.follow("command", read_command)
    while True:
        what, value = events.next()
        if what == "ended":
            break
        if value is None:
            if not lost() and not detached:
                machine.stop(0, False)
                tidy(machine, facts)
            return
        if value["do"] == "stop":
            if not machine.stop(value["grace"], detached):
                say(error="stuck", pid=facts.get("pid"))
        events.follow("command", read_command)
    kept = facts.get("kept", "")
    left = bool(kept) and os.path.isdir(kept_path(kept))
    say(exit=machine.exit(), left=left)
    while True:
        what, value = events.next()
        if what != "command":
            continue
        if value is None:
            if not lost() and not detached:
                tidy(machine, facts)
            return
        if value["do"] == "seen":
            if not detached:
                machine.remove()
            return
        events.follow("command", read_command)


def tidy(machine, facts):
    """Removes all of a machine whose client has gone for ever."""
    machine.remove()
    if facts.get("kept"):
        shutil.rmtree(kept_path(facts["kept"]), ignore_errors=True)


def watch(request):
    """Serves a client that knows the machine: the connection before was lost."""
    machine = Machine(request["id"])
    facts = machine.facts()
    if facts is None:
        if read_json(machine.file("exit.json")) is None:
            raise Refusal("gone")
    else:
        say(**facts)
    used = machine.hold("used")
    follow(machine, Events())
    os.close(used)


def attach(request):
    """Serves a client that knows the machine's name only."""
    machine = Machine(request["id"])
    facts = machine.facts()
    if facts is None:
        names = [f["session"] for f in running() if f["detached"]]
        raise Refusal("none", names=names)
    with open(machine.file("client.pem")) as f:
        say(**facts, client=f.read())
    used = machine.hold("used")
    follow(machine, Events())
    os.close(used)


def replaced(request):
    """What a worker in place of one that has ended needs."""
    last = read_json(Machine(request["id"]).file("machine.json"))
    if last is None:
        raise Refusal("none", names=[])
    say(**last)


def sweep(request):
    """Lists the machines, and ends those that the client chooses."""
    say(machines=running())
    while command := read_command():
        machine = Machine(command["id"])
        facts = machine.facts()
        if machine.stop(0.5, True):
            tidy(machine, facts or {})
            say(done=True)
        else:
            say(error="stuck", pid=facts["pid"])


def log(request):
    """Sends the end of a worker's log."""
    machine = Machine(request["id"])
    if not os.path.isdir(machine.path):
        raise Refusal("gone")
    say(log=log_tail(machine.file("log")))


def remove(request):
    """Removes what a machine has kept."""
    if request["kept"]:
        shutil.rmtree(kept_path(request["kept"]), ignore_errors=True)
    elif request["id"]:
        Machine(request["id"]).remove()
    say(done=True)


def check(request):
    """Says whether a start can succeed, and changes nothing but empty folders."""
    check_system(request)
    _, _, pack = find_torch(request)
    path = programs(request, pack)
    lacking = sum(size for _, size, _ in missing(pack, path))
    disk = os.statvfs(path)
    if lacking > disk.f_bavail * disk.f_frsize:
        raise Refusal("full", path=path, text=f"{path}: {os.strerror(errno.ENOSPC)}")
    with writing(machines_folder()):
        os.makedirs(machines_folder(), 0o700, exist_ok=True)
        tempfile.TemporaryFile(dir=machines_folder()).close()
    say(host=platform.node())


def prune(request):
    """Removes what nobody needs: old programs, ends that nobody has read."""
    used = {os.path.dirname(f.get("program", "")) for f in running()}
    old = time.time() - 30 * DAY
    for path in entries(os.path.join(cache_folder(request), "bin")):
        if path not in used and modified(path) < old:
            shutil.rmtree(path, ignore_errors=True)
    for path in entries(machines_folder()):
        machine = Machine(os.path.basename(path))
        once = machine.id.startswith("once-")  # only its client can come back
        if once and modified(path) < time.time() - CLIENT_WAIT and not machine.runs():
            tidy(machine, read_json(machine.file("machine.json")) or {})
    kept = {kept_path(f["kept"]) for f in running() if f["kept"]}
    for path in entries(kept_path("")):
        if path not in kept and modified(path) < time.time() - 7 * DAY:
            shutil.rmtree(path, ignore_errors=True)


COMMANDS = {
    f.__name__: f for f in (start, watch, attach, replaced, sweep, log, remove, check)
}


def main(request):
    os.umask(0o077)
    try:
        COMMANDS[request["do"]](request)
    except Refusal as refusal:
        say(**refusal.answer)
    except OSError as error:
        say(error="folder", path=error.filename or "", text=str(error))
    os._exit(0)  # threads may wait for the client
