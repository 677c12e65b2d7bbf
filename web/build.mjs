// Bundles the page into dist/, which is committed: building Tidepool itself needs no npm.
// The same sources and the locked versions give the same bytes. Usage: node build.mjs [FOLDER]
import { build } from 'esbuild';
import { copyFileSync, mkdirSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const target = resolve(process.argv[2] ?? join(here, 'dist'));
mkdirSync(target, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: 'src/main.jsx' },
  outdir: target,
  bundle: true,
  minify: true,
  format: 'esm',
  target: 'es2022',
  charset: 'utf8',
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'inline',
  logLevel: 'warning',
});
for (const name of ['index.html', 'icon.svg']) copyFileSync(join(here, name), join(target, name));
