"""A model's folder is judged before anything is started."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from allranks.serving import folder
from allranks.serving.folder import DEEPSPEED, TRANSFORMERS, Model, Unfit, choose, look

CONFIG = {"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 100}


def model(folder: Path, **files: str) -> Path:
    whole = {"config.json": json.dumps(CONFIG), "tokenizer.json": "{}", "model.safetensors": "", **files}
    for name, text in whole.items():
        if text != "-":
            (folder / name).write_text(text)
    return folder


def told(folder: Path) -> str:
    with pytest.raises(Unfit) as error:
        look(folder)
    return str(error.value)


def llama(architecture: str = "llama", heads: int = 8, kv_heads: int = 4) -> Model:
    return Model(architecture, heads, kv_heads, context=128, vocabulary=100)


def test_a_whole_folder_tells_what_the_model_is(tmp_path: Path) -> None:
    assert look(model(tmp_path)) == Model("llama", 8, 4, 2048, 100)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config.json": "-"}, "has no config.json; name the folder that save_pretrained wrote"),
        ({"config.json": "{"}, "cannot read"),
        ({"config.json": "[]"}, "does not hold a mapping"),
        ({"config.json": '{"num_attention_heads": "many"}'}, "config.json is not as a model's is: invalid literal"),
        ({"config.json": '{"text_config": ["a"]}'}, "config.json is not as a model's is"),
        ({"model.safetensors.index.json": '{"weight_map": ["a"]}'}, "names no weights (weight_map); copy the model"),
        ({"tokenizer.json": "-"}, "has no tokenizer; save it there with tokenizer.save_pretrained"),
        ({"model.safetensors": "-"}, "has no weights (*.safetensors); is the download complete?"),
        (
            {"model.safetensors.index.json": '{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}'},
            "lacks m-1.safetensors, m-2.safetensors, which its index names; copy the model again",
        ),
    ],
)
def test_what_a_folder_lacks_is_told(tmp_path: Path, files: dict[str, str], message: str) -> None:
    assert message in told(model(tmp_path, **files))


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert f"no such model: {tmp_path / 'nope'}" in told(tmp_path / "nope")
    assert "not a model's folder but a file" in told(model(tmp_path) / "config.json")


@pytest.mark.parametrize(("ranks", "allowed"), [(3, "1, 2, 4"), (8, "1, 2, 4"), (16, "1, 2, 4")])
def test_heads_that_do_not_divide_are_refused_with_the_numbers_that_do(ranks: int, allowed: str) -> None:
    with pytest.raises(Unfit, match=f"cannot be shared by {ranks} ranks; allowed are {allowed} ranks"):
        choose(llama(), ranks, "auto")


def test_what_a_config_does_not_say_is_not_taken_for_no_heads() -> None:
    with pytest.raises(Unfit, match="does not say how many attention heads"):
        choose(llama(heads=0, kv_heads=0), 2, "auto")
    with pytest.raises(Unfit, match="nothing here can cut rwkv"):  # it has none, and no other number would help
        choose(llama("rwkv", heads=0, kv_heads=0), 2, "auto")


def test_what_cuts_the_model_is_chosen_by_its_architecture() -> None:
    assert choose(llama(), 2, "auto")[0] == "transformers"
    assert choose(llama(), 2, "deepspeed") == ("deepspeed", "asked for")
    assert choose(llama("bloom"), 1, "auto")[0] == "none"


def test_an_architecture_that_nothing_cuts_is_refused_with_those_that_are() -> None:
    with pytest.raises(Unfit, match="nothing here can cut bloom; covered are cohere, gemma2"):
        choose(llama("bloom"), 2, "auto")
    with pytest.raises(Unfit, match="shard: deepspeed does not cover mixtral; shard: transformers covers it"):
        choose(llama("mixtral"), 2, "deepspeed")
    assert DEEPSPEED < TRANSFORMERS


@pytest.mark.torch
@pytest.mark.parametrize(("restarts", "kind"), [("0", folder.Unfit), ("1", folder.NotNow)])
def test_a_hub_that_does_not_answer_is_waited_for_only_so_long(
    monkeypatch: pytest.MonkeyPatch, restarts: str, kind: type[Exception]
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    monkeypatch.setattr(folder, "HUB_ANSWER", 0.2)
    monkeypatch.setattr(folder, "HUB_WAIT", 0.1)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(kind, match=r"the hub does not give it: ReadTimeout: .*; name a folder, or see whether the"):
            folder.fetch("nobody/no-such-model")
