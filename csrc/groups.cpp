// Groups of an epoch of keys by direction.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "partition.h"
#include "search_layout.h"

namespace keysift {
namespace {

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
  const int64_t width = memory.key_width;
  std::vector<float> rows(static_cast<size_t>(kEpoch * width));
  for (int64_t slot = 0; slot < kEpoch; ++slot) {
    const float* column = prepared + slot / kBlockKeys * (width + 1) * kBlockKeys + slot % kBlockKeys;
    for (int64_t x = 0; x < width; ++x) rows[static_cast<size_t>(slot * width + x)] = column[x * kBlockKeys];
  }
  Partition keys(std::move(rows), width, kGroupKeys, kMaxGroups);
  const std::vector<Part> parts = keys.run();
  std::memcpy(groups.members, keys.order(), sizeof(uint16_t) * static_cast<size_t>(kEpoch));
  std::memset(groups.centres, 0, static_cast<size_t>(kMaxGroups / kBlockKeys * memory.centre_block()));
  for (size_t g = 0; g < parts.size(); ++g) {
    const int64_t number = static_cast<int64_t>(g);
    groups.first[g] = static_cast<uint16_t>(parts[g].from);
    write_centre(keys, parts[g], memory.key_width, groups.centres + number / kBlockKeys * memory.centre_block(), number % kBlockKeys,
                 memory.quads());
  }
  groups.first[parts.size()] = static_cast<uint16_t>(kEpoch);
  *groups.count = static_cast<int64_t>(parts.size());
}

}  // namespace keysift
