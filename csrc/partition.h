// Division of keys into groups by direction, for exact search (docs/search.md).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace keysift {

// Members [from, to) of the order.
struct Part {
  int64_t from, to;
};

// Rows divided into groups by direction: sets are halved where few rows lie, until they are small or all of their rows are equal.
class Partition {
 public:
  // At most 65,536 rows of `width` channels.
  Partition(std::vector<float> rows, int64_t width, int64_t group_keys, int64_t most)
      : width_(width),
        group_keys_(group_keys),
        most_(most),
        rows_(std::move(rows)),
        direction_(static_cast<size_t>(width)),
        order_(rows_.size() / static_cast<size_t>(width)) {
    projections_.resize(order_.size());
    for (size_t row = 0; row < order_.size(); ++row) order_[row] = static_cast<uint16_t>(row);
  }

  // The groups, in the order of their first members. Divided breadth first, so that the largest sets are divided first if the
  // number of groups is limited.
  std::vector<Part> run() {
    std::vector<Part> queue{{0, static_cast<int64_t>(order_.size())}}, groups;
    for (size_t next = 0; next < queue.size(); ++next) {
      const Part part = queue[next];
      const int64_t total = static_cast<int64_t>(groups.size() + queue.size() - next);
      const int64_t cut = part.to - part.from > group_keys_ && total < most_ ? divide(part) : part.to;
      if (cut == part.to) {
        groups.push_back(part);
      } else {
        queue.push_back({part.from, cut});
        queue.push_back({cut, part.to});
      }
    }
    std::sort(groups.begin(), groups.end(), [](Part a, Part b) { return a.from < b.from; });
    return groups;
  }

  const uint16_t* order() const { return order_.data(); }
  const float* row(int64_t at) const { return rows_.data() + static_cast<int64_t>(order_[static_cast<size_t>(at)]) * width_; }

 private:
  static constexpr int kBins = 128;

  float product(const float* a, const float* b) const {
    float sum = 0;
    for (int64_t x = 0; x < width_; ++x) sum += a[x] * b[x];
    return sum;
  }

  const float* farthest(Part part, const float* from) const {
    const float* found = row(part.from);
    float least = product(found, from);
    for (int64_t at = part.from + 1; at < part.to; ++at) {
      const float s = product(row(at), from);
      if (s < least) {
        least = s;
        found = row(at);
      }
    }
    return found;
  }

  // Reorders the part into two along the line between two distant keys, and returns where the second begins; part.to if the keys
  // are equal.
  int64_t divide(Part part) {
    const float* a = farthest(part, row(part.from));
    const float* b = farthest(part, a);
    float length = 0;
    for (int64_t x = 0; x < width_; ++x) {
      direction_[static_cast<size_t>(x)] = a[x] - b[x];
      length += direction_[static_cast<size_t>(x)] * direction_[static_cast<size_t>(x)];
    }
    if (!(length > 1e-10f)) return part.to;
    float low = INFINITY, high = -INFINITY;
    for (int64_t at = part.from; at < part.to; ++at) {
      const float t = product(row(at), direction_.data());
      projections_[order_[static_cast<size_t>(at)]] = t;
      low = std::min(low, t);
      high = std::max(high, t);
    }
    if (!(high > low)) return part.to;
    const float scale = (kBins - 1) / (high - low);
    const auto bin = [&](uint16_t slot) { return static_cast<int>((projections_[slot] - low) * scale); };
    int64_t counts[kBins] = {};
    for (int64_t at = part.from; at < part.to; ++at) ++counts[bin(order_[static_cast<size_t>(at)])];
    const int cut = emptiest(counts, part.to - part.from);
    const auto begin = order_.begin() + part.from, end = order_.begin() + part.to;
    const int64_t second = std::partition(begin, end, [&](uint16_t slot) { return bin(slot) <= cut; }) - order_.begin();
    return second == part.from ? part.to : second;
  }

  // The bin after which to cut: the fewest keys on both sides of the cut, in the middle half if possible.
  static int emptiest(const int64_t* counts, int64_t total) {
    int best = 0;
    int64_t below = 0, least = INT64_MAX;
    for (int x = 0; x + 1 < kBins; ++x) {
      below += counts[x];
      const int64_t off_centre = std::abs(2 * below - total);
      const int64_t outside = off_centre > total / 2 ? off_centre : 0;
      const int64_t cost = (outside * 2 + counts[x] + counts[x + 1]) * total + off_centre;
      if (below > 0 && below < total && cost < least) {
        least = cost;
        best = x;
      }
    }
    return best;
  }

  int64_t width_, group_keys_, most_;
  std::vector<float> rows_, direction_, projections_;
  std::vector<uint16_t> order_;
};

}  // namespace keysift
