"""State evolution modules for the batches of the catalogue, and the features they read."""

import torch

from catalogue import CASES, infer
from fastbus import build_evolution
from fastbus.errors import CouplingError
from tensors import draws

MIXED = "multi_instance & positive_unlabeled-softmax2"  # rules of one class and of all classes under a softmax head
CHAINS = sorted(set(CASES) - {MIXED})
SMALL = {"embed": 8, "hidden": 8, "heads": 2, "keys": 3}


def module_for(case, batch, num_features=5, **options):
    return build_evolution(
        case.supervision, batch.logits, batch.weak, num_features, batch.mask, head=case.head, **SMALL | options
    )


def randomised(module, seed=0, scale=0.5):
    """The same module with no weight at zero, in float64 and evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return module.double().eval()


def features_of(batch, E=5, seed=7):
    return draws(*batch.mask.shape, E, seed=seed)


def one_chain_a_class(case, batch, **options):
    try:
        return infer(case, batch, coupling="independent", **options)
    except CouplingError:
        return infer(case, batch, **options)
