// State of one call of decode.h, shared by its threads. Plain data only: code compiled for different instruction sets shares it.
#pragma once

#include "decode.h"
#include "plan.h"
#include "search_layout.h"

namespace keysift {

constexpr int64_t kPad = 16;          // rows of the workspace are padded with zeros to a multiple of this
constexpr int64_t kPiece = 1024;      // keys of one attention task
constexpr int64_t kWideRows = 2;      // rows of AttendTask::partial that hold a row of fp64
constexpr int64_t kTaskBytes = 1 << 16;  // weights of one task of a matrix product

// Weights are requested from memory this many bytes ahead. The processor does it itself within 4 KB. Measured: on an Intel Xeon all
// dtypes gain, on an AMD EPYC 16-bit ones, and fp32 loses.
constexpr int64_t kPrefetchBytes = 4096;
constexpr size_t kLineBytes = 64;    // of a cache line
extern const int64_t prefetch_bytes;  // of fp32: kPrefetchBytes or 0

constexpr int64_t padded_width(int64_t width) { return (width + kPad - 1) / kPad * kPad; }

// Part of the keys of one row and kv head: for softmax tokens [from, to), for screening slots [from, to) of the ring, in the order
// in which they are summed. Sums are kept for each piece of kPiece keys, so that they do not depend on the division into tasks.
struct AttendTask {
  int64_t row, head, from, to;
  int64_t first_piece;       // of this task
  int64_t pieces, tasks;     // of the row and head
  bool last;                 // stores the new key and value
  SearchMode mode;
  unsigned char* search;     // SearchMemory of the ring; NULL: it is scanned
  int64_t* state;            // SearchState
  MomentRange moments;       // tokens from `from` to `to` - 1 are in the sums; the last task updates them
  bool groups;               // the memory of groups holds groups, not moments
  // (pieces, group, padded value width + kPad): sums, and for softmax the maximum and the denominator. With moments, kWideRows for
  // each task follow.
  float* partial;
  int64_t* finished;  // number of finished tasks

  int64_t partial_rows() const { return pieces + (uses_moments(mode) ? kWideRows * tasks : 0); }
};

struct DecodeLayer {
  const keysift_decode_layer* weights;
  keysift_decode_cache* cache;
  const Tile* tiles;
  const int64_t* first_block;  // (kv_heads) of prepared keys
  const float* waves;          // (batch, 2, key_width / 2): cosines and sines of RoPE
  const AttendTask* tasks;
  // Rows of each matrix product that one task computes.
  int64_t project_rows, output_rows, hidden_rows, down_rows;
};

enum DecodeStep { kEmbed, kProject, kAttend, kOutput, kHidden, kDown, kReadout };

// Steps run one after the other; the tasks of a step run in any order.
struct DecodePhase {
  DecodeStep step;
  int64_t layer, tasks;
};

struct DecodeCall {
  const keysift_decode_model* model;
  const DecodeLayer* layers;
  int64_t batch;
  const int64_t *tokens, *lengths, *positions;
  void* logits;
  int64_t readout_rows;
  // Padded rows, one per batch row.
  float *x, *q, *k, *v, *gate, *mixed, *hidden;
  int64_t x_stride, q_stride, k_stride, v_stride, gate_stride, mixed_stride, hidden_stride;
};

struct DecodeKernels {
  int64_t (*attend_scratch)(const keysift_decode_layer& weights);
  // first_task: the thread has run no other task of this phase. Its scratch memory is kept until the phase ends.
  void (*run)(const DecodeCall& call, const DecodePhase& phase, int64_t task, bool first_task, char* scratch);
};

}  // namespace keysift
