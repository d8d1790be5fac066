// Screening of one decoded token over the prepared keys of a ring: every key, or those that exact search does not refuse.
#pragma once

#include "decode_attention.h"
#include "decode_search.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

constexpr int64_t kListed = 256;  // accepted keys that are listed before their values are added
constexpr int64_t kAhead = 32;    // keys of the list whose memory is requested before they are judged

// Slots of a ring that hold the tokens from `first` to the newest, in ascending order of slots.
struct SlotRanges {
  int64_t from[2], to[2];
  SlotRanges(int64_t first, int64_t newest, int64_t capacity) {
    const int64_t lap = newest / capacity * capacity;  // the token in slot 0
    first = larger<int64_t>(first, larger<int64_t>(0, newest + 1 - capacity));
    from[0] = larger<int64_t>(first - lap, 0);
    to[0] = newest - lap + 1;
    from[1] = first < lap ? first - lap + capacity : capacity;
    to[1] = capacity;
  }
  // Calls body(from, to) for the slots among [first, last).
  template <class Body>
  KEYSIFT_INLINE void within(int64_t first, int64_t last, Body body) const {
    for (int x = 0; x < 2; ++x) {
      const int64_t a = larger(from[x], first), b = smaller(to[x], last);
      if (a < b) body(a, b);
    }
  }
};

template <int Dtype>
struct Screen {
  const Attend& at;
  const AttendTask& task;
  const Tile tile;
  const SearchMemory memory;
  const int64_t width, newest_slot;
  const SlotRanges visible;
  const char *keys, *values;
  float *q, *blocks;
  int64_t piece = -1, listed = 0, judged = 0, accepted = 0, opened = 0, tested = 0;
  int64_t slots[kListed];
  float weights[kListed];
  double refused[kListed];

  explicit Screen(const Attend& a)
      : at(a),
        task(a.task),
        tile(a.layer.tiles[a.task.head]),
        memory{a.task.search, a.w.key_width, a.capacity},
        width(a.w.key_width),
        newest_slot(a.newest % a.capacity),
        visible(a.newest + 1 - smaller(a.layer.tiles[a.task.head].span, a.w.layer_window > 0 ? a.w.layer_window : kUnlimited), a.newest,
                a.capacity),
        keys(a.ring(a.cache.k, a.w.key_width)),
        values(a.ring(a.cache.v, a.w.value_width)),
        q(a.scratch.q),
        blocks(a.cache.prepared +
               (a.task.row * a.cache.blocks + a.layer.first_block[a.task.head]) * (a.w.key_width + 1) * kBlockKeys) {}

  KEYSIFT_INLINE float* column(int64_t slot) const { return blocks + slot / kBlockKeys * (width + 1) * kBlockKeys + slot % kBlockKeys; }
  // Positions between the key in a slot and the query.
  KEYSIFT_INLINE int64_t distance(int64_t slot) const { return newest_slot - slot + (slot > newest_slot ? at.capacity : 0); }

  // Writes the key at unit length, rotated, with its channels kBlockKeys floats apart.
  KEYSIFT_INLINE void prepare_key(int64_t slot, float* to) const {
    float* row = at.scratch.row;
    read_row(element(keys, Dtype, slot * width), Dtype, width, at.key_pad, row);
    scale_row(row, Factor(inverse_length(row, at.key_pad)), at.key_pad);
    if (tile.rotates) {
      float c, s;
      rotation_table(tile.turns_per_position, at.newest - distance(slot), 1, &c, &s);
      rotate(row, c, s);
    }
    for (int64_t x = 0; x < width; ++x) to[x * kBlockKeys] = row[x];
  }

  // Prepares the keys of this task that are new.
  void prepare() {
    // The newest key replaces another token's, also after a crop.
    const int64_t first = smaller(at.layer.cache->prepared_tokens[task.row], at.newest);
    bool any = false;
    SlotRanges(first, at.newest, at.capacity).within(task.from, task.to, [&](int64_t from, int64_t to) {
      any = true;
      for (int64_t slot = from; slot < to; ++slot) {
        prepare_key(slot, column(slot));
        float* row = at.scratch.row;
        read_row(element(values, Dtype, slot * at.w.value_width), Dtype, at.w.value_width, at.value_pad, row);
        column(slot)[width * kBlockKeys] = static_cast<float>(inverse_length(row, at.value_pad));
        if (task.search) sketch_key(column(slot), width, memory.sketches(slot), slot % kBlockKeys);
      }
    });
    if (!task.search || !task.groups || !memory.has_groups(task.from / kEpoch)) return;
    const Groups groups = memory.groups(task.from / kEpoch);
    if (any) *groups.count = 0;
    // Groups are made once the newest key has filled the epoch or is outside of it.
    const bool filled = at.newest >= task.from + kEpoch - 1 && (newest_slot < task.from || newest_slot >= task.from + kEpoch - 1);
    if (task.mode == kGroupKeysFirst && *groups.count == 0 && filled) group_keys(column(task.from), memory, groups);
  }

  KEYSIFT_INLINE void add_listed() {
    if (piece >= 0) add_weighted_rows<Dtype>(values, at.w.value_width, slots, 0, weights, listed, at.partial(piece, 0));
    listed = 0;
  }

  KEYSIFT_INLINE void accept(int64_t slot, float weight) {
    if (slot / kPiece != piece) {
      add_listed();
      piece = slot / kPiece;
      float* sums = at.partial(piece, 0);
      memset(sums, 0, static_cast<size_t>(at.value_pad) * 4);
      sums[at.value_pad] = 1;
    }
    slots[listed] = slot;
    weights[listed++] = weight;
    ++accepted;
    if (listed == kListed) add_listed();
  }

  KEYSIFT_INLINE void request_value(int64_t slot) const {
    const int64_t bytes = at.w.value_width * element_bytes(Dtype);
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(values + slot * bytes + line);
  }

  // Scores of the keys of one vector, and the bits of those that are accepted. Lanes in [from, to) are visible.
  KEYSIFT_INLINE vf score(const float* block, int64_t from, int64_t to, uint32_t* bits) const {
    vf even{}, odd{};
    int64_t x = 0;
    for (; x + 2 <= width; x += 2) {
      even += splat(q[x]) * load(block + x * kBlockKeys);
      odd += splat(q[x + 1]) * load(block + (x + 1) * kBlockKeys);
    }
    if (x < width) even += splat(q[x]) * load(block + x * kBlockKeys);
    const vf score = even + odd;
    const uint32_t below_to = to >= kLanes ? (uint32_t{1} << (kLanes - 1)) * 2 - 1 : (uint32_t{1} << to) - 1;
    *bits = bits_not_below(score, splat(tile.threshold)) & below_to & ~((uint32_t{1} << from) - 1);
    return score;
  }

  // Relevance over the length of the value.
  KEYSIFT_INLINE vf relevance(const float* block, vf distances, int64_t from, int64_t to, uint32_t* bits) const {
    const vf score = this->score(block, from, to, bits);
    if (!*bits) return vf{};
    const vf t = trim(tile, score);
    vf r = t * t * load(block + width * kBlockKeys);
    if (tile.fades) {
      const vf c = HalfAngle(tile, distances).cosine();
      r *= c * c;
    }
    return r;
  }

  void scan() {
    visible.within(task.from, task.to, [&](int64_t from, int64_t to) { scan_slots(from, to); });
  }

  void scan_slots(int64_t from, int64_t to) {
    judged += to - from;
    for (int64_t slot = from / kLanes * kLanes; slot < to; slot += kLanes) {
      uint32_t bits;
      const vf distances = splat(static_cast<float>(distance(larger(slot, from)) + (slot < from ? from - slot : 0))) - to_float(lane_numbers());
      const vf r = relevance(column(slot), distances, slot < from ? from - slot : 0, to - slot, &bits);
      if (!bits) continue;
      float each[kLanes];
      store(each, r);
      for (; bits; bits &= bits - 1) {
        const int lane = __builtin_ctz(bits);
        request_value(slot + lane);
        accept(slot + lane, each[lane]);
      }
    }
  }

  // Reads the keys of listed slots and calls judge(block, distances, first, count) for each vector of them.
  template <class Judge>
  KEYSIFT_INLINE void judge_listed(const uint16_t* list, int64_t count, Judge judge) {
    judged += count;
    const auto request = [&](int64_t e) {
      if (e >= count) return;
      const int64_t slot = task.from + list[e];
      __builtin_prefetch(element(keys, Dtype, slot * width));
      __builtin_prefetch(column(slot) + width * kBlockKeys);
      request_value(slot);
    };
    for (int64_t e = 0; e < kAhead; ++e) request(e);
    float* block = at.scratch.block;
    for (int64_t first = 0; first < count; first += kLanes) {
      const int64_t n = smaller<int64_t>(kLanes, count - first);
      float distances[kLanes] = {};
      for (int64_t l = 0; l < n; ++l) {
        request(first + l + kAhead);
        const int64_t slot = task.from + list[first + l];
        prepare_key(slot, block + l);
        block[width * kBlockKeys + l] = column(slot)[width * kBlockKeys];
        distances[l] = static_cast<float>(distance(slot));
      }
      judge(block, distances, first, n);
    }
  }

  // Judges listed slots, ascending, as `scan` would.
  void judge(const uint16_t* list, int64_t count) {
    judge_listed(list, count, [&](const float* block, const float* distances, int64_t first, int64_t n) {
      uint32_t bits;
      const vf r = relevance(block, load(distances), 0, n, &bits);
      float each[kLanes];
      store(each, r);
      for (; bits; bits &= bits - 1) {
        const int lane = __builtin_ctz(bits);
        accept(task.from + list[first + lane], each[lane]);
      }
    });
  }

  // Lists the visible keys of groups that may hold an accepted key.
  int64_t list_groups(const QuerySketch& query, const Groups& groups, uint16_t* list) {
    uint64_t* bits = at.scratch.opened;
    memset(bits, 0, kEpoch / 8);
    const GroupTest test(query, width, tile.threshold);
    const int64_t count = *groups.count;
    for (int64_t first = 0; first < count; first += kLanes) {
      const unsigned char* block = groups.centres + first / kBlockKeys * memory.centre_block();
      uint32_t pass = test.may_pass(block, static_cast<int>(first % kBlockKeys));
      for (; pass; pass &= pass - 1) {
        const int64_t g = first + __builtin_ctz(pass);
        if (g >= count) break;
        opened += groups.first[g + 1] - groups.first[g];
        for (int64_t m = groups.first[g]; m < groups.first[g + 1]; ++m) {
          bits[groups.members[m] / 64] |= uint64_t{1} << (groups.members[m] % 64);
        }
      }
    }
    tested += kEpoch;
    int64_t n = 0;
    visible.within(task.from, task.to, [&](int64_t from, int64_t to) {
      for (int64_t word = (from - task.from) / 64; word * 64 < to - task.from; ++word) {
        uint64_t set = bits[word];
        for (; set; set &= set - 1) {
          const int64_t slot = word * 64 + __builtin_ctzll(set);
          if (slot + task.from >= from && slot + task.from < to) list[n++] = static_cast<uint16_t>(slot);
        }
      }
    });
    return n;
  }

  // Lists the slots from `from` to `to` - 1 whose sketches leave the test open.
  template <class Test>
  KEYSIFT_INLINE int64_t list_sketches(const Test& test, int64_t from, int64_t to, uint16_t* list) const {
    int64_t n = 0;
    for (int64_t slot = from / kLanes * kLanes; slot < to; slot += kLanes) {
      uint32_t open = test.open(memory.sketches(slot), static_cast<int>(slot % kBlockKeys));
      if (slot < from) open &= ~((uint32_t{1} << (from - slot)) - 1);
      for (; open; open &= open - 1) {
        const int64_t found = slot + __builtin_ctz(open);
        if (found < to) list[n++] = static_cast<uint16_t>(found - task.from);
      }
    }
    return n;
  }

  void search() {
    const QuerySketch query(q, width);
    if (!query.finite) return scan();
    uint16_t* list = at.scratch.listed;
    const int64_t epoch = task.from / kEpoch;
    if (task.mode == kGroupKeysFirst && memory.has_groups(epoch) && *memory.groups(epoch).count > 0) {
      const int64_t count = list_groups(query, memory.groups(epoch), list);
      const bool forced = at.w.search == KEYSIFT_SEARCH_GROUPS;
      if (forced || opened <= kEpoch / kManyOpened) return judge(list, count);
    }
    const SketchTest test(query, width, tile.threshold);
    int64_t count = 0;
    visible.within(task.from, task.to, [&](int64_t from, int64_t to) { count += list_sketches(test, from, to, list + count); });
    judge(list, count);
  }

  void run() {
    for (int64_t p = 0; p * kPiece < task.to - task.from; ++p) at.partial(task.first_piece + p, 0)[at.value_pad] = 0;
    prepare();
    scale_row(q, Factor(inverse_length(q, at.key_pad)), at.key_pad);
    if (tile.rotates) {
      float c, s;
      rotation_table(tile.turns_per_position, at.newest, 1, &c, &s);
      rotate(q, c, s);
    }
    if (uses_moments(task.mode)) {
      subtract_refused();
    } else if (task.search && task.mode != kScanKeys) {
      search();
    } else {
      scan();
    }
    add_listed();
    count();
  }

  // Moments: decode_refused.h.
  void gather_keys(int64_t token, int64_t count, double sign, const MomentKeys& to) const;
  void update_moments(const MomentSums& sums) const;
  void evaluate_moments();
  template <class Slot>
  void refuse(const float* block, uint32_t bits, Slot slot);
  void subtract_refusals();
  void subtract_scanned(int64_t from, int64_t to);
  void subtract_listed(const QuerySketch& query, int64_t from, int64_t to);
  void subtract_refused();

  void count() const {
    if (!task.state) return;
    int64_t keys_in_view = 0;
    visible.within(task.from, task.to, [&](int64_t from, int64_t to) { keys_in_view += to - from; });
    const int64_t counts[] = {keys_in_view, judged, accepted, opened, tested};
    for (int x = 0; x < 5; ++x) __atomic_fetch_add(task.state + kVisibleCount + x, counts[x], __ATOMIC_RELAXED);
  }
};

template <int Dtype>
void Attend::screening() {
  Screen<Dtype>(*this).run();
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
