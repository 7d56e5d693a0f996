"""From tables, files and true labels to bags with weak labels."""

from fastbus.data.batches import BagBatches, Batch, epoch_batches, padded_share
from fastbus.data.dataset import WeakData
from fastbus.data.stream import iter_tables
from fastbus.data.tables import read_tables

__all__ = ["BagBatches", "Batch", "WeakData", "epoch_batches", "iter_tables", "padded_share", "read_tables"]
