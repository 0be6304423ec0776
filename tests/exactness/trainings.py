"""The trainings of the exactness matrix: one small loop, and one class for each way in which trainings differ."""

import random
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from ledger import Ledger, random_digest
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.checkpoint import checkpoint

import samestep

ITEMS, BATCH, EPOCHS = 56, 4, 3
STEPS = ITEMS // BATCH  # in an epoch
FEATURES = 8


class Points(torch.utils.data.Dataset):
    """Items (index, x, y); `augment` draws from all three libraries, wherever the item is fetched."""

    def __init__(self, *, augment: bool = False, owned: bool = False, image: bool = False, items: int = ITEMS) -> None:
        generator = torch.Generator().manual_seed(1)
        shape = (items, 3, 4, 4) if image else (items, FEATURES)
        self.x = torch.randn(shape, generator=generator)
        self.y = torch.randint(0, 3, (items,), generator=generator)
        self.augment = augment
        self.generator = np.random.default_rng(5) if owned else None

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        x = self.x[index].clone()
        if self.augment:
            x += 0.1 * torch.randn(()) + 0.1 * float(np.random.normal()) + 0.1 * random.gauss(0, 1)
        if self.generator is not None:
            x += float(self.generator.normal())
        return index, x, self.y[index]


class ShuffledBatches(torch.utils.data.Sampler[list[int]]):
    """A batch sampler with a generator of its own."""

    def __init__(self, items: int, size: int) -> None:
        self.items, self.size = items, size
        self.generator = np.random.default_rng(9)

    def __iter__(self):
        order = self.generator.permutation(self.items)
        for start in range(0, self.items, self.size):
            yield order[start : start + self.size].tolist()

    def __len__(self) -> int:
        return self.items // self.size


class Training:
    """A classifier with dropout, AdamW and a learning rate that changes at every step, on shuffled points."""

    workers = 0
    loader: ClassVar[dict[str, Any]] = {}
    save_every: int | str | None = 5
    keep = samestep.Keep(last=3)

    def __init__(self, directory: Path, ledger: Ledger, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self, name, value)
        self.ledger = ledger
        self.run = samestep.Run(directory, seed=3, save_every=self.save_every, keep=self.keep)
        self.model = self.build_model()
        self.build()
        self.run.track(model=self.model, **self.tracked())

    # what a scenario may change

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))

    def build(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, EPOCHS * STEPS)
        self.batches = self.build_loader()

    def dataset(self) -> Points:
        return Points()

    def build_loader(self) -> samestep.DataLoader:
        settings = {"batch_size": BATCH, "shuffle": True} | self.loader
        return samestep.DataLoader(self.dataset(), num_workers=self.workers, **settings)

    def tracked(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "scheduler": self.scheduler, "loader": self.batches}

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.model(x), y)

    def update(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.loss(x, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss

    def before_epoch(self, epoch: int) -> None: ...

    def evaluate(self, epoch: int) -> None: ...

    # the loop

    def train(self) -> None:
        for epoch in self.run.epochs(EPOCHS):
            self.before_epoch(epoch)
            for index, x, y in self.batches:
                loss = self.update(x, y)
                self.run.step(loss=loss)
                self.note_step(index, x, loss)
            self.ledger.maybe_die("behind the batches", epoch)
            self.evaluate(epoch)
            self.ledger.maybe_die("epoch", epoch)
        self.note_end()

    def rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def note_step(self, index: torch.Tensor, x: torch.Tensor, loss: torch.Tensor) -> None:
        step = self.run.completed_steps
        self.ledger.note(
            "step",
            step,
            index=index.tolist(),
            x=x,
            loss=loss,
            rates=self.rates(),
            random=random_digest(),
        )

    def note_end(self) -> None:
        states = {name: each.state_dict() for name, each in self.tracked().items() if name != "loader"}
        self.ledger.note("end", 0, model=self.model.state_dict(), values=self.run.state.state_dict(), **states)


class Augmented(Training):
    def dataset(self) -> Points:
        return Points(augment=True)


class OwnedGenerator(Training):
    def dataset(self) -> Points:
        return Points(augment=True, owned=True)


class OwnBatchSampler(Training):
    def build_loader(self) -> samestep.DataLoader:
        sampler = ShuffledBatches(ITEMS, BATCH)
        return samestep.DataLoader(Points(augment=True), batch_sampler=sampler, num_workers=self.workers)


class Accumulation(Training):
    """Four batches to an update; saved at times, so that a save falls inside a window."""

    def train(self) -> None:
        self.run.state.batches = 0
        for _ in self.run.epochs(EPOCHS):
            for index, x, y in self.batches:
                loss = self.loss(x, y) / 4
                loss.backward()
                self.run.state.batches += 1
                if self.run.state.batches % 4 == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.scheduler.step()
                    self.run.step(loss=loss)
                if self.run.state.batches % 7 == 0:
                    self.run.save()
                gradients = [each.grad for each in self.model.parameters()]
                self.ledger.note(
                    "step",
                    self.run.state.batches,
                    index=index,
                    x=x,
                    loss=loss,
                    gradients=gradients,
                    rates=self.rates(),
                )
        self.note_end()


class Plateau(Training):
    """ReduceLROnPlateau on a shuffling, drawing validation loader; early stopping; best metric."""

    keep = samestep.Keep(last=2, best=1, metric="accuracy")

    def build(self) -> None:
        super().build()
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0, factor=0.5)
        self.validation = samestep.DataLoader(Points(augment=True, items=20), batch_size=5, shuffle=True)
        self.run.state.best, self.run.state.patience = float("-inf"), 0

    def tracked(self) -> dict[str, Any]:
        return super().tracked() | {"validation": self.validation}

    def update(self, x, y):
        loss = self.loss(x, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def evaluate(self, epoch: int) -> None:
        with self.run.isolated(), torch.no_grad():
            self.model.eval()
            total, right, seen = 0.0, 0, []
            for number, (index, x, y) in enumerate(self.validation):
                answers = self.model(x)
                total += float(functional.cross_entropy(answers, y)) + float(torch.rand(()))
                right += int((answers.argmax(1) == y).sum())
                seen += index.tolist()
                if number == 1:
                    self.ledger.maybe_die("inside the evaluation", epoch)
            self.model.train()
        self.scheduler.step(total)
        better = right > self.run.state.best
        self.run.state.best = max(self.run.state.best, right)
        self.run.state.patience = 0 if better else self.run.state.patience + 1
        self.run.score(accuracy=right, loss=total)
        self.ledger.note(
            "score",
            epoch,
            total=total,
            right=right,
            seen=seen,
            rates=self.rates(),
            state=self.run.state.state_dict(),
            best=self.run.best,
        )
        if self.run.state.patience > 2:
            self.run.stop()


class AdversarialAmp(Training):
    """fp16 autocast with GradScaler, two optimizers, an EMA model."""

    def build(self) -> None:
        self.critic = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.critic_optimizer = torch.optim.RMSprop(self.critic.parameters(), lr=1e-3, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=3)
        self.ema = AveragedModel(self.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        self.batches = self.build_loader()

    def tracked(self) -> dict[str, Any]:
        return {
            "critic": self.critic,
            "optimizer": self.optimizer,
            "critic_optimizer": self.critic_optimizer,
            "scaler": self.scaler,
            "ema": self.ema,
            "loader": self.batches,
        }

    def update(self, x, y):
        with torch.autocast("cpu", torch.float16):
            made = self.model(x)
            critic_loss = self.critic(made.detach()).mean() - self.critic(functional.one_hot(y, 3).float()).mean()
        self._scaled(critic_loss, self.critic_optimizer)
        with torch.autocast("cpu", torch.float16):
            loss = functional.cross_entropy(self.model(x).float() * 1e3, y) - self.critic(self.model(x)).mean()
        self._scaled(loss, self.optimizer)
        self.scaler.update()
        self.ema.update_parameters(self.model)
        return loss + self.scaler.get_scale()

    def _scaled(self, loss, optimizer):
        optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)


class Tied(Training):
    def build_model(self) -> nn.Module:
        first, last = nn.Linear(FEATURES, FEATURES, bias=False), nn.Linear(FEATURES, FEATURES, bias=False)
        last.weight = first.weight
        return nn.Sequential(first, nn.Tanh(), nn.Dropout(0.1), last)


class ChannelsLast(Training):
    def dataset(self) -> Points:
        return Points(image=True)

    def build_model(self) -> nn.Module:
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
        return net.to(memory_format=torch.channels_last)

    def loss(self, x, y):
        return super().loss(x.to(memory_format=torch.channels_last), y)


class Frozen(Training):
    """The first layer is frozen, and thawed once, in epoch 1, by a statement of the body."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model[0].requires_grad_(requires_grad=False)
        return model

    def update(self, x, y):
        if self.run.completed_steps == STEPS + 3:
            self.model[0].requires_grad_(requires_grad=True)
        return super().update(x, y)


class BatchNorm(Training):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 16), nn.Linear(16, 3)

    def forward(self, x):
        hidden = checkpoint(lambda each: functional.dropout(torch.relu(self.first(each)), 0.3), x, use_reentrant=False)
        return self.last(hidden)


class ActivationCheckpointing(Training):
    def build_model(self) -> nn.Module:
        return Recomputed()


class OneCycle(Training):
    def build(self) -> None:
        super().build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=EPOCHS * STEPS)


class Averaged(Training):
    """Stochastic weight averaging from epoch 1 on."""

    def build(self) -> None:
        super().build()
        self.average = AveragedModel(self.model)
        self.scheduler = SWALR(self.optimizer, swa_lr=0.005, anneal_epochs=10)

    def tracked(self) -> dict[str, Any]:
        return super().tracked() | {"average": self.average}

    def update(self, x, y):
        loss = super().update(x, y)
        if self.run.completed_steps >= STEPS:
            self.average.update_parameters(self.model)
        return loss


class AddedGroup(Training):
    """A parameter group is added in the middle of the training."""

    def build(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model[3].parameters(), lr=1e-2)
        self.batches = self.build_loader()

    def tracked(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "loader": self.batches}

    def update(self, x, y):
        if self.run.completed_steps == STEPS + 3:
            self.optimizer.add_param_group({"params": list(self.model[0].parameters()), "lr": 3e-3})
        loss = self.loss(x, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


class Counters(Training):
    """Statements everywhere around `run.step` and `run.score`, and at the top of the epoch, run exactly once."""

    save_every = 1
    keep = samestep.Keep(last=2, best=1, metric="accuracy")

    def build(self) -> None:
        super().build()
        for name in ("before_step", "after_step", "before_score", "after_score", "in_epoch"):
            setattr(self.run.state, name, 0)

    def train(self) -> None:
        state = self.run.state
        for epoch in self.run.epochs(EPOCHS):
            state.in_epoch = 0
            self.optimizer.zero_grad()
            for index, x, y in self.batches:
                loss = self.loss(x, y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                state.before_step += 1
                if self.run.completed_steps % 2:
                    self.scheduler.step()
                self.run.step(loss=loss)
                state.after_step += 1
                state.in_epoch += 1
                if self.run.completed_steps % 2:
                    self.scheduler.step()
                self.note_step(index, x, loss)
                self.ledger.note("values", self.run.completed_steps, **state.state_dict())
            self.ledger.maybe_die("behind the batches", epoch)
            state.before_score += 1
            self.run.score(accuracy=1 / (epoch + 1))
            state.after_score += 1
            self.scheduler.step()
            self.ledger.note("epoch", epoch, rates=self.rates(), **state.state_dict())
        self.note_end()


def train(kind: type[Training], directory: Path, ledger: Path, kill: Any, changes: dict[str, Any]) -> None:
    """Train in this process; the entry point of a child."""
    kind(directory, Ledger(ledger, kill), **changes).train()
