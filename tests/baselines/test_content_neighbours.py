"""Items with similar features: by hand, and without features."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec.baselines import baseline
from offrec.baselines.content_neighbours import DECAY, content_vectors
from offrec.data.item_properties import CategoryColumn, ItemProperties, VectorColumn
from offrec.data.replay import batch_from_histories
from offrec.errors import InputError

PROPERTIES = ItemProperties(
    None,
    (CategoryColumn("category", ("x", "y")),),
    np.array([[1], [1], [2], [0]], np.int32),
    (),
    np.zeros((4, 0), np.float32),
    (VectorColumn("image", 1),),
    np.array([[1.0], [-1.0], [1.0], [np.nan]], np.float32),
)


def test_a_vector_joins_categories_and_standardised_embeddings() -> None:
    vectors = content_vectors(PROPERTIES)
    image = (1 - 1 / 3) / (8 / 9) ** 0.5, (-1 - 1 / 3) / (8 / 9) ** 0.5
    expected = torch.tensor([[1.0, 0.0, image[0]], [1.0, 0.0, image[1]], [0.0, 1.0, image[0]], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(vectors[:3], expected[:3] / expected[:3].norm(dim=1, keepdim=True))
    assert vectors[3].tolist() == [0, 0, 0]  # an item without features


def test_recent_items_count_more(tmp_path: Path, make_dataset: Any) -> None:
    dataset = make_dataset(tmp_path, [[0, 1], [0, 3], [1, 2], [2, 0]], items=4, properties=PROPERTIES)
    policy = baseline("content-neighbours", dataset)
    vectors = content_vectors(PROPERTIES)
    head = policy.head(batch_from_histories([[0, 2]], 4, 50, torch.device("cpu")))
    expected = vectors @ (vectors[2] + DECAY * vectors[0])
    torch.testing.assert_close(head.at(torch.arange(4)[None])[0], expected, atol=1e-5, rtol=0)
    assert policy.recommend([100, 102], k=1).items == [102]
    assert policy.recommend([], k=1).items == [100]  # the most popular item of the two training sessions


def test_a_dataset_without_features_is_refused(tmp_path: Path, make_dataset: Any) -> None:
    with pytest.raises(InputError, match="no item features"):
        baseline("content-neighbours", make_dataset(tmp_path, [[0, 1]] * 4))
