"""More ways to make the mistakes that training losses and loops have, and code that comes near."""

from pathlib import Path

import mlx.core as mx
import mlx.optimizers as optim
import pytest
from mlx import nn

from mlxdoctor.lint.rules.missing_in_mlx import IN_PLACE
from tests.lint.test_rules import codes
from tests.lint.tiny import TinyModel, changed, weights

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\nimport mlx.optimizers as optim\n"
LOSS = HEAD + "def loss_fn(model, batch, lengths, mask):\n"
SHIFTED = "    logits, targets = model(batch[:, :-1]), batch[:, 1:]\n"
MEAN = "    return losses.sum() / mx.maximum(mask.sum(), 1)\n"


def masked(mask: str) -> str:
    return (
        LOSS
        + SHIFTED
        + f"    mask = {mask}\n    losses = ce(logits, targets) * mask\n".replace(
            "ce(", "nn.losses.cross_entropy("
        )
        + MEAN
    )


#: The mask of shifted targets, and whether it is off.
MASKS = {
    "mx.arange(targets.shape[1])[None] < lengths[:, None]": True,
    "mx.arange(targets.shape[1])[None] < lengths[:, None] - 1": False,
    "mx.arange(1, targets.shape[1] + 1) <= lengths[:, 1:]": True,
    "mx.arange(1, targets.shape[1] + 1) < lengths[:, 1:]": False,
    "mx.arange(targets.shape[1]) <= lengths[:, None] - 1": True,
    "mx.arange(targets.shape[1]) <= lengths[:, None] - 2": False,
    "mx.arange(targets.shape[1]) < lengths[:, None] - 2": True,
    "lengths[:, None] > mx.arange(targets.shape[1])": True,
    "(mx.arange(9) >= 2) & (mx.arange(9) < lengths[:, None])": True,
    "mask[:, :-1]": True,
    "mask[:, 1:]": False,
    "targets != 0": False,
    "mx.arange(9) < target_lengths[:, None]": False,
}


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str) -> None:
    assert codes(masked(mask)) == (["mask-off-by-one"] if MASKS[mask] else [])


#: Rule -> code with its mistake, and the same without.
PAIRS: dict[str, list[tuple[str, str]]] = {
    "gradient-of-value": [
        (
            "def loss_fn(model, x):\n    return model(x).mean()\n"
            "step = nn.value_and_grad(loss_fn, model)\n",
            "def loss_fn(model, x):\n    return model(x).mean()\n"
            "step = nn.value_and_grad(model, loss_fn)\n",
        ),
        (
            "def loss_fn(model, x):\n    return model(x).mean()\n"
            "step = mx.value_and_grad(model, loss_fn)\n",
            "def loss_fn(model, x):\n    return model(x).mean()\n"
            "def make(model):\n    return lambda x: loss_fn(model, x)\n"
            "step = nn.value_and_grad(model, make(model))\n",
        ),
        (
            "def f(model, loss_fn):\n    return nn.value_and_grad(loss_fn)\n",
            "def f(model, loss_fn):\n    return nn.value_and_grad(model, mx.compile(loss_fn))\n",
        ),
    ],
    "loss-arguments": [
        (
            "class T:\n    def loss(self, x, y):\n        return self.model(x).mean() + y\n"
            "    def step(self, x, y):\n"
            "        return nn.value_and_grad(self.model, self.loss)(self.model, x, y)\n",
            "class T:\n    def loss(self, x, y):\n        return self.model(x).mean() + y\n"
            "    def step(self, x, y):\n"
            "        return nn.value_and_grad(self.model, self.loss)(x, y=y)\n",
        ),
        (
            "def step(model, x):\n    f = nn.value_and_grad(model, lambda m, x: m(x).mean())\n"
            "    return f(x)\n",
            "def step(model, x, *rest):\n    def loss(m, x, scale=1):\n"
            "        return m(x).mean() * scale\n"
            "    f = nn.value_and_grad(model, loss)\n    return f(model, x), f(*rest)\n",
        ),
        (
            "def loss(m, x, y):\n    return m(x).mean() + y\ndef step(model, x):\n"
            "    return nn.value_and_grad(model, loss)(model, x)\n",
            # Which of the two is called is decided elsewhere.
            "def make(model, short):\n    if short:\n        def loss(m, x):\n"
            "            return m(x).mean()\n        f = nn.value_and_grad(model, loss)\n"
            "        def step(x):\n            return f(model, x)\n    else:\n"
            "        def loss(m, x, y):\n            return m(x).mean() + y\n"
            "        f = nn.value_and_grad(model, loss)\n"
            "        def step(x, y):\n            return f(model, x, y)\n    return step\n",
        ),
    ],
    "probabilities-as-logits": [
        (
            "def loss(model, x, y):\n    return nn.losses.binary_cross_entropy("
            "mx.sigmoid(model(x)).squeeze(), y)\n",
            "def loss(model, x, y):\n    return nn.losses.binary_cross_entropy("
            "mx.sigmoid(model(x)).squeeze(), y, with_logits=False)\n",
        ),
        (
            "class Net(nn.Module):\n    def __call__(self, x):\n"
            "        return nn.softmax(self.head(x), axis=-1)\n"
            "def loss(model, x, y):\n    return nn.losses.cross_entropy(model(x), y).mean()\n",
            "class Net(nn.Module):\n    def __call__(self, x):\n        return self.head(x)\n"
            "def loss(model, x, y):\n    return nn.losses.cross_entropy(model(x), y).mean()\n",
        ),
        (
            "def loss(student, teacher, x):\n    return nn.losses.kl_div_loss("
            "mx.softmax(student(x)), mx.softmax(teacher(x)), reduction='mean')\n",
            # The targets of a cross-entropy are probabilities.
            "def loss(student, teacher, x):\n    return nn.losses.cross_entropy("
            "student(x), mx.softmax(teacher(x), axis=-1), reduction='mean')\n",
        ),
    ],
    "advantage-with-gradient": [
        (
            "def loss(model, x, rewards):\n    log_probs = score(model, x)\n"
            "    kl = (log_probs - reference(x)).sum(-1)\n"
            "    returns = (rewards - 0.1 * kl)[:, None]\n"
            "    return -(returns * log_probs).mean()\n",
            "def loss(model, x, rewards):\n    log_probs = score(model, x)\n"
            "    kl = mx.stop_gradient((log_probs - reference(x)).sum(-1))\n"
            "    returns = (rewards - 0.1 * kl)[:, None]\n"
            "    return -(returns * log_probs).mean()\n",
        ),
        (
            "def loss(logps, ref_logps, rewards):\n    advantages = rewards - (logps - ref_logps)\n"
            "    advantages = advantages - advantages.mean()\n"
            "    return -(advantages * logps).sum()\n",
            "def loss(logps, ref_logps, rewards):\n    n = logps.shape[0]\n"
            "    advantages = rewards.reshape(n) - rewards.mean()\n"
            "    return -(advantages * mx.exp(logps - ref_logps)).sum()\n",
        ),
    ],
    "result-dropped": [
        (
            "def step(model, optimizer, grads):\n    optimizer.apply_gradients(grads, model)\n",
            "def step(model, optimizer, grads):\n"
            "    model.update(optimizer.apply_gradients(grads, model))\n",
        ),
        (
            "def f(x):\n    mx.stop_gradient(x)\n    return x\n",
            "def f(x):\n    return mx.eval(x)\n",
        ),
    ],
    "loss-not-scalar": [
        (
            "def loss_fn(model, x, y):\n    ce = nn.losses.cross_entropy(model(x), y)\n"
            "    return ce, y.size\nstep = nn.value_and_grad(model, loss_fn)\n",
            "def loss_fn(model, x, y):\n    ce = nn.losses.cross_entropy(model(x), y)\n"
            "    return ce.mean(), y.size\nstep = nn.value_and_grad(model, loss_fn)\n",
        ),
        (
            "step = nn.value_and_grad(model, lambda m, x, y: "
            "nn.losses.cross_entropy(m(x), y, reduction='none'))\n",
            "step = nn.value_and_grad(model, lambda m, x, y: nn.losses.mse_loss(m(x), y))\n",
        ),
    ],
    "ignored-label": [
        (
            "def loss(model, x, labels):\n"
            "    return nn.losses.cross_entropy(model(x), labels, ignore_index=-100).mean()\n",
            "def rows(p, a):\n    return [-100] * len(p) + a\ndef loss(model, x, labels, mask):\n"
            "    return (nn.losses.cross_entropy(model(x), labels) * mask).mean()\n",
        ),
        (
            "def rows(p, a):\n    return [-100] * (len(p) - 1) + a\n"
            "def loss(model, x, labels):\n    targets = labels[:, 1:]\n"
            "    return nn.losses.cross_entropy(model(x), targets, reduction='mean')\n",
            "IGNORED = -100\ndef rows(p, a):\n    return [IGNORED] * (len(p) - 1) + a\n"
            "def loss(model, x, labels):\n    return ours(labels, IGNORED) + "
            "nn.losses.cross_entropy(model(x), labels, reduction='mean')\n",
        ),
    ],
    "compiled-without-state": [
        (
            "step = mx.compile(nn.value_and_grad(model, loss_fn))\n",
            "step = mx.compile(nn.value_and_grad(model, loss_fn), inputs=model.state)\n",
        ),
        (
            "class T:\n    def __init__(self):\n        self.step = mx.compile(self._step)\n"
            "    def _step(self, x):\n        loss, grads = self.gradient(x)\n"
            "        self.optimizer.update(self.model, grads)\n        return loss\n",
            "def loss(logps, mask):\n    return (logps * mask).sum()\nfast = mx.compile(loss)\n"
            "params = {}\n@mx.compile\ndef add(x):\n    return x + 1\n",
        ),
    ],
    "optimizer-remade": [
        (
            "def train(model, step, batches):\n    for epoch in range(3):\n"
            "        for x in batches:\n            opt = optim.AdamW(1e-4)\n"
            "            loss, grads = step(x)\n            opt.update(model, grads)\n"
            "            mx.eval(model.parameters())\n",
            # A new one for each model that is trained.
            "def train(models, step, batches):\n    for model in models:\n"
            "        opt = optim.AdamW(1e-4)\n        for x in batches:\n"
            "            loss, grads = step(x)\n            opt.update(model, grads)\n"
            "            mx.eval(model.parameters())\n",
        ),
    ],
    "schedule-unused": [
        (
            "def make(steps):\n    warm = optim.linear_schedule(0, 1e-4, 10)\n"
            "    rate = optim.join_schedules([warm, optim.cosine_decay(1e-4, steps)], [10])\n"
            "    return optim.Adam(1e-4)\n",
            "def make(steps):\n    warm = optim.linear_schedule(0, 1e-4, 10)\n"
            "    rate = optim.join_schedules([warm, optim.cosine_decay(1e-4, steps)], [10])\n"
            "    return optim.Adam(learning_rate=rate)\n",
        ),
    ],
    "batches-used-up": [
        (
            "def train(rows, epochs):\n    batches = (mx.array(one) for one in rows)\n"
            "    for epoch in range(epochs):\n        for x in batches:\n"
            "            optimizer.update(model, mx.eval(step(x)))\n",
            "def train(rows, epochs):\n    batches = [mx.array(one) for one in rows]\n"
            "    for epoch in range(epochs):\n        for x in batches:\n            work(x)\n",
        ),
    ],
    "missing-in-mlx": [
        ("with mx.no_grad():\n    pass\n", "if hasattr(mx, 'no_grad'):\n    mx.no_grad()\n"),
        ("layers = nn.ModuleList([nn.Linear(2, 2)])\n", "layers = [nn.Linear(2, 2)]\n"),
        ("from mlx.nn import functional as F\n", "from mlx.nn import losses as F\n"),
    ],
    "coefficient-unused": [
        (
            "class T:\n    def __init__(self, model, opt, kl_coef):\n"
            "        self.model, self.opt = model, opt\n        self.kl_coef = kl_coef\n"
            "    def step(self, x):\n"
            "        loss, g = nn.value_and_grad(self.model, lambda m: m(x).mean())(self.model)\n"
            "        self.opt.update(self.model, g)\n",
            "class T:\n    def __init__(self, model, opt, kl_coef):\n"
            "        self.model, self.opt = model, opt\n        self.kl_coef = kl_coef\n"
            "    def step(self, x):\n        c = self.kl_coef\n"
            "        f = nn.value_and_grad(self.model, lambda m: c * m(x).mean())\n"
            "        loss, g = f(self.model)\n"
            "        self.opt.update(self.model, g)\n",
        ),
        (
            "class Trainer:\n    def __init__(self, c):\n        self.max_grad_norm = c.norm\n"
            "    def step(self, x):\n        loss, g = nn.value_and_grad(self.model, f)(x)\n"
            "        self.optimizer.update(self.model, g)\n",
            # What gets the trainer may use it.
            "class Trainer:\n    def __init__(self, c):\n        self.max_grad_norm = c.norm\n"
            "    def step(self, x):\n        loss, g = nn.value_and_grad(self.model, f)(self, x)\n"
            "        self.optimizer.update(self.model, g)\n",
        ),
    ],
    "adapter-without-layers": [
        (
            "from mlx_lm import load\ndef f(path):\n    model, tok = load(path)\n"
            "    model.load_weights('adapters.npz')\n    return model\n",
            "from mlx_lm import load\nfrom ours import to_lora\ndef f(path):\n"
            "    model, tok = load(path)\n    to_lora(model)\n"
            "    model.load_weights('adapters.npz')\n    return model\n",
        ),
    ],
    "accumulation-boundary": [
        (
            "def train(model, optimizer, f, batches, n):\n    total = 0\n"
            "    for i, x in enumerate(batches):\n        loss, g = f(x)\n"
            "        if mx.isnan(loss):\n            continue\n        total = add(total, g)\n"
            "        if (i + 1) % n == 0:\n            optimizer.update(model, total)\n"
            "            mx.eval(model.parameters())\n            total = 0\n",
            # A resumed run skips what it has made already.
            "def train(model, optimizer, f, batches, n, done):\n    total = 0\n"
            "    for i, x in enumerate(batches):\n        if i < done:\n            continue\n"
            "        loss, g = f(x)\n        total = add(total, g)\n"
            "        if (i + 1) % n == 0:\n            optimizer.update(model, total)\n"
            "            mx.eval(model.parameters())\n            total = 0\n",
        ),
        (
            "def train(model, optimizer, f, batches, n):\n    total = 0\n"
            "    for i, x in enumerate(batches):\n        loss, g = f(x)\n"
            "        total = add(total, g)\n        if (i + 1) % n == 0:\n"
            "            optimizer.update(model, total)\n"
            "            mx.eval(model.parameters())\n",
            "def train(model, optimizer, f, batches, n):\n"
            "    for i, x in enumerate(batches):\n        loss, g = f(x)\n"
            "        if (i + 1) % n == 0:\n            optimizer.update(model, g)\n"
            "            mx.eval(model.parameters())\n",
        ),
    ],
    "saved-nested": [
        (
            "def save(model):\n    weights = model.parameters()\n"
            "    mx.savez('w.npz', **weights)\n",
            "from mlx.utils import tree_flatten\ndef save(model):\n"
            "    mx.savez('w.npz', **dict(tree_flatten(model.parameters())))\n",
        ),
    ],
    "flat-update": [
        (
            "from mlx.utils import tree_flatten\ndef step(model, opt, f, x):\n"
            "    loss, grads = nn.value_and_grad(model, f)(model, x)\n"
            "    opt.update(model, dict(tree_flatten(grads)))\n",
            "def load(model, path):\n    weights = mx.load(path)\n"
            "    print(weights['scale'])\n    model.update(weights)\n",
        ),
    ],
    "own-reference": [
        (
            "def step(model, x):\n    def loss(model):\n        logps = score(model, x)\n"
            "        ref_logps = logps\n        return (logps - ref_logps).mean()\n"
            "    return nn.value_and_grad(model, loss)(model)\n",
            "def step(model, ref_model, x):\n    def loss(model):\n"
            "        logps = score(model, x)\n        ref_logps = score(ref_model, x)\n"
            "        return (logps - ref_logps).mean()\n"
            "    return nn.value_and_grad(model, loss)(model)\n",
        ),
    ],
    "loss-rebuilt": [
        (
            "def loss(model, x):\n    values = [float(model(one).mean()) for one in x]\n"
            "    return mx.array(sum(values) / len(values)), len(x)\n"
            "f = nn.value_and_grad(model, loss)\n",
            # An array of arrays keeps their gradients; a count has none to keep.
            "def loss(model, x):\n    values = [model(one).mean() for one in x]\n"
            "    return mx.array(values).mean(), mx.array(float(len(x)))\n"
            "f = nn.value_and_grad(model, loss)\n",
        ),
    ],
    "results-swapped": [
        (
            "def train(model, opt, loss_fn, rows):\n    f = nn.value_and_grad(model, loss_fn)\n"
            "    gradients, value = f(model, rows)\n    opt.update(model, gradients)\n",
            "def train(model, opt, loss_fn, rows):\n    f = nn.value_and_grad(model, loss_fn)\n"
            "    value, gradients = f(model, rows)\n    opt.update(model, gradients)\n",
        ),
    ],
    "answer-without-context": [
        (
            "def generate(self, ids):\n    y = mx.argmax(self.model(ids)[:, -1], -1)\n"
            "    while True:\n        yield y\n        logits = self.model(y[:, None])\n"
            "        y = mx.random.categorical(logits[:, -1])\n",
            "def generate(self, ids, cache):\n    y = mx.argmax(self.model(ids)[:, -1], -1)\n"
            "    while True:\n        yield y\n        logits = self.model(y[:, None], cache)\n"
            "        y = mx.random.categorical(logits[:, -1])\n",
        ),
        (
            "def generate(model, ids):\n    for _ in range(9):\n"
            "        token = mx.argmax(out[:, -1])\n        out = model(token[None, None])\n",
            "def generate(model, ids):\n    for _ in range(9):\n"
            "        token = mx.argmax(model(ids)[:, -1])\n"
            "        ids = mx.concatenate([ids, token[None, None]], axis=1)\n"
            "        out = model(ids)\n",
        ),
    ],
    "evaluation-in-train-mode": [
        (
            "def train(model, optimizer, f, batches):\n    step = nn.value_and_grad(model, f)\n"
            "    for i, x in enumerate(batches):\n        loss, g = step(x)\n"
            "        optimizer.update(model, g)\n        if i % 10 == 0:\n"
            "            model.eval()\n            print(validate(model))\n",
            "def train(model, optimizer, f, batches):\n    step = nn.value_and_grad(model, f)\n"
            "    for i, x in enumerate(batches):\n        model.train()\n"
            "        loss, g = step(x)\n"
            "        optimizer.update(model, g)\n        if i % 10 == 0:\n"
            "            model.eval()\n            print(validate(model))\n",
        ),
    ],
}


@pytest.mark.parametrize(
    ("code", "place"),
    [(code, place) for code, pairs in PAIRS.items() for place in range(len(pairs))],
)
def test_the_mistake_in_other_words_and_code_that_comes_near(code: str, place: int) -> None:
    wrong, right = PAIRS[code][place]
    assert codes(HEAD + wrong) == [code]
    assert codes(HEAD + right) == []


def test_the_names_are_missing_in_mlx_indeed() -> None:
    modules = {"mlx.core": mx, "mlx.nn": nn, "mlx.optimizers": optim, "mlx.nn.utils": nn.utils}
    for name in IN_PLACE:
        module, _, last = name.rpartition(".")
        assert not hasattr(modules[module], last), name


def test_weights_of_an_adapter_are_left_out_in_silence(tmp_path: Path) -> None:
    model, path = TinyModel(), str(tmp_path / "adapters.safetensors")
    before = weights(model)
    mx.save_safetensors(path, {"layers.0.v_proj.lora_b": mx.ones((2, 8))})
    model.load_weights(path, strict=False)
    assert changed(model, before) == set()


#: The mistakes of five trainers whose failures were written up, in other words.
AS_WRITTEN_UP: dict[str, tuple[str, str]] = {
    "a stub that sets a flag": (
        "adapter-flag",
        "from shared import *\nclass Adapters:\n    def attach(self, model, config):\n"
        "        model._has_adapter = True\n        return model\n"
        "def count(model):\n    return mx.array(len(model.layers))\n",
    ),
    "training before there is an adapter": (
        "adapter-never-made",
        "from mlx.utils import tree_flatten\nfrom mlx_lm import load\n"
        "model, tokenizer = load('base')\nopt = optim.Adam(1e-4)\n"
        "f = nn.value_and_grad(model, loss_fn)\nfor x in rows():\n    loss, g = f(x)\n"
        "    opt.update(model, g)\n    mx.eval(model.parameters(), opt.state)\n"
        "mx.save_safetensors('adapters.safetensors', "
        "dict(tree_flatten(model.trainable_parameters())))\n",
    ),
    "layers looked for where there are none": (
        "module-dict-walk",
        "def convert(part):\n    for name, child in part.__dict__.items():\n"
        "        if isinstance(child, nn.Linear):\n            setattr(part, name, lora(child))\n",
    ),
    "gradients kept by their outermost names": (
        "outermost-name-filter",
        "def step(model, opt, f, x):\n    loss, grads = nn.value_and_grad(model, f)(model, x)\n"
        "    opt.update(model, {k: g for k, g in grads.items() if 'lora_a' in k})\n",
    ),
    "forward, as in another framework": (
        "forward-method",
        "def train(model, opt, rows):\n    def loss_fn(model, row):\n"
        "        return model.forward(row).mean()\n    f = mx.value_and_grad(loss_fn)\n"
        "    for row in rows:\n        loss, g = f(model, row)\n        opt.update(model, g)\n"
        "        mx.eval(model.parameters())\n",
    ),
    "a dict of parameters called": (
        "parameters-as-model",
        "def step(model, rows):\n"
        "    return mx.value_and_grad(lambda p: p.forward(rows))(model.parameters())\n",
    ),
    "a gradient by all of a model with an adapter": (
        "gradient-of-module",
        "class LoRATrainer:\n    def __init__(self, model, config):\n"
        "        self.model = with_lora(model, config)\n"
        "        self.gradient = mx.value_and_grad(self.loss_fn)\n"
        "    def loss_fn(self, model, batch):\n        return self.score(model, batch)\n"
        "    def step(self, batch):\n        loss, grads = self.gradient(self.model, batch)\n"
        "        self.optimizer.update(self.model, grads)\n"
        "        mx.eval(self.model.parameters())\n",
    ),
    "a step as in another framework": (
        "torch-idiom",
        "def step(model, opt, loss_fn, x):\n    loss = loss_fn(model(x))\n    loss.backward()\n"
        "    opt.step()\n",
    ),
    "an answer token ignored too many": (
        "unshifted-targets",
        "def rows(p, answer):\n    inputs = p + answer[:-1]\n"
        "    labels = [-100] * len(p) + answer\n    return mx.array(inputs), mx.array(labels)\n",
    ),
    "the batch differentiated by": (
        "gradient-of-inputs",
        "class T:\n    def loss(self, ids, labels):\n        return self.score(self.model(ids))\n"
        "    def step(self, ids, labels):\n"
        "        loss, grads = mx.value_and_grad(self.loss)(ids, labels)\n"
        "        self.optimizer.update(self.model, grads)\n",
    ),
    "parameters that the loss never reads": (
        "gradient-of-unused",
        "class T:\n    def step(self, batch):\n        def loss_fn(params, batch):\n"
        "            return self.model(batch).mean()\n"
        "        p = self.model.trainable_parameters()\n"
        "        return mx.value_and_grad(loss_fn)(p, batch)\n",
    ),
    "pairs counted as arrays": (
        "flattened-as-arrays",
        "from mlx.utils import tree_flatten\ndef count(p):\n    n = 0\n"
        "    for one in tree_flatten(p):\n        if isinstance(one, mx.array):\n"
        "            n += one.size\n    return n\n",
    ),
    "channels where the length belongs": (
        "channels-first",
        "class E(nn.Module):\n    def __init__(self):\n        self.conv = nn.Conv1d(4, 8, 3)\n"
        "    def __call__(self, x):\n        # x: [batch, channels, time]\n"
        "        return nn.relu(self.conv(x))\n",
    ),
}


@pytest.mark.parametrize("name", AS_WRITTEN_UP)
def test_what_was_written_up_is_found(name: str) -> None:
    code, text = AS_WRITTEN_UP[name]
    head = "" if text.startswith("from shared") else HEAD
    assert code in codes(head + text)
