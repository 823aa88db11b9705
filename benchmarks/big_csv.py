"""Measure reading, checking and tokenizing a large CSV file: rows a second and memory, as JSON with the conditions.

    python benchmarks/big_csv.py --rows 2000000 --output benchmarks/results/big_csv.json
    python benchmarks/big_csv.py --rows 100000 --tokenizer bert-base-uncased

A file of invented support texts is written to a temporary folder, then read by a fresh process at a tenth of the rows
and at all of them, so that memory can be compared: flat means that it does not grow with the file.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

LABELS = ("billing", "shipping", "technical", "opening hours", "sales")
TEXT = (
    "order parcel invoice refund delivery address screen update password account card price wifi kettle, jacket "
    'headset printer Saturday Monday yesterday "urgent" NA null naïve café returns please still not arrived wrong'
)
WORDS = TEXT.split()
# In a fresh process, so that one run's memory is not the other's; anonymous memory is what can't be given back.
CHILD = """
import json, sys, threading, time
from pathlib import Path
from rheostat.data import ReadOptions, read_corpus
peak = {"anonymous_bytes": 0}
def now():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
def watch():
    while True:
        peak["anonymous_bytes"] = max(peak["anonymous_bytes"], now())
        time.sleep(0.02)
import datasets, pyarrow.csv  # not part of what is measured
before = now()
threading.Thread(target=watch, daemon=True).start()
start = time.perf_counter()
corpus = read_corpus(sys.argv[1], ReadOptions())
seconds = time.perf_counter() - start
rows = len(corpus.train) + len(corpus.validation)
result = {"rows": rows, "seconds": seconds, "rows_per_s": rows / seconds,
          "peak_added_anonymous_bytes": peak["anonymous_bytes"] - before, "notes": corpus.notes}
if sys.argv[2]:
    from transformers import AutoTokenizer
    from rheostat.data import tokenize
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
    datasets.disable_progress_bars()
    before, peak["anonymous_bytes"] = now(), 0
    start = time.perf_counter()
    tokens = tokenize(corpus.train, tokenizer, labels=corpus.labels, task=corpus.task, max_length=128)
    seconds = time.perf_counter() - start
    result["tokenize"] = {"rows": len(corpus.train), "seconds": seconds, "rows_per_s": len(corpus.train) / seconds,
                          "peak_added_anonymous_bytes": peak["anonymous_bytes"] - before, "note": tokens.note()}
print(json.dumps(result))
"""


def write_rows(path: Path, rows: int, seed: int) -> None:
    """Write invented rows of about 100 characters; one in a hundred repeats the text before it."""
    rng = random.Random(seed)
    text = ""
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["id", "text", "label"])
        for row in range(rows):
            if row % 100:
                text = f"{' '.join(rng.choices(WORDS, k=14))} {row}"
            writer.writerow([row, text, LABELS[rng.randrange(len(LABELS))]])


def measure(path: Path, tokenizer: str) -> dict[str, object]:
    """Read the file in a fresh process and return what it measured."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), tokenizer], check=True, capture_output=True, text=True
    )
    return dict(json.loads(done.stdout))


def main() -> None:
    """Write the files, measure a tenth and the whole alternately, and print or store the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", default="", help="folder or Hub name of a tokenizer: measure tokenizing too")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.csv", Path(folder) / "large.csv"
        write_rows(small, options.rows // 10, options.seed)
        write_rows(large, options.rows, options.seed)
        runs: dict[str, list[dict[str, object]]] = {"tenth": [], "all": []}
        for _ in range(options.rounds):
            runs["tenth"].append(measure(small, options.tokenizer))
            runs["all"].append(measure(large, options.tokenizer))
        file_bytes = large.stat().st_size
    rates = [float(str(run["rows_per_s"])) for run in runs["all"]]
    result = {
        "command": f"python benchmarks/big_csv.py --rows {options.rows} --rounds {options.rounds}"
        + (f" --tokenizer {options.tokenizer}" if options.tokenizer else ""),
        "what": "read_corpus: read, check, detect the task, find repeats, hold out validation rows",
        "file_bytes": file_bytes,
        "rows_per_s_median": statistics.median(rates),
        "rows_per_s_min": min(rates),
        "rows_per_s_max": max(rates),
        "runs": runs,
        "conditions": {
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "cpus": len(os.sched_getaffinity(0)),
            "load_average_1min": os.getloadavg()[0],  # above 1: others were using the machine
            "machine": platform.machine(),
            "python": platform.python_version(),
            "versions": {name: version(name) for name in ("datasets", "pyarrow", "numpy")},
        },
    }
    text = json.dumps(result, indent=2, ensure_ascii=False)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
