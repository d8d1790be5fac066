// The C API of sums.h: checks the arguments and splits the work into tasks.
#include "sums.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "failure.h"
#include "parallel.h"
#include "plan.h"
#include "problem.h"

namespace keysift {
namespace {

int check(const keysift_sums_problem* p) {
  const int status = check_problem(p);
  if (status != KEYSIFT_OK) return status;
  if (p->kind < KEYSIFT_RELU || p->kind > KEYSIFT_DECAYED) return fail(KEYSIFT_BAD_ARGUMENT, "kind %d is unknown", p->kind);
  if (p->kind == KEYSIFT_RECTIFIED && !p->shift && p->queries > 0) return fail(KEYSIFT_BAD_ARGUMENT, "levels must not be NULL");
  if (p->kind == KEYSIFT_DECAYED && p->queries > 0 && (!p->shift || !p->first_key || (p->keys > 0 && !p->decay))) {
    return fail(KEYSIFT_BAD_ARGUMENT, "shift, decay and first_key must not be NULL");
  }
  return KEYSIFT_OK;
}

int forward(const keysift_sums_problem* problem, const keysift_view* out, const keysift_view* kept, float* log) {
  const int status = check(problem);
  if (status != KEYSIFT_OK) return status;
  const keysift_sums_problem& p = *problem;
  if (p.batch == 0 || p.queries == 0) return KEYSIFT_OK;
  if (!out || !out->data) return fail(KEYSIFT_BAD_ARGUMENT, "out must not be NULL");
  const SumsKernels kernels = keysift::kernels().sums(p.kind);
  const SumsPlan plan{p, *out, kept ? *kept : keysift_view{}, log, {}, {}};
  const std::vector<keysift_segment> segments = segments_of(p);
  const std::vector<QueryBlock> chunks = query_blocks(segments, kSumChunk);
  const int64_t count = static_cast<int64_t>(chunks.size()) * p.heads;
  const int run = run_tasks(count, threads_for(p), kernels.forward_scratch(plan), [&](int64_t task, char* scratch) {
    const QueryBlock& chunk = chunks[static_cast<size_t>(task / p.heads)];
    kernels.forward(plan, *chunk.segment, task % p.heads, chunk.first, scratch);
  });
  return run == KEYSIFT_OK ? run : fail_run(run);
}

// One head of one segment: its tasks and their results, which are summed at the end.
struct HeadTasks {
  std::vector<SumsTask> tasks;
  std::vector<std::vector<float>> sums;  // (task): dq, dshift and delta
  std::atomic<int64_t> pending{0};
};

// Adds the tasks' sums in order and writes the gradients of the queries and shifts.
void finish(const SumsPlan& plan, const HeadTasks& head_tasks, int64_t pad, int64_t padded_count) {
  const keysift_sums_problem& p = plan.problem;
  const keysift_segment& segment = *head_tasks.tasks[0].segment;
  const int64_t head = head_tasks.tasks[0].head;
  for (int64_t i = 0; i < segment.queries; ++i) {
    const keysift_view& to = plan.gradients.dq;
    float* dq = static_cast<float*>(to.data) + segment.row * to.batch_stride + head * to.tile_stride +
                (segment.query + i) * to.row_stride;
    for (int64_t x = 0; x < p.key_width; ++x) {
      float total = 0;
      for (const std::vector<float>& sums : head_tasks.sums) total += sums[static_cast<size_t>(i * pad + x)];
      dq[x] = total * p.scale;
    }
    if (!plan.gradients.dshift) continue;
    float total = 0;
    for (const std::vector<float>& sums : head_tasks.sums) total += sums[static_cast<size_t>(padded_count * pad + i)];
    plan.gradients.dshift[(segment.row * p.heads + head) * p.queries + segment.query + i] = total;
  }
}

int backward(const keysift_sums_problem* problem, const keysift_view* out, const float* log, const keysift_view* dout,
             const keysift_sums_gradients* gradients) {
  const int status = check(problem);
  if (status != KEYSIFT_OK) return status;
  const keysift_sums_problem& p = *problem;
  if (p.batch == 0 || p.queries == 0 || p.keys == 0) return KEYSIFT_OK;
  if (!out || !out->data || !log || !dout || !dout->data || !gradients || !gradients->dq.data || !gradients->dk.data ||
      !gradients->dv.data) {
    return fail(KEYSIFT_BAD_ARGUMENT, "out, log, dout, dq, dk and dv must not be NULL");
  }
  if (p.kind == KEYSIFT_DECAYED && !gradients->dkeys) return fail(KEYSIFT_BAD_ARGUMENT, "dkeys must not be NULL");
  const SumsKernels kernels = keysift::kernels().sums(p.kind);
  const SumsPlan plan{p, *out, {}, const_cast<float*>(log), *dout, *gradients};
  const std::vector<keysift_segment> segments = segments_of(p);
  std::vector<HeadTasks> all_tasks(segments.size() * static_cast<size_t>(p.heads));
  if (all_tasks.empty()) return KEYSIFT_OK;
  const int64_t parts = (kTargetTasks + static_cast<int64_t>(all_tasks.size()) - 1) / static_cast<int64_t>(all_tasks.size());
  std::vector<std::pair<size_t, size_t>> order;
  for (size_t s = 0; s < all_tasks.size(); ++s) {
    const keysift_segment& segment = segments[s / static_cast<size_t>(p.heads)];
    const int64_t keys_per_task = std::max<int64_t>((segment.keys / parts + kBlock - 1) / kBlock, 1) * kBlock;
    int64_t first = 0;
    do {
      const int64_t last = std::min(first + keys_per_task, segment.keys);
      order.emplace_back(s, all_tasks[s].tasks.size());
      all_tasks[s].tasks.push_back({&segment, static_cast<int64_t>(s) % p.heads, first, last, nullptr, nullptr, nullptr});
      first = last;
    } while (first < segment.keys);
    all_tasks[s].sums.resize(all_tasks[s].tasks.size());
    all_tasks[s].pending = static_cast<int64_t>(all_tasks[s].tasks.size());
  }
  const int64_t pad = kernels.padded(p.key_width);
  const int64_t task_count = static_cast<int64_t>(order.size());
  const int run = run_tasks(task_count, threads_for(p), kernels.backward_scratch(plan), [&](int64_t index, char* scratch) {
    HeadTasks& head_tasks = all_tasks[order[static_cast<size_t>(index)].first];
    const size_t t = order[static_cast<size_t>(index)].second;
    SumsTask& task = head_tasks.tasks[t];
    const int64_t padded_count = (task.segment->queries + kSumBatch - 1) / kSumBatch * kSumBatch;
    head_tasks.sums[t].assign(static_cast<size_t>(padded_count * (pad + 2)), 0.0f);
    task.dq = head_tasks.sums[t].data();
    task.dshift = task.dq + padded_count * pad;
    task.delta = task.dshift + padded_count;
    kernels.backward(plan, task, scratch);
    if (--head_tasks.pending > 0) return;
    finish(plan, head_tasks, pad, padded_count);
    head_tasks.sums.clear();
  });
  return run == KEYSIFT_OK ? run : fail_run(run);
}

}  // namespace
}  // namespace keysift

int keysift_sums_forward(const keysift_sums_problem* problem, const keysift_view* out, const keysift_view* kept, float* log) {
  return keysift::guarded([&] { return keysift::forward(problem, out, kept, log); });
}

int keysift_sums_backward(const keysift_sums_problem* problem, const keysift_view* out, const float* log,
                          const keysift_view* dout, const keysift_sums_gradients* gradients) {
  return keysift::guarded([&] { return keysift::backward(problem, out, log, dout, gradients); });
}
