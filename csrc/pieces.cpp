#include "pieces.h"

#include "failure.h"

namespace keysift {

int check_pieces(const keysift_piece* pieces, int64_t count, int64_t offset, int64_t batch, int64_t queries, int64_t keys) {
  if (count > 0 && !pieces) return fail(KEYSIFT_BAD_ARGUMENT, "pieces must not be NULL");
  if (offset > kFarthest || offset < -kFarthest) {
    return fail(KEYSIFT_BAD_ARGUMENT, "offset %lld is out of range", static_cast<long long>(offset));
  }
  keysift_piece last{0, 0, 0, 0, 0, 0};
  for (int64_t x = 0; x < count; ++x) {
    const keysift_piece& one = pieces[x];
    const bool same_row = x > 0 && one.row == last.row;
    const int64_t query = same_row ? last.query + last.queries : 0, key = same_row ? last.key + last.keys : 0;
    if (one.row < (x > 0 ? last.row : 0) || one.row >= batch || one.query < query || one.key < key || one.queries < 0 ||
        one.keys < 0 || one.queries > queries - one.query || one.keys > keys - one.key || one.offset > kFarthest ||
        one.offset < -kFarthest) {
      return fail(KEYSIFT_BAD_ARGUMENT, "piece %lld (row %lld, queries %lld + %lld, keys %lld + %lld, offset %lld) is out of range or order",
                  static_cast<long long>(x), static_cast<long long>(one.row), static_cast<long long>(one.query),
                  static_cast<long long>(one.queries), static_cast<long long>(one.key), static_cast<long long>(one.keys),
                  static_cast<long long>(one.offset));
    }
    last = one;
  }
  return KEYSIFT_OK;
}

std::vector<keysift_piece> list_pieces(const keysift_piece* pieces, int64_t count, int64_t offset, int64_t batch,
                                       int64_t queries, int64_t keys) {
  if (count >= 0) return {pieces, pieces + count};
  std::vector<keysift_piece> rows;
  for (int64_t b = 0; b < batch; ++b) rows.push_back({b, 0, queries, 0, keys, offset});
  return rows;
}

}  // namespace keysift
