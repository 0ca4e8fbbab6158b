"""Code with the mistakes that rules know, and sound code that comes near them."""

#: Rule -> what it is -> code with its mistake.
MISTAKES: dict[str, dict[str, str]] = {
    "coefficient-unused": {
        "an entropy bonus": """\
class T:
    def __init__(self, model, c):
        self.model, self.opt = model, optim.Adam(1e-4)
        self.entropy_coef = c
    def loss(self, x, y):
        return nn.losses.cross_entropy(self.model(x), y).mean()
""",
    },
    "compiled-without-state": {
        "a compiled gradient": """\
step = mx.compile(nn.value_and_grad(model, loss_fn))
""",
        "a compiled call of the gradient": """\
gradient = nn.value_and_grad(model, loss_fn)
@mx.compile
def step(x):
    return gradient(model, x)
""",
        "a compiled method": """\
class T:
    def __init__(self):
        self.step = mx.compile(self._step)
    def _step(self, x):
        loss, grads = self.gradient(x)
        self.optimizer.update(self.model, grads)
        return loss
""",
    },
    "checkpoint-of-module": {
        "a layer of its own": """\
class M(nn.Module):
    def __call__(self, x):
        return mx.checkpoint(self.layer)(x)
""",
    },
    "tied-by-assignment": {
        "the embedding of a part": """\
class M(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.head.weight = self.body.embed_tokens.weight
""",
    },
    "missing-in-mlx": {
        "a name that MLX has nowhere": """\
def save(model):
    nn.utils.save_safetensors("w.safetensors", dict(model.parameters()))
""",
        "a module that MLX has under another name": """\
def made(rate):
    return mx.optimizer.Adam(learning_rate=rate)
""",
        "an import": """\
from mlx.core import NoGrad
""",
        "requires_grad": """\
def freeze(model):
    for p in model.parameters():
        p.requires_grad = False
""",
        "a loss of PyTorch": """\
def loss_fn(model, inputs, targets):
    return nn.CrossEntropyLoss()(model(inputs), targets).mean()
""",
    },
    "outermost-name-filter": {
        "a filter in a helper": """\
def kept(grads):
    found = {}
    for name, value in grads.items():
        if "lora" in name:
            found[name] = value
    return found
def step(model, optimizer, f, x):
    loss, grads = nn.value_and_grad(model, f)(model, x)
    optimizer.update(model, kept(grads))
""",
    },
    "probabilities-as-logits": {
        "a sigmoid before its loss": """\
def loss(model, x, y):
    return nn.losses.binary_cross_entropy(mx.sigmoid(model(x)).squeeze(), y)
""",
    },
    "result-dropped": {
        "parameters that nobody takes": """\
def step(model, optimizer, grads):
    optimizer.apply_gradients(grads, model)
""",
    },
    "saved-nested": {
        "parameters as keywords": """\
def save(model):
    weights = model.parameters()
    mx.savez('w.npz', **weights)
""",
    },
    "unshifted-targets": {
        "logits unpacked and cast": """\
class T:
    def loss(self, tokens, lengths):
        logits, _ = self.model(tokens)
        logits = logits.astype(mx.float32)
        return nn.losses.cross_entropy(logits, tokens).mean()
""",
        "two shifts": """\
def loss(model, t):
    logits = model(t[:, :-1])
    y = t[:, 1:]
    return nn.losses.cross_entropy(logits[:, :-1], y[:, 1:]).mean()
""",
    },
}

#: What it is -> sound code.
NEAR: dict[str, str] = {
    "weights that another model brought": """\
def tie(model, other):
    model.head.weight = other.head.weight
""",
    "names of MLX from all over": """\
import mlx.optimizers as optim
from mlx.nn.layers.base import Module
from mlx.nn.utils import checkpoint
from mlx.utils import tree_flatten, tree_map
def step(x):
    rate = optim.schedulers.cosine_decay(1e-3, 10)
    y = mx.fast.rms_norm(x, None, 1e-5).astype(mx.float32) + mx.linalg.norm(x)
    return nn.losses.cross_entropy(y, mx.random.randint(0, 2, (4,))), optim.Adam(rate)
""",
    "a name that the file asks for": """\
def clear():
    if hasattr(mx, "clear_all"):
        mx.clear_all()
    try:
        mx.forget()
    except AttributeError:
        pass
""",
    "a gradient that is compiled anew for each call": """\
class T:
    def step(self, x):
        gradient = nn.value_and_grad(self.model, lambda: self.loss(x))
        compiled = mx.compile(gradient) if self.compiles else gradient
        return compiled()
""",
    "a function behind a checkpoint": """\
class M(nn.Module):
    def __call__(self, x):
        def run(weights, x):
            return self.layer.update(weights)(x)
        return mx.checkpoint(run)(self.layer.trainable_parameters(), x)
""",
    "an adapter that load brought": """\
from mlx_lm import load
def tool(agent):
    agent.model, agent.tokenizer = load("base", adapter_path="adapters")
    agent.model.has_adapter = True
""",
    "a mask asked before": """\
def loss(losses, mask):
    if not mask.any():
        return mx.array(0.0)
    n = mask.sum()
    return (losses * mask).sum() / n
""",
    "hidden states that are pooled": """\
def pool(states, mask):
    return mx.sum(states * mask, axis=1) / mx.sum(mask, axis=1)
""",
    "a mean in torch beside mlx": """\
import mlx.core as mx
import torch
def loss(losses, mask):
    losses = torch.relu(losses)
    return (losses * mask).sum() / mask.sum()
""",
    "names compared one by one": """\
def load_adapter(model, path, params):
    weights = mx.load(path)
    errors = [name for name in weights if name not in params]
    if errors:
        raise ValueError(errors)
    model.load_weights(list(weights.items()), strict=False)
""",
    "weights put back where they were": """\
import mlx.core as mx
from mlx.utils import tree_flatten
class Trainer:
    def __init__(self, model):
        self.checkpoint = dict(tree_flatten(model.trainable_parameters()))
    def restore(self, model):
        model.load_weights(list(self.checkpoint.items()), strict=False)
""",
    "autograd of the project's own": """\
import mlx.core as mx
from .autograd import Tensor
def step(loss):
    loss.backward()
""",
    "another model's layers by __dict__, and dicts too": """\
def walk(obj):
    if isinstance(obj, dict):
        for child in obj.values():
            walk(child)
    elif isinstance(obj, nn.Module):
        for name, child in vars(obj).items():
            if isinstance(child, nn.Module):
                walk(child)
""",
    "a masked language model": """\
def mlm_loss(model, tokens):
    return nn.losses.cross_entropy(model(tokens), tokens).mean()
""",
    "another model is frozen": """\
from mlx_lm.tuner.utils import linear_to_lora_layers
def prepare(model, teacher, p):
    model.freeze()
    linear_to_lora_layers(model, 4, p)
    teacher.freeze()
""",
    "an adapter for inference": """\
from mlx_lm import load
from mlx_lm.tuner.utils import linear_to_lora_layers
def load_tuned(path, p):
    model, tokenizer = load(path)
    linear_to_lora_layers(model, 4, p)
    model.load_weights("adapters.safetensors")
    return model
""",
    "the model was frozen elsewhere": """\
import mlx.optimizers as optim
from mlx_lm.tuner.utils import linear_to_lora_layers
def prepare(model, p):
    linear_to_lora_layers(model, 4, p)
    return optim.Adam(1e-5)
""",
    "flat names have lora in them": """\
from mlx.utils import tree_flatten
def lora_only(grads):
    flat = dict(tree_flatten(grads))
    return {name: grad for name, grad in flat.items() if "lora" in name}
""",
    "parameters asked as a dict": """\
def step(model, batch):
    def inner(params, batch):
        return sum(v.sum() for v in params.values()) + params["head"]["weight"].sum()
    return mx.value_and_grad(inner)(model.parameters(), batch)
""",
    "torch beside mlx": """\
import torch
import mlx.core as mx
def compare(loss):
    loss.backward()
""",
    "backward with an argument": """\
def walk(tree, node):
    return tree.backward(node)
""",
    "vars of a plain object": """\
def show(options):
    return {name: value for name, value in vars(options).items()}
""",
    "a loss told of probabilities": """\
def loss(model, x, y):
    return nn.losses.binary_cross_entropy(mx.sigmoid(model(x)).squeeze(), y, with_logits=False)
""",
    "the shape of log-probabilities": """\
def loss(logps, ref_logps, rewards):
    n = logps.shape[0]
    advantages = rewards.reshape(n) - rewards.mean()
    return -(advantages * mx.exp(logps - ref_logps)).sum()
""",
    "a compiled gradient with its state": """\
step = mx.compile(nn.value_and_grad(model, loss_fn), inputs=model.state)
""",
    "compiled arithmetic": """\
def loss(logps, mask):
    return (logps * mask).sum()
fast = mx.compile(loss)
params = {}
@mx.compile
def add(x):
    return x + 1
""",
    "a function asked for before": """\
if hasattr(mx, 'no_grad'):
    mx.no_grad()
""",
    "self handed to the loss": """\
class Trainer:
    def __init__(self, c):
        self.max_grad_norm = c.norm
    def step(self, x):
        loss, g = nn.value_and_grad(self.model, f)(self, x)
        self.optimizer.update(self.model, g)
""",
    "a token with its cache": """\
def generate(self, ids, cache):
    y = mx.argmax(self.model(ids)[:, -1], -1)
    while True:
        yield y
        logits = self.model(y[:, None], cache)
        y = mx.random.categorical(logits[:, -1])
""",
}
