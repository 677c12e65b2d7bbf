// Where a message is written, with its images.
import { useRef, useState } from 'preact/hooks';

const imageTypes = ['image/jpeg', 'image/png', 'image/webp', 'image/gif'];

function readImage(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve({ name: file.name || 'pasted image', url: reader.result });
    reader.onerror = () => reject(new Error(`${file.name} could not be read`));
    reader.readAsDataURL(file);
  });
}

export function Composer({ isBusy, onSend, onStop, onProblem }) {
  const [text, setText] = useState('');
  const [images, setImages] = useState([]);
  const [isOver, setIsOver] = useState(false);
  const picker = useRef(null);
  const input = useRef(null);

  const addFiles = async files => {
    const usable = [...files].filter(file => imageTypes.includes(file.type));
    if (usable.length < files.length) onProblem('Only JPEG, PNG, WebP and GIF images can be added.');
    try {
      const added = await Promise.all(usable.map(readImage));
      setImages(old => [...old, ...added]);
    } catch (error) {
      onProblem(error.message);
    }
  };
  const send = event => {
    event?.preventDefault();
    if (isBusy || !text.trim()) return;
    onSend(text, images);
    setText('');
    setImages([]);
    input.current.focus();
  };
  const onKeyDown = event => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) send(event);
    if (event.key === 'Escape' && isBusy) onStop();
  };
  const onDrop = event => {
    event.preventDefault();
    setIsOver(false);
    addFiles(event.dataTransfer.files);
  };
  const onPaste = event => {
    const files = [...event.clipboardData.files];
    if (files.length) event.preventDefault(), addFiles(files);
  };
  return (
    <form class={`composer ${isOver ? 'over' : ''}`} onSubmit={send} onDrop={onDrop}
          onDragOver={event => (event.preventDefault(), setIsOver(true))} onDragLeave={() => setIsOver(false)}>
      {images.length > 0 && (
        <ul class="images" aria-label="Images of the message">
          {images.map((image, index) => (
            <li key={index}>
              <img src={image.url} alt={image.name} />
              <button type="button" aria-label={`Remove ${image.name}`}
                      onClick={() => setImages(images.filter((_, other) => other !== index))}>×</button>
            </li>
          ))}
        </ul>
      )}
      <textarea ref={input} aria-label="Message" rows={3} value={text} autoFocus onKeyDown={onKeyDown} onPaste={onPaste}
                placeholder="Write a message. Enter sends, Shift+Enter starts a line, Escape stops."
                onInput={event => setText(event.currentTarget.value)} />
      <div class="actions">
        <input ref={picker} type="file" hidden multiple accept={imageTypes.join(',')}
               onChange={event => (addFiles(event.currentTarget.files), (event.currentTarget.value = ''))} />
        <button type="button" onClick={() => picker.current.click()}>Add image</button>
        {isBusy
          ? <button type="button" class="primary" onClick={onStop}>Stop</button>
          : <button type="submit" class="primary" disabled={!text.trim()}>Send</button>}
      </div>
    </form>
  );
}
