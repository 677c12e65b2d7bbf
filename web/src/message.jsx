// One turn of the conversation.
import { useState } from 'preact/hooks';
import { tokensPerSecond } from './conversation.js';
import { Markdown } from './markdown.jsx';

const count = new Intl.NumberFormat('en');

/// What the cache did for a prompt, in a sentence.
export function cacheSentence(usage) {
  if (!usage) return '';
  const hit = usage.prompt_cache_hit_tokens ?? usage.prompt_tokens_details?.cached_tokens ?? 0;
  const total = usage.prompt_tokens;
  if (hit === 0) return `${count.format(total)} prompt tokens read`;
  return `${count.format(hit)} of ${count.format(total)} prompt tokens were known, ${count.format(total - hit)} read`;
}

function Reasoning({ turn }) {
  if (!turn.reasoning) return null;
  const isThinking = turn.state === 'running' && !turn.text && turn.calls.length === 0;
  return (
    <details class="reasoning">
      <summary>{isThinking ? 'Thinking…' : 'Thinking'}</summary>
      <div class="plain">{turn.reasoning}</div>
    </details>
  );
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;  // still being written
  }
}

function Call({ call, isOpen, onResult }) {
  const [result, setResult] = useState('');
  const submit = event => {
    event.preventDefault();
    onResult(call.id, result);
  };
  return (
    <section class="call" aria-label={`Tool call ${call.name}`}>
      <div class="call-name">{call.name}</div>
      <pre tabIndex={0}>{pretty(call.arguments)}</pre>
      {isOpen && (
        <form onSubmit={submit}>
          <label>
            Result of {call.name}
            <textarea rows={2} value={result} onInput={event => setResult(event.currentTarget.value)} />
          </label>
          <button type="submit">Give result</button>
        </form>
      )}
    </section>
  );
}

function Footer({ turn }) {
  const speed = tokensPerSecond(turn);
  const parts = [
    turn.finish === 'length' ? 'cut at the token limit' : null,
    turn.state === 'stopped' ? 'stopped' : null,
    turn.usage ? `${count.format(turn.usage.completion_tokens)} tokens` : null,
    speed ? `${speed.toFixed(1)} tokens/s` : null,
    turn.usage ? cacheSentence(turn.usage) : null,
  ].filter(Boolean);
  return parts.length ? <div class="footer">{parts.join(' · ')}</div> : null;
}

export function AssistantMessage({ turn, isLast, isBusy, openCallIds, onRegenerate, onResult }) {
  return (
    <article class="turn assistant" aria-label="Answer" aria-busy={turn.state === 'running' || turn.state === 'waiting'}>
      <Reasoning turn={turn} />
      {turn.text && <Markdown text={turn.text} />}
      {turn.calls.map(call => (
        <Call key={call.id} call={call} isOpen={isLast && openCallIds.has(call.id)} onResult={onResult} />
      ))}
      {turn.state === 'waiting' && <div class="waiting">Reading the prompt…</div>}
      {turn.error && <div class="error" role="alert">{turn.error}</div>}
      <Footer turn={turn} />
      {isLast && !isBusy && <div class="actions"><button type="button" onClick={onRegenerate}>Regenerate</button></div>}
    </article>
  );
}

export function UserMessage({ turn, isBusy, onEdit }) {
  const [draft, setDraft] = useState(null);
  if (draft !== null) {
    const submit = event => {
      event.preventDefault();
      setDraft(null);
      onEdit(turn, draft);
    };
    return (
      <form class="turn user" onSubmit={submit} onKeyDown={event => event.key === 'Escape' && setDraft(null)}>
        <textarea aria-label="Edit message" rows={3} value={draft} autoFocus
                  onInput={event => setDraft(event.currentTarget.value)} />
        <div class="actions">
          <button type="submit" disabled={!draft.trim()}>Send edited</button>
          <button type="button" onClick={() => setDraft(null)}>Cancel</button>
        </div>
      </form>
    );
  }
  return (
    <article class="turn user" aria-label="You">
      {turn.images.map(image => <img src={image.url} alt={image.name} />)}
      <div class="plain">{turn.text}</div>
      {!isBusy && (
        <div class="actions"><button type="button" onClick={() => setDraft(turn.text)}>Edit</button></div>
      )}
    </article>
  );
}

export function ToolMessage({ turn, name }) {
  return (
    <article class="turn tool" aria-label={`Result of ${name}`}>
      <div class="call-name">{name} answered</div>
      <div class="plain">{turn.text}</div>
    </article>
  );
}
