"""The particulars of each learner, against formulas written out."""

import pytest
import torch
import torch.nn.functional as F
from helpers.vit import tiny_vit
from learner_helpers import images, make, task_info, test_images, train, trained

from data_lt.errors import UserError
from pilot_tal.learners.coda_prompt import attended_cosine, coda_factor, gram_schmidt, orthogonality
from pilot_tal.learners.dualprompt import e_prefixes
from pilot_tal.learners.pool import pick, vote

# Pools of prompts: L2P and DualPrompt.


def literal_vote(ids: torch.Tensor, pool: int) -> set[int]:
    """The vote as the original counts it."""
    found, counts = torch.unique(ids, return_counts=True, sorted=True)
    padding = pool - len(found)
    found = torch.cat((found, torch.full((padding,), int(ids.min()))))
    counts = torch.cat((counts, torch.zeros(padding, dtype=torch.long)))
    return set(found[torch.topk(counts, ids.shape[1]).indices].tolist())


def test_vote_equals_the_literal_count_ties_included():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        batch, pool = (int(torch.randint(1, 9, (1,), generator=generator)) for _ in range(2))
        k = int(torch.randint(1, pool + 1, (1,), generator=generator))
        ids = torch.stack([torch.randperm(pool, generator=generator)[:k] for _ in range(batch)])
        assert set(vote(ids, pool).tolist()) == literal_vote(ids, pool)


def test_pick_returns_the_similarity_of_the_selected_prompts():
    keys, query = torch.randn(5, 4), torch.randn(3, 4)
    cosine = F.cosine_similarity(query[:, None], keys[None], dim=-1)
    ids, similarity = pick(keys, query, 2, batchwise=False, mask=None)
    assert torch.equal(ids, cosine.topk(2).indices)
    torch.testing.assert_close(similarity, cosine.gather(1, ids).sum() / 3)
    ids, similarity = pick(keys, query, 2, batchwise=True, mask=None)
    torch.testing.assert_close(similarity, cosine[:, ids].sum() / 3)
    ids, similarity = pick(keys, query, 2, batchwise=True, mask=torch.tensor([4]))
    assert ids.tolist() == [4]
    torch.testing.assert_close(similarity, cosine[:, 4].mean())


def test_l2p_does_not_care_for_the_order_of_prompts(monkeypatch):
    learner = make("l2p", (3,), top_k=3)
    learner.begin_task(task_info((3,), 0))
    x, _ = images(learner.task)
    outputs = []
    for order in ([0, 4, 2], [2, 0, 4]):
        chosen = torch.tensor(order), torch.zeros(())
        monkeypatch.setattr(learner, "select", lambda *args, chosen=chosen, **_: chosen)
        outputs.append(learner.scores(x))
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)


def test_dualprompt_mask_and_transfer():
    sizes = (2, 2, 2)
    torch.manual_seed(0)
    learner = make("dualprompt", sizes, size=4, top_k=2)
    start = learner.export_tensors()
    train(learner, sizes, 0)
    prompt, key = learner.prompt.clone(), learner.prompt_key.clone()
    before = start["backbone.e_prompt.prompt"]
    assert torch.equal(prompt[:, :, 2:], before[:, :, 2:])  # task 0 owns prompts 0 and 1
    assert not torch.equal(prompt[:, :, :2], before[:, :, :2])
    learner.begin_task(task_info(sizes, 1))
    assert torch.equal(learner.prompt[:, :, 2:4], prompt[:, :, :2]) and torch.equal(learner.prompt_key, key)
    kept = learner.export_tensors()
    learner.begin_task(task_info(sizes, 2))  # the pool is used up: nothing is handed on
    assert all(torch.equal(kept[name], tensor) for name, tensor in learner.named_tensors().items())


@pytest.mark.parametrize("batch", [1, 4, 5])
def test_dualprompt_slots(batch):
    """The reshape rule of the original, and the repaired layout."""
    prompt = torch.randn(3, 2, 4, 2, 2, 8)
    chosen = torch.tensor([2])
    slot = {0: prompt[:, 0, 2], 1: prompt[:, 1, 2]}
    mixed = e_prefixes(prompt, chosen, batch, mixed=True)
    for s in range(batch):
        key, value = slot[2 * s // batch], slot[(2 * s + 1) // batch]
        assert torch.equal(mixed[:, s, 0], key) and torch.equal(mixed[:, s, 1], value)
    clean = e_prefixes(prompt, chosen, batch, mixed=False)
    for s in range(batch):
        assert torch.equal(clean[:, s, 0], slot[0]) and torch.equal(clean[:, s, 1], slot[1])


def test_dualprompt_leaks_other_samples_only_in_the_original():
    prompt, ids = torch.randn(1, 2, 4, 2, 2, 8), torch.tensor([[0], [1], [2]])
    clean = e_prefixes(prompt, ids, 3, mixed=False)
    assert all(torch.equal(clean[0, s, 0], prompt[0, 0, s]) for s in range(3))
    mixed = e_prefixes(prompt, ids, 3, mixed=True)
    assert torch.equal(mixed[0, 0, 1], prompt[0, 0, 1])  # the first sample's value is the second sample's prompt


def test_dualprompt_task_prompts_while_the_pool_lasts():
    sizes = (2, 2, 2)
    torch.manual_seed(0)
    learner = make("dualprompt", sizes, size=2)
    for index in range(2):
        before = learner.prompt.clone()
        train(learner, sizes, index)
        moved = [not torch.equal(before[:, :, i], learner.prompt[:, :, i]) for i in range(2)]
        assert moved[index] and not any(moved[:index])
    train(learner, sizes, 2)  # voted prompts from here on
    assert learner.own_prompts(2) is None


# CODA-Prompt.


def test_coda_learning_rates():
    factors = [coda_factor(epoch, 50) for epoch in range(50)]
    expected = {0: 1.0, 1: 1.0, 2: 0.999496, 3: 0.997986, 48: 0.079098, 49: 0.047427}
    assert {epoch: round(factors[epoch], 6) for epoch in expected} == expected
    assert coda_factor(0, 1) == 1.0


@pytest.mark.parametrize("shape", [(9, 20), (9, 4, 5)])
def test_gram_schmidt(shape):
    torch.manual_seed(0)
    first = gram_schmidt(torch.rand(shape), 0, 3)
    flat = first.flatten(1)
    torch.testing.assert_close(flat[:3] @ flat[:3].t(), torch.eye(3))
    assert flat[3:].abs().sum() == 0
    trained_rows = first + 0.1 * torch.randn(shape)
    second = gram_schmidt(trained_rows, 3, 6).flatten(1)
    assert torch.equal(second[:3], trained_rows.flatten(1)[:3])
    torch.testing.assert_close(second[3:6].norm(dim=1), torch.ones(3))
    assert second[6:].abs().sum() == 0
    with pytest.raises(UserError, match="component is zero"):
        gram_schmidt(torch.zeros(shape), 3, 6)
    with pytest.raises(UserError, match="no room for 3 orthogonal components in 2"):
        gram_schmidt(torch.zeros(4, 2), 0, 3)


def test_attended_cosine_equals_its_definition():
    query, keys, attentions = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5, 8)
    products = query[:, None] * attentions
    expected = F.cosine_similarity(products, keys.expand(3, -1, -1), dim=-1)
    torch.testing.assert_close(attended_cosine(query, keys, attentions), expected)


def test_coda_trains_its_own_rows_only_and_draws_the_next():
    sizes = (2, 2, 2)
    torch.manual_seed(0)
    learner = make("coda_prompt", sizes)
    assert all(rows[4:].abs().sum() == 0 for rows in learner.prompts)
    train(learner, sizes, 0)
    before = learner.export_tensors()
    assert all(rows[4:].abs().sum() == 0 for rows in learner.prompts)
    train(learner, sizes, 1)
    for name, rows in learner.named_tensors().items():
        if name.startswith("prompt"):
            assert torch.equal(rows[:4], before[name][:4]) and rows[8:].abs().sum() == 0
            assert rows[4:8].abs().sum() > 0


def test_coda_ortho_term_reaches_the_loss():
    learner = make("coda_prompt", (2,), prompt_param=[4, 4, 0.5])
    learner.begin_task(task_info((2,), 0))
    with torch.no_grad():
        for rows in (*learner.prompts, *learner.keys, *learner.attentions):
            rows.copy_(torch.randn_like(rows))
    _, aux = learner.observe(images(learner.task)[0])
    parts = (*learner.prompts, *learner.keys, *learner.attentions)
    torch.testing.assert_close(aux, 0.5 * sum(orthogonality(rows) for rows in parts))
    with pytest.raises(UserError, match="a pool of 2 components is too small for 3 tasks"):
        make("coda_prompt", (1, 1, 1), prompt_param=[2, 4, 0])


def test_coda_in_a_shallow_vit_keeps_its_tensors():
    backbone = tiny_vit(depth=3)
    learner = make("coda_prompt", (2,), backbone=backbone)
    train(learner, (2,), 0)
    assert "prompt.e_p_4" in learner.export_tensors()
    assert learner.prompts[4].grad is None and learner.prompts[2].grad is not None


# LAE.


def test_lae_offline_is_the_running_mixture():
    torch.manual_seed(0)
    learner = make("lae", (3,), ema_decay=0.9)
    start = [p.clone() for p in learner.pets.parameters()]
    expected, steps = [p.clone() for p in start], 0

    def follow(info):
        nonlocal expected, steps
        steps += 1
        expected = [0.9 * e + 0.1 * p.detach() for e, p in zip(expected, learner.pets.parameters(), strict=True)]

    train(learner, (3,), 0, on_step=follow)
    for offline, mixture in zip(learner.pets_emas.parameters(), expected, strict=True):
        torch.testing.assert_close(offline, mixture)
    assert steps == 6


@pytest.mark.parametrize(("fidelity", "frozen_first_task"), [("pilot", True), ("fixed", False)])
def test_lae_freezes_and_starts_offline(fidelity, frozen_first_task):
    sizes = (2, 2)
    torch.manual_seed(0)
    learner = make("lae", sizes, fidelity, num_freeze_epochs=1)
    seen = []

    def look(info):
        pets = list(learner.pets.parameters())
        seen.append((learner.task.index, info.epoch, all(p.grad is None for p in pets)))

    train(learner, sizes, 0, on_step=look)
    same = all(map(torch.equal, learner.pets.parameters(), learner.pets_emas.parameters()))
    assert same == (fidelity == "fixed")
    train(learner, sizes, 1, on_step=look)
    for task, epoch, frozen in seen:
        assert frozen == (epoch == 0 and (task == 1 or frozen_first_task))


def test_lae_frozen_share_of_the_schedule():
    learner = make("lae", (2,), num_freeze_epochs=None)
    learner.begin_task(task_info((2,), 0))
    for epochs, frozen in ((1, 0), (2, 1), (5, 3), (20, 12), (50, 30)):
        states = []
        for epoch in range(epochs):
            learner.begin_epoch(epoch, epochs)
            states.append(learner.frozen)
        assert states == [True] * frozen + [False] * (epochs - frozen)


@pytest.mark.parametrize("pet_cls", ["Prefix", "Adapter", "LoRA"])
@pytest.mark.parametrize("fidelity", ["pilot", "fixed"])
def test_every_pet_of_lae_learns_and_counts(pet_cls, fidelity):
    sizes = (2, 2)
    torch.manual_seed(0)
    learner = make("lae", sizes, fidelity, pet_cls=pet_cls, num_freeze_epochs=0)
    before = learner.export_tensors()
    for index in range(2):
        train(learner, sizes, index)
    after = learner.export_tensors()
    for kind in ("pets", "pets_emas"):
        assert any(not torch.equal(before[n], after[n]) for n in before if n.startswith(f"{kind}."))
    x, _ = test_images(sizes)
    scores = learner.scores(x)
    with torch.no_grad():
        for parameter in (*learner.pets.parameters(), *learner.pets_emas.parameters()):
            parameter.zero_()
    assert not torch.allclose(learner.scores(x), scores, atol=1e-4)


def test_lae_scores_are_the_larger_probability():
    learner = trained("lae", (2, 2))
    x, _ = test_images((2, 2))
    with torch.no_grad():
        tokens = learner.backbone.embed(x)
        both = [
            learner.fc(learner._features(tokens, pets)).softmax(dim=1) for pets in (learner.pets, learner.pets_emas)
        ]
    assert torch.equal(learner.scores(x), torch.maximum(*both))
