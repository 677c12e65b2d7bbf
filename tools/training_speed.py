#!/usr/bin/env python3
"""How fast stages of a recipe train, on one thread and on two: a table.

    tools/training_speed.py models/pocket/recipe.json --corpus corpus

Each cell is the median over --steps steps of a fresh model, the first two left out. "GFLOP/s" counts the arithmetic of
matrix products alone, as the config says it, forward and twice that going back, without the optimiser's; "of the peak"
is its share of what the processor's multiply-adds reach in `tidepool bench kernels --only train_gemm`, in the format
that training multiplies in there.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import ablations

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEFT_OUT = 2
SHORT = 100  # tokens of a sample of a task that is not asked for lengths


def call(options, threads, *arguments):
    """Standard output of the program, and the most memory that it took, in GB."""
    command = [options.tidepool, *map(str, arguments), "--threads", str(threads), "--json"]
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True)
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            sys.exit(f"training_speed: {' '.join(command)} ended with {status}: {errors}")
        out.seek(0)
        return out.read(), usage.ru_maxrss / 1e6


def train(options, stage, threads):
    """Tokens a second of each step but the first, and GB."""
    recipe_file = pathlib.Path(options.recipe).resolve()
    recipe = json.loads(recipe_file.read_text())
    for key in ["config", "tokenizer"]:
        recipe[key] = str(recipe_file.parent / recipe.get(key, f"{key}.json"))
    recipe["stages"] = [dict(stage, tokens=stage["step_rows"] * (LEFT_OUT + options.steps))]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "recipe.json"
        file.write_text(json.dumps(recipe))
        out, memory = call(options, threads, "train", "model", file, "--corpus", options.corpus, "--out",
                           pathlib.Path(folder) / "run")
    steps = [json.loads(line) for line in out.splitlines()]
    return [step["tokens_per_second"] for step in steps[LEFT_OUT:]], memory


def flop_per_token(config, stage):
    """Of products, forward and back, of the mean token: parts by weight, which is their share of tokens."""
    text = dict(config["text_config"], sliding_window=stage.get("sliding_window", config["text_config"]["sliding_window"]))
    head = 2 * text["hidden_size"] * text["vocab_size"]
    total = 0
    for part in stage["mixture"]:
        length = part.get("length", SHORT)
        # Lengths of all scales equally often: a token's sample has, in the mean, half of least and most together.
        mean = int(statistics.fmean(length)) if isinstance(length, list) else length
        total += part["weight"] * ablations.prefill_flop_per_token(text, mean, True)
    return 3 * (total / sum(part["weight"] for part in stage["mixture"]) + head)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipe", help="recipe")
    parser.add_argument("--corpus", required=True, help="folder that tools/fetch_corpus.sh filled")
    parser.add_argument("--stages", nargs="+", default=["lookup", "pretrain", "far"], help="stages, by name")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tidepool", default=str(ROOT / "build" / "release" / "tidepool"), help="the program")
    options = parser.parse_args()
    recipe = json.loads(pathlib.Path(options.recipe).read_text())
    config = json.loads((pathlib.Path(options.recipe).parent / recipe.get("config", "config.json")).read_text())
    stages = {stage["name"]: stage for stage in recipe["stages"]}
    missing = [name for name in options.stages if name not in stages]
    if missing:
        parser.error(f"{options.recipe} has no stage {missing[0]}; there are: {', '.join(stages)}")
    head = ["stage", "rows a step", "threads", "tokens/s", "GFLOP/s", "of the peak", "memory, GB"]
    print("| " + " | ".join(head) + " |\n| " + " | ".join(["---"] * len(head)) + " |")
    for threads in options.threads:
        out, _ = call(options, threads, "bench", "kernels", "--only", "train_gemm")
        peak = json.loads(out)["results"][0]["limit_value"]
        for stage in map(stages.get, options.stages):
            speeds, memory = train(options, stage, threads)
            speed = statistics.median(speeds)
            flops = speed * flop_per_token(config, stage) / 1e9
            cells = [stage["name"], f"{stage['step_rows']:,}", str(threads), f"{speed:,.0f}", f"{flops:,.0f}",
                     f"{flops / peak:.2f}", f"{memory:.1f}"]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
