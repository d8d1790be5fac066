// What the dispatcher hands to the kernels: plain data only, because it is shared by code compiled for different
// instruction sets.
#pragma once

#include <stdint.h>

#include "screening.h"
#include "sums.h"

namespace keysift {

constexpr int kBlock = 64;       // keys judged at a time: one bit each in a 64-bit word
constexpr int kBatch = 16;       // queries judged against a block before values are touched
constexpr int64_t kSlab = 512;   // keys whose gradients are gathered together in backward (fits L2)
constexpr int64_t kEverything = INT64_MAX / 4;
constexpr double kUnitEps = 1e-12;

struct Tile {
  int64_t span;        // distances 0 .. span-1 are seen
  float acceptance;
  float threshold;     // 1 - acceptance: a key passes if its score is greater
  double inverse;      // 1 / acceptance
  double quarter_turn; // pi / 2 / reach, the Softmask's half angle per position; 0 when reach is infinite
  bool fades;          // reach is finite
  bool rotates;        // MiPE is not the identity
  double turns_per_position;
  double turn_slope;   // d(angle per position) / d(window), radians
};

struct Plan {
  keysift_problem problem;
  const Tile* tiles;
  keysift_view u;
  float* norm;
  float* h;       // (batch, tiles, queries, value width), or NULL
  int64_t chunk;  // queries per forward task, a multiple of kBatch
  // Backward only.
  keysift_view du;
  keysift_gradients gradients;
};

struct Sums {
  double window, reach, acceptance;
};

// Keys [first_key, last_key) of one piece and kv tile, against every query tile that reads it. Keys and queries are
// counted from the first of the piece.
struct BackwardTask {
  const keysift_piece* piece;
  int64_t kv_tile, first_key, last_key;
  int64_t first_query, last_query;  // the queries that see any of these keys; first_query is a multiple of kBatch
  float* dq;                        // (group, last_query - first_query, padded key width), turned coordinates, zeros at first
  Sums* sums;                       // (group)
};

struct Kernels {
  int64_t (*padded)(int64_t width);
  int64_t (*forward_scratch)(const Plan&);
  void (*forward)(const Plan&, const keysift_piece&, int64_t tile, int64_t first_query, char* scratch);
  int64_t (*backward_scratch)(const Plan&, const BackwardTask&);
  void (*backward)(const Plan&, const BackwardTask&, char* scratch);
  // Adds the dq of the `count` tasks of one piece in order and writes the gradient of q.
  void (*finish_dq)(const Plan&, const BackwardTask* tasks, int64_t count, int64_t tile, char* scratch);
  int64_t (*finish_scratch)(const Plan&);
};

constexpr int kSumBatch = 32;       // queries whose scores are held together
constexpr int64_t kSumChunk = 256;  // queries of a forward task, which share packed keys

struct SumsPlan {
  keysift_sums_problem problem;
  keysift_view out;
  float* log;
  // Backward only.
  keysift_view dout;
  keysift_sums_gradients gradients;
};

// Keys [first_key, last_key) of one piece and head, against every query that sees them.
struct SumsTask {
  const keysift_piece* piece;
  int64_t head, first_key, last_key;
  // Zeros at first; the number of queries is rounded up to kSumBatch.
  float* dq;      // (queries, padded key width)
  float* dshift;  // (queries)
  float* delta;   // (queries)
};

struct SumsKernels {
  int64_t (*padded)(int64_t width);
  int64_t (*forward_scratch)(const SumsPlan&);
  void (*forward)(const SumsPlan&, const keysift_piece&, int64_t head, int64_t first_query, char* scratch);
  int64_t (*backward_scratch)(const SumsPlan&);
  void (*backward)(const SumsPlan&, const SumsTask&, char* scratch);
};

// Of one row, of which the first `seen` keys are seen; see thresholds.h. dorder may be NULL.
struct ThresholdKernels {
  int64_t (*scratch)(int64_t keys);
  void (*weigh)(float* x, int64_t seen, int64_t keys, float order, char* scratch);
  void (*differentiate)(const float* w, float* dw, int64_t seen, int64_t keys, float order, double* dorder, char* scratch);
};

}  // namespace keysift
