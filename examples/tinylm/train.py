"""Train a small Llama on the help topics that ship with Python, as a gang, and save it so that it can be served.

Every rank trains on its own pieces of the text and averages gradients with the others (DistributedDataParallel).
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
CONTEXT = 512


def train_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """Bytes, merged to 1,000 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special, alphabet = ["<pad>", "<s>", "</s>"], pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        text.split("\n\n"), trainers.BpeTrainer(vocab_size=1000, special_tokens=special, initial_alphabet=alphabet)
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", model_max_length=CONTEXT
    )
    fast.chat_template = CHAT
    return fast


def new_model(vocabulary: int) -> LlamaForCausalLM:
    """About a million weights; 4 key-value heads, so that 1, 2 or 4 ranks can serve it."""
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=CONTEXT, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def main() -> None:
    """Train, and let rank 0 save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=4, help="pieces of 128 tokens, each rank's own")
    parser.add_argument("--out", type=Path, default=Path("out/model"))
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    text = "\n\n".join(topics[name].strip() for name in sorted(topics))
    tokenizer = train_tokenizer(text)
    tokens = torch.tensor(tokenizer(text, verbose=False)["input_ids"])
    model = new_model(len(tokenizer))
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=options.steps)
    random = torch.Generator().manual_seed(rank)
    began = time.perf_counter()
    for step in range(options.steps):
        starts = torch.randint(len(tokens) - 128, (options.batch,), generator=random).tolist()
        batch = torch.stack([tokens[start : start + 128] for start in starts])
        loss = trained(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if rank == 0 and (step % 50 == 0 or step == options.steps - 1):
            print(f"step {step}: loss {loss.item():.2f}, {time.perf_counter() - began:.0f} s", flush=True)
    if rank == 0:
        model.save_pretrained(options.out)
        tokenizer.save_pretrained(options.out)
        print(f"saved to {os.path.abspath(options.out)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
