#include "tile_constants.h"

#include <cmath>

namespace keysift {
namespace {

constexpr double kPi = 3.14159265358979323846;

Tile tile_of(const keysift_problem& p, int64_t h) {
  const double w = static_cast<double>(p.window[h]);
  const double w_th = static_cast<double>(p.w_th);
  const float effective_window = p.effective_window ? p.effective_window[h] : p.window[h];
  Tile tile{};
  tile.fades = std::isfinite(effective_window);
  // An integer d satisfies d < effective_window exactly when d < ceil(effective_window).
  tile.span = effective_window < 1e18f ? static_cast<int64_t>(std::ceil(static_cast<double>(effective_window))) : kUnlimited;
  tile.acceptance = p.acceptance[h];
  tile.threshold = 1.0f - tile.acceptance;
  tile.inverse = 1.0 / static_cast<double>(tile.acceptance);
  tile.half_angle_step = tile.fades ? kPi / 2 / static_cast<double>(effective_window) : 0.0;
  if (!(p.flags & KEYSIFT_NO_ROTATION) && w < w_th) {
    const double gamma = (std::cos(kPi * w / w_th) + 1) / 2;
    const double gamma_slope = -kPi / (2 * w_th) * std::sin(kPi * w / w_th);
    tile.rotates = true;
    tile.turns_per_position = gamma / (2 * w);
    tile.angle_slope = kPi * (gamma_slope * w - gamma) / (w * w);
  }
  return tile;
}

}  // namespace

std::vector<Tile> tiles_of(const keysift_problem& p) {
  std::vector<Tile> tiles;
  for (int64_t h = 0; h < p.tiles; ++h) tiles.push_back(tile_of(p, h));
  return tiles;
}

}  // namespace keysift
