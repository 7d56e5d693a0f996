"""State evolution keeps to its sizes: states, memory and cost as stated, variants that differ, clear refusals."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fastbus
from catalogue import CASES, infer, random_batch
from evolution_modules import MIXED, SMALL, features_of, module_for, randomised
from fastbus import InputError, StateEvolution, WeakLoss
from fastbus.errors import CouplingError
from fastbus.inference.chain import Chain
from fastbus.inference.ending import Ending
from fastbus.inference.evolution import VARIANTS
from fastbus.inference.evolved import solve_evolved
from tensors import close, draws, leaf


def test_states_are_those_of_the_batch():
    """A module for bags of up to 9 answers smaller bags with the first of its states."""
    case = CASES["label_proportion-sigmoid2"]
    batch = random_batch(case)
    module = randomised(module_for(case, batch, max_bag_size=9))
    assert module.num_states == 10
    features = features_of(batch)
    post = infer(case, batch, evolution=module, features=features)
    small = randomised(module_for(case, batch))
    wide = module.state_dict()
    used = small.num_states * 2
    wide["last.weight"], wide["last.bias"] = wide["last.weight"][:used], wide["last.bias"][:used]
    small.load_state_dict(wide)
    close(post.labels, infer(case, batch, evolution=small, features=features).labels)


class Kept:
    """The numbers that autograd keeps, storages counted once; parameters are not counted."""

    def __init__(self, module):
        self.own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
        self.storages = {}

    def pack(self, x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in self.own:
            self.storages[storage.data_ptr()] = max(x.numel(), storage.nbytes() // x.element_size())
        return x

    @property
    def count(self):
        return sum(self.storages.values())


@pytest.mark.parametrize(("B", "L", "C"), [(2, 6, 3), (1, 40, 1), (8, 5, 10)])
def test_memory_stays_within_the_stated_bound(B, L, C):
    module = StateEvolution(20, C, 64, 2, embed=16, hidden=24, heads=4, keys=5)
    features, real, Z = leaf(draws(B, L, 20).float()), torch.ones(B, L, dtype=torch.bool), L + 1
    kept = Kept(module)
    alive = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (alive.append(x), kept.pack(x))[1], lambda x: x):
        u = module.log_labels(torch.zeros(B, L, C, Z, 2).log_softmax(-1), features, real)
    assert u.shape == (B, L, C, Z, 2)
    assert 0.3 * module.numbers_kept(B, L, Z) < kept.count <= module.numbers_kept(B, L, Z)


@pytest.mark.parametrize(("N", "K", "Z"), [(3, 10, 11), (2, 40, 41)])
def test_messages_stay_within_the_stated_bound(N, K, Z):
    table = (torch.arange(Z)[:, None] + torch.arange(2))[None, None]
    ending = Ending(torch.zeros(N, Z, dtype=torch.float64))
    chain = Chain(table, torch.full((N,), K), ending)
    edges = leaf(torch.log_softmax(draws(N, K, Z, 2), -1))
    kept, alive = Kept(nn.Module()), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (alive.append(x), kept.pack(x))[1], lambda x: x):
        solve_evolved(edges, chain)
    bound = 8 * N * K * Z * 2 + 8 * N * K * (Z + 2)
    assert 0.3 * bound < kept.count <= bound


class Numbers(TorchDispatchMode):
    """Counts the numbers that operations put out."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.count += sum(x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor))
        return out


def test_messages_cost_in_proportion_to_labels_and_states():
    def cost(K, Z):
        table = (torch.arange(Z)[:, None] + torch.arange(2))[None, None]
        ending = Ending(torch.zeros(2, Z, dtype=torch.float64))
        chain = Chain(table, torch.full((2,), K), ending)
        with Numbers() as seen:
            solve_evolved(torch.log_softmax(draws(2, K, Z, 2), -1), chain)
        return seen.count

    assert cost(64, 16) / cost(32, 16) < 2.2
    assert cost(32, 32) / cost(32, 16) < 2.2


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_are_different_modules(variant):
    case = CASES["label_proportion-softmax3"]
    batch = random_batch(case)
    module = randomised(module_for(case, batch, variant=variant))
    names = {name.partition(".")[0] for name, _ in module.named_parameters()}
    assert ("key" in names) == (variant not in ("mlp", "no_attention"))
    assert ("encoder" in names) == (variant != "mlp")
    post = infer(case, batch, evolution=module, features=features_of(batch))
    close(post.labels.sum(-1)[batch.mask], torch.ones(int(batch.mask.sum()), dtype=torch.float64))
    # what the other instances of a bag look like matters where there is an encoder along them, and only there
    changed = features_of(batch)
    changed[:, -1] += 1
    real = batch.mask & batch.mask.all(1, keepdim=True)
    before, after = (module(x, batch.mask)[real.any(1), 0] for x in (features_of(batch), changed))
    assert (float((before - after).abs().max().detach()) > 1e-6) == (variant != "mlp")


def test_a_cut_chain_with_learned_labels():
    case = CASES["label_proportion-noise-sigmoid1"]
    batch = random_batch(case)
    module = module_for(case, batch).double()
    features = features_of(batch)
    full = int(fastbus.lossless_rank(case.supervision, batch.logits, batch.weak, batch.mask, head=case.head))
    for rank in range(full - 1, full + 1):
        try:
            expected = infer(case, batch, rank=rank)
        except fastbus.ImpossibleError:
            with pytest.raises(fastbus.ImpossibleError, match="expected a rank of at least"):
                infer(case, batch, rank=rank, evolution=module, features=features)
            continue
        close(infer(case, batch, rank=rank, evolution=module, features=features).labels, expected.labels)


# -- refusals --------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused():
    case = CASES["label_proportion-softmax3"]
    batch = random_batch(case)
    module, features = module_for(case, batch), features_of(batch).float()

    def refused(match, error=InputError, **options):
        with pytest.raises(error, match=match):
            infer(case, batch, **{"evolution": module, "features": features} | options)

    refused("evolution without features", features=None)
    refused("features without evolution", evolution=None)
    refused("features of shape", features=features[:, :1])
    refused("4 features an instance; expected 5", features=features[..., :4])
    refused("NaN or infinite features", features=features * float("inf"))
    refused('coupling="joint"', CouplingError, coupling="joint")
    refused("an evolution along categories", evolution=StateEvolution(5, 3, 2, along="categories", **SMALL))
    refused("a batch of 4 states with an evolution of 2", evolution=StateEvolution(5, 3, 2, **SMALL))
    refused(r"\(2, 4, 2\).*expected \(3, 4, 2\)", evolution=StateEvolution(5, 2, 4, **SMALL))
    mixed = CASES[MIXED]
    with pytest.raises(CouplingError, match="expected rules that read one class at a time"):
        module_for(mixed, random_batch(mixed))
    with pytest.raises(InputError, match="expected an integer from 3, the largest bag"):
        module_for(case, batch, max_bag_size=2)
    with pytest.raises(InputError, match="embed=10 with heads=4"):
        StateEvolution(5, 3, 2, embed=10, heads=4)
    with pytest.raises(InputError, match="num_states=0"):
        StateEvolution(5, 3, 0)
    with pytest.raises(InputError, match="variant='tanh'"):
        StateEvolution(5, 3, 2, variant="tanh")


def test_losses_that_could_not_teach_a_module_are_refused():
    module = StateEvolution(5, 1, 4, **SMALL)
    with pytest.raises(InputError, match='Pass mode="joint"'):
        WeakLoss("label_proportion", evolution=module)
    WeakLoss("label_proportion", likelihood=1, evolution=module)
    unlabelled = fastbus.PositiveUnlabeled(0.4)
    with pytest.raises(InputError, match="evolution= with queue="):
        WeakLoss(unlabelled, head="sigmoid", mode="joint", queue=8, evolution=module)
    pairs_and_set = fastbus.SimilarDissimilarUnlabeled(0.4)
    with pytest.raises(InputError, match="evolution= with similar_dissimilar_unlabeled"):
        WeakLoss(pairs_and_set, head="sigmoid", mode="joint", evolution=module)
