// The texts of the last errors are in a ring. A number is kFirst plus a place in the ring.
// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "symbols.h"

namespace fsccl_mpi {
namespace {
constexpr int kFirst = kERR_LASTCODE + 1;
constexpr int kKept = 256;
// MPI_MAX_ERROR_STRING is 1024 in MPItrampoline's ABI, with the final zero.
constexpr size_t kLongest = 1023;

std::mutex texts_lock;
std::array<std::string, kKept> texts;
int next_text = 0;
}  // namespace

int refuse(const std::string& text) {
  const std::lock_guard guard(texts_lock);
  const int place = next_text;
  next_text = (next_text + 1) % kKept;
  texts[static_cast<size_t>(place)] = "FSCCL: " + text;
  return kFirst + place;
}

std::string text_of(int code) {
  if (code == kSUCCESS) return "no error";
  const std::lock_guard guard(texts_lock);
  if (code < kFirst || code >= kFirst + kKept ||
      texts[static_cast<size_t>(code - kFirst)].empty()) {
    return "FSCCL: " + std::to_string(code) + " is no error that it has returned";
  }
  const std::string& text = texts[static_cast<size_t>(code - kFirst)];
  size_t end = std::min(kLongest, text.size());
  // Python refuses a text that ends within a character of UTF-8.
  while (end < text.size() && end > 0 && (text[end] & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace fsccl_mpi
