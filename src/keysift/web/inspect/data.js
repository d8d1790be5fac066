// Embedded records and stored queries. Texts only become text nodes, so nothing in them can run.

/** @type {PageData} */
const DATA = JSON.parse(byId("data").textContent ?? "");
const RECORDS = DATA.records;

/** Current selection; `bucket` is an index of record().lengths or -1 for all, `removed` holds keys of the query. */
const view = {
  model: 0,
  layer: 0,
  head: 0,
  diagnostic: "effective_keys",
  bucket: -1,
  query: /** @type {number | null} */ (null),
  removed: /** @type {Set<number>} */ (new Set()),
};

/** @type {() => InspectionRecord} */
const record = () => RECORDS[view.model];
/** @type {(layer: number, head: number) => HeadRecord} */
const findHead = (layer, head) => record().heads.find((h) => h.layer === layer && h.head === head) ?? record().heads[0];
/** @type {() => HeadRecord} */
const current = () => findHead(view.layer, view.head);
/** @type {(name: string) => Term} */
const term = (name) => DATA.terms[name] ?? { title: name, meaning: "", origin: "" };

/**
 * Diagnostics for tables that compare models, in the order of the list of terms; only those that some head has.
 * @type {(models: { values: Values }[][]) => string[]}
 */
function comparedTerms(models) {
  const names = Object.keys(DATA.terms).filter((name) => DATA.terms[name].compared);
  return names.filter((name) => models.some((heads) => meanValue(heads, name) !== null));
}

/** @type {(value: number | null | undefined) => string} */
function formatValue(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e5) return formatCount(value);
  if (size !== 0 && (size < 0.001 || size >= 1e5)) return value.toExponential(1).replace("e+", "e");
  return formatNumber(value);
}

/** @type {(values: number[]) => number | null} */
function mean(values) {
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

/** @type {(record: InspectionRecord) => number | null} */
const meanLoss = ({ texts }) => mean(texts.map((text) => text.loss));

/**
 * Mean loss in bits per byte, or null if a text has none.
 * @type {(record: InspectionRecord) => number | null}
 */
function meanBits({ texts }) {
  const bits = texts.map((text) => text.bits_per_byte).filter((value) => value !== null);
  return bits.length === texts.length ? mean(bits) : null;
}

/** @type {(names: string[]) => string} */
const joinNames = (names) => [names.slice(0, -1).join(", "), names[names.length - 1]].filter(Boolean).join(" and ");

/**
 * Mean over the heads to which the diagnostic applies, or null.
 * @type {(heads: { values: Values }[], name: string) => number | null}
 */
function meanValue(heads, name) {
  return mean(heads.map((h) => h.values[name]).filter((v) => v !== null && v !== undefined));
}

/**
 * Bytes of a base64 text.
 * @param {string} text
 */
function decodeBytes(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
}

/** @type {Map<string, DecodedPairs>} */
const decoded = new Map();

/**
 * Stored queries of a head. The K keys of query number i, their scores and weights are entries i * K to (i + 1) * K.
 * @type {(layer: number, head: number) => DecodedPairs | null}
 */
function storedPairs(layer, head) {
  const pairs = DATA.pairs[view.model];
  if (!pairs) return null;
  const name = `${view.model}.${layer}.${head}`;
  let arrays = decoded.get(name);
  if (!arrays) {
    const stored = pairs.heads.find((h) => h.layer === layer && h.head === head);
    if (!stored) return null;
    arrays = {
      removal: stored.removal,
      seen: stored.seen,
      keys: new Int32Array(decodeBytes(stored.keys)),
      scores: new Float32Array(decodeBytes(stored.scores)),
      weights: new Float32Array(decodeBytes(stored.weights)),
    };
    decoded.set(name, arrays);
  }
  return arrays;
}

/**
 * Keys of a stored query with raw score and weight, largest weight first.
 * @type {(layer: number, head: number, query: number) => QueryRow | null}
 */
function storedRow(layer, head, query) {
  const pairs = DATA.pairs[view.model];
  const stored = storedPairs(layer, head);
  const index = pairs ? pairs.queries.indexOf(query) : -1;
  if (!pairs || !stored || index < 0) return null;
  const keys = [];
  for (let i = index * pairs.keys; i < (index + 1) * pairs.keys; i++) {
    if (stored.keys[i] >= 0) keys.push({ key: stored.keys[i], score: stored.scores[i], weight: stored.weights[i] });
  }
  keys.sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight) || a.key - b.key);
  return { keys, removal: stored.removal, seen: stored.seen[index] };
}

/**
 * Weights after some keys are removed. Softmax divides every other weight by the remaining mass. A mechanism that
 * weighs each key on its own leaves the others unchanged.
 * @type {(row: QueryRow, removed: Set<number>) => number[]}
 */
function weightsWithout(row, removed) {
  const without = row.keys.filter((k) => removed.has(k.key));
  let left = 1 - without.reduce((sum, k) => sum + k.weight, 0);
  if (row.removal === "share" && row.keys.length === row.seen) {
    // All keys are stored: sum the remaining ones, which is exact even if almost all mass was removed.
    const top = Math.max(...row.keys.map((k) => k.score));
    const exps = row.keys.map((k) => Math.exp(k.score - top));
    const total = exps.reduce((sum, e) => sum + e, 0);
    left = row.keys.reduce((sum, k, i) => sum + (removed.has(k.key) ? 0 : exps[i]), 0) / total;
  }
  return row.keys.map((k) => {
    if (removed.has(k.key)) return 0;
    return row.removal === "share" && left > 0 ? k.weight / left : k.weight;
  });
}

/**
 * Percentile, 0 to 1, of a raw score among the scores of this head on unrelated text.
 * @type {(layer: number, head: number, score: number) => number | null}
 */
function scorePercentile(layer, head, score) {
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
