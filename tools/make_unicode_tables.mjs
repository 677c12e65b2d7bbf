// Writes src/text/unicode_tables.h. Run from the repository root:
//
//     node tools/make_unicode_tables.mjs
//
// The classes come from tests/golden/tokenizer/unicode_classes.json, which is Unicode 16.0. Decompositions and lower case
// come from the JavaScript engine, which must know Unicode 16.0 or later: both are stable from the version that assigns
// a character on, and characters which 16.0 does not assign are left out.
import {readFileSync, writeFileSync} from 'node:fs';

const kClassesPath = 'tests/golden/tokenizer/unicode_classes.json';
const kTablesPath = 'src/text/unicode_tables.h';
const kCodePoints = 0x110000;
const kBlockSize = 256;
// The numbers of tidepool::UnicodeClass.
const kClassNumber = {L: 1, M: 2, N: 3, P: 4, S: 5, s: 6};
const kMark = kClassNumber.M;
const kHangulFirst = 0xac00;
const kHangulLast = 0xd7a3;

if (Number(process.versions.unicode) < 16) {
  throw new Error(`this node knows Unicode ${process.versions.unicode}; 16.0 or later is needed`);
}

function readClasses() {
  const classes = new Uint8Array(kCodePoints);
  for (const [name, ranges] of Object.entries(JSON.parse(readFileSync(kClassesPath)).classes)) {
    for (const [first, last] of ranges) {
      for (let c = first; c <= last; c++) {
        if (classes[c] !== 0) throw new Error(`U+${c.toString(16)} is in two classes`);
        classes[c] = kClassNumber[name];
      }
    }
  }
  return classes;
}

// Two-stage table: blocks of 256 four-bit classes, equal blocks kept once, and one block number per 256 code points.
function makeClassTable(classes) {
  const index = [];
  const blocks = [];
  const known = new Map();
  const end = classes.findLastIndex(c => c !== 0) + 1;
  for (let first = 0; first < end; first += kBlockSize) {
    const words = [];
    for (let i = 0; i < kBlockSize; i += 16) {
      let word = 0n;
      for (let j = 0; j < 16; j++) word |= BigInt(classes[first + i + j]) << BigInt(4 * j);
      words.push('0x' + word.toString(16));
    }
    const key = words.join();
    if (!known.has(key)) {
      known.set(key, known.size);
      blocks.push(...words);
    }
    index.push(known.get(key));
  }
  return {index, blocks};
}

const codePoints = text => Array.from(text, c => c.codePointAt(0));

// The engine's own NFKC then NFD must be its NFKD: src/text/unicode.h relies on it.
function decompose(c) {
  const text = String.fromCodePoint(c);
  if (text.normalize('NFKC').normalize('NFD') !== text.normalize('NFKD')) throw new Error(`U+${c.toString(16)}`);
  return codePoints(text.normalize('NFKD'));
}

// Decompositions into one code point in runs of sources and targets that grow by one; into several as (source, offset,
// length) in a pool, where a text that is there already is not added again. Hangul syllables are left to arithmetic.
function makeDecompositions(classes) {
  const runs = [];
  const entries = [];
  const pool = [];
  let poolText = '';  // the pool once more, six hexadecimal digits per code point, to search in
  for (let c = 0; c < kCodePoints; c++) {
    if (classes[c] === 0 || (c >= kHangulFirst && c <= kHangulLast)) continue;
    const target = decompose(c);
    if (target.length === 1) {
      if (target[0] === c) continue;
      const last = runs.at(-1);
      if (last && c === last[0] + last[1] && target[0] === last[2] + last[1]) last[1]++;
      else runs.push([c, 1, target[0]]);
      continue;
    }
    const key = target.map(t => t.toString(16).padStart(6, '0')).join('');
    let offset = poolText.indexOf(key);
    while (offset >= 0 && offset % 6 !== 0) offset = poolText.indexOf(key, offset + 1);
    if (offset < 0) {
      offset = poolText.length;
      poolText += key;
      pool.push(...target);
    }
    entries.push([c, offset / 6, target.length]);
  }
  return {runs, entries, pool};
}

// Runs of code points with one distance to their lower case, one or two apart (capitals and small letters in turn).
function makeLowerRuns(classes) {
  const runs = [];
  for (let c = 0; c < kCodePoints; c++) {
    if (classes[c] === 0) continue;
    const lower = codePoints(String.fromCodePoint(c).toLowerCase());
    if (lower.length === 1 && lower[0] === c) continue;
    // U+0130 alone has a lower case of two code points, and it does not outlive decomposition.
    if (lower.length !== 1) {
      if (c !== 0x130) throw new Error(`U+${c.toString(16)} has a lower case of ${lower.length} code points`);
      continue;
    }
    const delta = lower[0] - c;
    const last = runs.at(-1);
    const step = last ? c - last[1] : 0;
    const fits = last && delta === last[3] && (last[2] === 0 ? step === 1 || step === 2 : step === last[2]);
    if (fits) {
      last[1] = c;
      last[2] = step;
    } else {
      runs.push([c, c, 0, delta]);
    }
  }
  return runs.map(([first, last, step, delta]) => [first, last, step || 1, delta]);
}

// Only class M may take part in canonical reordering: whoever deletes marks after decomposing need not reorder first.
// A character takes part if it changes places with U+0301 (combining class 230) before it or U+0334 (class 1) after it.
function checkOnlyMarksAreReordered(classes) {
  for (let c = 0; c < kCodePoints; c++) {
    const text = String.fromCodePoint(c);
    if (classes[c] === 0 || classes[c] === kMark || text.normalize('NFKD') !== text) continue;
    for (const pair of [`\u0301${text}`, `${text}\u0334`]) {
      if (pair.normalize('NFD') !== pair) throw new Error(`U+${c.toString(16)} is reordered and not a mark`);
    }
  }
}

function lines(items) {
  const out = [];
  let line = '   ';
  for (const item of items) {
    if (line.length + item.length + 2 > 120) {
      out.push(line);
      line = '   ';
    }
    line += ` ${item},`;
  }
  if (line.trim()) out.push(line);
  return out.join('\n');
}
const rows = list => lines(list.map(row => `{${row.join(', ')}}`));

const classes = readClasses();
checkOnlyMarksAreReordered(classes);
const {index, blocks} = makeClassTable(classes);
const {runs, entries, pool} = makeDecompositions(classes);
const lower = makeLowerRuns(classes);
const table = (type, name, body) => `inline constexpr ${type} ${name}[] = {\n${body}\n};\n`;
writeFileSync(kTablesPath, `#pragma once

// Written by tools/make_unicode_tables.mjs; change that, not this.
#include <cstdint>

namespace tidepool::unicode_tables {

/// Code points [first, first + count) become target, target + 1, ... when decomposed.
struct SingleRun {
  uint32_t first, count, target;
};

/// A code point that becomes kPool[offset, offset + length) when decomposed.
struct LongEntry {
  uint32_t source, offset, length;
};

/// Code points first, first + step, ... last become lower case by adding delta.
struct LowerRun {
  uint32_t first, last, step;
  int32_t delta;
};

// clang-format off

/// Block of 256 code points -> number of its 16 words in kClassWords; blocks beyond the end are all of no class.
${table('uint8_t', 'kClassIndex', lines(index.map(String)))}
/// UnicodeClass of 16 code points in a word, four bits each, lowest first.
${table('uint64_t', 'kClassWords', lines(blocks))}
${table('SingleRun', 'kSingleRuns', rows(runs))}
${table('LongEntry', 'kLongEntries', rows(entries))}
${table('uint32_t', 'kPool', lines(pool.map(String)))}
${table('LowerRun', 'kLowerRuns', rows(lower))}
// clang-format on
}  // namespace tidepool::unicode_tables
`);
