"""Tables of items: columns, ids, unknown values, bad input, and the dataset folder."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import offrec
from offrec.data.dataset import Dataset
from offrec.data.item_files import absent_columns, encode_properties, read_item_rows, unseen_ids
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError


def write_log(folder: Path) -> Path:
    """Write a log of the items a, b and c."""
    rows = [(session, item) for session in range(20) for item in ("a", "b", "c")[: 2 + session % 2]]
    path = folder / "log.csv"
    path.write_text("session,item\n" + "".join(f"{session},{item}\n" for session, item in rows))
    return path


ITEMS = pl.DataFrame(
    {
        "id": ["c", "a", "new"],
        "title": ["Cup", "Ämter", None],
        "category": ["kitchen", "kitchen", "kitchen"],
        "price": [2.5, None, 4.0],
        "image": [[1.0, 2.0], [3.0, 4.0], None],
    }
)


def test_columns_are_stored_for_the_items_of_the_log(tmp_path: Path) -> None:
    ITEMS.write_parquet(tmp_path / "items.parquet")
    lines: list[str] = []
    dataset = offrec.prepare(
        write_log(tmp_path), out=tmp_path / "data", items=(str(tmp_path / "items.parquet"),), progress=lines.append
    )
    properties = dataset.item_properties
    assert properties is not None
    assert dataset.vocabulary.ids == ["a", "b", "c"]
    assert properties.titles == ["Ämter", "", "Cup"]
    assert properties.categories[0].values == ("kitchen",)
    assert properties.codes.tolist() == [[1], [0], [1]]
    np.testing.assert_array_equal(properties.numbers, np.array([[np.nan], [np.nan], [2.5]], np.float32))
    np.testing.assert_array_equal(properties.vectors, np.array([[3, 4], [np.nan] * 2, [1, 2]], np.float32))
    assert any("1 of 3 items are not in items.parquet" in line for line in lines)
    assert any("1 items of items.parquet are not in the log" in line for line in lines)


def test_unseen_items_join_the_catalogue_only_on_request(tmp_path: Path) -> None:
    ITEMS.write_parquet(tmp_path / "items.parquet")
    dataset = offrec.prepare(
        write_log(tmp_path),
        out=tmp_path / "data",
        items=(str(tmp_path / "items.parquet"),),
        keep_unseen_items=True,
    )
    assert dataset.vocabulary.ids == ["a", "b", "c", "new"]
    assert dataset.n_items == 4
    assert dataset.train_counts[3] == 0
    with pytest.raises(InputError, match="--keep-unseen-items needs --items"):
        offrec.prepare(write_log(tmp_path), out=tmp_path / "other", keep_unseen_items=True)


def test_csv_keeps_the_spelling_of_ids_and_reads_lists(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_text('item,category,stock,image\n007,1,5,"[0.5, 1]"\n7,1,,"[1, 2]"\n8,2,3,\n')
    properties = encode_properties(read_item_rows([path]), Vocabulary(["7", "007", "8"]))
    assert properties.titles is None
    assert properties.categories[0].values == ("1",)  # category 2 has a single item
    assert properties.codes.tolist() == [[1], [1], [0]]
    np.testing.assert_array_equal(properties.numbers[:, 0], [np.nan, 5, 3])
    np.testing.assert_array_equal(properties.vectors, [[1, 2], [0.5, 1], [np.nan, np.nan]])


def test_new_items_use_the_columns_and_categories_of_training(tmp_path: Path) -> None:
    ITEMS.write_parquet(tmp_path / "items.parquet")
    known = encode_properties(read_item_rows([tmp_path / "items.parquet"]), Vocabulary(["a", "c"]))
    path = tmp_path / "new.csv"
    path.write_text("id,category,colour\nx,kitchen,red\ny,garden,red\n")
    new = encode_properties(read_item_rows([path]), Vocabulary(["x", "y"]), like=known)
    assert new.codes.tolist() == [[1], [0]]
    assert np.isnan(new.numbers).all()
    assert new.vectors.shape == (2, 2)
    assert "ignored columns of new.csv: colour" in new.notes
    assert len(known.append(new)) == 4
    assert known.append(new).titles == ["Ämter", "Cup", "", ""]


def test_new_items_have_the_kinds_of_training(tmp_path: Path) -> None:
    """Alone, the new file would have a number, a category and a category."""
    path = tmp_path / "items.csv"
    path.write_text('id,brand,category,price,image\n1,012,7,1.5,"[1]"\n2,012,7,2,"[2]"\n3,A7,8,,\n4,A7,8,3,\n')
    known = encode_properties(read_item_rows([path]), Vocabulary(np.arange(1, 5)))
    new = tmp_path / "new.csv"
    new.write_text("id,brand,category,price,image\n5,012,007,,\n6,12,8,,\n")
    rows = read_item_rows([new], like=known)
    found = encode_properties(rows, Vocabulary(np.array([5, 6])), like=known)
    assert [one.values for one in found.categories] == [("012", "A7"), ("7", "8")]
    assert found.codes.tolist() == [[1, 1], [0, 2]]
    assert np.isnan(found.numbers).all()
    assert absent_columns(rows, known) == ["image", "price"]
    for text, message in [
        ("id,price\n5,cheap\n", "column 'price' contains 'cheap'; it was a number in training"),
        ("id,image\n5,cheap\n", "column 'image' does not contain lists of numbers; it was an embedding"),
    ]:
        new.write_text(text)
        with pytest.raises(InputError, match=message):
            encode_properties(read_item_rows([new], like=known), Vocabulary(np.array([5])), like=known)
    new.write_text("id,colour\n5,red\n")
    with pytest.raises(InputError, match="has no values in the columns brand, category, image, price"):
        absent_columns(read_item_rows([new], like=known), known)


def test_ids_use_the_whole_range_of_64_bits(tmp_path: Path) -> None:
    path, vocabulary = tmp_path / "items.csv", Vocabulary(np.array([1]))
    limits = [2**63 - 1, -(2**63)]
    path.write_text("id,price\n" + "".join(f"{one},2\n" for one in (1, *limits)))
    assert np.asarray(unseen_ids(read_item_rows([path]), vocabulary)).tolist() == limits
    for bad in (2**63, -(2**63) - 1, "9" * 5000, "007", "x"):
        path.write_text(f"id,price\n{bad},2\n")
        with pytest.raises(InputError, match="but the ids of the log are 64-bit integers"):
            unseen_ids(read_item_rows([path]), vocabulary)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,price\n1,2\n1,3\n", "contains item '1' twice"),
        ("sku,price\n1,2\n", "expected a column of item ids"),
        ("id,price\n,2\n", "1 rows without an id"),
        ("id,price\n1,inf\n", "infinite"),
        ('id,image\n1,"[1, 2]"\n2,"[1]"\n', "lists of length 1, 2"),
        ('id,image\n1,"[1, x]"\n', "not \\[number"),
        ("id,price\n", "has no rows; expected"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "items.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        encode_properties(read_item_rows([path]), Vocabulary(np.array([1, 2])))
    assert "items.csv" in str(caught.value)


def test_damaged_properties_are_refused(tmp_path: Path) -> None:
    ITEMS.write_parquet(tmp_path / "items.parquet")
    offrec.prepare(write_log(tmp_path), out=tmp_path / "data", items=(str(tmp_path / "items.parquet"),))
    codes = np.load(tmp_path / "data/item_codes.npy")
    np.save(tmp_path / "data/item_codes.npy", codes + 1)
    with pytest.raises(InputError, match="item_codes"):
        Dataset.open(tmp_path / "data")


def test_codes_outside_the_categories_are_refused(tmp_path: Path) -> None:
    """The checksums of a folder that was changed on purpose are right."""
    from offrec.data.item_properties import decode_properties

    ITEMS.write_parquet(tmp_path / "items.parquet")
    properties = encode_properties(read_item_rows([tmp_path / "items.parquet"]), Vocabulary(["a", "c"]))
    about = json.loads(json.dumps(properties.as_json()))
    assert decode_properties(about, properties.arrays(), 2).codes.tolist() == properties.codes.tolist()
    for name, array in (("item_codes", properties.codes + 1), ("item_numbers", properties.numbers + np.inf)):
        with pytest.raises(ValueError, match=name):
            decode_properties(about, properties.arrays() | {name: array}, 2)


def test_retailrocket_item_properties_become_one_row_per_item(tmp_path: Path) -> None:
    (tmp_path / "item_properties_part1.csv").write_text(
        "timestamp,itemid,property,value\n"
        "1435460400000,460429,categoryid,1338\n"
        "1441508400000,206783,888,1116713 960601 n277.200\n"
        "1439089200000,395014,790,n12360.000\n"
        "1431226800000,59481,790,n15360.000\n"
    )
    (tmp_path / "item_properties_part2.csv").write_text(
        "timestamp,itemid,property,value\n"
        "1433041200000,460429,categoryid,1\n"
        "1433041200000,59481,available,1\n"
        "1433041200000,206783,categoryid,1338\n"
    )
    rows = read_item_rows([str(tmp_path / "item_properties_part*.csv")])
    properties = encode_properties(rows, Vocabulary(np.array([59481, 206783, 395014, 460429])))
    assert [one.name for one in properties.categories] == ["category", "property 888"]
    assert properties.categories[0].values == ("1338",)  # the latest value of 460429, not the last row
    assert properties.codes[:, 0].tolist() == [0, 1, 0, 1]
    assert properties.number_names == ("available", "property 790")
    np.testing.assert_array_equal(properties.numbers[:, 1], [15360, np.nan, 12360, np.nan])
