// Debug mode: what is to be said when the program touches guarded memory (guarded_view.h). A
// handler of SIGSEGV, which is there from the first note on, writes one line to the standard error,
// and goes on to the handler that was there before, or lets the process die as it would have. A
// program that installs a handler later, without calling the one before, does without the line.
//
// Notes live in a fixed table, which the handler reads without a lock: it may interrupt anything.
#pragma once
#include <cstdint>
#include <string_view>

namespace fsccl {

inline constexpr size_t kFaultNotes = 8192;

// A free place in the table; -1: there is none.
int add_fault_note();
// From now on an access to [begin, begin + bytes) is reported as "write to <address>, byte <n> of
// <text>". If several notes cover one address, the last one counts. A text is cut at 200
// characters.
void set_fault_note(int note, const void* begin, uint64_t bytes, std::string_view text);
void remove_fault_note(int note);

}  // namespace fsccl
