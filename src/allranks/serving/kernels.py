"""What lies between a layer's matrix products, in one Triton kernel each; and those products for a single row.

A step that decodes one row reads every weight once and computes next to nothing, so what counts is that the reading
never pauses: norms, the gate and the residual are done by the kernel that reads the weights. With more rows the
products are cuBLAS's, and the rest has kernels of its own. Rounding is where transformers rounds, or later.
"""

# Triton compiles these functions: their parameters have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch.nn.functional import linear

PLAIN, GATED = (2, 2048, 8), (1, 1024, 2)
"""Rows of a weight that a program of ``_row`` takes, columns at a time, and its warps: measured on an H200, where the
products of an 8B model for one row then run at 3.4 to 4.0 TB/s, and cuBLAS's at 2.3 to 4.2 without the norms."""


class Norm(NamedTuple):
    """An RMS norm: weight [size] and epsilon."""

    weight: torch.Tensor
    eps: float


@triton.jit
def _normed(X, NORM, OUT, eps, SIZE: tl.constexpr, PADDED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * SIZE
    at = tl.arange(0, PADDED)
    there = at < SIZE
    x = tl.load(X + row + at, mask=there, other=0.0).to(tl.float32)
    x = (x * tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)).to(OUT.dtype.element_ty).to(tl.float32)
    weight = tl.load(NORM + at, mask=there, other=0.0).to(tl.float32)
    tl.store(OUT + row + at, (x * weight).to(OUT.dtype.element_ty), mask=there)


def normed(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    """RMS norm of the last dimension; x is contiguous. A third of the time that torch's takes (2 us, 64 x 4096)."""
    out, size = torch.empty_like(x), x.shape[-1]
    _normed[(x.numel() // size,)](
        x, norm.weight, out, norm.eps, SIZE=size, PADDED=triton.next_power_of_2(size), num_warps=8
    )
    return out


@triton.jit
def _gate(X, OUT, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < SIZE
    gate = tl.load(X + row * 2 * SIZE + at, mask=there).to(tl.float32)
    up = tl.load(X + row * 2 * SIZE + SIZE + at, mask=there).to(tl.float32)
    gate = (gate * tl.sigmoid(gate)).to(OUT.dtype.element_ty).to(tl.float32)
    tl.store(OUT + row * SIZE + at, (gate * up).to(OUT.dtype.element_ty), mask=there)


@triton.jit
def _row(
    X, NORM, W, BIAS, ADD, OUT, eps, N, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NORMED: tl.constexpr,
    GATED: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """Some numbers of a row times a weight [N, K], or [2 N, K] where its halves are a gate and what it gates."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    real = n < N
    start = n.to(tl.int64)[:, None] * K
    total = tl.zeros([BN, BK], tl.float32)
    gated = tl.zeros([BN, BK], tl.float32)
    squares = tl.zeros([BK], tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        there = k < K
        both = real[:, None] & there[None, :]
        x = tl.load(X + k, mask=there, other=0.0).to(tl.float32)
        if NORMED:
            squares += x * x
            x *= tl.load(NORM + k, mask=there, other=0.0).to(tl.float32)
        total += tl.load(W + start + k[None, :], mask=both, other=0.0).to(tl.float32) * x[None, :]
        if GATED:
            more = start + N.to(tl.int64) * K
            gated += tl.load(W + more + k[None, :], mask=both, other=0.0).to(tl.float32) * x[None, :]
    scale = tl.rsqrt(tl.sum(squares, 0) / K + eps) if NORMED else 1.0
    out = tl.sum(total, 1) * scale
    if GATED:
        out = out * tl.sigmoid(out) * (tl.sum(gated, 1) * scale)
    if BIASED:
        out += tl.load(BIAS + n, mask=real, other=0.0).to(tl.float32)
    if ADDED:
        out += tl.load(ADD + n, mask=real, other=0.0).to(tl.float32)
    tl.store(OUT + n, out.to(OUT.dtype.element_ty), mask=real)


def _one_row(
    x: torch.Tensor, weight: torch.Tensor, norm: Norm | None = None, bias: torch.Tensor | None = None,
    add: torch.Tensor | None = None, gated: bool = False,
) -> torch.Tensor:  # fmt: skip
    outputs, size = weight.shape[0] // (2 if gated else 1), weight.shape[1]
    out = x.new_empty(1, outputs)
    rows, columns, warps = GATED if gated else PLAIN
    _row[(triton.cdiv(outputs, rows),)](
        x, norm.weight if norm else x, weight, x if bias is None else bias, x if add is None else add, out,
        norm.eps if norm else 0.0, outputs, K=size, BN=rows, BK=columns, NORMED=norm is not None,
        GATED=gated, BIASED=bias is not None, ADDED=add is not None, num_warps=warps,
    )  # fmt: skip
    return out


def normed_linear(x: torch.Tensor, norm: Norm, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Norm x [rows, size] and multiply by a weight [outputs, size] -> [rows, outputs]."""
    if len(x) == 1:
        return _one_row(x, weight, norm, bias)
    return linear(normed(x, norm), weight, bias)


def gated_linear(x: torch.Tensor, norm: Norm, weight: torch.Tensor) -> torch.Tensor:
    """SwiGLU: x [rows, size], normed, times [2 outputs, size], the gate's half first -> [rows, outputs]."""
    if len(x) == 1:
        return _one_row(x, weight, norm, gated=True)
    both = linear(normed(x, norm), weight)
    size = both.shape[1] // 2
    out = both.new_empty(len(both), size)
    _gate[(len(both), triton.cdiv(size, 1024))](both, out, SIZE=size, BLOCK=1024, num_warps=4)
    return out


def linear_onto(add: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply x [rows, size] by a weight [outputs, size], and add ``add`` [rows, outputs] if there is one."""
    if len(x) == 1:
        return _one_row(x, weight, add=add)
    return linear(x, weight) if add is None else torch.addmm(add, x, weight.t())


@triton.jit
def length_of(LENGTHS, row, CUMULATIVE: tl.constexpr):
    """How many tokens a row has before its new one, from the lengths themselves or from the ends of all."""
    if CUMULATIVE:
        return tl.load(LENGTHS + row + 1) - tl.load(LENGTHS + row) - 1
    return tl.load(LENGTHS + row)


@triton.jit
def _turn(
    QKV, COS, SIN, QN, KN, KC, VC, TABLE, LENGTHS, eps, angles, qkv_row, kc_page, kc_slot, vc_page, vc_slot, t_row,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr, NORMED: tl.constexpr,
    WRITTEN: tl.constexpr,
):  # fmt: skip
    """One head of one row: norm it if such is the model, turn it unless it is a value, and put it where it belongs."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    query, value = head < HEADS, head >= HEADS + KV
    key = (head >= HEADS) & (head < HEADS + KV)
    at = tl.arange(0, HALF)
    here = QKV + row * qkv_row + head * 2 * HALF + at
    a, b = tl.load(here).to(tl.float32), tl.load(here + HALF).to(tl.float32)
    if NORMED:
        scale = tl.rsqrt(tl.sum(a * a + b * b, 0) / (2 * HALF) + eps)
        asks, answers = at < tl.where(query, HALF, 0), at < tl.where(key, HALF, 0)
        a_weight = tl.load(QN + at, mask=asks, other=0.0) + tl.load(KN + at, mask=answers, other=0.0)
        b_weight = tl.load(QN + HALF + at, mask=asks, other=0.0) + tl.load(KN + HALF + at, mask=answers, other=0.0)
        a = tl.where(value, a, (a * scale).to(QKV.dtype.element_ty).to(tl.float32) * a_weight)
        b = tl.where(value, b, (b * scale).to(QKV.dtype.element_ty).to(tl.float32) * b_weight)
    angle = (row % angles) * 2 * HALF + at
    moves = at < tl.where(value, 0, HALF)
    a_cos = tl.load(COS + angle, mask=moves, other=1.0).to(tl.float32)
    b_cos = tl.load(COS + angle + HALF, mask=moves, other=1.0).to(tl.float32)
    a_sin = tl.load(SIN + angle, mask=moves, other=0.0).to(tl.float32)
    b_sin = tl.load(SIN + angle + HALF, mask=moves, other=0.0).to(tl.float32)
    first = (a * a_cos - b * a_sin).to(QKV.dtype.element_ty)
    second = (b * b_cos + a * b_sin).to(QKV.dtype.element_ty)
    if WRITTEN:
        tl.store(here, first, mask=at < tl.where(query, HALF, 0))
        tl.store(here + HALF, second, mask=at < tl.where(query, HALF, 0))
        position = length_of(LENGTHS, row, True)
        if (position >= 0) & (head >= HEADS):
            page = tl.load(TABLE + row * t_row + position // PAGE).to(tl.int64)
            slot = position % PAGE
            k_place = KC + page * kc_page + slot * kc_slot + (head - HEADS) * 2 * HALF + at
            v_place = VC + page * vc_page + slot * vc_slot + (head - HEADS - KV) * 2 * HALF + at
            tl.store(k_place, first, mask=at < tl.where(key, HALF, 0))
            tl.store(k_place + HALF, second, mask=at < tl.where(key, HALF, 0))
            tl.store(v_place, first, mask=at < tl.where(value, HALF, 0))
            tl.store(v_place + HALF, second, mask=at < tl.where(value, HALF, 0))
    else:
        tl.store(here, first)
        tl.store(here + HALF, second)


class Heads(NamedTuple):
    """A layer's heads on this rank: how many queries and keys, of which size, normed by what, if they are."""

    queries: int
    keys: int
    size: int
    query_norm: Norm | None = None
    key_norm: Norm | None = None


class Pages(NamedTuple):
    """A layer's cache [pages, page, heads, size], which pages each row has, and the ends of the rows' lengths."""

    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor
    ends: torch.Tensor


def turn(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: Heads, pages: Pages | None = None) -> None:
    """Give the queries and keys in qkv [rows, all heads] their positions: in place, or keys and values to ``pages``.

    Angles are [..., size], rows of them as many as tokens; the same ones are used again for further sequences.
    """
    norms = (heads.query_norm, heads.key_norm)
    eps = norms[0].eps if norms[0] else 0.0
    weights = [qkv if norm is None else norm.weight for norm in norms]
    keys, values, table, ends = pages or (qkv, qkv, qkv, qkv)  # without pages nobody looks there
    strides = keys.stride(0), keys.stride(1), values.stride(0), values.stride(1), table.stride(0)
    shown = heads.queries + heads.keys * (2 if pages else 1)
    _turn[(len(qkv), shown)](
        qkv, cos, sin, *weights, keys, values, table, ends, eps, cos.numel() // heads.size, qkv.stride(0), *strides,
        HEADS=heads.queries, KV=heads.keys, HALF=heads.size // 2, PAGE=keys.shape[1] if pages else 1,
        NORMED=norms[0] is not None, WRITTEN=pages is not None, num_warps=1,
    )  # fmt: skip


@triton.jit
def _mixed(x):
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _draw(SCORES, OUT, SETTINGS, columns, vocabulary, BLOCK: tl.constexpr):
    row, token = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = token < vocabulary
    scores = tl.load(SCORES + row * vocabulary + token, mask=there)
    temperature = tl.load(SETTINGS + row).to(tl.float32, bitcast=True)
    if temperature > 0:
        seed = tl.load(SETTINGS + 3 * columns + row).to(tl.uint32)
        position = tl.load(SETTINGS + 4 * columns + row).to(tl.uint32)
        own = _mixed(seed ^ _mixed(position + 0x9E3779B9))
        bits = _mixed(own + token.to(tl.uint32) * 0x9E3779B9)
        uniform = ((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
        scores = scores / tl.maximum(temperature, 1e-5) - tl.log(-tl.log(uniform))
    tl.store(OUT + row * vocabulary + token, scores, mask=there)


def drawn(scores: torch.Tensor, settings: torch.Tensor) -> torch.Tensor:
    """Scores [rows, vocabulary], float32, of which the largest is a draw (sampling.py says how), or the likeliest."""
    out, (rows, vocabulary) = torch.empty_like(scores), scores.shape
    grid = (rows, triton.cdiv(vocabulary, 4096))
    _draw[grid](scores, out, settings, settings.stride(0), vocabulary, BLOCK=4096, num_warps=8)
    return out
