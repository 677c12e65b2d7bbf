// Server-sent events from a fetch() body.

/// Splits a stream of bytes into events' data. Comments and other fields are skipped.
export async function* readEvents(body) {
  const decoder = new TextDecoder();
  let held = '';
  for await (const bytes of chunks(body)) {
    held += decoder.decode(bytes, { stream: true });
    for (;;) {
      const match = /\r?\n\r?\n/.exec(held);
      if (!match) break;
      const event = held.slice(0, match.index);
      held = held.slice(match.index + match[0].length);
      const data = event.split(/\r?\n/).filter(line => line.startsWith('data:')).map(line => line.slice(5).replace(/^ /, ''));
      if (data.length > 0) yield data.join('\n');
    }
  }
}

async function* chunks(body) {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.releaseLock();
  }
}
