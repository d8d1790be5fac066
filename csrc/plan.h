// Arguments and function tables of the kernels. Plain data only: code compiled for different instruction sets shares it.
#pragma once

#include <stdint.h>

#include "screening.h"
#include "sticks.h"
#include "sums.h"
#include "tile.h"

namespace keysift {

constexpr int kBlock = 64;       // keys of a block: one bit each in a 64-bit word
constexpr int kBatch = 16;       // queries that are scored against a block together
constexpr int64_t kChunk = 512;  // at most this many queries of a forward task
constexpr int64_t kSlab = 512;   // keys whose gradients are accumulated together in backward (they fit L2)
constexpr int64_t kUnlimited = INT64_MAX / 4;
constexpr double kUnitEps = 1e-12;

// Constants of one tile.
struct Tile {
  int64_t span;        // distances 0 .. span-1 are visible
  float acceptance;
  float threshold;     // 1 - acceptance: a key is accepted if its score is greater
  double inverse;      // 1 / acceptance
  double half_angle_step; // pi / 2 / effective_window, the Softmask's half angle per position; 0 when effective_window is infinite
  bool fades;          // effective_window is finite
  bool rotates;        // MiPE is not the identity
  double turns_per_position;
  double angle_slope;   // d(angle per position) / d(window), radians
};

constexpr int64_t kKeyEpoch = 16384;  // keys that the forward pass divides into blocks together

// Keys of one epoch of a tile, divided by direction into blocks (key_groups.h).
struct EpochBlocks {
  int64_t count;
  const float* keys;       // (count, key width, kBlock) at unit length, rotated; zeros after the last key of a block
  const int32_t* members;  // (count, kBlock) their numbers in the segment
  const int32_t* sizes;    // (count)
  const float* centres;    // (count / kBlock rounded up, key width, kBlock)
  const float* limits;     // (count rounded up to kBlock) no key of a block is accepted if <query, centre> is at most its limit
};

// The first epochs of a tile.
struct TileBlocks {
  const EpochBlocks* epochs;
  int64_t count;
};

struct Plan {
  keysift_problem problem;
  const Tile* tiles;
  const TileBlocks* blocks;  // (tiles), or NULL
  keysift_view u;
  float* norm;
  float* h;       // (batch, tiles, queries, value width), or NULL
  int64_t chunk;  // queries per forward task, a multiple of kBatch
  keysift_gate gate;  // scale NULL: plain screening, whose output is u
  // Backward only.
  keysift_view du;
  int32_t du_dtype;
  keysift_gradients gradients;
  // Backward of the gate only.
  keysift_view dout;
  keysift_gate_gradients gate_gradients;
  float* dh;  // (batch, tiles, queries, value width)
};

// Gradients of a tile's scalars.
struct Sums {
  double window, effective_window, acceptance;
};

// Keys [first_key, last_key) of one segment and kv tile, against every query tile that reads it. Keys and queries are
// counted from the first of the segment.
struct BackwardTask {
  const keysift_segment* segment;
  int64_t kv_tile, first_key, last_key;
  int64_t first_query, last_query;  // the queries that see any of these keys; first_query is a multiple of kBatch
  float* dq;                        // (group, last_query - first_query, padded key width), rotated, initially zero
  Sums* sums;                       // (group)
};

struct ScreeningKernels {
  int64_t (*padded)(int64_t width);
  int64_t (*forward_scratch)(const Plan&);
  void (*forward)(const Plan&, const keysift_segment&, int64_t tile, int64_t first_query, char* scratch);
  int64_t (*backward_scratch)(const Plan&, const BackwardTask&);
  void (*backward)(const Plan&, const BackwardTask&, char* scratch);
  // Adds the dq of the `count` tasks of one segment in order and writes the gradient of q.
  void (*finish_dq)(const Plan&, const BackwardTask* tasks, int64_t count, int64_t tile, char* scratch);
  int64_t (*finish_scratch)(const Plan&);
  // Writes kBlock keys at unit length, rotated, row by row. Returns whether they and their values are finite.
  bool (*unit_keys)(const Plan&, const keysift_segment&, int64_t tile, int64_t block_key, float* rows);
  // Writes `count` queries, a multiple of kBatch, in rows of the padded width.
  void (*unit_queries)(const Plan&, const keysift_segment&, int64_t tile, int64_t first, int64_t count, float* rows);
  int64_t (*gate_scratch)(const Plan&);
  double (*gate_backward)(const Plan&, const keysift_segment&, int64_t tile, int64_t first, int64_t count, char* scratch);
};

constexpr int kSumBatch = 32;       // queries that are scored against a block together
constexpr int64_t kSumChunk = 256;  // queries of a forward task, which share packed keys

struct SumsPlan {
  keysift_sums_problem problem;
  keysift_view out;
  keysift_view kept;  // data NULL: not wanted
  float* log;
  // Backward only.
  keysift_view dout;
  keysift_sums_gradients gradients;
};

// Keys [first_key, last_key) of one segment and head, against every query that sees them.
struct SumsTask {
  const keysift_segment* segment;
  int64_t head, first_key, last_key;
  // Initially zero; the number of queries is rounded up to kSumBatch.
  float* dq;      // (queries, padded key width)
  float* dshift;  // (queries)
  float* delta;   // (queries)
};

struct SumsKernels {
  int64_t (*padded)(int64_t width);
  int64_t (*forward_scratch)(const SumsPlan&);
  void (*forward)(const SumsPlan&, const keysift_segment&, int64_t head, int64_t first_query, char* scratch);
  int64_t (*backward_scratch)(const SumsPlan&);
  void (*backward)(const SumsPlan&, const SumsTask&, char* scratch);
};

struct StickPlan {
  keysift_sticks_problem problem;
  keysift_view out;
  double* log_rest;
  int64_t* first_key;
  // Backward only.
  keysift_view dout;
  const float* drest;
  keysift_sticks_gradients gradients;
};

// Every block_step-th block of the queries of one segment and head, against every key that they see.
struct StickTask {
  const keysift_segment* segment;
  int64_t head, first_block, block_step;
  // Initially zero; the number of keys is rounded up to kSumBatch.
  float* dk;  // (keys, padded key width)
  float* dv;  // (keys, padded value width)
};

struct StickKernels {
  int64_t (*padded)(int64_t width);
  int64_t (*scratch)(const StickPlan&);
  void (*forward)(const StickPlan&, const keysift_segment&, int64_t head, int64_t first_query, char* scratch);
  void (*backward)(const StickPlan&, const StickTask&, char* scratch);
};

// Kernels for one row, of which the first `visible` keys are visible; see thresholds.h. dorder may be NULL.
struct ThresholdKernels {
  int64_t (*scratch)(int64_t keys);
  void (*weigh)(float* x, int64_t visible, int64_t keys, float order, char* scratch);
  void (*differentiate)(const float* w, float* dw, int64_t visible, int64_t keys, float order, double* dorder, char* scratch);
};

struct DecodeKernels;

// Every kernel of one variant.
struct Kernels {
  ScreeningKernels (*screening)(int64_t key_width, int64_t value_width);
  SumsKernels (*sums)(int32_t kind);
  StickKernels sticks;
  ThresholdKernels thresholds;
  const DecodeKernels* decode;
};

}  // namespace keysift
