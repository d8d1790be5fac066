// Which tiles are searched, and how: an estimate from the queries before.
#include "search_layout.h"

#include <algorithm>

namespace keysift {
namespace {

// Judging a listed key costs as much as scanning this many.
constexpr int64_t kJudgeCost = 56;
// A way of search that did not pay is tried again after this many queries.
constexpr int64_t kTryAgain = 64;

int64_t share(int64_t part, int64_t whole) { return whole > 0 ? part * kShareUnit / whole : 0; }

// A moving average that follows a rise at once, so that no second query is slow.
void follow(int64_t* average, int64_t latest) { *average = std::max(latest, *average - (*average - latest) / 4); }

}  // namespace

SearchMode choose_search(int32_t search, int64_t visible, int64_t* state) {
  const int64_t counted = state[kVisibleCount];
  if (counted > 0) {
    // A scan judges every key. Sketches would have let through little more than it accepted.
    const bool scanned = state[kLatestMode] == kScanKeys;
    follow(state + kJudgedShare, share(scanned ? state[kAcceptedCount] + state[kAcceptedCount] / 4 : state[kJudgedCount], counted));
    if (state[kTestedCount] > 0) follow(state + kOpenedShare, share(state[kOpenedCount], state[kTestedCount]));
    state[kQueriesScanned] = scanned ? state[kQueriesScanned] + 1 : 0;
    state[kQueriesWithoutGroups] = state[kTestedCount] > 0 || counted < kEpoch ? 0 : state[kQueriesWithoutGroups] + 1;
  }
  std::fill(state + kVisibleCount, state + kTestedCount + 1, 0);
  SearchMode mode = kGroupKeysFirst;
  if (search == KEYSIFT_SEARCH_SCAN) mode = kScanKeys;
  if (search == KEYSIFT_SEARCH_SKETCH) mode = kSketchKeys;
  if (search == KEYSIFT_SEARCH_AUTO) {
    const bool many = state[kJudgedShare] * kJudgeCost > kShareUnit && state[kQueriesScanned] < kTryAgain;
    const bool open = state[kOpenedShare] * kManyOpened > kShareUnit && state[kQueriesWithoutGroups] < kTryAgain;
    if (open) mode = kSketchKeys;
    if (many || visible < kSearchFrom) mode = kScanKeys;
  }
  state[kLatestMode] = mode;
  return mode;
}

}  // namespace keysift

int64_t keysift_search_bytes(const keysift_decode_layer* layer, const int64_t* ring) {
  int64_t bytes = 0;
  if (!layer || !ring || layer->attention != KEYSIFT_SCREENING || layer->search == KEYSIFT_SEARCH_SCAN) return 0;
  for (int64_t g = 0; g < layer->kv_heads; ++g) bytes += keysift::SearchMemory{nullptr, layer->key_width, ring[2 * g + 1]}.bytes();
  return bytes;
}
