"""Checkpoints that a kill cannot tear: ``save`` writes a file whole, ``newest`` finds the newest complete checkpoint.

::

    from allranks import checkpoint

    found = checkpoint.newest("out/checkpoints")        # on every rank, before training
    state = torch.load(found.path) if found else fresh_state()
    ...
    checkpoint.save(state, f"out/checkpoints/step-{step}.pt")

Complete means: of a file that ``save`` or ``torch.save`` wrote, that its end is there; of a folder that DeepSpeed
wrote, that all shards of its gang are there and whole, whatever its file ``latest`` says; of a folder of
torch.distributed.checkpoint, that ``.metadata`` is there, which is written last, and all that it names. Give every
step a name of its own: a folder that is written over may hold whole shards of two steps, which nobody can tell.

Needs the standard library only; torch, which writes, is imported by ``save``.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.errors import Error

__all__ = ["Checkpoint", "DiskFull", "Incomplete", "newest", "save"]

FILES = (".pt", ".pth", ".ckpt", ".bin")
"""Ends of the names of plain files that count as checkpoints."""

NEARLY_FULL = 64 * 1024
_SHARD = re.compile(r"(bf16_)?zero_pp_rank_(?P<dp>\d+)_mp_rank_(?P<mp>\d+)_(?P<what>model|optim)_states\.pt")
_DEEPSPEED = ("_model_states.pt", "_optim_states.pt")


class Incomplete(Error):
    """There are checkpoints, and none is complete. The message has the reason for each."""


class DiskFull(Error, OSError):
    """``save`` found no space: the message names rank and path. What was there before is untouched."""

    errno = errno.ENOSPC


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. ``kind`` is deepspeed, dcp or file; ``step`` is the last number in its name, if any.

    For DeepSpeed: ``engine.load_checkpoint(found.path.parent, tag=found.path.name)``.
    """

    path: Path
    kind: str
    step: int | None


def newest(directory: str | os.PathLike[str], *, start_over: bool = False) -> Checkpoint | None:
    """The newest complete checkpoint in a folder (or the folder itself, if it is one); None where there is none at all.

    Newest goes by ``step``, or by time of change where a name has no number. Every incomplete one that is passed over
    is named on stderr by rank 0. Raises Incomplete when there are only incomplete ones; with ``start_over`` that
    is said on stderr as well, and None returned.
    """
    folder = Path(directory)
    torn: list[tuple[Path, str]] = []
    for path in _candidates(folder):
        why = _why_incomplete(path)
        if not why:
            for other, reason in torn:
                _say(f"passed over {other}, which is incomplete: {reason}")
            return Checkpoint(path, _kind(path), _step(path))
        torn.append((path, why))
    torn += [(path, "a kill ended its writing") for path in _unfinished(folder)]
    if not torn:
        return None
    reasons = "".join(f"\n  {path}: {why}" for path, why in torn)
    if not start_over:
        way = "delete them to start from the beginning, or call newest(..., start_over=True)"
        raise Incomplete(f"no checkpoint in {folder} is complete; {way}{reasons}")
    _say(f"no checkpoint in {folder} is complete; starting from the beginning{reasons}")
    return None


def save(value: object, path: str | os.PathLike[str]) -> None:
    """Do what ``torch.save`` does, but whole and on disk, or what was there before stays.

    Makes the folders above it. Two ranks must not save to the same path. Raises DiskFull, or another OSError.
    """
    import torch

    path = Path(path)
    fresh = path.with_name(f".{path.name}.{_rank()}.new")  # the same each time: kills do not pile up half files
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("wb") as file:
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        full = _disk_is_full(error, path.parent)
        fresh.unlink(missing_ok=True)
        if full:
            raise DiskFull(f"rank {_rank()} could not save {path}: no space left on its disk") from error
        raise


# What there is


def _candidates(folder: Path) -> list[Path]:
    """What looks like a checkpoint, newest first."""
    if not folder.is_dir():
        return []
    if _kind(folder) != "file":
        return [folder]
    found = [path for path in folder.iterdir() if not path.name.startswith(".") and _looks_like_one(path)]
    by_step = all(_step(path) is not None for path in found)
    return sorted(found, key=lambda path: (_step(path) if by_step else 0, _changed(path)), reverse=True)


def _looks_like_one(path: Path) -> bool:
    if path.is_file():
        return path.suffix in FILES
    return _kind(path) != "file" or not any(path.iterdir())  # an empty folder: a kill came before the first shard


def _unfinished(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*.new")) if folder.is_dir() else []


def _kind(path: Path) -> str:
    if not path.is_dir():
        return "file"
    names = os.listdir(path)
    if any(name.endswith(_DEEPSPEED) for name in names):
        return "deepspeed"
    return "dcp" if any(name == ".metadata" or name.endswith(".distcp") for name in names) else "file"


def _step(path: Path) -> int | None:
    numbers = re.findall(r"\d+", path.stem if path.suffix in FILES else path.name)
    return int(numbers[-1]) if numbers else None


def _changed(path: Path) -> float:
    inside = path.iterdir() if path.is_dir() else iter(())
    return max([path.stat().st_mtime, *(entry.stat().st_mtime for entry in inside)])


# Whether it is complete


def _why_incomplete(path: Path) -> str:
    """Nothing, when it is complete."""
    kind = _kind(path)
    if kind == "file":
        return _torn_file(path) if path.is_file() else "it is empty"
    return next(_torn_deepspeed(path) if kind == "deepspeed" else _torn_dcp(path), "")


def _torn_file(path: Path) -> str:
    """The table of a zip file stands at its end, and is written last."""
    try:
        with zipfile.ZipFile(path):
            return ""
    except (OSError, zipfile.BadZipFile):
        return f"{path.name} has no end: its writing was cut off"


def _torn_deepspeed(folder: Path) -> Iterator[str]:
    names = set(os.listdir(folder))
    for name in sorted(names):
        if name.endswith(".pt") and _torn_file(folder / name):
            yield _torn_file(folder / name)
    about = _about_deepspeed(folder, names)
    if about is None:
        yield "no *_model_states.pt is there that says how many ranks it is of"
        return
    for name in _expected(about, names):
        if name not in names and f"bf16_{name}" not in names:
            yield f"{name} is missing"


def _about_deepspeed(folder: Path, names: set[str]) -> Mapping[str, Any] | None:
    for name in sorted(names):
        if name.endswith("_model_states.pt"):
            about = _load(_pickle_in(folder / name))
            if isinstance(about, dict) and "dp_world_size" in about:
                return about
    return None


def _expected(about: Mapping[str, Any], names: set[str]) -> Iterator[str]:
    """The shards of all ranks (deepspeed/runtime/engine.py, ``_get_ckpt_name`` and ``_get_zero_ckpt_name``)."""
    zero = about.get("ds_config", {}).get("zero_optimization", {})
    stage = zero.get("stage", 0) if isinstance(zero, dict) else int(bool(zero))
    # Without ZeRO only a bf16 optimizer has shards; that it does shows in the first one.
    sharded = stage > 0 or any(match["what"] == "optim" for match in map(_SHARD.fullmatch, names) if match)
    for mp in range(about.get("mp_world_size", 1)):
        if stage < 3:
            yield f"mp_rank_{mp:02d}_model_states.pt"
        for dp in range(about["dp_world_size"]):
            if stage == 3:
                yield f"zero_pp_rank_{dp}_mp_rank_{mp:02d}_model_states.pt"
            if sharded:
                yield f"zero_pp_rank_{dp}_mp_rank_{mp:02d}_optim_states.pt"


def _torn_dcp(folder: Path) -> Iterator[str]:
    """Every piece that ``.metadata`` names must lie within its file (torch/distributed/checkpoint/filesystem.py)."""
    if not (folder / ".metadata").exists():
        yield ".metadata is missing, which is written last"
        return
    metadata = _load((folder / ".metadata").read_bytes())
    if not isinstance(metadata, _Thing) or "storage_data" not in metadata.state:
        yield ".metadata cannot be read"
        return
    ends: dict[str, int] = {}
    for piece in metadata.state["storage_data"].values():
        name = piece.state["relative_path"]
        ends[name] = max(ends.get(name, 0), piece.state["offset"] + piece.state["length"])
    for name, end in sorted(ends.items()):
        size = (folder / name).stat().st_size if (folder / name).exists() else -1
        if size < end:
            yield f"{name} is missing" if size < 0 else f"{name} has {size} bytes of {end}"


# Pickles, read without running them


class _Thing(dict[Any, Any]):
    """Stands in for every class and function that a pickle names: nothing is imported, nothing is called."""

    def __init__(self, *_: object) -> None:
        self.state: Mapping[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, dict) else {}

    def __call__(self, *_: object) -> _Thing:
        return _Thing()

    def extend(self, items: object) -> None:
        """Items of a list of another class."""

    append = add = extend
    __hash__ = object.__hash__  # type: ignore[assignment]


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _Thing

    def persistent_load(self, pid: object) -> Any:
        return None  # a tensor's data


def _load(data: bytes) -> object:
    """The plain values of a pickle; None when it is none."""
    try:
        return _Reader(io.BytesIO(data)).load()
    except Exception:  # noqa: BLE001 - whatever torn bytes lead to, it is not a pickle that can be read
        return None


def _pickle_in(path: Path) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((name for name in archive.namelist() if name.endswith("/data.pkl")), "")
            return archive.read(name) if name else b""
    except (OSError, zipfile.BadZipFile):
        return b""


# Writing


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _disk_is_full(error: BaseException | None, folder: Path) -> bool:
    """Torch hides the reason behind an error of its own, so the disk is asked as well."""
    failed = error
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    if not isinstance(failed, OSError | RuntimeError):
        return False
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < NEARLY_FULL


def _rank() -> str:
    return os.environ.get("RANK", "0")


def _say(text: str) -> None:
    if _rank() == "0":
        print(f"allranks: {text}", file=sys.stderr, flush=True)
