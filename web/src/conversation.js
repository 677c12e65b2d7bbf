// A conversation: a list of turns, and what a request makes of it. Pure functions; the page keeps the list.

let lastId = 0;
const newId = () => `t${++lastId}`;

export const userTurn = (text, images = []) => ({ id: newId(), role: 'user', text, images });
export const toolTurn = (callId, text) => ({ id: newId(), role: 'tool', callId, text });
export const assistantTurn = () =>
  ({ id: newId(), role: 'assistant', text: '', reasoning: '', calls: [], state: 'waiting', finish: null, usage: null });

/// The turn with one chunk of the stream added.
export function addChunk(turn, chunk, now) {
  const next = { ...turn };
  if (chunk.usage) {
    next.usage = chunk.usage;
    next.cache = chunk.usage.prompt_cache ?? next.cache;
  }
  const choice = chunk.choices?.[0];
  if (!choice) return next;
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
  if (content || reasoning || calls) {
    next.state = 'running';
    next.firstAt ??= now;
    next.lastAt = now;
  }
  if (content) next.text += content;
  if (reasoning) next.reasoning += reasoning;
  for (const part of calls ?? []) {
    next.calls = [...next.calls];
    const call = { id: '', name: '', arguments: '', ...next.calls[part.index] };
    if (part.id) call.id = part.id;
    if (part.function?.name) call.name = part.function.name;
    call.arguments += part.function?.arguments ?? '';
    next.calls[part.index] = call;
  }
  if (choice.finish_reason) next.finish = choice.finish_reason;
  return next;
}

/// Tokens a second while the answer was written; nothing before there are two.
export function tokensPerSecond(turn) {
  const tokens = turn.usage?.completion_tokens ?? 0;
  const seconds = ((turn.lastAt ?? 0) - (turn.firstAt ?? 0)) / 1000;
  return tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null;
}

/// The calls at the end of a conversation that have no result yet.
export function openCalls(turns) {
  const at = turns.findLastIndex(turn => turn.role === 'assistant');
  if (at < 0 || turns[at].state !== 'done') return [];
  const answered = new Set(turns.slice(at + 1).filter(turn => turn.role === 'tool').map(turn => turn.callId));
  return turns[at].calls.filter(call => !answered.has(call.id));
}

/// `messages` of a request.
export function toMessages(turns, system) {
  const messages = system.trim() ? [{ role: 'system', content: system }] : [];
  for (const turn of turns) {
    if (turn.role === 'user') {
      const images = turn.images.map(image => ({ type: 'image_url', image_url: { url: image.url } }));
      messages.push({ role: 'user', content: images.length ? [...images, { type: 'text', text: turn.text }] : turn.text });
    } else if (turn.role === 'tool') {
      messages.push({ role: 'tool', tool_call_id: turn.callId, content: turn.text });
    } else if (turn.text || turn.calls.length) {
      messages.push({
        role: 'assistant',
        content: turn.text || null,
        ...(turn.reasoning ? { reasoning_content: turn.reasoning } : {}),
        ...(turn.calls.length
          ? {
              tool_calls: turn.calls.map(call => (
                { id: call.id, type: 'function', function: { name: call.name, arguments: call.arguments } })),
            }
          : {}),
      });
    }
  }
  return messages;
}

/// The tools the user wrote in the settings; throws with a message for them.
export function parseTools(text) {
  if (!text.trim()) return [];
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are not valid JSON: ${error.message}`);
  }
  if (!Array.isArray(tools)) throw new Error('The tools must be a JSON list of {"type": "function", "function": {…}}.');
  return tools;
}
