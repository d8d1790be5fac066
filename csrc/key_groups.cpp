// Groups of the keys of a long row: which tiles use them, and their blocks, epoch by epoch.
#include "key_groups.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "isa.h"
#include "parallel.h"
#include "partition.h"

namespace keysift {
namespace {

constexpr int64_t kLeastEpochs = 2;      // a shorter row is scanned
constexpr int64_t kMostInBlocks = 1024;  // of an epoch; larger groups are cut in any order
constexpr int64_t kBatches = 4;          // of queries in a sample
constexpr int64_t kSampled = 32;         // blocks of keys in a sample
constexpr int64_t kSampleGroup = 8;      // keys: as large a part of a sample as a block is of an epoch
// Reading a key of an opened group takes up to three times as long as scanning it: groups are smaller than a block.
constexpr int64_t kOpenedCost = 4;

struct Source {
  const Plan& plan;
  const keysift_segment& segment;
  const ScreeningKernels kernels;
  int64_t tile;
  int64_t width() const { return plan.problem.key_width; }
};

// The centre of a group and its limit: no member is accepted by a query whose fp32 score with the centre is at most that.
float write_centre(const Partition& keys, Part part, const Source& source, float* centre, int64_t stride) {
  const int64_t width = source.width();
  std::vector<double> sum(static_cast<size_t>(width), 0.0);
  for (int64_t at = part.from; at < part.to; ++at) {
    for (int64_t x = 0; x < width; ++x) sum[static_cast<size_t>(x)] += static_cast<double>(keys.row(at)[x]);
  }
  double square = 0, length = 0, least = 2;
  for (double c : sum) square += c * c;
  for (int64_t x = 0; x < width; ++x) {
    const float c = square > 0 ? static_cast<float>(sum[static_cast<size_t>(x)] / std::sqrt(square)) : 0.0f;
    centre[x * stride] = c;
    length += static_cast<double>(c) * static_cast<double>(c);
  }
  length = std::sqrt(length);
  if (!(length > 0)) return -INFINITY;
  for (int64_t at = part.from; at < part.to; ++at) {
    double s = 0;
    for (int64_t x = 0; x < width; ++x) s += static_cast<double>(centre[x * stride]) * static_cast<double>(keys.row(at)[x]);
    least = std::min(least, s / length);
  }
  // <query, key> <= cos(angle(query, centre) - radius), so a key above the threshold needs an angle below this one. Unit rows have the
  // length 1 up to 4e-7.
  const double slack = score_slack(width) + 4e-7;
  const double radius = std::acos(std::max(-1.0, std::min(1.0, least - 4e-7)));
  const double threshold = static_cast<double>(source.plan.tiles[source.tile].threshold) - slack;
  const double angle = std::acos(std::max(-1.0, std::min(1.0, threshold))) + radius;
  if (angle >= M_PI) return -INFINITY;
  return std::nextafter(static_cast<float>(std::cos(angle) * length - slack), -INFINITY);
}

bool read_keys(const Source& source, int64_t first, float* rows) {
  return source.kernels.unit_keys(source.plan, source.segment, source.tile, first, rows);
}

// Whether groups of this tile refuse enough keys, from a sample of its keys and queries.
bool refuse_enough(const Source& source, int64_t epochs) {
  const int64_t width = source.width(), pad = source.kernels.padded(width);
  std::vector<float> rows(static_cast<size_t>(kSampled * kBlock * width)), queries(static_cast<size_t>(kBatches * kBatch * pad));
  for (int64_t b = 0; b < kSampled; ++b) {
    const int64_t block = b * (epochs * kKeyEpoch / kBlock) / kSampled;
    if (!read_keys(source, block * kBlock, rows.data() + b * kBlock * width)) return false;
  }
  for (int64_t b = 0; b < kBatches; ++b) {
    const int64_t first = b * ((source.segment.queries - kBatch) / kBatch) / (kBatches - 1) * kBatch;
    source.kernels.unit_queries(source.plan, source.segment, source.tile, first, kBatch, queries.data() + b * kBatch * pad);
  }
  Partition keys(std::move(rows), width, kSampleGroup, kSampled * kBlock);
  std::vector<float> centre(static_cast<size_t>(width));
  int64_t opened = 0;
  for (Part part : keys.run()) {
    const float limit = write_centre(keys, part, source, centre.data(), 1);
    for (int64_t i = 0; i < kBatches * kBatch; ++i) {
      float score = 0;
      for (int64_t x = 0; x < width; ++x) score += queries[static_cast<size_t>(i * pad + x)] * centre[static_cast<size_t>(x)];
      if (!(score <= limit)) opened += part.to - part.from;
    }
  }
  return opened * kOpenedCost < kBatches * kBatch * kSampled * kBlock;
}

// Appends an epoch. Returns false if one of its keys or values is not finite.
bool append_epoch(const Source& source, GroupedTile* tile) {
  const int64_t width = source.width(), start = static_cast<int64_t>(tile->epochs.size()) * kKeyEpoch;
  std::vector<float> rows(static_cast<size_t>(kKeyEpoch * width));
  for (int64_t key = 0; key < kKeyEpoch; key += kBlock) {
    if (!read_keys(source, start + key, rows.data() + key * width)) return false;
  }
  Partition keys(std::move(rows), width, kBlock, kMostInBlocks);
  std::vector<Part> blocks;
  for (Part part : keys.run()) {
    const int64_t pieces = (part.to - part.from + kBlock - 1) / kBlock;
    for (int64_t n = 0; n < pieces; ++n) {
      const int64_t size = part.to - part.from;
      blocks.push_back({part.from + n * size / pieces, part.from + (n + 1) * size / pieces});
    }
  }
  GroupedEpoch epoch;
  epoch.count = static_cast<int64_t>(blocks.size());
  const size_t padded = static_cast<size_t>(round_up(epoch.count, kBlock));
  epoch.keys.assign(blocks.size() * static_cast<size_t>(width * kBlock), 0.0f);
  epoch.centres.assign(padded * static_cast<size_t>(width), 0.0f);
  epoch.limits.assign(padded, INFINITY);
  epoch.members.assign(blocks.size() * static_cast<size_t>(kBlock), 0);
  for (int64_t b = 0; b < epoch.count; ++b) {
    const Part part = blocks[static_cast<size_t>(b)];
    for (int64_t at = part.from; at < part.to; ++at) {
      epoch.members[static_cast<size_t>(b * kBlock + at - part.from)] = static_cast<int32_t>(start + keys.order()[at]);
      for (int64_t x = 0; x < width; ++x) epoch.keys[static_cast<size_t>((b * width + x) * kBlock + at - part.from)] = keys.row(at)[x];
    }
    epoch.sizes.push_back(static_cast<int32_t>(part.to - part.from));
    float* centre = epoch.centres.data() + b / kBlock * kBlock * width + b % kBlock;
    epoch.limits[static_cast<size_t>(b)] = write_centre(keys, part, source, centre, kBlock);
  }
  tile->epochs.push_back(std::move(epoch));
  return true;
}

void update_tile(const Source& source, bool always, GroupedTile* tile) {
  const int64_t complete = source.segment.keys / kKeyEpoch, span = source.plan.tiles[source.tile].span;
  if (!tile->finite || complete < kLeastEpochs || span < kLeastEpochs * kKeyEpoch) return;
  if (!always && complete >= 2 * tile->estimated_at) {
    tile->used = refuse_enough(source, complete);
    tile->estimated_at = complete;
  }
  if (!always && !tile->used) return tile->epochs.clear();
  while (static_cast<int64_t>(tile->epochs.size()) < complete) {
    const int64_t end = (static_cast<int64_t>(tile->epochs.size()) + 1) * kKeyEpoch;
    if (end <= source.segment.offset - span) {
      tile->epochs.emplace_back();  // no later query sees it
    } else if (!append_epoch(source, tile)) {
      tile->finite = false;
      return tile->epochs.clear();
    }
  }
}

}  // namespace

int update_groups(keysift_key_groups* groups, const Plan& plan, const keysift_segment& segment, int64_t threads) {
  const int64_t count = plan.problem.tiles;
  groups->tiles.resize(static_cast<size_t>(count));
  groups->blocks.resize(static_cast<size_t>(count));
  const ScreeningKernels kernels = keysift::kernels().screening(plan.problem.key_width, plan.problem.value_width);
  const int status = run_tasks(count, threads, 0, [&](int64_t h, char*) {
    update_tile(Source{plan, segment, kernels, h}, groups->always, &groups->tiles[static_cast<size_t>(h)]);
  });
  for (size_t h = 0; h < groups->tiles.size(); ++h) {
    GroupedTile& tile = groups->tiles[h];
    tile.views.clear();
    for (const GroupedEpoch& e : tile.epochs) {
      tile.views.push_back({e.count, e.keys.data(), e.members.data(), e.sizes.data(), e.centres.data(), e.limits.data()});
    }
    groups->blocks[h] = {tile.views.data(), static_cast<int64_t>(tile.views.size())};
  }
  return status;
}

}  // namespace keysift

keysift_key_groups* keysift_key_groups_new(int32_t always) { return new (std::nothrow) keysift_key_groups(always != 0); }

void keysift_key_groups_free(keysift_key_groups* groups) { delete groups; }
