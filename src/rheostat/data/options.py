"""What a user can say about labelled text before it is read: `ReadOptions` and the words it accepts."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from pathlib import Path

from rheostat.errors import DataError, OptionError

SINGLE_LABEL = "single-label"
MULTI_LABEL = "multi-label"
REGRESSION = "regression"
TOKEN_CLASSIFICATION = "token-classification"  # a label a word
CAUSAL_LM = "causal-lm"  # the next token: texts are all there is
EMBEDDING = "embedding"  # a vector a text: texts are all there is
TASKS = (SINGLE_LABEL, MULTI_LABEL, REGRESSION, TOKEN_CLASSIFICATION, CAUSAL_LM, EMBEDDING)
UNLABELLED = (CAUSAL_LM, EMBEDDING)
SEVERAL_LABELS = (MULTI_LABEL, TOKEN_CLASSIFICATION)  # a row has a list of them

DELIMITERS = {".csv": ",", ".tsv": "\t"}
FORMATS = {
    ".csv": "delimited",
    ".tsv": "delimited",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".conll": "conll",
}
# A shell makes it hard to type a real tab.
_SPELLED_DELIMITERS = {"\\t": "\t", "tab": "\t"}


@dataclass(frozen=True)
class ReadOptions:
    """Say how a labelled file is to be read.

    `delimiter=None` takes "," for .csv and a tab for .tsv, and checks it against the column names. `task=None` detects
    the task from the labels and states it; `causal-lm` and `embedding` read no labels. `label_separator` splits a label
    cell into several labels. `quotes=False` reads quote characters as plain text. `validation_share` is the share (0 to
    1) of the training rows that is held out when no validation file is given.

    >>> ReadOptions(label_column="topic").label_column
    'topic'
    """

    text_column: str = "text"
    text_pair_column: str | None = None
    label_column: str = "label"
    encoding: str = "utf-8"
    delimiter: str | None = None
    header: bool = True
    task: str | None = None
    label_separator: str | None = None
    validation_share: float = 0.1
    seed: int = 0
    quotes: bool = True

    def __post_init__(self) -> None:
        """Refuse values that can't be used, before any file is opened."""
        _check_columns(self)
        _check_encoding(self.encoding)
        if self.delimiter is not None and not _is_delimiter(spelled_delimiter(self.delimiter)):
            raise OptionError(f"delimiter must be one character; got {self.delimiter!r}. Use --delimiter ';' or 'tab'")
        if self.task is not None and self.task not in TASKS:
            raise OptionError(f"task must be one of {', '.join(TASKS)}; got {self.task!r}. Leave it out to detect it")
        _check_separator(self)
        share = self.validation_share
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
            raise OptionError(f"validation_share must be between 0 and 1; got {share!r}. Use 0.1 for a tenth")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise OptionError(f"seed must be a whole number, 0 or larger; got {self.seed!r}. Use --seed 0")


def _check_columns(options: ReadOptions) -> None:
    names = [options.text_column, *([] if options.task in UNLABELLED else [options.label_column])]
    if options.text_pair_column is not None:
        if options.task in (*UNLABELLED, TOKEN_CLASSIFICATION):
            raise OptionError(
                f"text_pair_column must be left out with task {options.task}; got {options.text_pair_column!r}: "
                "it reads one text a row. Join them in the file"
            )
        names.append(options.text_pair_column)
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise OptionError(f"a column name must be text; got {name!r}. Use the name in the file's first line")
    if len(set(names)) != len(names):
        raise OptionError(
            f"text, text pair and label must be different columns; got {names!r}. "
            "Set --text-column, --text-pair-column and --label-column"
        )


def _check_encoding(encoding: str) -> None:
    try:
        codecs.getincrementaldecoder(encoding)
        "a".encode(encoding)  # refuses codecs that are not text, such as "hex"
    except (LookupError, TypeError, ValueError) as error:
        raise OptionError(
            f"encoding must be one that Python knows; got {encoding!r}. Use utf-8, cp1252 or utf-16"
        ) from error


def _check_separator(options: ReadOptions) -> None:
    separator = options.label_separator
    if separator is None:
        return
    if not isinstance(separator, str) or not separator.strip():
        raise OptionError(f"label_separator must be text; got {separator!r}. Use --label-separator '|'")
    if options.task not in (None, MULTI_LABEL):
        raise OptionError(
            f"label_separator must go with task {MULTI_LABEL}; got {separator!r} with task {options.task!r}. "
            "Leave one of them out"
        )


def _is_delimiter(delimiter: str) -> bool:
    return len(delimiter) == 1 and delimiter not in '"\r\n'


def spelled_delimiter(delimiter: str) -> str:
    r"""Return the delimiter meant by what was typed.

    >>> spelled_delimiter("tab") == spelled_delimiter("\\t") == "\t"
    True
    """
    return _SPELLED_DELIMITERS.get(delimiter, delimiter)


def file_format(path: Path, options: ReadOptions) -> str:
    """Return "delimited", "jsonl", "parquet" or "conll" for a file name; with a set delimiter others are delimited."""
    known = FORMATS.get(path.suffix.lower())
    if known is not None:
        return known
    if options.delimiter is not None:
        return "delimited"
    raise DataError(
        f"{path}: a data file must end with one of {', '.join(FORMATS)}; got {path.suffix!r}. "
        "Save it as UTF-8 CSV, or say how its fields are separated with --delimiter"
    )


def delimiter_of(path: Path, options: ReadOptions) -> str:
    """Return the set delimiter, or the one of the file's ending."""
    if options.delimiter is not None:
        return spelled_delimiter(options.delimiter)
    return DELIMITERS.get(path.suffix.lower(), ",")


DEFAULTS = ReadOptions()
