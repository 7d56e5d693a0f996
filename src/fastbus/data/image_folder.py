"""Pictures named in a table as bytes (N, channels, height, width). Pillow is imported on first use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbus.data.columns import Column, Table, listed
from fastbus.data.layout import Layout
from fastbus.errors import DataError

IMAGE = "image"


def image_array(table: Table, folder: Path | None, size: tuple[int, int] | None) -> NDArray[Any]:
    """The column `image` as pictures: paths below `folder`, or pictures that are there already.

    size: (height, width) to which every picture is scaled; None where all have one size.
    """
    column = table.columns[IMAGE]
    if column.dtype.kind != "U":
        return _channels_first(table, column)
    if folder is None:
        raise DataError(
            f"paths of images without a folder; expected the folder they lie in; {table.place(IMAGE)}. "
            "Pass images=folder."
        )
    try:
        from PIL import Image
    except ImportError:
        raise DataError(
            "Pillow is not installed; expected it for folders of images. Install it with: pip install pillow"
        ) from None

    root = folder.resolve()
    pictures: list[Any] = []
    for row, name in enumerate(column.tolist()):
        path = (root / name).resolve()
        if not name or not path.is_relative_to(root) or not path.is_file():
            raise DataError(
                f"{name!r} is no file of the folder; expected the path of an image below {folder}; "
                f"{table.place(IMAGE, row)}. Correct the path."
            )
        try:
            with Image.open(path) as opened:
                gray = opened.mode in ("1", "L", "I", "I;16", "F")
                picture = opened.convert("L" if gray else "RGB")
                if size is not None:
                    picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
                pictures.append(np.asarray(picture))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
            reason = str(problem).partition("\n")[0].rstrip(".")[:120]
            raise DataError(
                f"{name!r} cannot be read ({reason}); expected an image; {table.place(IMAGE, row)}. Replace the file."
            ) from None
    return _stack(table, pictures)


def needs_pictures(table: Table, layout: Layout) -> None:
    """Refuse a folder, or a size, of pictures where the features are no paths of pictures: it would be dropped."""
    used = layout.features is None and IMAGE not in layout.ignore
    if not used or IMAGE not in table.columns or table.columns[IMAGE].dtype.kind != "U":
        raise DataError(
            f"images= or image_size= without pictures to read; expected a column {IMAGE!r} of {table.name} with their "
            f"paths as the only feature, not {listed(table.columns)}. Leave them out, or correct the table."
        )
    if layout.images is not None and not layout.images.is_dir():
        raise DataError(
            f"images= {str(layout.images)!r} is no folder; expected the one that the paths in column {IMAGE!r} of "
            f"{table.name} start from. Correct the path."
        )


def _stack(table: Table, pictures: list[Any]) -> NDArray[Any]:
    colour = any(picture.ndim == 3 for picture in pictures)
    out: NDArray[Any] | None = None
    for row, picture in enumerate(pictures):
        planes = picture[None] if picture.ndim == 2 else np.moveaxis(picture, -1, 0)
        if colour and len(planes) == 1:
            planes = np.repeat(planes, 3, axis=0)
        if out is None:
            out = np.empty((len(pictures), *planes.shape), dtype=np.uint8)
        if planes.shape != out.shape[1:]:
            raise DataError(
                f"an image of {planes.shape[1]} x {planes.shape[2]} pixels; expected {out.shape[2]} x "
                f"{out.shape[3]}, as the first has; {table.place(IMAGE, row)}. Pass "
                "image_size=(height, width) to scale them."
            )
        out[row] = planes
    assert out is not None  # a table has at least one row
    return out


def _channels_first(table: Table, column: Column) -> NDArray[Any]:
    if column.ndim == 3:
        return column[:, None]
    if column.ndim == 4:
        return np.moveaxis(column, -1, 1) if column.shape[-1] in (1, 3, 4) else column
    raise DataError(
        f"an array of shape {column.shape}; expected paths, or pictures (N, height, width[, channels]); "
        f"{table.place(IMAGE)}. Rename the column if it holds features."
    )
