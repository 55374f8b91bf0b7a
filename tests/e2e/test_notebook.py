# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Reports in notebooks: names of cells, and HTML with the source of each line."""

import ast
import linecache
import re
from html.parser import HTMLParser

import pytest
import torch
from helpers import DEVICE
from notebooks import execute, pages_of, text_of

from mycelya_torch import _notebook

CELLS = [
    """
    import torch, mycelya_torch
    x = torch.ones(4, 4, device="mycelya")
    """,
    """
    def f(t):
        return (t @ t).softmax(-1)
    """,
    """
    for _ in range(2):
        y = f(x).sum()
        y.item()
    torch.mycelya.network_bill()
    """,
    "torch.mycelya.explain()",
    "z = f(x)\ntorch.mycelya.explain(z)",
    """
    with torch.mycelya.eager() as times:
        f(x)
    times
    """,
    """
    i = torch.tensor([9]).to("mycelya")
    w = torch.zeros(3, 2, device="mycelya")
    try:
        torch.nn.functional.embedding(i, w).cpu()
    except IndexError as e:
        print(e)
    """,
    """
    with torch.mycelya.trace("t.json"):
        f(x).tolist()
    print(open("t.json").read())
    """,
    """
    g = torch.compile(f)
    g(x).sum().item()
    print(torch.mycelya.explain())
    """,
    "torch.mycelya.reset_metrics()\ny = x.exp()\n\ny",
    "[x * 3]",
    "print(x + 1)",
    "display(x + 2)",
    "{b.place: b.callers for b in torch.mycelya.network_bill() if b.cuts}",
    """
    shell = get_ipython()
    shell.showtraceback = lambda *args, **kwargs: print(shell._get_exc_info()[1])
    """,
    "1\ntorch.nn.functional.embedding(i, w)",
]


@pytest.mark.slow
def test_cells_have_names(tmp_path, monkeypatch):
    cells = execute(CELLS, tmp_path, monkeypatch)
    bill, programs, pending, times, failure, trace, compiled = cells[2:9]
    (html,) = pages_of(bill)
    check(html)
    assert "In [3]:3" in html and "<code>y.item()</code>" in html
    assert "In [3]:3" in text_of(bill)  # as text it is a table, too

    (html,) = pages_of(programs)
    check(html)
    assert html.count("<details>") == html.count(">In [3]:3</code>: ") == 2
    assert "In [2]:2</code>" in html and 'title="return (t @ t).softmax(-1)"' in html
    assert text_of(programs).startswith("mycelya:0 has compiled 2 programs")

    (html,) = pages_of(pending)
    check(html)
    assert "is pending:" in html and "aten._softmax" in html

    (html,) = pages_of(times)
    check(html)
    assert (
        "aten.mm.default" in html and "<code>return (t @ t).softmax(-1)</code>" in html
    )

    assert "recorded at In [7]:4" in text_of(failure)
    assert '"line":"In [2]:2"' in text_of(trace)

    shown, *_, places, _, failed = cells[9:]
    assert "2.7183" in text_of(shown)
    lines = ["In [10]:4", "In [11]:1", "In [12]:1", "In [13]:1"]
    assert ast.literal_eval(text_of(places)) == dict.fromkeys(lines, {})
    assert "recorded at In [16]:2" in text_of(failed)
    for cell in cells:
        assert not re.search(r"/ipykernel_\d+/|<ipython-input", text_of(cell)), cell
        assert not any("ipykernel_" in html for html in pages_of(cell))


class Tags(HTMLParser):
    """Checks that each tag that begins ends."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check(html):
    tags = Tags()
    tags.feed(html)
    tags.close()
    assert not tags.open
    assert "<script" not in html


def test_text_is_escaped(tmp_path, monkeypatch):
    name = str(tmp_path / "a <b> & c.py")
    lines = ["x = '<script>alert(1)</script>'\n"]
    monkeypatch.setitem(linecache.cache, name, (1, None, lines, name))
    html = _notebook.with_sources(f"see {name}:1 & <this>")
    check(html)
    assert 'title="x = &#x27;&lt;script&gt;alert(1)&lt;/script&gt;&#x27;"' in html
    assert html.startswith("see <code ") and html.endswith(" &amp; &lt;this&gt;")


def test_places():
    found = [
        (m["file"], m["line"])
        for m in _notebook._PLACE.finditer(
            "mm at In [12]:3, add at /home/me/my work/train.py:41, at <stdin>:1; "
            "a.py:7. f32[2,3] at 10:20, x.pyc:3 (see model/b.py:8)"
        )
    ]
    assert found == [
        ("In [12]", "3"),
        ("/home/me/my work/train.py", "41"),
        ("<stdin>", "1"),
        ("a.py", "7"),
        ("model/b.py", "8"),
    ]


def test_outside_of_notebooks():
    """The same objects are text, and files keep their names."""
    x = torch.ones(3, device=DEVICE)
    (x + 1).sum().item()
    text = torch.mycelya.explain()
    assert isinstance(text, str) and "test_notebook.py" in text
    check(text._repr_html_())
    assert _notebook.shown(__file__) == __file__
