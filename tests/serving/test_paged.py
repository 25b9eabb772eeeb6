"""Our decode kernel against plain attention, run by Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.torch

PROGRAM = """
import torch
from allranks.serving import paged
cuda = torch.cuda.is_available()
device, dtype, bound = ("cuda", torch.bfloat16, 5e-3) if cuda else ("cpu", torch.float32, 1e-5)
torch.manual_seed(0)
for rows, heads, kv, size, page, longest in ((1, 8, 2, 32, 32, 300), (5, 8, 2, 16, 64, 200), (3, 4, 4, 64, 256, 600)):
    pages = longest // page + 1
    keys = torch.randn(rows * pages + 3, page, kv, size, dtype=dtype, device=device)
    values = torch.randn_like(keys)
    table = torch.randperm(rows * pages, device=device).int().view(rows, pages)
    lengths = torch.randint(0, longest - 1, (rows,), device=device).int()
    if rows > 2: lengths[-1] = -1
    q = torch.randn(rows, 1, heads, size, dtype=dtype, device=device)
    k, v = torch.randn(2, rows, 1, kv, size, dtype=dtype, device=device)
    out = paged.flash_attn_with_kvcache(q, keys, values, k, v, cache_seqlens=lengths, block_table=table)
    for row in range(rows):
        length = int(lengths[row]) + 1
        if not length: continue
        mine = [cache[table[row].long()].reshape(-1, kv, size)[:length].float() for cache in (keys, values)]
        assert torch.equal(mine[0][-1].to(dtype), k[row, 0]) and torch.equal(mine[1][-1].to(dtype), v[row, 0])
        wide = [cache.repeat_interleave(heads // kv, 1) for cache in mine]
        scores = torch.einsum("hd,nhd->hn", q[row, 0].float(), wide[0]) * size**-0.5
        want = torch.einsum("hn,nhd->hd", scores.softmax(-1), wide[1])
        error = float((out[row, 0] - want).norm() / want.norm())
        assert error < bound, (rows, row, error)
    print(paged.parts_for(rows * kv))
"""


def test_decoding_over_pages_is_attention_over_all_that_came_before() -> None:
    env = {**os.environ}
    import torch

    if not torch.cuda.is_available():
        env["TRITON_INTERPRET"] = "1"
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["32", "16", "16"]
