# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""MYCELYA_DUMP prints what became of a script, in a form that can be parsed."""

import re
import shutil
import subprocess

import pytest
from helpers import ROOT, run

PROGRAM = """
    import torch, mycelya_torch

    x = torch.ones(2, 3, device="mycelya")
    y = x * 2.5
    y[0].add_(1)
    print(y.sum().item())
"""
# The line of prog.py on which each op stands; helpers.run strips the indentation only.
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


@pytest.mark.skipif(shutil.which("go") is None, reason="mycopt is built with go")
def test_what_is_printed_parses_and_prints_the_same(tmp_path):
    status, _, err = run(PROGRAM, tmp_path, MYCELYA_DUMP="-,passes,all")
    assert status == 0
    texts = graphs(err)
    assert len(texts) > 1  # after capture and after each pass
    mycopt = tmp_path / "mycopt"
    subprocess.run(
        ["go", "build", "-o", mycopt, "./passes/cmd/mycopt"], cwd=ROOT, check=True
    )
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
