// The Vercel AI SDK with its provider for OpenAI-compatible servers.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { calls, startServer, weatherTool } from './harness.mjs';

const script = [
  { match: 'say hello', text: 'I should greet.</think>Hello there.' },
  { match: 'Rome now', text: `One call.</think>${calls({ name: 'get_weather', parameters: { place: 'Rome' } })}` },
  { match: 'sunny', text: 'It is here.</think>Rome is sunny.' },
];

describe('ai', () => {
  let server, model;
  before(async () => {
    server = await startServer({ script, args: ['--served-model-name', 'tiny'] });
    model = createOpenAICompatible({ name: 'tidepool', baseURL: `${server.url}/v1`, includeUsage: true })('tiny');
  });
  after(async () => { await server?.stop(); });

  test('generateText', async () => {
    const result = await generateText({ model, prompt: 'say hello', maxRetries: 0 });
    assert.equal(result.text, 'Hello there.');
    assert.equal(result.reasoningText, 'I should greet.');
    assert.equal(result.finishReason, 'stop');
    assert.ok(result.usage.inputTokens > 0 && result.usage.outputTokens > 0);
  });

  test('streamText', async () => {
    const result = streamText({ model, prompt: 'say hello', maxRetries: 0 });
    let text = '';
    for await (const piece of result.textStream) text += piece;
    assert.equal(text, 'Hello there.');
    assert.equal(await result.reasoningText, 'I should greet.');
    assert.ok((await result.usage).outputTokens > 0);
  });

  test('a tool is called and its result answered', async () => {
    const asked = [];
    const get_weather = tool({
      description: weatherTool.description,
      inputSchema: jsonSchema(weatherTool.parameters),
      execute: async input => (asked.push(input), 'it is sunny'),
    });
    const result = await generateText({
      model, prompt: 'Rome now', tools: { get_weather }, stopWhen: stepCountIs(3), maxRetries: 0 });
    assert.deepEqual(asked, [{ place: 'Rome' }]);
    assert.equal(result.text, 'Rome is sunny.');
    assert.equal(result.steps.length, 2);
  });
});
