// Types of the inspection page; read by the type checker only, never part of the page.
// Records have the schema of keysift.records.lens, stored queries that of keysift.lens.diagnostics.pairs.

type Values = Record<string, number | null | undefined>;
interface HeadRecord {
  layer: number;
  head: number;
  kinds: string[];
  values: Values;
  by_length: Record<string, (number | null)[]>;
}
interface Term {
  title: string;
  meaning: string;
  origin: string;
  [field: string]: any;
}
interface Swap {
  mechanism: string;
  losses: Record<string, number>;
  heads: HeadRecord[];
}
interface InspectionRecord {
  model: { name: string; family: string; parameters: number; vocabulary: number; heads: number[] };
  texts: { name: string; tokens: number; loss: number; bits_per_byte: number | null; beginning: string }[];
  findings: string[];
  lengths: [number, number][];
  heads: HeadRecord[];
  swaps: Swap[];
  /** Results by the name of the test; empty if the tests were left out. */
  tests: {
    absolute_percentile?: PercentileTest;
    leave_out?: LeaveOutTest;
    dilution?: DilutionTest;
    nothing_relevant?: NothingRelevantTest;
    functional?: FunctionalTest;
  };
}
interface PercentileTest {
  /** Scores at `levels` by layer and head. */
  scores: Record<string, number[][]>;
  levels: number[];
  only_relatively_bright: {
    layer: number;
    head: number;
    query: number;
    query_token: string;
    key: number;
    key_token: string;
    weight: number;
    percentile: number;
    among_best: number;
  }[];
}
interface LeaveOutTest {
  loss: number;
  brightest: number;
  first: number;
  layers: { layer: number; brightest: number; brightest_output: number; first: number; first_output: number }[];
}
interface DilutionTest {
  span: number;
  added: number[];
  heads: { layer: number; head: number; exponent: number | null; focus: number[] }[];
}
interface MassByPlace {
  span: number;
  first: number;
  own: number;
  near: number;
  elsewhere: number;
  largest: number;
}
interface NothingRelevantTest {
  span: number;
  heads: { layer: number; head: number; with: MassByPlace; without: MassByPlace }[];
}
type Smallest = Record<string, number | null>;
interface FunctionalTest {
  tokens: number;
  deletion: { smallest: Smallest };
  renormalised: { smallest: Smallest };
  heads?: { layer: number; head: number; deletion: Smallest; renormalised: Smallest }[];
}
interface StoredPairs {
  tokens: string[];
  queries: number[];
  keys: number;
  heads: { layer: number; head: number; removal: Removal; seen: number[]; keys: string; scores: string; weights: string }[];
}
/** How the other weights react when a key is removed. */
type Removal = "share" | "nothing" | "unknown";
interface DecodedPairs {
  removal: Removal;
  seen: number[];
  keys: Int32Array;
  scores: Float32Array;
  weights: Float32Array;
}
interface StoredKey {
  key: number;
  score: number;
  weight: number;
}
interface QueryRow {
  keys: StoredKey[];
  removal: Removal;
  seen: number;
}
interface PageData {
  records: InspectionRecord[];
  pairs: (StoredPairs | null)[];
  terms: Record<string, Term>;
  kinds: Record<string, string>;
}
interface Scale {
  share: (value: number) => number;
  low: number | null;
  high: number | null;
  log: boolean;
}
type Cell = string | number | null | undefined | Node;
