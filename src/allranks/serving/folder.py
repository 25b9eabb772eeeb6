"""A model's folder, looked at before anything is started: what it holds, and whether a gang of that size can serve it.

Standard library only: the command line asks it too.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.errors import first_line

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "sentencepiece.bpe.model")

TRANSFORMERS = frozenset(
    [
        "cohere", "gemma2", "gemma3_text", "glm4", "gpt_oss", "granite", "llama", "mistral", "mixtral", "olmo2", "phi",
        "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3", "starcoder2",
    ]
)  # fmt: skip
"""Architectures whose tokens under transformers' tensor parallelism equal those of one process (tests/serving)."""

DEEPSPEED = frozenset(["llama", "mistral", "phi", "qwen2", "qwen3", "starcoder2"])
"""The same under DeepSpeed's AutoTP, loaded piece by piece. With DeepSpeed 0.19.8 others fail so, or are wrong."""

HUB_ANSWER, HUB_WAIT = 10.0, 20.0
"""Seconds for the hub to answer, and in which it is asked again: a pod may have to wait for its network."""

UNFIT, NOT_NOW = 65, 75
"""What a rank exits with that cannot serve: another start would find the same, or may go better."""


class Unfit(Exception):
    """This model cannot be served so: what was found, what is allowed, what to do."""


class NotNow(Exception):
    """It cannot be served at this moment; another start may go better."""


@dataclass(frozen=True)
class Model:
    """What a model's config.json says. ``heads`` and ``kv_heads`` are counts, ``context`` is tokens."""

    architecture: str
    heads: int
    kv_heads: int
    context: int
    vocabulary: int
    experts: int = 0


def look(folder: Path) -> Model:
    """Read what a model's folder holds. Raises Unfit for what is missing or damaged."""
    if not folder.exists():
        raise Unfit(f"no such model: {folder}; name a folder with config.json and *.safetensors, or a model on the hub")
    if not folder.is_dir():
        raise Unfit(f"{folder} is not a model's folder but a file; name the folder that it is in")
    config = _json(folder / "config.json")
    missing = sorted(name for name in _shards(folder) if not (folder / name).is_file())
    if missing:
        raise Unfit(f"{folder} lacks {few(missing)}, which its index names; copy the model again")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise Unfit(f"{folder} has no tokenizer; save it there with tokenizer.save_pretrained({str(folder)!r})")
    try:
        return _model(config)
    except (TypeError, ValueError, AttributeError) as error:
        raise Unfit(f"{folder / 'config.json'} is not as a model's is: {error}; copy the model again") from error


def few(names: Sequence[str]) -> str:
    """The first three of them, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def in_one_line(error: BaseException) -> str:
    """What a library says in several lines of a damaged file, as far as anybody reads it."""
    return " ".join(str(error).split())[:300]


def not_yet() -> type[Unfit] | type[NotNow]:
    """What to raise for what was there before a restart, and may be again; at the first start it is plainly wrong."""
    return Unfit if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" else NotNow


def fetch(model: str) -> str:
    """The folder of a model, which is fetched from the hub if it is not there yet. Raises Unfit and NotNow."""
    if Path(model).exists() or model.startswith("/"):
        return model
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
    until = time.monotonic() + (0 if constants.is_offline_mode() else HUB_WAIT)
    while True:
        try:
            why = _out_of_reach(model)
            return str(snapshot_download(model, allow_patterns=wanted, local_files_only=bool(why)))
        except (GatedRepoError, RepositoryNotFoundError, HFValidationError) as error:
            raise Unfit(f"no folder {model} here, and no such model on the hub: {first_line(error)}") from error
        except (ValueError, OSError) as error:
            if time.monotonic() > until:
                said = f"no folder {model} here, and the hub does not give it: {why or first_line(error)}"
                way_out = "name a folder, or see whether the hub (HF_ENDPOINT) can be reached from here"
                raise not_yet()(f"{said}; {way_out}") from error
        time.sleep(1)  # nothing announces that a network is there


def _out_of_reach(model: str) -> str:
    """Why the hub does not answer, if it does not: to a download that could never begin there is no timeout."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        HfApi().model_info(model, timeout=HUB_ANSWER)
    except (GatedRepoError, RepositoryNotFoundError, HFValidationError):
        raise
    except Exception as error:  # noqa: BLE001 - it has been several HTTP libraries, each with errors of its own
        return f"{type(error).__name__}: {first_line(error)}"
    return ""


def _model(config: dict[str, Any]) -> Model:
    text = config.get("text_config") or config
    heads = int(text.get("num_attention_heads") or text.get("n_head") or 0)
    return Model(
        architecture=str(config.get("model_type", "")),
        heads=heads,
        kv_heads=int(text.get("num_key_value_heads") or heads),
        context=int(text.get("max_position_embeddings") or text.get("n_positions") or 2048),
        vocabulary=int(text.get("vocab_size") or 0),
        experts=int(text.get("num_local_experts") or text.get("num_experts") or 0),
    )


def _shards(folder: Path) -> Iterator[str]:
    """The files that hold weights, by their index where there is one."""
    for index in sorted(folder.glob("*.safetensors.index.json")) or sorted(folder.glob("*.bin.index.json")):
        named = _json(index).get("weight_map")
        if not isinstance(named, dict):
            raise Unfit(f"{index} names no weights (weight_map); copy the model again")
        yield from set(named.values())
        return
    found = [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
    if not found:
        raise Unfit(f"{folder} has no weights (*.safetensors); is the download complete?")


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Unfit(f"{file.parent} has no {file.name}; name the folder that save_pretrained wrote") from None
    except (OSError, ValueError) as error:
        raise Unfit(f"cannot read {file}: {error}") from error
    if not isinstance(found, dict):
        raise Unfit(f"{file} does not hold a mapping; is it a model's {file.name}?")
    return found


def choose(model: Model, ranks: int, wanted: str) -> tuple[str, str]:
    """What cuts the model (``transformers``, ``deepspeed``, or ``none`` for one rank), and why. Raises Unfit."""
    if ranks == 1:
        return "none", "one rank holds it all"
    chosen = _cutter(model, wanted)
    _must_divide(model, ranks)
    return chosen


def _cutter(model: Model, wanted: str) -> tuple[str, str]:
    name = model.architecture or "this architecture"
    covered = {"transformers": model.architecture in TRANSFORMERS, "deepspeed": model.architecture in DEEPSPEED}
    if wanted != "auto":
        if not covered[wanted]:
            other = "deepspeed" if wanted == "transformers" else "transformers"
            way_out = f"shard: {other} covers it" if covered[other] else "serve it with one rank"
            raise Unfit(f"shard: {wanted} does not cover {name}; {way_out}")
        return wanted, "asked for"
    if covered["transformers"]:
        extra = ", its experts too" if model.experts else ""
        return "transformers", f"its tensor-parallel plan cuts all of {name}{extra}, and no rank reads the whole file"
    if covered["deepspeed"]:
        return "deepspeed", f"transformers has no tensor-parallel plan for {name}"
    both = ", ".join(sorted(TRANSFORMERS | DEEPSPEED))
    raise Unfit(f"nothing here can cut {name}; covered are {both}; serve it with one rank, or with a server of its own")


def _must_divide(model: Model, ranks: int) -> None:
    most = math.gcd(model.heads, model.kv_heads)
    if most < 1:
        raise Unfit("config.json does not say how many attention heads the model has; copy the model again")
    if ranks > most or most % ranks:
        allowed = ", ".join(str(number) for number in range(1, most + 1) if most % number == 0)
        found = f"{model.heads} attention heads and {model.kv_heads} key-value heads"
        raise Unfit(f"{found} cannot be shared by {ranks} ranks; allowed are {allowed} ranks")
