// A coding agent from npm, unchanged, does a task of two steps through the server: it is asked for a file's first word,
// calls its own tool to read the file, and answers. The model's words are recorded, everything else is real.
// Not part of ./check (the agent is a large download). Usage: node agent_cli.mjs      TIDEPOOL_BINARY names the program
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { calls, startServer } from './harness.mjs';

const agent = '@qwen-code/qwen-code@0.15.10';
const work = mkdtempSync(join(tmpdir(), 'tidepool-agent-'));
const file = join(work, 'notes.txt');
writeFileSync(file, 'barnacle grows here\n');
console.log(`installing ${agent} …`);
execFileSync('npm', ['install', '--silent', '--no-fund', '--no-audit', '--prefix', work, agent], { stdio: 'inherit' });

const server = await startServer({
  context: 262144,
  args: ['--served-model-name', 'tiny', '--access-log', '-'],
  script: [
    { match: 'barnacle grows', text: 'I have it.</think>The first word is barnacle.' },
    { match: 'first word', text: `I must look.</think>${calls({ name: 'read_file', parameters: { file_path: file } })}` },
    { text: 'Nothing to do.</think>ok' },
  ],
});
try {
  const child = spawn(join(work, 'node_modules/.bin/qwen'),
    ['--auth-type', 'openai', '--yolo', '-p', `What is the first word in ${file}?`],
    {
      cwd: work,
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, HOME: work, OPENAI_BASE_URL: `${server.url}/v1`, OPENAI_API_KEY: 'none', OPENAI_MODEL: 'tiny' },
    });
  let output = '';
  child.stdout.on('data', data => { output += data; });
  const code = await new Promise(done => child.on('exit', done));
  console.log(output);
  assert.equal(code, 0);
  assert.match(output, /The first word is barnacle\./);
  const requests = server.log.filter(line => line.includes('chat/completions'));
  assert.ok(requests.length >= 2, `only ${requests.length} requests`);
  const hit = await server.metric('vllm:prefix_cache_hits_total');
  const asked = await server.metric('vllm:prefix_cache_queries_total');
  console.log(`${requests.length} requests; ${hit} of ${asked} prompt tokens came from the cache`);
  assert.ok(hit > 0.4 * asked);
} finally {
  await server.stop();
  rmSync(work, { recursive: true, force: true });
}
