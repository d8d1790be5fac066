#include "isa.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

namespace keysift {

#if defined(KEYSIFT_X86)
namespace avx512 {
Kernels kernels(int64_t, int64_t);
SumsKernels sums_kernels(int32_t);
ThresholdKernels threshold_kernels();
}
namespace avx2 {
Kernels kernels(int64_t, int64_t);
SumsKernels sums_kernels(int32_t);
ThresholdKernels threshold_kernels();
}
#endif
namespace plain {
Kernels kernels(int64_t, int64_t);
SumsKernels sums_kernels(int32_t);
ThresholdKernels threshold_kernels();
}

namespace {

struct Variant {
  const char* name;
  KernelsFor kernels;
  SumsKernelsFor sums_kernels;
  ThresholdKernelsFor threshold_kernels;
  bool runs;
};

const std::array<Variant, 3>& variants() {
#if defined(KEYSIFT_X86)
  __builtin_cpu_init();
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  static const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  static const std::array<Variant, 3> all = {
      {{"avx512", avx512::kernels, avx512::sums_kernels, avx512::threshold_kernels, has_avx512},
       {"avx2", avx2::kernels, avx2::sums_kernels, avx2::threshold_kernels, has_avx2},
       {"plain", plain::kernels, plain::sums_kernels, plain::threshold_kernels, true}}};
#else
  static const std::array<Variant, 3> all = {{{"avx512", nullptr, nullptr, nullptr, false},
                                              {"avx2", nullptr, nullptr, nullptr, false},
                                              {"plain", plain::kernels, plain::sums_kernels, plain::threshold_kernels, true}}};
#endif
  return all;
}

// "": the best this machine has.
const Variant* find(const char* wanted) {
  for (const Variant& variant : variants()) {
    if (*wanted == '\0' ? variant.runs : std::strcmp(wanted, variant.name) == 0) return &variant;
  }
  return nullptr;
}

}  // namespace

const Isa& isa() {
  static const Isa chosen = [] {
    const char* wanted = std::getenv("KEYSIFT_ISA");
    const Variant* variant = find(wanted ? wanted : "");
    return variant && variant->runs ? Isa{variant->name, variant->kernels, variant->sums_kernels, variant->threshold_kernels}
                                    : Isa{nullptr, nullptr, nullptr, nullptr};
  }();
  return chosen;
}

}  // namespace keysift

const char* keysift_isa(void) { return keysift::isa().name; }

const char* keysift_isas(void) {
  static const std::string names = [] {
    std::string runs;
    for (const keysift::Variant& variant : keysift::variants()) {
      if (variant.runs) runs += (runs.empty() ? "" : " ") + std::string(variant.name);
    }
    return runs;
  }();
  return names.c_str();
}

int keysift_isa_status(const char* name) {
  const keysift::Variant* variant = keysift::find(name ? name : "");
  if (!variant) return KEYSIFT_ISA_UNKNOWN;
  return variant->runs ? KEYSIFT_ISA_RUNS : KEYSIFT_ISA_NOT_HERE;
}
