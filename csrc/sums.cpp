// The C API of sums.h: checks the arguments and cuts the work into tasks.
#include "sums.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "failure.h"
#include "isa.h"
#include "parallel.h"
#include "pieces.h"
#include "plan.h"

namespace keysift {
namespace {

constexpr int64_t kWantedTasks = 16;  // of backward, where there are fewer heads; fixed, so that sums do not follow threads
constexpr int64_t kSerialPairs = 1 << 14;

int check(const keysift_sums_problem* p) {
  if (!p) return fail(KEYSIFT_BAD_ARGUMENT, "problem is NULL");
  for (int64_t size : {p->heads, p->key_width, p->value_width}) {
    if (size < 1) return fail(KEYSIFT_BAD_ARGUMENT, "heads, key_width and value_width must be at least 1");
  }
  for (int64_t size : {p->batch, p->queries, p->keys}) {
    if (size < 0 || size > kFarthest) return fail(KEYSIFT_BAD_ARGUMENT, "batch, queries and keys must be at least 0");
  }
  if (p->kind < KEYSIFT_RELU || p->kind > KEYSIFT_SOFTPICK) return fail(KEYSIFT_BAD_ARGUMENT, "kind %d is unknown", p->kind);
  const int pieces = check_pieces(p->pieces, p->piece_count, p->offset, p->batch, p->queries, p->keys);
  if (pieces != KEYSIFT_OK) return pieces;
  const bool rows = p->batch > 0;
  if ((rows && p->queries > 0 && !p->q.data) || (rows && p->keys > 0 && (!p->k.data || !p->v.data))) {
    return fail(KEYSIFT_BAD_ARGUMENT, "q, k and v must not be NULL");
  }
  if (!isa().name) return fail(KEYSIFT_BAD_ISA, "KEYSIFT_ISA names no variant this machine can run; use one of: %s", keysift_isas());
  return KEYSIFT_OK;
}

std::vector<keysift_piece> pieces_of(const keysift_sums_problem& p) {
  return list_pieces(p.pieces, p.piece_count, p.offset, p.batch, p.queries, p.keys);
}

int64_t threads_for(const keysift_sums_problem& p) {
  return p.batch * p.heads * p.queries * std::min<int64_t>(p.keys, kSerialPairs) < kSerialPairs ? 1 : thread_count();
}

int forward(const keysift_sums_problem* problem, const keysift_view* out, float* log) {
  const int status = check(problem);
  if (status != KEYSIFT_OK) return status;
  const keysift_sums_problem& p = *problem;
  if (p.batch == 0 || p.queries == 0) return KEYSIFT_OK;
  if (!out || !out->data) return fail(KEYSIFT_BAD_ARGUMENT, "out must not be NULL");
  const SumsKernels kernels = isa().sums_kernels(p.kind);
  const SumsPlan plan{p, *out, log, {}, {}};
  const std::vector<keysift_piece> pieces = pieces_of(p);
  struct Chunk {
    const keysift_piece* piece;
    int64_t first;
  };
  std::vector<Chunk> chunks;
  for (const keysift_piece& piece : pieces) {
    for (int64_t first = 0; first < piece.queries; first += kSumChunk) chunks.push_back({&piece, first});
  }
  // The last queries see most: the lightest tasks even out the end.
  std::stable_sort(chunks.begin(), chunks.end(), [](const Chunk& x, const Chunk& y) { return x.first > y.first; });
  const int64_t count = static_cast<int64_t>(chunks.size()) * p.heads;
  const int run = run_tasks(count, threads_for(p), kernels.forward_scratch(plan), [&](int64_t task, char* scratch) {
    const Chunk& chunk = chunks[static_cast<size_t>(task / p.heads)];
    kernels.forward(plan, *chunk.piece, task % p.heads, chunk.first, scratch);
  });
  return run == KEYSIFT_OK ? run : fail_run(run);
}

// One head of one piece: its tasks, and what they leave to be added up.
struct Share {
  std::vector<SumsTask> tasks;
  std::vector<std::vector<float>> sums;  // (task): dq, dshift and delta
  std::atomic<int64_t> open{0};
};

// Adds the tasks' sums in order and writes the gradients of the queries and shifts.
void finish(const SumsPlan& plan, const Share& share, int64_t pad, int64_t room) {
  const keysift_sums_problem& p = plan.problem;
  const keysift_piece& piece = *share.tasks[0].piece;
  const int64_t head = share.tasks[0].head;
  for (int64_t i = 0; i < piece.queries; ++i) {
    const keysift_view& to = plan.gradients.dq;
    float* dq = static_cast<float*>(to.data) + piece.row * to.batch_stride + head * to.tile_stride + (piece.query + i) * to.row_stride;
    for (int64_t x = 0; x < p.key_width; ++x) {
      float total = 0;
      for (const std::vector<float>& sums : share.sums) total += sums[static_cast<size_t>(i * pad + x)];
      dq[x] = total * p.scale;
    }
    if (!plan.gradients.dshift) continue;
    float total = 0;
    for (const std::vector<float>& sums : share.sums) total += sums[static_cast<size_t>(room * pad + i)];
    plan.gradients.dshift[(piece.row * p.heads + head) * p.queries + piece.query + i] = total;
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
  const SumsKernels kernels = isa().sums_kernels(p.kind);
  const SumsPlan plan{p, *out, const_cast<float*>(log), *dout, *gradients};
  const std::vector<keysift_piece> pieces = pieces_of(p);
  std::vector<Share> shares(pieces.size() * static_cast<size_t>(p.heads));
  if (shares.empty()) return KEYSIFT_OK;
  const int64_t parts = (kWantedTasks + static_cast<int64_t>(shares.size()) - 1) / static_cast<int64_t>(shares.size());
  std::vector<std::pair<size_t, size_t>> order;
  for (size_t s = 0; s < shares.size(); ++s) {
    const keysift_piece& piece = pieces[s / static_cast<size_t>(p.heads)];
    const int64_t each = std::max<int64_t>((piece.keys / parts + kBlock - 1) / kBlock, 1) * kBlock;
    int64_t first = 0;
    do {
      const int64_t last = std::min(first + each, piece.keys);
      order.emplace_back(s, shares[s].tasks.size());
      shares[s].tasks.push_back({&piece, static_cast<int64_t>(s) % p.heads, first, last, nullptr, nullptr, nullptr});
      first = last;
    } while (first < piece.keys);
    shares[s].sums.resize(shares[s].tasks.size());
    shares[s].open = static_cast<int64_t>(shares[s].tasks.size());
  }
  const int64_t pad = kernels.padded(p.key_width);
  const int run = run_tasks(static_cast<int64_t>(order.size()), threads_for(p), kernels.backward_scratch(plan), [&](int64_t index, char* scratch) {
    Share& share = shares[order[static_cast<size_t>(index)].first];
    const size_t t = order[static_cast<size_t>(index)].second;
    SumsTask& task = share.tasks[t];
    const int64_t room = (task.piece->queries + kSumBatch - 1) / kSumBatch * kSumBatch;
    share.sums[t].assign(static_cast<size_t>(room * (pad + 2)), 0.0f);
    task.dq = share.sums[t].data();
    task.dshift = task.dq + room * pad;
    task.delta = task.dshift + room;
    kernels.backward(plan, task, scratch);
    if (--share.open > 0) return;
    finish(plan, share, pad, room);
    share.sums.clear();
  });
  return run == KEYSIFT_OK ? run : fail_run(run);
}

}  // namespace
}  // namespace keysift

int keysift_sums_forward(const keysift_sums_problem* problem, const keysift_view* out, float* log) {
  return keysift::guarded([&] { return keysift::forward(problem, out, log); });
}

int keysift_sums_backward(const keysift_sums_problem* problem, const keysift_view* out, const float* log,
                          const keysift_view* dout, const keysift_sums_gradients* gradients) {
  return keysift::guarded([&] { return keysift::backward(problem, out, log, dout, gradients); });
}
