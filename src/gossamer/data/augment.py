"""Random flips and shifts of images, drawn on the host and applied on the device of the batch."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from gossamer.parts import part


@dataclass(frozen=True, eq=False)
class Draw:
    """The random choices for some images: which are flipped, and the offset of each crop from its padded image."""

    flips: NDArray[np.bool_]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]


@part
class Augmentation:
    """Flip images at random and crop them from their zero-padded frame.

    `rule` selects one of two practices of the literature: "always" crops every image at a random offset, "half" only
    half of them. Both flip half of the images.

    The padding is added before scaling, so it is black for any mean.
    """

    flip: bool = True
    pad: Annotated[int, Field(ge=0)] = 4
    rule: Literal["always", "half"] = "always"

    def draw(self, rng: np.random.Generator, rows: int) -> Draw:
        """Choices for `rows` images. The number of draws from `rng` depends only on `rows` and the rule."""
        flips = rng.random(rows) < 0.5
        offsets = rng.integers(0, 2 * self.pad + 1, size=(2, rows))
        if self.rule == "half":
            offsets = np.where(rng.random(rows) < 0.5, offsets, self.pad)
        return Draw(flips & self.flip, offsets[0], offsets[1])

    def apply(self, inputs: Tensor, flips: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Shift and flip images [..., C, H, W] by choices of shape [...]; an offset of `pad` leaves an image in place.

        >>> image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
        >>> Augmentation(pad=1).apply(image, torch.tensor([True]), torch.tensor([1]), torch.tensor([2]))
        tensor([[[[0, 2],
                  [0, 4]]]], dtype=torch.uint8)
        """
        height, width = inputs.shape[-2:]
        framed = functional.pad(inputs, (self.pad, self.pad, self.pad, self.pad))
        column = torch.arange(width, device=inputs.device)
        column = torch.where(flips[..., None], width - 1 - column, column) + columns[..., None]
        row = torch.arange(height, device=inputs.device) + rows[..., None]
        # One gather over flattened pixels. The index is the same for every channel, so it is expanded, not copied.
        places = (row[..., :, None] * framed.shape[-1] + column[..., None, :]).flatten(-2)[..., None, :]
        return framed.flatten(-2).gather(-1, places.expand(*inputs.shape[:-2], -1)).reshape(inputs.shape)
