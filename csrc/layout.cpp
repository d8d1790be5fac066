// keysift_layout(): sizes and field offsets of the structures of the C API, from their field lists.
#include <cstddef>
#include <string>

#include "decode.h"
#include "sticks.h"
#include "sums.h"
#include "thresholds.h"
#include "tile.h"

#define KEYSIFT_STRUCTURES(S)                                   \
  S(keysift_view, KEYSIFT_VIEW_FIELDS)                          \
  S(keysift_segment, KEYSIFT_SEGMENT_FIELDS)                        \
  S(keysift_problem, KEYSIFT_PROBLEM_FIELDS)                    \
  S(keysift_gradients, KEYSIFT_GRADIENTS_FIELDS)                \
  S(keysift_gate, KEYSIFT_GATE_FIELDS)                          \
  S(keysift_gate_gradients, KEYSIFT_GATE_GRADIENTS_FIELDS)      \
  S(keysift_sums_problem, KEYSIFT_SUMS_PROBLEM_FIELDS)          \
  S(keysift_sums_gradients, KEYSIFT_SUMS_GRADIENTS_FIELDS)      \
  S(keysift_sticks_problem, KEYSIFT_STICKS_PROBLEM_FIELDS)      \
  S(keysift_sticks_gradients, KEYSIFT_STICKS_GRADIENTS_FIELDS)  \
  S(keysift_threshold_rows, KEYSIFT_THRESHOLD_ROWS_FIELDS)      \
  S(keysift_decode_layer, KEYSIFT_DECODE_LAYER_FIELDS)          \
  S(keysift_decode_source, KEYSIFT_DECODE_SOURCE_FIELDS)        \
  S(keysift_decode_model, KEYSIFT_DECODE_MODEL_FIELDS)          \
  S(keysift_decode_cache, KEYSIFT_DECODE_CACHE_FIELDS)

namespace {

std::string layout() {
  std::string text;
#define KEYSIFT_OFFSET(type, name) text += " " #name " " + std::to_string(offsetof(Structure, name));
#define KEYSIFT_DESCRIBE(name, FIELDS)                                                       \
  {                                                                                          \
    using Structure = name;                                                                  \
    text += (text.empty() ? #name " " : "\n" #name " ") + std::to_string(sizeof(Structure)) + ":"; \
    FIELDS(KEYSIFT_OFFSET)                                                                   \
  }
  KEYSIFT_STRUCTURES(KEYSIFT_DESCRIBE)
#undef KEYSIFT_DESCRIBE
#undef KEYSIFT_OFFSET
  return text;
}

}  // namespace

const char* keysift_layout(void) {
  static const std::string text = layout();
  return text.c_str();
}
