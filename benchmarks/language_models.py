"""Small language models trained from scratch on 20 Newsgroups: perplexity over budgets, and generation with a cache.

    python benchmarks/language_models.py [--rows 4000]

A GPT-2-shaped and a Llama-shaped model (4 layers of 128, 8 query heads; the latter with 4 key/value heads) and a
byte-level vocabulary of 4,096 from the training texts. Target: the same greedy tokens with and without a cache, sliced
and materialized, at every budget.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import results
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer

from rheostat.data import ReadOptions, read_corpus
from rheostat.demo_assets import fetch_twenty_newsgroups
from rheostat.model import load
from rheostat.pipeline import train
from rheostat.recipe import TrainOptions

BUDGETS = (1.0, 0.75, 0.6, 0.5)
LENGTH, VOCABULARY, END = 128, 4096, "<end>"
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
CONFIGS = {
    "gpt2": transformers.GPT2Config(n_embd=128, n_layer=4, n_head=8, n_positions=LENGTH, **SIZES),
    "llama": transformers.LlamaConfig(
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=384,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
        **SIZES,
    ),
}


def save_untrained(folder: Path, config: Any, texts: Any) -> None:
    """Write a model of random weights with a tokenizer of ``texts``."""
    bytes_of = ByteLevelBPETokenizer()
    bytes_of.train_from_iterator(texts, VOCABULARY, special_tokens=[END], show_progress=False)
    bytes_of.save(str(folder / "bytes.json"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "bytes.json"), eos_token=END)
    transformers.set_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


def written(model: Any, prompt: dict[str, torch.Tensor], *, cached: bool) -> list[int]:
    """Return 20 greedy tokens."""
    with torch.no_grad():
        ids = model.generate(**prompt, use_cache=cached, do_sample=False, min_new_tokens=20, max_new_tokens=20)
    found: list[int] = ids[0].tolist()
    return found


def run(name: str, rows: int, epochs: float) -> dict[str, Any]:
    """Train one model and read it."""
    data = str(fetch_twenty_newsgroups() / "train.csv")  # a part of it is held out; all test texts would take as long
    read = ReadOptions(task="causal-lm", validation_share=0.02)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_untrained(folder, CONFIGS[name], read_corpus(data, read).train["text"])
        options = TrainOptions(
            warm_epochs=epochs,
            learning_rate=2e-3,
            adapt_epochs=epochs / 2,
            adapt_learning_rate=5e-4,
            batch_size=16,
            max_length=LENGTH,
            max_train_rows=rows,
            min_budget=0.4,
            budgets=BUDGETS,
        )
        result = train(str(folder / "model"), data, folder / "out", options, read_options=read, measure_latency=False)
        model = load(result.folder)
        prompt = dict(model.tokenizer("From: the moderator\nSubject:", return_tensors="pt"))
        same = {}
        for budget in BUDGETS:
            views = (model.at(budget), model.materialize(budget))
            texts = [written(view, prompt, cached=cached) for view in views for cached in (True, False)]
            same[f"{budget:g}"] = all(text == texts[0] for text in texts)
        return {
            "model": name,
            "rows": rows,
            "perplexity": {f"{point.budget:g}": point.perplexity for point in result.points},
            "vocabulary_share": model.vocabulary_share,
            "floor": model.floor,
            "seconds": result.training_seconds(),
            "same_tokens": same,
        }


def main() -> None:
    """Train and read both, and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000, help="texts to train on")
    parser.add_argument("--epochs", type=float, default=4.0, help="dense passes; half as many adapt")
    arguments = parser.parse_args()
    found = [run(name, arguments.rows, arguments.epochs) for name in CONFIGS]
    headline = {line["model"]: line["perplexity"] for line in found}
    results.save("language_models", {"headline": headline, "models": found})


if __name__ == "__main__":
    main()
