"""Fallbacks for bags whose joint lattice is too large: which one is taken, and that it is worth taking."""

import numpy as np
import pytest
import torch

import fastbus
from fastbus.oracle import enumerate_posterior


def error(post, truth):
    return float(np.abs(post.labels.numpy() - truth.labels).mean())


def test_as_many_classes_as_instances_are_counts_of_one():
    # every instance is needed by some class, and messages between the two would not settle
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(50, 4, 4, generator=generator, dtype=torch.float64)
    weak = torch.ones(50, 4, dtype=torch.long)
    truth = enumerate_posterior(fastbus.MultiInstance(), logits.numpy(), weak.numpy())
    chosen = fastbus.infer("multi_instance", logits, weak, budget=1)
    looped = fastbus.infer("multi_instance", logits, weak, coupling="loop")
    assert set(chosen.coupling) == {"tilted"}
    assert chosen.likelihood == "composite"
    assert bool(chosen.converged.all()) and not bool(looped.converged.any())
    assert error(chosen, truth) < 0.5 * error(looped, truth)


@pytest.mark.parametrize(("name", "fallback"), [("label_proportion", "tilted"), ("multi_instance", "loop")])
def test_auto_decides_bag_by_bag(name, fallback):
    # the first bag's lattice has few points, the second's many
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 8, 4, generator=generator, dtype=torch.float64)
    counts = torch.tensor([[8, 0, 0, 0], [2, 2, 2, 2]])
    weak = counts if name == "label_proportion" else (counts > 0).long()
    post = fastbus.infer(name, logits, weak, budget=2)
    assert post.coupling == ["joint", fallback]
    assert post.exact_bags.tolist() == [True, False]
    assert not post.exact and post.likelihood == "mixed"
    whole = fastbus.infer(name, logits, weak)
    assert whole.exact and torch.equal(whole.labels[0], post.labels[0])


def test_missing_classes_are_pooled_by_the_tilted_chains():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(20, 5, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (20, 5), generator=generator)
    counts = torch.nn.functional.one_hot(labels, 4).sum(1)
    counts[:, 2:] = -1
    truth = enumerate_posterior(fastbus.LabelProportion(), logits.numpy(), counts.numpy())
    tilted = fastbus.infer("label_proportion", logits, counts, coupling="tilted")
    independent = fastbus.infer("label_proportion", logits, counts, coupling="independent")
    assert error(tilted, truth) < error(independent, truth)
    assert torch.allclose(tilted.labels.sum(-1), torch.ones(20, 5, dtype=torch.float64))
