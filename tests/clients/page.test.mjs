// The web page in a real browser.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';
import { chromium } from 'playwright-core';
import { calls, startServer, until, weatherTool } from './harness.mjs';

const script = [
  { match: 'say hello', text: 'I should greet.</think>Hello **there**, <b>you</b>.\n\n```js\nlet a = 1;\n```\n' },
  { match: 'weather', text: `One call.</think>${calls({ name: 'get_weather', parameters: { place: 'Rome' } })}` },
  { match: 'sunny', text: 'It is here.</think>Rome is sunny.' },
  { match: 'forever', text: 'tick ', repeat: true },
];
const executablePath = ['/usr/bin/chromium', '/usr/bin/chromium-browser'].find(existsSync);

describe('page', () => {
  let server, browser, page;
  const foreign = [];
  before(async () => {
    server = await startServer({ script, args: ['--served-model-name', 'tiny'] });
    browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
    page = await browser.newPage();
    page.on('request', request => { if (!request.url().startsWith(server.url) && !request.url().startsWith('data:')) foreign.push(request.url()); });
    page.on('pageerror', error => { throw error; });
    await page.goto(server.url);
    await page.getByText('tiny').waitFor();
  });
  after(async () => {
    await browser?.close();
    await server?.stop();
  });
  const say = async text => {
    await page.getByRole('textbox', { name: 'Message' }).fill(text);
    await page.keyboard.press('Enter');
  };
  const lastAnswer = () => page.getByRole('article', { name: 'Answer' }).last();
  const isDone = () => page.getByRole('status').getByText('The answer is complete.').waitFor();
  const restart = async () => {
    await page.getByRole('button', { name: 'New conversation' }).click();
    await page.getByText('Ask something.').waitFor();
  };

  test('an answer streams in, thinking is folded, markup of the model is shown and never run', async () => {
    await say('say hello');
    await isDone();
    assert.equal(await lastAnswer().locator('strong').innerText(), 'there');
    assert.match(await lastAnswer().innerText(), /Hello there, <b>you<\/b>\./);
    assert.equal(await lastAnswer().locator('b').count(), 0);
    assert.match(await lastAnswer().locator('pre').innerText(), /let a = 1;/);
    const thinking = lastAnswer().locator('details.reasoning');
    assert.equal(await thinking.getByText('I should greet.').isVisible(), false);
    await thinking.locator('summary').press('Enter');
    assert.equal(await thinking.getByText('I should greet.').isVisible(), true);
  });

  test('regenerating and editing show what the cache saved', async () => {
    await page.getByRole('button', { name: 'Regenerate' }).click();
    await isDone();
    assert.match(await lastAnswer().innerText(), /\d+ of \d+ prompt tokens were known, \d+ read/);
    await page.getByRole('button', { name: 'Edit' }).click();
    await page.getByRole('textbox', { name: 'Edit message' }).fill('please say hello again');
    await page.getByRole('button', { name: 'Send edited' }).click();
    await isDone();
    assert.equal(await page.getByRole('article', { name: 'You' }).count(), 1);
    assert.match(await page.getByRole('article', { name: 'You' }).innerText(), /please say hello again/);
  });

  test('the panel has figures of this session and of the server', async () => {
    const panel = page.getByRole('complementary', { name: 'Live figures' });
    const figure = async name => panel.locator('.row', { has: page.getByText(name, { exact: true }) }).locator('dd').innerText();
    assert.match(await figure('Context'), /^[\d,]+ tokens$/);
    await until(async () => /^[\d.]+ (B|KiB|MiB)$/.test(await figure('KV')));
    assert.match(await figure('Speed'), /tokens\/s$/);
    assert.notEqual(await figure('Found as'), '–');
    assert.notEqual(await figure('Match ended'), '–');
    await until(async () => (await figure('Running')) === '0');
    assert.match(await figure('KV pages'), /\d/);
  });

  test('a tool call is shown and its result answered', async () => {
    await restart();
    await page.getByText('Settings').click();
    await page.getByLabel('Tools, as a JSON list').fill(JSON.stringify([{ type: 'function', function: weatherTool }]));
    await say('weather');
    const call = page.getByRole('region', { name: 'Tool call get_weather' });
    await call.getByText('"place": "Rome"').waitFor();
    await call.getByLabel('Result of get_weather').fill('it is sunny');
    await call.getByRole('button', { name: 'Give result' }).click();
    await lastAnswer().getByText('Rome is sunny.').waitFor();
  });

  test('tools that are not JSON are refused in words', async () => {
    await restart();
    await page.getByLabel('Tools, as a JSON list').fill('{');
    await say('say hello');
    await page.getByRole('status').getByText('The tools are not valid JSON').waitFor();
    await page.getByLabel('Tools, as a JSON list').fill('');
  });

  test('Escape stops, and the server stops too', async () => {
    await restart();
    await say('forever');
    await lastAnswer().locator('summary').getByText('Thinking…').waitFor();
    await page.getByRole('textbox', { name: 'Message' }).press('Escape');
    await page.getByRole('status').getByText('Stopped.').waitFor();
    await until(async () => (await server.metric('vllm:num_requests_running')) === 0);
  });

  test('effort is a radio group for the keyboard', async () => {
    await restart();
    await page.getByRole('radio', { name: 'High' }).focus();
    await page.keyboard.press('ArrowRight');
    assert.equal(await page.getByRole('radio', { name: 'Max' }).isChecked(), true);
    const request = page.waitForRequest(/chat\/completions/);
    await say('say hello');
    assert.equal((await request).postDataJSON().reasoning_effort, 'max');
    await isDone();
  });

  test('light and dark have enough contrast', async () => {
    for (const scheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme: scheme });
      const [ink, ground] = await page.evaluate(() => {
        const luminance = text => {
          const [r, g, b] = text.match(/[\d.]+/g).map(Number).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const style = getComputedStyle(document.body);
        return [luminance(style.color), luminance(style.backgroundColor)];
      });
      const [light, dark] = ink > ground ? [ink, ground] : [ground, ink];
      assert.ok((light + 0.05) / (dark + 0.05) >= 7, scheme);
    }
  });

  test('everything has a name, and nothing comes from elsewhere', async () => {
    const nameless = await page.evaluate(() =>
      [...document.querySelectorAll('button, input, textarea, select')]
        .filter(element => !element.hidden && !element.labels?.length && !element.getAttribute('aria-label') && !element.textContent.trim())
        .map(element => element.outerHTML));
    assert.deepEqual(nameless, []);
    assert.deepEqual(foreign, []);
  });
});
