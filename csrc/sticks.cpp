// The C API of sticks.h: checks the arguments and splits the work into tasks.
#include "sticks.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "failure.h"
#include "parallel.h"
#include "plan.h"
#include "problem.h"

namespace keysift {
namespace {

int forward(const keysift_sticks_problem* problem, const keysift_view* out, double* log_rest, int64_t* first_key) {
  const int status = check_problem(problem);
  if (status != KEYSIFT_OK) return status;
  const keysift_sticks_problem& p = *problem;
  if (p.batch == 0 || p.queries == 0) return KEYSIFT_OK;
  if (!out || !out->data || !log_rest || !first_key) {
    return fail(KEYSIFT_BAD_ARGUMENT, "out, log_rest and first_key must not be NULL");
  }
  const StickKernels& kernels = keysift::kernels().sticks;
  const StickPlan plan{p, *out, log_rest, first_key, {}, nullptr, {}};
  const std::vector<keysift_segment> segments = segments_of(p);
  const std::vector<QueryBlock> blocks = query_blocks(segments, kBlock);
  const int64_t count = static_cast<int64_t>(blocks.size()) * p.heads;
  const int run = run_tasks(count, threads_for(p), kernels.scratch(plan), [&](int64_t task, char* scratch) {
    const QueryBlock& block = blocks[static_cast<size_t>(task / p.heads)];
    kernels.forward(plan, *block.segment, task % p.heads, block.first, scratch);
  });
  return run == KEYSIFT_OK ? run : fail_run(run);
}

// One head of one segment: its tasks and their sums for keys and values, which are added at the end.
struct HeadSums {
  std::vector<StickTask> tasks;
  std::vector<std::vector<float>> sums;  // (task): dk, then dv
  std::atomic<int64_t> pending{0};
};

void add_sums(const HeadSums& head, const keysift_view& to, int64_t width, int64_t pad, size_t start) {
  const StickTask& task = head.tasks[0];
  for (int64_t j = 0; j < task.segment->keys; ++j) {
    float* row = static_cast<float*>(to.data) + task.segment->row * to.batch_stride + task.head * to.tile_stride +
                 (task.segment->key + j) * to.row_stride;
    for (int64_t x = 0; x < width; ++x) {
      float total = 0;
      for (const std::vector<float>& sums : head.sums) total += sums[start + static_cast<size_t>(j * pad + x)];
      row[x] = total;
    }
  }
}

int backward(const keysift_sticks_problem* problem, const double* log_rest, const int64_t* first_key, const keysift_view* dout,
             const float* drest, const keysift_sticks_gradients* gradients) {
  const int status = check_problem(problem);
  if (status != KEYSIFT_OK) return status;
  const keysift_sticks_problem& p = *problem;
  if (p.batch == 0 || p.queries == 0 || p.keys == 0) return KEYSIFT_OK;
  if (!log_rest || !first_key || !dout || !dout->data || !drest || !gradients || !gradients->dq.data || !gradients->dk.data ||
      !gradients->dv.data) {
    return fail(KEYSIFT_BAD_ARGUMENT, "log_rest, first_key, dout, drest, dq, dk and dv must not be NULL");
  }
  const StickKernels& kernels = keysift::kernels().sticks;
  const StickPlan plan{p, {}, const_cast<double*>(log_rest), const_cast<int64_t*>(first_key), *dout, drest, *gradients};
  const std::vector<keysift_segment> segments = segments_of(p);
  std::vector<HeadSums> heads(segments.size() * static_cast<size_t>(p.heads));
  if (heads.empty()) return KEYSIFT_OK;
  const int64_t parts = (kTargetTasks + static_cast<int64_t>(heads.size()) - 1) / static_cast<int64_t>(heads.size());
  std::vector<std::pair<size_t, size_t>> order;
  for (size_t s = 0; s < heads.size(); ++s) {
    const keysift_segment& segment = segments[s / static_cast<size_t>(p.heads)];
    const int64_t blocks = (segment.queries + kBlock - 1) / kBlock, count = std::max<int64_t>(std::min(parts, blocks), 1);
    for (int64_t t = 0; t < count; ++t) {
      order.emplace_back(s, static_cast<size_t>(t));
      heads[s].tasks.push_back({&segment, static_cast<int64_t>(s) % p.heads, t, count, nullptr, nullptr});
    }
    heads[s].sums.resize(heads[s].tasks.size());
    heads[s].pending = count;
  }
  const int64_t key_pad = kernels.padded(p.key_width), value_pad = kernels.padded(p.value_width);
  const int64_t tasks = static_cast<int64_t>(order.size());
  const int run = run_tasks(tasks, threads_for(p), kernels.scratch(plan), [&](int64_t index, char* scratch) {
    HeadSums& head = heads[order[static_cast<size_t>(index)].first];
    const size_t t = order[static_cast<size_t>(index)].second;
    StickTask& task = head.tasks[t];
    const size_t rows = static_cast<size_t>((task.segment->keys + kSumBatch - 1) / kSumBatch * kSumBatch);
    head.sums[t].assign(rows * static_cast<size_t>(key_pad + value_pad), 0.0f);
    task.dk = head.sums[t].data();
    task.dv = task.dk + rows * static_cast<size_t>(key_pad);
    kernels.backward(plan, task, scratch);
    if (--head.pending > 0) return;
    add_sums(head, plan.gradients.dk, p.key_width, key_pad, 0);
    add_sums(head, plan.gradients.dv, p.value_width, value_pad, rows * static_cast<size_t>(key_pad));
    head.sums.clear();
  });
  return run == KEYSIFT_OK ? run : fail_run(run);
}

}  // namespace
}  // namespace keysift

int keysift_sticks_forward(const keysift_sticks_problem* problem, const keysift_view* out, double* log_rest,
                           int64_t* first_key) {
  return keysift::guarded([&] { return keysift::forward(problem, out, log_rest, first_key); });
}

int keysift_sticks_backward(const keysift_sticks_problem* problem, const double* log_rest, const int64_t* first_key,
                            const keysift_view* dout, const float* drest, const keysift_sticks_gradients* gradients) {
  return keysift::guarded([&] { return keysift::backward(problem, log_rest, first_key, dout, drest, gradients); });
}
