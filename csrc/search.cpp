// Which tiles are searched, and how: an estimate from the queries before.
#include "search_layout.h"

#include <algorithm>

namespace keysift {
namespace {

// Judging a listed key costs as much as scanning this many.
constexpr int64_t kJudgeCost = 56;
// Groups that did not pay are tried again after this many queries.
constexpr int64_t kTryAgain = 64;
// The newest tokens are not in the moments, so that a short crop does not invalidate them.
constexpr int64_t kNewest = 256;
// Adding a key to the moments takes as long as reading tens of keys. One in this many visible keys is added with each query.
constexpr int64_t kCatchUp = 512;

int64_t share(int64_t part, int64_t whole) { return whole > 0 ? part * kShareUnit / whole : 0; }

// A moving average that follows a rise at once, so that no second query is slow.
void follow(int64_t* average, int64_t latest) { *average = std::max(latest, *average - (*average - latest) / 4); }

}  // namespace

SearchMode choose_search(int32_t search, int64_t visible, bool fits_moments, int64_t* state) {
  const int64_t counted = state[kVisibleCount];
  if (counted > 0) {
    // A scan judges every key. Sketches would have let through little more than it accepted.
    const bool scanned = state[kLatestMode] == kScanKeys || uses_moments(state[kLatestMode]);
    const int64_t accepted = share(state[kAcceptedCount], counted);
    follow(state + kJudgedShare, scanned ? accepted + accepted / 4 : share(state[kJudgedCount], counted));
    state[kAcceptedShare] = std::min(accepted, state[kAcceptedShare] + (accepted - state[kAcceptedShare]) / 4 + 1);
    if (state[kQueries] == 0) state[kAcceptedShare] = accepted;
    state[kQueries] = 1;
    if (state[kTestedCount] > 0) follow(state + kOpenedShare, share(state[kOpenedCount], state[kTestedCount]));
    state[kQueriesWithoutGroups] = state[kTestedCount] > 0 || counted < kEpoch ? 0 : state[kQueriesWithoutGroups] + 1;
  }
  std::fill(state + kVisibleCount, state + kTestedCount + 1, 0);
  const bool few_refused = (kShareUnit - state[kAcceptedShare]) * kJudgeCost < kShareUnit;
  const SearchMode moments = few_refused && state[kQueries] > 0 ? kMomentsAndSketches : kMoments;
  SearchMode mode = kGroupKeysFirst;
  if (search == KEYSIFT_SEARCH_SCAN) mode = kScanKeys;
  if (search == KEYSIFT_SEARCH_SKETCH) mode = kSketchKeys;
  if (search == KEYSIFT_SEARCH_AUTO) {
    const bool many = state[kJudgedShare] * kJudgeCost > kShareUnit || state[kQueries] == 0;
    const bool most = state[kAcceptedShare] * 3 > 2 * kShareUnit;
    const bool open = state[kOpenedShare] * kManyOpened > kShareUnit && state[kQueriesWithoutGroups] < kTryAgain;
    if (open) mode = kSketchKeys;
    if (many || visible < kSearchFrom) mode = most && fits_moments ? moments : kScanKeys;
  }
  if (search == KEYSIFT_SEARCH_MOMENTS) mode = fits_moments ? moments : kScanKeys;
  state[kLatestMode] = mode;
  return mode;
}

MomentRange plan_moments(int32_t search, SearchMode mode, const SearchMemory& memory, int sets, int64_t first, int64_t next_first,
                         int64_t newest, int64_t prepared, int64_t* state) {
  int64_t &has = state[kHasMoments], &from = state[kMomentsFrom], &to = state[kMomentsTo];
  if (mode == kGroupKeysFirst && has) {
    for (int64_t epoch = 0; memory.has_groups(epoch); ++epoch) *memory.groups(epoch).count = 0;
    has = 0;
  }
  const int64_t known = std::min(prepared, newest);
  // After a crop the tokens may be others. Keys that left the window may have been overwritten.
  if (!has || to > known || from < first) from = to = first;
  MomentRange range{from, to, from, to};
  if (!uses_moments(mode)) return range;
  has = 1;
  const int64_t most = search == KEYSIFT_SEARCH_MOMENTS ? newest : (newest + 1 - first) / kCatchUp / sets;
  // What leaves the window after this query is overwritten by the next key.
  if (from < next_first) from += round_up(next_first - from, kMomentKeys);
  const int64_t missing = std::min(most, known - kNewest - to);
  to = std::max(from, to + (missing > 0 ? missing / kMomentKeys * kMomentKeys : 0));
  range.from = from;
  range.to = to;
  return range;
}

}  // namespace keysift

int64_t keysift_search_bytes(const keysift_decode_layer* layer, const int64_t* ring) {
  int64_t bytes = 0;
  if (!layer || !ring || layer->attention != KEYSIFT_SCREENING || layer->search == KEYSIFT_SEARCH_SCAN) return 0;
  for (int64_t g = 0; g < layer->kv_heads; ++g) bytes += keysift::SearchMemory{nullptr, layer->key_width, ring[2 * g + 1]}.bytes();
  return bytes;
}
