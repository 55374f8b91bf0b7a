# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The commands mycelya and mycelya-worker, with machines that outlive their process."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from helpers import ROOT, gone, needs_tested

import mycelya_cli._show as show
from mycelya_torch import RemoteMachine, _tested


@pytest.fixture
def environment(tmp_path):
    """Variables of a user without machines, whose machines end with the test."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MYCELYA_")}
    clean |= {"XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    yield clean
    answer = mycelya(clean, "machines", "--json")
    names = [m["handle"] for m in json.loads(answer.stdout)["machines"]]
    if names:
        mycelya(clean, "down", "--yes", *names)


def mycelya(environment, *args, code=0, **options):
    """Runs the command, and checks its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "mycelya_cli", *args],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        **options,
    )
    assert done.returncode == code, (args, done.stdout, done.stderr)
    return done


def listed(environment):
    answer = json.loads(mycelya(environment, "machines", "--json").stdout)
    return {m["name"]: m for m in answer["machines"]}


@pytest.fixture
def machine(environment):
    """The name of a machine that 'mycelya up' has started."""
    done = mycelya(environment, "up", "local:cpu", "--name", "one", "--timeout", "3600")
    assert done.stdout == "one\n" and "mycelya down one" in done.stderr
    return "one"


def test_a_machine_from_up_to_down(environment, machine):
    found = listed(environment)
    assert list(found) == [machine]
    m = found[machine]
    assert (m["provider"], m["used"], m["idle_seconds"]) == ("local", False, 600)
    assert m["price_per_hour"] == 0 and m["until"] > m["since"]
    assert m["handle"] == f"local:{m['id']}"
    text = mycelya(environment, "machines").stdout.splitlines()
    assert text[0].split() == "NAME PROVIDER GPU STARTED PRICE USED STOPS".split()
    assert re.fullmatch(
        r"one +local +- +\d+ (s|min) ago +0 +no +in (\d+ min|1 h), or after 10 min "
        r"without a client",
        text[1],
    )
    again = mycelya(environment, "up", "local:cpu", "--name", "one", code=1)
    assert "runs already" in again.stderr
    done = mycelya(environment, "down", machine)
    assert done.stdout == "one: ended\n" and gone(int(m["id"]))
    assert listed(environment) == {}
    assert mycelya(environment, "machines").stdout == "No machine runs.\n"
    missing = mycelya(environment, "down", machine, code=1)
    assert "No machine has the name 'one'. None runs" in missing.stderr


def test_a_machine_in_use(environment, machine, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", environment["XDG_STATE_HOME"])
    client = RemoteMachine.attach(machine)
    assert listed(environment)[machine]["used"]
    swept = mycelya(environment, "sweep", "--yes")
    assert swept.stdout == "Each machine that runs is in use.\n"
    for command in ("attach", "bench"):
        done = mycelya(environment, command, machine, code=1)
        assert "in use" in done.stderr and "--force" in done.stderr
    done = mycelya(environment, "down", machine, code=1, input="n\n")
    assert "one is in use" in done.stderr
    assert machine in listed(environment)
    mycelya(environment, "down", machine, input="y\n")
    assert listed(environment) == {}
    client.stop()


def test_sweep(environment, machine):
    mycelya(environment, "up", "local:cpu", "--name", "two")
    done = mycelya(environment, "sweep", code=1, input="n\n")
    assert "one (local)" in done.stderr and "End these 2 machines?" in done.stderr
    assert len(listed(environment)) == 2
    answer = json.loads(mycelya(environment, "sweep", "--yes", "--json").stdout)
    assert {m["name"] for m in answer["machines"] if m["ended"]} == {"one", "two"}
    assert listed(environment) == {}
    assert json.loads(mycelya(environment, "sweep", "--json").stdout) == {
        "machines": [],
        "errors": [],
    }


def test_attach(environment, machine):
    code = "machine.save('x', torch.ones(3, device=device)); print(device)"
    assert mycelya(environment, "attach", machine, "-c", code).stdout == "mycelya:0\n"
    code = "print(machine.load('x').sum().item(), torch.ones(1, device='mycelya'))"
    done = mycelya(environment, "attach", machine, "-c", code)
    assert done.stdout == "3.0 tensor([1.], device='mycelya:0')\n"
    prompt = mycelya(environment, "attach", machine, input="print(machine.saved())\n")
    assert "['x']" in prompt.stdout and "It has saved: x" in prompt.stderr
    missing = mycelya(environment, "attach", "two", code=1)
    assert "No machine has the name 'two'. There are 'one'." in missing.stderr


def test_logs(environment, machine):
    path = f"{environment['XDG_STATE_HOME']}/mycelya/machines/{machine}/log"
    with open(path, "a") as file:
        file.write("a line of the worker\n")
    assert mycelya(environment, "logs", machine).stdout.endswith(
        "a line of the worker\n"
    )
    answer = json.loads(mycelya(environment, "logs", machine, "--json").stdout)
    assert answer["name"] == machine and "a line of the worker" in answer["log"]
    follower = subprocess.Popen(
        [sys.executable, "-m", "mycelya_cli", "logs", "-f", machine],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        for line in follower.stdout:
            if line == "a line of the worker\n":
                break
        with open(path, "a") as file:
            file.write("another line\n")
        assert any(line == "another line\n" for line in follower.stdout)
    finally:
        follower.kill()
        follower.communicate()


def test_top(environment, machine, monkeypatch):
    done = mycelya(environment, "top", "--once", "--interval", "0.2")
    title, row = done.stdout.splitlines()
    titles = "NAME PROVIDER CLIENTS CPU MEMORY CALLS/S LAST CALL COST STOPS IN"
    assert title.split() == titles.split()
    assert re.fullmatch(r"one +local +0 +0 % +0 B +0 +- +0 +\d+ min", row), row
    monkeypatch.setenv("XDG_STATE_HOME", environment["XDG_STATE_HOME"])
    client = RemoteMachine.attach(machine)
    torch.ones(3, device=client.device()).sum().item()
    flags = ["--once", "--interval", "0.2", "--json"]
    answer = mycelya(environment, "top", machine, *flags)
    (one,) = json.loads(answer.stdout)["machines"]
    assert one["name"] == machine and one["clients"] == 1 and one["error"] == ""
    assert one["memory_bytes"] > 1e6 and one["processors"] >= 0
    assert 0 < one["stops_in_seconds"] <= 3600
    assert one["calls_per_second"] >= 0 and 0 <= one["last_call_seconds"] < 3600
    assert torch.ones(3, device=client.device()).sum().item() == 3, "its session lives"
    client.stop()
    assert mycelya(environment, "top", machine, "--once", code=1).stdout == ""


def test_bench(environment, machine):
    answer = json.loads(
        mycelya(environment, "bench", machine, "--mib", "1", "--json").stdout
    )
    assert 0 < answer["rtt_seconds"] <= answer["rtt_seconds_p95"] < 60
    for name in ("upload", "download", "clone", "tcp"):
        assert answer[f"{name}_bytes_per_second"] > 0
    assert 0 < answer["record_seconds"] < answer["compile_seconds"] < 60
    assert answer["bytes"] == 1 << 20
    text = mycelya(environment, "bench", "--mib", "1").stdout
    assert re.search(r"round trip +[\d.]+ ms", text)
    assert re.search(r"upload +\d+ MB/s +1 MiB +[\d.]+ +[\d.]+", text)
    assert re.search(r"record +[\d.]+ µs", text)
    assert re.search(r"clone\(\) +\d+ MB/s +1 MiB +1\.00 ", text)


def test_run_behind_a_network(environment, tmp_path):
    """The script runs twice, and the summary compares the runs."""
    script = tmp_path / "loop.py"
    script.write_text(
        "import sys, torch\n"
        "x = torch.rand(9, 9, device='mycelya')\n"
        "for i in range(4):\n"
        "    x = x @ x / 9\n"
        "    assert x.sum().item() > 0\n"
        "print('done', sys.argv[1:])\n"
        "sys.exit(len(sys.argv) - 1)\n"
    )
    run = ["run", "--rtt", "40ms", "--rate", "1Gbit"]
    done = mycelya(environment, *run, str(script))
    assert done.stdout == "done []\n"
    head, *rows = done.stderr.splitlines()[1:]
    assert head.split() == ["rtt=40ms", "rate=1Gbit", "without"]
    cells = {re.split(r"  +", row)[0]: re.split(r"  +", row)[1:] for row in rows}
    assert cells["round trips"] == ["5", "5"], "four, and the end of the script"
    far, near = (float(t.split()[0]) for t in cells["of it waiting"])
    assert far >= 4 * 0.04 > near
    assert re.match(r"0\.\d+ s, \d+ trips", cells[f"waits at {script}:5"][0])
    once = mycelya(environment, *run, "--once", str(script), "a", code=1)
    assert once.stdout == "done ['a']\n" and "without" not in once.stderr
    wrong = mycelya(environment, "run", "--rtt", "40", str(script), code=1)
    assert "rtt='40' is not possible" in wrong.stderr and "'50ms'" in wrong.stderr
    other = mycelya(environment, *run, "-m", "ssh:gpu1", str(script), code=2)
    assert "before a local worker" in other.stderr and "'ssh:gpu1'" in other.stderr
    assert (
        "--rtt or --rate only"
        in mycelya(environment, "run", "--once", str(script), code=2).stderr
    )


def test_run(environment, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, torch\n"
        "print(sys.argv[1:], os.environ.get('MYCELYA_MACHINE'))\n"
        "print(torch.ones(2, device='mycelya').sum().item())\n"
        "sys.exit(7)\n"
    )
    command = ["run", "--machine", "local:cpu", str(script), "--machine", "x", "-h"]
    done = mycelya(environment, *command, code=7)
    assert done.stdout == "['--machine', 'x', '-h'] local:cpu\n2.0\n"
    done = mycelya(environment, "run", str(script), code=7)
    assert done.stdout == "[] None\n2.0\n"
    wrong = mycelya(environment, "run", "-m", "aws:big", str(script), code=1)
    assert "'aws' is not a provider; the providers are local" in wrong.stderr
    missing = mycelya(environment, "run", "nothing.py", code=2)
    assert "'nothing.py' does not exist" in missing.stderr


def test_bisect(environment, tmp_path):
    """The cause is a rule, or a pass, whose change the script refuses."""
    script = tmp_path / "check.py"
    script.write_text(
        "import sys, torch\n"
        "x = torch.ones(2, device='mycelya')\n"
        "for _ in range(3):\n"
        "    x = torch.maximum(torch.neg(torch.neg(x)), torch.exp(x) + torch.exp(x))\n"
        "sys.exit(torch.mycelya.explain(x).count(sys.argv[1]) < int(sys.argv[2]))\n"
    )
    found = mycelya(environment, "bisect", "--json", str(script), "neg", "6")
    change = json.loads(found.stdout)
    assert re.fullmatch(r"rule NegOfNeg of pass simplify at .*:4", change["change"])
    assert change["passes"] == "-NegOfNeg" and change["number"] > 1
    good = {**environment, "MYCELYA_PASSES": "-NegOfNeg"}
    subprocess.run([sys.executable, script, "neg", "6"], env=good, check=True)
    found = mycelya(environment, "bisect", "--of", "cse", str(script), "exp", "6")
    assert re.match(r"change 1 of cse: pass cse at .*\n.*=-cse leaves", found.stdout)
    never = mycelya(
        environment, "bisect", "--of", "cse", str(script), "zz", "1", code=1
    )
    assert "fails without these changes, too" in never.stderr
    none = mycelya(environment, "bisect", str(script), "neg", "0", code=1)
    assert "ends with 0 with all changes of 'all'" in none.stderr


def test_doctor(environment):
    needs_tested("transformers")
    done = mycelya(environment, "doctor", "--json")
    answer = json.loads(done.stdout)
    assert answer["ok"]
    states = {f["check"]: f["state"] for f in answer["findings"]}
    for check in ("python", "torch", "package", "worker", "open files", "variables"):
        assert states[check] == "ok", answer
    assert {"seccomp", "shared memory", "cuda", "disk", "provider local"} <= set(states)
    assert "an addition" not in done.stdout
    assert states["transformers"] == "ok"
    for library in ("accelerate", "transformers", "lightning"):
        assert states[f"device of {library}"] == "ok"


def test_doctor_says_which_libraries_wait(environment, tmp_path):
    """With the variable, and for a release that the tests have not run with."""
    for version, more, remedy in (
        ("5.24.7", {"MYCELYA_AHEAD": "off"}, "Unset MYCELYA_AHEAD."),
        ("5.99.0", {}, "pip install 'transformers==5.24.*'"),
    ):
        # The metadata of a release that is not installed.
        info = tmp_path / version / f"transformers-{version}.dist-info"
        info.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: transformers\nVersion: {version}\n"
        (info / "METADATA").write_text(text)
        path = os.pathsep.join([str(info.parent), environment.get("PYTHONPATH", "")])
        given = {**environment, "PYTHONPATH": path, **more}
        answer = json.loads(mycelya(given, "doctor", "--json").stdout)
        (found,) = (f for f in answer["findings"] if f["check"] == "transformers")
        assert (found["state"], found["remedy"]) == ("note", remedy)
        assert version in found["text"] and "waits for the device" in found["text"]


def test_doctor_says_which_libraries_choose_the_cpu(environment, tmp_path):
    info = tmp_path / "accelerate-2.0.0.dist-info"
    info.mkdir()
    text = "Metadata-Version: 2.1\nName: accelerate\nVersion: 2.0.0\n"
    (info / "METADATA").write_text(text)
    path = os.pathsep.join([str(tmp_path), environment.get("PYTHONPATH", "")])
    for more, library, words, remedy in (
        (
            {"PYTHONPATH": path},
            "accelerate",
            "accelerate 2.0.0 is not the tested release 1.15; it does not choose a "
            "mycelya device",
            "pip install 'accelerate==1.15.*'",
        ),
        (
            {"MYCELYA_CHOOSE": "off"},
            "lightning",
            "does not choose a mycelya device",
            "Unset MYCELYA_CHOOSE.",
        ),
    ):
        done = mycelya({**environment, **more}, "doctor", "--json")
        findings = json.loads(done.stdout)["findings"]
        (found,) = (f for f in findings if f["check"] == f"device of {library}")
        assert (found["state"], found["remedy"]) == ("note", remedy)
        assert words in found["text"]


@pytest.mark.slow
def test_doctor_computes(environment):
    needs_tested("transformers")
    answer = json.loads(mycelya(environment, "doctor", "--run", "--json").stdout)
    text = "\n".join(f"{f['check']} {f['text']}" for f in answer["findings"])
    assert "an addition on a local worker is right" in text
    states = {f["check"]: f["state"] for f in answer["findings"]}
    for module, (library, *_) in _tested.CHOICES.items():
        if library in ("accelerate", "transformers", "lightning"):
            assert states[module] == "ok", answer
    for name in ("generate()", "Trainer"):
        assert f"{name} " in text
    assert text.count("does not wait for the device in each step") >= 3


def test_doctor_finds_what_is_wrong(environment, tmp_path):
    wrong = {**environment, "MYCELYA_MACHINE": "aws", "MYCELYA_KERNEL": "on"}
    answer = json.loads(mycelya(wrong, "doctor", "--json", code=1).stdout)
    failed = {
        f["text"]: f["remedy"] for f in answer["findings"] if f["state"] == "fail"
    }
    assert "'aws' is not a provider" in failed["MYCELYA_MACHINE=aws"]
    unknown = "MYCELYA_KERNEL is not known, and has no effect"
    assert failed[unknown] == "Is MYCELYA_KERNELS meant?"
    done = mycelya(wrong, "doctor", code=1)
    assert "FAIL" in done.stdout and not answer["ok"]
    assert done.stdout.splitlines()[0].split()[0] == "CHECK"
    # A package whose programs do not run.
    package = tmp_path / "site" / "mycelya_torch"
    package.mkdir(parents=True)
    names = ["__init__.py", "_libraries.py", "_version.py", "_provider_table.py"]
    for name in [*names, "_tested.py"]:
        (package / name).write_bytes((ROOT / "mycelya_torch" / name).read_bytes())
    (tmp_path / "site" / "mycelya_cli").symlink_to(ROOT / "mycelya_cli")
    broken = {**environment, "PYTHONPATH": str(tmp_path / "site")}
    done = mycelya(broken, "doctor", "--json", code=1, cwd=tmp_path)
    states = {f["check"]: f for f in json.loads(done.stdout)["findings"]}
    assert states["package"]["state"] == states["worker"]["state"] == "fail"
    assert "Reinstall" in states["package"]["remedy"]


def test_doctor_checks_a_machine(environment, tmp_path):
    hidden = {**environment, "HOME": str(tmp_path), "KUBECONFIG": "/nowhere"}
    flags = ["--json", "--machine"]
    for machine in ("ssh:nobody@127.0.0.1?ssh=false", "aws:big"):
        done = mycelya(hidden, "doctor", *flags, machine, code=1)
        finding = json.loads(done.stdout)["findings"][-1]
        assert (finding["check"], finding["state"]) == (f"machine {machine}", "fail")
        assert finding["remedy"]
    done = mycelya(hidden, "doctor", *flags, "exec:cat")
    assert json.loads(done.stdout)["findings"][-1]["state"] == "note"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(environment, shell):
    assert "_MYCELYA_COMPLETE" in mycelya(environment, "completion", shell).stdout


def test_completion_of_names(environment, machine):
    words = {"COMP_WORDS": "mycelya down o", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", "import mycelya_cli; mycelya_cli.main()"],
        env={**environment, "_MYCELYA_COMPLETE": "bash_complete", **words},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "plain,one\n", done.stderr


def test_help_names_each_command(environment):
    text = mycelya(environment, "--help").stdout
    names = "run machines up down attach logs top sweep bench doctor bisect completion"
    for name in names.split():
        assert re.search(rf"^  {name} +\S", text, re.MULTILINE), name
        assert mycelya(environment, name, "--help").stdout.startswith("Usage: mycelya")
    version = mycelya(environment, "--version").stdout
    assert re.fullmatch(r"mycelya \d\S*\n", version)
    assert "No such command" in mycelya(environment, "fly", code=2).stderr


def test_commands_do_not_import_torch(environment):
    """A command that needs no tensor answers at once."""
    code = """
import sys
sys.argv = ["mycelya", *sys.argv[1:]]
import mycelya_cli
try:
    mycelya_cli.main()
finally:
    print("torch" in sys.modules or "mycelya_torch" in sys.modules)
"""
    for command in (["machines"], ["--help"], ["doctor", "--json"], ["down", "x"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *command],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.stdout.splitlines()[-1] == "False", (command, done.stderr)


def test_the_worker_command(environment):
    code = "import mycelya_cli; mycelya_cli.worker()"

    def worker(*args):
        return subprocess.run(
            [sys.executable, "-c", code, *args],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )

    assert worker("--version").returncode == 0
    wrong = worker("--nonsense")
    assert wrong.returncode == 2 and "-nonsense" in wrong.stderr
    # Without a client it ends with its input. It has found the libraries by then.
    done = worker("--stdio", "--device", "cpu", "--log", "debug")
    assert "stdio" in done.stdout


def test_values():
    assert [show.span(s) for s in (0, 59, 60, 3599, 3600, 90061)] == [
        "0 s",
        "59 s",
        "1 min",
        "59 min",
        "1 h",
        "1 d 1 h",
    ]
    assert show.money(2.1, "USD", "/h") == "2.10 USD/h"
    assert (show.money(0, "USD"), show.money(None, "")) == ("0", "unknown")
    assert [show.size(n) for n in (5, 2048, 3 << 20, 5 << 30)] == [
        "5 B",
        "2.0 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]


def test_a_listing_is_fast(environment):
    """The start of the command and the look at local machines: 0.2 s of a processor.

    The import of torch alone takes seconds. The host may be slow or busy with others.
    """
    listing = min(_seconds(environment, "-m", "mycelya_cli", "machines") for _ in "123")
    importing = min(_seconds(environment, "-c", "import torch") for _ in "12")
    assert listing < importing / 2


def _seconds(environment, *command):
    """Processor time of a command of Python, with that of its children."""
    before = os.times()
    subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, check=True
    )
    after = os.times()
    used = (after.children_user, after.children_system)
    return sum(used) - before.children_user - before.children_system
