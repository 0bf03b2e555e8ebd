// Ctrl-C while C++ waits: Python runs its signal handlers on the main thread only, and only when
// asked.
#pragma once

namespace dmlcomm::adaptor {

// Remembers which thread is Python's main thread. Once, at import.
void remember_main_thread();

// On the main thread: runs the handlers of signals that have arrived, taking the GIL for it; throws
// py::error_already_set (KeyboardInterrupt) if one raised. Elsewhere: nothing.
void check_interrupts();

}  // namespace dmlcomm::adaptor
