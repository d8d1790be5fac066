// Reader of relevance maps: JSON, format "keysift-maps" version 1 (docs/playground.md). Errors say what was expected.

const MAPS_LIMITS = { bytes: 64e6, tokens: 1024, tokenLength: 200, layers: 256, heads: 256, numbers: 8e6 };

class InvalidMaps extends Error {}

/** @type {(holds: boolean, message: string) => void} */
function check(holds, message) {
  if (!holds) throw new InvalidMaps(message);
}

/**
 * Read maps from JSON; each map becomes a Float64Array of T x T. Throws InvalidMaps with a message for the user.
 * @type {(text: string) => Maps}
 */
function readMaps(text) {
  check(
    text.length <= MAPS_LIMITS.bytes,
    `The record is larger than ${formatCount(MAPS_LIMITS.bytes / 1e6)} MB. Write fewer layers or tokens.`,
  );
  /** @type {any} */
  let data;
  try {
    data = JSON.parse(text);
  } catch (error) {
    throw new InvalidMaps(`This is not JSON: ${String(error).slice(0, 120)}`);
  }
  check(
    data !== null && typeof data === "object" && !Array.isArray(data),
    "Expected a JSON object with format, version, tokens and layers.",
  );
  check(data.format === "keysift-maps", `Expected "format": "keysift-maps", got ${shortJson(data.format)}.`);
  check(
    data.version === 1,
    `This page reads version 1, the record has ${shortJson(data.version)}. Create the page with a newer keysift.`,
  );
  const { tokens, layers } = data;
  check(Array.isArray(tokens) && tokens.length > 0, "tokens must be a list of at least one text.");
  check(
    tokens.length <= MAPS_LIMITS.tokens,
    `The record has ${formatCount(tokens.length)} tokens; the page shows up to ${formatCount(MAPS_LIMITS.tokens)}.`,
  );
  tokens.forEach((/** @type {unknown} */ token, /** @type {number} */ j) =>
    check(
      typeof token === "string" && token.length <= MAPS_LIMITS.tokenLength,
      `tokens[${j}] must be text of at most ${MAPS_LIMITS.tokenLength} characters.`,
    ),
  );
  check(
    Array.isArray(layers) && layers.length > 0 && layers.length <= MAPS_LIMITS.layers,
    `layers must be a list of 1 to ${MAPS_LIMITS.layers} layers.`,
  );
  let numbers = 0;
  const read = layers.map((/** @type {any} */ layer, /** @type {number} */ l) => {
    const heads = layer?.heads;
    check(
      Array.isArray(heads) && heads.length > 0 && heads.length <= MAPS_LIMITS.heads,
      `layers[${l}].heads must be a list of 1 to ${MAPS_LIMITS.heads} heads.`,
    );
    return heads.map((/** @type {any} */ head, /** @type {number} */ h) => {
      numbers += tokens.length ** 2 * (head?.scores ? 2 : 1);
      check(
        numbers <= MAPS_LIMITS.numbers,
        `The maps hold more than ${formatCount(MAPS_LIMITS.numbers)} numbers. Write fewer layers or tokens.`,
      );
      return readHead(head, `layers[${l}].heads[${h}]`, tokens.length);
    });
  });
  return { tokens, layers: read };
}

/** @type {(head: any, at: string, size: number) => MapHead} */
function readHead(head, at, size) {
  check(head !== null && typeof head === "object", `${at} must be an object with weights, scores and threshold.`);
  const name = head.name ?? null;
  check(
    name === null || (typeof name === "string" && name.length <= MAPS_LIMITS.tokenLength),
    `${at}.name must be text of at most ${MAPS_LIMITS.tokenLength} characters, or left out.`,
  );
  const threshold = head.threshold ?? null;
  check(threshold === null || Number.isFinite(threshold), `${at}.threshold must be a number or null.`);
  const scores = head.scores ?? null;
  return {
    name,
    weights: readMatrix(head.weights, `${at}.weights`, size),
    scores: scores === null ? null : readMatrix(scores, `${at}.scores`, size),
    threshold,
  };
}

/** @type {(rows: any, at: string, size: number) => Float64Array} */
function readMatrix(rows, at, size) {
  check(Array.isArray(rows) && rows.length === size, `${at} must have one row for each of the ${size} tokens.`);
  const square = new Float64Array(size * size);
  rows.forEach((/** @type {any} */ row, /** @type {number} */ t) => {
    check(Array.isArray(row) && row.length === size, `${at}[${t}] must have ${size} numbers.`);
    row.forEach((/** @type {any} */ value, /** @type {number} */ s) => {
      check(Number.isFinite(value), `${at}[${t}][${s}] must be a finite number, got ${shortJson(value)}.`);
      square[t * size + s] = value;
    });
  });
  return square;
}

/** @type {(value: unknown) => string} */
function shortJson(value) {
  return (JSON.stringify(value) ?? "nothing").slice(0, 60);
}
