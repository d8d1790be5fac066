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

// Subtracts the share of a refused key, whose channels are kBlockKeys floats apart.
template <int Dtype>
void Screen<Dtype>::subtract(const float* key, int64_t slot) {
  double s = 0;
  for (int64_t x = 0; x < width; ++x) s += static_cast<double>(q[x]) * static_cast<double>(key[x * kBlockKeys]);
  const double t = 1 - tile.inverse + tile.inverse * s;
  double weight = t * t * static_cast<double>(key[width * kBlockKeys]);
  if (tile.fades) {
    const double c = cos(tile.half_angle_step * static_cast<double>(distance(slot)));
    weight *= c * c;
  }
  float* row = at.scratch.row;
  read_row(element(values, Dtype, slot * at.w.value_width), Dtype, at.w.value_width, at.value_pad, row);
  double* to = at.wide_sums(task.from);
  for (int64_t x = 0; x < at.value_pad; x += kWide) store(to + x, load(to + x) - splat(weight) * load_wide(row + x));
  --accepted;
}

// Judges every key of the slots and subtracts the refused ones.
template <int Dtype>
void Screen<Dtype>::subtract_scanned(int64_t from, int64_t to) {
  uint16_t* list = at.scratch.listed;
  int64_t n = 0, done = 0;
  const auto subtract_to = [&](int64_t end) {
    for (; done < end; ++done) subtract(column(task.from + list[done]), task.from + list[done]);
  };
  for (int64_t slot = from / kLanes * kLanes; slot < to; slot += kLanes) {
    const int64_t low = slot < from ? from - slot : 0, high = smaller<int64_t>(kLanes, to - slot);
    uint32_t bits, all = (uint32_t{1} << (high - 1)) * 2 - (uint32_t{1} << low);
    score(column(slot), low, high, &bits);
    for (uint32_t refused = all & ~bits; refused; refused &= refused - 1) {
      request_value(slot + __builtin_ctz(refused));
      list[n++] = static_cast<uint16_t>(slot + __builtin_ctz(refused) - task.from);
    }
    subtract_to(n - kAhead);
  }
  subtract_to(n);
  judged += to - from;
}

// Judges the keys that their sketches do not accept, and subtracts the refused ones.
template <int Dtype>
void Screen<Dtype>::subtract_listed(const QuerySketch& query, int64_t from, int64_t to) {
  const AcceptTest test(query, width, tile.threshold);
  float* block = at.scratch.block;
  for (int64_t slot = from / kLanes * kLanes; slot < to; slot += kLanes) {
    uint32_t open = test.may_fail(memory.sketches(slot), static_cast<int>(slot % kBlockKeys));
    if (slot < from) open &= ~((uint32_t{1} << (from - slot)) - 1);
    if (to - slot < kLanes) open &= (uint32_t{1} << (to - slot)) - 1;
    if (kLanes < 32) open &= (uint32_t{1} << (kLanes % 32)) - 1;
    for (; open; open &= open - 1) {
      const int64_t found = slot + __builtin_ctz(open);
      prepare_key(found, block);
      block[width * kBlockKeys] = column(found)[width * kBlockKeys];
      uint32_t bits;
      score(block, 0, 1, &bits);
      if (!bits) subtract(block, found);
      ++judged;
    }
  }
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
    accepted += last - first;
    if (task.mode == kMomentsAndSketches && query.finite) {
      subtract_listed(query, first, last);
    } else if (first < last) {
      subtract_scanned(first, last);
    }
    scan_slots(last, to);
  });
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
