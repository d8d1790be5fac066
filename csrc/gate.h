// The output gate of a tile: forward for one row, and the first step of backward, from the gradient of the output to that of h.
#pragma once

#include "blocks.h"
#include "exponential.h"
#include "rows.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

// tanh(x), by expm1: no digits are lost near 0. x must not be far below -40.
KEYSIFT_INLINE vf tanh_of(vf x) {
  const vf most = splat(20.0f);  // tanh rounds to 1; a larger x would give inf / inf
  const vf e = Exponential(splat(2.0f) * (x > most ? most : x)).minus_one;
  return e / (e + splat(2.0f));
}

// tanh(SiLU(x)), which is in (-0.28, 1), and its derivative.
struct GateValue {
  vf value, sigmoid, x;
  KEYSIFT_INLINE explicit GateValue(vf input) : x(input) {
    sigmoid = splat(1.0f) / (splat(1.0f) + Exponential(-x).power);
    value = tanh_of(x * sigmoid);
  }
  KEYSIFT_INLINE vf slope() const {
    const vf one = splat(1.0f);
    return (one - value) * (one + value) * (sigmoid * (one + x * (one - sigmoid)));
  }
};

// row *= factor * gate * scale. g is a buffer for one row.
template <class S>
KEYSIFT_INLINE void gate_row(const S& shape, const Plan& plan, int64_t b, int64_t h, int64_t query, Factor factor, float* g,
                             float* row) {
  const keysift_gate& gate = plan.gate;
  const vf scale = splat(gate.scale[h]);
  const int64_t pad = shape.value_pad();
  if (gate.g.data) read_row(row_of(gate.g, plan.problem.dtype, b, h, query), plan.problem.dtype, shape.value(), pad, g);
  for (int64_t x = 0; x < pad; x += kLanes) {
    vf u = times(load(row + x), splat(factor.high), splat(factor.low)) * scale;
    if (gate.g.data) {
      const GateValue here(load(g + x));
      u = u * here.value;
    }
    store(row + x, u);
  }
}

struct GateScratch {
  float *dout, *g, *h, *dg, *dh;
  template <class S>
  GateScratch(const S& shape, ScratchLayout* layout)
      : dout(layout->floats(shape.value_pad())),
        g(layout->floats(shape.value_pad())),
        h(layout->floats(shape.value_pad())),
        dg(layout->floats(shape.value_pad())),
        dh(layout->floats(shape.value_pad())) {}
};

template <class S>
int64_t gate_scratch(const Plan& plan) {
  ScratchLayout count{nullptr};
  GateScratch(S(plan.problem), &count);
  return count.bytes;
}

// For queries [first, first + count) of a segment: writes dg and, in fp32, the gradient of h. Returns their part of dscale.
template <class S>
double gate_backward(const Plan& plan, const keysift_segment& segment, int64_t h, int64_t first, int64_t count, char* scratch) {
  const keysift_problem& p = plan.problem;
  const S shape(p);
  ScratchLayout layout{scratch};
  const GateScratch rows(shape, &layout);
  const int64_t width = shape.value(), pad = shape.value_pad();
  const vf scale = splat(plan.gate.scale[h]);
  vd dscale{};
  for (int64_t i = first; i < first + count; ++i) {
    const int64_t query = segment.query + i;
    const int64_t at = (segment.row * p.tiles + h) * p.queries + query;
    read_row(row_of(plan.dout, p.dtype, segment.row, h, query), p.dtype, width, pad, rows.dout);
    if (plan.gate.g.data) read_row(row_of(plan.gate.g, p.dtype, segment.row, h, query), p.dtype, width, pad, rows.g);
    read_row(reinterpret_cast<const char*>(plan.h + at * width), KEYSIFT_F32, width, pad, rows.h);
    const TanhSlope slope(p.flags & KEYSIFT_NO_TANH ? 0 : static_cast<double>(plan.norm[at]));
    const vf from_du = splat(static_cast<float>(slope.from_du));
    vf dots{}, scales{};
    for (int64_t x = 0; x < pad; x += kLanes) {
      const vf d = load(rows.dout + x), saved = load(rows.h + x), u = from_du * saved;
      vf du = d * scale, gated = d * u;
      if (plan.gate.g.data) {
        const GateValue gate(load(rows.g + x));
        store(rows.dg + x, d * u * scale * gate.slope());
        du *= gate.value;
        gated *= gate.value;
      }
      scales += gated;
      dots += du * saved;
      store(rows.dh + x, du);
    }
    float lanes[kLanes];
    store(lanes, scales);
    dscale += load_wide(lanes) + load_wide(lanes + kLanes / 2);
    if (plan.gate.g.data) {
      write_row(rows.dg, p.dtype, width, const_cast<char*>(row_of(plan.gate_gradients.dg, p.dtype, segment.row, h, query)));
    }
    float* dh = plan.dh + at * width;
    if (plan.norm[at] != plan.norm[at]) {
      memset(dh, 0, static_cast<size_t>(width) * 4);
      continue;
    }
    if (!(p.flags & KEYSIFT_NO_TANH)) {
      const vf from_h = splat(static_cast<float>(static_cast<double>(sum(dots)) * slope.from_h));
      for (int64_t x = 0; x < pad; x += kLanes) {
        store(rows.dh + x, from_du * load(rows.dh + x) + from_h * load(rows.h + x));
      }
    }
    memcpy(dh, rows.dh, static_cast<size_t>(width) * 4);
  }
  double total = 0;
  for (int l = 0; l < kLanes / 2; ++l) total += dscale[l];
  return total;
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
