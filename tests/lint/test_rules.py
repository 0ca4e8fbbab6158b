"""Every rule by its own examples, near misses, and the code it must not disturb."""

from pathlib import Path

import mlx_lm
import pytest

from mlxdoctor.lint.linter import Hit, lint, lint_source
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Rule, rules

ROOT = Path(__file__).parents[2]


def hits(text: str) -> list[Hit]:
    if "import mlx" not in text and "from mlx" not in text:
        # Files that do not use MLX are left alone.
        text = f"import mlx.core\n{text}"
    return lint_source(SourceFile.parse(text, Path("train.py")), rules())


def codes(text: str) -> list[str]:
    return [hit.code for hit in hits(text)]


@pytest.mark.parametrize("rule", rules(), ids=lambda one: one.code)
def test_the_bad_example_is_hit_and_the_good_one_is_not(rule: Rule) -> None:
    assert codes(rule.bad) == [rule.code]
    assert codes(rule.good) == []


@pytest.mark.parametrize("rule", rules(), ids=lambda one: one.code)
def test_every_rule_is_documented(rule: Rule) -> None:
    assert rule.title.endswith(".")
    assert len(rule.documentation) > 100


#: Code that is right, and comes near a rule.
NEAR: dict[str, str] = {
    "everything is trained, and that is meant": """
import mlx.core as mx
def loss(model, x):
    return model(x).sum()
value, grads = mx.value_and_grad(loss)(model, x)
""",
    "arrays, not a module": """
import mlx.core as mx
def loss(w, x):
    return (w * x).sum()
grads = mx.grad(loss)(w, x)
""",
    "the model is another parameter": """
import mlx.core as mx
def loss(w, model, x):
    return model(x * w).sum()
value, grads = mx.value_and_grad(loss)(w, model, x)
""",
    "a bound method of arrays": """
import mlx.core as mx
class T:
    def loss(self, params, x):
        return (params["w"] * x).sum()
    def step(self, params, x):
        return mx.value_and_grad(self.loss)(params, x)
""",
    "pairs taken apart below": """
from mlx.utils import tree_flatten
for pair in tree_flatten(grads):
    name, grad = pair
""",
    "flattened into a dict": """
from mlx.utils import tree_flatten
for name in tree_flatten(grads, destination={}):
    print(name.size)
""",
    "another tree_flatten": """
from jax.tree_util import tree_flatten
leaves, treedef = tree_flatten(params)
""",
    "frozen and partly unfrozen after": """
from mlx_lm.tuner.utils import linear_to_lora_layers
def prepare(model, p):
    linear_to_lora_layers(model, 4, p)
    model.freeze()
    model.unfreeze(keys=["lora_a", "lora_b"], strict=False)
""",
    "frozen, and its adapters unfrozen one by one": """
from mlx_lm.tuner import linear_to_lora_layers
def prepare(model, p):
    linear_to_lora_layers(model, 4, p)
    model.freeze()
    def unfreeze(name, module):
        if hasattr(module, "lora_a"):
            module.unfreeze(keys=["lora_a", "lora_b"])
    model.apply_to_modules(unfreeze)
""",
    "converted or frozen": """
from mlx_lm.tuner import linear_to_lora_layers
def prepare(model, p, lora):
    if lora:
        linear_to_lora_layers(model, 4, p)
    else:
        model.freeze()
""",
    "frozen by a function of another file": """
import mlx.optimizers as optim
from mlx_lm import load
from mlx_lm.tuner import linear_to_lora_layers
from ours import freeze_base
def prepare(path, p):
    model, tokenizer = load(path)
    freeze_base(model)
    linear_to_lora_layers(model, 4, p)
    return model, optim.Adam(1e-5)
""",
    "frozen in a helper": """
import mlx.optimizers as optim
from mlx_lm import load
from mlx_lm.tuner import linear_to_lora_layers
def freeze_base(model):
    model.freeze()
def prepare(path, p):
    model, tokenizer = load(path)
    freeze_base(model)
    linear_to_lora_layers(model, 4, p)
    return model, optim.Adam(1e-5)
""",
    "an adapter that is attached later": """
import mlx.core as mx
class Wrapper:
    def get_peft_model(self, rank):
        self.lora_config = {"r": rank}
        self.lora_enabled = True
        self.model._lora_applied = True
    def prepare(self):
        if self.model._lora_applied:
            return
        attach_lora(self.model, self.lora_config)
""",
    "an adapter that a function brought": """
import mlx.core as mx
from ours import build
def add(path):
    model = build(path)
    model._has_adapter = True
""",
    "an adapter that load brought": """
from mlx_lm import load
def tool(agent):
    agent.model, agent.tokenizer = load("base", adapter_path="adapters")
    agent.model.has_adapter = True
""",
    "a model handed on before it is flagged": """
import mlx.core as mx
from ours import prepare
def add(model):
    prepare(model)
    model._has_adapter = True
""",
    "alpha that was divided above": """
from mlx_lm.tuner.lora import LoRALinear
def convert(linear, lora_alpha, r):
    alpha_scale = lora_alpha / r if r > 0 else 1.0
    lora_alpha = lora_alpha / r
    return LoRALinear.from_base(linear, r=r, scale=lora_alpha)
""",
    "a scale that has nothing to do with LoRA": """
import mlx.core as mx
def noise(alpha):
    return mx.random.normal((2,), scale=alpha)
""",
    "a mask asked before": """
import mlx.core as mx
def loss(losses, mask):
    if not mask.any():
        return mx.array(0.0)
    n = mask.sum()
    return (losses * mask).sum() / n
""",
    "a count with a floor": """
import mlx.core as mx
def loss(losses, mask):
    n = mask.sum()
    n = mx.maximum(n, 1)
    return (losses * mask).sum() / n
""",
    "a choice": """
import mlx.core as mx
def loss(losses, mask):
    n = mask.sum()
    return (losses * mask).sum() / n if n > 0 else losses.sum()
""",
    "a choice of the divisor": """
import mlx.core as mx
def loss(losses, mask):
    n = mx.where(mask.sum() > 0, mask.sum(), 1)
    return (losses * mask).sum() / n
""",
    "hidden states that are pooled": """
import mlx.core as mx
def pool(states, mask):
    return mx.sum(states * mask, axis=1) / mx.sum(mask, axis=1)
""",
    "a mean in torch beside mlx": """
import mlx.core as mx
import torch
def loss(losses, mask):
    losses = torch.relu(losses)
    return (losses * mask).sum() / mask.sum()
""",
    "names compared one by one": """
import mlx.core as mx
def load_adapter(model, path, params):
    weights = mx.load(path)
    errors = [name for name in weights if name not in params]
    if errors:
        raise ValueError(errors)
    model.load_weights(list(weights.items()), strict=False)
""",
    "weights put back where they were": """
import mlx.core as mx
from mlx.utils import tree_flatten
class Trainer:
    def __init__(self, model):
        self.checkpoint = dict(tree_flatten(model.trainable_parameters()))
    def restore(self, model):
        model.load_weights(list(self.checkpoint.items()), strict=False)
""",
    "a published model whose weights are renamed": """
import mlx.core as mx
def from_pretrained(model, path):
    model.load_weights(list(model.sanitize(mx.load(path)).items()), strict=False)
""",
    "autograd of the project's own": """
import mlx.core as mx
from .autograd import Tensor
def step(loss):
    loss.backward()
""",
    "another model's layers by __dict__, and dicts too": """
import mlx.nn as nn
def walk(obj):
    if isinstance(obj, dict):
        for child in obj.values():
            walk(child)
    elif isinstance(obj, nn.Module):
        for name, child in vars(obj).items():
            if isinstance(child, nn.Module):
                walk(child)
""",
    "one position of many channels": """
import mlx.nn as nn
class E(nn.Module):
    def __init__(self, width):
        self.conv = nn.Conv1d(width, width, 3)
    def __call__(self, x):
        return self.conv(x[:, None, :])
""",
    "a masked language model": """
import mlx.nn as nn
def mlm_loss(model, tokens):
    return nn.losses.cross_entropy(model(tokens), tokens).mean()
""",
    "a pair's second part": """
from mlx.utils import tree_flatten
value = tree_flatten(params)[1][1]
""",
    "evaluated around an inner loop": """
import mlx.core as mx
def train(model, optimizer, step, epochs, batches):
    for epoch in range(epochs):
        for batch in batches:
            loss, grads = step(model, batch)
            optimizer.update(model, grads)
        mx.eval(model.parameters())
""",
    "another model is frozen": """
from mlx_lm.tuner.utils import linear_to_lora_layers
def prepare(model, teacher, p):
    model.freeze()
    linear_to_lora_layers(model, 4, p)
    teacher.freeze()
""",
    "an adapter for inference": """
from mlx_lm import load
from mlx_lm.tuner.utils import linear_to_lora_layers
def load_tuned(path, p):
    model, tokenizer = load(path)
    linear_to_lora_layers(model, 4, p)
    model.load_weights("adapters.safetensors")
    return model
""",
    "the model was frozen elsewhere": """
import mlx.optimizers as optim
from mlx_lm.tuner.utils import linear_to_lora_layers
def prepare(model, p):
    linear_to_lora_layers(model, 4, p)
    return optim.Adam(1e-5)
""",
    "flat names have lora in them": """
from mlx.utils import tree_flatten
def lora_only(grads):
    flat = dict(tree_flatten(grads))
    return {name: grad for name, grad in flat.items() if "lora" in name}
""",
    "a flag after a conversion": """
def add_adapter(model, layers):
    inject_lora(model, layers)
    model.has_adapter = True
""",
    "a flag that says no": """
def reset(model):
    model.has_adapter = False
""",
    "a guarded mean": """
import mlx.core as mx
def loss(losses, mask):
    count = mask.sum()
    if count == 0:
        return mx.array(0.0)
    return (losses * mask).sum() / count
""",
    "a mean over something else": """
def average(losses, weights):
    return losses.sum() / weights.sum()
""",
    "one shift in variables": """
import mlx.nn as nn
def loss(model, batch):
    inputs = batch[:, :-1]
    targets = batch[:, 1:]
    logits = model(inputs)
    return nn.losses.cross_entropy(logits, targets).mean()
""",
    "one shift of the logits": """
import mlx.nn as nn
def loss(model, tokens):
    logits = model(tokens)
    return nn.losses.cross_entropy(logits[:, :-1], tokens[:, 1:]).mean()
""",
    "labels that come from elsewhere": """
import mlx.nn as nn
def loss(model, inputs, labels):
    return nn.losses.cross_entropy(model(inputs), labels).mean()
""",
    "one ignored fewer": """
def rows(prompt, answer):
    inputs = prompt + answer[:-1]
    targets = [-100] * (len(prompt) - 1) + answer
    return inputs, targets
""",
    "the loss is read in the loop": """
def train(model, optimizer, step, batches):
    for batch in batches:
        loss, grads = step(model, batch)
        optimizer.update(model, grads)
        print(loss.item())
""",
    "evaluated in a function of the file": """
import mlx.core as mx
def finish(model, optimizer):
    mx.eval(model.parameters(), optimizer.state)
def train(model, optimizer, step, batches):
    for batch in batches:
        loss, grads = step(model, batch)
        optimizer.update(model, grads)
        finish(model, optimizer)
""",
    "updates of a dict in a loop": """
def merge(rows):
    options = {}
    for row in rows:
        options.update(row)
""",
    "alpha over the rank": """
from mlx_lm.tuner.lora import LoRALinear
layer = LoRALinear.from_base(linear, r=rank, scale=alpha / rank)
""",
    "strict and compared": """
def resume(model, weights, wanted):
    if weights.keys() != wanted.keys():
        raise ValueError
    model.load_weights(list(weights.items()), strict=False)
""",
    "a channel axis at the end": """
import mlx.nn as nn
class E(nn.Module):
    def __init__(self):
        self.conv = nn.Conv1d(1, 4, 3)
    def __call__(self, x):
        return self.conv(x[..., None])
""",
    "parameters put into the model": """
import mlx.core as mx
def step(model, batch):
    def inner(params, batch):
        model.update(params)
        return model(batch).mean()
    return mx.value_and_grad(inner)(model.trainable_parameters(), batch)
""",
    "parameters asked as a dict": """
import mlx.core as mx
def step(model, batch):
    def inner(params, batch):
        return sum(v.sum() for v in params.values()) + params["head"]["weight"].sum()
    return mx.value_and_grad(inner)(model.parameters(), batch)
""",
    "a loss that is handed in, by the model": """
import mlx.nn as nn
def train(model, optimizer, batch, compute_loss):
    loss, grads = nn.value_and_grad(model, compute_loss)(model, batch)
    optimizer.update(model, grads)
""",
    "torch beside mlx": """
import torch
import mlx.core as mx
def compare(loss):
    loss.backward()
""",
    "backward with an argument": """
import mlx.core as mx
def walk(tree, node):
    return tree.backward(node)
""",
    "a walk that is returned": """
def find(tree, path, value):
    found = tree
    for part in path:
        found = found[part]
    return found
""",
    "a walk whose end is set": """
def set_in(tree, path, value):
    found = tree
    for part in path[:-1]:
        found = found[part]
    found[path[-1]] = value
""",
    "gradients by the input for their own sake": """
import mlx.core as mx
def saliency(model, image, label):
    def score(image):
        return model(image)[label]
    value, grads = mx.value_and_grad(score)(image)
    return grads
""",
    "channels that are moved": """
import mlx.core as mx
import mlx.nn as nn
class E(nn.Module):
    def __init__(self):
        self.conv = nn.Conv1d(1, 4, 3)
    def __call__(self, x):
        \"\"\"x: [batch, channels, length]\"\"\"
        x = mx.swapaxes(x, 1, 2)
        return self.conv(x)
""",
    "channels said to be last": """
import mlx.nn as nn
class E(nn.Module):
    def __init__(self):
        self.conv = nn.Conv1d(1, 4, 3)
    def __call__(self, x):
        # x: (batch, length, channels)
        return self.conv(x)
""",
    "full fine-tuning that says so": """
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx_lm import load
def main(loss_fn, batch):
    model, tokenizer = load("base")
    optimizer = optim.AdamW(learning_rate=1e-5)
    loss, grads = nn.value_and_grad(model, loss_fn)(model, batch)
    optimizer.update(model, grads)
    mx.save_safetensors("model.safetensors", dict(tree_flatten(model.parameters())))
""",
    "an adapter that a helper attaches": """
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx_lm import load
from ours import setup_model
def main(loss_fn, batch):
    model, tokenizer = load("base")
    setup_model(model)
    optimizer = optim.AdamW(learning_rate=1e-5)
    loss, grads = nn.value_and_grad(model, loss_fn)(model, batch)
    optimizer.update(model, grads)
    weights = dict(tree_flatten(model.trainable_parameters()))
    mx.save_safetensors("adapters.safetensors", weights)
""",
    "vars of a plain object": """
def show(options):
    return {name: value for name, value in vars(options).items()}
""",
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses(name: str) -> None:
    assert codes(NEAR[name]) == []


#: More ways to make the same mistakes.
ALSO: dict[str, tuple[str, str]] = {
    "frozen in a helper after it": (
        "freeze-after-adapter",
        "import mlx_lm.tuner.utils as tu\nclass T:\n    def attach(self, n, p):\n"
        "        tu.linear_to_lora_layers(self.model, n, p)\n    def setup(self, n, p):\n"
        "        self.attach(n, p)\n        self.model.freeze()\n",
    ),
    "never frozen, by a re-export": (
        "adapter-without-freeze",
        "import mlx.optimizers as optim\nfrom mlx_lm import utils\n"
        "from mlx_lm.tuner import linear_to_lora_layers as convert\n"
        "def main(p):\n    loaded = utils.load('m')\n    model = loaded[0]\n"
        "    convert(model, 4, p)\n    return optim.Adam(1e-5)\n",
    ),
    "logits unpacked and cast": (
        "unshifted-targets",
        "import mlx.core as mx\nfrom mlx import nn\nclass T:\n"
        "    def loss(self, tokens, lengths):\n        logits, _ = self.model(tokens)\n"
        "        logits = logits.astype(mx.float32)\n"
        "        return nn.losses.cross_entropy(logits, tokens).mean()\n",
    ),
    "gradients that a method keeps": (
        "outermost-name-filter",
        "import mlx.nn as nn\nclass T:\n    def __init__(self, model, loss):\n"
        "        self.step = nn.value_and_grad(model, loss)\n    def run(self, x):\n"
        "        value, got = self.step(x)\n        kept = {}\n"
        "        for name, one in got.items():\n            if 'lora' in name.lower():\n"
        "                kept[name] = one\n        return kept\n",
    ),
    "a lambda": (
        "gradient-of-module",
        "import mlx.core as mx\nmodel.freeze()\n"
        "g = mx.grad(lambda model, x: model(x).sum())(model, x)\n",
    ),
    "a method": (
        "gradient-of-module",
        "import mlx.core as mx\nclass T:\n    def loss(self, model, x):\n"
        "        return model(x).sum()\n    def run(self):\n"
        "        self.model.freeze()\n        self.g = mx.value_and_grad(self.loss)\n",
    ),
    "unpacked as in JAX": (
        "flattened-unpacked",
        "from mlx.utils import tree_flatten\nleaves, structure = tree_flatten(p)\n",
    ),
    "tested for being an array": (
        "flattened-as-arrays",
        "import mlx.core as mx\nfrom mlx.utils import tree_flatten\nfor g in tree_flatten(x):\n"
        "    if isinstance(g, mx.array):\n        total += 1\n",
    ),
    "no shift in variables": (
        "unshifted-targets",
        "import mlx.nn as nn\ndef loss(model, batch):\n    x = batch[:, :-1]\n"
        "    y = batch[:, :-1]\n    return nn.losses.cross_entropy(model(x), y).mean()\n",
    ),
    "two shifts": (
        "unshifted-targets",
        "import mlx.nn as nn\ndef loss(model, t):\n    logits = model(t[:, :-1])\n"
        "    y = t[:, 1:]\n"
        "    return nn.losses.cross_entropy(logits[:, :-1], y[:, 1:]).mean()\n",
    ),
    "a named count": (
        "unguarded-mean",
        "def loss(losses, mask):\n    n = mask.sum()\n    return (losses * mask).sum() / n\n",
    ),
    "by function": (
        "unguarded-mean",
        "import mlx.core as mx\ndef loss(losses, mask):\n"
        "    return mx.sum(losses * mask) / mx.sum(mask)\n",
    ),
    "parameters by outermost name": (
        "outermost-name-filter",
        "def count(model):\n    return sum(p.size for n, p in model.parameters().items() "
        "if 'lora' in n)\n",
    ),
    "handed to another function": (
        "gradient-of-module",
        "import mlx.core as mx\nclass T:\n    def __init__(self):\n"
        "        model.freeze()\n        self.g = mx.value_and_grad(self.loss)\n"
        "    def loss(self, model, x):\n"
        "        return self.score(model, x)\n    def step(self, x):\n"
        "        return self.g(self.model, x)\n",
    ),
    "parameters under a name": (
        "parameters-as-model",
        "import mlx.core as mx\ndef step(model, x):\n    params = model.parameters()\n"
        "    return mx.grad(lambda p: p.layers[0](x).sum())(params)\n",
    ),
    "requires_grad": (
        "torch-idiom",
        "import mlx.nn as nn\ndef freeze(model):\n    for p in model.parameters():\n"
        "        p.requires_grad = False\n",
    ),
    "channels said to be second": (
        "channels-first",
        "import mlx.nn as nn\nclass E(nn.Module):\n    def __init__(self):\n"
        "        self.conv1 = nn.Conv1d(3, 4, 3)\n    def __call__(self, x):\n"
        "        # x: [batch, channels, length]\n        return nn.relu(self.conv1(x))\n",
    ),
    "as an argument": (
        "alpha-as-scale",
        "from mlx_lm.tuner.lora import LoRALinear\n"
        "layer = LoRALinear.from_base(linear, r=8, scale=lora_alpha)\n",
    ),
}


@pytest.mark.parametrize("name", ALSO)
def test_the_same_mistake_in_other_words(name: str) -> None:
    code, text = ALSO[name]
    assert codes(text) == [code]


def test_mlx_lms_tuner_has_two_true_hits() -> None:
    """Both are what they say: 0/0 without a target, and a padding token trained in each row."""
    tuner = Path(mlx_lm.__file__).parent / "tuner"
    found = {(hit.path.name, hit.code) for hit in lint([tuner])}
    assert found == {("trainer.py", "mask-off-by-one"), ("trainer.py", "unguarded-mean")}


@pytest.mark.slow
def test_this_project_is_clean() -> None:
    # The fixtures with faults have them on purpose.
    folders = [ROOT / "mlxdoctor", ROOT / "checks", ROOT / "fixtures" / "trainers" / "sound"]
    assert [(hit.path.name, hit.line, hit.code) for hit in lint(folders)] == []
