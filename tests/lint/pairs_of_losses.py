"""Losses with a mistake, and losses that come near it."""

#: Rule -> code with its mistake, and the same or something near it without.
PAIRS: dict[str, list[tuple[str, str]]] = {
    "gradient-of-value": [
        (
            """
def f(model, loss_fn, x):
    loss, grads = nn.value_and_grad(model, loss_fn)
    return grads
""",
            """
def f(model, loss_fn, x):
    loss, grads = nn.value_and_grad(model, loss_fn)(x)
    return grads
""",
        ),
        (
            """
from ours import masked_loss
def f(model, x, y):
    return nn.value_and_grad(model, masked_loss(model, x, y))
""",
            """
from ours import make_loss
def f(model, x, y):
    return nn.value_and_grad(model, make_loss(model, x, y))
""",
        ),
        (
            """
from ours import masked_loss
def f(model):
    return nn.value_and_grad(masked_loss, model)
""",
            """
from ours import masked_loss
def f(model):
    return nn.value_and_grad(model, masked_loss)
""",
        ),
        (
            """
from ours import masked_loss
def f(model):
    return mx.value_and_grad(model, masked_loss)
""",
            """
from ours import masked_loss
def f(model):
    return mx.value_and_grad(masked_loss, (0, 1))
""",
        ),
        (
            """
def loss_fn(model, x):
    return model(x).mean()
step = nn.value_and_grad(loss_fn, model)
""",
            """
def loss_fn(model, x):
    return model(x).mean()
step = nn.value_and_grad(model, loss_fn)
""",
        ),
        (
            """
def loss_fn(model, x):
    return model(x).mean()
step = mx.value_and_grad(model, loss_fn)
""",
            """
def loss_fn(model, x):
    return model(x).mean()
def make(model):
    return lambda x: loss_fn(model, x)
step = nn.value_and_grad(model, make(model))
""",
        ),
        (
            """
def f(model, loss_fn):
    return nn.value_and_grad(loss_fn)
""",
            """
def f(model, loss_fn):
    return nn.value_and_grad(model, mx.compile(loss_fn))
""",
        ),
    ],
    "loss-arguments": [
        (
            """
class T:
    def loss(self, x, y):
        return self.model(x).mean() + y
    def step(self, x, y):
        return nn.value_and_grad(self.model, self.loss)(self.model, x, y)
""",
            """
class T:
    def loss(self, x, y):
        return self.model(x).mean() + y
    def step(self, x, y):
        return nn.value_and_grad(self.model, self.loss)(x, y=y)
""",
        ),
        (
            """
def step(model, x):
    f = nn.value_and_grad(model, lambda m, x: m(x).mean())
    return f(x)
""",
            """
def step(model, x, *rest):
    def loss(m, x, scale=1):
        return m(x).mean() * scale
    f = nn.value_and_grad(model, loss)
    return f(model, x), f(*rest)
""",
        ),
        (
            """
def loss(m, x, y):
    return m(x).mean() + y
def step(model, x):
    return nn.value_and_grad(model, loss)(model, x)
""",
            """
def make(model, short):
    if short:
        def loss(m, x):
            return m(x).mean()
        f = nn.value_and_grad(model, loss)
        def step(x):
            return f(model, x)
    else:
        def loss(m, x, y):
            return m(x).mean() + y
        f = nn.value_and_grad(model, loss)
        def step(x, y):
            return f(model, x, y)
    return step
""",
        ),
    ],
    "probabilities-as-logits": [
        (
            """
def loss(model, x, y):
    return nn.losses.binary_cross_entropy(mx.sigmoid(model(x)).squeeze(), y)
""",
            """
def loss(model, x, y):
    return nn.losses.binary_cross_entropy(mx.sigmoid(model(x)).squeeze(), y, with_logits=False)
""",
        ),
        (
            """
class Net(nn.Module):
    def __call__(self, x):
        return nn.softmax(self.head(x), axis=-1)
def loss(model, x, y):
    return nn.losses.cross_entropy(model(x), y).mean()
""",
            """
class Net(nn.Module):
    def __call__(self, x):
        return self.head(x)
def loss(model, x, y):
    return nn.losses.cross_entropy(model(x), y).mean()
""",
        ),
        (
            """
def loss(student, teacher, x):
    return nn.losses.kl_div_loss(mx.softmax(student(x)), mx.softmax(teacher(x)), reduction='mean')
""",
            """
def loss(student, teacher, x):
    return nn.losses.cross_entropy(student(x), mx.softmax(teacher(x), axis=-1), reduction='mean')
""",
        ),
    ],
    "advantage-with-gradient": [
        (
            """
def loss(model, x, rewards):
    log_probs = score(model, x)
    kl = (log_probs - reference(x)).sum(-1)
    returns = (rewards - 0.1 * kl)[:, None]
    return -(returns * log_probs).mean()
""",
            """
def loss(model, x, rewards):
    log_probs = score(model, x)
    kl = mx.stop_gradient((log_probs - reference(x)).sum(-1))
    returns = (rewards - 0.1 * kl)[:, None]
    return -(returns * log_probs).mean()
""",
        ),
        (
            """
def loss(logps, ref_logps, rewards):
    advantages = rewards - (logps - ref_logps)
    advantages = advantages - advantages.mean()
    return -(advantages * logps).sum()
""",
            """
def loss(logps, ref_logps, rewards):
    n = logps.shape[0]
    advantages = rewards.reshape(n) - rewards.mean()
    return -(advantages * mx.exp(logps - ref_logps)).sum()
""",
        ),
    ],
    "loss-not-scalar": [
        (
            """
def loss_fn(model, x, y):
    ce = nn.losses.cross_entropy(model(x), y)
    return ce, y.size
step = nn.value_and_grad(model, loss_fn)
""",
            """
def loss_fn(model, x, y):
    ce = nn.losses.cross_entropy(model(x), y)
    return ce.mean(), y.size
step = nn.value_and_grad(model, loss_fn)
""",
        ),
        (
            """
step = nn.value_and_grad(model, lambda m, x, y: nn.losses.cross_entropy(m(x), y, reduction='none'))
""",
            """
step = nn.value_and_grad(model, lambda m, x, y: nn.losses.mse_loss(m(x), y))
""",
        ),
    ],
    "ignored-label": [
        (
            """
def loss(model, x, labels):
    return nn.losses.cross_entropy(model(x), labels, ignore_index=-100).mean()
""",
            """
def rows(p, a):
    return [-100] * len(p) + a
def loss(model, x, labels, mask):
    return (nn.losses.cross_entropy(model(x), labels) * mask).mean()
""",
        ),
        (
            """
def rows(p, a):
    return [-100] * (len(p) - 1) + a
def loss(model, x, labels):
    targets = labels[:, 1:]
    return nn.losses.cross_entropy(model(x), targets, reduction='mean')
""",
            """
IGNORED = -100
def rows(p, a):
    return [IGNORED] * (len(p) - 1) + a
def loss(model, x, labels):
    return ours(labels, IGNORED) + nn.losses.cross_entropy(model(x), labels, reduction='mean')
""",
        ),
    ],
    "own-reference": [
        (
            """
def grpo_loss(logps, gains):
    old = logps
    return -(mx.exp(logps - old) * gains).mean()
""",
            """
def grpo_loss(logps, gains):
    old = mx.stop_gradient(logps)
    return -(mx.exp(logps - old) * gains).mean()
""",
        ),
        (
            """
def step(model, x):
    def loss(model):
        logps = score(model, x)
        ref_logps = logps
        return (logps - ref_logps).mean()
    return nn.value_and_grad(model, loss)(model)
""",
            """
def step(model, ref_model, x):
    def loss(model):
        logps = score(model, x)
        ref_logps = score(ref_model, x)
        return (logps - ref_logps).mean()
    return nn.value_and_grad(model, loss)(model)
""",
        ),
    ],
    "loss-rebuilt": [
        (
            """
def sft_loss(model, x, y):
    logits = mx.stop_gradient(model(x)).astype(mx.float32)
    return nn.losses.cross_entropy(logits, y, reduction='mean')
""",
            """
def distill_loss(model, ref_model, x, y):
    own = nn.losses.cross_entropy(model(x), y, reduction='mean')
    logits = mx.stop_gradient(ref_model(x))
    return own - nn.losses.cross_entropy(logits, y, reduction='mean')
""",
        ),
        (
            """
def loss(model, x):
    values = [float(model(one).mean()) for one in x]
    return mx.array(sum(values) / len(values)), len(x)
f = nn.value_and_grad(model, loss)
""",
            """
def loss(model, x):
    values = [model(one).mean() for one in x]
    return mx.array(values).mean(), mx.array(float(len(x)))
f = nn.value_and_grad(model, loss)
""",
        ),
    ],
    "results-swapped": [
        (
            """
def train(model, opt, loss_fn, rows):
    f = nn.value_and_grad(model, loss_fn)
    gradients, value = f(model, rows)
    opt.update(model, gradients)
""",
            """
def train(model, opt, loss_fn, rows):
    f = nn.value_and_grad(model, loss_fn)
    value, gradients = f(model, rows)
    opt.update(model, gradients)
""",
        ),
    ],
    "unshifted-targets": [
        (
            """
def run(model, x):
    return model(x), None
def loss(model, tokens):
    logits, _ = run(model, tokens)
    return nn.losses.cross_entropy(logits, tokens, reduction="mean")
""",
            """
def run(model, x):
    return model(x[:, :-1]), None
def loss(model, tokens):
    logits, _ = run(model, tokens)
    return nn.losses.cross_entropy(logits, tokens[:, 1:], reduction="mean")
""",
        ),
    ],
}
