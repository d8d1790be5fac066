// The C API of thresholds.h: checks the arguments and splits the rows into tasks.
#include "thresholds.h"

#include <algorithm>
#include <vector>

#include "failure.h"
#include "isa.h"
#include "parallel.h"
#include "segments.h"
#include "plan.h"

namespace keysift {
namespace {

constexpr int64_t kTaskRows = 8;
constexpr int64_t kSerialNumbers = 1 << 14;

int check(const keysift_threshold_rows* r, const void* numbers) {
  if (!r) return fail(KEYSIFT_BAD_ARGUMENT, "rows is NULL");
  for (int64_t size : {r->matrices, r->rows, r->keys}) {
    if (size < 0 || size > kMaxPosition) return fail(KEYSIFT_BAD_ARGUMENT, "matrices, rows and keys must be at least 0");
  }
  int64_t count;
  if (__builtin_mul_overflow(r->matrices, r->rows, &count) || __builtin_mul_overflow(count, r->keys, &count)) {
    return fail(KEYSIFT_BAD_ARGUMENT, "matrices x rows x keys is out of range");
  }
  if (r->visible < -kMaxPosition || r->visible > kMaxPosition || r->window < 0) {
    return fail(KEYSIFT_BAD_ARGUMENT, "visible or window is out of range");
  }
  if (r->matrices == 0 || r->rows == 0 || r->keys == 0) return KEYSIFT_OK;
  if (!numbers || !r->orders) return fail(KEYSIFT_BAD_ARGUMENT, "orders, scores, weights and gradients must not be NULL");
  for (int64_t m = 0; m < r->matrices; ++m) {
    const float order = r->orders[m];
    if (!(order > 1.0f && order <= 2.0f)) {
      return fail(KEYSIFT_BAD_ARGUMENT, "order %g is not above 1 and at most 2", static_cast<double>(order));
    }
  }
  return check_isa();
}

// Calls on_row(matrix, row, index of its first visible score, visible keys, keys from there on, scratch) for every row, after setting
// the numbers before them to zero.
template <class Callback>
int for_rows(const keysift_threshold_rows& r, float* numbers, Callback on_row) {
  const int64_t count = r.matrices * r.rows;
  const int64_t threads = count * std::min(r.keys, kSerialNumbers) < kSerialNumbers ? 1 : thread_count();
  const int64_t tasks = (count + kTaskRows - 1) / kTaskRows;
  const int run = run_tasks(tasks, threads, kernels().thresholds.scratch(r.keys), [&](int64_t task, char* scratch) {
    for (int64_t i = task * kTaskRows; i < std::min((task + 1) * kTaskRows, count); ++i) {
      const int64_t visible = std::min(std::max<int64_t>(r.visible + i % r.rows, 0), r.keys);
      const int64_t hidden = r.window > 0 ? std::min(std::max<int64_t>(r.visible + i % r.rows - r.window, 0), visible) : 0;
      std::fill(numbers + i * r.keys, numbers + i * r.keys + hidden, 0.0f);
      on_row(i / r.rows, i, i * r.keys + hidden, visible - hidden, r.keys - hidden, scratch);
    }
  });
  return run == KEYSIFT_OK ? run : fail_run(run);
}

int weigh(const keysift_threshold_rows* rows, float* x) {
  const int status = check(rows, x);
  if (status != KEYSIFT_OK || rows->matrices * rows->rows * rows->keys == 0) return status;
  const ThresholdKernels& kernels = keysift::kernels().thresholds;
  return for_rows(*rows, x, [&](int64_t matrix, int64_t, int64_t first, int64_t visible, int64_t keys, char* scratch) {
    kernels.weigh(x + first, visible, keys, rows->orders[matrix], scratch);
  });
}

int differentiate(const keysift_threshold_rows* rows, const float* w, float* dw, double* dorders) {
  const int status = check(rows, w && dw ? w : nullptr);
  if (status != KEYSIFT_OK) return status;
  if (dorders) std::fill(dorders, dorders + rows->matrices, 0.0);
  if (rows->matrices * rows->rows * rows->keys == 0) return KEYSIFT_OK;
  const ThresholdKernels& kernels = keysift::kernels().thresholds;
  // Summed in order at the end, so that the result does not depend on the threads.
  std::vector<double> row_gradients(dorders ? static_cast<size_t>(rows->matrices * rows->rows) : 0);
  const int run = for_rows(*rows, dw, [&](int64_t matrix, int64_t row, int64_t first, int64_t visible, int64_t keys, char* scratch) {
    kernels.differentiate(w + first, dw + first, visible, keys, rows->orders[matrix],
                          dorders ? &row_gradients[static_cast<size_t>(row)] : nullptr, scratch);
  });
  for (size_t i = 0; i < row_gradients.size(); ++i) dorders[i / static_cast<size_t>(rows->rows)] += row_gradients[i];
  return run;
}

}  // namespace
}  // namespace keysift

int keysift_threshold_weigh(const keysift_threshold_rows* rows, float* x) {
  return keysift::guarded([&] { return keysift::weigh(rows, x); });
}

int keysift_threshold_differentiate(const keysift_threshold_rows* rows, const float* w, float* dw, double* dorders) {
  return keysift::guarded([&] { return keysift::differentiate(rows, w, dw, dorders); });
}
