"""Data sets, their partition among clients, and mini-batches."""

from gossamer.data.augment import Augmentation, Draw
from gossamer.data.batches import Batch, Batches, ChunkBatches
from gossamer.data.catalog import DATASETS, as_dataset
from gossamer.data.client_rows import ClientRows, Indices
from gossamer.data.files import data_directory
from gossamer.data.inputs import Inputs, input_tensors, map_inputs
from gossamer.data.partition import PARTITIONS, check_partition, split
from gossamer.data.samples import IGNORED, UNSCALED, Dataset, Samples, Scaling, Shape, has_bytes, per_client
from gossamer.data.summary import PartitionSummary, summarise

__all__ = [
    "DATASETS",
    "IGNORED",
    "PARTITIONS",
    "UNSCALED",
    "Augmentation",
    "Batch",
    "Batches",
    "ChunkBatches",
    "ClientRows",
    "Dataset",
    "Draw",
    "Indices",
    "Inputs",
    "PartitionSummary",
    "Samples",
    "Scaling",
    "Shape",
    "as_dataset",
    "check_partition",
    "data_directory",
    "has_bytes",
    "input_tensors",
    "map_inputs",
    "per_client",
    "split",
    "summarise",
]
