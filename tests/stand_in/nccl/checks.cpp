// Counts calls, injects faults, and notes forbidden calls.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "comm.h"

namespace fsccl::stand_in_nccl {
namespace {

struct Injection {
  char function[64];
  int call, rank;
  Fault fault;
};

struct Books {
  std::mutex mutex;
  std::map<std::string, uint64_t> calls;                     // by function
  std::map<std::pair<std::string, int>, int> calls_of_rank;  // by function and rank
  std::vector<Injection> injections;
  std::string rules, last_error;
};

// Reads a list such as "ncclAllGather:3:error,ncclCommInitRankConfig:1:hang:1". An entry names a
// function, the number of its call, the fault, and the only rank on which it happens.
std::vector<Injection> read_injections() {
  std::vector<Injection> found;
  const char* const text = std::getenv("FSCCL_STAND_IN_NCCL_FAIL");
  std::stringstream stream(text ? text : "");
  for (std::string word; std::getline(stream, word, ',');) {
    Injection one{};
    char what[16] = "";
    one.rank = -1;
    if (std::sscanf(word.c_str(), "%63[^:]:%d:%15[^:]:%d", one.function, &one.call, what,
                    &one.rank) < 3)
      continue;
    one.fault = !std::strcmp(what, "hang")    ? Fault::hang
                : !std::strcmp(what, "async") ? Fault::async
                                              : Fault::error;
    found.push_back(one);
  }
  return found;
}

Books& books() {
  static Books* const made = [] {
    auto* const books = new Books;
    books->injections = read_injections();
    return books;
  }();
  return *made;
}

}  // namespace

Fault called(const char* function, int rank) {
  Books& all = books();
  const std::lock_guard lock(all.mutex);
  const uint64_t call = ++all.calls[function];
  const int of_rank = ++all.calls_of_rank[{function, rank}];
  for (const Injection& one : all.injections) {
    if (std::strcmp(one.function, function) != 0) continue;
    if (one.rank < 0 ? static_cast<uint64_t>(one.call) == call
                     : one.rank == rank && one.call == of_rank)
      return one.fault;
  }
  return Fault::none;
}

Code broken(const std::string& line) {
  Books& all = books();
  const std::lock_guard lock(all.mutex);
  all.rules += line + "\n";
  all.last_error = line;
  if (std::getenv("FSCCL_STAND_IN_VERBOSE"))
    std::fprintf(stderr, "stand-in for NCCL: %s\n", line.c_str());
  return kInvalidUsage;
}

void set_last_error(const std::string& text) {
  Books& all = books();
  const std::lock_guard lock(all.mutex);
  all.last_error = text;
}

}  // namespace fsccl::stand_in_nccl

using namespace fsccl::stand_in_nccl;

extern "C" {

uint64_t fsccl_stand_in_nccl_calls(const char* function) {
  const std::lock_guard lock(books().mutex);
  return books().calls[function];
}

// Writes the broken rules, and forgets them.
size_t fsccl_stand_in_nccl_broken_rules(char* text, size_t capacity) {
  const std::lock_guard lock(books().mutex);
  std::snprintf(text, capacity, "%s", books().rules.c_str());
  const size_t size = books().rules.size();
  books().rules.clear();
  return size;
}

const char* ncclGetLastError(ncclComm*) {
  static thread_local std::string text;
  const std::lock_guard lock(books().mutex);
  text = books().last_error;
  return text.c_str();
}

}  // extern "C"
