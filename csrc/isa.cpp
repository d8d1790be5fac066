#include "isa.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace keysift {

#if defined(KEYSIFT_X86)
namespace avx512 { Kernels kernels(int64_t, int64_t); }
namespace avx2 { Kernels kernels(int64_t, int64_t); }
#endif
namespace plain { Kernels kernels(int64_t, int64_t); }

namespace {

struct Variant {
  const char* name;
  KernelsFor kernels;
  bool runs;
};

Isa choose() {
#if defined(KEYSIFT_X86)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const Variant variants[] = {
      {"avx512", avx512::kernels, has_avx512}, {"avx2", avx2::kernels, has_avx2}, {"plain", plain::kernels, true}};
#else
  const Variant variants[] = {{"avx512", nullptr, false}, {"avx2", nullptr, false}, {"plain", plain::kernels, true}};
#endif
  Isa found{nullptr, nullptr, ""};
  const char* wanted = std::getenv("KEYSIFT_ISA");
  const bool any = wanted == nullptr || *wanted == '\0';
  for (const Variant& variant : variants) {
    if (!any && std::strcmp(wanted, variant.name) != 0) continue;
    if (variant.runs) return {variant.name, variant.kernels, ""};
    if (any) continue;
    std::snprintf(found.error, sizeof found.error, "KEYSIFT_ISA=%s: this machine cannot run it; unset it to use the best one",
                  variant.name);
    return found;
  }
  std::snprintf(found.error, sizeof found.error, "KEYSIFT_ISA=%.40s is unknown; use avx512, avx2 or plain", wanted);
  return found;
}

}  // namespace

const Isa& isa() {
  static const Isa chosen = choose();
  return chosen;
}

}  // namespace keysift
