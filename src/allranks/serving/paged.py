"""Attention over a paged key-value cache for images without a flash-attention package.

Prefill is torch's own variable-length flash attention. Decode is a Triton kernel: one new token a row, its keys and
values written into their page, then the row's pages read in parts by several programs (split-KV) and merged. Shapes are
flash-attention's, as transformers calls them (integrations/flash_paged.py, 5.24). No windows, no caps, no sinks.
"""

# Triton compiles these functions: their parameters have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from allranks.serving.kernels import Pages, length_of

MOST_PARTS = 32
NO_WINDOW = (-1, -1)
PROGRAMS = 264
"""Programs that fill the larger cards twice (132 multiprocessors)."""


@triton.jit
def _write(
    K, V, KC, VC, TABLE, LENGTHS, k_row, k_head, v_row, v_head, kc_page, kc_slot, vc_page, vc_slot, t_row,
    PAGE: tl.constexpr, SIZE: tl.constexpr, D: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Put each row's new key and value behind those that it has; a row of length -1 is padding."""
    row = tl.program_id(0)
    position = tl.load(LENGTHS + row)
    if position >= 0:
        page = tl.load(TABLE + row * t_row + position // PAGE).to(tl.int64)
        slot = position % PAGE
        at = tl.arange(0, PADDED)
        there = at < SIZE
        head, d = at // D, at % D
        k = tl.load(K + row * k_row + head * k_head + d, mask=there)
        v = tl.load(V + row * v_row + head * v_head + d, mask=there)
        tl.store(KC + page * kc_page + slot * kc_slot + at, k, mask=there)
        tl.store(VC + page * vc_page + slot * vc_slot + at, v, mask=there)


@triton.jit
def _attend(
    Q, KC, VC, TABLE, LENGTHS, OUT, PART, PEAK, SUM, scale, q_row, q_head, kc_page, kc_slot, vc_page, vc_slot, t_row,
    o_row, o_head, PAGE: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    PARTS: tl.constexpr, HEADS: tl.constexpr, CUMULATIVE: tl.constexpr,
):  # fmt: skip
    """One row, one key-value head with its ``G`` query heads, one part of the keys: a softmax that is kept open."""
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = length_of(LENGTHS, row, CUMULATIVE) + 1
    d, g = tl.arange(0, D), tl.arange(0, GP)
    asked = g < G
    q = tl.load(Q + row * q_row + (head * G + g[:, None]) * q_head + d[None, :], mask=asked[:, None], other=0.0)
    blocks = tl.cdiv(length, BLOCK)
    each = tl.cdiv(blocks, PARTS)
    first = part * each
    last = tl.minimum(first + each, blocks)
    peak = tl.full([GP], -1e30, tl.float32)
    total = tl.zeros([GP], tl.float32)
    out = tl.zeros([GP, D], tl.float32)
    for block in range(first, last):
        start = block * BLOCK
        page = tl.load(TABLE + row * t_row + start // PAGE).to(tl.int64)
        slot = start % PAGE + tl.arange(0, BLOCK)
        there = start + tl.arange(0, BLOCK) < length
        k = tl.load(
            KC + page * kc_page + slot[:, None] * kc_slot + head * D + d[None, :], mask=there[:, None], other=0.0
        )
        v = tl.load(
            VC + page * vc_page + slot[:, None] * vc_slot + head * D + d[None, :], mask=there[:, None], other=0.0
        )
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(there[None, :], scores, -1e30)
        higher = tl.maximum(peak, tl.max(scores, 1))
        weight = tl.exp(scores - higher[:, None])
        shrink = tl.exp(peak - higher)
        total = total * shrink + tl.sum(weight, 1)
        out = out * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        peak = higher
    if PARTS == 1:
        done = out / tl.maximum(total, 1e-20)[:, None]
        place = OUT + row * o_row + (head * G + g[:, None]) * o_head + d[None, :]
        tl.store(place, done.to(OUT.dtype.element_ty), mask=asked[:, None])
    else:
        base = ((row * HEADS + head) * PARTS + part) * G
        tl.store(PART + (base + g[:, None]) * D + d[None, :], out, mask=asked[:, None])
        tl.store(PEAK + base + g, peak, mask=asked)
        tl.store(SUM + base + g, total, mask=asked)


@triton.jit
def _merge(
    PART, PEAK, SUM, OUT, o_row, o_head, G: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr, HEADS: tl.constexpr
):
    """Close the softmax of one row and query head over its parts."""
    row, query = tl.program_id(0), tl.program_id(1)
    part, d = tl.arange(0, PARTS), tl.arange(0, D)
    base = ((row * HEADS + query // G) * PARTS + part) * G + query % G
    peak, total = tl.load(PEAK + base), tl.load(SUM + base)
    weight = tl.exp(peak - tl.max(peak, 0))
    out = tl.sum(tl.load(PART + base[:, None] * D + d[None, :]) * weight[:, None], 0)
    out = out / tl.maximum(tl.sum(total * weight, 0), 1e-20)
    tl.store(OUT + row * o_row + query * o_head + d, out.to(OUT.dtype.element_ty))


def flash_attn_with_kvcache(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    cache_seqlens: torch.Tensor, block_table: torch.Tensor, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = NO_WINDOW,
) -> torch.Tensor:  # fmt: skip
    """Decode: q [rows, 1, heads, D], k and v [rows, 1, kv heads, D], caches [pages, page, kv heads, D] -> as q.

    ``cache_seqlens`` is what each row has already; its new key and value are written behind that.
    """
    _must_be_whole(window_size)
    page, heads, size = k_cache.shape[1:]
    scale = size**-0.5 if softmax_scale is None else softmax_scale
    k, v = k[:, 0], v[:, 0]
    _write[(len(q),)](
        k, v, k_cache, v_cache, block_table, cache_seqlens, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        k_cache.stride(0), k_cache.stride(1), v_cache.stride(0), v_cache.stride(1), block_table.stride(0),
        PAGE=page, SIZE=heads * size, D=size, PADDED=triton.next_power_of_2(heads * size), num_warps=4,
    )  # fmt: skip
    return attend(q[:, 0], Pages(k_cache, v_cache, block_table, cache_seqlens), scale, cumulative=False).unsqueeze(1)


def attend(q: torch.Tensor, pages: Pages, scale: float, cumulative: bool = True) -> torch.Tensor:
    """Attend with q [rows, heads, D] to all that each row has in ``pages``, the newest too -> as q, contiguous.

    ``cumulative``: the lengths are given by where each row's begin and end, counting the newest; else as they are,
    without it.
    """
    rows, queries, size = q.shape
    keys, values, table, lengths = pages
    page, heads = keys.shape[1], keys.shape[2]
    group = queries // heads
    out = torch.empty(rows, queries, size, dtype=q.dtype, device=q.device)
    parts = parts_for(rows * heads)
    shape = rows * queries * parts if parts > 1 else 0
    part = torch.empty(shape * size, dtype=torch.float32, device=q.device)
    peak, total = torch.empty(2, shape, dtype=torch.float32, device=q.device)
    _attend[(rows, heads, parts)](
        q, keys, values, table, lengths, out, part, peak, total, scale, q.stride(0), q.stride(1), keys.stride(0),
        keys.stride(1), values.stride(0), values.stride(1), table.stride(0), out.stride(0), out.stride(1),
        PAGE=page, G=group, GP=max(16, triton.next_power_of_2(group)), D=size, BLOCK=min(64, page), PARTS=parts,
        HEADS=heads, CUMULATIVE=cumulative, num_warps=4, num_stages=3,
    )  # fmt: skip
    if parts > 1:
        _merge[(rows, queries)](
            part, peak, total, out, out.stride(0), out.stride(1), G=group, D=size, PARTS=parts, HEADS=heads
        )
    return out


def _must_be_whole(window: tuple[int, int]) -> None:
    if tuple(window) != NO_WINDOW:
        raise ValueError(f"these kernels have no window, and {window} was asked for")


def parts_for(programs: int) -> int:
    """Into how many parts, a power of two, the keys are split so that few rows still fill the card."""
    parts = 1
    while programs * parts * 2 <= PROGRAMS and parts < MOST_PARTS:
        parts *= 2
    return parts


def flash_attn_varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = NO_WINDOW,
) -> torch.Tensor:  # fmt: skip
    """Prefill: q [tokens, heads, D] of several requests one after the other, with the keys and values of each."""
    _must_be_whole(window_size)
    starts = cu_seqlens_q.to(torch.int32), cu_seqlens_k.to(torch.int32)
    longest = int(max_seqlen_q), int(max_seqlen_k)
    out = torch.ops.aten._flash_attention_forward(q, k, v, *starts, *longest, 0.0, causal, False, scale=softmax_scale)
    return out[0]


def flash_attn_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = NO_WINDOW,
) -> torch.Tensor:  # fmt: skip
    """All rows of one length: q, k, v [rows, tokens, heads, D]."""
    _must_be_whole(window_size)
    out = torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, causal, False, scale=softmax_scale
    )
    return out[0]


def install() -> None:
    """Let transformers take these functions for the flash-attention package.

    Private in 5.24 (modeling_flash_attention_utils.py): ``_lazy_imports`` looks for the package, and
    ``_loaded_implementation`` remembers what it found; it also asks the functions for the names of their parameters.
    """
    import transformers.modeling_flash_attention_utils as flash

    functions = (flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache, flash._pad_input, flash._unpad_input)
    flash._lazy_imports = lambda *_, **__: functions
    flash._loaded_implementation = None
