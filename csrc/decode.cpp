// The C API of decode.h: checks the arguments, plans the steps of a token, and runs them on one or more threads.
#include "decode.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "decode_plan.h"
#include "failure.h"
#include "isa.h"
#include "parallel.h"
#include "tile_constants.h"

namespace keysift {
namespace {

// With fewer bytes of weights, keys and values per thread, a second thread costs more than it saves.
constexpr int64_t kBytesPerThread = int64_t{3} << 20;
constexpr int64_t kLargest = int64_t{1} << 40;  // sizes and lengths, so that products of positions fit
constexpr int kSpins = 4096;

int64_t bytes_of(int32_t dtype) { return dtype == KEYSIFT_F32 ? 4 : 2; }

int check_layer(const keysift_decode_layer& w, int64_t number) {
  const long long at = static_cast<long long>(number);
  const int64_t sizes[] = {w.heads, w.kv_heads, w.key_width, w.value_width, w.hidden_width, w.layer_window};
  for (int x = 0; x < 6; ++x) {
    if (sizes[x] < (x >= 4 ? 0 : 1) || sizes[x] > kLargest) return fail(KEYSIFT_BAD_ARGUMENT, "layer %lld: a size is out of range", at);
  }
  if (w.heads % w.kv_heads != 0) return fail(KEYSIFT_BAD_ARGUMENT, "layer %lld: heads is not a multiple of kv_heads", at);
  if (!w.q || !w.k || !w.v || !w.o) return fail(KEYSIFT_BAD_ARGUMENT, "layer %lld: a projection is NULL", at);
  if (w.hidden_width > 0 && (!w.hidden_gain || !w.hidden_gate || !w.hidden_up || !w.hidden_down)) {
    return fail(KEYSIFT_BAD_ARGUMENT, "layer %lld: a matrix of the feed-forward block is NULL", at);
  }
  if (w.frequencies && (w.key_width % 2 != 0 || !(w.position_divisor > 0))) {
    return fail(KEYSIFT_BAD_ARGUMENT, "layer %lld: RoPE needs an even key_width and a positive position_divisor", at);
  }
  if (w.attention == KEYSIFT_SOFTMAX) return KEYSIFT_OK;
  if (w.attention != KEYSIFT_SCREENING) return fail(KEYSIFT_BAD_ARGUMENT, "layer %lld: attention %d is unknown", at, w.attention);
  if (w.heads != w.kv_heads || (w.key_width < 2 && !(w.flags & KEYSIFT_NO_ROTATION))) {
    return fail(KEYSIFT_BAD_ARGUMENT, "layer %lld: screening needs as many kv_heads as heads, and a key_width of 2 to rotate", at);
  }
  if (!w.window || !w.effective_window || !w.acceptance || !(w.w_th > 0)) {
    return fail(KEYSIFT_BAD_ARGUMENT, "layer %lld: a scalar of screening is missing", at);
  }
  if (w.search < KEYSIFT_SEARCH_AUTO || w.search > KEYSIFT_SEARCH_MOMENTS) {
    return fail(KEYSIFT_BAD_ARGUMENT, "layer %lld: search %d is unknown", at, w.search);
  }
  for (int64_t h = 0; h < w.heads; ++h) {
    if (!(w.window[h] > 0) || !(w.effective_window[h] > 0) || !(w.acceptance[h] > 0 && w.acceptance[h] <= 1)) {
      return fail(KEYSIFT_BAD_ARGUMENT, "layer %lld: windows must be > 0 and acceptances in (0, 1]", at);
    }
  }
  return KEYSIFT_OK;
}

int check_cache(const keysift_decode_layer& w, const keysift_decode_cache& c, int64_t number) {
  const long long at = static_cast<long long>(number);
  if (!c.k || !c.v || !c.ring || c.slots < 1) return fail(KEYSIFT_BAD_ARGUMENT, "cache %lld: k, v or ring is NULL", at);
  const bool prepares = w.attention == KEYSIFT_SCREENING;
  if (prepares && (!c.prepared || !c.prepared_tokens)) return fail(KEYSIFT_BAD_ARGUMENT, "cache %lld: no prepared keys", at);
  int64_t blocks = 0;
  for (int64_t g = 0; g < w.kv_heads; ++g) {
    const int64_t first = c.ring[2 * g], count = c.ring[2 * g + 1];
    if (first < 0 || count < 1 || first > c.slots || count > c.slots - first) {
      return fail(KEYSIFT_BAD_ARGUMENT, "cache %lld: ring %lld is outside the slots", at, static_cast<long long>(g));
    }
    blocks += (count + KEYSIFT_PREPARED_KEYS - 1) / KEYSIFT_PREPARED_KEYS;
  }
  if (prepares && w.search != KEYSIFT_SEARCH_SCAN) {
    const int64_t bytes = keysift_search_bytes(&w, c.ring);
    if (bytes > 0 && (!c.search || !c.search_state || c.search_bytes < bytes || c.search_bytes % 64 != 0)) {
      return fail(KEYSIFT_BAD_ARGUMENT, "cache %lld: search needs %lld bytes for each row and a state", at, static_cast<long long>(bytes));
    }
  }
  if (prepares && c.blocks < blocks) return fail(KEYSIFT_BAD_ARGUMENT, "cache %lld: too few blocks of prepared keys", at);
  return KEYSIFT_OK;
}

int check(const keysift_decode_model* m, const keysift_decode_cache* caches, int64_t batch, const int64_t* tokens,
          const int64_t* lengths, const int64_t* positions, const void* logits) {
  if (!m || !tokens || !lengths || !positions || !logits) return fail(KEYSIFT_BAD_ARGUMENT, "an argument is NULL");
  if (batch < 1 || batch > KEYSIFT_DECODE_ROWS) {
    return fail(KEYSIFT_BAD_ARGUMENT, "batch is %lld; expected 1 to %d", static_cast<long long>(batch), KEYSIFT_DECODE_ROWS);
  }
  if (m->dtype < KEYSIFT_F32 || m->dtype > KEYSIFT_F16) return fail(KEYSIFT_BAD_ARGUMENT, "dtype %d is unknown", m->dtype);
  if (m->width < 1 || m->width > kLargest || m->vocabulary < 1 || m->vocabulary > kLargest || m->layer_count < 0 ||
      m->layer_count > kLargest || !m->embedding || !m->head) {
    return fail(KEYSIFT_BAD_ARGUMENT, "a size of the model is out of range, or a table is NULL");
  }
  if (m->layer_count > 0 && (!m->layers || !caches)) return fail(KEYSIFT_BAD_ARGUMENT, "layers or caches is NULL");
  for (int64_t b = 0; b < batch; ++b) {
    if (tokens[b] < 0 || tokens[b] >= m->vocabulary) {
      return fail(KEYSIFT_BAD_ARGUMENT, "token %lld is not in the vocabulary", static_cast<long long>(tokens[b]));
    }
    if (lengths[b] < 0 || lengths[b] > kLargest) return fail(KEYSIFT_BAD_ARGUMENT, "a length is out of range");
  }
  for (int64_t x = 0; x < m->layer_count; ++x) {
    int status = check_layer(m->layers[x], x);
    if (status == KEYSIFT_OK) status = check_cache(m->layers[x], caches[x], x);
    if (status != KEYSIFT_OK) return status;
  }
  return check_isa();
}

bool sources_changed(const keysift_decode_model& m) {
  for (int64_t x = 0; x < m.source_count; ++x) {
    const keysift_decode_source& s = m.sources[x];
    if (std::memcmp(s.memory, s.copy, static_cast<size_t>(s.bytes)) != 0) return true;
  }
  return false;
}

// Steps of a token with their workspace. Memory is kept between calls of a thread, so that a small model allocates nothing.
class Token {
 public:
  void plan(const keysift_decode_model& m, keysift_decode_cache* caches, int64_t batch, const int64_t* tokens,
            const int64_t* lengths, const int64_t* positions, void* logits);
  int64_t threads_that_pay() const { return std::min(thread_count(), std::max<int64_t>(1, bytes_ / kBytesPerThread)); }
  int run(int64_t threads);

 private:
  void plan_layer(int64_t number);
  void plan_tasks(int64_t number);
  void plan_slots(int64_t number);
  const float* waves(int64_t number);
  int64_t rows_per_task(int64_t width) const;
  void workspace();
  void add(DecodeStep step, int64_t layer, int64_t tasks) { phases_.push_back({step, layer, tasks}); }

  DecodeCall call_{};
  keysift_decode_cache* caches_ = nullptr;
  std::vector<DecodeLayer> layers_;
  std::vector<std::vector<Tile>> tiles_;
  std::vector<std::vector<int64_t>> first_blocks_;
  std::vector<std::vector<float>> waves_;
  std::vector<std::vector<AttendTask>> tasks_;
  std::vector<DecodePhase> phases_;
  std::vector<int64_t> finished_;
  std::vector<float> partials_, workspace_;
  int64_t bytes_ = 0, scratch_ = 0;
};

int64_t Token::rows_per_task(int64_t width) const {
  const int64_t rows = kTaskBytes / (width * bytes_of(call_.model->dtype));
  return std::max<int64_t>(kPad, rows / kPad * kPad);
}

int64_t parts(int64_t rows, int64_t each) { return (rows + each - 1) / each; }

// Cosines and sines of RoPE at the new positions; layers with the same frequencies share them.
const float* Token::waves(int64_t number) {
  const keysift_decode_layer& w = call_.model->layers[number];
  for (int64_t x = 0; x < number; ++x) {
    const keysift_decode_layer& other = call_.model->layers[x];
    if (other.frequencies == w.frequencies && other.key_width == w.key_width && other.attention_factor == w.attention_factor &&
        other.position_divisor == w.position_divisor) {
      return layers_[static_cast<size_t>(x)].waves;
    }
  }
  const int64_t half = w.key_width / 2;
  std::vector<float>& table = waves_[static_cast<size_t>(number)];
  table.resize(static_cast<size_t>(call_.batch * w.key_width));
  for (int64_t b = 0; b < call_.batch; ++b) {
    const double at = static_cast<double>(call_.positions[b]) / w.position_divisor;
    float* to = table.data() + b * w.key_width;
    for (int64_t i = 0; i < half; ++i) {
      to[i] = static_cast<float>(w.attention_factor * std::cos(at * w.frequencies[i]));
      to[half + i] = static_cast<float>(w.attention_factor * std::sin(at * w.frequencies[i]));
    }
  }
  return table.data();
}

// Splits the visible tokens of every row and kv head into pieces, for softmax.
void Token::plan_tasks(int64_t number) {
  const keysift_decode_layer& w = call_.model->layers[number];
  std::vector<AttendTask>& tasks = tasks_[static_cast<size_t>(number)];
  const int64_t bytes = (w.key_width + w.value_width) * bytes_of(call_.model->dtype);
  for (int64_t b = 0; b < call_.batch; ++b) {
    for (int64_t g = 0; g < w.kv_heads; ++g) {
      const int64_t newest = call_.lengths[b], capacity = caches_[number].ring[2 * g + 1];
      const int64_t span = std::min(w.layer_window > 0 ? w.layer_window : kUnlimited, capacity);
      const int64_t from = std::max<int64_t>(0, newest + 1 - span);
      const int64_t pieces = parts(newest + 1 - from, kPiece);
      for (int64_t p = 0; p < pieces; ++p) {
        tasks.push_back({b, g, from + p * kPiece, std::min(newest + 1, from + (p + 1) * kPiece), p, pieces, pieces, p + 1 == pieces,
                         kScanKeys, nullptr, nullptr, MomentRange{}, false, nullptr, nullptr});
      }
      bytes_ += (newest + 1 - from) * bytes;
    }
  }
}

// Splits the slots in use of every ring, for screening. Each task prepares the new keys among its own slots.
void Token::plan_slots(int64_t number) {
  const keysift_decode_layer& w = call_.model->layers[number];
  const keysift_decode_cache& cache = caches_[number];
  std::vector<AttendTask>& tasks = tasks_[static_cast<size_t>(number)];
  for (int64_t b = 0; b < call_.batch; ++b) {
    unsigned char* memory = static_cast<unsigned char*>(cache.search) + b * cache.search_bytes;
    for (int64_t g = 0; g < w.kv_heads; ++g) {
      const int64_t newest = call_.lengths[b], capacity = cache.ring[2 * g + 1];
      const SearchMemory search{memory, w.key_width, capacity};
      const bool searched = w.search != KEYSIFT_SEARCH_SCAN && search.searchable();
      int64_t* state = cache.search_state ? cache.search_state + (b * w.kv_heads + g) * KEYSIFT_SEARCH_STATE : nullptr;
      const int64_t used = std::min(capacity, newest + 1), each = searched ? kEpoch : kPiece;
      const Tile& tile = tiles_[static_cast<size_t>(number)][static_cast<size_t>(g)];
      const int sets = tile.fades ? 3 : 1;
      const bool fits = searched && search.fits_moments(padded_width(w.value_width), sets);
      const SearchMode mode = state ? choose_search(searched ? w.search : KEYSIFT_SEARCH_SCAN, used, fits, state) : kScanKeys;
      const int64_t span = std::min(tile.span, w.layer_window > 0 ? w.layer_window : kUnlimited);
      const int64_t first = std::max<int64_t>(0, newest + 1 - span), prepared = cache.prepared_tokens[b];
      MomentRange moments{};
      if (searched) {
        moments = plan_moments(w.search, mode, search, sets, first, std::max<int64_t>(0, newest + 2 - span), newest, prepared, state);
      }
      for (int64_t from = 0; from < used; from += each) {
        const bool last = newest % capacity >= from && newest % capacity < from + each;
        tasks.push_back({b, g, from, std::min(used, from + each), from / kPiece, parts(used, kPiece), parts(used, each), last, mode,
                         searched ? memory : nullptr, state, moments, searched && state[kHasMoments] == 0, nullptr, nullptr});
      }
      bytes_ += used * (mode == kScanKeys ? 4 * (w.key_width + w.value_width) : w.key_width);
      if (searched) memory += search.bytes();
    }
  }
}

void Token::plan_layer(int64_t number) {
  const keysift_decode_model& m = *call_.model;
  const keysift_decode_layer& w = m.layers[number];
  const size_t at = static_cast<size_t>(number);
  tiles_[at].clear();
  first_blocks_[at].clear();
  if (w.attention == KEYSIFT_SCREENING) {
    keysift_problem screening{};
    screening.tiles = w.heads;
    screening.flags = w.flags;
    screening.window = w.window;
    screening.effective_window = w.effective_window;
    screening.acceptance = w.acceptance;
    screening.w_th = w.w_th;
    tiles_[at] = tiles_of(screening);
    for (int64_t g = 0, block = 0; g < w.kv_heads; ++g) {
      first_blocks_[at].push_back(block);
      block += parts(caches_[number].ring[2 * g + 1], KEYSIFT_PREPARED_KEYS);
    }
  }
  tasks_[at].clear();
  if (w.attention == KEYSIFT_SCREENING) {
    plan_slots(number);
  } else {
    plan_tasks(number);
  }
  const int64_t inputs = w.heads * w.value_width;
  DecodeLayer& layer = layers_[at];
  layer = {&w, caches_ + number, tiles_[at].data(), first_blocks_[at].data(), w.frequencies ? waves(number) : nullptr, tasks_[at].data(),
           rows_per_task(m.width), rows_per_task(inputs), rows_per_task(2 * m.width), w.hidden_width ? rows_per_task(w.hidden_width) : kPad};
  int64_t projected = 0, rows = 0;
  for (int64_t count : {w.heads * w.key_width, w.kv_heads * w.key_width, w.kv_heads * w.value_width, w.gate ? inputs : 0}) {
    projected += parts(count, layer.project_rows);
    rows += count;
  }
  bytes_ += ((rows + inputs) * m.width + 3 * w.hidden_width * m.width) * bytes_of(m.dtype);
  add(kProject, number, projected);
  add(kAttend, number, static_cast<int64_t>(tasks_[at].size()));
  add(kOutput, number, parts(m.width, layer.output_rows));
  if (w.hidden_width == 0) return;
  add(kHidden, number, parts(w.hidden_width, layer.hidden_rows));
  add(kDown, number, parts(m.width, layer.down_rows));
}

// Divides one allocation among the rows that all threads share.
void Token::workspace() {
  int64_t q = 0, k = 0, v = 0, gate = 0, mixed = 0, hidden = 0, partials = 0, finished = 0;
  scratch_ = call_.batch * call_.x_stride * 4;
  for (const DecodeLayer& layer : layers_) {
    const keysift_decode_layer& w = *layer.weights;
    q = std::max(q, padded_width(w.heads * w.key_width));
    k = std::max(k, padded_width(w.kv_heads * w.key_width));
    v = std::max(v, padded_width(w.kv_heads * w.value_width));
    gate = std::max(gate, padded_width(w.heads * w.value_width));
    mixed = std::max(mixed, padded_width(w.heads * w.value_width));
    hidden = std::max(hidden, padded_width(w.hidden_width));
    scratch_ = std::max(scratch_, kernels().decode->attend_scratch(w));
    int64_t pieces = 0;
    for (const AttendTask& task : tasks_[static_cast<size_t>(layer.weights - call_.model->layers)]) {
      if (task.first_piece == 0) pieces += task.partial_rows();
    }
    partials = std::max(partials, pieces * (w.heads / w.kv_heads) * (padded_width(w.value_width) + kPad));
    finished += call_.batch * w.kv_heads;
  }
  partials_.resize(static_cast<size_t>(partials));
  finished_.assign(static_cast<size_t>(finished), 0);
  const int64_t strides[] = {call_.x_stride, q, k, v, gate, mixed, hidden};
  int64_t total = kPad;
  for (int64_t stride : strides) total += call_.batch * stride;
  workspace_.assign(static_cast<size_t>(total), 0.0f);
  // Rows begin on cache lines.
  float* at = workspace_.data() + (kPad - reinterpret_cast<uintptr_t>(workspace_.data()) / 4 % kPad) % kPad;
  float** const rows[] = {&call_.x, &call_.q, &call_.k, &call_.v, &call_.gate, &call_.mixed, &call_.hidden};
  for (int x = 0; x < 7; ++x) {
    *rows[x] = at;
    at += call_.batch * strides[x];
  }
  call_.q_stride = q;
  call_.k_stride = k;
  call_.v_stride = v;
  call_.gate_stride = gate;
  call_.mixed_stride = mixed;
  call_.hidden_stride = hidden;
  int64_t* counter = finished_.data();
  for (std::vector<AttendTask>& tasks : tasks_) {
    float* partial = partials_.data();
    const keysift_decode_layer& w = call_.model->layers[&tasks - tasks_.data()];
    for (size_t first = 0; first < tasks.size(); first += static_cast<size_t>(tasks[first].tasks)) {
      for (int64_t x = 0; x < tasks[first].tasks; ++x) {
        tasks[first + static_cast<size_t>(x)].partial = partial;
        tasks[first + static_cast<size_t>(x)].finished = counter;
      }
      partial += tasks[first].partial_rows() * (w.heads / w.kv_heads) * (padded_width(w.value_width) + kPad);
      ++counter;
    }
  }
}

void Token::plan(const keysift_decode_model& m, keysift_decode_cache* caches, int64_t batch, const int64_t* tokens,
                 const int64_t* lengths, const int64_t* positions, void* logits) {
  call_ = {};
  call_.model = &m;
  call_.batch = batch;
  call_.tokens = tokens;
  call_.lengths = lengths;
  call_.positions = positions;
  call_.logits = logits;
  call_.x_stride = padded_width(m.width);
  call_.readout_rows = rows_per_task(m.width);
  caches_ = caches;
  const size_t count = static_cast<size_t>(m.layer_count);
  layers_.resize(count);
  tiles_.resize(count);
  first_blocks_.resize(count);
  waves_.resize(count);
  tasks_.resize(count);
  phases_.clear();
  bytes_ = m.vocabulary * m.width * bytes_of(m.dtype);
  add(kEmbed, 0, batch);
  for (int64_t x = 0; x < m.layer_count; ++x) plan_layer(x);
  add(kReadout, 0, parts(m.vocabulary, call_.readout_rows));
  call_.layers = layers_.data();
  workspace();
}

// A step's tasks, taken one at a time. A thread waits only for tasks that another thread has taken, so it never waits for a
// thread that the pool did not start.
struct alignas(64) Progress {
  std::atomic<int64_t> next{0}, done{0};
};

int Token::run(int64_t threads) {
  const auto run = kernels().decode->run;
  if (threads <= 1) {
    return run_tasks(1, 1, scratch_, [&](int64_t, char* scratch) {
      for (const DecodePhase& phase : phases_) {
        for (int64_t task = 0; task < phase.tasks; ++task) run(call_, phase, task, task == 0, scratch);
      }
    });
  }
  const std::unique_ptr<Progress[]> progress(new Progress[phases_.size()]);
  return run_tasks(threads, threads, scratch_, [&](int64_t, char* scratch) {
    for (size_t x = 0; x < phases_.size(); ++x) {
      const DecodePhase& phase = phases_[x];
      Progress& at = progress[x];
      bool first = true;
      for (int64_t task = at.next++; task < phase.tasks; task = at.next++) {
        run(call_, phase, task, first, scratch);
        first = false;
        at.done.fetch_add(1, std::memory_order_acq_rel);
      }
      for (int spins = 0; at.done.load(std::memory_order_acquire) < phase.tasks; ++spins) {
        if (spins > kSpins) sched_yield();
      }
    }
  });
}

}  // namespace
}  // namespace keysift

int keysift_decode(const keysift_decode_model* model, keysift_decode_cache* caches, int64_t batch, const int64_t* tokens,
                   const int64_t* lengths, const int64_t* positions, int64_t threads, void* logits) {
  using namespace keysift;
  return guarded([&]() -> int {
    const int status = check(model, caches, batch, tokens, lengths, positions, logits);
    if (status != KEYSIFT_OK) return status;
    if (sources_changed(*model)) return fail(KEYSIFT_STALE, "a parameter changed after values were prepared from it");
    thread_local Token token;
    token.plan(*model, caches, batch, tokens, lengths, positions, logits);
    const int ran = token.run(threads > 0 ? threads : token.threads_that_pay());
    if (ran != KEYSIFT_OK) return fail_run(ran);
    for (int64_t x = 0; x < model->layer_count; ++x) {
      if (model->layers[x].attention != KEYSIFT_SCREENING) continue;
      for (int64_t b = 0; b < batch; ++b) caches[x].prepared_tokens[b] = lengths[b] + 1;
    }
    return KEYSIFT_OK;
  });
}
