// The C API of tile.h. Backward first computes the gradients of the gate and of h, and then those of screening.
#include "tile.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "failure.h"
#include "gaps.h"
#include "isa.h"
#include "parallel.h"
#include "screening_passes.h"
#include "segments.h"

namespace keysift {
namespace {

// Queries of a task of the gate; fixed, so that the order of additions does not depend on the number of threads.
constexpr int64_t kGateRows = 256;

struct Free {
  void operator()(float* p) const { std::free(p); }
};

// Memory that is not zeroed: every row is written before it is read.
std::unique_ptr<float, Free> allocate(int64_t floats) {
  void* p = nullptr;
  if (posix_memalign(&p, 64, static_cast<size_t>(std::max<int64_t>(floats, 1)) * 4) != 0) throw std::bad_alloc();
  return std::unique_ptr<float, Free>(static_cast<float*>(p));
}

int check_gate(const keysift_gate* gate) {
  if (!gate || !gate->scale) return fail(KEYSIFT_BAD_ARGUMENT, "gate and its scale must not be NULL");
  return KEYSIFT_OK;
}

int forward(const keysift_problem* problem, const keysift_gate* gate, const keysift_view* out, float* norm, float* h) {
  const int status = check_gate(gate);
  return status == KEYSIFT_OK ? screening_forward(problem, gate, out, norm, h) : status;
}

struct GateTask {
  const keysift_segment* segment;
  int64_t tile, first, count;
};

// Writes dg, dscale and the gradient of h, and zeros for queries outside every segment.
int gate_backward(const Plan& plan) {
  const keysift_problem& p = plan.problem;
  const std::vector<keysift_segment> segments =
      list_segments(p.segments, p.segment_count, p.offset, p.batch, p.queries, p.keys);
  std::vector<GateTask> tasks;
  for (const keysift_segment& segment : segments) {
    for (int64_t h = 0; h < p.tiles; ++h) {
      for (int64_t first = 0; first < segment.queries; first += kGateRows) {
        tasks.push_back({&segment, h, first, std::min(kGateRows, segment.queries - first)});
      }
    }
  }
  if (plan.gate.g.data) {
    for_each_gap(segments, p.batch, p.queries, &keysift_segment::query, &keysift_segment::queries,
                 [&](int64_t b, int64_t from, int64_t to) {
                   write_zeros(plan.gate_gradients.dg, p.dtype, p.tiles, p.value_width, b, from, to);
                 });
  }
  const ScreeningKernels kernels = keysift::kernels().screening(p.key_width, p.value_width);
  std::vector<double> sums(tasks.size());
  const int run = run_tasks(static_cast<int64_t>(tasks.size()), thread_count(), kernels.gate_scratch(plan),
                            [&](int64_t index, char* scratch) {
                              const GateTask& task = tasks[static_cast<size_t>(index)];
                              sums[static_cast<size_t>(index)] =
                                  kernels.gate_backward(plan, *task.segment, task.tile, task.first, task.count, scratch);
                            });
  if (run != KEYSIFT_OK) return fail_run(run);
  for (size_t x = 0; x < tasks.size(); ++x) plan.gate_gradients.dscale[tasks[x].tile] += sums[x];
  return KEYSIFT_OK;
}

int backward(const keysift_problem* problem, const keysift_gate* gate, const float* norm, const float* h,
             const keysift_view* dout, const keysift_gradients* gradients, const keysift_gate_gradients* gate_gradients) {
  int status = check_problem(problem);
  if (status == KEYSIFT_OK) status = check_gate(gate);
  if (status != KEYSIFT_OK) return status;
  const keysift_problem& p = *problem;
  if (!gate_gradients || !gate_gradients->dscale || (gate->g.data && !gate_gradients->dg.data)) {
    return fail(KEYSIFT_BAD_ARGUMENT, "dscale and, where there is a g, dg must not be NULL");
  }
  std::fill(gate_gradients->dscale, gate_gradients->dscale + p.tiles, 0.0);
  if (p.batch > 0 && p.queries > 0 && (!norm || !h || !dout || !dout->data)) {
    return fail(KEYSIFT_BAD_ARGUMENT, "norm, h and dout must not be NULL");
  }
  const std::unique_ptr<float, Free> dh = allocate(p.batch * p.tiles * p.queries * p.value_width);
  if (p.batch > 0 && p.queries > 0) {
    Plan plan{};
    plan.problem = p;
    plan.norm = const_cast<float*>(norm);
    plan.h = const_cast<float*>(h);
    plan.gate = *gate;
    plan.dout = *dout;
    plan.gate_gradients = *gate_gradients;
    plan.dh = dh.get();
    status = gate_backward(plan);
    if (status != KEYSIFT_OK) return status;
  }
  keysift_problem rest = p;
  rest.flags |= KEYSIFT_NO_TANH;
  const keysift_view view{dh.get(), p.tiles * p.queries * p.value_width, p.queries * p.value_width, p.value_width};
  return screening_backward(&rest, nullptr, norm, nullptr, &view, KEYSIFT_F32, gradients);
}

}  // namespace
}  // namespace keysift

int keysift_tile_forward(const keysift_problem* problem, const keysift_gate* gate, const keysift_view* out, float* norm,
                         float* h) {
  return keysift::guarded([&] { return keysift::forward(problem, gate, out, norm, h); });
}

int keysift_tile_backward(const keysift_problem* problem, const keysift_gate* gate, const float* norm, const float* h,
                          const keysift_view* dout, const keysift_gradients* gradients,
                          const keysift_gate_gradients* gate_gradients) {
  return keysift::guarded([&] { return keysift::backward(problem, gate, norm, h, dout, gradients, gate_gradients); });
}
