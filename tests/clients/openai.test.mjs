// The official OpenAI client, unchanged, against the real server.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import OpenAI from 'openai';
import { calls, startServer, until, weatherTool } from './harness.mjs';

const tools = [{ type: 'function', function: weatherTool }];
const nested = { units: { t: 'C' }, list: [1, 2.5, null, true, 'a "quoted" ü'] };
const script = [
  { match: 'say hello', text: 'I should greet.</think>Hello, wörld! 🌊' },
  { match: 'no thoughts', text: 'Straight away.' },
  { match: 'two places', text: `Two calls.</think>Let me look.${calls(
    { name: 'get_weather', parameters: { place: 'Rome', days: 2, options: nested } },
    { name: 'get_weather', parameters: { place: 'Oslo "north"' } })}` },
  { match: 'sunny in Rome', text: 'Both are here.</think>Rome is sunny.' },
  { match: 'cold in Oslo', text: 'Both are here.</think>Rome is sunny, Oslo is cold.' },
  { match: 'stop here', text: 'Counting.</think>one two three END four' },
  { match: 'forever', text: 'tick ', repeat: true },
];

describe('openai', () => {
  let server, client;
  before(async () => {
    server = await startServer({ script, args: ['--served-model-name', 'tiny'] });
    client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
  });
  after(async () => {
    if (server) assert.deepEqual(await server.stop(), { code: 0, signal: null });
  });
  const ask = (content, rest = {}) => ({ model: 'tiny', messages: [{ role: 'user', content }], ...rest });

  test('models', async () => {
    const list = await client.models.list();
    assert.deepEqual(list.data.map(model => model.id), ['tiny']);
    assert.equal((await client.models.retrieve('tiny')).object, 'model');
    await assert.rejects(client.models.retrieve('other'), error => error.status === 404);
  });

  test('chat', async () => {
    const answer = await client.chat.completions.create(ask('say hello'));
    const [choice] = answer.choices;
    assert.equal(choice.message.content, 'Hello, wörld! 🌊');
    assert.equal(choice.message.reasoning_content, 'I should greet.');
    assert.equal(choice.finish_reason, 'stop');
    const { usage } = answer;
    assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
    assert.equal(usage.prompt_cache_hit_tokens + usage.prompt_cache_miss_tokens, usage.prompt_tokens);
    assert.equal(usage.prompt_tokens_details.cached_tokens, usage.prompt_cache_hit_tokens);
    assert.ok(usage.completion_tokens_details.reasoning_tokens > 0);
  });

  test('streamed chat gives the same', async () => {
    const stream = client.chat.completions.stream(ask('say hello', { stream_options: { include_usage: true } }));
    let reasoning = '';
    stream.on('chunk', chunk => { reasoning += chunk.choices[0]?.delta?.reasoning_content ?? ''; });
    const answer = await stream.finalChatCompletion();
    assert.equal(answer.choices[0].message.content, 'Hello, wörld! 🌊');
    assert.equal(reasoning, 'I should greet.');
    assert.ok(answer.usage.prompt_tokens > 0);
    const again = await client.chat.completions.create(ask('say hello'));
    assert.equal(again.usage.prompt_tokens, answer.usage.prompt_tokens);
    assert.equal(again.usage.completion_tokens, answer.usage.completion_tokens);
  });

  test('thinking off', async () => {
    const answer = await client.chat.completions.create(ask('no thoughts', { thinking: { type: 'disabled' } }));
    assert.equal(answer.choices[0].message.content, 'Straight away.');
    assert.ok(!answer.choices[0].message.reasoning_content);
  });

  test('a tools loop of three turns, parallel calls and nested arguments', async () => {
    const messages = [{ role: 'user', content: 'two places' }];
    const first = await client.chat.completions.create({ model: 'tiny', messages, tools });
    const [{ message, finish_reason: finish }] = first.choices;
    assert.equal(finish, 'tool_calls');
    assert.equal(message.content.trim(), 'Let me look.');
    assert.deepEqual(message.tool_calls.map(call => JSON.parse(call.function.arguments)), [
      { place: 'Rome', days: 2, options: nested }, { place: 'Oslo "north"' }]);
    messages.push(message,
      { role: 'tool', tool_call_id: message.tool_calls[1].id, content: 'the report of Oslo' },
      { role: 'tool', tool_call_id: message.tool_calls[0].id, content: 'it is sunny in Rome' });
    const second = await client.chat.completions.create({ model: 'tiny', messages, tools });
    assert.match(second.choices[0].message.content, /^Rome is sunny/);
    messages.push(second.choices[0].message, { role: 'user', content: 'say hello' });
    const third = await client.chat.completions.create({ model: 'tiny', messages, tools });
    assert.equal(third.choices[0].message.content, 'Hello, wörld! 🌊');
    // Everything but the last exchange was read before, in the form in which the server wrote it.
    assert.ok(third.usage.prompt_cache_hit_tokens >= second.usage.prompt_tokens);
  });

  test('streamed calls', async () => {
    const stream = client.chat.completions.stream(ask('two places', { tools }));
    const { choices: [{ message, finish_reason: finish }] } = await stream.finalChatCompletion();
    assert.equal(finish, 'tool_calls');
    assert.equal(message.tool_calls.length, 2);
    assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), { place: 'Rome', days: 2, options: nested });
  });

  test('stop string and length', async () => {
    const stopped = await client.chat.completions.create(ask('stop here', { stop: ['END'] }));
    assert.equal(stopped.choices[0].message.content, 'one two three ');
    assert.equal(stopped.choices[0].finish_reason, 'stop');
    const cut = await client.chat.completions.create(ask('forever', { max_tokens: 7 }));
    assert.equal(cut.choices[0].finish_reason, 'length');
    assert.equal(cut.usage.completion_tokens, 7);
  });

  test('n choices and logprobs', async () => {
    const answer = await client.chat.completions.create(
      ask('say hello', { n: 3, logprobs: true, top_logprobs: 2, max_tokens: 4 }));
    assert.deepEqual(answer.choices.map(choice => choice.index), [0, 1, 2]);
    const entries = answer.choices[0].logprobs.reasoning_content ?? answer.choices[0].logprobs.content;
    assert.equal(entries.length, 4);
    assert.equal(entries[0].top_logprobs.length, 2);
    assert.ok(entries[0].logprob <= 0);
  });

  test('completions', async () => {
    const answer = await client.completions.create({ model: 'tiny', prompt: 'say hello', max_tokens: 5 });
    assert.equal(answer.object, 'text_completion');
    assert.equal(answer.usage.completion_tokens, 5);
    let text = '';
    for await (const part of await client.completions.create({ model: 'tiny', prompt: 'say hello', max_tokens: 5, stream: true }))
      text += part.choices[0]?.text ?? '';
    assert.equal(text, answer.choices[0].text);
  });

  test('responses, whole and streamed', async () => {
    const answer = await client.responses.create({ model: 'tiny', input: 'say hello' });
    assert.equal(answer.status, 'completed');
    assert.equal(answer.output_text, 'Hello, wörld! 🌊');
    assert.equal(answer.output.find(item => item.type === 'reasoning').content[0].text, 'I should greet.');
    const events = [];
    let text = '';
    for await (const event of await client.responses.create({ model: 'tiny', input: 'say hello', stream: true })) {
      events.push(event.type);
      if (event.type === 'response.output_text.delta') text += event.delta;
    }
    assert.equal(text, answer.output_text);
    assert.equal(events[0], 'response.created');
    assert.equal(events.at(-1), 'response.completed');
  });

  test('a tools loop over responses', async () => {
    const flat = [{ type: 'function', ...weatherTool, strict: false }];
    const input = [{ role: 'user', content: 'two places' }];
    const first = await client.responses.create({ model: 'tiny', input, tools: flat });
    const made = first.output.filter(item => item.type === 'function_call');
    assert.deepEqual(made.map(call => call.name), ['get_weather', 'get_weather']);
    input.push(...first.output,
      { type: 'function_call_output', call_id: made[0].call_id, output: 'the report of Rome' },
      { type: 'function_call_output', call_id: made[1].call_id, output: 'it is cold in Oslo' });
    const second = await client.responses.create({ model: 'tiny', input, tools: flat });
    assert.equal(second.output_text, 'Rome is sunny, Oslo is cold.');
    assert.ok(second.usage.input_tokens_details.cached_tokens > 0);
  });

  test('errors say what is wrong', async () => {
    const fails = async (body, status, pattern) =>
      assert.rejects(client.chat.completions.create(body), error =>
        error.status === status && pattern.test(error.message));
    await fails({ model: 'tiny', messages: [] }, 400, /messages/);
    await fails({ ...ask('x'), model: 'absent' }, 404, /absent/);
    await fails(ask('x', { temperature: 3 }), 400, /temperature/);
    await fails(ask('x', { max_tokens: 0 }), 400, /max_tokens/);
    await fails(ask('word '.repeat(60000)), 400, /context|tokens/);
  });

  test('abort ends the work', async () => {
    const controller = new AbortController();
    const stream = await client.chat.completions.create(ask('forever', { stream: true }), { signal: controller.signal });
    let seen = 0;
    await assert.rejects(async () => {
      for await (const _ of stream) if (++seen === 3) controller.abort();
      controller.signal.throwIfAborted();
    });
    await until(async () => (await server.metric('vllm:num_requests_running')) === 0);
  });
});

describe('openai with a key', () => {
  let server;
  before(async () => { server = await startServer({ script, args: ['--api-key', 's3cret'] }); });
  after(async () => { await server?.stop(); });

  test('only the right key is let in, and it is not in the log', async () => {
    const models = apiKey => new OpenAI({ baseURL: `${server.url}/v1`, apiKey, maxRetries: 0 }).models.list();
    await assert.rejects(models('wrong'), error => error.status === 401);
    assert.equal((await models('s3cret')).data.length, 1);
    assert.ok(!server.log.some(line => line.includes('s3cret')));
  });
});
