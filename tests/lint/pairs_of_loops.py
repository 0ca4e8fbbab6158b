"""Training loops, steps and files with a mistake, and such as come near it."""

#: Rule -> code with its mistake, and the same or something near it without.
PAIRS: dict[str, list[tuple[str, str]]] = {
    "result-dropped": [
        (
            """
def step(model, optimizer, grads):
    optimizer.apply_gradients(grads, model)
""",
            """
def step(model, optimizer, grads):
    model.update(optimizer.apply_gradients(grads, model))
""",
        ),
        (
            """
def f(x):
    mx.stop_gradient(x)
    return x
""",
            """
def f(x):
    return mx.eval(x)
""",
        ),
    ],
    "compiled-without-state": [
        (
            """
step = mx.compile(nn.value_and_grad(model, loss_fn))
""",
            """
step = mx.compile(nn.value_and_grad(model, loss_fn), inputs=model.state)
""",
        ),
        (
            """
class T:
    def __init__(self):
        self.step = mx.compile(self._step)
    def _step(self, x):
        loss, grads = self.gradient(x)
        self.optimizer.update(self.model, grads)
        return loss
""",
            """
def loss(logps, mask):
    return (logps * mask).sum()
fast = mx.compile(loss)
params = {}
@mx.compile
def add(x):
    return x + 1
""",
        ),
    ],
    "outermost-name-filter": [
        (
            """
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
            """
def kept(grads):
    return {name: value for name, value in grads.items() if "lora" in name}
def report(model, f, x):
    loss, grads = nn.value_and_grad(model, f)(model, x)
    print(kept(flat(grads)))
""",
        ),
    ],
    "optimizer-remade": [
        (
            """
def train(model, step, batches):
    for epoch in range(3):
        for x in batches:
            opt = optim.AdamW(1e-4)
            loss, grads = step(x)
            opt.update(model, grads)
            mx.eval(model.parameters())
""",
            """
def train(models, step, batches):
    for model in models:
        opt = optim.AdamW(1e-4)
        for x in batches:
            loss, grads = step(x)
            opt.update(model, grads)
            mx.eval(model.parameters())
""",
        ),
    ],
    "schedule-unused": [
        (
            """
def make(steps):
    warm = optim.linear_schedule(0, 1e-4, 10)
    rate = optim.join_schedules([warm, optim.cosine_decay(1e-4, steps)], [10])
    return optim.Adam(1e-4)
""",
            """
def make(steps):
    warm = optim.linear_schedule(0, 1e-4, 10)
    rate = optim.join_schedules([warm, optim.cosine_decay(1e-4, steps)], [10])
    return optim.Adam(learning_rate=rate)
""",
        ),
    ],
    "batches-used-up": [
        (
            """
def train(rows, epochs):
    batches = (mx.array(one) for one in rows)
    for epoch in range(epochs):
        for x in batches:
            optimizer.update(model, mx.eval(step(x)))
""",
            """
def train(rows, epochs):
    batches = [mx.array(one) for one in rows]
    for epoch in range(epochs):
        for x in batches:
            work(x)
""",
        ),
    ],
    "missing-in-mlx": [
        (
            """
with mx.no_grad():
    pass
""",
            """
if hasattr(mx, 'no_grad'):
    mx.no_grad()
""",
        ),
        (
            """
layers = nn.ModuleList([nn.Linear(2, 2)])
""",
            """
layers = [nn.Linear(2, 2)]
""",
        ),
        (
            """
from mlx.nn import functional as F
""",
            """
from mlx.nn import losses as F
""",
        ),
    ],
    "coefficient-unused": [
        (
            """
class T:
    def __init__(self, model, c):
        self.model, self.opt = model, optim.Adam(1e-4)
        self.entropy_coef = c
    def loss(self, x, y):
        return nn.losses.cross_entropy(self.model(x), y).mean()
""",
            """
class T:
    def __init__(self, model, c):
        self.model, self.opt = model, optim.Adam(1e-4)
        self.entropy_coef = c
    def loss(self, x, y):
        return self.entropy_coef * nn.losses.cross_entropy(self.model(x), y).mean()
""",
        ),
        (
            """
class T:
    def __init__(self, model, opt, kl_coef):
        self.model, self.opt = model, opt
        self.kl_coef = kl_coef
    def step(self, x):
        loss, g = nn.value_and_grad(self.model, lambda m: m(x).mean())(self.model)
        self.opt.update(self.model, g)
""",
            """
class T:
    def __init__(self, model, opt, kl_coef):
        self.model, self.opt = model, opt
        self.kl_coef = kl_coef
    def step(self, x):
        c = self.kl_coef
        f = nn.value_and_grad(self.model, lambda m: c * m(x).mean())
        loss, g = f(self.model)
        self.opt.update(self.model, g)
""",
        ),
        (
            """
class Trainer:
    def __init__(self, c):
        self.max_grad_norm = c.norm
    def step(self, x):
        loss, g = nn.value_and_grad(self.model, f)(x)
        self.optimizer.update(self.model, g)
""",
            """
class Trainer:
    def __init__(self, c):
        self.max_grad_norm = c.norm
    def step(self, x):
        loss, g = nn.value_and_grad(self.model, f)(self, x)
        self.optimizer.update(self.model, g)
""",
        ),
    ],
    "adapter-without-layers": [
        (
            """
from mlx_lm import load
def f(path):
    model, tok = load(path)
    model.load_weights('adapters.npz')
    return model
""",
            """
from mlx_lm import load
from ours import to_lora
def f(path):
    model, tok = load(path)
    to_lora(model)
    model.load_weights('adapters.npz')
    return model
""",
        ),
    ],
    "accumulation-boundary": [
        (
            """
def train(model, optimizer, f, batches, n):
    total = 0
    for i, x in enumerate(batches):
        loss, g = f(x)
        if mx.isnan(loss):
            continue
        total = add(total, g)
        if (i + 1) % n == 0:
            optimizer.update(model, total)
            mx.eval(model.parameters())
            total = 0
""",
            """
def train(model, optimizer, f, batches, n, done):
    total = 0
    for i, x in enumerate(batches):
        if i < done:
            continue
        loss, g = f(x)
        total = add(total, g)
        if (i + 1) % n == 0:
            optimizer.update(model, total)
            mx.eval(model.parameters())
            total = 0
""",
        ),
        (
            """
def train(model, optimizer, f, batches, n):
    total = 0
    for i, x in enumerate(batches):
        loss, g = f(x)
        total = add(total, g)
        if (i + 1) % n == 0:
            optimizer.update(model, total)
            mx.eval(model.parameters())
""",
            """
def train(model, optimizer, f, batches, n):
    for i, x in enumerate(batches):
        loss, g = f(x)
        if (i + 1) % n == 0:
            optimizer.update(model, g)
            mx.eval(model.parameters())
""",
        ),
    ],
    "saved-nested": [
        (
            """
def save(model):
    weights = model.parameters()
    mx.savez('w.npz', **weights)
""",
            """
from mlx.utils import tree_flatten
def save(model):
    mx.savez('w.npz', **dict(tree_flatten(model.parameters())))
""",
        ),
    ],
    "flat-update": [
        (
            """
from mlx.utils import tree_flatten
def step(model, opt, f, x):
    loss, grads = nn.value_and_grad(model, f)(model, x)
    opt.update(model, dict(tree_flatten(grads)))
""",
            """
def load(model, path):
    weights = mx.load(path)
    print(weights['scale'])
    model.update(weights)
""",
        ),
    ],
    "answer-without-context": [
        (
            """
def generate(self, ids):
    y = mx.argmax(self.model(ids)[:, -1], -1)
    while True:
        yield y
        logits = self.model(y[:, None])
        y = mx.random.categorical(logits[:, -1])
""",
            """
def generate(self, ids, cache):
    y = mx.argmax(self.model(ids)[:, -1], -1)
    while True:
        yield y
        logits = self.model(y[:, None], cache)
        y = mx.random.categorical(logits[:, -1])
""",
        ),
        (
            """
def generate(model, ids):
    for _ in range(9):
        token = mx.argmax(out[:, -1])
        out = model(token[None, None])
""",
            """
def generate(model, ids):
    for _ in range(9):
        token = mx.argmax(model(ids)[:, -1])
        ids = mx.concatenate([ids, token[None, None]], axis=1)
        out = model(ids)
""",
        ),
    ],
    "evaluation-in-train-mode": [
        (
            """
class T:
    def check(self, rows):
        self.model.eval()
        return rows
    def fit(self, rows):
        f = nn.value_and_grad(self.model, g)
        for x in rows:
            loss, grads = f(x)
            self.optimizer.update(self.model, grads)
            mx.eval(self.model.parameters())
            self.check(rows)
""",
            """
class T:
    def check(self, rows):
        self.model.eval()
        self.model.train()
        return rows
    def fit(self, rows):
        f = nn.value_and_grad(self.model, g)
        for x in rows:
            loss, grads = f(x)
            self.optimizer.update(self.model, grads)
            mx.eval(self.model.parameters())
            self.check(rows)
""",
        ),
        (
            """
from ours import answer_loss
LORA = {'rank': 8, 'dropout': 0.05}
def validate(model, rows):
    return [answer_loss(model, one) for one in rows]
f = nn.value_and_grad(model, answer_loss)
""",
            """
from ours import answer_loss
LORA = {'rank': 8, 'dropout': 0.0}
def validate(model, rows):
    return [answer_loss(model, one) for one in rows]
f = nn.value_and_grad(model, answer_loss)
""",
        ),
        (
            """
def train(model, optimizer, f, batches):
    step = nn.value_and_grad(model, f)
    for i, x in enumerate(batches):
        loss, g = step(x)
        optimizer.update(model, g)
        if i % 10 == 0:
            model.eval()
            print(validate(model))
""",
            """
def train(model, optimizer, f, batches):
    step = nn.value_and_grad(model, f)
    for i, x in enumerate(batches):
        model.train()
        loss, g = step(x)
        optimizer.update(model, g)
        if i % 10 == 0:
            model.eval()
            print(validate(model))
""",
        ),
    ],
}
