// A rank's pieces of all parameters as one range of 16-bit words, end to end. Records and whole
// copies consist of these words.
//
//   16-bit types          an element is a word
//   1-byte types          two elements are a word; if their number is odd, the upper half of the
//                         last word is 0
//   4- and 8-byte types   the planes of the piece one after the other, the uppermost 16 bits of all
//                         elements first: the upper planes change little from step to step and
//                         code well, while the lower planes do not
//
// A tied parameter has no words of its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "codec/delta.h"
#include "layout/layout.h"
#include "publish/catalog.h"

namespace fsccl::publish {

constexpr uint64_t words_of(fsccl_dtype_t dtype, uint64_t elements) {
  return (elements * dtype_size(dtype) + 1) / 2;
}

// A rank's piece of a parameter.
struct WordPiece {
  size_t param = 0;               // the parameter's index in the catalog
  uint64_t begin = 0, count = 0;  // elements of the parameter
  uint64_t first_word = 0;
};

struct WordRange {
  std::vector<WordPiece> pieces;  // the pieces that hold anything, in order
  uint64_t words = 0;

  size_t blocks() const {
    return static_cast<size_t>((words + kDeltaBlockWords - 1) / kDeltaBlockWords);
  }
  uint64_t block_begin(size_t block) const { return uint64_t{block} * kDeltaBlockWords; }
  size_t block_words(size_t block) const {
    return static_cast<size_t>(std::min<uint64_t>(kDeltaBlockWords, words - block_begin(block)));
  }
};
WordRange words_of_rank(const Catalog& catalog, const std::vector<Layout>& layouts, int rank);
// Returns for each parameter the one that holds its bytes: itself, or what it is tied to.
std::vector<size_t> owners_of(const std::vector<Layout>& layouts);

// Writes words first .. first + count of a piece to `out`. The piece has `elements` elements, which
// lie at `from` as type `stored` and are sent as type `sent`. The types are equal, or both floats.
void read_words(const void* from, fsccl_dtype_t stored, fsccl_dtype_t sent, uint64_t elements,
                uint64_t first, size_t count, uint16_t* out);

// Writes elements begin .. begin + count of the piece in `words` to `to`, as type `stored`.
void write_elements(const uint16_t* words, fsccl_dtype_t sent, uint64_t elements, uint64_t begin,
                    uint64_t count, void* to, fsccl_dtype_t stored);

}  // namespace fsccl::publish
