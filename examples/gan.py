"""A generator and a critic, two optimizers, fp16 with GradScaler, an EMA of the weights, accumulation of two batches.

How to run it: `python examples/gan.py [RUN]`; kill it at any time and run it again.
"""

import argparse
import math

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import samestep

NOISE, ACCUMULATE, BATCH = 8, 2, 64


class Ring(torch.utils.data.Dataset):
    """Points on a noisy ring; the noise is drawn anew whenever a point is fetched."""

    def __len__(self) -> int:
        return 2_048

    def __getitem__(self, index: int) -> torch.Tensor:
        angle = torch.tensor(2 * math.pi * index / len(self))
        return torch.stack([angle.cos(), angle.sin()]) + 0.05 * torch.randn(2)


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    """Build a small network from float[batch, inputs] to float[batch, outputs]."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, outputs))


def main() -> None:
    """Train and print the mean radius of what the averaged generator makes: the ring's is 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="runs/gan")
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()

    run = samestep.Run(arguments.run, seed=0, save_every=25)
    loader = samestep.DataLoader(Ring(), batch_size=BATCH, shuffle=True, drop_last=True, num_workers=2)
    generator, critic = perceptron(NOISE, 2), perceptron(2, 1)
    ema = AveragedModel(generator, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=50)
    judge = nn.BCEWithLogitsLoss()
    run.track(
        generator=generator,
        critic=critic,
        ema=ema,
        scaler=scaler,
        loader=loader,
        generator_optimizer=generator_optimizer,
        critic_optimizer=critic_optimizer,
    )
    run.state.batches = 0

    for epoch in run.epochs(arguments.epochs):
        for real in loader:
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            with torch.autocast("cpu", torch.float16):
                made = generator(torch.randn(len(real), NOISE))
                critic_loss = judge(critic(real), ones) + judge(critic(made.detach()), zeros)
            scaler.scale(critic_loss / ACCUMULATE).backward()
            with torch.autocast("cpu", torch.float16):
                generator_loss = judge(critic(made), ones)
            scaler.scale(generator_loss / ACCUMULATE).backward(inputs=list(generator.parameters()))
            run.state.batches += 1
            if run.state.batches % ACCUMULATE:
                continue  # a checkpoint taken here holds the gradients of half a window
            for optimizer in (critic_optimizer, generator_optimizer):
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()
            ema.update_parameters(generator)
            run.step(critic=critic_loss, generator=generator_loss)
        with run.isolated(), torch.no_grad():
            ema.eval()
            radius = ema(torch.randn(1_000, NOISE)).norm(dim=1).mean()
        print(f"epoch {epoch}: radius {radius:.4f}, loss scale {scaler.get_scale():.0f}")


if __name__ == "__main__":
    main()
