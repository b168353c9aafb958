#include "base/pins.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace fsccl {
namespace {

TEST(Pins, AreSeenByAllThreads) {
  Pins::prepare();
  int object = 0, other = 0;
  Pins::Word* const word = Pins::set(&object);
  ASSERT_TRUE(word);
  std::thread([&] {
    Pins::fence_all_threads();
    EXPECT_TRUE(Pins::held(&object));
    EXPECT_FALSE(Pins::held_here(&object));
    EXPECT_FALSE(Pins::held(&other));
  }).join();
  EXPECT_TRUE(Pins::held_here(&object));
  Pins::clear(word);
  EXPECT_FALSE(Pins::held(&object));
}

TEST(Pins, OfAThreadAreFew) {
  int object = 0;
  std::vector<Pins::Word*> words;
  while (Pins::Word* const word = Pins::set(&object)) words.push_back(word);
  EXPECT_EQ(words.size(), Pins::kMost);
  Pins::clear(words[3]);
  EXPECT_EQ(Pins::set(&object), words[3]);
  for (Pins::Word* const word : words) Pins::clear(word);
}

// A thread gets the words of a thread that has ended.
TEST(Pins, WordsOfThreadsThatHaveEndedAreUsedAgain) {
  int object = 0;
  Pins::Word* first = nullptr;
  for (int i = 0; i < 100; i++)
    std::thread([&] {
      Pins::Word* const word = Pins::set(&object);
      if (!first) first = word;
      EXPECT_EQ(word, first);
      Pins::clear(word);
    }).join();
}

}  // namespace
}  // namespace fsccl
