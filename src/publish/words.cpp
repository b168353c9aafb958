#include "publish/words.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/kernels.h"

namespace fsccl::publish {
namespace {

constexpr size_t kElementsAtOnce =
    2048;  // so many elements of up to 8 bytes fit in the first cache

const uint8_t* at(const void* base, uint64_t bytes) {
  return static_cast<const uint8_t*>(base) + bytes;
}
uint8_t* at(void* base, uint64_t bytes) { return static_cast<uint8_t*>(base) + bytes; }

void convert(void* to, fsccl_dtype_t into, const void* from, fsccl_dtype_t stored, uint64_t count) {
  if (into == stored)
    std::memcpy(to, from, count * dtype_size(into));
  else
    (void)cast(to, into, from, stored, count, Stores::cached);  // both are floats: it is supported
}

// Reads one plane of the elements begin .. begin + count.
void read_plane(const void* from, fsccl_dtype_t stored, fsccl_dtype_t sent, uint64_t plane,
                uint64_t begin, uint64_t count, uint16_t* out) {
  const size_t size = dtype_size(sent), place = size - 2 * (plane + 1);
  alignas(64) std::array<uint8_t, 8 * kElementsAtOnce> elements;
  while (count > 0) {
    const uint64_t some = std::min<uint64_t>(count, kElementsAtOnce);
    convert(elements.data(), sent, at(from, begin * dtype_size(stored)), stored, some);
    for (uint64_t i = 0; i < some; i++)
      std::memcpy(out + i, elements.data() + i * size + place, sizeof *out);
    begin += some;
    count -= some;
    out += some;
  }
}

}  // namespace

WordRange words_of_rank(const Catalog& catalog, const std::vector<Layout>& layouts, int rank) {
  WordRange range;
  size_t first = 0;
  for (const Layout& layout : layouts) {
    for (size_t i = 0; i < layout.size(); i++) {
      const Piece piece = layout.piece(rank, i);
      if (layout.tied(i) || piece.count == 0) continue;
      range.pieces.push_back({first + i, piece.begin, piece.count, range.words});
      range.words += words_of(catalog.params[first + i].dtype, piece.count);
    }
    first += layout.size();
  }
  return range;
}

std::vector<size_t> owners_of(const std::vector<Layout>& layouts) {
  std::vector<size_t> owners;
  for (const Layout& layout : layouts) {
    const size_t first = owners.size();
    for (size_t i = 0; i < layout.size(); i++) owners.push_back(first + layout.owner(i));
  }
  return owners;
}

void read_words(const void* from, fsccl_dtype_t stored, fsccl_dtype_t sent, uint64_t elements,
                uint64_t first, size_t count, uint16_t* out) {
  const size_t size = dtype_size(sent);
  if (size == 1) {
    const uint64_t bytes = std::min<uint64_t>(2 * count, elements - 2 * first);
    out[count - 1] = 0;
    std::memcpy(out, at(from, 2 * first), bytes);
    return;
  }
  if (size == 2) return convert(out, sent, at(from, first * dtype_size(stored)), stored, count);
  while (count > 0) {
    const uint64_t plane = first / elements, begin = first % elements;
    const uint64_t some = std::min<uint64_t>(count, elements - begin);
    read_plane(from, stored, sent, plane, begin, some, out);
    first += some;
    out += some;
    count -= some;
  }
}

void write_elements(const uint16_t* words, fsccl_dtype_t sent, uint64_t elements, uint64_t begin,
                    uint64_t count, void* to, fsccl_dtype_t stored) {
  const size_t size = dtype_size(sent);
  if (size <= 2) return convert(to, stored, at(words, begin * size), sent, count);
  alignas(64) std::array<uint8_t, 8 * kElementsAtOnce> joined;
  while (count > 0) {
    const uint64_t some = std::min<uint64_t>(count, kElementsAtOnce);
    for (size_t plane = 0; plane < size / 2; plane++) {
      const uint16_t* const from = words + plane * elements + begin;
      const size_t place = size - 2 * (plane + 1);
      for (uint64_t i = 0; i < some; i++)
        std::memcpy(joined.data() + i * size + place, from + i, sizeof *from);
    }
    convert(to, stored, joined.data(), sent, some);
    begin += some;
    count -= some;
    to = at(to, some * dtype_size(stored));
  }
}

}  // namespace fsccl::publish
