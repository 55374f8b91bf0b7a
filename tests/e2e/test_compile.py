# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.compile on device tensors.

A compiled function on the device must equal the plain function on the CPU.
"""

import copy
import io

import pytest
import torch
from helpers import DEVICE, compare, run, same

BACKENDS = ["eager", "aot_eager", "mycelya"]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, backend, **options):
    """A function that runs compiled on the device and plain on the CPU."""
    there = torch.compile(function, backend=backend, **options)

    def either(*tensors):
        return (function if tensors[0].device.type == "cpu" else there)(*tensors)

    return either


def pointwise(x, y):
    return (x * 2 + y).relu().sin() / (1 + x * x)


def reductions(x, y):
    return (x @ y.t()).softmax(-1).sum(0), x.mean(), x.amax(1, keepdim=True)


def views_and_writes(x, y):
    out = torch.zeros_like(x)
    out[:, 1:].add_(x[:, :-1])
    out.t()[0] = y[:, 0]
    return out.view(-1)[::2], out


def factories(x, y):
    steps = torch.arange(x.shape[0], device=x.device)
    return x + steps[:, None], torch.where(y > 0, y, torch.tensor(2.0, device=y.device))


def a_value_is_read(x, y):
    if (x.sum() > y.sum()).item():
        return x - y
    return y * 3


def lists(x, y):
    parts = [part * i for i, part in enumerate(torch.stack([x, y]).unbind())]
    return torch.cat(parts), {"last": parts[-1]}


def second_order(x, y):
    (g,) = torch.autograd.grad((x**3 * y).sum(), x, create_graph=True)
    return g * g


FUNCTIONS = [pointwise, reductions, views_and_writes, factories, a_value_is_read, lists]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_values(function, backend):
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    compare(compiled(function, backend), x, y)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "function", [pointwise, reductions, factories, lists], ids=lambda f: f.__name__
)
def test_gradients(function, backend):
    x = torch.randn(4, 5, requires_grad=True)
    y = torch.randn(4, 5, requires_grad=True)
    compare(compiled(function, backend), x, y)


def test_a_gradient_inside_the_function():
    x = torch.randn(3, requires_grad=True)
    compare(compiled(second_order, "eager"), x, torch.randn(3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_to_operands(backend):
    def write(x, y):
        x.mul_(y)
        y[0] = 7
        return x + 1

    compare(compiled(write, backend), torch.randn(3, 2), torch.randn(3, 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_change(backend):
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph

    function = torch.compile(pointwise, backend=backend, dynamic=True)
    count = torch.compile(pointwise, backend=counting, dynamic=True)
    for n in (3, 5, 8, 13):
        x, y = torch.randn(n, 4), torch.randn(n, 4)
        same(function(x.to(DEVICE), y.to(DEVICE)), pointwise(x, y))
        count(x.to(DEVICE), y.to(DEVICE))
    assert len(graphs) == 1


def network():
    return torch.nn.Sequential(
        # No bias: batch norm cancels it, so its exact gradient is 0. AdamW would make
        # whole steps of the rounding errors.
        torch.nn.Conv2d(3, 4, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 36, 5),
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_training(backend, optimizer):
    """Training gives the same parameters with torch.compile and without."""
    here = network()
    there = copy.deepcopy(here).to(DEVICE)
    fast = torch.compile(there, backend=backend)
    loss_of = torch.nn.CrossEntropyLoss()
    steps = [optimizer(m.parameters(), lr=0.01) for m in (here, there)]
    for _ in range(3):
        x, target = torch.randn(4, 3, 6, 6), torch.randint(5, (4,))
        losses = []
        for model, step, device in ((here, steps[0], "cpu"), (fast, steps[1], DEVICE)):
            step.zero_grad()
            loss = loss_of(model(x.to(device)), target.to(device))
            loss.backward()
            step.step()
            losses.append(loss.detach())
        same(losses[1], losses[0], 1e-4, 1e-4)
    same(dict(there.state_dict()), dict(here.state_dict()), 1e-3, 1e-4)
    there.eval(), here.eval()
    same(fast(x.to(DEVICE)), here(x), 1e-3, 1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_whole_step_in_one_function(backend):
    """Forward, backward and optimizer in one function; graph breaks are allowed."""
    here = torch.nn.Linear(4, 2)
    there = copy.deepcopy(here).to(DEVICE)
    optimizers = {m: torch.optim.SGD(m.parameters(), lr=0.1) for m in (here, there)}

    def step(model, x):
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizers[model].step()
        optimizers[model].zero_grad()
        return loss.detach()

    fast = torch.compile(step, backend=backend)
    for _ in range(3):
        x = torch.randn(6, 4)
        same(fast(there, x.to(DEVICE)), step(here, x), 1e-4, 1e-5)
    same(list(there.parameters()), list(here.parameters()), 1e-4, 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.cpu_worker
def test_random_numbers(backend):
    def noisy(x):
        return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    x = torch.ones(64).to(DEVICE)
    torch.manual_seed(3)
    expected = noisy(x)
    torch.manual_seed(3)
    same(torch.compile(noisy, backend=backend)(x), expected.cpu())


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast(backend):
    def mixed(x, y):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            z = x @ y
        return z, z.float().sum()

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    got = torch.compile(mixed, backend=backend, fullgraph=True)(
        x.to(DEVICE), y.to(DEVICE)
    )
    assert got[0].dtype == torch.bfloat16
    same(got[0], mixed(x, y)[0], 0.05, 0.05)


@pytest.mark.parametrize("backend", BACKENDS)
def test_moves_within_a_graph(backend):
    """One graph: `.to`, `.mycelya()`, `.cpu()` and is_mycelya do not break it."""

    def there(x):
        y = x.to("mycelya") * 2
        return y + 1 if y.is_mycelya else y - 1

    def and_back(x):
        return (x.mycelya() + 1).cpu() * 3

    x = torch.randn(5)
    compile_ = {"backend": backend, "fullgraph": True}
    same(torch.compile(there, **compile_)(x), x * 2 + 1)
    assert torch.compile(there, **compile_)(x).device == torch.device("mycelya:0")
    back = torch.compile(and_back, **compile_)(x)
    assert back.device.type == "cpu"
    same(back, (x + 1) * 3)


def test_the_current_device_is_a_constant():
    def function(x):
        return x + torch.mycelya.current_device() + torch.mycelya.is_available()

    fast = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert fast(torch.zeros(2).to(DEVICE)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_streams(backend):
    def side(x):
        stream = torch.mycelya.Stream()
        with stream:
            y = x + 1
        torch.mycelya.current_stream().wait_stream(stream)
        return y * 2

    x = torch.randn(3)
    same(torch.compile(side, backend=backend)(x.to(DEVICE)), (x + 1) * 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_other_tracers():
    """torch.jit, torch.fx and torch.export take device tensors and modules."""
    here = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    there = copy.deepcopy(here).to(DEVICE)
    x = torch.randn(2, 3)
    y = x.to(DEVICE)
    for made in (
        torch.jit.trace(there, y),
        torch.jit.script(there),
        torch.fx.symbolic_trace(there),
        torch.export.export(there, (y,)).module(),
    ):
        got = made(y)
        assert got.is_mycelya
        same(got, here(x), 1e-4, 1e-5)

    @torch.jit.script
    def moves(x: torch.Tensor, device: torch.device):
        return x.to(device).to(torch.float64), torch.ones(2, device=device), x.cpu()

    got = moves(x, torch.device("mycelya"))
    assert [t.device.type for t in got] == ["mycelya", "mycelya", "cpu"]
    same(got[0], x.double())
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(there), file)
    for where, operand in (("cpu", x), ("mycelya", y)):
        file.seek(0)
        same(torch.jit.load(file, map_location=where)(operand), here(x), 1e-4, 1e-5)


def test_dynamo_knows_the_device():
    from torch._dynamo.device_interface import get_interface_for_device

    interface = get_interface_for_device("mycelya:0".partition(":")[0])
    assert interface is get_interface_for_device(torch.device("mycelya", 0))
    assert interface.is_available() and interface.device_count() >= 1
    assert interface.current_device() == 0 and not getattr(interface, "is_gpu", bool)()
    assert interface.is_bf16_supported() and interface.is_dtype_supported(torch.half)
    assert interface.maybe_exchange_device(-1) == 0 == interface.exchange_device(0)
    assert interface.get_device_properties().torch == torch.__version__.split("+")[0]
    stream = interface.Stream()
    assert isinstance(stream, torch.Stream)
    with interface.stream(stream):
        assert interface.current_stream() == stream
    interface.synchronize()


# ---- Without torch.compile ----


@pytest.mark.parametrize(
    "imports",
    ["import torch, mycelya_torch", "import torch, torch._dynamo, mycelya_torch"],
)
def test_the_package_does_not_import_dynamo(imports, tmp_path):
    """Dynamo knows the device in either order of imports."""
    code = f"""
        import sys
        {imports}
        early = "torch._dynamo" in sys.modules
        import torch._dynamo.device_interface as interfaces
        assert interfaces.__spec__.loader is interfaces.__loader__
        assert type(interfaces.__loader__).__module__.startswith(
            ("importlib", "_frozen_importlib")
        ), type(interfaces.__loader__)
        interfaces.get_interface_for_device("mycelya")
        print(early)
    """
    env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    status, out, err = run(code, tmp_path, **env)
    assert status == 0, err
    assert out.strip() == str("_dynamo" in imports)
