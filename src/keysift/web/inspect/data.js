// The record and the stored pairs. Everything a text says stays text: it only ever becomes a text node.

const DATA = JSON.parse(byId("data").textContent);
const RECORDS = DATA.records;

/** What is shown: which model, head, diagnostic and length, which query, and the keys taken out of it. */
const view = { model: 0, layer: 0, head: 0, diagnostic: "effective_keys", bucket: -1, query: null, gone: new Set() };

const record = () => RECORDS[view.model];
const headOf = (layer, head) => record().heads.find((h) => h.layer === layer && h.head === head);
const current = () => headOf(view.layer, view.head);
const term = (name) => DATA.terms[name] ?? { title: name, meaning: "" };

function shownNumber(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e5) return count(value);
  if (size !== 0 && (size < 0.001 || size >= 1e5)) return value.toExponential(1).replace("e+", "e");
  return number(value);
}

/** Over the heads for which the diagnostic has a meaning; null if there is none. */
function meanOf(heads, name) {
  const values = heads.map((h) => h.values[name]).filter((v) => v !== null && v !== undefined);
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

function unpack(text, Kind) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Kind(bytes.buffer);
}

const opened = new Map();

/** Stored rows of a head: for query number i the keys, scores and weights at i * K to (i + 1) * K. */
function pairsOf(layer, head) {
  const pairs = DATA.pairs[view.model];
  if (!pairs) return null;
  const name = `${view.model}.${layer}.${head}`;
  if (!opened.has(name)) {
    const found = pairs.heads.find((h) => h.layer === layer && h.head === head);
    opened.set(name, {
      removal: found.removal,
      seen: found.seen,
      keys: unpack(found.keys, Int32Array),
      scores: unpack(found.scores, Float32Array),
      weights: unpack(found.weights, Float32Array),
    });
  }
  return opened.get(name);
}

/** The keys of a stored query, heaviest first: position, raw score, weight. */
function rowOf(layer, head, query) {
  const pairs = DATA.pairs[view.model];
  const place = pairs ? pairs.queries.indexOf(query) : -1;
  if (place < 0) return null;
  const found = pairsOf(layer, head);
  const keys = [];
  for (let i = place * pairs.keys; i < (place + 1) * pairs.keys; i++) {
    if (found.keys[i] >= 0) keys.push({ key: found.keys[i], score: found.scores[i], weight: found.weights[i] });
  }
  keys.sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight) || a.key - b.key);
  return { keys, removal: found.removal, seen: found.seen[place] };
}

/**
 * Weights once some keys are gone. Softmax shares what they had among all others in proportion, stored or not, so each
 * is divided by the mass that is left; where keys are judged alone nothing else changes.
 */
function without(row, gone) {
  const lost = row.keys.filter((k) => gone.has(k.key));
  let left = 1 - lost.reduce((sum, k) => sum + k.weight, 0);
  if (row.removal === "share" && row.keys.length === row.seen) {
    // Every key is stored: sum what stays, which keeps its digits when almost everything left.
    const top = Math.max(...row.keys.map((k) => k.score));
    const exps = row.keys.map((k) => Math.exp(k.score - top));
    const total = exps.reduce((sum, e) => sum + e, 0);
    left = row.keys.reduce((sum, k, i) => sum + (gone.has(k.key) ? 0 : exps[i]), 0) / total;
  }
  return row.keys.map((k) => {
    if (gone.has(k.key)) return 0;
    return row.removal === "share" && left > 0 ? k.weight / left : k.weight;
  });
}

/** Where a raw score stands among this head's scores on unrelated text, 0 to 1. */
function percentileOf(layer, head, score) {
  const test = record().tests.absolute_percentile;
  if (!test) return null;
  const table = test.scores[layer][head];
  const levels = test.levels;
  if (score <= table[0]) return 0;
  for (let i = 1; i < table.length; i++) {
    if (score <= table[i]) {
      const share = table[i] > table[i - 1] ? (score - table[i - 1]) / (table[i] - table[i - 1]) : 1;
      return levels[i - 1] + share * (levels[i] - levels[i - 1]);
    }
  }
  return 1;
}
