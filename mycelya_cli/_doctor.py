# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""doctor: what works here, and what to do about what does not."""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from mycelya_cli import _doctor_gpu, _go, _paths, _show
from mycelya_cli._finding import Finding
from mycelya_cli._finding import ok as _ok

_REINSTALL = "Reinstall the package: pip install --force-reinstall mycelya-torch"


# ---- The package ----


def _python() -> Iterator[Finding]:
    yield _ok("python", f"{platform.python_version()}, {sys.executable}")


def _torch() -> Iterator[Finding]:
    try:
        lib = _paths.torch_lib()
        version, cuda = _paths.torch_versions()
    except click.ClickException as error:
        yield Finding("torch", "fail", error.message, "pip install torch")
        return
    missing = [
        name
        for name in ("libtorch_cpu.so", "libc10.so", "libtorch_python.so")
        if not (lib / name).exists()
    ]
    if missing:
        text = f"{version} in {lib} lacks {', '.join(missing)}"
        yield Finding("torch", "fail", text, "Reinstall torch.")
        return
    built = f"built for CUDA {cuda}" if cuda else "built without CUDA"
    yield _ok("torch", f"{version}, {built}")


def _package() -> Iterator[Finding]:
    try:
        names = [*map(_paths.library, ("device", "exec", "go"))]
    except click.ClickException as error:
        yield Finding("package", "fail", error.message, _REINSTALL)
        return
    programs = [_paths.worker(), _paths.machines()]
    missing = [str(path) for path in (*names, *programs) if not path.exists()]
    if missing:
        text = f"{', '.join(missing)} missing"
        remedy = f"In a checkout run 'make build'. {_REINSTALL}"
        yield Finding("package", "fail", text, remedy)
        return
    yield _ok("package", f"{_paths.version()}, {_paths.folder('mycelya_torch')}")


def _worker() -> Iterator[Finding]:
    program = _paths.worker()
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=30
        )
        build = done.stdout.strip()
        ours = _go.ask("version")["build"]
    except (OSError, subprocess.TimeoutExpired, click.ClickException) as error:
        yield Finding("worker", "fail", f"{program}: {error}", _REINSTALL)
        return
    if done.returncode != 0:
        text = f"{program} ended with code {done.returncode}: {done.stderr.strip()}"
        yield Finding("worker", "fail", text, _REINSTALL)
    elif build != ours:
        text = f"the worker is build {build}, the other programs are build {ours}"
        yield Finding("worker", "fail", text, _REINSTALL)
    else:
        yield _ok("worker", f"runs, build {build}")


def _device() -> Iterator[Finding]:
    """Computes on a local worker. This check and _patches import torch."""
    code = "import torch; print((torch.ones(3, device='mycelya') + 1).tolist())"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MYCELYA_")}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        text = "an addition on a local worker takes more than five minutes"
        yield Finding("device", "fail", text, "Look at the load of this host: top")
        return
    if done.returncode == 0 and done.stdout.strip() == "[2.0, 2.0, 2.0]":
        yield _ok("device", "an addition on a local worker is right")
        return
    lines = (done.stderr or done.stdout).strip().splitlines()[-3:]
    yield Finding("device", "fail", " ".join(lines), "The text says what to do.")


def _libraries() -> Iterator[Finding]:
    """Whether the installed libraries are those whose steps do not wait."""
    yield from _releases(
        _paths.tested().AHEAD,
        "MYCELYA_AHEAD",
        "{}",
        "does not wait for the device in each step",
        "waits for the device in each step",
    )


def _choices() -> Iterator[Finding]:
    """Whether the installed libraries choose the device by themselves."""
    yield from _releases(
        _paths.tested().CHOOSE,
        "MYCELYA_CHOOSE",
        "device of {}",
        "chooses the mycelya device by itself",
        "does not choose a mycelya device",
    )


def _releases(
    releases: dict[str, tuple[str, ...]],
    variable: str,
    check: str,
    does: str,
    does_not: str,
) -> Iterator[Finding]:
    """A finding for each installed library that a tested release is patched of.

    Args:
        releases: the tested releases by library
        variable: the switch; "off" turns the patches off
        check: the name of the finding, with {} for the library
        does, does_not: what the library does if it is patched, and if it is not
    """
    off = os.environ.get(variable) == "off"
    for name, tested in releases.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        finding = check.format(name)
        if off:
            yield Finding(
                finding, "note", f"{name} {version} {does_not}", f"Unset {variable}."
            )
        elif why := _paths.tested().reason(releases, name, version):
            remedy = f"pip install '{name}=={tested[-1]}.*'"
            yield Finding(finding, "note", f"{why}; it {does_not}", remedy)
        else:
            yield _ok(finding, f"{name} {version} {does}")


def _patches() -> Iterator[Finding]:
    """Whether the patches of libraries fit; imports the libraries."""
    code = "import json; from mycelya_torch import _ahead, _choose; "
    code += "print(json.dumps([_ahead.import_all(), _choose.import_all()]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    try:
        reasons, chosen = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        text = " ".join(done.stderr.strip().splitlines()[-3:])
        yield Finding("patches", "fail", text, "The text says what to do.")
        return
    for what, why in reasons.items():
        if why:
            text = f"{why}; it waits for the device in each step"
            yield Finding(what, "note", text, "Report it, with the versions.")
        else:
            yield _ok(what, "does not wait for the device in each step")
    for module, why in chosen.items():
        if why:
            text = f"{why}; it does not know mycelya devices"
            yield Finding(module, "note", text, "Report it, with the versions.")
        else:
            yield _ok(module, "patched; knows mycelya devices")


# ---- The host ----


def _seccomp() -> Iterator[Finding]:
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    try:
        ok = "errno" in actions.read_text()
    except OSError:
        ok = False
    if ok:
        yield _ok("seccomp", "sessions of local workers are confined by the kernel")
        return
    text = "the kernel does not filter system calls; local sessions are less confined"
    yield Finding("seccomp", "note", text, "Use a kernel with CONFIG_SECCOMP_FILTER.")


def _shared_memory() -> Iterator[Finding]:
    try:
        fd = os.memfd_create("mycelya-doctor")
        os.ftruncate(fd, 1 << 16)
        os.close(fd)
    except (AttributeError, OSError) as error:
        text = f"no memory files ({error}); pinned memory is copied over the socket"
        yield Finding("shared memory", "note", text, "Use Linux 3.17 or newer.")
        return
    yield _ok("shared memory", "pinned memory is shared with local workers")


def _ports() -> Iterator[Finding]:
    """Whether workers behind TCP can listen on the loopback interface."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield _ok("ports", f"workers can listen, as on {server.getsockname()[1]}")
    except OSError as error:
        remedy = "Local machines with transport='tcp' need the loopback interface."
        yield Finding("ports", "note", f"no port of 127.0.0.1: {error}", remedy)


def _disk() -> Iterator[Finding]:
    home = Path.home() if os.environ.get("HOME") else Path("/")
    folders = {
        "temporary files": Path(os.environ.get("TMPDIR") or "/tmp"),
        "caches": Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache"),
        "machines": Path(os.environ.get("XDG_STATE_HOME") or home / ".local/state"),
    }
    for what, folder in folders.items():
        place = folder
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        text = f"{_show.size(free)} free for {what} in {folder}"
        if not os.access(place, os.W_OK):
            remedy = f"Make {place} writable, or set another folder."
            yield Finding("disk", "fail", f"{folder} cannot be written", remedy)
        elif free < 1 << 30:
            yield Finding("disk", "fail", text, f"Free at least 1 GiB in {place}.")
        else:
            yield _ok("disk", text)


def _open_files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 1024:
        remedy = f"Run: ulimit -n {min(hard, 65536) if hard > 0 else 65536}"
        yield Finding("open files", "fail", f"a process may open {soft}", remedy)
        return
    limit = "any number" if soft == resource.RLIM_INFINITY else str(soft)
    yield _ok("open files", f"a process may open {limit}")


# ---- Variables and providers ----

_VARIABLES = {
    "MYCELYA_AHEAD",
    "MYCELYA_CHECK",
    "MYCELYA_CHOOSE",
    "MYCELYA_DUMP",
    "MYCELYA_EAGER",
    "MYCELYA_FETCH",
    "MYCELYA_GUESS",
    "MYCELYA_KERNELS",
    "MYCELYA_LIBRARIES",
    "MYCELYA_LOCAL",
    "MYCELYA_LOG",
    "MYCELYA_MACHINE",
    "MYCELYA_PASSES",
    "MYCELYA_REPLAY",
    "MYCELYA_TIMEOUT",
}


def _variables() -> Iterator[Finding]:
    given = {k: v for k, v in sorted(os.environ.items()) if k.startswith("MYCELYA_")}
    if not given:
        yield _ok("variables", "no MYCELYA_ variable is set")
    for name, value in given.items():
        if name not in _VARIABLES:
            near = difflib.get_close_matches(name, sorted(_VARIABLES), 1)
            remedy = f"Is {near[0]} meant?" if near else f"Unset {name}."
            text = f"{name} is not known, and has no effect"
            yield Finding("variables", "fail", text, remedy)
        elif name == "MYCELYA_MACHINE":
            try:
                _paths.split_target(value)
            except click.ClickException as error:
                yield Finding("variables", "fail", f"{name}={value}", error.message)
            else:
                yield _ok("variables", f"{name}={value}")
        else:
            yield _ok("variables", f"{name}={value}")


def _machine(text: str) -> Iterator[Finding]:
    """Whether a machine as in MYCELYA_MACHINE could be started."""
    try:
        provider, options = _paths.options_of(text)
        (answer,) = _go.ask("check", provider, options=options, wait=60)["providers"]
    except click.ClickException as error:
        yield Finding(f"machine {text}", "fail", "cannot be used", error.message)
        return
    if answer["error"]:
        remedy = answer["error"]
        yield Finding(f"machine {text}", "fail", "cannot be started", remedy)
    elif answer["checked"]:
        yield _ok(f"machine {text}", "can be started")
    else:
        text_ = "its provider cannot tell before a start"
        yield Finding(f"machine {text}", "note", text_)


def _providers() -> Iterator[Finding]:
    """What each provider says itself; of others, whether their programs are there."""
    try:
        answer = _go.ask("check", wait=20)["providers"]
    except click.ClickException as error:
        yield Finding("providers", "fail", error.message, _REINSTALL)
        return
    for p in answer:
        name = f"provider {p['provider']}"
        if not p["served"]:
            yield Finding(name, "note", "not part of this version")
        elif p["provider"] == "ssh":  # it checks a host, and none is named here
            yield from _access("ssh", name)
        elif p["error"]:
            yield Finding(name, "note", "cannot be used yet", p["error"])
        elif p["checked"]:
            yield _ok(name, "can be used")
        else:
            yield from _access(p["provider"], name)


def _access(provider: str, name: str) -> Iterator[Finding]:
    """Whether the programs and the credentials of a provider are there."""
    home = Path.home()
    needs: dict[str, object] = {}
    remedy = ""
    if provider == "ssh":
        keys = list((home / ".ssh").glob("id_*")) or os.environ.get("SSH_AUTH_SOCK")
        needs = {"the program ssh": shutil.which("ssh"), "a key or an agent": keys}
        remedy = "Install openssh-client; make a key with ssh-keygen."
    elif provider == "kubernetes":
        config = os.environ.get("KUBECONFIG") or home / ".kube" / "config"
        there = any(Path(p).exists() for p in str(config).split(os.pathsep))
        needs = {"the program kubectl": shutil.which("kubectl"), "a kubeconfig": there}
        remedy = "Install kubectl, and let it reach a cluster: kubectl cluster-info"
    elif provider == "modal":
        file = Path(os.environ.get("MODAL_CONFIG_PATH") or home / ".modal.toml")
        token = os.environ.get("MODAL_TOKEN_ID") or file.is_file()
        needs = {"credentials of Modal": token}
        remedy = "Run: pip install modal; modal token set"
    missing = [what for what, there in needs.items() if not there]
    if missing:
        yield Finding(name, "note", f"{' and '.join(missing)} missing", remedy)
    else:
        yield _ok(name, "can be used")


_CHECKS: list[Callable[[], Iterator[Finding]]] = [
    _python,
    _torch,
    _package,
    _worker,
    _libraries,
    _choices,
    _seccomp,
    _shared_memory,
    _doctor_gpu.gpus,
    _ports,
    _disk,
    _open_files,
    _variables,
    _providers,
]


@click.command()
@click.option(
    "--run", "compute", is_flag=True, help="Also compute on a local worker; seconds."
)
@click.option(
    "--machine",
    "-m",
    metavar="PROVIDER[:TARGET]",
    help="Also check whether this machine could be started, as ssh:gpu1.",
)
@_show.json_option
@click.pass_context
def doctor(
    ctx: click.Context, compute: bool, machine: str | None, as_json: bool
) -> None:
    """Say what works here, and what to do about what does not.

    The exit code is 1 if something is broken. Things that only some users need, as a
    GPU or a cloud's credentials, are notes.
    """
    checks = [*_CHECKS, _device, _patches] if compute else _CHECKS
    with _show.working("looking"):
        findings = [finding for check in checks for finding in check()]
        findings += _machine(machine) if machine else ()
    broken = any(f.state == "fail" for f in findings)
    if as_json:
        out: dict[str, Any] = {"ok": not broken}
        out["findings"] = [f._asdict() for f in findings]
        _show.print_json(out)
    else:
        signs = {"ok": "ok", "note": "-", "fail": "FAIL"}
        rows = [
            [
                signs[f.state],
                f.check,
                " ".join((f"{f.text}. {f.remedy}" if f.remedy else f.text).split()),
            ]
            for f in findings
        ]
        _show.print_table(["", "CHECK", "FOUND, AND WHAT TO DO"], rows)
    ctx.exit(1 if broken else 0)
