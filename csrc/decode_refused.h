// Screening by moments: the sums over all keys of a range of tokens, minus what its refused keys contribute, plus the accepted keys
// outside of the range. Sums and differences are in fp64.
#pragma once

#include "decode_screening.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

// Tokens as columns and rows of fp64; a sign of -1 removes them.
template <int Dtype>
void Screen<Dtype>::gather_keys(int64_t token, int64_t count, double sign, const MomentKeys& to) const {
  memset(to.keys, 0, static_cast<size_t>(MomentKeys::doubles(width, at.value_pad)) * 8);
  for (int64_t j = 0; j < count; ++j) {
    const int64_t slot = (token + j) % at.capacity;
    for (int64_t x = 0; x < width; ++x) to.keys[x * kMomentKeys + j] = static_cast<double>(column(slot)[x * kBlockKeys]);
    float* row = at.scratch.row;
    read_row(element(values, Dtype, slot * at.w.value_width), Dtype, at.w.value_width, at.value_pad, row);
    for (int64_t x = 0; x < at.value_pad; x += kWide) store(to.values + j * at.value_pad + x, load_wide(row + x));
    const double c = sign * static_cast<double>(column(slot)[width * kBlockKeys]);
    const double angle = 2 * tile.half_angle_step * static_cast<double>(token + j);
    to.weights[j] = c;
    to.weights[kMomentKeys + j] = tile.fades ? c * cos(angle) : 0;
    to.weights[2 * kMomentKeys + j] = tile.fades ? c * sin(angle) : 0;
  }
}

template <int Dtype>
void Screen<Dtype>::update_moments(const MomentSums& sums) const {
  const MomentRange& r = task.moments;
  const MomentKeys keys(at.scratch.moments, width, at.value_pad);
  const auto change = [&](int64_t from, int64_t to, double sign) {
    for (; from < to; from += kMomentKeys) {
      gather_keys(from, smaller<int64_t>(kMomentKeys, to - from), sign, keys);
      sums.add(keys);
    }
  };
  if (r.old_from == r.old_to || r.from >= r.old_to) {
    const int64_t rows = 1 + width + width * (width + 1) / 2;
    memset(sums.sums, 0, static_cast<size_t>(sums.sets * rows * at.value_pad) * 8);
    change(r.from, r.to, 1);
  } else {
    change(r.old_from, r.from, -1);
    change(r.old_to, r.to, 1);
  }
}

template <int Dtype>
void Screen<Dtype>::evaluate_moments() {
  const MomentSums sums{memory.moments(), width, at.value_pad, tile.fades ? 3 : 1};
  update_moments(sums);
  const double angle = 2 * tile.half_angle_step * static_cast<double>(at.newest);
  const double half = tile.fades ? 0.5 : 1.0;
  const double shares[] = {half, half * cos(angle), half * sin(angle)};
  if (task.moments.from < task.moments.to) sums.evaluate(q, tile.inverse, shares, at.wide_sums(task.from));
}

// Subtracts the values of listed keys from a row of fp64, V vectors of it, or the last `rest` channels.
template <int Dtype, int V>
KEYSIFT_INLINE void subtract_columns(const typename Elements<Dtype>::type* rows, int64_t width, int64_t x, int64_t rest,
                                     const int64_t* slots, const double* weights, int64_t count, double* to) {
  vd sums[2 * V] = {};
  for (int64_t j = 0; j < count; ++j) {
    const vd weight = splat(weights[j]);
    KEYSIFT_UNROLL for (int c = 0; c < V; ++c) {
      const typename Elements<Dtype>::type* from = rows + slots[j] * width + x + c * kLanes;
      float lanes[kLanes];
      store(lanes, rest ? load_part<Dtype>(from, rest) : Elements<Dtype>::load_all(from));
      sums[2 * c] += weight * load_wide(lanes);
      sums[2 * c + 1] += weight * load_wide(lanes + kWide);
    }
  }
  KEYSIFT_UNROLL for (int c = 0; c < 2 * V; ++c) store(to + x + c * kWide, load(to + x + c * kWide) - sums[c]);
}

template <int Dtype>
void Screen<Dtype>::subtract_refusals() {
  const typename Elements<Dtype>::type* rows = reinterpret_cast<const typename Elements<Dtype>::type*>(values);
  const int64_t value_width = at.w.value_width;
  double* to = at.wide_sums(task.from);
  int64_t x = 0;
  for (; x + 4 * kLanes <= value_width; x += 4 * kLanes) subtract_columns<Dtype, 4>(rows, value_width, x, 0, slots, refused, listed, to);
  for (; x + kLanes <= value_width; x += kLanes) subtract_columns<Dtype, 1>(rows, value_width, x, 0, slots, refused, listed, to);
  if (x < value_width) subtract_columns<Dtype, 1>(rows, value_width, x, value_width - x, slots, refused, listed, to);
  accepted -= listed;
  listed = 0;
}

// Lists refused keys of one vector with their shares of the sums; slot(lane) is the slot of a key.
template <int Dtype>
template <class Slot>
KEYSIFT_INLINE void Screen<Dtype>::refuse(const float* block, uint32_t bits, Slot slot) {
  if (!bits) return;
  vd low{}, high{};
  for (int64_t x = 0; x < width; ++x) {
    low += splat(static_cast<double>(q[x])) * load_wide(block + x * kBlockKeys);
    high += splat(static_cast<double>(q[x])) * load_wide(block + x * kBlockKeys + kWide);
  }
  const vd b = splat(tile.inverse), a = splat(1 - tile.inverse);
  double each[kLanes];
  store(each, (a + b * low) * (a + b * low) * load_wide(block + width * kBlockKeys));
  store(each + kWide, (a + b * high) * (a + b * high) * load_wide(block + width * kBlockKeys + kWide));
  for (; bits; bits &= bits - 1) {
    const int lane = __builtin_ctz(bits);
    const int64_t found = slot(lane);
    request_value(found);
    const double c = tile.fades ? cos(tile.half_angle_step * static_cast<double>(distance(found))) : 1;
    slots[listed] = found;
    refused[listed++] = c * c * each[lane];
    if (listed == kListed) subtract_refusals();
  }
}

// Judges every key of the slots and subtracts the refused ones.
template <int Dtype>
void Screen<Dtype>::subtract_scanned(int64_t from, int64_t to) {
  for (int64_t slot = from / kLanes * kLanes; slot < to; slot += kLanes) {
    const int64_t low = slot < from ? from - slot : 0, high = smaller<int64_t>(kLanes, to - slot);
    const uint32_t all = (uint32_t{1} << (high - 1)) * 2 - (uint32_t{1} << low);
    uint32_t bits;
    score(column(slot), low, high, &bits);
    refuse(column(slot), all & ~bits, [&](int lane) { return slot + lane; });
  }
  judged += to - from;
}

// Judges the keys that their sketches do not accept, and subtracts the refused ones.
template <int Dtype>
void Screen<Dtype>::subtract_listed(const QuerySketch& query, int64_t from, int64_t to) {
  uint16_t* list = at.scratch.listed;
  const int64_t count = list_sketches(AcceptTest(query, width, tile.threshold), from, to, list);
  judge_listed(list, count, [&](const float* block, const float*, int64_t first, int64_t n) {
    uint32_t bits;
    score(block, 0, n, &bits);
    const uint32_t all = (uint32_t{1} << (n - 1)) * 2 - 1;
    refuse(block, all & ~bits, [&](int lane) { return task.from + list[first + lane]; });
  });
}

template <int Dtype>
void Screen<Dtype>::subtract_refused() {
  memset(at.wide_sums(task.from), 0, static_cast<size_t>(at.value_pad) * 8);
  if (task.last) evaluate_moments();
  const QuerySketch query(q, width);
  visible.within(task.from, task.to, [&](int64_t from, int64_t to) {
    const int64_t offset = at.newest - distance(from) - from;  // tokens of these slots are consecutive
    const int64_t first = clamp(task.moments.from - offset, from, to), last = clamp(task.moments.to - offset, first, to);
    scan_slots(from, first);
    add_listed();
    accepted += last - first;
    if (task.mode == kMomentsAndSketches && query.finite) {
      subtract_listed(query, first, last);
    } else if (first < last) {
      subtract_scanned(first, last);
    }
    subtract_refusals();
    scan_slots(last, to);
  });
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
