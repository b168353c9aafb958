// Tests handles: which object a handle names, how long its users keep the object, who ends it, and
// what the same number names later.
#include "api/handle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

namespace fsccl {

const char* kind_name(HandleKind) { return "thing"; }

namespace {

struct Thing {
  explicit Thing(int number) : value(number) {}
  ~Thing() { value = -1; }
  std::atomic<int> value;
};
using Things = HandleTable<Thing, HandleKind::pool, 4>;

Deadline soon() { return Deadline::in_ms(20); }
Status anyway(const Thing&) { return success(); }

TEST(Handles, NameTheirObjectAlone) {
  Things things;
  const uint64_t one = things.add(std::make_unique<Thing>(1)).value(),
                 two = things.add(std::make_unique<Thing>(2)).value();
  EXPECT_EQ(things.find(one)->value, 1);
  EXPECT_EQ(things.find(two)->value, 2);
  EXPECT_FALSE(things.find(0));
  EXPECT_FALSE(things.find(one ^ uint64_t{1} << 56));  // a handle of another kind
  EXPECT_FALSE(things.find(one + (uint64_t{1} << 24)));
  EXPECT_FALSE(things.find(one | 0xffffff));
  EXPECT_TRUE(things.end(one, soon(), anyway).ok());
  EXPECT_FALSE(things.find(one));
  EXPECT_EQ(things.end(one, soon(), anyway).status().code(), FSCCL_ERR_INVALID_HANDLE);
  EXPECT_EQ(things.find(two)->value, 2);
}

TEST(Handles, AreNotUsedAgain) {
  Things things;
  std::set<uint64_t> used;
  for (int i = 0; i < 100'000; i++) {
    const uint64_t bits = things.add(std::make_unique<Thing>(i)).value();
    ASSERT_TRUE(used.insert(bits).second);
    ASSERT_TRUE(things.end(bits, soon(), anyway).ok());
  }
  for (const uint64_t bits : used) ASSERT_FALSE(things.find(bits));
}

// The handle of a work names a slot, and the slot's generation only modulo a number.
TEST(Handles, AreFoundByAPartOfTheirGeneration) {
  Things things;
  for (uint32_t i = 0; i < 4; i++)
    ASSERT_EQ(HandleBits(things.add(std::make_unique<Thing>(0)).value()).slot, i);
  for (int i = 1; i < 20; i++) {
    const uint64_t old =
        uint64_t{static_cast<uint8_t>(HandleKind::pool)} << 56 | static_cast<uint64_t>(i) << 24 | 1;
    ASSERT_TRUE(things.end(old, soon(), anyway).ok());
    const HandleBits handle(things.add(std::make_unique<Thing>(i)).value());
    ASSERT_EQ(handle.slot, 0u);
    EXPECT_EQ(things.at<7>(0, handle.generation % 7)->value, i);
    EXPECT_FALSE(things.at<7>(0, (handle.generation + 1) % 7));
    EXPECT_FALSE(things.at(0, handle.generation - 1));
  }
}

// A reference that was moved from names nothing, and holds nothing.
TEST(Handles, AMovedReferenceHoldsNothing) {
  Things things;
  const uint64_t bits = things.add(std::make_unique<Thing>(1)).value();
  Ref<Thing> from = things.find(bits);
  Ref<const Thing> to(from.get(), std::move(from));
  EXPECT_FALSE(from);
  EXPECT_EQ(to->value, 1);
  EXPECT_FALSE(things.end(bits, Deadline::never(), anyway).ok());  // this thread holds a reference
  to = {};
  EXPECT_TRUE(things.end(bits, soon(), anyway).ok());
}

TEST(Handles, AreLimited) {
  Things things;
  std::vector<uint64_t> all;
  for (int i = 0; i < 4; i++) all.push_back(things.add(std::make_unique<Thing>(i)).value());
  EXPECT_EQ(things.add(std::make_unique<Thing>(4)).status().code(), FSCCL_ERR_LIMIT);
  EXPECT_TRUE(things.end(all[2], soon(), anyway).ok());
  EXPECT_EQ(things.find(things.add(std::make_unique<Thing>(5)).value())->value, 5);
}

TEST(Handles, AnEndThatIsRefusedChangesNothing) {
  Things things;
  const uint64_t bits = things.add(std::make_unique<Thing>(1)).value();
  const auto ended = things.end(
      bits, soon(), [](const Thing&) { return fail(FSCCL_ERR_INVALID_STATE, "not now"); });
  EXPECT_EQ(ended.status().text(), "not now");
  EXPECT_EQ(things.find(bits)->value, 1);
  EXPECT_TRUE(things.end(bits, soon(), anyway).ok());
}

TEST(Handles, WhoUsesAnObjectCannotEndIt) {
  Things things;
  const uint64_t bits = things.add(std::make_unique<Thing>(1)).value();
  const Ref<Thing> used = things.find(bits);
  EXPECT_THAT(things.end(bits, Deadline::never(), anyway).status().text(),
              testing::HasSubstr("called from a function"));
  EXPECT_EQ(used->value, 1);
}

// An object is not ended while a thread uses it, not even if that thread has no free pin word left
// to mark the use.
TEST(Handles, AnEndWaitsForUsers) {
  for (const size_t before : {size_t{0}, Pins::kMost}) {
    Things things;
    const uint64_t bits = things.add(std::make_unique<Thing>(1)).value(),
                   other = things.add(std::make_unique<Thing>(2)).value();
    std::atomic<int> stage{0};
    std::thread user([&] {
      std::vector<Ref<Thing>> many;
      for (size_t i = 0; i < before; i++) many.push_back(things.find(other));
      Ref<Thing> used = things.find(bits);
      stage = 1;
      while (stage == 1) std::this_thread::yield();
      EXPECT_EQ(used->value, 1);
      used = {};
    });
    while (stage == 0) std::this_thread::yield();
    EXPECT_THAT(things.end(bits, soon(), anyway).status().text(), testing::HasSubstr("still used"));
    EXPECT_EQ(things.find(bits)->value, 1);  // other threads can go on using the object
    stage = 2;
    EXPECT_TRUE(things.end(bits, Deadline::never(), anyway).ok());
    user.join();
  }
}

// A caller that uses an object uses the object that owns it, too.
TEST(Handles, OfAnOwnersObjectsHoldTheOwner) {
  Things things;
  const uint64_t owner = things.add(std::make_unique<Thing>(1)).value(),
                 own = things.add(std::make_unique<Thing>(2), owner).value();
  std::atomic<int> stage{0};
  std::thread user([&] {
    const Ref<Thing> used = things.find(own);
    stage = 1;
    while (stage == 1) std::this_thread::yield();
  });
  while (stage == 0) std::this_thread::yield();
  EXPECT_FALSE(things.end(owner, soon(), anyway).ok());
  stage = 2;
  user.join();
  std::unique_ptr<Thing> taken;
  EXPECT_TRUE(things
                  .end(owner, soon(),
                       [&](const Thing&) {
                         taken = things.take(own);
                         return success();
                       })
                  .ok());
  EXPECT_EQ(taken->value, 2);
  EXPECT_FALSE(things.find(own));
}

TEST(Handles, AreLookedUpWhileOthersEndThem) {
  Things things;
  std::atomic<uint64_t> current{things.add(std::make_unique<Thing>(1)).value()};
  std::atomic<bool> stop{false};
  std::vector<std::thread> users;
  for (int t = 0; t < 3; t++)
    users.emplace_back([&] {
      while (!stop) {
        const Ref<Thing> used = things.find(current);
        EXPECT_TRUE(!used || used->value > 0);
      }
    });
  for (int i = 2; i < 2000; i++) {
    const uint64_t next = things.add(std::make_unique<Thing>(i)).value(),
                   last = current.exchange(next);
    EXPECT_TRUE(things.end(last, Deadline::never(), anyway).ok());
  }
  stop = true;
  for (std::thread& user : users) user.join();
}

}  // namespace
}  // namespace fsccl
