# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""generate() of transformers without a wait in each step.

After each token the library asks the device whether every row has ended, and waits for
the answer. Here the next steps are recorded meanwhile. When the answer says that a step
was the last one, the steps after it are undone: the library crops the ids, the scores
and so on, and `StopCheck.finish` the cache; the random numbers go on where they were.

transformers has a place for this, `DeferredStopCheck`, which it uses for another device
with a single step. `apply` puts ours there. A call that might notice the further steps
is left to the library: `refusal` lists what a call must have.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections import deque
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NamedTuple

import torch

from mycelya_torch import _ahead, _device, random

# The functions that we replace or call, with their parameters.
_PARAMETERS = {
    "StopCheck.__call__": "self unfinished_sequences tokens length",
    "StopCheck.finish": "self",
    "DeferredStopCheck.__init__": (
        "self input_ids max_length cache cache_is_returned streamer"
    ),
    "DeferredStopCheck.is_supported": "device cache cache_is_returned is_assistant",
    "GenerationMixin._sample": (
        "self input_ids logits_processor stopping_criteria generation_config "
        "synced_gpus streamer model_kwargs"
    ),
    "GenerationMixin._prepare_special_tokens": (
        "self generation_config kwargs_has_attention_mask device batch_size"
    ),
    "_undo_generation_steps": "num_steps input_ids recorded",
}

# The special tokens of a configuration; each has a tensor `_eos_token_tensor` etc.
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")

# Criteria that depend on the ids only, by name; they have no state.
_CRITERIA = {"MaxLengthCriteria", "EosTokenCriteria", "StopStringCriteria"}
# Processors that depend on their arguments only, so that a further call has no effect.
_PROCESSORS = {
    f"{name}LogitsProcessor"
    for name in """
    MinLength MinNewTokensLength RepetitionPenalty EncoderRepetitionPenalty
    NoRepeatNGram EncoderNoRepeatNGram SequenceBias NoBadWords ForcedBOSToken
    ForcedEOSToken InfNanRemove SuppressTokensAtBegin SuppressTokens
    """.split()
} | {
    *("TemperatureLogitsWarper", "TopPLogitsWarper", "TopKLogitsWarper"),
    *("MinPLogitsWarper", "TypicalLogitsWarper", "EpsilonLogitsWarper"),
    *("EtaLogitsWarper", "LogitNormalization", "ExponentialDecayLengthPenalty"),
}
# Layers of caches that crop() puts back as they were.
_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer"}
# How configurations name the number of positions that a model has.
_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions")

_running = threading.local()  # .call: the _Call of this thread's _sample, or None


def apply(utils: ModuleType) -> str:
    """Patches transformers.generation.utils; returns why it does not, or ""."""
    for name, expected in _PARAMETERS.items():
        function: Any = functools.reduce(getattr, name.split("."), utils)
        found = " ".join(inspect.signature(function).parameters)
        if found != expected:
            return f"{name} has the parameters ({found}), not ({expected})"
    upstream: Any = utils.DeferredStopCheck

    class DeferredStopCheck(upstream):  # type: ignore[misc]
        """The library's class, or `StopCheck` for a call that may run ahead."""

        def __new__(
            cls,
            input_ids: torch.Tensor,
            max_length: int | None,
            cache: Any,
            cache_is_returned: bool,
            streamer: Any = None,
        ) -> Any:
            call = getattr(_running, "call", None)
            if input_ids.device.type != "mycelya" or call is None:
                return upstream(
                    input_ids, max_length, cache, cache_is_returned, streamer
                )
            kept = cache if cache_is_returned else None
            return StopCheck(call, input_ids.device, max_length, kept, streamer)

        @staticmethod
        def is_supported(
            device: torch.device,
            cache: Any,
            cache_is_returned: bool,
            is_assistant: bool,
        ) -> bool:
            if device.type != "mycelya":
                supported: bool = upstream.is_supported(
                    device, cache, cache_is_returned, is_assistant
                )
                return supported
            call = getattr(_running, "call", None)
            return call is not None and (not cache_is_returned or _crops(cache))

    utils.DeferredStopCheck = DeferredStopCheck  # type: ignore[attr-defined]
    _wrap_sample(utils)
    _wrap_tokens(utils)
    return ""


class _Call(NamedTuple):
    """What is known about a call of _sample."""

    asks: bool  # it may end before the largest length
    length: int | None  # ids from which on each step is awaited; None: without a limit


def _wrap_sample(utils: ModuleType) -> None:
    """Makes _sample say what may run ahead, and return contiguous ids as it does."""
    owner: Any = utils.GenerationMixin
    original = owner._sample

    @functools.wraps(original)
    def _sample(
        self: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        call = None
        if input_ids.device.type == "mycelya" and not refusal(
            self,
            logits_processor,
            stopping_criteria,
            generation_config,
            synced_gpus,
            model_kwargs,
        ):
            call = _call(self, input_ids, stopping_criteria, streamer, model_kwargs)
        outer = getattr(_running, "call", None)
        _running.call = call
        try:
            result = original(
                self,
                input_ids,
                logits_processor,
                stopping_criteria,
                generation_config,
                synced_gpus,
                streamer,
                **model_kwargs,
            )
        finally:
            _running.call = outer
        return result if call is None else _contiguous(result)

    owner._sample = _sample


def _wrap_tokens(utils: ModuleType) -> None:
    """Makes the checks of special tokens run here, where their numbers are known."""
    owner: Any = utils.GenerationMixin
    original = owner._prepare_special_tokens

    @functools.wraps(original)
    def _prepare_special_tokens(
        self: Any,
        generation_config: Any,
        kwargs_has_attention_mask: Any = None,
        device: Any = None,
        batch_size: Any = None,
    ) -> None:
        place = torch.device(self.device if device is None else device)
        given = (getattr(generation_config, name) for name in _TOKENS)
        known = not any(isinstance(token, torch.Tensor) for token in given)
        here = place.type == "mycelya" and known and _ahead.on()
        original(
            self,
            generation_config,
            kwargs_has_attention_mask,
            device="cpu" if here else device,
            batch_size=batch_size,
        )
        if not here:
            return
        for name in _TOKENS:
            kept = f"_{name.removesuffix('_id')}_tensor"
            token = getattr(generation_config, kept)
            if token is not None:
                setattr(generation_config, kept, token.to(place))

    owner._prepare_special_tokens = _prepare_special_tokens


def _contiguous(result: Any) -> Any:
    """The result with ids that are laid out as those of a call that undoes nothing."""
    if isinstance(result, torch.Tensor):
        return _dense(result)
    result.sequences = _dense(result.sequences)
    return result


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy if its memory also holds what was cut off."""
    if tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


# ---- Which calls ----


def refusal(
    model: Any,
    processors: Any,
    criteria: Any,
    config: Any,
    synced_gpus: bool,
    model_kwargs: dict[str, Any],
) -> str:
    """Why a call of _sample must wait in each step; "" if it need not."""
    if not _ahead.on():
        return "MYCELYA_AHEAD is off"
    if synced_gpus or config.is_assistant:
        return "other processes or another model take part"
    if model_kwargs.get("inputs_embeds") is not None:
        return "the number of positions is not known"
    for objects, known, place in (
        (criteria, _CRITERIA, "stopping_criteria"),
        (processors, _PROCESSORS, "logits_process"),
    ):
        if other := _first_other(objects, known, f"transformers.generation.{place}"):
            return f"{other} may have a state"
    if _modes():
        return "a mode sees each operator"
    if not _pads(model, config):
        return "the model has no embedding for the token after the end"
    for part in model.modules():
        if part.training:
            return "the model is in training mode"
        if "dynamic" in (kind := str(getattr(part, "rope_type", ""))):
            return "its frequencies depend on the steps before"
        if "longrope" in kind:
            return "its frequencies are kept"
        if other := _first_hook(part):
            return f"the hook {other} may have a state"
    return ""


def _first_other(objects: Iterable[Any], known: set[str], place: str) -> str:
    """The name of the first object that is not of a known class of a module."""
    for x in objects:
        kind = type(x)
        if kind.__name__ not in known or kind.__module__ != place:
            return f"{kind.__module__}.{kind.__name__}"
    return ""


def _modes() -> bool:
    """Whether a mode of the dispatcher is active, besides that of `with device:`."""
    modes = [
        *torch.overrides._get_current_function_mode_stack(),
        *torch.utils._python_dispatch._get_current_dispatch_mode_stack(),
    ]
    return any(type(mode).__name__ != "DeviceContext" for mode in modes)


def _first_hook(part: torch.nn.Module) -> str:
    """The first hook of a module that is not of transformers, which have no state."""
    hooks = (
        *part._forward_hooks.values(),
        *part._forward_pre_hooks.values(),
        *torch.nn.modules.module._global_forward_hooks.values(),
        *torch.nn.modules.module._global_forward_pre_hooks.values(),
    )
    for hook in hooks:
        if not str(getattr(hook, "__module__", "")).startswith("transformers."):
            return repr(hook)
    return ""


def _pads(model: Any, config: Any) -> bool:
    """Whether the model can take the token that follows the end of a row."""
    ends = config.eos_token_id
    pad = config.pad_token_id
    if pad is None:
        pad = ends[0] if isinstance(ends, list) and ends else ends
    if pad is None:
        return True  # no token ends a row
    try:
        rows = model.get_input_embeddings().weight.shape[0]
    except (AttributeError, NotImplementedError):
        return False
    return isinstance(pad, int) and bool(0 <= pad < rows)


def _call(
    model: Any,
    input_ids: torch.Tensor,
    criteria: Any,
    streamer: Any,
    model_kwargs: dict[str, Any],
) -> _Call:
    only_length = [type(c).__name__ for c in criteria] == ["MaxLengthCriteria"]
    config = model.config.get_text_config(decoder=True)
    given = (getattr(config, name, None) for name in _POSITIONS)
    limits = [n for n in given if isinstance(n, int) and n > 0]
    length = min(limits, default=None)
    own = "decoder_attention_mask" if model.config.is_encoder_decoder else None
    mask = model_kwargs.get(own or "attention_mask")
    if length is not None and isinstance(mask, torch.Tensor) and mask.dim() == 2:
        # Positions that have no id, as those of a prefix.
        length -= max(mask.shape[1] - input_ids.shape[1], 0)
    return _Call(streamer is not None or not only_length, length)


def _crops(cache: Any) -> bool:
    """Whether a cache that outlives the call can be put back to an earlier step."""
    if cache is None:
        return True
    layers = getattr(cache, "self_attention_cache", cache).layers
    return not getattr(cache, "offloading", False) and all(
        type(layer).__name__ in _LAYERS
        and type(layer).__module__ == "transformers.cache_utils"
        and layer.is_initialized
        and not getattr(layer, "record_past", False)
        for layer in layers
    )


# ---- How far ----


class Window:
    """How many steps may be under way: recorded, and their answer has not come.

    Enough to keep the worker busy over the round trip, and no more than about a quarter
    of a second of its time, which is lost if a step was the last one. It follows the
    measured rate; it has no influence on results.
    """

    LEAST, FIRST, MOST = 4, 16, 256
    SECONDS = 0.25
    COLD = 8  # answers of a call in whose time programs may be compiled

    def __init__(self) -> None:
        self.size = self.FIRST
        self.begin()

    def begin(self) -> None:
        """A call begins. The size stays that of the call before."""
        self._shortest = float("inf")  # seconds from question to answer
        self._step = 0.0  # seconds between answers; 0: not known
        self._last = 0.0  # when the last one came
        self._answers = 0

    def came(self, answers: int, now: float, took: float) -> None:
        """Some answers have come at once; the oldest has taken so many seconds."""
        self._shortest = min(self._shortest, took)
        self._answers += answers
        if self._answers > self.COLD:
            step = (now - self._last) / answers
            weight = 1.0 if self._step == 0 else min(answers / 8, 1.0)
            self._step += (step - self._step) * weight
            enough = max(self.SECONDS, 1.5 * self._shortest) / max(self._step, 1e-6)
            self.size = int(min(max(enough, self.LEAST), self.MOST))
        self._last = now


_windows: dict[int, Window] = {}  # by device index


class _Asked(NamedTuple):
    """A question about a step that was sent and is not answered yet."""

    step: int
    answer: Any  # _device.Download of [flag] or, for a streamer, [flag, tokens…]
    state: torch.Tensor  # of the generator after the step; on the device
    time: float


class StopCheck:
    """Says whether generation has ended, as far as that is known.

    It has the methods of transformers' class of this name, and is called with

        unfinished: int64[rows], 0 for a row that has ended
        tokens: int64[rows], the new ids
        length: the number of ids of each row, with the new one
    """

    def __init__(
        self,
        call: _Call,
        device: torch.device,
        max_length: int | None,
        cache: Any,
        streamer: Any,
    ) -> None:
        self.call, self.device, self.max_length = call, device, max_length
        self.cache, self.streamer = cache, streamer
        if cache is not None:
            cache.activate_past_recording()
        self.window = _windows.setdefault(device.index or 0, Window())
        self.window.begin()
        self.asked: deque[_Asked] = deque()
        self.steps = 0
        self.last = 0  # the step that has ended it, once it is known
        self.state: torch.Tensor | None = None  # of the generator after that step

    def __call__(
        self, unfinished: torch.Tensor, tokens: torch.Tensor, length: int
    ) -> bool:
        self.steps += 1
        if not self.call.asks:
            _device.flush(self.device.index)
            return self.max_length is not None and length >= self.max_length
        flag = (unfinished.max() == 0).to(torch.long)[None]
        ask = flag if self.streamer is None else torch.cat([flag, tokens.view(-1)])
        self.asked.append(
            _Asked(
                self.steps,
                _device.Download(ask),
                random.get_rng_state(self.device),
                time.monotonic(),
            )
        )
        limit = self.call.length
        self._take(0 if limit is not None and length >= limit else self.window.size)
        if self.cache is not None and not self.asked and not self.last:
            self.cache.crop(0)  # no step will be undone
        return self.last > 0 or (
            self.max_length is not None and length >= self.max_length
        )

    def _take(self, most: int) -> None:
        """Takes what has come; waits until at most so many answers are missing."""
        taken, first = 0, 0.0
        while self.asked and not self.last:
            oldest = self.asked[0]
            if len(self.asked) <= most and not oldest.answer.done():
                break
            first = first or oldest.time
            self._hear(self.asked.popleft())
            taken += 1
        if taken and most:
            now = time.monotonic()
            self.window.came(taken, now, now - first)

    def _hear(self, asked: _Asked) -> None:
        """Waits for an answer and handles it."""
        flag, *tokens = asked.answer.wait().tolist()
        if flag:
            self.last, self.state = asked.step, asked.state
        if self.streamer is None:
            return
        try:
            self.streamer.put(torch.tensor(tokens))
        except BaseException:
            # The caller sees the state after the step whose tokens were refused.
            self.last, self.state = asked.step, asked.state
            self.finish()
            raise

    def finish(self) -> int:
        """Waits until the last step is known; returns how many the library undoes."""
        waits = self.asked and not self.last and not self.asked[0].answer.done()
        begun = time.perf_counter()
        while self.asked and not self.last:
            self._hear(self.asked.popleft())
        if waits:  # for all of them at once: the answers are under way
            _device.count_blocking_read(time.perf_counter() - begun)
        self.asked.clear()
        undo = self.steps - self.last if self.last else 0
        if undo and self.state is not None:
            random.set_rng_state(self.state, self.device)
        if self.cache is not None:
            _crop(self.cache, undo)
        return undo


def _crop(cache: Any, undo: int) -> None:
    """Removes the last tokens of a cache, which then is as it had been then."""
    cache.crop(-undo)
    for layer in getattr(cache, "self_attention_cache", cache).layers:
        if hasattr(layer, "record_past"):
            layer.record_past = False
        elif undo:
            layer.keys, layer.values = _dense(layer.keys), _dense(layer.values)
