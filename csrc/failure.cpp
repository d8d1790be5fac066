#include "failure.h"

#include <cstdarg>
#include <cstdio>

namespace keysift {
namespace {

thread_local char last_error[256] = "";

}  // namespace

int fail(int status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return status;
}

int fail_run(int status) {
  if (status == KEYSIFT_NO_MEMORY) return fail(status, "out of memory for scratch space");
  return fail(status, "the parallel-for given to keysift_set_threads failed");
}

}  // namespace keysift

const char* keysift_last_error(void) { return keysift::last_error; }
