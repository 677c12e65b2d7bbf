// What a request is made with besides its messages. Kept in this browser; the key only while the tab is open.
import { useEffect, useState } from 'preact/hooks';

const defaults = { system: '', effort: 'high', tools: '', maxTokens: '', theme: 'auto' };

function load() {
  try {
    return { ...defaults, ...JSON.parse(localStorage.getItem('tidepool.settings') ?? '{}') };
  } catch {
    return defaults;  // written by something else, or storage is off
  }
}

function save(storage, name, text) {
  try {
    storage.setItem(name, text);
  } catch {
    // Storage is off or full: the settings last as long as the page.
  }
}

export function useSettings() {
  const [settings, setSettings] = useState(load);
  const [key, setKey] = useState(() => sessionStorage.getItem('tidepool.key') ?? '');
  useEffect(() => save(localStorage, 'tidepool.settings', JSON.stringify(settings)), [settings]);
  useEffect(() => save(sessionStorage, 'tidepool.key', key), [key]);
  useEffect(() => {
    document.documentElement.style.colorScheme = settings.theme === 'auto' ? 'light dark' : settings.theme;
  }, [settings.theme]);
  const change = part => setSettings(old => ({ ...old, ...part }));
  return { settings, change, key, setKey };
}

export const efforts = [
  ['off', 'No thinking'],
  ['low', 'Low'],
  ['high', 'High'],
  ['max', 'Max'],
];

export function EffortSwitch({ value, onChange }) {
  return (
    <fieldset class="efforts">
      <legend>Effort</legend>
      {efforts.map(([name, label]) => (
        <label key={name}>
          <input type="radio" name="effort" value={name} checked={value === name} onChange={() => onChange(name)} />
          <span>{label}</span>
        </label>
      ))}
    </fieldset>
  );
}

export function Settings({ settings, change, apiKey, setKey }) {
  const field = name => ({ value: settings[name], onInput: event => change({ [name]: event.currentTarget.value }) });
  return (
    <details class="settings">
      <summary>Settings</summary>
      <label>System prompt<textarea rows={3} {...field('system')} /></label>
      <label>
        Tools, as a JSON list
        <textarea rows={4} spellcheck={false} {...field('tools')}
                  placeholder='[{"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}]' />
      </label>
      <label>Most tokens of an answer<input type="number" min="1" placeholder="what the context leaves" {...field('maxTokens')} /></label>
      <label>
        API key
        <input type="password" autocomplete="off" value={apiKey} placeholder="only if the server asks for one"
               onInput={event => setKey(event.currentTarget.value)} />
      </label>
      <label>
        Colours
        <select value={settings.theme} onChange={event => change({ theme: event.currentTarget.value })}>
          <option value="auto">as the system</option>
          <option value="light">light</option>
          <option value="dark">dark</option>
        </select>
      </label>
    </details>
  );
}
