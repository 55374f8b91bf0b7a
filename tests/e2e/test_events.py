# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Streams and events: all streams are one ordered queue; events have device time."""

import threading
import time

import pytest
import torch
from helpers import DEVICE


def work(n=300):
    x = torch.randn(n, n, device=DEVICE)
    return x @ x


def test_elapsed_time_is_the_devices():
    start, end = (torch.mycelya.Event(enable_timing=True) for _ in range(2))
    clock = time.perf_counter()
    start.record()
    for _ in range(5):
        work()
    end.record()
    end.synchronize()
    wall = 1e3 * (time.perf_counter() - clock)
    assert 0 < start.elapsed_time(end) <= wall
    assert end.elapsed_time(start) == pytest.approx(-start.elapsed_time(end))


def test_an_event_is_done_after_the_work_before_it():
    event = torch.Event(device=DEVICE)
    assert event.query()  # not recorded: nothing to wait for
    kept = work()
    event.record()
    event.synchronize()
    assert event.query()
    assert kept.shape == (300, 300)


def test_only_questions_and_times_send(counters):
    """Libraries order streams by events, and each step should remain one program."""
    events = [torch.Event(device=DEVICE) for _ in range(3)]
    for event in events[:2]:
        work()
        event.record()
        event.wait()
        torch.mycelya.current_stream().wait_event(event)
    assert (counters()["cuts"], counters()["stalls"]) == ({}, 0)
    events[0].query()
    assert (counters()["cuts"], counters()["stalls"]) == ({"event": 1}, 0)
    events[1].synchronize()  # the trace before it is sent
    assert all(event.query() for event in events)
    assert counters()["cuts"] == {"event": 1}
    timed = torch.mycelya.Event(enable_timing=True)
    work()
    timed.record()
    assert counters()["cuts"] == {"event": 2}


def test_an_event_is_sent_with_its_trace(counters):
    event, late = torch.Event(device=DEVICE), torch.Event(device=DEVICE)
    x = work()
    event.record()
    x.cpu()
    x.add_(1)
    late.record()
    event.synchronize()
    assert counters()["cuts"] == {"read": 1}  # what follows the event is not sent
    late.synchronize()
    assert counters()["cuts"] == {"read": 1, "event": 1}


def test_events_in_threads_share_a_point():
    work()
    events = [torch.Event(device=DEVICE) for _ in range(8)]
    for event in events:
        event.record()
    threads = [threading.Thread(target=event.synchronize) for event in events]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert all(event.query() for event in events)


def test_elapsed_time_needs_timed_and_recorded_events():
    timed, plain = torch.mycelya.Event(enable_timing=True), torch.mycelya.Event()
    timed.record(), plain.record()
    timed.synchronize(), plain.synchronize()
    with pytest.raises(ValueError, match="enable_timing"):
        timed.elapsed_time(plain)
    with pytest.raises((RuntimeError, ValueError), match="recorded"):
        timed.elapsed_time(torch.mycelya.Event(enable_timing=True))
    with pytest.raises(NotImplementedError, match="processes"):
        torch.mycelya.Event(interprocess=True)


def test_an_event_can_be_recorded_again_and_dropped():
    event = torch.mycelya.Event(enable_timing=True)
    first = torch.mycelya.Event(enable_timing=True)
    first.record()
    for _ in range(3):
        work(50)
        event.record()
    event.synchronize()
    assert first.elapsed_time(event) > 0
    for _ in range(100):
        torch.mycelya.Event(enable_timing=True).record()
    torch.mycelya.synchronize()


def test_an_error_before_an_event_is_raised_by_its_wait():
    bad = torch.nn.functional.embedding(
        torch.tensor([5], device=DEVICE), torch.zeros(2, 2, device=DEVICE)
    )
    event = torch.Event(device=DEVICE)
    event.record()
    with pytest.raises(IndexError, match="test_events.py"):
        event.synchronize()
    with pytest.raises(IndexError):
        bad.cpu()


def test_streams_are_current_where_set():
    default = torch.mycelya.current_stream()
    assert default == torch.mycelya.default_stream()
    one, two = torch.mycelya.Stream(), torch.mycelya.Stream()
    assert one != two
    with torch.mycelya.stream(one):
        assert torch.mycelya.current_stream() == one
        x = torch.ones(3, device=DEVICE)
        with torch.mycelya.stream(two):
            two.wait_stream(one)
            y = x + 1
        x.record_stream(two)
    with torch.mycelya.stream(None):
        assert torch.mycelya.current_stream() == default
    torch.mycelya.set_stream(one)
    assert torch.accelerator.current_stream() == one
    torch.mycelya.set_stream(default)
    assert y.tolist() == [2, 2, 2]


def test_synchronize_and_query_of_a_stream():
    stream = torch.mycelya.Stream()
    with stream:
        kept = work()
    stream.synchronize()
    assert stream.query()
    event = stream.record_event()
    event.synchronize()
    assert kept.device.type == "mycelya"
