// Groups of an epoch of keys by direction: sets are halved where few keys lie, until they are small.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "search_layout.h"

namespace keysift {
namespace {

struct Part {
  int64_t from, to;
};

class Partition {
 public:
  Partition(const float* prepared, int64_t width) : width_(width) {
    rows_.resize(static_cast<size_t>(kEpoch * width));
    for (int64_t slot = 0; slot < kEpoch; ++slot) {
      const float* column = prepared + slot / kBlockKeys * (width + 1) * kBlockKeys + slot % kBlockKeys;
      for (int64_t x = 0; x < width; ++x) rows_[static_cast<size_t>(slot * width + x)] = column[x * kBlockKeys];
    }
    order_.resize(static_cast<size_t>(kEpoch));
    projections_.resize(order_.size());
    direction_.resize(static_cast<size_t>(width));
    for (size_t slot = 0; slot < order_.size(); ++slot) order_[slot] = static_cast<uint16_t>(slot);
  }

  // Breadth first, so that the largest sets are divided first if the number of groups is limited.
  std::vector<Part> run() {
    std::vector<Part> queue{{0, kEpoch}}, groups;
    for (size_t next = 0; next < queue.size(); ++next) {
      const Part part = queue[next];
      const int64_t total = static_cast<int64_t>(groups.size() + queue.size() - next);
      const int64_t cut = part.to - part.from > kGroupKeys && total < kMaxGroups ? divide(part) : part.to;
      if (cut == part.to) {
        groups.push_back(part);
      } else {
        queue.push_back({part.from, cut});
        queue.push_back({cut, part.to});
      }
    }
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

  int64_t width_;
  std::vector<float> rows_, projections_, direction_;
  std::vector<uint16_t> order_;
};

void write_centre(const Partition& keys, Part part, int64_t width, unsigned char* block, int64_t lane, int64_t quads) {
  std::vector<double> centre(static_cast<size_t>(width), 0.0);
  for (int64_t at = part.from; at < part.to; ++at) {
    for (int64_t x = 0; x < width; ++x) centre[static_cast<size_t>(x)] += static_cast<double>(keys.row(at)[x]);
  }
  double largest = 0, square = 0, least = 2;
  for (double c : centre) largest = std::max(largest, std::fabs(c));
  for (int64_t x = 0; x < width; ++x) {
    double& c = centre[static_cast<size_t>(x)];
    c = largest > 0 ? std::nearbyint(c / largest * static_cast<double>(kSketchScale)) : 0;
    block[x / 4 * 4 * kBlockKeys + lane * 4 + x % 4] = static_cast<unsigned char>(static_cast<int8_t>(c));
    square += c * c;
  }
  const double inverse = square > 0 ? 1 / std::sqrt(square) : 0;
  for (int64_t at = part.from; at < part.to; ++at) {
    double s = 0;
    for (int64_t x = 0; x < width; ++x) s += centre[static_cast<size_t>(x)] * static_cast<double>(keys.row(at)[x]);
    least = std::min(least, s * inverse);
  }
  // A prepared key has length 1 to 2e-7. Without a direction, every query is near.
  const double cosine = inverse > 0 && least > -1 ? std::max(-1.0, std::min(1.0, least) - 1e-6) : -1;
  float* numbers = reinterpret_cast<float*>(block + quads * 4 * kBlockKeys) + lane;
  numbers[0] = static_cast<float>(inverse);
  numbers[kBlockKeys] = static_cast<float>(cosine);
  numbers[2 * kBlockKeys] = static_cast<float>(std::sqrt(1 - cosine * cosine) + 1e-7);
}

}  // namespace

void group_keys(const float* prepared, const SearchMemory& memory, const Groups& groups) {
  Partition keys(prepared, memory.key_width);
  const std::vector<Part> parts = keys.run();
  std::memcpy(groups.members, keys.order(), sizeof(uint16_t) * static_cast<size_t>(kEpoch));
  std::memset(groups.centres, 0, static_cast<size_t>(kMaxGroups / kBlockKeys * memory.centre_block()));
  // Parts are disjoint and cover the epoch, in any order; groups are listed by their first member.
  std::vector<Part> sorted = parts;
  std::sort(sorted.begin(), sorted.end(), [](Part a, Part b) { return a.from < b.from; });
  for (size_t g = 0; g < sorted.size(); ++g) {
    const int64_t number = static_cast<int64_t>(g);
    groups.first[g] = static_cast<uint16_t>(sorted[g].from);
    write_centre(keys, sorted[g], memory.key_width, groups.centres + number / kBlockKeys * memory.centre_block(), number % kBlockKeys,
                 memory.quads());
  }
  groups.first[sorted.size()] = static_cast<uint16_t>(kEpoch);
  *groups.count = static_cast<int64_t>(sorted.size());
}

}  // namespace keysift
