"""Llama-like decoder layers in few kernels: weights that meet the same input joined, and what lies between them fused.

Of transformers' layer a step that decodes makes some forty kernels, each too short to fill the card; of ours eight to
ten. Compiling gets half of that gain for minutes at every start.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from allranks.serving import kernels, paged, windows
from allranks.serving.kernels import Heads, Norm

MODELS = ("llama", "mistral", "qwen2", "qwen3")


def unfit(model: Any) -> str:
    """Why the kernels do not fit the model's layers, or nothing."""
    config = model.config
    if config.model_type not in MODELS:
        return f"kernels are for {', '.join(MODELS)}, and the model is {config.model_type}"
    layers = model.model.layers
    size = layers[0].self_attn.head_dim
    if has := windows.told(config):
        return has
    if size & (size - 1):
        return f"a head has {size} numbers, no power of two"
    if config.hidden_act not in ("silu", "swish"):
        return f"its gate is {config.hidden_act}, not silu"
    if any(part.bias is not None for layer in layers for part in (layer.self_attn.o_proj, *_gates(layer.mlp))):
        return "there are biases behind its attention"
    return ""


def fuse(model: Any) -> None:
    """Put layers of ours in the place of the model's, one after the other; each frees what it replaces."""
    from transformers.generation.continuous_batching.distributed import DistributedHelper

    mesh = DistributedHelper.extract_tp_mesh(getattr(model, "_device_mesh", None))
    group = mesh.get_group() if mesh is not None else None
    body = model.model
    for index in range(len(body.layers)):
        body.layers[index] = Layer(body.layers[index], group)
    body.norm = FinalNorm(body.norm)


class FinalNorm(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """The norm behind the last layer."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.norm = _norm(norm)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Hidden states of any number of rows, contiguous."""
        return kernels.normed(hidden_states, self.norm)


class Layer(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A decoder layer, or this rank's part of it: then ``group`` adds the parts up."""

    def __init__(self, layer: Any, group: Any) -> None:
        super().__init__()
        attention, gates = layer.self_attn, _gates(layer.mlp)
        inputs = attention.q_proj, attention.k_proj, attention.v_proj
        queries, keys, _ = (_local(part.weight).shape[0] // attention.head_dim for part in inputs)
        norms = [_norm(norm) if norm else None for norm in map(attention._modules.get, ("q_norm", "k_norm"))]
        self.heads = Heads(queries, keys, attention.head_dim, *norms)
        self.norm, self.mid_norm = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        self.qkv = torch.cat([_local(part.weight) for part in inputs])
        self.bias = None if inputs[0].bias is None else torch.cat([_local(part.bias) for part in inputs])
        self.out = _local(attention.o_proj.weight)
        self.gate_up = torch.cat([_local(part.weight) for part in gates[:2]])
        self.down = _local(gates[2].weight)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            delattr(attention, name)
        self.attention = attention
        self.group, self.leads = group, group is None or dist.get_rank(group) == 0

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        position_embeddings: Any = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """As transformers' own, in inference mode: hidden states [batch, tokens, size] to hidden states."""
        x = hidden_states.view(-1, hidden_states.shape[-1])
        qkv = kernels.normed_linear(x, self.norm, self.qkv, self.bias)
        seen = self._attend(qkv, hidden_states.shape[:2], attention_mask, position_embeddings, cache, kwargs)
        x = self._summed(kernels.linear_onto(x if self.leads else None, seen, self.out))
        inner = kernels.gated_linear(x, self.mid_norm, self.gate_up)
        x = self._summed(kernels.linear_onto(x if self.leads else None, inner, self.down))
        return x.view(hidden_states.shape)

    def _attend(self, qkv: torch.Tensor, shape: Any, mask: Any, angles: Any, cache: Any, kwargs: Any) -> torch.Tensor:
        """Every row's new tokens to those before them -> [rows, this rank's heads]."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        cos, sin = angles
        heads, index, scaling = self.heads, self.attention.layer_idx, self.attention.scaling
        if (tables := kwargs.get("block_table")) is not None:
            allocator = cache.layer_to_allocator[index]
            ends = kwargs["cu_seq_lens_k"][allocator.layer_type]
            keys, values = allocator.get_cache_for_block_table(index)
            pages = kernels.Pages(keys, values, tables[allocator.index], ends)
            kernels.turn(qkv, cos, sin, heads, pages)
            return paged.attend(qkv.view(len(qkv), -1, heads.size)[:, : heads.queries], pages, scaling).flatten(1)
        kernels.turn(qkv, cos, sin, heads)
        parts = qkv.view(*shape, -1, heads.size).split((heads.queries, heads.keys, heads.keys), dim=2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        if cache is not None:
            k, v = cache.update(k, v, index, kwargs=kwargs)
        attend = ALL_ATTENTION_FUNCTIONS[self.attention.config._attn_implementation]
        out, _ = attend(self.attention, q, k, v, mask, dropout=0.0, scaling=scaling, **kwargs)
        return out.reshape(len(qkv), -1)

    def _summed(self, part: torch.Tensor) -> torch.Tensor:
        if self.group is not None:
            dist.all_reduce(part, group=self.group)
        return part


def _gates(mlp: Any) -> tuple[Any, Any, Any]:
    return mlp.gate_proj, mlp.up_proj, mlp.down_proj


def _local(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().to_local() if isinstance(weight, DTensor) else weight.detach()


def _norm(module: Any) -> Norm:
    return Norm(_local(module.weight), module.variance_epsilon)
