"""Escalation against fixed budgets at equal mean multiply-accumulates.

    python benchmarks/escalation.py --bundle FOLDER --validation DATA --test DATA [--max-loss 0.1,0.25,0.5,1.0]

Thresholds are calibrated on the validation rows, accuracy and cost are read on the test rows. Beside each escalation
stands what fixed budgets reach for the same mean cost, mixing the two nearest at random: results/escalation.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import results

from rheostat.bundle import open_bundle
from rheostat.data import ReadOptions
from rheostat.errors import OptionError
from rheostat.serve.calibrating import answers_of, shares_of
from rheostat.serve.capacity import read_rows_file
from rheostat.serve.escalation import between, calibrate, cascade


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--validation", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--max-loss", default="0.1,0.25,0.5,1.0")
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--name", default="escalation")
    args = parser.parse_args()
    bundle, read = open_bundle(args.bundle), ReadOptions(task="single-label")
    shares, macs = shares_of(bundle), bundle.info.points[0].macs
    seen, seen_labels = answers_of(bundle, read_rows_file(args.validation, read))
    tables, labels = answers_of(bundle, read_rows_file(args.test, read))
    fixed = {budget: float((table.argmax(axis=1) == labels).mean()) for budget, table in tables.items()}
    lines = []
    for points in map(float, args.max_loss.split(",")):
        try:
            found = calibrate(seen, seen_labels, shares, max_loss=points / 100, confidence=args.confidence)
        except OptionError as error:
            lines.append({"max_loss_points": points, "error": str(error)})
            continue
        answers, share = cascade(found, tables, shares)
        accuracy = float((answers == labels).mean())
        lines.append(
            {
                "max_loss_points": points,
                "escalation": vars(found),
                "mean_share": share,
                "mean_macs": share * macs,
                "accuracy": accuracy,
                "lost_points": 100 * (fixed[found.full] - accuracy),
                "fixed_accuracy_at_equal_macs": between([(shares[b], a) for b, a in fixed.items()], share),
            }
        )
    headline = [
        {k: line[k] for k in ("max_loss_points", "mean_share", "accuracy", "fixed_accuracy_at_equal_macs") if k in line}
        for line in lines
    ]
    content = {"headline": headline, "fixed": fixed, "shares": shares, "lines": lines, "rows": len(labels)}
    results.save(args.name, content)


if __name__ == "__main__":
    main()
