from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gossamer.data import DATASETS, UNSCALED, Augmentation, Samples, Scaling, as_dataset, per_client
from gossamer.errors import DataError


def test_scaling_is_per_channel_for_any_leading_dimensions():
    inputs = torch.randint(0, 256, (2, 5, 3, 4, 4), dtype=torch.uint8)
    scaling = Scaling(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (scaling.mean, scaling.std))
    expected = (inputs.double() / 255 - mean) / std
    torch.testing.assert_close(scaling.apply(inputs, torch.float64), expected)
    assert scaling.apply(inputs, torch.float32).dtype == torch.float32


def test_scaling_of_one_channel_takes_any_shape():
    inputs = torch.tensor([0.0, 8.0, 16.0])
    torch.testing.assert_close(Scaling(16.0, (0.5,), (0.25,)).apply(inputs, torch.float32), torch.tensor([-2.0, 0, 2]))


def test_unscaled_floats_are_only_converted():
    inputs = torch.randn(3, 7, dtype=torch.float64)
    assert UNSCALED.apply(inputs, torch.float64) is inputs
    assert torch.equal(UNSCALED.apply(inputs, torch.float32), inputs.float())


def test_scaling_works_under_vmap():
    inputs = torch.randint(0, 256, (4, 2, 3, 5, 5), dtype=torch.uint8)
    scaling = Scaling(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    mapped = torch.vmap(lambda batch: scaling.apply(batch, torch.float32))(inputs)
    assert torch.equal(mapped, scaling.apply(inputs, torch.float32))


@pytest.mark.parametrize("shape", [(6, 3, 8, 8), (2, 3, 1, 5, 7)])
@pytest.mark.parametrize("pad", [0, 4])
def test_augmentation_at_the_centre_without_flip_changes_nothing(shape, pad):
    inputs = torch.randint(0, 256, shape, dtype=torch.uint8)
    still = torch.full(shape[:-3], pad)
    assert torch.equal(Augmentation(pad=pad).apply(inputs, still < 0, still, still), inputs)


def test_augmentation_flips_and_shifts_with_black():
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3).expand(2, 2, 3, 3)
    both = Augmentation(pad=1).apply(image, torch.tensor([True, False]), torch.tensor([1, 0]), torch.tensor([1, 2]))
    assert both[0, 0].tolist() == [[3, 2, 1], [6, 5, 4], [9, 8, 7]]
    assert both[1, 1].tolist() == [[0, 0, 0], [2, 3, 0], [5, 6, 0]]


def test_augmentation_is_a_crop_of_the_padded_image():
    augmentation = Augmentation(pad=2)
    inputs = torch.randint(0, 256, (40, 3, 6, 5), dtype=torch.uint8)
    draw = augmentation.draw(np.random.default_rng(0), 40)
    result = augmentation.apply(inputs, *(torch.from_numpy(v) for v in (draw.flips, draw.rows, draw.columns)))
    framed = torch.nn.functional.pad(inputs, (2, 2, 2, 2))
    for i, (flip, row, column) in enumerate(zip(draw.flips, draw.rows, draw.columns, strict=True)):
        crop = framed[i, :, row : row + 6, column : column + 5]
        assert torch.equal(result[i], crop.flip(-1) if flip else crop)


def test_augmentation_works_under_vmap():
    augmentation = Augmentation(pad=2)
    inputs = torch.randint(0, 256, (4, 5, 3, 6, 6), dtype=torch.uint8)
    drawn = augmentation.draw(np.random.default_rng(0), 20)
    choices = [torch.from_numpy(v).view(4, 5) for v in (drawn.flips, drawn.rows, drawn.columns)]
    assert torch.equal(torch.vmap(augmentation.apply)(inputs, *choices), augmentation.apply(inputs, *choices))


def test_augmentation_rules():
    rows = 4000
    always = Augmentation().draw(np.random.default_rng(1), rows)
    half = Augmentation(rule="half").draw(np.random.default_rng(1), rows)
    centred = lambda d: float(((d.rows == 4) & (d.columns == 4)).mean())  # noqa: E731
    assert 0.45 < always.flips.mean() < 0.55
    assert set(always.rows) == set(range(9))
    assert centred(always) < 0.05
    assert 0.45 < centred(half) < 0.56
    assert not Augmentation(flip=False).draw(np.random.default_rng(1), rows).flips.any()


def test_own_arrays_keep_their_owners():
    first = (np.zeros((2, 1, 4, 4), np.uint8), [0, 1])
    second = (torch.ones(3, 1, 4, 4, dtype=torch.uint8), torch.tensor([2, 2, 1], dtype=torch.int32))
    data = per_client([first, ([], []), second], test=(np.ones((1, 1, 4, 4), np.uint8), np.array([1])), name="mine")
    assert (data.name, data.classes, data.shape, data.scaling) == ("mine", 3, (1, 4, 4), Scaling())
    assert [owner.tolist() for owner in data.clients] == [[0, 1], [], [2, 3, 4]]
    assert data.train.inputs.dtype == torch.uint8
    assert data.train.targets.tolist() == [0, 1, 2, 2, 1]
    assert data.train.targets.dtype == torch.int64
    assert len(data.test) == 1


def test_own_arrays_without_a_test_set():
    data = per_client([(np.zeros((2, 3)), [0, 1])])
    assert isinstance(data.test, Samples)
    assert data.test.inputs.shape == (0, 3)
    assert data.test.targets.shape == (0,)
    assert data.scaling == UNSCALED


def test_own_arrays_that_numpy_would_not_hand_to_torch():
    frozen = np.arange(6.0).reshape(3, 2)
    frozen.flags.writeable = False
    data = per_client([(frozen[::-1], np.array([0, 1, 1], np.uint16))], classes=5)
    assert data.train.inputs[0].tolist() == [4, 5]
    assert data.classes == 5


def test_own_regression():
    data = per_client([(np.zeros((2, 3)), np.array([0.5, 1.5])), (np.ones((1, 3)), np.array([2.5]))])
    assert data.classes == 1
    assert data.train.targets.is_floating_point()
    assert per_client([(np.zeros((2, 3)), np.zeros((2, 4)))]).classes == 4


X, Y = np.zeros((2, 3)), np.array([0, 1])


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        ([], {}, "no client holds a sample"),
        ([([], [])], {}, "no client holds a sample"),
        ([(X, Y), X[0]], {}, r"client 1: expected a pair \(inputs, targets\), got ndarray"),
        ([(X, Y), 7], {}, "client 1: expected a pair"),
        ([(X, Y), (X, [0])], {}, "client 1: 2 inputs but 1 targets"),
        ([(X, Y), (np.zeros((2, 4)), Y)], {}, r"client 1: inputs of shape \(4,\), but client 0 has \(3,\)"),
        ([(X, Y), (X.astype(np.uint8), Y)], {}, "client 1: inputs are torch.uint8, but those of client 0"),
        ([(X, Y), (X, Y.astype(float))], {}, "client 1: targets are torch.float64"),
        ([(X, [[0.5], [1]]), (X, [0.5, 1])], {}, r"client 1: targets of shape \(2,\) do not fit"),
        ([(X, Y), (np.array([[0, 0, 0], [0, np.nan, 0]]), Y)], {}, "client 1: inputs: row 1 is not finite"),
        ([(X, np.array([0.5, np.inf]))], {}, "client 0: targets: row 1 is not finite"),
        ([(X, Y), (X, [0, -1])], {}, "client 1: label -1 in row 1, expected 0 to 1"),
        ([(X, Y), (X, [0, 9])], {"classes": 3}, "client 1: label 9 in row 1, expected 0 to 2"),
        ([(X, Y)], {"test": (X, [0, 5]), "classes": 2}, "the test set: label 5 in row 1"),
        ([(X, Y * 1.0)], {"classes": 2}, "client 0: targets are torch.float64, but classes=2"),
        ([(X, [[0], [1]])], {}, r"client 0: labels of shape \(2, 1\)"),
        ([(X, ["cat", "dog"])], {}, "client 0: targets: not an array of numbers"),
        ([([[1, 2], [3]], Y)], {}, "client 0: inputs: not an array of numbers"),
        ([(3.0, Y)], {}, "client 0: inputs: a single number"),
    ],
)
def test_own_arrays_that_are_wrong(clients, options, message):
    with pytest.raises(DataError, match=message):
        per_client(clients, **options)


def test_integers_stay_integers_for_an_embedding():
    for kind in (np.int64, np.int32, bool):
        data = per_client([(np.ones((2, 3), kind), Y)])
        scaled = data.scaling.apply(data.train.inputs, torch.float64)
        assert scaled.dtype == data.train.inputs.dtype == torch.from_numpy(np.ones(1, kind)).dtype
    assert per_client([(np.ones((2, 3), np.int16), Y)]).train.inputs.dtype == torch.int64
    assert per_client([(torch.ones(2, 3, dtype=torch.int8), Y)]).train.inputs.dtype == torch.int64


def test_inputs_with_names():
    first = {"ids": [[1, 2], [3, 4]], "age": [0.5, 1.5]}
    second = {"age": [2.5], "ids": [[5, 6]]}  # in another order
    data = per_client([(first, [0, 1]), (second, [1])], test=(first, [0, 1]))
    assert data.shape == {"age": (), "ids": (2,)}
    assert data.train.inputs["ids"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert data.train.inputs["age"].tolist() == [0.5, 1.5, 2.5]
    scaled = data.scaling.apply(data.train[:1].inputs, torch.float32)
    assert scaled["ids"].dtype == torch.int64
    assert scaled["age"].dtype == torch.float32


def test_of_inputs_with_names_only_bytes_are_scaled():
    data = per_client([({"image": np.full((1, 2), 255, np.uint8), "age": [3.0]}, [0])])
    scaled = data.scaling.apply(data.train.inputs, torch.float32)
    assert scaled["image"].tolist() == [[1, 1]]
    assert scaled["age"].tolist() == [3]


def test_labels_of_tokens_may_be_left_out():
    data = per_client([(np.zeros((2, 3)), [[0, 4, -100], [1, -100, -100]])])
    assert data.classes == 5
    with pytest.raises(DataError, match=r"label -1 in row 1, expected 0 to 4, or -100 for a token"):
        per_client([(np.zeros((2, 3)), [[0, 4, -100], [1, -1, -100]])])


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        ([(X, Y), (X, [0, 10**9])], {}, "client 1: label 1000000000 in row 1 would make 1,000,000,001 classes of 4"),
        ([(X, Y)], {"test": (X, [0, 7])}, "the test set: label 7 in row 1, expected 0 to 1 as in .* Give classes=8"),
        ([({"a": X}, Y), ({"b": X}, Y)], {}, "client 1: inputs of shape {'b'"),
        ([({"a": X, "b": X[:1]}, Y)], {}, "client 0: 1 inputs but 2 targets"),
        ([({}, Y)], {}, "client 0: inputs with names need"),
        ([(X, Y)], {"classes": "3"}, "classes: should be a whole number, at least 1 .got '3'"),
        ([(X, Y)], {"classes": 0}, "classes: should be a whole number, at least 1 .got 0"),
    ],
)
def test_own_samples_that_cannot_be_meant(clients, options, message):
    with pytest.raises(DataError, match=message):
        per_client(clients, **options)


def test_a_label_beyond_the_classes_of_a_finished_data_set_is_refused_and_not_counted():
    data = per_client([(X, Y)])
    wrong = replace(data, train=Samples(data.train.inputs, torch.tensor([0, 10**9])), clients=None)
    with pytest.raises(DataError, match="training samples: label 1000000000 in row 1, expected 0 to 1"):
        as_dataset(wrong, Path())


def test_a_text_is_windows_of_characters(tmp_path):
    (tmp_path / "book.txt").write_text("abcab" * 20 + "a", encoding="utf-8")
    data = as_dataset(DATASETS.build({"name": "characters", "file": "book.txt", "length": 5}), tmp_path)
    assert (len(data.train), len(data.test), data.classes, data.shape) == (18, 2, 3, (5,))
    assert data.train.inputs[0].tolist() == [0, 1, 2, 0, 1]
    assert data.train.targets[0].tolist() == [1, 2, 0, 1, 0]
    with pytest.raises(DataError, match="101 characters, too few for windows of 90"):
        as_dataset(DATASETS.build({"name": "characters", "file": "book.txt", "length": 90}), tmp_path)
    with pytest.raises(DataError, match=r"none.txt: cannot be read"):
        as_dataset(DATASETS.build({"name": "characters", "file": "none.txt"}), tmp_path)
