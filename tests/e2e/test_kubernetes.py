# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Machines that are pods, with a real worker, in a small cluster (clusters.py)."""

import os
import re

import hub as hubs
import pytest
import torch
from clusters import Cluster, build
from helpers import run
from killed import check_killed_clients
from safetensors.torch import save
from test_transport import trained

from mycelya_torch import RemoteMachine, load_huggingface_state_dicts


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("cluster"))


def nothing_left(state):
    return state == {"objects": [], "processes": None}


@pytest.fixture
def cluster(program, tmp_path, monkeypatch):
    """A cluster that is the user's. Nothing is left in it."""
    folder = tmp_path / "node"
    folder.mkdir()
    cluster = Cluster(program, folder)
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    yield cluster
    try:
        cluster.wait(nothing_left)
    finally:
        cluster.close()


def machine(**options):
    return RemoteMachine("kubernetes", device="cpu", **options)


def test_a_training_has_the_same_bits(cluster):
    with machine() as far:
        assert far.device().type == "mycelya"
        there = trained(far.device())
    for a, b in zip(there, trained("mycelya"), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))
    for a, b in zip(there, trained("cpu"), strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b))


def test_large_uploads_and_downloads(cluster):
    x = torch.arange(5_000_000, dtype=torch.float32)
    with machine() as far:
        assert torch.equal((x.to(far.device()) + 1).cpu(), x + 1)


def test_a_training_goes_on_when_its_connections_end(cluster):
    expected = trained("mycelya")
    torch.mycelya.reset_metrics()
    with machine() as far:
        device = far.device()
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
        ).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        x, y = torch.randn(64, 16), torch.arange(64) % 4
        cut = 0
        for i in range(20):
            batch = slice(i % 4 * 16, i % 4 * 16 + 16)
            loss = torch.nn.functional.cross_entropy(
                net(x[batch].to(device)), y[batch].to(device)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 3 == 0:
                cut += cluster.ask("cut")
            if i % 3 == 0:
                loss.item()
        assert cut >= 3
        for a, b in zip(net.parameters(), expected[-4:], strict=True):
            assert torch.equal(a.detach().cpu(), b)
        assert torch.mycelya.metrics()["reconnects"] >= 1


def test_another_process_goes_on(cluster, tmp_path):
    env = {
        "KUBECONFIG": cluster.kubeconfig,
        "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"],
    }
    code = """
        import torch
        from mycelya_torch import RemoteMachine

        m = RemoteMachine("kubernetes", device="cpu", name="ä/1", detached=True)
        x = torch.zeros(1000, device=m.device())
        for i in range(100):
            x += 1
        m.save("x", x)
    """
    status, _, err = run(code, tmp_path, **env)
    assert status == 0, err
    assert len(cluster.pods()) == 1
    with pytest.raises(RuntimeError, match='There are "ä/1"'):
        RemoteMachine.attach("none of them", "kubernetes")
    far = RemoteMachine.attach("ä/1", "kubernetes")
    x = far.load("x")
    assert x.tolist() == [100] * 1000
    with pytest.raises(RuntimeError, match=r"runs already.*attach\("):
        machine(name="ä/1", detached=True)
    far.stop()
    with pytest.raises(RuntimeError, match='No machine with the name "ä/1" runs'):
        RemoteMachine.attach("ä/1", "kubernetes")


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("kill", "was ended by signal killed"),
        ("oom", "was ended because its host ran out of memory"),
        # The worker has time to say so itself before the node tells why.
        ("evict", "(taken its host for others|The worker is being stopped)"),
    ],
)
def test_a_lost_pod_is_explained_and_replaced(cluster, end, text):
    far = machine(name="far")
    x = torch.ones(3, device=far.device())
    assert x.sum().item() == 3
    cluster.ask(end, pod=cluster.pods()[0])
    with pytest.raises(RuntimeError, match="machine far, is lost") as error:
        while True:
            x.add_(1).cpu()
    assert re.search(text, str(error.value))
    far.restart()
    assert torch.ones(2, device=far.device()).tolist() == [1, 1]
    far.stop()


def test_a_training_goes_on_from_its_checkpoint(cluster):
    """A claim outlives a pod, and another pod goes on from what it has."""
    far = machine(volume="disk")
    x = torch.ones(3, device=far.device())
    far.checkpoint()
    x += 1
    cluster.ask("kill", pod=cluster.pods()[0])
    x *= 2
    assert x.tolist() == [4, 4, 4]
    assert torch.mycelya.metrics()["workers_replaced"] >= 1
    far.save("x", x)
    far.stop()
    with machine(volume="disk") as again:
        assert again.load("x").tolist() == [4, 4, 4]


def test_weights_lie_on_a_claim(cluster, tmp_path, monkeypatch):
    """They outlive a pod. A pod without the claim reaches no hub."""
    want = torch.randn(1000)
    file = save({"w": want})
    with hubs.running({"me/m": hubs.Repo({"m.safetensors": file})}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url(hub.api))
        for served in (len(file), 0):
            hub.served = 0
            with machine(weights="disk") as far:
                got = load_huggingface_state_dicts("me/m", far)[""]["w"]
                assert torch.equal(got.cpu(), want)
            assert hub.served == served
        with machine() as far:
            with pytest.raises(RuntimeError, match="without a folder.*weights="):
                load_huggingface_state_dicts("me/m", far)


def test_a_paused_machine_has_no_pod(cluster):
    with machine(volume="disk") as far:
        x = torch.ones(3, device=far.device())
        far.pause()
        assert cluster.pods() == []
        far.resume()
        assert (x + 1).tolist() == [2, 2, 2]
    with machine(name="cannot") as far:
        with pytest.raises(NotImplementedError, match="machine cannot,.*volume="):
            far.pause()


def test_a_fork_keeps_the_session(cluster):
    with machine() as far:
        x = torch.ones(4, device=far.device())
        x.cpu()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert (x + 1).tolist() == [2, 2, 2, 2]


def test_errors_are_sentences(cluster, monkeypatch):
    with pytest.raises(RuntimeError, match='has no context "prod"; it has "fake"'):
        machine(context="prod")
    with pytest.raises(RuntimeError, match='The namespace "x" does not exist'):
        machine(namespace="x")
    with pytest.raises(RuntimeError, match="The node cannot get the image"):
        machine(image="nobody/none:1")
    with pytest.raises(RuntimeError, match=r"No node of the cluster took.*wait="):
        RemoteMachine("kubernetes", "H100", wait="1")
    cluster.ask("forbid", verb="create", resource="pods", message="exceeded quota: a")
    with pytest.raises(RuntimeError, match="The quota of the namespace"):
        machine()
    cluster.ask("forbid", verb="create", resource="secrets", message="no")
    with pytest.raises(RuntimeError, match="This user may not create secrets"):
        machine()
    cluster.ask("forbid")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    with pytest.raises(RuntimeError, match="There is no kubeconfig"):
        machine()
    with pytest.raises(ValueError, match="direct='maybe' is not possible"):
        machine(direct="maybe")
    with pytest.raises(ValueError, match="packages="):
        machine(packages=["numpy"])


def test_the_machine_of_the_environment(cluster, tmp_path):
    code = """
        import torch

        print(torch.ones(3, device="mycelya").sum().item())
    """
    env = {
        "MYCELYA_MACHINE": "kubernetes:fake?device=cpu&namespace=team",
        "KUBECONFIG": cluster.kubeconfig,
        "XDG_STATE_HOME": str(tmp_path),
    }
    status, out, err = run(code, tmp_path, **env)
    assert (status, out) == (0, "3.0\n"), err


@pytest.mark.slow
def test_killed_clients_leave_nothing(cluster, tmp_path):
    check_killed_clients(
        tmp_path,
        "kubernetes",
        [{"device": "cpu", "detached": d} for d in (False, True)],
        lambda: cluster.ask("state")["processes"],
    )
    cluster.wait(nothing_left)
