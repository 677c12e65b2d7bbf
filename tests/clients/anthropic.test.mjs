// The official Anthropic client, unchanged, against the real server.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { calls, startServer, until, weatherTool } from './harness.mjs';

const tools = [{ name: weatherTool.name, description: weatherTool.description, input_schema: weatherTool.parameters }];
const script = [
  { match: 'say hello', text: 'I should greet.</think>Hello there.' },
  { match: 'two places', text: `Two calls.</think>Let me look.${calls(
    { name: 'get_weather', parameters: { place: 'Rome', days: 2 } }, { name: 'get_weather', parameters: { place: 'Oslo' } })}` },
  { match: 'cold in Oslo', text: 'Both are here.</think>Rome is sunny, Oslo is cold.' },
  { match: 'stop here', text: 'Counting.</think>one two END three' },
  { match: 'forever', text: 'tick ', repeat: true },
];

describe('anthropic', () => {
  let server, client;
  before(async () => {
    server = await startServer({ script });
    client = new Anthropic({ baseURL: server.url, apiKey: 'none', maxRetries: 0 });
  });
  after(async () => {
    if (server) assert.deepEqual(await server.stop(), { code: 0, signal: null });
  });
  const ask = (content, rest = {}) =>
    ({ model: 'claude-sonnet-4-5', max_tokens: 400, messages: [{ role: 'user', content }], ...rest });

  test('messages', async () => {
    const message = await client.messages.create(ask('say hello'));
    assert.deepEqual(message.content.map(block => block.type), ['thinking', 'text']);
    assert.equal(message.content[0].thinking, 'I should greet.');
    assert.ok(message.content[0].signature.length > 0);
    assert.equal(message.content[1].text, 'Hello there.');
    assert.equal(message.stop_reason, 'end_turn');
    assert.equal(message.model, 'claude-sonnet-4-5');
  });

  test('streamed messages give the same', async () => {
    const message = await client.messages.stream(ask('say hello')).finalMessage();
    assert.equal(message.content[0].thinking, 'I should greet.');
    assert.equal(message.content[1].text, 'Hello there.');
    assert.equal(message.stop_reason, 'end_turn');
    assert.ok(message.usage.output_tokens > 0);
  });

  test('count_tokens is what the request then takes', async () => {
    const { max_tokens: _, ...body } = ask('say hello', { system: 'Be brief.', tools });
    const counted = await client.messages.countTokens(body);
    const { usage } = await client.messages.create({ ...body, max_tokens: 4 });
    assert.equal(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens);
  });

  test('a tools loop of three turns', async () => {
    const messages = [{ role: 'user', content: 'two places' }];
    const first = await client.messages.create(ask('', { messages, tools }));
    assert.equal(first.stop_reason, 'tool_use');
    const made = first.content.filter(block => block.type === 'tool_use');
    assert.deepEqual(made.map(block => block.input), [{ place: 'Rome', days: 2 }, { place: 'Oslo' }]);
    messages.push({ role: 'assistant', content: first.content }, { role: 'user', content: [
      { type: 'tool_result', tool_use_id: made[0].id, content: 'the report of Rome' },
      { type: 'tool_result', tool_use_id: made[1].id, content: [{ type: 'text', text: 'it is cold in Oslo' }] }] });
    const second = await client.messages.create(ask('', { messages, tools }));
    assert.equal(second.content.at(-1).text, 'Rome is sunny, Oslo is cold.');
    assert.ok(second.usage.cache_read_input_tokens > 0);
    messages.push({ role: 'assistant', content: second.content }, { role: 'user', content: 'say hello' });
    const third = await client.messages.stream(ask('', { messages, tools })).finalMessage();
    assert.equal(third.content.at(-1).text, 'Hello there.');
  });

  test('streamed calls', async () => {
    const message = await client.messages.stream(ask('two places', { tools })).finalMessage();
    assert.deepEqual(message.content.map(block => block.type), ['thinking', 'text', 'tool_use', 'tool_use']);
    assert.deepEqual(message.content[2].input, { place: 'Rome', days: 2 });
  });

  test('stop sequence and length', async () => {
    const stopped = await client.messages.create(ask('stop here', { stop_sequences: ['END'] }));
    assert.equal(stopped.stop_reason, 'stop_sequence');
    assert.equal(stopped.stop_sequence, 'END');
    assert.equal(stopped.content.at(-1).text, 'one two ');
    assert.equal((await client.messages.create(ask('forever', { max_tokens: 3 }))).stop_reason, 'max_tokens');
  });

  test('errors have the shape the client knows', async () => {
    await assert.rejects(client.messages.create(ask('x', { max_tokens: 0 })), error =>
      error.status === 400 && error.error.error.type === 'invalid_request_error' && /max_tokens/.test(error.message));
    await assert.rejects(client.messages.create(ask('x', { model: 'absent' })), error =>
      error.status === 404 && error.error.error.type === 'not_found_error');
  });

  test('abort ends the work', async () => {
    const stream = client.messages.stream(ask('forever', { max_tokens: 2000 }));
    await new Promise(seen => stream.on('streamEvent', seen));
    stream.abort();
    await assert.rejects(stream.finalMessage());
    await until(async () => (await server.metric('vllm:num_requests_running')) === 0);
  });
});
