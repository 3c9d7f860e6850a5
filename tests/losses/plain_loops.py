"""Every loss written out from its paper in plain Python, float64: the mean loss of each batch in turn."""

import math

from tal_oracle import Oracle

EPOCH_STEPS = 7
EPOCHS = (0, 3, 6, 7, 8, 9)  # of the batches in turn
LAST = 10


def log_softmax(z):
    top = max(z)
    total = math.log(sum(math.exp(v - top) for v in z)) + top
    return [v - total for v in z]


def mean_over(row_loss):
    """A loss without a memory: batches are sums over rows of `row_loss(z, label, counts, options)`."""

    def batches_losses(batches, counts, options):
        return [sum(row_loss(z, y, counts, options) for z, y in zip(Z, Y, strict=True)) / len(Z) for Z, Y in batches]

    return batches_losses


def ce(z, y, n, options):
    return -log_softmax(z)[y]


def balanced_softmax(z, y, n, options):
    return -math.log(n[y] * math.exp(z[y]) / sum(n[k] * math.exp(z[k]) for k in range(len(z))))


def logit_adjustment(z, y, n, options):
    return -log_softmax([z[k] + options["tau"] * math.log(n[k] / sum(n)) for k in range(len(z))])[y]


def focal(z, y, n, options):
    log_p = log_softmax(z)[y]
    return -((1 - math.exp(log_p)) ** options["gamma"]) * log_p


def effective_weights(n, beta):
    weights = [(1 - beta) / (1 - beta**k) for k in n]
    return [weight * len(n) / sum(weights) for weight in weights]


def class_balanced(z, y, n, options):
    return effective_weights(n, options["beta"])[y] * ce(z, y, n, options)


def ldam(z, y, n, options):
    margin = options["margin"] * n[y] ** -0.25 / max(k**-0.25 for k in n)
    return -log_softmax([options["scale"] * (v - margin * (k == y)) for k, v in enumerate(z)])[y]


def vs(z, y, n, options):
    scaled = [(n[k] / max(n)) ** options["gamma"] * v for k, v in enumerate(z)]
    return -log_softmax([v + options["tau"] * math.log(n[k] / sum(n)) for k, v in enumerate(scaled)])[y]


def ace(batches, counts, options):
    losses = []
    for Z, Y in batches:
        present = sorted(set(Y))
        rows = [-log_softmax([z[k] for k in present])[present.index(y)] for z, y in zip(Z, Y, strict=True)]
        losses.append(sum(rows) / len(rows))
    return losses


def seesaw(batches, counts, options):
    seen, losses = [0] * len(counts), []
    for Z, Y in batches:
        for y in Y:
            seen[y] += 1
        total = 0.0
        for z, y in zip(Z, Y, strict=True):
            score = [math.exp(v) for v in log_softmax(z)]
            below = 0.0
            for j in range(len(z)):
                N_j, N_y = max(seen[j], 1), max(seen[y], 1)
                M = (N_j / N_y) ** options["p"] if N_y > N_j else 1.0
                C = (score[j] / score[y]) ** options["q"] if score[j] > score[y] else 1.0
                below += (M * C if j != y else 1.0) * math.exp(z[j])
            total -= math.log(math.exp(z[y]) / below)
        losses.append(total / len(Z))
    return losses


def ldam_drw(batches, counts, options):
    """In the epochs of EPOCHS, one for each batch."""
    weights, losses = effective_weights(counts, options["beta"]), []
    for epoch, (Z, Y) in zip(EPOCHS, batches, strict=True):
        late = epoch >= math.floor(round((1 - options["share"]) * LAST, 6))
        weight = [weights[y] if late else 1.0 for y in Y]
        rows = [w * ldam(z, y, counts, options) for w, z, y in zip(weight, Z, Y, strict=True)]
        losses.append(sum(rows) / sum(weight))
    return losses


def tal(batches, counts, options):
    classes, r, update = len(counts), options["r"], options["update"]
    lam = options["lam"]
    lam = 1 - 1 / ((options["memory_epochs"] or 2) * EPOCH_STEPS) if lam == "auto" else lam
    oracle = Oracle(classes, lam, r, alpha(classes, r, update), options["eps"], update)
    oracle.Q = [steady(classes, r, update) * oracle.Q_max * (options["start"] == "steady")] * classes
    return [oracle.step(Z, Y)[0] for Z, Y in batches]


def tal_auto(batches, counts, options):
    return tal(batches, counts, {**options, "lam": "auto", "start": "steady"})


def steady(classes, r, update):
    """x* by bisection."""
    low, high = 0.0, 1.0
    for _ in range(200):
        x = (low + high) / 2
        over = (1 - 1 / classes) * x**r / (1 if update == "paper" else classes - 1) + x > 1 / classes
        low, high = (low, x) if over else (x, high)
    return low


def alpha(classes, r, update):
    return steady(classes, r, update) ** -r


ROWS = (ce, balanced_softmax, logit_adjustment, vs, focal, class_balanced, ldam)
WITH_MEMORY = (tal, tal_auto, seesaw, ace, ldam_drw)
PLAIN_LOOPS = {row_loss.__name__: mean_over(row_loss) for row_loss in ROWS}
PLAIN_LOOPS |= {batches_losses.__name__: batches_losses for batches_losses in WITH_MEMORY}
