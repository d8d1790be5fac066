// Memory that exact search keeps beside the prepared keys of a ring (decode.h). Plain data only: code compiled for different
// instruction sets shares it. docs/search.md derives the bounds.
//
// A sketch is a copy of a unit key in 8 bits, k^ = round(127 k) / 127, with a bound on e = |k - k^|. Sketches are in slot order, in
// blocks of KEYSIFT_PREPARED_KEYS: for each four channels, four bytes of every key; then one byte of error of every key.
//
// Groups are made for an epoch, kEpoch slots of a ring that are all in use. A group has a centre c, and every member k of it has
// <c, k> >= cos rho.
//
// Moments (decode_moments.h) take the memory of the groups: a tile that accepts nearly all keys has no use for groups.
#pragma once

#include <stdint.h>

#include "decode.h"

namespace keysift {

constexpr int64_t kEpoch = 16384;       // slots that one task searches
constexpr int64_t kSearchFrom = 4096;   // rings with fewer slots are scanned
constexpr int64_t kSearchWidth = 256;   // wider keys are scanned
constexpr int64_t kMaxGroups = 1024;    // of an epoch
constexpr int64_t kGroupKeys = 32;      // larger groups are divided, unless their keys are equal
constexpr int64_t kManyOpened = 32;     // if more than one key in this many is in an opened group, sketches are better
constexpr int kMomentKeys = 8;          // keys that are added to moments together
constexpr int64_t kSketchScale = 127;
constexpr int kNoSketch = 255;          // error of a key without a sketch: it is always read
constexpr int64_t kBlockKeys = KEYSIFT_PREPARED_KEYS;
static_assert(kBlockKeys == 16, "members of a block are one vector of AVX-512");

// What a task does with its keys.
enum SearchMode {
  kScanKeys,
  kSketchKeys,
  kGroupKeysFirst,
  kMoments,            // moments minus the refused keys, which are found by a scan
  kMomentsAndSketches  // the refused keys are among those that sketches do not accept
};
constexpr bool uses_moments(int64_t mode) { return mode == kMoments || mode == kMomentsAndSketches; }

// Counts of the latest query of a row and tile, and what they say about the next one. Shares are in 1 / kShareUnit.
enum SearchState {
  kVisibleCount,   // keys in the window
  kJudgedCount,    // keys whose fp32 key was read
  kAcceptedCount,
  kOpenedCount,    // keys in groups that may hold an accepted key; of the epochs whose groups were tested
  kTestedCount,    // keys of these epochs
  kLatestMode,
  kJudgedShare,    // moving averages
  kOpenedShare,
  kAcceptedShare,
  kQueries,         // counted so far, 0 or 1
  kQueriesWithoutGroups,
  kHasMoments,      // 1: the memory of the groups holds moments, of the tokens from kMomentsFrom to kMomentsTo - 1
  kMomentsFrom,
  kMomentsTo
};
static_assert(kMomentsTo < KEYSIFT_SEARCH_STATE, "the state has room for every count");
constexpr int64_t kShareUnit = 1 << 20;

constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// Rounding errors of a score in fp32, and of the bounds themselves, with room to spare.
inline double score_slack(int64_t key_width) { return static_cast<double>(key_width + 16) * 0x1p-23; }

// The error of a sketch is stored in multiples of this: the largest possible one is 254 of them.
inline double sketch_error_unit(int64_t key_width) {
  return __builtin_sqrt(static_cast<double>(key_width)) / static_cast<double>(2 * kSketchScale) / 253.0;
}

// Groups of one epoch.
struct Groups {
  int64_t* count;        // 0: no groups were made
  uint16_t* members;     // (kEpoch) slots within the epoch, group by group
  uint16_t* first;       // (count + 1): members [first[g], first[g + 1]) are in group g
  unsigned char* centres;  // blocks of kBlockKeys: sketch of 127 c / max |c|, then three rows of floats: 1 / |c^|, cos rho, sin rho
};

// The part of keysift_decode_cache::search that belongs to one ring.
struct SearchMemory {
  unsigned char* start;
  int64_t key_width, capacity;

  int64_t quads() const { return (key_width + 3) / 4; }
  int64_t sketch_block() const { return quads() * 4 * kBlockKeys + kBlockKeys; }
  int64_t centre_block() const { return quads() * 4 * kBlockKeys + 3 * 4 * kBlockKeys; }
  int64_t sketch_bytes() const { return round_up((capacity + kBlockKeys - 1) / kBlockKeys * sketch_block(), 64); }
  int64_t group_bytes() const {
    return 64 + 2 * kEpoch + round_up(2 * (kMaxGroups + 1), 64) + kMaxGroups / kBlockKeys * centre_block();
  }
  int64_t bytes() const { return searchable() ? sketch_bytes() + round_up(capacity / kEpoch * group_bytes(), 64) : 0; }
  bool searchable() const { return capacity >= kSearchFrom && key_width <= kSearchWidth; }

  unsigned char* sketches(int64_t slot) const { return start + slot / kBlockKeys * sketch_block(); }
  // The memory of all groups, for moments.
  double* moments() const { return reinterpret_cast<double*>(start + sketch_bytes()); }
  bool fits_moments(int64_t value_pad, int sets) const {
    const int64_t rows = 1 + key_width + key_width * (key_width + 1) / 2;
    return searchable() && sets * rows * value_pad * 8 <= capacity / kEpoch * group_bytes();
  }
  bool has_groups(int64_t epoch) const { return (epoch + 1) * kEpoch <= capacity; }
  Groups groups(int64_t epoch) const {
    unsigned char* at = start + sketch_bytes() + epoch * group_bytes();
    Groups g;
    g.count = reinterpret_cast<int64_t*>(at);
    g.members = reinterpret_cast<uint16_t*>(at + 64);
    g.first = g.members + kEpoch;
    g.centres = at + 64 + 2 * kEpoch + round_up(2 * (kMaxGroups + 1), 64);
    return g;
  }
};

// The way of the next query, from the counts of the latest one, which are reset.
SearchMode choose_search(int32_t search, int64_t visible, bool fits_moments, int64_t* state);

// Tokens in the moments before a query and for it: consecutive ones, all prepared before.
struct MomentRange {
  int64_t old_from, old_to, from, to;
};

// Tokens `first` to `newest` are visible, to the next query from `next_first` on; `prepared` tokens of the row were prepared by
// earlier calls. Prepares the memory for groups or moments. Keys that are not in the moments yet are added little by little, or all at
// once if moments are required.
MomentRange plan_moments(int32_t search, SearchMode mode, const SearchMemory& memory, int sets, int64_t first, int64_t next_first,
                         int64_t newest, int64_t prepared, int64_t* state);

// Divides kEpoch prepared keys (blocks of (key_width + 1, kBlockKeys)) into groups by direction.
void group_keys(const float* prepared, const SearchMemory& memory, const Groups& groups);

}  // namespace keysift
