"""All readers, and the choice of the one that a file needs."""

from __future__ import annotations

from pathlib import Path

from trainworks.errors import UsageError
from trainworks.measure.bench.measurement import Measurement
from trainworks.measure.bench.readers import links, node_programs
from trainworks.measure.bench.readers.collectives import NCCL_TESTS_READER, OSU_READER
from trainworks.measure.bench.readers.output import OutputReader, ToolOutput

JSON_READERS = (node_programs.FIO_JSON_READER, links.IPERF3_JSON_READER, links.NVBANDWIDTH_JSON_READER)
TEXT_READERS = (
    NCCL_TESTS_READER,
    links.PERFTEST_READER,
    OSU_READER,
    node_programs.FIO_TERSE_READER,
    links.IPERF3_READER,
    node_programs.STREAM_READER,
    node_programs.HPL_READER,
    node_programs.HPCC_READER,
    node_programs.MDTEST_READER,
    links.NVBANDWIDTH_READER,
)
_LARGEST_BYTES = 50_000_000


def read_file(path: Path) -> list[Measurement]:
    """The measurements in a file.

    Raises:
        UsageError: the file cannot be read, no reader knows it, or it is not complete.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise UsageError(f"{path.stat().st_size:,} bytes are too many for a benchmark", place=str(path))
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}") from None
    return read_output(ToolOutput(str(path), text))


def read_output(output: ToolOutput) -> list[Measurement]:
    """The measurements in what a program printed.

    Raises:
        UsageError: no reader knows it, several do, or it is not complete.
    """
    reader = _reader(output)
    try:
        return reader.read(output)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise output.error(f"the output of {reader.tool} has another form: {error}", 1) from None


def _reader(output: ToolOutput) -> OutputReader:
    found = {reader.tool: (line, reader) for reader in TEXT_READERS if (line := output.line_of(reader.signature))}
    for _, reader in list(found.values()):
        for tool in reader.includes:
            found.pop(tool, None)
    if (structured := _json_reader(output, is_text=bool(found))) is not None:
        found[f"{structured.tool}, JSON"] = (output.line_of(r"^\{") or 1, structured)
    if len(found) > 1:
        (_, first), (line, second) = sorted(found.values(), key=lambda each: each[0])[:2]
        raise output.error(
            f"the outputs of {first.tool} and of {second.tool} are in one file",
            line,
            hint="give each a file of its own",
        )
    if found:
        return next(reader for _, reader in found.values())
    tools = ", ".join(dict.fromkeys(reader.tool for reader in (*TEXT_READERS, *JSON_READERS)))
    raise output.error("this is not the output of a known benchmark", 1, hint=f"these are read: {tools}")


def _json_reader(output: ToolOutput, *, is_text: bool) -> OutputReader | None:
    """The reader of a JSON object; a line of another program's text may begin like one."""
    try:
        data = output.data
    except UsageError:
        if not is_text:
            raise
        return None
    return next((reader for reader in JSON_READERS if data is not None and reader.signature in data), None)
