"""The worker's settings: what a trainer's config says, and what no agent could follow."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import json
import logging
import pickle
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral
from typing import Any, Final

from turnloom._exceptions import ConfigError
from turnloom._metrics import check_prometheus_port

logger = logging.getLogger("turnloom")

_OF_THE_CLIENT: Final = (
    "run_timeout",
    "deadline",
    "max_concurrency",
    "branches",
    "honor_mask_sample",
    "record_dir",
    "record_max_bytes",
)
_OF_THE_GROUPS: Final = ("on_failure", "max_attempts", "max_staleness")

_AT_LEAST: Final = {"num_generations": 1, "max_inflight_tasks": 1, "score_queue_maxsize": 0, "dataset_start_index": 0}
"""Settings that are integers, and the least that works."""

_OF_THE_PROCESS: Final = frozenset(
    {
        "rollout_buffer",
        "model_version_value",
        "heartbeat_value",
        "failed_event",
        "exception_info_queue",
        "metrics_queue",
    }
)
"""What TRL's worker itself hands to the loop."""

MODEL_SERVER_URL: Final = "http://localhost:8000"
"""Where TRL's config and its worker look for vLLM if nothing is said."""

_FROM_CONFIG: Final = {
    "num_generations": "num_generations",
    "queue_maxsize": "queue_maxsize",
    "vllm_server_url": "vllm_server_base_url",
    "max_tokens": "max_completion_length",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "request_timeout": "request_timeout",
    "chat_template_kwargs": "chat_template_kwargs",
    "max_tool_calling_iterations": "max_tool_calling_iterations",
    "log_completions": "log_completions",
    "num_completions_to_print": "num_completions_to_print",
    "fork_threshold_tokens": "fork_threshold_tokens",
}
"""The worker's name of a setting, and the config's."""

_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "top_k": (None, 0, -1),
    "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0),
}


def settings_from_config(config: Any) -> dict[str, Any]:
    """What the trainer itself would give its worker."""
    settings = {ours: getattr(config, theirs) for ours, theirs in _FROM_CONFIG.items()}
    in_flight = config.max_inflight_tasks
    if in_flight < 0:  # as the trainer reckons it: what can be trained before it is stale
        samples_per_step = config.per_device_train_batch_size * config.gradient_accumulation_steps * config.world_size
        in_flight = max(config.max_staleness, 1) * samples_per_step
    return {**settings, "max_inflight_tasks": in_flight}


def client_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are the client's alone, as far as they are given."""
    return {name: settings[name] for name in _OF_THE_CLIENT if name in settings}


def group_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `GroupPolicy`, as far as they are given."""
    return {name: settings[name] for name in _OF_THE_GROUPS if name in settings}


def known_settings(*classes: type) -> frozenset[str]:
    """The names of the keywords that these classes take, and of our own."""
    named = {
        parameter.name
        for cls in classes
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    return frozenset(named - _OF_THE_PROCESS | {*_OF_THE_CLIENT, *_OF_THE_GROUPS, "train_turn_fn", "prometheus_port"})


def check_names(settings: Collection[str], known: Collection[str]) -> None:
    """Refuse keywords that nobody takes; the worker's process would die of them.

    Raises:
        ConfigError: it names them, and what they are like.
    """
    told = []
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known))
            told.append(f"{name!r}" + (f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""))
    if told:
        raise ConfigError(f"the rollout worker has no setting {', '.join(told)}")


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse what the agents could not follow, and what the worker's process would die of.

    Raises:
        ConfigError: it names the setting, and what to do.
    """
    for name, least in _AT_LEAST.items():
        value = settings.get(name, least)
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name}={value!r}: an integer of at least {least} is needed")
    if (function := settings.get("train_turn_fn")) is not None:
        if not callable(function):
            raise ConfigError(f"train_turn_fn={function!r}: a function of one turn is needed")
        check_it_crosses("train_turn_fn", function)
    check_prometheus_port(settings.get("prometheus_port"))
    for name, neutral in _NEUTRAL.items():
        if settings.get(name) not in neutral:
            raise ConfigError(
                f"{name}={settings[name]!r} cannot reach the policy: /run carries max_output_tokens, temperature and "
                f"top_p alone, and the trainer would correct for what was not sampled. Leave it at {neutral[-1]!r}"
            )
    for name in ("tools", "environment_factory"):
        if settings.get(name):
            raise ConfigError(f"{name} is not used: with NeMo Gym the tools and environments are the agent's")
    if settings.get("lora_name") is not None:
        raise ConfigError("lora_name cannot reach the policy: NeMo Gym's agents ask for the model of their own config")
    if settings.get("log_completions") and importlib.util.find_spec("rich") is None:
        raise ConfigError("log_completions prints with rich, which is missing: pip install rich")
    if settings.get("chat_template_kwargs"):
        logger.warning("chat_template_kwargs does not reach the agents: set it on NeMo Gym's model server")


def check_it_crosses(name: str, value: Any) -> None:
    """Refuse what cannot be pickled.

    Raises:
        ConfigError: it names the setting, and what can be.
    """
    try:
        pickle.dumps(value)
    except Exception as error:  # whatever its own __reduce__ raises, too
        raise ConfigError(
            f"{name}={value!r} cannot be sent to the worker's process ({error}): lambdas and functions within "
            "functions cannot. Use a module-level function, functools.partial of one, or an instance of a class that "
            "has __call__"
        ) from error


def check_tokenizer(processing_class: Any) -> None:
    """Refuse what is no tokenizer.

    Raises:
        ConfigError: it says what is needed.
    """
    if not hasattr(processing_class, "pad_token_id"):
        raise ConfigError(
            f"processing_class={processing_class!r}: the tokenizer itself is needed, such as "
            "AutoTokenizer.from_pretrained(...), or a processor's .tokenizer"
        )


def reward_functions(given: Any) -> list[Callable[..., Any]]:
    """The reward functions as a list, of one or of several.

    Raises:
        ConfigError: there is something else among them, or one that cannot be sent to the worker's process.
    """
    functions = [given] if callable(given) else given
    if isinstance(functions, (str, bytes)) or not isinstance(functions, Sequence):
        raise ConfigError(f"reward_funcs={given!r}: a function, or a list of functions, is needed")
    for function in functions:
        if not callable(function):
            raise ConfigError(f"reward_funcs has {function!r}, which is no function")
        check_it_crosses("reward_funcs", function)
    return list(functions)


def eos_token_ids(processing_class: Any, generation_config: Any = None) -> list[int]:
    """The ids that end a generation: the tokenizer's, and those that the model's generation config names."""
    named = getattr(generation_config, "eos_token_id", None)
    ids = [named] if isinstance(named, int) else list(named or ())
    own = getattr(processing_class, "eos_token_id", None)
    return ids if own is None or own in ids else [own, *ids]


def refuse_adapter(server_url: str, name: str) -> None:
    """Refuse a trainer that sends its weights as an adapter.

    Raises:
        ConfigError: the model server offers it; it says what to do.
    """
    if published_adapter(server_url, name):
        raise ConfigError(
            f"the trainer has published its weights as the LoRA adapter {name!r} on {server_url}, but NeMo Gym's "
            "agents ask for the base model by name, which would be sampled untrained. Start vLLM without "
            "--enable-lora, so that the trainer sends merged weights."
        )


def published_adapter(server_url: str, name: str) -> bool:
    """Whether the model server offers this adapter; False when there is no such server."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{server_url.rstrip('/')}/v1/models", timeout=2.0) as answer:
            models = json.load(answer)["data"]
            return any(model["id"] == name for model in models)
    except (OSError, ValueError, KeyError, TypeError):
        return False
