#include "isa.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "decode_plan.h"
#include "failure.h"

// Every variant, best first: X(name, whether this machine can run it). CMakeLists.txt builds each from variant.cpp and decode_variant.cpp.
#define KEYSIFT_X86_VARIANTS(X) X(avx512, has_avx512()) X(avx2, has_avx2())
#define KEYSIFT_PORTABLE_VARIANTS(X) X(plain, true)

#if defined(KEYSIFT_X86)
#define KEYSIFT_BUILT_VARIANTS(X) KEYSIFT_X86_VARIANTS(X) KEYSIFT_PORTABLE_VARIANTS(X)
#define KEYSIFT_OTHER_VARIANTS(X)
#else
#define KEYSIFT_BUILT_VARIANTS(X) KEYSIFT_PORTABLE_VARIANTS(X)
#define KEYSIFT_OTHER_VARIANTS(X) KEYSIFT_X86_VARIANTS(X)
#endif

namespace keysift {

#define KEYSIFT_DECLARE(name, runs) \
  namespace name {                  \
  extern const Kernels kernels;     \
  }
KEYSIFT_BUILT_VARIANTS(KEYSIFT_DECLARE)
#undef KEYSIFT_DECLARE

namespace {

struct Variant {
  const char* name;
  const Kernels* kernels;
  bool runs;
};

#if defined(KEYSIFT_X86)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

const std::vector<Variant>& variants() {
#if defined(KEYSIFT_X86)
  __builtin_cpu_init();
#endif
#define KEYSIFT_BUILT(name, runs) {#name, &name::kernels, runs},
#define KEYSIFT_OTHER(name, runs) {#name, nullptr, false},
  static const std::vector<Variant> all{KEYSIFT_OTHER_VARIANTS(KEYSIFT_OTHER) KEYSIFT_BUILT_VARIANTS(KEYSIFT_BUILT)};
#undef KEYSIFT_BUILT
#undef KEYSIFT_OTHER
  return all;
}

// The variant with this name, or NULL; "" is the best one that this machine can run.
const Variant* find(const char* name) {
  for (const Variant& variant : variants()) {
    if (*name == '\0' ? variant.runs : std::strcmp(name, variant.name) == 0) return &variant;
  }
  return nullptr;
}

// Chosen on first use; NULL if KEYSIFT_ISA names a variant that this machine cannot run.
const Variant* chosen() {
  static const Variant* const variant = [] {
    const char* name = std::getenv("KEYSIFT_ISA");
    const Variant* named = find(name ? name : "");
    return named && named->runs ? named : nullptr;
  }();
  return variant;
}

}  // namespace

const int64_t prefetch_bytes = [] {
#if defined(KEYSIFT_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_is("intel")) return kPrefetchBytes;
#endif
  return int64_t{0};
}();

const Kernels& kernels() { return *chosen()->kernels; }

int check_isa() {
  if (chosen()) return KEYSIFT_OK;
  return fail(KEYSIFT_BAD_ISA, "KEYSIFT_ISA names no variant that this machine can run; use one of: %s", keysift_isas());
}

}  // namespace keysift

const char* keysift_isa(void) { return keysift::chosen() ? keysift::chosen()->name : nullptr; }

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
