// What the server is doing, next to the conversation.
import { useEffect, useState } from 'preact/hooks';
import { readMetrics } from './api.js';
import { tokensPerSecond } from './conversation.js';

const count = new Intl.NumberFormat('en');

export function formatBytes(bytes) {
  if (!Number.isFinite(bytes)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const step = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  return `${(bytes / 1024 ** step).toFixed(step === 0 ? 0 : 1)} ${units[step]}`;
}

const tiers = {
  none: 'not in the cache',
  snapshot_ram: 'kept whole in memory',
  snapshot_disk: 'kept whole on disk',
  pages: 'pages in memory',
  disk: 'blocks on disk',
};
const ends = {
  complete: 'everything known was used',
  differs: 'a known text goes on differently',
  not_seen: 'no known text begins like this',
  evicted: 'it was evicted to make room',
  expired: 'it had expired',
  checksum: 'its bytes on disk were damaged',
  below_break_even: 'too short to be worth it',
};
const parts = { weights: 'Weights (mapped)', kv_pages: 'KV pages', kv_reserved: 'KV reserved', snapshots: 'Snapshots', disk: 'KV on disk' };

function useMetrics(isActive) {
  const [samples, setSamples] = useState([]);
  const [problem, setProblem] = useState('');
  useEffect(() => {
    let isGone = false;
    let timer;
    const poll = async () => {
      try {
        const next = await readMetrics();
        if (!isGone) setSamples(next), setProblem('');
      } catch (error) {
        if (!isGone) setProblem(error.message);
      }
      if (!isGone) timer = setTimeout(poll, isActive ? 1000 : 5000);
    };
    poll();
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [isActive]);
  return { samples, problem };
}

function Row({ name, value }) {
  return <div class="row"><dt>{name}</dt><dd>{value}</dd></div>;
}

function CacheRows({ usage, cache }) {
  const hit = usage?.prompt_cache_hit_tokens ?? 0;
  return (
    <>
      <Row name="Known" value={usage ? `${count.format(hit)} tokens` : '–'} />
      <Row name="Read" value={usage ? `${count.format(usage.prompt_tokens - hit)} tokens` : '–'} />
      <Row name="Found as" value={cache ? (tiers[cache.tier] ?? cache.tier) : '–'} />
      <Row name="Match ended" value={cache ? (ends[cache.end] ?? cache.end) : '–'} />
      {cache?.first_difference != null && <Row name="First difference" value={`token ${count.format(cache.first_difference)}`} />}
      {cache?.request_text_there && <Row name="Your text there" value={<q>{cache.request_text_there}</q>} />}
    </>
  );
}

export function Panel({ turn, isBusy }) {
  const { samples, problem } = useMetrics(isBusy);
  const value = (name, labels = {}) => samples.find(sample =>
    sample.name === name && Object.entries(labels).every(([key, text]) => sample.labels[key] === text))?.value;
  const usage = turn?.usage;
  const speed = turn ? tokensPerSecond(turn) : null;
  const perToken = value('tidepool:kv_bytes_per_token');
  const memory = samples.filter(sample => sample.name === 'tidepool:memory_bytes');
  return (
    <aside class="panel" aria-label="Live figures">
      <h2>This session</h2>
      <dl>
        <Row name="Speed" value={speed ? `${speed.toFixed(1)} tokens/s` : '–'} />
        <Row name="Context" value={usage ? `${count.format(usage.total_tokens)} tokens` : '–'} />
        <Row name="KV" value={usage && perToken ? formatBytes(usage.total_tokens * perToken) : '–'} />
      </dl>
      <h2>Cache, last prompt</h2>
      <dl><CacheRows usage={usage} cache={turn?.cache} /></dl>
      <h2>Server</h2>
      <dl>
        <Row name="Running" value={value('vllm:num_requests_running') ?? '–'} />
        <Row name="Waiting" value={value('vllm:num_requests_waiting') ?? '–'} />
        {memory.map(sample => (
          <Row name={parts[sample.labels.part] ?? sample.labels.part} value={formatBytes(sample.value)} />
        ))}
      </dl>
      {problem && <p class="error">No figures: {problem}</p>}
    </aside>
  );
}
