// The text with which a pool names the blocks that live: the largest ones come first.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace fsccl {

// `text_of` returns the text of one block.
template <class Block, class TextOf>
std::string text_of_largest(std::vector<const Block*> blocks, const TextOf& text_of) {
  constexpr size_t kNamed = 16;
  std::sort(blocks.begin(), blocks.end(), [](const Block* a, const Block* b) {
    return std::pair(b->bytes, a->call) < std::pair(a->bytes, b->call);
  });
  std::string text;
  for (size_t i = 0; i < std::min(blocks.size(), kNamed); i++)
    text += (i ? ", " : "") + text_of(*blocks[i]);
  if (blocks.size() > kNamed) text += fmt::format(" and {} more", blocks.size() - kNamed);
  return text;
}

}  // namespace fsccl
