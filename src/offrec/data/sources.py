"""From the words on the command line to blocks of text: files, globs, archives, encodings.

A block is a piece of a text file that ends at the end of a row. Blocks keep memory flat whatever the file's size, and
know where they stand, so that whatever is wrong further down the way can be named by file and line.
"""

import glob
import gzip
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, NoReturn

import zstandard

from offrec.errors import InputError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BLOCK_BYTES = 16 << 20
LONGEST_ROW_BYTES = 64 << 20
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"PK\x05\x06": "zip"}
ENDINGS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".zip": "zip"}


@dataclass(frozen=True)
class Source:
    """One table: a file, or one member of a zip archive."""

    path: Path
    member: str | None = None

    @property
    def name(self) -> str:
        return self.path.name if self.member is None else f"{self.path.name}:{self.member}"

    @property
    def stem(self) -> str:
        """The name of the table inside: without the folder, the archive and the compression's ending."""
        name = Path(self.member or self.path.name).name
        return name.removesuffix(Path(name).suffix) if Path(name).suffix in ENDINGS else name


@dataclass(frozen=True)
class Block:
    source: Source
    offset: int  # of the first byte in the unpacked table
    data: bytes
    skipped: int = 0  # lines between the offset and the data: the header

    def line(self, row: int) -> int:
        """The line in the file on which the row begins. Blank lines are no rows; quoted fields may hold line ends."""
        seen, quoted = -1, False
        for number, line in enumerate(self.data.split(b"\n"), self.first_line()):
            seen += bool(line) and not quoted
            if seen == row:
                return number
            quoted ^= bool(line.count(b'"') % 2)
        raise IndexError(row)

    def first_line(self) -> int:
        """Read again from the start: lines are only counted where something is wrong."""
        lines, left = 1 + self.skipped, self.offset
        for piece in pieces(self.source):
            lines += piece.count(b"\n", 0, left)
            left -= min(left, len(piece))
            if not left:
                break
        return lines


def find(words: Sequence[str | Path]) -> list[Source]:
    """The tables that file names and globs stand for, in the order given, each glob's matches sorted."""
    if not words:
        raise InputError("No source was given; name at least one file, or a glob in quotes.")
    found: list[Source] = []
    for path in (path for word in words for path in _expand(word)):
        found.extend(_members(path) if _packing(path) == "zip" else [Source(path)])
    seen: set[tuple[Path, str | None]] = set()
    for source in found:
        key = (source.path.resolve(), source.member)
        if key in seen:
            raise InputError(f"{source.name} was given twice, so its events would count double; name each file once.")
        seen.add(key)
    return found


def _expand(word: str | Path) -> list[Path]:
    path = Path(word)
    if path.is_file():
        return [path]
    if path.is_dir():
        raise InputError(f"{word} is a folder; name its files, for instance '{path / '*.csv'}'.")
    if not glob.has_magic(str(word)):
        raise InputError(f"{word} was not found; check the path.")
    matches = [Path(match) for match in sorted(glob.glob(str(word), recursive=True)) if Path(match).is_file()]
    if not matches:
        raise InputError(f"No file matches {word}; check the path.")
    return matches


def _packing(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise InputError(f"{path} cannot be opened ({error.strerror}); check its permissions.") from error
    if not start:
        raise InputError(f"{path.name} is empty; expected a table of events.")
    found = next((packing for magic, packing in MAGIC.items() if start.startswith(magic)), None)
    claimed = ENDINGS.get(path.suffix)
    if claimed and found != claimed:
        raise InputError(f"{path.name} is not a {claimed} file although its name says so; fetch it again or rename it.")
    return found


def _members(path: Path) -> list[Source]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
    except zipfile.BadZipFile as error:
        _damaged(path.name, error)
    names = [name for name in names if not name.startswith("__MACOSX/")]
    if not names:
        raise InputError(f"{path.name} is an empty archive; expected a table of events in it.")
    return [Source(path, name) for name in names]


def _damaged(name: str, error: Exception | str) -> NoReturn:
    cause = None if isinstance(error, str) else error
    raise InputError(
        f"{name} is truncated or damaged ({str(error).lower()}); fetch or write the file again."
    ) from cause


def pieces(source: Source, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The table's bytes, unpacked."""
    packing = _packing(source.path)
    try:
        with source.path.open("rb") as file:
            if packing == "gzip":
                yield from _read(gzip.GzipFile(fileobj=file), size)
            elif packing == "zstd":
                yield from _unpack_zstd(file, size)
            elif packing == "zip" and source.member is not None:
                with zipfile.ZipFile(file) as archive, archive.open(source.member) as member:
                    yield from _read(member, size)
            else:
                yield from _read(file, size)
    except (EOFError, OSError, zlib.error, zstandard.ZstdError, zipfile.BadZipFile, RuntimeError) as error:
        _damaged(source.name, error)


def _read(file: IO[bytes] | gzip.GzipFile, size: int) -> Iterator[bytes]:
    while piece := file.read(size):
        yield piece + file.readline()  # to the end of a line, which saves cutting there


def _unpack_zstd(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Frame by frame: the library's own file reader takes a truncated frame for the end of the file."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    begun = False
    while packed := file.read(size // 16):
        while packed:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            if unpacked := frame.decompress(packed):
                yield unpacked
            packed, begun = frame.unused_data, True
    if begun and not frame.eof:
        raise EOFError("it ends inside a compressed frame")


def whole(source: Source) -> bytes:
    return b"".join(pieces(source))


def blocks(source: Source) -> Iterator[Block]:
    """The text of a table in pieces of whole rows, checked to be UTF-8, with line ends as \\n."""
    offset, rest, empty = 0, b"", True
    stream = pieces(source)
    for piece in stream:
        data = rest + piece if rest else piece
        cut = _last_row_end(data)
        rest = data[cut:]
        if len(rest) > LONGEST_ROW_BYTES:
            raise InputError(f"{source.name} has a quote or a row that does not end; expected rows of text.")
        if cut:
            block = _checked(Block(source, offset, data[:cut]), chain([rest], stream))
            offset += cut
            if not block.data.isspace():
                empty = False
                yield block
    if rest and not rest.isspace():
        yield _checked(Block(source, offset, rest), stream)
    elif empty:
        raise InputError(f"{source.name} is empty; expected a table of events.")


def _last_row_end(data: bytes) -> int:
    """Where the last whole row ends: at a line end outside quotes. 0 where the data holds none."""
    cut = data.rfind(b"\n") + 1
    if b'"' in data:
        quoted = data.count(b'"', 0, cut) % 2
        while cut and quoted:
            earlier = data.rfind(b"\n", 0, cut - 1) + 1
            quoted ^= data.count(b'"', earlier, cut) % 2
            cut = earlier
    return cut


def _checked(block: Block, stream: Iterable[bytes]) -> Block:
    """The block in our spelling of text; `stream`, the rest of the table, is only read to count what is wrong."""
    data = block.data
    if b"\0" in data:
        line = block.first_line() + data.count(b"\n", 0, data.index(b"\0"))
        raise InputError(f"{block.source.name}, line {line}: a zero byte; expected UTF-8 text, not UTF-16 or binary.")
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            line = block.first_line() + data.count(b"\n", 0, error.start)
            bad = sum(map(_is_not_utf8, b"".join([data, *stream]).split(b"\n")))
            raise InputError(
                f"{block.source.name}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8, on the "
                + ("only such line" if bad == 1 else f"first of {bad:,} such lines")
                + "; convert the file, for instance with `iconv -f latin1 -t utf-8`."
            ) from error
        data = data.removeprefix(BYTE_ORDER_MARK) if block.offset == 0 else data
    return Block(block.source, block.offset, data.replace(b"\r\n", b"\n") if b"\r" in data else data)


def _is_not_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return True
    return False
