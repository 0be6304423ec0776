"""A transformer block on a stream of tokens: configured by a dataclass and argparse, warm-up and cosine by LambdaLR."""

import argparse
import math
import os
from dataclasses import asdict, dataclass, fields

import torch
from torch import nn


@dataclass
class Config:
    steps: int = 24
    batch: int = 4
    context: int = 10
    width: int = 16
    heads: int = 2
    vocabulary: int = 11
    learning_rate: float = 3e-3
    warmup: int = 6
    weight_decay: float = 0.1
    save_every: int = 5
    seed: int = 31
    out: str = "checkpoints"


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.block = Block(config.width, config.heads)
        self.head = nn.Linear(config.width, config.vocabulary)

    def forward(self, codes):
        return self.head(self.block(self.tokens(codes) + self.positions(torch.arange(codes.shape[1]))))


def parse_config():
    parser = argparse.ArgumentParser()
    for field in fields(Config):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
    return Config(**vars(parser.parse_args()))


def get_batch(tokens, config, generator):
    starts = torch.randint(0, len(tokens) - config.context, (config.batch,), generator=generator)
    windows = torch.stack([tokens[start : start + config.context + 1] for start in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


def configure_optimizer(model, config):
    decayed = [each for each in model.parameters() if each.dim() >= 2]
    others = [each for each in model.parameters() if each.dim() < 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95))


def make_scheduler(optimizer, config):
    def factor(step):
        if step < config.warmup:
            return (step + 1) / config.warmup
        return 0.5 * (1 + math.cos(math.pi * (step - config.warmup) / (config.steps - config.warmup)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


@torch.no_grad()
def evaluate(model, tokens):
    model.eval()
    loss = nn.functional.cross_entropy(model(tokens[None, :10]).flatten(0, 1), tokens[1:11])
    model.train()
    return loss.item()


def main():
    config = parse_config()
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    os.makedirs(config.out, exist_ok=True)
    path = os.path.join(config.out, "last.pt")
    tokens = (torch.arange(400) * 7 // 3 + torch.arange(400) // 5) % config.vocabulary
    crops = torch.Generator().manual_seed(config.seed + 1)
    model = GPT(config)
    optimizer = configure_optimizer(model, config)
    scheduler = make_scheduler(optimizer, config)
    step = 0
    if os.path.exists(path):
        checkpoint = torch.load(path, weights_only=True)
        assert checkpoint["config"] == asdict(config)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        step = checkpoint["step"]
        crops.set_state(checkpoint["crops"])
        torch.set_rng_state(checkpoint["rng"])

    model.train()
    while step < config.steps:
        codes, targets = get_batch(tokens, config, crops)
        loss = nn.functional.cross_entropy(model(codes).flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        step += 1
        if step % config.save_every == 0 or step == config.steps:
            print(f"step {step}: loss {loss.item():.4f}, evaluated {evaluate(model, tokens):.4f}")
            checkpoint = {
                "config": asdict(config),
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "step": step,
                "crops": crops.get_state(),
                "rng": torch.get_rng_state(),
            }
            torch.save(checkpoint, path + ".part")
            os.replace(path + ".part", path)


if __name__ == "__main__":
    main()
