# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""MYCELYA_DUMP writes the programs of a script, in a form that can be parsed."""

import json
import re
import shutil
import socket
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from helpers import ROOT, run

PROGRAM = """
    import torch, mycelya_torch

    x = torch.ones(2, 3, device="mycelya")
    y = x * 2.5
    y[0].add_(1)
    print(y.sum().item())
"""
# The line of each op in prog.py; helpers.run strips the indentation only.
LINES = {"mul": 5, "add": 6, "sum": 7}


def graphs(text):
    """The graphs in a dump, without the comment lines between them."""
    return re.findall(r"^graph .*?^}\n", text, re.M | re.S)


def test_each_program_is_printed_with_its_lines(tmp_path):
    status, out, err = run(PROGRAM, tmp_path, MYCELYA_DUMP="-")
    assert (status, out) == (0, "18.0\n"), err
    (graph,) = graphs(err)
    for op, line in LINES.items():
        (row,) = (r for r in graph.splitlines() if re.search(rf"= (aten\.)?{op}", r))
        assert f"prog.py:{line}" in row
    assert "update" in graph and "key " in err


BACKWARD = """
    import torch, mycelya_torch

    x = torch.ones(3, 3, device="mycelya")
    w = torch.ones(3, 3, device="mycelya", requires_grad=True)
    y = x @ w
    y = y.tanh()
    x = x * 2
    y = y.sigmoid()
    y.sum().backward()
    print(w.grad.sum().item() > 0)
"""


def test_backward_ops_have_the_lines_of_their_forward_ops(tmp_path):
    status, out, err = run(BACKWARD, tmp_path, MYCELYA_DUMP="-")
    assert (status, out) == (0, "True\n"), err
    (graph,) = graphs(err)
    products = [r for r in graph.splitlines() if "= aten.mm" in r]
    assert [row.split("prog.py:")[1] for row in products] == ["6", "6"]
    for op, line in {"tanh_backward": 7, "sigmoid_backward": 9}.items():
        (row,) = (r for r in graph.splitlines() if f"= aten.{op}" in r)
        assert row.endswith(f"prog.py:{line}")


@pytest.fixture(scope="module")
def mycopt(tmp_path_factory) -> Path:
    if shutil.which("go") is None:
        pytest.skip("mycopt is built with go")
    path = tmp_path_factory.mktemp("bin") / "mycopt"
    subprocess.run(
        ["go", "build", "-o", path, "./passes/cmd/mycopt"], cwd=ROOT, check=True
    )
    return path


def test_what_is_printed_parses_and_prints_the_same(tmp_path, mycopt):
    status, _, err = run(PROGRAM, tmp_path, MYCELYA_DUMP="-,why,passes,all")
    assert status == 0
    texts = graphs(err)
    assert len(texts) > 1  # after capture and after each pass
    for number, text in enumerate(texts):
        file = tmp_path / f"{number}.ir"
        file.write_text(text)
        result = subprocess.run(
            [mycopt, "-verify", file], capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout == text


def test_a_folder_has_a_folder_for_each_program(tmp_path):
    dump = tmp_path / "dump"
    status, _, err = run(PROGRAM, tmp_path, MYCELYA_DUMP=str(dump))
    assert status == 0 and graphs(err) == []
    (folder,) = (p for p in dump.iterdir() if p.is_dir())
    assert "prog.py" in folder.name
    names = sorted(p.name for p in folder.iterdir())
    assert names[0] == "00-capture.ir" and "plan.txt" in names
    assert graphs((folder / names[0]).read_text())
    assert len((dump / "summary.txt").read_text().splitlines()) == 1


def test_programs_are_chosen(tmp_path):
    for word, count in (("only=prog.py:7", 1), ("only=other.py", 0), ("max=1", 1)):
        _, _, err = run(PROGRAM, tmp_path, MYCELYA_DUMP=f"-,{word}")
        assert len(graphs(err)) == count


def test_a_repeated_program_is_shown_once(tmp_path):
    code = """
        import torch, mycelya_torch

        x = torch.ones(3, device="mycelya")
        for _ in range(6):
            x = x * 2
            x.sum().item()
    """
    _, _, err = run(code, tmp_path, MYCELYA_DUMP="-")
    assert 1 <= len(graphs(err)) <= 3


# A loop that takes another branch, and uploaded values that a dump must not contain.
LOOP = """
    import torch, mycelya_torch

    secret = torch.tensor([31415.9265, 2.0]).to("mycelya")
    total = torch.zeros(2, device="mycelya")
    for i in range(6):
        y = secret * 2
        if i == 4:
            y = y.tanh()
        total += y
        print(total.sum().item() > 0)
    torch.mycelya.synchronize()
    metrics = torch.mycelya.metrics()
    print(dict(metrics["cuts"]), metrics["program_misses"])
"""
WORDS = "why,passes,rules,kernels,plan,wire,all"


def read(folder: Path) -> dict[str, str]:
    """The files of a dump by their paths in it, with durations replaced by 0."""
    files = (p for p in folder.rglob("*") if p.is_file())
    texts = {str(p.relative_to(folder)): p.read_text() for p in files}
    seconds = re.compile(r'"seconds":[0-9.e-]+')
    return {name: seconds.sub('"seconds":0', text) for name, text in texts.items()}


@pytest.fixture(scope="module")
def loop(tmp_path_factory) -> tuple[str, dict[str, str], Path]:
    """LOOP's output, the files of its dump with every word, and the dump's folder."""
    folder = tmp_path_factory.mktemp("loop")
    dump = folder / "dump"
    status, out, err = run(LOOP, folder, MYCELYA_DUMP=f"{dump},{WORDS}")
    assert status == 0 and err == ""
    return out, read(dump), dump


def test_every_word_on_an_example(tmp_path):
    code = (ROOT / "examples" / "hello.py").read_text()
    status, plain, _ = run(code, tmp_path)
    assert status == 0
    for to in ("-", str(tmp_path / "dump")):
        status, out, err = run(code, tmp_path, MYCELYA_DUMP=f"{to},{WORDS}")
        assert (status, out) == (0, plain), err
        if to == "-":
            assert re.search(r"^# cut 1 at prog.py:\d+ because ", err, re.M)
            assert re.search(r"^#   #1: It is the first one\.$", err, re.M)
            assert re.search(r"^# program 1, key [0-9a-f]+, plan$", err, re.M)
            assert re.search(r"^# sent +Program +\d+  \d+ bytes$", err, re.M)


def test_numbers_are_shown_on_request(tmp_path):
    code = """
import mycelya_torch, torch
x = torch.ones(3, device="mycelya")
rate = torch.tensor(0.25)
print((x.mul(31415.5).exp() + rate).sum().item())
"""
    _, _, err = run(code, tmp_path, MYCELYA_DUMP="-")
    assert "31415.5" not in err
    _, _, err = run(code, tmp_path, MYCELYA_DUMP="-,data,kernels")
    assert re.search(r"^param \d+ +number +f64 +31415\.5 +# .*prog.py:5$", err, re.M)
    assert re.search(r"^param \d+ +0-dim tensor +f32 +0\.25 +# .*prog.py:5$", err, re.M)
    assert re.search(r"^group 1: all\n  reads  %\d", err, re.M)
    run(code, tmp_path, MYCELYA_DUMP=str(tmp_path / "dump") + ",data")
    (data,) = (tmp_path / "dump").glob("*/data.txt")
    assert "31415.5" in data.read_text()
    (kernels,) = (tmp_path / "dump").glob("*/kernels.txt")
    assert kernels.read_text().startswith("1 kernel of groups, ")


def test_the_files_of_a_folder(loop):
    _, files, _ = loop
    folders = sorted({name.split("/")[0] for name in files if "/" in name})
    assert [re.sub("-[0-9a-f]{8}$", "", f) for f in folders][:2] == [
        "001-prog.py:11",
        "002-prog.py:11",
    ]
    assert {name for name in files if "/" not in name} == {
        *("index.html", "summary.txt", "events.jsonl", "why.txt", "wire.txt"),
    }
    for folder in folders:
        inside = {name.split("/")[1] for name in files if name.startswith(folder)}
        assert {"00-capture.ir", "01-views.ir", "graph.html", "plan.txt"} <= inside
        assert "repro.txtar" in inside


def test_why_has_each_cut_and_each_program(loop):
    out, files, _ = loop
    cuts = re.findall(
        r"^cut (\d+) at (\S+) because (.*): \d+ ops?, program #(\d+)",
        files["why.txt"],
        re.M,
    )
    assert [int(cut[0]) for cut in cuts] == list(range(1, len(cuts) + 1))
    events = [json.loads(line) for line in files["events.jsonl"].splitlines()]
    by_reason = Counter(e["reason"] for e in events if e["event"] == "cut")
    programs = [e for e in events if e["event"] == "compile"]
    assert out.splitlines()[-1] == f"{dict(by_reason)} {len(programs)}"
    assert len(cuts) == sum(by_reason.values()) >= 6
    assert cuts[0][1:3] == ("prog.py:11", "a value was read")
    assert files["why.txt"].count("  #") == len(programs)
    # The record of the new branch, with its line.
    assert "here:  aten::tanh(f32[2]) at prog.py:9\n" in files["why.txt"]
    assert programs[-1]["why"].startswith("Record ")


def test_a_dump_has_no_values_and_no_host_name(loop, tmp_path):
    _, files, _ = loop
    _, _, err = run(LOOP, tmp_path, MYCELYA_DUMP=f"-,{WORDS}")
    for name, text in {**files, "stderr": err}.items():
        assert "31415" not in text, name
        assert socket.gethostname() not in text, name


def test_the_same_run_gives_the_same_files(loop):
    _, first, dump = loop
    again = dump.with_name("again")
    status, _, _ = run(LOOP, dump.parent, MYCELYA_DUMP=f"{again},{WORDS}")
    assert status == 0
    second = read(again)
    # wire.txt lists frames as they were sent and received; that order varies.
    assert first.keys() == second.keys()
    for name in first.keys() - {"wire.txt"}:
        assert first[name] == second[name], name


def test_repros_give_the_same_graph_again(loop, mycopt, tmp_path):
    repros = sorted(loop[2].glob("*/repro.txtar"))
    assert len(repros) >= 3
    for path in repros:
        result = subprocess.run(
            [mycopt, "-repro", path], capture_output=True, text=True
        )
        assert result.returncode == 0, result
        assert ": the same graph after views, cse, " in result.stdout
        other = tmp_path / "other.txtar"
        other.write_text(path.read_text().replace("passes: views cse", "passes: views"))
        command = [mycopt, "-repro", other]
        assert subprocess.run(command, capture_output=True).returncode in (0, 1)
        other.write_text(path.read_text().replace("= input", "= inptu"))
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 2
        assert re.search(r'txtar:\d+:\d+: expected an op, found "inptu"', result.stderr)


def test_repros_hold_the_settings_of_the_environment(tmp_path, mycopt):
    env = {"MYCELYA_PASSES": "-NegOfNeg,until=simplify", "MYCELYA_CHECK": "1"}
    code = PROGRAM.replace("x * 2.5", "-(-x)")
    dump = tmp_path / "dump"
    status, _, err = run(code, tmp_path, MYCELYA_DUMP=str(dump), **env)
    assert status == 0, err
    (path,) = dump.glob("*/repro.txtar")
    header = path.read_text().partition("-- capture.ir --")[0]
    keys = dict(re.findall(r"^(\w+): (.+)$", header, re.M))
    assert keys.pop("mycelya") and keys.pop("torch")
    assert keys == {
        "program": "prog.py:7 read",
        "passes": "views cse simplify",
        "words": "-NegOfNeg,until=simplify",
        "check": "1",
    }
    result = subprocess.run([mycopt, "-repro", path], capture_output=True, text=True)
    assert result.returncode == 0, result


def test_a_killed_process_leaves_a_complete_dump(tmp_path):
    code = LOOP.replace("import", "import os,", 1)
    code = code.replace("torch.mycelya.synchronize()", "os.kill(os.getpid(), 9)")
    dump = tmp_path / "dump"
    status, _, _ = run(code, tmp_path, MYCELYA_DUMP=str(dump))
    assert status == -9
    index = (dump / "index.html").read_text()
    assert index.endswith("</script>\n  </body>\n</html>\n")
    assert (dump / "events.jsonl").read_text() in index
    assert len(re.findall("^cut ", (dump / "why.txt").read_text(), re.M)) >= 6


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path):
    (tmp_path / "file").write_text("")
    status, out, err = run(LOOP, tmp_path, MYCELYA_DUMP=f"{tmp_path}/file,wire")
    assert (status, out.count("True")) == (0, 6)
    assert err.count("MYCELYA_DUMP can't be written") == 1 == len(err.splitlines())
