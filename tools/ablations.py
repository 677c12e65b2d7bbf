#!/usr/bin/env python3
"""What each mechanism of the model is worth: trains small models that differ in one thing and prints tables.

    tools/ablations.py qat replay --corpus corpus --work ablations
    tools/ablations.py all --corpus corpus --work ablations --seeds 1 2 --threads 1
    tools/ablations.py dense --base models/pocket --corpus corpus --work dense --seeds 1

The base is models/ablations, or a folder with another config, recipe and vocabulary; with weights there, it is not
trained again for its recipe's seed. A run lies in WORK/VARIANT-SEED; what is finished there is not done again, and what
was stopped goes on. Tables are Markdown on standard output, with the mean over the seeds and half of what they differ
by; progress goes to standard error. "costs" needs no runs. docs/pocket.md shows what came of it. With --dry-run every
model of the tables is trained for a step and asked one question, which needs no corpus and no folder and shows that all
fits together. --vocabulary learns the base's tokenizer.json anew.
"""

import argparse
import json
import math
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "ablations"
# Prose about one field, and little enough to be read in seconds.
SOURCES = ["git-doc", "debian-handbook", "debian-manuals", "gnome-help"]
ITEMS = {"recall_256": 200, "text": 60, "replay": 200}
RATES = {"muon": [0.014], "adamw": [0.003, 0.007]}
LOOKED_UP = 0.3  # nats a token of an answer; some value of the list, but not the right one, costs 0.77
BASE_RATE = 0.014  # of the first stage of models/ablations/recipe.json, with Muon


# What a variant changes in the config's text part and in the stages of the recipe.


def whole_prompts(text, stages):
    for stage in stages:
        stage["replay"] = "full"


def own_kv(text, stages):
    """Every global layer makes entries of its own input, so all layers but the last must see every row."""
    layers = [layer for layer, ratio in enumerate(text["compress_ratios"]) if ratio > 0]
    text["kv_source_layer_ids"] = text["index_source_layer_ids"] = layers
    text["candidate_source_layer_id"] = -1
    whole_prompts(text, stages)


def ratio_1(text, stages):
    text["compress_ratios"] = [min(ratio, 1) for ratio in text["compress_ratios"]]


def ratio_2(text, stages):
    text["compress_ratios"] = [2 if ratio > 0 else 0 for ratio in text["compress_ratios"]]


def no_engram(text, stages):
    for key in [key for key in text if key.startswith("engram_")]:
        del text[key]


def dense(text, stages):
    """Attention to all that was before, one residual stream, as many experts as a token uses, and all of them used. Its
    samples end at 4,096 tokens: what it is compared by is shorter, and its time grows with their square."""
    for key in [key for key in text if key.startswith(("engram_", "dspark_"))]:
        del text[key]
    text["compress_ratios"] = [0] * text["num_hidden_layers"]
    text["kv_source_layer_ids"] = text["index_source_layer_ids"] = []
    text["candidate_source_layer_id"] = -1
    text["num_nextn_predict_layers"] = 0
    text["sliding_window"] = text["max_position_embeddings"]
    text["hc_mult"] = 1
    text["n_routed_experts"] = text["num_experts_per_tok"]
    stages[:] = [stage for stage in stages if stage.get("trains") != "drafts"]
    for stage in stages:
        stage.pop("sliding_window", None)
        for part in stage["mixture"]:
            if isinstance(part.get("length"), list):
                part["length"] = [min(length, 4096) for length in part["length"]]
    whole_prompts(text, stages)


def no_kv_rounding(text, stages):
    for stage in stages:
        if stage.get("rounding") == "all":
            stage["rounding"] = ["weights", "experts", "activations"]


def optimizer(name, rate):
    def change(text, stages):
        factor = rate / BASE_RATE
        for stage in stages:
            stage["optimizer"] = name
            stage["rate"]["peak"] *= factor
            stage["rate"]["last"] *= factor

    return change


VARIANTS = {
    "base": lambda text, stages: None,
    "whole-prompts": whole_prompts,
    "own-kv": own_kv,
    "ratio-1": ratio_1,
    "ratio-2": ratio_2,
    "no-engram": no_engram,
    "no-kv-rounding": no_kv_rounding,
    "dense": dense,
    **{f"{name}-{rate}": optimizer(name, rate) for name, rates in RATES.items() for rate in rates},
}


def variant_of(name, rate):
    return "base" if (name, rate) == ("muon", BASE_RATE) else f"{name}-{rate}"


# Sizes that follow from a config.


def kv_bytes_per_token(text):
    """Global KV: FP4 entries with a scale for 16 values, FP4 index keys with one for 32. (docs/kv_cache.md)"""
    entry = text["head_dim"] * (1 / 2 + 1 / 16)
    key = text["index_head_dim"] * (1 / 2 + 1 / 32)
    return sum((entry + key) / text["compress_ratios"][layer] for layer in text["kv_source_layer_ids"])


def products_of_layer(text, layer, visible):
    """Multiplications of a row in the matrix products of a layer that has `visible` tokens before it."""
    d, heads, width = text["hidden_size"], text["num_attention_heads"], text["head_dim"]
    streams, rank, groups = text["hc_mult"], text["q_lora_rank"], text["o_groups"]
    inner = 3 * d * text["moe_intermediate_size"]
    total = d * rank + rank * heads * width + d * width  # queries, window
    total += heads * width * text["o_lora_rank"] + groups * text["o_lora_rank"] * d  # output
    total += d * text["n_routed_experts"] + inner * (text["num_experts_per_tok"] + text["n_shared_experts"])
    total += 2 * streams * d * streams * (2 + streams)  # hyper-connections
    keys = min(visible, text["sliding_window"])
    ratio = text["compress_ratios"][layer]
    if ratio > 0:
        entries = visible // ratio
        keys += min(entries, text["index_topk"])
        if layer in text["index_source_layer_ids"]:
            pool = text["candidate_topk_blocks"] * text["candidate_block_size"]
            scored = min(entries, pool) if 0 <= text["candidate_source_layer_id"] < layer else entries
            query = text["index_n_heads"] * text["index_head_dim"]
            total += rank * query + d * text["index_n_heads"] + scored * query
    if layer in text.get("engram_layer_ids", []):
        columns = (text["engram_max_ngram_size"] - 1) * text["engram_n_heads"] * text["engram_head_dim"]
        total += (streams + 1) * d * columns
    return total + 2 * keys * heads * width


def products_of_global_kv(text, layer):
    if layer not in text["kv_source_layer_ids"]:
        return 0
    ratio = text["compress_ratios"][layer]
    return ratio * text["hidden_size"] * text["head_dim"] + text["head_dim"] * text["index_head_dim"] / ratio


def prefill_flop_per_token(text, length, reads_whole_prompt):
    """Mean over a prompt of `length` tokens; a product is two. The decoder begins at the last layer that owns KV."""
    decoder = text["kv_source_layer_ids"][-1]
    total = 0
    for layer in range(text["num_hidden_layers"]):
        is_skipped = layer >= decoder and not reads_whole_prompt
        rows = range(max(0, length - text["sliding_window"]) if is_skipped else 0, length)
        step = max(1, len(rows) // 1024)  # what a row costs changes slowly along a long prompt
        costs = [products_of_layer(text, layer, row + 1) for row in rows[::step]]
        total += statistics.fmean(costs) * len(rows) + products_of_global_kv(text, layer) * length
    return 2 * total / length


# Runs.


class Lab:
    """Trains variants and measures them, each once."""

    def __init__(self, options):
        self.options = options
        self.base = pathlib.Path(options.base).resolve()
        self.work = pathlib.Path(options.work).resolve()
        self.seeds = options.seeds[:1] if options.dry_run else options.seeds
        self.used = set()
        self.work.mkdir(parents=True, exist_ok=True)
        has_texts = options.corpus and not options.dry_run
        self.corpus = ["--corpus", self.make_corpus(pathlib.Path(options.corpus).resolve())] if has_texts else []

    def make_corpus(self, corpus):
        """A folder with the sources that are used; the others need not be read each time."""
        folder = self.work / "corpus"
        folder.mkdir(exist_ok=True)
        manifest = json.loads((corpus / "manifest.json").read_text())
        if self.base == MODEL:
            manifest["sources"] = [source for source in manifest["sources"] if source["name"] in SOURCES]
        for source in manifest["sources"]:
            for split in ["train", "heldout"]:
                link, target = folder / source[split]["file"], corpus / source[split]["file"]
                if link.is_symlink() and link.readlink() != target:
                    sys.exit(f"{folder} has texts of {link.readlink().parent}: remove {self.work}, or name another --work")
                if not link.is_symlink():
                    link.symlink_to(target)
        (folder / "manifest.json").write_text(json.dumps(manifest, sort_keys=True))
        return folder

    def kv_bytes(self, variant):
        return f"{kv_bytes_per_token(self.describe(variant, 0)[0]['text_config']):.1f}"

    def describe(self, variant, seed):
        config = json.loads((self.base / "config.json").read_text())
        recipe = json.loads((self.base / "recipe.json").read_text())
        VARIANTS[variant](config["text_config"], recipe["stages"])
        recipe.update(name=variant, seed=seed, tokenizer=str(self.base / "tokenizer.json"))
        if self.options.dry_run:
            for stage in recipe["stages"]:
                stage.update(tokens=1, step_rows=512, batch_rows=512)
                stage["mixture"] = [{"task": "recall", "weight": 1, "length": [64, 256]}]
        return config, recipe

    def call(self, folder, *arguments):
        """Runs the program. Its processor time is added to the folder's."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [self.options.tidepool, *map(str, arguments), "--threads", str(self.options.threads)]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        file = folder / "cpu_seconds"
        file.write_text(f"{float(file.read_text() if file.exists() else 0) + spent:.1f}\n")
        if result.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with {result.returncode}")
        return result.stdout

    def train(self, variant, seed):
        """The folder of the finished run."""
        folder = self.work / f"{variant}-{seed}"
        self.used.add(folder)
        folder.mkdir(exist_ok=True)
        for name, content in zip(["config.json", "recipe.json"], self.describe(variant, seed)):
            text = json.dumps(content, indent=1)
            if (folder / name).exists() and (folder / name).read_text() != text:
                sys.exit(f"{folder} is a run of another {name}: remove it, or name another --work")
            (folder / name).write_text(text)
        if not (folder / "trained").exists() and variant == "base" and self.has_trained_base(seed):
            self.link_base(folder / "run")
        elif not (folder / "trained").exists():
            print(f"{variant}, seed {seed}", file=sys.stderr)
            self.call(folder, "train", "model", folder / "recipe.json", *self.corpus, "--out", folder / "run")
            (folder / "trained").touch()
        return folder

    def has_trained_base(self, seed):
        """Whether the base lies there trained, as models/pocket does."""
        recipe = json.loads((self.base / "recipe.json").read_text())
        is_trained = (self.base / "model.safetensors.index.json").exists()
        return is_trained and recipe["seed"] == seed and not self.options.dry_run

    def link_base(self, run):
        run.mkdir(exist_ok=True)
        for name, target in {"model": self.base, "log.jsonl": self.base / "log.jsonl"}.items():
            if (run / name).is_symlink():
                continue
            if (run / name).exists():
                sys.exit(f"{run} is a run of the base from before it had weights: remove it, or name another --work")
            (run / name).symlink_to(target)

    def measure(self, variant, seed, test, *, kv="auto", replay="bounded", split="heldout"):
        """What `tidepool eval` says of the test; nothing in a dry run, but of recall."""
        folder = self.train(variant, seed)
        if self.options.dry_run and test != "recall_256":
            return {}
        file = folder / f"eval-{kv}-{replay}-{split}-{test}.json"
        if not file.exists():
            items = 1 if self.options.dry_run else ITEMS[test]
            words = words_of(self.describe(variant, seed)[1])
            out = self.call(folder, "eval", folder / "run/model", "--task", test, "--items", items, "--json",
                            "--answer-bits", "--split", split, "--words", words, "--kv-cache-dtype", kv,
                            "--replay", replay, *self.corpus)
            file.write_text(json.dumps(json.loads(out)["tests"][test], indent=1))
        return json.loads(file.read_text())

    def quality(self, variant, **how):
        """A cell for each of QUALITY."""
        texts = [self.measure(variant, seed, "text", **how) for seed in self.seeds]
        seen, unseen = ([self.measure(variant, seed, "recall_256", split=split, **how) for seed in self.seeds]
                        for split in ("train", "heldout"))
        return [
            spread([bits_per_byte(result) for result in texts], ".3f"),
            spread([result["answer_bits"] for result in seen], ".3f"),
            spread([100 * result["accuracy"] for result in seen], ".1f"),
            ", ".join(f"{100 * result['accuracy']:.0f}" for result in unseen),
            ", ".join(looked_up(self.train(variant, seed)) for seed in self.seeds),
        ]

    def cpu_hours(self):
        return sum(float((folder / "cpu_seconds").read_text()) for folder in self.used) / 3600


def words_of(recipe):
    """Of how many words the lists are that a model has learnt last; 0 for all there are."""
    last = {part.get("task"): part for stage in recipe["stages"] for part in stage["mixture"]}
    return last.get("recall", {}).get("words", 0)


def looked_up(folder):
    """Thousands of tokens behind which the first stage's loss, the mean of 20 steps, was below LOOKED_UP."""
    steps = [json.loads(line) for line in (folder / "run/log.jsonl").read_text().splitlines()]
    steps = [step for step in steps if step["stage"] == 0]
    for end in range(20, len(steps) + 1):
        if statistics.fmean(step["loss"] for step in steps[end - 20:end]) < LOOKED_UP:
            return f"{steps[end - 1]['tokens'] / 1e3:.0f}"
    return "never"


def bits_per_byte(result):
    return result.get("bits_per_byte", math.nan)  # a dry run has no texts


def spread(values, form):
    half = (max(values) - min(values)) / 2
    return f"{statistics.fmean(values):{form}} ± {half:{form}}"


MODELS = {"released": "tests/golden/released_config.json", "pocket": "models/pocket/config.json",
          "this page's": "models/ablations/config.json"}
LENGTHS = [512, 65536]
FLOP = [f"MFLOP a token of a prompt of {length:,}" for length in LENGTHS]
QUALITY = ["text, bits a byte", "recall, bits a token", "recall, % right", "of pairs never seen, % right",
           "learnt behind, thousand tokens"]


def learn_vocabulary(lab):
    """Of the sources, and of the words of the tasks, as `train tokenizer` counts them itself. Takes seconds."""
    size = json.loads((lab.base / "config.json").read_text())["text_config"]["vocab_size"]
    subprocess.run([lab.options.tidepool, "train", "tokenizer", "--corpus", lab.corpus[1], "--vocab-size", str(size),
                    "--out", lab.base / "tokenizer.json"], check=True)


# Tables: a head and rows.


def costs(lab):
    """What configs alone say, without a run."""
    rows = []
    for model, file in MODELS.items():
        base = json.loads((ROOT / file).read_text())["text_config"]
        for label, change in [("as it is", VARIANTS["base"]), ("decoder only", whole_prompts),
                              ("KV of each layer", own_kv), ("ratio 1", ratio_1)]:
            text, stages = dict(base), [{}]
            change(text, stages)
            is_whole = stages[0].get("replay") == "full"
            flop = [f"{prefill_flop_per_token(text, length, is_whole) / 1e6:,.2f}" for length in LENGTHS]
            rows.append([model, label, f"{kv_bytes_per_token(text):,.1f}", *flop])
    return ["model", "variant", "bytes of global KV a token", *FLOP], rows


def qat(lab):
    rows = []
    for label, variant in [("with the cache's", "base"), ("without it", "no-kv-rounding")]:
        for kv in ["auto", "bfloat16"]:
            rows.append([label, "FP8 and FP4" if kv == "auto" else "bfloat16", *lab.quality(variant, kv=kv)])
    return ["rounding in training", "cache", *QUALITY], rows


def ced(lab):
    rows = [
        ["encoder and decoder", *lab.quality("base")],
        ["decoder only, shared KV", *lab.quality("whole-prompts", replay="full")],
        ["decoder only, KV of each layer", *lab.quality("own-kv", replay="full")],
    ]
    return ["stack", *QUALITY], rows


def sharing(lab):
    rows = []
    for label, variant in [("two sources, shared", "whole-prompts"), ("every layer its own", "own-kv")]:
        rows.append([label, lab.kv_bytes(variant), *lab.quality(variant, replay="full")])
    return ["global KV", "bytes a token", *QUALITY], rows


def ratio(lab):
    rows = []
    for label, variant in [("1, 1", "ratio-1"), ("2, 1", "base"), ("2, 2", "ratio-2")]:
        rows.append([label, lab.kv_bytes(variant), *lab.quality(variant)])
    return ["tokens an entry, encoder and decoder", "bytes a token", *QUALITY], rows


def replay(lab):
    measured = [lab.measure("base", seed, "replay") for seed in lab.seeds]
    divergence = [spread([result.get(key, math.nan) for result in measured], ".1e") for key in ["kl_mean", "kl_p99"]]
    rows = [["exact", "0", "0", *lab.quality("base", replay="exact")[1:4]],
            ["bounded", *divergence, *lab.quality("base")[1:4]]]
    return ["replay", "KL from exact, mean", "99 % below", *QUALITY[1:4]], rows


def engram(lab):
    rows = [[label, *lab.quality(variant)] for label, variant in [("with", "base"), ("without", "no-engram")]]
    return ["Engram", *QUALITY], rows


def optimizers(lab):
    """Rates are compared on the first seed; the best of each optimiser counts."""
    rows = []
    for name, rates in RATES.items():
        text = {rate: bits_per_byte(lab.measure(variant_of(name, rate), lab.seeds[0], "text")) for rate in rates}
        best = min(rates, key=text.get)
        tried = ", ".join(f"{rate}: {text[rate]:.3f}" for rate in rates)
        rows.append([name, str(best), tried, *lab.quality(variant_of(name, best))])
    return ["optimiser", "rate", f"text by rate, seed {lab.seeds[0]}", *QUALITY], rows


def dense_table(lab):
    rows = [["as it is", *lab.quality("base")], ["dense", *lab.quality("dense", replay="full")]]
    return ["model", *QUALITY], rows


TABLES = {"costs": costs, "qat": qat, "ced": ced, "sharing": sharing, "ratio": ratio, "replay": replay, "engram": engram,
          "optimizer": optimizers, "dense": dense_table}


def show(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    print("\n".join("| " + " | ".join(line) + " |" for line in lines), flush=True)


def run(options):
    lab = Lab(options)
    for name in TABLES if "all" in options.tables else options.tables:
        print(f"\n{name}:\n")
        show(*TABLES[name](lab))
    print(f"\n{lab.cpu_hours():.2f} hours of a processor, seeds {', '.join(map(str, lab.seeds))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"all, {', '.join(TABLES)}")
    parser.add_argument("--work", help="folder of the runs")
    parser.add_argument("--base", default=str(MODEL), help="folder of the model that the others differ from")
    parser.add_argument("--corpus", help="folder that tools/fetch_corpus.sh filled")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--threads", type=int, default=0, help="0: one per physical core")
    parser.add_argument("--tidepool", default=str(ROOT / "build" / "release" / "tidepool"), help="the program")
    parser.add_argument("--dry-run", action="store_true", help="a step of each model, without texts")
    parser.add_argument("--vocabulary", action="store_true", help="learn the models' tokenizer.json, and nothing else")
    options = parser.parse_args()
    if not options.vocabulary and (not options.tables or not set(options.tables) <= {"all", *TABLES}):
        parser.error(f"tables are: all, {', '.join(TABLES)}")
    needs_no_runs = not options.vocabulary and set(options.tables) == {"costs"}
    if options.dry_run or needs_no_runs:
        with tempfile.TemporaryDirectory() as options.work:
            return run(options)
    if not options.corpus or not options.work:
        parser.error("--work names a folder for the runs, --corpus the one that tools/fetch_corpus.sh filled")
    return learn_vocabulary(Lab(options)) if options.vocabulary else run(options)


if __name__ == "__main__":
    main()
