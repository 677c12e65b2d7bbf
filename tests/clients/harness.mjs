// Starts the real program with a script of recorded outputs, for tests with real clients.
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const root = resolve(dirname(fileURLToPath(import.meta.url)), '../..');
const binary = process.env.TIDEPOOL_BINARY ?? join(root, 'build/release/src/apps/tidepool');
const golden = join(root, 'tests/golden/ckpt');

/// The golden model with room for the prompts of real clients: its own context is 1,024 tokens.
function makeModel(folder, context) {
  mkdirSync(folder);
  for (const name of readdirSync(golden)) if (name !== 'config.json') symlinkSync(join(golden, name), join(folder, name));
  const config = JSON.parse(readFileSync(join(golden, 'config.json')));
  config.text_config.max_position_embeddings = context;
  writeFileSync(join(folder, 'config.json'), JSON.stringify(config));
  return folder;
}

/// A server on a free port. `script`: lines of a script file (src/session/script.h), or null to sample for real.
export async function startServer({ script = null, args = [], context = 16384 } = {}) {
  const folder = mkdtempSync(join(tmpdir(), 'tidepool-clients-'));
  const model = makeModel(join(folder, 'model'), context);
  // Recorded answers that go on for ever are meant to, until a test has seen them stop.
  const options = ['serve', model, '--port', '0', '--repetition-limit', '0', '--kv-dir', join(folder, 'kv'), ...args];
  if (script) {
    const file = join(folder, 'script.jsonl');
    writeFileSync(file, script.map(line => JSON.stringify(line)).join('\n') + '\n');
    options.push('--script', file);
  }
  const child = spawn(binary, options, { stdio: ['ignore', 'pipe', 'pipe'] });
  const log = [];
  createInterface({ input: child.stderr }).on('line', line => log.push(line));
  const ended = new Promise(done => child.on('exit', (code, signal) => done({ code, signal })));
  const url = await new Promise((found, failed) => {
    createInterface({ input: child.stdout }).on('line', line => {
      log.push(line);
      const match = /http:\/\/127\.0\.0\.1:\d+/.exec(line);
      if (match) found(match[0]);
    });
    ended.then(({ code }) => failed(new Error(`the server ended (${code}) before it was ready:\n${log.join('\n')}`)));
  });
  return {
    url,
    log,
    /// Asks the server to leave, as a terminal would; resolves to {code, signal}.
    async stop() {
      child.kill('SIGTERM');
      const result = await ended;
      rmSync(folder, { recursive: true, force: true });
      return result;
    },
    /// The value of a metric that has one sample, or the sum of its samples.
    async metric(name) {
      const text = await (await fetch(`${url}/metrics`)).text();
      const values = text.split('\n').filter(line => line.startsWith(`${name}{`) || line.startsWith(`${name} `));
      return values.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
    },
  };
}

/// Waits until `check` gives something true; for what the server does after a client has its answer.
export async function until(check, seconds = 20) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const result = await check();
    if (result) return result;
    if (Date.now() > end) throw new Error(`not so within ${seconds} s: ${check}`);
    await new Promise(done => setTimeout(done, 20));
  }
}

/// A calls block as the model writes it.
export function calls(...list) {
  const invokes = list.map(({ name, parameters }) => {
    const lines = Object.entries(parameters).map(([key, value]) => {
      const isText = typeof value === 'string';
      const text = isText ? value : JSON.stringify(value);
      return `<｜DSML｜ parameter name="${key}" string="${isText}">${text}</｜DSML｜ parameter>\n`;
    });
    return `<｜DSML｜ invoke name="${name}">\n${lines.join('') || '\n'}</｜DSML｜ invoke>\n`;
  });
  return `\n\n<｜DSML｜ calls>\n${invokes.join('')}</｜DSML｜ calls>`;
}

export const weatherTool = {
  name: 'get_weather',
  description: 'The weather of a place',
  parameters: {
    type: 'object',
    properties: { place: { type: 'string' }, days: { type: 'integer' }, options: { type: 'object' } },
    required: ['place'],
  },
};
