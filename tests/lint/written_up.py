"""The mistakes of five trainers whose failures were written up, in other words."""

#: What it is -> the rule that finds it, and the code.
AS_WRITTEN_UP: dict[str, tuple[str, str]] = {
    "a stub that sets a flag": (
        "adapter-flag",
        """
from shared import *
class Adapters:
    def attach(self, model, config):
        model._has_adapter = True
        return model
def count(model):
    return mx.array(len(model.layers))
""",
    ),
    "training before there is an adapter": (
        "adapter-never-made",
        """
from mlx.utils import tree_flatten
from mlx_lm import load
model, tokenizer = load('base')
opt = optim.Adam(1e-4)
f = nn.value_and_grad(model, loss_fn)
for x in rows():
    loss, g = f(x)
    opt.update(model, g)
    mx.eval(model.parameters(), opt.state)
mx.save_safetensors('adapters.safetensors', dict(tree_flatten(model.trainable_parameters())))
""",
    ),
    "layers looked for where there are none": (
        "module-dict-walk",
        """
def convert(part):
    for name, child in part.__dict__.items():
        if isinstance(child, nn.Linear):
            setattr(part, name, lora(child))
""",
    ),
    "gradients kept by their outermost names": (
        "outermost-name-filter",
        """
def step(model, opt, f, x):
    loss, grads = nn.value_and_grad(model, f)(model, x)
    opt.update(model, {k: g for k, g in grads.items() if 'lora_a' in k})
""",
    ),
    "forward, as in another framework": (
        "forward-method",
        """
def train(model, opt, rows):
    def loss_fn(model, row):
        return model.forward(row).mean()
    f = mx.value_and_grad(loss_fn)
    for row in rows:
        loss, g = f(model, row)
        opt.update(model, g)
        mx.eval(model.parameters())
""",
    ),
    "a dict of parameters called": (
        "parameters-as-model",
        """
def step(model, rows):
    return mx.value_and_grad(lambda p: p.forward(rows))(model.parameters())
""",
    ),
    "a gradient by all of a model with an adapter": (
        "gradient-of-module",
        """
class LoRATrainer:
    def __init__(self, model, config):
        self.model = with_lora(model, config)
        self.gradient = mx.value_and_grad(self.loss_fn)
    def loss_fn(self, model, batch):
        return self.score(model, batch)
    def step(self, batch):
        loss, grads = self.gradient(self.model, batch)
        self.optimizer.update(self.model, grads)
        mx.eval(self.model.parameters())
""",
    ),
    "a step as in another framework": (
        "torch-idiom",
        """
def step(model, opt, loss_fn, x):
    loss = loss_fn(model(x))
    loss.backward()
    opt.step()
""",
    ),
    "an answer token ignored too many": (
        "unshifted-targets",
        """
def rows(p, answer):
    inputs = p + answer[:-1]
    labels = [-100] * len(p) + answer
    return mx.array(inputs), mx.array(labels)
""",
    ),
    "the batch differentiated by": (
        "gradient-of-inputs",
        """
class T:
    def loss(self, ids, labels):
        return self.score(self.model(ids))
    def step(self, ids, labels):
        loss, grads = mx.value_and_grad(self.loss)(ids, labels)
        self.optimizer.update(self.model, grads)
""",
    ),
    "parameters that the loss never reads": (
        "gradient-of-unused",
        """
class T:
    def step(self, batch):
        def loss_fn(params, batch):
            return self.model(batch).mean()
        p = self.model.trainable_parameters()
        return mx.value_and_grad(loss_fn)(p, batch)
""",
    ),
    "pairs counted as arrays": (
        "flattened-as-arrays",
        """
from mlx.utils import tree_flatten
def count(p):
    n = 0
    for one in tree_flatten(p):
        if isinstance(one, mx.array):
            n += one.size
    return n
""",
    ),
    "channels where the length belongs": (
        "channels-first",
        """
class E(nn.Module):
    def __init__(self):
        self.conv = nn.Conv1d(4, 8, 3)
    def __call__(self, x):
        # x: [batch, channels, time]
        return nn.relu(self.conv(x))
""",
    ),
}
