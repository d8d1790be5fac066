// The C API of screening.h: checks the arguments, computes each tile's constants, and splits the work into tasks.
#include "screening_passes.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "failure.h"
#include "gaps.h"
#include "isa.h"
#include "key_groups.h"
#include "parallel.h"
#include "plan.h"
#include "segments.h"
#include "tile_constants.h"

namespace keysift {
namespace {

constexpr int64_t kBackwardTasks = 32;
// With fewer key visits, a second thread costs more than it saves.
constexpr int64_t kSerialVisits = 1 << 14;

int check_rings(const keysift_problem& p) {
  if (!p.ring) return KEYSIFT_OK;
  if (!p.ring_first && p.batch > 0) return fail(KEYSIFT_BAD_ARGUMENT, "ring_first must not be NULL where ring is given");
  for (int64_t g = 0; g < p.kv_tiles; ++g) {
    if (p.ring[2 * g] < 0 || p.ring[2 * g] > kMaxPosition || p.ring[2 * g + 1] < 1 || p.ring[2 * g + 1] > kMaxPosition) {
      return fail(KEYSIFT_BAD_ARGUMENT, "ring %lld: %lld rows from row %lld on; expected at least one, from 0 on",
                  static_cast<long long>(g), static_cast<long long>(p.ring[2 * g + 1]), static_cast<long long>(p.ring[2 * g]));
    }
  }
  for (int64_t b = 0; b < p.batch; ++b) {
    if (p.ring_first[b] < 0 || p.ring_first[b] > kMaxPosition) {
      return fail(KEYSIFT_BAD_ARGUMENT, "ring_first[%lld] is %lld; expected at least 0", static_cast<long long>(b),
                  static_cast<long long>(p.ring_first[b]));
    }
  }
  return KEYSIFT_OK;
}

}  // namespace

int check_problem(const keysift_problem* p) {
  if (!p) return fail(KEYSIFT_BAD_ARGUMENT, "problem is NULL");
  const int64_t sizes[] = {p->batch, p->tiles, p->kv_tiles, p->queries, p->keys, p->key_width, p->value_width};
  const char* names[] = {"batch", "tiles", "kv_tiles", "queries", "keys", "key_width", "value_width"};
  for (int x = 0; x < 7; ++x) {
    const bool may_be_empty = x == 0 || x == 3 || x == 4;
    if (sizes[x] < (may_be_empty ? 0 : 1) || sizes[x] > kMaxPosition) {
      return fail(KEYSIFT_BAD_ARGUMENT, "%s is %lld; expected at least %d", names[x], static_cast<long long>(sizes[x]),
                  may_be_empty ? 0 : 1);
    }
  }
  if (p->tiles % p->kv_tiles != 0) {
    return fail(KEYSIFT_BAD_ARGUMENT, "tiles (%lld) is not a multiple of kv_tiles (%lld)", static_cast<long long>(p->tiles),
                static_cast<long long>(p->kv_tiles));
  }
  if (p->dtype < KEYSIFT_F32 || p->dtype > KEYSIFT_F16) return fail(KEYSIFT_BAD_ARGUMENT, "dtype %d is unknown", p->dtype);
  if (p->flags & ~static_cast<uint32_t>(KEYSIFT_NO_ROTATION | KEYSIFT_NO_TANH | KEYSIFT_FINITE_VALUES)) {
    return fail(KEYSIFT_BAD_ARGUMENT, "flags %u has unknown bits", p->flags);
  }
  if (p->key_width < 2 && !(p->flags & KEYSIFT_NO_ROTATION)) {
    return fail(KEYSIFT_BAD_ARGUMENT, "key_width is 1, but the rotation needs 2; pass KEYSIFT_NO_ROTATION");
  }
  if (!p->window || !p->acceptance) return fail(KEYSIFT_BAD_ARGUMENT, "window and acceptance must not be NULL");
  if (!(p->w_th > 0)) return fail(KEYSIFT_BAD_ARGUMENT, "w_th is %g; expected a positive number", static_cast<double>(p->w_th));
  for (int64_t h = 0; h < p->tiles; ++h) {
    const float effective_window = p->effective_window ? p->effective_window[h] : p->window[h];
    if (!(p->window[h] > 0) || !(effective_window > 0) || !(p->acceptance[h] > 0 && p->acceptance[h] <= 1)) {
      return fail(KEYSIFT_BAD_ARGUMENT, "tile %lld: window %g, effective_window %g, acceptance %g; expected > 0, > 0 and in (0, 1]",
                  static_cast<long long>(h), static_cast<double>(p->window[h]), static_cast<double>(effective_window),
                  static_cast<double>(p->acceptance[h]));
    }
  }
  const int segments = check_segments(p->segments, p->segment_count, p->offset, p->batch, p->queries, p->keys);
  if (segments != KEYSIFT_OK) return segments;
  const int rings = check_rings(*p);
  if (rings != KEYSIFT_OK) return rings;
  if (p->groups && (p->batch != 1 || p->segment_count != -1 || p->ring)) {
    return fail(KEYSIFT_BAD_ARGUMENT, "groups are of one segment of one row, but batch is %lld, segment_count %lld and ring %s",
                static_cast<long long>(p->batch), static_cast<long long>(p->segment_count), p->ring ? "given" : "NULL");
  }
  const bool empty = p->batch == 0 || p->queries == 0;
  if ((!empty && !p->q.data) || (p->batch > 0 && p->keys > 0 && (!p->k.data || !p->v.data))) {
    return fail(KEYSIFT_BAD_ARGUMENT, "q, k and v must not be NULL");
  }
  return check_isa();
}

namespace {

std::vector<keysift_segment> segments_of(const keysift_problem& p) {
  return list_segments(p.segments, p.segment_count, p.offset, p.batch, p.queries, p.keys);
}

// Approximate number of keys that a chunk of queries visits, for balancing work.
int64_t visits(const keysift_segment& segment, const Tile& tile, int64_t queries) {
  return std::min(segment.keys, tile.span > segment.keys ? segment.keys : tile.span + queries);
}

}  // namespace

int screening_forward(const keysift_problem* problem, const keysift_gate* gate, const keysift_view* u, float* norm, float* h) {
  const int status = check_problem(problem);
  if (status != KEYSIFT_OK) return status;
  const keysift_problem& p = *problem;
  if (p.batch == 0 || p.queries == 0) return KEYSIFT_OK;
  if (!u || !u->data) return fail(KEYSIFT_BAD_ARGUMENT, "u must not be NULL");

  const std::vector<Tile> tiles = tiles_of(p);
  std::vector<int64_t> order(tiles.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t x, int64_t y) { return tiles[x].span > tiles[y].span; });

  const std::vector<keysift_segment> segments = segments_of(p);
  const auto query = &keysift_segment::query, queries = &keysift_segment::queries;
  for_each_gap(segments, p.batch, p.queries, query, queries, [&](int64_t b, int64_t from, int64_t to) {
    write_zeros(*u, p.dtype, p.tiles, p.value_width, b, from, to);
    for (int64_t row = b * p.tiles; row < (b + 1) * p.tiles; ++row) {
      if (norm) std::fill(norm + row * p.queries + from, norm + row * p.queries + to, 0.0f);
      if (h) std::fill(h + (row * p.queries + from) * p.value_width, h + (row * p.queries + to) * p.value_width, 0.0f);
    }
  });

  int64_t threads = thread_count();
  int64_t total = 0, rows = 0, longest = 0;
  for (const keysift_segment& segment : segments) {
    for (const Tile& tile : tiles) total += segment.queries * visits(segment, tile, 0) / 64 + visits(segment, tile, segment.queries);
    rows += p.tiles * segment.queries;
    longest = std::max(longest, segment.queries);
  }
  if (total < kSerialVisits) threads = 1;
  const int64_t share = (rows / (4 * threads) + kBatch) / kBatch * kBatch;
  Plan plan{};
  plan.problem = p;
  plan.tiles = tiles.data();
  plan.u = *u;
  plan.norm = norm;
  plan.h = h;
  if (gate) plan.gate = *gate;
  plan.chunk = std::min(std::min(kChunk, std::max<int64_t>(share, kBlock)), (longest + kBatch - 1) / kBatch * kBatch);

  const ScreeningKernels kernels = keysift::kernels().screening(p.key_width, p.value_width);
  if (p.groups && p.queries >= kBlock && p.key_width <= kSearchWidth) {
    const int grouped = update_groups(p.groups, plan, segments[0], thread_count());
    if (grouped != KEYSIFT_OK) return fail_run(grouped);
    const std::vector<TileBlocks>& blocks = p.groups->blocks;
    if (std::any_of(blocks.begin(), blocks.end(), [](const TileBlocks& b) { return b.count > 0; })) {
      plan.blocks = blocks.data();
      // A chunk within one of kChunk queries has the same epochs in view, for any number of threads.
      while (plan.chunk & (plan.chunk - 1)) plan.chunk &= plan.chunk - 1;
    }
  }
  struct Chunk {
    const keysift_segment* segment;
    int64_t first;
  };
  std::vector<Chunk> chunks;
  for (const keysift_segment& segment : segments) {
    for (int64_t first = 0; first < segment.queries; first += plan.chunk) chunks.push_back({&segment, first});
  }
  // Longest windows first, and in each tile the last queries first, so that the cheapest tasks run at the end.
  std::stable_sort(chunks.begin(), chunks.end(), [](const Chunk& x, const Chunk& y) { return x.first > y.first; });
  const int64_t per_tile = static_cast<int64_t>(chunks.size());
  const int run = run_tasks(p.tiles * per_tile, threads, kernels.forward_scratch(plan), [&](int64_t task, char* scratch) {
    const Chunk& chunk = chunks[static_cast<size_t>(task % per_tile)];
    kernels.forward(plan, *chunk.segment, order[static_cast<size_t>(task / per_tile)], chunk.first, scratch);
  });
  return run == KEYSIFT_OK ? run : fail_run(run);
}

namespace {

// Zeroed memory. Large buffers are mapped and returned to the system when the tile is done; freed with malloc, they would
// accumulate in its arenas. Small buffers are not worth the system calls.
class ZeroedMemory {
 public:
  ZeroedMemory() = default;
  ZeroedMemory(const ZeroedMemory&) = delete;
  ZeroedMemory& operator=(const ZeroedMemory&) = delete;
  ~ZeroedMemory() { release(); }
  float* take(size_t floats) {
    release();
    if (floats < kSmall) {
      small_.assign(floats, 0.0f);
      return small_.data();
    }
    bytes_ = floats * 4 + 64;
    at_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at_ == MAP_FAILED) throw std::bad_alloc();
    return static_cast<float*>(at_);
  }
  void release() {
    std::vector<float>().swap(small_);
    if (at_ != MAP_FAILED) munmap(at_, bytes_);
    at_ = MAP_FAILED;
  }

 private:
  static constexpr size_t kSmall = size_t{1} << 14;
  std::vector<float> small_;
  void* at_ = MAP_FAILED;
  size_t bytes_ = 0;
};

// One kv tile of one segment: its tasks and their results for finish_dq.
struct KvTile {
  std::vector<BackwardTask> tasks;
  std::unique_ptr<ZeroedMemory[]> dq;  // (task)
  std::vector<Sums> sums;  // (task, group)
  std::atomic<int64_t> pending{0};
};

// Splits the keys of a kv tile into at most `parts` ranges of about equal work.
void split_keys(const keysift_segment& p, const std::vector<Tile>& tiles, int64_t group, int64_t kv, int64_t parts, KvTile* out) {
  const int64_t offset = p.offset;
  auto visible_to = [&](const Tile& tile, int64_t from, int64_t to, int64_t* first, int64_t* last) {
    *first = std::clamp<int64_t>(from - offset, 0, p.queries);
    *last = std::max(*first, std::clamp<int64_t>(to - 1 - offset + tile.span, 0, p.queries));
  };
  const int64_t slabs = std::max<int64_t>(1, (p.keys + kSlab - 1) / kSlab);
  std::vector<double> work(static_cast<size_t>(slabs) + 1, 0.0);
  for (int64_t s = 0; s < slabs; ++s) {
    double here = 1;
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      int64_t first, last;
      visible_to(tiles[h], s * kSlab, (s + 1) * kSlab, &first, &last);
      here += static_cast<double>(last - first);
    }
    work[s + 1] = work[s] + here;
  }
  int64_t from = 0;
  for (int64_t part = 1; part <= parts && from < slabs; ++part) {
    const double until = work[slabs] * static_cast<double>(part) / static_cast<double>(parts);
    int64_t to = from + 1;
    while (to < slabs && work[to + 1] <= until * (1 + 1e-12)) ++to;
    if (part == parts) to = slabs;
    BackwardTask task{&p, kv, from * kSlab, std::min(p.keys, to * kSlab), p.queries, 0, nullptr, nullptr};
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      int64_t first, last;
      visible_to(tiles[h], task.first_key, task.last_key, &first, &last);
      task.first_query = std::min(task.first_query, first);
      task.last_query = std::max(task.last_query, last);
    }
    task.first_query = task.first_query / kBatch * kBatch;
    task.last_query = std::max(task.first_query, (task.last_query + kBatch - 1) / kBatch * kBatch);
    out->tasks.push_back(task);
    from = to;
  }
  out->sums.assign(out->tasks.size() * static_cast<size_t>(group), Sums{0, 0, 0});
  out->dq.reset(new ZeroedMemory[out->tasks.size()]);
  out->pending = static_cast<int64_t>(out->tasks.size());
}

}  // namespace

int screening_backward(const keysift_problem* problem, const keysift_view* u, const float* norm, const float* h,
                       const keysift_view* du, int32_t du_dtype, const keysift_gradients* gradients) {
  const int status = check_problem(problem);
  if (status != KEYSIFT_OK) return status;
  const keysift_problem& p = *problem;
  if (p.ring) return fail(KEYSIFT_BAD_ARGUMENT, "ring must be NULL: no gradient flows into a cache");
  if (!gradients || !gradients->dwindow || !gradients->deffective_window || !gradients->dacceptance) {
    return fail(KEYSIFT_BAD_ARGUMENT, "gradients, dwindow, deffective_window and dacceptance must not be NULL");
  }
  for (int64_t h = 0; h < p.tiles; ++h) gradients->dwindow[h] = gradients->deffective_window[h] = gradients->dacceptance[h] = 0;
  if (p.batch == 0) return KEYSIFT_OK;
  const bool has_queries = p.queries > 0, has_keys = p.keys > 0, keeps_tanh = !(p.flags & KEYSIFT_NO_TANH);
  if ((has_queries && (!gradients->dq.data || !du || !du->data)) || (has_keys && (!gradients->dk.data || !gradients->dv.data)) ||
      (has_queries && keeps_tanh && (!norm || !(h || (u && u->data))))) {
    return fail(KEYSIFT_BAD_ARGUMENT, "du, dq, dk and dv (and, with TanhNorm, norm and one of u and h) must not be NULL");
  }

  const std::vector<Tile> tiles = tiles_of(p);
  const int64_t group = p.tiles / p.kv_tiles;
  const int64_t threads = thread_count();
  // A fixed number, so that the order of additions does not depend on the number of threads.
  const int64_t target_tasks = threads <= 16 ? kBackwardTasks : 2 * threads;
  const std::vector<keysift_segment> segments = segments_of(p);
  const auto query = &keysift_segment::query, queries = &keysift_segment::queries;
  for_each_gap(segments, p.batch, p.queries, query, queries, [&](int64_t b, int64_t from, int64_t to) {
    write_zeros(gradients->dq, p.dtype, p.tiles, p.key_width, b, from, to);
  });
  const auto key = &keysift_segment::key, keys = &keysift_segment::keys;
  for_each_gap(segments, p.batch, p.keys, key, keys, [&](int64_t b, int64_t from, int64_t to) {
    write_zeros(gradients->dk, p.dtype, p.kv_tiles, p.key_width, b, from, to);
    write_zeros(gradients->dv, p.dtype, p.kv_tiles, p.value_width, b, from, to);
  });
  std::vector<KvTile> kv_tiles(segments.size() * static_cast<size_t>(p.kv_tiles));
  if (kv_tiles.empty()) return KEYSIFT_OK;
  const int64_t parts = (target_tasks + static_cast<int64_t>(kv_tiles.size()) - 1) / static_cast<int64_t>(kv_tiles.size());
  std::vector<std::pair<size_t, size_t>> order;
  for (size_t x = 0; x < kv_tiles.size(); ++x) {
    const size_t kv = x % static_cast<size_t>(p.kv_tiles);
    split_keys(segments[x / static_cast<size_t>(p.kv_tiles)], tiles, group, static_cast<int64_t>(kv), parts, &kv_tiles[x]);
  }
  // Most expensive tiles first. The tasks of a tile stay together, so that few tiles hold dq buffers at the same time.
  std::vector<size_t> by_weight(kv_tiles.size());
  std::iota(by_weight.begin(), by_weight.end(), 0);
  auto weight = [&](size_t x) {
    double w = 0;
    for (int64_t g = 0; g < group; ++g) {
      w += static_cast<double>(std::min(tiles[x % p.kv_tiles * group + g].span, segments[x / p.kv_tiles].queries));
    }
    return w * static_cast<double>(segments[x / p.kv_tiles].queries);
  };
  std::stable_sort(by_weight.begin(), by_weight.end(), [&](size_t x, size_t y) { return weight(x) > weight(y); });
  for (size_t x : by_weight) {
    for (size_t t = 0; t < kv_tiles[x].tasks.size(); ++t) order.emplace_back(x, t);
  }

  Plan plan{};
  plan.problem = p;
  plan.tiles = tiles.data();
  if (u) plan.u = *u;
  plan.norm = const_cast<float*>(norm);
  plan.h = const_cast<float*>(h);
  if (du) plan.du = *du;
  plan.du_dtype = du_dtype;
  plan.gradients = *gradients;
  const ScreeningKernels kernels = keysift::kernels().screening(p.key_width, p.value_width);
  int64_t bytes = kernels.finish_scratch(plan);
  for (const KvTile& tile : kv_tiles) {
    for (const BackwardTask& task : tile.tasks) bytes = std::max(bytes, kernels.backward_scratch(plan, task));
  }
  const int64_t pad = kernels.padded(p.key_width);
  const int run = run_tasks(static_cast<int64_t>(order.size()), threads, bytes, [&](int64_t index, char* scratch) {
    KvTile& tile = kv_tiles[order[index].first];
    const size_t t = order[index].second;
    BackwardTask& task = tile.tasks[t];
    const size_t floats = static_cast<size_t>(group * (task.last_query - task.first_query) * pad);
    task.dq = tile.dq[t].take(floats);
    task.sums = tile.sums.data() + t * static_cast<size_t>(group);
    kernels.backward(plan, task, scratch);
    if (--tile.pending > 0) return;
    for (int64_t g = 0; g < group; ++g) {
      kernels.finish_dq(plan, tile.tasks.data(), static_cast<int64_t>(tile.tasks.size()), task.kv_tile * group + g, scratch);
    }
    for (size_t x = 0; x < tile.tasks.size(); ++x) tile.dq[x].release();
  });
  if (run != KEYSIFT_OK) return fail_run(run);
  for (size_t x = 0; x < kv_tiles.size(); ++x) {
    for (size_t s = 0; s < kv_tiles[x].sums.size(); ++s) {
      const int64_t h = static_cast<int64_t>(x) % p.kv_tiles * group + static_cast<int64_t>(s) % group;
      gradients->dwindow[h] += kv_tiles[x].sums[s].window;
      gradients->deffective_window[h] += kv_tiles[x].sums[s].effective_window;
      gradients->dacceptance[h] += kv_tiles[x].sums[s].acceptance;
    }
  }
  return KEYSIFT_OK;
}

}  // namespace keysift

int keysift_forward(const keysift_problem* problem, const keysift_view* u, float* norm, float* h) {
  return keysift::guarded([&] { return keysift::screening_forward(problem, nullptr, u, norm, h); });
}

int keysift_backward(const keysift_problem* problem, const keysift_view* u, const float* norm, const float* h,
                     const keysift_view* du, const keysift_gradients* gradients) {
  return keysift::guarded([&] {
    const int32_t dtype = problem ? problem->dtype : static_cast<int32_t>(KEYSIFT_F32);
    return keysift::screening_backward(problem, u, norm, h, du, dtype, gradients);
  });
}
