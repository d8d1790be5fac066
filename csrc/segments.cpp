#include "segments.h"

#include "failure.h"

namespace keysift {

int check_segments(const keysift_segment* segments, int64_t count, int64_t offset, int64_t batch, int64_t queries, int64_t keys) {
  if (count > 0 && !segments) return fail(KEYSIFT_BAD_ARGUMENT, "segments must not be NULL");
  if (offset > kMaxPosition || offset < -kMaxPosition) {
    return fail(KEYSIFT_BAD_ARGUMENT, "offset %lld is out of range", static_cast<long long>(offset));
  }
  keysift_segment last{0, 0, 0, 0, 0, 0};
  for (int64_t x = 0; x < count; ++x) {
    const keysift_segment& segment = segments[x];
    const bool same_row = x > 0 && segment.row == last.row;
    const int64_t query = same_row ? last.query + last.queries : 0, key = same_row ? last.key + last.keys : 0;
    const bool in_order = segment.row >= (x > 0 ? last.row : 0) && segment.query >= query && segment.key >= key;
    // Evaluated only if in_order: the subtractions below could overflow otherwise.
    const bool inside = in_order && segment.row < batch && segment.queries >= 0 && segment.queries <= queries - segment.query &&
                        segment.keys >= 0 && segment.keys <= keys - segment.key && segment.offset <= kMaxPosition &&
                        segment.offset >= -kMaxPosition;
    if (!inside) {
      return fail(KEYSIFT_BAD_ARGUMENT,
                  "segment %lld (row %lld, queries %lld + %lld, keys %lld + %lld, offset %lld) is out of range or order",
                  static_cast<long long>(x), static_cast<long long>(segment.row), static_cast<long long>(segment.query),
                  static_cast<long long>(segment.queries), static_cast<long long>(segment.key),
                  static_cast<long long>(segment.keys), static_cast<long long>(segment.offset));
    }
    last = segment;
  }
  return KEYSIFT_OK;
}

std::vector<keysift_segment> list_segments(const keysift_segment* segments, int64_t count, int64_t offset, int64_t batch,
                                           int64_t queries, int64_t keys) {
  if (count >= 0) return {segments, segments + count};
  std::vector<keysift_segment> rows;
  for (int64_t b = 0; b < batch; ++b) rows.push_back({b, 0, queries, 0, keys, offset});
  return rows;
}

}  // namespace keysift
