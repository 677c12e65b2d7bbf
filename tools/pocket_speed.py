#!/usr/bin/env python3
"""How fast a model reads and writes behind prompts of several lengths, with and without drafts: a table.

    tools/pocket_speed.py models/pocket --corpus corpus

Prompts are pages of the Debian Handbook, one after the other, of 1,024, 16,384 and 64,000 tokens or nearly so; answers
are 64 tokens of the most likely text. Each cell is the median of --repeats runs of `tidepool run`. docs/pocket.md shows
what came of it.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LENGTHS = [1024, 16384, 64000]
ANSWER = 64


def run(options, prompt, drafts):
    command = [options.tidepool, "run", options.model, "--raw", "-p", "-", "--max-tokens", str(ANSWER), "--ignore-eos",
               "--temperature", "0", "--draft", drafts, "--threads", str(options.threads), "--json"]
    done = subprocess.run(command, input=prompt, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:  # it has said why
        sys.exit(f"pocket_speed: {' '.join(command)} ended with {done.returncode}")
    result = json.loads(done.stdout)
    usage, times = result["usage"], result["times"]
    return {"tokens": usage["prompt_tokens"], "prefill": usage["prompt_tokens"] / times["prompt_s"],
            "decode": times["tokens_per_s"],
            "accepted": usage.get("accepted_prediction_tokens", 0) / max(1, result.get("drafts", {}).get("steps", 1))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="model folder")
    parser.add_argument("--corpus", required=True, help="folder that tools/fetch_corpus.sh filled")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="0: one per physical core")
    parser.add_argument("--tidepool", default=str(ROOT / "build" / "release" / "tidepool"), help="the program")
    options = parser.parse_args()
    file = pathlib.Path(options.corpus) / "debian-handbook.train.jsonl"
    if not file.exists():
        sys.exit(f"pocket_speed: there is no {file}; tools/fetch_corpus.sh {options.corpus} fetches it")
    text = "\n\n".join(json.loads(page)["text"] for page in file.read_text().splitlines())
    probe = text[:20000]
    bytes_per_token = len(probe) / run(options, probe, "off")["tokens"]
    head = ["prompt tokens", "read, tokens/s", "written, tokens/s", "with drafts", "drafts kept a step"]
    print("| " + " | ".join(head) + " |\n| " + " | ".join(["---"] * len(head)) + " |")
    for length in LENGTHS:
        prompt = text[: int(length * bytes_per_token)]
        plain = [run(options, prompt, "off") for _ in range(options.repeats)]
        drafted = [run(options, prompt, "auto") for _ in range(options.repeats)]
        cells = [f"{plain[0]['tokens']:,}"]
        cells += [f"{statistics.median(r[key] for r in plain):,.0f}" for key in ["prefill", "decode"]]
        cells += [f"{statistics.median(r['decode'] for r in drafted):,.0f}"]
        cells += [f"{statistics.median(r['accepted'] for r in drafted):.2f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
