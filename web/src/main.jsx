// The page: a conversation, and what it costs.
import { render } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, listModels, streamChat } from './api.js';
import { Composer } from './composer.jsx';
import { addChunk, assistantTurn, openCalls, parseTools, toMessages, toolTurn, userTurn } from './conversation.js';
import { AssistantMessage, ToolMessage, UserMessage } from './message.jsx';
import { Panel } from './panel.jsx';
import { EffortSwitch, Settings, useSettings } from './settings.jsx';
import './style.css';

function requestBody(model, turns, settings) {
  const tools = parseTools(settings.tools);
  return {
    model,
    messages: toMessages(turns, settings.system),
    ...(tools.length ? { tools } : {}),
    ...(settings.maxTokens ? { max_tokens: Number(settings.maxTokens) } : {}),
    ...(settings.effort === 'off'
      ? { thinking: { type: 'disabled' } }
      : { thinking: { type: 'enabled' }, reasoning_effort: settings.effort }),
  };
}

function useModel(key) {
  const [model, setModel] = useState(null);
  const [problem, setProblem] = useState('');
  useEffect(() => {
    let timer;
    const ask = async () => {
      try {
        const [first] = await listModels(key);
        setModel(first.id);
        setProblem('');
      } catch (error) {
        setProblem(error.status === 401 ? 'The server wants an API key: give it under Settings.' : error.message);
        if (error.status !== 401) timer = setTimeout(ask, 2000);
      }
    };
    ask();
    return () => clearTimeout(timer);
  }, [key]);
  return { model, problem };
}

function useConversation(model, settings, key) {
  const [turns, setTurns] = useState([]);
  const [notice, setNotice] = useState('');
  const running = useRef(null);
  const isBusy = turns.at(-1)?.role === 'assistant' && ['waiting', 'running'].includes(turns.at(-1).state);

  const answer = async history => {
    let body;
    try {
      body = requestBody(model, history, settings);
    } catch (error) {
      setNotice(error.message);
      return;
    }
    setNotice('');
    let turn = assistantTurn();
    const show = next => {
      turn = next;
      setTurns([...history, turn]);
    };
    show(turn);
    const controller = new AbortController();
    running.current = controller;
    try {
      await streamChat({
        key, body, signal: controller.signal,
        onChunk: chunk => show(addChunk(turn, chunk, performance.now())),
      });
      show({ ...turn, state: 'done' });
      setNotice('The answer is complete.');
    } catch (error) {
      if (controller.signal.aborted) {
        show({ ...turn, state: 'stopped', calls: [] });
        setNotice('Stopped.');
      } else {
        const message = error instanceof ApiError ? error.message : `The server cannot be reached: ${error.message}`;
        show({ ...turn, state: 'failed', calls: [], error: message });
      }
    }
  };

  return {
    turns, isBusy, notice, setNotice,
    send: (text, images) => answer([...turns, userTurn(text, images)]),
    stop: () => running.current?.abort(),
    clear: () => (running.current?.abort(), setTurns([]), setNotice('')),
    regenerate: () => answer(turns.slice(0, -1)),
    edit: (turn, text) => answer([...turns.slice(0, turns.indexOf(turn)), userTurn(text, turn.images)]),
    giveResult: (callId, text) => {
      const next = [...turns, toolTurn(callId, text)];
      if (openCalls(next).length) setTurns(next);
      else answer(next);
    },
  };
}

function Turns({ talk }) {
  const end = useRef(null);
  const open = new Set(openCalls(talk.turns).map(call => call.id));
  const lastAnswer = talk.turns.findLastIndex(turn => turn.role === 'assistant');
  const callNames = new Map(talk.turns.flatMap(turn => (turn.calls ?? []).map(call => [call.id, call.name])));
  useEffect(() => end.current.scrollIntoView({ block: 'nearest' }), [talk.turns]);
  return (
    <div class="turns" role="log" aria-label="Conversation" aria-live="off">
      {talk.turns.length === 0 && <p class="empty">Ask something. The model runs on this machine, and nothing leaves it.</p>}
      {talk.turns.map((turn, index) => {
        if (turn.role === 'user') return <UserMessage key={turn.id} turn={turn} isBusy={talk.isBusy} onEdit={talk.edit} />;
        if (turn.role === 'tool') return <ToolMessage key={turn.id} turn={turn} name={callNames.get(turn.callId)} />;
        return (
          <AssistantMessage key={turn.id} turn={turn} isLast={index === lastAnswer} isBusy={talk.isBusy} openCallIds={open}
                            onRegenerate={talk.regenerate} onResult={talk.giveResult} />
        );
      })}
      <div ref={end} />
    </div>
  );
}

function App() {
  const { settings, change, key, setKey } = useSettings();
  const { model, problem } = useModel(key);
  const talk = useConversation(model, settings, key);
  const lastAnswer = talk.turns.findLast(turn => turn.role === 'assistant');
  return (
    <>
      <header>
        <h1>Tidepool</h1>
        <span class="model">{model ?? 'connecting…'}</span>
        <EffortSwitch value={settings.effort} onChange={effort => change({ effort })} />
        <button type="button" onClick={talk.clear}>New conversation</button>
      </header>
      <main>
        {problem && <p class="error" role="alert">{problem}</p>}
        <Turns talk={talk} />
        <Composer isBusy={talk.isBusy || !model} onSend={talk.send} onStop={talk.stop} onProblem={talk.setNotice} />
        <p class="notice" role="status">{talk.notice}</p>
        <Settings settings={settings} change={change} apiKey={key} setKey={setKey} />
      </main>
      <Panel turn={lastAnswer} isBusy={talk.isBusy} />
    </>
  );
}

render(<App />, document.getElementById('app'));
