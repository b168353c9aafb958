// Debug mode: notes say what to report if the program touches guarded memory (guarded_view.h). A
// handler of SIGSEGV, which is installed with the first note, writes one line to the standard
// error. Then it calls the handler that was installed before, or lets the process die as it would
// have without it. If the program installs a handler later that does not call the one before, the
// line is not written.
//
// Notes live in a fixed table, which the handler reads without a lock, because it may interrupt a
// thread that holds any lock.
#pragma once
#include <cstdint>
#include <string_view>

namespace fsccl {

inline constexpr size_t kFaultNotes = 8192;

// Takes a free place in the table and returns its number, or -1 if there is none.
int add_fault_note();
// From now on an access to [begin, begin + bytes) is reported as "fsccl: write to <address>, byte
// <n> of <text>" ("read of" for a read; "access to" where the processor does not tell). If several
// notes cover one address, the last one counts. A text is cut at 199 bytes.
void set_fault_note(int note, const void* begin, uint64_t bytes, std::string_view text);
void remove_fault_note(int note);

}  // namespace fsccl
