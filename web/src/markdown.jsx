// Markdown as elements. The text of a model is never turned into HTML, so nothing in it can run.
import { lexer } from 'marked';

const isSafeLink = href => /^(https?:|mailto:)/i.test(href);
/// Character references that Markdown knows as such; others stay as written.
const unescape = text =>
  text.replace(/&(amp|lt|gt|quot|#39);/g, (_, name) => ({ amp: '&', lt: '<', gt: '>', quot: '"', '#39': "'" })[name]);

function inline(tokens = []) {
  return tokens.map(token => {
    switch (token.type) {
      case 'strong': return <strong>{inline(token.tokens)}</strong>;
      case 'em': return <em>{inline(token.tokens)}</em>;
      case 'del': return <del>{inline(token.tokens)}</del>;
      case 'codespan': return <code>{token.text}</code>;
      case 'br': return <br />;
      case 'link':
        return isSafeLink(token.href)
          ? <a href={token.href} target="_blank" rel="noreferrer noopener">{inline(token.tokens)}</a>
          : token.raw;
      case 'escape': return token.text;
      case 'text': return token.tokens ? inline(token.tokens) : unescape(token.text);
      default: return token.raw;  // images and HTML stay the text they are
    }
  });
}

function Code({ token }) {
  const copy = () => navigator.clipboard?.writeText(token.text);
  return (
    <div class="code">
      <div class="code-bar">
        <span>{token.lang}</span>
        <button type="button" onClick={copy}>Copy<span class="sr"> this code</span></button>
      </div>
      <pre tabIndex={0}><code>{token.text}</code></pre>
    </div>
  );
}

function Table({ token }) {
  return (
    <div class="scroll">
      <table>
        <thead><tr>{token.header.map(cell => <th scope="col">{inline(cell.tokens)}</th>)}</tr></thead>
        <tbody>{token.rows.map(row => <tr>{row.map(cell => <td>{inline(cell.tokens)}</td>)}</tr>)}</tbody>
      </table>
    </div>
  );
}

function List({ token }) {
  const items = token.items.map(item => <li>{blocks(item.tokens, !token.loose)}</li>);
  return token.ordered ? <ol start={token.start || 1}>{items}</ol> : <ul>{items}</ul>;
}

function blocks(tokens = [], isTight = false) {
  return tokens.map(token => {
    switch (token.type) {
      case 'space': return null;
      case 'checkbox': return token.checked ? '☑ ' : '☐ ';
      case 'paragraph': return <p>{inline(token.tokens)}</p>;
      case 'text': return isTight ? inline(token.tokens ?? [token]) : <p>{inline(token.tokens ?? [token])}</p>;
      // The page has its own headings; those of an answer come below them.
      case 'heading': return <div class={`heading h${token.depth}`} role="heading" aria-level={Math.min(6, token.depth + 2)}>
        {inline(token.tokens)}</div>;
      case 'code': return <Code token={token} />;
      case 'blockquote': return <blockquote>{blocks(token.tokens)}</blockquote>;
      case 'list': return <List token={token} />;
      case 'table': return <Table token={token} />;
      case 'hr': return <hr />;
      default: return <p>{token.raw}</p>;
    }
  });
}

export function Markdown({ text }) {
  return <div class="markdown">{blocks(lexer(text))}</div>;
}
