// Relevance maps as JSON, format "keysift-maps" version 1 (docs/playground.md). Whatever else comes is refused in words.

const MAPS_LIMITS = { bytes: 64e6, tokens: 1024, tokenLength: 200, layers: 256, heads: 256, numbers: 8e6 };

class Refused extends Error {}

function expectThat(holds, message) {
  if (!holds) throw new Refused(message);
}

/** The record in `text`, with each map as one Float64Array of T x T; throws Refused with a sentence for people. */
function readMaps(text) {
  expectThat(
    text.length <= MAPS_LIMITS.bytes,
    `The record is larger than ${count(MAPS_LIMITS.bytes / 1e6)} MB. Write fewer layers or tokens.`,
  );
  let data;
  try {
    data = JSON.parse(text);
  } catch (error) {
    throw new Refused(`This is not JSON: ${String(error.message).slice(0, 120)}`);
  }
  expectThat(
    data !== null && typeof data === "object" && !Array.isArray(data),
    "Expected a JSON object with format, version, tokens and layers.",
  );
  expectThat(data.format === "keysift-maps", `Expected "format": "keysift-maps", got ${shown(data.format)}.`);
  expectThat(
    data.version === 1,
    `This page reads version 1, the record has ${shown(data.version)}. Write the page anew with a newer keysift.`,
  );
  const { tokens, layers } = data;
  expectThat(Array.isArray(tokens) && tokens.length > 0, "tokens must be a list of at least one text.");
  expectThat(
    tokens.length <= MAPS_LIMITS.tokens,
    `The record has ${count(tokens.length)} tokens; the page shows up to ${count(MAPS_LIMITS.tokens)}.`,
  );
  tokens.forEach((token, j) =>
    expectThat(
      typeof token === "string" && token.length <= MAPS_LIMITS.tokenLength,
      `tokens[${j}] must be text of at most ${MAPS_LIMITS.tokenLength} characters.`,
    ),
  );
  expectThat(
    Array.isArray(layers) && layers.length > 0 && layers.length <= MAPS_LIMITS.layers,
    `layers must be a list of 1 to ${MAPS_LIMITS.layers} layers.`,
  );
  let numbers = 0;
  const read = layers.map((layer, l) => {
    const heads = layer?.heads;
    expectThat(
      Array.isArray(heads) && heads.length > 0 && heads.length <= MAPS_LIMITS.heads,
      `layers[${l}].heads must be a list of 1 to ${MAPS_LIMITS.heads} heads.`,
    );
    return heads.map((head, h) => {
      numbers += tokens.length ** 2 * (head?.scores ? 2 : 1);
      expectThat(
        numbers <= MAPS_LIMITS.numbers,
        `The maps hold more than ${count(MAPS_LIMITS.numbers)} numbers. Write fewer layers or tokens.`,
      );
      return readHead(head, `layers[${l}].heads[${h}]`, tokens.length);
    });
  });
  return { tokens, layers: read };
}

function readHead(head, at, size) {
  expectThat(head !== null && typeof head === "object", `${at} must be an object with weights, scores and threshold.`);
  const name = head.name ?? null;
  expectThat(
    name === null || (typeof name === "string" && name.length <= MAPS_LIMITS.tokenLength),
    `${at}.name must be text of at most ${MAPS_LIMITS.tokenLength} characters, or left out.`,
  );
  const threshold = head.threshold ?? null;
  expectThat(threshold === null || Number.isFinite(threshold), `${at}.threshold must be a number or null.`);
  const scores = head.scores ?? null;
  return {
    name,
    weights: readSquare(head.weights, `${at}.weights`, size),
    scores: scores === null ? null : readSquare(scores, `${at}.scores`, size),
    threshold,
  };
}

function readSquare(rows, at, size) {
  expectThat(Array.isArray(rows) && rows.length === size, `${at} must have one row for each of the ${size} tokens.`);
  const square = new Float64Array(size * size);
  rows.forEach((row, t) => {
    expectThat(Array.isArray(row) && row.length === size, `${at}[${t}] must have ${size} numbers.`);
    row.forEach((value, s) => {
      expectThat(Number.isFinite(value), `${at}[${t}][${s}] must be a finite number, got ${shown(value)}.`);
      square[t * size + s] = value;
    });
  });
  return square;
}

function shown(value) {
  return (JSON.stringify(value) ?? "nothing").slice(0, 60);
}
