# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Writes optable.inc: the handling of each aten overload on the device.

With --allowed it writes Allowed.inc instead: the overloads that a worker runs. With
--schemas it writes schemas.txt: what the compiler's verifier knows about overloads.

The handling of an overload is one of:

  whole         recorded as it is (one boxed kernel, registered by name)
  dynamic       the same, but its shapes depend on data, so the client asks the worker
  hand          a handwritten kernel, registered elsewhere in csrc/device
  view          PyTorch's kernel, which calls the device's as_strided, view, ...
  inplace_view  PyTorch's kernel, which changes only the tensor's own metadata
  decompose     PyTorch's composite kernel, which calls other overloads
  refuse        an error with a reason

The dispatcher's registrations show which overloads have a kernel for CPU, CUDA or one
of the Composite aliases. All other facts are in the catalogue, and come from
catalogue/operators.json. Run it after catalogue/gen with the newest supported torch,
built with CUDA:

  python csrc/device/record/gen_optable.py > csrc/device/record/optable.inc
  python csrc/device/record/gen_optable.py --allowed > csrc/exec/program/Allowed.inc
  python csrc/device/record/gen_optable.py --schemas > catalogue/schemas.txt
"""

from __future__ import annotations

import fnmatch
import functools
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

_C = torch._C

CATALOGUE = json.loads(
    (Path(__file__).resolve().parents[3] / "catalogue" / "operators.json").read_text()
)


def handled(how: str) -> frozenset[str]:
    """The overloads with this handling in their row of the catalogue."""
    return frozenset(
        row["name"] for row in CATALOGUE["operators"] if row.get("handling") == how
    )


HAND, WHOLE, DYNAMIC, DECOMPOSE = map(
    handled, ("hand", "whole", "dynamic", "decompose")
)
INFERS = {r["name"]: r["infers"] for r in CATALOGUE["operators"] if "infers" in r}
REFUSED = [
    (pattern, reason)
    for reason, patterns in CATALOGUE["refused"]
    for pattern in patterns.split()
]
CLASS: dict[tuple[str, str], str] = {
    (op, argument): letter
    for letter, entries in CATALOGUE["argument_classes"]
    for entry in entries.split()
    for op, _, argument in [entry.rpartition(".")]
}


@dataclass(frozen=True)
class Row:
    """One overload: its handling and, for `whole`, how to record and infer it."""

    name: str
    handling: str
    third: str = ""  # whole, dynamic: the functional overload; refuse: the reason
    classes: str = ""


@dataclass(frozen=True)
class Facts:
    """The facts about one overload in the dispatcher."""

    name: str
    schema: torch._C.FunctionSchema
    backend: bool  # a kernel for CPU or CUDA
    other_backend: bool  # only kernels for a layout or device that the client lacks
    composite: str  # "implicit", "explicit", "nonfunctional" or ""
    tags: frozenset[str]

    @property
    def base(self) -> str:
        return self.name.partition(".")[0]

    def returns_view(self) -> bool:
        return any(
            r.alias_info is not None and not r.alias_info.is_write
            for r in self.schema.returns
        )

    def returns_tensors(self) -> bool:
        return all("Tensor" in str(r.type) for r in self.schema.returns)


def facts() -> dict[str, Facts]:
    """All aten overloads of the installed torch, by name without "aten::"."""
    has = _C._dispatch_has_kernel_for_dispatch_key
    found = {}
    registered = set(_C._dispatch_get_all_op_names())
    for schema in _C._jit_get_all_schemas():
        full = schema.name + ("." + schema.overload_name).rstrip(".")
        if not full.startswith("aten::") or full not in registered:
            continue
        name = full.removeprefix("aten::")
        overload = getattr(
            getattr(torch.ops.aten, schema.name[6:]), schema.overload_name or "default"
        )
        composite = ""
        for alias, key in [
            ("implicit", "CompositeImplicitAutograd"),
            ("explicit", "CompositeExplicitAutograd"),
            ("nonfunctional", "CompositeExplicitAutogradNonFunctional"),
        ]:
            if has(full, key):
                composite = alias
        found[name] = Facts(
            name=name,
            schema=schema,
            backend=has(full, "CPU") or has(full, "CUDA"),
            other_backend=not any(has(full, k) for k in ("CPU", "CUDA", "Meta")),
            composite=composite,
            tags=frozenset(str(t).rpartition(".")[2] for t in overload.tags),
        )
    return found


def refusal(name: str) -> str | None:
    for pattern, reason in REFUSED:
        if fnmatch.fnmatchcase(name, pattern):
            return reason
    return None


def handling(f: Facts) -> tuple[str, str]:
    """The handling of an overload and, for `refuse`, the reason."""
    if f.name in HAND:
        return "hand", ""
    if f.name in DYNAMIC:
        return "dynamic", ""
    if f.name in DECOMPOSE:
        return "decompose", ""
    if "inplace_view" in f.tags:
        return "inplace_view", ""
    if f.composite == "implicit" and f.name not in WHOLE:
        # The kernel calls other overloads. If one is refused, its message is better.
        return ("view" if f.returns_view() else "decompose"), ""
    reason = refusal(f.name)
    if reason is not None and not (f.composite and "generated" in f.tags):
        return "refuse", reason
    if f.returns_view():
        return "view", ""
    if f.name in WHOLE:
        return "whole", ""
    if f.base.startswith(("_foreach_", "_fused_")) and "generated" not in f.tags:
        return "whole", ""
    if "view_copy" in f.tags:
        return "decompose", ""
    if f.composite == "explicit":
        return "decompose", ""
    if not f.backend:
        if f.composite:
            return "decompose", ""
        return "refuse", "PyTorch has no kernel for it that a worker could run"
    if not f.returns_tensors():
        return "refuse", "it returns a value that only the worker knows"
    return "whole", ""


def argument_class(op: str, argument: torch._C.Argument) -> str:
    """One letter for one argument; '-' if its type leaves no choice."""
    kind = str(argument.real_type.str()).rstrip("[]?")  # type: ignore[attr-defined]
    default = {"SymInt": "s", "int": "l", "float": "v", "Scalar": "v"}.get(kind)
    if default is None:
        return "-"
    base = op.partition(".")[0].rstrip("_")
    letter = CLASS.get((base, argument.name)) or CLASS.get(("*", argument.name))
    return letter or default


def signature(schema: torch._C.FunctionSchema) -> tuple[tuple[str, str], ...]:
    """Names and types of the arguments that are not out= arguments."""
    return tuple(
        (a.name, str(a.type))
        for a in schema.arguments
        if not (a.is_out or (a.alias_info and a.alias_info.is_write and a.kwarg_only))
    )


def functional_of(f: Facts, known: dict[str, Facts]) -> str:
    """The functional overload with the same inference as this one, or ""."""
    if f.name in INFERS:
        return INFERS[f.name]
    writes = any(a.alias_info and a.alias_info.is_write for a in f.schema.arguments)
    if not writes:
        return f.name
    if any(r.alias_info is None for r in f.schema.returns):
        return ""
    base = f.base[:-1] if f.base.endswith("_") and f.base[:2] != "__" else f.base
    wanted = signature(f.schema)
    for other in by_base(frozenset(known)).get(base, ()):
        g = known[other]
        marked = any(a.alias_info is not None for a in g.schema.arguments)
        generated = "generated" in g.tags  # a clone and the in-place overload
        if not marked and not generated and signature(g.schema) == wanted:
            return other
    return ""


@functools.lru_cache(maxsize=1)
def by_base(names: frozenset[str]) -> dict[str, list[str]]:
    bases: dict[str, list[str]] = {}
    for name in sorted(names):
        bases.setdefault(name.partition(".")[0], []).append(name)
    return bases


def rows() -> list[Row]:
    """All rows for the installed torch, sorted by name."""
    known = facts()
    table = []
    for name in sorted(known):
        f = known[name]
        how, reason = handling(f)
        if how in ("whole", "dynamic"):
            classes = "".join(argument_class(name, a) for a in f.schema.arguments)
            table.append(Row(name, how, functional_of(f, known), classes))
        else:
            table.append(Row(name, how, reason))
    return table


HEAD = """\
// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Code generated by gen_optable.py from torch {version}. DO NOT EDIT.
// One row is one overload.
//   MYC_WHOLE(name, functional, classes)
//       Recorded as it is. functional: the overload under whose name its results are
//       inferred ("": nothing to infer, or a rule of its own for its fresh results). If
//       it is the overload itself, the rule sees all arguments, out= ones too.
//       classes: a letter per argument, l literal, s size, v value, b literal when 0 or
//       1, else value; - for what has no choice (tensors, booleans, dtypes, strings).
//   MYC_DYNAMIC(name, functional, classes)
//       The same, but only the worker knows the shapes of its results.
//   MYC_REFUSE(name, reason)
//       An error.
//   MYC_LEFT(handling, names)
//       This table registers nothing for them.
"""

LEFT = ("hand", "decompose", "inplace_view", "view")


def render(table: list[Row]) -> str:
    lines = [HEAD.format(version=torch.__version__.partition("+")[0])]
    for row in table:
        if row.handling in ("whole", "dynamic"):
            macro = f"MYC_{row.handling.upper()}"
            lines.append(f'{macro}("{row.name}", "{row.third}", "{row.classes}")\n')
        elif row.handling == "refuse":
            lines.append(f'MYC_REFUSE("{row.name}", "{row.third}")\n')
    lines.append("#ifdef MYC_LEFT\n")
    for how in LEFT:
        lines.append(f'MYC_LEFT("{how}",\n')
        line = "        "
        for name in (row.name for row in table if row.handling == how):
            if len(line) + len(name) + 3 > 116:
                lines.append(f'{line[:8]}"{line[8:]}"\n')
                line = "        "
            line += name + " "
        lines.append(f'{line[:8]}"{line[8:].rstrip()}")\n')
    lines.append("#endif  // MYC_LEFT\n")
    return "".join(lines)


ALLOWED_HEAD = """\
// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Code generated by gen_optable.py --allowed from torch {version}. DO NOT EDIT.
// The overloads of aten that a program may call, in order: those that the recorder
// records (optable.inc) and those that the compiler emits (catalogue.Emitted).
"""


def allowed(table: list[Row]) -> list[str]:
    """The overloads that a program may call, sorted by bytes."""
    recorded = {row.name for row in table if row.handling in ("whole", "dynamic")}
    return sorted(recorded | set(CATALOGUE["emitted"]))


def render_allowed(table: list[Row]) -> str:
    head = ALLOWED_HEAD.format(version=torch.__version__.partition("+")[0])
    return head + "".join(f'"{name}",\n' for name in allowed(table))


SCHEMAS_HEAD = """\
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Code generated by gen_optable.py --schemas from torch {version}. DO NOT EDIT.
# The overloads of aten that a program may call, and those that have a row in the
# catalogue: name(arguments) -> new tensors. ! marks an argument that the call writes.
"""


def argument_type(argument: torch._C.Argument) -> str:
    """Its type as in the schema; a size is an int."""
    text: str = argument.real_type.str()  # type: ignore[attr-defined]
    return text.replace("SymInt", "int")


def schema_line(f: Facts) -> str:
    arguments = []
    for a in f.schema.arguments:
        write = "!" if a.alias_info is not None and a.alias_info.is_write else ""
        arguments.append(f"{argument_type(a)}{write} {a.name}")
    made = [
        kind
        for r in f.schema.returns
        if not (r.alias_info is not None and r.alias_info.is_write)
        and (kind := argument_type(r)) in ("Tensor", "Tensor[]")
    ]
    return f"{f.name}({', '.join(arguments)})" + (" -> " + ", ".join(made)) * bool(made)


def render_schemas(table: list[Row]) -> str:
    known = facts()
    names = {*allowed(table), *(row["name"] for row in CATALOGUE["operators"])}
    lines = [schema_line(known[name]) + "\n" for name in sorted(names)]
    head = SCHEMAS_HEAD.format(version=torch.__version__.partition("+")[0])
    return head + "".join(lines)


if __name__ == "__main__":
    of = {"--allowed": render_allowed, "--schemas": render_schemas}
    sys.stdout.write(of.get("".join(sys.argv[1:]), render)(rows()))
