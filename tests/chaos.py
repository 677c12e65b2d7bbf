#!/usr/bin/env python3
"""Random clients against a serving tidepool: they leave, dawdle, send garbage, and some only want an answer.

Usage: tests/chaos.py TIDEPOOL MODEL [--seconds N | --minutes N] [--clients N] [--seed N]

./check runs 20 seconds; ten minutes, best with a program built with AddressSanitizer, are the real thing:

    tests/chaos.py build/asan/tidepool tests/golden/ckpt --minutes 10

The server runs on a small model, its outputs drawn or, for half of the prompts, replayed. Every dialect is asked,
streamed and not. Exit status 1, with the reason, when

- the server ends, or its log says that a sanitizer or a check found something;
- an answer has a status that none should have: 5xx but 503, 529 and 504;
- a polite client does not get its answer whole, within a minute;
- health checks fail, or at the end anything is left: a connection, a request, reserved memory;
- memory grows: the median of the last fifth of the time is above that of the second fifth by more than 5 % and 16 MiB.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE = 60  # seconds for one answer
SCRIPT = [
    {"match": "endless", "text": "</think>on and ", "repeat": True},
    {"match": "calls", "text": "hm</think>Two.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter "
     "name=\"a\" string=\"true\">x \"y\"</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"},
    {"text": "first I think</think>then I answer"},
]
FOUND = re.compile(r"AddressSanitizer|LeakSanitizer|UndefinedBehavior|runtime error:|check failed|terminate called", re.I)


class Finding(Exception):
    pass


class Server:
    """Two of them share a folder: one samples, one replays."""

    def __init__(self, tidepool, model, folder, name, more):
        self.log = folder / f"{name}.log"
        command = [tidepool, "serve", model, "--port", "0", "--served-model-name", "tiny", "--threads", "1"]
        command += ["--kv-ram", "16MiB", "--snapshot-ram", "4MiB", "--queue-limit", "64", "--request-timeout", "30"]
        # Freed memory goes back at once, so that what is resident is what is used.
        environment = os.environ | {"ASAN_OPTIONS": "quarantine_size_mb=8:" + os.environ.get("ASAN_OPTIONS", "")}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command + more, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        for line in self.process.stdout:
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        else:
            raise Finding(f"the server ended with {self.process.wait()} before it was ready: {self.log.read_text()}")

    def rss_kib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1))

    def check(self):
        if self.process.poll() is not None:
            raise Finding(f"the server ended with {self.process.returncode}: {self.log.read_text()[-4000:]}")
        found = FOUND.search(self.log.read_text())
        if found:
            raise Finding(f"the log says '{found.group()}': {self.log.read_text()[-4000:]}")

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metric(self, name):
        return float(re.search(rf"^{name}\{{[^}}]*\}} (\S+)$", self.get("/metrics")[1], re.M).group(1))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Finding("the server did not stop within a minute")
        if code != 0:
            raise Finding(f"the server ended with {code}: {self.log.read_text()[-4000:]}")
        found = FOUND.search(self.log.read_text())
        if found:
            raise Finding(f"at its end the log says '{found.group()}': {self.log.read_text()[-4000:]}")


def request_of(rng, text, stream, max_tokens):
    """(path, body) in a random dialect."""
    tools = rng.random() < 0.4
    form = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 8}}}
    sampling = {"temperature": rng.choice([0, 1]), "stream": stream}
    messages = [{"role": "user", "content": text}]
    if rng.random() < 0.3:
        messages = messages + [{"role": "assistant", "content": "then I answer"}, {"role": "user", "content": text}]
    kind = rng.randrange(4)
    if kind == 0:
        body = {"messages": messages, "max_tokens": max_tokens, "n": rng.choice([1, 1, 1, 3]), **sampling}
        if tools:
            body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": form}}]
        elif rng.random() < 0.3:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "s", "schema": form}}
        if rng.random() < 0.3:
            body |= {"logprobs": True, "top_logprobs": 3}
        return "/v1/chat/completions", body
    if kind == 1:
        return "/v1/completions", {"prompt": text, "max_tokens": max_tokens, "stop": "answer", **sampling}
    if kind == 2:
        body = {"messages": messages, "max_tokens": max_tokens, **sampling}
        if tools:
            body["tools"] = [{"name": "f", "input_schema": form}]
        return "/v1/messages", body
    body = {"input": text, "max_output_tokens": max_tokens, **sampling}
    if tools:
        body["tools"] = [{"type": "function", "name": "f", "parameters": form}]
    return "/v1/responses", body


def head_of(path, body, extra=""):
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode()


def garbage(rng):
    return bytes(rng.randrange(256) for _ in range(rng.randrange(400)))


def mutated(rng, body):
    """A body that is nearly one."""
    data = bytearray(body)
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(data))
        kind = rng.randrange(3)
        if kind == 0:
            data[place] = rng.randrange(256)
        elif kind == 1:
            del data[place : place + rng.randrange(1, 20)]
        else:
            data[place:place] = rng.choice([b"{", b"[", b'"', b"null", b"1e999", b"-1", b"\\ud800", b"\xff", b"[[[[[["])
        if not data:
            data = bytearray(b"{}")
    return bytes(data)


class Chaos:
    def __init__(self, servers, seed, end):
        self.servers, self.seed, self.end = servers, seed, end
        self.lock = threading.Lock()
        self.findings = []
        self.counts = {}

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def report(self, text):
        with self.lock:
            self.findings.append(text)
        self.end = 0

    def check_status(self, status, path, body):
        self.count(f"status {status}")
        if status >= 500 and status not in (503, 504, 529):
            raise Finding(f"{path} answered {status} to {body[:2000]!r}")

    def polite(self, rng, server):
        """Asks and reads the answer to its end, as fast or as slowly as it likes."""
        stream = rng.random() < 0.5
        path, what = request_of(rng, rng.choice(["words", "calls", "other " * rng.randrange(1, 60)]), stream, 40)
        body = json.dumps({"model": "tiny", **what}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        try:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            if rng.random() < 0.2:
                time.sleep(rng.random())
            data = answer.read()  # raises when it is not whole
            self.check_status(answer.status, path, body)
            if answer.status == 200 and stream and not self.has_end(path, data):
                raise Finding(f"{path}: a stream without its end: {data[-500:]!r} to {body!r}")
            if not stream:
                json.loads(data)
        except (OSError, http.client.HTTPException, ValueError) as error:
            server.check()
            raise Finding(f"{path}: no whole answer: {error!r} to {body!r}") from error
        finally:
            connection.close()

    @staticmethod
    def has_end(path, data):
        if re.search(rb'"error": ?\{|event: error', data):  # a deadline, say; responses without one say null
            return True
        if path == "/v1/messages":
            return b"event: message_stop" in data
        return b"response.completed" in data or b"response.incomplete" in data or data.endswith(b"[DONE]\n\n")

    def rude(self, rng, server):
        """Sends something, reads some of what comes, and leaves in one way or another."""
        path, what = request_of(rng, rng.choice(["endless", "words", "long " * 200]), rng.random() < 0.7, 2000)
        body = json.dumps({"model": "tiny", **what}).encode()
        kind = rng.randrange(6)
        client = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        try:
            if kind == 0:
                client.sendall(garbage(rng) + b"\r\n\r\n")
            elif kind == 1:
                client.sendall(head_of(path, body)[: rng.randrange(60)])
            elif kind == 2:
                client.sendall(head_of(path, body) + body[: rng.randrange(len(body))])
            elif kind == 3:
                bad = mutated(rng, body)
                client.sendall(head_of(path, bad) + bad)
            else:
                client.sendall(head_of(path, body) + body)
            if rng.random() < 0.3:
                client.shutdown(socket.SHUT_WR)
            client.settimeout(rng.choice([0.001, 0.05, 0.5]))
            received = b""
            for _ in range(rng.randrange(20)):
                piece = client.recv(rng.choice([1, 100, 10000]))
                received += piece
                if not piece:
                    break
            if received.startswith(b"HTTP/1.1 "):
                self.check_status(int(received[9:12]), path, body)
            if rng.random() < 0.5:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        except ValueError:
            pass  # a status line that was not read whole
        except OSError:
            server.check()
        finally:
            client.close()
        self.count("rude")

    def run_client(self, number):
        rng = random.Random(f"{self.seed} {number}")
        while time.monotonic() < self.end:
            server = rng.choice(self.servers)
            try:
                self.polite(rng, server) if rng.random() < 0.4 else self.rude(rng, server)
            except Finding as finding:
                return self.report(str(finding))
            except Exception as error:  # a fault of this program must not look like success
                return self.report(f"the client failed: {error!r}")

    def watch(self, samples):
        """Memory and health, every half second."""
        while time.monotonic() < self.end:
            try:
                for server, values in zip(self.servers, samples):
                    server.check()
                    values.append(server.rss_kib())
                    status, body = server.get("/health")
                    if status != 200:
                        raise Finding(f"/health answered {status}: {body}")
            except (Finding, OSError, http.client.HTTPException) as error:
                return self.report(f"{error}")
            time.sleep(0.5)


def check_memory(samples):
    """Compares the last fifth of the time with the second one."""
    fifth = len(samples) // 5
    early = statistics.median(samples[fifth : 2 * fifth])
    late = statistics.median(samples[-fifth:])
    print(f"resident: {early / 1024:.1f} MiB early, {late / 1024:.1f} MiB late, {max(samples) / 1024:.1f} MiB at most")
    if late > early * 1.05 and late - early > 16 * 1024:
        raise Finding(f"memory grew from {early / 1024:.1f} to {late / 1024:.1f} MiB")


def check_nothing_left(server):
    deadline = time.monotonic() + PATIENCE
    # This look is a connection of its own.
    wanted = {"vllm:num_requests_running": 0, "vllm:num_requests_waiting": 0, "tidepool:open_connections": 1}
    while True:
        left = {name: server.metric(name) for name, value in wanted.items() if server.metric(name) > value}
        if not left:
            return
        if time.monotonic() > deadline:
            raise Finding(f"a minute after the last client there is still {left}")
        time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tidepool")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    seconds = flags.minutes * 60 if flags.minutes else flags.seconds
    servers = []
    try:
        with tempfile.TemporaryDirectory(prefix="tidepool-chaos-") as name:
            folder = pathlib.Path(name)
            script = folder / "script.jsonl"
            script.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT))
            for kind, more in (("drawn", []), ("replayed", ["--script", str(script)])):
                servers.append(Server(flags.tidepool, flags.model, folder, kind, more))
            chaos = Chaos(servers, flags.seed, time.monotonic() + seconds)
            samples = [[] for _ in servers]
            threads = [threading.Thread(target=chaos.run_client, args=(i,)) for i in range(flags.clients)]
            threads.append(threading.Thread(target=chaos.watch, args=(samples,)))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            print(", ".join(f"{what}: {count}" for what, count in sorted(chaos.counts.items())))
            if chaos.findings:
                raise Finding(chaos.findings[0])
            for server, values in zip(servers, samples):
                check_nothing_left(server)
                check_memory(values)
                server.stop()
            if not chaos.counts.get("status 200") or not chaos.counts.get("status 400"):
                raise Finding("nobody was answered, or nobody refused: this shows nothing")
    except Finding as finding:
        sys.exit(f"chaos: {finding}")
    finally:
        for server in servers:
            if server.process.poll() is None:
                server.process.kill()


main()
