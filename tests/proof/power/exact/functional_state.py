"""A functional style: all state in one dict, each batch and each noise a function of the step."""

import os

import torch

STEPS, SAVE_EVERY, BATCH = 24, 4, 6
CHECKPOINT = "checkpoint.pt"


def make_data():
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(60, 5, generator=generator)
    return x, (x * torch.arange(1.0, 6.0)).sum(1, keepdim=True).sin()


def init_params(generator):
    shapes = {"w1": (5, 20), "b1": (20,), "w2": (20, 20), "b2": (20,), "w3": (20, 1), "b3": (1,)}
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def init_state():
    params = init_params(torch.Generator().manual_seed(3))
    return {"params": params, "step": 0, "optimizer": None, "scale": 1.0}


def forward(params, x, noise):
    hidden = torch.tanh(x @ params["w1"] + params["b1"])
    hidden = torch.tanh((hidden + noise) @ params["w2"] + params["b2"])
    return hidden @ params["w3"] + params["b3"]


def draws(step, count):
    """Give the batch and the noise of a step."""
    generator = torch.Generator().manual_seed(10_000 + step)
    return torch.randperm(count, generator=generator)[:BATCH], 0.1 * torch.randn(BATCH, 20, generator=generator)


def load():
    return torch.load(CHECKPOINT, weights_only=True) if os.path.exists(CHECKPOINT) else init_state()


def save(state):
    torch.save(state, "checkpoint.pt.tmp")
    os.replace("checkpoint.pt.tmp", CHECKPOINT)


def main():
    torch.set_num_threads(1)
    x, y = make_data()
    state = load()
    params = {name: value.clone().requires_grad_() for name, value in state["params"].items()}
    optimizer = torch.optim.RMSprop(params.values(), lr=0.005, momentum=0.5)
    if state["optimizer"] is not None:
        optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    scale = state["scale"]

    while step < STEPS:
        indices, noise = draws(step, len(x))
        error = forward(params, x[indices], noise) - y[indices]
        loss = error.square().mean() / scale
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scale = 0.9 * scale + 0.1 * error.detach().abs().mean().item()  # losses are normalised by their running size
        step += 1
        if step % SAVE_EVERY == 0:
            detached = {name: value.detach().clone() for name, value in params.items()}
            save({"params": detached, "step": step, "optimizer": optimizer.state_dict(), "scale": scale})

    torch.save({name: value.detach() for name, value in params.items()}, "params.pt")


if __name__ == "__main__":
    main()
