#!/usr/bin/env python3
"""Kills a serving tidepool at random moments and compares every later answer with that of a server without a cache.

Usage: tests/serve_kills.py TIDEPOOL MODEL [ROUNDS [SEED]]      (50 rounds, seed 1; ./check runs these)

Each round starts a server on the same cache folder, lets four clients ask growing prompts, and kills it with SIGKILL
after a random time. Answers that came through must be those of the cold server, digit by digit of their
log-probabilities: the cache may lose what was not written yet, but must never change an answer. The servers run with
--replay exact, under which reusing a prefix changes nothing. In the end one is stopped in order, and what it knew must
be found again by the next. Exit status 1 when anything differs.
"""

import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

CLIENTS = 4
STEPS = 12  # lengths of each client's prompt, a step further each time
STEP_TOKENS = 70


class Server:
    def __init__(self, tidepool, model, arguments):
        command = [tidepool, "serve", model, "--port", "0", "--replay", "exact", "--draft", "off", "--threads", "1"]
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.process = subprocess.Popen(command + arguments, **quiet)
        for line in self.process.stdout:
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            if found:
                self.url = found.group()
                return
        sys.exit(f"serve_kills: the server ended with {self.process.wait()} before it was ready")

    def ask(self, prompt, salt="all"):
        """(answer, hit tokens), or nothing when the server went away under the request."""
        body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 4, "temperature": 0, "logprobs": 1}
        body["cache_salt"] = salt
        request = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.load(response)
        except urllib.error.HTTPError:
            raise  # the server is alive and refuses: never right here
        except (OSError, ValueError):
            return None  # killed meanwhile, whatever piece of an answer had come
        choice = answer["choices"][0]
        return (choice["text"], choice["logprobs"]["token_logprobs"]), answer["usage"]["prompt_cache_hit_tokens"]

    def end(self, how):
        self.process.send_signal(how)
        return self.process.wait()


MODEL_NAME = "tiny"


def prompts(rng):
    """Token ids of each client: half of a client's text is shared with all others, as a system prompt is."""
    shared = [rng.randrange(3, 256) for _ in range(STEPS * STEP_TOKENS // 2)]
    return [shared + [rng.randrange(3, 256) for _ in range(STEPS * STEP_TOKENS - len(shared))] for _ in range(CLIENTS)]


def run_round(server, texts, expected, rng, errors, totals):
    """Clients ask until the server is killed."""
    stopped = threading.Event()

    def client(text, order):
        for step in order:
            if stopped.is_set():
                return
            length = step * STEP_TOKENS
            result = server.ask(text[:length])
            if result is None:
                return
            answer, hit = result
            totals["answers"] += 1
            totals["hits"] += hit
            if answer != expected[tuple(text[:length])]:
                errors.append(f"a prompt of {length} tokens with {hit} of them known was answered otherwise: {answer}")

    threads = []
    for text in texts:
        order = list(range(1, STEPS + 1))
        rng.shuffle(order)
        threads.append(threading.Thread(target=client, args=(text, order)))
    for thread in threads:
        thread.start()
    time.sleep(rng.uniform(0.02, 0.8))
    server.end(signal.SIGKILL)
    stopped.set()
    for thread in threads:
        thread.join()


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    tidepool, model = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 50
    rng = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    name = ["--served-model-name", MODEL_NAME]
    texts = prompts(rng)
    with tempfile.TemporaryDirectory(prefix="tidepool-kills-") as folder:
        cold = Server(tidepool, model, name)
        expected = {}
        for client, text in enumerate(texts):
            for step in range(1, STEPS + 1):
                prompt = text[: step * STEP_TOKENS]
                expected[tuple(prompt)], hit = cold.ask(prompt, salt=f"{client} {step}")
                if hit != 0:
                    sys.exit("serve_kills: a prompt under a salt of its own was known")
        cold.end(signal.SIGTERM)

        warm = name + ["--kv-dir", str(pathlib.Path(folder) / "kv")]
        errors, totals = [], {"answers": 0, "hits": 0}
        for _ in range(rounds):
            run_round(Server(tidepool, model, warm), texts, expected, rng, errors, totals)
        print(f"{rounds} kills, {totals['answers']} answers, {totals['hits']} prompt tokens known, {len(errors)} wrong")

        server = Server(tidepool, model, warm)
        for text in texts:
            server.ask(text)
        if server.end(signal.SIGTERM) != 0:
            errors.append("the server did not stop in order")
        server = Server(tidepool, model, warm)
        for text in texts:
            answer, hit = server.ask(text)
            # Whole blocks of 128 tokens are kept, and the last token is always read.
            if hit < len(text) - 129:
                errors.append(f"after an orderly stop only {hit} of {len(text)} tokens were known")
            if answer != expected[tuple(text)]:
                errors.append("after an orderly stop a prompt was answered otherwise")
        server.end(signal.SIGTERM)
    for error in errors[:20]:
        print(f"serve_kills: {error}", file=sys.stderr)
    if totals["hits"] == 0:
        errors.append("nothing was ever found")
        print("serve_kills: the cache never helped, so this shows nothing", file=sys.stderr)
    sys.exit(1 if errors else 0)


main()
