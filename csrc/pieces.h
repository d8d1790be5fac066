// The pieces of a call, checked and listed.
#pragma once

#include <vector>

#include "screening.h"

namespace keysift {

constexpr int64_t kFarthest = int64_t{1} << 60;

// KEYSIFT_OK, or a failure that is said: pieces must lie inside the rows, in order, and not overlap.
int check_pieces(const keysift_piece* pieces, int64_t count, int64_t offset, int64_t batch, int64_t queries, int64_t keys);

// Those given; with a count of -1 each row is one piece, of this offset.
std::vector<keysift_piece> list_pieces(const keysift_piece* pieces, int64_t count, int64_t offset, int64_t batch,
                                       int64_t queries, int64_t keys);

}  // namespace keysift
