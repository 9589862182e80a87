"""Turn paths from the command line into blocks of text: files, globs, archives and encodings.

A block is a part of a text file that ends at the end of a row. Reading by blocks bounds the memory for files of any
size. A block knows its offset in the file, so that messages can name file and line.

Three limits protect against files that would fill the memory: a row has at most 64 MiB, an archive at most 10,000
members, and a compressed file unpacks to at most 1 GiB or 250 times its size, whichever is more. Only regular files are
read, because a device or a FIFO may never end.
"""

import glob
import gzip
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, NoReturn
from urllib.parse import unquote

import zstandard

from offrec.data.remote_files import is_url, list_files
from offrec.errors import InputError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BLOCK_BYTES = 16 << 20
MAX_ROW_BYTES = 64 << 20
MAX_MEMBERS = 10_000
UNPACKED_BYTES, UNPACKED_RATIO = 1 << 30, 250  # a compressed file may unpack to the larger of both limits
ZSTD_INPUT = 4 << 10  # 4 compressed bytes can unpack to 128 KiB, so one step yields at most 128 MiB
MAGIC_BYTES = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"PK\x05\x06": "zip"}
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
PARQUET_SUFFIXES = (".parquet", ".pq")
SUFFIXES = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".zip": "zip"}


@dataclass(frozen=True)
class Source:
    """One table: a file or a member of a zip archive."""

    path: Path
    member: str | None = None
    folder: Path | None = None  # the folder that was given as the source, if the file was found in it
    url: str | None = None  # of a file in an object store; `path` is then only its name
    url_bytes: int = 0

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self.path.stat().st_size if self.url is None else self.url_bytes

    @property
    def name(self) -> str:
        """The name for messages: the file name, with the path in its folder and the member if there is one."""
        if self.folder is not None:
            return str(self.path.relative_to(self.folder.parent))
        return self.path.name if self.member is None else f"{self.path.name}:{self.member}"

    @property
    def partitions(self) -> list[tuple[str, str | None]]:
        """The columns and values of hive partitions: the folders COLUMN=VALUE between the folder and the file."""
        parts = () if self.folder is None else self.path.relative_to(self.folder).parts[:-1]
        pairs = [part.partition("=")[::2] for part in parts if "=" in part]
        return [(unquote(name), None if value == HIVE_NULL else unquote(value)) for name, value in pairs]

    @property
    def stem(self) -> str:
        """The file name of the table itself: without folder, archive and compression suffix."""
        name = Path(self.member or self.path.name).name
        return name.removesuffix(Path(name).suffix) if Path(name).suffix in SUFFIXES else name


@dataclass(frozen=True)
class Block:
    """A block of complete rows of a text table.

    Args:
        source: The table.
        offset: The offset of the block in the decompressed table.
        data: The rows.
        skipped: The number of lines between `offset` and `data`, such as the header.
        position: How far the file, which may be compressed, has been read, in bytes.
    """

    source: Source
    offset: int
    data: bytes
    skipped: int = 0
    position: int = 0

    def line(self, row: int) -> int:
        """Return the line on which a row starts. Blank lines are not rows; quoted fields may contain line ends.

        A quote that does not end joins all further lines to its row. Then the line of that row is returned for them.
        """
        last_row, quoted, start = -1, False, 0
        for number, line in enumerate(self.data.split(b"\n"), self.first_line()):
            if line and not quoted:
                last_row, start = last_row + 1, number
            if last_row == row:
                break
            quoted ^= bool(line.count(b'"') % 2)
        return start

    def first_line(self) -> int:
        """Return the line on which the block starts. It reads the file again: only messages need line numbers."""
        lines, remaining = 1 + self.skipped, self.offset
        for chunk in read_chunks(self.source):
            lines += chunk.count(b"\n", 0, remaining)
            remaining -= min(remaining, len(chunk))
            if not remaining:
                break
        return lines


def find(paths: str | Path | Sequence[str | Path]) -> list[Source]:
    """Return the tables that paths and globs name.

    Args:
        paths: One or more files, globs, folders of Parquet files, and URLs of such files and folders. A zip archive
            represents all of its members.

    Returns:
        The tables in the order of `paths`. The matches of a glob and the files of a folder are sorted by their paths.

    Raises:
        InputError: If a path does not exist, a glob matches nothing, or a table is named twice.
    """
    if not paths:
        raise InputError("No source was given; name at least one file, or a glob in quotes.")
    tables: list[Source] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        if is_url(path):
            tables.extend(_remote_parquet_files(str(path)))
            continue
        if Path(path).is_dir():
            tables.extend(_parquet_files(Path(path)))
            continue
        for file in _expand(path):
            tables.extend(_members(file) if _compression(file) == "zip" else [Source(file)])
    seen: set[tuple[Path | str, str | None]] = set()
    for source in tables:
        key = (source.url or source.path.resolve(), source.member)
        if key in seen:
            raise InputError(f"{source.name} was given twice, so its events would count twice; name each file once.")
        seen.add(key)
    return tables


def _parquet_files(folder: Path) -> list[Source]:
    """Return the Parquet files of a folder and its sub-folders. Names that begin with . or _ are skipped."""
    entries = (path for path in sorted(folder.rglob("*")) if not _is_hidden(path.relative_to(folder)))
    files = [path for path in entries if not path.is_dir()]
    tables = [path for path in files if path.suffix in PARQUET_SUFFIXES]
    if not tables:
        if any(path.match("decisions-*.jsonl*") for path in files):
            raise InputError(f"{folder} contains a decision log of offrec serve; add --format served.")
        raise InputError(
            f"{folder} is a folder without Parquet files; name its files, for instance '{folder / '*.csv'}'."
        )
    if others := [path for path in files if path.suffix not in PARQUET_SUFFIXES]:
        raise InputError(
            f"{folder} contains {others[0].relative_to(folder)}, which is not a Parquet file; move it, or name the "
            f"files to read, for instance '{folder / '**' / '*.parquet'}'."
        )
    for path in tables:
        if not path.is_file():
            raise InputError(f"{path} is not a regular file; remove it, or write its content to a file.")
        _compression(path)  # checks that the file can be opened and is not empty
    return [Source(path, folder=folder) for path in tables]


def _remote_parquet_files(url: str) -> list[Source]:
    """Return the Parquet files under a URL. Names that begin with . or _ are skipped."""
    folder = Path(url.partition("://")[2].rstrip("/"))
    files = {name: file for name, file in list_files(url).items() if not _is_hidden(Path(name))}
    if not files:
        raise InputError(f"{url} contains no Parquet files; write the log there as Parquet.")
    for name in files:
        if Path(name).suffix not in PARQUET_SUFFIXES:
            raise InputError(f"{url} contains {name}, which is not a Parquet file; only these can be read from a URL.")
    return [Source(folder / name, None, folder, file, size) for name, (file, size) in files.items()]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _expand(pattern: str | Path) -> list[Path]:
    path = Path(pattern)
    if path.is_file():
        return [path]
    if path.exists():
        raise InputError(f"{pattern} is not a regular file; write its content to a file first.")
    if not glob.has_magic(str(pattern)):
        raise InputError(f"{pattern} does not exist; check the path.")
    matches = [Path(match) for match in sorted(glob.glob(str(pattern), recursive=True)) if Path(match).is_file()]
    if not matches:
        raise InputError(f"{pattern} matches no file; check the path.")
    return matches


def _compression(path: Path) -> str | None:
    """Determine the compression from the file's first bytes; the suffix must agree."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise InputError(f"{path} cannot be opened ({error.strerror}); check its permissions.") from error
    if not start:
        raise InputError(f"{path.name} is empty; expected a table of events.")
    compression = next((name for magic, name in MAGIC_BYTES.items() if start.startswith(magic)), None)
    expected = SUFFIXES.get(path.suffix)
    if expected and compression != expected:
        raise InputError(f"{path.name} is not a {expected} file although its name ends in {path.suffix}; rename it.")
    return compression


def _members(path: Path) -> list[Source]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, OSError) as error:
        _damaged(path.name, error)
    names = [name for name in names if not name.startswith("__MACOSX/")]
    if len(names) > MAX_MEMBERS:
        raise InputError(f"{path.name} contains {len(names):,} files; expected at most {MAX_MEMBERS:,}: unpack it.")
    if not names:
        raise InputError(f"{path.name} is an archive without files; expected a table of events.")
    return [Source(path, name) for name in names]


def _damaged(name: str, error: Exception | str) -> NoReturn:
    cause = None if isinstance(error, str) else error
    raise InputError(
        f"{name} is truncated or damaged ({str(error).lower()}); download or write the file again."
    ) from cause


def read_chunks(
    source: Source, size: int = BLOCK_BYTES, *, on_read: Callable[[int], None] | None = None
) -> Iterator[bytes]:
    """Yield the decompressed bytes of a table in chunks of about `size` bytes.

    Args:
        source: The table.
        size: The approximate size of a chunk.
        on_read: Called before each chunk with the position in the file, which may be compressed.
    """
    compression = _compression(source.path)
    stored = source.path.stat().st_size
    limit = max(UNPACKED_BYTES, UNPACKED_RATIO * stored)
    unpacked = 0
    for chunk in _read_all_chunks(source, compression, size, on_read or (lambda position: None)):
        unpacked += len(chunk)
        if compression is not None and unpacked > limit:
            raise InputError(
                f"{source.name} unpacks from {stored:,} to more than {limit:,} bytes; expected at most "
                f"{UNPACKED_RATIO} times its size: unpack the file and check its content."
            )
        yield chunk


def _read_all_chunks(
    source: Source, compression: str | None, size: int, on_read: Callable[[int], None]
) -> Iterator[bytes]:
    try:
        with source.path.open("rb") as file, ExitStack() as opened:
            if compression == "gzip":
                chunks = _read(gzip.GzipFile(fileobj=file), size)
            elif compression == "zstd":
                chunks = _decompress_zstd(file, size)
            elif compression == "zip" and source.member is not None:
                archive = opened.enter_context(zipfile.ZipFile(file))
                chunks = _read(opened.enter_context(archive.open(source.member)), size)
            else:
                chunks = _read(file, size)
            for chunk in chunks:
                on_read(file.tell())
                yield chunk
    except (EOFError, OSError, zlib.error, zstandard.ZstdError, zipfile.BadZipFile, RuntimeError) as error:
        _damaged(source.name, error)


def _read(file: IO[bytes] | gzip.GzipFile, size: int) -> Iterator[bytes]:
    while chunk := file.read(size):
        # Ends at a line end, so that fewer rows are split between chunks. Rows that are too long are reported later.
        yield chunk + file.readline(MAX_ROW_BYTES + 1)


def _decompress_zstd(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Decompress frame by frame: the library's own file reader treats a truncated frame as the end of the file."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    has_data = False
    chunks, length = list[bytes](), 0
    while compressed := file.read(ZSTD_INPUT):
        while compressed:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            chunks.append(frame.decompress(compressed))
            length += len(chunks[-1])
            if length >= size:
                yield b"".join(chunks)
                chunks, length = [], 0
            compressed, has_data = frame.unused_data, True
    if length:
        yield b"".join(chunks)
    if has_data and not frame.eof:
        raise EOFError("it ends inside a compressed frame")


def read_all(source: Source) -> bytes:
    """Return all decompressed bytes of a table."""
    return b"".join(read_chunks(source))


def read_blocks(source: Source) -> Iterator[Block]:
    """Yield the text of a table as blocks of complete rows in valid UTF-8, with \\n as line end."""
    offset, rest, is_empty, position = 0, b"", True, 0

    def on_read(bytes_read: int) -> None:
        nonlocal position
        position = bytes_read

    stream = read_chunks(source, on_read=on_read)
    for chunk in stream:
        data = rest + chunk if rest else chunk
        end = _last_row_end(data)
        rest = data[end:]
        if len(rest) > MAX_ROW_BYTES:
            raise InputError(f"{source.name} has a quote or a row that does not end; expected rows of text.")
        if end:
            block = _normalise(Block(source, offset, data[:end], position=position), chain([rest], stream))
            offset += end
            if not block.data.isspace():
                is_empty = False
                yield block
    if rest and not rest.isspace():
        yield _normalise(Block(source, offset, rest, position=position), stream)
    elif is_empty:
        raise InputError(f"{source.name} is empty; expected a table of events.")


def _last_row_end(data: bytes) -> int:
    """Return the end of the last complete row: after a line end outside quotes; 0 if the data has none."""
    end = data.rfind(b"\n") + 1
    if b'"' in data:
        quoted = data.count(b'"', 0, end) % 2
        while end and quoted:
            earlier = data.rfind(b"\n", 0, end - 1) + 1
            quoted ^= data.count(b'"', earlier, end) % 2
            end = earlier
    return end


def _normalise(block: Block, stream: Iterable[bytes]) -> Block:
    """Check that a block is UTF-8, and remove the byte order mark and carriage returns.

    Args:
        block: The block.
        stream: The rest of the table. It is read only to count the bad lines for a message.
    """
    data = block.data
    if b"\0" in data:
        line = block.first_line() + data.count(b"\n", 0, data.index(b"\0"))
        raise InputError(f"{block.source.name}, line {line}: a zero byte; expected UTF-8 text, not UTF-16 or binary.")
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            line = block.first_line() + data.count(b"\n", 0, error.start)
            lines = _count_bad_lines(chain([data], stream))
            count = "the only such line" if lines == 1 else f"the first of {lines:,} such lines"
            raise InputError(
                f"{block.source.name}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8 ({count}); "
                "convert the file, for instance with `iconv -f latin1 -t utf-8`."
            ) from error
        data = data.removeprefix(BYTE_ORDER_MARK) if block.offset == 0 else data
    return replace(block, data=data.replace(b"\r\n", b"\n") if b"\r" in data else data)


def _count_bad_lines(chunks: Iterable[bytes]) -> int:
    """Count the lines that are not UTF-8; a line may continue in the next chunk."""
    bad, rest = 0, b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        bad += sum(map(_is_not_utf8, lines))
        if len(rest) > MAX_ROW_BYTES:
            break
    return bad + _is_not_utf8(rest)


def _is_not_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return True
    return False
