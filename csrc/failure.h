// Error messages of failed calls, stored per thread.
#pragma once

#include <exception>

#include "screening.h"

namespace keysift {

// Stores the message for keysift_last_error() and returns the status.
__attribute__((format(printf, 2, 3))) int fail(int status, const char* format, ...);

// The same for a status of run_tasks.
int fail_run(int status);

// No exception may cross the C boundary.
template <class Body>
int guarded(Body body) {
  try {
    return body();
  } catch (const std::exception&) {
    return fail_run(KEYSIFT_NO_MEMORY);
  }
}

}  // namespace keysift
