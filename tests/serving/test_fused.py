"""Our layers against transformers', our kernels against plain arithmetic; without a GPU by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.torch

LAYERS = """
import sys
import torch
from tests.serving.models import ARCHITECTURES, BASE
from transformers import AutoConfig, AutoModelForCausalLM
from allranks.serving import fused
cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
for name in fused.MODELS:
    torch.manual_seed(0)
    settings = {**BASE, **ARCHITECTURES[name], "num_hidden_layers": 1}
    config = AutoConfig.for_model(name, attn_implementation="sdpa", **settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(device).eval()
    with torch.inference_mode():
        for weight in model.parameters():  # random biases and norms too: none of them may be forgotten
            weight.add_(torch.randn_like(weight) * 0.2)
        tokens = torch.randint(3, 999, (2, 9), device=device), torch.randint(3, 999, (1, 1), device=device)
        wanted = [model(these, use_cache=False).logits for these in tokens]
        assert not fused.unfit(model), fused.unfit(model)
        fused.fuse(model)
        found = [model(these, use_cache=False).logits for these in tokens]
    for one, other in zip(found, wanted):
        error = float((one - other).norm() / other.norm())
        assert error < 1e-5, (name, one.shape, error)
    print(name)
"""

DECODING = """
import torch
from allranks.serving import kernels, paged
cuda = torch.cuda.is_available()
device, dtype, bound = ("cuda", torch.bfloat16, 8e-3) if cuda else ("cpu", torch.float32, 1e-5)
torch.manual_seed(0)
def random(*shape):
    return torch.randn(*shape, dtype=dtype, device=device)
for rows, queries, keys, size, page, normed in ((1, 8, 2, 32, 32, False), (5, 4, 4, 16, 64, True)):
    lengths = torch.randint(1, 190, (rows,))
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), (lengths + 1).cumsum(0)]).int().to(device)
    ends = torch.cat([ends, ends[-1:]])  # a row that pads: it has no length, and writes nothing
    pages = -(-190 // page)
    table = (torch.randperm(rows * pages) + 1).view(rows, pages).int()
    table = torch.cat([table, torch.full((1, pages), -1)]).int().to(device)
    cache = [random(rows * pages + 1, page, keys, size) for _ in range(2)]
    qkv, cos, sin = random(rows + 1, (queries + 2 * keys) * size), random(rows + 1, size), random(rows + 1, size)
    norms = [kernels.Norm(random(size), 1e-6) if normed else None for _ in range(2)]
    heads = kernels.Heads(queries, keys, size, *norms)
    plain = qkv.float().view(rows + 1, -1, size).clone()
    for norm, part in zip(norms, (plain[:, :queries], plain[:, queries : queries + keys])):
        if norm:
            part.mul_(torch.rsqrt(part.pow(2).mean(-1, keepdim=True) + norm.eps) * norm.weight.float())
    turned = plain[:, : queries + keys]
    half = torch.cat([-turned[..., size // 2 :], turned[..., : size // 2]], -1)
    turned.copy_(turned * cos.float()[:, None] + half * sin.float()[:, None])
    past = [part.clone() for part in cache]
    kept = kernels.Pages(*cache, table, ends)
    alone = qkv.clone()
    kernels.turn(alone, cos, sin, heads)
    error = float((alone.float() - plain.flatten(1)).norm() / plain.norm())
    assert error < bound, (rows, error)
    kernels.turn(qkv, cos, sin, heads, kept)
    found = paged.attend(qkv.view(rows + 1, -1, size)[:, :queries], kept, size**-0.5)
    for row, length in enumerate(lengths.tolist()):
        k, v = (part[table[row].long()].flatten(0, 1)[:length].float() for part in past)
        k = torch.cat([k, plain[None, row, queries : queries + keys]]).repeat_interleave(queries // keys, 1)
        v = torch.cat([v, plain[None, row, queries + keys :]]).repeat_interleave(queries // keys, 1)
        weight = (torch.einsum("hd,lhd->hl", plain[row, :queries], k) * size**-0.5).softmax(-1)
        wanted = torch.einsum("hl,lhd->hd", weight, v)
        error = float((found[row].float() - wanted).norm() / wanted.norm())
        assert error < bound, (rows, row, error)
    untouched = torch.ones(len(cache[0]), dtype=torch.bool)
    untouched[table[:rows].flatten().long().cpu()] = False
    assert torch.equal(cache[0][untouched.to(device)], past[0][untouched.to(device)])
"""

DRAWS = """
import torch
from allranks.serving import kernels
from allranks.serving.sampling import noise
device = "cuda" if torch.cuda.is_available() else "cpu"
settings = torch.zeros(5, 32, dtype=torch.int32, device=device)
settings[0, :4] = torch.tensor([0.0, 1.0, 0.5, 2.0]).view(torch.int32)
settings[3, :4] = torch.tensor([7, 7, 2**31 - 1, 0])
settings[4, :4] = torch.tensor([1, 1, 300, 2**20])
scores = torch.randn(4, 5001, device=device)
found = kernels.drawn(scores, settings[:, :4])
temperature = settings[0, :4].clone().view(torch.float32).unsqueeze(-1)
wanted = scores / temperature.clamp(min=1e-5) + noise(settings[3, :4].long(), settings[4, :4].long(), 5001)
assert torch.equal(found[0], scores[0])
assert torch.allclose(found[1:], wanted[1:], rtol=1e-4, atol=1e-4), (found - wanted).abs().max()
"""


def run(program: str) -> str:
    """Run it on the GPU or by Triton's interpreter, which has to be asked for before Triton is imported."""
    import torch

    env = {**os.environ} if torch.cuda.is_available() else {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_fused_layers_compute_what_the_models_own_do() -> None:
    assert run(LAYERS).split() == ["llama", "mistral", "qwen2", "qwen3"]


def test_a_decoding_step_turns_writes_and_attends_as_plain_arithmetic_does() -> None:
    run(DECODING)


def test_draws_are_those_of_the_noise_that_every_rank_knows() -> None:
    run(DRAWS)
