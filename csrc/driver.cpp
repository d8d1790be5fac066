// Runs forward and backward passes over unusual shapes, for the sanitizers. Every buffer has exactly the documented size.
//
// keysift_driver N runs one case in N, for an emulator. It fails if that leaves out a variant of a kernel: a combination of width, kind,
// type, window, acceptance and segments.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <vector>

#include "decode.h"
#include "sticks.h"
#include "sums.h"
#include "thresholds.h"
#include "tile.h"

namespace {

// Selects one case in `every`, and notes which variants of a kernel were met and which of them ran.
int64_t every = 1;
struct Cases {
  int64_t count = 0, run = 0;
  std::set<std::vector<double>> met, ran;
  bool next(const std::vector<double>& variant) {
    const bool runs = count++ % every == 0;
    met.insert(variant);
    if (runs) ran.insert(variant);
    run += runs;
    return runs;
  }
  int64_t finish(const char* kernel) const {
    if (ran.size() == met.size()) return run;
    std::fprintf(stderr, "one case in %lld leaves out %zu of %zu variants of %s; use 1, or a small number without factors 2, 3, 5, 7\n",
                 static_cast<long long>(every), met.size() - ran.size(), met.size(), kernel);
    std::exit(1);
  }
};

struct Case {
  int64_t batch, tiles, kv_tiles, queries, keys, key_width, value_width;
  int32_t dtype;
  uint32_t flags;
  float window, acceptance;
  bool segments;
};

struct Buffer {
  std::vector<unsigned char> bytes;
  keysift_view view;
  Buffer(int64_t batch, int64_t tiles, int64_t rows, int64_t width, int32_t dtype)
      : bytes(static_cast<size_t>(batch * tiles * rows * width * (dtype == KEYSIFT_F32 ? 4 : 2)), 0xff),
        view{bytes.data(), tiles * rows * width, rows * width, width} {}
};

void fill(Buffer* to, int32_t dtype, std::mt19937* random, float shift) {
  std::normal_distribution<float> normal(shift, 1.0f);
  if (dtype == KEYSIFT_F32) {
    float* x = reinterpret_cast<float*>(to->bytes.data());
    for (size_t i = 0; i < to->bytes.size() / 4; ++i) x[i] = normal(*random);
  } else {
    // These bit patterns are small numbers in bf16 and finite numbers in f16.
    uint16_t* x = reinterpret_cast<uint16_t*>(to->bytes.data());
    for (size_t i = 0; i < to->bytes.size() / 2; ++i) x[i] = static_cast<uint16_t>(0x3a00 + ((*random)() & 0x81ff));
  }
}

void expect(int status, const char* what) {
  if (status == KEYSIFT_OK) return;
  std::fprintf(stderr, "%s: %s\n", what, keysift_last_error());
  std::exit(1);
}

void run(const Case& c) {
  std::mt19937 random(7);
  Buffer q(c.batch, c.tiles, c.queries, c.key_width, c.dtype), k(c.batch, c.kv_tiles, c.keys, c.key_width, c.dtype);
  Buffer v(c.batch, c.kv_tiles, c.keys, c.value_width, c.dtype);
  Buffer u(c.batch, c.tiles, c.queries, c.value_width, c.dtype), du = u, dq = q, dk = k, dv = v;
  for (Buffer* b : {&du, &dq, &dk, &dv}) b->view.data = b->bytes.data();
  fill(&q, c.dtype, &random, 0.7f);
  fill(&k, c.dtype, &random, 0.7f);
  fill(&v, c.dtype, &random, 0.2f);
  fill(&du, c.dtype, &random, 0.0f);
  const size_t batch = static_cast<size_t>(c.batch), tiles = static_cast<size_t>(c.tiles);
  const size_t rows = batch * tiles * static_cast<size_t>(c.queries);
  // The first row is one segment. The second has a gap, two segments (one far after its keys), and an empty end.
  const int64_t queries = c.queries / 3, keys = c.keys / 3;
  std::vector<keysift_segment> segments{{0, 0, c.queries, 0, c.keys, c.keys - c.queries},
                                    {1, queries / 2, queries, keys / 2, keys, keys - queries},
                                    {1, queries / 2 + queries, queries, keys / 2 + keys, keys, keys + 25}};
  const std::vector<float> window(tiles, c.window), acceptance(tiles, c.acceptance);
  std::vector<float> norm(rows), h(rows * static_cast<size_t>(c.value_width));
  std::vector<double> dwindow(tiles), deffective_window(tiles), dacceptance(tiles);
  const keysift_problem problem{c.batch, c.tiles, c.kv_tiles, c.queries, c.keys, c.key_width, c.value_width, c.dtype, c.flags,
                                q.view, k.view, v.view, nullptr, nullptr, segments.data(), c.segments ? 3 : -1, c.keys - c.queries,
                                window.data(), nullptr, acceptance.data(), 256.0f, nullptr};
  const keysift_gradients gradients{dq.view, dk.view, dv.view, dwindow.data(), deffective_window.data(), dacceptance.data()};
  expect(keysift_forward(&problem, &u.view, nullptr, nullptr), "forward without gradients");
  expect(keysift_forward(&problem, &u.view, norm.data(), h.data()), "forward");
  if (c.keys > 0) {
    // The rows of a batch as rings of unequal length, around which the keys wrap several times.
    std::vector<int64_t> ring, first(batch, 3 * c.keys + 1);
    for (int64_t g = 0, all = c.kv_tiles * c.keys, at = 0; g < c.kv_tiles; ++g) {
      const int64_t length = g + 1 < c.kv_tiles ? (c.keys + 1) / 2 : all - at;
      ring.insert(ring.end(), {at, length});
      at += length;
    }
    keysift_problem cached = problem;
    cached.ring = ring.data();
    cached.ring_first = first.data();
    cached.k.tile_stride = cached.v.tile_stride = 0;
    expect(keysift_forward(&cached, &u.view, nullptr, nullptr), "forward from rings");
    expect(keysift_forward(&problem, &u.view, norm.data(), h.data()), "forward");
  }
  expect(keysift_backward(&problem, &u.view, norm.data(), nullptr, &du.view, &gradients), "backward from u");
  expect(keysift_backward(&problem, nullptr, norm.data(), h.data(), &du.view, &gradients), "backward from h");
}

// The last queries of a long row whose keys are grouped, when it had fewer keys and when it has all.
int64_t run_groups() {
  int64_t count = 0;
  for (int32_t dtype : {KEYSIFT_F32, KEYSIFT_BF16, KEYSIFT_F16}) {
    for (float window : {34000.0f, INFINITY}) {
      std::mt19937 random(7);
      const int64_t queries = 700, keys = 3 * 16384 + 20;
      Buffer q(1, 2, queries, 5, dtype), k(1, 1, keys, 5, dtype), v(1, 1, keys, 7, dtype), u(1, 2, queries, 7, dtype);
      fill(&q, dtype, &random, 0.7f);
      fill(&k, dtype, &random, 0.7f);
      fill(&v, dtype, &random, 0.0f);
      const std::vector<float> windows(2, window), acceptance(2, 0.2f);
      keysift_key_groups* groups = keysift_key_groups_new(1);
      for (int64_t part : {keys - 16384, keys}) {
        const keysift_problem problem{1, 2, 1, queries, part, 5, 7, dtype, 0, q.view, k.view, v.view, nullptr, nullptr, nullptr, -1,
                                      part - queries, windows.data(), nullptr, acceptance.data(), 256.0f, groups};
        expect(keysift_forward(&problem, &u.view, nullptr, nullptr), "forward with groups");
        ++count;
      }
      keysift_key_groups_free(groups);
    }
  }
  return count;
}

// The same for gated tiles, with every part of a projection in one buffer, as a layer lays them out.
void run_tile(const Case& c, bool gated) {
  std::mt19937 random(7);
  const int64_t channels = c.tiles * (2 * c.key_width + (gated ? 2 : 1) * c.value_width), values = c.tiles * c.value_width;
  Buffer projected(c.batch, 1, c.queries, channels, c.dtype), dprojected = projected;
  Buffer out(c.batch, 1, c.queries, values, c.dtype), dout = out;
  fill(&projected, c.dtype, &random, 0.7f);
  fill(&dout, c.dtype, &random, 0.0f);
  auto part = [&](Buffer* of, int64_t first, int64_t width, int64_t all) {
    return keysift_view{of->bytes.data() + first * (c.dtype == KEYSIFT_F32 ? 4 : 2), c.queries * all, width, all};
  };
  const int64_t k = c.tiles * c.key_width, v = 2 * k, g = v + values;
  const std::vector<float> window(static_cast<size_t>(c.tiles), c.window), acceptance(window.size(), c.acceptance), scale(window.size(), 0.5f);
  const keysift_segment segment{0, c.queries / 3, c.queries / 2, c.queries / 3, c.queries / 2, 0};
  const keysift_problem problem{c.batch, c.tiles, c.tiles, c.queries, c.queries, c.key_width, c.value_width, c.dtype, c.flags,
                                part(&projected, 0, c.key_width, channels), part(&projected, k, c.key_width, channels),
                                part(&projected, v, c.value_width, channels), nullptr, nullptr, &segment, c.segments ? 1 : -1, 0,
                                window.data(), nullptr, acceptance.data(), 256.0f, nullptr};
  const keysift_view none{nullptr, 0, 0, 0};
  const keysift_gate gate{gated ? part(&projected, g, c.value_width, channels) : none, scale.data()};
  const size_t rows = static_cast<size_t>(c.batch * c.tiles * c.queries);
  std::vector<float> norm(rows), h(rows * static_cast<size_t>(c.value_width));
  std::vector<double> sums(4 * window.size());
  double* sum = sums.data();
  const keysift_gradients gradients{part(&dprojected, 0, c.key_width, channels), part(&dprojected, k, c.key_width, channels),
                                    part(&dprojected, v, c.value_width, channels), sum, sum + c.tiles, sum + 2 * c.tiles};
  const keysift_gate_gradients gate_gradients{gated ? part(&dprojected, g, c.value_width, channels) : none, sum + 3 * c.tiles};
  const keysift_view to = part(&out, 0, c.value_width, values), from = part(&dout, 0, c.value_width, values);
  expect(keysift_tile_forward(&problem, &gate, &to, nullptr, nullptr), "tile without gradients");
  expect(keysift_tile_forward(&problem, &gate, &to, norm.data(), h.data()), "tile");
  expect(keysift_tile_backward(&problem, &gate, norm.data(), h.data(), &from, &gradients, &gate_gradients), "gradients of a tile");
}

// The same shapes for sums.h; the sigmoid kind has a shift, and KEYSIFT_DECAYED a decay that ends the reach of later queries.
void run_sums(const Case& c, int32_t kind, int64_t window) {
  std::mt19937 random(7);
  Buffer q(c.batch, c.tiles, c.queries, c.key_width, KEYSIFT_F32), k(c.batch, c.tiles, c.keys, c.key_width, KEYSIFT_F32);
  Buffer v(c.batch, c.tiles, c.keys, c.value_width, KEYSIFT_F32);
  Buffer out(c.batch, c.tiles, c.queries, c.value_width, KEYSIFT_F32), dout = out, kept = out, dq = q, dk = k, dv = v;
  for (Buffer* b : {&dout, &kept, &dq, &dk, &dv}) b->view.data = b->bytes.data();
  for (Buffer* b : {&q, &k, &v, &out, &dout}) fill(b, KEYSIFT_F32, &random, 0.2f);
  std::vector<float> shift(static_cast<size_t>(c.batch * c.tiles * c.queries), kind == KEYSIFT_RECTIFIED ? 0.1f : -1.0f), dshift = shift;
  std::vector<float> log(2 * shift.size());
  const bool decayed = kind == KEYSIFT_DECAYED, shifted = kind == KEYSIFT_SIGMOID || kind == KEYSIFT_RECTIFIED || decayed;
  std::vector<double> decay(static_cast<size_t>(c.batch * c.tiles * c.keys));
  for (size_t j = 0; j < decay.size(); ++j) decay[j] = -2.0 * static_cast<double>(j);
  std::vector<int64_t> first_key(shift.size());
  for (size_t i = 0; i < first_key.size(); ++i) first_key[i] = static_cast<int64_t>(i) % c.queries - 40;
  std::vector<float> dkeys(decay.size());
  const int64_t queries = c.queries / 3, keys = c.keys / 3;
  std::vector<keysift_segment> segments{{0, 0, c.queries, 0, c.keys, c.keys - c.queries},
                                    {1, queries / 2, queries, keys / 2, keys, keys - queries},
                                    {1, queries / 2 + queries, queries, keys / 2 + keys, keys, keys + 25}};
  const keysift_sums_problem problem{c.batch, c.tiles, c.queries, c.keys, c.key_width, c.value_width, window, kind, 0.5f, 1e-8f, q.view,
                                     k.view, v.view, segments.data(), c.segments ? 3 : -1, c.keys - c.queries,
                                     shifted ? shift.data() : nullptr, decayed ? decay.data() : nullptr,
                                     decayed ? first_key.data() : nullptr};
  const keysift_sums_gradients gradients{dq.view, dk.view, dv.view, kind == KEYSIFT_SIGMOID || decayed ? dshift.data() : nullptr,
                                         decayed ? dkeys.data() : nullptr};
  expect(keysift_sums_forward(&problem, &out.view, nullptr, nullptr), "sums without gradients");
  expect(keysift_sums_forward(&problem, &out.view, kind == KEYSIFT_RECTIFIED ? &kept.view : nullptr, log.data()), "sums");
  expect(keysift_sums_backward(&problem, &out.view, log.data(), &dout.view, &gradients), "gradients of sums");
}

// The same shapes for sticks.h.
void run_sticks(const Case& c, int64_t window) {
  std::mt19937 random(7);
  Buffer q(c.batch, c.tiles, c.queries, c.key_width, KEYSIFT_F32), k(c.batch, c.tiles, c.keys, c.key_width, KEYSIFT_F32);
  Buffer v(c.batch, c.tiles, c.keys, c.value_width, KEYSIFT_F32);
  Buffer out(c.batch, c.tiles, c.queries, c.value_width, KEYSIFT_F32), dout = out, dq = q, dk = k, dv = v;
  for (Buffer* b : {&dout, &dq, &dk, &dv}) b->view.data = b->bytes.data();
  for (Buffer* b : {&q, &k, &v, &out, &dout}) fill(b, KEYSIFT_F32, &random, 0.2f);
  const size_t rows = static_cast<size_t>(c.batch * c.tiles * c.queries);
  std::vector<double> log_rest(rows);
  std::vector<int64_t> first_key(rows);
  const std::vector<float> drest(rows, 0.5f);
  const int64_t queries = c.queries / 3, keys = c.keys / 3;
  const std::vector<keysift_segment> segments{{0, 0, c.queries, 0, c.keys, c.keys - c.queries},
                                              {1, queries / 2, queries, keys / 2, keys, keys - queries},
                                              {1, queries / 2 + queries, queries, keys / 2 + keys, keys, keys + 25}};
  const keysift_sticks_problem problem{c.batch,        c.tiles, c.queries, c.keys, c.key_width, c.value_width,
                                       window,         0.5f,    q.view,    k.view, v.view,      segments.data(),
                                       c.segments ? 3 : -1, c.keys - c.queries};
  const keysift_sticks_gradients gradients{dq.view, dk.view, dv.view};
  expect(keysift_sticks_forward(&problem, &out.view, log_rest.data(), first_key.data()), "sticks");
  expect(keysift_sticks_backward(&problem, log_rest.data(), first_key.data(), &dout.view, drest.data(), &gradients),
         "gradients of sticks");
}

// Rows with no to all keys visible, one of them with a NaN.
void run_thresholds(int64_t rows, int64_t keys, float order, bool learned) {
  std::mt19937 random(7);
  Buffer x(1, 3, rows, keys, KEYSIFT_F32), dw(1, 3, rows, keys, KEYSIFT_F32);
  fill(&x, KEYSIFT_F32, &random, 0.0f);
  fill(&dw, KEYSIFT_F32, &random, 0.0f);
  float* numbers = reinterpret_cast<float*>(x.bytes.data());
  if (rows > 2 && keys > 2) numbers[2 * keys] = NAN;
  const std::vector<float> orders(3, order);
  std::vector<double> dorders(3);
  const keysift_threshold_rows problem{3, rows, keys, keys - rows, learned ? 0 : 5, orders.data()};
  expect(keysift_threshold_weigh(&problem, numbers), "thresholds");
  float* gradients = reinterpret_cast<float*>(dw.bytes.data());
  double* order_gradients = learned ? dorders.data() : nullptr;
  expect(keysift_threshold_differentiate(&problem, numbers, gradients, order_gradients), "gradients of thresholds");
}

// Weights of the given number of elements, in a vector of exactly that size.
const void* weights(std::vector<std::vector<unsigned char>>* kept, int64_t count, int32_t dtype, std::mt19937* random) {
  Buffer buffer(1, 1, 1, count, dtype);
  fill(&buffer, dtype, random, 0.0f);
  kept->push_back(std::move(buffer.bytes));
  return kept->back().data();
}

struct DecodeCase {
  int64_t batch, heads, kv_heads, key_width, value_width, width;
  int32_t dtype, attention;
  bool options;
  int64_t steps, threads;
  // Exact search: a keysift_search, the slots of every ring, the tokens that are in the cache at first.
  int32_t search = KEYSIFT_SEARCH_AUTO;
  int64_t ring_slots = 0, filled = 0;
  float window = 9.5f, acceptance = 0.95f;
};

// Tokens decoded after those in the cache. The rings of screening are shorter than the text.
void run_decode(const DecodeCase& c) {
  std::mt19937 random(7);
  std::vector<std::vector<unsigned char>> kept;
  kept.reserve(64);
  const auto matrix = [&](int64_t rows, int64_t columns) { return weights(&kept, rows * columns, c.dtype, &random); };
  const int64_t vocabulary = 21, hidden = c.options ? 13 : 0, queries = c.heads * c.key_width, outputs = c.heads * c.value_width;
  const std::vector<float> window(static_cast<size_t>(c.heads), c.window), acceptance(static_cast<size_t>(c.heads), c.acceptance);
  const std::vector<double> frequencies(static_cast<size_t>(c.key_width / 2), 0.1);
  keysift_decode_layer layer{};
  layer.heads = c.heads;
  layer.kv_heads = c.kv_heads;
  layer.key_width = c.key_width;
  layer.value_width = c.value_width;
  layer.hidden_width = hidden;
  layer.layer_window = c.options && c.ring_slots == 0 ? 7 : 0;
  layer.search = c.search;
  layer.attention = c.attention;
  layer.q = matrix(queries, c.width);
  layer.k = matrix(c.kv_heads * c.key_width, c.width);
  layer.v = matrix(c.kv_heads * c.value_width, c.width);
  layer.o = matrix(c.width, outputs);
  layer.norm_eps = layer.q_eps = layer.k_eps = 1e-5;
  layer.position_divisor = layer.attention_factor = 1;
  layer.w_th = 256;
  layer.window = layer.effective_window = window.data();
  layer.acceptance = acceptance.data();
  if (c.options) {
    layer.norm_gain = matrix(1, c.width);
    layer.gate = matrix(outputs, c.width);
    layer.q_bias = matrix(1, queries);
    layer.k_bias = matrix(1, c.kv_heads * c.key_width);
    layer.v_bias = matrix(1, c.kv_heads * c.value_width);
    layer.o_bias = matrix(1, c.width);
    layer.q_gain = matrix(1, c.key_width);
    layer.k_gain = matrix(1, c.key_width);
    if (c.key_width % 2 == 0) layer.frequencies = frequencies.data();
    layer.head_scale = acceptance.data();
    layer.hidden_gain = matrix(1, c.width);
    layer.hidden_gate = matrix(hidden, c.width);
    layer.hidden_up = matrix(hidden, c.width);
    layer.hidden_down = matrix(c.width, hidden);
  }
  const void* table = matrix(vocabulary, c.width);
  const keysift_decode_source source{window.data(), acceptance.data(), 0};
  const keysift_decode_model model{c.width, vocabulary, 1, &layer, c.dtype, c.options ? 0 : 1, table, table, nullptr, c.options ? 1e-5 : 0.0,
                                   1.0, 2.0, &source, 1};
  std::vector<int64_t> ring;
  int64_t slots = 0, blocks = 0;
  for (int64_t g = 0; g < c.kv_heads; ++g) {
    const int64_t capacity = c.ring_slots > 0 ? c.ring_slots : c.attention == KEYSIFT_SCREENING ? 10 + g : c.steps;
    ring.insert(ring.end(), {slots, capacity});
    slots += capacity;
    blocks += (capacity + KEYSIFT_PREPARED_KEYS - 1) / KEYSIFT_PREPARED_KEYS;
  }
  Buffer k(c.batch, 1, slots, c.key_width, c.dtype), v(c.batch, 1, slots, c.value_width, c.dtype);
  std::vector<float> prepared(static_cast<size_t>(c.batch * blocks * (c.key_width + 1) * KEYSIFT_PREPARED_KEYS));
  std::vector<int64_t> counts(static_cast<size_t>(c.batch), 0), tokens(counts), lengths(counts), positions(counts);
  if (c.filled > 0) {
    fill(&k, c.dtype, &random, 0.0f);
    fill(&v, c.dtype, &random, 0.0f);
  }
  const int64_t row_bytes = keysift_search_bytes(&layer, ring.data());
  const int64_t search_bytes = (row_bytes + 63) / 64 * 64;
  std::vector<unsigned char> search(static_cast<size_t>(c.batch * search_bytes));
  std::vector<int64_t> states(static_cast<size_t>(c.batch * c.kv_heads * KEYSIFT_SEARCH_STATE));
  keysift_decode_cache cache{k.bytes.data(), v.bytes.data(), ring.data(), slots, prepared.data(), blocks, counts.data(),
                             row_bytes > 0 ? search.data() : nullptr, search_bytes, row_bytes > 0 ? states.data() : nullptr, 1};
  Buffer logits(1, 1, c.batch, vocabulary, c.dtype);
  for (int64_t t = 0; t < c.steps; ++t) {
    // Exact search meets one crop, of more tokens than moments leave out.
    const int64_t length = c.filled + t - (c.filled > 0 && t > c.steps / 2 ? 300 : 0);
    for (size_t b = 0; b < tokens.size(); ++b) {
      tokens[b] = (t + static_cast<int64_t>(b)) % vocabulary;
      lengths[b] = length;
      positions[b] = 1000000 + length;
    }
    expect(keysift_decode(&model, &cache, c.batch, tokens.data(), lengths.data(), positions.data(), c.threads, logits.bytes.data()),
           "decode");
  }
  if (cache.finite != 1) expect(KEYSIFT_BAD_ARGUMENT, "decode stored a value that is not finite");
  // Without refused keys that were never read, sketches and groups would not have been tested.
  const bool refuses = c.search == KEYSIFT_SEARCH_SKETCH || c.search == KEYSIFT_SEARCH_GROUPS;
  if (refuses && c.acceptance < 0.5f && states[1] >= states[0]) expect(KEYSIFT_BAD_ARGUMENT, "search read every key");
}

int run_decodes() {
  int count = 0;
  for (int32_t dtype : {KEYSIFT_F32, KEYSIFT_BF16, KEYSIFT_F16}) {
    for (bool options : {false, true}) {
      for (int64_t threads : {1, 3}) {
        for (int64_t batch : {1, 2, 7}) {
          run_decode({batch, 3, 3, 16, 64, 64, dtype, KEYSIFT_SCREENING, options, 40, threads});
          run_decode({batch, 2, 2, 3, 5, 7, dtype, KEYSIFT_SCREENING, options, 40, threads});
          run_decode({batch, 4, 2, 48, 48, 33, dtype, KEYSIFT_SOFTMAX, options, 20, threads});
          run_decode({batch, 3, 1, 5, 9, 17, dtype, KEYSIFT_SOFTMAX, options, 20, threads});
          count += 4;
        }
      }
    }
  }
  run_decode({1, 1, 1, 8, 8, 8, KEYSIFT_F32, KEYSIFT_SOFTMAX, false, 1030, 2});
  return count + 1;
}

// Exact search in rings with less than one epoch of slots, and with one and a part. The second is full and overwrites its keys.
int64_t run_searches() {
  Cases cases;
  for (int32_t search = KEYSIFT_SEARCH_AUTO; search <= KEYSIFT_SEARCH_MOMENTS; ++search) {
    for (int32_t dtype : {KEYSIFT_F32, KEYSIFT_BF16, KEYSIFT_F16}) {
      const std::vector<double> variant{double(search), double(dtype)};
      for (float window : {3000.0f, INFINITY}) {
        for (float acceptance : {0.3f, 1.0f}) {
          for (int64_t threads : {1, 3}) {
            const DecodeCase part{1, 2, 2, 7, 9, 16, dtype, KEYSIFT_SCREENING, false, 12, threads, search, 4101, 4000, window, acceptance};
            const DecodeCase full{2, 1, 1, 16, 24, 16, dtype, KEYSIFT_SCREENING, true, 12, threads, search, 17003, 34000, window, acceptance};
            if (cases.next(variant)) run_decode(part);
            if (cases.next(variant)) run_decode(full);
          }
        }
      }
    }
  }
  return cases.finish("exact search");
}

}  // namespace

int main(int arguments, char** argument) {
  if (arguments > 1) every = std::atoll(argument[1]);
  if (arguments > 2 || every < 1) {
    std::fprintf(stderr, "usage: keysift_driver [N], to run one case in N\n");
    return 2;
  }
  const int64_t lengths[][2] = {{1, 1}, {15, 15}, {63, 64}, {65, 65}, {1, 130}, {200, 7}, {70, 600}, {0, 5}, {5, 0}};
  const int64_t widths[][2] = {{16, 64}, {32, 128}, {3, 5}, {40, 100}};
  Cases sums, sticks, screening, tiles;
  int64_t count = 1;
  for (int64_t threads : {1, 3}) {
    keysift_set_threads(nullptr, nullptr, threads);
    for (const auto& length : lengths) {
      for (float order : {2.0f, 1.5f, 1.3f}) {
        for (bool learned : {false, true}) {
          run_thresholds(length[0], length[1], order, learned);
          ++count;
        }
      }
      for (const auto& width : widths) {
        for (int32_t kind = KEYSIFT_RELU; kind <= KEYSIFT_DECAYED; ++kind) {
          for (bool segments : {false, true}) {
            for (int64_t window : {0, 20}) {
              const Case c{2, 4, 4, length[0], length[1], width[0], width[1], KEYSIFT_F32, 0, 1.0f, 1.0f, segments};
              const std::vector<double> variant{double(width[0]), double(kind), double(segments), double(window)};
              if (sums.next(variant)) run_sums(c, kind, window);
              if (kind == KEYSIFT_RELU && sticks.next(variant)) run_sticks(c, window);
            }
          }
        }
        for (int32_t dtype : {KEYSIFT_F32, KEYSIFT_BF16, KEYSIFT_F16}) {
          for (float window : {0.3f, 17.0f, INFINITY}) {
            for (float acceptance : {0.3f, 1.0f}) {
              for (bool segments : {false, true}) {
                const std::vector<double> variant{double(width[0]), double(dtype), window, acceptance, double(segments)};
                const Case c{2, 4, 2, length[0], length[1], width[0], width[1], dtype, 0, window, acceptance, segments};
                if (screening.next(variant)) run(c);
                const Case tile{2, 4, 4, length[0], length[0], width[0], width[1], dtype, 0, window, acceptance, segments};
                if (tiles.next(variant)) run_tile(tile, window > 1);
              }
            }
          }
        }
      }
    }
  }
  run({1, 1, 1, 70, 70, 1, 1, KEYSIFT_F32, KEYSIFT_NO_ROTATION | KEYSIFT_NO_TANH, 30.0f, 0.9f, false});
  count += sums.finish("sums") + sticks.finish("sticks") + screening.finish("screening") + tiles.finish("tiles");
  count += run_decodes() + run_searches() + run_groups();
  std::printf("%s: %lld cases\n", keysift_isa(), static_cast<long long>(count));
}
