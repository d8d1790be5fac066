// What the structures of screening.h, sums.h and thresholds.h look like in memory, in words.
#include <cstddef>
#include <string>

#include "sums.h"
#include "thresholds.h"

namespace {

std::string words(const char* name, size_t size) { return std::string(name) + " " + std::to_string(size) + ":"; }
std::string words(const char* name, size_t offset, const char*) { return std::string(" ") + name + " " + std::to_string(offset); }

#define FIELD(structure, field) words(#field, offsetof(structure, field), "")

std::string layout() {
  std::string said = words("keysift_view", sizeof(keysift_view));
  said += FIELD(keysift_view, data) + FIELD(keysift_view, batch_stride) + FIELD(keysift_view, tile_stride);
  said += FIELD(keysift_view, row_stride);
  said += "\n" + words("keysift_piece", sizeof(keysift_piece));
  said += FIELD(keysift_piece, row) + FIELD(keysift_piece, query) + FIELD(keysift_piece, queries) + FIELD(keysift_piece, key);
  said += FIELD(keysift_piece, keys) + FIELD(keysift_piece, offset);
  said += "\n" + words("keysift_problem", sizeof(keysift_problem));
  said += FIELD(keysift_problem, batch) + FIELD(keysift_problem, tiles) + FIELD(keysift_problem, kv_tiles);
  said += FIELD(keysift_problem, queries) + FIELD(keysift_problem, keys) + FIELD(keysift_problem, key_width);
  said += FIELD(keysift_problem, value_width) + FIELD(keysift_problem, dtype) + FIELD(keysift_problem, flags);
  said += FIELD(keysift_problem, q) + FIELD(keysift_problem, k) + FIELD(keysift_problem, v);
  said += FIELD(keysift_problem, ring) + FIELD(keysift_problem, ring_first);
  said += FIELD(keysift_problem, pieces) + FIELD(keysift_problem, piece_count) + FIELD(keysift_problem, offset);
  said += FIELD(keysift_problem, window) + FIELD(keysift_problem, reach) + FIELD(keysift_problem, acceptance);
  said += FIELD(keysift_problem, w_th);
  said += "\n" + words("keysift_gradients", sizeof(keysift_gradients));
  said += FIELD(keysift_gradients, dq) + FIELD(keysift_gradients, dk) + FIELD(keysift_gradients, dv);
  said += FIELD(keysift_gradients, dwindow) + FIELD(keysift_gradients, dreach) + FIELD(keysift_gradients, dacceptance);
  said += "\n" + words("keysift_sums_problem", sizeof(keysift_sums_problem));
  said += FIELD(keysift_sums_problem, batch) + FIELD(keysift_sums_problem, heads) + FIELD(keysift_sums_problem, queries);
  said += FIELD(keysift_sums_problem, keys) + FIELD(keysift_sums_problem, key_width) + FIELD(keysift_sums_problem, value_width);
  said += FIELD(keysift_sums_problem, kind) + FIELD(keysift_sums_problem, scale) + FIELD(keysift_sums_problem, rest);
  said += FIELD(keysift_sums_problem, q) + FIELD(keysift_sums_problem, k) + FIELD(keysift_sums_problem, v);
  said += FIELD(keysift_sums_problem, pieces) + FIELD(keysift_sums_problem, piece_count) + FIELD(keysift_sums_problem, offset);
  said += FIELD(keysift_sums_problem, shift);
  said += "\n" + words("keysift_sums_gradients", sizeof(keysift_sums_gradients));
  said += FIELD(keysift_sums_gradients, dq) + FIELD(keysift_sums_gradients, dk) + FIELD(keysift_sums_gradients, dv);
  said += FIELD(keysift_sums_gradients, dshift);
  said += "\n" + words("keysift_threshold_rows", sizeof(keysift_threshold_rows));
  said += FIELD(keysift_threshold_rows, matrices) + FIELD(keysift_threshold_rows, rows) + FIELD(keysift_threshold_rows, keys);
  said += FIELD(keysift_threshold_rows, seen) + FIELD(keysift_threshold_rows, orders);
  return said;
}

}  // namespace

const char* keysift_layout(void) {
  static const std::string said = layout();
  return said.c_str();
}
