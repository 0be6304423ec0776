"""What recording costs: a 14 M-parameter model whose step takes about a second on one core, plain and recorded.

How to run it: `python benchmarks/recording.py`; four minutes. Whole processes take turns, plain and recorded; each
times its own steps. Goals: recording at most 15 %, the digests of parameters and optimizer state alone at most 3 %.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

ROUNDS, STEPS, WARM = 5, 9, 2
WIDTH, LAYERS, LENGTH, BATCH, VOCABULARY = 384, 7, 128, 6, 2048


class Model(nn.Module):
    """A causal transformer of 14 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Give logits of shape float[batch, length, vocabulary] for tokens of shape int64[batch, length]."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.body(self.tokens(tokens), mask=mask, is_causal=True))


def train() -> None:
    """Train some steps, and print how long each took, how long the digests alone take, and the parameters' number."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randint(VOCABULARY, (BATCH * STEPS, LENGTH + 1))
    seconds = []
    for batch in torch.utils.data.DataLoader(data, BATCH):
        began = time.perf_counter()
        optimizer.zero_grad()
        logits = model(batch[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    from samestep.proof.fingerprint import tensor_digest

    state = [each for one in optimizer.state.values() for each in one.values()]
    began = time.perf_counter()
    for each in (*model.parameters(), *state):
        tensor_digest(each)
    digests = time.perf_counter() - began
    count = sum(each.numel() for each in model.parameters())
    sys.stdout.write(json.dumps({"steps": seconds[WARM:], "digests": digests, "parameters": count}) + "\n")


def run(folder: Path | None) -> dict[str, object]:
    """Train in a fresh process, recorded into a folder, or plain."""
    command = [sys.executable, __file__, "train"]
    if folder is not None:
        command = [sys.executable, "-m", "samestep", "record", "--out", str(folder), "--", *command]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(shown.stdout.splitlines()[0])


def main() -> None:
    """Take turns, and print medians and ratios."""
    plain, recorded, digests, parameters = [], [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            for seconds, place in ((plain, None), (recorded, Path(folder) / str(number))):
                told = run(place)
                seconds.extend(told["steps"])
                digests.append(told["digests"])
                parameters = told["parameters"]
    one, two, three = (statistics.median(each) for each in (plain, recorded, digests))
    for line in (
        f"{parameters / 1e6:.1f} M parameters, AdamW, one thread, torch {torch.__version__}; {ROUNDS} processes each",
        f"plain step     {one:.3f} s",
        f"recorded step  {two:.3f} s   {100 * (two / one - 1):+.1f} % (goal: at most 15 %)",
        f"digests alone  {three:.3f} s   {100 * three / one:.1f} % (goal: at most 3 %)",
    ):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else main()
