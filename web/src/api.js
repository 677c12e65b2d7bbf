// The server, as this page talks to it: its own OpenAI-compatible API, nothing else.
import { readEvents } from './sse.js';

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const headers = key => ({ 'content-type': 'application/json', ...(key ? { authorization: `Bearer ${key}` } : {}) });

async function failure(response) {
  let message = `the server answered ${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message ?? message;
  } catch {
    // Not JSON: the status line says what there is to say.
  }
  const wait = response.headers.get('retry-after');
  return new ApiError(wait ? `${message} (try again in ${wait} s)` : message, response.status);
}

export async function listModels(key) {
  const response = await fetch('v1/models', { headers: headers(key) });
  if (!response.ok) throw await failure(response);
  return (await response.json()).data;
}

/// Samples of /metrics as [{name, labels, value}].
export async function readMetrics() {
  const response = await fetch('metrics');
  if (!response.ok) throw await failure(response);
  return parseMetrics(await response.text());
}

export function parseMetrics(text) {
  const samples = [];
  for (const line of text.split('\n')) {
    const match = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)$/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    samples.push({ name: match[1], labels, value: Number(match[3]) });
  }
  return samples;
}

/// Streams one completion. `onChunk` gets every chunk of the stream; stops when `signal` is aborted.
export async function streamChat({ key, body, signal, onChunk }) {
  const response = await fetch('v1/chat/completions', {
    method: 'POST',
    headers: headers(key),
    signal,
    body: JSON.stringify({
      ...body,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    }),
  });
  if (!response.ok) throw await failure(response);
  for await (const data of readEvents(response.body)) {
    if (data === '[DONE]') return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, response.status);
    onChunk(chunk);
  }
  throw new ApiError('the connection ended before the answer did', 0);
}
