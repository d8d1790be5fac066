// The steps of decode.h: embedding, projections, attention, feed-forward block and readout, each split into tasks.
#pragma once

#include "decode_refused.h"
#include "decode_screening.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

KEYSIFT_INLINE float element_at(const void* memory, int32_t dtype, int64_t at) {
  if (dtype == KEYSIFT_F32) return static_cast<const float*>(memory)[at];
  const uint16_t bits = static_cast<const uint16_t*>(memory)[at];
  return dtype == KEYSIFT_BF16 ? from_bits(static_cast<uint32_t>(bits) << 16) : from_f16(bits);
}

inline void decode_embed(const DecodeCall& call, int64_t b) {
  const keysift_decode_model& m = *call.model;
  float* x = call.x + b * call.x_stride;
  read_row(element(m.embedding, m.dtype, call.tokens[b] * m.width), m.dtype, m.width, call.x_stride, x);
  if (m.unit_rows) scale_row(x, Factor(m.in_scale * inverse_length(x, call.x_stride)), call.x_stride);
}

// The residual stream of every row, normalised; without a norm it is used in place. The first task of a step that a thread runs
// (first) computes it, and the thread's other tasks of the step find it in their scratch memory.
KEYSIFT_INLINE const float* normalised(const DecodeCall& call, const void* gain, double eps, bool first, float* to) {
  const keysift_decode_model& m = *call.model;
  if (!first) return to;
  for (int64_t b = 0; b < call.batch; ++b) {
    rms_norm(call.x + b * call.x_stride, gain, m.dtype, m.width, eps, to + b * call.x_stride);
  }
  return to;
}

// One of the matrices that read the normalised residual stream.
struct Projection {
  const void *matrix, *bias;
  int64_t rows;
  float* to;
  int64_t stride;
};

template <int Dtype>
void decode_project(const DecodeCall& call, const DecodeLayer& layer, int64_t task, bool first_task, float* scratch) {
  const keysift_decode_layer& w = *layer.weights;
  const float* x = w.norm_gain ? normalised(call, w.norm_gain, w.norm_eps, first_task, scratch) : call.x;
  const Projection all[] = {
      {w.q, w.q_bias, w.heads * w.key_width, call.q, call.q_stride},
      {w.k, w.k_bias, w.kv_heads * w.key_width, call.k, call.k_stride},
      {w.v, w.v_bias, w.kv_heads * w.value_width, call.v, call.v_stride},
      {w.gate, nullptr, w.gate ? w.heads * w.value_width : 0, call.gate, call.gate_stride},
  };
  for (const Projection& p : all) {
    const int64_t tasks = (p.rows + layer.project_rows - 1) / layer.project_rows;
    if (task >= tasks) {
      task -= tasks;
      continue;
    }
    const int64_t first = task * layer.project_rows, last = smaller(p.rows, first + layer.project_rows);
    products_of_rows<Dtype, false>(p.matrix, call.model->width, first, last, x, call.x_stride, call.batch,
                                   [&](int64_t b, int64_t row, int rows, vf out, vf) {
                                     float* to = p.to + b * p.stride + row;
                                     store_part(to, out, rows);
                                     if (!p.bias) return;
                                     for (int r = 0; r < rows; ++r) to[r] += element_at(p.bias, Dtype, row + r);
                                   });
    return;
  }
}

// x += matrix * from for some rows of the matrix.
template <int Dtype>
void decode_add(const DecodeCall& call, const void* matrix, const void* bias, int64_t width, int64_t first, int64_t rows,
                const float* from, int64_t stride) {
  products_of_rows<Dtype, false>(matrix, width, first, smaller(call.model->width, first + rows), from, stride, call.batch,
                                 [&](int64_t b, int64_t row, int count, vf out, vf) {
                                   float* x = call.x + b * call.x_stride + row;
                                   store_part(x, load_part<KEYSIFT_F32>(x, count) + out, count);
                                   if (!bias) return;
                                   for (int r = 0; r < count; ++r) x[r] += element_at(bias, Dtype, row + r);
                                 });
}

template <int Dtype>
void decode_hidden(const DecodeCall& call, const DecodeLayer& layer, int64_t task, bool first_task, float* scratch) {
  const keysift_decode_layer& w = *layer.weights;
  const float* x = normalised(call, w.hidden_gain, w.norm_eps, first_task, scratch);
  const int64_t first = task * layer.hidden_rows, last = smaller(w.hidden_width, first + layer.hidden_rows);
  const auto to = [&](int64_t b, int64_t row) { return call.hidden + b * call.hidden_stride + row; };
  products_of_rows<Dtype, false>(w.hidden_gate, call.model->width, first, last, x, call.x_stride, call.batch,
                                 [&](int64_t b, int64_t row, int rows, vf out, vf) { store_part(to(b, row), silu(out), rows); });
  products_of_rows<Dtype, false>(w.hidden_up, call.model->width, first, last, x, call.x_stride, call.batch,
                                 [&](int64_t b, int64_t row, int rows, vf out, vf) {
                                   store_part(to(b, row), load_part<KEYSIFT_F32>(to(b, row), rows) * out, rows);
                                 });
}

template <int Dtype, bool UnitRows>
void decode_readout(const DecodeCall& call, int64_t task, bool first_task, float* scratch) {
  const keysift_decode_model& m = *call.model;
  const float* x = m.final_eps > 0 ? normalised(call, m.final_gain, m.final_eps, first_task, scratch) : call.x;
  const int64_t first = task * call.readout_rows, last = smaller(m.vocabulary, first + call.readout_rows);
  const vf scale = splat(static_cast<float>(m.out_scale)), shortest = splat(static_cast<float>(kUnitEps * kUnitEps));
  products_of_rows<Dtype, UnitRows>(
      m.head, m.width, first, last, x, call.x_stride, call.batch, [&](int64_t b, int64_t row, int rows, vf out, vf squares) {
        if constexpr (UnitRows) {
          vf length = squares > shortest ? squares : shortest;
          for (int l = 0; l < kLanes; ++l) length[l] = sqrtf(length[l]);
          out = out * scale / length;
        }
        typename Elements<Dtype>::type each[kLanes];
        Elements<Dtype>::store_all(each, out);
        char* to = const_cast<char*>(element(call.logits, Dtype, b * m.vocabulary + row));
        memcpy(to, each, static_cast<size_t>(rows) * sizeof each[0]);
      });
}

template <int Dtype>
void decode_step(const DecodeCall& call, const DecodePhase& phase, int64_t task, bool first_task, char* memory) {
  float* scratch = reinterpret_cast<float*>(memory);
  const DecodeLayer& layer = call.layers[phase.layer];
  const keysift_decode_layer& w = *layer.weights;
  switch (phase.step) {
    case kEmbed:
      return decode_embed(call, task);
    case kProject:
      return decode_project<Dtype>(call, layer, task, first_task, scratch);
    case kAttend: {
      ScratchLayout layout{memory};
      return Attend(call, layer, layer.tasks[task], &layout).run<Dtype>();
    }
    case kOutput:
      return decode_add<Dtype>(call, w.o, w.o_bias, w.heads * w.value_width, task * layer.output_rows, layer.output_rows,
                               call.mixed, call.mixed_stride);
    case kHidden:
      return decode_hidden<Dtype>(call, layer, task, first_task, scratch);
    case kDown:
      return decode_add<Dtype>(call, w.hidden_down, nullptr, w.hidden_width, task * layer.down_rows, layer.down_rows, call.hidden,
                               call.hidden_stride);
    case kReadout:
      return call.model->unit_rows ? decode_readout<Dtype, true>(call, task, first_task, scratch)
                                   : decode_readout<Dtype, false>(call, task, first_task, scratch);
  }
}

inline void decode_run(const DecodeCall& call, const DecodePhase& phase, int64_t task, bool first_task, char* scratch) {
  const int32_t dtype = call.model->dtype;
  if (dtype == KEYSIFT_F32) return decode_step<KEYSIFT_F32>(call, phase, task, first_task, scratch);
  if (dtype == KEYSIFT_BF16) return decode_step<KEYSIFT_BF16>(call, phase, task, first_task, scratch);
  decode_step<KEYSIFT_F16>(call, phase, task, first_task, scratch);
}

inline int64_t decode_scratch(const keysift_decode_layer& w) {
  ScratchLayout layout{nullptr};
  AttendScratch(w, &layout);
  return layout.bytes;
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
