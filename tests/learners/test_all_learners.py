"""What holds for every learner, in both fidelities."""

import pytest
import torch
from helpers.vit import tiny_vit
from learner_helpers import METHODS, images, make, task_info, test_images, train, trained
from torch import nn

from data_lt.errors import UserError
from pilot_tal.backbone import FrozenViT
from pilot_tal.config.settings import method_config
from pilot_tal.engine.loop import evaluate
from pilot_tal.learners import LEARNERS, build_learner
from pilot_tal.learners.closed_form import ClosedForm
from pilot_tal.schema import settings_of

BOTH = [(method, fidelity) for method in METHODS for fidelity in ("pilot", "fixed")]
both = pytest.mark.parametrize(("method", "fidelity"), BOTH)
# Learners whose classifier in training has a row for every class, not for those of the task alone.
CLOSED_FORM = [method for method in METHODS if issubclass(LEARNERS[method], ClosedForm)]
WHOLE_HEADS = [method for method in METHODS if method not in (*CLOSED_FORM, "ease")]
HEADS = {method: "fc.weight" if method in ("lae", "coda_prompt") else "backbone.head.weight" for method in WHOLE_HEADS}
every = pytest.mark.parametrize("method", METHODS)


def snapshot(learner) -> dict[str, torch.Tensor]:
    return {**learner.checkpoint_state(), **{k: v.clone() for k, v in learner.state_dict().items()}}


def assert_same(before, after):
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name


@both
def test_evaluation_changes_nothing_and_repeats(method, fidelity):
    sizes = (3, 2)
    learner = trained(method, sizes, fidelity)
    x, _ = test_images(sizes)
    before, generator = snapshot(learner), torch.get_rng_state()
    first = learner.scores(x)
    assert first.shape == (len(x), 5) and first.isfinite().all() and not first.requires_grad
    assert torch.equal(learner.scores(x), first)
    assert_same(before, snapshot(learner))
    assert torch.equal(torch.get_rng_state(), generator)


@both
def test_mixes_batch_states_whether_scores_depend_on_the_batch(method, fidelity):
    sizes = (3, 2)
    learner = trained(method, sizes, fidelity)
    x, y = test_images(sizes)
    whole = learner.scores(x)
    alone = torch.cat([learner.scores(row) for row in x.split(1)])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    shuffled = learner.scores(x[order])
    depends = learner.mixes_batch(learner.config, fidelity)
    assert depends == (fidelity == "pilot" and method in ("l2p", "dualprompt"))
    assert depends != torch.allclose(alone, whole, rtol=1e-4, atol=1e-5)
    if not depends:
        torch.testing.assert_close(shuffled, whole[order], rtol=1e-4, atol=1e-5)
        ids = torch.arange(len(x))
        for size in (1, 4, 7, 100):  # so batches may have any size
            known = [None] * len(x) if size == 4 else ids.split(size)
            rows = zip(x.split(size), y.split(size), known, strict=False)
            assert torch.equal(evaluate(learner, rows, "cpu")[1], whole.argmax(dim=1))


@both
@pytest.mark.parametrize(
    ("sizes", "batch"),
    [((3,), 5), ((1, 1, 1), 5), ((2, 1), 5), ((4, 1, 2), 5), ((2, 2), 1)],
    ids=["one task", "one class a task", "few classes", "unequal", "batch of one"],
)
def test_edges(method, fidelity, sizes, batch):
    torch.manual_seed(0)
    learner = make(method, sizes, fidelity, tuned_epoch=1)
    for index in range(len(sizes)):
        train(learner, sizes, index, batch=batch)
    x, y = test_images(sizes)
    true, predicted = evaluate(learner, [(x, y, None), (x[:1], y[:1], None)], "cpu")
    assert torch.equal(true, torch.cat((y, y[:1])))
    assert predicted.min() >= 0 and predicted.max() < sum(sizes)


@both
def test_no_gradient_on_anything_frozen(method, fidelity):
    sizes = (2, 2)
    learner = make(method, sizes, fidelity)
    frozen = {name: p.clone() for name, p in learner.backbone.named_parameters()}

    def check(info):
        for name, parameter in learner.backbone.named_parameters():
            assert not parameter.requires_grad and parameter.grad is None, name

    for index in range(2):
        train(learner, sizes, index, on_step=check)
    for name, parameter in learner.backbone.named_parameters():
        assert torch.equal(parameter, frozen[name])


@both
def test_resume_equals_uninterrupted_run(method, fidelity):
    sizes = (2, 3, 1)
    torch.manual_seed(0)
    learner = make(method, sizes, fidelity)
    train(learner, sizes, 0)
    train(learner, sizes, 1)
    state = {name: tensor.clone() for name, tensor in learner.checkpoint_state().items()}
    assert all(tensor.is_contiguous() for tensor in state.values())
    torch.manual_seed(99)
    resumed = make(method, sizes, fidelity)
    resumed.load_checkpoint_state(state)
    x, _ = test_images(sizes[:2])
    assert torch.equal(resumed.scores(x), learner.scores(x))
    train(learner, sizes, 2)
    train(resumed, sizes, 2)
    assert_same(learner.checkpoint_state(), resumed.checkpoint_state())


@both
def test_names_carry_a_learner_over(method, fidelity):
    sizes = (3, 2)
    learner = trained(method, sizes, fidelity)
    exported = learner.export_tensors()
    frozen = ("backbone.blocks.0.norm1.weight", "feat.cls_token", "original_backbone.head.weight")
    state_dict = {**exported, **dict.fromkeys(frozen, torch.zeros(1))}
    other = make(method, sizes, fidelity)
    other.import_tensors(state_dict, task_sizes=sizes)
    x, _ = test_images(sizes)
    assert torch.equal(other.scores(x), learner.scores(x))
    exported["backbone.head.weigth"] = torch.zeros(1)
    with pytest.raises(UserError, match=r"unknown tensor .* 'backbone.head.weigth'"):
        other.import_tensors(exported)
    del exported["backbone.head.weigth"]
    name = next(iter(exported))
    with pytest.raises(UserError, match="must be"):
        other.import_tensors({**exported, name: torch.zeros(7)})
    del exported[name]
    with pytest.raises(UserError, match="is missing"):
        other.import_tensors(exported)


def test_names_are_those_of_lamda_pilot():
    names = {method: set(trained(method, (2, 1)).export_tensors()) for method in METHODS}
    prompt = {"backbone.head.weight", "backbone.head.bias"}
    assert names["l2p"] == prompt | {"backbone.prompt.prompt", "backbone.prompt.prompt_key"}
    pools = {"backbone.g_prompt", "backbone.e_prompt.prompt", "backbone.e_prompt.prompt_key"}
    assert names["dualprompt"] == prompt | pools
    assert {"fc.weight", "prompt.e_p_0", "prompt.e_k_4", "prompt.e_a_2"} < names["coda_prompt"]
    assert {"pets.0.key.tokens", "pets_emas.4.val.scaler.scale", "fc.bias"} < names["lae"]
    adapters = {"backbone.adapter_list.1.5.up_proj.bias", "backbone.cur_adapter.0.down_proj.weight"}
    assert adapters | {"fc.weight", "fc.sigma"} < names["mos"]
    assert names["simplecil"] == {"fc.weight", "fc.sigma"}
    assert {"backbone.blocks.5.adaptmlp.up_proj.bias", "fc.weight", "fc.sigma", "W_rand"} < names["ranpac"]
    assert {"backbone.blocks.5.adaptmlp.up_proj.bias", "fc.weight", "fc.sigma", "cov_mats"} < names["fecam"]
    assert {"backbones.1.blocks.5.adaptmlp.up_proj.bias", "fc.weight", "fc.sigma"} < names["aper"]
    adapters = {"backbone.adapter_list.0.5.up_proj.bias", "backbone.cur_adapter.0.down_proj.weight"}
    assert adapters | {"fc.weight", "fc.sigma", "proxy_fc.weight", "proxy_fc.sigma"} < names["ease"]


class ViTB(FrozenViT):
    """The shape of ViT-B/16, without its weights."""

    dim, depth, num_heads, head_dim = 768, 12, 12, 64

    def __init__(self):
        nn.Module.__init__(self)


@pytest.mark.parametrize(
    ("method", "count"),
    [("linear", 153_800), ("l2p", 199_880), ("dualprompt", 407_240), ("coda_prompt", 3_993_800), ("mos", 458_120)],
)
def test_trainable_parameters_of_vit_b_with_200_classes(method, count):
    learner = build_learner(method, ViTB(), method_config(method), 200, 10)
    assert sum(p.numel() for group in learner.param_groups() for p in group["params"]) == count
    assert sum(p.numel() for p in learner.parameters() if p.requires_grad) == count


def test_trainable_parameters_of_lae_grow():
    learner = build_learner("lae", ViTB(), method_config("lae"), 200, 10)
    for index in range(3):
        learner.begin_task(task_info((20,) * 10, index))
        trainable = sum(p.numel() for p in learner.parameters() if p.requires_grad)
        assert trainable == 76_810 + 769 * 20 * (index + 1)


@pytest.mark.parametrize(("method", "changes", "tasks"), [("ranpac", {"M": 4}, 1), ("ease", {}, 2)])
def test_trainable_parameters_of_adapters_and_a_classifier_of_the_task(method, changes, tasks):
    learner = build_learner(method, ViTB(), method_config(method, **changes), 200, 10)
    for index in range(tasks):
        learner.begin_task(task_info((20,) * 10, index))
        trainable = sum(p.numel() for group in learner.param_groups() for p in group["params"])
        assert trainable == 12 * (2 * 768 * 64 + 64 + 768) + 20 * 768 + 1


@both
def test_loss_is_used_where_the_learner_trains(method, fidelity):
    sizes = (2, 2)
    switch = "adapter" in settings_of(LEARNERS[method].config_class)
    changes = [{"adapter": value} for value in (True, False)] if switch else [{}]
    for settings in changes:
        learner = make(method, sizes, fidelity, **settings)
        steps = [0, 0]

        def count(info, learner=learner, steps=steps):
            steps[learner.task.index] += 1

        for index in range(2):
            train(learner, sizes, index, on_step=count)
        assert [count > 0 for count in steps] == [LEARNERS[method].trains(learner.config, t) for t in range(2)]
        assert (steps[1] > 0) == (method not in CLOSED_FORM)


@pytest.mark.parametrize("method", ["l2p", "dualprompt", "coda_prompt", "simplecil", "linear"])
def test_query_features_are_computed_once_a_run(method, monkeypatch):
    sizes = (3, 2)
    learner = trained(method, sizes)
    x, _ = test_images(sizes)
    expected = torch.cat([learner.scores(rows) for rows in x.split(6)])
    asked = []
    name = "features" if LEARNERS[method].needs == "features" else "query"
    compute = getattr(learner.backbone, name)
    monkeypatch.setattr(learner.backbone, name, lambda rows, *rest: asked.append(len(rows)) or compute(rows, *rest))
    ids = torch.arange(len(x)) + 3
    for _ in range(2):
        scores = torch.cat([learner.scores(r, i) for r, i in zip(x.split(6), ids.split(6), strict=True)])
        torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    assert sum(asked) == len(x)
    learner.scores(x[:4], torch.tensor([3, 4, 1000, 1001]))
    assert asked[-1] == 2


@pytest.mark.parametrize("method", WHOLE_HEADS)
def test_old_and_future_classes_stay_out_of_the_loss(method):
    """Slicing equals masking: other rows of the classifier get no gradient from the loss."""
    sizes = (2, 2, 2)
    torch.manual_seed(0)
    learner = make(method, sizes)
    train(learner, sizes, 0)
    learner.begin_task(task_info(sizes, 1))
    learner.begin_epoch(0, 2)
    logits, _ = learner.observe(images(learner.task)[0])
    assert logits.shape[1] == 2
    head = learner.named_tensors()[HEADS[method]]
    head.grad = None
    logits.sum().backward()
    assert head.grad[2:4].abs().sum() > 0
    assert head.grad[:2].abs().sum() == 0 and head.grad[4:].abs().sum() == 0


@pytest.mark.parametrize("method", ["l2p", "dualprompt", "coda_prompt", "lae", "linear"])
def test_adam_does_not_change_other_rows_of_the_head(method):
    sizes = (2, 2, 2)
    torch.manual_seed(0)
    learner = make(method, sizes)
    train(learner, sizes, 0)
    before = learner.export_tensors()[HEADS[method]]
    train(learner, sizes, 1)
    after = learner.export_tensors()[HEADS[method]]
    assert torch.equal(before[:2], after[:2])
    if method != "lae":
        assert torch.equal(before[4:], after[4:])
    assert not torch.equal(after[2:4], before[2:4] if method != "lae" else torch.zeros(2, 16))


@pytest.mark.parametrize("method", ["l2p", "dualprompt", "lae"])
def test_original_loses_its_scheduler_after_the_first_task(method):
    sizes = (2, 2)
    rates = {}
    for fidelity in ("pilot", "fixed"):
        learner = make(method, sizes, fidelity, scheduler="cosine", init_lr=0.1, min_lr=0.0, tuned_epoch=2)
        seen = rates[fidelity] = []
        for index in range(2):
            train(learner, sizes, index, on_step=lambda info, seen=seen: seen.append((info.epoch, info.lr)))
    assert all(lr == pytest.approx(0.05) for epoch, lr in rates["fixed"] if epoch == 1)
    half = len(rates["pilot"]) // 2
    assert rates["pilot"][:half] == rates["fixed"][:half]
    assert {lr for _, lr in rates["pilot"][half:]} == {0.1}


@every
def test_half_precision_leaves_tensors_in_float32_and_scores_almost_the_same(method):
    sizes = (2, 2)
    torch.manual_seed(0)
    learner = make(method, sizes, "fixed")
    for index in range(2):
        train(learner, sizes, index, precision="bf16")
    for name, tensor in learner.checkpoint_state().items():
        assert tensor.isfinite().all() and tensor.dtype in (torch.float32, torch.float64, torch.long), name
    x, _ = test_images(sizes)
    exact = learner.scores(x)
    with torch.autocast("cpu", torch.bfloat16):
        half = learner.scores(x)
    assert not torch.equal(half, exact)
    assert (half - exact).abs().mean() < 0.05 * exact.abs().max()  # a prompt picked otherwise moves single rows


def test_wrong_use_raises_user_error():
    config = method_config("l2p")
    backbone = tiny_vit()
    with pytest.raises(UserError, match="did you mean 'l2p'"):
        build_learner("l2pp", backbone, config, 4, 2)
    with pytest.raises(UserError, match="did you mean 'fixed'"):
        build_learner("l2p", backbone, config, 4, 2, fidelity="fixd")
    with pytest.raises(UserError, match="mos needs a MOSConfig, got PoolConfig"):
        build_learner("mos", backbone, config, 4, 2)
    with pytest.raises(UserError, match="5 tasks cannot share 4 classes"):
        build_learner("l2p", backbone, config, 4, 5)
    learner = build_learner("l2p", backbone, config, 4, 2)
    with pytest.raises(UserError, match="not begun a task"):
        learner.scores(torch.randn(1, 3, 8, 8))
    with pytest.raises(UserError, match="cannot follow 0 tasks"):
        learner.begin_task(task_info((2, 2), 1))
    with pytest.raises(UserError, match="unknown precision 'fp8'"):
        train(learner, (2, 2), 0, precision="fp8")
    with pytest.raises(UserError, match="lacks 'stops'"):
        learner.load_checkpoint_state({})
