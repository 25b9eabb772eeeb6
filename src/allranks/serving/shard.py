"""From a model's folder to this rank's piece of it: no rank ever holds the whole model, unless it is alone."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open

from allranks.errors import first_line
from allranks.serving import room, windows
from allranks.serving.folder import Unfit, few, in_one_line

TIMEOUT = timedelta(seconds=60)
"""Of collectives on the CPU and of eager ones on a GPU. The watch notices sooner; this is what is left if it cannot."""


def device_of_rank() -> torch.device:
    """This rank's own GPU, made the current one, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def join(device: torch.device, world: int) -> None:
    """Bring the ranks together, with a timeout of ours: torch's own is half an hour."""
    if world == 1:
        return
    if device.type == "cuda":
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=TIMEOUT, device_id=device)
    else:
        dist.init_process_group("gloo", timeout=TIMEOUT)


def load(folder: str, how: str, dtype: torch.dtype | str, device: torch.device, context: int = sys.maxsize) -> Any:
    """This rank's piece of the model, in evaluation mode, for texts of up to ``context`` tokens.

    ``how`` is what ``folder.choose`` chose. Raises Unfit.
    """
    _must_have_room(Path(folder), device, dtype)
    config = _config(folder)
    try:
        with in_memory("while the model was loaded", "serve it with more ranks"):
            windows.lift(config, context)
            if how == "transformers":
                return _by_transformers(folder, config, dtype)
            if how == "deepspeed":
                return _by_deepspeed(folder, config, dtype, device)
            return _from_files(folder, config, dtype).to(device)
    except ConnectionError:
        raise  # a peer's end, no fault of the model's
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise Unfit(f"the model in {folder} cannot be loaded: {first_line(error)}") from error


def _config(folder: str) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, StrictDataclassError) as error:
        raise Unfit(f"{folder}/config.json is not as a model's is: {in_one_line(error)}") from error


def _from_files(folder: str, config: Any, dtype: torch.dtype | str, **how: Any) -> Any:
    """The model, in evaluation mode. What its files lack transformers would draw at random, and say it in a warning."""
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **how
    )
    _must_be_whole(folder, found["missing_keys"])
    if found["mismatched_keys"]:
        name, held, wanted = sorted(found["mismatched_keys"])[0]
        raise _mismatched(folder, f"this rank's piece of {name}", held, wanted)
    return model.eval()


def _mismatched(folder: str, what: str, held: Sequence[int], wanted: Sequence[int]) -> Unfit:
    shapes = f"{tuple(held)} in its files, and {tuple(wanted)} by its config.json"
    return Unfit(f"{what} of the model in {folder} is {shapes}; copy the model again")


def _must_be_whole(folder: str, missing: Iterable[str]) -> None:
    if names := sorted(missing):
        said = f"the files of the model in {folder} lack {few(names)}"
        raise Unfit(f"{said}, which its config.json asks for; copy the model again")


@contextmanager
def in_memory(what: str, way_out: str) -> Iterator[None]:
    """Raise Unfit where memory is asked for that there is not; ``what`` says when or for what."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        asked = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "allocate memory" in str(error)
        if not asked:
            raise
        raise Unfit(f"out of memory {what}: {error}; {way_out}") from error


def _must_have_room(folder: Path, device: torch.device, dtype: torch.dtype | str) -> None:
    """On a GPU torch says so itself; on the CPU the kernel would kill a rank, and say nothing to it."""
    if device.type != "cpu":
        return
    here, world = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), int(os.environ.get("WORLD_SIZE", "1"))
    size = sum(file.stat().st_size for file in weight_files(folder))
    halved = isinstance(dtype, torch.dtype) and dtype.itemsize == 2  # the files may hold twice that
    room.must_fit(size // (2 if halved else 1) * here // world, room.available())


def _by_transformers(folder: str, config: Any, dtype: torch.dtype | str) -> Any:
    from transformers.distributed import DistributedConfig

    cut = DistributedConfig(tp_plan="auto", tp_size=dist.get_world_size())
    return _from_files(folder, config, dtype, distributed_config=cut)


def _by_deepspeed(folder: str, config: Any, dtype: torch.dtype | str, device: torch.device) -> Any:
    import deepspeed
    from deepspeed.inference.engine import InferenceEngine
    from torch.distributed.device_mesh import init_device_mesh
    from transformers import AutoModelForCausalLM

    world = dist.get_world_size()
    if device.type == "cpu":
        # Its all-reduce through shared memory knows no timeout, and crashes unless all ranks are on one node.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(timeout=TIMEOUT, verbose=False)
    # The group that it would make itself takes torch's half hour, and is kept for all engines of the process.
    InferenceEngine.inference_mp_group = dist.new_group(list(range(world)), timeout=TIMEOUT)
    precision = (config.dtype or torch.float32) if dtype == "auto" else dtype
    with deepspeed.OnDevice(dtype=precision, device="meta"):
        empty = AutoModelForCausalLM.from_config(config, dtype=precision)
    _must_fit(folder, empty)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as listed:
        files = [str(file) for file in weight_files(Path(folder))]
        json.dump({"type": "ds_model", "version": 1.0, "checkpoints": files}, listed)
        listed.flush()
        engine = deepspeed.init_inference(
            empty.eval(),
            dtype=precision,
            tensor_parallel={"tp_size": world},
            replace_with_kernel_inject=False,
            checkpoint=listed.name,
        )
    model = engine.module
    # By this transformers' continuous batching knows that it is cut (transformers 5.24, continuous_api.py).
    model._device_mesh = init_device_mesh(device.type, (world,))
    return model


def _must_fit(folder: str, empty: Any) -> None:
    """The files hold what the empty model wants, as far as they are safetensors: DeepSpeed fails without a name."""
    files = [file for file in weight_files(Path(folder)) if file.suffix == ".safetensors"]
    held = {name: shape for file in files for name, shape in _shapes(file)}
    wanted = {name: tuple(weight.shape) for name, weight in empty.named_parameters()}
    if held:
        _must_be_whole(folder, wanted.keys() - held.keys())
        for name, shape in wanted.items():
            if held[name] != shape:
                raise _mismatched(folder, name, held[name], shape)


def _shapes(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    with safe_open(file, "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - it is no mapping
            yield name, tuple(weights.get_slice(name).get_shape())


def weight_files(folder: Path) -> list[Path]:
    """The files with the model's weights, safetensors where there are any."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
