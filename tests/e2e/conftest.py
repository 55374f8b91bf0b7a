# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Tiers and fixtures. Each graph is verified after each pass, printed and parsed."""

import contextlib
import gc
import importlib.util
import os
import signal
import time

os.environ.setdefault("MYCELYA_CHECK", "2")
# Threads of libgomp that wait for work sleep: tests run side by side on few cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# No test finds the accounts and clusters of who runs it: a sweep would end machines.
for name in [name for name in os.environ if name.startswith("MODAL_")]:
    del os.environ[name]
os.environ["MODAL_CONFIG_PATH"] = os.devnull
os.environ["MODAL_SERVER_URL"] = "http://127.0.0.1:1"
os.environ["KUBECONFIG"] = "/nowhere"

import pytest  # noqa: E402

# The examples of a test are the same in each run: new ones would let it fail at random.
# `make soak` draws new ones.
if importlib.util.find_spec("hypothesis") is not None:
    import hypothesis

    soak = "MYCELYA_SOAK" in os.environ
    hypothesis.settings.register_profile("ours", derandomize=not soak, deadline=None)
    hypothesis.settings.load_profile("ours")

# Modules that assert for tests: a failure then shows both sides.
pytest.register_assert_rewrite(
    "ahead", "browser", "helpers", "model_cases", "module_cases", "optimizer_cases"
)
pytest.register_assert_rewrite("sparse_compressed")

import helpers  # noqa: E402
import modal_plane  # noqa: E402
import networks  # noqa: E402
import torch  # noqa: E402

import mycelya_torch  # noqa: E402, F401 (registers the device)

TIERS = {"critical", "fast", "slow", "sweep"}


def pytest_addoption(parser):
    text = "tables of the op database suite; a full run writes COVERAGE.md"
    parser.addoption("--summary", action="store_true", help=text)


def pytest_terminal_summary(terminalreporter, config):
    if config.getoption("--summary"):
        import opinfo_report  # here, because its own imports take seconds

        opinfo_report.summarise(terminalreporter)


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--summary") and not config.getoption("-m"):
        # Only on request: the sweep takes as long as all other tests together.
        sweep = [item for item in items if item.get_closest_marker("sweep")]
        config.hook.pytest_deselected(items=sweep)
        items[:] = [item for item in items if item not in set(sweep)]
    on_cuda = os.environ.get("MYCELYA_MACHINE", "").startswith("local:cuda")
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if not TIERS & marks:
            item.add_marker(pytest.mark.fast)
        if on_cuda and "cpu_worker" in marks:
            reason = "needs a worker that computes on the CPU"
            item.add_marker(pytest.mark.skip(reason=reason))
    # Long tests first, so that parallel processes end at about the same time.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish():
    """What exists after collection stays: no later garbage collection visits it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def default_machine():
    """Starts the default machine first; otherwise a RemoteMachine takes its index."""
    torch.ones(1, device="mycelya").cpu()


@pytest.fixture(autouse=True)
def same_start():
    """Seeds before each test; kills its processes and waits for its work after it."""
    torch.manual_seed(0)
    yield
    while helpers.started:
        process = helpers.started.pop()
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    torch.mycelya.synchronize()


@pytest.fixture
def used():
    """Uses the device once before the test.

    The first use records the seed, which would be part of the first program.
    """
    torch.ones(1, device="mycelya").add_(1)
    torch.mycelya.synchronize()


@pytest.fixture
def counters():
    """Resets the counters; returns the function torch.mycelya.metrics."""
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    return torch.mycelya.metrics


@pytest.fixture(scope="session")
def faults(tmp_path_factory):
    """The path of the program of tests/faults."""
    return networks.build(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="session")
def modal_program(tmp_path_factory):
    return modal_plane.build(tmp_path_factory.mktemp("modal"))


@pytest.fixture
def plane(modal_program, tmp_path, monkeypatch, request):
    """A plane of Modal, the only one that the test can reach. No sandbox is left.

    Its parameter, if there is one, is more arguments of its program.
    """
    more = getattr(request, "param", ())
    plane = modal_plane.Plane(modal_program, tmp_path / "plane", *more)
    try:
        for name, value in plane.environment.items():
            monkeypatch.setenv(name, value)
        yield plane
        end = time.monotonic() + 60
        while plane.running() and time.monotonic() < end:
            time.sleep(0.05)
        assert plane.running() == []
    finally:
        plane.close()
