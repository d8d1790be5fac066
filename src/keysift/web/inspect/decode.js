// Decode the maps of a page: base64, deflate (the browser's DecompressionStream), byte planes, then scores and weights.

const NO_KEY = 2 ** 32 - 1;

/** @type {(text: string) => Promise<ArrayBuffer>} */
function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

/**
 * Numbers of a packed array: "type:base64". The first bytes of all numbers come first, then the second ones.
 * @type {(packed: string) => Promise<Uint8Array | Uint32Array | Float32Array>}
 */
async function unpack(packed) {
  const colon = packed.indexOf(":");
  const planes = new Uint8Array(await inflate(packed.slice(colon + 1)));
  const kind = packed.slice(0, colon);
  if (kind === "uint8") return planes;
  const count = planes.length / 4;
  const bytes = new Uint8Array(planes.length);
  for (let byte = 0; byte < 4; byte++) for (let i = 0; i < count; i++) bytes[4 * i + byte] = planes[byte * count + i];
  return kind === "uint32" ? new Uint32Array(bytes.buffer) : new Float32Array(bytes.buffer);
}

/** First cell of row g of a lower triangle. @type {(g: number) => number} */
const rowStart = (g) => (g * (g + 1)) / 2;

/** Maps of all heads on one text. */
class TextMap {
  /**
   * @param {MapRecord} meta
   * @param {Record<string, Uint8Array | Uint32Array | Float32Array>} arrays
   */
  constructor(meta, arrays) {
    this.meta = meta;
    this.arrays = arrays;
    this.side = Math.ceil(meta.tokens.length / meta.pool);
    this.cells = rowStart(this.side);
    /** @type {Map<number, number>} */
    this.stored = new Map(meta.queries.map((query, index) => [query, index]));
    /** @type {Map<string, Float32Array>} */
    this.cache = new Map();
  }

  /** @type {(layer: number, head: number) => number} */
  indexOf(layer, head) {
    return this.meta.heads.findIndex((h) => h.layer === layer && h.head === head);
  }

  /**
   * Exact keys of a stored query, largest weight first, and the log-sum of exp(score) over its other visible keys.
   * @type {(head: number, query: number) => { keys: KeyValue[], rest: number, seen: number } | null}
   */
  top(head, query) {
    const index = this.stored.get(query);
    if (index === undefined) return null;
    const { keys: count, queries, heads } = this.meta;
    const row = head * queries.length + index;
    const { key_at, score_at, weight_at, rest, seen } = this.arrays;
    const softmax = heads[head].rule === "softmax";
    /** @type {KeyValue[]} */
    const keys = [];
    for (let i = row * count; i < (row + 1) * count; i++)
      if (key_at[i] !== NO_KEY) keys.push({ key: key_at[i], score: score_at[i], weight: softmax ? 0 : weight_at[i], exact: true });
    const other = rest[row] + Math.max(...keys.map((k) => k.score));
    if (softmax) {
      const total = logSum([...keys.map((k) => k.score), other]);
      for (const k of keys) k.weight = Math.exp(k.score - total);
    }
    return { keys, rest: other, seen: seen[row] };
  }

  /**
   * Scores of all cells of a head; NaN where no key is visible. Exact where stored.
   * @type {(head: number) => Float32Array}
   */
  scores(head) {
    return this.once(`s${head}`, () => {
      const { score_codes: codes, score_low: low, score_step: step } = this.arrays;
      const values = new Float32Array(this.cells);
      for (let g = 0, cell = 0; g < this.side; g++) {
        const row = head * this.side + g;
        for (let s = 0; s <= g; s++, cell++) {
          const code = codes[head * this.cells + cell];
          values[cell] = code ? low[row] + (code - 1) * step[row] : NaN;
        }
      }
      if (this.meta.pool === 1)
        for (const query of this.meta.queries) for (const k of this.top(head, query)?.keys ?? []) values[rowStart(query) + k.key] = k.score;
      return values;
    });
  }

  /** Weights of all cells of a head. @type {(head: number) => Float32Array} */
  weights(head) {
    return this.once(`w${head}`, () => {
      const { weight_codes: codes, peak } = this.arrays;
      const values = codes ? this.codedWeights(head, codes, peak) : this.softmaxWeights(head);
      if (this.meta.pool === 1)
        for (const query of this.meta.queries) for (const k of this.top(head, query)?.keys ?? []) values[rowStart(query) + k.key] = k.weight;
      return values;
    });
  }

  /** @type {(head: number, codes: ArrayLike<number>, peak: ArrayLike<number>) => Float32Array} */
  codedWeights(head, codes, peak) {
    const values = new Float32Array(this.cells);
    for (let cell = 0; cell < this.cells; cell++) {
      const code = codes[head * this.cells + cell];
      if (code & 63) values[cell] = (code & 64 ? -1 : 1) * peak[head] * 10 ** (((code & 63) - 63) / 10);
    }
    return values;
  }

  /** @type {(head: number) => Float32Array} */
  softmaxWeights(head) {
    const scores = this.scores(head);
    const values = new Float32Array(this.cells);
    for (let query = 0; query < this.side; query++) {
      const start = rowStart(query);
      const top = this.top(head, query);
      const total = top ? logSum([...top.keys.map((k) => k.score), top.rest]) : logSum(scores.subarray(start, start + query + 1));
      for (let s = 0; s <= query; s++) {
        const score = scores[start + s];
        if (!Number.isNaN(score)) values[start + s] = Math.exp(score - total);
      }
    }
    return values;
  }

  /**
   * All known keys of a query, largest weight first: exact ones, then those from the codes if the map is not pooled.
   * @type {(head: number, query: number) => KeyValue[]}
   */
  row(head, query) {
    const keys = this.top(head, query)?.keys ?? [];
    if (this.meta.pool > 1) return keys;
    const known = new Set(keys.map((k) => k.key));
    const scores = this.scores(head);
    const weights = this.weights(head);
    for (let key = 0; key <= query; key++) {
      const cell = rowStart(query) + key;
      if (!known.has(key) && !Number.isNaN(scores[cell])) keys.push({ key, score: scores[cell], weight: weights[cell], exact: false });
    }
    return keys.sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight) || a.key - b.key);
  }

  /** @type {(name: string, make: () => Float32Array) => Float32Array} */
  once(name, make) {
    const known = this.cache.get(name);
    if (known) return known;
    if (this.cache.size > 400) this.cache.clear();
    const values = make();
    this.cache.set(name, values);
    return values;
  }
}

/** Log of the sum of exp(value); NaN counts as absent. @type {(values: ArrayLike<number>) => number} */
function logSum(values) {
  let top = -Infinity;
  for (let i = 0; i < values.length; i++) if (values[i] > top) top = values[i];
  if (top === -Infinity) return -Infinity;
  let sum = 0;
  for (let i = 0; i < values.length; i++) if (!Number.isNaN(values[i])) sum += Math.exp(values[i] - top);
  return top + Math.log(sum);
}

/**
 * Weights of the keys of a query after some keys are removed, by key.
 * Softmax: exp(score) over the sum of the remaining ones. Absolute mechanisms: unchanged. Others: null, not known here.
 * @type {(map: TextMap, head: number, query: number, removed: Set<number>) => Map<number, number> | null}
 */
function weightsWithout(map, head, query, removed) {
  const rule = map.meta.heads[head].rule;
  const row = map.row(head, query);
  const left = row.filter((k) => !removed.has(k.key));
  /** @type {(entries: [number, number][]) => Map<number, number>} */
  const withRemoved = (entries) => new Map([...row.filter((k) => removed.has(k.key)).map((k) => /** @type {[number, number]} */ ([k.key, 0])), ...entries]);
  if (rule === "absolute" || removed.size === 0) return withRemoved(left.map((k) => [k.key, k.weight]));
  if (rule === "other") return null;
  // Keys without an exact score are part of `rest`; those among them that are removed are taken out of it.
  const top = map.top(head, query);
  const parts = left.filter((k) => k.exact).map((k) => k.score);
  if (top) {
    const gone = logSum(row.filter((k) => !k.exact && removed.has(k.key)).map((k) => k.score));
    parts.push(gone === -Infinity ? top.rest : top.rest + Math.log(Math.max(1e-12, 1 - Math.exp(gone - top.rest))));
  } else parts.push(...left.map((k) => k.score));
  const total = logSum(parts);
  return withRemoved(left.map((k) => [k.key, Math.exp(k.score - total)]));
}
