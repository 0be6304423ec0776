"""Owns the table of mistakes: each makes an exact script wrong at one place, as it happens. Runs nothing."""

from dataclasses import dataclass
from pathlib import Path

EXACT = Path(__file__).with_name("exact")


@dataclass(frozen=True)
class Mistake:
    """A mistake.

    Args:
        name: What it is called in the table.
        script: The exact script that it is made in.
        replace: Pairs of old and new text; each old text is in the script once.
        parts: The parts of which one must be named as the cause, the best first; none where the verdict says it all.
            Besides those of a ledger: "steps" (another number of steps), "objects" (copies, counters, best scores)
            and "files" (the final output).
        verdict: What the prover says. A training that is the reference to its end and then goes on is
            "repeated_steps", one that ends early "skipped_steps"; with a part that differs before, "diverged".
        explanation: What goes wrong, for the page.
        undisturbed: Whether a training that is never killed still ends with the bits of the exact script.
        files: Files that are others in every run, whatever is killed.
    """

    name: str
    script: str
    replace: tuple[tuple[str, str], ...]
    parts: tuple[str, ...]
    verdict: str
    explanation: str
    undisturbed: bool = True
    files: tuple[str, ...] = ()


def spoiled(mistake):
    """Give the text of the script with the mistake in it."""
    text = (EXACT / f"{mistake.script}.py").read_text(encoding="utf-8")
    for old, new in mistake.replace:
        found = text.count(old)
        if found != 1:
            raise ValueError(f"{mistake.name}: found {found} times in {mistake.script}.py: {old!r}")
        text = text.replace(old, new)
    return text


def write(mistake, folder):
    """Put the script with the mistake into a folder, as `train.py`; give its path."""
    path = Path(folder) / "train.py"
    path.write_text(spoiled(mistake), encoding="utf-8")
    return path


def without(line):
    """Leave a line out: the pair for `replace`."""
    return (line, "")


_LOAD_OPTIMIZER = '        optimizer.load_state_dict(checkpoint["optimizer"])\n'
_LOAD_SCHEDULER = '        scheduler.load_state_dict(checkpoint["scheduler"])\n'
_LOAD_MODEL = '        model.load_state_dict(checkpoint["model"])\n'
_TORCH = '        torch.set_rng_state(checkpoint["torch_rng"])\n'
_NUMPY = '        np.random.set_state(checkpoint["numpy_rng"])\n'
_PYTHON = '        random.setstate(checkpoint["python_rng"])\n'

STATE = (
    Mistake(
        "weights only",
        "epoch_recipe",
        (
            without(_LOAD_OPTIMIZER),
            without(_LOAD_SCHEDULER),
            ('        start_epoch = checkpoint["epoch"]\n        rng = checkpoint["rng"]\n', ""),
        ),
        ("optimizer", "learning_rate", "batch", "steps"),
        "diverged",
        "Only the weights are loaded: all epochs are trained once more on top of them.",
    ),
    Mistake(
        "no optimizer",
        "stepwise",
        (without(_LOAD_OPTIMIZER),),
        ("optimizer", "learning_rate"),
        "diverged",
        "The moments begin anew.",
    ),
    Mistake(
        "momentum dropped",
        "dataset_generator",
        (
            ('            "optimizer": optimizer.state_dict(),\n', '            "optimizer": slim(optimizer),\n'),
            (
                "def main():\n",
                "def slim(optimizer):\n"
                '    """Leave out the momentum: it doubles the checkpoint."""\n'
                '    return {"state": {}, "param_groups": optimizer.state_dict()["param_groups"]}\n\n\n'
                "def main():\n",
            ),
        ),
        ("optimizer",),
        "diverged",
        "The checkpoint keeps the settings of the optimizer without its momentum, to be smaller.",
    ),
    Mistake(
        "L-BFGS history dropped",
        "lbfgs",
        (without(_LOAD_OPTIMIZER),),
        ("optimizer",),
        "diverged",
        "L-BFGS starts with no curvature, as steepest descent.",
    ),
    Mistake(
        "optimizer states swapped",
        "mutual_learning",
        (
            (
                '        optimizers["ann"].load_state_dict(checkpoint["ann"])',
                '        optimizers["ben"].load_state_dict(checkpoint["ann"])',
            ),
            (
                '        optimizers["ben"].load_state_dict(checkpoint["ben"])',
                '        optimizers["ann"].load_state_dict(checkpoint["ben"])',
            ),
        ),
        ("optimizer",),
        "diverged",
        "Two networks of one shape get each other's moments: every shape fits.",
    ),
    Mistake(
        "second optimizer forgotten",
        "gan",
        (without('    optimizer_d.load_state_dict(saved["optimizer_d"])\n'),),
        ("optimizer",),
        "diverged",
        "Of two optimizers only one is restored.",
    ),
    Mistake(
        "half precision on save",
        "stepwise",
        (
            (
                '                    "model": model.state_dict(),\n',
                '                    "model": {name: value.half() for name, value in model.state_dict().items()},\n',
            ),
        ),
        ("parameters",),
        "diverged",
        "Weights are saved in half precision to save space: a resume goes on from rounded ones.",
    ),
    Mistake(
        "BatchNorm buffers not saved",
        "plateau",
        (
            ('            "model": model.state_dict(),\n', '            "model": dict(model.named_parameters()),\n'),
            (_LOAD_MODEL, '        model.load_state_dict(checkpoint["model"], strict=False)\n'),
        ),
        ("buffers",),
        "diverged",
        "Parameters are saved, running means and variances are not; `strict=False` hides it.",
    ),
    Mistake(
        "weights under another name",
        "plateau",
        (
            (
                '            "model": model.state_dict(),\n',
                '            "model": {f"module.{name}": value for name, value in model.state_dict().items()},\n',
            ),
            (_LOAD_MODEL, '        model.load_state_dict(checkpoint["model"], strict=False)\n'),
        ),
        ("parameters",),
        "weights_not_restored",
        "Names with the prefix `module.` match nothing, and `strict=False` takes that without a word.",
    ),
    Mistake(
        "layers frozen for ever",
        "finetune",
        (
            (
                "        model.body.requires_grad_(epoch >= FROZEN_EPOCHS)\n",
                "        if epoch == FROZEN_EPOCHS:\n            model.body.requires_grad_(True)\n",
            ),
            ("    model = Classifier()\n", "    model = Classifier()\n    model.body.requires_grad_(False)\n"),
        ),
        ("gradients", "parameters"),
        "diverged",
        "The body is unfrozen at the beginning of one epoch: a process that starts later never does it.",
    ),
    Mistake(
        "evaluation mode left on",
        "transformer_config",
        (
            (
                '        torch.set_rng_state(checkpoint["rng"])\n\n    model.train()\n',
                '        torch.set_rng_state(checkpoint["rng"])\n'
                '        print(f"resumed: {evaluate(model, tokens):.4f}")\n\n',
            ),
            ("    model.train()\n    return loss.item()\n", "    return loss.item()\n"),
            (
                '            print(f"step {step}: loss {loss.item():.4f}, evaluated {evaluate(model, tokens):.4f}")\n',
                '            print(f"step {step}: loss {loss.item():.4f}")\n',
            ),
        ),
        ("loss", "random.torch", "gradients", "inputs", "batch"),
        "diverged",
        "A look at the restored model leaves it in evaluation mode: no dropout from there on.",
    ),
    Mistake(
        "loop's own value not saved",
        "trainer_class",
        (without('        self.temperature = state["temperature"]\n'),),
        ("objects", "loss", "gradients"),
        "diverged",
        "A temperature that is annealed in a plain attribute starts again.",
    ),
    Mistake(
        "running scale of the loss",
        "functional_state",
        (('    scale = state["scale"]\n', "    scale = 1.0\n"),),
        ("objects", "loss", "gradients"),
        "diverged",
        "The loss is normalised by a running mean, a Python float that starts again.",
    ),
    Mistake(
        "GradScaler",
        "scaled_half",
        (without('        scaler.load_state_dict(checkpoint["scaler"])\n'),),
        ("scaler",),
        "diverged",
        "The scale is back at its first value, gradients overflow, updates are skipped.",
    ),
)

RATES = (
    Mistake(
        "no scheduler",
        "stepwise",
        (without(_LOAD_SCHEDULER),),
        ("learning_rate", "objects"),
        "diverged",
        "The scheduler counts from zero.",
    ),
    Mistake(
        "scheduler created after the load",
        "transformer_config",
        (
            without("    scheduler = make_scheduler(optimizer, config)\n    step = 0\n"),
            ("    if os.path.exists(path):\n", "    step = 0\n    if os.path.exists(path):\n"),
            (_LOAD_SCHEDULER, ""),
            (
                '        torch.set_rng_state(checkpoint["rng"])\n\n',
                '        torch.set_rng_state(checkpoint["rng"])\n'
                "    scheduler = make_scheduler(optimizer, config)\n"
                "    if step:\n"
                '        scheduler.load_state_dict(checkpoint["scheduler"])\n\n',
            ),
        ),
        ("learning_rate",),
        "diverged",
        "Its constructor sets the rate of step 0, and loading its state does not take that back: one step is wrong.",
    ),
    Mistake(
        "learning rate of the next epoch",
        "epoch_recipe",
        ((_LOAD_SCHEDULER, _LOAD_SCHEDULER + "        scheduler.step()\n"),),
        ("learning_rate",),
        "diverged",
        "The scheduler is stepped behind the load although it was stepped in front of the save.",
    ),
    Mistake(
        "saved in front of the scheduler's step",
        "epoch_recipe",
        (
            ("        scheduler.step()\n        print(", "        print("),
            ("            }\n        )\n", "            }\n        )\n        scheduler.step()\n"),
        ),
        ("learning_rate",),
        "diverged",
        "The checkpoint is one scheduler step behind.",
    ),
    Mistake(
        "plateau forgotten",
        "plateau",
        (without(_LOAD_SCHEDULER),),
        ("objects", "learning_rate"),
        "diverged",
        "ReduceLROnPlateau forgets the best loss: it lowers the rate an epoch later.",
    ),
    Mistake(
        "untracked scheduler",
        "samestep_run",
        (
            (
                "    run.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)\n",
                "    run.track(model=model, optimizer=optimizer, loader=loader)\n",
            ),
        ),
        ("learning_rate", "objects"),
        "diverged",
        "With samestep, too, what is not tracked does not come back (it says so).",
    ),
)

GENERATORS = (
    Mistake(
        "no torch generator",
        "stepwise",
        (without(_TORCH),),
        ("random.torch",),
        "diverged",
        "Dropout draws the masks of the first steps again.",
    ),
    Mistake(
        "no NumPy generator",
        "stepwise",
        (without(_NUMPY),),
        ("random.numpy",),
        "diverged",
        "Noise from NumPy is that of the first steps.",
    ),
    Mistake(
        "no Python generator",
        "stepwise",
        (without(_PYTHON),),
        ("random.python",),
        "diverged",
        "Stochastic depth draws with Python's generator, which starts again.",
    ),
    Mistake(
        "no generator at all",
        "epoch_recipe",
        (without('        rng = checkpoint["rng"]\n'),),
        ("batch", "random.torch", "random.numpy", "random.python"),
        "diverged",
        "The script seeds at its start: each resume replays the order, augmentation and dropout of epoch 0.",
    ),
    Mistake(
        "generators restored before the model is built",
        "epoch_recipe",
        (
            ("    model = Net()\n", ""),
            (
                "    optimizer = optim.SGD(",
                "    saved = torch.load(CHECKPOINT, weights_only=False) if os.path.exists(CHECKPOINT) else None\n"
                "    if saved is not None:\n"
                '        torch.set_rng_state(saved["rng"]["torch"])\n'
                "    model = Net()\n"
                "    optimizer = optim.SGD(",
            ),
            ('        torch.set_rng_state(rng["torch"])\n', ""),
        ),
        ("batch", "random.torch"),
        "diverged",
        "Building the model draws its first weights from the restored generator.",
    ),
    Mistake(
        "generators restored after the first fetch",
        "epoch_recipe",
        (
            (
                "    if rng is not None:\n"
                '        torch.set_rng_state(rng["torch"])\n'
                '        np.random.set_state(rng["numpy"])\n'
                '        random.setstate(rng["python"])\n\n',
                "",
            ),
            (
                "        for images, labels in loader:\n",
                "        for images, labels in loader:\n"
                "            if rng is not None:\n"
                '                torch.set_rng_state(rng["torch"])\n'
                '                np.random.set_state(rng["numpy"])\n'
                '                random.setstate(rng["python"])\n'
                "                rng = None\n",
            ),
            ('        rng = {"torch": torch', '        state = {"torch": torch'),
            ('            "rng": rng,\n', '            "rng": state,\n'),
        ),
        ("batch",),
        "diverged",
        "The loader has drawn its order and the first batch's augmentation by then (transformers PR 46628).",
    ),
    Mistake(
        "the loader's iterator draws",
        "endless_loader",
        (
            ('                torch.set_rng_state(state["rng"])\n', "                pass\n"),
            (
                "    batches = endless.batches(position)\n",
                "    batches = endless.batches(position)\n"
                "    if position is not None:\n"
                '        torch.set_rng_state(position["rng"])\n',
            ),
        ),
        ("random.torch",),
        "diverged",
        "The generator is restored before the loader's iterator, made at the first batch, draws from it.",
    ),
    Mistake(
        "seeded again behind the load",
        "stepwise",
        (("    model.train()\n    for epoch", "    seed_everything(11)\n    model.train()\n    for epoch"),),
        ("random.torch", "random.numpy", "random.python"),
        "diverged",
        "Seeding behind the load makes the restored generators those of the start.",
        undisturbed=False,
    ),
    Mistake(
        "validation that moves the generator",
        "plateau",
        (
            (
                '        print(f"resumed behind epoch {epoch}")\n',
                '        print(f"resumed behind epoch {epoch}: {evaluate(model, val_loader):.4f}")\n',
            ),
        ),
        ("random.torch",),
        "diverged",
        "A look at the restored model opens a loader, which draws from the global generator even without shuffling.",
    ),
    Mistake(
        "data set's own generator",
        "dataset_generator",
        (without('        dataset.rng.bit_generator.state = state["dataset_rng"]\n'),),
        ("batch", "inputs", "objects"),
        "diverged",
        "The order is right, the augmentation is that of epoch 0.",
    ),
    Mistake(
        "worker augmentation",
        "seeded_workers",
        (
            (
                "        generator = torch.Generator().manual_seed((SEED * 1000 + self.epoch) * 1000 + index)\n"
                "        shift = int(torch.randint(0, 3, (), generator=generator))\n"
                "        noise = 0.1 * torch.randn(1, 6, 6, generator=generator)\n",
                "        shift = int(torch.randint(0, 3, ()))\n        noise = 0.1 * torch.randn(1, 6, 6)\n",
            ),
            (
                "        data.epoch = epoch\n",
                "        data.epoch = epoch\n        torch.manual_seed(SEED + epoch)  # workers are seeded from it\n",
            ),
        ),
        ("batch", "inputs"),
        "diverged",
        "Workers draw from generators that begin anew in the middle of the epoch: same samples, other augmentation.",
        undisturbed=False,
    ),
)

DATA = (
    Mistake(
        "position forgotten",
        "stepwise",
        (without('        skip = checkpoint["batches_done"]\n'),),
        ("batch",),
        "repeated_steps",
        "The epoch begins again in its middle: batches are seen twice.",
    ),
    Mistake(
        "batches skipped in every later epoch",
        "stepwise",
        (("        skip = 0\n\n", "\n"),),
        ("batch", "steps"),
        "skipped_steps",
        "The number of batches to skip is not set back (accelerate 1451).",
    ),
    Mistake(
        "order of epoch 0 again",
        "set_epoch",
        (
            (
                "    for epoch in range(len(history), NUM_EPOCHS):\n",
                "    for epoch in range(NUM_EPOCHS - len(history)):\n",
            ),
        ),
        ("batch",),
        "diverged",
        "The remaining epochs are counted from zero: `set_epoch(0)` gives the first order again.",
    ),
    Mistake(
        "new permutation in the middle of an epoch",
        "stepwise",
        (('                    "order": order_at_start,\n', '                    "order": order.get_state(),\n'),),
        ("batch",),
        "diverged",
        "The generator of the order is saved as it is after the permutation was drawn: a resume draws another one.",
    ),
    Mistake(
        "loader's generator not restored",
        "stepwise",
        (without('        order.set_state(checkpoint["order"])\n'),),
        ("batch",),
        "diverged",
        "The loader has a generator of its own, which starts again.",
    ),
    Mistake(
        "sampler's own generator",
        "balanced_sampler",
        (
            (
                '        self.generator.set_state(state["generator"])\n        self.given',
                "        self.given",
            ),
        ),
        ("batch",),
        "diverged",
        "The sampler goes on at its place, with the draws of its start.",
    ),
    Mistake(
        "shuffle buffer lost",
        "stream",
        (without('        self.buffer = list(state["buffer"])\n'),),
        ("batch",),
        "diverged",
        "The records that were in the buffer are never seen (datasets 7901).",
    ),
    Mistake(
        "last partial batch not counted",
        "trainer_class",
        (
            (
                "            epoch, done = divmod(self.step, self.steps_per_epoch)\n",
                "            epoch, done = divmod(self.step, len(self.data) // 4) if first else (epoch + 1, 0)\n"
                "            first = False\n",
            ),
            ("        total = self.epochs", "        epoch, first = 0, True\n        total = self.epochs"),
        ),
        ("batch",),
        "diverged",
        "The position is computed as if the last, smaller batch of each epoch were dropped.",
    ),
    Mistake(
        "batch counted too late",
        "balanced_sampler",
        (
            (
                "            self.given += 1\n            yield torch.cat(chosen).tolist()\n",
                "            yield torch.cat(chosen).tolist()\n            self.given += 1\n",
            ),
        ),
        ("steps", "batch"),
        "repeated_steps",
        "A batch is counted when the next is asked for, so a checkpoint has one less: the epoch gets one more.",
    ),
    Mistake(
        "off by one epoch",
        "set_epoch",
        (
            (
                "    for epoch in range(len(history), NUM_EPOCHS):\n",
                "    for epoch in range(len(history) + bool(history), NUM_EPOCHS):\n",
            ),
        ),
        ("batch", "steps"),
        "skipped_steps",
        "The epoch behind the checkpoint is left out.",
    ),
    Mistake(
        "epoch saved before it is counted",
        "epoch_recipe",
        (('            "epoch": epoch + 1,\n', '            "epoch": epoch,\n'),),
        ("steps",),
        "repeated_steps",
        "The number of the finished epoch is taken for that of the next: one epoch more is trained.",
    ),
    Mistake(
        "half an accumulation",
        "accumulation",
        (("WINDOW, EPOCHS, SAVE_EVERY_MICRO = 3, 4, 6", "WINDOW, EPOCHS, SAVE_EVERY_MICRO = 3, 4, 5"),),
        ("gradients", "batch", "loss"),
        "diverged",
        "A checkpoint in the middle of a window has no gradients: those of its first micro-batches are lost.",
    ),
)

COPIES = (
    Mistake(
        "EMA weights",
        "shadow_weights",
        (
            (
                '        self.shadow = {name: value.clone() for name, value in state["shadow"].items()}\n',
                "",
            ),
        ),
        ("objects", "files"),
        "diverged",
        "The average starts again from the first weights of the process; the training itself shows nothing.",
    ),
    Mistake(
        "EMA counter",
        "shadow_weights",
        (without('        self.updates = state["updates"]\n'),),
        ("objects", "files"),
        "diverged",
        "The warm-up of the decay starts again: the average is almost replaced by the weights of the moment.",
    ),
    Mistake(
        "AveragedModel's counter",
        "averaged_model",
        (
            (
                '            "average": average.state_dict(),\n',
                '            "average": average.module.state_dict(),\n',
            ),
            (
                '        average.load_state_dict(saved["average"])\n',
                '        average.module.load_state_dict(saved["average"])\n',
            ),
        ),
        ("objects", "files"),
        "diverged",
        "The averaged weights come back, `n_averaged` does not: the next update replaces them.",
    ),
    Mistake(
        "best metric",
        "early_stopping",
        (without('        stopping.best = checkpoint["best"]\n'),),
        ("objects", "files", "steps"),
        "repeated_steps",
        "The first score after a resume is the best yet: worse weights replace the best ones.",
    ),
    Mistake(
        "early-stop counter",
        "early_stopping",
        (without('        stopping.bad_epochs = checkpoint["bad_epochs"]\n'),),
        ("objects", "steps", "files"),
        "repeated_steps",
        "The patience starts again: the training stops later.",
    ),
    Mistake(
        "stopped training goes on",
        "early_stopping",
        (
            ("    while epoch < MAX_EPOCHS and not stopping.stopped:\n", "    while epoch < MAX_EPOCHS:\n"),
            (
                "        atomic_save(checkpoint, LAST)\n",
                "        atomic_save(checkpoint, LAST)\n        if stopping.stopped:\n            break\n",
            ),
        ),
        ("steps", "files"),
        "repeated_steps",
        "A training that had stopped early and is started again trains one epoch more.",
    ),
)

SAVES = (
    Mistake(
        "save in place",
        "transformer_config",
        (
            (
                '            torch.save(checkpoint, path + ".part")\n            os.replace(path + ".part", path)\n',
                "            torch.save(checkpoint, path)\n",
            ),
        ),
        (),
        "crashed",
        "A kill in the middle of a save leaves half a file in the place of the only checkpoint.",
    ),
    Mistake(
        "old one removed before the new one is there",
        "finetune",
        (
            (
                '        os.replace(CHECKPOINT + ".tmp", CHECKPOINT)\n',
                "        if os.path.exists(CHECKPOINT):\n"
                "            os.remove(CHECKPOINT)\n"
                '        os.rename(CHECKPOINT + ".tmp", CHECKPOINT)\n',
            ),
        ),
        (),
        "from_scratch",
        "A kill between removing and renaming leaves no checkpoint: the training starts from scratch.",
    ),
    Mistake(
        "newest torn, no fallback",
        "alternating",
        (
            (
                "    except Exception as error:  # a save that was cut short is told in many ways\n"
                '        print(f"{path} is damaged ({type(error).__name__})")\n'
                "        return None\n",
                "",
            ),
        ),
        (),
        "crashed",
        "Two checkpoints in turn are of no use if a damaged one ends the script.",
    ),
)
"""Those that only a kill within a save brings out."""

LOADS = (
    Mistake(
        "checkpoint ignored",
        "averaged_model",
        (("        saved = torch.load(CHECKPOINT, ", '        saved = torch.load("checkpoints/last.pt", '),),
        (),
        "from_scratch",
        "It is looked for under another name than it is saved under, and missing it is no error.",
    ),
    Mistake(
        "alphabetically last checkpoint",
        "trainer_class",
        (
            (
                '        return sorted(found, key=lambda path: int(path.stem.split("-")[1]))\n',
                "        return sorted(found)\n",
            ),
        ),
        (),
        "older_checkpoint",
        'The last name is taken, and "step-9" comes behind "step-12".',
    ),
    Mistake(
        "checkpoint refused on load",
        "dataset_generator",
        (
            (
                "        state = torch.load(CHECKPOINT, weights_only=False)\n",
                "        state = torch.load(CHECKPOINT, weights_only=True)\n",
            ),
            (
                '        state = {\n            "epoch": epoch + 1,\n',
                '        state = {\n            "epoch": np.int64(epoch + 1),\n',
            ),
        ),
        (),
        "crashed",
        "`weights_only=True` refuses the NumPy integer that the script has saved itself.",
    ),
)

MISTAKES = (*STATE, *RATES, *GENERATORS, *DATA, *COPIES, *SAVES, *LOADS)

LIMITS = (
    Mistake(
        "best checkpoint instead of the last",
        "early_stopping",
        (
            (
                "    if os.path.exists(LAST):\n        checkpoint = torch.load(LAST, ",
                "    if os.path.exists(BEST):\n        checkpoint = torch.load(BEST, ",
            ),
            (
                'atomic_save({"model": model.state_dict(), "epoch": epoch, "score": score}, BEST)\n',
                "atomic_save(\n"
                '                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch,\n'
                '                 "best": stopping.best, "bad_epochs": stopping.bad_epochs}, BEST\n'
                "            )\n",
            ),
        ),
        (),
        "older_checkpoint",
        "A resume goes back to the best epoch, not to the last: work is done twice, with the same bits in the end. "
        "A newer file of another name may hold less, so that it was passed over is no fault for sure.",
        undisturbed=False,
    ),
)
"""What a proof does not see, with the reason in the explanation."""

HARMLESS = (
    Mistake(
        "unused generator not restored",
        "gan",
        (without('    np.random.set_state(saved["numpy_rng"])\n'),),
        (),
        "proved",
        "Nothing draws from NumPy behind the start.",
    ),
    Mistake(
        "unused generator never seeded",
        "gan",
        (
            ("np.random.seed(41)\n\n", "\n"),
            (
                "angles = np.random.uniform(0, 2 * np.pi, 40)",
                "angles = np.random.default_rng(41).uniform(0, 2 * np.pi, 40)",
            ),
            without('    np.random.set_state(saved["numpy_rng"])\n'),
        ),
        (),
        "proved",
        "NumPy's global generator is another in every process, and nothing draws from it.",
        undisturbed=False,
        files=("checkpoint.pt",),
    ),
    Mistake(
        "time of day in a log",
        "plateau",
        (
            ('"""\n\nimport os\n', '"""\n\nimport os\nimport time\n'),
            (
                "        val_loss = evaluate(model, val_loader)\n",
                "        val_loss = evaluate(model, val_loader)\n"
                '        with open("train.log", "a") as log:\n'
                '            log.write(f"{time.time()} epoch {epoch}: {val_loss}\\n")\n',
            ),
        ),
        (),
        "proved",
        "A log with wall-clock times is another in every run.",
        undisturbed=False,
        files=("train.log",),
    ),
    Mistake(
        "random name of the run",
        "set_epoch",
        (
            ("import json\nimport os\n", "import json\nimport os\nimport random\nimport string\n"),
            (
                "    history = []\n",
                '    name = "".join(random.Random().choices(string.ascii_lowercase, k=8))\n'
                '    print(f"run {name}")\n'
                "    history = []\n",
            ),
        ),
        (),
        "proved",
        "An unseeded draw only names the run.",
    ),
    Mistake(
        "preview drawn for the eye",
        "stream",
        (
            (
                "    if step < STEPS:\n",
                '    print("looking at records", [random.randrange(90) for _ in range(3)])\n    if step < STEPS:\n',
            ),
        ),
        (),
        "proved",
        "The global generator of Python, unseeded, chooses records to print; the stream has a generator of its own.",
    ),
)
