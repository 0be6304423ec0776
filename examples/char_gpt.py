"""A small GPT learns characters of Python's own documentation; kill it at any time and run it again.

How to run it: `python examples/char_gpt.py [RUN]`. A minute or two on two cores; the text comes with Python.
"""

import argparse
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional

import samestep

CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 64, 4, 2, 32


class Windows(torch.utils.data.Dataset):
    """Every window of CONTEXT + 1 characters of a text, as int64."""

    def __init__(self, text: str) -> None:
        self.alphabet = sorted(set(text))
        number = {character: index for index, character in enumerate(self.alphabet)}
        self.codes = torch.tensor([number[character] for character in text])

    def __len__(self) -> int:
        return len(self.codes) - CONTEXT

    def __getitem__(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.codes[start : start + CONTEXT + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float[batch, time, WIDTH] to the same shape."""
        batch, time, _ = x.shape
        heads = self.qkv(self.attention_norm(x)).view(batch, time, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, WIDTH))
        return x + self.feed(self.feed_norm(x))


class CharGPT(nn.Module):
    """A decoder whose output layer shares its weights with the embedding."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, characters, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Map int64[batch, time] to logits float[batch, time, characters]."""
        places = torch.arange(codes.shape[1])
        return self.head(self.blocks(self.embedding(codes) + self.positions(places)))

    @torch.no_grad()
    def write(self, codes: torch.Tensor, characters: int) -> torch.Tensor:
        """Go on writing behind codes of shape int64[1, time]."""
        self.eval()
        for _ in range(characters):
            chances = self(codes[:, -CONTEXT:])[:, -1].softmax(-1)
            codes = torch.cat([codes, torch.multinomial(chances, 1)], dim=1)
        self.train()
        return codes


def main() -> None:
    """Train, and let the model write a few words now and then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="runs/char_gpt")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--write-every", type=int, default=100, metavar="STEPS", help="let the model write a few words")
    arguments = parser.parse_args()

    run = samestep.Run(arguments.run, seed=0, save_every="20 steps")
    windows = Windows("".join(topics.values())[:200_000])
    loader = samestep.DataLoader(windows, batch_size=BATCH, shuffle=True, drop_last=True, num_workers=1)
    model = CharGPT(len(windows.alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=arguments.steps)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)

    batches = iter(loader)
    for step in run.steps(arguments.steps):
        codes, following = next(batches)
        loss = functional.cross_entropy(model(codes).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        run.step(loss=loss)
        if (step + 1) % arguments.write_every == 0:
            with run.isolated():  # writing draws random numbers; the training must not notice
                words = model.write(codes[:1, :1], 40)[0]
            print(f"step {step + 1}: loss {loss:.4f}  {''.join(windows.alphabet[code] for code in words)!r}")


if __name__ == "__main__":
    main()
